//! Rows of one kind by UID: newer versions win, complete lists name absent objects, deleted objects do not come back.
//! Decides nothing about what absence means; that needs evidence.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use tapestry_cluster::feed::{Epoch, Row};
use tapestry_cluster::{Rv, Uid};

/// What happened to a row that was offered.
#[derive(Debug, PartialEq, Eq)]
pub enum Put<R> {
    /// It is older than what we know.
    Stale,
    /// It was stored; this was the row before.
    Fresh(Option<R>),
}

/// All rows of one kind.
pub struct Table<R> {
    rows: HashMap<Uid, Entry<R>, RandomState>,
    /// Versions at which objects were deleted, so that a late answer does not bring them back.
    tombstones: HashMap<Uid, Rv, RandomState>,
    buried: VecDeque<Uid>,
    listed: Option<Epoch>,
}

struct Entry<R> {
    row: R,
    epoch: Epoch,
}

/// Late facts are at most as many as calls in flight (hundreds) and come within seconds.
const TOMBSTONES: usize = 2048;

impl<R: Row> Default for Table<R> {
    fn default() -> Self {
        Self { rows: HashMap::default(), tombstones: HashMap::default(), buried: VecDeque::new(), listed: None }
    }
}

impl<R: Row> Table<R> {
    /// Whether a complete list has been seen: only then does absence mean anything.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.listed.is_some()
    }

    /// The row of this object.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<&R> {
        self.rows.get(uid).map(|entry| &entry.row)
    }

    /// The row of this object, mutable.
    pub fn get_mut(&mut self, uid: &Uid) -> Option<&mut R> {
        self.rows.get_mut(uid).map(|entry| &mut entry.row)
    }

    /// All rows, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        self.rows.values().map(|entry| &entry.row)
    }

    /// All rows, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.rows.values_mut().map(|entry| &mut entry.row)
    }

    /// How many rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Offers a row from a watch, with the list it belongs to, or from the answer to a call, which has none.
    pub fn put(&mut self, row: R, epoch: Option<Epoch>) -> Put<R> {
        let epoch = epoch.or(self.listed).unwrap_or_default();
        let (uid, rv) = (row.uid().clone(), row.rv());
        if self.tombstones.get(&uid).is_some_and(|died| rv <= *died) {
            return Put::Stale;
        }
        match self.rows.entry(uid) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Entry { row, epoch });
                Put::Fresh(None)
            }
            std::collections::hash_map::Entry::Occupied(mut known) => {
                let known = known.get_mut();
                // Even a stale row shows that the object is in this list.
                known.epoch = known.epoch.max(epoch);
                if rv < known.row.rv() {
                    return Put::Stale;
                }
                Put::Fresh(Some(std::mem::replace(&mut known.row, row)))
            }
        }
    }

    /// Removes a row whose object was deleted at this version.
    pub fn remove_proven(&mut self, uid: &Uid, at: Rv) -> Option<R> {
        if self.tombstones.insert(uid.clone(), at).is_none() {
            self.buried.push_back(uid.clone());
            if self.buried.len() > TOMBSTONES
                && let Some(oldest) = self.buried.pop_front()
            {
                self.tombstones.remove(&oldest);
            }
        }
        self.remove(uid)
    }

    /// Removes a row without recording that its object is gone.
    pub fn remove(&mut self, uid: &Uid) -> Option<R> {
        self.rows.remove(uid).map(|entry| entry.row)
    }

    /// A complete list has been read: names the objects that were not in it, which are still in the table.
    /// Absence alone proves nothing (law 1), so the caller decides what happens to them.
    pub fn listed(&mut self, epoch: Epoch) -> Vec<Uid> {
        self.listed = Some(epoch);
        let absent = self.rows.iter().filter(|(_, entry)| entry.epoch < epoch);
        let mut absent: Vec<Uid> = absent.map(|(uid, _)| uid.clone()).collect();
        // The order of a hash map differs between processes; a run must be repeatable.
        absent.sort_unstable();
        absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Thing(Uid, u64);
    impl Row for Thing {
        fn uid(&self) -> &Uid {
            &self.0
        }
        fn rv(&self) -> Rv {
            Rv::new(self.1)
        }
        fn deleting(&self) -> bool {
            false
        }
    }
    fn thing(uid: &str, rv: u64) -> Thing {
        Thing(Uid::new(uid), rv)
    }

    #[test]
    fn an_older_version_does_not_replace_a_newer_one() {
        let mut table = Table::default();
        assert_eq!(table.put(thing("a", 5), Some(Epoch(1))), Put::Fresh(None));
        assert_eq!(table.put(thing("a", 4), Some(Epoch(1))), Put::Stale);
        assert_eq!(table.put(thing("a", 6), Some(Epoch(1))), Put::Fresh(Some(thing("a", 5))));
        assert_eq!(table.get(&Uid::new("a")), Some(&thing("a", 6)));
    }

    #[test]
    fn a_late_fact_does_not_bring_back_what_is_gone() {
        let mut table = Table::default();
        table.put(thing("a", 5), Some(Epoch(1)));
        assert_eq!(table.remove_proven(&Uid::new("a"), Rv::new(9)), Some(thing("a", 5)));
        assert_eq!(table.put(thing("a", 8), None), Put::Stale);
        assert!(table.is_empty());
        // A selector watch that lost the object may see it again, at a later version.
        assert_eq!(table.put(thing("a", 10), Some(Epoch(1))), Put::Fresh(None));
    }

    #[test]
    fn a_complete_list_names_what_it_did_not_hold_and_nothing_else() {
        let mut table = Table::default();
        for uid in ["a", "b"] {
            table.put(thing(uid, 5), Some(Epoch(1)));
        }
        assert!(!table.complete());
        assert_eq!(table.listed(Epoch(1)), []);
        assert!(table.complete());
        table.put(thing("a", 3), Some(Epoch(2)));
        assert_eq!(table.listed(Epoch(2)), [Uid::new("b")]);
        assert_eq!(
            table.get(&Uid::new("a")),
            Some(&thing("a", 5)),
            "an old version in a list does not replace a newer row"
        );
    }

    #[test]
    fn law_11_tombstones_are_bounded() {
        let mut table: Table<Thing> = Table::default();
        for n in 0..3 * TOMBSTONES {
            table.remove_proven(&Uid::new(n.to_string()), Rv::new(1));
        }
        assert_eq!(table.tombstones.len(), TOMBSTONES);
        assert_eq!(table.buried.len(), TOMBSTONES);
    }
}
