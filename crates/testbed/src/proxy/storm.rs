//! Random faults: one seed always gives the same sequence of pause, fault and duration.
//! Must not read the time or entropy; what an episode hits depends on the traffic.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep, timeout_at};

use super::fault::Fault;
use super::request_info::Requests;
use super::{FaultProxy, Injection};

/// An endless sequence of episodes.
#[derive(Debug, Clone)]
pub struct Storm {
    seed: u64,
    number: u32,
    rng: Rng,
}

/// One fault between two pauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Episode {
    /// Time without faults before it.
    pub pause: Duration,
    /// What it does.
    pub disturbance: Disturbance,
    /// Whether all connections are reset when it begins, so that watches have to start again, too.
    pub resets: bool,
    /// How long.
    pub lasts: Duration,
}

/// What an episode does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disturbance {
    /// [`FaultProxy::cut`].
    Cut,
    /// [`FaultProxy::inject`].
    Inject(Fault, Requests),
}

impl Storm {
    /// The storm of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, number: 0, rng: Rng::with_seed(seed) }
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.u64(from..to))
    }

    fn disturbance(&mut self) -> Disturbance {
        let some = self.rng.u32(1..5);
        let requests = |rng: &mut Rng, all: Requests| match rng.u32(..3) {
            0 => all.of("pods"),
            1 => all.of("nodes"),
            _ => all,
        };
        let (fault, all) = match self.rng.u32(..15) {
            0 => return Disturbance::Cut,
            1 => (Fault::Freeze, Requests::all()),
            2 => (Fault::Delay(self.millis(10, 800)), Requests::all()),
            3 => (Fault::Reset, Requests::all().after(some)),
            4 => (Fault::TooManyRequests(self.rng.u32(..3)), Requests::all()),
            5 => (Fault::InternalError, Requests::all()),
            6 => (Fault::Expired, Requests::lists()),
            7 => (Fault::ExpiredEvent, Requests::watches().times(some)),
            8 => (Fault::Truncated, Requests::watches().times(some)),
            9 => (Fault::LostAnswer, Requests::writes()),
            10 => (Fault::Trickle(512, self.millis(1, 5)), Requests::all()),
            11 => (Fault::HtmlNotFound, Requests::all()),
            12 => (Fault::EmptyNotFound, Requests::all()),
            13 => (Fault::ResetConnection, Requests::all().times(some)),
            _ => (Fault::FreezeConnection, Requests::all().times(1)),
        };
        Disturbance::Inject(fault, requests(&mut self.rng, all))
    }
}

impl Iterator for Storm {
    type Item = Episode;

    fn next(&mut self) -> Option<Episode> {
        self.number += 1;
        let (pause, disturbance) = (self.millis(100, 1_500), self.disturbance());
        Some(Episode { pause, disturbance, resets: self.rng.bool(), lasts: self.millis(100, 3_000) })
    }
}

impl FaultProxy {
    /// Runs a storm on this proxy, called `name` in the log; without faults again at `until`.
    pub async fn run_storm(&self, name: &str, mut storm: Storm, until: Instant) {
        tracing::info!(proxy = name, seed = storm.seed, "a storm begins");
        let running = async {
            for episode in &mut storm {
                sleep(episode.pause).await;
                tracing::info!(proxy = name, %episode, "episode");
                // Lifted also when the storm ends in the middle of it.
                let _active = Active::new(self, &episode.disturbance);
                if episode.resets && episode.disturbance != Disturbance::Cut {
                    self.reset();
                }
                sleep(episode.lasts).await;
            }
        };
        let _ = timeout_at(until, running).await;
        tracing::info!(proxy = name, seed = storm.seed, episodes = storm.number, "the storm is over");
    }
}

struct Active<'a> {
    proxy: &'a FaultProxy,
    _injection: Option<Injection>,
}

impl<'a> Active<'a> {
    fn new(proxy: &'a FaultProxy, disturbance: &Disturbance) -> Self {
        let injection = match disturbance {
            Disturbance::Cut => {
                proxy.cut();
                None
            }
            Disturbance::Inject(fault, requests) => Some(proxy.inject(fault.clone(), requests.clone())),
        };
        Self { proxy, _injection: injection }
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.proxy.restore();
    }
}

impl fmt::Display for Episode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.disturbance {
            Disturbance::Cut => write!(f, "cut")?,
            Disturbance::Inject(fault, requests) => write!(f, "{fault} on {requests}")?,
        }
        let resets = if self.resets { " and resets" } else { "" };
        write!(f, "{resets}, for {:?} after {:?}", self.lasts, self.pause)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_run_each_time() {
        let story = |seed| Storm::new(seed).take(50).collect::<Vec<_>>();
        assert_eq!(story(7), story(7));
        assert_ne!(story(7), story(8));
    }

    #[test]
    fn every_fault_has_its_turn() {
        let faults: BTreeSet<String> = Storm::new(1)
            .take(500)
            .map(|episode| match episode.disturbance {
                Disturbance::Cut => "Cut".to_owned(),
                Disturbance::Inject(fault, _) => format!("{fault:?}").split('(').next().unwrap_or_default().to_owned(),
            })
            .collect();
        assert_eq!(faults.len(), 15, "{faults:?}");
    }
}
