//! Pods that have to go because what lent their node is not there any more: the physical node, the policy, a selector that
//! matched. That may be one mistake affecting many pods, so the breaker weighs it like pods that were lost. What an owner stops, an end of a
//! window, a shrink and a deleted binding were asked for and are never weighed. Says which pods; `reclaim` deletes them.

use tapestry_cluster::{Name, Uid};
use tapestry_engine::{Dirty, Now};

use crate::nodes::departure::Departure;
use crate::nodes::lending::LendingState;
use crate::nodes::row::VNode;
use crate::pair::{Key, Pair};
use crate::terms::Stop;

impl Pair {
    /// Whether the pods of a virtual node have to go because something vanished.
    pub(super) fn drains(&self, vnode: &VNode, lending_state: &LendingState) -> bool {
        let forced = match lending_state.stop {
            Some(Stop::Withdrawn(_)) => lending_state.rules.force,
            // A physical node that is only missing from the watch is not gone.
            None => lending_state.leaving && self.nodes.is_gone(&vnode.physical),
            Some(_) => false,
        };
        forced && lending_state.departure.is_some_and(Departure::vanished)
    }

    /// Whether Kubernetes must not be told to evict the pods of a virtual node, because the breaker holds one of them.
    pub(crate) fn holds_drain(&self, vnode: &Name) -> bool {
        let vpods = self.pods.residents(vnode).filter_map(|uid| self.pods.vpods.get(uid));
        let mut staying = vpods.filter(|vpod| vpod.deleting.is_none() && !vpod.spared && self.pods.carried(vpod));
        staying.any(|vpod| self.must_wait(&vpod.uid))
    }

    /// Whether a pod that we carry has to go because something vanished, as it was last noted of its node.
    pub(crate) fn is_drained(&self, uid: &Uid) -> bool {
        let Some(vpod) = self.pods.vpods.get(uid).filter(|vpod| vpod.deleting.is_none()) else { return false };
        let Some(vnode) = self.nodes.vnode(&vpod.node) else { return false };
        // A pod that the end of a window spares is also spared by the end of its policy, but not when its physical node is gone.
        let spared = vpod.spared && self.nodes.pnode(&vnode.physical).is_some();
        self.nodes.drained(&vnode.physical) && !spared && self.pods.carried(vpod)
    }

    /// The same of every virtual node from which capacity is taken back.
    pub(crate) fn note_drains(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        let mut vnodes: Vec<Name> =
            self.nodes.vnodes().filter(|vnode| vnode.reclaiming()).map(|vnode| vnode.name.clone()).collect();
        // The order of a hash map is another one in each process; a run must be repeatable.
        vnodes.sort_unstable();
        for vnode in vnodes {
            self.note_drain(&vnode, now, dirty);
        }
    }

    /// The physical node of a pod's virtual node.
    pub(crate) fn node_of(&self, uid: &Uid) -> Option<Name> {
        let vnode = self.nodes.vnode(&self.pods.vpods.get(uid)?.node)?;
        Some(vnode.physical.clone())
    }

    /// Records whether the pods of a virtual node have to go because something vanished, and tells the breaker of each of them.
    pub(crate) fn note_drain(&mut self, vnode: &Name, now: Now, dirty: &mut Dirty<Key>) {
        let Some(row) = self.nodes.vnode(vnode) else { return };
        let terms = self.nodes.pnode(&row.physical).and_then(|pnode| self.terms(pnode, now.wall));
        let awaits = self.awaits_discovery(terms.as_ref());
        let lending_state = self.lending_state(row, terms.as_ref(), now.wall);
        let drained = row.reclaiming() && !awaits && self.drains(row, &lending_state);
        let physical = row.physical.clone();
        if !self.nodes.note_drained(&physical, drained) {
            return;
        }
        let residents: Vec<Uid> = self.pods.residents(vnode).cloned().collect();
        for uid in residents {
            self.note_loss(&uid, now);
        }
        self.weigh_ends(now, dirty);
    }
}
