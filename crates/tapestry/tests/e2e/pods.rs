//! Pods on clusters where everything runs by itself: the real scheduler binds, kwok runs, the syncer mirrors.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::{deployment, node};
use tapestry_testbed::eventually;

use crate::harness::{Harness, event_reasons, pattern};
use crate::looks::{LATE, SOON, annotation, condition, items, label, name, phase, text, uid};

/// The mirrored part of a status, as the API server shows it.
fn carried(pod: &Value) -> Value {
    let status = &pod["status"];
    let fields =
        ["phase", "reason", "message", "hostIP", "hostIPs", "podIP", "podIPs", "startTime", "containerStatuses"];
    let mut carried: Value = fields.map(|field| (field.to_owned(), status[field].clone())).into_iter().collect();
    for kind in ["Initialized", "Ready", "ContainersReady"] {
        let condition = condition(pod, kind);
        for field in ["status", "reason", "message", "lastTransitionTime"] {
            carried[kind][field] = condition[field].clone();
        }
    }
    carried
}

/// All virtual pods of the test.
async fn vpods(harness: &Harness) -> Result<Vec<Value>, String> {
    harness.virtual_side.list("v1/Pod", &harness.name).await.map_err(|error| error.to_string())
}

/// Waits until exactly this many virtual pods exist and run.
async fn running(harness: &Harness, count: usize) -> Result<Vec<Value>> {
    eventually(&format!("{count} pods run"), LATE, async || {
        let pods = vpods(harness).await?;
        let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
        if run == count && pods.len() == count { Ok(pods) } else { Err(format!("{run} of {}", pods.len())) }
    })
    .await
}

#[tokio::test]
async fn pods_of_a_deployment_run_in_the_physical_cluster_and_their_statuses_come_back_field_by_field() -> Result<()> {
    let pattern = pattern("five").node(node("five-0").cpu("2")).node(node("five-1").cpu("2"));
    pattern
        .run(async |harness| {
            let web = deployment("web", 5).namespace(&harness.name).pods(harness.pod("web").cpu("750m").memory("64Mi"));
            harness.virtual_side.create(&web.build()).await?;
            // Two fit on each node: the real scheduler sees what is lent.
            eventually("four pods run and one finds no room", SOON, async || {
                let pods = vpods(harness).await?;
                let mut seen: Vec<_> = pods.iter().map(|pod| (phase(pod), text(&pod["spec"]["nodeName"]))).collect();
                seen.sort_unstable();
                let [a, b] = [harness.vnode_of("five-0"), harness.vnode_of("five-1")];
                let [a, b] = [("Running", a.as_str()), ("Running", b.as_str())];
                if seen == [("Pending", ""), a, a, b, b] { Ok(()) } else { Err(format!("{seen:?}")) }
            })
            .await?;
            harness.physical_side.create(&node("five-2").cpu("2").label(crate::harness::TEST, "five").build()).await?;
            let pods = running(harness, 5).await?;
            for vpod in &pods {
                let vpod = name(vpod);
                let ppod = harness.copy(vpod).await?;
                eventually("the statuses are the same", SOON, async || {
                    let (v, p) = (harness.vpod(vpod).await, harness.copy(vpod).await);
                    let (v, p) = (v.map_err(|e| e.to_string())?, p.map_err(|e| e.to_string())?);
                    if carried(&v) == carried(&p) { Ok(()) } else { Err(format!("{}\n{}", v["status"], p["status"])) }
                })
                .await?;
                let vpod = harness.vpod(vpod).await?;
                ensure!(!text(&vpod["status"]["podIP"]).is_empty(), "kwok gave no address");
                assert_eq!(text(&vpod["spec"]["nodeName"]), harness.vnode_of(text(&ppod["spec"]["nodeName"])));
                assert_eq!(annotation(&vpod, keys::PHYSICAL_POD_NAMESPACE), harness.mount);
                assert_eq!(annotation(&vpod, keys::PHYSICAL_POD_NAME), name(&ppod));
                assert_eq!(annotation(&vpod, keys::PHYSICAL_POD_UID), uid(&ppod));
                assert_eq!(annotation(&ppod, keys::VIRTUAL_POD_UID), uid(&vpod));
                assert_eq!(annotation(&ppod, keys::VIRTUAL_POD_NAMESPACE), harness.name);
                let names = [label(&ppod, keys::MANAGED_BY), label(&ppod, keys::CLUSTER_BINDING), label(&ppod, "app")];
                assert_eq!(names, ["tapestry", "five", "web"]);
                assert_eq!(ppod["spec"]["priorityClassName"], keys::PRIORITY_CLASS);
                assert_eq!(ppod["spec"]["priority"], -10000);
            }
            harness.physical_side.delete("v1/Node", "five-2").await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_deployment_of_200_scaled_to_zero_leaves_no_object_on_either_side() -> Result<()> {
    pattern("crowd")
        .node(node("crowd-0"))
        .node(node("crowd-1"))
        .run(async |harness| {
            let web = deployment("web", 200).namespace(&harness.name).pods(harness.pod("web").cpu("100m"));
            harness.virtual_side.create(&web.build()).await?;
            let pods = running(harness, 200).await?;
            let uids: BTreeSet<&str> = pods.iter().map(uid).collect();
            let copies = harness.ppods().await?;
            let pointed: BTreeSet<&str> = copies.iter().map(|ppod| annotation(ppod, keys::VIRTUAL_POD_UID)).collect();
            assert_eq!(copies.len(), 200);
            assert_eq!(pointed, uids);

            let none = json!({ "spec": { "replicas": 0 } });
            harness.virtual_side.patch_subresource("scale", "apps/v1/Deployment", &harness.at("web"), &none).await?;
            eventually("nothing is left", LATE, async || {
                let here = vpods(harness).await?.len();
                let there = harness.ppods().await.map_err(|error| error.to_string())?.len();
                if (here, there) == (0, 0) { Ok(()) } else { Err(format!("{here} virtual, {there} physical")) }
            })
            .await
        })
        .await
}

#[tokio::test]
async fn a_job_completes() -> Result<()> {
    pattern("job")
        .run(async |harness| {
            let template = harness.pod("work").with("/spec/restartPolicy", "Never").build();
            let job = json!({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "work", "namespace": harness.name },
                "spec": { "completions": 3, "parallelism": 2, "template": { "spec": template["spec"] } },
            });
            harness.virtual_side.create(&job).await?;
            // kwok ends only pods that a Job of its own cluster owns; ours are ended here, as the containers would.
            eventually("the Job is complete", SOON, async || {
                let failed = |error: anyhow::Error| error.to_string();
                for ppod in harness.ppods().await.map_err(failed)?.iter().filter(|ppod| phase(ppod) == "Running") {
                    harness.play_ended(ppod, 0).await.map_err(failed)?;
                }
                let job =
                    harness.virtual_side.get("batch/v1/Job", &harness.at("work")).await.map_err(|e| e.to_string())?;
                let job = job.ok_or("no Job")?;
                let done = condition(&job, "Complete")["status"] == "True" && job["status"]["succeeded"] == 3;
                if done { Ok(()) } else { Err(job["status"].to_string()) }
            })
            .await?;
            // Finished pods are kept, on both sides, without the Job's finalizer.
            let pods = vpods(harness).await.map_err(anyhow::Error::msg)?;
            let seen: Vec<_> = pods.iter().map(|pod| (phase(pod), &pod["metadata"]["finalizers"])).collect();
            assert_eq!(seen, [("Succeeded", &Value::Null); 3]);
            // Deleting the Job deletes them, and their copies.
            let background = kube::api::DeleteParams::background();
            harness.virtual_side.delete_with("batch/v1/Job", &harness.at("work"), &background).await?;
            eventually("nothing is left", SOON, async || {
                let here = vpods(harness).await?.len();
                let there = harness.ppods().await.map_err(|error| error.to_string())?.len();
                if (here, there) == (0, 0) { Ok(()) } else { Err(format!("{here} virtual, {there} physical")) }
            })
            .await
        })
        .await
}

#[tokio::test]
async fn law_12_a_pod_that_needs_what_is_missing_or_not_supported_says_so() -> Result<()> {
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("v");
        ("/spec/volumes", json!([volume]))
    };
    let cases: Vec<(&str, (&str, Value), &str)> = vec![
        ("configmap", volume(json!({ "configMap": { "name": "settings" } })), "DependentMissing"),
        ("secret", volume(json!({ "secret": { "secretName": "settings" } })), "DependentMissing"),
        ("claim", volume(json!({ "persistentVolumeClaim": { "claimName": "settings" } })), "ClaimMissing"),
        (
            "env",
            (
                "/spec/containers/0/env",
                json!([{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "settings", "key": "a" } } }]),
            ),
            "DependentMissing",
        ),
    ];
    pattern("needs")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for (name, (field, value), _) in &cases {
                harness.virtual_side.create(&harness.bound(name).with(field, value.clone()).build()).await?;
            }
            for (name, (_, value), reason) in &cases {
                let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
                let vpod = harness.vpod_when(name, "is refused", refused).await?;
                let told = condition(&vpod, keys::CONDITION_ADMITTED);
                assert_eq!(told["reason"], *reason, "{name}");
                let named = value.to_string().contains("settings");
                ensure!(!named || text(&told["message"]).contains("settings"), "{name}: {}", told["message"]);
                assert_eq!(phase(&vpod), "Pending");
                eventually(&format!("an event about {name}"), SOON, async || {
                    let reasons =
                        event_reasons(&harness.virtual_side, &harness.name, name).await.map_err(|e| e.to_string())?;
                    if reasons == [*reason] { Ok(()) } else { Err(format!("{reasons:?}")) }
                })
                .await?;
            }
            // Other pods run.
            harness.virtual_side.create(&harness.bound("plain").build()).await?;
            harness.runs("plain").await?;
            assert_eq!(harness.ppods().await?.len(), 1);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_a_pod_that_bypasses_the_scheduler_waits_until_there_is_room() -> Result<()> {
    pattern("admission")
        .policy(|policy| policy.limit("cpu", "2"))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("first").cpu("1500m").build()).await?;
            harness.runs("first").await?;
            harness.virtual_side.create(&harness.bound("huge").cpu("500").build()).await?;
            harness.virtual_side.create(&harness.bound("second").cpu("1").build()).await?;
            for pod in ["huge", "second"] {
                let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
                let vpod = harness.vpod_when(pod, "is refused", refused).await?;
                assert_eq!(condition(&vpod, keys::CONDITION_ADMITTED)["reason"], "OutOfLease");
                assert_eq!((phase(&vpod), harness.copies(pod).await?.len()), ("Pending", 0));
            }
            // A small pod overtakes the waiting ones.
            harness.virtual_side.create(&harness.bound("small").cpu("500m").build()).await?;
            harness.runs("small").await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("first")).await?;
            let (second, _) = harness.runs("second").await?;
            assert_eq!(condition(&second, keys::CONDITION_ADMITTED)["status"], "True");
            assert_eq!(harness.copies("huge").await?.len(), 0);
            // A pod that was never admitted is removed at once.
            harness.virtual_side.delete("v1/Pod", &harness.at("huge")).await?;
            harness.gone("huge").await
        })
        .await
}

#[tokio::test]
async fn pods_of_excluded_namespaces_and_daemonsets_stay_in_the_virtual_cluster() -> Result<()> {
    pattern("excluded")
        .binding(|binding| binding.with("/spec/excludedNamespaces", json!(["excluded-private"])))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let private = tapestry_testbed::builders::namespace("excluded-private");
            harness.virtual_side.create(&private).await?;
            let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "00000000-0000-4000-8000-000000000000" }]);
            let daemon = |name: &str| harness.bound(name).with("/metadata/ownerReferences", owner.clone());
            harness.virtual_side.create(&daemon("agent").build()).await?;
            harness.virtual_side.create(&daemon("opted-in").annotation(keys::RUNNING_DAEMONSET, "true").build()).await?;
            let hidden = harness.bound("hidden").namespace("excluded-private").build();
            eventually("the other namespace takes pods", SOON, async || {
                harness.virtual_side.create(&hidden).await.map(drop).map_err(|error| error.to_string())
            })
            .await?;
            harness.virtual_side.create(&harness.bound("plain").build()).await?;
            harness.copy("plain").await?;
            eventually("the exclusion is reported", SOON, async || {
                let reasons = event_reasons(&harness.virtual_side, "excluded-private", "hidden").await;
                let reasons = reasons.map_err(|error| error.to_string())?;
                if reasons == ["NamespaceExcluded"] { Ok(()) } else { Err(format!("{reasons:?}")) }
            })
            .await?;
            // The controller-manager collects pods of a DaemonSet that does not exist; until then the opted-in one was copied.
            let copied: BTreeSet<String> =
                harness.ppods().await?.iter().map(|ppod| annotation(ppod, keys::VIRTUAL_POD_NAME).to_owned()).collect();
            ensure!(!copied.contains("agent") && !copied.contains("hidden"), "copied: {copied:?}");
            harness.virtual_side.delete("v1/Namespace", "excluded-private").await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_refusal_of_the_physical_cluster_is_reported_and_retried() -> Result<()> {
    pattern("quota")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let quota = json!({
                "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none", "namespace": harness.mount },
                "spec": { "hard": { "pods": "0" } },
            });
            harness.physical_side.create(&quota).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let refused =
                |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["reason"] == "PhysicalClusterRefused";
            let vpod = harness.vpod_when("web", "is refused by the physical cluster", refused).await?;
            let message = text(&condition(&vpod, keys::CONDITION_ADMITTED)["message"]);
            ensure!(message.contains("quota"), "{message}");
            harness.physical_side.delete("v1/ResourceQuota", &format!("{}/none", harness.mount)).await?;
            let (vpod, _) = harness.runs("web").await?;
            assert_eq!(condition(&vpod, keys::CONDITION_ADMITTED)["status"], "True");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_pod_recreated_under_the_same_name_gets_a_new_copy() -> Result<()> {
    pattern("again")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let pod = harness.bound("db-0").build();
            harness.virtual_side.create(&pod).await?;
            let (first, first_copy) = harness.runs("db-0").await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("db-0")).await?;
            // As a StatefulSet does: as soon as the name is free.
            eventually("the name is free again", SOON, async || {
                harness.virtual_side.create(&pod).await.map(drop).map_err(|error| error.to_string())
            })
            .await?;
            let (second, second_copy) = harness.runs("db-0").await?;
            ensure!(uid(&first) != uid(&second) && uid(&first_copy) != uid(&second_copy), "the same object");
            ensure!(name(&first_copy) != name(&second_copy), "the same physical name twice: {}", name(&first_copy));
            assert_eq!(annotation(&second_copy, keys::VIRTUAL_POD_UID), uid(&second));

            // Without grace: the old copy may still exist when the new pod is created.
            let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            harness.virtual_side.delete_with("v1/Pod", &harness.at("db-0"), &now).await?;
            let third = harness.virtual_side.create(&pod).await?;
            let copy_of_third = eventually("only the third pod's copy is left", SOON, async || {
                let copies = harness.copies("db-0").await.map_err(|error| error.to_string())?;
                match copies.as_slice() {
                    [one] if annotation(one, keys::VIRTUAL_POD_UID) == uid(&third) => Ok(one.clone()),
                    other => Err(format!("{} copies", other.len())),
                }
            })
            .await?;
            harness.vpod_when("db-0", "runs", |vpod| phase(vpod) == "Running").await?;
            ensure!(uid(&copy_of_third) != uid(&second_copy), "the same object");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_07_fields_that_our_types_do_not_know_arrive_unchanged() -> Result<()> {
    pattern("lossless")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let rare = harness
                .bound("rare")
                .cpu("100m")
                .with("/spec/hostnameOverride", "my.own.name")
                .with("/spec/setHostnameAsFQDN", false)
                .with("/spec/shareProcessNamespace", true)
                .with("/spec/os", json!({ "name": "linux" }))
                .with("/spec/hostUsers", true)
                .with(
                    "/spec/securityContext",
                    json!({ "appArmorProfile": { "type": "RuntimeDefault" }, "supplementalGroupsPolicy": "Strict" }),
                )
                .with("/spec/dnsConfig", json!({ "options": [{ "name": "ndots", "value": "2" }] }))
                .with(
                    "/spec/containers/0/resizePolicy",
                    json!([{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }]),
                )
                .with("/spec/initContainers", json!([{ "name": "side", "image": "x", "restartPolicy": "Always" }]))
                .annotation("example.com/note", "kept");
            harness.virtual_side.create(&rare.build()).await?;
            let (vpod, ppod) = harness.runs("rare").await?;
            assert_eq!(annotation(&ppod, "example.com/note"), "kept");
            // Ours come first: the virtual cluster decides when the pod leaves a node in trouble.
            let patient = |toleration: &&Value| toleration["tolerationSeconds"].is_null();
            let first = items(&ppod["spec"]["tolerations"]).iter().take(2).filter(patient).count();
            ensure!(first == 2, "{}", ppod["spec"]["tolerations"]);
            let fields = |pod: &Value| -> Result<Value> {
                let mut spec = pod["spec"].clone();
                let map = spec.as_object_mut().context("no spec")?;
                // What the transformation rewrites (DESIGN §11); everything else must be the same.
                for rewritten in [
                    "affinity",
                    "automountServiceAccountToken",
                    "enableServiceLinks",
                    "hostname",
                    "nodeName",
                    "nodeSelector",
                    "preemptionPolicy",
                    "priority",
                    "priorityClassName",
                    "serviceAccount",
                    "serviceAccountName",
                    "tolerations",
                    "volumes",
                ] {
                    map.remove(rewritten);
                }
                for list in ["containers", "initContainers"] {
                    for container in spec[list].as_array_mut().into_iter().flatten() {
                        let container = container.as_object_mut().context("no container")?;
                        container.remove("volumeMounts");
                        // The virtual pod has none.
                        container.remove("env");
                    }
                }
                Ok(spec)
            };
            assert_eq!(fields(&ppod)?, fields(&vpod)?);
            for list in ["containers", "initContainers"] {
                // No way to the physical API server. Its empty value is not shown.
                assert_eq!(ppod["spec"][list][0]["env"], json!([{ "name": "KUBERNETES_SERVICE_HOST" }]));
            }
            // The server kept what this test is about.
            let spec = &ppod["spec"];
            let profile = &spec["securityContext"]["appArmorProfile"]["type"];
            let seen = [&spec["hostnameOverride"], &spec["containers"][0]["resizePolicy"][0]["restartPolicy"], profile];
            ensure!(seen.iter().all(|value| !value.is_null()), "the API server dropped one of {seen:?}");
            ensure!(items(&ppod["spec"]["volumes"]).is_empty(), "a token's volume came along");
            Ok(())
        })
        .await
}
