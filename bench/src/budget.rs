//! What the design allows (DESIGN §17), held against what was measured. Must not soften a number to make it fit.

use crate::figures::{Figures, Rest, Scene, Spread, Who};

/// One promise, and whether it was kept.
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) budget: String,
    pub(crate) measured: String,
    /// `None`: the machine could not show it.
    pub(crate) kept: Option<bool>,
}

/// Every promise that these figures speak of.
pub(crate) fn judge(figures: &Figures) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for scene in figures.scenes.iter().filter(|scene| scene.who == Who::Syncer) {
        judge_calls(scene, &mut verdicts);
        if let Some(bare) = partner(figures, scene) {
            if scene.load.rate == 0 {
                judge_burst(scene, bare, &mut verdicts);
            } else {
                judge_delays(scene, bare, &mut verdicts);
            }
        }
    }
    for rest in figures.rests.iter().filter(|rest| rest.who == Who::Syncer) {
        judge_rest(rest, &mut verdicts);
    }
    verdicts
}

/// The bare client under the same load.
pub(crate) fn partner<'a>(figures: &'a Figures, scene: &Scene) -> Option<&'a Scene> {
    figures.scenes.iter().find(|other| other.who == Who::Bare && other.load == scene.load)
}

fn at_most(what: String, measured: f64, limit: f64, unit: &str) -> Verdict {
    Verdict {
        what,
        budget: format!("≤ {limit:.2}{unit}"),
        measured: format!("{measured:.2}{unit}"),
        kept: Some(measured <= limit),
    }
}

fn at_least(what: String, measured: f64, limit: f64, unit: &str) -> Verdict {
    Verdict {
        what,
        budget: format!("≥ {limit:.2}{unit}"),
        measured: format!("{measured:.2}{unit}"),
        kept: Some(measured >= limit),
    }
}

fn judge_calls(scene: &Scene, verdicts: &mut Vec<Verdict>) {
    let (load, calls) = (scene.load, &scene.raised.calls);
    // kwok gives a pod one status. A hundredth above is a call that went unanswered and was made again.
    for (what, measured, limit) in [
        ("virtual writes per pod", calls.virtual_writes, 2.01),
        ("physical writes per pod", calls.physical_writes, 1.01),
        ("reads per pod", calls.virtual_reads + calls.physical_reads, 0.01),
    ] {
        verdicts.push(at_most(format!("{load}: {what}"), measured, limit, ""));
    }
}

fn judge_burst(syncer: &Scene, bare: &Scene, verdicts: &mut Vec<Verdict>) {
    let load = syncer.load;
    let (cpu, bare_cpu) = (syncer.raised.cost.cpu_ms_per_pod, bare.raised.cost.cpu_ms_per_pod);
    verdicts.extend([
        at_least(format!("{load}: pods/s"), syncer.raised.pods_per_second / bare.raised.pods_per_second, 0.9, "× bare"),
        at_least(
            format!("{load}: deletions/s"),
            syncer.cleared.pods_per_second / bare.cleared.pods_per_second,
            0.9,
            "× bare",
        ),
        at_most(format!("{load}: CPU per pod"), cpu, 1.3, " ms"),
        at_most(format!("{load}: CPU per pod"), cpu / bare_cpu, 1.2, "× bare"),
    ]);
    if load.pods <= 1000 {
        verdicts.push(at_most(format!("{load}: peak RSS"), mib(syncer.cleared.cost.memory.peak_kib), 24.0, " MiB"));
    }
}

fn judge_delays(syncer: &Scene, bare: &Scene, verdicts: &mut Vec<Verdict>) {
    let delays: [(&str, Spread, Spread); 3] = [
        ("down", syncer.raised.down, bare.raised.down),
        ("up", syncer.raised.up, bare.raised.up),
        ("end to end", syncer.raised.end_to_end, bare.raised.end_to_end),
    ];
    for (what, ours, theirs) in delays {
        let p50 = at_most(format!("{}: {what} p50", syncer.load), ours.p50 / theirs.p50, 1.2, "× bare");
        let p99 = at_most(format!("{}: {what} p99", syncer.load), ours.p99 / theirs.p99, 1.5, "× bare");
        for mut verdict in [p50, p99] {
            verdict.kept = verdict.kept.filter(|_| bare.keeps_up());
            verdicts.push(verdict);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "requests of a run are far below 2^52")]
fn judge_rest(rest: &Rest, verdicts: &mut Vec<Verdict>) {
    let pods = rest.pods;
    if let Some(idle) = &rest.idle {
        let needless: usize = idle.calls.needless().values().sum();
        verdicts.push(at_most(format!("{pods} pods, idle: writes besides leases"), needless as f64, 0.0, ""));
        verdicts.push(at_most(format!("{pods} pods, idle: CPU"), idle.cpu_percent, 1.0, " % of a core"));
    }
    if let Some(cold) = &rest.cold {
        let needless: usize = cold.calls.needless().values().sum();
        verdicts.push(at_most(format!("{pods} pods, cold start: writes besides leases"), needless as f64, 0.0, ""));
        verdicts.push(at_most(format!("{pods} pods, cold start: ready after"), cold.ready_ms / 1000.0, 5.0, " s"));
        // Promised for many pods; among few, starting a process at all takes longer than reading the lists.
        if pods >= 10_000 {
            let lists = cold.ready_ms / cold.lists_ms;
            verdicts.push(at_most(format!("{pods} pods, cold start: ready after"), lists, 2.0, "× the bare lists"));
        }
    }
}

/// KiB as MiB.
#[expect(clippy::cast_precision_loss, reason = "memory sizes in KiB are far below 2^52")]
pub(crate) fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
