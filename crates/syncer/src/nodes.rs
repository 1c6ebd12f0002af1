//! Nodes: every lendable physical node appears as a virtual node. Watches all physical nodes and the virtual nodes with
//! our labels; writes whole virtual nodes. The graph: policy, pnode, used --> leased --> vnode --> Lease.

pub(crate) mod departure;
pub(crate) mod lending;
mod placement;
mod plan;
pub mod row;
mod search;
mod unreachable;
pub(crate) mod want;

pub(crate) use self::search::CLUSTER_ID_IN_USE;

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch, Row as _};
use tapestry_cluster::{Name, Uid};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now, Table, reasons};

use self::lending::{Dip, Since};
use self::placement::Placement;
use self::row::{PNode, VNode};
use self::search::{Rival, Search};
use crate::events::Event;
use crate::origin::Claim;
use crate::pair::{Key, Pair};

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// The physical node left the watch: is it gone?
        LookForNode,
        /// The virtual node left the watch, or its name is taken: what is there?
        LookForVirtualNode,
        /// Whether a node without our label has a Lease of ours.
        LookForOwner,
        /// A physical node is lent and has no virtual node.
        CreateNode,
        /// Its status is not as it should be.
        NodeStatus,
        /// Its labels, annotations or taints are not as they should be.
        NodeMetadata,
        /// The physical cluster does not answer, and the physical node was never seen.
        NodeUnreachable,
        /// The physical cluster answers, and something that is needed cannot be read.
        NodeOutOfSync,
        /// The physical node is gone.
        TaintDeleting,
        /// Its last pod has left.
        RemoveNode,
        /// It was deleted: our finalizer goes.
        ReleaseNode,
    }
}

/// Everything known about nodes.
#[derive(Default)]
pub(crate) struct Nodes {
    pnodes: Table<PNode>,
    vnodes: Table<VNode>,
    pnode_names: HashMap<Name, Uid, RandomState>,
    vnode_names: HashMap<Name, Uid, RandomState>,
    /// Physical name to virtual node.
    copies: HashMap<Name, Uid, RandomState>,
    cases: HashMap<Name, Case, RandomState>,
    /// How many virtual nodes say that an owner's policy applies to them.
    with_owner: usize,
}

/// What we know of one physical node beyond its rows.
#[derive(Default, Clone)]
struct Case {
    /// When the physical node was first and last proven absent.
    gone: Option<(Duration, Duration)>,
    /// What is known of nodes under the names that its virtual node may have.
    search: Search,
    since: Since,
    /// The pods of its virtual node have to go because something vanished.
    drained: bool,
    /// The physical node has less of something than before.
    dip: Option<Dip>,
    /// Until then a node of which the physical cluster knows nothing may only be a trace of an outage that is over.
    settles: Option<Timestamp>,
    /// The end of the window before which capacity is being taken back.
    early: Option<Timestamp>,
    /// Fingerprints of our last status patch and of the status that the server stored: the same patch again would change nothing.
    pushed: Option<(u64, u64)>,
    /// When the status was last written, so that a burst of changes is one write.
    written: Option<Duration>,
    /// Pods that could not be placed keep others away for a while.
    placement: Placement,
}

impl Nodes {
    pub(crate) fn complete(&self) -> bool {
        self.pnodes.complete() && self.vnodes.complete()
    }

    /// Whether all virtual nodes are listed.
    pub(crate) fn virtual_complete(&self) -> bool {
        self.vnodes.complete()
    }

    /// The virtual node of this name.
    pub(crate) fn vnode(&self, name: &Name) -> Option<&VNode> {
        self.vnodes.get(self.vnode_names.get(name)?)
    }

    /// The virtual node of this physical node.
    pub(crate) fn vnode_of(&self, physical: &Name) -> Option<&VNode> {
        self.vnodes.get(self.copies.get(physical)?)
    }

    /// All virtual nodes, in no order.
    pub(crate) fn vnodes(&self) -> impl Iterator<Item = &VNode> {
        self.vnodes.iter()
    }

    /// Whether a virtual node says that an owner's policy applies to it.
    pub(crate) fn any_with_owner(&self) -> bool {
        self.with_owner > 0
    }

    /// Another binding that has our cluster ID, by the first of its virtual nodes under a name that one of ours would have.
    pub(crate) fn rival(&self) -> Option<&Rival> {
        self.cases.values().filter_map(|case| case.search.rival()).min()
    }

    /// A name without a node on either side has nothing to remember.
    fn forget(&mut self, physical: &Name) {
        if !self.pnode_names.contains_key(physical) && !self.copies.contains_key(physical) {
            self.cases.remove(physical);
        }
    }

    pub(crate) fn pnode(&self, name: &Name) -> Option<&PNode> {
        self.pnodes.get(self.pnode_names.get(name)?)
    }

    pub(crate) fn pnodes(&self) -> impl Iterator<Item = &PNode> {
        self.pnodes.iter()
    }

    /// Whether a physical node is proven to have been gone for a while.
    pub(crate) fn is_gone(&self, physical: &Name) -> bool {
        let case = self.cases.get(physical);
        case.and_then(|case| case.gone).is_some_and(|(first, last)| last >= first + plan::GONE_FOR)
    }

    /// The end of the window before which capacity of this node is being taken back.
    pub(crate) fn early(&self, physical: &Name) -> Option<Timestamp> {
        self.cases.get(physical)?.early
    }

    /// Whether the pods on its virtual node have to go because something vanished, as last recorded.
    pub(crate) fn drained(&self, physical: &Name) -> bool {
        self.cases.get(physical).is_some_and(|case| case.drained)
    }

    /// Records it; returns whether that is a change.
    pub(crate) fn note_drained(&mut self, physical: &Name, drained: bool) -> bool {
        if self.drained(physical) == drained {
            return false;
        }
        self.cases.entry(physical.clone()).or_default().drained = drained;
        true
    }

    /// Whether no virtual node is left.
    pub(crate) fn none_left(&self) -> bool {
        self.vnodes.is_empty()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.pnode_names.keys().chain(self.copies.keys()).cloned().map(Key::Node)
    }
}

impl Pair {
    pub(crate) fn see_pnode(&mut self, change: Change<PNode>, now: Now, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(mut row, epoch) => {
                let name = row.name.clone();
                if let Some(known) = self.nodes.pnodes.get(&row.uid) {
                    row.inherit(known);
                }
                self.nodes.pnode_names.insert(name.clone(), row.uid.clone());
                let (labels, allocatable) = (row.labels.clone(), row.allocatable.clone());
                if let Put::Fresh(before) = self.nodes.pnodes.put(row, Some(epoch)) {
                    let had = before.as_ref().map(|before| &before.allocatable);
                    // When we first see a node, we do not know what it had before.
                    if had.is_none_or(|had| had.fits_within(&allocatable).is_err()) {
                        let case = self.nodes.cases.entry(name.clone()).or_default();
                        case.dip = Dip::fall(case.dip.take(), had, now.wall);
                    }
                    if before.is_none_or(|before| before.labels != labels) {
                        self.policies.mark_all(dirty);
                    }
                }
                if let Some(case) = self.nodes.cases.get_mut(&name) {
                    case.gone = None;
                }
                self.reconsider(&name, now, dirty);
            }
            Change::Gone { row, .. } => self.lose_pnode(&row.uid, now, dirty),
            Change::Listed(epoch) => {
                for uid in self.nodes.pnodes.listed(epoch) {
                    self.lose_pnode(&uid, now, dirty);
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn lose_pnode(&mut self, uid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        let Some(row) = self.nodes.pnodes.remove(uid) else { return };
        // A new node of the same name may have come before the old one's end was told.
        if self.nodes.pnode_names.get(&row.name) == Some(uid) {
            self.nodes.pnode_names.remove(&row.name);
        }
        self.nodes.forget(&row.name);
        self.policies.mark_all(dirty);
        self.reconsider(&row.name, now, dirty);
    }

    pub(crate) fn see_vnode(&mut self, change: Change<VNode>, now: Now, dirty: &mut Dirty<Key>) {
        match change {
            // A known one whose marks were changed gets them back.
            Change::Put(row, epoch) => match self.origin.claim(&row.marks()) {
                Claim::Others(owner) if self.nodes.vnodes.get(&row.uid).is_none() => {
                    self.refuse_vnode(&row, owner, now, dirty);
                }
                Claim::Ours | Claim::Others(_) | Claim::Unmarked => self.put_vnode(row, Some(epoch), now, dirty),
            },
            // One that is held by a finalizer is there, whatever the watch says: it may have lost our label while it was leaving.
            Change::Gone { row, proven } if proven && row.finalizers.is_empty() => {
                self.lose_vnode(&row.uid, now, dirty);
            }
            Change::Gone { row, .. } => self.doubt_vnode(&row.uid, now, dirty),
            Change::Listed(epoch) => {
                for uid in self.nodes.vnodes.listed(epoch) {
                    self.doubt_vnode(&uid, now, dirty);
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_vnode(&mut self, mut row: VNode, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(known) = self.nodes.vnodes.get(row.uid()) {
            row.inherit(known);
        }
        let (uid, name, physical) = (row.uid().clone(), row.name.clone(), row.physical.clone());
        let (taints, deleting, has_owner) = (row.taints.clone(), row.deleting, row.has_owner());
        let offers = row.allocatable.clone();
        let Put::Fresh(before) = self.nodes.vnodes.put(row, epoch) else { return };
        self.nodes.with_owner += usize::from(has_owner);
        self.nodes.with_owner -= usize::from(before.as_ref().is_some_and(VNode::has_owner));
        self.nodes.vnode_names.insert(name.clone(), uid.clone());
        self.nodes.copies.insert(physical.clone(), uid.clone());
        if before.as_ref().is_some_and(|before| !before.reachable())
            && self.nodes.vnodes.get(&uid).is_some_and(VNode::reachable)
        {
            self.nodes.cases.entry(physical.clone()).or_default().settles = lending::settles(now.wall);
        }
        if let Some(case) = self.nodes.cases.get_mut(&physical) {
            // An answer may be older than what made us doubt; the watch shows only nodes with our label.
            case.search.end(epoch.is_some());
        }
        if let Some(vnode) = self.nodes.vnodes.get(&uid).cloned() {
            self.keep_since(&vnode, now);
            self.nodes.adopt_placement(&vnode, now);
        }
        if before.as_ref().is_none_or(|before| before.taints != taints || before.deleting != deleting) {
            self.stir(&name, now, dirty);
        }
        if before.as_ref().is_none_or(|before| before.allocatable != offers) {
            dirty.mark(Key::Binding);
        }
        if let Some(before) = before {
            self.tell_lending(&before, &uid, now, dirty);
        }
        // Pods may have been bound to it before we knew it.
        self.admit(&name, now, dirty);
        dirty.mark(Key::Node(physical));
    }

    /// An event on the node when it begins or ceases to be lent.
    fn tell_lending(&mut self, before: &VNode, uid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        let Some(vnode) = self.nodes.vnodes.get(uid) else { return };
        let said = |vnode: &VNode| {
            let lending = vnode.condition(keys::CONDITION_LENDING)?;
            Some((lending.status.clone(), lending.reason.clone()))
        };
        if let Some(lending) = vnode.condition(keys::CONDITION_LENDING).filter(|_| said(before) != said(vnode)) {
            self.events.add(Event::about_vnode(vnode, lending, now), dirty);
        }
    }

    fn lose_vnode(&mut self, uid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        let Some(row) = self.nodes.vnodes.remove(uid) else { return };
        self.nodes.with_owner -= usize::from(row.has_owner());
        if self.nodes.vnode_names.get(&row.name) == Some(uid) {
            self.nodes.vnode_names.remove(&row.name);
        }
        if self.nodes.copies.get(&row.physical) == Some(uid) {
            self.nodes.copies.remove(&row.physical);
        }
        self.nodes.forget(&row.physical);
        self.reconsider(&row.physical, now, dirty);
        self.admit(&row.name, now, dirty);
        dirty.mark(Key::Binding);
        self.mark_leaving(dirty);
    }

    /// Something about a physical node changed: its virtual node and the admission of pods to it may follow.
    pub(crate) fn reconsider(&mut self, physical: &Name, now: Now, dirty: &mut Dirty<Key>) {
        dirty.mark(Key::Node(physical.clone()));
        if let Some(vnode) = self.nodes.vnode_of(physical).map(|vnode| vnode.name.clone()) {
            self.admit(&vnode, now, dirty);
            if self.nodes.vnode(&vnode).is_some_and(VNode::reclaiming) {
                self.stir(&vnode, now, dirty);
            }
        }
    }

    /// Capacity may have to be taken back from the pods of this virtual node, or no longer.
    pub(crate) fn stir(&mut self, vnode: &Name, now: Now, dirty: &mut Dirty<Key>) {
        self.note_drain(vnode, now, dirty);
        let Some(row) = self.nodes.vnode(vnode) else { return };
        dirty.mark(Key::Node(row.physical.clone()));
        for uid in self.pods.residents(vnode) {
            dirty.mark(Key::Pod(uid.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
