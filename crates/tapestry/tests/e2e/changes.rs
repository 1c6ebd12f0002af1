//! Later changes on real clusters: what a user changes in a pod that runs reaches its copy, each by the way the API server wants it.
//! Sizes are in `resize`.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_syncer::start::user_agent;
use tapestry_testbed::eventually;

use crate::harness::{Harness, event_reasons, pattern};
use crate::looks::{SOON, annotation, condition, items, label, name, uid};

/// Runs a pod with labels, annotations and an init container; returns its copy.
async fn run_pod(harness: &Harness) -> Result<Value> {
    harness.vnode_ready(harness.node()).await?;
    let pod = harness
        .bound("web")
        .with("/metadata/labels", json!({"app": "web", "tier": "front"}))
        .with("/metadata/annotations", json!({"note": "a"}))
        .with("/spec/initContainers", json!([{"name": "init", "image": "init:1"}]));
    harness.virtual_side.create(&pod.build()).await?;
    Ok(harness.runs("web").await?.1)
}

async fn change(harness: &Harness, patch: Value) -> Result<Value> {
    Ok(harness.virtual_side.patch("v1/Pod", &harness.at("web"), &patch).await?)
}

/// What `kubectl debug` sends.
async fn debug(harness: &Harness, container: Value) -> Result<()> {
    let patch = json!({"spec": {"ephemeralContainers": [container]}});
    harness.virtual_side.patch_subresource("ephemeralcontainers", "v1/Pod", &harness.at("web"), &patch).await?;
    Ok(())
}

async fn copy_when(harness: &Harness, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually(&format!("the copy {what}"), SOON, async || {
        let copy = harness.copy("web").await.map_err(|error| error.to_string())?;
        if holds(&copy) { Ok(copy) } else { Err(copy.to_string()) }
    })
    .await
}

/// The list with another image of its first container.
fn with_image(list: &Value, image: &str) -> Value {
    let mut list = list.clone();
    list[0]["image"] = json!(image);
    list
}

fn tolerates(pod: &Value, key: &str) -> bool {
    items(&pod["spec"]["tolerations"]).iter().any(|toleration| toleration["key"] == key)
}

#[tokio::test]
async fn each_change_of_a_running_pod_reaches_its_copy_which_keeps_running() -> Result<()> {
    pattern("changes")
        .run(async |harness| {
            let before = run_pod(harness).await?;
            let metadata = json!({"labels": {"app": "api", "tier": null, "new": "1"}, "annotations": {"note": null, "more": "b"}});
            change(harness, json!({"metadata": metadata})).await?;
            let copy = copy_when(harness, "has the new labels", |copy| label(copy, "app") == "api").await?;
            assert_eq!((label(&copy, "tier"), label(&copy, "new")), ("", "1"));
            assert_eq!((annotation(&copy, "note"), annotation(&copy, "more")), ("", "b"));
            assert_eq!(label(&copy, keys::MANAGED_BY), keys::MANAGED_BY_TAPESTRY);

            let vpod = harness.vpod("web").await?;
            let containers = with_image(&vpod["spec"]["containers"], "other:2");
            let init = with_image(&vpod["spec"]["initContainers"], "init:2");
            let vpod = change(harness, json!({"spec": {"containers": containers, "initContainers": init}})).await?;
            let other = |copy: &Value| copy["spec"]["containers"][0]["image"] == "other:2";
            let copy = copy_when(harness, "has the new image", other).await?;
            assert_eq!(copy["spec"]["initContainers"][0]["image"], "init:2");
            let generation = vpod["metadata"]["generation"].to_string();
            copy_when(harness, "says which generation was pushed", |copy| {
                annotation(copy, keys::VIRTUAL_POD_GENERATION) == generation
            })
            .await?;

            let mut tolerations = vpod["spec"]["tolerations"].clone();
            tolerations.as_array_mut().context("it tolerates virtual nodes")?.push(json!({"key": "spot", "operator": "Exists"}));
            change(harness, json!({"spec": {"tolerations": tolerations, "activeDeadlineSeconds": 5000}})).await?;
            let copy = copy_when(harness, "tolerates it too", |copy| tolerates(copy, "spot")).await?;
            assert_eq!(copy["spec"]["activeDeadlineSeconds"], 5000);
            ensure!(tolerates(&copy, "node.kubernetes.io/unreachable"), "ours stay: {copy}");

            debug(harness, json!({"name": "debug", "image": "busybox", "targetContainerName": vpod["spec"]["containers"][0]["name"]})).await?;
            let there = |copy: &Value| copy["spec"]["ephemeralContainers"][0]["name"] == "debug";
            let copy = copy_when(harness, "has the ephemeral container", there).await?;
            assert_eq!(uid(&copy), uid(&before), "the pod keeps running");
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn what_the_physical_cluster_rewrote_or_added_in_a_copy_stays() -> Result<()> {
    pattern("rewritten")
        .run(async |harness| {
            let copy = run_pod(harness).await?;
            let place = format!("{}/{}", harness.mount, name(&copy));
            let mut tolerations = copy["spec"]["tolerations"].clone();
            tolerations.as_array_mut().context("it tolerates trouble")?.push(json!({"key": "theirs", "operator": "Exists"}));
            let theirs = json!({
                "metadata": {"labels": {"tier": "theirs", "owner": "theirs"}, "annotations": {"note": "theirs", "scan": "theirs"}},
                "spec": {"containers": with_image(&copy["spec"]["containers"], "mirror/other:1"), "tolerations": tolerations},
            });
            harness.physical_side.patch("v1/Pod", &place, &theirs).await?;
            let vpod = harness.vpod("web").await?;
            let mut tolerations = vpod["spec"]["tolerations"].clone();
            tolerations.as_array_mut().context("it tolerates virtual nodes")?.push(json!({"key": "spot", "operator": "Exists"}));
            change(
                harness,
                json!({"metadata": {"labels": {"app": "api"}, "annotations": {"more": "b"}}, "spec": {"tolerations": tolerations}}),
            )
            .await?;
            let both = |copy: &Value| label(copy, "app") == "api" && tolerates(copy, "spot");
            let copy = copy_when(harness, "has what the virtual pod changed", both).await?;
            harness.at_peace(&[], SOON).await?;
            assert_eq!((label(&copy, "tier"), label(&copy, "owner")), ("theirs", "theirs"));
            assert_eq!((annotation(&copy, "note"), annotation(&copy, "scan")), ("theirs", "theirs"));
            assert_eq!(annotation(&copy, "more"), "b");
            assert_eq!(copy["spec"]["containers"][0]["image"], "mirror/other:1");
            ensure!(tolerates(&copy, "theirs"), "{copy}");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_12_a_forbidden_ephemeral_container_is_answered_with_an_event_and_nothing_is_written_to_the_copy()
-> Result<()> {
    pattern("forbidden-debug")
        .run(async |harness| {
            run_pod(harness).await?;
            let mark = harness.physical_cluster.audit().mark().await?;
            debug(harness, json!({"name": "debug", "image": "busybox", "securityContext": {"privileged": true}}))
                .await?;
            let told =
                |vpod: &Value| condition(vpod, keys::CONDITION_CHANGES_PUSHED)["reason"] == "PodSecurityViolation";
            harness.vpod_when("web", "says that the standard forbids it", told).await?;
            eventually("an event tells it", SOON, async || {
                let reasons = event_reasons(&harness.virtual_side, &harness.name, "web").await;
                let reasons = reasons.map_err(|error| error.to_string())?;
                let times = reasons.iter().filter(|reason| *reason == "PodSecurityViolation").count();
                if times == 1 { Ok(()) } else { Err(format!("{reasons:?}")) }
            })
            .await?;
            let writes =
                harness.physical_cluster.audit().since(&mark).await?.by_agent(&user_agent(&harness.name)).writes();
            let pods = writes.only(|request| request.resource.starts_with("pods"));
            ensure!(pods.count() == 0, "{}", pods.summary());
            ensure!(harness.copy("web").await?["spec"].get("ephemeralContainers").is_none(), "it was pushed");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn an_ephemeral_container_gets_the_secret_that_it_names_before_it_is_pushed() -> Result<()> {
    pattern("debug-secret")
        .run(async |harness| {
            run_pod(harness).await?;
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login", "namespace": harness.name},
                "stringData": {"password": "hunter2"},
            });
            harness.virtual_side.create(&secret).await?;
            let from = json!([{"secretRef": {"name": "login"}}]);
            debug(harness, json!({"name": "debug", "image": "busybox", "envFrom": from})).await?;
            let there = |copy: &Value| copy["spec"]["ephemeralContainers"][0]["name"] == "debug";
            let copy = copy_when(harness, "has the ephemeral container", there).await?;
            let named = &copy["spec"]["ephemeralContainers"][0]["envFrom"][0]["secretRef"]["name"];
            let named = named.as_str().context("it names a Secret")?;
            ensure!(named != "login", "the name is that of the copy");
            let place = format!("{}/{named}", harness.mount);
            let copied = harness.physical_side.get("v1/Secret", &place).await?.context("the Secret is there")?;
            assert_eq!(copied["data"], json!({"password": "aHVudGVyMg=="}));
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn law_12_a_change_that_the_physical_cluster_refuses_is_told_once_and_the_next_one_is_pushed() -> Result<()> {
    pattern("refused-change")
        .run(async |harness| {
            run_pod(harness).await?;
            // Almost all that the annotations of an object can have, which is 256 KiB: the copy has more of ours than the pod.
            let large = "x".repeat(256 * 1024 - 450);
            change(harness, json!({"metadata": {"annotations": {"large": large}}})).await?;
            let told =
                |vpod: &Value| condition(vpod, keys::CONDITION_CHANGES_PUSHED)["reason"] == "PhysicalClusterRefused";
            harness.vpod_when("web", "says what the physical cluster said", told).await?;
            change(harness, json!({"metadata": {"annotations": {"large": null}, "labels": {"app": "api"}}})).await?;
            copy_when(harness, "has the next change", |copy| label(copy, "app") == "api").await?;
            let quiet = |vpod: &Value| condition(vpod, keys::CONDITION_CHANGES_PUSHED).is_null();
            harness.vpod_when("web", "says it no longer", quiet).await?;
            let reasons = event_reasons(&harness.virtual_side, &harness.name, "web").await?;
            let times = reasons.iter().filter(|reason| *reason == "PhysicalClusterRefused").count();
            ensure!(times == 1, "told {times} times: {reasons:?}");
            Ok(())
        })
        .await
}
