//! The states of watches: for metrics, and for the loop that reports those of other readers. Decides nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::{Reader, Source, Troubles, Watched};
use crate::Side;
use crate::kind::Resource;
use crate::probe::Connection;
use crate::watch::{Trouble, Vitals, WatchState};

/// A watch as one reader sees it.
pub(super) struct Watching {
    pub(super) watched: Watched,
    pub(super) source: Arc<Source>,
    /// Its state at the last check.
    pub(super) state: Mutex<WatchState>,
}

impl Watching {
    pub(super) fn vitals(&self) -> &Vitals {
        &self.source.feed().vitals
    }

    /// Checks its state now; returns whether it has changed.
    pub(super) fn look(&self) -> bool {
        let state = self.vitals().state();
        let mut known = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let news = *known != state;
        if let (WatchState::OutOfSync(Trouble { verb, why }), true) = (&state, news) {
            let Watched { reader, side, query } = &self.watched;
            let (reader, side, resource) = (reader.as_str(), side.as_str(), Resource::from(query.kind));
            tracing::error!(reader, side, %resource, verb, why, "a watch is out of sync");
        }
        *known = state;
        news
    }

    /// An outage explains troubles that began with it.
    pub(super) fn see_connection(&self, side: Side, connection: &Connection) {
        if self.watched.side != side {
            return;
        }
        match connection {
            Connection::Down(_) | Connection::Refused(_) => self.vitals().begin_outage(),
            Connection::Up(_) => {
                self.vitals().end_outage();
                self.look();
            }
            Connection::Unknown | Connection::Restored(_) => {}
        }
    }

    pub(super) fn state(&self) -> WatchState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The states of all watches of one binding. Cheap to clone; one serves the sets of all its readers.
#[derive(Clone, Default)]
pub struct Pulse(Arc<Mutex<Vec<Weak<Watching>>>>);

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulse").finish_non_exhaustive()
    }
}

impl Pulse {
    pub(super) fn watch(&self, watching: &Arc<Watching>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(watching));
    }

    /// For the syncer: which watches of other readers are out of sync. Empty for any other reader.
    pub(super) fn troubles_of_others(&self, reader: Reader) -> Troubles {
        if reader != Reader::Syncer {
            return Troubles::new();
        }
        let others = self.living().into_iter().filter(|watching| watching.watched.reader != reader);
        let states = others.map(|watching| (watching.watched.clone(), watching.state()));
        states.filter(|(_, state)| matches!(state, WatchState::OutOfSync(_))).collect()
    }

    pub(super) fn living(&self) -> Vec<Arc<Watching>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }
}

/// The metrics of all watches of a process, by binding. Cheap to clone.
#[derive(Clone, Default)]
pub struct Pulses(Arc<Mutex<Vec<Bound>>>);

/// The watches of one binding, for as long as it has any part that reads.
struct Bound {
    binding: Arc<str>,
    pulse: Weak<Mutex<Vec<Weak<Watching>>>>,
}

impl std::fmt::Debug for Pulses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulses").finish_non_exhaustive()
    }
}

impl Pulses {
    /// Adds the metrics of all watches to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let pulses = Self::default();
        registry.register_collector(Box::new(pulses.clone()));
        pulses
    }

    /// The pulse of one more binding.
    #[must_use]
    pub fn of(&self, binding: &Arc<str>) -> Pulse {
        let (mut all, pulse) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Pulse::default());
        all.retain(|known| known.pulse.strong_count() > 0);
        all.push(Bound { binding: Arc::clone(binding), pulse: Arc::downgrade(&pulse.0) });
        pulse
    }

    fn living(&self) -> Vec<(Arc<str>, Arc<Watching>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pulses = all.iter().filter_map(|known| Some((&known.binding, Pulse(known.pulse.upgrade()?))));
        let watches =
            pulses.flat_map(|(binding, pulse)| pulse.living().into_iter().map(|one| (Arc::clone(binding), one)));
        watches.collect()
    }
}

/// The value of a metric for a watch, and how to join those of watches with equal labels.
struct Family {
    name: &'static str,
    help: &'static str,
    value: fn(&Watching) -> f64,
    join: fn(f64, f64) -> f64,
}

const FAMILIES: [Family; 3] = [
    Family {
        name: "watch_in_sync",
        help: "1 while a watch delivers; 0 while it starts, is refused, fails or delivers nothing",
        value: |watching| f64::from(u8::from(watching.vitals().state() == WatchState::InSync)),
        join: f64::min,
    },
    Family {
        name: "watch_age_seconds",
        help: "Time since the last event, bookmark or page of a list of a watch",
        value: |watching| watching.vitals().age().as_secs_f64(),
        join: f64::max,
    },
    Family {
        name: "unreadable_objects",
        help: "Objects that cannot be fully read, by watch",
        #[expect(clippy::cast_precision_loss, reason = "a count of objects is far below 2^53")]
        value: |watching| watching.source.feed().unreadable.get() as f64,
        join: |one, other| one + other,
    },
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Labels {
    binding: Arc<str>,
    side: &'static str,
    resource: Resource,
    reader: &'static str,
}

impl Collector for Pulses {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let watches = self.living();
        for Family { name, help, value, join } in FAMILIES {
            // A reader may have several watches of one resource, told apart by their selectors; a metric must not repeat.
            let mut values = BTreeMap::new();
            for (binding, watching) in &watches {
                let Watched { reader, side, query } = &watching.watched;
                let (side, resource, reader) = (side.as_str(), query.kind.into(), reader.as_str());
                let said = value(watching);
                let labels = Labels { binding: Arc::clone(binding), side, resource, reader };
                values.entry(labels).and_modify(|known| *known = join(*known, said)).or_insert(said);
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, value) in &values {
                ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}
