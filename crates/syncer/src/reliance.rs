//! What may be relied on, and so what may be planned. Each predicate is named by what is known; nothing else in this crate
//! combines lists, identities and answers by itself.
//!
//! | predicate | lists | owner's policies | both clusters are the pinned ones | both answer | allows |
//! |---|---|---|---|---|---|
//! | `lists_complete` | all but the owner's policies | | | | knowing which pods are inside, weighing what is missing |
//! | `everything_listed` | all | listed, or not served | | | telling pods why they wait, `explain` |
//! | `trusted` | all but the owner's policies | | yes, and the virtual one was not restored | | writing to the virtual cluster what is known |
//! | `operational` | all but the owner's policies | | yes | yes | everything else |
//! | `ready` | all | listed, or not served | yes | yes | `/readyz` |
//! | `in_own_cluster` | | | the virtual one | | reporting a binding that cannot be served |
//! | `own_cluster_answers` | | | the virtual one | the virtual one | saying on nodes and pods that nothing is known |
//!
//! Beside these, [`Pair::admission_out_of_sync`] says that a watch on which admission relies does not deliver.

use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Side, Uid};

use crate::bindings::Bound;
use crate::pair::Pair;
use crate::terms::Stop;

impl Pair {
    /// Whether all lists are in but the owner's policies.
    pub(crate) fn lists_complete(&self) -> bool {
        self.nodes.complete() && self.policies.complete() && self.pods.complete() && self.bindings.bound().is_some()
    }

    /// Whether all lists are in.
    pub(crate) fn everything_listed(&self) -> bool {
        self.lists_complete() && self.policies.owner_known()
    }

    /// The binding, when what is known may be relied on: all lists are in and both clusters are the right ones. A cluster may
    /// be unreachable at the moment.
    pub(crate) fn trusted(&self) -> Option<&Bound> {
        let bound = self.bindings.bound()?;
        let pinned = Side::BOTH.iter().all(|side| {
            let seen = self.connections.identity(*side);
            seen.is_some() && seen.map(Uid::as_str) == bound.pin(*side)
        });
        // What is known of a restored cluster is of a future that never was.
        let restored = matches!(self.connections.get(Side::Virtual), Connection::Restored(_));
        (pinned && !restored && self.lists_complete()).then_some(bound)
    }

    /// The binding, when everything may be planned: as [`Self::trusted`], and both clusters answer.
    pub(crate) fn operational(&self) -> Option<&Bound> {
        let up = Side::BOTH.into_iter().all(|side| self.connections.answers(side));
        self.trusted().filter(|_| up)
    }

    /// Whether everything may be planned and all policies are known.
    #[must_use]
    pub fn ready(&self) -> bool {
        let known = self.policies.owner_known() && self.policies.unknown(Side::Virtual).is_none();
        self.operational().is_some() && known
    }

    /// Whether the virtual cluster is the one that our nodes were made in. Known without the binding: whatever becomes of it,
    /// its nodes must not look dead.
    pub(crate) fn in_own_cluster(&self) -> bool {
        let seen = self.connections.identity(Side::Virtual).map(Uid::as_str);
        let pinned = self.bindings.bound().and_then(|bound| bound.pin(Side::Virtual));
        seen == Some(self.origin.virtual_cluster()) && pinned.is_none_or(|pinned| seen == Some(pinned))
    }

    /// Whether the virtual cluster answers and is the right one.
    pub(crate) fn own_cluster_answers(&self) -> bool {
        self.in_own_cluster() && self.connections.answers(Side::Virtual)
    }

    /// Whether something that admission relies on may have changed without us knowing.
    pub(crate) fn admission_out_of_sync(&self) -> bool {
        self.out_of_sync.concerns_admission(&self.connections)
    }

    /// What is missing before the process may call itself ready; `None` when nothing is.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        let policies =
            || self.policies.unknown(Side::Virtual).map(|served| Stop::PoliciesUnknown(served).message().to_owned());
        let lists = || (!self.ready()).then(|| "both clusters and all lists".to_owned());
        let out_of_sync = self.out_of_sync.tell(&self.connections);
        out_of_sync.or_else(policies).or_else(lists).or_else(|| self.refused.tell())
    }
}
