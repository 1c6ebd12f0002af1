//! API servers and stores that are killed and restarted while pods come and go: running pods keep running, and afterwards
//! everything converges.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use kube::api::DeleteParams;
use serde_json::Value;
use tapestry_testbed::cluster::Component;
use tapestry_testbed::{Cluster, ClusterConfig, Part, eventually};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{Fixture, Home, bare, own};
use crate::harness::{Harness, pattern};
use crate::looks::{LATE, SOON, name, phase, uid};

/// Pods that run from the beginning to the end.
const STEADY: usize = 12;
/// Names of those that come and go.
const FLEETING: usize = 24;
/// Between two kills, for all components to work again.
const BETWEEN: Duration = Duration::from_secs(2);

/// Retries until the server accepts it: the test's own requests meet dead servers, too.
async fn until_taken<T, Answer: Future<Output = kube::Result<T>>>(mut act: impl FnMut() -> Answer) -> Result<T> {
    eventually("a server accepts the test's own request", SOON, || {
        let acted = act();
        async { acted.await.map_err(|error| error.to_string()) }
    })
    .await
}

/// Creates and deletes pods until cancelled; returns how often.
async fn come_and_go(harness: &Harness, stop: &CancellationToken) -> Result<usize> {
    let mut acts = 0;
    while !stop.is_cancelled() {
        let pod = format!("fleeting-{}", acts % FLEETING);
        let place = harness.at(&pod);
        // Deletes a pod that exists, creates one that does not.
        let there = until_taken(|| harness.virtual_side.get("v1/Pod", &place)).await?;
        let grace = DeleteParams { grace_period_seconds: (acts % 3 == 0).then_some(1), ..Default::default() };
        until_taken(|| async {
            let acted = match &there {
                None => harness.virtual_side.create(&harness.bound(&pod).cpu("100m").build()).await.map(drop),
                Some(_) => harness.virtual_side.delete_with("v1/Pod", &place, &grace).await,
            };
            match acted {
                // An answer was lost: the server had accepted it before.
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                other => other,
            }
        })
        .await?;
        acts += 1;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    Ok(acts)
}

/// Kills a process and starts it again; returns when its cluster answers.
async fn restart(cluster: &Cluster, part: Component<'_>) -> Result<()> {
    part.kill().await?;
    part.start()?;
    Box::pin(cluster.ready()).await?;
    tokio::time::sleep(BETWEEN).await;
    Ok(())
}

/// UIDs of the pods whose names begin like this, and of their copies.
async fn who_runs(harness: &Harness, prefix: &str) -> Result<BTreeMap<String, (String, String)>> {
    let vpods = harness.virtual_side.list("v1/Pod", &harness.name).await?;
    let run = vpods.iter().filter(|vpod| name(vpod).starts_with(prefix) && phase(vpod) == "Running");
    let pair = async |vpod: &Value| {
        let copies = harness.copies(name(vpod)).await?;
        let copy = copies.first().context("a running pod without a copy")?;
        anyhow::Ok((name(vpod).to_owned(), (uid(vpod).to_owned(), uid(copy).to_owned())))
    };
    Ok(try_join_all(run.map(pair)).await?.into_iter().collect())
}

#[tokio::test]
async fn law_08_restarts_of_api_servers_and_stores_under_load_lose_no_pod_and_leave_no_orphan() -> Result<()> {
    static ABOVE: OnceCell<Cluster> = OnceCell::const_new();
    static BELOW: OnceCell<Cluster> = OnceCell::const_new();
    // Only kwok: pods bypass the scheduler here.
    let below = ClusterConfig::physical("restarts-below", 0).without(Part::ControllerManager).without(Part::Scheduler);
    let (above, below) =
        tokio::try_join!(ABOVE.get_or_try_init(|| own(bare("restarts-above"))), BELOW.get_or_try_init(|| own(below)),)?;
    pattern("restarts")
        .home(Home::Own(above))
        .on(Fixture::Own(below))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for number in 0..STEADY {
                harness.virtual_side.create(&harness.bound(&format!("steady-{number}")).cpu("100m").build()).await?;
            }
            eventually("all run", SOON, async || {
                let run = who_runs(harness, "steady-").await.map_err(|error| error.to_string())?.len();
                if run == STEADY { Ok(()) } else { Err(format!("{run}")) }
            })
            .await?;
            let before = who_runs(harness, "steady-").await?;

            let stop = CancellationToken::new();
            let quake = async {
                let _stop = stop.clone().drop_guard();
                tokio::time::sleep(BETWEEN).await;
                for cluster in [below, above] {
                    restart(cluster, cluster.apiserver()).await?;
                    restart(cluster, cluster.etcd()).await?;
                }
                Ok(())
            };
            let (acts, ()) = tokio::try_join!(come_and_go(harness, &stop), quake)?;
            eprintln!("{acts} pods came or went");
            ensure!(acts > FLEETING * 2, "{acts}: there was no load");

            let began = Instant::now();
            harness.at_peace(&[], LATE).await?;
            eprintln!("converged after {:?}", began.elapsed());
            assert_eq!(who_runs(harness, "steady-").await?, before);
            let failed = harness.virtual_side.list("v1/Pod", &harness.name).await?;
            let failed: Vec<&Value> = failed.iter().filter(|vpod| phase(vpod) == "Failed").collect();
            ensure!(failed.is_empty(), "no user ended these: {failed:?}");
            Ok(())
        })
        .await
}
