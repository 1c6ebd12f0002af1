//! The mass-delete breaker: a physical cluster that lost many pods while no syncer ran.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use kube::api::DeleteParams;
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{Harness, pattern};
use crate::looks::{SOON, condition, name, phase};

const PODS: usize = 30;
/// This many pods may be lost before the breaker trips.
const FEW: usize = 20;

async fn tapestry(harness: &Harness, args: &[&str]) -> Result<String> {
    let output = harness.tapestry(args).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

async fn lost(harness: &Harness) -> Result<usize> {
    let pods = harness.virtual_side.list("v1/Pod", &harness.name).await?;
    Ok(pods.iter().filter(|pod| phase(pod) == "Failed").count())
}

async fn trips(harness: &Harness) -> Result<()> {
    eventually("the breaker has tripped", SOON, async || {
        let binding = harness.binding().await.map_err(|error| error.to_string())?;
        let told = condition(&binding, "BreakerTripped");
        if told["status"] == "True" { Ok(()) } else { Err(binding["status"].to_string()) }
    })
    .await
}

#[tokio::test]
async fn law_01_a_cluster_that_lost_its_pods_while_no_syncer_ran_trips_the_breaker_until_a_user_resumes() -> Result<()>
{
    pattern("breaker")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let pods: Vec<_> = (0..PODS).map(|n| harness.bound(&format!("p{n}")).build()).collect();
            try_join_all(pods.iter().map(|pod| harness.virtual_side.create(pod))).await?;
            harness.copies_at_least(PODS).await?;
            let copies = harness.ppods().await?;
            try_join_all(copies.iter().map(|copy| harness.play_running(copy))).await?;
            for pod in &pods {
                harness.runs(name(pod)).await?;
            }
            harness.stop().await?;
            let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            for copy in &copies {
                harness.physical_side.delete_with("v1/Pod", &format!("{}/{}", harness.mount, name(copy)), &now).await?;
            }
            harness.start().await?;

            trips(harness).await?;
            ensure!(lost(harness).await? <= FEW, "{} were lost", lost(harness).await?);
            let status = tapestry(harness, &["status", &harness.name]).await?;
            ensure!(status.contains("tripped: ") && status.contains("tapestry resume breaker"), "{status}");

            // A restart does not forget it.
            harness.stop().await?;
            harness.start().await?;
            trips(harness).await?;
            ensure!(lost(harness).await? <= FEW, "{} were lost", lost(harness).await?);
            // The syncer looks for all of them again before a user resumes.
            eventually("all pods were looked for", SOON, async || {
                let resumed = tapestry(harness, &["resume", &harness.name]).await.map_err(|error| error.to_string())?;
                let lost = lost(harness).await.map_err(|error| error.to_string())?;
                if lost == PODS { Ok(()) } else { Err(format!("{resumed}: {lost} lost")) }
            })
            .await?;
            let binding = harness.binding().await?;
            ensure!(binding["status"]["breaker"].is_null(), "{}", binding["status"]);
            let nothing = tapestry(harness, &["resume", &harness.name]).await?;
            ensure!(nothing.starts_with("Nothing to resume"), "{nothing}");
            Ok(())
        })
        .await
}
