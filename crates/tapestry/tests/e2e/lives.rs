//! What a syncer survives: its own panic, a virtual cluster that does not answer yet; and what ends it: the deletion of its
//! binding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_cluster::connect::Trust;
use tapestry_engine::Now;
use tapestry_engine::clock::{Clock, SystemClock};
use tapestry_engine::serve::Readiness;
use tapestry_syncer::start::{Config, Meters, RunError, Syncer, user_agent};
use tapestry_testbed::eventually;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixtures::Fixture;
use crate::harness::{BINDING, Harness, pattern};
use crate::looks::{SOON, condition, taints, text, uid};
use crate::process::syncer::{Process, http};
use crate::stripped::{mended, strip};

/// The thread of the keeper in this test.
const KEEPER: &str = "keeper";

/// A clock that makes the keeper panic, or everything except the keeper.
struct FaultyClock {
    system: SystemClock,
    work: AtomicBool,
    keeper: AtomicBool,
}

impl Clock for FaultyClock {
    fn now(&self) -> Now {
        let keeper = std::thread::current().name() == Some(KEEPER);
        let faulty = if keeper { &self.keeper } else { &self.work };
        assert!(!faulty.load(Ordering::Relaxed), "what time is it?");
        self.system.now()
    }
}

/// A syncer of the harness with such a clock, with its keeper on its own thread.
struct Fragile {
    clock: Arc<FaultyClock>,
    readiness: Readiness,
    cancel: CancellationToken,
    tasks: JoinSet<Result<(), RunError>>,
    keeper: Option<tokio::runtime::Runtime>,
}

impl Fragile {
    async fn start(harness: &Harness) -> Result<Self> {
        let keeper =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name(KEEPER).enable_all().build()?;
        let agent = user_agent(&harness.name);
        let home = tapestry_cluster::Cluster::connect("virtual", &harness.virtual_kubeconfig, Trust::Operator, &agent);
        let (work, system) = (AtomicBool::new(false), SystemClock::start());
        let clock = Arc::new(FaultyClock { system, work, keeper: AtomicBool::new(false) });
        let (cancel, readiness, mut tasks) = (CancellationToken::new(), Readiness::default(), JoinSet::new());
        let (meters, given) = (Meters::register(&mut Registry::default()), Arc::clone(&clock) as Arc<dyn Clock>);
        let (told, stop, vital) = (readiness.clone(), cancel.clone(), keeper.handle().clone());
        let config = Config::new(&harness.name, home.await?, meters);
        let config = Config { clock: given, readiness: told, cancel: stop, vital, ..config };
        tasks.spawn(Syncer::open(config).await?.serve());
        Ok(Self { clock, readiness, cancel, tasks, keeper: Some(keeper) })
    }

    async fn end(mut self) -> Result<()> {
        self.cancel.cancel();
        let ended = tokio::time::timeout(SOON, self.tasks.join_next()).await?;
        Ok(ended.context("it is not there")???)
    }
}

/// A runtime must not be dropped in async code, where that would block.
impl Drop for Fragile {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.shutdown_background();
        }
    }
}

/// Waits until phase and condition `Ready` of the binding say this, of its present generation.
async fn binding_is(harness: &Harness, phase: &str, ready: &str, reason: &str) -> Result<Value> {
    eventually(&format!("the binding is {phase}, {reason}"), SOON, async || {
        let binding = harness.binding().await.map_err(|error| error.to_string())?;
        let (status, said) = (&binding["status"], condition(&binding, "Ready"));
        let current = status["observedGeneration"] == binding["metadata"]["generation"];
        let told = status["phase"] == phase && said["status"] == ready && said["reason"] == reason;
        if told && current { Ok(binding) } else { Err(status.to_string()) }
    })
    .await
}

#[tokio::test]
async fn after_a_panic_leases_are_renewed_nothing_is_scheduled_and_the_work_starts_again() -> Result<()> {
    pattern("panic")
        .on(Fixture::East)
        .run_without(async |harness| {
            let syncer = Fragile::start(harness).await?;
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let (vpod, ppod) = harness.runs("web").await?;
            binding_is(harness, "Ready", "True", "Ready").await?;

            syncer.clock.work.store(true, Ordering::Relaxed);
            let told = harness.says("Connected", "False", "SyncerPanicked").await?;
            ensure!(told.contains("starts") || told.contains("started"), "{told}");
            binding_is(harness, "Failed", "False", "SyncerPanicked").await?;
            let stopped = (keys::TAINT_SYNCER_STOPPED.to_owned(), "NoSchedule".to_owned());
            harness.vnode_when(harness.node(), "is tainted", |vnode| taints(vnode).contains(&stopped)).await?;
            ensure!(!syncer.readiness.waiting_for().is_empty(), "it reports ready");
            // Also the Lease of a node that has left the keeper's watch.
            let vnode = harness.virtual_side.get("v1/Node", &harness.vnode()).await?.context("no virtual node")?;
            strip(harness).await?;
            harness.renews(3).await?;

            syncer.clock.work.store(false, Ordering::Relaxed);
            harness.says("Connected", "True", "Connected").await?;
            binding_is(harness, "Ready", "True", "Ready").await?;
            mended(harness, &vnode).await?;
            harness.vnode_when(harness.node(), "has lost the taint", |vnode| !taints(vnode).contains(&stopped)).await?;
            let (vpod_now, ppod_now) = harness.runs("web").await?;
            assert_eq!([uid(&vpod_now), uid(&ppod_now)], [uid(&vpod), uid(&ppod)]);
            harness.virtual_side.create(&harness.bound("next").build()).await?;
            harness.runs("next").await?;
            syncer.end().await
        })
        .await
}

#[tokio::test]
async fn a_keeper_that_panics_closes_readiness_and_renews_again_by_itself() -> Result<()> {
    pattern("keeper-panic")
        .on(Fixture::East)
        .run_without(async |harness| {
            let syncer = Fragile::start(harness).await?;
            harness.vnode_ready(harness.node()).await?;
            let ready = async || {
                eventually("it is ready", SOON, async || match syncer.readiness.waiting_for() {
                    lacks if lacks.is_empty() => Ok(()),
                    lacks => Err(format!("{lacks:?}")),
                })
                .await
            };
            ready().await?;
            harness.renews(1).await?;
            syncer.clock.keeper.store(true, Ordering::Relaxed);
            eventually("it is not ready", SOON, async || match syncer.readiness.waiting_for() {
                lacks if lacks.iter().any(|lack| lack.contains("Leases") && lack.contains("failed")) => Ok(()),
                lacks => Err(format!("{lacks:?}")),
            })
            .await?;
            syncer.clock.keeper.store(false, Ordering::Relaxed);
            harness.renews(2).await?;
            ready().await?;
            syncer.end().await
        })
        .await
}

#[tokio::test]
async fn law_12_a_binding_that_was_never_usable_is_failed_and_says_why() -> Result<()> {
    pattern("never")
        .on(Fixture::Still)
        .run_without(async |harness| {
            let reference = |name: &str| serde_json::json!({ "spec": { "secretRef": { "name": name } } });
            harness.virtual_side.patch(BINDING, &harness.name, &reference("")).await?;
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            let reason = eventually("the binding is Failed", SOON, async || {
                let binding = harness.binding().await.map_err(|error| error.to_string())?;
                let told = condition(&binding, "Connected");
                let failed = binding["status"]["phase"] == "Failed" && told["status"] == "False";
                if failed { Ok(text(&told["reason"]).to_owned()) } else { Err(binding["status"].to_string()) }
            })
            .await?;
            let binding = binding_is(harness, "Failed", "False", &reason).await?;
            ensure!(text(&condition(&binding, "Ready")["message"]).contains("secretRef"), "{}", binding["status"]);
            harness.virtual_side.patch(BINDING, &harness.name, &reference(&harness.name)).await?;
            binding_is(harness, "Ready", "True", "Ready").await?;
            harness.vnode_ready(harness.node()).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_syncer_started_before_its_virtual_cluster_waits_for_it() -> Result<()> {
    pattern("early")
        .on(Fixture::Still)
        .through_proxies()
        .run_without(async |harness| {
            harness.proxy(Side::Virtual).cut();
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            eventually("it says what it waits for", SOON, async || {
                match http(syncer.health, "GET", "/readyz", "").await {
                    Ok((503, said)) if said.contains("virtual cluster") => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await?;
            eventually("the log says so", SOON, async || {
                let log = syncer.log().map_err(|error| error.to_string())?;
                if log.matches("the virtual cluster cannot be reached").count() >= 2 { Ok(()) } else { Err(log) }
            })
            .await?;
            assert_eq!(http(syncer.health, "GET", "/healthz", "").await?.0, 200);
            let metrics = tokio::time::timeout(SOON, http(syncer.metrics, "GET", "/metrics", "")).await;
            let (code, metrics) = metrics.context("/metrics waits for the virtual cluster")??;
            assert_eq!(code, 200);
            let line = format!("tapestry_syncer_ready{{binding=\"{}\"}} 0", harness.name);
            ensure!(metrics.contains(&line), "{metrics}");
            let pid = syncer.pid()?;
            harness.proxy(Side::Virtual).restore();
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            assert_eq!(syncer.pid()?, pid, "it was started again");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_syncer_whose_binding_was_deleted_and_created_again_ends_and_says_so() -> Result<()> {
    pattern("made-again")
        .on(Fixture::Still)
        .run_without(async |harness| {
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            let mut binding = harness.binding().await?;
            harness.virtual_side.delete(BINDING, &harness.name).await?;
            eventually("the binding is gone", SOON, async || {
                match harness.virtual_side.get(BINDING, &harness.name).await {
                    Ok(None) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await?;
            let name = binding["metadata"]["name"].take();
            binding["metadata"] = serde_json::json!({ "name": name });
            binding["status"] = serde_json::Value::Null;
            harness.virtual_side.create(&binding).await?;
            let how = syncer.ended().await?;
            assert_eq!(how, "exit status: 1", "{}", syncer.log()?);
            ensure!(syncer.log()?.contains("another one was created under its name"), "{}", syncer.log()?);
            syncer.start()?;
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            Ok(())
        })
        .await
}
