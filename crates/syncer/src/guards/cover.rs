//! The order of quota and virtual nodes: a node offers more only when the quota admits it, and the quota is lowered only when
//! no node offers it any more. Otherwise a pod could be scheduled onto a virtual node, and be refused by the quota behind it.
//!
//! What a node may offer is granted while the quota admits it. A grant that is not needed is revoked first, and the quota is
//! lowered when no write that was planned under the grant can still be on its way.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tapestry_cluster::Name;
use tapestry_domain::resources::Resources;
use tapestry_engine::Now;

use super::want::quota_for;
use super::{Guard, Guards};

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

    /// Whether nodes may offer just what they are to offer.
    pub(super) fn cover(&self, asks: &Asks) -> bool {
        self.granted == asks.nodes
    }

    /// When the first of what was revoked cannot come any more.
    pub(super) fn settled(&self, now: Duration) -> Option<Duration> {
        self.revoked.values().map(|(_, until)| *until).filter(|until| *until > now).min()
    }
}

/// What the quota has to admit.
pub(crate) struct Asks {
    /// By physical node: the larger of what its virtual node says and what it is to say.
    nodes: BTreeMap<Name, Resources>,
    /// What copies ask for beyond their virtual pods. It lessens what their nodes offer, and the quota counts it too.
    beyond: Resources,
    /// When the calendar next changes something of this.
    until: Option<Timestamp>,
}

impl Asks {
    /// Those of no node yet.
    pub(crate) fn new(beyond: Resources) -> Self {
        Self { nodes: BTreeMap::new(), beyond, until: None }
    }

    /// A physical node asks for this much at least.
    pub(crate) fn add(&mut self, pnode: &Name, amount: &Resources) {
        self.nodes.entry(pnode.clone()).or_default().max(amount);
    }

    /// The calendar changes something at this moment.
    pub(crate) fn change_at(&mut self, edge: Option<Timestamp>) {
        self.until = self.until.into_iter().chain(edge).min();
    }

    /// When the calendar next changes something of this.
    pub(super) fn until(&self) -> Option<Timestamp> {
        self.until
    }

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

impl Guards {
    /// As much of what a physical node could lend as the quota admits by now; never less than its virtual node says already.
    pub(crate) fn covered(&self, pnode: &Name, said: Option<&Resources>, mut offered: Resources) -> Resources {
        let mut most = self.grants.of(pnode);
        if let Some(said) = said {
            most.max(said);
        }
        offered.map(|name, amount| amount.min(most.get(name)));
        offered
    }

    /// The quota is as it is seen now: nodes may offer what it admits. Returns the physical nodes that may offer more now.
    #[must_use]
    pub(crate) fn grant(&mut self, asks: Asks, now: Now) -> Vec<Name> {
        self.grants.revoke(&asks, now.steady);
        let hard = quota_for(&asks.total(&self.grants, now.steady));
        let row = self.row(Guard::Quota).filter(|row| !row.deleting);
        if !row.is_some_and(|row| row.lets_in(&hard)) {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.grants.granted, asks.nodes);
        let grown = |(node, amount): &(&Name, &Resources)| {
            before.get(*node).is_none_or(|before| amount.fits_within(before).is_err())
        };
        self.grants.granted.iter().filter(grown).map(|(node, _)| node.clone()).collect()
    }

    /// No quota is wanted: nothing is granted under one.
    pub(crate) fn forget_grants(&mut self) {
        self.grants = Grants::default();
    }
}
