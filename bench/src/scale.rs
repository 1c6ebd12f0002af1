//! `bench scale`: one syncer of many nodes on which many pods of others run. How soon its virtual nodes are there and right,
//! what they cost while nothing happens, what one pod's change costs, what a restart costs. Must not print figures; `report` does.

mod bare;
mod changes;
mod crowd;
mod lookout;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use tapestry_engine::clock::{Clock as _, SystemClock};
use tapestry_testbed::eventually;
use tokio::time::sleep;

use self::crowd::Crowd;
use crate::figures::scale::{Converged, Pace, Rested, Scaled, is_lease_write, is_ours, seconds, writing};
use crate::figures::{Cold, Figures, Who};
use crate::fold;
use crate::machine::{cpu_ms, load_average};
use crate::report::Telling;
use crate::run::find_tapestry;
use crate::scene::Phase;
use crate::stage::{Plan, Stage};
use crate::subject::Subject;

/// From the last write until rest is expected.
const SETTLE: Duration = Duration::from_secs(5);
/// A start has looked at every Lease by then: each is renewed every ten seconds.
const AFTER_START: Duration = Duration::from_secs(15);
/// How long starting and converging may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// Start one virtual and one physical cluster with many nodes and pods, and one syncer between them.
#[derive(clap::Args, Clone)]
#[command(
    after_help = "Counts in memory first, as `bench fold` does. On 2 cores 1000 nodes and 10000 pods take a quarter of an hour.

Examples:
  bench scale                              1000 nodes, 10000 pods
  bench scale --nodes 50 --pods 500        a try
  bench scale --record                     keep it in bench/RESULTS.md"
)]
pub(crate) struct Scale {
    /// Physical nodes
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    nodes: usize,
    /// Pods of others on them
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pods: u32,
    /// Pods that come and go one by one
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    changes: u32,
    /// Comings and goings per second
    #[arg(long, value_name = "RATE", default_value_t = 10)]
    rate: u32,
    /// Seconds of rest
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    idle: u64,
    /// The `tapestry` binary [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    tapestry: Option<PathBuf>,
    /// Keep the syncer's log here
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    #[command(flatten)]
    telling: Telling,
}

impl Scale {
    pub(crate) async fn run(self) -> Result<()> {
        self.telling.check()?;
        let load_before = load_average();
        let tapestry = find_tapestry(self.tapestry.as_ref(), true)?;
        // Before the clusters: they would take its processor time.
        let fold = fold::measure()?;
        eprintln!("starting two clusters, one with {} nodes", self.nodes);
        let pods = self.pods + self.changes;
        let stage = Box::pin(Stage::build(Plan {
            nodes: self.nodes,
            pods,
            tapestry,
            logs: self.logs.as_deref(),
            bare_in_flight: crate::bare::IN_FLIGHT,
            distant: false,
        }))
        .await?;
        let mut figures = Figures::new(stage.machine(load_before).await?, self.nodes);
        figures.fold = Some(fold);
        let mut scaled = Scaled { nodes: self.nodes, pods: self.pods, ..Scaled::default() };
        let failed = Box::pin(self.measure(&stage, &mut scaled)).await.err();
        figures.scale = Some(scaled);
        self.telling.tell(&figures, failed)
    }

    /// Measures everything; what was measured before a failure is kept.
    async fn measure(&self, stage: &Stage, scaled: &mut Scaled) -> Result<()> {
        let crowd = Crowd { nodes: self.nodes, pods: self.pods };
        eprintln!("creating {} pods of others", self.pods);
        crowd.settle_in(stage).await?;
        eprintln!("bare: the same nodes and leases, created and removed");
        scaled.bare = Some(bare::create(stage).await.context("the bare client")?);
        eprintln!("syncer: first start");
        let (subject, converged) = converge(stage, &crowd).await?;
        eprintln!("  {:.1} s, {} MiB", converged.seconds, converged.memory.peak / 1024);
        scaled.converged = Some(converged);
        let measured = self.watch_over(stage, &subject, scaled).await;
        measured.map_err(|error| subject.blame(error))?;
        subject.stop().await?;
        eprintln!("syncer: restarted");
        scaled.cold = Some(restart_cold(stage, &crowd).await.context("a cold start")?);
        Ok(())
    }

    /// The syncer has converged: a rest, then changes.
    async fn watch_over(&self, stage: &Stage, subject: &Subject<'_>, scaled: &mut Scaled) -> Result<()> {
        sleep(SETTLE).await;
        eprintln!("{} s of rest", self.idle);
        scaled.rest = Some(rest(stage, subject, Duration::from_secs(self.idle)).await.context("at rest")?);
        eprintln!("{} pods come and go, {} per second", self.changes, self.rate);
        let changes = changes::Visits { count: self.changes, rate: self.rate };
        scaled.changes = Some(changes.play(stage, subject, scaled.rest.as_ref()).await.context("changes")?);
        Ok(())
    }
}

/// Starts the syncer where none ever ran; gives it back when everything is as it should be.
async fn converge<'a>(stage: &'a Stage, crowd: &Crowd) -> Result<(Subject<'a>, Converged)> {
    let marks = stage.mark().await?;
    let began = now();
    let subject = stage.launch(Who::Syncer).await?;
    // The process is too young to have used any.
    let before = stage.processes(&subject)?.read()?;
    eventually("all virtual nodes are there, right and alive", PATIENCE, async || crowd.is_lent(stage).await)
        .await
        .map_err(|error| subject.blame(error))?;
    let spent = before.until(stage.processes(&subject)?.read()?)?;
    let memory = subject.memory()?;
    let requests = stage.requests(&marks).await?;
    let (first, last) = writing(&requests[0]).context("the audit log tells of no node")?;
    let converged = Converged {
        seconds: seconds(began, last),
        writing_seconds: seconds(first, last),
        cpu_ms: cpu_ms(subject.pid)?,
        memory,
        calls: crate::figures::Calls::count(Who::Syncer, [&requests[0], &requests[1]], 1),
        others_percent: spent.others_percent,
    };
    Ok((subject, converged))
}

async fn rest(stage: &Stage, subject: &Subject<'_>, time: Duration) -> Result<Rested> {
    let phase = Phase::begin(stage, subject).await?;
    sleep(time).await;
    let (calls, cost, requests) = phase.tell_all(1).await?;
    let renewals = requests[0].0.iter().filter(|request| is_ours(request) && is_lease_write(request));
    let wall = cost.spent.wall.as_secs_f64();
    Ok(Rested {
        seconds: wall,
        cpu_percent: Duration::from_millis(cost.spent.subject_ms).as_secs_f64() / wall * 100.0,
        memory: cost.memory,
        leases: Pace::of(renewals.map(|request| request.received).collect(), wall),
        calls,
        others_percent: cost.spent.others_percent,
    })
}

/// A start among nodes that are as they should be.
async fn restart_cold(stage: &Stage, crowd: &Crowd) -> Result<Cold> {
    let mut lists = Duration::MAX;
    for _ in 0..3 {
        let begin = Instant::now();
        crowd.read_lists(stage).await?;
        lists = lists.min(begin.elapsed());
    }
    let marks = stage.mark().await?;
    let subject = stage.launch(Who::Syncer).await?;
    let ready = subject.ready(PATIENCE).await?;
    sleep(AFTER_START).await;
    let cold = Cold {
        ready_ms: ready.as_secs_f64() * 1000.0,
        cpu_ms: cpu_ms(subject.pid)?,
        memory: subject.memory()?,
        calls: stage.calls(Who::Syncer, &marks, 1).await?,
        lists_ms: lists.as_secs_f64() * 1000.0,
    };
    subject.stop().await?;
    Ok(cold)
}

/// As the audit logs tell time.
fn now() -> Timestamp {
    SystemClock::start().now().wall
}
