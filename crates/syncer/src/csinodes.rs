//! CSINodes: which storage drivers a node has. Watches all physical CSINodes and the virtual ones with our labels;
//! writes whole virtual ones. The graph: pcsinode --drivers--> vcsinode --owner--> vnode, so that it goes with its node.

pub(crate) mod plan;
pub mod row;

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Name, Uid};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now, Table};

use self::row::{PCsiNode, VCsiNode};
use crate::nodes::Nodes;
use crate::nodes::row::VNode;
use crate::origin::Origin;
use crate::pair::Key;

/// Everything known about CSINodes.
#[derive(Default)]
pub(crate) struct CsiNodes {
    pcsinodes: Table<PCsiNode>,
    vcsinodes: Table<VCsiNode>,
    pcsinode_names: HashMap<Name, Uid, RandomState>,
    vcsinode_names: HashMap<Name, Uid, RandomState>,
    cases: HashMap<Name, Case, RandomState>,
}

/// What the room reads of others when it plans, and when a call ends.
pub(crate) struct Setting<'a> {
    pub(crate) nodes: &'a Nodes,
    pub(crate) origin: &'a Origin,
    pub(crate) now: Now,
}

/// What we know of the CSINode of one virtual node beyond its rows.
#[derive(Default, Clone)]
struct Case {
    /// Proof that there is no physical CSINode.
    gone: bool,
    /// Creating the virtual CSINode found the name taken; it is not known yet by which object.
    taken: bool,
    /// When the virtual CSINode of this name turned out not to be ours.
    foreign: Option<Duration>,
    /// The virtual API server refused to change `allocatable` (servers before 1.35 do): only a new object helps.
    stiff: bool,
    /// Fingerprints of the drivers that we wrote and of those that the server stored: the same again would change nothing.
    pushed: Option<(u64, u64)>,
}

impl CsiNodes {
    fn complete(&self) -> bool {
        self.pcsinodes.complete() && self.vcsinodes.complete()
    }

    fn pcsinode(&self, name: &Name) -> Option<&PCsiNode> {
        self.pcsinodes.get(self.pcsinode_names.get(name)?)
    }

    fn vcsinode(&self, name: &Name) -> Option<&VCsiNode> {
        self.vcsinodes.get(self.vcsinode_names.get(name)?)
    }

    /// By the name of the virtual node, which is the name of its CSINode.
    pub(crate) fn keys(&self, nodes: &Nodes) -> impl Iterator<Item = Key> {
        let lent = self.pcsinode_names.keys().filter_map(|physical| nodes.vnode_of(physical));
        lent.map(|vnode| vnode.name.clone()).chain(self.vcsinode_names.keys().cloned()).map(Key::CsiNode)
    }

    /// A virtual node came, changed or went: its CSINode follows.
    pub(crate) fn observe_node(&mut self, change: &Change<VNode>, dirty: &mut Dirty<Key>) {
        let (Change::Put(row, _) | Change::Gone { row, .. }) = change else { return };
        if matches!(change, Change::Gone { .. }) && !self.vcsinode_names.contains_key(&row.name) {
            self.cases.remove(&row.name);
        }
        dirty.mark(Key::CsiNode(row.name.clone()));
    }

    /// Evidence is gathered again: the cluster that gave it may have been another one.
    pub(crate) fn doubt_evidence(&mut self) {
        for case in self.cases.values_mut() {
            case.gone = false;
        }
    }

    /// A physical CSINode came, changed or went.
    pub(crate) fn observe_physical(&mut self, change: Change<PCsiNode>, nodes: &Nodes, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_physical(row, Some(epoch), nodes, dirty),
            Change::Gone { row, .. } => {
                self.pcsinodes.remove_proven(&row.uid, row.rv);
                self.forget_physical(&row, nodes, dirty);
            }
            Change::Listed(epoch) => {
                for uid in self.pcsinodes.listed(epoch) {
                    if let Some(row) = self.pcsinodes.remove(&uid) {
                        self.forget_physical(&row, nodes, dirty);
                    }
                }
                self.mark_all(nodes, dirty);
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_physical(&mut self, row: PCsiNode, epoch: Option<Epoch>, nodes: &Nodes, dirty: &mut Dirty<Key>) {
        let (name, uid) = (row.name.clone(), row.uid.clone());
        if let Put::Stale = self.pcsinodes.put(row, epoch) {
            return;
        }
        let vnode = nodes.vnode_of(&name).map(|vnode| vnode.name.clone());
        self.pcsinode_names.insert(name, uid);
        if let Some(vnode) = vnode {
            if let Some(case) = self.cases.get_mut(&vnode) {
                case.gone = false;
            }
            dirty.mark(Key::CsiNode(vnode));
        }
    }

    fn forget_physical(&mut self, row: &PCsiNode, nodes: &Nodes, dirty: &mut Dirty<Key>) {
        // A new one of the same name may have come before the old one's end was told.
        if self.pcsinode_names.get(&row.name) == Some(&row.uid) {
            self.pcsinode_names.remove(&row.name);
        }
        if let Some(vnode) = nodes.vnode_of(&row.name) {
            dirty.mark(Key::CsiNode(vnode.name.clone()));
        }
    }

    /// A virtual CSINode came, changed or went.
    pub(crate) fn observe_virtual(&mut self, change: Change<VCsiNode>, nodes: &Nodes, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_virtual(row, Some(epoch), dirty),
            Change::Gone { row, .. } => {
                self.vcsinodes.remove_proven(&row.uid, row.rv);
                self.forget_virtual(&row.name, &row.uid, nodes, dirty);
            }
            Change::Listed(epoch) => {
                for uid in self.vcsinodes.listed(epoch) {
                    if let Some(row) = self.vcsinodes.remove(&uid) {
                        self.forget_virtual(&row.name, &uid, nodes, dirty);
                    }
                }
                self.mark_all(nodes, dirty);
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_virtual(&mut self, row: VCsiNode, epoch: Option<Epoch>, dirty: &mut Dirty<Key>) {
        let (name, uid) = (row.name.clone(), row.uid.clone());
        if let Put::Stale = self.vcsinodes.put(row, epoch) {
            return;
        }
        if let Some(case) = self.cases.get_mut(&name) {
            (case.taken, case.foreign) = (false, None);
        }
        self.vcsinode_names.insert(name.clone(), uid);
        dirty.mark(Key::CsiNode(name));
    }

    fn forget_virtual(&mut self, name: &Name, uid: &Uid, nodes: &Nodes, dirty: &mut Dirty<Key>) {
        if self.vcsinode_names.get(name) == Some(uid) {
            self.vcsinode_names.remove(name);
        }
        if nodes.vnode(name).is_none() {
            // Without a node and without an object there is nothing to remember.
            self.cases.remove(name);
        }
        dirty.mark(Key::CsiNode(name.clone()));
    }

    fn mark_all(&self, nodes: &Nodes, dirty: &mut Dirty<Key>) {
        for key in self.keys(nodes) {
            dirty.mark(key);
        }
    }
}

#[cfg(test)]
mod tests;
