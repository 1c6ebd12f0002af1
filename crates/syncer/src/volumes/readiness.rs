//! Whether the claims that a pod needs are there, and if not, why. Decides nothing else.

use tapestry_cluster::{Name, Uid};
use tapestry_domain::volumes::Backend;

use super::row::{ClaimPhase, PClaim, PVolume, VVolume, VolumePhase};
use super::{ClaimCase, Id, Setting, Trouble, Volumes};
use crate::dependents;
use crate::dependents::needs::Needs;

/// Whether the claims that a pod needs are there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Readiness<'a> {
    Ready,
    /// They are on their way.
    NotYet,
    /// The pod names a claim that cannot exist.
    Impossible(&'a str),
    /// The virtual cluster does not have the claim.
    ClaimMissing(&'a Id),
    /// The claim of an ephemeral volume was not made for this pod.
    ClaimNotOwned(&'a Id),
    /// The claim has no volume yet.
    ClaimNotBound(&'a Id),
    /// The volume of the claim is gone, says the virtual cluster.
    ClaimLost(&'a Id),
    /// The virtual cluster does not have the volume of the claim.
    VolumeMissing(&'a Id, &'a Name),
    /// The volume says that it is bound to another claim.
    VolumeBoundElsewhere(&'a Id, &'a Name),
    /// The volume cannot be carried.
    VolumeUnsupported(&'a Name, Backend),
    /// Another binding holds the volume.
    VolumeHeld(&'a Name, &'a str),
    /// A Secret that the volume names is not there.
    Secret(&'a Name, dependents::Readiness<'a>),
    /// The copy cannot be made.
    Hindered(Object<'a>, &'a Trouble),
    /// The copy of the claim lost its volume.
    PhysicalClaimLost(&'a Name),
    /// Another claim of the physical cluster has the copy of the volume.
    PhysicalVolumeTaken(&'a Name),
    /// A copy is being deleted, and a pod that runs keeps it.
    PhysicalVolumeLeaving(&'a Name),
}

/// What a copy is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object<'a> {
    Claim(&'a Id),
    Volume(&'a Name),
}

impl Volumes {
    /// Whether the claims that a pod needs are there.
    pub(crate) fn readiness<'a>(&'a self, vuid: &Uid, needs: &'a Needs, setting: &Setting<'a>) -> Readiness<'a> {
        if let Some(name) = needs.impossible_claim() {
            return Readiness::Impossible(name);
        }
        let mut readiness = Readiness::Ready;
        for (id, own) in needs.claims() {
            match self.readiness_of(id, own.then_some(vuid), setting) {
                Readiness::Ready => {}
                Readiness::NotYet => readiness = Readiness::NotYet,
                other => return other,
            }
        }
        readiness
    }

    fn readiness_of<'a>(&'a self, id: &'a Id, owner: Option<&Uid>, setting: &Setting<'a>) -> Readiness<'a> {
        if !self.complete() {
            return Readiness::NotYet;
        }
        let Some(vclaim) = self.vclaim(id) else { return Readiness::ClaimMissing(id) };
        if owner.is_some() && vclaim.owner.as_ref() != owner {
            return Readiness::ClaimNotOwned(id);
        }
        let volume = match (vclaim.phase, &vclaim.volume) {
            (ClaimPhase::Lost, _) => return Readiness::ClaimLost(id),
            (ClaimPhase::Pending, _) | (ClaimPhase::Bound, None) => return Readiness::ClaimNotBound(id),
            (ClaimPhase::Bound, Some(volume)) => volume,
        };
        let Some(vvolume) = self.vvolume(volume) else { return Readiness::VolumeMissing(id, volume) };
        if !vvolume.is_for(vclaim) {
            return Readiness::VolumeBoundElsewhere(id, volume);
        }
        if let Some(why) = self.hindered(vvolume, setting) {
            return why;
        }
        let case = self.claim_cases.get(id);
        if let Some(trouble) = case.and_then(|case| case.trouble.as_ref()) {
            return Readiness::Hindered(Object::Claim(id), trouble);
        }
        let copied = case.is_some_and(ClaimCase::copied);
        match (self.claim_copy(id), self.volume_copy(volume)) {
            (Some(claim), _) if claim.deleting && copied => Readiness::PhysicalVolumeLeaving(&claim.name),
            (_, Some(copy)) if copy.deleting && copied => Readiness::PhysicalVolumeLeaving(&copy.name),
            (_, Some(copy)) if copy.taken(id, setting) => Readiness::PhysicalVolumeTaken(&copy.name),
            (Some(claim), _) if claim.phase == ClaimPhase::Lost && !claim.deleting => {
                Readiness::PhysicalClaimLost(&claim.name)
            }
            (Some(claim), Some(copy)) => {
                let current = claim.of.as_ref().is_some_and(|(_, uid)| *uid == vclaim.uid) && copy.copies(vvolume);
                if current && claim.bound_to(copy) { Readiness::Ready } else { Readiness::NotYet }
            }
            _ => Readiness::NotYet,
        }
    }

    /// Why there is no copy of a volume, and none can be made now.
    fn hindered<'a>(&'a self, vvolume: &'a VVolume, setting: &Setting<'a>) -> Option<Readiness<'a>> {
        if !vvolume.supported(setting.privileged) {
            return Some(Readiness::VolumeUnsupported(&vvolume.name, vvolume.backend));
        }
        if let Some(holder) = vvolume.held_by_other(&setting.holder) {
            return Some(Readiness::VolumeHeld(&vvolume.name, holder));
        }
        let case = self.volume_cases.get(&vvolume.name);
        if let Some(trouble) = case.and_then(|case| case.trouble.as_ref()) {
            return Some(Readiness::Hindered(Object::Volume(&vvolume.name), trouble));
        }
        let secrets = vvolume.needs.as_ref().map(|needs| setting.dependents.readiness_for_volume(needs))?;
        match secrets {
            dependents::Readiness::Ready | dependents::Readiness::NotYet => None,
            lacks => Some(Readiness::Secret(&vvolume.name, lacks)),
        }
    }
}

impl VVolume {
    /// Whether it can be carried at all.
    pub(super) fn supported(&self, privileged: bool) -> bool {
        match self.backend {
            Backend::Network => true,
            // A volume must not give what `podSecurity` keeps from a pod.
            Backend::HostPath => privileged,
            Backend::Local | Backend::Glusterfs => false,
        }
    }
}

impl PVolume {
    /// Whether it is the copy of this very volume, and as we made it.
    pub(super) fn copies(&self, vvolume: &VVolume) -> bool {
        let of = self.of.as_ref().is_some_and(|of| of.uid == vvolume.uid && of.volume == vvolume.name);
        of && !self.deleting && self.marked && self.retain
    }

    /// Whether it is for the copy of this claim.
    pub(super) fn is_for(&self, id: &Id, setting: &Setting<'_>) -> bool {
        let name = id.copy_name(setting.origin);
        self.claim.as_ref().is_some_and(|claim| {
            *claim.namespace == *setting.mount.as_str() && Some(&*claim.name) == name.as_ref().map(Name::as_str)
        })
    }

    /// Whether another claim has it.
    pub(super) fn taken(&self, id: &Id, setting: &Setting<'_>) -> bool {
        self.phase == VolumePhase::Bound && self.claim.is_some() && !self.is_for(id, setting)
    }
}

impl PClaim {
    /// Whether both say that they are bound to each other.
    fn bound_to(&self, copy: &PVolume) -> bool {
        let this = self.phase == ClaimPhase::Bound && self.volume.as_ref() == Some(&copy.name) && !self.deleting;
        let back = copy.claim.as_ref().and_then(|claim| claim.uid.as_ref()) == Some(&self.uid);
        this && back && copy.phase == VolumePhase::Bound
    }
}
