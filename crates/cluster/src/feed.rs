//! From one watch to many readers: each has a mailbox in which the latest change per object wins.
//! Never blocks the watch and never holds more than one change per object (law 11).

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

use crate::watch::Vitals;
use crate::{Rv, Uid};

/// What we keep of an object: decoded straight from JSON, small, identified by UID and version.
pub trait Row: Send + 'static {
    /// Identity of the object.
    fn uid(&self) -> &Uid;
    /// Its version.
    fn rv(&self) -> Rv;
    /// Whether the object carries a `deletionTimestamp`: then a DELETED event is proof that it is gone.
    fn deleting(&self) -> bool;
    /// Whether only its outline could be read: then the row has no more than that.
    fn unreadable(&self) -> bool {
        false
    }
}

/// Counts complete starts of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Epoch(pub u32);

/// A fact from a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<R> {
    /// The object exists and looks like this.
    Put(R, Epoch),
    /// The object left the watch; `proven` says that it is really gone. The row is its last known state.
    Gone {
        /// As the DELETED event carried it.
        row: R,
        /// See [`Row::deleting`].
        proven: bool,
    },
    /// All existing objects have been put with this epoch; an object with an older epoch was absent.
    Listed(Epoch),
    /// The server provably does not serve the kind; only for an optional watch. The state of its objects is unknown.
    Unserved,
    /// All changes of the watched objects up to this version were delivered before this.
    Reached(Rv),
}

/// One reader's end.
pub struct Mailbox<R> {
    held: Arc<Mutex<Held<R>>>,
}

/// Writes into all mailboxes of one watch.
pub struct Feed<R> {
    readers: Mutex<Vec<Reader<R>>>,
    /// watch <--start over-- subscribe
    pub(crate) restart: Notify,
    /// How many objects of the watch cannot be fully read at the moment.
    pub(crate) unreadable: Gauge,
    /// Whether the watch is in sync.
    pub vitals: Vitals,
}

struct Reader<R> {
    held: Arc<Mutex<Held<R>>>,
    bell: Arc<Notify>,
}

struct Held<R> {
    changes: IndexMap<Uid, Change<R>>,
    /// The latest state of the whole kind: a complete list, or that it is not served.
    whole: Option<Change<R>>,
    reached: Option<Rv>,
}

impl<R> Default for Feed<R> {
    fn default() -> Self {
        let (readers, restart) = (Mutex::default(), Notify::new());
        Self { readers, restart, unreadable: Gauge::default(), vitals: Vitals::default() }
    }
}

impl<R: Row + Clone> Feed<R> {
    /// A new reader. `bell` rings whenever a change waits; several mailboxes may share one.
    /// The watch starts over, so that a late reader sees everything too.
    pub fn subscribe(&self, bell: Arc<Notify>) -> Mailbox<R> {
        let held = Arc::new(Mutex::new(Held { changes: IndexMap::new(), whole: None, reached: None }));
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(Reader { held: Arc::clone(&held), bell });
        self.restart.notify_one();
        Mailbox { held }
    }

    /// Delivers a change to every reader.
    pub fn send(&self, change: Change<R>) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        // A reader that dropped its mailbox no longer holds the other half.
        readers.retain(|reader| Arc::strong_count(&reader.held) > 1);
        let Some((last, others)) = readers.split_last() else { return };
        for reader in others {
            reader.take(change.clone());
        }
        last.take(change);
    }
}

impl<R: Row> Reader<R> {
    fn take(&self, change: Change<R>) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).fold(change);
        self.bell.notify_one();
    }
}

impl<R: Row> Held<R> {
    fn fold(&mut self, change: Change<R>) {
        match change {
            whole @ (Change::Listed(_) | Change::Unserved) => self.whole = Some(whole),
            Change::Reached(rv) => self.reached = Some(rv),
            Change::Put(ref row, _) | Change::Gone { ref row, .. } => {
                let uid = row.uid().clone();
                // Keep the order of first arrival, so that no object starves behind a busy one.
                self.changes.insert(uid, change);
            }
        }
    }
}

impl<R: Row> Mailbox<R> {
    /// Takes everything that waits: changes first, then the mark of a complete list that covers them (or that the kind
    /// is not served), then the version they reach.
    #[must_use]
    pub fn drain(&self) -> Vec<Change<R>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (whole, reached) = (held.whole.take(), held.reached.take());
        let changes = std::mem::take(&mut held.changes);
        drop(held);
        changes.into_values().chain(whole).chain(reached.map(Change::Reached)).collect()
    }

    /// How many changes wait.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).changes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
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
    fn put(uid: &str, rv: u64) -> Change<Thing> {
        Change::Put(Thing(Uid::new(uid), rv), Epoch(1))
    }

    #[test]
    fn law_11_a_mailbox_holds_the_latest_change_of_each_object_and_no_more() {
        let feed = Feed::default();
        let (slow, quick) = (feed.subscribe(Arc::default()), feed.subscribe(Arc::default()));
        for rv in 0..1000 {
            feed.send(put("a", rv));
            feed.send(put("b", rv));
            assert_eq!(quick.drain().len(), 2);
        }
        feed.send(Change::Listed(Epoch(1)));
        assert_eq!(slow.depth(), 2);
        assert_eq!(slow.drain(), [put("a", 999), put("b", 999), Change::Listed(Epoch(1))]);
        assert!(slow.drain().is_empty());
    }

    #[test]
    fn the_version_a_watch_has_reached_comes_once_and_after_all_changes_it_covers() {
        let feed = Feed::default();
        let mailbox = feed.subscribe(Arc::default());
        for rv in 1..4 {
            feed.send(Change::Reached(Rv::new(rv)));
            feed.send(put("a", rv));
        }
        feed.send(Change::Listed(Epoch(1)));
        let told = [put("a", 3), Change::Listed(Epoch(1)), Change::Reached(Rv::new(3))];
        assert_eq!(mailbox.drain(), told);
        assert!(mailbox.drain().is_empty());
    }

    #[test]
    fn a_reader_that_left_is_forgotten() {
        let feed = Feed::default();
        drop(feed.subscribe(Arc::default()));
        feed.send(put("a", 1));
        assert!(feed.readers.lock().unwrap().is_empty());
    }
}
