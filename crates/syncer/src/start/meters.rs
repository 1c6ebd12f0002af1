//! What syncers count of themselves: one family per metric for all bindings of a process, told apart by a label. Decides nothing.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tapestry_cluster::gate::{CallMetrics, Metrics};
use tapestry_cluster::watches::{Pulse, Pulses};
use tapestry_engine::Desk;

use crate::pair::Pair;

/// The metrics of all syncers of a process. Registered once, before the first of them opens, so that they are served while it
/// waits for its clusters. Cheap to clone.
#[derive(Clone)]
pub struct Meters {
    gauges: Gauges,
    calls: CallMetrics,
    pulses: Pulses,
}

#[derive(Clone, Default)]
struct Gauges {
    waiting: Family<Binding, Gauge>,
    flying: Family<Binding, Gauge>,
    ready: Family<Binding, Gauge>,
    leader: Family<Binding, Gauge>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Binding {
    binding: Arc<str>,
}

impl Meters {
    /// Adds them to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let gauges = Gauges::default();
        for (name, help, family) in [
            ("queue_depth", "Keys waiting to be planned", &gauges.waiting),
            ("calls_in_flight", "Calls to API servers that have not been answered yet", &gauges.flying),
            ("ready", "1 when both clusters answer, all lists are in and all watches deliver", &gauges.ready),
            ("leader", "1 while this process leads, 0 while it follows", &gauges.leader),
        ] {
            registry.register(name, help, family.clone());
        }
        Self { gauges, calls: CallMetrics::register(registry), pulses: Pulses::register(registry) }
    }

    /// Those of one binding.
    pub(super) fn of(&self, binding: &str) -> BindingMeters {
        let binding = Arc::<str>::from(binding);
        let (calls, pulse) = (self.calls.of(&binding), self.pulses.of(&binding));
        let meters = BindingMeters { gauges: self.gauges.clone(), label: Binding { binding }, calls, pulse };
        meters.set([0; 4]);
        meters
    }
}

impl Gauges {
    fn all(&self) -> [&Family<Binding, Gauge>; 4] {
        [&self.waiting, &self.flying, &self.ready, &self.leader]
    }
}

/// The metrics of one binding. What it says of the present ends with it; what it counted stays.
pub(crate) struct BindingMeters {
    gauges: Gauges,
    label: Binding,
    pub(crate) calls: Metrics,
    pub(crate) pulse: Pulse,
}

impl BindingMeters {
    pub(super) fn show(&self, desk: &Desk<Pair>) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (ready, leads) = (desk.model.lacks().is_none(), desk.leads());
        self.set([number(desk.waiting()), number(desk.flying()), i64::from(ready), i64::from(leads)]);
    }

    /// In the order of [`Gauges::all`].
    fn set(&self, values: [i64; 4]) {
        for (family, value) in self.gauges.all().into_iter().zip(values) {
            family.get_or_create(&self.label).set(value);
        }
    }
}

impl Drop for BindingMeters {
    fn drop(&mut self) {
        for family in self.gauges.all() {
            family.remove(&self.label);
        }
    }
}
