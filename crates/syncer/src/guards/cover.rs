//! The order of quota and virtual nodes: a node offers more only when the quota lets it in, and the quota is lowered only when
//! no node offers it any more. Otherwise a pod could be scheduled onto a virtual node, and be refused by the quota behind it.
//!
//! What a node may offer is granted while the quota lets it in. A grant that is not needed is revoked first, and the quota is
//! lowered when no write that was planned under the grant can still be on its way.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tapestry_cluster::Name;
use tapestry_domain::resources::Resources;
use tapestry_engine::{Dirty, Now};

use super::want::quota_for;
use super::{Guard, Trouble};
use crate::pair::{Key, Pair};

/// A write that was planned has arrived or failed after this long: a call's deadline is 15 s.
const ON_ITS_WAY: Duration = Duration::from_secs(20);

/// What nodes may offer, by physical node.
#[derive(Default)]
pub(super) struct Grants {
    granted: BTreeMap<Name, Resources>,
    /// What was granted before, and until when a node may still come to offer it.
    revoked: BTreeMap<Name, (Resources, Duration)>,
}

impl Grants {
    fn of(&self, node: &Name) -> Resources {
        self.granted.get(node).cloned().unwrap_or_default()
    }

    /// Takes back what is not asked for any more.
    fn revoke(&mut self, asks: &Asks, now: Duration) {
        self.revoked.retain(|_, (_, until)| *until > now);
        for (node, granted) in &mut self.granted {
            let asked = asks.nodes.get(node).cloned().unwrap_or_default();
            if granted.fits_within(&asked).is_err() {
                let (revoked, until) = self.revoked.entry(node.clone()).or_default();
                revoked.max(granted);
                *until = now + ON_ITS_WAY;
                granted.map(|name, amount| amount.min(asked.get(name)));
            }
        }
        self.granted.retain(|node, _| asks.nodes.contains_key(node));
    }

    /// When the first of what was revoked cannot come any more.
    pub(super) fn settled(&self, now: Duration) -> Option<Duration> {
        self.revoked.values().map(|(_, until)| *until).filter(|until| *until > now).min()
    }
}

/// What the quota has to let in.
pub(super) struct Asks {
    /// By physical node: the larger of what its virtual node says and what it is to say.
    pub(super) nodes: BTreeMap<Name, Resources>,
    /// What copies ask for beyond their virtual pods. It lessens what their nodes offer, and the quota counts it too.
    beyond: Resources,
    /// When the calendar next changes something of this.
    pub(super) until: Option<Timestamp>,
}

impl Asks {
    /// The sum over all nodes, with what they may come to offer by writes that are on their way.
    pub(super) fn total(&self, grants: &Grants, now: Duration) -> Resources {
        let mut nodes = self.nodes.clone();
        let revoked =
            grants.revoked.iter().filter(|(_, (_, until))| *until > now).map(|(node, (amount, _))| (node, amount));
        for (node, amount) in grants.granted.iter().chain(revoked) {
            nodes.entry(node.clone()).or_default().max(amount);
        }
        let mut total = self.beyond.clone();
        for amount in nodes.values() {
            total.add(amount);
        }
        total
    }
}

impl Pair {
    pub(super) fn asks(&self, at: Timestamp) -> Asks {
        let says = self.nodes.vnodes().map(|vnode| (vnode.physical.clone(), vnode.allocatable.clone()));
        let mut asks = Asks { nodes: says.collect(), beyond: self.pods.beyond_virtual(), until: None };
        for pnode in self.nodes.pnodes() {
            let Some(terms) = self.terms(pnode, at) else { continue };
            asks.until = asks.until.into_iter().chain(terms.until).min();
            let vnode = self.nodes.vnode_of(&pnode.name).map(|vnode| &vnode.name);
            let offered = match vnode {
                Some(vnode) => self.offers(vnode, at).and_then(Result::ok),
                None => Some(terms.leased()).filter(|_| terms.policy.is_some()),
            };
            if let Some(offered) = offered {
                asks.nodes.entry(pnode.name.clone()).or_default().max(&offered);
            }
        }
        asks
    }

    fn wants_quota(&self) -> bool {
        self.bound.as_ref().is_some_and(|bound| Guard::Quota.wanted(&bound.binding))
    }

    /// As much of what a physical node could lend as the quota lets in by now; never less than its virtual node says already.
    pub(crate) fn covered(&self, physical: &Name, mut offered: Resources) -> Resources {
        if self.wants_quota() {
            let mut most = self.guards.grants.of(physical);
            if let Some(vnode) = self.nodes.vnode_of(physical) {
                most.max(&vnode.allocatable);
            }
            offered.map(|name, amount| amount.min(most.get(name)));
        }
        offered
    }

    /// Whether everything that was let in on a virtual node may be made: the quota lets it in.
    pub(crate) fn lets_in(&self, vnode: &Name, lent: &Resources) -> bool {
        !self.wants_quota() || self.pods.held(vnode).is_none_or(|held| held.fits_within(lent).is_ok())
    }

    /// Why the quota does not let in what policies allow.
    pub(crate) fn quota_trouble(&self) -> Option<&Trouble> {
        self.guards.troubles[Guard::Quota as usize].as_ref().filter(|_| self.wants_quota())
    }

    /// Whether nodes may offer other than what they are to offer.
    pub(super) fn ungranted(&self, asks: &Asks) -> bool {
        self.guards.grants.granted != asks.nodes
    }

    /// The quota is as it is seen now: nodes may offer what it lets in.
    pub(super) fn grant(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if !self.wants_quota() {
            self.guards.grants = Grants::default();
            return;
        }
        let asks = self.asks(now.wall);
        self.guards.grants.revoke(&asks, now.steady);
        let hard = quota_for(&asks.total(&self.guards.grants, now.steady));
        let row = self.guards.row(Guard::Quota).filter(|row| !row.deleting);
        if !row.is_some_and(|row| row.lets_in(&hard)) {
            return;
        }
        let before = std::mem::replace(&mut self.guards.grants.granted, asks.nodes);
        let grown = |(node, amount): &(&Name, &Resources)| {
            before.get(*node).is_none_or(|before| amount.fits_within(before).is_err())
        };
        let grown: Vec<Name> = self.guards.grants.granted.iter().filter(grown).map(|(node, _)| node.clone()).collect();
        for node in grown {
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
