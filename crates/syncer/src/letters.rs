//! What comes in: the watches and probes of both clusters, and the mailboxes they fill.
//! Says what is watched and how it is decoded; decides nothing.

use std::sync::Arc;

use bytes::Bytes;
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Feed, Mailbox, Row};
use tapestry_cluster::probe::{Connection, PROBE_EVERY, probe};
use tapestry_cluster::watch::{Decode, Query, watch};
use tapestry_cluster::{Cluster, Name, Side, kind};
use tapestry_engine::run::Inbox;
use tokio::sync::{Notify, watch as channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bindings::BindingRow;
use crate::csinodes::row::{PCsiNode, VCsiNode};
use crate::guards::Guard;
use crate::guards::row::GuardRow;
use crate::nodes::row::{PNode, VNode};
use crate::origin::{Home, Origin};
use crate::pair::Seen;
use crate::pods::row::{PPod, VPod};
use crate::policies::PolicyRow;

/// All that a syncer reads.
pub(crate) struct Letters {
    boxes: Boxes,
    connections: [(Side, channel::Receiver<Connection>); 2],
    bell: Arc<Notify>,
}

impl Letters {
    /// Starts all watches and probes; the clusters are virtual and physical.
    pub(crate) fn open(
        name: &Name,
        origin: Origin,
        home: Home,
        [virtual_cluster, physical_cluster]: [Cluster; 2],
        cancel: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let bell = Arc::new(Notify::new());
        let mut watches = Watches { bell: Arc::clone(&bell), cancel: cancel.clone(), tasks: &mut *tasks };
        let everything =
            |kind| Query { kind, namespace: None, labels: String::new(), fields: String::new(), optional: false };
        let own = Query { fields: format!("metadata.name={name}"), ..everything(&kind::CLUSTER_BINDING) };
        let labelled = Query { labels: format!("{}={}", keys::ORIGIN, origin.label), ..everything(&kind::NODE) };
        let csinodes = Query { kind: &kind::CSI_NODE, ..labelled.clone() };
        let guards = Guard::ALL.map(|guard| {
            let (query, mount, origin) =
                (Query { kind: guard.kind(), ..labelled.clone() }, home.mount.clone(), origin.clone());
            watches.start(&physical_cluster, query, move |json| GuardRow::decode(json, guard, &mount, &origin))
        });
        let bound = Query { fields: "spec.nodeName!=".to_owned(), ..everything(&kind::POD) };
        let boxes = Boxes {
            guards,
            bindings: watches.start(&virtual_cluster, own, BindingRow::decode),
            policies: watches.start(&virtual_cluster, everything(&kind::POLICY), PolicyRow::decode),
            owners: watches.start(
                &physical_cluster,
                Query { optional: true, ..everything(&kind::POLICY) },
                PolicyRow::decode,
            ),
            vnodes: watches.start(&virtual_cluster, labelled, VNode::decode),
            vcsinodes: watches.start(&virtual_cluster, csinodes, VCsiNode::decode),
            vpods: watches.start(&virtual_cluster, bound, move |json| VPod::decode(json, &home)),
            pnodes: watches.start(&physical_cluster, everything(&kind::NODE), PNode::decode),
            pcsinodes: watches.start(&physical_cluster, everything(&kind::CSI_NODE), PCsiNode::decode),
            ppods: watches.start(&physical_cluster, everything(&kind::POD), move |json| PPod::decode(json, &origin)),
        };
        let connections = [(Side::Virtual, virtual_cluster), (Side::Physical, physical_cluster)]
            .map(|(side, cluster)| (side, start_probe(cluster, Arc::clone(&bell), tasks)));
        Self { boxes, connections, bell }
    }
}

struct Watches<'a> {
    bell: Arc<Notify>,
    cancel: CancellationToken,
    tasks: &'a mut JoinSet<()>,
}

impl Watches<'_> {
    fn start<R: Row + Clone>(
        &mut self,
        cluster: &Cluster,
        query: Query,
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + Sync + 'static,
    ) -> Mailbox<R> {
        let feed: Arc<Feed<R>> = Arc::default();
        let mailbox = feed.subscribe(Arc::clone(&self.bell));
        let decode: Decode<R> = Arc::new(decode);
        self.tasks.spawn(watch(cluster.clone(), query, decode, feed, self.cancel.clone()));
        mailbox
    }
}

fn start_probe(cluster: Cluster, bell: Arc<Notify>, tasks: &mut JoinSet<()>) -> channel::Receiver<Connection> {
    let (connection_tx, connection_rx) = channel::channel(Connection::Unknown);
    let mut changes = connection_rx.clone();
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
    connection_rx
}

struct Boxes {
    bindings: Mailbox<BindingRow>,
    policies: Mailbox<PolicyRow>,
    owners: Mailbox<PolicyRow>,
    vnodes: Mailbox<VNode>,
    pnodes: Mailbox<PNode>,
    vcsinodes: Mailbox<VCsiNode>,
    pcsinodes: Mailbox<PCsiNode>,
    guards: [Mailbox<GuardRow>; 2],
    vpods: Mailbox<VPod>,
    ppods: Mailbox<PPod>,
}

impl Inbox<Seen> for Letters {
    fn drain(&mut self, into: &mut Vec<Seen>) {
        fn take<R: Row>(mailbox: &Mailbox<R>, wrap: impl Fn(Change<R>) -> Seen, into: &mut Vec<Seen>) {
            into.extend(mailbox.drain().into_iter().map(wrap));
        }
        for (side, connection) in &mut self.connections {
            if connection.has_changed().unwrap_or(false) {
                into.push(Seen::Connection(*side, connection.borrow_and_update().clone()));
            }
        }
        // Virtual before physical: statuses that agree are then forgotten as they come in.
        take(&self.boxes.bindings, Seen::Binding, into);
        take(&self.boxes.policies, |change| Seen::Policy(Side::Virtual, change), into);
        take(&self.boxes.owners, |change| Seen::Policy(Side::Physical, change), into);
        take(&self.boxes.vnodes, Seen::VNode, into);
        take(&self.boxes.vpods, Seen::VPod, into);
        take(&self.boxes.pnodes, Seen::PNode, into);
        take(&self.boxes.ppods, Seen::PPod, into);
        take(&self.boxes.vcsinodes, Seen::VCsiNode, into);
        take(&self.boxes.pcsinodes, Seen::PCsiNode, into);
        for (guard, mailbox) in Guard::ALL.into_iter().zip(&self.boxes.guards) {
            take(mailbox, |change| Seen::Guard(guard, change), into);
        }
    }

    fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bell)
    }
}
