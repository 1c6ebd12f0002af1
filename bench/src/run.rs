//! `bench run`: which scenes are played, by whom, in which order. Must not print figures; `report` does.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::figures::{Figures, Who};
use crate::load::Load;
use crate::machine::load_average;
use crate::report::Telling;
use crate::stage::{Plan, Stage};
use crate::{report, rest, scene};

/// Pods of a first burst that nobody looks at: API servers are slower while their caches and heaps grow.
const WARM_UP: u32 = 200;
const PODS: u32 = 1000;

/// Start one virtual and one physical cluster, carry pods with each subject in turn, print what it took.
#[derive(clap::Args, Clone)]
#[command(
    after_help = "Without --pods, --rate, --idle and --cold: the standard measurement (8 minutes on 2 cores): bursts of 1000
pods twice, 1000 pods at 50/s, 600 at 20/s, then 1000 pods at rest for a minute and a cold start among them.
Deletion is always measured. The subjects take turns in going first.

Examples:
  bench                                    the standard measurement
  bench run --record                       the same, and keep it in bench/RESULTS.md
  bench run --pods 5000                    one burst
  bench run --pods 500 --rate 0,20 --who bare
  bench run --pods 10000 --cold            only a start among 10000 pods"
)]
pub(crate) struct Run {
    /// Pods of each load [default: 1000]
    #[arg(long, value_name = "COUNT")]
    pods: Option<u32>,
    /// Pods per second of each load, 0 for a burst [default: 0]
    #[arg(long, value_name = "RATE", value_delimiter = ',')]
    rate: Vec<u32>,
    /// How often each load is played
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    rounds: u32,
    /// Seconds of rest among running pods
    #[arg(long, value_name = "SECONDS")]
    idle: Option<u64>,
    /// Start each subject anew among running pods
    #[arg(long)]
    cold: bool,
    /// Who carries the pods
    #[arg(long, value_delimiter = ',', default_values = ["syncer", "bare"])]
    who: Vec<Who>,
    /// Physical nodes
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    nodes: usize,
    /// The `tapestry` binary [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    tapestry: Option<PathBuf>,
    /// Keep the subjects' logs here
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    #[command(flatten)]
    telling: Telling,
}

/// What is played.
#[derive(Debug, PartialEq, Eq)]
struct Programme {
    loads: Vec<Load>,
    /// Pods, seconds of idleness, and whether a cold start follows.
    rest: Option<(u32, u64, bool)>,
}

impl Run {
    pub(crate) async fn run(self) -> Result<()> {
        self.telling.check()?;
        let (figures, failed) = self.measure().await?;
        self.telling.tell(&figures, failed)
    }

    /// Measures everything; what was measured before a failure is kept.
    async fn measure(&self) -> Result<(Figures, Option<anyhow::Error>)> {
        let programme = self.programme();
        let load_before = load_average();
        eprintln!("starting two clusters");
        let most = programme.loads.iter().map(|load| load.pods).chain(programme.rest.map(|rest| rest.0)).max();
        let plan =
            Plan { nodes: self.nodes, pods: most.unwrap_or(0), tapestry: self.tapestry()?, logs: self.logs.as_deref() };
        let stage = Box::pin(Stage::build(plan)).await?;
        let mut figures = Figures::new(stage.machine(load_before).await?, self.nodes);
        let failed = self.play(&stage, &programme, &mut figures).await.err();
        Ok((figures, failed))
    }

    async fn play(&self, stage: &Stage, programme: &Programme, figures: &mut Figures) -> Result<()> {
        let mut who = self.who.clone();
        // The syncer first: its virtual nodes serve the bare client too, not the other way round.
        who.sort_unstable();
        who.dedup();
        let mut run = 0..;
        let mut next = || run.next().unwrap_or_default();
        for who in &who {
            eprintln!("warming up: {}", who.name());
            let pods = WARM_UP.min(programme.loads.iter().map(|load| load.pods).max().unwrap_or(WARM_UP));
            scene::play(stage, *who, Load { pods, rate: 0, round: 1 }, next()).await?;
        }
        for load in &programme.loads {
            for who in &who {
                eprintln!("{load}: {}", who.name());
                let scene = scene::play(stage, *who, *load, next()).await.with_context(|| load.to_string())?;
                eprintln!("{}", report::summary(&scene));
                figures.scenes.push(scene);
            }
            who.reverse();
        }
        if let Some((pods, idle, cold)) = programme.rest {
            for who in &who {
                // The bare client has nothing that it could do at rest: not worth a minute beside the syncer.
                let idle = if *who == Who::Bare && self.who.contains(&Who::Syncer) { 0 } else { idle };
                eprintln!("{pods} pods at rest: {}", who.name());
                figures.rests.push(rest::rest(stage, *who, pods, idle, cold, next()).await.context("at rest")?);
            }
        }
        Ok(())
    }

    fn programme(&self) -> Programme {
        let rest = self.idle.is_some() || self.cold;
        if self.pods.is_none() && self.rate.is_empty() && !rest {
            let load = |pods, rate, round| Load { pods, rate, round };
            let loads = vec![load(PODS, 0, 1), load(PODS, 0, 2), load(PODS, 50, 1), load(600, 20, 1)];
            return Programme { loads, rest: Some((PODS, 60, true)) };
        }
        let pods = self.pods.unwrap_or(PODS);
        let rates = if self.rate.is_empty() && !rest { &[0][..] } else { &self.rate };
        let rounds = |rate: &u32| (1..=self.rounds).map(move |round| (*rate, round)).collect::<Vec<_>>();
        let loads = rates.iter().flat_map(rounds).map(|(rate, round)| Load { pods, rate, round });
        Programme { loads: loads.collect(), rest: rest.then(|| (pods, self.idle.unwrap_or(0), self.cold)) }
    }

    fn tapestry(&self) -> Result<PathBuf> {
        find_tapestry(self.tapestry.as_ref(), self.who.contains(&Who::Syncer))
    }
}

/// The `tapestry` binary that was named, or the one beside us.
pub(crate) fn find_tapestry(named: Option<&PathBuf>, needed: bool) -> Result<PathBuf> {
    let here = std::env::current_exe().context("finding our own executable")?;
    let path = named.cloned().unwrap_or_else(|| here.with_file_name("tapestry"));
    if needed && !path.is_file() {
        bail!("no {}: build it (cargo build --release -p tapestry) or name it with --tapestry", path.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn programme(args: &str) -> Programme {
        #[derive(clap::Parser)]
        struct Args {
            #[command(flatten)]
            run: Run,
        }
        Args::parse_from(["bench"].into_iter().chain(args.split_whitespace())).run.programme()
    }

    fn load(pods: u32, rate: u32, round: u32) -> Load {
        Load { pods, rate, round }
    }

    #[test]
    fn who_asks_for_nothing_gets_the_standard_measurement() {
        let standard = programme("--who bare");
        assert_eq!(standard.loads.len(), 4);
        assert_eq!(standard.rest, Some((1000, 60, true)));
    }

    #[test]
    fn who_asks_for_something_gets_that_and_no_more() {
        assert_eq!(programme("--pods 5000"), Programme { loads: vec![load(5000, 0, 1)], rest: None });
        let twice = vec![load(7, 0, 1), load(7, 0, 2), load(7, 20, 1), load(7, 20, 2)];
        assert_eq!(programme("--pods 7 --rate 0,20 --rounds 2"), Programme { loads: twice, rest: None });
        assert_eq!(programme("--pods 7 --cold"), Programme { loads: Vec::new(), rest: Some((7, 0, true)) });
        assert_eq!(programme("--idle 5"), Programme { loads: Vec::new(), rest: Some((1000, 5, false)) });
    }
}
