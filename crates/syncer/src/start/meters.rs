//! What a syncer counts of itself. Decides nothing.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tapestry_cluster::gate::Metrics;
use tapestry_cluster::watches::Pulse;
use tapestry_engine::Desk;

use crate::pair::Pair;

/// All metrics of a syncer. Registered before it opens, so that they are served while it waits for its clusters.
#[derive(Clone)]
pub struct Meters {
    pub(super) syncer: SyncerMetrics,
    pub(super) calls: Metrics,
    pub(super) pulse: Pulse,
}

impl Meters {
    /// Adds them to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            syncer: SyncerMetrics::register(registry),
            calls: Metrics::register(registry),
            pulse: Pulse::register(registry),
        }
    }
}

#[derive(Clone)]
pub(super) struct SyncerMetrics {
    waiting: Gauge,
    flying: Gauge,
    ready: Gauge,
    leader: Gauge,
}

impl SyncerMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            waiting: Gauge::default(),
            flying: Gauge::default(),
            ready: Gauge::default(),
            leader: Gauge::default(),
        };
        registry.register("queue_depth", "Keys that wait to be looked at", metrics.waiting.clone());
        registry.register(
            "calls_in_flight",
            "Calls to API servers that have not been answered yet",
            metrics.flying.clone(),
        );
        registry.register(
            "ready",
            "1 when both clusters answer, all lists are in and all watches deliver",
            metrics.ready.clone(),
        );
        registry.register("leader", "1 while this process leads, 0 while it follows", metrics.leader.clone());
        metrics
    }

    pub(super) fn show(&self, desk: &Desk<Pair>) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.waiting.set(number(desk.waiting()));
        self.flying.set(number(desk.flying()));
        self.ready.set(i64::from(desk.model.lacks().is_none()));
        self.leader.set(i64::from(desk.leads()));
    }
}
