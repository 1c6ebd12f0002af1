//! When the breaker trips, grows, clears itself, and which pods it lets go. Decides, and changes its own state only: what
//! follows for other rooms it returns. Only once both sides have caught up; see `catch_up`.

use tapestry_api::binding::{BreakerTrip, UnaskedEnds};
use tapestry_cluster::Uid;
use tapestry_engine::Now;

use super::{Breaker, Evidence, FEW, LetGo, SHARE, Tally};

/// What it reads of the pair when it weighs.
pub(crate) struct Circumstances<'a> {
    /// All lists are in, and both watches of pods have caught up.
    pub(crate) known: bool,
    /// Both clusters answer and are the right ones.
    pub(crate) working: bool,
    /// Whether a pod runs as far as either side knows.
    pub(crate) runs: &'a dyn Fn(&Uid) -> bool,
    /// How many do. Reads every pod, so it is asked only when it matters.
    pub(crate) running: &'a dyn Fn() -> usize,
}

/// What follows from weighing.
#[must_use]
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing.
    Nothing,
    /// Too many pods would end: it is to [`Breaker::trip_with`] a new mark.
    Trip {
        /// So many would end at most.
        ends: usize,
        /// Of so many.
        pods: usize,
    },
    /// It holds back more pods than the binding says.
    Grown,
    /// Every pod of this trip is there again or was asked to end: pods end as usual.
    Cleared(BreakerTrip),
    /// Pods may end once the binding says, under our name ([`Breaker::sign`]), how many.
    Count,
    /// These may end: [`Breaker::let_go`] each.
    LetGo(Vec<Uid>),
}

impl Breaker {
    /// Trips when too many pods would end: as soon as more than a few are proven to, and they make up too large a share together
    /// with those that are only missing from the watch. Waiting for the proof of each would let those go that were proven first.
    pub(crate) fn weigh(&mut self, circumstances: &Circumstances<'_>, now: Now) -> Verdict {
        let known = self.begun && circumstances.known;
        if !known || (self.alone.is_empty() && self.trip.is_none()) {
            return Verdict::Nothing;
        }
        self.forget_old(now);
        let tally = self.tally(now);
        if self.trip.is_some() {
            return self.weigh_trip(tally, circumstances);
        }
        if tally.certain <= FEW {
            return self.weigh_waiting(tally, now);
        }
        let pods = self.pods_there(circumstances);
        if tally.most * SHARE <= pods {
            return self.weigh_waiting(tally, now);
        }
        Verdict::Trip { ends: tally.most, pods }
    }

    /// Holds everything back from now on, under this mark.
    pub(crate) fn trip_with(&mut self, id: String, ends: usize, pods: usize, now: Now) -> &BreakerTrip {
        tracing::error!(
            ends,
            pods,
            id,
            "pods would end although no user asked for it: no pod is deleted until `tapestry resume`"
        );
        let since = format!("{:.0}", now.wall);
        self.trip.insert(BreakerTrip { id, since, ends: number(ends), pods: number(pods) })
    }

    /// How many pods there are: those that run as far as either side knows, and those that are counted although they do not.
    fn pods_there(&self, circumstances: &Circumstances<'_>) -> usize {
        let counted = self.alone.keys().chain(self.let_go.keys());
        let gone = counted.filter(|uid| !(circumstances.runs)(uid)).count();
        (circumstances.running)() + gone + self.inherited.map_or(0, |(ends, _)| ends)
    }

    /// A trip grows with what is missing, and clears itself when nothing is missing any more.
    fn weigh_trip(&mut self, tally: Tally, circumstances: &Circumstances<'_>) -> Verdict {
        if self.unapproved() == 0 && circumstances.working {
            return self.clear_trip();
        }
        if self.trip.as_ref().is_none_or(|trip| number(tally.most) <= trip.ends) {
            return Verdict::Nothing;
        }
        let pods = number(self.pods_there(circumstances));
        let Some(trip) = &mut self.trip else { return Verdict::Nothing };
        (trip.ends, trip.pods) = (number(tally.most), pods.max(trip.pods));
        Verdict::Grown
    }

    fn clear_trip(&mut self) -> Verdict {
        let Some(trip) = self.trip.take() else { return Verdict::Nothing };
        tracing::info!(id = trip.id, "no pod is missing any more: the breaker is closed again");
        self.closed = Some(trip.id.clone());
        Verdict::Cleared(trip)
    }

    /// Those end that are proven to, once the binding says how many there are: a next process counts on from there.
    fn weigh_waiting(&self, tally: Tally, now: Now) -> Verdict {
        let waiting: Vec<Uid> = self.waiting().cloned().collect();
        if waiting.is_empty() {
            Verdict::Nothing
        } else if self.is_written(tally.certain, now) {
            Verdict::LetGo(waiting)
        } else {
            Verdict::Count
        }
    }

    /// Takes a name for this term, if it has none: under it the binding says what we let go.
    pub(crate) fn sign(&mut self, mark: impl FnOnce() -> String) {
        self.name.get_or_insert_with(mark);
    }

    /// This pod may end; `drained` because its node is, so it ends by our deletion.
    pub(crate) fn let_go(&mut self, uid: Uid, drained: bool, now: Now) {
        let before = self.alone.remove(&uid);
        self.proven -= usize::from(before == Some(Evidence::Proven));
        self.let_go.insert(uid, LetGo { at: now.steady, over: false, drained });
    }

    /// What the binding has to say before more pods may end that no user asked to end; `None` when it says so, when none waits,
    /// and while the watches have not caught up.
    pub(crate) fn unwritten(&self, caught_up: bool, now: Now) -> Option<UnaskedEnds> {
        let weighed = self.begun && caught_up && self.trip.is_none();
        self.waiting().next().filter(|_| weighed)?;
        let ends = self.tally(now).certain;
        if self.is_written(ends, now) {
            return None;
        }
        Some(UnaskedEnds { ends: number(ends), at: format!("{:.0}", now.wall), by: self.name.clone()? })
    }

    /// Folds in what the binding says of the breaker: it survives us, and a user may have resumed, which is heard once all is
    /// `known`. Says whether it was resumed just now; otherwise it has to weigh.
    #[must_use]
    pub(crate) fn follow(
        &mut self,
        (kept, written): (Option<BreakerTrip>, Option<UnaskedEnds>),
        resume: Option<&str>,
        known: bool,
        now: Now,
    ) -> bool {
        // Before all is known it is not known either which pods the user looked at.
        let resume = resume.filter(|_| self.begun && known);
        self.read(written, now);
        let own = self.trip.take();
        let kept = kept.filter(|kept| self.closed.as_ref() != Some(&kept.id));
        let tripped = match (kept, own) {
            // We may know of more by now than was written.
            (Some(kept), Some(own)) if kept.id == own.id => {
                Some(BreakerTrip { ends: own.ends.max(kept.ends), pods: own.pods.max(kept.pods), ..kept })
            }
            (kept, own) => kept.or(own),
        };
        let Some(trip) = tripped else { return false };
        // A user who resumes names the number that was shown: more than that were not looked at.
        let most = number(self.tally(now).most);
        if resume != Some(&*trip.resume_mark()) || most > trip.ends {
            self.trip = Some(trip);
            return false;
        }
        tracing::warn!(id = trip.id, pods = self.alone.len(), "resumed: these pods end, each when that is proven");
        self.approve_all();
        self.closed = Some(trip.id);
        true
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
