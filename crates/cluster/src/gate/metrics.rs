//! Counts requests to API servers by what they ask for and how they end. Decides nothing.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use prometheus_client::registry::Registry;

use crate::kind::Resource;
use crate::{Answer, Call, Refusal, Side, Verb};

/// Counts the calls that pass the gates of all bindings of a process.
#[derive(Clone)]
pub struct CallMetrics {
    calls: Family<Labels, Counter>,
    seconds: Family<SideLabels, Histogram>,
}

/// Counts the calls that pass the gates of one binding.
#[derive(Clone)]
pub struct Metrics {
    families: CallMetrics,
    binding: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    binding: Arc<str>,
    side: &'static str,
    verb: &'static str,
    resource: Resource,
    why: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SideLabels {
    binding: Arc<str>,
    side: &'static str,
}

impl CallMetrics {
    /// Adds the metrics of all gates to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        // 1 ms … 16 s, doubling: a call's deadline is 15 s.
        let buckets = || Histogram::new((0..15).map(|power| 0.001 * f64::from(1 << power)));
        let metrics = Self { calls: Family::default(), seconds: Family::new_with_constructor(buckets) };
        registry.register("calls", "Calls to API servers", metrics.calls.clone());
        registry.register("call_duration_seconds", "How long calls to API servers took", metrics.seconds.clone());
        metrics
    }

    /// Those of one binding.
    #[must_use]
    pub fn of(&self, binding: &Arc<str>) -> Metrics {
        Metrics { families: self.clone(), binding: Arc::clone(binding) }
    }
}

impl Metrics {
    /// Counts one request.
    pub(super) fn count(&self, call: &Call, done: &Result<Answer, Refusal>, took: Duration) {
        let resource = match call.verb {
            Verb::Evict { .. } => Resource::named("pods/eviction"),
            Verb::Discover { .. } => Resource::named("discovery"),
            _ => call.target.kind.into(),
        };
        let outcome = done.as_ref().map_or_else(Refusal::reason, |_| "Ok");
        self.add((call.target.side, call.verb.as_str(), resource), (call.why, outcome), took);
    }

    /// Counts one request for a token.
    pub(super) fn count_token<T>(&self, call: &Call, side: Side, done: &Result<T, Refusal>, took: Duration) {
        let outcome = done.as_ref().map_or_else(Refusal::reason, |_| "Ok");
        self.add((side, "create", Resource::named("serviceaccounts/token")), (call.why, outcome), took);
    }

    fn add(
        &self,
        (side, verb, resource): (Side, &'static str, Resource),
        (why, outcome): (&'static str, &'static str),
        took: Duration,
    ) {
        let side = side.as_str();
        let binding = || Arc::clone(&self.binding);
        let labels = Labels { binding: binding(), side, verb, resource, why, outcome };
        self.families.calls.get_or_create(&labels).inc();
        let labels = SideLabels { binding: binding(), side };
        self.families.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }
}
