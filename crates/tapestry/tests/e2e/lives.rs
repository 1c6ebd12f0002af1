//! What a syncer outlives: a panic of its own, a virtual cluster that is not there yet; and what it does not: its binding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use prometheus_client::registry::Registry;
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_cluster::connect::Trust;
use tapestry_engine::Now;
use tapestry_engine::clock::{Clock, SystemClock};
use tapestry_engine::serve::Readiness;
use tapestry_syncer::start::{Post, user_agent};
use tapestry_testbed::eventually;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixtures::Fixture;
use crate::harness::{BINDING, pattern};
use crate::looks::{SOON, taints, uid};
use crate::process::syncer::{Process, http};

/// The thread of the keeper in this test.
const KEEPER: &str = "keeper";

/// A clock at which everybody panics but the keeper.
struct FaultyClock {
    system: SystemClock,
    faulty: AtomicBool,
}

impl Clock for FaultyClock {
    fn now(&self) -> Now {
        let keeper = std::thread::current().name() == Some(KEEPER);
        assert!(keeper || !self.faulty.load(Ordering::Relaxed), "what time is it?");
        self.system.now()
    }
}

#[tokio::test]
async fn after_a_panic_leases_are_renewed_nothing_is_scheduled_and_the_work_starts_again() -> Result<()> {
    let keeper =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name(KEEPER).enable_all().build()?;
    let vital = keeper.handle().clone();
    let ended = pattern("panic")
        .on(Fixture::East)
        .run_without(async |harness| {
            let agent = user_agent(&harness.name);
            let home =
                tapestry_cluster::Cluster::connect("virtual", &harness.virtual_kubeconfig, Trust::Operator, &agent)
                    .await?;
            let clock = Arc::new(FaultyClock { system: SystemClock::start(), faulty: AtomicBool::new(false) });
            let (cancel, readiness, mut tasks) = (CancellationToken::new(), Readiness::default(), JoinSet::new());
            let (gate, given) = (readiness.gate("everything"), Arc::clone(&clock) as Arc<dyn Clock>);
            let post = Post::open(&harness.name, home, given, &mut Registry::default(), gate, cancel.clone()).await?;
            tasks.spawn(post.apart(vital).serve());
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let (vpod, ppod) = harness.runs("web").await?;

            clock.faulty.store(true, Ordering::Relaxed);
            let told = harness.says("Connected", "False", "SyncerPanicked").await?;
            ensure!(told.contains("starts") || told.contains("started"), "{told}");
            let stopped = (keys::TAINT_SYNCER_STOPPED.to_owned(), "NoSchedule".to_owned());
            harness.vnode_when(harness.node(), "is tainted", |vnode| taints(vnode).contains(&stopped)).await?;
            ensure!(!readiness.waiting_for().is_empty(), "it calls itself ready");
            harness.renews(3).await?;

            clock.faulty.store(false, Ordering::Relaxed);
            harness.says("Connected", "True", "Connected").await?;
            harness.vnode_when(harness.node(), "is free again", |vnode| !taints(vnode).contains(&stopped)).await?;
            let (vpod_now, ppod_now) = harness.runs("web").await?;
            assert_eq!([uid(&vpod_now), uid(&ppod_now)], [uid(&vpod), uid(&ppod)]);
            harness.virtual_side.create(&harness.bound("next").build()).await?;
            harness.runs("next").await?;
            cancel.cancel();
            let ended = tokio::time::timeout(SOON, tasks.join_next()).await?;
            Ok(ended.context("it is not there")???)
        })
        .await;
    keeper.shutdown_background();
    ended
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
