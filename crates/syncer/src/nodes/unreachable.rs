//! What a virtual node says when the first lists do not come: the physical cluster has been unreachable, or has refused us, since
//! we started, or something cannot be read. Nothing is known of the physical node, so only what that itself means is put onto
//! what is there. Pure. Everything else waits for the first lists.

use serde_json::json;
use tapestry_api::keys;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Name, Side, Sub, Target, Verb, kind};
use tapestry_domain::quantity::Quantity;
use tapestry_domain::resources::Resources;
use tapestry_engine::{Now, Plan, Reason as _};

use super::Why;
use super::row::{Condition, Taint, VNode};
use super::want::{own_condition, reachable, render_condition, render_taint, unknown_from};
use crate::pair::Pair;
use crate::terms::{Stop, steady_at};

impl Pair {
    /// The plan for the virtual node of a physical node that we have not seen yet. Without it a restart would hide the trouble:
    /// pods would be scheduled onto a cluster that is unreachable or unknown, and `partition: Evict` would never take effect.
    pub(super) fn plan_unseen(&self, name: &Name, now: Now) -> Plan<Why> {
        let known = self.own_nodes_known();
        let vnode = self.nodes.vnode_of(name).filter(|vnode| known && vnode.unread.is_none());
        match (vnode, self.connections.get(Side::Physical)) {
            (Some(vnode), Connection::Down(_) | Connection::Refused(_)) => self.plan_unreachable(vnode, now),
            (Some(vnode), Connection::Up(_)) if self.admission_out_of_sync() => plan_blind(vnode, now),
            _ => Plan::Rest,
        }
    }

    fn plan_unreachable(&self, vnode: &VNode, now: Now) -> Plan<Why> {
        let connection = self.connections.get(Side::Physical);
        let Some(bound) = self.bindings.bound() else { return Plan::Rest };
        if !vnode.has_taint(keys::TAINT_PHYSICAL_UNREACHABLE) {
            return add_taint(vnode, keys::TAINT_PHYSICAL_UNREACHABLE, Why::NodeUnreachable);
        }
        let told = reachable(Some(vnode), connection, now.wall);
        let due = unknown_from(bound, Some(vnode), connection);
        let mut conditions = with_condition(vnode, told);
        if let Some(due) = due.filter(|due| *due <= now.wall) {
            let ready = conditions.iter_mut().filter(|condition| condition.kind == "Ready");
            ready.for_each(|ready| ready.forget(due));
        }
        let said = |condition: &Condition| vnode.conditions.iter().any(|there| there.says_the_same(condition));
        if !conditions.iter().all(said) {
            let conditions: Vec<_> = conditions.iter().map(render_condition).collect();
            let verb = Verb::Merge(Sub::Status, json!({"status": {"conditions": conditions}}));
            return Why::NodeUnreachable.call(target(vnode), verb);
        }
        due.filter(|due| *due > now.wall).map_or(Plan::Rest, |due| Plan::Wait(steady_at(due, now)))
    }
}

/// A list that is needed does not come, so it is unknown what is idle: the node says what it would say if the watch had failed
/// later (law 9).
fn plan_blind(vnode: &VNode, now: Now) -> Plan<Why> {
    if !vnode.has_taint(keys::TAINT_OUT_OF_SYNC) {
        return add_taint(vnode, keys::TAINT_OUT_OF_SYNC, Why::NodeOutOfSync);
    }
    let (stop, kind) = (Stop::OutOfSync, keys::CONDITION_LENDING);
    let lending =
        own_condition(Some(vnode), now.wall, kind, "False", stop.reason().as_str(), stop.message().to_owned());
    let said = vnode.condition(kind).is_some_and(|there| there.says_the_same(&lending));
    let (capacity, allocatable) = (nothing_of(&vnode.capacity), nothing_of(&vnode.allocatable));
    if said && vnode.capacity == capacity && vnode.allocatable == allocatable {
        return Plan::Rest;
    }
    let conditions: Vec<_> = with_condition(vnode, lending).iter().map(render_condition).collect();
    let status = json!({"capacity": capacity, "allocatable": allocatable, "conditions": conditions});
    let verb = Verb::Merge(Sub::Status, json!({"status": status}));
    Why::NodeOutOfSync.call(target(vnode), verb)
}

/// The same resources, and nothing of each.
fn nothing_of(resources: &Resources) -> Resources {
    let mut nothing = resources.clone();
    nothing.map(|_, _| Quantity::ZERO);
    nothing
}

/// Its conditions, with this one as it should be.
fn with_condition(vnode: &VNode, condition: Condition) -> Vec<Condition> {
    let mut conditions = vnode.conditions.clone();
    conditions.retain(|there| there.kind != condition.kind);
    conditions.push(condition);
    conditions
}

fn add_taint(vnode: &VNode, key: &str, why: Why) -> Plan<Why> {
    let mut taints: Vec<_> = vnode.taints.iter().map(render_taint).collect();
    taints.push(render_taint(&Taint::plain(key)));
    why.call(target(vnode), Verb::Merge(Sub::Main, json!({"spec": {"taints": taints}})))
}

fn target(vnode: &VNode) -> Target {
    Target::cluster(Side::Virtual, &kind::NODE, vnode.name.clone()).uid(&vnode.uid).rv(vnode.rv)
}

#[cfg(test)]
mod tests;
