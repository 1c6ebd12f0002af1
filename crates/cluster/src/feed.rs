//! From one watch to many readers: each decodes for itself and has a mailbox in which the latest change per object wins.
//! Never blocks the watch and never holds more than one change per object and reader (law 11).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::FutureExt as _;
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

/// Counts complete starts of one watch. It says nothing of another watch: a reader that replaces one begins a new table.
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

impl<R> Change<R> {
    /// Whether it only says how far the watch has come.
    #[must_use]
    pub fn is_progress(&self) -> bool {
        match self {
            Self::Reached(_) => true,
            Self::Put(..) | Self::Gone { .. } | Self::Listed(_) | Self::Unserved => false,
        }
    }
}

/// One reader's end.
pub struct Mailbox<R> {
    held: Arc<Mutex<Held<R>>>,
}

/// The writing end of one mailbox.
pub struct Sender<R> {
    held: Arc<Mutex<Held<R>>>,
    bell: Arc<Notify>,
}

struct Held<R> {
    changes: IndexMap<Uid, Change<R>>,
    /// The latest state of the whole kind: a complete list, or that it is not served.
    whole: Option<Change<R>>,
    reached: Option<Rv>,
}

/// A mailbox and its writing end. `bell` is rung whenever something waits; several mailboxes may share one.
#[must_use]
pub fn mailbox<R: Row>(bell: Arc<Notify>) -> (Sender<R>, Mailbox<R>) {
    let held = Arc::new(Mutex::new(Held { changes: IndexMap::new(), whole: None, reached: None }));
    (Sender { held: Arc::clone(&held), bell }, Mailbox { held })
}

/// All readers of one watch, whatever their rows are.
#[derive(Default)]
pub struct Feed {
    readers: Mutex<Vec<Reader>>,
    /// watch <--a reader has come-- subscribe
    came: Notify,
    /// How many objects of the watch cannot be fully read at the moment.
    pub(crate) unreadable: Gauge,
    /// Whether what it brings can be relied on.
    pub vitals: Vitals,
}

struct Reader {
    /// A list that began before the reader came is not complete for it: until the next one begins it is told nothing.
    served: bool,
    inlet: Box<dyn Inlet + Send>,
}

/// What a watch says of all its objects at once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word {
    /// See [`Change::Listed`].
    Listed(Epoch),
    /// See [`Change::Unserved`].
    Unserved,
    /// See [`Change::Reached`].
    Reached(Rv),
}

/// What a watch itself has to know of an object.
pub(crate) struct Outline {
    pub(crate) uid: Uid,
    pub(crate) rv: Rv,
    /// By one of its readers at least.
    pub(crate) unreadable: bool,
}

/// What came of handing an object to all readers.
#[derive(Default)]
pub(crate) struct Offered {
    /// `None` when no reader keeps anything of it.
    pub(crate) outline: Option<Outline>,
    /// Why one of them cannot decode it.
    pub(crate) bad: Option<serde_json::Error>,
}

/// Where one reader's changes go in, whatever its rows are.
trait Inlet {
    /// Decodes an object that is there, or has left the watch, and puts it into the mailbox; `None` if the reader does not keep it.
    fn offer(&self, object: &Bytes, left: bool, epoch: Epoch) -> Result<Option<Outline>, serde_json::Error>;
    fn tell(&self, word: Word);
    /// Whether the reader has dropped its mailbox.
    fn closed(&self) -> bool;
}

struct Decoder<R, D> {
    decode: D,
    sender: Sender<R>,
}

impl<R: Row, D: Fn(&Bytes) -> Result<Option<R>, serde_json::Error>> Inlet for Decoder<R, D> {
    fn offer(&self, object: &Bytes, left: bool, epoch: Epoch) -> Result<Option<Outline>, serde_json::Error> {
        let Some(row) = (self.decode)(object)? else { return Ok(None) };
        let outline = Outline { uid: row.uid().clone(), rv: row.rv(), unreadable: row.unreadable() };
        // On a selector watch, losing the label also sends DELETED, without deletionTimestamp.
        let gone = |row: R| Change::Gone { proven: row.deleting(), row };
        self.sender.send(if left { gone(row) } else { Change::Put(row, epoch) });
        Ok(Some(outline))
    }

    fn tell(&self, word: Word) {
        self.sender.send(match word {
            Word::Listed(epoch) => Change::Listed(epoch),
            Word::Unserved => Change::Unserved,
            Word::Reached(rv) => Change::Reached(rv),
        });
    }

    fn closed(&self) -> bool {
        // The other half is the mailbox.
        Arc::strong_count(&self.sender.held) == 1
    }
}

impl Feed {
    /// A new reader: `decode` makes rows of objects, and `None` of those that are not its to know. It runs in the task of the
    /// watch, so that only rows are kept. However late the reader comes, it is told everything: the watch starts over for it.
    pub fn subscribe<R: Row>(
        &self,
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + 'static,
        bell: Arc<Notify>,
    ) -> Mailbox<R> {
        let (sender, mailbox) = mailbox(bell);
        let mut readers = self.readers();
        readers.push(Reader { served: false, inlet: Box::new(Decoder { decode, sender }) });
        // Before a list can begin that serves it.
        self.came.notify_one();
        mailbox
    }

    /// A list begins. Says whether it is the first one for a reader.
    pub(crate) fn begin(&self) -> bool {
        let mut readers = self.readers();
        let _ = self.came.notified().now_or_never();
        let new = readers.iter().any(|reader| !reader.served);
        readers.iter_mut().for_each(|reader| reader.served = true);
        new
    }

    /// Waits for a reader that no list has served.
    pub(crate) async fn new_reader(&self) {
        self.came.notified().await;
    }

    /// Hands an object to every reader: it is there, or has left the watch.
    pub(crate) fn offer(&self, object: &Bytes, left: bool, epoch: Epoch) -> Offered {
        let mut offered = Offered::default();
        self.each(|inlet| match inlet.offer(object, left, epoch) {
            Ok(found) => {
                let (known, found) = (offered.outline.take(), found);
                let unreadable = [&known, &found].into_iter().flatten().any(|outline| outline.unreadable);
                offered.outline = known.or(found).map(|outline| Outline { unreadable, ..outline });
            }
            Err(error) => offered.bad = Some(error),
        });
        offered
    }

    /// Tells every reader.
    pub(crate) fn tell(&self, word: Word) {
        self.each(|inlet| inlet.tell(word));
    }

    /// Every reader that a list has served; those that have left are forgotten.
    fn each(&self, mut serve: impl FnMut(&dyn Inlet)) {
        let mut readers = self.readers();
        readers.retain(|reader| !reader.inlet.closed());
        readers.iter().filter(|reader| reader.served).for_each(|reader| serve(&*reader.inlet));
    }

    fn readers(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Row> Sender<R> {
    /// Puts a change into the mailbox.
    pub fn send(&self, change: Change<R>) {
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
mod tests;
