//! What to do about one physical node and its virtual node. Pure but for `settle_node`, which folds answers in.

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Sub, Target, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan, Reason as _};

use super::departure::Departure;
use super::lending::{LendingState, Since};
use super::row::{NO_SCHEDULE, PNode, Taint, Unread, VNode};
use super::want::{Circumstances, Want, render_taint, unknown_from};
use super::{Case, Why};
use crate::bindings::Bound;
use crate::json::fingerprint;
use crate::pair::{Key, Pair};
use crate::terms::{Stop, Terms, steady_at};

/// A burst of changes is one write of the status.
const STATUS_AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// How long a physical node must have been gone before its virtual node goes.
pub(super) const GONE_FOR: Duration = Duration::from_mins(1);

impl Pair {
    /// The plan for the physical node of this name, which may be gone.
    pub(crate) fn plan_node(&self, name: &Name, now: Now) -> Plan<Why> {
        let Some(bound) = self.trusted_terms() else {
            return self.plan_unseen(name, now);
        };
        let case = self.nodes.cases.get(name).cloned().unwrap_or_default();
        if let Some(look) = self.nodes.vnode_of(name).and_then(|vnode| self.plan_doubted(name, vnode, now)) {
            return look;
        }
        match (self.nodes.pnode(name), self.nodes.vnode_of(name)) {
            // What is written to a node depends on what is there, and on the physical node that it represents.
            (_, Some(vnode)) if vnode.unread.is_some() => Plan::Rest,
            (Some(pnode), _) if pnode.unread == Some(Unread::Blank) => Plan::Rest,
            (None, None) => Plan::Rest,
            (None, Some(vnode)) => self.plan_vanished(&case, name, vnode, now),
            (Some(pnode), vnode) => self.plan_mirror(bound, &case, pnode, vnode, now),
        }
    }

    fn plan_mirror(&self, bound: &Bound, case: &Case, pnode: &PNode, vnode: Option<&VNode>, now: Now) -> Plan<Why> {
        let terms = self.terms(pnode, now.wall);
        let Some(vnode) = vnode else {
            return match &terms {
                // While it is not known which policies there are, nothing new is lent.
                Some(Terms {
                    stop: Some(Stop::OwnerUnserved | Stop::PoliciesUnknown(_) | Stop::BindingUnclear),
                    ..
                }) => Plan::Rest,
                Some(terms) if terms.policy.is_some() => self.plan_new(bound, case, pnode, terms, now),
                Some(_) | None => Plan::Rest,
            };
        };
        if self.awaits_discovery(terms.as_ref()) {
            return Plan::Rest;
        }
        let lending_state = self.lending_state(vnode, terms.as_ref(), now.wall);
        if lending_state.leaving && vnode.has_taint(keys::TAINT_VNODE_DELETING) && self.pods.left(&vnode.name) {
            return remove(vnode);
        }
        let want = self.want(bound, case, pnode, vnode.name.as_str(), Some(vnode), terms.as_ref(), &lending_state, now);
        let target = Target::cluster(Side::Virtual, &kind::NODE, vnode.name.clone()).uid(&vnode.uid).rv(vnode.rv);
        // Status first: the metadata remembers what we set, also conditions that are to go.
        let vain = |patch: &Value| case.pushed == Some((digest(patch), vnode.digest()));
        let status = want.patch_status(vnode).filter(|patch| !vain(patch));
        let next = case.written.map(|at| at + STATUS_AT_MOST_EVERY).filter(|next| *next > now.steady);
        if let (Some(_), Some(next)) = (&status, next) {
            // A client that fights over the status must not keep the taints away.
            return match want.patch_metadata(vnode, now.wall).filter(|patch| !patch["spec"]["taints"].is_null()) {
                Some(patch) => Why::NodeMetadata.call(target, Verb::Merge(Sub::Main, patch)),
                None => Plan::Wait(next),
            };
        }
        if let Some(patch) = status {
            return Why::NodeStatus.call(target, Verb::Merge(Sub::Status, patch));
        }
        if let Some(patch) = want.patch_metadata(vnode, now.wall) {
            return Why::NodeMetadata.call(target, Verb::Merge(Sub::Main, patch));
        }
        // By time alone something changes next at the edge of a window, when force is due, when the API server has been
        // unreachable for too long, when a back-off ends.
        let until = terms.as_ref().and_then(|terms| terms.until);
        let force = lending_state.force_at().filter(|at| *at > now.wall);
        let placement = case.placement.until(now);
        let unknown =
            unknown_from(bound, Some(vnode), self.connections.get(Side::Physical)).filter(|at| *at > now.wall);
        let settles = case.settles.filter(|at| *at > now.wall);
        let edges = until.into_iter().chain(force).chain(unknown).chain(settles).map(|at| steady_at(at, now));
        let next = edges.chain(placement).min();
        next.map_or(Plan::Rest, Plan::Wait)
    }

    /// Whether it depends on an answer of discovery that is still to come what the absence of a policy means.
    pub(crate) fn awaits_discovery(&self, terms: Option<&Terms<'_>>) -> bool {
        let Some(stop) = terms.and_then(|terms| terms.stop) else { return false };
        match stop {
            Stop::Withdrawn(departure) => match departure {
                Departure::PolicyDeleted => !self.policies.confirmed(Side::Virtual),
                Departure::BindingDeleted | Departure::NodeDeleted | Departure::NodeGone | Departure::Unselected => {
                    false
                }
            },
            Stop::OwnerUnserved => self.policies.awaited(Side::Physical),
            Stop::BindingUnclear => self.bindings.awaits_discovery(),
            Stop::Suspended
            | Stop::LendNever
            | Stop::OwnerHours
            | Stop::OwnerUnknown
            | Stop::PoliciesUnknown(_)
            | Stop::Invalid
            | Stop::Hours
            | Stop::PodUnreadable
            | Stop::NodeUnreadable
            | Stop::OutOfSync => false,
        }
    }

    fn plan_new(&self, bound: &Bound, case: &Case, pnode: &PNode, terms: &Terms<'_>, now: Now) -> Plan<Why> {
        // While the physical cluster does not answer, or something cannot be watched, nothing new is offered.
        if !self.may_offer_more() {
            return Plan::Rest;
        }
        let name = match case.search.plan(&bound.binding.cluster_id, &pnode.name, now) {
            Ok(name) => name,
            Err(search) => return search,
        };
        let (stop, since, rules) = (terms.stop, Since::default(), terms.rules);
        let lending_state =
            LendingState { stop, over: false, leaving: false, departure: None, held: false, since, rules };
        if self.covered(&pnode.name, terms.leased()) != terms.leased() {
            // The quota comes first.
            return Plan::Rest;
        }
        let want = self.want(bound, case, pnode, name.as_str(), None, Some(terms), &lending_state, now);
        let body = want.render(name.as_str(), now.wall);
        let target = Target::cluster(Side::Virtual, &kind::NODE, name);
        Why::CreateNode.call(target, Verb::Create(body))
    }

    /// The watch does not show the physical node: it is gone only if the API server says so, twice, a minute apart.
    fn plan_vanished(&self, case: &Case, name: &Name, vnode: &VNode, now: Now) -> Plan<Why> {
        if self.operational().is_none() {
            return Plan::Rest;
        }
        match case.gone {
            Some((first, _)) if now.steady < first + GONE_FOR => Plan::Wait(first + GONE_FOR),
            Some((first, last)) if last >= first + GONE_FOR => match vnode.has_taint(keys::TAINT_VNODE_DELETING) {
                true if !self.pods.left(&vnode.name) => Plan::Rest,
                true => remove(vnode),
                false => taint_deleting(vnode, now),
            },
            _ => Why::LookForNode.call(Target::cluster(Side::Physical, &kind::NODE, name.clone()), Verb::Get),
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one caller each for a new and a known node; a struct would only rename them"
    )]
    fn want(
        &self,
        bound: &Bound,
        case: &Case,
        pnode: &PNode,
        name: &str,
        vnode: Option<&VNode>,
        terms: Option<&Terms<'_>>,
        lending_state: &LendingState,
        now: Now,
    ) -> Want {
        let connection = self.connections.get(Side::Physical);
        Want::new(
            pnode,
            &Circumstances {
                bound,
                leased: self.covered(&pnode.name, terms.map(Terms::leased).unwrap_or_default()),
                settles: case.settles,
                owner_unknown: !self.policies.confirmed(Side::Physical),
                origin: &self.origin,
                name,
                vnode,
                terms,
                lending_state,
                connection,
                crowded: case.placement.taint(now),
                stopped: lending_state.stop.zip(vnode).map(|(stop, vnode)| self.tell_stop(&vnode.name, stop)),
                now: now.wall,
            },
        )
    }

    pub(crate) fn settle_node(
        &mut self,
        name: &Name,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        match why {
            Why::LookForOwner => self.learn_owner(name, &done, now, dirty),
            Why::LookForVirtualNode => self.settle_search(name, call, &done, now, dirty),
            Why::LookForNode => self.settle_look(name, done, now, dirty),
            Why::RemoveNode => match done {
                Ok(answer) => self.learn_removal(call, &answer, now, dirty),
                Err(refusal) => self.learn_write_refused(name, &refusal, now, dirty),
            },
            Why::ReleaseNode => match done {
                Ok(_) => self.learn_released(call, now, dirty),
                Err(refusal) => self.learn_write_refused(name, &refusal, now, dirty),
            },
            Why::CreateNode
            | Why::NodeStatus
            | Why::NodeMetadata
            | Why::NodeUnreachable
            | Why::NodeOutOfSync
            | Why::TaintDeleting => match done {
                Ok(answer) => self.learn_write(name, call, &answer, now, dirty),
                Err(refusal) => self.learn_write_refused(name, &refusal, now, dirty),
            },
        }
    }

    /// The physical node was looked for.
    fn settle_look(&mut self, name: &Name, done: Result<Answer, Refusal>, now: Now, dirty: &mut Dirty<Key>) {
        match done {
            Ok(answer) => {
                if let Ok(Some(row)) = PNode::decode(&answer.object) {
                    self.see_pnode(Change::Put(row, Epoch::default()), now, dirty);
                }
            }
            // The watch shows a node that came back while we asked: the answer is about the node before it.
            Err(Refusal::Gone) if self.nodes.pnode(name).is_none() => {
                let case = self.nodes.cases.entry(name.clone()).or_default();
                let first = case.gone.map_or(now.steady, |(first, _)| first);
                case.gone = Some((first, now.steady));
                dirty.mark(Key::Node(name.clone()));
                if let Some(vnode) = self.nodes.vnode_of(name).map(|vnode| vnode.name.clone()) {
                    self.stir(&vnode, now, dirty);
                }
            }
            Err(_) => {}
        }
    }

    /// The virtual node was deleted.
    fn learn_removal(&mut self, call: &Call, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        match VNode::decode(&answer.object) {
            // Its finalizers hold it still.
            Ok(Some(row)) if row.deleting => self.put_vnode(row, None, now, dirty),
            _ => self.learn_released(call, now, dirty),
        }
    }

    /// Nothing of ours holds the deleted virtual node any more.
    fn learn_released(&mut self, call: &Call, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(uid) = &call.target.uid {
            self.lose_vnode(uid, now, dirty);
        }
    }

    /// The virtual node was created or changed.
    fn learn_write(&mut self, name: &Name, call: &Call, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        let row = VNode::decode(&answer.object).ok().flatten();
        if let Verb::Merge(Sub::Status, patch) = &call.verb {
            let case = self.nodes.cases.entry(name.clone()).or_default();
            case.written = Some(now.steady);
            case.pushed = row.as_ref().map(|row| (digest(patch), row.digest()));
        }
        if let Some(row) = row.filter(|row| row.physical == *name) {
            self.put_vnode(row, None, now, dirty);
        }
        dirty.mark(Key::Node(name.clone()));
    }

    fn learn_write_refused(&mut self, name: &Name, refusal: &Refusal, now: Now, dirty: &mut Dirty<Key>) {
        match refusal {
            // Only a creation finds its name taken.
            Refusal::Exists => self.find_taken(name, dirty),
            // Without our label no watch brings what it looks like by now.
            Refusal::Replaced => {
                let unlabelled = |vnode: &&VNode| vnode.label(keys::ORIGIN) != Some(&*self.origin.label);
                if let Some(uid) = self.nodes.vnode_of(name).filter(unlabelled).map(|vnode| vnode.uid.clone()) {
                    self.doubt_vnode(&uid, now, dirty);
                }
            }
            _ => {}
        }
    }
}

/// What a status patch says, without the times at which it is said.
fn digest(patch: &Value) -> u64 {
    let mut patch = patch["status"].clone();
    for condition in patch["conditions"].as_array_mut().into_iter().flatten() {
        (condition["lastHeartbeatTime"], condition["lastTransitionTime"]) = (Value::Null, Value::Null);
    }
    fingerprint(patch.to_string())
}

/// No pod is left there: deletes the node, then releases it.
fn remove(vnode: &VNode) -> Plan<Why> {
    let target = Target::cluster(Side::Virtual, &kind::NODE, vnode.name.clone()).uid(&vnode.uid);
    if !vnode.deleting {
        // Under the version we looked at: the process that leads by the time the call arrives may have lent the node again.
        return Why::RemoveNode.call(target.rv(vnode.rv), Verb::Delete { grace: None });
    }
    let others: Vec<_> = vnode.finalizers.iter().filter(|finalizer| *finalizer != keys::FINALIZER_VNODE).collect();
    if others.len() == vnode.finalizers.len() {
        // The finalizers that still hold it belong to other controllers.
        return Plan::Rest;
    }
    let verb = Verb::Merge(Sub::Main, json!({"metadata": {"finalizers": others}}));
    Why::ReleaseNode.call(target.rv(vnode.rv), verb)
}

/// Marks a node on its way out whose physical node can no longer be asked how it should look.
fn taint_deleting(vnode: &VNode, now: Now) -> Plan<Why> {
    let mut taints: Vec<_> = vnode.taints.iter().map(render_taint).collect();
    taints.push(render_taint(&Taint::since(keys::TAINT_VNODE_DELETING, NO_SCHEDULE, now.wall)));
    let target = Target::cluster(Side::Virtual, &kind::NODE, vnode.name.clone()).uid(&vnode.uid).rv(vnode.rv);
    Why::TaintDeleting.call(target, Verb::Merge(Sub::Main, json!({"spec": {"taints": taints}})))
}
