//! What comes in: the watches and probes of both clusters, and the mailboxes they fill.
//! Says what is watched and how it is decoded; decides nothing.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{family::Family, gauge::Gauge};
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
        let clusters = [&virtual_cluster, &physical_cluster];
        let mut watches = Watches { clusters, bell: Arc::clone(&bell), cancel: cancel.clone(), tasks: &mut *tasks };
        let Queries { bindings, policies, owners, vnodes, pnodes, vcsinodes, pcsinodes, guards, vpods, ppods } =
            Queries::new(name, &origin, &home);
        let mut guard = |guard: Guard, query| {
            let (mount, origin) = (home.mount.clone(), origin.clone());
            watches.start(query, move |json| GuardRow::decode(json, guard, &mount, &origin))
        };
        let [quota, network_policy] = guards;
        let boxes = Boxes {
            guards: [guard(Guard::Quota, quota), guard(Guard::NetworkPolicy, network_policy)],
            bindings: watches.start(bindings, BindingRow::decode),
            policies: watches.start(policies, PolicyRow::decode),
            owners: watches.start(owners, PolicyRow::decode),
            vnodes: watches.start(vnodes, VNode::decode),
            vcsinodes: watches.start(vcsinodes, VCsiNode::decode),
            vpods: watches.start(vpods, move |json| VPod::decode(json, &home)),
            pnodes: watches.start(pnodes, PNode::decode),
            pcsinodes: watches.start(pcsinodes, PCsiNode::decode),
            ppods: watches.start(ppods, move |json| PPod::decode(json, &origin)),
        };
        let connections = [(Side::Virtual, virtual_cluster), (Side::Physical, physical_cluster)]
            .map(|(side, cluster)| (side, start_probe(cluster, Arc::clone(&bell), tasks)));
        Self { boxes, connections, bell }
    }
}

/// What is asked of which cluster: all that is watched, as data, so that the rights to it can be compared.
struct Queries {
    bindings: (Side, Query),
    policies: (Side, Query),
    owners: (Side, Query),
    vnodes: (Side, Query),
    pnodes: (Side, Query),
    vcsinodes: (Side, Query),
    pcsinodes: (Side, Query),
    /// In the order of [`Guard::ALL`].
    guards: [(Side, Query); 2],
    vpods: (Side, Query),
    ppods: (Side, Query),
}

impl Queries {
    fn new(name: &Name, origin: &Origin, home: &Home) -> Self {
        use Side::{Physical, Virtual};
        let all = |kind| Query { kind, namespace: None, labels: String::new(), fields: String::new(), optional: false };
        let ours = |kind| Query { labels: format!("{}={}", keys::ORIGIN, origin.label), ..all(kind) };
        Self {
            bindings: (Virtual, Query { fields: format!("metadata.name={name}"), ..all(&kind::CLUSTER_BINDING) }),
            policies: (Virtual, Query { optional: true, ..all(&kind::POLICY) }),
            owners: (Physical, Query { optional: true, ..all(&kind::POLICY) }),
            vnodes: (Virtual, ours(&kind::NODE)),
            pnodes: (Physical, all(&kind::NODE)),
            vcsinodes: (Virtual, ours(&kind::CSI_NODE)),
            pcsinodes: (Physical, all(&kind::CSI_NODE)),
            // What the owner has elsewhere is none of our business.
            guards: Guard::ALL
                .map(|guard| (Physical, Query { namespace: Some(home.mount.clone()), ..ours(guard.kind()) })),
            vpods: (Virtual, Query { fields: "spec.nodeName!=".to_owned(), ..all(&kind::POD) }),
            // Everybody's: what others use of a node is not lent.
            ppods: (Physical, all(&kind::POD)),
        }
    }
}

struct Watches<'a> {
    /// Virtual and physical.
    clusters: [&'a Cluster; 2],
    bell: Arc<Notify>,
    cancel: CancellationToken,
    tasks: &'a mut JoinSet<()>,
}

impl Watches<'_> {
    fn start<R: Row + Clone>(
        &mut self,
        query: (Side, Query),
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + Sync + 'static,
    ) -> Mailbox<R> {
        let cluster = self.clusters[query.0 as usize].clone();
        start_watch(cluster, query, decode, Arc::clone(&self.bell), self.cancel.clone(), self.tasks)
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct WatchLabels {
    side: &'static str,
    resource: &'static str,
}

/// How many objects of each watch cannot be fully read. One for the process: several bindings in it watch the same objects.
pub(crate) fn unreadable_objects() -> Family<WatchLabels, Gauge> {
    static ALL: LazyLock<Family<WatchLabels, Gauge>> = LazyLock::new(Default::default);
    ALL.clone()
}

fn start_watch<R: Row + Clone>(
    cluster: Cluster,
    (side, query): (Side, Query),
    decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + Sync + 'static,
    bell: Arc<Notify>,
    cancel: CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Mailbox<R> {
    let labels = WatchLabels { side: side.as_str(), resource: query.kind.plural };
    let feed: Arc<Feed<R>> = Arc::new(Feed::counting(unreadable_objects().get_or_create(&labels).clone()));
    let mailbox = feed.subscribe(bell);
    let decode: Decode<R> = Arc::new(decode);
    tasks.spawn(watch(cluster, query, decode, feed, cancel));
    mailbox
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rights::{Ask, Place, RIGHTS};

    #[test]
    fn law_10_every_watch_is_declared_and_every_declared_watch_is_used() {
        let home = Home::new("east", "mount").unwrap();
        let Queries { bindings, policies, owners, vnodes, pnodes, vcsinodes, pcsinodes, guards, vpods, ppods } =
            Queries::new(&Name::parse("east").unwrap(), &Origin::new("v", "b", "east"), &home);
        let [quota, network_policy] = guards;
        let watches =
            [bindings, policies, owners, vnodes, pnodes, vcsinodes, pcsinodes, quota, network_policy, vpods, ppods];
        let mut used = BTreeSet::new();
        for (side, query) in &watches {
            for verb in ["list", "watch"] {
                let ask = Ask::watch(*side, query, verb);
                let right = RIGHTS.iter().position(|right| right.grants(&ask, "mount"));
                used.insert((right.unwrap_or_else(|| panic!("not declared: {ask:?}")), verb));
            }
        }
        let verbs = RIGHTS.iter().enumerate().flat_map(|(at, right)| right.verbs.iter().map(move |verb| (at, *verb)));
        // The Lease of the one that leads is watched by the election.
        let letters = |(at, verb): &(usize, &str)| {
            ["list", "watch"].contains(verb) && (RIGHTS[*at].kind, RIGHTS[*at].place) != (&kind::LEASE, Place::System)
        };
        let declared: BTreeSet<_> = verbs.filter(letters).collect();
        let unused: Vec<_> = declared.difference(&used).map(|(at, verb)| (verb, &RIGHTS[*at])).collect();
        assert!(unused.is_empty(), "declared and not used: {unused:#?}");
    }
}
