//! The mass-delete breaker (law 1): when many pods would end at once and nobody asked for the end of each, nothing ends until
//! somebody has looked. Kept in the binding's status, so that a restart does not forget it; cleared by `tapestry resume`.
//! Counts and holds back; what would be done about a pod is the pod's own plan.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tapestry_api::binding::BreakerTrip;
use tapestry_cluster::Uid;
use tapestry_engine::{Dirty, Now};

use crate::pair::{Key, Pair};

/// How long an end counts, and how long while more than a few are out of sight: those belong to the same loss.
const WINDOW: Duration = Duration::from_mins(1);
const LONG_WINDOW: Duration = Duration::from_hours(1);
/// So many may end without a question.
const FEW: usize = 20;
/// More than this share of the pods is too much: one in so many.
const SHARE: usize = 4;

/// What is known of ends that nobody asked for.
#[derive(Default)]
pub(crate) struct Breaker {
    /// Pods that run on one side and are not in sight on the other, although nobody asked for their end.
    alone: BTreeMap<Uid, Evidence>,
    /// How many of them are proven to end.
    proven: usize,
    /// Those of them that somebody has looked at.
    approved: BTreeSet<Uid>,
    /// When others ended so.
    ended: BTreeMap<Uid, Duration>,
    trip: Option<BreakerTrip>,
    /// The last trip that somebody resumed: until the binding says so too, it is not a new one.
    resumed: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Evidence {
    Lacking,
    /// From before the connection changed; what came of it then may still turn up.
    Doubted,
    /// It would end now.
    Proven,
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
        let before = self.alone.remove(vuid);
        self.proven -= usize::from(before == Some(Evidence::Proven));
        match (stands, before) {
            (Stands::Alone, Some(Evidence::Lacking) | None) => drop(self.alone.insert(vuid.clone(), Evidence::Lacking)),
            // Looking again does not make undone what came of the proof before.
            (Stands::Alone, Some(_)) => drop(self.alone.insert(vuid.clone(), Evidence::Doubted)),
            (Stands::Ends, _) => {
                self.alone.insert(vuid.clone(), Evidence::Proven);
                self.proven += 1;
            }
            (Stands::Over | Stands::Fine, before) => {
                let approved = self.approved.remove(vuid);
                // Whether our answer or the watch brings it first, and whether we did it or the leader before us.
                if let (Stands::Over, Some(_), false) = (stands, before, approved) {
                    self.ended.insert(vuid.clone(), now.steady);
                }
            }
        }
    }

    /// All evidence is gathered anew.
    pub(crate) fn doubt(&mut self) {
        for evidence in self.alone.values_mut().filter(|evidence| **evidence == Evidence::Proven) {
            *evidence = Evidence::Doubted;
        }
        self.proven = 0;
    }

    /// Nothing was known of one side until now, so nothing has ended.
    pub(crate) fn begin(&mut self) {
        self.ended.clear();
    }

    /// How many ends are certain, and how many there may be at most.
    fn count(&mut self, now: Now) -> (usize, usize) {
        let window = if self.alone.len() > FEW { LONG_WINDOW } else { WINDOW };
        self.ended.retain(|_, at| *at + window >= now.steady);
        let approved = |evidence: Option<Evidence>| {
            let of_those = self.approved.iter().filter_map(|vuid| self.alone.get(vuid));
            of_those.filter(|is| evidence.is_none_or(|evidence| evidence == **is)).count()
        };
        let certain = self.proven - approved(Some(Evidence::Proven));
        let most = self.alone.len() - approved(None);
        (self.ended.len() + certain, self.ended.len() + most)
    }

    /// Whether a pod of these is not in sight on one side.
    pub(crate) fn misses_one_of(&self, is: impl Fn(&Uid) -> bool) -> bool {
        self.alone.keys().any(is)
    }
}

/// How a pod stands to its end.
#[derive(Clone, Copy)]
pub(crate) enum Stands {
    /// The other side is not in sight, and it is not proven yet that it is gone.
    Alone,
    /// It would end now although nobody asked for it.
    Ends,
    /// It does not run (any more).
    Over,
    /// It goes on, or somebody asked for its end.
    Fine,
}

impl Pair {
    /// Trips when too many would end: as soon as more than a few are proven to, and those that are not in sight either make up
    /// too large a share. Waiting for the proof of each would let those go that were proven first.
    pub(crate) fn weigh_ends(&mut self, dirty: &mut Dirty<Key>) {
        if self.breaker.alone.len() + self.breaker.ended.len() <= FEW || !self.complete() {
            return;
        }
        let (certain, most) = self.breaker.count(self.now);
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        if let Some(trip) = &mut self.breaker.trip {
            if number(most) > trip.ends {
                trip.ends = number(most);
                dirty.mark(Key::Binding);
            }
            return;
        }
        if certain <= FEW {
            return;
        }
        let pods = self.pods.living() + self.breaker.ended.len();
        if most * SHARE <= pods {
            return;
        }
        let id = self.pods.fresh_mark();
        tracing::error!(
            ends = most,
            pods,
            id,
            "pods would end that nobody asked to end: nothing is ended until `tapestry resume`"
        );
        let since = format!("{:.0}", self.now.wall);
        self.breaker.trip = Some(BreakerTrip { id, since, ends: number(most), pods: number(pods.max(most)) });
        dirty.mark(Key::Binding);
    }

    /// Folds in what the binding says of the breaker: it survives us, and somebody may have resumed.
    pub(crate) fn follow_breaker(&mut self, kept: Option<BreakerTrip>, resume: Option<&str>, dirty: &mut Dirty<Key>) {
        // Before all lists are in nobody knows to what it is said.
        let resume = resume.filter(|_| self.complete());
        let breaker = &mut self.breaker;
        let own = breaker.trip.take();
        let kept = kept.filter(|kept| breaker.resumed.as_ref() != Some(&kept.id));
        let tripped = match (kept, own) {
            // We may know of more by now than was written.
            (Some(kept), Some(own)) if kept.id == own.id => Some(BreakerTrip { ends: own.ends.max(kept.ends), ..kept }),
            (kept, own) => kept.or(own),
        };
        let Some(trip) = tripped else { return };
        // Whoever resumes names the number that was shown: more than that were not looked at.
        let (_, most) = breaker.count(self.now);
        let resumed = resume == Some(&*trip.resume_mark()) && i64::try_from(most).is_ok_and(|most| most <= trip.ends);
        if !resumed {
            breaker.trip = Some(trip);
            return self.weigh_ends(dirty);
        }
        tracing::warn!(id = trip.id, pods = breaker.alone.len(), "resumed: these pods end, each when that is proven");
        breaker.approved = breaker.alone.keys().cloned().collect();
        breaker.ended.clear();
        breaker.resumed = Some(trip.id);
        dirty.mark_all();
    }
}

#[cfg(test)]
mod tests;
