//! Where a pod's processor time goes: process by process, and what the API servers did; the syncer beside bare.

use std::collections::BTreeSet;

use super::table::Table;
use super::{pairs, ratio};
use crate::figures::{Figures, Scene};
use crate::machine::Spent;

/// A row for each scene, a column for each process.
pub(super) fn render(figures: &Figures) -> String {
    let spent = |scene: &'_ Scene| scene.raised.cost.spent.clone();
    let parts: BTreeSet<String> = figures.scenes.iter().flat_map(|scene| spent(scene).parts_ms.into_keys()).collect();
    let headings = ["load", "who", "subject", "load generator"].into_iter().chain(parts.iter().map(String::as_str));
    let mut table = Table::new(&headings.chain(["control planes and kwok", "all"]).collect::<Vec<_>>());
    for (scene, bare) in pairs(figures) {
        let ours = columns(scene, &parts);
        let who = [scene.load.to_string(), scene.who.name().to_owned()];
        table.row(who.into_iter().chain(ours.iter().map(|ms| format!("{ms:.2}"))));
        if let Some(bare) = bare {
            let ratios = ours.iter().zip(columns(bare, &parts)).map(|(ours, theirs)| ratio(*ours, theirs));
            table.row([String::new(), "÷ bare".to_owned()].into_iter().chain(ratios));
        }
    }
    table.render()
}

/// In the order of the headings.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of an hour are far below 2^52")]
fn columns(scene: &Scene, parts: &BTreeSet<String>) -> Vec<f64> {
    let Spent { subject_ms, load_ms, clusters_ms, parts_ms, .. } = &scene.raised.cost.spent;
    let part = |part: &String| parts_ms.get(part).copied().unwrap_or(0);
    let all = subject_ms + load_ms + clusters_ms;
    let columns = [*subject_ms, *load_ms].into_iter().chain(parts.iter().map(part)).chain([*clusters_ms, all]);
    columns.map(|ms| ms as f64 / f64::from(scene.load.pods.max(1))).collect()
}

/// What the API servers did about it, by their own metrics. More of it per pod explains more CPU per pod.
#[expect(clippy::cast_precision_loss, reason = "counters of a run are far below 2^52")]
pub(super) fn render_work(figures: &Figures) -> String {
    let mut table = Table::new(&[
        "load",
        "who",
        "API server",
        "requests",
        "etcd requests",
        "watch events of pods",
        "lists of pods, in all",
        "watches begun, in all",
        "watches ended as too slow, in all",
    ]);
    for (scene, _) in pairs(figures) {
        for (side, work) in ["virtual", "physical"].into_iter().zip(&scene.raised.cost.servers) {
            let per_pod = |count: u64| format!("{:.2}", count as f64 / f64::from(scene.load.pods.max(1)));
            table.row([
                scene.load.to_string(),
                scene.who.name().to_owned(),
                side.to_owned(),
                per_pod(work.requests),
                per_pod(work.etcd),
                per_pod(work.events),
                work.lists.to_string(),
                work.watches.to_string(),
                work.terminated.to_string(),
            ]);
        }
    }
    table.render()
}
