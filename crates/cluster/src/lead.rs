//! Leadership as calls carry it: a token of the term in which a call was planned, checked again right before it is sent.
//! Knows nothing of elections; the election keeps the fence.

use std::fmt;
use std::sync::Arc;

/// Knows when a term ends. Must not block: the gate asks it before every call.
pub trait Fence: Send + Sync {
    /// Whether this term lasts at this moment. Once it has ended it never lasts again.
    fn lasts(&self, term: u64) -> bool;
}

/// The term in which a call was planned.
#[derive(Clone)]
pub struct Lead(Option<(Arc<dyn Fence>, u64)>);

impl Lead {
    /// Without an election: elections are off, or the call is the election's own.
    #[must_use]
    pub fn always() -> Self {
        Self(None)
    }

    /// This term behind this fence.
    #[must_use]
    pub fn new(fence: Arc<dyn Fence>, term: u64) -> Self {
        Self(Some((fence, term)))
    }

    /// Which term; without an election there is one, number 0.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.0.as_ref().map_or(0, |(_, term)| *term)
    }

    /// Whether it lasts at this moment.
    #[must_use]
    pub fn lasts(&self) -> bool {
        self.0.as_ref().is_none_or(|(fence, term)| fence.lasts(*term))
    }
}

impl fmt::Debug for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {}", self.term())
    }
}
