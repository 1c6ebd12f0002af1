//! What leaders get: one watch's next changes, old ones again, a new list.
//! Must not deliver anything to a leader that gets no events, or of a side that cannot be reached.

use tapestry_cluster::Side;
use tapestry_engine::Model;

use super::super::journal::Entry;
use super::{Leader, Schedule};

/// One in this many deliveries has bookmarks.
const BOOKMARK: u8 = 16;

impl<M: Model> Schedule<M> {
    /// After an outage some watches resume where they were, others start over.
    pub(super) fn resume(&mut self, side: Side) {
        for leader in 0..self.leaders.len() {
            if self.rng.bool() {
                self.relist(leader, Some(side));
            }
        }
    }

    /// Delivers what one watch of some leader has.
    pub(super) fn tell_one(&mut self) -> bool {
        let shift = self.rng.usize(..self.leaders.len());
        if self.rng.u8(..BOOKMARK) == 0 {
            self.bookmark(shift);
        }
        for place in 0..self.leaders.len() {
            let leader = (place + shift) % self.leaders.len();
            if self.leaders[leader].blind > 0 || self.leaders[leader].frozen {
                continue;
            }
            let Some(alive) = &mut self.leaders[leader].alive else { continue };
            let observers = alive.observers.len();
            let shift = if observers == 0 { 0 } else { self.rng.usize(..observers) };
            let ready = (0..observers).map(|place| (place + shift) % observers).find(|place| {
                let observer = &mut alive.observers[*place];
                self.world.reachable(observer.side()) && observer.waits(&self.world)
            });
            let Some(observer) = ready else { continue };
            let most = if self.chance(self.config.faults.coalesce) { self.rng.usize(2..20) } else { 1 };
            self.deliver(leader, observer, most);
            return true;
        }
        false
    }

    pub(super) fn deliver(&mut self, leader: usize, observer: usize, most: usize) {
        let now = self.world.now();
        let Some(alive) = &mut self.leaders[leader].alive else { return };
        let observer = &mut alive.observers[observer];
        let (side, kind) = (observer.side(), observer.kind());
        let batch = observer.take(&self.world, most);
        let mut entries = Vec::with_capacity(batch.changes.len() + 1);
        for shown in batch.changes {
            if let Some(fact) = observer.decode(&shown) {
                alive.desk.see(fact, now);
                entries.push(Entry::Told { leader, side, kind, shown, note: "" });
            }
        }
        if batch.unserved {
            if let Some(fact) = observer.decode_unserved() {
                alive.desk.see(fact, now);
            }
            entries.push(Entry::Unserved { leader, side, kind });
        }
        if let Some(epoch) = batch.listed {
            if let Some(fact) = observer.decode_listed(epoch) {
                alive.desk.see(fact, now);
            }
            entries.push(Entry::Listed { leader, side, kind });
        }
        if let Some(fact) = batch.reached.and_then(|rv| observer.decode_reached(rv)) {
            alive.desk.see(fact, now);
        }
        for entry in entries {
            self.note(entry);
        }
    }

    /// Lets the servers send bookmarks to those watches of a leader that have nothing else to deliver.
    pub(super) fn bookmark(&mut self, leader: usize) {
        let now = self.world.now();
        let Leader { alive: Some(alive), blind: 0, frozen: false, .. } = &mut self.leaders[leader] else { return };
        for observer in &mut alive.observers {
            let reachable = self.world.reachable(observer.side());
            let bookmark = reachable.then(|| observer.bookmark(&self.world)).flatten();
            if let Some(fact) = bookmark.and_then(|rv| observer.decode_reached(rv)) {
                alive.desk.see(fact, now);
            }
        }
    }

    /// Delivers something to a leader that it has got before.
    pub(super) fn replay(&mut self, leader: usize) {
        let now = self.world.now();
        let Leader { alive: Some(alive), blind: 0, frozen: false, .. } = &mut self.leaders[leader] else { return };
        if alive.observers.is_empty() {
            return;
        }
        let place = self.rng.usize(..alive.observers.len());
        let observer = &alive.observers[place];
        let Some(shown) = observer.again(&self.world, &mut self.rng) else { return };
        if let Some(fact) = observer.decode(&shown) {
            let (side, kind) = (observer.side(), observer.kind());
            alive.desk.see(fact, now);
            self.note(Entry::Told { leader, side, kind, shown, note: " again" });
        }
    }

    /// Starts all watches of a leader over: what happened since the last delivery is not shown.
    pub fn relist_all(&mut self, leader: usize) {
        for side in Side::BOTH {
            self.relist(leader, Some(side));
        }
    }

    /// Starts one watch over, or all of a side.
    pub(super) fn relist(&mut self, leader: usize, of: Option<Side>) {
        let Some(alive) = &mut self.leaders[leader].alive else { return };
        let one = self.rng.usize(..alive.observers.len().max(1));
        let mut entries = Vec::new();
        for (place, observer) in alive.observers.iter_mut().enumerate() {
            let (side, kind) = (observer.side(), observer.kind());
            if of.map_or(place == one, |of| of == side) && self.world.reachable(side) {
                observer.list(&self.world);
                entries.push(Entry::Relist { leader, side, kind });
            }
        }
        for entry in entries {
            self.note(entry);
        }
    }
}
