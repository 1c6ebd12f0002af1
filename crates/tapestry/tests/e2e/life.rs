//! The life of pods that controllers of the virtual cluster keep, on two physical clusters with schedulers, controller managers and
//! kwok's kubelets: readiness gates, evictions and drains on either side, Jobs, init containers, failures, copies that find no node.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::{deployment, pod};
use tapestry_testbed::{Objects, eventually};

use crate::harness::{Harness, event_reasons, pattern};
use crate::looks::{SOON, annotation, condition, items, name, phase, taints, text, uid};
use crate::timing::timed;
use crate::two::{BOTH, Two};

/// The copy of a virtual pod, which must have one.
async fn copy_of(harness: &Harness, vpod: &Value) -> Result<Value> {
    let copies = harness.ppods().await?;
    let copy = copies.into_iter().find(|ppod| annotation(ppod, keys::VIRTUAL_POD_UID) == uid(vpod));
    copy.with_context(|| format!("{} has no copy", name(vpod)))
}

/// What a kubelet reports of a copy.
async fn report(harness: &Harness, copy: &Value, status: &Value) -> Result<()> {
    let place = format!("{}/{}", harness.mount, name(copy));
    harness.physical_side.patch_subresource("status", "v1/Pod", &place, &json!({ "status": status })).await?;
    Ok(())
}

/// Asks the Eviction API, as `kubectl drain` does; says whether the eviction was granted.
async fn evict(side: &Objects, namespace: &str, pod: &str) -> Result<bool> {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": namespace },
    });
    match side.create_subresource("eviction", "v1/Pod", &format!("{namespace}/{pod}"), &eviction).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn cordon(side: &Objects, node: &str) -> Result<()> {
    side.patch("v1/Node", node, &json!({ "spec": { "unschedulable": true } })).await?;
    Ok(())
}

#[tokio::test]
async fn a_pod_with_a_readiness_gate_is_ready_when_its_copy_and_the_gate_are() -> Result<()> {
    pattern("gate")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let gates = json!([{ "conditionType": "example.com/lb" }]);
            harness.virtual_side.create(&harness.pod("web").with("/spec/readinessGates", gates).build()).await?;
            let closed = |vpod: &Value| condition(vpod, "Ready")["reason"] == "ReadinessGatesNotReady";
            let vpod = harness.vpod_when("web", "waits for its gate", closed).await?;
            assert_eq!(condition(&vpod, "Ready")["status"], "False");
            assert_eq!(condition(&vpod, "ContainersReady")["status"], "True");
            let copy = harness.copy("web").await?;
            ensure!(copy["spec"]["readinessGates"].is_null(), "the copy has the gate");
            assert_eq!(condition(&copy, "Ready")["status"], "True");

            // A controller of the tenant opens it, and closes it again.
            let set = async |status: &str| -> Result<()> {
                let gate = json!({ "type": "example.com/lb", "status": status });
                let mut conditions = items(&harness.vpod("web").await?["status"]["conditions"]).to_vec();
                conditions.retain(|one| one["type"] != "example.com/lb");
                conditions.push(gate);
                let patch = json!({ "status": { "conditions": conditions } });
                harness.virtual_side.patch_subresource("status", "v1/Pod", &harness.at("web"), &patch).await?;
                Ok(())
            };
            set("True").await?;
            harness.vpod_when("web", "is ready", |vpod| condition(vpod, "Ready")["status"] == "True").await?;
            set("False").await?;
            let vpod = harness.vpod_when("web", "waits again", closed).await?;
            assert_eq!(
                condition(&vpod, "Ready")["message"],
                r#"the status of pod readiness gate "example.com/lb" is not "True", but False"#
            );
            Ok(())
        })
        .await
}

#[tokio::test]
async fn an_eviction_in_the_virtual_cluster_respects_its_budget_and_ends_the_copy() -> Result<()> {
    pattern("evict-v")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let web = deployment("web", 2).namespace(&harness.name).pods(harness.pod("web").cpu("100m"));
            harness.virtual_side.create(&web.build()).await?;
            let budget = json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                "metadata": { "name": "web", "namespace": harness.name },
                "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "web" } } },
            });
            harness.virtual_side.create(&budget).await?;
            let healthy = async |count: u64, allowed: u64| {
                eventually(&format!("the budget counts {count} healthy pods"), SOON, async || {
                    let budget = harness.virtual_side.get("policy/v1/PodDisruptionBudget", &harness.at("web")).await;
                    let status = budget.map_err(|error| error.to_string())?.unwrap_or_default()["status"].clone();
                    let told = status["currentHealthy"] == count && status["disruptionsAllowed"] == allowed;
                    if told { Ok(()) } else { Err(status.to_string()) }
                })
                .await
            };
            healthy(2, 0).await?;
            let pods = harness.virtual_side.list("v1/Pod", &harness.name).await?;
            let victim = pods.first().context("no pod")?;
            ensure!(!evict(&harness.virtual_side, &harness.name, name(victim)).await?, "against the budget");
            let patch = json!({ "spec": { "minAvailable": 1 } });
            harness.virtual_side.patch("policy/v1/PodDisruptionBudget", &harness.at("web"), &patch).await?;
            healthy(2, 1).await?;
            ensure!(evict(&harness.virtual_side, &harness.name, name(victim)).await?, "the budget allows it");
            harness.gone(name(victim)).await?;
            healthy(2, 1).await?;
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn what_the_physical_cluster_evicts_is_disrupted_at_once_and_replaced() -> Result<()> {
    pattern("evict-p")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            // A finalizer of the owner keeps the copy visible while it goes.
            harness.virtual_side.create(&harness.pod("api").build()).await?;
            let (_, copy) = harness.runs("api").await?;
            let place = format!("{}/{}", harness.mount, name(&copy));
            let hold = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
            harness.physical_side.patch("v1/Pod", &place, &hold).await?;
            ensure!(evict(&harness.physical_side, &harness.mount, name(&copy)).await?, "no budget forbids it");
            let disrupted = |vpod: &Value| {
                let target = condition(vpod, "DisruptionTarget");
                target["status"] == "True" && condition(vpod, "Ready")["status"] == "False"
            };
            let vpod = harness.vpod_when("api", "is disrupted", disrupted).await?;
            assert_eq!(condition(&vpod, "DisruptionTarget")["reason"], "EvictionByEvictionAPI");
            let free = json!({ "metadata": { "finalizers": null } });
            harness.physical_side.patch("v1/Pod", &place, &free).await?;
            harness.vpod_when("api", "has failed", |vpod| phase(vpod) == "Failed").await?;

            // A kubelet under pressure evicts without deleting.
            harness.virtual_side.create(&harness.pod("node").build()).await?;
            let (_, copy) = harness.runs("node").await?;
            let mut conditions = items(&copy["status"]["conditions"]).to_vec();
            conditions.push(json!({ "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet" }));
            let message = "The node was low on resource: memory.";
            let status =
                json!({ "phase": "Failed", "reason": "Evicted", "message": message, "conditions": conditions });
            report(harness, &copy, &status).await?;
            let vpod = harness.vpod_when("node", "is evicted", |vpod| phase(vpod) == "Failed").await?;
            assert_eq!((&vpod["status"]["reason"], &vpod["status"]["message"]), (&json!("Evicted"), &json!(message)));
            assert_eq!(condition(&vpod, "DisruptionTarget")["reason"], "TerminationByKubelet");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_drain_on_either_side_moves_the_pods_to_the_other_cluster() -> Result<()> {
    Box::pin(timed(async {
        Two::run("drain", async |two| {
            let web = deployment("web", 3).namespace(&two.east.name).pods(two.pod("web").cpu("500m"));
            two.virtual_side().create(&web.build()).await?;
            two.running(3).await?;
            // `kubectl drain` of the virtual node: cordon, then evict.
            let vnode = two.east.vnode();
            cordon(two.virtual_side(), &vnode).await?;
            for vpod in two.vpods().await?.iter().filter(|vpod| vpod["spec"]["nodeName"] == vnode.as_str()) {
                ensure!(evict(two.virtual_side(), &two.east.name, name(vpod)).await?, "not evicted");
            }
            let moved = |pods: &[Value], vnode: &str| pods.iter().all(|vpod| vpod["spec"]["nodeName"] != vnode);
            eventually("all run in the other cluster", SOON, async || {
                let pods = two.running(3).await.map_err(|error| error.to_string())?;
                if moved(&pods, &vnode) { Ok(()) } else { Err(format!("{pods:?}")) }
            })
            .await?;
            let free = json!({ "spec": { "unschedulable": null } });
            two.virtual_side().patch("v1/Node", &vnode, &free).await?;

            // The owner drains the physical node of the other cluster: cordon, then evict the copies.
            let (west, gone) = (&two.west, two.west.vnode());
            cordon(&west.physical_side, west.node()).await?;
            let cordoned = (keys::TAINT_PHYSICAL_CORDONED.to_owned(), "NoSchedule".to_owned());
            west.vnode_when(west.node(), "is tainted", |vnode| taints(vnode).contains(&cordoned)).await?;
            for copy in west.ppods().await? {
                ensure!(evict(&west.physical_side, &west.mount, name(&copy)).await?, "not evicted");
            }
            eventually("all run in the first cluster", SOON, async || {
                let pods = two.running(3).await.map_err(|error| error.to_string())?;
                if moved(&pods, &gone) { Ok(()) } else { Err(format!("{pods:?}")) }
            })
            .await?;
            ensure!(west.ppods().await?.is_empty(), "copies are left on the drained node");
            two.at_peace().await
        })
        .await
    }))
    .await
}

#[tokio::test]
async fn jobs_and_cron_jobs_complete_and_a_lost_copy_is_no_failure() -> Result<()> {
    Box::pin(timed(async { Two::run("jobs", async |two| {
        let template = |name: &str| two.pod(name).with("/spec/restartPolicy", "Never").build()["spec"].clone();
        let spec = json!({
            "backoffLimit": 0, "completions": 2, "parallelism": 2, "template": { "spec": template("work") },
            "podFailurePolicy": { "rules": [{ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] }] },
        });
        let metadata = |name: &str| json!({ "name": name, "namespace": two.east.name });
        let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata("work"), "spec": spec });
        two.virtual_side().create(&job).await?;
        let pods = two.running(2).await?;
        // The owner deletes one copy; the Job makes another pod and counts no failure.
        let lost = two.of(&pods[0]);
        let copy = copy_of(lost, &pods[0]).await?;
        lost.physical_side.delete("v1/Pod", &format!("{}/{}", lost.mount, name(&copy))).await?;
        let fresh = eventually("another pod runs", SOON, async || {
            let now = two.running(2).await.map_err(|error| error.to_string())?;
            if now.iter().all(|vpod| uid(vpod) != uid(&pods[0])) { Ok(now) } else { Err(format!("{now:?}")) }
        })
        .await?;
        for vpod in &fresh {
            let harness = two.of(vpod);
            report(harness, &copy_of(harness, vpod).await?, &json!({ "phase": "Succeeded" })).await?;
        }
        let done = eventually("the Job is complete", SOON, async || {
            match two.virtual_side().get("batch/v1/Job", &two.east.at("work")).await {
                Ok(Some(job)) if condition(&job, "Complete")["status"] == "True" => Ok(job),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        assert_eq!((&done["status"]["succeeded"], &done["status"]["failed"]), (&json!(2), &Value::Null));

        let cron = json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata("tick"),
            "spec": { "schedule": "* * * * *", "jobTemplate": { "spec": { "template": { "spec": template("tick") } } } },
        });
        two.virtual_side().create(&cron).await?;
        let ran = eventually("the CronJob's pod runs", Duration::from_mins(2), async || {
            let pods = two.vpods().await.map_err(|error| error.to_string())?;
            let ticks = |vpod: &&Value| name(vpod).starts_with("tick-") && phase(vpod) == "Running";
            pods.iter().find(ticks).cloned().ok_or_else(|| format!("{} pods", pods.len()))
        })
        .await?;
        let harness = two.of(&ran);
        report(harness, &copy_of(harness, &ran).await?, &json!({ "phase": "Succeeded" })).await?;
        eventually("the CronJob has succeeded", SOON, async || {
            let cron = two.virtual_side().get("batch/v1/CronJob", &two.east.at("tick")).await;
            let cron = cron.map_err(|error| error.to_string())?.unwrap_or_default();
            if cron["status"]["lastSuccessfulTime"].is_string() { Ok(()) } else { Err(cron["status"].to_string()) }
        })
        .await?;
        two.virtual_side().delete("batch/v1/CronJob", &two.east.at("tick")).await?;
        Ok(())
    }).await }))
    .await
}

#[tokio::test]
async fn what_containers_of_all_sorts_report_comes_back() -> Result<()> {
    pattern("containers")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let init = json!([
                { "name": "setup", "image": "i" },
                { "name": "mesh", "image": "i", "restartPolicy": "Always" },
            ]);
            harness.virtual_side.create(&harness.pod("web").with("/spec/initContainers", init).build()).await?;
            let (vpod, copy) = harness.runs("web").await?;
            let of = |pod: &Value, list: &str| items(&pod["status"][list]).to_vec();
            assert_eq!(of(&vpod, "initContainerStatuses"), of(&copy, "initContainerStatuses"));
            assert_eq!(of(&vpod, "initContainerStatuses").len(), 2);

            // The sidecar runs on; the main container crashes again and again.
            let mut inits = of(&copy, "initContainerStatuses");
            for one in inits.iter_mut().filter(|one| one["name"] == "mesh") {
                one["state"] = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
                (one["ready"], one["started"]) = (json!(true), json!(true));
            }
            let mut mains = of(&copy, "containerStatuses");
            let crashed = json!({ "exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z" });
            mains[0]["lastState"] = json!({ "terminated": crashed });
            mains[0]["state"] = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } });
            mains[0]["restartCount"] = json!(4);
            (mains[0]["ready"], mains[0]["started"]) = (json!(false), json!(false));
            report(harness, &copy, &json!({ "initContainerStatuses": inits, "containerStatuses": mains })).await?;
            let crashes = |vpod: &Value| vpod["status"]["containerStatuses"][0]["restartCount"] == 4;
            let vpod = harness.vpod_when("web", "crashes", crashes).await?;
            let main = &vpod["status"]["containerStatuses"][0];
            assert_eq!(main["state"]["waiting"]["reason"], "CrashLoopBackOff");
            assert_eq!(main["lastState"]["terminated"]["exitCode"], 137);
            let statuses = of(&vpod, "initContainerStatuses");
            let mesh = statuses.iter().find(|one| one["name"] == "mesh");
            ensure!(mesh.is_some_and(|mesh| mesh["state"]["running"].is_object()), "{mesh:?}");

            // The end of a pod that is not restarted.
            harness.virtual_side.create(&harness.pod("once").with("/spec/restartPolicy", "Never").build()).await?;
            let (_, copy) = harness.runs("once").await?;
            let mut mains = of(&copy, "containerStatuses");
            let ended = json!({ "exitCode": 3, "reason": "Error", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z" });
            mains[0]["state"] = json!({ "terminated": ended });
            (mains[0]["ready"], mains[0]["started"]) = (json!(false), json!(false));
            report(harness, &copy, &json!({ "phase": "Failed", "containerStatuses": mains })).await?;
            let vpod = harness.vpod_when("once", "has failed", |vpod| phase(vpod) == "Failed").await?;
            assert_eq!(vpod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_copy_that_finds_no_node_fails_its_pod_and_the_next_one_runs_in_the_other_cluster() -> Result<()> {
    Box::pin(timed(async { Two::run("stuck", async |two| {
        let (east, west) = (&two.east, &two.west);
        // What only the physical scheduler knows: a pod of the owner that does not want such pods beside it.
        let away = json!([{ "labelSelector": { "matchLabels": { "app": "web" } }, "namespaces": [east.mount], "topologyKey": BOTH }]);
        let loner = pod("loner").namespace(&east.mount).on(east.node());
        let affinity = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": away } });
        east.physical_side.create(&loner.with("/spec/affinity", affinity).build()).await?;
        cordon(two.virtual_side(), &west.vnode()).await?;
        let web = deployment("web", 1).namespace(&east.name).pods(two.pod("web").cpu("100m"));
        two.virtual_side().create(&web.build()).await?;
        let stuck = eventually("the copy finds no node", SOON, async || {
            let pods = two.vpods().await.map_err(|error| error.to_string())?;
            let vpod = pods.into_iter().next().ok_or("no pod")?;
            let copy = copy_of(east, &vpod).await.map_err(|error| error.to_string())?;
            let said = condition(&copy, "PodScheduled");
            if said["status"] == "False" { Ok(vpod) } else { Err(copy["status"].to_string()) }
        })
        .await?;
        let told = async |reason: &str| {
            eventually(&format!("{reason} is told once"), SOON, async || {
                let reasons = event_reasons(two.virtual_side(), &east.name, name(&stuck)).await;
                let reasons = reasons.map_err(|error| error.to_string())?;
                let count = reasons.iter().filter(|told| *told == reason).count();
                if count == 1 { Ok(()) } else { Err(format!("{reasons:?}")) }
            })
            .await
        };
        // The scheduler of the physical cluster says it at once.
        told("FailedScheduling").await?;
        two.virtual_side().patch("v1/Node", &west.vnode(), &json!({ "spec": { "unschedulable": null } })).await?;
        east.skip(Duration::from_secs(310));

        let failed = east.vpod_when(name(&stuck), "has failed", |vpod| phase(vpod) == "Failed").await?;
        assert_eq!(failed["status"]["reason"], "PhysicalUnschedulable");
        assert_eq!(condition(&failed, "DisruptionTarget")["status"], "True");
        ensure!(text(&failed["status"]["message"]).contains("anti-affinity"), "{}", failed["status"]);
        told("FailedSchedulingPod").await?;
        let tainted = (keys::TAINT_PLACEMENT_FAILED.to_owned(), "NoSchedule".to_owned());
        east.vnode_when(east.node(), "is tainted", |vnode| taints(vnode).contains(&tainted)).await?;
        let pods = two.running(1).await?;
        assert_eq!(text(&pods[0]["spec"]["nodeName"]), west.vnode());
        let left = east.copies(name(&stuck)).await?;
        ensure!(left.is_empty(), "{left:?}");

        // The taint comes off by itself.
        east.skip(Duration::from_secs(70));
        east.vnode_when(east.node(), "is free again", |vnode| !taints(vnode).contains(&tainted)).await?;
        two.at_peace().await
    }).await }))
    .await
}

/// The warnings about a virtual pod.
async fn warnings(harness: &Harness, pod: &str) -> Result<Vec<Value>> {
    let mut events = harness.virtual_side.list("v1/Event", &harness.name).await?;
    events.retain(|event| event["involvedObject"]["name"] == pod && event["type"] == "Warning");
    Ok(events)
}

/// Writes a warning about a physical pod, as a kubelet does: counted up when it occurs again.
async fn warn(harness: &Harness, about: &Value, reason: &str, count: u32) -> Result<()> {
    let event_name = format!("{}.{}", name(about), reason.to_lowercase());
    if count > 1 {
        let place = format!("{}/{event_name}", harness.mount);
        harness.physical_side.patch("v1/Event", &place, &json!({ "count": count })).await?;
        return Ok(());
    }
    let now = format!("{:.0}", harness.now());
    let whom = json!({ "apiVersion": "v1", "kind": "Pod", "namespace": harness.mount, "name": name(about), "uid": uid(about) });
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "count": count,
        "metadata": { "name": event_name, "namespace": harness.mount }, "involvedObject": whom,
        "message": "it does not work", "firstTimestamp": now, "lastTimestamp": now, "source": { "component": "kubelet" },
    });
    harness.physical_side.create(&event).await?;
    Ok(())
}

#[tokio::test]
async fn warnings_of_the_physical_cluster_appear_once_on_the_virtual_pod() -> Result<()> {
    pattern("warned")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.pod("web").build()).await?;
            let (vpod, copy) = harness.runs("web").await?;
            // A pod of the owner in the same namespace is none of the tenant's business.
            let foreign = pod("foreign").namespace(&harness.mount).on(harness.node()).build();
            let foreign = harness.physical_side.create(&foreign).await?;
            warn(harness, &foreign, "FailedMount", 1).await?;
            for count in 1..=5 {
                warn(harness, &copy, "BackOff", count).await?;
            }
            warn(harness, &copy, "Unhealthy", 1).await?;
            let told = eventually("the warnings appear", SOON, async || {
                let told = warnings(harness, "web").await.map_err(|error| error.to_string())?;
                let has = |reason: &str| told.iter().any(|event| event["reason"] == reason);
                if has("BackOff") && has("Unhealthy") { Ok(told) } else { Err(format!("{told:?}")) }
            })
            .await?;
            assert_eq!(told.len(), 2, "{told:?}");
            assert_eq!(text(&told[0]["involvedObject"]["uid"]), uid(&vpod));
            ensure!(text(&told[0]["message"]).contains("it does not work"), "{told:?}");

            // A restart tells nothing again; what occurs after it is told.
            harness.stop().await?;
            harness.start().await?;
            harness.vnode_ready(harness.node()).await?;
            warn(harness, &copy, "FailedMount", 1).await?;
            eventually("the new one appears", SOON, async || {
                let reasons = event_reasons(&harness.virtual_side, &harness.name, "web").await;
                let reasons = reasons.map_err(|error| error.to_string())?;
                let count = |reason: &str| reasons.iter().filter(|told| *told == reason).count();
                match ["BackOff", "Unhealthy", "FailedMount"].map(count) {
                    [1, 1, 1] => Ok(()),
                    _ => Err(format!("{reasons:?}")),
                }
            })
            .await
        })
        .await
}
