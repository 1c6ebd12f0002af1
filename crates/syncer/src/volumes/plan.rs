//! What to do about one claim or one volume: copies are made in order, kept as we made them, and go in the opposite order. Pure.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Name, Shape, Side, Sub, Target, Verb, VolumeMarks, kind};
use tapestry_domain::volumes::{RETAIN, VolumeFrame, claim_reference};
use tapestry_engine::{Plan, Reason as _, reasons};

use super::row::{PClaim, PVolume, VClaim, VVolume, VolumePhase};
use super::{ClaimCase, Id, Look, Setting, VolumeCase, VolumeRead, Volumes, volume_copy_name};
use crate::dependents;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// A volume that one cluster at a time may attach is held for ours, before its copy is made.
        HoldVolume,
        /// A pod needs a volume and the physical cluster does not have it.
        CreateVolume,
        /// The copy of a volume lost what keeps its data, its claim or our marks.
        RepairVolume,
        /// The name of a copy is taken: by what? Or: is the copy gone?
        LookForVolume,
        /// No pod uses the volume any more.
        RemoveVolume,
        /// The copy is gone: another binding may have the volume.
        ReleaseVolume,
        /// A pod needs a claim and the mount namespace does not have it.
        CreateClaim,
        /// The copy of a claim lost our marks.
        RepairClaim,
        /// The name of a copy is taken: by what?
        LookForClaim,
        /// The copy of a claim is to go: would the data of its volume go with it?
        LookForVolumeOfClaim,
        /// No pod uses the claim any more.
        RemoveClaim,
        /// The claim asks for more: so does its copy.
        GrowClaim,
        /// The copy has grown: the virtual volume says so.
        GrowVirtualVolume,
        /// The copy has grown: the virtual claim says so.
        GrowVirtualClaim,
        /// The claim asks for more, and its copy cannot grow.
        TellResizeUnsupported,
        /// The claim waits for a volume on a virtual node, and gets none.
        TellNeedsProvisioner,
    }
}

/// How long a name that another object has is left alone.
const LOOK_AGAIN: Duration = Duration::from_mins(5);

impl Volumes {
    /// The plan for one volume of the virtual cluster.
    pub(crate) fn plan_volume(&self, volume: &Name, setting: &Setting<'_>) -> Plan<Why> {
        let Some(case) = self.volume_cases.get(volume).filter(|_| self.complete()) else { return Plan::Rest };
        let vvolume = self.vvolume(volume);
        let wanted = vvolume.and_then(|vvolume| Some((vvolume, self.wanted_by(vvolume)?)));
        match (self.volume_copy(volume), wanted) {
            (Some(copy), _) if copy.deleting => Plan::Rest,
            (Some(copy), _) if self.goes(copy) => self.plan_remove_volume(copy, setting),
            (Some(copy), wanted) => match wanted.map(|(vvolume, _)| plan_hold(vvolume, setting)) {
                Some(hold @ Plan::Do(..)) => hold,
                _ => self.plan_kept_volume(copy, setting),
            },
            (None, Some((vvolume, vclaim))) => self.plan_new_volume(case, vvolume, vclaim, setting),
            (None, None) => vvolume.map_or(Plan::Rest, |vvolume| plan_release(case, vvolume, setting)),
        }
    }

    /// Whether the copy of a volume is to go: no pod uses its claim, or the claim has another volume by now and no pod runs that used
    /// this one. The copy of the claim goes first.
    fn goes(&self, copy: &PVolume) -> bool {
        let Some(of) = &copy.of else { return false };
        let Some(case) = self.claim_cases.get(&of.claim) else { return true };
        let other = |vclaim: &VClaim| {
            let bound = self.volume_of(vclaim);
            bound.is_some_and(|vvolume| vvolume.name != of.volume || vvolume.uid != of.uid)
        };
        let stale = || self.vclaim(&of.claim).is_some_and(other) && !case.copied();
        case.copy.is_none() && (case.users.is_empty() || stale())
    }

    fn plan_remove_volume(&self, copy: &PVolume, setting: &Setting<'_>) -> Plan<Why> {
        let Some(of) = copy.of.as_ref().filter(|_| setting.may_collect) else { return Plan::Rest };
        if !copy.retain {
            return self.repair_volume(copy, setting);
        }
        let other = copy.claim.is_some() && !copy.is_for(&of.claim, setting);
        if other || copy.phase == VolumePhase::Bound {
            // Another claim has it, perhaps one of the same name, or it is about to be released: what is not ours alone is not ours
            // to delete.
            return Plan::Rest;
        }
        // Under the version we looked at: it retains its data, and no process that leads by then needs it again.
        Why::RemoveVolume.call(volume_target(copy).rv(copy.rv), Verb::Delete { grace: None })
    }

    /// The copy stays: what keeps its data and its claim is put back at once.
    fn plan_kept_volume(&self, copy: &PVolume, setting: &Setting<'_>) -> Plan<Why> {
        let Some(of) = &copy.of else { return Plan::Rest };
        let referred = copy.is_for(&of.claim, setting);
        let named = copy.claim.as_ref().and_then(|claim| claim.uid.as_ref());
        let there = self.claim_copy(&of.claim).filter(|claim| !claim.deleting).map(|claim| &claim.uid);
        // The volume controller of the physical cluster writes the UID; one of an earlier claim keeps the volume from the next.
        let stale = named.is_some() && named != there;
        let lost = copy.phase != VolumePhase::Bound && (!referred || stale);
        if copy.retain && copy.marked && !lost { Plan::Rest } else { self.repair_volume(copy, setting) }
    }

    fn repair_volume(&self, copy: &PVolume, setting: &Setting<'_>) -> Plan<Why> {
        let Some(of) = &copy.of else { return Plan::Rest };
        let repairs = self.volume_cases.get(&of.volume).map(|case| &case.repairs);
        if let Some(until) = repairs.and_then(|repairs| repairs.until(setting.now.steady)) {
            return Plan::Wait(until);
        }
        let mut spec = json!({ "persistentVolumeReclaimPolicy": RETAIN });
        if copy.phase != VolumePhase::Bound {
            spec["claimRef"] = self.claim_reference(&of.claim, setting);
        }
        let body = json!({ "metadata": marks(setting), "spec": spec });
        Why::RepairVolume.call(volume_target(copy).rv(copy.rv), Verb::Merge(Sub::Main, body))
    }

    /// What the copy of a volume says of its claim, as a merge patch.
    fn claim_reference(&self, id: &Id, setting: &Setting<'_>) -> Value {
        let there = self.claim_copy(id).filter(|claim| !claim.deleting);
        let frame = VolumeFrame {
            name: "",
            mount: setting.mount.as_str(),
            labels: &[],
            annotations: &[],
            origin: &setting.origin.label,
            storage_class: "",
            claim: (id.namespace.as_str(), id.name.as_str()),
            other: there.map(|claim| claim.uid.as_str()),
        };
        let mut reference = claim_reference(&frame);
        reference["resourceVersion"] = Value::Null;
        if there.is_none() {
            reference["uid"] = Value::Null;
        }
        reference
    }

    fn plan_new_volume(
        &self,
        case: &VolumeCase,
        vvolume: &VVolume,
        vclaim: &VClaim,
        setting: &Setting<'_>,
    ) -> Plan<Why> {
        if !vvolume.supported(setting.privileged) || vvolume.held_by_other(&setting.holder).is_some() {
            // The pod says so, and is woken by the change.
            return Plan::Rest;
        }
        if let hold @ Plan::Do(..) = plan_hold(vvolume, setting) {
            return hold;
        }
        let ready = |needs| setting.dependents.readiness_for_volume(needs) == dependents::Readiness::Ready;
        if !vvolume.needs.as_deref().is_none_or(ready) {
            return Plan::Rest;
        }
        let Some(name) = volume_copy_name(&vvolume.name, setting.origin) else { return Plan::Rest };
        let target = Target::cluster(Side::Physical, &kind::PERSISTENT_VOLUME, name);
        match case.look {
            Look::Foreign(at) if at + LOOK_AGAIN > setting.now.steady => Plan::Wait(at + LOOK_AGAIN),
            Look::Taken | Look::Foreign(_) => Why::LookForVolume.call(target, Verb::Peek),
            Look::Unknown => {
                let claim = self.claim_copy(&vclaim.id).filter(|claim| !claim.deleting);
                // A claim that lost its volume finds the new one by its own UID.
                let other = claim.map(|claim| claim.uid.as_str().to_owned());
                let marks = self.volume_marks(&vclaim.id, vvolume, other, setting);
                // In the version that says who holds it.
                let from = vvolume_target(vvolume);
                Why::CreateVolume.call(target, carry(from, Shape::Volume(marks)))
            }
        }
    }

    /// The plan for one claim of the virtual cluster.
    pub(crate) fn plan_claim(&self, id: &Arc<Id>, setting: &Setting<'_>) -> Plan<Why> {
        let Some(case) = self.claim_cases.get(id).filter(|_| self.complete()) else { return Plan::Rest };
        match self.claim_copy(id) {
            Some(copy) if copy.deleting => Plan::Rest,
            Some(copy) if case.users.is_empty() || (self.is_stale(id, copy, setting) && !case.copied()) => {
                self.plan_remove_claim(case, copy, setting)
            }
            Some(copy) if !copy.marked => {
                if let Some(until) = case.repairs.until(setting.now.steady) {
                    return Plan::Wait(until);
                }
                let body = json!({ "metadata": marks(setting) });
                Why::RepairClaim.call(claim_target(copy, setting).rv(copy.rv), Verb::Merge(Sub::Main, body))
            }
            Some(copy) => self.plan_size(case, id, copy, setting),
            None if case.users.is_empty() => self.plan_waiting(case, id, setting),
            None => match self.plan_new_claim(case, id, setting) {
                Plan::Rest => self.plan_waiting(case, id, setting),
                plan => plan,
            },
        }
    }

    /// Whether the copy is that of an earlier claim of the name, or bound to another volume than the claim, or to one that is being
    /// deleted. That the claim is not there proves nothing.
    fn is_stale(&self, id: &Id, copy: &PClaim, setting: &Setting<'_>) -> bool {
        let Some(vclaim) = self.vclaim(id) else { return false };
        let another = copy.of.as_ref().is_none_or(|(_, uid)| *uid != vclaim.uid);
        let vvolume = self.volume_of(vclaim);
        let volume = vvolume.and_then(|vvolume| volume_copy_name(&vvolume.name, setting.origin));
        // What another client deletes stays until the claim is gone, and no pod can start with it meanwhile.
        let leaving = vvolume.and_then(|vvolume| self.volume_copy(&vvolume.name)).is_some_and(|volume| volume.deleting);
        another || leaving || volume.is_some_and(|volume| copy.volume.as_ref() != Some(&volume))
    }

    fn plan_remove_claim(&self, case: &ClaimCase, copy: &PClaim, setting: &Setting<'_>) -> Plan<Why> {
        if !setting.may_collect {
            return Plan::Rest;
        }
        let remove = || Why::RemoveClaim.call(claim_target(copy, setting).rv(copy.rv), Verb::Delete { grace: None });
        let Some(volume) = &copy.volume else { return remove() };
        let look = || {
            let target = Target::cluster(Side::Physical, &kind::PERSISTENT_VOLUME, volume.clone());
            Why::LookForVolumeOfClaim.call(target, Verb::Peek)
        };
        match (self.pvolumes.iter().find(|pvolume| pvolume.name == *volume), case.read) {
            // Its data goes with the claim, unless it is told to stay: the volume is planned first.
            (Some(pvolume), _) if !pvolume.retain => Plan::Rest,
            // What the watch shows may be old: only a read says that the data stays.
            (Some(pvolume), VolumeRead::Retains(rv)) if pvolume.rv == rv => remove(),
            (None, VolumeRead::Gone | VolumeRead::Retains(_)) => remove(),
            (None, VolumeRead::Hazard(at)) if at + LOOK_AGAIN > setting.now.steady => Plan::Wait(at + LOOK_AGAIN),
            _ => look(),
        }
    }

    fn plan_new_claim(&self, case: &ClaimCase, id: &Arc<Id>, setting: &Setting<'_>) -> Plan<Why> {
        let Some((vclaim, vvolume)) = self.vclaim(id).and_then(|vclaim| Some((vclaim, self.volume_of(vclaim)?))) else {
            return Plan::Rest;
        };
        let Some(copy) = self.volume_copy(&vvolume.name) else { return Plan::Rest };
        let free = vvolume.held_by_other(&setting.holder).is_none();
        if !(free && copy.copies(vvolume) && copy.is_for(id, setting)) {
            return Plan::Rest;
        }
        let Some(name) = id.copy_name(setting.origin) else { return Plan::Rest };
        let target = Target::namespaced(Side::Physical, &kind::PERSISTENT_VOLUME_CLAIM, setting.mount.clone(), name);
        match case.look {
            Look::Foreign(at) if at + LOOK_AGAIN > setting.now.steady => Plan::Wait(at + LOOK_AGAIN),
            Look::Taken | Look::Foreign(_) => Why::LookForClaim.call(target, Verb::Peek),
            Look::Unknown => {
                let marks = self.volume_marks(id, vvolume, Some(copy.name.as_str().to_owned()), setting);
                let from = vclaim_target(id).uid(&vclaim.uid);
                Why::CreateClaim.call(target, carry(from, Shape::Claim(marks)))
            }
        }
    }

    fn volume_marks(&self, id: &Id, vvolume: &VVolume, other: Option<String>, setting: &Setting<'_>) -> VolumeMarks {
        // A class that the physical cluster does not have would mean nothing there.
        let class = self.class(&vvolume.class).map_or("", |class| class.name.as_str());
        VolumeMarks {
            labels: setting.origin.labels().into(),
            annotations: setting.origin.annotations(),
            origin: setting.origin.label.as_ref().to_owned(),
            mount: setting.mount.as_str().to_owned(),
            storage_class: class.to_owned(),
            claim: (id.namespace.as_str().to_owned(), id.name.as_str().to_owned()),
            other,
        }
    }
}

/// Writes that this binding has the volume, under the version we looked at: of two bindings one gets it (law 2).
fn plan_hold(vvolume: &VVolume, setting: &Setting<'_>) -> Plan<Why> {
    if !vvolume.exclusive || vvolume.holder.is_some() {
        return Plan::Rest;
    }
    let body = json!({ "metadata": { "annotations": { keys::VOLUME_HOLDER: &setting.holder } } });
    Why::HoldVolume.call(vvolume_target(vvolume), Verb::Merge(Sub::Main, body))
}

/// No pod needs the volume and the watch shows no copy: once a read says so too, another binding may have it.
fn plan_release(case: &VolumeCase, vvolume: &VVolume, setting: &Setting<'_>) -> Plan<Why> {
    if vvolume.holder.as_deref() != Some(&*setting.holder) || !setting.may_collect {
        return Plan::Rest;
    }
    if case.gone {
        let body = json!({ "metadata": { "annotations": { keys::VOLUME_HOLDER: null } } });
        return Why::ReleaseVolume.call(vvolume_target(vvolume), Verb::Merge(Sub::Main, body));
    }
    let Some(name) = volume_copy_name(&vvolume.name, setting.origin) else { return Plan::Rest };
    match case.look {
        Look::Foreign(at) if at + LOOK_AGAIN > setting.now.steady => Plan::Wait(at + LOOK_AGAIN),
        Look::Unknown | Look::Taken | Look::Foreign(_) => {
            Why::LookForVolume.call(Target::cluster(Side::Physical, &kind::PERSISTENT_VOLUME, name), Verb::Get)
        }
    }
}

/// Our labels and annotations, as a patch has them.
fn marks(setting: &Setting<'_>) -> Value {
    let map = |pairs: Vec<(&'static str, String)>| -> Value {
        pairs.into_iter().map(|(key, value)| (key.to_owned(), Value::from(value))).collect()
    };
    json!({ "labels": map(setting.origin.labels().into()), "annotations": map(setting.origin.annotations()) })
}

/// Reads the source and writes the copy, inside the gate.
fn carry(from: Target, shape: Shape) -> Verb {
    Verb::Carry { from: Box::new(from), shape: Box::new(shape) }
}

fn volume_target(copy: &PVolume) -> Target {
    Target::cluster(Side::Physical, &kind::PERSISTENT_VOLUME, copy.name.clone()).uid(&copy.uid)
}

pub(super) fn claim_target(copy: &PClaim, setting: &Setting<'_>) -> Target {
    let kind = &kind::PERSISTENT_VOLUME_CLAIM;
    Target::namespaced(Side::Physical, kind, setting.mount.clone(), copy.name.clone()).uid(&copy.uid)
}

pub(super) fn vclaim_target(id: &Id) -> Target {
    Target::namespaced(Side::Virtual, &kind::PERSISTENT_VOLUME_CLAIM, id.namespace.clone(), id.name.clone())
}

pub(super) fn vvolume_target(vvolume: &VVolume) -> Target {
    let target = Target::cluster(Side::Virtual, &kind::PERSISTENT_VOLUME, vvolume.name.clone());
    target.uid(&vvolume.uid).rv(vvolume.rv)
}
