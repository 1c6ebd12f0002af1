//! The mass-delete breaker (law 1): when many pods would end at once and nobody asked for the end of each, nothing ends until
//! somebody has looked. Kept in the binding's status, so that a restart does not forget it; cleared by `tapestry resume`.
//! Counts and holds back; what would be done about a pod is the pod's own plan.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tapestry_api::binding::BreakerTrip;
use tapestry_cluster::Uid;
use tapestry_engine::{Dirty, Now};

use crate::pair::{Key, Pair};

/// How long an end counts.
const WINDOW: Duration = Duration::from_mins(1);
/// So many may end without a question.
const FEW: usize = 20;
/// More than this share of the pods is too much: one in so many.
const SHARE: usize = 4;

/// What is known of ends that nobody asked for.
#[derive(Default)]
pub(crate) struct Breaker {
    /// Pods that would end now: there is evidence, and no request.
    wanting: BTreeSet<Uid>,
    /// Those of them that somebody has looked at.
    approved: BTreeSet<Uid>,
    /// When others ended so.
    ended: VecDeque<Duration>,
    trip: Option<BreakerTrip>,
}

impl Breaker {
    /// Why everything is held back.
    pub(crate) fn trip(&self) -> Option<&BreakerTrip> {
        self.trip.as_ref()
    }

    /// Whether this pod must not end now.
    pub(crate) fn holds(&self, vuid: &Uid) -> bool {
        self.trip.is_some() && !self.approved.contains(vuid)
    }

    /// A pod would end now, or no longer.
    pub(crate) fn note(&mut self, vuid: &Uid, wants: bool) {
        if wants {
            self.wanting.insert(vuid.clone());
        } else {
            self.wanting.remove(vuid);
            self.approved.remove(vuid);
        }
    }

    /// A pod was ended, or perhaps was.
    pub(crate) fn count(&mut self, vuid: &Uid, now: Now) {
        if !self.approved.contains(vuid) {
            self.ended.push_back(now.steady);
        }
    }

    /// All evidence is gathered anew.
    pub(crate) fn doubt(&mut self) {
        self.wanting.clear();
    }

    fn questionable(&mut self, now: Now) -> usize {
        while self.ended.front().is_some_and(|at| *at + WINDOW < now.steady) {
            self.ended.pop_front();
        }
        self.ended.len() + self.wanting.difference(&self.approved).count()
    }
}

impl Pair {
    /// Trips when too many would end.
    pub(crate) fn weigh_ends(&mut self, dirty: &mut Dirty<Key>) {
        if self.breaker.trip.is_some() || self.breaker.wanting.len() + self.breaker.ended.len() <= FEW {
            return;
        }
        let ends = self.breaker.questionable(self.now);
        let pods = self.pods.living() + self.breaker.ended.len();
        if ends <= FEW || ends * SHARE <= pods {
            return;
        }
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let id = self.pods.fresh_mark();
        tracing::error!(
            ends,
            pods,
            id,
            "pods would end that nobody asked to end: nothing is ended until `tapestry resume`"
        );
        let since = format!("{:.0}", self.now.wall);
        self.breaker.trip = Some(BreakerTrip { id, since, ends: number(ends), pods: number(pods) });
        dirty.mark(Key::Binding);
    }

    /// Folds in what the binding says of the breaker: it survives us, and somebody may have resumed.
    pub(crate) fn follow_breaker(&mut self, kept: Option<BreakerTrip>, resume: Option<&str>, dirty: &mut Dirty<Key>) {
        let tripped = kept.or_else(|| self.breaker.trip.take());
        let resumed = tripped.as_ref().is_some_and(|trip| resume == Some(&*trip.id));
        if resumed {
            if let Some(trip) = &tripped {
                tracing::warn!(id = trip.id, pods = self.breaker.wanting.len(), "resumed: these pods end");
            }
            self.breaker.approved.clone_from(&self.breaker.wanting);
            self.breaker.ended.clear();
            dirty.mark_all();
        }
        self.breaker.trip = tripped.filter(|_| !resumed);
    }
}

#[cfg(test)]
mod tests;
