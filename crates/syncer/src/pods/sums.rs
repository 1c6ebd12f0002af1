//! The sums over pods: what others use of each physical node, what is held behind each door, who lives where.
//! Kept by differences around every change of a case, so that one pod's change costs the same in a cluster of any size.

use std::collections::{BTreeSet, HashMap};

use tapestry_cluster::{Name, Uid};
use tapestry_domain::resources::Resources;
use tapestry_engine::{Dirty, Now};

use super::row::VPod;
use super::{Footprint, Pods, Proof, Request};
use crate::breaker::LossState;
use crate::nodes::row::VNode;
use crate::pair::{Key, Pair};

impl Pair {
    /// Changes a case and keeps the sums true: subtracts what it counted for before, adds what it counts for after.
    pub(super) fn around(&mut self, vuid: &Uid, now: Now, dirty: &mut Dirty<Key>, change: impl FnOnce(&mut Pods)) {
        let before = self.footprint(vuid);
        let home = |pods: &Pods| pods.vpods.get(vuid).map(|vpod| vpod.node.clone());
        let lived = home(&self.pods);
        change(&mut self.pods);
        let lives = home(&self.pods);
        let after = self.footprint(vuid);
        dirty.mark(Key::Pod(vuid.clone()));
        if lived != lives {
            self.pods.moved(vuid, lived.as_ref(), lives.as_ref());
        }
        let freed = before.held.is_some() && after.held.is_none();
        if before.held != after.held {
            dirty.mark(Key::Binding);
        }
        if before != after {
            let Footprint { used, held, waits } = before;
            let mut admissions: Vec<Name> = [&held.as_ref().map(|held| held.0.clone()), &waits, &after.waits]
                .into_iter()
                .chain([&after.held.as_ref().map(|held| held.0.clone())])
                .flatten()
                .cloned()
                .collect();
            admissions.sort();
            admissions.dedup();
            if let Some((vnode, request)) = &held {
                self.pods.admissions.entry(vnode.clone()).or_default().held.saturating_sub(request);
            }
            if let Some((vnode, request)) = &after.held {
                self.pods.admissions.entry(vnode.clone()).or_default().held.add(request);
            }
            self.pods.queue(vuid, waits.as_ref(), after.waits.as_ref());
            if used != after.used {
                self.recount(used, after.used, now, dirty);
            }
            for vnode in admissions {
                self.admit(&vnode, now, dirty);
                self.pods.close_unused(&vnode);
            }
        }
        // A node on its way out goes when its last pod has gone, and so does its binding.
        if (lived != lives || freed)
            && let Some(vnode) = lived.as_ref().and_then(|vnode| self.nodes.vnode(vnode)).filter(|row| row.reclaiming())
        {
            dirty.mark(Key::Node(vnode.physical.clone()));
        }
        let state = self.note_loss(vuid, now);
        if matches!(state, LossState::Ends | LossState::Alone) || self.breaker.trip().is_some() {
            self.weigh_ends(now, dirty);
        }
        self.pods.drop_finished(vuid);
    }

    /// Tells the breaker how a pod stands to its end. What runs on another binding's node is none of ours.
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

    /// All lists are in: only now is it known who is not in sight, and what somebody who resumed has looked at.
    pub(crate) fn note_losses(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        let all: Vec<Uid> = self.pods.cases.keys().cloned().collect();
        for vuid in all {
            self.note_loss(&vuid, now);
        }
        self.breaker.begin();
        self.heed_binding(now, dirty);
    }

    pub(super) fn footprint(&self, vuid: &Uid) -> Footprint {
        let Some(case) = self.pods.cases.get(vuid) else {
            return Footprint::default();
        };
        let ppods = case.claimants.iter().filter_map(|uid| self.pods.ppods.get(uid));
        let used = ppods.filter_map(|ppod| self.pods.contribution(ppod)).collect();
        let vpod = self.pods.vpods.get(vuid).filter(|vpod| !vpod.terminal());
        let inside = case.name.is_some() || !case.claimants.is_empty();
        let held = vpod.filter(|_| inside).map(|vpod| (vpod.node.clone(), self.pods.granted(vpod)));
        let stands_outside =
            |vpod: &&VPod| if inside { self.pods.grows_by(vpod).is_some() } else { self.may_wait(vpod) };
        let waits = vpod.filter(stands_outside).map(|vpod| vpod.node.clone());
        Footprint { used, held, waits }
    }

    /// Others use more or less of a node: its virtual node may have to change, and its door may open.
    pub(super) fn recount(
        &mut self,
        before: Vec<(Name, Resources)>,
        after: Vec<(Name, Resources)>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let mut nodes: Vec<Name> = Vec::new();
        for (node, counts) in before {
            self.pods.used.entry(node.clone()).or_default().saturating_sub(&counts);
            nodes.push(node);
        }
        for (node, counts) in after {
            self.pods.used.entry(node.clone()).or_default().add(&counts);
            nodes.push(node);
        }
        nodes.sort();
        nodes.dedup();
        for node in nodes {
            if self.pods.used.get(&node).is_some_and(|used| used.iter().all(|(_, quantity)| quantity.is_zero())) {
                self.pods.used.remove(&node);
            }
            if let Some(vnode) = self.nodes.vnode_of(&node).map(|vnode| vnode.name.clone()) {
                self.admit(&vnode, now, dirty);
                if self.nodes.vnode(&vnode).is_some_and(VNode::reclaiming) {
                    self.stir(&vnode, now, dirty);
                }
            }
            dirty.mark(Key::Node(node));
        }
    }
}

impl Pods {
    /// How a pod stands to an end that nobody asked for.
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

    /// Whether it runs as far as either side knows.
    pub(crate) fn runs(&self, vuid: &Uid) -> bool {
        let asked = self.cases.get(vuid).is_some_and(|case| case.asked.is_some());
        self.vpods.get(vuid).is_some_and(|vpod| vpod.was_copied() && !vpod.terminal())
            || self.copy(vuid).is_some_and(|ppod| !ppod.terminal && ppod.deleting.is_none() && !asked)
    }

    /// What all pods ask for that were let in.
    pub(crate) fn held_total(&self) -> Resources {
        let mut total = Resources::new();
        self.admissions.values().for_each(|admission| total.add(&admission.held));
        total
    }

    fn is_deleting(&self, vuid: &Uid) -> bool {
        self.vpods.get(vuid).is_some_and(|vpod| vpod.deleting.is_some())
    }

    /// How many pods run as far as either side knows.
    pub(crate) fn living(&self) -> usize {
        self.cases.keys().filter(|vuid| self.runs(vuid)).count()
    }
}

impl Pair {
    /// Counts everything from scratch and compares it with the sums that are kept by differences; for tests.
    pub fn check_sums(&self) -> Result<(), String> {
        let mut used: HashMap<&Name, Resources> = HashMap::new();
        let mut held: HashMap<Name, Resources> = HashMap::new();
        let contributions: Vec<_> = self.pods.ppods.iter().filter_map(|ppod| self.pods.contribution(ppod)).collect();
        for (node, counts) in &contributions {
            used.entry(node).or_default().add(counts);
        }
        for uid in self.pods.cases.keys() {
            if let Some((vnode, request)) = self.footprint(uid).held {
                held.entry(vnode).or_default().add(&request);
            }
        }
        let same = |kept: &Resources, counted: Option<&Resources>| {
            kept.iter().all(|(name, quantity)| counted.map_or_else(Default::default, |c| c.get(name)) == quantity)
        };
        for (node, kept) in &self.pods.used {
            if !same(kept, used.get(node)) {
                return Err(format!("used of {node}: kept {kept}, counted {:?}", used.get(node)));
            }
        }
        for (vnode, admission) in &self.pods.admissions {
            if !same(&admission.held, held.get(vnode)) {
                return Err(format!("held at {vnode}: kept {}, counted {:?}", admission.held, held.get(vnode)));
            }
        }
        // What counts for nothing need not be kept.
        let something = |counted: &Resources| counted.iter().any(|(_, quantity)| !quantity.is_zero());
        let used_kept = used.iter().all(|(node, counted)| self.pods.used.contains_key(*node) || !something(counted));
        let held_kept =
            held.iter().all(|(vnode, counted)| self.pods.admissions.contains_key(vnode) || !something(counted));
        if used_kept && held_kept { Ok(()) } else { Err("something counted is not kept at all".to_owned()) }
    }
}

impl Pods {
    fn moved(&mut self, vuid: &Uid, from: Option<&Name>, to: Option<&Name>) {
        if let Some(residents) = from.and_then(|vnode| self.residents.get_mut(vnode)) {
            residents.remove(vuid);
        }
        if let Some(from) = from.filter(|from| self.residents.get(from).is_some_and(BTreeSet::is_empty)) {
            self.residents.remove(from);
        }
        if let Some(to) = to {
            self.residents.entry(to.clone()).or_default().insert(vuid.clone());
        }
    }
}
