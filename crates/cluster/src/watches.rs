//! The watches and probes of one loop, as a set that can grow and shrink while it runs: each entry says what is watched, how
//! it is decoded and which fact it becomes. Reports the state of every watch as a fact of its own. Decides nothing.

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

/// How often we check whether a watch is out of sync.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A check that comes this late means that the process was frozen; it reads what waits in its sockets before the next check.
const FROZEN: Duration = Duration::from_secs(3);

/// Who reads a watch: parts of a process that must not depend on each other read the same objects through separate watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reader {
    /// The work itself. Its loop also gets the states of the others' watches.
    Syncer,
    /// The keeper, which renews Leases.
    Keeper,
    /// The election of a leader.
    Election,
}

impl Reader {
    /// For metrics and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syncer => "syncer",
            Self::Keeper => "keeper",
            Self::Election => "election",
        }
    }
}

/// Which watch: one per reader, side and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Watched {
    /// Its reader.
    pub reader: Reader,
    /// The cluster.
    pub side: Side,
    /// The resource.
    pub kind: &'static Kind,
}

/// All that one loop reads; `F` is its fact.
pub struct WatchSet<F> {
    reader: Reader,
    sources: BTreeMap<Watched, Source<F>>,
    /// What the loop knows of the watches of other readers that are out of sync.
    others: Troubles,
    probes: Vec<(Side, channel::Receiver<Connection>)>,
    wrap_state: fn(Watched, WatchState) -> Option<F>,
    wrap_connection: fn(Side, Connection) -> Option<F>,
    /// The watches of this set.
    own: Pulse,
    /// Those of all readers.
    all: Pulse,
    bell: Arc<Notify>,
    cancel: CancellationToken,
}

/// Watches that are out of sync.
type Troubles = BTreeMap<Watched, WatchState>;

/// Takes what waits in a mailbox, as facts.
type Drain<F> = dyn Fn(&mut Vec<F>) + Send;

/// One entry of the set.
struct Source<F> {
    drain: Box<Drain<F>>,
    watching: Arc<Watching>,
    /// The state of the watch that the loop knows.
    told: WatchState,
    /// The position of its changes among those of the others; lower first.
    order: usize,
    cancel: CancellationToken,
}

/// A running watch, whatever its rows are.
struct Watching {
    watched: Watched,
    feed: Arc<dyn Alive + Send + Sync>,
    /// Its state at the last check.
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

/// The states of all watches, for metrics. Cheap to clone; one may serve several sets.
#[derive(Clone, Default)]
pub struct Pulse(Arc<Mutex<Vec<Weak<Watching>>>>);

/// Makes facts of the state of a watch or a cluster, if the loop uses them.
pub struct Wrap<F> {
    /// Of a watch.
    pub state: fn(Watched, WatchState) -> Option<F>,
    /// Of a cluster.
    pub connection: fn(Side, Connection) -> Option<F>,
}

impl<F: 'static> WatchSet<F> {
    /// An empty set. Its tasks end with `cancel`. `all` is shared with the other readers.
    #[must_use]
    pub fn new(
        reader: Reader,
        Wrap { state: wrap_state, connection: wrap_connection }: Wrap<F>,
        all: Pulse,
        cancel: CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let bell = Arc::new(Notify::new());
        let own = Pulse::default();
        tasks.spawn(look(reader, [own.clone(), all.clone()], Arc::clone(&bell), cancel.clone()));
        let (sources, others, probes) = (BTreeMap::new(), Troubles::new(), Vec::new());
        Self { reader, sources, others, probes, wrap_state, wrap_connection, own, all, bell, cancel }
    }

    /// Starts a watch. Facts come in the order in which watches were added. A watch of the same side and kind is replaced.
    pub fn add<R: Row + Clone>(
        &mut self,
        cluster: Cluster,
        (side, query): (Side, Query),
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + Sync + 'static,
        wrap: impl Fn(Change<R>) -> F + Send + 'static,
        tasks: &mut JoinSet<()>,
    ) {
        let watched = Watched { reader: self.reader, side, kind: query.kind };
        let feed: Arc<Feed<R>> = Arc::default();
        let mailbox = feed.subscribe(Arc::clone(&self.bell));
        let cancel = self.cancel.child_token();
        let decode: Decode<R> = Arc::new(decode);
        tasks.spawn(until_removed(
            watch(cluster, query, decode, Arc::clone(&feed), cancel.clone()),
            self.cancel.clone(),
        ));
        let watching = Arc::new(Watching { watched, feed, state: Mutex::new(WatchState::Starting) });
        for pulse in [&self.own, &self.all] {
            pulse.watch(&watching);
        }
        let drain = Box::new(move |into: &mut Vec<F>| drain(&mailbox, &wrap, into));
        let order = self.sources.values().map(|source| source.order + 1).max().unwrap_or(0);
        let source = Source { drain, watching, told: WatchState::Starting, order, cancel };
        if let Some(before) = self.sources.insert(watched, source) {
            before.cancel.cancel();
        }
    }

    /// Ends a watch: it delivers no more facts.
    pub fn remove(&mut self, watched: Watched) {
        if let Some(source) = self.sources.remove(&watched) {
            source.cancel.cancel();
        }
    }

    /// Starts a probe, which asks a cluster for its identity every few seconds.
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
        let mut connections = Vec::new();
        for (side, connection) in &mut self.probes {
            if connection.has_changed().unwrap_or(false) {
                connections.push((*side, connection.borrow_and_update().clone()));
            }
        }
        for (side, connection) in &connections {
            // Not each of the other readers has a probe.
            self.all.living().iter().for_each(|watching| watching.see_connection(*side, connection));
        }
        let mut sources: Vec<_> = self.sources.iter_mut().collect();
        sources.sort_by_key(|(_, source)| source.order);
        // Before the connections, whose facts end troubles that began with an outage; and before the changes, the first of
        // which puts a watch in sync again.
        for (watched, source) in &mut sources {
            let state = source.watching.state();
            if state != source.told {
                into.extend((self.wrap_state)(**watched, state.clone()));
                source.told = state;
            }
        }
        let others = self.all.troubles_of_others(self.reader);
        let before = std::mem::take(&mut self.others);
        let news = others.iter().filter(|(watched, state)| before.get(watched) != Some(state));
        into.extend(news.filter_map(|(watched, state)| (self.wrap_state)(*watched, state.clone())));
        let over = before.keys().filter(|watched| !others.contains_key(watched));
        into.extend(over.filter_map(|watched| (self.wrap_state)(*watched, WatchState::InSync)));
        self.others = others;
        into.extend(connections.into_iter().filter_map(|(side, connection)| (self.wrap_connection)(side, connection)));
        for (_, source) in sources {
            (source.drain)(into);
        }
    }

    /// The first watch whose list fails, and why: for callers that wait for all lists and use no facts.
    #[must_use]
    pub fn hindered(&self) -> Option<(Watched, Trouble)> {
        self.sources.iter().find_map(|(watched, source)| Some((*watched, source.watching.feed.vitals().hindered()?)))
    }

    /// Rings whenever a fact waits.
    #[must_use]
    pub fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bell)
    }
}

fn drain<R: Row, F>(mailbox: &Mailbox<R>, wrap: impl Fn(Change<R>) -> F, into: &mut Vec<F>) {
    into.extend(mailbox.drain().into_iter().map(wrap));
}

/// A watch that was removed from the set ends, but its task ends with the set: a task that ends earlier counts as lost.
async fn until_removed(watch: impl Future<Output = ()>, cancel: CancellationToken) {
    watch.await;
    cancel.cancelled().await;
}

/// Rings when a watch goes out of sync or comes back, which may cause no other fact.
async fn look(reader: Reader, [own, all]: [Pulse; 2], bell: Arc<Notify>, cancel: CancellationToken) {
    let (mut last, mut others) = (Instant::now(), Troubles::new());
    while cancel.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
        let frozen = last.elapsed() > FROZEN;
        last = Instant::now();
        if frozen {
            continue;
        }
        // Check all of them, without short-circuit.
        let news = own.living().iter().filter(|watching| watching.look()).count();
        let others_before = std::mem::replace(&mut others, all.troubles_of_others(reader));
        if news > 0 || others != others_before {
            bell.notify_one();
        }
    }
}

impl Watching {
    /// Checks its state now; returns whether it has changed.
    fn look(&self) -> bool {
        let state = self.feed.vitals().state();
        let mut known = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let news = *known != state;
        if let (WatchState::OutOfSync(Trouble { verb, why }), true) = (&state, news) {
            let Watched { reader, side, kind } = self.watched;
            let (reader, side, resource) = (reader.as_str(), side.as_str(), kind.plural);
            tracing::error!(reader, side, resource, verb, why, "a watch is out of sync");
        }
        *known = state;
        news
    }

    /// An outage explains troubles that began with it.
    fn see_connection(&self, side: Side, connection: &Connection) {
        if self.watched.side != side {
            return;
        }
        match connection {
            Connection::Down(_) | Connection::Refused(_) => self.feed.vitals().begin_outage(),
            Connection::Up(_) => {
                self.feed.vitals().end_outage();
                self.look();
            }
            Connection::Unknown | Connection::Restored(_) => {}
        }
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

    /// For the syncer: which watches of other readers are out of sync. Empty for any other reader.
    fn troubles_of_others(&self, reader: Reader) -> Troubles {
        if reader != Reader::Syncer {
            return Troubles::new();
        }
        let others = self.living().into_iter().filter(|watching| watching.watched.reader != reader);
        let states = others.map(|watching| (watching.watched, watching.state()));
        states.filter(|(_, state)| matches!(state, WatchState::OutOfSync(_))).collect()
    }

    fn living(&self) -> Vec<Arc<Watching>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }
}

/// The value of a metric for a watch.
type Value = dyn Fn(&Watching) -> f64;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    side: &'static str,
    resource: &'static str,
    reader: &'static str,
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
                "1 while a watch delivers; 0 while it starts, is refused, fails or delivers nothing",
                &in_sync,
            ),
            ("watch_age_seconds", "Time since the last event, bookmark or page of a list of a watch", &age),
            ("unreadable_objects", "Objects that cannot be fully read, by watch", &unreadable),
        ];
        let watches = self.living();
        for (name, help, value) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for watching in &watches {
                let Watched { reader, side, kind } = watching.watched;
                let labels = Labels { side: side.as_str(), resource: kind.plural, reader: reader.as_str() };
                ConstGauge::new(value(watching)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
