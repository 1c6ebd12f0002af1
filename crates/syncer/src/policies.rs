//! Policies: who may lend what, when. Watches those of the virtual cluster and, where the kind is served, the owner's in the
//! physical one; writes only their status. Which of them holds on a node is answered here, what follows from it in `terms`.

mod row;
mod status;

use std::cmp::Reverse;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use tapestry_api::{Binding, Policy};
use tapestry_cluster::feed::{Change, Epoch, Row as _};
use tapestry_cluster::{Rv, Side, Uid};
use tapestry_domain::calendar::Hours;
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Table};

pub use self::row::PolicyRow;
use crate::nodes::row::PNode;
use crate::pair::{Key, Pair};

/// All policies, the tenant's and the owner's.
#[derive(Default)]
pub(crate) struct Policies {
    tables: [Table<PolicyRow>; 2],
    /// Those of the virtual cluster that are out of sight: pods run under them, so they hold until the API server says that
    /// they are gone (law 1). With the version from which on a word of them counts again.
    doubted: HashMap<Uid, Rv, RandomState>,
    /// When the first of the known hours end.
    until: Option<Timestamp>,
    status: status::Written,
}

impl Policies {
    pub(crate) fn complete(&self) -> bool {
        self.table(Side::Virtual).complete()
    }

    /// Whether it is known what the owner restricts, be it nothing. Until then nothing new is lent, and all else goes on.
    pub(crate) fn owner_known(&self) -> bool {
        self.table(Side::Physical).complete()
    }

    fn table(&self, side: Side) -> &Table<PolicyRow> {
        &self.tables[side as usize]
    }

    /// The policies that select a node, be they open or not.
    fn candidates<'a>(
        &'a self,
        side: Side,
        binding: &Binding,
        pnode: &PNode,
    ) -> impl Iterator<Item = (&'a PolicyRow, &'a Policy)> {
        let live = self.table(side).iter().filter(|row| !row.deleting);
        live.filter_map(|row| Some((row, row.in_force()?)))
            .filter(|(_, policy)| policy.cluster.matches(&binding.name, &binding.cluster_id))
            .filter(|(_, policy)| policy.nodes.matches(|key| pnode.label(key), pnode.name.as_str()))
    }

    /// The policy that holds on a node: of those that are open the highest in rank; when none is, the one that closed last.
    /// With its hours, and when another one may hold.
    pub(crate) fn holder<'a>(
        &'a self,
        side: Side,
        binding: &Binding,
        pnode: &PNode,
        at: Timestamp,
    ) -> Option<(&'a Policy, Hours, Option<Timestamp>)> {
        let mut until = None;
        let candidates = self.candidates(side, binding, pnode).map(|(row, policy)| {
            let hours = row.hours_at(policy, at);
            until = [until, hours.until].into_iter().flatten().min();
            (policy, hours)
        });
        let rank = |(policy, hours): &(&'a Policy, Hours)| {
            let closed = (!hours.open).then_some(Reverse(hours.since));
            (closed, policy.rank())
        };
        let (policy, hours) = candidates.min_by(|a, b| rank(a).cmp(&rank(b)))?;
        Some((policy, hours, until))
    }

    /// All policies that select a node, with their hours.
    pub(crate) fn selecting(
        &self,
        side: Side,
        binding: &Binding,
        pnode: &PNode,
        at: Timestamp,
    ) -> impl Iterator<Item = (&Policy, Hours)> {
        self.candidates(side, binding, pnode).map(move |(row, policy)| (policy, row.hours_at(policy, at)))
    }

    /// All policies that are meant for a binding, on both sides.
    pub(crate) fn all(&self, binding: &Binding) -> impl Iterator<Item = &Policy> {
        let rows = self.tables.iter().flat_map(Table::iter).filter(|row| !row.deleting);
        rows.filter_map(PolicyRow::in_force).filter(|policy| policy.cluster.matches(&binding.name, &binding.cluster_id))
    }

    /// Whether a policy for this binding cannot be understood.
    pub(crate) fn broken(&self, side: Side, binding: &Binding) -> bool {
        let live = self.table(side).iter().filter(|row| !row.deleting && row.in_force().is_none());
        live.into_iter().any(|row| row.names(binding))
    }

    /// Works the calendars out anew where their hours have ended, so that plans need not.
    pub(crate) fn keep_hours(&mut self, now: Timestamp) {
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        let mut until: Option<Timestamp> = None;
        for table in &mut self.tables {
            for row in table.iter_mut() {
                row.keep_hours(now);
                until = [until, row.hours().and_then(|hours| hours.until)].into_iter().flatten().min();
            }
        }
        // Without any edge ahead there is nothing to keep up with until a policy changes.
        self.until = until.or(Some(Timestamp::MAX));
    }
}

impl Pair {
    pub(crate) fn see_policy(&mut self, side: Side, change: Change<PolicyRow>, dirty: &mut Dirty<Key>) {
        let table = &mut self.policies.tables[side as usize];
        match change {
            Change::Put(row, epoch) => return self.put_policy(side, row, Some(epoch), dirty),
            Change::Gone { row, proven } if proven || side == Side::Physical => {
                return self.lose_policy(side, row.uid(), row.rv(), dirty);
            }
            // At this version it went: an answer that is older was given before.
            Change::Gone { row, .. } => self.doubt_policy(row.uid().clone(), row.rv(), dirty),
            Change::Listed(epoch) => {
                let absent = table.listed(epoch);
                for uid in absent {
                    let known = self.policies.get(side, &uid).map(PolicyRow::rv);
                    if let (Side::Virtual, Some(rv)) = (side, known) {
                        self.doubt_policy(uid, rv, dirty);
                    } else {
                        // The kind may not be served any more, and then nobody can be asked. Nobody has to go for it.
                        self.policies.status.remove(&uid);
                        self.policies.tables[side as usize].remove(&uid);
                    }
                }
            }
        }
        self.change_policies(dirty);
    }

    fn doubt_policy(&mut self, uid: Uid, from: Rv, dirty: &mut Dirty<Key>) {
        if self.policies.get(Side::Virtual, &uid).is_some() {
            self.policies.doubted.insert(uid.clone(), from);
            dirty.mark(Key::Policy(Side::Virtual, uid));
        }
    }

    fn lose_policy(&mut self, side: Side, uid: &Uid, rv: Rv, dirty: &mut Dirty<Key>) {
        self.policies.status.remove(uid);
        self.policies.doubted.remove(uid);
        self.policies.tables[side as usize].bury(uid, rv);
        self.change_policies(dirty);
    }

    fn put_policy(&mut self, side: Side, mut row: PolicyRow, epoch: Option<Epoch>, dirty: &mut Dirty<Key>) {
        let table = &mut self.policies.tables[side as usize];
        let uid = row.uid().clone();
        let before = table.get(&uid);
        if side == Side::Physical {
            // An owner's slip of the pen must not lift what the owner restricted.
            row.remember(before);
        }
        let (then, now) = (before.map(PolicyRow::terms_print), row.terms_print());
        if then != Some(now)
            && let Err(invalid) = row.parsed()
        {
            tracing::warn!(side = side.as_str(), policy = %row.name(), %invalid, "a policy is invalid");
        }
        if self.policies.doubted.get(&uid).is_some_and(|from| epoch.is_some() || *from <= row.rv()) {
            self.policies.doubted.remove(&uid);
        }
        dirty.mark(Key::Policy(side, uid));
        row.keep_hours(self.now.wall);
        if let Put::Fresh(_) = table.put(row, epoch)
            && then != Some(now)
        {
            self.change_policies(dirty);
        }
    }

    /// What is lent may be something else now, everywhere.
    fn change_policies(&mut self, dirty: &mut Dirty<Key>) {
        self.policies.until = None;
        self.policies.keep_hours(self.now.wall);
        self.open_all_doors(dirty);
    }

    /// Policies whose counts a change of this node may touch.
    pub(crate) fn mark_policies(&self, dirty: &mut Dirty<Key>) {
        // The order of a hash map is another one in each process; a run must be repeatable.
        let mut keys: Vec<Key> = self.policies.keys().collect();
        keys.sort_unstable();
        for key in keys {
            dirty.mark(key);
        }
    }
}

impl Policies {
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        let of = |side: Side| self.table(side).iter().map(move |row| Key::Policy(side, row.uid().clone()));
        of(Side::Virtual).chain(of(Side::Physical))
    }

    fn get(&self, side: Side, uid: &Uid) -> Option<&PolicyRow> {
        self.table(side).get(uid)
    }
}

#[cfg(test)]
mod tests;
