//! How often another client changed or deleted a copy and we restored it: after a few times it is left alone for a while, so that two
//! clients do not write against each other for ever (law 11).

use std::time::Duration;

/// A copy that is restored so often in this time is not restored any more.
const MOST: usize = 3;
const WITHIN: Duration = Duration::from_mins(10);

/// When a copy was restored, as far as that still counts.
#[derive(Debug, Default)]
pub(super) struct Reverts(Vec<Duration>);

impl Reverts {
    /// It was restored now.
    pub(super) fn count(&mut self, now: Duration) {
        self.0.retain(|then| *then + WITHIN > now);
        self.0.push(now);
    }

    /// Until when it is left alone, if it is.
    pub(super) fn contested_until(&self, now: Duration) -> Option<Duration> {
        let oldest = *self.0.len().checked_sub(MOST).and_then(|first| self.0.get(first))?;
        Some(oldest + WITHIN).filter(|until| *until > now)
    }
}
