//! The mass-delete breaker: a physical cluster that lost many pods while nobody looked.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use kube::api::DeleteParams;
use tapestry_testbed::eventually;

use crate::grounds::Ground;
use crate::looks::{SOON, condition, name, phase};
use crate::loom::{Loom, pattern};

const PODS: usize = 30;
/// So many may be told to be lost before anybody is asked.
const FEW: usize = 20;

async fn tapestry(loom: &Loom, args: &[&str]) -> Result<String> {
    let output = loom.tapestry(args).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

async fn lost(loom: &Loom) -> Result<usize> {
    let pods = loom.virtual_side.list("v1/Pod", &loom.name).await?;
    Ok(pods.iter().filter(|pod| phase(pod) == "Failed").count())
}

async fn trips(loom: &Loom) -> Result<()> {
    eventually("the breaker has tripped", SOON, async || {
        let binding = loom.binding().await.map_err(|error| error.to_string())?;
        let told = condition(&binding, "BreakerTripped");
        if told["status"] == "True" { Ok(()) } else { Err(binding["status"].to_string()) }
    })
    .await
}

#[tokio::test]
async fn law_01_a_cluster_that_lost_its_pods_while_nobody_looked_trips_the_breaker_until_somebody_resumes() -> Result<()>
{
    pattern("breaker")
        .on(Ground::Still)
        .run(async |loom| {
            loom.vnode_ready(loom.node()).await?;
            let pods: Vec<_> = (0..PODS).map(|n| loom.bound(&format!("p{n}")).build()).collect();
            try_join_all(pods.iter().map(|pod| loom.virtual_side.create(pod))).await?;
            loom.copies_at_least(PODS).await?;
            let copies = loom.ppods().await?;
            try_join_all(copies.iter().map(|copy| loom.play_running(copy))).await?;
            for pod in &pods {
                loom.runs(name(pod)).await?;
            }
            loom.stop().await?;
            let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            for copy in &copies {
                loom.physical_side.delete_with("v1/Pod", &format!("{}/{}", loom.mount, name(copy)), &now).await?;
            }
            loom.start().await?;

            trips(loom).await?;
            ensure!(lost(loom).await? <= FEW, "{} were lost", lost(loom).await?);
            let status = tapestry(loom, &["status", &loom.name]).await?;
            ensure!(status.contains("tripped: ") && status.contains("tapestry resume breaker"), "{status}");

            // A restart does not forget it.
            loom.stop().await?;
            loom.start().await?;
            trips(loom).await?;
            ensure!(lost(loom).await? <= FEW, "{} were lost", lost(loom).await?);
            // All are looked for again before somebody says that they may end.
            eventually("everybody was looked for", SOON, async || {
                let resumed = tapestry(loom, &["resume", &loom.name]).await.map_err(|error| error.to_string())?;
                let lost = lost(loom).await.map_err(|error| error.to_string())?;
                if lost == PODS { Ok(()) } else { Err(format!("{resumed}: {lost} lost")) }
            })
            .await?;
            let binding = loom.binding().await?;
            ensure!(binding["status"]["breaker"].is_null(), "{}", binding["status"]);
            let nothing = tapestry(loom, &["resume", &loom.name]).await?;
            ensure!(nothing.starts_with("Nothing to resume"), "{nothing}");
            Ok(())
        })
        .await
}
