//! How a call about a claim or volume ended. Only this believes that something happened.

use std::sync::Arc;

use tapestry_cluster::{Answer, Call, Name, Refusal};
use tapestry_engine::{Dirty, Now};

use super::plan::Why;
use super::row::{PClaim, PVolume, Unmarked, VClaim, VVolume};
use super::{Id, Look, Trouble, VolumeRead, Volumes};
use crate::origin::Origin;
use crate::pair::Key;

/// What `settle` reads of others.
pub(crate) struct Learning<'a> {
    pub(crate) origin: &'a Origin,
    /// The namespace of the claims' copies.
    pub(crate) mount: &'a Name,
    /// How the names of our virtual nodes begin.
    pub(crate) vnodes: &'a str,
    pub(crate) now: Now,
}

impl Volumes {
    /// Folds in how a call about a volume ended.
    pub(crate) fn settle_volume(
        &mut self,
        volume: &Name,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        learning: &Learning<'_>,
        dirty: &mut Dirty<Key>,
    ) {
        match (why, done) {
            (Why::HoldVolume | Why::ReleaseVolume, Ok(answer)) => {
                if let Ok(Some(row)) = VVolume::decode(&answer.object) {
                    self.put_vvolume(row, None, dirty);
                }
            }
            (Why::CreateVolume, Ok(answer)) => self.learn_volume(&answer, learning.origin, dirty),
            (Why::RepairVolume, Ok(answer)) => {
                if let Some(case) = self.volume_cases.get_mut(volume) {
                    case.repairs.count(learning.now.steady);
                }
                self.learn_volume(&answer, learning.origin, dirty);
            }
            (Why::LookForVolume, Ok(answer)) => {
                self.learn_volume(&answer, learning.origin, dirty);
                if self.volume_copy(volume).is_none() {
                    self.meet_foreign_volume(volume, call, &answer, learning);
                }
            }
            (Why::LookForVolume, Err(Refusal::Gone)) => {
                if let Some(case) = self.volume_cases.get_mut(volume) {
                    (case.look, case.gone, case.trouble) = (Look::Unknown, true, None);
                }
            }
            (Why::CreateVolume, Err(Refusal::Exists)) => {
                if let Some(case) = self.volume_cases.get_mut(volume) {
                    case.look = Look::Taken;
                }
            }
            (Why::CreateVolume, Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_)))) => {
                if let Some(case) = self.volume_cases.get_mut(volume) {
                    case.trouble = Some(Trouble::Refused(refused.message().into()));
                }
            }
            // What protects it lets it go later, and the watch says so.
            (Why::RemoveVolume, Ok(answer)) => match PVolume::decode(&answer.object, learning.origin) {
                Ok(Some(row)) if row.deleting => self.put_pvolume(row, None, learning.origin, dirty),
                _ => self.forget_volume(call, dirty),
            },
            (Why::RemoveVolume | Why::RepairVolume, Err(Refusal::Gone)) => self.forget_volume(call, dirty),
            // Not what we looked at, or no answer: the watch brings the truth, the next plan is made from it.
            (_, Err(_)) => {}
            (why, Ok(_)) => debug_assert!(false, "{why:?} is not about a volume"),
        }
        // What a call of ours made is no longer proven to be absent.
        if why == Why::CreateVolume
            && let Some(case) = self.volume_cases.get_mut(volume)
        {
            case.gone = false;
        }
        self.mark_volume(volume, dirty);
    }

    /// The name of the copy is taken by an object without our marks. One that is for the copy of our claim may be our copy all the
    /// same; any other proves that there is none.
    fn meet_foreign_volume(&mut self, volume: &Name, call: &Call, answer: &Answer, learning: &Learning<'_>) {
        let claim = self.vvolume(volume).and_then(|vvolume| vvolume.claim.as_ref());
        let copy = claim.and_then(|(id, _)| id.copy_name(learning.origin));
        let met = Unmarked::decode(&answer.object);
        let ours = met.is_none_or(|met| {
            let there = met.claim.as_ref();
            there.is_some_and(|(namespace, name)| {
                **namespace == *learning.mount.as_str() && Some(&**name) == copy.as_ref().map(Name::as_str)
            })
        });
        let Some(case) = self.volume_cases.get_mut(volume) else { return };
        case.look = Look::Foreign(learning.now.steady);
        case.trouble = Some(Trouble::Foreign(call.target.name.clone()));
        case.gone = !ours;
    }

    /// It is not there; if it is, the watch brings it back.
    fn forget_volume(&mut self, call: &Call, dirty: &mut Dirty<Key>) {
        let uid = call.target.uid.as_ref();
        if let Some(row) = uid.and_then(|uid| self.pvolumes.remove(uid)) {
            self.lose_pvolume(&row, dirty);
        }
    }

    fn learn_volume(&mut self, answer: &Answer, origin: &Origin, dirty: &mut Dirty<Key>) {
        if let Ok(Some(row)) = PVolume::decode(&answer.object, origin) {
            self.put_pvolume(row, None, origin, dirty);
        }
    }

    /// Folds in how a call about a claim ended.
    pub(crate) fn settle_claim(
        &mut self,
        id: &Arc<Id>,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        learning: &Learning<'_>,
        dirty: &mut Dirty<Key>,
    ) {
        match (why, done) {
            (Why::CreateClaim | Why::GrowClaim, Ok(answer)) => self.learn_claim(&answer, learning.origin, dirty),
            (Why::RepairClaim, Ok(answer)) => {
                if let Some(case) = self.claim_cases.get_mut(id) {
                    case.repairs.count(learning.now.steady);
                }
                self.learn_claim(&answer, learning.origin, dirty);
            }
            // What protects it lets it go later, and the watch says so.
            (Why::RemoveClaim, Ok(answer)) => match PClaim::decode(&answer.object, learning.origin) {
                Ok(Some(row)) if row.deleting => self.put_pclaim(row, None, learning.origin, dirty),
                _ => self.forget_claim(call, dirty),
            },
            (Why::LookForClaim, Ok(answer)) => {
                self.learn_claim(&answer, learning.origin, dirty);
                if self.claim_copy(id).is_none()
                    && let Some(case) = self.claim_cases.get_mut(id)
                {
                    case.look = Look::Foreign(learning.now.steady);
                    case.trouble = Some(Trouble::Foreign(call.target.name.clone()));
                }
            }
            (Why::LookForClaim, Err(Refusal::Gone)) => {
                if let Some(case) = self.claim_cases.get_mut(id) {
                    (case.look, case.trouble) = (Look::Unknown, None);
                }
            }
            (Why::CreateClaim, Err(Refusal::Exists)) => {
                if let Some(case) = self.claim_cases.get_mut(id) {
                    case.look = Look::Taken;
                }
            }
            (Why::CreateClaim, Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_)))) => {
                if let Some(case) = self.claim_cases.get_mut(id) {
                    case.trouble = Some(Trouble::Refused(refused.message().into()));
                }
            }
            (Why::LookForVolumeOfClaim, Ok(answer)) => {
                self.learn_volume(&answer, learning.origin, dirty);
                let retains = Unmarked::decode(&answer.object).is_some_and(|met| met.retain);
                if let Some(case) = self.claim_cases.get_mut(id) {
                    case.read = match answer.version().filter(|_| retains) {
                        Some(version) => VolumeRead::Retains(version),
                        None => VolumeRead::Hazard(learning.now.steady),
                    };
                }
            }
            (Why::LookForVolumeOfClaim, Err(Refusal::Gone)) => {
                if let Some(case) = self.claim_cases.get_mut(id) {
                    case.read = VolumeRead::Gone;
                }
            }
            (Why::RemoveClaim | Why::RepairClaim | Why::GrowClaim, Err(Refusal::Gone)) => {
                self.forget_claim(call, dirty);
            }
            // The class allows it and something else does not: the user is told once.
            (Why::GrowClaim, Err(Refusal::Invalid(_) | Refusal::Denied(_))) => {
                let request = self.vclaim(id).and_then(|vclaim| vclaim.request.clone());
                if let Some(case) = self.claim_cases.get_mut(id) {
                    case.refused = request;
                }
            }
            (Why::GrowVirtualVolume, Ok(answer)) => {
                if let Ok(Some(row)) = VVolume::decode(&answer.object) {
                    self.put_vvolume(row, None, dirty);
                }
            }
            (Why::GrowVirtualClaim, Ok(answer)) => {
                if let Ok(Some(row)) = VClaim::decode(&answer.object) {
                    self.put_vclaim(row, None, learning.vnodes, learning.now, dirty);
                }
            }
            // Written or not, an event is tried once.
            (Why::TellResizeUnsupported, _) => {
                let request = self.vclaim(id).and_then(|vclaim| vclaim.request.clone());
                if let Some(case) = self.claim_cases.get_mut(id) {
                    case.told.resize = request;
                }
            }
            (Why::TellNeedsProvisioner, _) => {
                if let Some(case) = self.claim_cases.get_mut(id) {
                    case.told.needs_provisioner = true;
                }
            }
            // Not what we looked at, or no answer: the watch brings the truth, the next plan is made from it.
            (_, Err(_)) => {}
            (why, Ok(_)) => debug_assert!(false, "{why:?} is not about a claim"),
        }
        self.mark_claim(id, dirty);
        self.drop_claim(id);
    }

    /// It is not there; if it is, the watch brings it back.
    fn forget_claim(&mut self, call: &Call, dirty: &mut Dirty<Key>) {
        let uid = call.target.uid.as_ref();
        if let Some(row) = uid.and_then(|uid| self.pclaims.remove(uid)) {
            self.lose_pclaim(&row, dirty);
        }
    }

    fn learn_claim(&mut self, answer: &Answer, origin: &Origin, dirty: &mut Dirty<Key>) {
        if let Ok(Some(row)) = PClaim::decode(&answer.object, origin) {
            self.put_pclaim(row, None, origin, dirty);
        }
    }
}
