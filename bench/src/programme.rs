//! What `bench run` measures, as data: loads whose rates may follow from what the same run has measured before.
//! Must not measure anything itself.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::figures::{Figures, Who};
use crate::load::Load;
use crate::sources::Dependents;

/// Pods of a burst.
const PODS: u32 = 1000;
/// Pods of a burst in which each has a ConfigMap and a Secret of its own.
const PODS_WITH_OWN: u32 = 500;
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
    /// What the pods of the rest name: the most that was asked for.
    pub(crate) rest_dependents: Dependents,
}

/// One load, before its rate is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// `None`: as many as the rate gives in half a minute.
    pub(crate) pods: Option<u32>,
    pub(crate) pace: Pace,
    pub(crate) round: u32,
    pub(crate) rtt: Duration,
    pub(crate) dependents: Dependents,
    /// The subjects take turns in going first, from load to load and from round to round: bare first where this is odd.
    pub(crate) turn: u32,
}

/// What people ask for.
#[derive(Debug, Default)]
pub(crate) struct Wishes<'a> {
    pub(crate) pods: Option<u32>,
    pub(crate) paces: &'a [Pace],
    pub(crate) rounds: u32,
    pub(crate) dependents: &'a [Dependents],
    pub(crate) idle: Option<u64>,
    pub(crate) cold: bool,
    pub(crate) rtt: Option<Duration>,
}

impl Programme {
    /// The standard measurement if nothing is asked for, else just that. With a distance every burst is carried over it once more.
    pub(crate) fn of(wishes: &Wishes<'_>) -> Self {
        let rest = wishes.idle.is_some() || wishes.cold;
        let plain = wishes.dependents.is_empty() && wishes.rounds <= 1;
        let standard = wishes.pods.is_none() && wishes.paces.is_empty() && !rest && wishes.rtt.is_none() && plain;
        let burst = Pace::PerSecond(0);
        if standard {
            let step = |(turn, (pods, pace, round))| {
                let (rtt, dependents) = (Duration::ZERO, Dependents::None);
                Step { pods, pace, round, rtt, dependents, turn }
            };
            let bursts = [1, 2].map(|round| (Some(PODS), burst, round));
            let rates = SHARES.map(|share| (None, Pace::Share(share), 1));
            let loads = (0..).zip(bursts.into_iter().chain(rates)).map(step).collect();
            return Self { loads, rest: Some((PODS, 60, true)), rest_dependents: Dependents::None };
        }
        let paces = if wishes.paces.is_empty() && !rest { &[burst][..] } else { wishes.paces };
        let dependents = if wishes.dependents.is_empty() { &[Dependents::None][..] } else { wishes.dependents };
        let distances: Vec<Duration> = [Some(Duration::ZERO), wishes.rtt].into_iter().flatten().collect();
        let mut loads = Vec::new();
        // Loads are compared with each other too: a round of all of them, then the next one.
        for round in 1..=wishes.rounds {
            let mut turn = round - 1;
            for dependents in dependents.iter().copied() {
                for (pace, rtt) in paces.iter().flat_map(|pace| distances.iter().map(|rtt| (*pace, *rtt))) {
                    let pods = wishes.pods.or_else(|| usual_pods(pace, dependents));
                    loads.push(Step { pods, pace, round, rtt, dependents, turn });
                    turn += 1;
                }
            }
        }
        let rest = rest.then(|| (wishes.pods.unwrap_or(PODS), wishes.idle.unwrap_or(0), wishes.cold));
        let rest_dependents = dependents.iter().copied().max().unwrap_or(Dependents::None);
        Self { loads, rest, rest_dependents }
    }

    /// The most pods at a time, as far as it is known before anything is measured.
    pub(crate) fn most_pods(&self) -> u32 {
        let loads = self.loads.iter().map(|step| step.pods.unwrap_or(PODS));
        loads.chain(self.rest.map(|rest| rest.0)).max().unwrap_or(0)
    }
}

/// `None`: it follows from the rate.
fn usual_pods(pace: Pace, dependents: Dependents) -> Option<u32> {
    match (pace, dependents) {
        (Pace::Share(_), _) => None,
        (Pace::PerSecond(_), Dependents::Own) => Some(PODS_WITH_OWN),
        (Pace::PerSecond(_), Dependents::None | Dependents::Shared) => Some(PODS),
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
        Ok(Load { pods, rate, round: self.round, share, rtt_ms, dependents: self.dependents })
    }
}

/// So many percent of what bare reached in its bursts without distance, in whole pods per second.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is a small positive number")]
fn share(percent: u32, figures: &Figures) -> Result<u32> {
    let of_bare = |load: Load| load.rate == 0 && load.rtt_ms == 0 && load.dependents == Dependents::None;
    let bursts = figures.scenes.iter().filter(|scene| scene.who == Who::Bare && of_bare(scene.load));
    let best = bursts.map(|scene| scene.raised.pods_per_second).reduce(f64::max);
    let best = best.context("a rate in percent needs a burst of bare before it: --rate 0,50% --who syncer,bare")?;
    Ok(((best * f64::from(percent) / 100.0).round() as u32).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: Pace = Pace::PerSecond(0);

    fn step(pods: u32, pace: Pace, round: u32, turn: u32) -> Step {
        Step { pods: Some(pods), pace, round, rtt: Duration::ZERO, dependents: Dependents::None, turn }
    }

    #[test]
    fn without_wishes_it_is_the_standard_measurement() {
        let standard = Programme::of(&Wishes { rounds: 1, ..Wishes::default() });
        let share = |(turn, share)| Step { pods: None, ..step(0, Pace::Share(share), 1, turn) };
        let shares: Vec<Step> = (2..).zip(SHARES).map(share).collect();
        assert_eq!(standard.loads[..2], [step(1000, BURST, 1, 0), step(1000, BURST, 2, 1)]);
        assert_eq!(standard.loads[2..], shares);
        assert_eq!(standard.rest, Some((1000, 60, true)));
    }

    #[test]
    fn wishes_are_met_and_no_more() {
        let of = |pods, paces: &[Pace], rounds, idle, cold| {
            let programme = Programme::of(&Wishes { pods, paces, rounds, idle, cold, ..Wishes::default() });
            (programme.loads, programme.rest)
        };
        assert_eq!(of(Some(5000), &[], 1, None, false), (vec![step(5000, BURST, 1, 0)], None));
        let twenty = Pace::PerSecond(20);
        let twice = vec![step(7, BURST, 1, 0), step(7, twenty, 1, 1), step(7, BURST, 2, 1), step(7, twenty, 2, 2)];
        assert_eq!(of(Some(7), &[BURST, twenty], 2, None, false), (twice, None));
        assert_eq!(of(Some(7), &[], 1, None, true), (Vec::new(), Some((7, 0, true))));
        assert_eq!(of(None, &[], 1, Some(5), false), (Vec::new(), Some((1000, 5, false))));
    }

    #[test]
    fn with_a_distance_each_load_is_carried_near_and_far() {
        let rtt = Duration::from_millis(100);
        let wishes = Wishes { pods: Some(7), rounds: 1, rtt: Some(rtt), ..Wishes::default() };
        let near = step(7, BURST, 1, 0);
        assert_eq!(Programme::of(&wishes).loads, [near, Step { rtt, turn: 1, ..near }]);
    }

    #[test]
    fn loads_that_differ_in_what_pods_name_take_turns_and_so_do_the_subjects() {
        let all = [Dependents::None, Dependents::Own];
        let programme = Programme::of(&Wishes { rounds: 2, dependents: &all, ..Wishes::default() });
        let none = step(1000, BURST, 1, 0);
        let own = Step { dependents: Dependents::Own, ..step(500, BURST, 1, 1) };
        let again = |step: Step| Step { round: 2, turn: step.turn + 1, ..step };
        assert_eq!(programme.loads, [none, own, again(none), again(own)]);
        assert_eq!((programme.rest, programme.rest_dependents), (None, Dependents::Own));
    }

    #[test]
    fn a_pace_is_pods_per_second_or_a_share() {
        assert_eq!("20".parse(), Ok(Pace::PerSecond(20)));
        assert_eq!("50%".parse(), Ok(Pace::Share(50)));
        assert!("fast".parse::<Pace>().unwrap_err().contains("such as 50%"));
    }
}
