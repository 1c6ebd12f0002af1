//! Two bindings in one process: each has its own connections, limits and back-offs, so trouble of one cluster does not affect
//! the pods of the other (DESIGN §3).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use tapestry_cluster::Side;
use tapestry_engine::desk::CONCURRENCY;
use tapestry_testbed::builders::node;
use tapestry_testbed::eventually;
use tapestry_testbed::proxy::{Fault, Injection, Requests};

use crate::fixtures::Fixture;
use crate::harness::{Harness, pattern, wind_up};
use crate::looks::{LATE, SOON, name, phase};
use crate::timing::timed;

/// Pods of the healthy binding, each time.
const FEW: usize = 20;
/// Pods of the binding in trouble: more than it may have calls in flight.
const MANY: usize = CONCURRENCY + 10;
/// What the busy cluster asks for, in seconds.
const RETRY_AFTER: u32 = 5;

async fn create(harness: &Harness, prefix: &str, count: usize) -> Result<()> {
    let pods: Vec<_> =
        (0..count).map(|number| harness.bound(&format!("{prefix}-{number}")).cpu("50m").build()).collect();
    try_join_all(pods.iter().map(|pod| harness.virtual_side.create(pod))).await?;
    Ok(())
}

async fn all_run(harness: &Harness, prefix: &str, count: usize, within: Duration) -> Result<()> {
    eventually(&format!("{count} pods of {} run", harness.name), within, async || {
        let pods = harness.virtual_side.list("v1/Pod", &harness.name).await.map_err(|error| error.to_string())?;
        let run = pods.iter().filter(|pod| name(pod).starts_with(prefix) && phase(pod) == "Running").count();
        if run == count { Ok(()) } else { Err(format!("{run}")) }
    })
    .await
}

/// How long it takes from the creation of pods that are bound until all run.
async fn measure(harness: &Harness, prefix: &str) -> Result<Duration> {
    let began = Instant::now();
    create(harness, prefix, FEW).await?;
    all_run(harness, prefix, FEW, SOON).await?;
    Ok(began.elapsed())
}

async fn hits(injection: &Injection, times: u32) -> Result<()> {
    eventually(&format!("the fault hits {times} requests"), SOON, async || match injection.hits() {
        hits if hits >= times => Ok(()),
        hits => Err(format!("{hits}")),
    })
    .await
}

#[tokio::test]
async fn a_busy_or_hanging_cluster_of_one_binding_does_not_slow_the_other_in_the_same_process() -> Result<()> {
    // Boxed: it holds several harnesses.
    Box::pin(timed(async {
        let (mut ill, mut well) = tokio::try_join!(
            pattern("ill").on(Fixture::West).node(node("ill-0").pods(500)).through_proxies().set_up(),
            pattern("well").on(Fixture::East).set_up(),
        )?;
        let test = async {
            tokio::try_join!(ill.start(), well.start())?;
            tokio::try_join!(ill.vnode_ready(ill.node()), well.vnode_ready(well.node()))?;
            // The first pods open connections.
            measure(&well, "first").await?;
            let before = measure(&well, "before").await?;
            // Three times and four seconds, for a busy machine. If anything were shared (connections, calls in
            // flight, the pause that a 429 asks for) these pods would not run before the trouble ends, and it does not end here.
            let most = before * 3 + Duration::from_secs(4);

            let busy = ill.proxy(Side::Physical).inject(Fault::TooManyRequests(RETRY_AFTER), Requests::all());
            ill.proxy(Side::Physical).reset();
            create(&ill, "storm", MANY).await?;
            hits(&busy, 5).await?;
            let storm = measure(&well, "storm").await?;
            drop(busy);
            all_run(&ill, "storm", MANY, LATE).await?;

            let freeze = ill.proxy(Side::Physical).inject(Fault::Freeze, Requests::all());
            create(&ill, "hang", MANY).await?;
            // Every call that it may have in flight hangs.
            hits(&freeze, u32::try_from(CONCURRENCY)?).await?;
            let hang = measure(&well, "hang").await?;
            ensure!(ill.copies("hang-0").await?.is_empty(), "the cluster did not hang");
            drop(freeze);
            all_run(&ill, "hang", MANY, LATE).await?;

            eprintln!(
                "{FEW} pods: {before:?} alone, {storm:?} during a 429 storm of the other, {hang:?} while the other hangs"
            );
            ensure!(storm < most, "{storm:?} during a 429 storm of the other, {before:?} alone");
            ensure!(hang < most, "{hang:?} while the other hangs, {before:?} alone");
            tokio::try_join!(ill.at_peace(&[], SOON), well.at_peace(&[], SOON)).map(drop)
        };
        let ended = Box::pin(test).await;
        wind_up(ended, [ill, well]).await
    }))
    .await
}
