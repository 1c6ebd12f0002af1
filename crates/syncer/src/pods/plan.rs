//! What to do about one pod: deletion, down and up, read from top to bottom. Pure.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Name, Side, Sub, Target, Uid, Verb, kind};
use tapestry_domain::names;
use tapestry_domain::podspec::{Frame, Sizes, render_copy};
use tapestry_engine::{Now, Plan, Reason as _};

use super::admission::Verdict;
use super::digest::{Amend, Phase, render_admitted, render_failed, render_patch};
use super::reason::PodReason;
use super::row::{PPod, PodCopy, VPod};
use super::strays::{mark, namespace_label};
use super::{Case, Ended, NotAdmitted, Proof, Why};
use crate::bindings::Bound;
use crate::dependents::Readiness;
use crate::dependents::needs::Needs;
use crate::json::fingerprint;
use crate::origin::Origin;
use crate::pair::Pair;
use crate::terms::{Stop, steady_at};
use crate::volumes;

/// How long an answer that told us nothing new is good for.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(5);

/// How long a pod that its controller would replace may wait for admission.
const PATIENCE: Duration = Duration::from_mins(5);

impl Pair {
    /// The plan for the virtual pod of this UID, which may be gone.
    pub(crate) fn plan_pod(&self, vuid: &Uid, now: Now) -> Plan<Why> {
        let reclaim = match (self.pods.vpods.get(vuid), self.operational_terms()) {
            (Some(vpod), Some(_)) => self.plan_reclaim(vpod, now),
            _ => Plan::Rest,
        };
        if let Plan::Do(..) = reclaim {
            return reclaim;
        }
        sooner(self.plan_sync(vuid, now), reclaim)
    }

    /// Both sides are made to agree.
    fn plan_sync(&self, vuid: &Uid, now: Now) -> Plan<Why> {
        let (Some(case), Some(bound)) = (self.pods.cases.get(vuid), self.operational()) else {
            return self.plan_blind(vuid, now);
        };
        match (self.pods.vpods.get(vuid), self.pods.copy(vuid)) {
            (None, None) => Plan::Rest,
            (None, Some(ppod)) => self.plan_orphan(case, vuid, ppod, now),
            (Some(vpod), Some(ppod)) => {
                let plan = self.plan_astray(case, vpod, ppod).unwrap_or_else(|| self.plan_pair(case, vpod, ppod, now));
                sooner(plan, self.plan_unscheduled(case, vpod, ppod, now))
            }
            // Names that begin alike (`east`, `east-2`): a pod on another binding's node is not ours, wherever it points (law 6).
            (Some(vpod), None) if case.ended.is_none() && self.nodes.vnode(&vpod.node).is_none() => Plan::Rest,
            (Some(vpod), None) if vpod.deleting.is_some() => self.plan_leaving(case, vpod, now),
            (Some(vpod), None) => self.plan_down(bound, case, vpod, now),
        }
    }

    /// Something that is needed was never read: nothing is run, and a pod that waits for it learns why (law 12). One that was
    /// given a name may have a copy that we have not seen.
    fn plan_blind(&self, vuid: &Uid, now: Now) -> Plan<Why> {
        let waits = |vpod: &&VPod| {
            let fresh = vpod.deleting.is_none() && !vpod.terminal() && !vpod.was_copied() && vpod.mapping.is_none();
            fresh && self.pods.copy(vuid).is_none() && self.nodes.vnode(&vpod.node).is_some()
        };
        let blind = self.only_trouble_known();
        let Some(vpod) = self.pods.vpods.get(vuid).filter(|vpod| blind && waits(vpod)) else { return Plan::Rest };
        let verdict = match self.eligible(vpod) {
            Err(None) => return Plan::Rest,
            Err(Some(verdict)) => verdict,
            Ok(()) => NotAdmitted::Stopped(Stop::OutOfSync, self.tell_stop(&vpod.node, Stop::OutOfSync)).verdict(),
        };
        refuse(vpod, &verdict, now).unwrap_or(Plan::Rest)
    }

    /// Both exist: the mapping is right, deletion goes down, status comes up.
    fn plan_pair(&self, case: &Case, vpod: &VPod, ppod: &PPod, now: Now) -> Plan<Why> {
        let Some(copy) = &ppod.ours else { return Plan::Rest };
        // First of all, and whether or not its marks can be put back: the table knows which pod it is.
        if let Some(grace) = vpod.deleting {
            // At least a second: the kubelet then confirms the end, and nothing runs twice.
            let grace = grace.max(1);
            let sent = ppod.deleting.into_iter().chain(case.asked).min();
            if sent.is_none_or(|sent| grace < sent) {
                return delete(ppod, copy, Some(grace), Why::VirtualPodDeleted);
            }
        }
        if !copy.intact {
            return mend(ppod, copy, &self.origin);
        }
        if vpod.unreadable.is_some() && vpod.deleting.is_none() && !vpod.terminal() {
            // Its copy runs on; what it says cannot be compared with what we cannot read.
            let verdict = self.eligible(vpod).err().flatten();
            return verdict.and_then(|verdict| refuse(vpod, &verdict, now)).unwrap_or(Plan::Rest);
        }
        if vpod.terminal() && vpod.deleting.is_none() && !ppod.terminal && vpod.recorded() != Some(&ppod.uid) {
            // It ended with another copy, or before it had one: a finished pod is not run again.
            return if ppod.deleting.or(case.asked).is_some() {
                Plan::Rest
            } else {
                delete(ppod, copy, None, Why::PodFinished)
            };
        }
        let mapped = vpod.mapping.as_ref().is_some_and(|mapping| mapping.name == copy.name);
        if !mapped && vpod.deleting.is_none() {
            return map(vpod, &self.home.mount, &copy.name, Why::RepairMapping, now);
        }
        if let Some(tolerations) = copy.tolerations.as_ref().filter(|_| !case.mended)
            && ppod.deleting.is_none()
            && !ppod.terminal
        {
            return mend_tolerations(ppod, copy, tolerations);
        }
        let down = match self.plan_resize(vpod, ppod, copy, now) {
            resize @ Plan::Do(..) => return resize,
            resize => sooner(self.plan_changes(vpod, ppod, copy, now), resize),
        };
        if matches!(down, Plan::Do(..)) || !ppod.speaks() {
            return down;
        }
        match plan_up(case, vpod, ppod, copy, &self.pods.amend(&vpod.uid), now) {
            Plan::Rest => down,
            up => up,
        }
    }

    /// The virtual pod is to go and the watch shows no copy.
    fn plan_leaving(&self, case: &Case, vpod: &VPod, now: Now) -> Plan<Why> {
        let released = vpod.deleting == Some(0);
        if released && vpod.terminal() && vpod.finalizers {
            // Nothing of ours holds it any more; others' finalizers are theirs.
            return Plan::Rest;
        }
        // Released, and no finalizer holds it: the API server was interrupted between marking and removing it (our process was
        // killed, its request with it), and will not come back to it. It is released again.
        let finish = |ended: &Ended| {
            // The controller whose finalizer holds a pod (a Job's) waits for its terminal phase, also after a forced deletion.
            // Where no controller waits, an end that the kubelet reported is told, and none is made up: the pod is gone with the
            // next call.
            let awaited = vpod.finalizers || ended.last.is_some();
            if vpod.terminal() || !awaited { release(vpod) } else { fail_or_finish(vpod, ended, now) }
        };
        let Some(mapping) = &vpod.mapping else {
            // Never copied. Pods on nodes that are not ours are not ours to release.
            let ours = self.nodes.vnode(&vpod.node).is_some();
            return if ours { finish(&Ended { existed: false, seen: false, last: None }) } else { Plan::Rest };
        };
        match &case.ended {
            None => look_for_copy(case, &self.home.mount, &mapping.name, now),
            Some(ended) => finish(ended),
        }
    }

    /// The virtual pod is to run and the watch shows no copy.
    fn plan_down(&self, bound: &Bound, case: &Case, vpod: &VPod, now: Now) -> Plan<Why> {
        if vpod.terminal() {
            return Plan::Rest;
        }
        if let Some(plan) = self.plan_given_up(case, vpod, now) {
            return plan;
        }
        match (&case.ended, &vpod.mapping) {
            (Some(ended), _) if ended.existed => {
                let held = case.lost_copy() && self.must_wait(&vpod.uid);
                return if held { Plan::Rest } else { fail_or_finish(vpod, ended, now) };
            }
            (None, Some(mapping)) if vpod.was_copied() => {
                let waits = case.unmarked && vpod.digest.phase == Phase::Pending;
                let verdict = waits.then(|| Verdict::unmarked(&mapping.name));
                if let Some(refuse) = verdict.and_then(|verdict| refuse(vpod, &verdict, now)) {
                    return refuse;
                }
                return look_for_copy(case, &self.home.mount, &mapping.name, now);
            }
            // A client removed the mapping: the name it had is all there is to ask for.
            (None, None) if vpod.was_copied() && case.former.is_some() => {
                return case
                    .former
                    .as_ref()
                    .map_or(Plan::Rest, |name| look_for_copy(case, &self.home.mount, name, now));
            }
            _ => {}
        }
        let verdict = match self.eligible(vpod) {
            Err(None) => return Plan::Rest,
            Err(Some(verdict)) => Some(verdict),
            Ok(()) if vpod.was_copied() => Some(Verdict::mapping_lost()),
            Ok(()) => case
                .verdict()
                .or_else(|| self.prerequisites.verdict())
                .or_else(|| self.lacks_dependent(case, vpod, now)),
        };
        if let Some(verdict) = &verdict
            && self.nodes.vnode(&vpod.node).is_some()
            && let Some(refuse) = refuse(vpod, verdict, now)
        {
            return refuse;
        }
        if verdict.is_some_and(|verdict| verdict.reason.another_node_may_help()) && vpod.replaceable {
            return plan_send_away(vpod, now);
        }
        let (Some(name), Ok(())) = (case.name(vpod), self.eligible(vpod)) else { return Plan::Rest };
        if case.taken {
            return look_for_copy(case, &self.home.mount, name, now);
        }
        if vpod.mapping.as_ref().is_none_or(|mapping| mapping.name != *name) {
            return map(vpod, &self.home.mount, name, Why::Map, now);
        }
        if case.needs().is_some_and(|needs| !self.has_all(vpod, needs, now)) {
            // Woken by what it waits for.
            return Plan::Rest;
        }
        self.plan_create(bound, vpod, name, now)
    }

    /// Why a pod that was admitted has to wait for something that it needs.
    pub(super) fn lacks_dependent(&self, case: &Case, vpod: &VPod, now: Now) -> Option<Verdict> {
        let needs = case.needs().filter(|_| case.is_admitted())?;
        let readiness = self.dependents.readiness(&vpod.uid, needs);
        // What the virtual cluster has is known from its watches, what is on its way from both sides'.
        let out_of_sync = match readiness {
            Readiness::Missing(_) => self.out_of_sync.tell_dependents(&[Side::Virtual], &self.connections),
            Readiness::NotYet => self.out_of_sync.tell_dependents(&Side::BOTH, &self.connections),
            Readiness::Ready
            | Readiness::Impossible(..)
            | Readiness::Hindered(..)
            | Readiness::Terminating(..)
            | Readiness::NoToken(_) => None,
        };
        let volumes = || Verdict::of_volumes(&self.volumes.readiness(&vpod.uid, needs, &self.volumes_setting(now)));
        let out_of_sync = out_of_sync.map(|told| Verdict::dependents_out_of_sync(&told));
        out_of_sync.or_else(|| Verdict::of(&readiness)).or_else(volumes)
    }

    /// Whether everything is there that a pod needs besides a node.
    fn has_all(&self, vpod: &VPod, needs: &Needs, now: Now) -> bool {
        let claims = || self.volumes.readiness(&vpod.uid, needs, &self.volumes_setting(now));
        self.dependents.readiness(&vpod.uid, needs) == Readiness::Ready && claims() == volumes::Readiness::Ready
    }

    /// A physical pod points back to this virtual pod, which does not name it: one that another virtual pod names is given back,
    /// and of two copies one goes.
    fn plan_astray(&self, case: &Case, vpod: &VPod, copy: &PPod) -> Option<Plan<Why>> {
        if case.claimants.len() == 1 && copy.ours.as_ref().is_some_and(|copy| vpod.names(&copy.name)) {
            return None;
        }
        let all = || case.claimants.iter().filter_map(|uid| self.pods.ppods.get(uid));
        if let Some(back) = all().find_map(|ppod| self.give_back(ppod)) {
            return Some(back);
        }
        // Made under a name that a client removed from the pod during the call: the copy that the pod recorded stays.
        let kept = vpod.recorded() == Some(&copy.uid);
        let surplus = all().filter(|ppod| kept && ppod.uid != copy.uid && ppod.deleting.is_none());
        surplus.into_iter().find_map(|ppod| {
            let copy = ppod.ours.as_ref().filter(|copy| copy.intact)?;
            let target = ppod_target(copy).uid(&ppod.uid).rv(ppod.rv);
            Some(Why::SurplusCopy.call(target, Verb::Delete { grace: None }))
        })
    }

    /// A physical pod that does not point to the virtual pod whose copy it is, is made to.
    fn give_back(&self, ppod: &PPod) -> Option<Plan<Why>> {
        let copy = ppod.ours.as_ref()?;
        let vpod = self.owner(&copy.name, &ppod.uid).filter(|vpod| vpod.uid != copy.vpod.uid)?;
        let verb = mark(&self.origin, &vpod.back(), copy.generation, Some(&copy.sizes));
        Some(Why::GiveBack.call(ppod_target(copy).uid(&ppod.uid), verb))
    }

    /// A copy whose virtual pod the watch does not show: the pod is gone only if the API server says so (law 1).
    fn plan_orphan(&self, case: &Case, vuid: &Uid, ppod: &PPod, now: Now) -> Plan<Why> {
        let Some(copy) = &ppod.ours else { return Plan::Rest };
        if ppod.deleting.is_some() || case.asked.is_some() {
            return Plan::Rest;
        }
        // One whose pod was seen to go pointed to the right one.
        if case.vpod_gone != Some(Proof::Seen)
            && let Some(plan) = self.give_back(ppod)
        {
            return plan;
        }
        if case.vpod_gone != Some(Proof::Seen) && self.claimed_out_of_sight(&copy.name, &ppod.uid) {
            return Plan::Rest;
        }
        match case.vpod_gone {
            Some(_) if case.lost_vpod() && self.must_wait(vuid) => return Plan::Rest,
            Some(_) => return delete(ppod, copy, None, Why::VirtualPodGone),
            None => {}
        }
        if let Some(again) = case.looked.map(|at| at + LOOK_AGAIN).filter(|again| *again > now.steady) {
            return Plan::Wait(again);
        }
        let target = vpod_target(&copy.vpod.namespace, &copy.vpod.name).uid(&copy.vpod.uid);
        Why::LookForVirtualPod.call(target, Verb::Get)
    }

    fn plan_create(&self, bound: &Bound, vpod: &VPod, name: &Name, now: Now) -> Plan<Why> {
        let Some(vnode) = self.nodes.vnode(&vpod.node).filter(|_| self.prerequisites.ready()) else {
            return Plan::Rest;
        };
        if !self.lent(&vpod.node, now.wall).is_some_and(|lent| lent.is_ok_and(|lent| self.lets_in(&vpod.node, &lent))) {
            // Admitted before the node was stopped: it starts when the node is lent again (law 9).
            return Plan::Rest;
        }
        let Some(raw) = &vpod.raw else {
            // Dropped when the watch showed a copy, which is gone again.
            let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid);
            return Why::ReadPod.call(target, Verb::Get);
        };
        let Ok(sizes) = Sizes::of_pod(raw) else { return Plan::Rest };
        let annotations = vec![
            (keys::VIRTUAL_POD_GENERATION, vpod.generation.to_string()),
            (keys::VIRTUAL_POD_SIZES, sizes.mark.into()),
        ];
        let rendered =
            self.with_frame(bound, vpod, name, &vnode.physical, annotations, |frame| render_copy(raw, frame));
        match rendered {
            Ok(copy) => {
                let target = Target::namespaced(Side::Physical, &kind::POD, self.home.mount.clone(), name.clone());
                Why::CreateCopy.call(target, Verb::Create(copy))
            }
            // Admission refused what cannot be carried; a pod that changed since then is decoded again.
            Err(refused) => {
                tracing::warn!(namespace = %vpod.namespace, name = %vpod.name, %refused, "no copy");
                Plan::Rest
            }
        }
    }

    /// Renders with what the physical side gives to the copy of a pod, besides the origin's annotations also these.
    pub(super) fn with_frame<T>(
        &self,
        bound: &Bound,
        vpod: &VPod,
        name: &Name,
        node: &Name,
        annotations: Vec<(&str, String)>,
        render: impl FnOnce(&Frame<'_>) -> T,
    ) -> T {
        let frame = Frame {
            name: name.as_str(),
            namespace: self.home.mount.as_str(),
            node: node.as_str(),
            direct_scheduling: bound.binding.direct_scheduling,
            priority_class: Some(&bound.binding.priority_class),
            service_account: keys::POD_SERVICE_ACCOUNT,
            explicit_requests: crate::guards::explicit_requests(&bound.binding),
            dependent_name: &|_, name| names::dependent_name(&self.origin.label, vpod.namespace.as_str(), name),
            claim_name: &|name| names::claim_name(&self.origin.label, vpod.namespace.as_str(), name),
            token_secret: &names::token_secret_name(&self.origin.label, vpod.uid.as_str(), vpod.name.as_str()),
            virtual_api_server: bound.binding.virtual_api_server(),
            virtual_dns: bound.binding.virtual_dns.as_deref(),
            labels: self.origin.labels().into_iter().chain([namespace_label(&vpod.namespace)]).collect(),
            annotations: annotations.into_iter().chain(self.origin.annotations()).collect(),
        };
        render(&frame)
    }
}

/// The first of two plans, or the other when that comes sooner.
fn sooner(first: Plan<Why>, other: Plan<Why>) -> Plan<Why> {
    match (first, other) {
        (Plan::Rest, other) | (Plan::Wait(_), other @ Plan::Do(..)) => other,
        (Plan::Wait(at), Plan::Wait(until)) => Plan::Wait(at.min(until)),
        (plan, _) => plan,
    }
}

/// Says why a pod is not run, if it does not say so already.
fn refuse(vpod: &VPod, Verdict { reason, message }: &Verdict, now: Now) -> Option<Plan<Why>> {
    let said = vpod.refused.as_ref();
    let same = |message_said: &str| !reason.names_the_cause() || message_said == message;
    if said.is_some_and(|refused| refused.reason == reason.as_str() && same(&refused.message)) {
        return None;
    }
    let since = said.and_then(|refused| refused.since).unwrap_or(now.wall);
    let condition = render_admitted(Some((reason.as_str(), message)), since);
    Some(patch_status(vpod, json!({"status": {"conditions": [condition]}}), Why::Refuse))
}

/// A pod whose controller would make another one does not wait without limit: it goes, so that the next may go elsewhere.
fn plan_send_away(vpod: &VPod, now: Now) -> Plan<Why> {
    let since = vpod.refused.as_ref().and_then(|refused| refused.since).unwrap_or(now.wall);
    let at = steady_at(since, now) + PATIENCE;
    let waited = now.wall.duration_since(since) >= jiff::SignedDuration::try_from(PATIENCE).unwrap_or_default();
    if !waited {
        return Plan::Wait(at);
    }
    if !vpod.digest.disruption {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": PodReason::NotAdmitted.as_str(),
            "message": "the virtual node did not admit the pod for five minutes",
            "lastTransitionTime": stamp(now),
        });
        return patch_status(vpod, json!({"status": {"conditions": [condition]}}), Why::AnnounceSendAway);
    }
    // Under the version we looked at: the process that leads by the time the call arrives may have admitted it.
    let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid).rv(vpod.rv);
    Why::SendAway.call(target, Verb::Delete { grace: Some(0) })
}

impl Case {
    /// Why the pod is not running yet, if there is something to say about it.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        let refused = || self.refused.as_deref().cloned();
        self.not_admitted.as_ref().map(|not_admitted| not_admitted.verdict()).or_else(refused)
    }
}

/// Status up, if the two sides do not say the same.
fn plan_up(case: &Case, vpod: &VPod, ppod: &PPod, copy: &PodCopy, amend: &Amend, now: Now) -> Plan<Why> {
    let recorded = vpod.recorded();
    let agreed = vpod.digest.agrees_with(&copy.digest, &vpod.containers, amend);
    // The first news from below carries the UID up; until then it can wait.
    if agreed && (recorded == Some(&ppod.uid) || !vpod.digest.started) {
        return Plan::Rest;
    }
    if agreed {
        let annotations = json!({keys::PHYSICAL_POD_UID: ppod.uid.as_str(), keys::LAST_SYNC_TIME: stamp(now)});
        let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid).rv(vpod.rv);
        let verb = Verb::Merge(Sub::Main, json!({"metadata": {"annotations": annotations}}));
        return Why::RepairMapping.call(target, verb);
    }
    if let Some(pending) = amend.pending.as_ref().filter(|pending| !vpod.digest.says(pending)) {
        let condition = pending.render(vpod.generation, now.wall);
        return patch_status(vpod, json!({"status": {"conditions": [condition]}}), Why::DeferResize);
    }
    let Some(status) = &copy.status else {
        return Why::ReadStatus.call(ppod_target(copy).uid(&ppod.uid), Verb::Get);
    };
    let rendered =
        render_patch(status, copy.generation, &vpod.digest, &vpod.containers, amend, copy.deleted.as_deref());
    let Ok(mut status) = rendered else { return Plan::Rest };
    if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
        amend.gate.amend(conditions, &vpod.digest, now);
        conditions.extend(vpod.refused.as_ref().map(|_| render_admitted(None, now.wall)));
    }
    let status = Value::Object(status);
    if recorded == Some(&ppod.uid) && case.pushed == Some((fingerprint(status.to_string()), vpod.digest.hash())) {
        // This very patch led to this very status: the virtual API server does not take all of it.
        return Plan::Rest;
    }
    let annotations = json!({keys::PHYSICAL_POD_UID: ppod.uid.as_str(), keys::LAST_SYNC_TIME: stamp(now)});
    let patch = json!({"metadata": {"annotations": annotations}, "status": status});
    patch_status(vpod, patch, Why::Status)
}

/// The copy is gone: say how it ended, or that it was lost.
fn fail_or_finish(vpod: &VPod, ended: &Ended, now: Now) -> Plan<Why> {
    let status: Map<String, Value> = match &ended.last {
        Some(last) => {
            match render_patch(&last.status, last.generation, &vpod.digest, &vpod.containers, &Amend::default(), None) {
                Ok(status) => status,
                Err(_) => return Plan::Rest,
            }
        }
        None if vpod.deleting.is_some() => {
            render_failed(PodReason::Deleted, "the physical pod ended with the deletion", now.wall)
        }
        None => render_failed(PodReason::PhysicalPodLost, "the physical pod was deleted unexpectedly", now.wall),
    };
    let annotations = json!({keys::LAST_SYNC_TIME: stamp(now)});
    let why = if vpod.deleting.is_some() { Why::Finish } else { Why::PhysicalPodLost };
    let patch = json!({"metadata": {"annotations": annotations}, "status": status});
    // There is no way back from an end: only if nothing has changed since (law 2).
    let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid).rv(vpod.rv);
    why.call(target, Verb::Strategic(Sub::Status, patch))
}

/// Evidence: only a live read can say that there is no copy.
pub(super) fn look_for_copy(case: &Case, namespace: &Name, name: &Name, now: Now) -> Plan<Why> {
    if let Some(again) = case.looked.map(|at| at + LOOK_AGAIN).filter(|again| *again > now.steady) {
        return Plan::Wait(again);
    }
    let target = Target::namespaced(Side::Physical, &kind::POD, namespace.clone(), name.clone());
    Why::LookForCopy.call(target, Verb::Get)
}

fn delete(ppod: &PPod, copy: &PodCopy, grace: Option<u32>, why: Why) -> Plan<Why> {
    why.call(ppod_target(copy).uid(&ppod.uid), Verb::Delete { grace })
}

/// Lets the virtual pod go.
fn release(vpod: &VPod) -> Plan<Why> {
    let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid);
    Why::Release.call(target, Verb::Delete { grace: Some(0) })
}

/// Writes where the copy is. Under the version we looked at, so that two leaders can never choose two names (law 2).
fn map(vpod: &VPod, namespace: &Name, name: &Name, why: Why, now: Now) -> Plan<Why> {
    let annotations = json!({
        keys::PHYSICAL_POD_NAMESPACE: namespace.as_str(),
        keys::PHYSICAL_POD_NAME: name.as_str(),
        // A UID that was recorded with another name was not the UID of this copy.
        keys::PHYSICAL_POD_UID: null,
        keys::LAST_SYNC_TIME: stamp(now),
    });
    let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid).rv(vpod.rv);
    why.call(target, Verb::Merge(Sub::Main, json!({"metadata": {"annotations": annotations}})))
}

/// Puts back our labels and annotations that a client removed.
fn mend(ppod: &PPod, copy: &PodCopy, origin: &Origin) -> Plan<Why> {
    let verb = mark(origin, &copy.vpod, copy.generation, Some(&copy.sizes));
    Why::MendLabels.call(ppod_target(copy).uid(&ppod.uid), verb)
}

/// Lets a copy stay on a node in trouble until the virtual cluster evicts its pod. Under the version we looked at: the list is
/// replaced as a whole (law 2).
fn mend_tolerations(ppod: &PPod, copy: &PodCopy, tolerations: &Value) -> Plan<Why> {
    let verb = Verb::Merge(Sub::Main, json!({"spec": {"tolerations": tolerations}}));
    Why::MendTolerations.call(ppod_target(copy).uid(&ppod.uid).rv(ppod.rv), verb)
}

pub(super) fn patch_status(vpod: &VPod, patch: Value, why: Why) -> Plan<Why> {
    let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid);
    why.call(target, Verb::Strategic(Sub::Status, patch))
}

pub(super) fn vpod_target(namespace: &Name, name: &Name) -> Target {
    Target::namespaced(Side::Virtual, &kind::POD, namespace.clone(), name.clone())
}

pub(super) fn ppod_target(copy: &PodCopy) -> Target {
    Target::namespaced(Side::Physical, &kind::POD, copy.namespace.clone(), copy.name.clone())
}

pub(super) fn stamp(now: Now) -> String {
    format!("{:.0}", now.wall)
}
