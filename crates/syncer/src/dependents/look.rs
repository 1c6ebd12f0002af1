//! A copy that the watch does not show: creating it tells whether its name is free, and reading it what has the name.

use std::time::Duration;

use tapestry_cluster::{Target, Verb};
use tapestry_engine::{Plan, Reason};

/// How long a name that another object has is left alone.
const LOOK_AGAIN: Duration = Duration::from_mins(5);

/// What is known of a copy that the watch does not show.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Creating it will tell.
    #[default]
    Unknown,
    /// Its name is taken: reading it will tell by what.
    Taken,
    /// By an object that is not ours, as we saw at this time.
    Foreign(Duration),
}

impl Look {
    /// Creates it, or looks what has its name.
    pub(super) fn plan<W: Reason>(
        self,
        target: Target,
        now: Duration,
        look: W,
        create: impl FnOnce(Target) -> Plan<W>,
    ) -> Plan<W> {
        match self {
            Self::Foreign(at) if at + LOOK_AGAIN > now => Plan::Wait(at + LOOK_AGAIN),
            Self::Taken | Self::Foreign(_) => look.call(target, Verb::Peek),
            Self::Unknown => create(target),
        }
    }
}
