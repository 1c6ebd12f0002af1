//! `bench run`: which scenes are played, by whom, in which order. Must not print figures; `report` does.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bare::IN_FLIGHT;
use crate::figures::{Figures, Who};
use crate::load::Load;
use crate::machine::load_average;
use crate::programme::{Pace, Programme, Wishes};
use crate::report::Telling;
use crate::sources::Dependents;
use crate::stage::{Plan, Stage};
use crate::{report, rest, scene};

/// Pods of a first burst that is not counted: API servers are slower while their caches and heaps grow, and in the first large
/// burst of their lives they end watches as too slow, whichever subject carries it.
const WARM_UP: u32 = 1000;

/// Start one virtual and one physical cluster, carry pods with each subject in turn, print what it took.
#[derive(clap::Args, Clone)]
#[command(
    after_help = "Without --pods, --rate, --rounds, --dependents, --idle, --cold and --rtt: the standard measurement (10 minutes on 2 cores): bursts of
1000 pods twice, half a minute each at 25 %, 50 % and 80 % of the pods/s that bare reached in them, then 1000 pods at
rest for a minute and a cold start among them. Deletion is always measured. The subjects take turns in going first.

Examples:
  bench                                    the standard measurement
  bench run --record                       the same, and keep it in bench/RESULTS.md
  bench run --pods 5000                    one burst
  bench run --pods 500 --rate 0,20 --who bare
  bench run --rate 0,50%                   a burst, and then half of what bare reached in it
  bench run --rtt 100ms                    a burst, and the same with 100 ms between the clusters
  bench run --rounds 5 --dependents none,shared,own
                                           bursts five times each, compared by their medians (15 minutes)
  bench run --pods 10000 --cold            only a start among 10000 pods
  bench run --cold --dependents own        the same among 1000 pods that have a ConfigMap and a Secret each"
)]
pub(crate) struct Run {
    /// Pods of each load [default: 1000, or 500 with dependents of their own]
    #[arg(long, value_name = "COUNT")]
    pods: Option<u32>,
    /// Pods per second of each load, 0 for a burst, 50% for a share of what bare reached in the burst [default: 0]
    #[arg(long, value_name = "RATE", value_delimiter = ',')]
    rate: Vec<Pace>,
    /// How often each load is played; medians are compared
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    rounds: u32,
    /// What each pod names: loads of every kind are played, and rests with the last of none, shared, own [default: none]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    dependents: Vec<Dependents>,
    /// Seconds of rest among running pods
    #[arg(long, value_name = "SECONDS")]
    idle: Option<u64>,
    /// Restart each subject among running pods
    #[arg(long)]
    cold: bool,
    /// Carry each load once more with this round trip to the physical cluster, such as 100ms
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    rtt: Option<Duration>,
    /// Who carries the pods
    #[arg(long, value_delimiter = ',', default_values = ["syncer", "bare"])]
    who: Vec<Who>,
    /// Calls that bare may have in flight, to both clusters together: does the servers' CPU per pod depend on it?
    #[arg(long, value_name = "COUNT", default_value_t = IN_FLIGHT)]
    bare_in_flight: usize,
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
        let plan = Plan {
            nodes: self.nodes,
            pods: programme.most_pods(),
            tapestry: self.tapestry()?,
            logs: self.logs.as_deref(),
            distant: self.rtt.is_some(),
            bare_in_flight: self.bare_in_flight,
        };
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
        let warm_up = Load { dependents: programme.rest_dependents, ..Load::burst(WARM_UP.min(programme.most_pods())) };
        for who in &who {
            eprintln!("warming up: {}", who.name());
            scene::play(stage, *who, warm_up, next()).await?;
        }
        for step in &programme.loads {
            let load = step.load(figures)?;
            let mut turns = who.clone();
            if step.turn % 2 == 1 {
                turns.reverse();
            }
            for who in turns {
                eprintln!("{load}: {}", who.name());
                let scene = scene::play(stage, who, load, next()).await.with_context(|| load.to_string())?;
                eprintln!("{}", report::summary(&scene));
                figures.scenes.push(scene);
            }
        }
        stage.set_round_trip(Duration::ZERO);
        if let Some((pods, idle, cold)) = programme.rest {
            let load = Load { dependents: programme.rest_dependents, ..Load::burst(pods) };
            for who in &who {
                // The bare client has nothing that it could do at rest: not worth a minute beside the syncer.
                let idle = if *who == Who::Bare && self.who.contains(&Who::Syncer) { 0 } else { idle };
                eprintln!("{pods} pods at rest: {}", who.name());
                figures.rests.push(rest::rest(stage, *who, load, idle, cold, next()).await.context("at rest")?);
            }
        }
        Ok(())
    }

    fn programme(&self) -> Programme {
        let Self { pods, rounds, idle, cold, rtt, .. } = *self;
        Programme::of(&Wishes { pods, paces: &self.rate, rounds, dependents: &self.dependents, idle, cold, rtt })
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

/// `100ms`
fn parse_time(text: &str) -> Result<Duration, String> {
    let time: jiff::SignedDuration = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    Duration::try_from(time).map_err(|error| error.to_string())
}
