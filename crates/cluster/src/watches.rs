//! The watches and probes of one loop, as a set that can grow and shrink while it runs: each entry says what is watched, how
//! it is decoded and which fact it becomes. Reports how every watch stands as a fact of its own. Decides nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch as channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::feed::{Change, Feed, Mailbox, Row};
use crate::probe::{Connection, PROBE_EVERY, probe};
use crate::watch::{Decode, Query, Trouble, Vitals, WatchState, watch};
use crate::{Cluster, Kind, Side};

/// How often it is looked whether a watch has fallen out of sync.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A look that comes so late says that this process did not run; what waits in its sockets is read before the next one.
const FROZEN: Duration = Duration::from_secs(3);

/// Which watch: one per side and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Watched {
    /// The cluster.
    pub side: Side,
    /// The resource.
    pub kind: &'static Kind,
}

/// All that one loop reads; `F` is its fact.
pub struct WatchSet<F> {
    sources: BTreeMap<Watched, Source<F>>,
    probes: Vec<(Side, channel::Receiver<Connection>)>,
    wrap_state: fn(Watched, WatchState) -> F,
    wrap_connection: fn(Side, Connection) -> F,
    /// Of this set, and of all that share the metrics.
    pulses: [Pulse; 2],
    bell: Arc<Notify>,
    cancel: CancellationToken,
}

/// Takes what waits in a mailbox, as facts.
type Drain<F> = dyn Fn(&mut Vec<F>) + Send;

/// One entry of the set.
struct Source<F> {
    drain: Box<Drain<F>>,
    watching: Arc<Watching>,
    /// What the loop has been told of the watch.
    told: WatchState,
    /// Where its changes come among those of the others; lower first.
    order: usize,
    cancel: CancellationToken,
}

/// A running watch, whatever its rows are.
struct Watching {
    watched: Watched,
    feed: Arc<dyn Alive + Send + Sync>,
    /// How it stood at the last look.
    state: Mutex<WatchState>,
}

/// The feed of a watch, whatever its rows are.
trait Alive {
    fn vitals(&self) -> &Vitals;
    /// How many of its objects cannot be fully read.
    fn unreadable(&self) -> i64;
}

impl<R> Alive for Feed<R> {
    fn vitals(&self) -> &Vitals {
        &self.vitals
    }

    fn unreadable(&self) -> i64 {
        self.unreadable.get()
    }
}

/// How all watches stand, for metrics. Cheap to clone; one may serve several sets.
#[derive(Clone, Default)]
pub struct Pulse(Arc<Mutex<Vec<Weak<Watching>>>>);

impl<F: 'static> WatchSet<F> {
    /// An empty set. What it starts ends with `cancel`; `wrap_state` and `wrap_connection` make facts of how a watch or a
    /// cluster stands.
    #[must_use]
    pub fn new(
        wrap_state: fn(Watched, WatchState) -> F,
        wrap_connection: fn(Side, Connection) -> F,
        pulse: Pulse,
        cancel: CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let bell = Arc::new(Notify::new());
        let own = Pulse::default();
        tasks.spawn(look(own.clone(), Arc::clone(&bell), cancel.clone()));
        let pulses = [own, pulse];
        Self { sources: BTreeMap::new(), probes: Vec::new(), wrap_state, wrap_connection, pulses, bell, cancel }
    }

    /// Starts a watch. Facts are handed out in the order in which watches were added. One that is there for the same side and
    /// kind is replaced.
    pub fn add<R: Row + Clone>(
        &mut self,
        cluster: Cluster,
        (side, query): (Side, Query),
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + Sync + 'static,
        wrap: impl Fn(Change<R>) -> F + Send + 'static,
        tasks: &mut JoinSet<()>,
    ) {
        let watched = Watched { side, kind: query.kind };
        let feed: Arc<Feed<R>> = Arc::default();
        let mailbox = feed.subscribe(Arc::clone(&self.bell));
        let cancel = self.cancel.child_token();
        let decode: Decode<R> = Arc::new(decode);
        tasks.spawn(until_removed(
            watch(cluster, query, decode, Arc::clone(&feed), cancel.clone()),
            self.cancel.clone(),
        ));
        let watching = Arc::new(Watching { watched, feed, state: Mutex::new(WatchState::Starting) });
        self.pulses.iter().for_each(|pulse| pulse.watch(&watching));
        let drain = Box::new(move |into: &mut Vec<F>| drain(&mailbox, &wrap, into));
        let order = self.sources.values().map(|source| source.order + 1).max().unwrap_or(0);
        let source = Source { drain, watching, told: WatchState::Starting, order, cancel };
        if let Some(before) = self.sources.insert(watched, source) {
            before.cancel.cancel();
        }
    }

    /// Ends a watch: no fact of it comes any more.
    pub fn remove(&mut self, watched: Watched) {
        if let Some(source) = self.sources.remove(&watched) {
            source.cancel.cancel();
        }
    }

    /// Starts asking a cluster who it is, every few seconds.
    pub fn probe(&mut self, side: Side, cluster: Cluster, tasks: &mut JoinSet<()>) {
        let (connection_tx, connection_rx) = channel::channel(Connection::Unknown);
        let (mut changes, bell) = (connection_rx.clone(), Arc::clone(&self.bell));
        tasks.spawn(async move {
            if let Err(error) = probe(cluster, PROBE_EVERY, connection_tx).await {
                tracing::error!(%error, "the probe ended");
            }
        });
        tasks.spawn(async move {
            while changes.changed().await.is_ok() {
                bell.notify_one();
            }
        });
        self.probes.push((side, connection_rx));
    }

    /// Takes all facts that wait.
    pub fn drain(&mut self, into: &mut Vec<F>) {
        for (side, connection) in &mut self.probes {
            if !connection.has_changed().unwrap_or(false) {
                continue;
            }
            let connection = connection.borrow_and_update().clone();
            if let Connection::Up(_) = connection {
                let those = self.sources.iter().filter(|(watched, _)| watched.side == *side);
                those.for_each(|(_, source)| source.watching.feed.vitals().forgive());
            }
            into.push((self.wrap_connection)(*side, connection));
        }
        let mut sources: Vec<_> = self.sources.iter_mut().collect();
        sources.sort_by_key(|(_, source)| source.order);
        for (watched, source) in sources {
            // Before its changes: with the first of them it is in sync again.
            let state = source.watching.state();
            if state != source.told {
                into.push((self.wrap_state)(*watched, state.clone()));
                source.told = state;
            }
            (source.drain)(into);
        }
    }

    /// The first watch whose list does not come, and why: for those who wait for all lists and have no use for a fact.
    #[must_use]
    pub fn hindered(&self) -> Option<(Watched, Trouble)> {
        self.sources.iter().find_map(|(watched, source)| Some((*watched, source.watching.feed.vitals().hindered()?)))
    }

    /// Rung whenever a fact waits.
    #[must_use]
    pub fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bell)
    }
}

fn drain<R: Row, F>(mailbox: &Mailbox<R>, wrap: impl Fn(Change<R>) -> F, into: &mut Vec<F>) {
    into.extend(mailbox.drain().into_iter().map(wrap));
}

/// A watch that was taken out of the set ends, and its task with the set: a task that ends earlier counts as lost.
async fn until_removed(watch: impl Future<Output = ()>, cancel: CancellationToken) {
    watch.await;
    cancel.cancelled().await;
}

/// Rings when a watch falls out of sync or comes back, which nothing else may tell.
async fn look(pulse: Pulse, bell: Arc<Notify>, cancel: CancellationToken) {
    let mut last = Instant::now();
    while cancel.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
        let frozen = last.elapsed() > FROZEN;
        last = Instant::now();
        if frozen {
            continue;
        }
        // All of them are looked at.
        let news = pulse.living().iter().filter(|watching| watching.look()).count();
        if news > 0 {
            bell.notify_one();
        }
    }
}

impl Watching {
    /// Looks how it stands now; says whether that is news.
    fn look(&self) -> bool {
        let state = self.feed.vitals().state();
        let mut known = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let news = *known != state;
        *known = state;
        news
    }

    fn state(&self) -> WatchState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulse").finish_non_exhaustive()
    }
}

impl Pulse {
    /// Adds the metrics of all watches to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let pulse = Self::default();
        registry.register_collector(Box::new(pulse.clone()));
        pulse
    }

    fn watch(&self, watching: &Arc<Watching>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(watching));
    }

    fn living(&self) -> Vec<Arc<Watching>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }
}

/// What a metric says of a watch.
type Value = dyn Fn(&Watching) -> f64;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    side: &'static str,
    resource: &'static str,
}

impl Collector for Pulse {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let age = |watching: &Watching| watching.feed.vitals().age().as_secs_f64();
        let in_sync = |watching: &Watching| f64::from(u8::from(watching.feed.vitals().state() == WatchState::InSync));
        #[expect(clippy::cast_precision_loss, reason = "a count of objects is far below 2^53")]
        let unreadable = |watching: &Watching| watching.feed.unreadable() as f64;
        let families: [(&str, &str, &Value); 3] = [
            (
                "watch_in_sync",
                "1 while a watch delivers; 0 while it starts, is refused, fails or brings nothing",
                &in_sync,
            ),
            ("watch_age_seconds", "Time since the last event, bookmark or page of a list of a watch", &age),
            ("unreadable_objects", "Objects that cannot be fully read, by watch", &unreadable),
        ];
        let watches = self.living();
        for (name, help, value) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for watching in &watches {
                let Watched { side, kind } = watching.watched;
                let labels = Labels { side: side.as_str(), resource: kind.plural };
                ConstGauge::new(value(watching)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
