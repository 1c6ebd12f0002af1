//! HTTP/2 to real API servers: many requests on one connection, and what happens when that connection dies without being closed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::Version;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::connect::{Traffic, Trust};
use tapestry_cluster::{Cluster, Side};
use tapestry_testbed::eventually;
use tapestry_testbed::proxy::{Fault, Requests};

use crate::fixtures::Fixture;
use crate::harness::{Harness, pattern};
use crate::looks::{SOON, taints, uid};
use crate::timing::timed;

/// An unanswered PING closes a connection 15 s after its last sign of life (`cluster::connect`); then the requests are sent
/// again.
const RECOVERED: Duration = Duration::from_secs(30);
/// No recovery is faster (a PING stays unanswered for 10 s): what happens sooner happened while the connection was dead.
const STALLED: Duration = Duration::from_secs(9);

#[tokio::test]
async fn calls_and_watches_of_a_real_api_server_use_http2() -> Result<()> {
    timed(async {
        let still = Fixture::Still.cluster().await?;
        let cluster = Cluster::connect("test", &still.kubeconfig_text()?, Trust::Operator, "tapestry-e2e").await?;
        for traffic in [Traffic::Calls, Traffic::Watches] {
            let request = http::Request::get("/api/v1/namespaces/kube-system").body(kube::client::Body::empty())?;
            let response = cluster.send(traffic, request).await.map_err(anyhow::Error::msg)?;
            ensure!(response.version() == Version::HTTP_2, "{traffic:?}: {:?}", response.version());
        }
        Ok(())
    })
    .await
}

async fn create(harness: &Harness, name: &str) -> Result<()> {
    harness.virtual_side.create(&harness.bound(name).build()).await?;
    Ok(())
}

/// Freezes the connection that carries these requests; pods flow again when the PING timeout is over. Meanwhile `beside` happens.
async fn freeze(
    harness: &Harness,
    (side, case): (Side, &str),
    requests: Requests,
    beside: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let (web, copy) = harness.runs("web").await?;
    let frozen = harness.proxy(side).inject(Fault::FreezeConnection, requests.times(1));
    let began = Instant::now();
    create(harness, case).await?;
    eventually(&format!("{case}: a connection freezes"), SOON, async || match frozen.hits() {
        0 => Err("no request".to_owned()),
        _ => Ok(()),
    })
    .await?;
    beside().await?;
    let meanwhile = began.elapsed();
    ensure!(meanwhile < STALLED, "{case}: what another connection carries took {meanwhile:?}");
    harness.runs(case).await?;
    let took = began.elapsed();
    eprintln!("{case}: the other connection after {meanwhile:?}, recovered after {took:?}");
    ensure!(took > STALLED, "{case}: nothing stalled, it took {took:?}");
    ensure!(took < RECOVERED, "{case}: it took {took:?}");
    // The probe has its own connection: the cluster was never reported as unreachable.
    let unreachable = (keys::TAINT_PHYSICAL_UNREACHABLE.to_owned(), "NoSchedule".to_owned());
    ensure!(!taints(&harness.vnode_ready(harness.node()).await?).contains(&unreachable), "{case}: unreachable");
    let (web_after, copy_after) = harness.runs("web").await?;
    ensure!((uid(&web_after), uid(&copy_after)) == (uid(&web), uid(&copy)), "{case}: web was replaced");
    Ok(())
}

#[tokio::test]
async fn a_dead_connection_to_the_virtual_api_server_stalls_only_what_it_carries_and_only_until_the_ping_times_out()
-> Result<()> {
    pattern("frozen-v")
        .on(Fixture::East)
        .through_proxies()
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for pod in ["web", "leaving"] {
                create(harness, pod).await?;
                harness.runs(pod).await?;
            }
            let calls = Requests::writes().of("pods");
            freeze(harness, (Side::Virtual, "calls"), calls, async || {
                // The watch delivers the deletion, and the syncer deletes the copy in the physical cluster.
                harness.virtual_side.delete("v1/Pod", &harness.at("leaving")).await?;
                eventually("the copy is deleted while calls to the virtual cluster hang", SOON, async || {
                    let copies = harness.copies("leaving").await.map_err(|error| error.to_string())?;
                    let stays = copies.iter().any(|copy| copy["metadata"]["deletionTimestamp"].is_null());
                    if stays { Err(format!("{copies:?}")) } else { Ok(()) }
                })
                .await
            })
            .await?;
            freeze(harness, (Side::Virtual, "watches"), Requests::watches().of("pods"), async || Ok(())).await?;
            harness.gone("leaving").await
        })
        .await
}

#[tokio::test]
async fn a_dead_connection_to_the_physical_api_server_stalls_only_what_it_carries_and_only_until_the_ping_times_out()
-> Result<()> {
    pattern("frozen-p")
        .on(Fixture::West)
        .through_proxies()
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            create(harness, "web").await?;
            let calls = Requests::writes().of("pods");
            freeze(harness, (Side::Physical, "calls"), calls, async || {
                // The watch delivers the label, and the syncer writes it to the virtual cluster.
                let labels = json!({ "metadata": { "labels": { "seen": "meanwhile" } } });
                harness.physical_side.patch("v1/Node", harness.node(), &labels).await?;
                let labelled = |vnode: &Value| vnode["metadata"]["labels"]["seen"] == "meanwhile";
                harness.vnode_when(harness.node(), "has the label", labelled).await.map(drop)
            })
            .await?;
            // A copy's status reaches the virtual pod by a watch of the physical cluster alone.
            freeze(harness, (Side::Physical, "watches"), Requests::watches().of("pods"), async || Ok(())).await
        })
        .await
}
