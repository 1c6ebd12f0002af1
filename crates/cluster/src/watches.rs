//! The watches and probes of one loop, as a set that can grow and shrink while it runs: each entry says what is watched, how
//! it is decoded and which fact it becomes. A watch may be shared with other loops. Reports the state of every watch as a fact of
//! its own. Decides nothing.

mod pulse;
mod source;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, watch as channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

pub use pulse::{Pulse, Pulses};
pub use source::{Source, Sources};

use crate::feed::{Change, Mailbox, Row};
use crate::kind::Resource;
use crate::probe::{Connection, PROBE_EVERY, probe};
use crate::watch::{Query, Trouble, WatchState};
use crate::{Cluster, Kind, Side};
use pulse::Watching;

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

/// Which watch: one per reader, side and query.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watched {
    /// Its reader.
    pub reader: Reader,
    /// The cluster.
    pub side: Side,
    /// What is watched there.
    pub query: Arc<Query>,
}

impl Watched {
    /// The resource.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        self.query.kind
    }
}

/// All that one loop reads; `F` is its fact.
pub struct WatchSet<F> {
    reader: Reader,
    entries: BTreeMap<Watched, Entry<F>>,
    /// Watches that were removed while the loop knew them as out of sync.
    removed: Vec<Watched>,
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
}

/// Watches that are out of sync.
type Troubles = BTreeMap<Watched, WatchState>;

/// Takes what waits in a mailbox, as facts.
type Drain<F> = dyn Fn(&mut Vec<F>) + Send;

/// One entry of the set. The watch ends with it, unless others read it too.
struct Entry<F> {
    drain: Box<Drain<F>>,
    watching: Arc<Watching>,
    /// The state of the watch that the loop knows.
    told: WatchState,
    /// The position of its changes among those of the others; lower first.
    order: usize,
}

/// Makes facts of the state of a watch or a cluster, if the loop uses them.
pub struct Wrap<F> {
    /// Of a watch.
    pub state: fn(Watched, WatchState) -> Option<F>,
    /// Of a cluster.
    pub connection: fn(Side, Connection) -> Option<F>,
}

impl<F: 'static> WatchSet<F> {
    /// An empty set. Its probes end with `tasks`, its watches with the set. `all` is shared with the other readers.
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
        tasks.spawn(look(reader, [own.clone(), all.clone()], Arc::clone(&bell), cancel).in_current_span());
        let (entries, removed, others, probes) = (BTreeMap::new(), Vec::new(), Troubles::new(), Vec::new());
        Self { reader, entries, removed, others, probes, wrap_state, wrap_connection, own, all, bell }
    }

    /// Starts a watch of its own; see [`Self::share`].
    pub fn add<R: Row>(
        &mut self,
        cluster: Cluster,
        (side, query): (Side, Query),
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + 'static,
        wrap: impl Fn(Change<R>) -> F + Send + 'static,
    ) -> Watched {
        self.share((side, &Source::new(cluster, query)), decode, wrap)
    }

    /// Reads a watch that others may read too: a complete list first, and then what happens. Facts are handed out in the order in
    /// which watches were added. One that is there for the same side and query is replaced.
    pub fn share<R: Row>(
        &mut self,
        (side, source): (Side, &Arc<Source>),
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + 'static,
        wrap: impl Fn(Change<R>) -> F + Send + 'static,
    ) -> Watched {
        let watched = Watched { reader: self.reader, side, query: Arc::clone(source.query()) };
        let mailbox = source.subscribe(decode, Arc::clone(&self.bell));
        let state = Mutex::new(WatchState::Starting);
        let watching = Arc::new(Watching { watched: watched.clone(), source: Arc::clone(source), state });
        for pulse in [&self.own, &self.all] {
            pulse.watch(&watching);
        }
        let drain = Box::new(move |into: &mut Vec<F>| drain(&mailbox, &wrap, into));
        let order = self.entries.values().map(|entry| entry.order + 1).max().unwrap_or(0);
        // What the loop was told of one that is replaced, it still believes.
        let told = self.entries.remove(&watched).map_or(WatchState::Starting, |before| before.told);
        self.entries.insert(watched.clone(), Entry { drain, watching, told, order });
        watched
    }

    /// Ends a watch, unless others read it. If it was out of sync, its last fact says that it no longer is.
    pub fn remove(&mut self, watched: &Watched) {
        let Some((watched, entry)) = self.entries.remove_entry(watched) else { return };
        if let WatchState::OutOfSync(_) = entry.told {
            self.removed.push(watched);
            self.bell.notify_one();
        }
    }

    /// Starts a probe, which asks a cluster for its identity every few seconds.
    pub fn probe(&mut self, side: Side, cluster: Cluster, tasks: &mut JoinSet<()>) {
        let (connection_tx, connection_rx) = channel::channel(Connection::Unknown);
        let (mut changes, bell) = (connection_rx.clone(), Arc::clone(&self.bell));
        let probe = async move {
            if let Err(error) = probe(cluster, PROBE_EVERY, connection_tx).await {
                tracing::error!(%error, "the probe ended");
            }
        };
        tasks.spawn(probe.in_current_span());
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
        let mut entries: Vec<_> = self.entries.iter_mut().collect();
        entries.sort_by_key(|(_, entry)| entry.order);
        into.extend(self.removed.drain(..).filter_map(|watched| (self.wrap_state)(watched, WatchState::InSync)));
        // Before the connections, whose facts end troubles that began with an outage; and before the changes, the first of
        // which puts a watch in sync again.
        for (watched, entry) in &mut entries {
            let state = entry.watching.state();
            if state != entry.told {
                into.extend((self.wrap_state)(watched.clone(), state.clone()));
                entry.told = state;
            }
        }
        let others = self.all.troubles_of_others(self.reader);
        let before = std::mem::take(&mut self.others);
        let news = others.iter().filter(|(watched, state)| before.get(watched) != Some(state));
        into.extend(news.filter_map(|(watched, state)| (self.wrap_state)(watched.clone(), state.clone())));
        let over = before.keys().filter(|watched| !others.contains_key(watched));
        into.extend(over.filter_map(|watched| (self.wrap_state)(watched.clone(), WatchState::InSync)));
        self.others = others;
        into.extend(connections.into_iter().filter_map(|(side, connection)| (self.wrap_connection)(side, connection)));
        for (_, entry) in entries {
            (entry.drain)(into);
        }
    }

    /// The first watch whose list fails, and why: for callers that wait for all lists and use no facts.
    #[must_use]
    pub fn hindered(&self) -> Option<(Watched, Trouble)> {
        self.entries.iter().find_map(|(watched, entry)| Some((watched.clone(), entry.watching.vitals().hindered()?)))
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

/// Rings when a watch goes out of sync or comes back, which may cause no other fact. Ends early when a watch has ended: the loop
/// must not go on without it.
async fn look(reader: Reader, [own, all]: [Pulse; 2], bell: Arc<Notify>, cancel: CancellationToken) {
    let (mut last, mut others) = (Instant::now(), Troubles::new());
    while cancel.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
        let watches = own.living();
        if let Some(watching) = watches.iter().find(|watching| watching.source.ended()) {
            let Watched { reader, side, query } = &watching.watched;
            let (reader, side, resource) = (reader.as_str(), side.as_str(), Resource::from(query.kind));
            return tracing::error!(reader, side, %resource, "watch task exited unexpectedly");
        }
        let frozen = last.elapsed() > FROZEN;
        last = Instant::now();
        if frozen {
            continue;
        }
        // Check all of them, without short-circuit.
        let news = watches.iter().filter(|watching| watching.look()).count();
        let others_before = std::mem::replace(&mut others, all.troubles_of_others(reader));
        if news > 0 || others != others_before {
            bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
