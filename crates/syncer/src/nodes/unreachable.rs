//! What a virtual node says when the physical cluster has been silent, or has refused us, since we started: nothing is known of
//! the physical node, so only what that itself means is put onto what is there. Pure. Everything else waits for the first lists.

use serde_json::json;
use tapestry_api::keys;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Call, Name, Side, Sub, Target, Verb, kind};
use tapestry_engine::{Now, Plan};

use super::row::{Condition, Taint};
use super::want::{reachable, render_condition, render_taint, unknown_from};
use crate::pair::Pair;
use crate::terms::steady_at;

impl Pair {
    /// The plan for the virtual node of a physical node that we have not seen yet. Without it a restart would hide the outage:
    /// pods would be scheduled onto a cluster that nobody reaches, and `partition: Evict` would never come true.
    pub(super) fn plan_unseen(&self, name: &Name, now: Now) -> Plan {
        let connection = self.connection(Side::Physical);
        let home = self.at_home() && matches!(self.connection(Side::Virtual), Connection::Up(_));
        let (Some(bound), Some(vnode), Connection::Down(_) | Connection::Refused(_), true) = (
            &self.bound,
            self.nodes.vnode_of(name).filter(|vnode| vnode.unread.is_none()),
            connection,
            home && self.nodes.vnodes.complete(),
        ) else {
            return Plan::Rest;
        };
        let target = Target::cluster(Side::Virtual, &kind::NODE, vnode.name.clone()).uid(&vnode.uid).rv(vnode.rv);
        if !vnode.has_taint(keys::TAINT_PHYSICAL_UNREACHABLE) {
            let mut taints: Vec<_> = vnode.taints.iter().map(render_taint).collect();
            taints.push(render_taint(&Taint::plain(keys::TAINT_PHYSICAL_UNREACHABLE)));
            let verb = Verb::Merge(Sub::Main, json!({"spec": {"taints": taints}}));
            return Call { target, verb, why: "NodeUnreachable" }.into();
        }
        let told = reachable(Some(vnode), connection, now.wall);
        let due = unknown_from(bound, Some(vnode), connection);
        let mut conditions: Vec<Condition> =
            vnode.conditions.iter().filter(|condition| condition.kind != told.kind).cloned().collect();
        conditions.push(told);
        if let Some(due) = due.filter(|due| *due <= now.wall) {
            let ready = conditions.iter_mut().filter(|condition| condition.kind == "Ready");
            ready.for_each(|ready| ready.forget(due));
        }
        let said = |condition: &Condition| vnode.conditions.iter().any(|there| there.says_the_same(condition));
        if !conditions.iter().all(said) {
            let conditions: Vec<_> = conditions.iter().map(render_condition).collect();
            let verb = Verb::Merge(Sub::Status, json!({"status": {"conditions": conditions}}));
            return Call { target, verb, why: "NodeUnreachable" }.into();
        }
        due.filter(|due| *due > now.wall).map_or(Plan::Rest, |due| Plan::Wait(steady_at(due, now)))
    }
}

#[cfg(test)]
mod tests;
