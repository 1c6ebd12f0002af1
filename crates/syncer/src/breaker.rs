//! The mass-delete breaker (law 1): when many pods would end at once and nobody asked for the end of each, nothing ends until
//! somebody has looked. Kept in the binding's status, so that a restart does not forget it; cleared by `tapestry resume`.
//! Counts and holds back; what would be done about a pod is the pod's own plan.

use std::collections::{BTreeMap, BTreeSet};
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
    wanting: BTreeMap<Uid, Evidence>,
    /// Those of them that somebody has looked at.
    approved: BTreeSet<Uid>,
    /// When others ended so.
    ended: BTreeMap<Uid, Duration>,
    trip: Option<BreakerTrip>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Evidence {
    Fresh,
    /// From before the connection changed: it counts, but nobody can approve of it.
    Doubted,
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

    /// What stands in the books of a pod has changed.
    pub(crate) fn note(&mut self, vuid: &Uid, stands: Stands, now: Now) {
        if let Stands::Ends = stands {
            self.wanting.insert(vuid.clone(), Evidence::Fresh);
            return;
        }
        let wanted = self.wanting.remove(vuid).is_some();
        let approved = self.approved.remove(vuid);
        // Whether our answer or the watch brings it first.
        if let Stands::Over = stands
            && wanted
            && !approved
        {
            self.ended.insert(vuid.clone(), now.steady);
        }
    }

    /// All evidence is gathered anew.
    pub(crate) fn doubt(&mut self) {
        self.wanting.values_mut().for_each(|evidence| *evidence = Evidence::Doubted);
    }

    fn questionable(&mut self, now: Now) -> usize {
        self.ended.retain(|_, at| *at + WINDOW >= now.steady);
        self.ended.len() + self.wanting.keys().filter(|vuid| !self.approved.contains(*vuid)).count()
    }
}

/// How a pod stands to its end.
#[derive(Clone, Copy)]
pub(crate) enum Stands {
    /// It would end now although nobody asked for it.
    Ends,
    /// It does not run (any more).
    Over,
    /// It goes on, or somebody asked for its end.
    Fine,
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
            let fresh = self.breaker.wanting.iter().filter(|(_, evidence)| **evidence == Evidence::Fresh);
            self.breaker.approved = fresh.map(|(vuid, _)| vuid.clone()).collect();
            self.breaker.ended.clear();
            dirty.mark_all();
        }
        self.breaker.trip = tripped.filter(|_| !resumed);
    }
}

#[cfg(test)]
mod tests;
