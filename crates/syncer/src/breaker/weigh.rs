//! When the breaker trips, grows, clears itself, and whom it lets go: decided from all pods of a pair.
//! Only once both sides have caught up; see `catch_up`.

use tapestry_api::binding::{BreakerTrip, UnaskedEnds};
use tapestry_cluster::Uid;
use tapestry_engine::{Dirty, Now};

use super::{FEW, LetGo, MASS_DELETION, SHARE, Tally, tell_trip};
use crate::events::Event;
use crate::pair::{Key, Pair};

const CLEARED: &str = "BreakerCleared";

impl Pair {
    /// Trips when too many would end: as soon as more than a few are proven to, and those that are not in sight either make up
    /// too large a share. Waiting for the proof of each would let those go that were proven first.
    pub(crate) fn weigh_ends(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        let known = self.breaker.begun && self.complete() && self.catch_up.done();
        if !known || (self.breaker.alone.is_empty() && self.breaker.trip.is_none()) {
            return;
        }
        self.breaker.forget_old(now);
        let tally = self.breaker.tally(now);
        if self.breaker.trip.is_some() {
            return self.weigh_trip(tally, now, dirty);
        }
        if tally.certain <= FEW {
            return self.let_go(tally, now, dirty);
        }
        let pods = self.pods_there();
        if tally.most * SHARE <= pods {
            return self.let_go(tally, now, dirty);
        }
        let id = self.pods.fresh_mark();
        let ends = tally.most;
        tracing::error!(
            ends,
            pods,
            id,
            "pods would end that nobody asked to end: nothing is ended until `tapestry resume`"
        );
        let since = format!("{:.0}", now.wall);
        let trip = BreakerTrip { id, since, ends: number(ends), pods: number(pods) };
        let told = self.bound.as_ref().and_then(|bound| {
            let message = tell_trip(&trip, &bound.binding.name);
            Event::about_binding(&bound.binding, MASS_DELETION, &message, now)
        });
        self.events.add(told, dirty);
        self.breaker.trip = Some(trip);
        dirty.mark(Key::Binding);
    }

    /// How many pods there are: those that run as far as either side knows, and those that are counted although they do not.
    fn pods_there(&self) -> usize {
        let counted = self.breaker.alone.keys().chain(self.breaker.let_go.keys());
        let gone = counted.filter(|uid| !self.pods.runs(uid)).count();
        self.pods.living() + gone + self.breaker.inherited.map_or(0, |(ends, _)| ends)
    }

    /// A trip grows with what is missing, and clears itself when nothing is missing any more.
    fn weigh_trip(&mut self, tally: Tally, now: Now, dirty: &mut Dirty<Key>) {
        if self.breaker.unapproved() == 0 && self.working().is_some() {
            return self.clear_trip(now, dirty);
        }
        if self.breaker.trip.as_ref().is_none_or(|trip| number(tally.most) <= trip.ends) {
            return;
        }
        let pods = number(self.pods_there());
        if let Some(trip) = &mut self.breaker.trip {
            (trip.ends, trip.pods) = (number(tally.most), pods.max(trip.pods));
            dirty.mark(Key::Binding);
        }
    }

    fn clear_trip(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        let Some(trip) = self.breaker.trip.take() else { return };
        tracing::info!(id = trip.id, "no pod is missing any more: the breaker is closed again");
        let message = format!(
            "each of the {} pods that the mass-delete breaker counted is there again or was asked to end: pods end as usual",
            trip.ends
        );
        let told = self.bound.as_ref().and_then(|bound| Event::news(&bound.binding, CLEARED, &message, now));
        self.events.add(told, dirty);
        self.breaker.closed = Some(trip.id);
        dirty.mark_all();
    }

    /// Lets those end that are proven to, once the binding says how many there are: a next process counts on from there.
    fn let_go(&mut self, tally: Tally, now: Now, dirty: &mut Dirty<Key>) {
        let waiting: Vec<Uid> = self.breaker.waiting().cloned().collect();
        if waiting.is_empty() {
            return;
        }
        if self.breaker.name.is_none() {
            self.breaker.name = Some(self.pods.fresh_mark());
        }
        if !self.breaker.is_written(tally.certain, now) {
            return dirty.mark(Key::Binding);
        }
        for uid in waiting {
            self.breaker.alone.remove(&uid);
            self.breaker.proven -= 1;
            dirty.mark(if self.pods.knows(&uid) { Key::Pod(uid.clone()) } else { Key::Stray(uid.clone()) });
            let drained = self.is_drained(&uid);
            if let Some(physical) = self.node_of(&uid).filter(|_| drained) {
                // Kubernetes may be told to evict them.
                dirty.mark(Key::Node(physical));
            }
            self.breaker.let_go.insert(uid, LetGo { at: now.steady, over: false, drained });
        }
    }

    /// What the binding has to say before more pods may end that nobody asked to end; `None` when it says so, or none waits.
    pub(crate) fn unwritten_ends(&self, now: Now) -> Option<UnaskedEnds> {
        let weighed = self.breaker.begun && self.catch_up.done() && self.breaker.trip.is_none();
        self.breaker.waiting().next().filter(|_| weighed)?;
        let ends = self.breaker.tally(now).certain;
        if self.breaker.is_written(ends, now) {
            return None;
        }
        Some(UnaskedEnds { ends: number(ends), at: format!("{:.0}", now.wall), by: self.breaker.name.clone()? })
    }

    /// Folds in what the binding says of the breaker: it survives us, and somebody may have resumed.
    pub(crate) fn follow_breaker(
        &mut self,
        (kept, written): (Option<BreakerTrip>, Option<UnaskedEnds>),
        resume: Option<&str>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        // Before all is known nobody knows to what it is said.
        let resume = resume.filter(|_| self.breaker.begun && self.complete() && self.catch_up.done());
        let breaker = &mut self.breaker;
        breaker.read(written, now);
        let own = breaker.trip.take();
        let kept = kept.filter(|kept| breaker.closed.as_ref() != Some(&kept.id));
        let tripped = match (kept, own) {
            // We may know of more by now than was written.
            (Some(kept), Some(own)) if kept.id == own.id => {
                Some(BreakerTrip { ends: own.ends.max(kept.ends), pods: own.pods.max(kept.pods), ..kept })
            }
            (kept, own) => kept.or(own),
        };
        let Some(trip) = tripped else { return self.weigh_ends(now, dirty) };
        // Whoever resumes names the number that was shown: more than that were not looked at.
        let most = number(breaker.tally(now).most);
        if resume != Some(&*trip.resume_mark()) || most > trip.ends {
            breaker.trip = Some(trip);
            return self.weigh_ends(now, dirty);
        }
        tracing::warn!(id = trip.id, pods = breaker.alone.len(), "resumed: these pods end, each when that is proven");
        breaker.approve_all();
        breaker.closed = Some(trip.id);
        dirty.mark_all();
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
