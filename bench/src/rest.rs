//! What a subject does when there is nothing to do: for a while among running pods, and when it starts among them.
//! Must not touch a pod in that time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::Request;
use kube::client::Body;
use serde::Deserialize;
use tapestry_cluster::body::Asked;
use tapestry_cluster::{Cluster as Client, kind};
use tokio::time::sleep;

use crate::figures::{Cold, Idle, Rest, Who};
use crate::load::Load;
use crate::machine::cpu_ms;
use crate::observers::LABEL;
use crate::scene::{Phase, clear, raise};
use crate::stage::Stage;

/// From the last pod running until all processes are expected to be idle.
const SETTLE: Duration = Duration::from_secs(5);
/// How long a subject may take to start.
const START: Duration = Duration::from_mins(2);
const PAGE: u32 = 500;

/// Raises the pods of a load, then measures `idle` seconds of nothing and, if asked, a cold start; clears the pods.
pub(crate) async fn rest(stage: &Stage, who: Who, load: Load, idle: u64, cold: bool, run: u32) -> Result<Rest> {
    let pods = load.pods;
    load.create_sources(run, &stage.clients[0]).await?;
    let mut subject = stage.start(who).await?;
    raise(stage, &subject, load, run).await.map_err(|error| subject.blame(error))?;
    sleep(SETTLE).await;
    let mut rest = Rest { who, pods, dependents: load.dependents, idle: None, cold: None };
    if idle > 0 {
        let phase = Phase::begin(stage, &subject).await?;
        sleep(Duration::from_secs(idle)).await;
        let (calls, cost) = phase.close(pods).await?;
        let cpu_percent = Duration::from_millis(cost.spent.subject_ms).as_secs_f64() / cost.spent.wall.as_secs_f64();
        rest.idle = Some(Idle { seconds: idle, cpu_percent: cpu_percent * 100.0, memory: cost.memory, calls });
    }
    if cold {
        subject.stop().await?;
        let lists_ms = read_lists(stage).await?;
        let marks = stage.mark().await?;
        subject = stage.launch(who).await?;
        let ready = subject.ready(START).await?;
        sleep(SETTLE).await;
        rest.cold = Some(Cold {
            ready_ms: ready.as_secs_f64() * 1000.0,
            cpu_ms: cpu_ms(subject.pid)?,
            memory: subject.memory()?,
            calls: stage.calls(who, &marks, pods).await?,
            lists_ms,
        });
    }
    clear(stage, &subject, load, run).await.map_err(|error| subject.blame(error))?;
    subject.stop().await?;
    load.delete_sources(run, &stage.clients[0]).await?;
    Ok(rest)
}

/// The best of three: how long the API servers need to say what is there.
async fn read_lists(stage: &Stage) -> Result<f64> {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let begin = Instant::now();
        tokio::try_join!(read_list(&stage.clients[0]), read_list(&stage.clients[1]))?;
        best = best.min(begin.elapsed());
    }
    Ok(best.as_secs_f64() * 1000.0)
}

async fn read_list(client: &Client) -> Result<()> {
    #[derive(Deserialize)]
    struct List {
        metadata: Meta,
    }
    #[derive(Deserialize)]
    struct Meta {
        #[serde(rename = "continue", default)]
        more: String,
    }
    let mut more = String::new();
    loop {
        let path = kind::POD.path(None, None);
        let request = Request::get(format!("{path}?limit={PAGE}&labelSelector={LABEL}{more}")).body(Body::empty())?;
        let (code, _, body) = client.exchange(request, START, Asked::Page).await.map_err(anyhow::Error::msg)?;
        ensure!(code == 200, "listing pods: HTTP {code}");
        let list: List = serde_json::from_slice(&body)?;
        if list.metadata.more.is_empty() {
            return Ok(());
        }
        more = format!("&continue={}", list.metadata.more);
    }
}
