//! A cluster that is restored from a backup: what we know is of a future that never was. And one that begins anew, empty.

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

use crate::grounds::{Ground, Home, bare, own};
use crate::looks::{SOON, condition, name, phase, uid};
use crate::loom::{Loom, TEST, pattern};

/// What is planned is done in a hundredth of it.
const A_WHILE: Duration = Duration::from_secs(3);

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

/// Makes the state much younger than its backup, as hours would: a server that starts writes a little by itself, and what is as
/// young as what we have read looks like what we have read.
async fn grow_old(side: &Objects, pod: &str) -> Result<()> {
    for time in 0..100 {
        let note = json!({ "metadata": { "annotations": { "example.com/time": time.to_string() } } });
        side.patch("v1/Pod", pod, &note).await?;
    }
    Ok(())
}

/// What the binding says of its clusters.
async fn says(loom: &Loom, reason: &str) -> Result<Value> {
    eventually(&format!("the binding says {reason}"), SOON, async || {
        let binding = loom.binding().await.map_err(|error| error.to_string())?;
        let connected = condition(&binding, "Connected");
        let told = connected["status"] == "False" && connected["reason"] == reason;
        if told { Ok(connected.clone()) } else { Err(connected.to_string()) }
    })
    .await
}

/// The copies as they were, and nobody asked them to go.
async fn untouched(loom: &Loom, before: &[Value]) -> Result<()> {
    let now = loom.ppods().await?;
    for copy in before {
        let kept = now.iter().find(|ppod| uid(ppod) == uid(copy)).with_context(|| format!("gone: {copy}"))?;
        ensure!(kept["metadata"]["resourceVersion"] == copy["metadata"]["resourceVersion"], "touched: {kept}");
    }
    ensure!(now.len() == before.len(), "{} copies instead of {}", now.len(), before.len());
    Ok(())
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
            let (late, late_copy) = run_pod(loom, "late").await?;
            grow_old(&loom.physical_side, &format!("{}/{}", loom.mount, name(&late_copy))).await?;
            offline(cluster, async |data| {
                tokio::fs::remove_dir_all(data).await?;
                copy(&backup, data).await
            })
            .await?;

            says(loom, "PhysicalClusterRestored").await?;
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

#[tokio::test]
async fn law_01_a_restored_virtual_cluster_ends_no_pod_until_somebody_starts_us_anew() -> Result<()> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_try_init(|| own(bare("restored-above"))).await?;
    pattern("restored-above")
        .home(Home::Own(cluster))
        .on(Ground::Still)
        .run(async |loom| {
            loom.vnode_ready(loom.node()).await?;
            let (early, early_copy) = run_pod(loom, "early").await?;
            let (_, asked_copy) = run_pod(loom, "asked").await?;
            let (_, ended_copy) = run_pod(loom, "ended").await?;
            let backup = cluster.folder().join("backup");
            offline(cluster, async |data| copy(data, &backup).await).await?;
            let (_, late_copy) = run_pod(loom, "late").await?;
            grow_old(&loom.virtual_side, &loom.at("late")).await?;
            loom.virtual_side.delete("v1/Pod", &loom.at("ended")).await?;
            loom.play_removed(&loom.physical_leaving(&ended_copy).await?).await?;
            loom.gone("ended").await?;
            let copies = loom.ppods().await?;
            offline(cluster, async |data| {
                tokio::fs::remove_dir_all(data).await?;
                copy(&backup, data).await
            })
            .await?;

            // A pod that nobody made any more, and one that has ended and is back: nothing is done about either.
            let told = says(loom, "VirtualClusterRestored").await?;
            ensure!(told["message"].as_str().is_some_and(|message| message.contains("restart the syncer")), "{told}");
            loom.virtual_side.create(&loom.bound("new").build()).await?;
            loom.virtual_side.delete("v1/Pod", &loom.at("asked")).await?;
            tokio::time::sleep(A_WHILE).await;
            untouched(loom, &copies).await?;
            for pod in ["early", "asked", "ended"] {
                assert_eq!(phase(&loom.vpod(pod).await?), "Running");
            }
            // Told once.
            let again = says(loom, "VirtualClusterRestored").await?;
            assert_eq!(again, told);

            // Anew, from what is there, and by evidence: who is proven not to be there any more goes, or is told to be lost.
            loom.stop().await?;
            loom.start().await?;
            let leaving = loom.physical_leaving(&late_copy).await?;
            loom.play_removed(&leaving).await?;
            let lost = loom.vpod_when("ended", "is told to be lost", |vpod| phase(vpod) == "Failed").await?;
            assert_eq!(lost["status"]["reason"], "PhysicalPodLost");
            // What was asked for meanwhile is done, and what is there runs on.
            loom.play_removed(&loom.physical_leaving(&asked_copy).await?).await?;
            loom.gone("asked").await?;
            loom.play_running(&loom.copy("new").await?).await?;
            loom.runs("new").await?;
            let (vpod, ppod) = loom.runs("early").await?;
            assert_eq!((uid(&vpod), uid(&ppod)), (uid(&early), uid(&early_copy)));
            loom.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn law_01_an_emptied_physical_cluster_at_the_same_address_is_another_one_and_nothing_is_written() -> Result<()> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let cluster = CLUSTER.get_or_try_init(|| own(bare("emptied"))).await?;
    pattern("emptied")
        .on(Ground::Own(cluster))
        .run_without(async |loom| {
            // A certificate: it is as good in the new cluster, where a token would be unknown.
            let user = format!("system:serviceaccount:{}:{}", keys::NAMESPACE, loom.mount);
            let kubeconfig = cluster.kubeconfig_for(&user, None)?;
            loom.virtual_side.apply(&kubeconfig_secret(keys::NAMESPACE, &loom.name, &kubeconfig)).await?;
            loom.start().await?;
            loom.vnode_ready(loom.node()).await?;
            let (web, _) = run_pod(loom, "web").await?;
            let (leaving, _) = run_pod(loom, "leaving").await?;

            offline(cluster, async |data| Ok(tokio::fs::remove_dir_all(data).await?)).await?;
            // With the same rights and a node of the same name: only who it is differs.
            cluster.apply(&namespace(&loom.mount)).await?;
            let mark = cluster.audit().mark().await?;
            cluster.physical_account(&loom.mount).await?;
            cluster.add_node(&node(loom.node()).label(TEST, &loom.name).build()).await?;
            says(loom, "PhysicalClusterChanged").await?;
            let binding = loom.binding().await?;
            assert_eq!(binding["status"]["phase"], "Failed");
            assert_eq!(binding["status"]["physicalClusterUID"], cluster.identity());

            // Work for every plan.
            loom.virtual_side.create(&loom.bound("late").build()).await?;
            loom.virtual_side.delete("v1/Pod", &loom.at("leaving")).await?;
            tokio::time::sleep(A_WHILE).await;
            let asked = cluster.audit().since(&mark).await?.by_agent(&user_agent(&loom.name));
            ensure!(asked.count() > 0, "the audit log does not show our syncer at all");
            let writes = asked.writes();
            assert_eq!(writes.count(), 0, "{}", writes.summary());
            for before in [&web, &leaving] {
                let now = loom.vpod(name(before)).await?;
                assert_eq!((phase(&now), uid(&now)), ("Running", uid(before)));
            }
            Ok(())
        })
        .await
}
