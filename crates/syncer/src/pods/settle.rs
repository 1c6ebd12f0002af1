//! What the answer to a pod's call tells us. Only this believes that a call happened.

use serde::Deserialize;
use tapestry_cluster::{Answer, Call, Refusal, Side, Sub, Uid, Verb};
use tapestry_engine::{Dirty, Now};

use super::admission::Verdict;
use super::digest::Phase;
use super::row::{PPod, VPod};
use super::{Case, Ended, Proof, Told};
use crate::events::Event;
use crate::json::fingerprint;
use crate::pair::{Key, Pair};

impl Pair {
    /// Folds in how a call about this virtual pod ended.
    pub(crate) fn settle_pod(
        &mut self,
        vuid: &Uid,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        if let Some(case) = self.pods.cases.get_mut(vuid) {
            match (&done, call.why) {
                (Err(Refusal::Later(_) | Refusal::Unknown(_) | Refusal::NotLeading), "AnnounceReclaim") => {}
                (_, "AnnounceReclaim") => case.told = Told::Announced,
                // The answer is no pod; the watch brings what became of it.
                (Ok(_), "Evict") => case.told = Told::Evicted,
                (Err(_), "Evict") => case.told = Told::Asked(now.steady),
                _ => {}
            }
        }
        if let Verb::Strategic(Sub::Resize, patch) = &call.verb {
            self.settle_resize(vuid, patch, done.as_ref().err(), now, dirty);
        }
        if let Verb::Merge(Sub::Main, patch) = &call.verb
            && patch["spec"].get("tolerations").is_some()
            && matches!(done, Ok(_) | Err(Refusal::Invalid(_) | Refusal::Denied(_)))
            && let Some(case) = self.pods.cases.get_mut(vuid)
        {
            case.mended = true;
        }
        match (done, call.target.side) {
            (Ok(answer), Side::Virtual) => self.learn_vpod(vuid, call, &answer, now, dirty),
            (Ok(answer), Side::Physical) => self.learn_ppod(vuid, call, &answer, now, dirty),
            (Err(refusal), _) => self.learn_refusal(vuid, call, refusal, now, dirty),
        }
    }

    fn learn_vpod(&mut self, vuid: &Uid, call: &Call, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        self.tell_reclaim(vuid, call, now, dirty);
        if let Verb::Evict { .. } = call.verb {
            return;
        }
        if let Verb::Get = call.verb
            && read_uid(answer).is_some_and(|uid| uid != *vuid)
        {
            // Another pod has the name by now, so the one we asked for is gone. What that one says may be newer than what we know:
            // perhaps it names the copy, which was made to point elsewhere.
            if let Ok(Some(row)) = VPod::decode(&answer.object, &self.home) {
                self.put_vpod(row, None, dirty);
            }
            self.around(vuid, dirty, |pods| pods.case(vuid).vpod_gone = Some(Proof::Read));
            return;
        }
        let Ok(Some(row)) = VPod::decode(&answer.object, &self.home) else {
            return self.learn_nothing(vuid, now, dirty);
        };
        if matches!(call.verb, Verb::Delete { grace: Some(0) }) && !row.finalizers {
            // Deleted without grace under its UID, and nobody's finalizer holds it.
            let rv = row.rv;
            return self.around(vuid, dirty, |pods| drop(pods.vpods.remove_proven(vuid, rv)));
        }
        if call.why == "Refuse"
            && let Some(verdict) = self.verdict_of(&row)
        {
            let event = Event::about_vpod(&row, verdict.reason, &verdict.message, now);
            self.events.add(event, dirty);
        }
        if call.why == "DeferResize"
            && let Some(pending) = self.pods.pending(&row)
        {
            let event = Event::about_vpod(&row, pending.event(), &pending.message, now);
            self.events.add(event, dirty);
        }
        if call.why == "PhysicalPodLost" && self.pods.cases.get(vuid).is_some_and(Case::copy_was_deleted) {
            self.count_deleted_copy(now, dirty);
        }
        let after = row.digest.hash();
        self.put_vpod(row, None, dirty);
        if let (Verb::Strategic(_, patch), Some(case)) = (&call.verb, self.pods.cases.get_mut(vuid)) {
            case.pushed = Some((fingerprint(patch["status"].to_string()), after));
        }
    }

    /// What we did to a pod that had to go is told on it, and the node that had no room keeps others away for a while.
    fn tell_reclaim(&mut self, vuid: &Uid, call: &Call, now: Now, dirty: &mut Dirty<Key>) {
        let Some(vpod) = self.pods.vpods.get(vuid) else { return };
        let (reason, message) = match call.why {
            "Evict" => ("Evicted", "less is lent than pods ask for: asked to leave".to_owned()),
            "Reclaim" => {
                let grace = if let Verb::Delete { grace: Some(grace) } = call.verb { grace } else { 0 };
                ("Reclaimed", format!("Tapestry takes the capacity back: deleted with {grace} s of grace"))
            }
            "SendAway" => {
                ("SentAway", "not admitted for five minutes: deleted, so that another node may be tried".to_owned())
            }
            _ => return,
        };
        self.events.add(Event::about_vpod(vpod, reason, &message, now), dirty);
        if call.why == "SendAway" {
            let vnode = vpod.node.clone();
            self.keep_away(&vnode, now, dirty);
        }
    }

    fn learn_ppod(&mut self, vuid: &Uid, call: &Call, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        // A surplus copy that goes is not the pod's.
        let copy = self.pods.copy(vuid).is_some_and(|copy| call.target.uid.as_ref() == Some(&copy.uid));
        if let Verb::Delete { grace } = call.verb
            && let Some(case) = self.pods.cases.get_mut(vuid).filter(|_| copy)
        {
            case.asked = Some(grace.unwrap_or(u32::MAX));
        }
        let Ok(Some(row)) = PPod::decode(&answer.object, &self.origin) else {
            return self.learn_nothing(vuid, now, dirty);
        };
        let ours = row.ours.as_ref().is_some_and(|copy| copy.vpod.uid == *vuid);
        // It says that it is ours, and we say that it is this one's.
        let mine = || {
            let owner = self.owner(&call.target.name, &row.uid).filter(|_| row.ours.is_some() || row.stray.is_some());
            owner.is_some_and(|vpod| vpod.uid == *vuid)
        };
        let mine = matches!(call.verb, Verb::Get) && !ours && mine();
        match call.verb {
            // The object as it was, when it went at once: the watch will say so with proof.
            Verb::Delete { .. } if row.deleting.is_none() => {}
            Verb::Get if !ours && !mine && self.pods.cases.get(vuid).is_some_and(|case| case.taken) => {
                // A stranger has our name: take another one.
                let name = self.new_name(vuid);
                self.around(vuid, dirty, |pods| {
                    let case = pods.case(vuid);
                    (case.name, case.taken) = (name, false);
                });
            }
            Verb::Get if mine => {
                // It is made to point back.
                self.put_ppod(row, None, dirty);
                self.learn_nothing(vuid, now, dirty);
            }
            Verb::Get if !ours => self.learn_stranger(vuid, call, &row, now, dirty),
            _ => self.put_ppod(row, None, dirty),
        }
    }

    /// The pod under the mapped name does not point back to this virtual pod.
    fn learn_stranger(&mut self, vuid: &Uid, call: &Call, row: &PPod, now: Now, dirty: &mut Dirty<Key>) {
        let Some(vpod) = self.pods.vpods.get(vuid) else { return };
        let recorded = vpod.recorded() == Some(&row.uid);
        if row.ours.is_some() && vpod.digest.phase == Phase::Pending {
            // Another pod's copy: this mapping was copied from that one, or forged. It never had a copy, and enters by the door.
            return self.around(vuid, dirty, |pods| {
                if let Some(vpod) = pods.vpods.get_mut(vuid) {
                    vpod.mapping = None;
                }
            });
        }
        // It carries our marks, and it is not clear whose it is; or none of them, and nothing says that it is ours.
        let says = if row.ours.is_some() || row.stray.is_some() {
            "says that it belongs to another virtual pod, or several say that it is theirs"
        } else {
            "carries none of our labels and annotations any more"
        };
        let (name, known) = (&call.target.name, self.pods.cases.get(vuid).is_some_and(|case| case.unmarked));
        if recorded && vpod.deleting.is_none() {
            // Not lost, and not ours to touch.
            let message = format!("the physical pod {name} {says}: its status is not followed");
            let event = Event::about_vpod(vpod, "PhysicalPodUnmarked", &message, now).filter(|_| !known);
            self.events.add(event, dirty);
            if let Some(case) = self.pods.cases.get_mut(vuid) {
                case.unmarked = true;
            }
            return self.learn_nothing(vuid, now, dirty);
        }
        // Names are unique: where somebody else's pod stands, ours does not. Only, the one we recorded runs on without its pod.
        let existed = vpod.was_copied();
        if recorded {
            let message = format!("the physical pod {name} {says}: it is left running, delete it by hand");
            self.events.add(Event::about_vpod(vpod, "PhysicalPodLeft", &message, now), dirty);
        }
        self.around(vuid, dirty, |pods| {
            pods.case(vuid).ended = Some(Box::new(Ended { existed, seen: false, last: None }));
        });
    }

    fn learn_refusal(&mut self, vuid: &Uid, call: &Call, refusal: Refusal, now: Now, dirty: &mut Dirty<Key>) {
        match (refusal, call.target.side, &call.verb) {
            (Refusal::Gone, Side::Virtual, Verb::Get) => {
                self.around(vuid, dirty, |pods| pods.case(vuid).vpod_gone = Some(Proof::Read));
            }
            (Refusal::Gone, Side::Physical, Verb::Get) => {
                let existed = self.pods.vpods.get(vuid).is_some_and(VPod::was_copied);
                self.around(vuid, dirty, |pods| {
                    if let Some(vpod) = pods.vpods.get_mut(vuid).filter(|vpod| existed && !vpod.may_have_run()) {
                        // It never ran, and is admitted like any other.
                        vpod.mapping = None;
                        return;
                    }
                    let case = pods.case(vuid);
                    case.taken = false;
                    case.ended = Some(Box::new(Ended { existed, seen: false, last: None }));
                });
            }
            (Refusal::Exists, Side::Physical, Verb::Create(_)) => {
                if let Some(case) = self.pods.cases.get_mut(vuid) {
                    case.taken = true;
                    dirty.mark(Key::Pod(vuid.clone()));
                }
            }
            (refused @ (Refusal::Invalid(_) | Refusal::Denied(_)), Side::Physical, Verb::Create(_)) => {
                let reason = "PhysicalClusterRefused";
                let message = format!("the physical cluster refused the pod: {}", refused.message());
                if let Some(case) = self.pods.cases.get_mut(vuid) {
                    case.refused = Some(Box::new(Verdict { reason, message }));
                }
                // Perhaps something it stands on is gone.
                self.prerequisites.doubt(now, dirty);
            }
            // Not what we looked at, or no answer: the watch brings the truth, the plan is made anew.
            _ => {}
        }
    }

    /// Asking again at once would tell us the same.
    fn learn_nothing(&mut self, vuid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(case) = self.pods.cases.get_mut(vuid) {
            case.looked = Some(now.steady);
            dirty.mark(Key::Pod(vuid.clone()));
        }
    }

    fn verdict_of(&self, vpod: &VPod) -> Option<Verdict> {
        match self.eligible(vpod) {
            Err(verdict) => verdict,
            Ok(()) => self.pods.cases.get(&vpod.uid)?.verdict(),
        }
    }
}

fn read_uid(answer: &Answer) -> Option<Uid> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: Uid,
    }
    serde_json::from_slice::<Object>(&answer.object).ok().map(|object| object.metadata.uid)
}
