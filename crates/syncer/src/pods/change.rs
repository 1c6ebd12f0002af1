//! A change of one pod, and what follows from it for nodes, other pods, the binding and the breaker.
//! The sums are kept in `sums`; this says in which order the rest of the pair learns of it.

use std::collections::BTreeSet;

use tapestry_cluster::{Name, Uid};
use tapestry_domain::resources::Resources;
use tapestry_engine::{Dirty, Now};

use super::admission::may_wait;
use super::case::{Proof, Request};
use super::{Delta, Pods};
use crate::breaker::LossState;
use crate::dependents::Copied;
use crate::nodes::row::VNode;
use crate::pair::{Key, Pair};

impl Pair {
    /// Changes one pod, then updates everything that depends on it.
    pub(super) fn change_pod(&mut self, vuid: &Uid, now: Now, dirty: &mut Dirty<Key>, change: impl FnOnce(&mut Pods)) {
        let bound = self.bindings.bound();
        let delta = self.pods.apply(vuid, |vpod| may_wait(bound, vpod), change);
        dirty.mark(Key::Pod(vuid.clone()));
        if delta.holds_otherwise() {
            // The binding tells how much is held.
            dirty.mark(Key::Binding);
        }
        self.follow_needs(vuid, dirty);
        if delta.needs_known() {
            // Copies that no pod uses may go.
            dirty.mark_all();
        }
        self.follow_use(delta.recounted(), now, dirty);
        self.follow_room(&delta, now, dirty);
        self.follow_departure(&delta, dirty);
        self.follow_loss(vuid, now, dirty);
        self.pods.drop_finished(vuid);
    }

    /// A pod needs other ConfigMaps, Secrets, claims or tokens, or none any more.
    pub(super) fn follow_needs(&mut self, vuid: &Uid, dirty: &mut Dirty<Key>) {
        let vpod = self.pods.vpods.get(vuid).map(|vpod| (&vpod.namespace, &vpod.name));
        let copied = Copied { api_access: self.pods.copied_api_access(vuid), adds: self.pods.adds(vuid) };
        self.dependents.follow(vuid, vpod, self.pods.needs_of(vuid), copied, dirty);
        self.volumes.follow(vuid, self.pods.needs_of(vuid), copied.api_access.is_some(), dirty);
        self.follow_volumes(dirty);
    }

    /// Whether pods are given access to the virtual API server has changed: those that have no copy yet need something else.
    pub(crate) fn follow_api_access(&mut self, dirty: &mut Dirty<Key>) {
        let server = self.bindings.bound().is_some_and(|bound| bound.binding.virtual_api_server.is_some());
        if self.dependents.set_api_access(server) {
            let all: Vec<Uid> = self.pods.cases.keys().cloned().collect();
            for vuid in all {
                self.follow_needs(&vuid, dirty);
            }
        }
    }

    /// There is more or less room on a virtual node, or another pod waits for some.
    fn follow_room(&mut self, delta: &Delta, now: Now, dirty: &mut Dirty<Key>) {
        for vnode in delta.admissions() {
            self.admit(vnode, now, dirty);
            self.pods.forget_unused(vnode);
        }
    }

    /// A node on its way out goes when its last pod has gone, and so does its binding.
    fn follow_departure(&self, delta: &Delta, dirty: &mut Dirty<Key>) {
        let vnode = delta.left().and_then(|vnode| self.nodes.vnode(vnode));
        if let Some(vnode) = vnode.filter(|vnode| vnode.reclaiming()) {
            dirty.mark(Key::Node(vnode.physical.clone()));
        }
    }

    /// The breaker weighs ends that were not asked for.
    fn follow_loss(&mut self, vuid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        let state = self.note_loss(vuid, now);
        if matches!(state, LossState::Ends | LossState::Alone) || self.breaker.trip().is_some() {
            self.weigh_ends(now, dirty);
        }
    }

    /// Others use more or less of these physical nodes: their virtual nodes may have to change, and may admit more or fewer pods.
    fn follow_use(&mut self, nodes: BTreeSet<&Name>, now: Now, dirty: &mut Dirty<Key>) {
        for node in nodes {
            if let Some(vnode) = self.nodes.vnode_of(node).map(|vnode| vnode.name.clone()) {
                self.admit(&vnode, now, dirty);
                if self.nodes.vnode(&vnode).is_some_and(VNode::reclaiming) {
                    self.stir(&vnode, now, dirty);
                }
            }
            dirty.mark(Key::Node(node.clone()));
        }
    }

    /// A physical pod that is not ours counts for something else now.
    pub(super) fn recount(
        &mut self,
        before: Option<&(Name, Resources)>,
        after: Option<&(Name, Resources)>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        self.pods.count(before, after);
        let nodes = before.into_iter().chain(after).map(|(node, _)| node);
        self.follow_use(nodes.collect(), now, dirty);
    }

    /// Tells the breaker whether a pod is about to end. What runs on another binding's node is not ours.
    pub(super) fn note_loss(&mut self, vuid: &Uid, now: Now) -> LossState {
        let elsewhere = self.pods.vpods.get(vuid).is_some_and(|vpod| self.nodes.vnode(&vpod.node).is_none());
        let state = match self.pods.loss_state(vuid) {
            LossState::Alone if elsewhere => LossState::Fine,
            LossState::Fine if self.is_drained(vuid) => LossState::Ends,
            // It was let go because its node is drained, and now it goes.
            LossState::Fine if self.breaker.sends_away(vuid) && self.pods.is_deleting(vuid) => LossState::Over,
            state => state,
        };
        self.breaker.record(vuid, state, now);
        state
    }

    /// All lists are in: only now is it known which pods are missing, and what the user who resumed has looked at.
    pub(crate) fn note_losses(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        let all: Vec<Uid> = self.pods.cases.keys().cloned().collect();
        for vuid in all {
            self.note_loss(&vuid, now);
        }
        self.breaker.begin();
        self.heed_binding(now, dirty);
    }
}

impl Pods {
    /// Whether a pod is about to end although its end was not asked for.
    fn loss_state(&self, vuid: &Uid) -> LossState {
        let Some(case) = self.cases.get(vuid).filter(|_| self.runs(vuid)) else { return LossState::Over };
        match (self.vpods.get(vuid), self.copy(vuid)) {
            _ if case.request == Request::Seen => LossState::Fine,
            (None, Some(_)) => match case.vpod_gone {
                None => LossState::Alone,
                Some(Proof::Read) => LossState::Ends,
                Some(Proof::Seen) => LossState::Fine,
            },
            (Some(vpod), None) if vpod.deleting.is_none() => match &case.ended {
                None => LossState::Alone,
                Some(_) if case.lost_copy() => LossState::Ends,
                Some(_) => LossState::Fine,
            },
            _ => LossState::Fine,
        }
    }

    fn is_deleting(&self, vuid: &Uid) -> bool {
        self.vpods.get(vuid).is_some_and(|vpod| vpod.deleting.is_some())
    }

    /// Forgets the sums of a virtual node that has none.
    fn forget_unused(&mut self, vnode: &Name) {
        self.admissions.forget_unused(vnode);
    }
}
