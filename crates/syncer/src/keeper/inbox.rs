//! What the keeper reads: its own watches of the virtual nodes and the binding, its own probe, and the state of the syncer beside it.
//! Decides nothing.

use std::sync::Arc;

use tapestry_api::keys;
use tapestry_cluster::watch::Query;
use tapestry_cluster::watches::{Pulse, Reader, WatchSet, Wrap};
use tapestry_cluster::{Cluster, Name, Side, kind};
use tapestry_engine::run::Inbox;
use tokio::sync::{Notify, watch as channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::row::{KeptBinding, KeptNode};
use super::{Fact, Trouble, Work};
use crate::origin::Origin;

/// What the other parts of the syncer tell the keeper.
#[derive(Clone)]
pub(crate) struct Told {
    /// syncer --state--> keeper
    pub(crate) work: channel::Receiver<Work>,
    /// reload --why the kubeconfig of the Secret is not in use--> keeper
    pub(crate) kubeconfig: channel::Receiver<Option<Trouble>>,
}

/// All that the keeper reads.
pub(crate) struct KeeperInbox {
    watches: WatchSet<Fact>,
    told: Told,
}

impl KeeperInbox {
    /// Starts the watches and the probe.
    pub(crate) fn open(
        binding: &Name,
        origin: &Origin,
        cluster: &Cluster,
        mut told: Told,
        pulse: Pulse,
        stop: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        // Leases are renewed whatever the watches say: the syncer reports their state.
        let wrap = Wrap { state: |_, _| None, connection: |_, connection| Some(Fact::Connection(connection)) };
        let mut watches = WatchSet::new(Reader::Keeper, wrap, pulse, stop.clone(), tasks);
        // Also what was told before we began.
        told.work.mark_changed();
        told.kubeconfig.mark_changed();
        ring_on_change(told.work.clone(), &watches.bell(), tasks);
        ring_on_change(told.kubeconfig.clone(), &watches.bell(), tasks);
        watches.probe(Side::Virtual, cluster.clone(), tasks);
        let named = Query { fields: format!("metadata.name={binding}"), ..Query::all(&kind::CLUSTER_BINDING) };
        let ours = Query { labels: format!("{}={}", keys::ORIGIN, origin.label), ..Query::all(&kind::NODE) };
        watches.add(cluster.clone(), (Side::Virtual, named), KeptBinding::decode, Fact::Binding);
        watches.add(cluster.clone(), (Side::Virtual, ours), KeptNode::decode, Fact::Node);
        Self { watches, told }
    }
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
        into.extend(take(&mut self.told.work).map(Fact::Work));
        into.extend(take(&mut self.told.kubeconfig).map(Fact::Kubeconfig));
        self.watches.drain(into);
    }

    fn bell(&self) -> Arc<Notify> {
        self.watches.bell()
    }
}
