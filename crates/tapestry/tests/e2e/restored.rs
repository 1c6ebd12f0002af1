//! A physical cluster that is restored from a backup: what we know is of a future that never was.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tapestry_testbed::{Cluster, eventually};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::grounds::{Ground, bare, own};
use crate::looks::{SOON, condition, phase, uid};
use crate::loom::{Loom, pattern};

async fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("--archive").arg(from).arg(to).status().await?;
    ensure!(status.success(), "cp: {status}");
    Ok(())
}

/// Does something to the files of etcd while nobody uses them.
async fn offline(cluster: &Cluster, work: impl AsyncFnOnce(&Path) -> Result<()>) -> Result<()> {
    cluster.apiserver().stop().await?;
    cluster.etcd().stop().await?;
    work(&cluster.folder().join("etcd")).await?;
    cluster.etcd().start()?;
    cluster.apiserver().start()?;
    Box::pin(cluster.ready()).await
}

async fn run_pod(loom: &Loom, pod: &str) -> Result<(Value, Value)> {
    loom.virtual_side.create(&loom.bound(pod).build()).await?;
    let ppod = loom.copy(pod).await?;
    loom.play_running(&ppod).await?;
    loom.runs(pod).await
}

#[tokio::test]
async fn law_01_a_restored_physical_cluster_ends_no_pod_until_somebody_starts_us_anew() -> Result<()> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_try_init(|| own(bare("restored"))).await?;
    pattern("restored")
        .on(Ground::Own(cluster))
        .run(async |loom| {
            loom.vnode_ready(loom.node()).await?;
            let (early, early_copy) = run_pod(loom, "early").await?;
            let backup = cluster.folder().join("backup");
            offline(cluster, async |data| copy(data, &backup).await).await?;
            let (late, _) = run_pod(loom, "late").await?;
            offline(cluster, async |data| {
                tokio::fs::remove_dir_all(data).await?;
                copy(&backup, data).await
            })
            .await?;

            eventually("the binding says so", SOON, async || {
                let binding = loom.binding().await.map_err(|error| error.to_string())?;
                let connected = condition(&binding, "Connected");
                if connected["reason"] == "PhysicalClusterRestored" { Ok(()) } else { Err(connected.to_string()) }
            })
            .await?;
            for (name, before) in [("early", &early), ("late", &late)] {
                let vpod = loom.vpod(name).await?;
                assert_eq!((uid(&vpod), phase(&vpod)), (uid(before), "Running"));
            }
            let copies = loom.ppods().await?;
            let kept = copies.iter().find(|ppod| uid(ppod) == uid(&early_copy)).context("the early copy is gone")?;
            ensure!(kept["metadata"]["deletionTimestamp"].is_null(), "{kept}");

            // Anew, from what is there: what is proven to be gone is told, what is there runs on.
            loom.stop().await?;
            loom.start().await?;
            let lost = loom.vpod_when("late", "is told to be lost", |vpod| phase(vpod) == "Failed").await?;
            assert_eq!(lost["status"]["reason"], "PhysicalPodLost");
            let (vpod, ppod) = loom.runs("early").await?;
            assert_eq!((uid(&vpod), uid(&ppod)), (uid(&early), uid(&early_copy)));
            Ok(())
        })
        .await
}
