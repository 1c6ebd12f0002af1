//! Pods on a physical cluster where the test itself is the kubelet, so that it can check each moment.

use anyhow::{Result, ensure};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{Harness, Pattern, pattern};
use crate::looks::{SOON, condition, items, name, phase, uid};

fn still(name: &str) -> Pattern {
    pattern(name).on(Fixture::Still)
}

fn grace(seconds: u32) -> DeleteParams {
    DeleteParams { grace_period_seconds: Some(seconds), ..Default::default() }
}

/// Creates a virtual pod, and runs its copy.
async fn run_pod(harness: &Harness, pod: Value) -> Result<(Value, Value)> {
    harness.vnode_ready(harness.node()).await?;
    let vpod = harness.virtual_side.create(&pod).await?;
    let ppod = harness.copy(name(&vpod)).await?;
    harness.play_running(&ppod).await?;
    harness.runs(name(&vpod)).await
}

/// A finalizer that keeps a virtual pod, so that its last state can be read.
fn held(pod: tapestry_testbed::builders::Pod) -> Value {
    pod.with("/metadata/finalizers", json!(["example.com/hold"])).build()
}

#[tokio::test]
async fn the_grace_period_is_forwarded_and_again_when_it_shrinks() -> Result<()> {
    still("grace")
        .run(async |harness| {
            let (vpod, ppod) = run_pod(harness, held(harness.bound("web"))).await?;
            harness.virtual_side.delete_with("v1/Pod", &harness.at("web"), &grace(40)).await?;
            let leaving = harness.physical_leaving(&ppod).await?;
            assert_eq!(leaving["metadata"]["deletionGracePeriodSeconds"], 40);
            harness.virtual_side.delete_with("v1/Pod", &harness.at("web"), &grace(7)).await?;
            eventually("the shorter grace arrives", SOON, async || {
                let ppod = harness.copy("web").await.map_err(|error| error.to_string())?;
                let grace = &ppod["metadata"]["deletionGracePeriodSeconds"];
                if *grace == 7 { Ok(()) } else { Err(grace.to_string()) }
            })
            .await?;
            // While the copy exists, the virtual pod does.
            let still_there = harness.vpod("web").await?;
            assert_eq!((uid(&still_there), phase(&still_there)), (uid(&vpod), "Running"));

            harness.play_ended(&ppod, 143).await?;
            harness.play_removed(&ppod).await?;
            let released = |vpod: &Value| vpod["metadata"]["deletionGracePeriodSeconds"] == 0;
            let last = harness.vpod_when("web", "is released", released).await?;
            assert_eq!(phase(&last), "Failed");
            assert_eq!(last["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 143);
            harness
                .virtual_side
                .patch("v1/Pod", &harness.at("web"), &json!({ "metadata": { "finalizers": null } }))
                .await?;
            harness.gone("web").await
        })
        .await
}

#[tokio::test]
async fn a_deleted_pod_is_terminal_before_it_is_removed_even_if_its_kubelet_never_reported_it() -> Result<()> {
    still("silent")
        .run(async |harness| {
            let (_, ppod) = run_pod(harness, held(harness.bound("web"))).await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("web")).await?;
            harness.physical_leaving(&ppod).await?;
            harness.play_removed(&ppod).await?;
            let released = |vpod: &Value| vpod["metadata"]["deletionGracePeriodSeconds"] == 0;
            let last = harness.vpod_when("web", "is released", released).await?;
            assert_eq!(phase(&last), "Failed");
            assert_eq!(condition(&last, "DisruptionTarget")["status"], "True");
            assert_eq!(condition(&last, "Ready")["status"], "False");
            harness
                .virtual_side
                .patch("v1/Pod", &harness.at("web"), &json!({ "metadata": { "finalizers": null } }))
                .await?;
            harness.gone("web").await
        })
        .await
}

/// A Job that starts another pod only when the last one has ended, and does not count disruptions.
fn patient_job(harness: &Harness) -> Value {
    let template = harness.pod("work").with("/spec/restartPolicy", "Never").build();
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "work", "namespace": harness.name },
        "spec": {
            "backoffLimit": 0, "template": { "spec": template["spec"] },
            "podFailurePolicy": { "rules": [{ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] }] },
        },
    })
}

/// The Job's one pod that is not being deleted and not in `before`.
async fn next_pod(harness: &Harness, before: &[String]) -> Result<String> {
    eventually("the Job starts a pod", SOON, async || {
        let pods = harness.virtual_side.list("v1/Pod", &harness.name).await.map_err(|error| error.to_string())?;
        let fresh = pods.iter().find(|pod| !before.iter().any(|old| old == name(pod)));
        fresh.map(|pod| name(pod).to_owned()).ok_or_else(|| format!("{} pods", pods.len()))
    })
    .await
}

async fn completes(harness: &Harness) -> Result<Value> {
    eventually("the Job is complete", SOON, async || {
        match harness.virtual_side.get("batch/v1/Job", &harness.at("work")).await {
            Ok(Some(job)) if condition(&job, "Complete")["status"] == "True" => Ok(job),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test]
async fn a_job_whose_pod_is_deleted_continues_when_the_pod_has_ended() -> Result<()> {
    still("replaced")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&patient_job(harness)).await?;
            let first = next_pod(harness, &[]).await?;
            let ppod = harness.copy(&first).await?;
            harness.play_running(&ppod).await?;
            harness.runs(&first).await?;
            harness.virtual_side.delete("v1/Pod", &harness.at(&first)).await?;
            harness.physical_leaving(&ppod).await?;
            harness.play_removed(&ppod).await?;
            harness.gone(&first).await?;
            let second = next_pod(harness, &[first]).await?;
            harness.play_ended(&harness.copy(&second).await?, 0).await?;
            let job = completes(harness).await?;
            ensure!(job["status"]["failed"].as_u64().unwrap_or(0) == 0, "{}", job["status"]);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_job_whose_pod_is_deleted_by_force_continues_too() -> Result<()> {
    still("forced")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&patient_job(harness)).await?;
            let first = next_pod(harness, &[]).await?;
            let ppod = harness.copy(&first).await?;
            harness.play_running(&ppod).await?;
            harness.runs(&first).await?;
            // Held by the Job's finalizer until its phase is terminal.
            harness.virtual_side.delete_with("v1/Pod", &harness.at(&first), &grace(0)).await?;
            harness.physical_leaving(&ppod).await?;
            harness.play_removed(&ppod).await?;
            harness.gone(&first).await?;
            let second = next_pod(harness, &[first]).await?;
            harness.play_ended(&harness.copy(&second).await?, 0).await?;
            completes(harness).await.map(drop)
        })
        .await
}

#[tokio::test]
async fn a_job_whose_pod_was_never_admitted_continues_when_the_pod_is_deleted() -> Result<()> {
    still("outside")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let mut job = patient_job(harness);
            // Bypasses the scheduler, and is not admitted.
            job["spec"]["template"]["spec"]["nodeName"] = json!(harness.vnode());
            job["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "33" } });
            harness.virtual_side.create(&job).await?;
            let first = next_pod(harness, &[]).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            harness.vpod_when(&first, "is refused", refused).await?;
            harness.virtual_side.delete("v1/Pod", &harness.at(&first)).await?;
            harness.gone(&first).await?;
            next_pod(harness, &[first]).await.map(drop)
        })
        .await
}

#[tokio::test]
async fn law_01_a_copy_that_a_user_deletes_by_force_fails_its_virtual_pod() -> Result<()> {
    still("lost")
        .run(async |harness| {
            let (_, ppod) = run_pod(harness, harness.bound("web").build()).await?;
            harness.play_removed(&ppod).await?;
            let lost = harness.vpod_when("web", "has failed", |vpod| phase(vpod) == "Failed").await?;
            assert_eq!(lost["status"]["reason"], "PhysicalPodLost");
            assert_eq!(condition(&lost, "Ready")["status"], "False");
            assert_eq!(condition(&lost, "DisruptionTarget")["status"], "True");
            assert_eq!(harness.ppods().await?.len(), 0, "it was copied again");
            harness.virtual_side.delete("v1/Pod", &harness.at("web")).await?;
            harness.gone("web").await
        })
        .await
}

#[tokio::test]
async fn a_copy_that_a_user_deletes_with_grace_makes_its_virtual_pod_unready_at_once() -> Result<()> {
    still("gently")
        .run(async |harness| {
            let (_, ppod) = run_pod(harness, harness.bound("web").build()).await?;
            let place = format!("{}/{}", harness.mount, name(&ppod));
            harness.physical_side.delete_with("v1/Pod", &place, &grace(30)).await?;
            let out = |vpod: &Value| condition(vpod, "Ready")["status"] == "False";
            let vpod = harness.vpod_when("web", "is not ready", out).await?;
            assert_eq!(condition(&vpod, "DisruptionTarget")["status"], "True");
            assert_eq!(phase(&vpod), "Running");
            // Its final status is what counts.
            harness.play_ended(&ppod, 0).await?;
            harness.play_removed(&ppod).await?;
            let ended = harness.vpod_when("web", "has ended", |vpod| phase(vpod) != "Running").await?;
            assert_eq!(phase(&ended), "Succeeded");
            assert_eq!(ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_finished_pod_stays_finished_when_its_copy_is_collected() -> Result<()> {
    still("finished")
        .run(async |harness| {
            let (_, good) = run_pod(harness, harness.bound("good").build()).await?;
            let (_, bad) = run_pod(harness, harness.bound("bad").build()).await?;
            harness.play_ended(&good, 0).await?;
            harness.play_ended(&bad, 3).await?;
            harness.vpod_when("good", "has succeeded", |vpod| phase(vpod) == "Succeeded").await?;
            harness.vpod_when("bad", "has failed", |vpod| phase(vpod) == "Failed").await?;
            harness.play_removed(&good).await?;
            harness.play_removed(&bad).await?;
            // Another pod that runs afterwards shows that the syncer has seen both.
            run_pod(harness, harness.bound("later").build()).await?;
            let (good, bad) = (harness.vpod("good").await?, harness.vpod("bad").await?);
            assert_eq!((phase(&good), &good["status"]["reason"]), ("Succeeded", &Value::Null));
            assert_eq!((phase(&bad), &bad["status"]["reason"]), ("Failed", &Value::Null));
            // A restart does not change it either.
            harness.stop().await?;
            harness.start().await?;
            run_pod(harness, harness.bound("last").build()).await?;
            assert_eq!(phase(&harness.vpod("good").await?), "Succeeded");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_status_that_another_writer_changed_is_corrected_and_foreign_conditions_survive() -> Result<()> {
    still("corrected")
        .run(async |harness| {
            let (vpod, _) = run_pod(harness, harness.pod("web").build()).await?;
            // As the controller-manager does when a node seems dead; and a condition of the user's own.
            let mut conditions = items(&vpod["status"]["conditions"]).to_vec();
            conditions.retain(|condition| condition["type"] != "Ready");
            conditions
                .push(json!({ "type": "Ready", "status": "False", "lastTransitionTime": "2026-02-01T00:00:00Z" }));
            conditions.push(json!({ "type": "example.com/Mine", "status": "True" }));
            let patch = json!({ "status": { "conditions": conditions, "phase": "Pending" } });
            harness.virtual_side.patch_subresource("status", "v1/Pod", &harness.at("web"), &patch).await?;
            let right = |vpod: &Value| phase(vpod) == "Running" && condition(vpod, "Ready")["status"] == "True";
            let vpod = harness.vpod_when("web", "has the right status again", right).await?;
            assert_eq!(condition(&vpod, "example.com/Mine")["status"], "True");
            assert_eq!(condition(&vpod, "PodScheduled")["status"], "True");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn changed_addresses_and_containers_of_a_copy_reach_the_virtual_pod() -> Result<()> {
    still("readdressed")
        .run(async |harness| {
            let (_, ppod) = run_pod(harness, harness.bound("web").build()).await?;
            let place = format!("{}/{}", harness.mount, name(&ppod));
            let container = json!({
                "name": "main", "image": "testbed.invalid/image", "imageID": "sha256:1", "restartCount": 2, "ready": true, "started": true,
                "containerID": "containerd://2", "state": { "running": { "startedAt": "2026-01-03T00:00:00Z" } },
                "lastState": { "terminated": { "exitCode": 1, "reason": "Error", "startedAt": "2026-01-02T00:00:00Z", "finishedAt": "2026-01-02T00:00:01Z" } },
            });
            let status = json!({ "status": {
                "podIP": "10.1.1.1", "podIPs": [{ "ip": "10.1.1.1" }, { "ip": "fd00::1" }], "containerStatuses": [container],
            } });
            harness.physical_side.patch_subresource("status", "v1/Pod", &place, &status).await?;
            let moved = |vpod: &Value| vpod["status"]["podIP"] == "10.1.1.1";
            let vpod = harness.vpod_when("web", "has the new address", moved).await?;
            let ppod = harness.copy("web").await?;
            for field in ["podIPs", "containerStatuses", "hostIPs", "startTime"] {
                assert_eq!(vpod["status"][field], ppod["status"][field], "{field}");
            }
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_label_stripped_from_a_running_copy_is_restored_and_the_pod_keeps_running() -> Result<()> {
    still("unlabelled")
        .run(async |harness| {
            let (vpod, ppod) = run_pod(harness, harness.bound("web").build()).await?;
            let place = format!("{}/{}", harness.mount, name(&ppod));
            for strip in [
                json!({ "metadata": { "labels": { keys::ORIGIN: null } } }),
                json!({ "metadata": { "labels": { keys::MANAGED_BY: null, keys::CLUSTER_BINDING: null, keys::ORIGIN: null } } }),
                json!({ "metadata": { "annotations": { keys::ORIGIN: null, keys::VIRTUAL_POD_UID: null } } }),
                json!({ "metadata": { "labels": null, "annotations": null } }),
            ] {
                harness.physical_side.patch("v1/Pod", &place, &strip).await?;
                eventually(&format!("{strip} is undone"), SOON, async || {
                    let seen = harness.physical_side.get("v1/Pod", &place).await.map_err(|error| error.to_string())?;
                    let seen = seen.ok_or("the copy is gone")?;
                    let ours = |pod: &Value| {
                        let labels = [keys::MANAGED_BY, keys::CLUSTER_BINDING, keys::ORIGIN];
                        let annotations =
                            [keys::ORIGIN, keys::VIRTUAL_POD_NAMESPACE, keys::VIRTUAL_POD_NAME, keys::VIRTUAL_POD_UID];
                        let labels = labels.map(|key| pod["metadata"]["labels"][key].clone());
                        (labels, annotations.map(|key| pod["metadata"]["annotations"][key].clone()))
                    };
                    if ours(&seen) == ours(&ppod) { Ok(()) } else { Err(seen["metadata"].to_string()) }
                })
                .await?;
            }
            let (after, copy) = harness.runs("web").await?;
            assert_eq!((uid(&after), uid(&copy)), (uid(&vpod), uid(&ppod)));
            // And it can still be deleted.
            harness.virtual_side.delete("v1/Pod", &harness.at("web")).await?;
            harness.play_removed(&harness.physical_leaving(&ppod).await?).await?;
            harness.gone("web").await
        })
        .await
}

#[tokio::test]
async fn reconnect_does_not_recreate_running_pods() -> Result<()> {
    still("reconnect")
        .run(async |harness| {
            let (vpod, ppod) = run_pod(harness, harness.bound("web").build()).await?;
            harness.stop().await?;
            harness.virtual_side.create(&harness.bound("meanwhile").build()).await?;
            harness.start().await?;
            // The syncer sees what happened meanwhile, and changes nothing else.
            harness.play_running(&harness.copy("meanwhile").await?).await?;
            harness.runs("meanwhile").await?;
            let (vpod_after, ppod_after) = harness.runs("web").await?;
            for field in ["uid", "resourceVersion"] {
                assert_eq!(vpod_after["metadata"][field], vpod["metadata"][field], "{field} of the virtual pod");
                assert_eq!(ppod_after["metadata"][field], ppod["metadata"][field], "{field} of the copy");
            }
            Ok(())
        })
        .await
}
