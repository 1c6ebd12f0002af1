//! What the keeper reads: its own watches of the virtual nodes and the binding, its own probe, and how the syncer beside it stands.
//! Decides nothing.

use std::sync::Arc;

use tapestry_api::keys;
use tapestry_cluster::feed::{Feed, Mailbox, Row};
use tapestry_cluster::probe::{Connection, PROBE_EVERY, probe};
use tapestry_cluster::watch::{Decode, Query, watch};
use tapestry_cluster::{Cluster, Kind, Name, kind};
use tapestry_engine::run::Inbox;
use tokio::sync::{Notify, watch as channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::row::{KeptBinding, KeptNode};
use super::{Fact, Trouble, Work};
use crate::origin::Origin;

/// What the keeper is told by those beside it.
#[derive(Clone)]
pub(crate) struct Told {
    /// syncer --how it stands--> keeper
    pub(crate) work: channel::Receiver<Work>,
    /// reload --why the kubeconfig of the Secret is not in use--> keeper
    pub(crate) kubeconfig: channel::Receiver<Option<Trouble>>,
}

/// All that the keeper reads.
pub(crate) struct KeeperInbox {
    nodes: Mailbox<KeptNode>,
    bindings: Mailbox<KeptBinding>,
    connection: channel::Receiver<Connection>,
    told: Told,
    bell: Arc<Notify>,
}

impl KeeperInbox {
    /// Starts the watches and the probe.
    pub(crate) fn open(
        binding: &Name,
        origin: &Origin,
        cluster: &Cluster,
        mut told: Told,
        stop: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let bell = Arc::new(Notify::new());
        // Also what was told before we began.
        told.work.mark_changed();
        told.kubeconfig.mark_changed();
        ring_on_change(told.work.clone(), &bell, tasks);
        ring_on_change(told.kubeconfig.clone(), &bell, tasks);
        let nodes = Query { labels: format!("{}={}", keys::ORIGIN, origin.label), ..all(&kind::NODE) };
        let (connection_tx, connection) = channel::channel(Connection::Unknown);
        ring_on_change(connection.clone(), &bell, tasks);
        let probed = cluster.clone();
        tasks.spawn(async move {
            if let Err(error) = probe(probed, PROBE_EVERY, connection_tx).await {
                tracing::error!(%error, "the keeper's probe ended");
            }
        });
        Self {
            nodes: follow(cluster, nodes, Arc::new(KeptNode::decode), &bell, stop, tasks),
            bindings: follow(cluster, binding_named(binding), Arc::new(KeptBinding::decode), &bell, stop, tasks),
            connection,
            told,
            bell,
        }
    }
}

/// The binding of this name.
pub(crate) fn binding_named(name: &Name) -> Query {
    Query { fields: format!("metadata.name={name}"), ..all(&kind::CLUSTER_BINDING) }
}

fn all(kind: &'static Kind) -> Query {
    Query { kind, namespace: None, labels: String::new(), fields: String::new(), optional: false }
}

/// Starts a watch that rings the bell.
pub(crate) fn follow<R: Row + Clone>(
    cluster: &Cluster,
    query: Query,
    decode: Decode<R>,
    bell: &Arc<Notify>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Mailbox<R> {
    let feed: Arc<Feed<R>> = Arc::default();
    let mailbox = feed.subscribe(Arc::clone(bell));
    tasks.spawn(watch(cluster.clone(), query, decode, feed, stop.clone()));
    mailbox
}

fn ring_on_change<T: Send + Sync + 'static>(
    mut changes: channel::Receiver<T>,
    bell: &Arc<Notify>,
    tasks: &mut JoinSet<()>,
) {
    let bell = Arc::clone(bell);
    tasks.spawn(async move {
        while changes.changed().await.is_ok() {
            bell.notify_one();
        }
    });
}

impl Inbox<Fact> for KeeperInbox {
    fn drain(&mut self, into: &mut Vec<Fact>) {
        fn take<T: Clone>(channel: &mut channel::Receiver<T>) -> Option<T> {
            channel.has_changed().unwrap_or(false).then(|| channel.borrow_and_update().clone())
        }
        into.extend(take(&mut self.connection).map(Fact::Connection));
        into.extend(take(&mut self.told.work).map(Fact::Work));
        into.extend(take(&mut self.told.kubeconfig).map(Fact::Kubeconfig));
        into.extend(self.bindings.drain().into_iter().map(Fact::Binding));
        into.extend(self.nodes.drain().into_iter().map(Fact::Node));
    }

    fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bell)
    }
}
