//! A cluster that is restored from a backup: our tables hold a state that it has lost. And one that starts again, empty.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_syncer::start::user_agent;
use tapestry_testbed::builders::{kubeconfig_secret, namespace, node};
use tapestry_testbed::{Cluster, Objects, eventually};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::fixtures::{Fixture, Home, bare, own};
use crate::harness::{Harness, TEST, pattern};
use crate::looks::{SOON, condition, name, phase, uid};

/// A hundred times as long as a plan takes.
const A_WHILE: Duration = Duration::from_secs(3);

async fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("--archive").arg(from).arg(to).status().await?;
    ensure!(status.success(), "cp: {status}");
    Ok(())
}

/// Changes the files of etcd while it is stopped.
async fn offline(cluster: &Cluster, work: impl AsyncFnOnce(&Path) -> Result<()>) -> Result<()> {
    cluster.apiserver().stop().await?;
    cluster.etcd().stop().await?;
    work(&cluster.folder().join("etcd")).await?;
    cluster.etcd().start()?;
    cluster.apiserver().start()?;
    Box::pin(cluster.ready()).await
}

async fn run_pod(harness: &Harness, pod: &str) -> Result<(Value, Value)> {
    harness.virtual_side.create(&harness.bound(pod).build()).await?;
    let ppod = harness.copy(pod).await?;
    harness.play_running(&ppod).await?;
    harness.runs(pod).await
}

/// Makes the state much newer than its backup, as hours would: a server that starts writes a little by itself, and a version as
/// new as what we have read does not look restored.
async fn grow_old(side: &Objects, pod: &str) -> Result<()> {
    for time in 0..100 {
        let note = json!({ "metadata": { "annotations": { "example.com/time": time.to_string() } } });
        side.patch("v1/Pod", pod, &note).await?;
    }
    Ok(())
}

/// Waits until condition `Connected` of the binding has this reason.
async fn says(harness: &Harness, reason: &str) -> Result<Value> {
    eventually(&format!("the binding says {reason}"), SOON, async || {
        let binding = harness.binding().await.map_err(|error| error.to_string())?;
        let connected = condition(&binding, "Connected");
        let told = connected["status"] == "False" && connected["reason"] == reason;
        if told { Ok(connected.clone()) } else { Err(connected.to_string()) }
    })
    .await
}

/// The copies are unchanged and not being deleted.
async fn untouched(harness: &Harness, before: &[Value]) -> Result<()> {
    let now = harness.ppods().await?;
    for copy in before {
        let kept = now.iter().find(|ppod| uid(ppod) == uid(copy)).with_context(|| format!("gone: {copy}"))?;
        ensure!(kept["metadata"]["resourceVersion"] == copy["metadata"]["resourceVersion"], "touched: {kept}");
    }
    ensure!(now.len() == before.len(), "{} copies instead of {}", now.len(), before.len());
    Ok(())
}

#[tokio::test]
async fn law_01_a_restored_physical_cluster_ends_no_pod_until_the_syncer_is_restarted() -> Result<()> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_try_init(|| own(bare("restored"))).await?;
    pattern("restored")
        .on(Fixture::Own(cluster))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let (early, early_copy) = run_pod(harness, "early").await?;
            let backup = cluster.folder().join("backup");
            offline(cluster, async |data| copy(data, &backup).await).await?;
            let (late, late_copy) = run_pod(harness, "late").await?;
            grow_old(&harness.physical_side, &format!("{}/{}", harness.mount, name(&late_copy))).await?;
            offline(cluster, async |data| {
                tokio::fs::remove_dir_all(data).await?;
                copy(&backup, data).await
            })
            .await?;

            says(harness, "PhysicalClusterRestored").await?;
            for (name, before) in [("early", &early), ("late", &late)] {
                let vpod = harness.vpod(name).await?;
                assert_eq!((uid(&vpod), phase(&vpod)), (uid(before), "Running"));
            }
            let copies = harness.ppods().await?;
            let kept = copies.iter().find(|ppod| uid(ppod) == uid(&early_copy)).context("the early copy is gone")?;
            ensure!(kept["metadata"]["deletionTimestamp"].is_null(), "{kept}");

            // After the restart: pods that are proven gone are reported as lost, the others keep running.
            harness.stop().await?;
            harness.start().await?;
            let lost = harness.vpod_when("late", "is reported as lost", |vpod| phase(vpod) == "Failed").await?;
            assert_eq!(lost["status"]["reason"], "PhysicalPodLost");
            let (vpod, ppod) = harness.runs("early").await?;
            assert_eq!((uid(&vpod), uid(&ppod)), (uid(&early), uid(&early_copy)));
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_01_a_restored_virtual_cluster_ends_no_pod_until_the_syncer_is_restarted() -> Result<()> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_try_init(|| own(bare("restored-above"))).await?;
    pattern("restored-above")
        .home(Home::Own(cluster))
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let (early, early_copy) = run_pod(harness, "early").await?;
            let (_, asked_copy) = run_pod(harness, "asked").await?;
            let (_, ended_copy) = run_pod(harness, "ended").await?;
            let backup = cluster.folder().join("backup");
            offline(cluster, async |data| copy(data, &backup).await).await?;
            let (_, late_copy) = run_pod(harness, "late").await?;
            grow_old(&harness.virtual_side, &harness.at("late")).await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("ended")).await?;
            harness.play_removed(&harness.physical_leaving(&ended_copy).await?).await?;
            harness.gone("ended").await?;
            let copies = harness.ppods().await?;
            offline(cluster, async |data| {
                tokio::fs::remove_dir_all(data).await?;
                copy(&backup, data).await
            })
            .await?;

            // A pod that the backup does not have, and one that had ended and is back: the syncer touches neither.
            let told = says(harness, "VirtualClusterRestored").await?;
            ensure!(told["message"].as_str().is_some_and(|message| message.contains("restart the syncer")), "{told}");
            harness.virtual_side.create(&harness.bound("new").build()).await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("asked")).await?;
            tokio::time::sleep(A_WHILE).await;
            untouched(harness, &copies).await?;
            for pod in ["early", "asked", "ended"] {
                assert_eq!(phase(&harness.vpod(pod).await?), "Running");
            }
            // Reported once.
            let again = says(harness, "VirtualClusterRestored").await?;
            assert_eq!(again, told);

            // After the restart, on evidence: copies of pods that are proven gone are deleted, pods without a copy are
            // reported as lost.
            harness.stop().await?;
            harness.start().await?;
            let leaving = harness.physical_leaving(&late_copy).await?;
            harness.play_removed(&leaving).await?;
            let lost = harness.vpod_when("ended", "is reported as lost", |vpod| phase(vpod) == "Failed").await?;
            assert_eq!(lost["status"]["reason"], "PhysicalPodLost");
            // Requests made meanwhile are carried out, and the other pods keep running.
            harness.play_removed(&harness.physical_leaving(&asked_copy).await?).await?;
            harness.gone("asked").await?;
            harness.play_running(&harness.copy("new").await?).await?;
            harness.runs("new").await?;
            let (vpod, ppod) = harness.runs("early").await?;
            assert_eq!((uid(&vpod), uid(&ppod)), (uid(&early), uid(&early_copy)));
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn law_01_an_emptied_physical_cluster_at_the_same_address_is_another_one_and_nothing_is_written() -> Result<()> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_try_init(|| own(bare("emptied"))).await?;
    pattern("emptied")
        .on(Fixture::Own(cluster))
        .run_without(async |harness| {
            // A certificate: it is also valid in the new cluster, where a token would be unknown.
            let user = format!("system:serviceaccount:{}:{}", keys::NAMESPACE, harness.mount);
            let kubeconfig = cluster.kubeconfig_for(&user, None)?;
            harness.virtual_side.apply(&kubeconfig_secret(keys::NAMESPACE, &harness.name, &kubeconfig)).await?;
            harness.start().await?;
            harness.vnode_ready(harness.node()).await?;
            let (web, _) = run_pod(harness, "web").await?;
            let (leaving, _) = run_pod(harness, "leaving").await?;

            offline(cluster, async |data| Ok(tokio::fs::remove_dir_all(data).await?)).await?;
            // With the same rights and a node of the same name: only the identity differs.
            cluster.apply(&namespace(&harness.mount)).await?;
            let mark = cluster.audit().mark().await?;
            cluster.physical_account(&harness.mount).await?;
            cluster.add_node(&node(harness.node()).label(TEST, &harness.name).build()).await?;
            says(harness, "PhysicalClusterChanged").await?;
            let binding = harness.binding().await?;
            assert_eq!(binding["status"]["phase"], "Failed");
            assert_eq!(binding["status"]["physicalClusterUID"], cluster.identity());

            // Work for every plan.
            harness.virtual_side.create(&harness.bound("late").build()).await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("leaving")).await?;
            tokio::time::sleep(A_WHILE).await;
            let asked = cluster.audit().since(&mark).await?.by_agent(&user_agent(&harness.name));
            ensure!(asked.count() > 0, "the audit log does not show our syncer at all");
            let writes = asked.writes();
            assert_eq!(writes.count(), 0, "{}", writes.summary());
            for before in [&web, &leaving] {
                let now = harness.vpod(name(before)).await?;
                assert_eq!((phase(&now), uid(&now)), ("Running", uid(before)));
            }
            Ok(())
        })
        .await
}
