//! The guide for pods that stay Pending, against the code: no reason and no taint of ours is missing there.

use std::path::{Path, PathBuf};

use tapestry_engine::{Listed as _, Reason as _};

use super::PendingReason;
use crate::guards::{Guard, Trouble};
use crate::pods::reason::PodReason;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The text between quotes behind `before` at the start of an expression.
fn literal<'a>(line: &'a str, before: &str) -> Option<&'a str> {
    line.split_once(before)?.1.strip_prefix('"')?.split_once('"').map(|(text, _)| text)
}

#[test]
fn every_reason_why_a_pod_waits_is_in_the_guide() {
    let guide = read("docs/guide/pending.md");
    let guards = Guard::ALL
        .into_iter()
        .flat_map(|guard| [Trouble::Foreign, Trouble::Refused("".into())].map(|trouble| guard.reason(&trouble)));
    let all = PendingReason::ALL.iter().map(|reason| reason.as_str()).chain(guards);
    let missing: Vec<_> = all.filter(|reason| !guide.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "docs/guide/pending.md does not say what to do about {missing:?}");
}

#[test]
fn every_reason_that_a_pod_is_told_later_is_in_the_guide() {
    let guide = read("docs/guide/life.md");
    let all = PodReason::ALL.iter().map(|reason| reason.as_str());
    let missing: Vec<_> = all.filter(|reason| !guide.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "docs/guide/life.md does not say what {missing:?} means");
}

#[test]
fn every_taint_of_ours_is_in_the_guide() {
    let guide = read("docs/guide/pending.md");
    let keys = read("crates/api/src/keys.rs");
    let taints: Vec<_> = keys
        .lines()
        .filter(|line| line.trim_start().starts_with("TAINT_"))
        .filter_map(|line| literal(line, " = "))
        .collect();
    assert!(taints.len() >= 9, "{taints:?}");
    let missing: Vec<_> = taints.iter().filter(|taint| !guide.contains(&format!("{{{taint}: }}"))).collect();
    assert!(missing.is_empty(), "docs/guide/pending.md does not say what to do about {missing:?}");
}
