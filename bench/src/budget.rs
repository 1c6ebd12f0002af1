//! What the design allows (DESIGN §17), held against what was measured. Must not soften a number to make it fit.

use crate::figures::churn::Churned;
use crate::figures::fold::Fold;
use crate::figures::medians::{Median, Rounds, cpu, deletions_per_second, peak_rss, pods_per_second, servers_cpu};
use crate::figures::scale::Scaled;
use crate::figures::{Calls, Figures, Rest, Scene, Spread, Who};
use crate::load::Load;
use crate::sources::Dependents;

/// One promise, and whether it was kept.
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) budget: String,
    pub(crate) measured: String,
    /// `None`: the machine could not show it.
    pub(crate) kept: Option<bool>,
}

/// Every promise that these figures speak of. Of a load that was carried several times, medians count; of calls, the worst round.
pub(crate) fn judge(figures: &Figures) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for syncer in Rounds::all(figures).iter().filter(|rounds| rounds.who == Who::Syncer) {
        judge_calls(syncer, &mut verdicts);
        let bare = Rounds::of(figures, syncer.load, Who::Bare);
        if bare.count() > 0 && syncer.load.rate == 0 {
            judge_burst(syncer, &bare, &mut verdicts);
        } else if bare.count() > 0 {
            judge_delays(syncer, &bare, &mut verdicts);
        }
        judge_distance(figures, syncer, &mut verdicts);
        judge_sharing(figures, syncer, &mut verdicts);
    }
    for rest in figures.rests.iter().filter(|rest| rest.who == Who::Syncer) {
        judge_rest(rest, &mut verdicts);
    }
    verdicts.extend(figures.churn.as_ref().and_then(judge_churn));
    if let Some(scaled) = &figures.scale {
        judge_scale(scaled, &mut verdicts);
    }
    if let Some(fold) = &figures.fold {
        judge_fold(fold, &mut verdicts);
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

#[expect(clippy::cast_precision_loss, reason = "requests of a run are far below 2^52")]
fn judge_calls(syncer: &Rounds<'_>, verdicts: &mut Vec<Verdict>) {
    let load = syncer.load;
    let each = 2.0 * f64::from(load.dependents.count(load.pods)) / f64::from(load.pods.max(1));
    let worst = |of: fn(&Calls) -> f64| syncer.median(|scene| of(&scene.raised.calls)).highest;
    let pods = f64::from(load.pods.max(1));
    // kwok gives a pod one status. A hundredth above is a call that went unanswered and was made again.
    for (what, measured, limit) in [
        ("virtual writes per pod", worst(|calls| calls.virtual_writes), 2.01),
        ("physical writes per pod", worst(|calls| calls.physical_writes), 1.01),
        ("reads per pod", worst(|calls| calls.virtual_reads + calls.physical_reads), 0.01),
        ("ConfigMaps and Secrets written per pod", worst(|calls| calls.dependents[0] as f64) / pods, each + 0.01),
        ("ConfigMaps and Secrets read per pod", worst(|calls| calls.dependents[1] as f64) / pods, each + 0.01),
    ] {
        verdicts.push(at_most(format!("{load}: {what}"), measured, limit, ""));
    }
}

fn judge_burst(syncer: &Rounds<'_>, bare: &Rounds<'_>, verdicts: &mut Vec<Verdict>) {
    let load = syncer.load;
    let ratio = |of: fn(&Rounds<'_>) -> Median| of(syncer).middle / of(bare).middle;
    let pace = if load.dependents == Dependents::Own { 0.85 } else { 0.9 };
    verdicts.extend([
        at_least(format!("{load}: pods/s"), ratio(pods_per_second), pace, "× bare"),
        at_least(format!("{load}: deletions/s"), ratio(deletions_per_second), pace, "× bare"),
        at_most(format!("{load}: CPU per pod"), ratio(cpu), 1.2, "× bare"),
        at_most(format!("{load}: CPU of all servers per pod"), ratio(servers_cpu), 1.05, "× bare"),
    ]);
    // Promised for pods alone; what is copied for each comes on top, for bare too.
    if load.dependents != Dependents::Own {
        verdicts.push(at_most(format!("{load}: CPU per pod"), cpu(syncer).middle, 1.3, " ms"));
    }
    if load.pods <= 1000 {
        verdicts.push(at_most(format!("{load}: peak RSS"), peak_rss(syncer).middle, 24.0, " MiB"));
    }
}

/// Clusters are far apart in life: that costs each pod time, but not the others behind it.
fn judge_distance(figures: &Figures, far: &Rounds<'_>, verdicts: &mut Vec<Verdict>) {
    let near = Rounds::of(figures, Load { rtt_ms: 0, ..far.load }, Who::Syncer);
    if far.load.rtt_ms > 0 && far.load.rate == 0 && near.count() > 0 {
        let ratio = pods_per_second(far).middle / pods_per_second(&near).middle;
        verdicts.push(at_least(format!("{}: pods/s", far.load), ratio, 0.9, "× without distance"));
    }
}

/// What all pods share is copied once. A twentieth is what two medians of the same differ by.
fn judge_sharing(figures: &Figures, shared: &Rounds<'_>, verdicts: &mut Vec<Verdict>) {
    let without = Rounds::of(figures, Load { dependents: Dependents::None, ..shared.load }, Who::Syncer);
    if shared.load.dependents == Dependents::Shared && shared.load.rate == 0 && without.count() > 0 {
        let pace = pods_per_second(shared).middle / pods_per_second(&without).middle;
        let cpu = cpu(shared).middle / cpu(&without).middle;
        verdicts.push(at_least(format!("{}: pods/s", shared.load), pace, 0.95, "× without dependents"));
        verdicts.push(at_most(format!("{}: CPU per pod", shared.load), cpu, 1.05, "× without dependents"));
    }
}

type Delay = fn(&Scene) -> Spread;

fn judge_delays(syncer: &Rounds<'_>, bare: &Rounds<'_>, verdicts: &mut Vec<Verdict>) {
    let delays: [(&str, Delay); 3] = [
        ("down", |scene| scene.raised.down),
        ("up", |scene| scene.raised.up),
        ("end to end", |scene| scene.raised.end_to_end),
    ];
    for (what, of) in delays {
        let ratio = |point: fn(Spread) -> f64| {
            let median = |rounds: &Rounds<'_>| rounds.median(|scene| point(of(scene))).middle;
            median(syncer) / median(bare)
        };
        let p50 = at_most(format!("{}: {what} p50", syncer.load), ratio(|spread| spread.p50), 1.2, "× bare");
        let p99 = at_most(format!("{}: {what} p99", syncer.load), ratio(|spread| spread.p99), 1.5, "× bare");
        for mut verdict in [p50, p99] {
            verdict.kept = verdict.kept.filter(|_| bare.keep_up());
            verdicts.push(verdict);
        }
    }
}

/// A hundred bytes per pod that are never freed would be a mebibyte after 10 000 pods.
fn judge_churn(churned: &Churned) -> Option<Verdict> {
    let (growth, pods) = churned.growth()?;
    let what = format!("{} rounds of {}: growth over {pods} pods", churned.rounds.len(), churned.load);
    Some(at_most(what, growth, 1.0, " MiB")).filter(|_| churned.who == Who::Syncer)
}

#[expect(clippy::cast_precision_loss, reason = "requests of a run are far below 2^52")]
fn judge_rest(rest: &Rest, verdicts: &mut Vec<Verdict>) {
    let pods = format!("{} pods{}", rest.pods, rest.dependents.name());
    if let Some(idle) = &rest.idle {
        let needless: usize = idle.calls.needless().values().sum();
        verdicts.push(at_most(format!("{pods}, idle: writes besides leases"), needless as f64, 0.0, ""));
        verdicts.push(at_most(format!("{pods}, idle: CPU"), idle.cpu_percent, 1.0, " % of a core"));
    }
    if let Some(cold) = &rest.cold {
        let needless: usize = cold.calls.needless().values().sum();
        verdicts.push(at_most(format!("{pods}, cold start: writes besides leases"), needless as f64, 0.0, ""));
        verdicts.push(at_most(format!("{pods}, cold start: ready after"), cold.ready_ms / 1000.0, 5.0, " s"));
        // Promised for many pods; among few, starting a process at all takes longer than reading the lists.
        if rest.pods >= 10_000 {
            let lists = cold.ready_ms / cold.lists_ms;
            verdicts.push(at_most(format!("{pods}, cold start: ready after"), lists, 2.0, "× the bare lists"));
        }
    }
}

/// Memory and pace are promised for 1 000 nodes and 10 000 pods; the smaller the cluster, the fewer leases.
#[expect(clippy::cast_precision_loss, reason = "requests of a run are far below 2^52")]
fn judge_scale(scaled: &Scaled, verdicts: &mut Vec<Verdict>) {
    let Scaled { nodes, pods, converged, rest, changes, cold, .. } = scaled;
    let about = |what: &str| format!("{nodes} nodes, {pods} pods: {what}");
    let memories = [
        ("peak RSS at the first start", converged.as_ref().map(|converged| converged.memory)),
        ("peak RSS at rest", rest.as_ref().map(|rest| rest.memory)),
        ("peak RSS after changes", changes.as_ref().map(|changes| changes.memory)),
        ("peak RSS at a cold start", cold.as_ref().map(|cold| cold.memory)),
    ];
    for (what, memory) in memories.into_iter().filter_map(|(what, memory)| Some((what, memory?))) {
        verdicts.push(at_most(about(what), mib(memory.peak), 60.0, " MiB"));
    }
    if let Some(rest) = rest {
        // Each is renewed every ten seconds; a tenth more, or two, is room for one that was late.
        let each = 0.1 * *nodes as f64;
        let limit = (1.1 * each).max(each + 2.0);
        let needless: usize = rest.calls.needless().values().sum();
        verdicts.extend([
            at_most(about("idle, lease writes"), rest.leases.mean, limit, "/s"),
            at_most(about("idle, lease writes in the fullest second"), rest.leases.most as f64, limit, ""),
            at_most(about("idle, writes besides leases"), needless as f64, 0.0, ""),
        ]);
    }
    if let Some(changes) = changes {
        let writes = &changes.writes;
        verdicts.extend([
            at_most(about("node status writes per change"), writes.count as f64 / f64::from(changes.count), 1.0, ""),
            at_most(about("node status writes without a change"), writes.astray as f64, 0.0, ""),
        ]);
        if let Some(closest) = writes.closest {
            verdicts.push(at_least(about("between two status writes of a node"), closest, 1.0, " s"));
        }
    }
    if let Some(cold) = cold {
        let needless: usize = cold.calls.needless().values().sum();
        verdicts.extend([
            at_most(about("cold start, writes besides leases"), needless as f64, 0.0, ""),
            at_most(about("cold start, ready after"), cold.ready_ms / 1000.0, 5.0, " s"),
        ]);
    }
}

/// Promised for 5 000 nodes and 100 000 pods.
fn judge_fold(fold: &Fold, verdicts: &mut Vec<Verdict>) {
    let [.., smaller, largest] = fold.sizes.as_slice() else { return };
    let about = |what: &str| format!("{} nodes, {} pods in memory: {what}", largest.nodes, largest.pods);
    let change = largest.change_us.p50;
    verdicts.extend([
        at_most(about("from scratch"), largest.scratch_ms / 1000.0, 1.0, " s"),
        at_most(about("one pod's change"), change, 10.0, " µs"),
        // The size of the cluster must not matter; that of the processor's caches does, most of all for the small ones.
        at_most(
            about("one pod's change"),
            change / smaller.change_us.p50,
            1.5,
            &format!("× that of {} nodes", smaller.nodes),
        ),
        at_most(about("arithmetic alone"), fold.arithmetic.whole_ms / 1000.0, 1.0, " s"),
    ]);
}

/// KiB as MiB.
#[expect(clippy::cast_precision_loss, reason = "memory sizes in KiB are far below 2^52")]
pub(crate) fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
