//! A watch of one kind on one side, as one leader sees it: late, in batches, coalesced per object, started over at will.
//! Shows only what a real watch and its mailbox could show; the schedule chooses what and when.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use serde_json::Value;
use tapestry_cluster::feed::{Change, Epoch, Row};
use tapestry_cluster::{Kind, Rv, Side, Uid};

use super::World;
use super::server::{Event, Serving, Version, What};

/// What a watch delivers, before it is decoded.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// The object exists and looks like this.
    Put(&'a Bytes, Epoch),
    /// A DELETED event with this object: gone, or out of the selector.
    Gone(&'a Bytes),
    /// All objects that exist have been put with this epoch.
    Listed(Epoch),
    /// The server does not serve the kind.
    Unserved,
    /// Everything up to this version has been delivered.
    Reached(Rv),
}

type Filter = Box<dyn Fn(&Value) -> bool>;
type Decode<S> = Box<dyn Fn(View<'_>) -> Option<S>>;

/// A watch that ends in facts of type `S`.
pub struct Observer<S> {
    side: Side,
    kind: &'static Kind,
    filter: Option<Filter>,
    decode: Decode<S>,
    /// Zero before the first list.
    epoch: Epoch,
    /// What is left of the list.
    listing: VecDeque<Arc<Version>>,
    /// Whether the mark that ends the list is still to come.
    unmarked: bool,
    /// Position in the server's log.
    cursor: usize,
    /// Position at the time of the list, and its version.
    start: usize,
    /// It has been reported that the kind is not served.
    unserved: bool,
    version: Rv,
}

/// What is shown of one object.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) object: Arc<Version>,
    pub(super) gone: bool,
}

/// What one delivery shows: changes, then perhaps the mark of a complete list.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) changes: Vec<Shown>,
    pub(super) listed: Option<Epoch>,
    /// The kind is not served; then there is nothing else.
    pub(super) unserved: bool,
    pub(super) reached: Option<Rv>,
}

impl<S> Observer<S> {
    /// A watch of all objects of a kind.
    pub fn new(side: Side, kind: &'static Kind, decode: impl Fn(View<'_>) -> Option<S> + 'static) -> Self {
        Self {
            side,
            kind,
            filter: None,
            decode: Box::new(decode),
            epoch: Epoch(0),
            listing: VecDeque::new(),
            unmarked: false,
            cursor: 0,
            start: 0,
            unserved: false,
            version: Rv::default(),
        }
    }

    /// A watch whose objects are decoded into rows as [`tapestry_cluster::watch`] does: an object that cannot be decoded, or
    /// that the decoder drops, is not shown; `proven` comes from the DELETED object itself.
    pub fn rows<R: Row>(
        side: Side,
        kind: &'static Kind,
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + 'static,
        fact: impl Fn(Change<R>) -> S + 'static,
    ) -> Self {
        let read = move |object: &Bytes| decode(object).ok().flatten();
        Self::new(side, kind, move |view| {
            Some(fact(match view {
                View::Put(object, epoch) => Change::Put(read(object)?, epoch),
                View::Gone(object) => {
                    let row = read(object)?;
                    Change::Gone { proven: row.deleting(), row }
                }
                View::Listed(epoch) => Change::Listed(epoch),
                View::Unserved => Change::Unserved,
                View::Reached(rv) => Change::Reached(rv),
            }))
        })
    }

    /// The same watch, whose facts are wrapped.
    #[must_use]
    pub fn wrap<T>(self, wrap: impl Fn(S) -> T + 'static) -> Observer<T>
    where
        S: 'static,
    {
        let Self { side, kind, filter, decode, epoch, listing, unmarked, cursor, start, unserved, version } = self;
        let decode: Decode<T> = Box::new(move |view: View<'_>| decode(view).map(&wrap));
        Observer { side, kind, filter, decode, epoch, listing, unmarked, cursor, start, unserved, version }
    }

    /// Only objects that a selector accepts. Losing it shows as DELETED with the object's last accepted state.
    #[must_use]
    pub fn only(mut self, filter: impl Fn(&Value) -> bool + 'static) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    /// Its side.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Starts over with a complete list of what exists now. What happened since the last delivery is not shown.
    pub fn list(&mut self, world: &World) {
        let server = world.server(self.side);
        self.epoch.0 += 1;
        self.listing = server.all(self.kind).filter(|object| self.accepts(object)).cloned().collect();
        self.unmarked = true;
        self.cursor = server.log(self.kind).len();
        self.start = self.cursor;
        self.version = server.rv();
    }

    /// Whether there is something that has not been shown. An observer that was never opened has its whole list.
    pub fn waits(&mut self, world: &World) -> bool {
        let served = world.server(self.side).serving(self.kind) != Serving::Not;
        if served == self.unserved {
            return true;
        }
        if self.unserved {
            return false;
        }
        if self.epoch.0 == 0 || self.unmarked {
            return true;
        }
        let log = world.server(self.side).log(self.kind);
        while let Some(event) = log.get(self.cursor) {
            if self.shows(event) {
                return true;
            }
            self.cursor += 1;
        }
        false
    }

    /// Takes up to `most` changes as a mailbox would return them: the latest per object wins, in order of first arrival, and
    /// the mark of a complete list comes last.
    pub(super) fn take(&mut self, world: &World, most: usize) -> Batch {
        let served = world.server(self.side).serving(self.kind) != Serving::Not;
        let mut batch = Batch { unserved: !served, ..Batch::default() };
        if !served {
            self.unserved = true;
            return batch;
        }
        if self.epoch.0 == 0 || self.unserved {
            self.unserved = false;
            self.list(world);
        }
        for _ in 0..most {
            if let Some(object) = self.listing.pop_front() {
                batch.fold(Shown { object, gone: false });
            } else if std::mem::take(&mut self.unmarked) {
                batch.listed = Some(self.epoch);
            } else {
                let log = world.server(self.side).log(self.kind);
                let Some(event) = log.get(self.cursor) else { break };
                self.cursor += 1;
                if let Some(shown) = self.show(event) {
                    batch.fold(shown);
                }
            }
        }
        batch.reached = Some(self.reached(world)).filter(|_| !self.unmarked);
        batch
    }

    /// An event shows that everything before it was delivered.
    fn reached(&self, world: &World) -> Rv {
        let log = world.server(self.side).log(self.kind);
        let last = self.cursor.checked_sub(1).filter(|last| *last >= self.start).and_then(|last| log.get(last));
        last.map_or(self.version, |event| event.object.rv())
    }

    /// The version of a bookmark that the server may send now; `None` while changes are still to be delivered.
    pub(super) fn bookmark(&mut self, world: &World) -> Option<Rv> {
        (!self.waits(world)).then(|| world.server(self.side).rv())
    }

    /// Something that has been shown before since the list: the same again, or an older state of an object that still exists
    /// or is proven gone.
    pub(super) fn again(&self, world: &World, rng: &mut Rng) -> Option<Shown> {
        if self.unmarked || self.start == self.cursor {
            return None;
        }
        let log = &world.server(self.side).log(self.kind)[..self.cursor];
        let place = rng.usize(self.start..self.cursor);
        let shown = self.show(&log[place])?;
        let last = log[place..].iter().rev().find(|event| event.object.uid() == shown.object.uid())?;
        let last = self.show(last)?;
        // No watch shows the state from before an object left the selector: the row is dropped without a tombstone.
        (!last.gone || last.object.deleting() || last.object.rv() == shown.object.rv()).then_some(shown)
    }

    /// The fact in what is shown; `None` where the decoder drops it.
    pub(super) fn decode(&self, shown: &Shown) -> Option<S> {
        let object = shown.object.text();
        (self.decode)(if shown.gone { View::Gone(object) } else { View::Put(object, self.epoch) })
    }

    pub(super) fn decode_unserved(&self) -> Option<S> {
        (self.decode)(View::Unserved)
    }

    pub(super) fn decode_listed(&self, epoch: Epoch) -> Option<S> {
        (self.decode)(View::Listed(epoch))
    }

    pub(super) fn decode_reached(&self, rv: Rv) -> Option<S> {
        (self.decode)(View::Reached(rv))
    }

    fn accepts(&self, object: &Version) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(object.value()))
    }

    fn shows(&self, event: &Event) -> bool {
        let before = event.before.as_ref().is_some_and(|before| self.accepts(before));
        before || (event.what != What::Deleted && self.accepts(&event.object))
    }

    fn show(&self, event: &Event) -> Option<Shown> {
        let before = event.before.as_ref().filter(|before| self.accepts(before));
        let now = event.what != What::Deleted && self.accepts(&event.object);
        match (before, now) {
            (None, false) => None,
            (_, true) => Some(Shown { object: Arc::clone(&event.object), gone: false }),
            (Some(_), false) if event.what == What::Deleted => {
                Some(Shown { object: Arc::clone(&event.object), gone: true })
            }
            // The watch cache shows the last state that the selector accepted, at the version of the change.
            (Some(before), false) => Some(Shown { object: before.at(event.object.rv()), gone: true }),
        }
    }
}

impl Batch {
    fn fold(&mut self, shown: Shown) {
        let uid: &Uid = shown.object.uid();
        match self.changes.iter_mut().find(|known| known.object.uid() == uid) {
            Some(known) => *known = shown,
            None => self.changes.push(shown),
        }
    }
}
