//! Trouble by chance: from one seed always the same sequence of pause, fault and duration.
//! Must not ask for the time or for entropy; what a gust hits depends on what happens to pass.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep, timeout_at};

use super::asked::Requests;
use super::fault::Fault;
use super::{Line, Trouble};

/// A sequence of gusts without end.
#[derive(Debug, Clone)]
pub struct Storm {
    seed: u64,
    number: u32,
    rng: Rng,
}

/// One trouble between two pauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gust {
    /// Peace before it.
    pub pause: Duration,
    /// What it does.
    pub blow: Blow,
    /// Whether all connections are reset when it begins, so that also those who watch must ask anew.
    pub resets: bool,
    /// How long.
    pub lasts: Duration,
}

/// What a gust does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blow {
    /// [`Line::cut`].
    Cut,
    /// [`Line::trouble`].
    Trouble(Fault, Requests),
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

    fn blow(&mut self) -> Blow {
        let some = self.rng.u32(1..5);
        let requests = |rng: &mut Rng, all: Requests| match rng.u32(..3) {
            0 => all.of("pods"),
            1 => all.of("nodes"),
            _ => all,
        };
        let (fault, all) = match self.rng.u32(..13) {
            0 => return Blow::Cut,
            1 => (Fault::Silence, Requests::all()),
            2 => (Fault::Delay(self.millis(10, 800)), Requests::all()),
            3 => (Fault::Reset, Requests::all().after(some)),
            4 => (Fault::Busy(self.rng.u32(..3)), Requests::all()),
            5 => (Fault::Broken, Requests::all()),
            6 => (Fault::Expired, Requests::lists()),
            7 => (Fault::ExpiredEvent, Requests::watches().times(some)),
            8 => (Fault::Truncated, Requests::watches().times(some)),
            9 => (Fault::Lost, Requests::writes()),
            10 => (Fault::Trickle(512, self.millis(1, 5)), Requests::all()),
            11 => (Fault::StrayPage, Requests::all()),
            _ => (Fault::StrayObject, Requests::all()),
        };
        Blow::Trouble(fault, requests(&mut self.rng, all))
    }
}

impl Iterator for Storm {
    type Item = Gust;

    fn next(&mut self) -> Option<Gust> {
        self.number += 1;
        let (pause, blow) = (self.millis(100, 1_500), self.blow());
        Some(Gust { pause, blow, resets: self.rng.bool(), lasts: self.millis(100, 3_000) })
    }
}

impl Line {
    /// Lets a storm rage on this line, called `name` in the log; whole again at `until`.
    pub async fn rage(&self, name: &str, mut storm: Storm, until: Instant) {
        tracing::info!(line = name, seed = storm.seed, "a storm begins");
        let raging = async {
            for gust in &mut storm {
                sleep(gust.pause).await;
                tracing::info!(line = name, %gust, "gust");
                // Lifted also when the storm ends in the middle of it.
                let _blown = Blown::new(self, &gust.blow);
                if gust.resets && gust.blow != Blow::Cut {
                    self.reset();
                }
                sleep(gust.lasts).await;
            }
        };
        let _ = timeout_at(until, raging).await;
        tracing::info!(line = name, seed = storm.seed, gusts = storm.number, "the storm is over");
    }
}

struct Blown<'a> {
    line: &'a Line,
    _trouble: Option<Trouble>,
}

impl<'a> Blown<'a> {
    fn new(line: &'a Line, blow: &Blow) -> Self {
        let trouble = match blow {
            Blow::Cut => {
                line.cut();
                None
            }
            Blow::Trouble(fault, requests) => Some(line.trouble(fault.clone(), requests.clone())),
        };
        Self { line, _trouble: trouble }
    }
}

impl Drop for Blown<'_> {
    fn drop(&mut self) {
        self.line.mend();
    }
}

impl fmt::Display for Gust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.blow {
            Blow::Cut => write!(f, "cut")?,
            Blow::Trouble(fault, requests) => write!(f, "{fault} on {requests}")?,
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
    fn a_seed_tells_the_same_story_each_time() {
        let story = |seed| Storm::new(seed).take(50).collect::<Vec<_>>();
        assert_eq!(story(7), story(7));
        assert_ne!(story(7), story(8));
    }

    #[test]
    fn every_fault_has_its_turn() {
        let faults: BTreeSet<String> = Storm::new(1)
            .take(500)
            .map(|gust| match gust.blow {
                Blow::Cut => "Cut".to_owned(),
                Blow::Trouble(fault, _) => format!("{fault:?}").split('(').next().unwrap_or_default().to_owned(),
            })
            .collect();
        assert_eq!(faults.len(), 13, "{faults:?}");
    }
}
