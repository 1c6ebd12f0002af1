//! Until when we lead: written by the election, asked by the gate right before every call and by the loop before it plans.
//! Must not wait for anybody: two numbers and the clock.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tapestry_cluster::{Lead, lead};
use tokio::sync::watch;

use crate::clock::Clock;

/// The end of the present term, by a clock that goes on while the machine sleeps.
pub struct Fence {
    clock: Arc<dyn Clock>,
    term: AtomicU64,
    /// Nanoseconds of steady time; 0 when we do not lead.
    until: AtomicU64,
    /// election --we lead, or no more--> loops
    bell: watch::Sender<()>,
}

impl Fence {
    /// A fence before somebody who does not lead.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, term: AtomicU64::new(0), until: AtomicU64::new(0), bell: watch::Sender::new(()) }
    }

    /// The last term in which we led; 0 before the first.
    pub(crate) fn last_term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    /// We lead in this term, until this steady time.
    pub(crate) fn open(&self, term: u64, until: Duration) {
        // The term first: who reads the new end must not take it for that of an old term.
        self.term.store(term, Ordering::Release);
        self.until.store(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// We do not lead.
    pub(crate) fn shut(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Leadership has come or gone.
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

/// Whether we lead, as a loop asks. Every loop has a clone of its own.
#[derive(Clone)]
pub struct Leadership(Option<(Arc<Fence>, watch::Receiver<()>)>);

impl Leadership {
    /// Of one who has no rival.
    #[must_use]
    pub fn always() -> Self {
        Self(None)
    }

    pub(crate) fn behind(fence: Arc<Fence>) -> Self {
        let changes = fence.bell.subscribe();
        Self(Some((fence, changes)))
    }

    /// The present term; `None` while another one leads.
    #[must_use]
    pub fn lead(&self) -> Option<Lead> {
        let Some((fence, _)) = &self.0 else { return Some(Lead::always()) };
        let term = fence.term.load(Ordering::Acquire);
        Some(Lead::new(Arc::clone(fence) as Arc<dyn lead::Fence>, term)).filter(Lead::lasts)
    }

    /// Returns when leadership may have come or gone since the last time.
    pub async fn changed(&mut self) {
        if let Some((_, changes)) = &mut self.0
            && changes.changed().await.is_ok()
        {
            return;
        }
        pending::<()>().await;
    }
}
