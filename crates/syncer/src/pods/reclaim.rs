//! Taking capacity back from pods: which are evicted or deleted, when, and with what grace (DESIGN §9). Pure; the order is decided in `domain`.
//! Touches only virtual pods: what happens to their copies follows from that.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tapestry_cluster::{Name, Sub, Verb};
use tapestry_domain::reclaim::{Cause, Rules, Step, Tenant, steps};
use tapestry_domain::resources::Resources;
use tapestry_engine::{Now, Plan, Reason as _};

use super::plan::vpod_target;
use super::reason::PodReason;
use super::row::VPod;
use super::{Pods, Told, Why};
use crate::nodes::row::VNode;
use crate::pair::Pair;
use crate::terms::{Stop, steady_at};

/// How often an eviction is asked for that a disruption budget forbids.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// What takes capacity back from a virtual node's pods.
struct Recall<'a> {
    cause: Cause<'a>,
    rules: Rules,
    /// When it began.
    since: Timestamp,
    /// For people.
    why: &'static str,
}

impl Pods {
    /// The pods that we carry on a virtual node, with what they hold.
    pub(crate) fn carried_on(&self, vnode: &Name) -> Vec<(&VPod, Resources)> {
        let vpods = self.residents(vnode).filter_map(|uid| self.vpods.get(uid)).filter(|vpod| self.carried(vpod));
        vpods.map(|vpod| (vpod, self.granted(vpod))).collect()
    }
}

/// Pods as reclaim sees them.
pub(crate) fn tenants<'a>(carried: &'a [(&'a VPod, Resources)]) -> Vec<Tenant<'a>> {
    let tenant = |(vpod, request): &'a (&'a VPod, Resources)| Tenant {
        id: vpod.uid.as_str(),
        priority: vpod.priority,
        born: Timestamp::from_second(vpod.born).unwrap_or_default(),
        request,
        grace: vpod.grace,
        exempt: vpod.spared,
        going: vpod.deleting,
    };
    carried.iter().map(tenant).collect()
}

impl Pair {
    /// What reclaim wants of this pod: `Rest` when nothing.
    pub(super) fn plan_reclaim(&self, vpod: &VPod, now: Now) -> Plan<Why> {
        let Some(vnode) = self.nodes.vnode(&vpod.node).filter(|vnode| vnode.reclaiming()) else { return Plan::Rest };
        let pnode = self.nodes.pnode(&vnode.physical);
        let terms = pnode.and_then(|pnode| self.terms(pnode, now.wall));
        let mut offered = terms.as_ref().map(|terms| terms.offered.clone()).unwrap_or_default();
        let mut ridden_out = None;
        if self.awaits_discovery(terms.as_ref()) {
            return Plan::Rest;
        }
        let lending_state = self.lending_state(vnode, terms.as_ref(), now.wall);
        let since = lending_state.since;
        let recall = if lending_state.leaving {
            // A physical node that is only missing from the watch is not gone.
            let proven = pnode.is_some() || self.nodes.is_gone(&vnode.physical);
            since.leaving.filter(|_| proven).map(|since| (Cause::Leaving, since, "its virtual node is removed"))
        } else if let Some(stop) = lending_state.stop {
            let cause = match stop {
                Stop::Suspended | Stop::LendNever | Stop::OwnerHours => Cause::OwnerStop,
                Stop::Hours | Stop::Withdrawn(_) => Cause::WindowEnd,
                // No pod has to go because an object is invalid or cannot be read.
                Stop::Invalid
                | Stop::OwnerUnknown
                | Stop::OwnerUnserved
                | Stop::PoliciesUnknown(_)
                | Stop::BindingUnclear
                | Stop::PodUnreadable
                | Stop::NodeUnreadable
                | Stop::OutOfSync => return Plan::Rest,
            };
            since.stopped.map(|(_, since)| (cause, since, stop.message()))
        } else {
            if let Some(dip) = self.nodes.dip(&vnode.physical, now.wall) {
                match &dip.before {
                    None => return Plan::Wait(steady_at(dip.until, now)),
                    // Only what is taken back for other reasons is taken at once.
                    Some(before) => {
                        offered = self.offered_with(vnode, before, now.wall).unwrap_or(offered);
                        ridden_out = Some(steady_at(dip.until, now));
                    }
                }
            }
            let cause = Cause::Shrunk { leased: &offered };
            // The grace begins when the shrink proved permanent.
            let risen = self.nodes.last_dip(&vnode.physical).map(|dip| dip.until).filter(|until| *until <= now.wall);
            let since = since.over.map(|since| risen.map_or(since, |risen| risen.max(since)));
            since.map(|since| (cause, since, "the virtual node now lends less than its pods request"))
        };
        let Some((cause, since, why)) = recall else { return Plan::Rest };
        let recall = Recall { cause, rules: lending_state.rules, since, why };
        if recall.is_leaving() && !self.pods.carried(vpod) {
            return if vpod.terminal() { Plan::Rest } else { self.plan_release(vnode, vpod) };
        }
        if self.drains(vnode, &lending_state) && self.must_wait(&vpod.uid) {
            return Plan::Rest;
        }
        match (self.carry_out(vpod, &recall, now), ridden_out) {
            (Plan::Rest, Some(until)) => Plan::Wait(until),
            (plan, _) => plan,
        }
    }

    fn carry_out(&self, vpod: &VPod, recall: &Recall<'_>, now: Now) -> Plan<Why> {
        let carried = self.pods.carried_on(&vpod.node);
        let steps = steps(&recall.cause, &recall.rules, recall.since, now.wall, &tenants(&carried));
        let Some((_, step)) = steps.into_iter().find(|(id, _)| *id == vpod.uid.as_str()) else { return Plan::Rest };
        let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid);
        let told = self.pods.cases.get(&vpod.uid).map(|case| case.told).unwrap_or_default();
        match step {
            Step::Wait(at) => Plan::Wait(steady_at(at, now)),
            Step::Evict => match told {
                Told::Evicted => Plan::Rest,
                // Between two tries the pod is synced as usual.
                Told::Asked(at) if now.steady < at + ASK_AGAIN => Plan::Wait(at + ASK_AGAIN),
                _ => Why::Evict.call(target, Verb::Evict { grace: None }),
            },
            Step::Delete { .. } if !vpod.digest.disruption && vpod.deleting.is_none() && told != Told::Announced => {
                // A controller that counts failures (a Job) learns first that this is no failure. Written once: a pod whose status
                // cannot be written goes as well.
                let condition = json!({
                    "type": "DisruptionTarget", "status": "True", "reason": PodReason::Reclaimed.as_str(),
                    "message": format!("Tapestry reclaims the capacity: {}", recall.why),
                    "lastTransitionTime": format!("{:.0}", now.wall),
                });
                let verb = Verb::Strategic(Sub::Status, json!({"status": {"conditions": [condition]}}));
                Why::AnnounceReclaim.call(target, verb)
            }
            Step::Delete { grace } => Why::Reclaim.call(target.rv(vpod.rv), Verb::Delete { grace: Some(grace) }),
        }
    }

    /// Pods that we never carried are only bound to the node: they go last, right before it does.
    fn plan_release(&self, vnode: &VNode, vpod: &VPod) -> Plan<Why> {
        let others = self.pods.residents(&vnode.name).filter_map(|uid| self.pods.vpods.get(uid));
        if others.into_iter().any(|other| self.pods.carried(other)) || vpod.deleting == Some(0) {
            return Plan::Rest;
        }
        let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid).rv(vpod.rv);
        Why::ReleaseWithNode.call(target, Verb::Delete { grace: Some(0) })
    }
}

impl Recall<'_> {
    fn is_leaving(&self) -> bool {
        matches!(self.cause, Cause::Leaving)
    }
}

#[cfg(test)]
mod tests;
