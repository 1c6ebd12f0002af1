//! Policies: who may lend what, when. Watches those of the virtual cluster and, where the kind is served, the owner's in the
//! physical one; writes only their status. Which of them holds on a node is answered here, what follows from it in `terms`.

mod row;
pub(crate) mod serving;
pub(crate) mod status;

use std::cmp::Reverse;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use tapestry_api::{Binding, Policy};
use tapestry_cluster::feed::{Change, Epoch, Row as _};
use tapestry_cluster::{Rv, Side, Uid};
use tapestry_domain::calendar::Hours;
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now, Table};

pub use self::row::PolicyRow;
use crate::nodes::row::PNode;
use crate::pair::Key;
pub(crate) use crate::serving::Served;
use crate::serving::Serving;

/// All policies, the tenant's and the owner's.
#[derive(Default)]
pub(crate) struct Policies {
    tables: [Table<PolicyRow>; 2],
    serving: [Serving; 2],
    /// Policies that the watch no longer shows: they hold until it is certain that a user deleted them (law 1).
    doubted: [HashMap<Uid, Doubt, RandomState>; 2],
    /// When the first of the known hours end.
    until: Option<Timestamp>,
    status: status::Written,
}

/// A policy that the watch no longer shows.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    /// The version from which on news of it counts again.
    from: Rv,
    /// The API server itself says that it is gone; whether a user deleted it or it went with its kind is not known yet.
    gone: bool,
}

impl Policies {
    /// Whether it has been told which policies there are, or that it cannot be known.
    pub(crate) fn complete(&self) -> bool {
        self.told(Side::Virtual)
    }

    /// Whether the list of the owner's policies is in, even if empty. Until then nothing new is lent; everything else continues.
    pub(crate) fn owner_known(&self) -> bool {
        self.told(Side::Physical)
    }

    fn told(&self, side: Side) -> bool {
        self.table(side).complete() || self.serving(side).said() == Some(Served::Not)
    }

    fn serving(&self, side: Side) -> &Serving {
        &self.serving[side as usize]
    }

    /// Whether a policy that is not there was deleted by a user, and did not go with its kind.
    pub(crate) fn confirmed(&self, side: Side) -> bool {
        self.serving(side).confirmed()
    }

    /// Whether the first answer of discovery is still to come.
    pub(crate) fn awaited(&self, side: Side) -> bool {
        self.serving(side).awaited()
    }

    /// Why it is not known which policies there are, if so.
    pub(crate) fn unknown(&self, side: Side) -> Option<Served> {
        self.serving(side).said().filter(|_| self.serving(side).unknown())
    }

    /// Whether policies have not been listed since their kind went.
    pub(crate) fn unlisted(&self, side: Side) -> bool {
        self.serving(side).unreadable()
    }

    /// Whether discovery, which says what the absence of a policy means, may not be read.
    pub(crate) fn unclear(&self, side: Side) -> bool {
        self.serving(side).said() == Some(Served::Unclear)
    }

    /// Whether a policy of this name exists, in force or not.
    pub(crate) fn named(&self, side: Side, name: &str) -> bool {
        self.live(side).any(|row| row.name().as_str() == name)
    }

    /// One that is being deleted holds until it is certain that it does not go with its kind.
    fn live(&self, side: Side) -> impl Iterator<Item = &PolicyRow> {
        let confirmed = self.confirmed(side);
        self.table(side).iter().filter(move |row| !(row.deleting && confirmed))
    }

    /// Whether no policy of this side is known.
    pub(crate) fn none_known(&self, side: Side) -> bool {
        self.table(side).is_empty()
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
        self.live(side)
            .filter_map(|row| Some((row, row.in_force()?)))
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
        let rows = Side::BOTH.into_iter().flat_map(|side| self.live(side));
        rows.filter_map(PolicyRow::in_force).filter(|policy| policy.cluster.matches(&binding.name, &binding.cluster_id))
    }

    /// Whether a policy for this binding cannot be understood.
    pub(crate) fn broken(&self, side: Side, binding: &Binding) -> bool {
        self.live(side).any(|row| row.in_force().is_none() && row.names(binding))
    }

    /// Evaluates the calendars again whose hours have ended, so that plans need not.
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

impl Policies {
    /// Folds in what a watch shows; says whether what is lent may be something else now, on every node.
    #[must_use]
    pub(crate) fn observe(&mut self, side: Side, change: Change<PolicyRow>, now: Now, dirty: &mut Dirty<Key>) -> bool {
        match change {
            Change::Put(row, epoch) => return self.put(side, row, Some(epoch), now, dirty),
            // At this version it went: an answer that is older was given before.
            Change::Gone { row, proven } => {
                // The owner's are read by no call; the watch of all of them shows DELETED for nothing else.
                self.doubt(side, row.uid(), row.rv(), proven || side == Side::Physical, now, dirty);
            }
            Change::Listed(epoch) => {
                let absent = self.tables[side as usize].listed(epoch);
                for uid in absent {
                    if let Some(rv) = self.get(side, &uid).map(PolicyRow::rv) {
                        self.doubt(side, &uid, rv, side == Side::Physical, now, dirty);
                    }
                }
                self.serving[side as usize].listed(now);
            }
            Change::Unserved => {
                self.serving[side as usize].unserved();
                dirty.mark(Key::Binding);
            }
            Change::Reached(_) => return false,
        }
        dirty.mark(Key::Serving(side));
        self.renew_hours(now);
        true
    }

    /// A policy that the watch no longer shows holds until it is proven gone and it is certain that its kind did not go with it.
    fn doubt(&mut self, side: Side, uid: &Uid, from: Rv, gone: bool, now: Now, dirty: &mut Dirty<Key>) {
        if self.get(side, uid).is_none() {
            self.tables[side as usize].remove_proven(uid, from);
            return;
        }
        let doubted = &mut self.doubted[side as usize];
        let from = doubted.get(uid).map_or(from, |known| known.from.max(from));
        doubted.insert(uid.clone(), Doubt { from, gone });
        if gone {
            self.serving[side as usize].lose(now);
            dirty.mark(Key::Serving(side));
        }
        dirty.mark(Key::Policy(side, uid.clone()));
    }

    /// Forgets the policies of which it is certain by now that a user deleted them.
    fn forget_deleted(&mut self, side: Side) {
        if !self.confirmed(side) {
            return;
        }
        let doubted = self.doubted[side as usize].iter().filter(|(_, doubt)| doubt.gone);
        let gone: Vec<(Uid, Rv)> = doubted.map(|(uid, doubt)| (uid.clone(), doubt.from)).collect();
        for (uid, rv) in gone {
            self.lose(side, &uid, rv);
        }
    }

    fn lose(&mut self, side: Side, uid: &Uid, rv: Rv) {
        self.status.remove(uid);
        self.doubted[side as usize].remove(uid);
        self.tables[side as usize].remove_proven(uid, rv);
    }

    /// Takes over what a watch or an answer, which belongs to no list, says of a policy; says whether what is lent may be something
    /// else now.
    fn put(&mut self, side: Side, mut row: PolicyRow, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) -> bool {
        let table = &mut self.tables[side as usize];
        let doubted = &mut self.doubted[side as usize];
        let uid = row.uid().clone();
        let before = table.get(&uid);
        if side == Side::Physical {
            // An owner's typo must not lift what the owner restricted.
            row.remember(before);
        }
        let (before_terms, terms) = (before.map(PolicyRow::terms_digest), row.terms_digest());
        if before_terms != Some(terms)
            && let Err(invalid) = row.parsed()
        {
            tracing::warn!(side = side.as_str(), policy = %row.name(), %invalid, "a policy is invalid");
        }
        let listed = epoch.is_some();
        let back = |doubt: &Doubt| doubt.from < row.rv() || (!doubt.gone && (listed || doubt.from == row.rv()));
        if doubted.get(&uid).is_some_and(back) {
            doubted.remove(&uid);
        }
        if row.deleting && before.is_none_or(|before| !before.deleting) {
            self.serving[side as usize].lose(now);
            dirty.mark(Key::Serving(side));
        }
        // Only a kind that is served can have a new one of the same name.
        let namesake =
            |known: &&PolicyRow| known.name() == row.name() && *known.uid() != uid && doubted.contains_key(known.uid());
        let replaced = table.iter().find(namesake).map(|known| (known.uid().clone(), known.rv()));
        dirty.mark(Key::Policy(side, uid));
        row.keep_hours(now.wall);
        let fresh = matches!(table.put(row, epoch), Put::Fresh(_));
        if let Some((uid, rv)) = &replaced {
            self.lose(side, uid, *rv);
        }
        let changed = replaced.is_some() || (fresh && before_terms != Some(terms));
        if changed {
            self.renew_hours(now);
        }
        changed
    }

    /// Other policies hold from now on: their hours may end at another time.
    fn renew_hours(&mut self, now: Now) {
        self.until = None;
        self.keep_hours(now.wall);
    }

    /// Marks all of them: the physical nodes, which their status counts, have changed.
    pub(crate) fn mark_all(&self, dirty: &mut Dirty<Key>) {
        // The order of a hash map is another one in each process; a run must be repeatable.
        let mut keys: Vec<Key> = self.keys().collect();
        keys.sort_unstable();
        for key in keys {
            dirty.mark(key);
        }
    }

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
