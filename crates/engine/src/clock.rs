//! The only place that reads the clock. Everything else gets a [`Now`].

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// A moment, as wall time for users and clusters and as steady time for waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Wall time; may jump.
    pub wall: Timestamp,
    /// Time since the process started, also while the machine sleeps; never jumps back.
    pub steady: Duration,
}

impl Now {
    /// How far wall time is ahead of steady time: constant, until the clock is set.
    #[must_use]
    pub fn ahead(&self) -> SignedDuration {
        let steady = SignedDuration::try_from(self.steady).unwrap_or(SignedDuration::MAX);
        self.wall.as_duration().saturating_sub(steady)
    }
}

/// Where moments come from; tests pass their own.
pub trait Clock: Send + Sync {
    /// This moment.
    fn now(&self) -> Now;
}

/// The machine's clock.
pub struct SystemClock {
    start: Duration,
}

impl SystemClock {
    /// A clock whose steady time starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self { start: boot_time() }
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the room that reads the clock")]
    fn now(&self) -> Now {
        Now { wall: Timestamp::now(), steady: boot_time().saturating_sub(self.start) }
    }
}

/// `CLOCK_BOOTTIME`: `Instant` stops while a machine sleeps, and a lease does not.
fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}
