//! What a quota in the physical cluster means for the terms: it has to admit all that nodes offer, and nodes offer no more than
//! it admits. Reads nodes and pods for [`crate::guards`]; decides nothing about the quota itself.

use jiff::Timestamp;
use tapestry_cluster::Name;
use tapestry_domain::resources::Resources;
use tapestry_engine::{Dirty, Now};

use crate::guards::cover::Asks;
use crate::guards::quota_wanted;
use crate::pair::{Key, Pair};

impl Pair {
    /// What the quota has to admit.
    pub(crate) fn asks(&self, at: Timestamp) -> Asks {
        let mut asks = Asks::new(self.pods.beyond_virtual());
        for vnode in self.nodes.vnodes() {
            asks.add(&vnode.physical, &vnode.allocatable);
        }
        for pnode in self.nodes.pnodes() {
            let Some(terms) = self.terms(pnode, at) else { continue };
            asks.change_at(terms.until);
            let vnode = self.nodes.vnode_of(&pnode.name).map(|vnode| &vnode.name);
            let offered = match vnode {
                Some(vnode) => self.offers(vnode, at).and_then(Result::ok),
                None => Some(terms.leased()).filter(|_| terms.policy.is_some()),
            };
            if let Some(offered) = offered {
                asks.add(&pnode.name, &offered);
            }
        }
        asks
    }

    /// As much of what a physical node could lend as a quota admits by now.
    pub(crate) fn covered(&self, physical: &Name, offered: Resources) -> Resources {
        if !quota_wanted(self.bindings.bound()) {
            return offered;
        }
        let said = self.nodes.vnode_of(physical).map(|vnode| &vnode.allocatable);
        self.guards.covered(physical, said, offered)
    }

    /// Whether everything that was admitted on a virtual node may be made: the quota admits it.
    pub(crate) fn lets_in(&self, vnode: &Name, lent: &Resources) -> bool {
        let held = self.pods.held(vnode);
        !quota_wanted(self.bindings.bound()) || held.is_none_or(|held| held.fits_within(lent).is_ok())
    }

    /// The quota is as it is seen now: nodes that may offer more by that let pods in.
    pub(crate) fn grant(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if !quota_wanted(self.bindings.bound()) {
            self.guards.forget_grants();
            return;
        }
        let asks = self.asks(now.wall);
        for node in self.guards.grant(asks, now) {
            if let Some(vnode) = self.nodes.vnode_of(&node).map(|vnode| vnode.name.clone()) {
                self.admit(&vnode, now, dirty);
                for uid in self.pods.unmade_on(&vnode) {
                    dirty.mark(Key::Pod(uid.clone()));
                }
            }
            dirty.mark(Key::Node(node));
        }
    }
}
