//! Our own `ClusterBinding`: which binding is in force, whether its deletion was meant, and what its status says.
//! Watches one object in the virtual cluster; writes `physicalClusterUID`, `virtualClusterUID`, our finalizer, and what `status`
//! says of the rest. This file folds facts in; `plan` reads all other rooms to report their state.

pub(crate) mod deletion;
mod plan;
mod row;
mod status;

use std::sync::Arc;
use std::time::Duration;

use tapestry_api::Binding;
use tapestry_api::binding::RESUME_DELETION;
use tapestry_cluster::feed::{Change, Epoch, Row as _};
use tapestry_cluster::{Answer, Refusal, Rv, Side, Uid};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now, Table, reasons};

pub use self::row::BindingRow;
use crate::pair::Key;
use crate::serving::Serving;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// It left the watch: is it gone?
        LookForBinding,
        /// Which clusters it binds, the first time they are seen.
        PinIdentity,
        /// Ours is put there before the first virtual node, and goes with the last.
        Finalizer,
        /// How many pods ended that were not asked to: counted before they end.
        CountEnds,
        /// Phase, conditions and figures.
        ReportConnection,
    }
}

/// Our binding, as far as it is known.
pub(crate) struct Bindings {
    uid: Box<str>,
    /// The object itself: ours, or none.
    table: Table<BindingRow>,
    bound: Option<Bound>,
    /// Whether the virtual cluster serves bindings.
    serving: Serving,
    /// When the status was last written.
    reported: Option<Duration>,
}

/// The binding in force. Its object is in the table for as long.
pub(crate) struct Bound {
    /// The last valid one; the object may say something else by now that is not.
    pub(crate) binding: Arc<Binding>,
    deletion: Deletion,
    /// It is out of sight, which proves nothing: it holds until the API server says that it is gone (law 1). With the version
    /// from which on what it says counts again.
    doubted: Option<Rv>,
    /// The binding by an answer that is older than what we know. That comes from a restored cluster.
    told: Option<Box<BindingRow>>,
}

/// Whether a binding is being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deletion {
    No,
    /// Yes, and perhaps only because its definition is.
    Unconfirmed,
    /// Yes, and its user meant it: its definition stays, or the user said so.
    Confirmed,
}

/// What a fact about the binding changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum News {
    /// Nothing.
    Nothing,
    /// What its status and annotations say, of the breaker for one.
    Status,
    /// What is in force.
    Terms,
}

impl Bound {
    /// The identity of the cluster that it was made for; `None` until it was first seen.
    pub(crate) fn pin(&self, side: Side) -> Option<&str> {
        let pinned = &self.binding.pinned;
        match side {
            Side::Virtual => pinned.virtual_cluster.as_deref(),
            Side::Physical => pinned.physical_cluster.as_deref(),
        }
    }

    /// The binding is deleted by a user who meant it: everything goes back, in order.
    pub(crate) fn leaving(&self) -> bool {
        self.deletion == Deletion::Confirmed
    }

    /// It is being deleted, and whether its user meant that is not known, or not so.
    pub(crate) fn deletion_unconfirmed(&self) -> bool {
        self.deletion == Deletion::Unconfirmed
    }
}

impl Bindings {
    /// Nothing is known yet of the binding of this UID.
    pub(crate) fn new(uid: &str) -> Self {
        Self { uid: uid.into(), table: Table::default(), bound: None, serving: Serving::default(), reported: None }
    }

    /// The binding in force.
    pub(crate) fn bound(&self) -> Option<&Bound> {
        self.bound.as_ref()
    }

    /// The object, valid or not.
    pub(crate) fn row(&self) -> Option<&BindingRow> {
        self.table.iter().next()
    }

    /// Folds in what the watch says of it.
    pub(crate) fn observe(&mut self, change: Change<BindingRow>, now: Now, dirty: &mut Dirty<Key>) -> News {
        match change {
            Change::Put(row, epoch) => return self.take(row, Some(epoch), now, dirty),
            Change::Gone { row, proven: true } => self.lose(&row.uid, row.rv),
            // At this version it went: an answer that is older was given before.
            Change::Gone { row, .. } => self.doubt(&row.uid, row.rv, dirty),
            Change::Listed(epoch) => {
                for uid in self.table.listed(epoch) {
                    match self.table.get(&uid).map(BindingRow::rv) {
                        Some(rv) if self.bound.is_some() => self.doubt(&uid, rv, dirty),
                        _ => drop(self.table.remove(&uid)),
                    }
                }
            }
            Change::Unserved | Change::Reached(_) => {}
        }
        News::Nothing
    }

    fn doubt(&mut self, uid: &Uid, from: Rv, dirty: &mut Dirty<Key>) {
        if let Some(bound) = self.bound.as_mut().filter(|_| uid.as_str() == &*self.uid) {
            bound.doubted = Some(from);
            dirty.mark(Key::Binding);
        }
    }

    /// After the binding is deleted only the Leases of its nodes are renewed; the manager removes those.
    fn lose(&mut self, uid: &Uid, rv: Rv) {
        self.table.remove_proven(uid, rv);
        if uid.as_str() == &*self.uid && self.bound.take().is_some() {
            tracing::warn!("binding deleted: only renewing node Leases");
        }
    }

    fn take(&mut self, row: BindingRow, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) -> News {
        // Another binding of the same name is another origin: not ours to serve.
        if row.uid.as_str() != &*self.uid {
            return News::Nothing;
        }
        let was_valid = self.row().is_none_or(|known| known.parsed.is_ok());
        if let Put::Stale = self.table.put(row.clone(), epoch) {
            if let Some(bound) = &mut self.bound {
                bound.told = Some(Box::new(row));
            }
            return News::Nothing;
        }
        dirty.mark(Key::Binding);
        if let (Err(invalid), true) = (&row.parsed, was_valid) {
            tracing::warn!(%invalid, "the binding is invalid: what it said before stays in force");
        }
        let before = self.bound.as_ref().map(|before| before.deletion);
        let deletion = match before {
            _ if !row.deleting => Deletion::No,
            Some(Deletion::Confirmed) => Deletion::Confirmed,
            _ if row.resume.as_deref() == Some(RESUME_DELETION) => Deletion::Confirmed,
            _ => Deletion::Unconfirmed,
        };
        let changed = match (&mut self.bound, row.parsed) {
            (None, Err(_)) => return News::Status,
            (None, Ok(binding)) => {
                self.bound = Some(Bound { binding, deletion, doubted: None, told: None });
                true
            }
            (Some(bound), parsed) => {
                let binding = parsed.unwrap_or_else(|_| Arc::clone(&bound.binding));
                let changed = bound.binding != binding || bound.deletion != deletion;
                bound.binding = binding;
                (bound.deletion, bound.told) = (deletion, None);
                bound.doubted = bound.doubted.filter(|from| epoch.is_none() && row.rv < *from);
                changed
            }
        };
        if row.deleting && before.is_none_or(|before| before == Deletion::No) {
            self.serving.lose(now);
            dirty.mark(Key::BindingServing);
        }
        if changed { News::Terms } else { News::Status }
    }

    /// Folds in how a call about it ended.
    pub(crate) fn settle(&mut self, why: Why, done: Result<Answer, Refusal>, now: Now, dirty: &mut Dirty<Key>) -> News {
        let gone = matches!(done, Err(Refusal::Gone));
        let answered = done.is_ok();
        let row = done.ok().and_then(|answer| BindingRow::decode(&answer.object).ok().flatten());
        match why {
            Why::LookForBinding => self.settle_look(row.as_ref(), gone),
            Why::ReportConnection => {
                if answered {
                    self.reported = Some(now.steady);
                }
            }
            Why::PinIdentity | Why::Finalizer | Why::CountEnds => {}
        }
        row.map_or(News::Nothing, |row| self.take(row, None, now, dirty))
    }

    /// It was looked for: this is what has its name, or nothing has.
    fn settle_look(&mut self, found: Option<&BindingRow>, gone: bool) {
        let known = self.bound().and_then(|_| self.row()).map(|row| (row.uid.clone(), row.rv));
        // When another one has the name by now, the one we asked for is gone.
        let lost = |uid: &Uid| gone || found.is_some_and(|found| found.uid != *uid);
        if let Some((uid, rv)) = known.filter(|(uid, _)| lost(uid)) {
            self.lose(&uid, rv);
        }
    }
}

#[cfg(test)]
mod tests;
