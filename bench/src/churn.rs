//! `bench churn`: pods come and go, round after round, in one process: does its memory grow?
//! Must not restart the subject in between.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use crate::bare::IN_FLIGHT;
use crate::figures::churn::{ChurnRound, Churned};
use crate::figures::{Figures, Who};
use crate::load::Load;
use crate::machine::load_average;
use crate::report::Telling;
use crate::run::find_tapestry;
use crate::scene::{clear, raise};
use crate::sources::Dependents;
use crate::stage::{Plan, Stage};
use crate::subject::Subject;

/// After the last pod of a round: what is still done about it ends, and what was freed goes back.
const SETTLE: Duration = Duration::from_secs(2);

/// Create and delete pods round after round with one process, and look at its memory after each.
#[derive(clap::Args, Clone)]
#[command(after_help = "The default, 20 rounds of 1000 pods, takes 8 minutes on 2 cores.")]
pub(crate) struct Churn {
    /// Pods of each round
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pods: u32,
    /// How often they are created and deleted
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    rounds: u32,
    /// What each pod names
    #[arg(long, value_name = "KIND", default_value = "none")]
    dependents: Dependents,
    /// Who carries the pods
    #[arg(long, default_value = "syncer")]
    who: Who,
    /// Physical nodes
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    nodes: usize,
    /// The `tapestry` binary [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    tapestry: Option<PathBuf>,
    /// Keep the subject's log here
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    #[command(flatten)]
    telling: Telling,
}

impl Churn {
    pub(crate) async fn run(self) -> Result<()> {
        self.telling.check()?;
        let load_before = load_average();
        eprintln!("starting two clusters");
        let plan = Plan {
            nodes: self.nodes,
            pods: self.pods,
            tapestry: find_tapestry(self.tapestry.as_ref(), self.who == Who::Syncer)?,
            logs: self.logs.as_deref(),
            distant: false,
            bare_in_flight: IN_FLIGHT,
        };
        let stage = Box::pin(Stage::build(plan)).await?;
        let mut figures = Figures::new(stage.machine(load_before).await?, self.nodes);
        let load = Load { dependents: self.dependents, ..Load::burst(self.pods) };
        let mut churned = Churned { who: self.who, load, rounds: Vec::new() };
        let failed = self.play(&stage, &mut churned).await.err();
        figures.churn = Some(churned);
        self.telling.tell(&figures, failed)
    }

    async fn play(&self, stage: &Stage, churned: &mut Churned) -> Result<()> {
        let subject = stage.start(self.who).await?;
        for round in 0..self.rounds {
            let played = play_round(stage, &subject, churned.load, round).await;
            let round = played.map_err(|error| subject.blame(error)).with_context(|| format!("round {}", round + 1))?;
            eprintln!("round {}: {:.1} MiB", churned.rounds.len() + 1, crate::budget::mib(round.memory.now));
            churned.rounds.push(round);
        }
        subject.stop().await
    }
}

async fn play_round(stage: &Stage, subject: &Subject<'_>, load: Load, run: u32) -> Result<ChurnRound> {
    load.create_sources(run, &stage.clients[0]).await?;
    let raised = raise(stage, subject, load, run).await?;
    let cleared = clear(stage, subject, load, run).await?;
    load.delete_sources(run, &stage.clients[0]).await?;
    sleep(SETTLE).await;
    Ok(ChurnRound {
        seconds: [f64::from(load.pods) / raised.pods_per_second, cleared.seconds],
        cpu_ms_per_pod: raised.cost.cpu_ms_per_pod + cleared.cost.cpu_ms_per_pod,
        memory: subject.memory()?,
    })
}
