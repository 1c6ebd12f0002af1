//! The size of a claim: what it asks for goes down, what it has comes up. And what is told on a claim that gets no volume.
//! Nothing else of a virtual claim's status is written: its phase belongs to the virtual cluster.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapestry_cluster::{Sub, Verb};
use tapestry_engine::{Plan, Reason as _};

use super::plan::{Why, claim_target, vclaim_target, vvolume_target};
use super::row::{ClaimPhase, PClaim, VClaim, VVolume, grows};
use super::{ClaimCase, Id, Setting, Volumes};
use crate::events::Event;

/// How long a claim may wait for a volume on a virtual node before it is told what is missing.
const PATIENCE: Duration = Duration::from_secs(30);

impl Volumes {
    /// What the copy of a claim that is in use is given, and what it says.
    pub(super) fn plan_size(&self, case: &ClaimCase, id: &Arc<Id>, copy: &PClaim, setting: &Setting<'_>) -> Plan<Why> {
        let Some(vclaim) = self.vclaim(id).filter(|vclaim| copy.of.as_ref().is_some_and(|(_, uid)| *uid == vclaim.uid))
        else {
            return Plan::Rest;
        };
        let Some(vvolume) = self.volume_of(vclaim).filter(|_| copy.phase == ClaimPhase::Bound) else {
            return Plan::Rest;
        };
        match self.plan_grow(case, vclaim, copy, setting) {
            Plan::Rest => plan_grown(vclaim, vvolume, copy),
            plan => plan,
        }
    }

    fn plan_grow(&self, case: &ClaimCase, vclaim: &VClaim, copy: &PClaim, setting: &Setting<'_>) -> Plan<Why> {
        let Some(request) =
            vclaim.request.as_ref().filter(|_| grows(copy.request.as_deref(), vclaim.request.as_deref()))
        else {
            return Plan::Rest;
        };
        let refused = case.refused.as_ref() == Some(request);
        if self.class(&copy.class).is_some_and(|class| class.expands) && !refused {
            let body = json!({ "spec": { "resources": { "requests": { "storage": request } } } });
            return Why::GrowClaim.call(claim_target(copy, setting).rv(copy.rv), Verb::Merge(Sub::Main, body));
        }
        if case.told.resize.as_ref() == Some(request) {
            return Plan::Rest;
        }
        let message = format!(
            "the claim asks for {request}, and the physical cluster does not resize it: it needs a StorageClass of the same name there with allowVolumeExpansion; the pods keep what they have"
        );
        let event = Event::about_claim(vclaim, "ResizeUnsupported", &message, request, setting.now);
        event.map_or(Plan::Rest, |(target, body)| Why::TellResizeUnsupported.call(target, Verb::Create(body)))
    }

    /// A claim whose volume is to be made for a virtual node gets none, unless the virtual cluster has a provisioner.
    pub(super) fn plan_waiting(&self, case: &ClaimCase, id: &Id, setting: &Setting<'_>) -> Plan<Why> {
        let waits = case.waits.filter(|_| !case.told.needs_provisioner);
        let (Some(since), Some(vclaim)) = (waits, self.vclaim(id)) else { return Plan::Rest };
        let Some(node) = vclaim.selected.as_ref().filter(|node| setting.nodes.vnode(node).is_some()) else {
            return Plan::Rest;
        };
        if since + PATIENCE > setting.now.steady {
            return Plan::Wait(since + PATIENCE);
        }
        let message = format!(
            "the claim waits for a volume on virtual node {node}, and no provisioner of this cluster has made one: volumes are made in this cluster, not in the physical one; install the storage driver's provisioner here, or use a class with volumeBindingMode Immediate, or create the PersistentVolume yourself"
        );
        let event = Event::about_claim(vclaim, "VolumeNeedsVirtualProvisioner", &message, node.as_str(), setting.now);
        event.map_or(Plan::Rest, |(target, body)| Why::TellNeedsProvisioner.call(target, Verb::Create(body)))
    }
}

/// The copy has grown: first the virtual volume says so, then the claim, as a resizer would.
fn plan_grown(vclaim: &VClaim, vvolume: &VVolume, copy: &PClaim) -> Plan<Why> {
    let grown = copy.capacity.as_ref().filter(|_| grows(vclaim.capacity.as_deref(), copy.capacity.as_deref()));
    if let Some(capacity) = grown.filter(|_| grows(vvolume.capacity.as_deref(), copy.capacity.as_deref())) {
        let body = json!({ "spec": { "capacity": { "storage": capacity } } });
        return Why::GrowVirtualVolume.call(vvolume_target(vvolume), Verb::Merge(Sub::Main, body));
    }
    let resizing = copy.resizing.is_some() && copy.resizing != vclaim.resizing;
    if grown.is_none() && !resizing {
        return Plan::Rest;
    }
    let mut status = json!({});
    if let Some(capacity) = grown {
        status["capacity"] = json!({ "storage": capacity });
    }
    let conditions = conditions(vclaim.resizing.as_deref(), copy.resizing.as_deref());
    if !conditions.is_empty() {
        status["conditions"] = conditions.into();
    }
    let target = vclaim_target(&vclaim.id).uid(&vclaim.uid).rv(vclaim.rv);
    Why::GrowVirtualClaim.call(target, Verb::Strategic(Sub::Status, json!({ "status": status })))
}

/// The conditions of a resize that the copy has, and those that it has no longer.
fn conditions(before: Option<&str>, now: Option<&str>) -> Vec<Value> {
    let read = |text: Option<&str>| -> Vec<Value> {
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    };
    let mut conditions = read(now);
    for lost in read(before) {
        if !conditions.iter().any(|condition| condition["type"] == lost["type"]) {
            conditions.push(json!({ "$patch": "delete", "type": lost["type"] }));
        }
    }
    conditions
}
