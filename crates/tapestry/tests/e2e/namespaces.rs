//! Namespaces that are deleted with all that is in them: a tenant's in the virtual cluster, the copies' in the physical one.

use anyhow::{Result, ensure};
use serde_json::Value;
use tapestry_api::keys;
use tapestry_testbed::builders::{deployment, namespace};
use tapestry_testbed::{Objects, eventually};

use crate::fixtures::Fixture;
use crate::harness::{Harness, event_reasons, pattern};
use crate::looks::{LATE, SOON, condition, phase, text, uid};

/// Waits until a namespace has finished terminating.
async fn namespace_gone(side: &Objects, name: &str) -> Result<()> {
    eventually(&format!("namespace {name} is gone"), SOON, async || match side.get("v1/Namespace", name).await {
        Ok(None) => Ok(()),
        Ok(Some(seen)) => Err(seen["status"].to_string()),
        Err(error) => Err(error.to_string()),
    })
    .await
}

async fn all_run(harness: &Harness, count: usize) -> Result<()> {
    eventually(&format!("{count} pods run"), LATE, async || {
        let pods = harness.virtual_side.list("v1/Pod", &harness.name).await.map_err(|error| error.to_string())?;
        let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
        if run == count { Ok(()) } else { Err(format!("{run}")) }
    })
    .await
}

#[tokio::test]
async fn a_virtual_namespace_deleted_with_running_pods_ends_and_leaves_no_copy() -> Result<()> {
    pattern("ns-virtual")
        .on(Fixture::East)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let web = deployment("web", 10).namespace(&harness.name).pods(harness.pod("web").cpu("100m"));
            harness.virtual_side.create(&web.build()).await?;
            harness.virtual_side.create(&harness.bound("alone").build()).await?;
            all_run(harness, 11).await?;
            // A pod that is never admitted must not block it either.
            harness.virtual_side.create(&harness.bound("huge").cpu("500").build()).await?;
            harness.virtual_side.delete("v1/Namespace", &harness.name).await?;
            namespace_gone(&harness.virtual_side, &harness.name).await?;
            let left = harness.ppods().await?;
            ensure!(left.is_empty(), "{left:?}");
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn pods_whose_mount_namespace_is_deleted_say_so_and_run_again_when_it_is_back() -> Result<()> {
    pattern("ns-mount")
        .on(Fixture::West)
        .run(async |harness| {
            // The syncer's rights in the namespace go with it.
            harness.pardon();
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let (web, _) = harness.runs("web").await?;
            harness.physical_side.delete("v1/Namespace", &harness.mount).await?;
            // The watch saw the deletion of its copy: it has ended and does not show as running.
            let ended = harness.vpod_when("web", "has ended", |vpod| phase(vpod) == "Failed").await?;
            assert_eq!(uid(&ended), uid(&web));
            assert_eq!(condition(&ended, "DisruptionTarget")["status"], "True");
            namespace_gone(&harness.physical_side, &harness.mount).await?;

            harness.virtual_side.create(&harness.bound("late").build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            let late = harness.vpod_when("late", "is told", refused).await?;
            let told = condition(&late, keys::CONDITION_ADMITTED);
            ensure!(text(&told["message"]).contains(&harness.mount), "{told}");
            eventually("an event says so", SOON, async || {
                let reasons = event_reasons(&harness.virtual_side, &harness.name, "late").await;
                let reasons = reasons.map_err(|error| error.to_string())?;
                if reasons.iter().any(|reason| told["reason"] == reason.as_str()) {
                    Ok(())
                } else {
                    Err(format!("{reasons:?}"))
                }
            })
            .await?;
            eventually("the binding says so", SOON, async || {
                let binding = harness.binding().await.map_err(|error| error.to_string())?;
                let ready = condition(&binding, "Ready");
                let named = ready["message"].as_str().is_some_and(|message| message.contains(&harness.mount));
                if ready["reason"] == "PhysicalClusterNotReady" && named { Ok(()) } else { Err(ready.to_string()) }
            })
            .await?;
            // Without the right to read, the syncer cannot prove that there is no copy (law 1): the pod waits.
            harness.virtual_side.create(&harness.bound("gives-up").build()).await?;
            harness.vpod_when("gives-up", "is told", refused).await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("gives-up")).await?;

            // The owner creates it again, with its roles.
            harness.physical_side.create(&namespace(&harness.mount)).await?;
            harness.physical_cluster.physical_account(&harness.mount).await?;
            harness.runs("late").await?;
            harness.gone("gives-up").await?;
            harness.virtual_side.create(&harness.bound("next").build()).await?;
            harness.runs("next").await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("web")).await?;
            harness.gone("web").await?;
            harness.at_peace(&[], SOON).await
        })
        .await
}
