//! Strays: physical pods of our origin that do not say whose copy they are, because a client removed that while no syncer
//! watched. A stray that a virtual pod names gets its mark back. A stray that no virtual pod names is reported, and collected if
//! it carries all our other marks: late, after a live look, one at a time, and never past the breaker. Must not touch what may be
//! another client's imitation of our pods (law 6).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Name, Refusal, Side, Sub, Target, Uid, Verb, kind};
use tapestry_domain::names;
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use super::row::{Back, PPod, Stray, VPod};
use crate::bindings::Bound;
use crate::breaker::LossState;
use crate::events::Event;
use crate::origin::Origin;
use crate::pair::{Key, Pair};

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// One virtual pod names it: it gets its mark back.
        MarkStray,
        /// What it looks like now.
        LookAtStray,
        /// No virtual pod names it.
        CollectStray,
    }
}

/// How long a stray may wait for a virtual pod that names it.
const COLLECT_AFTER: Duration = Duration::from_mins(10);
/// How long a live look is good for.
const FRESH: Duration = Duration::from_mins(1);
/// Not more than one is collected in this time.
const PACE: Duration = Duration::from_secs(6);

/// The strays that the watch shows.
#[derive(Default)]
pub(super) struct Strays {
    seen: BTreeMap<Uid, Sighting>,
    /// When the last one was asked to go.
    collected: Option<Duration>,
}

struct Sighting {
    since: Duration,
    /// When a live read last showed it as it is.
    looked: Option<Duration>,
    /// An event reported it, once.
    told: bool,
}

impl Strays {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Uid> {
        self.seen.keys()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.seen.keys().cloned().map(Key::Stray)
    }

    /// What was read before is older than what happened since.
    pub(super) fn doubt(&mut self) {
        self.seen.values_mut().for_each(|stray| stray.looked = None);
    }
}

impl Pair {
    /// Virtual pods on nodes of ours whose mapping names this physical pod.
    pub(super) fn naming(&self, name: &Name) -> impl Iterator<Item = &VPod> {
        self.pods.vpods.iter().filter(move |vpod| vpod.names(name) && self.nodes.vnode(&vpod.node).is_some())
    }

    /// The one virtual pod that names this physical pod, if it recorded no other one under that name. A name is written before
    /// the copy is made, and drawn so that no user can foresee it. Looks at all virtual pods.
    pub(super) fn owner(&self, name: &Name, uid: &Uid) -> Option<&VPod> {
        let mut naming = self.naming(name);
        naming.next().filter(|vpod| vpod.claims(name, uid) && naming.next().is_none())
    }

    /// Whether a virtual pod says that this is its copy on a node that we do not know: one that lost our label, and that a process
    /// which just started has not found again. Looks at all virtual pods.
    pub(super) fn claimed_out_of_sight(&self, name: &Name, uid: &Uid) -> bool {
        let unknown = |vpod: &VPod| self.nodes.vnode(&vpod.node).is_none();
        self.pods.vpods.iter().any(|vpod| vpod.claims(name, uid) && unknown(vpod))
    }

    /// A physical pod is not, or no longer, one that points back.
    pub(super) fn see_stray(&mut self, uid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        if self.pods.ppods.get(uid).is_none_or(|row| row.stray.is_none()) {
            return self.forget_stray(uid, LossState::Fine, now, dirty);
        }
        let since = now.steady;
        self.pods.strays.seen.entry(uid.clone()).or_insert(Sighting { since, looked: None, told: false });
        dirty.mark(Key::Stray(uid.clone()));
        self.stop_waiting_for_strays(dirty);
    }

    pub(super) fn forget_stray(&mut self, uid: &Uid, state: LossState, now: Now, dirty: &mut Dirty<Key>) {
        if self.pods.strays.seen.remove(uid).is_some() {
            self.breaker.record(uid, state, now);
            self.stop_waiting_for_strays(dirty);
        }
    }

    /// What a stray may have used is kept until the last one has ended or gone; then every copy is looked at again.
    fn stop_waiting_for_strays(&self, dirty: &mut Dirty<Key>) {
        if self.pods.live_stray().is_none() {
            dirty.mark_all();
        }
    }

    pub(crate) fn plan_stray(&self, uid: &Uid, now: Now) -> Plan<Why> {
        let (Some(sighting), Some(ppod), Some(_)) =
            (self.pods.strays.seen.get(uid), self.pods.ppods.get(uid), self.operational())
        else {
            return Plan::Rest;
        };
        let Some(stray) = ppod.stray.as_ref().filter(|_| ppod.deleting.is_none()) else { return Plan::Rest };
        let target = Target::namespaced(Side::Physical, &kind::POD, stray.namespace.clone(), stray.name.clone());
        if self.naming(&stray.name).next().is_some() {
            // It says that it is ours, and one virtual pod says that it is its own: both ends agree (law 5).
            // Otherwise some virtual pod names it, and we cannot decide which side is right.
            return self.owner(&stray.name, uid).map_or(Plan::Rest, |vpod| {
                let verb = mark(&self.origin, &vpod.back(), vpod.generation, None);
                Why::MarkStray.call(target.uid(uid), verb)
            });
        }
        if sighting.looked.is_none() {
            return Why::LookAtStray.call(target, Verb::Get);
        }
        if !stray.marked || self.claimed_out_of_sight(&stray.name, uid) {
            return Plan::Rest;
        }
        let due = self.due(sighting);
        if now.steady < due {
            return Plan::Wait(due);
        }
        if !ppod.terminal && self.breaker.holds(uid) {
            return Plan::Rest;
        }
        // A pod that misses its copy may miss this one.
        if self.breaker.misses_one_of(|alone| self.pods.cases.contains_key(alone)) {
            return Plan::Wait(now.steady + FRESH);
        }
        if !self.proven(sighting, now) {
            return Why::LookAtStray.call(target, Verb::Get);
        }
        if !ppod.terminal && !self.may_end(uid) {
            return Plan::Rest;
        }
        let turn = self.pods.strays.collected.map_or(now.steady, |at| at + PACE);
        if turn > now.steady || self.next_stray(now) != Some(uid) {
            return Plan::Wait(turn.max(now.steady + PACE));
        }
        // Under the version we looked at: the process that leads by the time the call arrives may have marked it.
        Why::CollectStray.call(target.uid(uid).rv(ppod.rv), Verb::Delete { grace: None })
    }

    /// When it is collected; once the binding goes, no virtual pod that might name it comes any more.
    fn due(&self, sighting: &Sighting) -> Duration {
        let leaving = self.bindings.bound().is_some_and(Bound::leaving);
        if leaving { sighting.since } else { sighting.since + COLLECT_AFTER }
    }

    /// A live read after all that time, and not long ago, showed that it is still one.
    fn proven(&self, sighting: &Sighting, now: Now) -> bool {
        sighting.looked.is_some_and(|at| at >= self.due(sighting) && at + FRESH > now.steady)
    }

    /// The stray that was proven first goes first.
    fn next_stray(&self, now: Now) -> Option<&Uid> {
        let waits =
            |uid: &Uid| self.pods.ppods.get(uid).is_some_and(|ppod| ppod.deleting.is_none() && ppod.made_by_us());
        let proven = self.pods.strays.seen.iter().filter(|(uid, sighting)| self.proven(sighting, now) && waits(uid));
        proven.min_by_key(|(_, sighting)| sighting.looked).map(|(uid, _)| uid)
    }

    pub(crate) fn settle_stray(
        &mut self,
        uid: &Uid,
        why: Why,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let sent = !matches!(done, Err(Refusal::NotLeading | Refusal::Later(_)));
        // Gone, or another client's by now: the watch tells.
        let row = done.ok().and_then(|answer| PPod::decode(&answer.object, &self.origin).ok().flatten());
        let row = row.filter(|row| row.uid == *uid);
        match (why, row) {
            (Why::CollectStray, row) => {
                if sent {
                    self.pods.strays.collected = Some(now.steady);
                }
                // Otherwise it is the object as it was when it went at once: the watch will say so with proof.
                if let Some(row) = row.filter(|row| row.deleting.is_some()) {
                    self.put_ppod(row, None, now, dirty);
                }
            }
            (Why::MarkStray, Some(row)) => self.put_ppod(row, None, now, dirty),
            (Why::LookAtStray, Some(row)) => {
                self.put_ppod(row, None, now, dirty);
                self.note_look(uid, now, dirty);
            }
            (Why::MarkStray | Why::LookAtStray, None) => {}
        }
    }

    /// A live read showed it as it is.
    fn note_look(&mut self, uid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        let Some(sighting) = self.pods.strays.seen.get_mut(uid) else { return };
        sighting.looked = Some(now.steady);
        let first = !std::mem::replace(&mut sighting.told, true);
        dirty.mark(Key::Stray(uid.clone()));
        let proven = self.pods.strays.seen.get(uid).is_some_and(|sighting| self.proven(sighting, now));
        let Some(ppod) = self.pods.ppods.get(uid) else { return };
        if let Some(stray) = ppod.stray.as_ref().filter(|_| first) {
            let told =
                self.operational().map(|bound| Event::about_binding(&bound.binding, "OrphanFound", &tell(stray), now));
            self.events.add(told.flatten(), dirty);
        }
        if proven && !ppod.terminal && ppod.deleting.is_none() && ppod.made_by_us() {
            self.breaker.record(uid, LossState::Ends, now);
            self.weigh_ends(now, dirty);
        }
    }
}

fn tell(stray: &Stray) -> String {
    let Stray { namespace, name, marked } = stray;
    let then = if *marked {
        format!("it is deleted after {} minutes unless a virtual pod names it", COLLECT_AFTER.as_secs() / 60)
    } else {
        "it lacks some of our labels too, so it is left alone: delete it by hand".to_owned()
    };
    format!(
        "physical pod {namespace}/{name} carries our origin and does not say which virtual pod it belongs to: {then}"
    )
}

/// The patch that makes a physical pod say that it is ours, and whose copy it is.
pub(super) fn mark(origin: &Origin, back: &Back, generation: i64, sizes: Option<&str>) -> Verb {
    let labels = origin.labels().into_iter().chain([namespace_label(&back.namespace)]);
    let labels: Map<String, Value> = labels.map(|(key, value)| (key.to_owned(), json!(value))).collect();
    let mut annotations = json!({
        keys::VIRTUAL_POD_NAMESPACE: back.namespace.as_str(),
        keys::VIRTUAL_POD_NAME: back.name.as_str(),
        keys::VIRTUAL_POD_UID: back.uid.as_str(),
        keys::VIRTUAL_POD_GENERATION: generation.to_string(),
    });
    for (key, value) in origin.annotations() {
        annotations[key] = value.into();
    }
    if let Some(sizes) = sizes {
        annotations[keys::VIRTUAL_POD_SIZES] = sizes.into();
    }
    Verb::Merge(Sub::Main, json!({"metadata": {"labels": labels, "annotations": annotations}}))
}

/// The label by which copies of Services select the pods of their virtual namespace.
pub(super) fn namespace_label(namespace: &Name) -> (&'static str, String) {
    (keys::VIRTUAL_NAMESPACE, names::label_value(namespace.as_str()).into_owned())
}

#[cfg(test)]
mod tests;
