//! The flags of leader election, as in Kubernetes' own components.

use std::time::Duration;

use clap::ArgAction;
use jiff::SignedDuration;
use tapestry_engine::lead::{LeaseTimings, own_identity};

use crate::failure::Failure;

/// Flags of every daemon that runs with several replicas.
#[derive(clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(crate) struct Election {
    /// Work only while this process is the leader, so that several replicas can run
    #[arg(
        long = "leader-elect",
        value_name = "BOOL",
        default_value_t = true,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = ArgAction::Set
    )]
    elect: bool,
    /// Name of this process in the Lease; two running processes must not share it [default: host name and a random part]
    #[arg(long = "leader-elect-identity", value_name = "NAME")]
    identity: Option<String>,
    /// How long the others wait before they take over from a leader that does not renew
    #[arg(long = "leader-elect-lease-duration", value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    lease_duration: Duration,
    /// How long after its last renewal a leader stops working
    #[arg(long = "leader-elect-renew-deadline", value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    renew_deadline: Duration,
    /// How often a leader renews, and a candidate retries
    #[arg(long = "leader-elect-retry-period", value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    retry_period: Duration,
}

impl Election {
    /// Name and timings of the candidate; `None` to lead without election.
    pub(crate) fn parse(self) -> Result<Option<(String, LeaseTimings)>, Failure> {
        let timings =
            LeaseTimings { lease: self.lease_duration, renew_deadline: self.renew_deadline, retry: self.retry_period };
        timings.check().map_err(|bad| {
            Failure::new("leader election cannot work with these flags", bad, "see the flags --leader-elect-…")
                .wrong_usage()
        })?;
        let identity = self.identity.filter(|name| !name.is_empty()).unwrap_or_else(own_identity);
        Ok(self.elect.then_some((identity, timings)))
    }
}

pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration: SignedDuration = text.parse().map_err(|_| "not a duration; use 30s or 5m".to_owned())?;
    Duration::try_from(duration).map_err(|_| "a duration cannot be negative".to_owned())
}
