//! The guide for pods that stay Pending, against the code: no reason and no taint of ours is missing there.
//! Reads sources as text, since a reason is a literal where it is told; it must know every file that tells one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where reasons for pods and nodes that wait are told.
const TOLD_IN: [&str; 9] = [
    "crates/domain/src/placement.rs",
    "crates/domain/src/podspec/needs.rs",
    "crates/syncer/src/guards.rs",
    "crates/syncer/src/nodes/departure.rs",
    "crates/syncer/src/pods/admission.rs",
    "crates/syncer/src/pods/row.rs",
    "crates/syncer/src/pods/settle.rs",
    "crates/syncer/src/prerequisites.rs",
    "crates/syncer/src/terms.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Every source of this crate that is no test, as a path from the root.
fn sources(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap());
    let paths = entries.flat_map(|entry| {
        let path = format!("{folder}/{}", entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() { sources(&path) } else { vec![path] }
    });
    paths.filter(|path| !path.contains("tests") && !path.ends_with("documented.rs")).collect()
}

/// What stands between quotes behind `before` at the start of an expression.
fn literal<'a>(line: &'a str, before: &str) -> Option<&'a str> {
    line.split_once(before)?.1.strip_prefix('"')?.split_once('"').map(|(text, _)| text)
}

/// The literals of a source that are told as reasons: those of `Verdict`s, and all that a `fn reason` has.
fn reasons(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in source.lines() {
        inside = (inside || line.contains("fn reason(")) && line != "    }";
        let told = ["reason: ", "let reason = ", "const UNREADABLE: &str = "].map(|before| literal(line, before));
        let arm = inside.then(|| literal(line, "=> ").or_else(|| literal(line.trim_start(), ""))).flatten();
        found.extend(told.into_iter().chain([arm]).flatten().map(str::to_owned));
    }
    found
}

#[test]
fn every_reason_why_a_pod_waits_is_in_the_guide() {
    let guide = read("docs/guide/pending.md");
    let all: BTreeSet<String> = TOLD_IN.into_iter().flat_map(|path| reasons(&read(path))).collect();
    // As a check of the reader itself: one of each way to tell it.
    for known in
        ["MappingLost", "PodUnreadable", "PhysicalClusterRefused", "Suspended", "QuotaRefused", "DependentUnsupported"]
    {
        assert!(all.contains(known), "{known} is not found: {all:?}");
    }
    let missing: Vec<_> = all.iter().filter(|reason| !guide.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "docs/guide/pending.md does not say what to do about {missing:?}");
}

#[test]
fn no_other_file_tells_why_a_pod_waits() {
    let tells = |path: &String| read(path).lines().any(|line| line.contains("Verdict {") && line.contains("reason:"));
    for path in sources("crates/syncer/src").iter().filter(|path| tells(path)) {
        assert!(TOLD_IN.contains(&&**path), "{path}");
    }
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
