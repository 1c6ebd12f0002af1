//! What the answer to a pod's call tells us. Only this believes that a call happened.

use serde::Deserialize;
use tapestry_cluster::{Answer, Call, Name, Refusal, Uid, Verb};
use tapestry_engine::{Dirty, Now, Reason as _};

use super::admission::{PendingReason, Verdict};
use super::changes::Part;
use super::digest::Phase;
use super::reason::PodReason;
use super::row::{PPod, VPod};
use super::{Admitted, Case, Ended, Proof, Told, Why};
use crate::events::Event;
use crate::json::fingerprint;
use crate::pair::{Key, Pair};

impl Pair {
    /// Folds in how a call about this virtual pod ended.
    pub(crate) fn settle_pod(
        &mut self,
        vuid: &Uid,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        self.note_attempt(vuid, why, call, done.as_ref().err(), now, dirty);
        match done {
            Ok(answer) => self.learn_answer(vuid, why, call, &answer, now, dirty),
            Err(refusal) => self.learn_refusal(vuid, why, refusal, now, dirty),
        }
    }

    /// What counts although the call may have failed: that it was tried.
    fn note_attempt(
        &mut self,
        vuid: &Uid,
        why: Why,
        call: &Call,
        refused: Option<&Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        if let (Why::Resize, Verb::Strategic(_, patch)) = (why, &call.verb) {
            return self.settle_resize(vuid, patch, refused, now, dirty);
        }
        let Some(case) = self.pods.cases.get_mut(vuid) else { return };
        match why {
            Why::AnnounceReclaim => {
                if !matches!(refused, Some(Refusal::Later(_) | Refusal::Unknown(_) | Refusal::NotLeading)) {
                    case.told = Told::Announced;
                }
            }
            // The answer is no pod; the watch brings what became of it.
            Why::Evict => case.told = if refused.is_none() { Told::Evicted } else { Told::Asked(now.steady) },
            Why::MendTolerations => {
                case.mended |= matches!(refused, None | Some(Refusal::Invalid(_) | Refusal::Denied(_)));
            }
            // `Resize` is above; of the others only the answer counts.
            Why::ReadChanged
            | Why::ReadCopy
            | Why::PushMetadata
            | Why::PushSpec
            | Why::PushEphemeralContainers
            | Why::MarkPushed
            | Why::TellChange
            | Why::Resize
            | Why::MarkResized
            | Why::Map
            | Why::RepairMapping
            | Why::CreateCopy
            | Why::LookForCopy
            | Why::LookForVirtualPod
            | Why::ReadPod
            | Why::ReadStatus
            | Why::Status
            | Why::Refuse
            | Why::DeferResize
            | Why::AnnounceSendAway
            | Why::SendAway
            | Why::Finish
            | Why::PhysicalPodLost
            | Why::NotScheduled
            | Why::PhysicalUnschedulable
            | Why::Release
            | Why::ReleaseWithNode
            | Why::VirtualPodDeleted
            | Why::VirtualPodGone
            | Why::PodFinished
            | Why::SurplusCopy
            | Why::GiveBack
            | Why::MendLabels
            | Why::Reclaim => {}
        }
    }

    fn learn_answer(&mut self, vuid: &Uid, why: Why, call: &Call, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        match why {
            Why::Evict => {
                let message = "Evicted: the virtual node now lends less than its pods request";
                self.tell_end(vuid, PodReason::Evicted, message, now, dirty);
            }
            Why::Reclaim => {
                let grace = if let Verb::Delete { grace: Some(grace) } = call.verb { grace } else { 0 };
                let message =
                    format!("Deleted with a grace period of {grace} s: the virtual node takes its capacity back");
                self.tell_end(vuid, PodReason::Reclaimed, &message, now, dirty);
                self.learn_vpod(vuid, why, call, answer, now, dirty);
            }
            Why::SendAway => {
                let message = "Deleted: the virtual node did not admit the pod for five minutes; its controller may try another node";
                if let Some(vnode) = self.tell_end(vuid, PodReason::SentAway, message, now, dirty) {
                    self.keep_away(&vnode, now, dirty);
                }
                self.learn_vpod(vuid, why, call, answer, now, dirty);
            }
            Why::LookForVirtualPod | Why::ReadPod => self.learn_look(vuid, why, call, answer, now, dirty),
            Why::ReadChanged => {
                self.begin_change(vuid, answer, dirty);
                self.learn_look(vuid, why, call, answer, now, dirty);
            }
            Why::Map
            | Why::RepairMapping
            | Why::Status
            | Why::Refuse
            | Why::DeferResize
            | Why::TellChange
            | Why::AnnounceSendAway
            | Why::AnnounceReclaim
            | Why::Finish
            | Why::PhysicalPodLost
            | Why::PhysicalUnschedulable
            | Why::Release
            | Why::ReleaseWithNode => self.learn_vpod(vuid, why, call, answer, now, dirty),
            Why::VirtualPodDeleted | Why::VirtualPodGone | Why::PodFinished | Why::SurplusCopy => {
                self.learn_deletion(vuid, call, answer, now, dirty);
            }
            Why::NotScheduled => {
                self.learn_not_scheduled(vuid, answer, now, dirty);
                self.learn_deletion(vuid, call, answer, now, dirty);
            }
            Why::LookForCopy | Why::ReadStatus => self.learn_copy(vuid, call, answer, now, dirty),
            Why::ReadCopy => {
                self.learn_change(vuid, call, answer);
                self.learn_copy(vuid, call, answer, now, dirty);
            }
            Why::PushMetadata | Why::PushSpec | Why::PushEphemeralContainers | Why::MarkPushed => {
                self.learn_change(vuid, call, answer);
                self.learn_ppod(vuid, answer, now, dirty);
            }
            Why::CreateCopy
            | Why::GiveBack
            | Why::MendLabels
            | Why::MendTolerations
            | Why::Resize
            | Why::MarkResized => self.learn_ppod(vuid, answer, now, dirty),
        }
    }

    fn learn_ppod(&mut self, vuid: &Uid, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        match PPod::decode(&answer.object, &self.origin) {
            Ok(Some(row)) => self.put_ppod(row, None, now, dirty),
            _ => self.learn_nothing(vuid, now, dirty),
        }
    }

    /// A live read of the virtual pod.
    fn learn_look(&mut self, vuid: &Uid, why: Why, call: &Call, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        if read_uid(answer).is_none_or(|uid| uid == *vuid) {
            return self.learn_vpod(vuid, why, call, answer, now, dirty);
        }
        // Another pod has the name by now, so the one we asked for is gone. What that one says may be newer than what we know:
        // perhaps it names the copy, which was made to point elsewhere.
        if let Ok(Some(row)) = VPod::decode(&answer.object, &self.home) {
            self.put_vpod(row, None, now, dirty);
        }
        self.change_pod(vuid, now, dirty, |pods| pods.case(vuid).vpod_gone = Some(Proof::Read));
    }

    fn learn_vpod(&mut self, vuid: &Uid, why: Why, call: &Call, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        let Ok(Some(row)) = VPod::decode(&answer.object, &self.home) else {
            return self.learn_nothing(vuid, now, dirty);
        };
        if matches!(call.verb, Verb::Delete { grace: Some(0) }) && !row.finalizers {
            // Deleted without grace under its UID, and no finalizer holds it.
            let rv = row.rv;
            return self.change_pod(vuid, now, dirty, |pods| drop(pods.vpods.remove_proven(vuid, rv)));
        }
        self.tell_written(vuid, why, &row, now, dirty);
        let after = row.digest.hash();
        self.put_vpod(row, None, now, dirty);
        if let (Verb::Strategic(_, patch), Some(case)) = (&call.verb, self.pods.cases.get_mut(vuid)) {
            case.pushed = Some((fingerprint(patch["status"].to_string()), after));
        }
    }

    /// What follows from a status that was written.
    fn tell_written(&mut self, vuid: &Uid, why: Why, row: &VPod, now: Now, dirty: &mut Dirty<Key>) {
        let event = match why {
            Why::Refuse => self
                .verdict_of(row, now)
                .and_then(|verdict| Event::about_vpod(row, verdict.reason.as_str(), &verdict.message, now)),
            Why::DeferResize => {
                let pending = self.pods.pending(row);
                pending.and_then(|pending| Event::about_vpod(row, pending.event(), &pending.message, now))
            }
            Why::TellChange => {
                self.unpushed(row).and_then(|held| Event::about_vpod(row, held.reason.as_str(), &held.message, now))
            }
            Why::PhysicalPodLost => {
                if self.pods.cases.get(vuid).is_some_and(Case::copy_was_deleted) {
                    self.count_deleted_copy(now, dirty);
                }
                None
            }
            Why::PhysicalUnschedulable => self.unscheduled_event(vuid, row, now),
            // `tell_end` tells what we did to a pod that had to go.
            Why::SendAway
            | Why::Reclaim
            | Why::Evict
            | Why::Map
            | Why::RepairMapping
            | Why::CreateCopy
            | Why::LookForCopy
            | Why::LookForVirtualPod
            | Why::ReadPod
            | Why::ReadStatus
            | Why::Status
            | Why::AnnounceSendAway
            | Why::Finish
            | Why::NotScheduled
            | Why::Release
            | Why::ReleaseWithNode
            | Why::VirtualPodDeleted
            | Why::VirtualPodGone
            | Why::PodFinished
            | Why::SurplusCopy
            | Why::GiveBack
            | Why::MendLabels
            | Why::MendTolerations
            | Why::AnnounceReclaim
            | Why::Resize
            | Why::MarkResized
            | Why::ReadChanged
            | Why::ReadCopy
            | Why::PushMetadata
            | Why::PushSpec
            | Why::PushEphemeralContainers
            | Why::MarkPushed => None,
        };
        self.events.add(event, dirty);
    }

    /// What we did to a pod that had to go is told on it. The virtual node it was on, if the pod is known.
    fn tell_end(
        &mut self,
        vuid: &Uid,
        reason: PodReason,
        message: &str,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) -> Option<Name> {
        let vpod = self.pods.vpods.get(vuid)?;
        let vnode = vpod.node.clone();
        self.events.add(Event::about_vpod(vpod, reason.as_str(), message, now), dirty);
        Some(vnode)
    }

    /// The copy, or a surplus one, was asked to go.
    fn learn_deletion(&mut self, vuid: &Uid, call: &Call, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        // A surplus copy that goes is not the pod's.
        let copy = self.pods.copy(vuid).is_some_and(|copy| call.target.uid.as_ref() == Some(&copy.uid));
        if let Verb::Delete { grace } = call.verb
            && let Some(case) = self.pods.cases.get_mut(vuid).filter(|_| copy)
        {
            case.asked = Some(grace.unwrap_or(u32::MAX));
        }
        match PPod::decode(&answer.object, &self.origin) {
            // The object as it was, when it went at once: the watch will say so with proof.
            Ok(Some(row)) if row.deleting.is_none() => {}
            Ok(Some(row)) => self.put_ppod(row, None, now, dirty),
            _ => self.learn_nothing(vuid, now, dirty),
        }
    }

    /// A live read of the physical pod under the mapped name.
    fn learn_copy(&mut self, vuid: &Uid, call: &Call, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        let Ok(Some(row)) = PPod::decode(&answer.object, &self.origin) else {
            return self.learn_nothing(vuid, now, dirty);
        };
        if row.ours.as_ref().is_some_and(|copy| copy.vpod.uid == *vuid) {
            return self.put_ppod(row, None, now, dirty);
        }
        let owner = self.owner(&call.target.name, &row.uid).filter(|_| row.ours.is_some() || row.stray.is_some());
        if owner.is_some_and(|vpod| vpod.uid == *vuid) {
            // It says that it is ours, and we say that it is this one's: it is made to point back.
            self.put_ppod(row, None, now, dirty);
            return self.learn_nothing(vuid, now, dirty);
        }
        if self.pods.cases.get(vuid).is_some_and(|case| case.taken) {
            // A foreign pod has our name: take another one.
            let admitted = self.new_name(vuid).map_or(Admitted::No, Admitted::As);
            return self.change_pod(vuid, now, dirty, |pods| {
                let case = pods.case(vuid);
                (case.admitted, case.taken) = (admitted, false);
            });
        }
        self.learn_stranger(vuid, call, &row, now, dirty);
    }

    /// The pod under the mapped name does not point back to this virtual pod.
    fn learn_stranger(&mut self, vuid: &Uid, call: &Call, row: &PPod, now: Now, dirty: &mut Dirty<Key>) {
        let Some(vpod) = self.pods.vpods.get(vuid) else { return };
        let recorded = vpod.recorded() == Some(&row.uid);
        if row.ours.is_some() && vpod.digest.phase == Phase::Pending {
            // Another pod's copy: this mapping was copied from that one, or forged. It never had a copy, and is admitted like any other.
            return self.change_pod(vuid, now, dirty, |pods| pods.forget_mapping(vuid));
        }
        // It carries our marks, and it is not clear whose it is; or none of them, and nothing says that it is ours.
        let says = if row.ours.is_some() || row.stray.is_some() {
            "points to another virtual pod, or more than one virtual pod names it"
        } else {
            "no longer has the labels and annotations of Tapestry"
        };
        let (name, known) = (&call.target.name, self.pods.cases.get(vuid).is_some_and(|case| case.unmarked));
        if recorded && vpod.deleting.is_none() {
            // Not lost, and not ours to touch.
            let message = format!("the physical pod {name} {says}: its status is not followed");
            let event =
                Event::about_vpod(vpod, PendingReason::PhysicalPodUnmarked.as_str(), &message, now).filter(|_| !known);
            self.events.add(event, dirty);
            if let Some(case) = self.pods.cases.get_mut(vuid) {
                case.unmarked = true;
            }
            return self.learn_nothing(vuid, now, dirty);
        }
        // Names are unique: where a foreign pod has the name, ours does not exist. But the one we recorded runs without its pod.
        let existed = vpod.was_copied();
        if recorded {
            let message = format!("the physical pod {name} {says}: it is left running, delete it by hand");
            self.events.add(Event::about_vpod(vpod, PodReason::PhysicalPodLeft.as_str(), &message, now), dirty);
        }
        self.change_pod(vuid, now, dirty, |pods| {
            pods.case(vuid).ended = Some(Box::new(Ended { existed, seen: false, last: None }));
        });
    }

    fn learn_refusal(&mut self, vuid: &Uid, why: Why, refusal: Refusal, now: Now, dirty: &mut Dirty<Key>) {
        match (why, refusal) {
            (Why::LookForVirtualPod | Why::ReadPod | Why::ReadChanged, Refusal::Gone) => {
                self.change_pod(vuid, now, dirty, |pods| pods.case(vuid).vpod_gone = Some(Proof::Read));
            }
            (Why::LookForCopy | Why::ReadStatus | Why::ReadCopy, Refusal::Gone) => {
                let existed = self.pods.vpods.get(vuid).is_some_and(VPod::was_copied);
                self.change_pod(vuid, now, dirty, |pods| {
                    let given_up = pods.case(vuid).given_up();
                    if existed && !given_up && pods.vpods.get(vuid).is_some_and(|vpod| !vpod.may_have_run()) {
                        // It never ran, and is admitted like any other.
                        return pods.forget_mapping(vuid);
                    }
                    let case = pods.case(vuid);
                    case.taken = false;
                    case.ended = Some(Box::new(Ended { existed, seen: false, last: None }));
                });
            }
            (Why::CreateCopy, Refusal::Exists) => {
                if let Some(case) = self.pods.cases.get_mut(vuid) {
                    case.taken = true;
                    dirty.mark(Key::Pod(vuid.clone()));
                }
            }
            (Why::CreateCopy, refused @ (Refusal::Invalid(_) | Refusal::Denied(_))) => {
                let reason = PendingReason::PhysicalClusterRefused;
                let message = format!("the physical cluster refused the pod: {}", refused.message());
                if let Some(case) = self.pods.cases.get_mut(vuid) {
                    case.refused = Some(Box::new(Verdict { reason, message }));
                }
                // Perhaps a prerequisite of the pod is gone.
                self.prerequisites.doubt(now, dirty);
            }
            (Why::PushMetadata, refusal) => self.hold_change(vuid, Part::Metadata, &refusal, now, dirty),
            (Why::PushSpec, refusal) => self.hold_change(vuid, Part::Spec, &refusal, now, dirty),
            (Why::PushEphemeralContainers, refusal) => {
                self.hold_change(vuid, Part::EphemeralContainers, &refusal, now, dirty);
            }
            (Why::MarkPushed, refusal) => self.hold_change(vuid, Part::Marks, &refusal, now, dirty),
            // Not what we looked at, or no answer: the watch brings the truth, the next plan is made from it.
            (
                Why::LookForVirtualPod
                | Why::ReadPod
                | Why::LookForCopy
                | Why::ReadStatus
                | Why::CreateCopy
                | Why::Map
                | Why::RepairMapping
                | Why::Status
                | Why::Refuse
                | Why::DeferResize
                | Why::AnnounceSendAway
                | Why::SendAway
                | Why::Finish
                | Why::PhysicalPodLost
                | Why::NotScheduled
                | Why::PhysicalUnschedulable
                | Why::Release
                | Why::ReleaseWithNode
                | Why::VirtualPodDeleted
                | Why::VirtualPodGone
                | Why::PodFinished
                | Why::SurplusCopy
                | Why::GiveBack
                | Why::MendLabels
                | Why::MendTolerations
                | Why::Evict
                | Why::AnnounceReclaim
                | Why::Reclaim
                | Why::Resize
                | Why::MarkResized
                | Why::ReadChanged
                | Why::ReadCopy
                | Why::TellChange,
                _,
            ) => {}
        }
    }

    /// Asking again at once would tell us the same.
    fn learn_nothing(&mut self, vuid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(case) = self.pods.cases.get_mut(vuid) {
            case.looked = Some(now.steady);
            dirty.mark(Key::Pod(vuid.clone()));
        }
    }

    fn verdict_of(&self, vpod: &VPod, now: Now) -> Option<Verdict> {
        if let Err(verdict) = self.eligible(vpod) {
            return verdict;
        }
        let case = self.pods.cases.get(&vpod.uid)?;
        case.verdict().or_else(|| self.lacks_dependent(case, vpod, now))
    }
}

pub(super) fn read_uid(answer: &Answer) -> Option<Uid> {
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
