//! What may be relied on, and so what may be planned. Each predicate is named by what is known. Where a plan of `Pair` depends on
//! more than one of lists, identities, answers and watches together, the combination is here; a single one may be asked for where
//! it is needed.
//!
//! | predicate | lists | owner's policies | both clusters are the pinned ones | both answer | besides | allows |
//! |---|---|---|---|---|---|---|
//! | `lists_complete` | all but the owner's policies | | | | | knowing which pods are inside |
//! | `everything_listed` | all | listed, or not served | | | | telling pods why they wait, `explain` |
//! | `all_ends_known` | all but the owner's policies | | | | both watches of pods have caught up after the last gap | weighing what is missing |
//! | `trusted` | all but the owner's policies | | yes, and the virtual one was not restored | | | writing to the virtual cluster what is known |
//! | `trusted_terms` | all | listed, or not served | as `trusted` | | | writing what virtual nodes offer |
//! | `operational` | all but the owner's policies | | yes | yes | | everything else |
//! | `operational_terms` | all | listed, or not served | yes | yes | | taking capacity back from pods |
//! | `may_offer_more` | all but the owner's policies | | yes | yes | no watch that admission relies on is out of sync | new virtual nodes |
//! | `ready` | all | listed, or not served | yes | yes | it is known which policies the virtual cluster has | `/readyz` |
//! | `in_pinned_cluster` | | | the virtual one, if one is pinned | | | writing to the binding |
//! | `in_own_cluster` | | | the virtual one, and our origin names it | | | reporting a binding that cannot be served |
//! | `own_cluster_answers` | | | as `in_own_cluster` | the virtual one | | |
//! | `own_nodes_known` | virtual nodes | | as `in_own_cluster` | the virtual one | | saying on nodes that nothing is known |
//! | `only_trouble_known` | | | as `in_own_cluster` | the virtual one | a watch that admission relies on is out of sync | saying on pods that nothing is known |
//!
//! The breaker lets a pod end that was not asked to end only on top of `operational` and after catching up (`Pair::may_end`).

use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Side, Uid};

use crate::bindings::Bound;
use crate::pair::Pair;
use crate::policies::Served;
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
        // What is known of a restored cluster is newer than the restored backup.
        let restored = matches!(self.connections.get(Side::Virtual), Connection::Restored(_));
        (pinned && !restored && self.lists_complete()).then_some(bound)
    }

    /// The binding, when also what the owner restricts is known.
    pub(crate) fn trusted_terms(&self) -> Option<&Bound> {
        self.trusted().filter(|_| self.policies.owner_known())
    }

    /// The binding, when everything may be planned: as [`Self::trusted`], and both clusters answer.
    pub(crate) fn operational(&self) -> Option<&Bound> {
        let up = Side::BOTH.into_iter().all(|side| self.connections.answers(side));
        self.trusted().filter(|_| up)
    }

    /// The binding, when everything may be planned and what the owner restricts is known.
    pub(crate) fn operational_terms(&self) -> Option<&Bound> {
        self.operational().filter(|_| self.policies.owner_known())
    }

    /// Whether more may be offered than before: everything may be planned, and nothing has changed without us knowing.
    pub(crate) fn may_offer_more(&self) -> bool {
        self.operational().is_some() && !self.admission_out_of_sync()
    }

    /// Whether a pod that is missing is not merely late: all lists are in, and both watches of pods have caught up.
    pub(crate) fn all_ends_known(&self) -> bool {
        self.lists_complete() && self.catch_up.done()
    }

    /// Whether everything may be planned and all policies are known.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.operational_terms().is_some() && self.policies_unknown().is_none()
    }

    /// Why it is not known which policies there are, as far as this process can tell: one that follows does not ask discovery, so for
    /// it the list counts that it has read since their kind was gone.
    fn policies_unknown(&self) -> Option<Served> {
        let tells = self.leads || self.policies.unlisted(Side::Virtual);
        self.policies.unknown(Side::Virtual).filter(|_| tells)
    }

    /// Whether the virtual cluster is known, and the one that the binding was made in as far as that is pinned.
    pub(crate) fn in_pinned_cluster(&self, bound: &Bound) -> bool {
        let (seen, pinned) = (self.connections.identity(Side::Virtual).map(Uid::as_str), bound.pin(Side::Virtual));
        seen.is_some() && (pinned.is_none() || pinned == seen)
    }

    /// Whether the virtual cluster is the one that our nodes were made in. Known without the binding: whatever becomes of it,
    /// its nodes must not look dead.
    pub(crate) fn in_own_cluster(&self) -> bool {
        let pinned = self.bindings.bound().and_then(|bound| bound.pin(Side::Virtual));
        self.origin.is_own_cluster(self.connections.identity(Side::Virtual), pinned)
    }

    /// Whether the virtual cluster answers and is the right one.
    pub(crate) fn own_cluster_answers(&self) -> bool {
        self.in_own_cluster() && self.connections.answers(Side::Virtual)
    }

    /// Whether our virtual nodes are known and can be written to, whatever else is not known.
    pub(crate) fn own_nodes_known(&self) -> bool {
        self.own_cluster_answers() && self.nodes.virtual_complete()
    }

    /// Whether pods can only be told that a watch does not deliver.
    pub(crate) fn only_trouble_known(&self) -> bool {
        self.admission_out_of_sync() && self.own_cluster_answers()
    }

    /// Whether something that admission relies on may have changed without us knowing.
    pub(crate) fn admission_out_of_sync(&self) -> bool {
        self.out_of_sync.concerns_admission(&self.connections)
    }

    /// What is missing before the process may call itself ready; `None` when nothing is.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        let policies = || self.policies_unknown().map(|served| Stop::PoliciesUnknown(served).message().to_owned());
        let lists = || (!self.ready()).then(|| "waiting for both clusters and initial lists".to_owned());
        let connection = || if self.ready() { None } else { self.tell_connection() };
        let out_of_sync = self.out_of_sync.tell(&self.connections);
        out_of_sync.or_else(connection).or_else(policies).or_else(lists).or_else(|| self.refused.tell())
    }
}
