//! What to do about one physical node and its virtual node. Pure but for `settle_node`, which folds answers in.

use std::time::Duration;

use serde_json::json;
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Sub, Target, Verb, kind};
use tapestry_domain::names::{vnode_name, vnode_name_hashed};
use tapestry_domain::resources::Resources;
use tapestry_engine::{Dirty, Now, Plan};

use super::Case;
use super::row::{PNode, VNode};
use super::want::{Circumstances, Want};
use crate::bindings::Bound;
use crate::pair::{Key, Pair};

/// How long a name that somebody else has is left alone.
const LOOK_AGAIN: Duration = Duration::from_mins(5);
/// How long a physical node must have been gone before its virtual node goes.
const GONE_FOR: Duration = Duration::from_mins(1);

impl Pair {
    /// The plan for the physical node of this name, which may be gone.
    pub(crate) fn plan_node(&self, name: &Name, now: Now) -> Plan {
        let Some(bound) = self.knowing() else { return Plan::Rest };
        let case = self.nodes.cases.get(name).cloned().unwrap_or_default();
        match (self.nodes.pnode(name), self.nodes.vnode_of(name)) {
            (None, None) => Plan::Rest,
            (None, Some(vnode)) => self.plan_vanished(&case, name, vnode, now),
            (Some(pnode), vnode) => self.plan_mirror(bound, &case, pnode, vnode, now),
        }
    }

    fn plan_mirror(&self, bound: &Bound, case: &Case, pnode: &PNode, vnode: Option<&VNode>, now: Now) -> Plan {
        let lease = self.lease_of(pnode);
        let Some(vnode) = vnode else {
            return match lease {
                Some((lent, policy)) => self.plan_new(bound, case, pnode, lent, policy, now),
                None => Plan::Rest,
            };
        };
        if vnode.deleting {
            return Plan::Rest;
        }
        if lease.is_none() && vnode.has_taint(keys::TAINT_VNODE_DELETING) && !self.pods.any_on(&vnode.name) {
            return remove(vnode);
        }
        let (lent, policy) = match lease {
            Some((lent, policy)) => (lent, Some(policy)),
            // On its way out: whatever runs may end, nothing new comes in.
            None => (Resources::new(), None),
        };
        let want = self.want(bound, pnode, vnode.name.as_str(), lent, policy, now);
        let target = Target::cluster(Side::Virtual, &kind::NODE, vnode.name.clone()).uid(&vnode.uid).rv(vnode.rv);
        // Status first: the metadata remembers what we set, also conditions that are to go.
        if let Some(patch) = want.patch_status(vnode) {
            return Call { target, verb: Verb::Merge(Sub::Status, patch), why: "NodeStatus" }.into();
        }
        if let Some(patch) = want.patch_metadata(vnode, now.wall) {
            return Call { target, verb: Verb::Merge(Sub::Main, patch), why: "NodeMetadata" }.into();
        }
        Plan::Rest
    }

    fn plan_new(&self, bound: &Bound, case: &Case, pnode: &PNode, lent: Resources, policy: &str, now: Now) -> Plan {
        // While the physical cluster is silent nothing new is offered.
        if self.working().is_none() {
            return Plan::Rest;
        }
        let id = &bound.binding.cluster_id;
        let name =
            if case.clash { vnode_name_hashed(id, pnode.name.as_str()) } else { vnode_name(id, pnode.name.as_str()) };
        let Ok(vnode) = Name::parse(&name) else { return Plan::Rest };
        let target = Target::cluster(Side::Virtual, &kind::NODE, vnode);
        let want = self.want(bound, pnode, &name, lent, Some(policy), now);
        if let Some(stripped) = &case.unlabelled {
            let patch = json!({"metadata": {"labels": want.labels}});
            return Call {
                target: target.uid(&stripped.uid).rv(stripped.rv),
                verb: Verb::Merge(Sub::Main, patch),
                why: "MendLabels",
            }
            .into();
        }
        if let Some(again) = case.blocked.map(|at| at + LOOK_AGAIN).filter(|again| *again > now.steady) {
            return Plan::Wait(again);
        }
        if case.taken {
            return Call { target, verb: Verb::Get, why: "LookForNode" }.into();
        }
        Call { target, verb: Verb::Create(want.render(&name, now.wall)), why: "CreateNode" }.into()
    }

    /// The physical node is not in sight: gone only if the API server says so, twice, a minute apart.
    fn plan_vanished(&self, case: &Case, name: &Name, vnode: &VNode, now: Now) -> Plan {
        if self.working().is_none() || vnode.deleting {
            return Plan::Rest;
        }
        match case.gone {
            Some((first, _)) if now.steady < first + GONE_FOR => Plan::Wait(first + GONE_FOR),
            Some((first, last)) if last >= first + GONE_FOR => match vnode.has_taint(keys::TAINT_VNODE_DELETING) {
                true if self.pods.any_on(&vnode.name) => Plan::Rest,
                true => remove(vnode),
                false => cordon(vnode),
            },
            _ => Call {
                target: Target::cluster(Side::Physical, &kind::NODE, name.clone()),
                verb: Verb::Get,
                why: "LookForNode",
            }
            .into(),
        }
    }

    fn want(
        &self,
        bound: &Bound,
        pnode: &PNode,
        vnode: &str,
        leased: Resources,
        policy: Option<&str>,
        now: Now,
    ) -> Want {
        let reachable = matches!(self.connection(Side::Physical), Connection::Up(_));
        Want::new(
            pnode,
            &Circumstances { bound, origin: &self.origin, vnode, policy, leased, reachable, now: now.wall },
        )
    }

    pub(crate) fn settle_node(
        &mut self,
        name: &Name,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        match (done, call.target.side, &call.verb) {
            (Ok(_), _, Verb::Delete { .. }) => {
                if let Some(uid) = &call.target.uid {
                    self.lose_vnode(uid, dirty);
                }
            }
            (Ok(answer), Side::Physical, Verb::Get) => {
                if let Ok(Some(row)) = PNode::decode(&answer.object) {
                    self.see_pnode(Change::Put(row, Epoch::default()), dirty);
                }
            }
            (Ok(answer), Side::Virtual, verb) => self.learn_vnode(name, matches!(verb, Verb::Get), &answer, now, dirty),
            // A node that came back while we asked is in sight: the answer is of its former life.
            (Err(Refusal::Gone), Side::Physical, Verb::Get) if self.nodes.pnode(name).is_none() => {
                let case = self.nodes.cases.entry(name.clone()).or_default();
                let first = case.gone.map_or(now.steady, |(first, _)| first);
                case.gone = Some((first, now.steady));
                dirty.mark(Key::Node(name.clone()));
            }
            (Err(Refusal::Gone), Side::Virtual, Verb::Get) => {
                self.nodes.cases.entry(name.clone()).or_default().taken = false;
                dirty.mark(Key::Node(name.clone()));
            }
            (Err(Refusal::Exists), Side::Virtual, Verb::Create(_)) => {
                self.nodes.cases.entry(name.clone()).or_default().taken = true;
                dirty.mark(Key::Node(name.clone()));
            }
            _ => {}
        }
    }

    fn learn_vnode(&mut self, name: &Name, looked: bool, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        let row = VNode::decode(&answer.object).ok().flatten().filter(|row| row.physical == *name);
        let origin = self.origin.label.to_string();
        let labelled = |row: &VNode| row.labels.get(keys::ORIGIN) == Some(&origin);
        match row {
            Some(row) if labelled(&row) => self.put_vnode(row, None, dirty),
            Some(row) if looked && self.is_ours(&row) => {
                self.nodes.cases.entry(name.clone()).or_default().unlabelled = Some(Box::new(row));
            }
            // Somebody else's node has the name.
            _ if looked => {
                let case = self.nodes.cases.entry(name.clone()).or_default();
                // The hashed name too: there is nothing left but to wait.
                case.blocked = case.clash.then_some(now.steady);
                (case.clash, case.taken) = (true, false);
            }
            _ => {}
        }
        dirty.mark(Key::Node(name.clone()));
    }

    /// A node that lost its labels is still ours if it says which physical node it is, by UID, and which cluster.
    fn is_ours(&self, row: &VNode) -> bool {
        let Some(pnode) = self.nodes.pnode(&row.physical) else { return false };
        !row.labels.contains_key(keys::ORIGIN)
            && row.annotations.get(keys::PHYSICAL_NODE_UID).map(String::as_str) == Some(pnode.uid.as_str())
            && row.name.as_str().starts_with(&*self.home.vnode_prefix)
    }
}

fn remove(vnode: &VNode) -> Plan {
    let target = Target::cluster(Side::Virtual, &kind::NODE, vnode.name.clone()).uid(&vnode.uid);
    Call { target, verb: Verb::Delete { grace: None }, why: "RemoveNode" }.into()
}

/// Marks a node on its way out whose physical node can no longer be asked how it should look.
fn cordon(vnode: &VNode) -> Plan {
    let mut taints: Vec<_> = vnode
        .taints
        .iter()
        .map(|taint| json!({"key": taint.key, "value": taint.value, "effect": taint.effect, "timeAdded": taint.added}))
        .collect();
    taints.push(json!({"key": keys::TAINT_VNODE_DELETING, "effect": "NoSchedule"}));
    let target = Target::cluster(Side::Virtual, &kind::NODE, vnode.name.clone()).uid(&vnode.uid).rv(vnode.rv);
    Call { target, verb: Verb::Merge(Sub::Main, json!({"spec": {"taints": taints}})), why: "Cordon" }.into()
}
