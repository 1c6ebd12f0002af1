//! Until when we lead: written by the election, read by the gate right before every call and by the loop before it plans.
//! Must not block: a few numbers and the clock.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tapestry_cluster::{Lead, lead};
use tokio::sync::watch;

use crate::clock::Clock;

/// The end of the current term, by a clock that keeps running while the machine sleeps.
pub struct Fence {
    clock: Arc<dyn Clock>,
    term: AtomicU64,
    /// Nanoseconds of steady time; 0 when we do not lead.
    until: AtomicU64,
    /// election --leadership gained or lost--> loops
    bell: watch::Sender<()>,
    /// Why we cannot take part in the election.
    barred: Mutex<Option<Arc<str>>>,
    /// Counts how often we could not.
    episode: AtomicU64,
}

/// Marks the term of a stand-in, which is never the term of a leader.
const STAND_IN: u64 = 1 << 63;

/// The term of a stand-in: it lasts while we cannot take part in the election.
struct StandIn(Arc<Fence>);

impl Fence {
    /// The fence of a process that does not lead.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let (term, until, episode) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { clock, term, until, bell: watch::Sender::new(()), barred: Mutex::default(), episode }
    }

    /// The last term in which we led; 0 before the first.
    pub(crate) fn last_term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    /// We lead in this term, until this steady time.
    pub(crate) fn open(&self, term: u64, until: Duration) {
        // The term first: a reader of the new end must not take it for the end of an old term.
        self.term.store(term, Ordering::Release);
        self.until.store(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// We do not lead.
    pub(crate) fn shut(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// We cannot take part in the election, and why; or we can again. Returns whether that has changed.
    pub(crate) fn bar(&self, why: Option<&str>) -> bool {
        let mut barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
        if barred.is_some() == why.is_some() {
            return false;
        }
        if why.is_some() {
            self.episode.fetch_add(1, Ordering::AcqRel);
        }
        *barred = why.map(Into::into);
        true
    }

    fn barred(&self) -> Option<Arc<str>> {
        self.barred.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The current term of a stand-in.
    fn stand_in_term(&self) -> u64 {
        STAND_IN | self.episode.load(Ordering::Acquire)
    }

    /// Leadership was gained or lost.
    pub(crate) fn ring(&self) {
        self.bell.send_replace(());
    }
}

impl lead::Fence for Fence {
    fn lasts(&self, term: u64) -> bool {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        self.term.load(Ordering::Acquire) == term && self.clock.now().steady < until
    }
}

impl lead::Fence for StandIn {
    fn lasts(&self, term: u64) -> bool {
        self.0.barred().is_some() && self.0.stand_in_term() == term
    }
}

/// Whether we lead, for a loop. Every loop has its own clone.
#[derive(Clone)]
pub struct Leadership {
    /// `None` without an election.
    election: Option<(Arc<Fence>, watch::Receiver<()>)>,
    /// Whether the loop also acts, as a stand-in, while we cannot take part in the election and no process leads.
    stands_in: bool,
}

impl Leadership {
    /// Without an election: always leads.
    #[must_use]
    pub fn always() -> Self {
        Self { election: None, stands_in: false }
    }

    pub(crate) fn behind(fence: Arc<Fence>) -> Self {
        let changes = fence.bell.subscribe();
        Self { election: Some((fence, changes)), stands_in: false }
    }

    /// For a loop that acts also while the API server does not let us take part in the election: its model is told so
    /// ([`crate::Model::stand_in`]) and plans only what does no harm when several processes do it.
    #[must_use]
    pub fn or_stand_in(self) -> Self {
        Self { stands_in: true, ..self }
    }

    /// The current term; `None` while another process leads.
    #[must_use]
    pub fn lead(&self) -> Option<Lead> {
        let Some((fence, _)) = &self.election else { return Some(Lead::always()) };
        let term = fence.term.load(Ordering::Acquire);
        let leads = Lead::new(Arc::clone(fence) as Arc<dyn lead::Fence>, term);
        let stand_in = || Lead::new(Arc::new(StandIn(Arc::clone(fence))), fence.stand_in_term());
        let stand_in = || Some(stand_in()).filter(|lead| self.stands_in && lead.lasts());
        Some(leads).filter(Lead::lasts).or_else(stand_in)
    }

    /// Why this term is one of a stand-in; `None` for a leader's term.
    pub(crate) fn why_stand_in(&self, lead: &Lead) -> Option<Arc<str>> {
        let (fence, _) = self.election.as_ref().filter(|_| lead.term() & STAND_IN != 0)?;
        // If the refusal is over by now, the term is too.
        Some(fence.barred().unwrap_or_default())
    }

    /// Returns when leadership may have been gained or lost since the last time.
    pub async fn changed(&mut self) {
        if let Some((_, changes)) = &mut self.election
            && changes.changed().await.is_ok()
        {
            return;
        }
        pending::<()>().await;
    }
}
