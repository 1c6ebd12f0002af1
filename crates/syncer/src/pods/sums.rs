//! The sums over pods: what others use of each physical node, what is held on each virtual node, which pods are where.
//! Kept by differences around every change of a pod, so that one pod's change costs the same in a cluster of any size.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tapestry_cluster::{Name, Uid};
use tapestry_domain::resources::Resources;

use super::Pods;
use super::admission::may_wait;
use super::case::{Case, Known};
use super::row::{Stray, VPod};
use crate::dependents::needs::Needs;
use crate::pair::Pair;

/// What a pod counts for.
#[derive(Default, PartialEq)]
pub(super) struct Footprint {
    /// Of physical nodes, beyond what the virtual pod asks for.
    used: Vec<(Name, Resources)>,
    /// On its virtual node, once it was admitted.
    held: Option<(Name, Resources)>,
    /// The virtual node for which it waits.
    waits: Option<Name>,
}

impl Footprint {
    /// Where it holds something, and for which it waits.
    fn vnodes(&self) -> impl Iterator<Item = &Name> {
        self.held.as_ref().map(|(vnode, _)| vnode).into_iter().chain(&self.waits)
    }
}

/// What a change of one pod changed in the sums.
pub(super) struct Delta {
    before: Footprint,
    after: Footprint,
    /// The virtual node it was bound to before and is bound to now.
    lived: Option<Name>,
    lives: Option<Name>,
    /// The last pod of which it was unknown what it needs is known by now, or gone.
    all_known: bool,
}

impl Delta {
    /// What the pod holds is something else.
    pub(super) fn holds_otherwise(&self) -> bool {
        self.before.held != self.after.held
    }

    /// The virtual nodes where there is more or less room, or where another pod waits: in order, each once.
    pub(super) fn admissions(&self) -> BTreeSet<&Name> {
        if self.before == self.after {
            return BTreeSet::new();
        }
        self.before.vnodes().chain(self.after.vnodes()).collect()
    }

    /// The physical nodes of which others use more or less.
    pub(super) fn recounted(&self) -> BTreeSet<&Name> {
        if self.before.used == self.after.used {
            return BTreeSet::new();
        }
        self.before.used.iter().chain(&self.after.used).map(|(node, _)| node).collect()
    }

    /// Only now is it known of every copied pod what it needs.
    pub(super) fn needs_known(&self) -> bool {
        self.all_known
    }

    /// The virtual node that the pod left, or on which it holds nothing any more.
    pub(super) fn left(&self) -> Option<&Name> {
        let freed = self.before.held.is_some() && self.after.held.is_none();
        self.lived.as_ref().filter(|_| self.lived != self.lives || freed)
    }
}

impl Pods {
    /// Changes one pod and keeps the sums true: subtracts what it counted for before, adds what it counts for after.
    /// `may_wait`: whether a pod that is not inside waits for room.
    pub(super) fn apply(
        &mut self,
        vuid: &Uid,
        may_wait: impl Fn(&VPod) -> bool,
        change: impl FnOnce(&mut Self),
    ) -> Delta {
        let home = |pods: &Self| pods.vpods.get(vuid).map(|vpod| vpod.node.clone());
        let (before, lived) = (self.footprint(vuid, &may_wait), home(self));
        let unread = self.is_unread(vuid);
        change(self);
        let (after, lives) = (self.footprint(vuid, &may_wait), home(self));
        let is_unread = self.is_unread(vuid);
        self.unread = self.unread + usize::from(is_unread) - usize::from(unread);
        let all_known = unread && !is_unread && self.unread == 0;
        if lived != lives {
            self.moved(vuid, lived.as_ref(), lives.as_ref());
        }
        self.hold(&before, &after);
        self.queue(vuid, before.waits.as_ref(), after.waits.as_ref());
        if before.used != after.used {
            self.count(&before.used, &after.used);
        }
        Delta { before, after, lived, lives, all_known }
    }

    /// What a pod needs besides a node, as long as it or its copy may run.
    pub(super) fn needs_of(&self, vuid: &Uid) -> Option<&Arc<Needs>> {
        let vpod = self.vpods.get(vuid).filter(|vpod| !vpod.terminal());
        // The creation of a copy may be in flight although the pod has lost its place since: then it has a mapping.
        let mapped = vpod.is_some_and(|vpod| vpod.mapping.is_some() && vpod.deleting.is_none());
        let case = self.cases.get(vuid).filter(|case| case.inside() || mapped)?;
        let vpod = vpod.is_some();
        let copy = || case.claimants.iter().filter_map(|uid| self.ppods.get(uid)).any(|ppod| !ppod.terminal);
        case.needs().filter(|_| vpod || copy())
    }

    /// Whether the copy of a pod has what the virtual cluster injects to reach its API server; `None` without a copy. A copy keeps
    /// what it was made with, whatever the binding says since then.
    pub(super) fn copied_api_access(&self, vuid: &Uid) -> Option<bool> {
        let case = self.cases.get(vuid)?;
        let copies = case.claimants.iter().filter_map(|uid| self.ppods.get(uid)?.ours.as_ref());
        copies.map(|copy| copy.api_access).reduce(|one, other| one || other)
    }

    /// Whether a pod has a copy, and it is not known what that needs.
    fn is_unread(&self, vuid: &Uid) -> bool {
        let unread = |case: &Case| matches!(case.needs, Known::No) && !case.claimants.is_empty();
        self.cases.get(vuid).is_some_and(unread)
    }

    /// Whether it is known of every copied pod what it needs.
    pub(crate) fn needs_known(&self) -> bool {
        self.unread == 0 && self.live_stray().is_none()
    }

    /// A stray that may run, and so may need anything.
    pub(crate) fn live_stray(&self) -> Option<&Stray> {
        let live = |uid: &Uid| self.ppods.get(uid).filter(|ppod| !ppod.terminal)?.stray.as_deref();
        self.strays.iter().find_map(live)
    }

    fn footprint(&self, vuid: &Uid, may_wait: impl Fn(&VPod) -> bool) -> Footprint {
        let Some(case) = self.cases.get(vuid) else { return Footprint::default() };
        let ppods = case.claimants.iter().filter_map(|uid| self.ppods.get(uid));
        let used = ppods.filter_map(|ppod| self.contribution(ppod)).collect();
        let vpod = self.vpods.get(vuid).filter(|vpod| !vpod.terminal());
        let inside = case.inside();
        let held = vpod.filter(|_| inside).map(|vpod| (vpod.node.clone(), self.granted(vpod)));
        let waits = |vpod: &&VPod| if inside { self.grows_by(vpod).is_some() } else { may_wait(vpod) };
        let waits = vpod.filter(waits).map(|vpod| vpod.node.clone());
        Footprint { used, held, waits }
    }

    fn hold(&mut self, before: &Footprint, after: &Footprint) {
        if before.held == after.held {
            return;
        }
        if let Some((vnode, request)) = &before.held {
            self.admissions.release(vnode, request);
        }
        if let Some((vnode, request)) = &after.held {
            self.admissions.hold(vnode, request);
        }
    }

    /// Others use more or less of some nodes.
    pub(super) fn count<'a>(
        &mut self,
        before: impl IntoIterator<Item = &'a (Name, Resources)> + Clone,
        after: impl IntoIterator<Item = &'a (Name, Resources)> + Clone,
    ) {
        for (node, counts) in before.clone() {
            self.used.entry(node.clone()).or_default().saturating_sub(counts);
        }
        for (node, counts) in after.clone() {
            self.used.entry(node.clone()).or_default().add(counts);
        }
        for (node, _) in before.into_iter().chain(after) {
            if self.used.get(node).is_some_and(|used| used.iter().all(|(_, quantity)| quantity.is_zero())) {
                self.used.remove(node);
            }
        }
    }

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

    /// Counts what is held, and who waits, from scratch: the rules changed. Pods that waited longer stay before those that came
    /// later.
    pub(super) fn recount_admissions(&mut self, may_wait: impl Fn(&VPod) -> bool) {
        let waited = self.admissions.clear();
        let known: BTreeSet<&Uid> = waited.iter().collect();
        let mut others: Vec<Uid> = self.cases.keys().filter(|uid| !known.contains(uid)).cloned().collect();
        others.sort_unstable();
        for uid in waited.iter().chain(&others) {
            let footprint = self.footprint(uid, &may_wait);
            if let Some((vnode, request)) = &footprint.held {
                self.admissions.hold(vnode, request);
            }
            self.queue(uid, None, footprint.waits.as_ref());
            if footprint.waits.is_none()
                && let Some(case) = self.cases.get_mut(uid)
            {
                case.not_admitted = None;
            }
        }
    }

    /// Whether it runs as far as either side knows.
    pub(crate) fn runs(&self, vuid: &Uid) -> bool {
        let asked = self.cases.get(vuid).is_some_and(|case| case.asked.is_some());
        self.vpods.get(vuid).is_some_and(|vpod| vpod.was_copied() && !vpod.terminal())
            || self.copy(vuid).is_some_and(|ppod| !ppod.terminal && ppod.deleting.is_none() && !asked)
    }

    /// What all pods ask for that were admitted.
    pub(crate) fn held_total(&self) -> Resources {
        self.admissions.total()
    }

    /// How many pods run as far as either side knows.
    pub(crate) fn living(&self) -> usize {
        self.cases.keys().filter(|vuid| self.runs(vuid)).count()
    }
}

impl Pair {
    /// Counts everything from scratch and compares it with the sums that are kept by differences; for tests.
    pub fn check_sums(&self) -> Result<(), String> {
        let bound = self.bindings.bound();
        self.pods.check_sums(|vpod| may_wait(bound, vpod))
    }
}

impl Pods {
    fn check_sums(&self, may_wait: impl Fn(&VPod) -> bool) -> Result<(), String> {
        let (mut used, mut held) = (HashMap::<Name, Resources>::new(), HashMap::<Name, Resources>::new());
        for (node, counts) in self.ppods.iter().filter_map(|ppod| self.contribution(ppod)) {
            used.entry(node).or_default().add(&counts);
        }
        for uid in self.cases.keys() {
            if let Some((vnode, request)) = self.footprint(uid, &may_wait).held {
                held.entry(vnode).or_default().add(&request);
            }
        }
        let kept_of = |vnode: &Name| self.admissions.held(vnode).cloned().unwrap_or_default();
        let nodes = used.keys().chain(self.used.keys()).map(|node| (node, self.used(node), used.get(node), "used of"));
        let vnodes = self.admissions.vnodes();
        let vnodes = held.keys().chain(&vnodes).map(|vnode| (vnode, kept_of(vnode), held.get(vnode), "held at"));
        for (node, kept, counted, what) in nodes.chain(vnodes) {
            let counted = counted.cloned().unwrap_or_default();
            let same = |a: &Resources, b: &Resources| a.iter().all(|(name, quantity)| b.get(name) == quantity);
            // What counts for nothing need not be kept.
            if !same(&kept, &counted) || !same(&counted, &kept) {
                return Err(format!("{what} {node}: kept {kept}, counted {counted}"));
            }
        }
        Ok(())
    }
}
