//! What the syncer does not write, by the audit logs of the API servers.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_syncer::start::user_agent;
use tapestry_testbed::audit::{Mark, Requests};
use tapestry_testbed::builders::{deployment, kubeconfig_secret, namespace, node};
use tapestry_testbed::{Cluster, eventually};

use crate::fixtures::Fixture;
use crate::harness::{BINDING, Harness, pattern};
use crate::looks::{LATE, SOON, condition, phase, uid};

/// What our syncer wrote since `mark`, without the renewals of Leases.
async fn written(harness: &Harness, cluster: &Cluster, mark: &Mark) -> Result<Requests> {
    let all = cluster.audit().since(mark).await?.by_agent(&user_agent(&harness.name)).writes();
    Ok(all.only(|request| request.resource != "leases.coordination.k8s.io"))
}

/// Waits until the syncer has written nothing for two seconds.
async fn settled(harness: &Harness) -> Result<()> {
    eventually("the syncer has nothing more to write", SOON, async || {
        let look = async {
            let mark = harness.virtual_cluster.audit().mark().await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            anyhow::Ok(written(harness, harness.virtual_cluster, &mark).await?)
        };
        let writes = look.await.map_err(|error| error.to_string())?;
        if writes.count() == 0 { Ok(()) } else { Err(writes.summary()) }
    })
    .await
}

#[tokio::test]
async fn law_01_a_kubeconfig_that_leads_to_another_cluster_stops_everything() -> Result<()> {
    pattern("moved")
        .on(Fixture::East)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            harness.virtual_side.create(&harness.bound("leaving").build()).await?;
            let (web, _) = harness.runs("web").await?;
            let (leaving, _) = harness.runs("leaving").await?;
            settled(harness).await?;
            harness.stop().await?;

            let west = Fixture::West.cluster().await?;
            // The same rights there: only the identity is another.
            west.apply(&namespace(&harness.mount)).await?;
            let kubeconfig = west.physical_account(&harness.mount).await?;
            let secret = kubeconfig_secret("tapestry-system", &harness.name, &kubeconfig);
            harness.virtual_side.apply(&secret).await?;
            let marks = (
                harness.virtual_cluster.audit().mark().await?,
                harness.physical_cluster.audit().mark().await?,
                west.audit().mark().await?,
            );
            harness.start_wrong().await?;
            let stopped = |binding: &Value| {
                let connected = condition(binding, "Connected");
                connected["status"] == "False" && connected["reason"] == "PhysicalClusterChanged"
            };
            eventually("the binding says that the cluster is another one", SOON, async || {
                let binding = harness.binding().await.map_err(|error| error.to_string())?;
                if stopped(&binding) { Ok(()) } else { Err(binding["status"].to_string()) }
            })
            .await?;
            let binding = harness.virtual_side.get(BINDING, &harness.name).await?.context("no binding")?;
            assert_eq!(binding["status"]["phase"], "Failed");
            assert_eq!(binding["status"]["physicalClusterUID"], harness.physical_cluster.identity());
            // Work for every plan: a new pod, a pod to be deleted, a new policy.
            harness.virtual_side.create(&harness.bound("late").build()).await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("leaving")).await?;
            tokio::time::sleep(Duration::from_secs(3)).await;

            let here = written(harness, harness.virtual_cluster, &marks.0).await?;
            let other = here.only(|request| request.resource != "clusterbindings.cloud.tencent.com");
            assert_eq!(other.count(), 0, "virtual:\n{}", other.summary());
            assert_eq!(here.count(), 1, "more than the condition:\n{}", here.summary());
            for (cluster, mark) in [(harness.physical_cluster, &marks.1), (west, &marks.2)] {
                let writes = written(harness, cluster, mark).await?;
                assert_eq!(writes.count(), 0, "{}:\n{}", cluster.name(), writes.summary());
            }
            let asked = west.audit().since(&marks.2).await?.by_agent(&user_agent(&harness.name));
            ensure!(asked.count() > 0, "the audit log does not show our syncer at all");
            let now = (harness.vpod("web").await?, harness.vpod("leaving").await?);
            assert_eq!((phase(&now.0), uid(&now.0)), ("Running", uid(&web)));
            assert_eq!((phase(&now.1), uid(&now.1)), ("Running", uid(&leaving)));

            // The right kubeconfig: everything continues.
            harness.stop().await?;
            let secret = kubeconfig_secret("tapestry-system", &harness.name, &harness.physical_kubeconfig);
            harness.virtual_side.apply(&secret).await?;
            harness.start().await?;
            harness.gone("leaving").await?;
            harness.runs("late").await?;
            let (after, _) = harness.runs("web").await?;
            assert_eq!(uid(&after), uid(&web));
            west.delete("v1/Namespace", &harness.mount).await?;
            west.remove_physical_account(&harness.mount).await
        })
        .await
}

#[tokio::test]
async fn law_04_a_converged_system_writes_nothing_but_leases() -> Result<()> {
    pattern("idle")
        .on(Fixture::West)
        .node(node("idle-0"))
        .node(node("idle-1"))
        .run(async |harness| {
            let web = deployment("web", 50).namespace(&harness.name).pods(harness.pod("web").cpu("100m"));
            harness.virtual_side.create(&web.build()).await?;
            eventually("50 pods run", LATE, async || {
                let pods =
                    harness.virtual_side.list("v1/Pod", &harness.name).await.map_err(|error| error.to_string())?;
                let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
                if run == 50 { Ok(()) } else { Err(format!("{run}")) }
            })
            .await?;
            // A pod that waits for admission must not be written again and again.
            harness.virtual_side.create(&harness.bound("huge").cpu("500").build()).await?;
            // Figures follow within ten seconds.
            eventually("the binding shows what is lent and used", SOON, async || {
                let status = harness.binding().await.map_err(|error| error.to_string())?["status"].take();
                let told = (&status["phase"], &status["nodes"], &status["used"]["cpu"], &status["used"]["pods"]);
                let true_ones = (&json!("Ready"), &json!(2), &json!("5"), &json!("50"));
                if told == true_ones { Ok(()) } else { Err(status.to_string()) }
            })
            .await?;
            settled(harness).await?;
            let marks = (harness.virtual_cluster.audit().mark().await?, harness.physical_cluster.audit().mark().await?);
            tokio::time::sleep(Duration::from_mins(1)).await;
            for (cluster, mark) in [(harness.virtual_cluster, &marks.0), (harness.physical_cluster, &marks.1)] {
                let writes = written(harness, cluster, mark).await?;
                assert_eq!(writes.count(), 0, "{} in an idle minute:\n{}", cluster.name(), writes.summary());
            }
            let all =
                harness.virtual_cluster.audit().since(&marks.0).await?.by_agent(&user_agent(&harness.name)).writes();
            // Two nodes, every ten seconds.
            ensure!((8..=14).contains(&all.count()), "{} renewals:\n{}", all.count(), all.summary());

            // Nor does a cold start.
            harness.stop().await?;
            let marks = (harness.virtual_cluster.audit().mark().await?, harness.physical_cluster.audit().mark().await?);
            harness.start().await?;
            settled(harness).await?;
            for (cluster, mark) in [(harness.virtual_cluster, &marks.0), (harness.physical_cluster, &marks.1)] {
                let writes = written(harness, cluster, mark).await?;
                assert_eq!(writes.count(), 0, "{} after a cold start:\n{}", cluster.name(), writes.summary());
            }
            let stray = json!({ "spec": { "replicas": 0 } });
            harness.virtual_side.patch_subresource("scale", "apps/v1/Deployment", &harness.at("web"), &stray).await?;
            Ok(())
        })
        .await
}
