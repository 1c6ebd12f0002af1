//! What `bench run` measures, as data: loads whose rates may follow from what the same run has measured before.
//! Must not measure anything itself.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::figures::{Figures, Who};
use crate::load::Load;

/// Pods of a burst.
const PODS: u32 = 1000;
/// Of what bare reached: far from, well below, and close to what the machine can do.
const SHARES: [u32; 3] = [25, 50, 80];
/// How long a rate that follows from a burst is kept up, if the number of pods is not given.
const SECONDS: u32 = 30;
/// So many pods at least: p99 of fewer says nothing.
const FEWEST: u32 = 100;

/// How fast pods are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Pods per second; 0: as fast as the API server takes them.
    PerSecond(u32),
    /// Percent of the pods per second that bare reached in the bursts of the same run.
    Share(u32),
}

impl FromStr for Pace {
    type Err = String;

    /// `0`, `20`, `50%`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |error| format!("{error}; write pods per second, such as 20, 0 for a burst, or a share, such as 50%");
        match text.strip_suffix('%') {
            Some(percent) => percent.parse().map(Self::Share).map_err(bad),
            None => text.parse().map(Self::PerSecond).map_err(bad),
        }
    }
}

/// What is measured.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Programme {
    pub(crate) loads: Vec<Step>,
    /// Pods, seconds of idleness, and whether a cold start follows.
    pub(crate) rest: Option<(u32, u64, bool)>,
}

/// One load, before its rate is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// `None`: as many as the rate gives in half a minute.
    pub(crate) pods: Option<u32>,
    pub(crate) pace: Pace,
    pub(crate) round: u32,
    pub(crate) rtt: Duration,
}

/// What people ask for.
#[derive(Debug, Default)]
pub(crate) struct Wishes<'a> {
    pub(crate) pods: Option<u32>,
    pub(crate) paces: &'a [Pace],
    pub(crate) rounds: u32,
    pub(crate) idle: Option<u64>,
    pub(crate) cold: bool,
    pub(crate) rtt: Option<Duration>,
}

impl Programme {
    /// The standard measurement if nothing is asked for, else just that. With a distance every burst is carried over it once more.
    pub(crate) fn of(wishes: &Wishes<'_>) -> Self {
        let rest = wishes.idle.is_some() || wishes.cold;
        let standard = wishes.pods.is_none() && wishes.paces.is_empty() && !rest && wishes.rtt.is_none();
        let step = |pods, pace, round| Step { pods, pace, round, rtt: Duration::ZERO };
        let burst = Pace::PerSecond(0);
        if standard {
            let bursts = [1, 2].map(|round| step(Some(PODS), burst, round));
            let rates = SHARES.map(|share| step(None, Pace::Share(share), 1));
            return Self { loads: bursts.into_iter().chain(rates).collect(), rest: Some((PODS, 60, true)) };
        }
        let paces = if wishes.paces.is_empty() && !rest { &[burst][..] } else { wishes.paces };
        let pods = |pace| match pace {
            Pace::Share(_) => wishes.pods,
            Pace::PerSecond(_) => Some(wishes.pods.unwrap_or(PODS)),
        };
        let mut loads = Vec::new();
        for pace in paces {
            let near = |round| step(pods(*pace), *pace, round);
            loads.extend((1..=wishes.rounds).map(near));
            if let Some(rtt) = wishes.rtt {
                loads.extend((1..=wishes.rounds).map(|round| Step { rtt, ..near(round) }));
            }
        }
        Self { loads, rest: rest.then(|| (wishes.pods.unwrap_or(PODS), wishes.idle.unwrap_or(0), wishes.cold)) }
    }

    /// The most pods at a time, as far as it is known before anything is measured.
    pub(crate) fn most_pods(&self) -> u32 {
        let loads = self.loads.iter().map(|step| step.pods.unwrap_or(PODS));
        loads.chain(self.rest.map(|rest| rest.0)).max().unwrap_or(0)
    }
}

impl Step {
    /// The load, now that the steps before it are measured.
    pub(crate) fn load(&self, figures: &Figures) -> Result<Load> {
        let (rate, share) = match self.pace {
            Pace::PerSecond(rate) => (rate, None),
            Pace::Share(percent) => (share(percent, figures)?, Some(percent)),
        };
        let pods = self.pods.unwrap_or_else(|| (rate * SECONDS).clamp(FEWEST, PODS));
        let rtt_ms = u64::try_from(self.rtt.as_millis())?;
        Ok(Load { pods, rate, round: self.round, share, rtt_ms })
    }
}

/// So many percent of what bare reached in its bursts without distance, in whole pods per second.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is a small positive number")]
fn share(percent: u32, figures: &Figures) -> Result<u32> {
    let of_bare = |load: Load| load.rate == 0 && load.rtt_ms == 0;
    let bursts = figures.scenes.iter().filter(|scene| scene.who == Who::Bare && of_bare(scene.load));
    let best = bursts.map(|scene| scene.raised.pods_per_second).reduce(f64::max);
    let best = best.context("a rate in percent needs a burst of bare before it: --rate 0,50% --who syncer,bare")?;
    Ok(((best * f64::from(percent) / 100.0).round() as u32).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: Pace = Pace::PerSecond(0);

    fn step(pods: u32, pace: Pace, round: u32) -> Step {
        Step { pods: Some(pods), pace, round, rtt: Duration::ZERO }
    }

    #[test]
    fn without_wishes_it_is_the_standard_measurement() {
        let standard = Programme::of(&Wishes { rounds: 1, ..Wishes::default() });
        let shares = SHARES.map(|share| Step { pods: None, ..step(0, Pace::Share(share), 1) });
        assert_eq!(standard.loads[..2], [step(1000, BURST, 1), step(1000, BURST, 2)]);
        assert_eq!(standard.loads[2..], shares);
        assert_eq!(standard.rest, Some((1000, 60, true)));
    }

    #[test]
    fn wishes_are_met_and_no_more() {
        let of = |pods, paces: &[Pace], rounds, idle, cold| {
            Programme::of(&Wishes { pods, paces, rounds, idle, cold, rtt: None })
        };
        assert_eq!(of(Some(5000), &[], 1, None, false), Programme { loads: vec![step(5000, BURST, 1)], rest: None });
        let twenty = Pace::PerSecond(20);
        let twice = vec![step(7, BURST, 1), step(7, BURST, 2), step(7, twenty, 1), step(7, twenty, 2)];
        assert_eq!(of(Some(7), &[BURST, twenty], 2, None, false), Programme { loads: twice, rest: None });
        assert_eq!(of(Some(7), &[], 1, None, true), Programme { loads: Vec::new(), rest: Some((7, 0, true)) });
        assert_eq!(of(None, &[], 1, Some(5), false), Programme { loads: Vec::new(), rest: Some((1000, 5, false)) });
    }

    #[test]
    fn with_a_distance_each_load_is_carried_near_and_far() {
        let rtt = Duration::from_millis(100);
        let wishes = Wishes { pods: Some(7), rounds: 1, rtt: Some(rtt), ..Wishes::default() };
        let near = step(7, BURST, 1);
        assert_eq!(Programme::of(&wishes).loads, [near, Step { rtt, ..near }]);
    }

    #[test]
    fn a_pace_is_pods_per_second_or_a_share() {
        assert_eq!("20".parse(), Ok(Pace::PerSecond(20)));
        assert_eq!("50%".parse(), Ok(Pace::Share(50)));
        assert!("fast".parse::<Pace>().unwrap_err().contains("such as 50%"));
    }
}
