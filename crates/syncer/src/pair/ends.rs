//! Carries out what the breaker decides: marks the pods and nodes it concerns, and reports it on the binding. Decides nothing.

use tapestry_api::binding::{BreakerTrip, UnaskedEnds};
use tapestry_cluster::Uid;
use tapestry_engine::{Dirty, Now};

use super::{Key, Pair};
use crate::breaker::{
    CLEARED, Circumstances, MANY_DELETED, MASS_DELETION, Verdict, tell_cleared, tell_deleted, tell_trip,
};
use crate::events::Event;

impl Pair {
    /// Has the breaker weigh which pods end although their end was not asked for.
    pub(crate) fn weigh_ends(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        let circumstances = Circumstances {
            known: self.all_ends_known(),
            working: self.operational().is_some(),
            runs: &|uid| self.pods.runs(uid),
            running: &|| self.pods.living(),
        };
        match self.breaker.weigh(&circumstances, now) {
            Verdict::Nothing => {}
            Verdict::Trip { ends, pods } => {
                let trip = self.breaker.trip_with(self.pods.fresh_mark(), ends, pods, now);
                let told = self.bindings.bound().and_then(|bound| {
                    let message = tell_trip(trip, &bound.binding.name);
                    Event::about_binding(&bound.binding, MASS_DELETION, &message, now)
                });
                self.events.add(told, dirty);
                dirty.mark(Key::Binding);
            }
            Verdict::Grown => dirty.mark(Key::Binding),
            Verdict::Cleared(trip) => {
                let message = tell_cleared(&trip);
                let told = self.bindings.bound().and_then(|bound| Event::news(&bound.binding, CLEARED, &message, now));
                self.events.add(told, dirty);
                dirty.mark_all();
            }
            Verdict::Count => {
                self.breaker.sign(|| self.pods.fresh_mark());
                dirty.mark(Key::Binding);
            }
            Verdict::LetGo(pods) => pods.into_iter().for_each(|uid| self.let_go(uid, now, dirty)),
        }
    }

    fn let_go(&mut self, uid: Uid, now: Now, dirty: &mut Dirty<Key>) {
        dirty.mark(if self.pods.knows(&uid) { Key::Pod(uid.clone()) } else { Key::Stray(uid.clone()) });
        let drained = self.is_drained(&uid);
        if let Some(physical) = self.node_of(&uid).filter(|_| drained) {
            // Kubernetes may be told to evict them.
            dirty.mark(Key::Node(physical));
        }
        self.breaker.let_go(uid, drained, now);
    }

    /// What the binding has to say before more pods may end that were not asked to end.
    pub(crate) fn unwritten_ends(&self, now: Now) -> Option<UnaskedEnds> {
        self.breaker.unwritten(self.catch_up.done(), now)
    }

    /// Follows what the binding says of the breaker.
    pub(crate) fn follow_breaker(
        &mut self,
        said: (Option<BreakerTrip>, Option<UnaskedEnds>),
        resume: Option<&str>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let known = self.all_ends_known();
        if self.breaker.follow(said, resume, known, now) {
            return dirty.mark_all();
        }
        self.weigh_ends(now, dirty);
    }

    /// A running pod has ended because its copy was deleted in the physical cluster.
    pub(crate) fn count_deleted_copy(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        let Some(many) = self.breaker.count_deleted(now) else { return };
        let message = tell_deleted(many, self.home.mount.as_str());
        let told =
            self.bindings.bound().and_then(|bound| Event::about_binding(&bound.binding, MANY_DELETED, &message, now));
        self.events.add(told, dirty);
    }
}
