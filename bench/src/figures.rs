//! What was measured, as data: tables, JSON and budgets read it. Must not measure anything itself.

pub(crate) mod churn;
pub(crate) mod fold;
pub(crate) mod medians;
pub(crate) mod scale;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use tapestry_engine::clock::{Clock as _, SystemClock};
use tapestry_testbed::audit::Requests;

use self::churn::Churned;
use self::fold::Fold;
use self::scale::Scaled;
use crate::load::Load;
use crate::machine::{Machine, Memory, Spent};
use crate::observers::Moments;
use crate::sources::Dependents;
use crate::work::Work;

/// Who carries the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Who {
    /// `tapestry syncer`
    Syncer,
    /// `bench bare`
    Bare,
}

impl Who {
    /// In tables and file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Syncer => "syncer",
            Self::Bare => "bare",
        }
    }

    /// As both API servers know it. Requests are counted by user, which no header can change.
    pub(crate) fn user(self) -> &'static str {
        match self {
            Self::Syncer => "bench-syncer",
            Self::Bare => "bench-bare",
        }
    }
}

/// One invocation of `bench`.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    /// When it began, RFC 3339.
    pub(crate) when: String,
    /// Its arguments.
    pub(crate) command: String,
    /// Whether this program was built without optimisation: then nothing here means anything.
    pub(crate) debug_build: bool,
    /// The computer.
    pub(crate) machine: Machine,
    /// Physical nodes.
    pub(crate) nodes: usize,
    /// Loads, in the order in which they ran.
    pub(crate) scenes: Vec<Scene>,
    /// Rests, in the order in which they ran.
    pub(crate) rests: Vec<Rest>,
    /// Pods that came and went, if that was asked for.
    pub(crate) churn: Option<Churned>,
    /// Many nodes, if that was asked for.
    pub(crate) scale: Option<Scaled>,
    /// Counting in memory, if that was asked for.
    pub(crate) fold: Option<Fold>,
}

impl Figures {
    /// Nothing yet, on this machine.
    pub(crate) fn new(machine: Machine, nodes: usize) -> Self {
        Self {
            when: format!("{:.0}", SystemClock::start().now().wall),
            command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
            debug_build: cfg!(debug_assertions),
            machine,
            nodes,
            scenes: Vec::new(),
            rests: Vec::new(),
            churn: None,
            scale: None,
            fold: None,
        }
    }
}

/// One load carried by one subject.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Scene {
    pub(crate) load: Load,
    pub(crate) who: Who,
    pub(crate) raised: Raised,
    pub(crate) cleared: Cleared,
}

/// From the first create to the last virtual pod seen running.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Raised {
    pub(crate) pods_per_second: f64,
    /// Created → physical pod seen.
    pub(crate) down: Spread,
    /// Physical pod seen running → virtual pod seen running.
    pub(crate) up: Spread,
    /// Created → virtual pod seen running.
    pub(crate) end_to_end: Spread,
    pub(crate) calls: Calls,
    pub(crate) cost: Cost,
}

/// From the first delete to no pod on either side.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cleared {
    pub(crate) seconds: f64,
    pub(crate) pods_per_second: f64,
    pub(crate) calls: Calls,
    pub(crate) cost: Cost,
}

/// Milliseconds, where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// What a phase cost.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cost {
    /// Of the subject.
    pub(crate) cpu_ms_per_pod: f64,
    /// Of the subject, at the end of the phase; the peak is since its start.
    pub(crate) memory: Memory,
    pub(crate) spent: Spent,
    /// What the virtual and the physical API server did meanwhile.
    pub(crate) servers: [Work; 2],
}

/// Requests of the subject, without watches.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Calls {
    /// On pods and their status, per pod.
    pub(crate) virtual_writes: f64,
    pub(crate) virtual_reads: f64,
    pub(crate) physical_writes: f64,
    pub(crate) physical_reads: f64,
    /// On ConfigMaps and Secrets, in all: written, and read.
    pub(crate) dependents: [usize; 2],
    /// On anything else, in all: leases, nodes, events, probes.
    pub(crate) other: usize,
    /// Answered with 4xx or 5xx, in all.
    pub(crate) refused: usize,
    /// `virtual patch pods/status 200` → how many.
    pub(crate) kinds: BTreeMap<String, usize>,
}

/// Nothing happens for a while; then the process is restarted among the same pods.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Rest {
    pub(crate) who: Who,
    /// Running on both sides all the time.
    pub(crate) pods: u32,
    /// What each of them names.
    pub(crate) dependents: Dependents,
    pub(crate) idle: Option<Idle>,
    pub(crate) cold: Option<Cold>,
}

/// A time in which nothing happens.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Idle {
    pub(crate) seconds: u64,
    /// Of one core.
    pub(crate) cpu_percent: f64,
    pub(crate) memory: Memory,
    pub(crate) calls: Calls,
}

/// A start among pods that are as they should be.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cold {
    /// From the start of the process until it says that it is ready.
    pub(crate) ready_ms: f64,
    /// From the start of the process until five seconds after it was ready.
    pub(crate) cpu_ms: u64,
    pub(crate) memory: Memory,
    /// The same time.
    pub(crate) calls: Calls,
    /// Reading all pods of both sides in pages of 500, at the same time, without looking at them: the best of three.
    pub(crate) lists_ms: f64,
}

impl Scene {
    /// Whether the pods ran about as fast as they were made. Else delays tell how long the queue was, not how quick the subject is.
    pub(crate) fn keeps_up(&self) -> bool {
        self.raised.pods_per_second >= 0.95 * f64::from(self.load.rate)
    }
}

impl Raised {
    /// From what the observers noted.
    pub(crate) fn new(begin: Instant, pods: &[Moments], calls: Calls, cost: Cost) -> Self {
        let between = |from: fn(&Moments) -> Option<Instant>, to: fn(&Moments) -> Option<Instant>| {
            // A watch may be quicker than the answer to the create: that is no time at all.
            Spread::of(pods.iter().filter_map(|pod| Some(to(pod)?.saturating_duration_since(from(pod)?))).collect())
        };
        let end = pods.iter().filter_map(|pod| pod.virtual_running).max().unwrap_or(begin);
        Self {
            pods_per_second: rate(pods.len(), end - begin),
            down: between(|pod| pod.created, |pod| pod.copied),
            up: between(|pod| pod.physical_running, |pod| pod.virtual_running),
            end_to_end: between(|pod| pod.created, |pod| pod.virtual_running),
            calls,
            cost,
        }
    }
}

impl Cleared {
    pub(crate) fn new(pods: u32, took: Duration, calls: Calls, cost: Cost) -> Self {
        Self { seconds: took.as_secs_f64(), pods_per_second: rate(pods as usize, took), calls, cost }
    }
}

impl Spread {
    /// Nearest rank: the smallest value that so many percent do not exceed.
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let rank = |percent: usize| {
            let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
            times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
        };
        Self { p50: rank(50), p99: rank(99) }
    }
}

impl Cost {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of an hour are far below 2^52")]
    pub(crate) fn new(spent: Spent, memory: Memory, servers: [Work; 2], pods: u32) -> Self {
        Self { cpu_ms_per_pod: spent.subject_ms as f64 / f64::from(pods.max(1)), memory, spent, servers }
    }
}

impl Calls {
    /// Counts what `who` asked of the virtual and the physical API server.
    #[expect(clippy::cast_precision_loss, reason = "requests of a run are far below 2^52")]
    pub(crate) fn count(who: Who, sides: [&Requests; 2], pods: u32) -> Self {
        let mut kinds = BTreeMap::new();
        let (mut writes, mut reads) = ([0_usize; 2], [0_usize; 2]);
        let (mut dependents, mut other, mut refused) = ([0; 2], 0, 0);
        for (side, requests) in sides.into_iter().enumerate() {
            for request in requests.0.iter().filter(|request| request.user == who.user() && request.verb != "watch") {
                let slash = if request.subresource.is_empty() { "" } else { "/" };
                let side_name = ["virtual", "physical"][side];
                let kind = format!(
                    "{side_name} {} {}{slash}{} {}",
                    request.verb, request.resource, request.subresource, request.code
                );
                *kinds.entry(kind).or_default() += 1;
                refused += usize::from(request.code >= 400);
                match (request.resource.as_str(), request.verb.as_str()) {
                    ("pods", "get" | "list") => reads[side] += 1,
                    ("pods", _) => writes[side] += 1,
                    ("configmaps" | "secrets", "get" | "list") => dependents[1] += 1,
                    ("configmaps" | "secrets", _) => dependents[0] += 1,
                    _ => other += 1,
                }
            }
        }
        let per_pod = |count: usize| count as f64 / f64::from(pods.max(1));
        Self {
            virtual_writes: per_pod(writes[0]),
            virtual_reads: per_pod(reads[0]),
            physical_writes: per_pod(writes[1]),
            physical_reads: per_pod(reads[1]),
            dependents,
            other,
            refused,
            kinds,
        }
    }

    /// Writes of anything but leases, by kind: what a system at rest must not do.
    pub(crate) fn needless(&self) -> BTreeMap<&str, usize> {
        let reads = |kind: &str| kind.contains(" get ") || kind.contains(" list ");
        let writes = self.kinds.iter().filter(|(kind, _)| !reads(kind) && !kind.contains(" leases.coordination"));
        writes.map(|(kind, count)| (kind.as_str(), *count)).collect()
    }

    /// Writes of leases.
    pub(crate) fn leases(&self) -> usize {
        let leases =
            self.kinds.iter().filter(|(kind, _)| kind.contains(" leases.coordination") && !kind.contains(" get "));
        leases.map(|(_, count)| count).sum()
    }
}

#[expect(clippy::cast_precision_loss, reason = "pods of a run are far below 2^52")]
fn rate(pods: usize, took: Duration) -> f64 {
    pods as f64 / took.as_secs_f64().max(f64::EPSILON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let spread = Spread::of((1..=1000).rev().map(Duration::from_millis).collect());
        assert_eq!(spread, Spread { p50: 500.0, p99: 990.0 });
        let one = Spread::of(vec![Duration::from_millis(7)]);
        assert_eq!(one, Spread { p50: 7.0, p99: 7.0 });
        assert!(Spread::of(Vec::new()).p50.is_nan());
    }

    #[test]
    fn pods_per_second_end_with_the_last_virtual_pod_running() {
        let begin = Instant::now();
        let at = |ms| Some(begin + Duration::from_millis(ms));
        let pod = |ms| Moments { created: at(1), copied: at(0), physical_running: at(100), virtual_running: at(ms) };
        let (calls, spent) = (Calls::count(Who::Bare, [&Requests::default(); 2], 2), nothing_spent());
        let cost = Cost::new(spent, Memory { now: 0, peak: 0, anon: 0 }, [Work::default(); 2], 2);
        let raised = Raised::new(begin, &[pod(500), pod(200)], calls, cost);
        assert!((raised.pods_per_second - 4.0).abs() < 1e-9);
        assert!(raised.down.p50.abs() < 1e-9, "seen before the answer");
        assert!((raised.up.p99 - 400.0).abs() < 1e-9);
    }

    fn nothing_spent() -> Spent {
        Spent {
            wall: Duration::ZERO,
            subject_ms: 0,
            load_ms: 0,
            clusters_ms: 0,
            parts_ms: BTreeMap::new(),
            others_ms: 0,
            others_percent: 0.0,
        }
    }
}
