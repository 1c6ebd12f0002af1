//! A physical API server that does not answer: visible soon, and nobody is hurt. What lasts longer than Kubernetes is patient is in
//! [`long`].

mod long;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_testbed::builders::Binding;
use tapestry_testbed::eventually;
use tapestry_testbed::proxy::{Fault, Requests};

use crate::grounds::Ground;
use crate::looks::{SOON, condition, phase, taints, text, uid};
use crate::loom::{pattern, wind_up};
use crate::timing::timed;

#[tokio::test]
async fn an_outage_of_the_physical_api_server_is_visible_within_15_seconds_and_ends_no_pod() -> Result<()> {
    pattern("outage")
        .on(Ground::West)
        .through_proxies()
        .run(async |loom| {
            loom.vnode_ready(loom.node()).await?;
            for pod in ["web", "leaving"] {
                loom.virtual_side.create(&loom.bound(pod).build()).await?;
            }
            let (web, copy) = loom.runs("web").await?;
            loom.runs("leaving").await?;

            let began = Instant::now();
            // The slowest of outages to notice: nothing is refused, nothing is answered.
            let freeze = loom.proxy(Side::Physical).inject(Fault::Freeze, Requests::all());
            let unreachable = (keys::TAINT_PHYSICAL_UNREACHABLE.to_owned(), "NoSchedule".to_owned());
            let dark = |vnode: &Value| taints(vnode).contains(&unreachable);
            let vnode = loom.vnode_when(loom.node(), "is tainted", dark).await?;
            let took = began.elapsed();
            ensure!(took < Duration::from_secs(15), "visible only after {took:?}");
            let reachable = |vnode: &Value, status: &str| {
                condition(vnode, keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE)["status"] == status
            };
            loom.vnode_when(loom.node(), "says so", |vnode| reachable(vnode, "False")).await?;
            assert_eq!(condition(&vnode, "Ready")["status"], "True", "Ready keeps its last value");
            eventually("the binding says so", SOON, async || {
                let binding = loom.binding().await.map_err(|error| error.to_string())?;
                let connected = condition(&binding, "Connected");
                if connected["reason"] == "Unreachable" { Ok(()) } else { Err(connected.to_string()) }
            })
            .await?;

            // Nothing is placed there, nobody is let go without evidence, and the Lease is renewed.
            loom.virtual_side.create(&loom.bound("late").build()).await?;
            loom.virtual_side.delete("v1/Pod", &loom.at("leaving")).await?;
            let place = format!("kube-node-lease/{}", loom.vnode());
            let renewed = async || {
                let lease = loom.virtual_side.get("coordination.k8s.io/v1/Lease", &place).await;
                lease.map_err(|error| error.to_string())?.ok_or_else(|| "no Lease".to_owned())
            };
            let since = renewed().await.map_err(anyhow::Error::msg)?;
            eventually("the Lease is renewed", SOON, async || {
                let lease = renewed().await?;
                let later = text(&lease["spec"]["renewTime"]) > text(&since["spec"]["renewTime"]);
                if later { Ok(()) } else { Err(lease["spec"].to_string()) }
            })
            .await?;
            assert_eq!(phase(&loom.vpod("leaving").await?), "Running");
            assert_eq!(loom.copies("late").await?.len(), 0);

            drop(freeze);
            let back = |vnode: &Value| !taints(vnode).contains(&unreachable) && reachable(vnode, "True");
            loom.vnode_when(loom.node(), "is as before", back).await?;
            loom.gone("leaving").await?;
            loom.runs("late").await?;
            let (web_after, copy_after) = loom.runs("web").await?;
            assert_eq!((uid(&web_after), uid(&copy_after)), (uid(&web), uid(&copy)));
            Ok(())
        })
        .await
}

#[tokio::test]
async fn where_the_binding_says_so_a_long_outage_makes_nodes_unknown_and_kubernetes_evicts_their_pods() -> Result<()> {
    // Boxed: it holds two looms.
    Box::pin(timed(async {
        let evicts = |binding: Binding| binding.with("/spec/partition", "Evict").with("/spec/evictAfterSeconds", 3);
        let (mut loom, mut beside) = tokio::try_join!(
            pattern("evicts").on(Ground::West).through_proxies().binding(evicts).set_up(),
            // With the same words; but its cluster answers.
            pattern("evicts-not").on(Ground::East).binding(evicts).set_up(),
        )?;
        let test = async {
            tokio::try_join!(loom.start(), beside.start())?;
            let brief = json!({
                "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1,
            });
            for loom in [&loom, &beside] {
                loom.vnode_ready(loom.node()).await?;
                loom.virtual_side.create(&loom.bound("web").tolerate(brief.clone()).build()).await?;
                loom.runs("web").await?;
            }
            let (stays, copy) = beside.runs("web").await?;
            loom.proxy(Side::Physical).cut();
            loom.vnode_when(loom.node(), "is unknown", |vnode| condition(vnode, "Ready")["status"] == "Unknown").await?;
            let leaving = |vpod: &Value| !vpod["metadata"]["deletionTimestamp"].is_null();
            loom.vpod_when("web", "is evicted", leaving).await?;
            assert_eq!(phase(&loom.vpod("web").await?), "Running", "nobody says that it has ended");
            loom.proxy(Side::Physical).restore();
            loom.gone("web").await?;
            loom.vnode_ready(loom.node()).await?;
            let (after, copy_after) = beside.runs("web").await?;
            ensure!(!leaving(&after) && !leaving(&copy_after), "{after} {copy_after}");
            assert_eq!((uid(&after), uid(&copy_after)), (uid(&stays), uid(&copy)));
            Ok(())
        };
        let ended = Box::pin(test).await;
        wind_up(ended, [loom, beside]).await
    }))
    .await
}
