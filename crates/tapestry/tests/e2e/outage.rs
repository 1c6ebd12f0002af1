//! A physical API server that does not answer: visible soon, and no pod ends. Outages longer than Kubernetes' grace periods
//! are in [`long`].

mod long;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_testbed::builders::Binding;
use tapestry_testbed::eventually;
use tapestry_testbed::proxy::{Fault, Requests};

use crate::fixtures::Fixture;
use crate::harness::{pattern, wind_up};
use crate::looks::{SOON, condition, phase, taints, text, uid};
use crate::timing::timed;

#[tokio::test]
async fn an_outage_of_the_physical_api_server_is_visible_within_15_seconds_and_ends_no_pod() -> Result<()> {
    pattern("outage")
        .on(Fixture::West)
        .through_proxies()
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for pod in ["web", "leaving"] {
                harness.virtual_side.create(&harness.bound(pod).build()).await?;
            }
            let (web, copy) = harness.runs("web").await?;
            harness.runs("leaving").await?;

            let began = Instant::now();
            // The slowest of outages to notice: nothing is refused, nothing is answered.
            let freeze = harness.proxy(Side::Physical).inject(Fault::Freeze, Requests::all());
            let unreachable = (keys::TAINT_PHYSICAL_UNREACHABLE.to_owned(), "NoSchedule".to_owned());
            let dark = |vnode: &Value| taints(vnode).contains(&unreachable);
            let vnode = harness.vnode_when(harness.node(), "is tainted", dark).await?;
            let took = began.elapsed();
            ensure!(took < Duration::from_secs(15), "visible only after {took:?}");
            let reachable = |vnode: &Value, status: &str| {
                condition(vnode, keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE)["status"] == status
            };
            harness.vnode_when(harness.node(), "says so", |vnode| reachable(vnode, "False")).await?;
            assert_eq!(condition(&vnode, "Ready")["status"], "True", "Ready keeps its last value");
            eventually("the binding says so", SOON, async || {
                let binding = harness.binding().await.map_err(|error| error.to_string())?;
                let connected = condition(&binding, "Connected");
                if connected["reason"] == "Unreachable" { Ok(()) } else { Err(connected.to_string()) }
            })
            .await?;

            // Nothing is placed there, no pod is removed without evidence, and the Lease is renewed.
            harness.virtual_side.create(&harness.bound("late").build()).await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("leaving")).await?;
            let place = format!("kube-node-lease/{}", harness.vnode());
            let renewed = async || {
                let lease = harness.virtual_side.get("coordination.k8s.io/v1/Lease", &place).await;
                lease.map_err(|error| error.to_string())?.ok_or_else(|| "no Lease".to_owned())
            };
            let since = renewed().await.map_err(anyhow::Error::msg)?;
            eventually("the Lease is renewed", SOON, async || {
                let lease = renewed().await?;
                let later = text(&lease["spec"]["renewTime"]) > text(&since["spec"]["renewTime"]);
                if later { Ok(()) } else { Err(lease["spec"].to_string()) }
            })
            .await?;
            assert_eq!(phase(&harness.vpod("leaving").await?), "Running");
            assert_eq!(harness.copies("late").await?.len(), 0);

            drop(freeze);
            let back = |vnode: &Value| !taints(vnode).contains(&unreachable) && reachable(vnode, "True");
            harness.vnode_when(harness.node(), "is as before", back).await?;
            harness.gone("leaving").await?;
            harness.runs("late").await?;
            let (web_after, copy_after) = harness.runs("web").await?;
            assert_eq!((uid(&web_after), uid(&copy_after)), (uid(&web), uid(&copy)));
            Ok(())
        })
        .await
}

#[tokio::test]
async fn where_the_binding_says_so_a_long_outage_makes_nodes_unknown_and_kubernetes_evicts_their_pods() -> Result<()> {
    // Boxed: it holds two harnesses.
    Box::pin(timed(async {
        let evicts = |binding: Binding| binding.with("/spec/partition", "Evict").with("/spec/evictAfterSeconds", 3);
        let (mut harness, mut beside) = tokio::try_join!(
            pattern("evicts").on(Fixture::West).through_proxies().binding(evicts).set_up(),
            // With the same spec; but its cluster answers.
            pattern("evicts-not").on(Fixture::East).binding(evicts).set_up(),
        )?;
        let test = async {
            tokio::try_join!(harness.start(), beside.start())?;
            let brief = json!({
                "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1,
            });
            for harness in [&harness, &beside] {
                harness.vnode_ready(harness.node()).await?;
                harness.virtual_side.create(&harness.bound("web").tolerate(brief.clone()).build()).await?;
                harness.runs("web").await?;
            }
            let (stays, copy) = beside.runs("web").await?;
            harness.proxy(Side::Physical).cut();
            harness.vnode_when(harness.node(), "is unknown", |vnode| condition(vnode, "Ready")["status"] == "Unknown").await?;
            let leaving = |vpod: &Value| !vpod["metadata"]["deletionTimestamp"].is_null();
            harness.vpod_when("web", "is evicted", leaving).await?;
            assert_eq!(phase(&harness.vpod("web").await?), "Running", "no status says that it has ended");
            harness.proxy(Side::Physical).restore();
            harness.gone("web").await?;
            harness.vnode_ready(harness.node()).await?;
            let (after, copy_after) = beside.runs("web").await?;
            ensure!(!leaving(&after) && !leaving(&copy_after), "{after} {copy_after}");
            assert_eq!((uid(&after), uid(&copy_after)), (uid(&stays), uid(&copy)));
            Ok(())
        };
        let ended = Box::pin(test).await;
        wind_up(ended, [harness, beside]).await
    }))
    .await
}
