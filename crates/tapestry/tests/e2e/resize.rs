//! In-place resize of running pods, where the test itself is the kubelet.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_testbed::builders::node;
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{Harness, Pattern, event_reasons, pattern};
use crate::looks::{SOON, condition, name, phase, uid};

/// One node of 4 CPU and no kubelet.
fn still(name: &str) -> Pattern {
    pattern(name).on(Fixture::Still).node(node(&format!("{name}-0")).cpu("4").memory("8Gi").pods(10))
}

async fn run_pod(harness: &Harness, pod: &str, cpu: &str) -> Result<Value> {
    harness.vnode_ready(harness.node()).await?;
    harness.virtual_side.create(&harness.bound(pod).cpu(cpu).build()).await?;
    let ppod = harness.copy(pod).await?;
    harness.play_running(&ppod).await?;
    harness.runs(pod).await?;
    Ok(ppod)
}

/// What `kubectl patch pod --subresource resize` sends.
async fn resize(harness: &Harness, pod: &str, cpu: &str) -> Result<()> {
    let vpod = harness.vpod(pod).await?;
    let container =
        json!({ "name": vpod["spec"]["containers"][0]["name"], "resources": { "requests": { "cpu": cpu } } });
    let patch = json!({ "spec": { "containers": [container] } });
    harness.virtual_side.patch_subresource("resize", "v1/Pod", &harness.at(pod), &patch).await?;
    Ok(())
}

fn cpu(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
}

async fn copy_asks_for(harness: &Harness, pod: &str, wanted: &str) -> Result<Value> {
    eventually(&format!("the copy of {pod} asks for {wanted}"), SOON, async || {
        let ppod = harness.copy(pod).await.map_err(|error| error.to_string())?;
        if *cpu(&ppod) == wanted { Ok(ppod) } else { Err(cpu(&ppod).to_string()) }
    })
    .await
}

fn pending(vpod: &Value) -> &Value {
    condition(vpod, "PodResizePending")
}

#[tokio::test]
async fn a_resize_that_fits_reaches_the_running_copy_and_the_kubelets_answer_comes_back() -> Result<()> {
    still("resize-fits")
        .run(async |harness| {
            let before = run_pod(harness, "web", "1").await?;
            resize(harness, "web", "3").await?;
            let after = copy_asks_for(harness, "web", "3").await?;
            assert_eq!(uid(&after), uid(&before), "the pod keeps running");
            let generation = harness.vpod("web").await?["metadata"]["generation"].clone();

            let place = format!("{}/{}", harness.mount, name(&after));
            let mut status = harness.physical_side.get("v1/Pod", &place).await?.unwrap_or_default()["status"].clone();
            status["containerStatuses"][0]["resources"] = json!({ "requests": { "cpu": "3" } });
            status["containerStatuses"][0]["allocatedResources"] = json!({ "cpu": "3" });
            status["observedGeneration"] = after["metadata"]["generation"].clone();
            harness.physical_side.patch_subresource("status", "v1/Pod", &place, &json!({ "status": status })).await?;
            let given = |vpod: &Value| vpod["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"] == "3";
            let vpod = harness.vpod_when("web", "has been given 3 CPU", given).await?;
            assert_eq!(phase(&vpod), "Running");
            harness
                .vpod_when("web", "says which generation was carried out", |vpod| {
                    vpod["status"]["observedGeneration"] == generation
                })
                .await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_a_resize_that_does_not_fit_is_deferred_and_carried_out_when_there_is_room() -> Result<()> {
    still("resize-waits")
        .run(async |harness| {
            run_pod(harness, "web", "1").await?;
            let neighbour = run_pod(harness, "big", "2500m").await?;
            resize(harness, "web", "3").await?;
            let vpod = harness.vpod_when("web", "says that it waits", |vpod| pending(vpod)["status"] == "True").await?;
            assert_eq!(pending(&vpod)["reason"], "Deferred");
            eventually("an event says so", SOON, async || {
                let reasons =
                    event_reasons(&harness.virtual_side, &harness.name, "web").await.map_err(|e| e.to_string())?;
                if reasons.iter().any(|reason| reason == "ResizeDeferred") {
                    Ok(())
                } else {
                    Err(format!("{reasons:?}"))
                }
            })
            .await?;
            ensure!(*cpu(&harness.copy("web").await?) == "1", "nothing is taken that is not lent");
            let (_, other) = harness.runs("big").await?;
            assert_eq!(uid(&other), uid(&neighbour), "no pod has to go for it");

            harness.virtual_side.delete("v1/Pod", &harness.at("big")).await?;
            harness.physical_leaving(&neighbour).await?;
            harness.play_removed(&neighbour).await?;
            copy_asks_for(harness, "web", "3").await?;
            harness.vpod_when("web", "says nothing more", |vpod| pending(vpod).is_null()).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_12_a_resize_that_the_physical_cluster_refuses_is_reported_with_its_message() -> Result<()> {
    still("resize-refused")
        .run(async |harness| {
            run_pod(harness, "web", "1").await?;
            let limit = json!({ "type": "Container", "max": { "cpu": "2" }, "defaultRequest": { "cpu": "100m" } });
            let range = json!({
                "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "house-rules", "namespace": harness.mount },
                "spec": { "limits": [limit] },
            });
            harness.physical_side.create(&range).await?;
            // The API server learns of a limit by its own watch.
            eventually("the limit holds", SOON, async || {
                let pod = tapestry_testbed::builders::pod("probe").namespace(&harness.mount).cpu("3").build();
                match harness.physical_side.create(&pod).await {
                    Err(_) => Ok(()),
                    Ok(made) => {
                        let gone = harness.play_removed(&made).await;
                        Err(format!("a pod of 3 CPU was accepted; {gone:?}"))
                    }
                }
            })
            .await?;
            resize(harness, "web", "3").await?;
            let vpod = harness.vpod_when("web", "says so", |vpod| pending(vpod)["status"] == "True").await?;
            let message = pending(&vpod)["message"].as_str().unwrap_or_default();
            ensure!(message.starts_with("the physical cluster refused it: ") && message.contains("cpu"), "{message}");
            ensure!(*cpu(&harness.copy("web").await?) == "1", "the copy is as it was");
            Ok(())
        })
        .await
}
