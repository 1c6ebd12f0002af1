//! Namespaces that are deleted with all that is in them: a tenant's in the virtual cluster, the copies' in the physical one.

use anyhow::{Result, ensure};
use serde_json::Value;
use tapestry_api::keys;
use tapestry_testbed::builders::{deployment, namespace};
use tapestry_testbed::{Objects, eventually};

use crate::grounds::Ground;
use crate::looks::{LATE, SOON, condition, phase, text, uid};
use crate::loom::{Loom, event_reasons, pattern};

/// Waits until a namespace has finished terminating.
async fn namespace_gone(side: &Objects, name: &str) -> Result<()> {
    eventually(&format!("namespace {name} is gone"), SOON, async || match side.get("v1/Namespace", name).await {
        Ok(None) => Ok(()),
        Ok(Some(seen)) => Err(seen["status"].to_string()),
        Err(error) => Err(error.to_string()),
    })
    .await
}

async fn all_run(loom: &Loom, count: usize) -> Result<()> {
    eventually(&format!("{count} pods run"), LATE, async || {
        let pods = loom.virtual_side.list("v1/Pod", &loom.name).await.map_err(|error| error.to_string())?;
        let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
        if run == count { Ok(()) } else { Err(format!("{run}")) }
    })
    .await
}

#[tokio::test]
async fn a_virtual_namespace_deleted_with_running_pods_ends_and_leaves_nothing_below() -> Result<()> {
    pattern("ns-virtual")
        .on(Ground::East)
        .run(async |loom| {
            loom.vnode_ready(loom.node()).await?;
            let web = deployment("web", 10).namespace(&loom.name).pods(loom.pod("web").cpu("100m"));
            loom.virtual_side.create(&web.build()).await?;
            loom.virtual_side.create(&loom.bound("alone").build()).await?;
            all_run(loom, 11).await?;
            // One that never gets in must not hold it either.
            loom.virtual_side.create(&loom.bound("huge").cpu("500").build()).await?;
            loom.virtual_side.delete("v1/Namespace", &loom.name).await?;
            namespace_gone(&loom.virtual_side, &loom.name).await?;
            let left = loom.ppods().await?;
            ensure!(left.is_empty(), "{left:?}");
            loom.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn pods_whose_mount_namespace_is_deleted_are_told_and_run_again_when_it_is_back() -> Result<()> {
    pattern("ns-mount")
        .on(Ground::West)
        .run(async |loom| {
            // The syncer's rights in the namespace go with it.
            loom.pardon();
            loom.vnode_ready(loom.node()).await?;
            loom.virtual_side.create(&loom.bound("web").build()).await?;
            let (web, _) = loom.runs("web").await?;
            loom.physical_side.delete("v1/Namespace", &loom.mount).await?;
            // Its copy was deleted before our eyes: it has ended, and nobody pretends that it runs.
            let ended = loom.vpod_when("web", "has ended", |vpod| phase(vpod) == "Failed").await?;
            assert_eq!(uid(&ended), uid(&web));
            assert_eq!(condition(&ended, "DisruptionTarget")["status"], "True");
            namespace_gone(&loom.physical_side, &loom.mount).await?;

            loom.virtual_side.create(&loom.bound("late").build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            let late = loom.vpod_when("late", "is told", refused).await?;
            let told = condition(&late, keys::CONDITION_ADMITTED);
            ensure!(text(&told["message"]).contains(&loom.mount), "{told}");
            eventually("an event says so", SOON, async || {
                let reasons = event_reasons(&loom.virtual_side, &loom.name, "late").await;
                let reasons = reasons.map_err(|error| error.to_string())?;
                if reasons.iter().any(|reason| told["reason"] == reason.as_str()) {
                    Ok(())
                } else {
                    Err(format!("{reasons:?}"))
                }
            })
            .await?;
            // That there is no copy cannot be proven by who may not look (law 1): it waits.
            loom.virtual_side.create(&loom.bound("gives-up").build()).await?;
            loom.vpod_when("gives-up", "is told", refused).await?;
            loom.virtual_side.delete("v1/Pod", &loom.at("gives-up")).await?;

            // The owner makes it again, with what belongs to it.
            loom.physical_side.create(&namespace(&loom.mount)).await?;
            loom.physical_cluster.physical_account(&loom.mount).await?;
            loom.runs("late").await?;
            loom.gone("gives-up").await?;
            loom.virtual_side.create(&loom.bound("next").build()).await?;
            loom.runs("next").await?;
            loom.virtual_side.delete("v1/Pod", &loom.at("web")).await?;
            loom.gone("web").await?;
            loom.at_peace(&[], SOON).await
        })
        .await
}
