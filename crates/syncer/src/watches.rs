//! What a syncer watches, on which side, and how it is decoded: one entry per kind and side. What else a new kind needs is listed in
//! ARCHITECTURE.md, "To carry a new kind". Decides nothing.

use std::sync::Arc;

use bytes::Bytes;
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Row};
use tapestry_cluster::watch::Query;
use tapestry_cluster::watches::{Pulse, Reader, WatchSet, Wrap};
use tapestry_cluster::{Cluster, Kind, Name, Side, kind};
use tapestry_engine::run::Inbox;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bindings::BindingRow;
use crate::csinodes::row::{PCsiNode, VCsiNode};
use crate::dependents::row::{DependentCopy, Source};
use crate::dependents::{KINDS, kind_of};
use crate::guards::Guard;
use crate::guards::row::GuardRow;
use crate::nodes::row::{PNode, VNode};
use crate::origin::{Home, Origin};
use crate::out_of_sync::tell;
use crate::pair::Fact;
use crate::pods::row::{PPod, VPod};
use crate::policies::PolicyRow;
use crate::services::row::{PService, VService};
use crate::volumes::row::{PClaim, PClass, PVolume, VClaim, VVolume};
use crate::warnings::Warning;

/// All that a syncer reads.
pub(crate) struct Watches(WatchSet<Fact>);

/// Whose objects are watched.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// Of the binding.
    pub(crate) name: &'a Name,
    pub(crate) origin: &'a Origin,
    pub(crate) home: &'a Home,
}

impl Watches {
    /// Starts all watches and probes; the clusters are virtual and physical.
    pub(crate) fn open(
        scope: Scope<'_>,
        clusters: &[Cluster; 2],
        pulse: Pulse,
        cancel: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let mut set = WatchSet::new(
            Reader::Syncer,
            Wrap {
                state: |watched, state| Some(Fact::Watch(watched, state)),
                connection: |side, connection| Some(Fact::Connection(side, connection)),
            },
            pulse,
            cancel.clone(),
            tasks,
        );
        for (side, cluster) in Side::BOTH.into_iter().zip(clusters) {
            set.probe(side, cluster.clone(), tasks);
        }
        watch_all(scope, &mut Starts { set: &mut set, clusters });
        Self(set)
    }
}

impl Watches {
    /// Why a list does not come, once one has failed for longer than a moment.
    pub(crate) fn hindered(&self) -> Option<String> {
        self.0.hindered().map(|(watched, trouble)| tell(&watched, &trouble))
    }
}

/// Takes one entry after the other.
trait Entries {
    fn add<R: Row>(
        &mut self,
        watch: (Side, Query),
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + 'static,
        wrap: impl Fn(Change<R>) -> Fact + Send + 'static,
    );
}

/// Every kind that is watched. Virtual before physical: statuses that agree are then forgotten as they come in.
fn watch_all(scope: Scope<'_>, entries: &mut impl Entries) {
    use Side::{Physical, Virtual};
    let Scope { name, origin, home } = scope;
    let named = Query { fields: format!("metadata.name={name}"), ..Query::all(&kind::CLUSTER_BINDING) };
    entries.add((Virtual, named), BindingRow::decode, Fact::Binding);
    entries.add((Virtual, ours(&kind::NODE, origin)), VNode::decode, Fact::VNode);
    for side in Side::BOTH {
        let policies = Query { optional: true, ..Query::all(&kind::POLICY) };
        entries.add((side, policies), PolicyRow::decode, move |change| Fact::Policy(side, change));
    }
    let bound = Query { fields: "spec.nodeName!=".to_owned(), ..Query::all(&kind::POD) };
    let here = home.clone();
    entries.add((Virtual, bound), move |json| VPod::decode(json, &here), Fact::VPod);
    entries.add((Physical, Query::all(&kind::NODE)), PNode::decode, Fact::PNode);
    // All pods, not only ours: what others use of a node is not lent.
    let whose = origin.clone();
    entries.add((Physical, Query::all(&kind::POD)), move |json| PPod::decode(json, &whose), Fact::PPod);
    entries.add((Virtual, ours(&kind::CSI_NODE, origin)), VCsiNode::decode, Fact::VCsiNode);
    entries.add((Physical, Query::all(&kind::CSI_NODE)), PCsiNode::decode, Fact::PCsiNode);
    for kind in KINDS {
        // Of all of them, because any may be named by a pod; only their metadata, because values are read when they are carried.
        let query = Query { metadata_only: true, ..Query::all(kind_of(kind)) };
        entries.add((Virtual, query), move |json| Source::decode(json, kind), move |change| Fact::Source(kind, change));
        // By namespace alone: a copy that lost our labels is still seen.
        let query = Query { namespace: Some(home.mount.clone()), ..Query::all(kind_of(kind)) };
        let whose = origin.clone();
        entries.add(
            (Physical, query),
            move |json| DependentCopy::decode(json, kind, &whose),
            move |change| Fact::DependentCopy(kind, change),
        );
    }
    // Of all of them: which namespaces are carried may change while we run.
    let (whose, record) = (origin.clone(), home.load_balancer_key());
    let decode = move |json: &Bytes| VService::decode(json, &whose, &record);
    entries.add((Virtual, Query::all(&kind::SERVICE)), decode, Fact::VService);
    // Also those of others: they have names.
    let (query, whose) = (Query { namespace: Some(home.mount.clone()), ..Query::all(&kind::SERVICE) }, origin.clone());
    entries.add((Physical, query), move |json| PService::decode(json, &whose), Fact::PService);
    entries.add((Virtual, Query::all(&kind::PERSISTENT_VOLUME_CLAIM)), VClaim::decode, Fact::VClaim);
    entries.add((Virtual, Query::all(&kind::PERSISTENT_VOLUME)), VVolume::decode, Fact::VVolume);
    let query = Query { namespace: Some(home.mount.clone()), ..Query::all(&kind::PERSISTENT_VOLUME_CLAIM) };
    let whose = origin.clone();
    entries.add((Physical, query), move |json| PClaim::decode(json, &whose), Fact::PClaim);
    // All of them, not by our label: one that lost it must not lose its data for that.
    let whose = origin.clone();
    let query = Query::all(&kind::PERSISTENT_VOLUME);
    entries.add((Physical, query), move |json| PVolume::decode(json, &whose), Fact::PVolume);
    entries.add((Physical, Query::all(&kind::STORAGE_CLASS)), PClass::decode, Fact::Class);
    // Normal events are many, and those of other kinds are not about copies.
    let fields = "type=Warning,involvedObject.kind=Pod".to_owned();
    let warnings = Query { namespace: Some(home.mount.clone()), fields, ..Query::all(&kind::EVENT) };
    entries.add((Physical, warnings), Warning::decode, Fact::Warning);
    for guard in Guard::ALL {
        // Other namespaces belong to the owner.
        let query = Query { namespace: Some(home.mount.clone()), ..ours(guard.kind(), origin) };
        let (mount, origin) = (home.mount.clone(), origin.clone());
        entries.add(
            (Physical, query),
            move |json| GuardRow::decode(json, guard, &mount, &origin),
            move |change| Fact::Guard(guard, change),
        );
    }
}

fn ours(kind: &'static Kind, origin: &Origin) -> Query {
    Query { labels: format!("{}={}", keys::ORIGIN, origin.label), ..Query::all(kind) }
}

/// Starts every entry it is given.
struct Starts<'a> {
    set: &'a mut WatchSet<Fact>,
    /// By side.
    clusters: &'a [Cluster; 2],
}

impl Entries for Starts<'_> {
    fn add<R: Row>(
        &mut self,
        watch: (Side, Query),
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + 'static,
        wrap: impl Fn(Change<R>) -> Fact + Send + 'static,
    ) {
        self.set.add(self.clusters[watch.0 as usize].clone(), watch, decode, wrap);
    }
}

impl Inbox<Fact> for Watches {
    fn drain(&mut self, into: &mut Vec<Fact>) {
        self.0.drain(into);
    }

    fn bell(&self) -> Arc<Notify> {
        self.0.bell()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::out_of_sync::is_classified;
    use crate::rights::{Ask, Place, RIGHTS};

    /// Records what would be watched.
    #[derive(Default)]
    struct Lists(Vec<(Side, Query)>);

    impl Entries for Lists {
        fn add<R: Row>(
            &mut self,
            watch: (Side, Query),
            _decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + 'static,
            _wrap: impl Fn(Change<R>) -> Fact + Send + 'static,
        ) {
            self.0.push(watch);
        }
    }

    fn declared() -> Vec<(Side, Query)> {
        let (name, origin) = (Name::parse("east").unwrap(), Origin::new("v", "b", "east"));
        let home = Home::new("east", "mount").unwrap();
        let mut watches = Lists::default();
        watch_all(Scope { name: &name, origin: &origin, home: &home }, &mut watches);
        watches.0
    }

    #[test]
    fn every_watch_says_whether_admission_relies_on_it() {
        for (_, query) in declared() {
            assert!(is_classified(query.kind), "{}", query.kind.plural);
        }
    }

    #[test]
    fn law_10_every_watch_is_declared_and_every_declared_watch_is_used() {
        let mut used = BTreeSet::new();
        for (side, query) in declared() {
            for verb in ["list", "watch"] {
                let ask = Ask::watch(side, &query, verb);
                let right = RIGHTS.iter().position(|right| right.grants(&ask, "mount"));
                used.insert((right.unwrap_or_else(|| panic!("not declared: {ask:?}")), verb));
            }
        }
        let verbs = RIGHTS.iter().enumerate().flat_map(|(at, right)| right.verbs.iter().map(move |verb| (at, *verb)));
        // The Lease of the one that leads is watched by the election.
        let watched = |(at, verb): &(usize, &str)| {
            ["list", "watch"].contains(verb) && (RIGHTS[*at].kind, RIGHTS[*at].place) != (&kind::LEASE, Place::System)
        };
        let declared: BTreeSet<_> = verbs.filter(watched).collect();
        let unused: Vec<_> = declared.difference(&used).map(|(at, verb)| (verb, &RIGHTS[*at])).collect();
        assert!(unused.is_empty(), "declared and not used: {unused:#?}");
    }
}
