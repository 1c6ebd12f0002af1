//! ConfigMaps, Secrets and tokens beyond one pod in one cluster: shared by two bindings, deleted with their namespace, renewed, and
//! changed while no syncer runs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::eventually;

use crate::dependents::{copy, copy_name, copy_when, object, token_volume};
use crate::harness::{Harness, pattern};
use crate::looks::{SOON, annotation, name, uid};
use crate::timing::timed;
use crate::two::Two;

/// A pod on the node of one of two bindings, in the namespace of the first, with a ConfigMap, a Secret and a token.
fn needy(two: &Two, on: &Harness, pod: &str) -> Value {
    let volumes = json!([
        {"name": "files", "configMap": {"name": "settings"}},
        {"name": "secret", "secret": {"secretName": "login"}},
        token_volume(),
    ]);
    let pod = tapestry_testbed::builders::pod(pod).namespace(&two.east.name).on(&on.vnode());
    let toleration = json!({"key": keys::TAINT_VNODE, "operator": "Exists"});
    pod.tolerate(toleration).with("/spec/volumes", volumes).build()
}

/// The copies of ConfigMaps and Secrets in a mount namespace, also those with tokens; what Kubernetes itself puts there is left out.
async fn copies(harness: &Harness) -> Result<Vec<Value>> {
    let mut all = harness.physical_side.list("v1/ConfigMap", &harness.mount).await?;
    all.extend(harness.physical_side.list("v1/Secret", &harness.mount).await?);
    all.retain(|object| !annotation(object, keys::ORIGIN).is_empty());
    Ok(all)
}

async fn copies_are(harness: &Harness, count: usize) -> Result<Vec<Value>> {
    eventually(&format!("{} copies are in {}", count, harness.mount), SOON, async || {
        let all = copies(harness).await.map_err(|error| error.to_string())?;
        let names: Vec<_> = all.iter().map(name).collect();
        if all.len() == count { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await?;
    copies(harness).await
}

async fn create_sources(two: &Two) -> Result<()> {
    for (kind, source) in [("ConfigMap", "settings"), ("Secret", "login")] {
        two.virtual_side().create(&object(&two.east, kind, source, &json!({"a": "1"}))).await?;
    }
    for (harness, pod) in [(&two.east, "here"), (&two.west, "there")] {
        two.virtual_side().create(&needy(two, harness, pod)).await?;
    }
    two.running(2).await.map(drop)
}

#[tokio::test]
async fn two_bindings_share_a_configmap_and_each_has_a_copy_as_long_as_it_has_a_pod() -> Result<()> {
    Box::pin(timed(async {
        Two::run("shares", async |two| {
            create_sources(two).await?;
            for harness in [&two.east, &two.west] {
                copies_are(harness, 3).await?;
            }
            let change = json!({"data": {"a": "2"}});
            two.virtual_side().patch("v1/ConfigMap", &two.east.at("settings"), &change).await?;
            for harness in [&two.east, &two.west] {
                eventually("the copy follows", SOON, async || {
                    let all = copies(harness).await.map_err(|error| error.to_string())?;
                    if all.iter().any(|copy| copy["data"]["a"] == "2") { Ok(()) } else { Err("not yet".to_owned()) }
                })
                .await?;
            }
            two.virtual_side().delete("v1/Pod", &two.east.at("here")).await?;
            copies_are(&two.east, 0).await?;
            copies_are(&two.west, 3).await?;
            two.virtual_side().delete("v1/Pod", &two.east.at("there")).await?;
            copies_are(&two.west, 0).await?;
            two.at_peace().await
        })
        .await
    }))
    .await
}

#[tokio::test]
async fn a_virtual_namespace_deleted_with_pods_in_two_clusters_ends_and_leaves_no_copy_of_anything() -> Result<()> {
    Box::pin(timed(async {
        Two::run("ns-both", async |two| {
            create_sources(two).await?;
            two.virtual_side().delete("v1/Namespace", &two.east.name).await?;
            eventually("the namespace is gone", SOON, async || {
                match two.virtual_side().get("v1/Namespace", &two.east.name).await {
                    Ok(None) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await?;
            for harness in [&two.east, &two.west] {
                copies_are(harness, 0).await?;
                ensure!(harness.ppods().await?.is_empty(), "a pod is left in {}", harness.mount);
            }
            two.at_peace().await
        })
        .await
    }))
    .await
}

#[tokio::test]
async fn a_running_pod_gets_a_new_token_after_most_of_its_life() -> Result<()> {
    pattern("renewed")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let volumes = json!([token_volume()]);
            harness.virtual_side.create(&harness.bound("ci").with("/spec/volumes", volumes).build()).await?;
            let (vpod, _) = harness.runs("ci").await?;
            let secret = async || -> Result<Value> {
                let all = copies(harness).await?;
                let mut own = all.into_iter().filter(|copy| annotation(copy, keys::VIRTUAL_POD_UID) == uid(&vpod));
                own.next().context("no Secret with its token")
            };
            let first = secret().await?;
            // A token of an hour is renewed after 48 minutes.
            harness.skip(Duration::from_mins(50));
            eventually("another token is there", SOON, async || {
                let now = secret().await.map_err(|error| error.to_string())?;
                let same = (uid(&now) == uid(&first), now["data"] == first["data"]);
                if same == (true, false) { Ok(()) } else { Err(format!("the same Secret and token: {same:?}")) }
            })
            .await?;
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn copies_changed_or_deleted_while_no_syncer_runs_are_drift_until_one_restores_them() -> Result<()> {
    pattern("drift-files")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for (kind, source) in [("ConfigMap", "settings"), ("Secret", "login"), ("ConfigMap", "stripped")] {
                harness.virtual_side.create(&object(harness, kind, source, &json!({"a": "1"}))).await?;
            }
            let volumes = json!([
                {"name": "files", "configMap": {"name": "settings"}},
                {"name": "secret", "secret": {"secretName": "login"}},
                {"name": "stripped", "configMap": {"name": "stripped"}},
            ]);
            harness.virtual_side.create(&harness.bound("web").with("/spec/volumes", volumes).build()).await?;
            harness.runs("web").await?;
            harness.at_peace(&[], SOON).await?;
            harness.stop().await?;

            let place = async |source: &str| -> Result<String> {
                Ok(format!("{}/{}", harness.mount, copy_name(harness, source).await?))
            };
            let changed = json!({"data": {"a": "theirs"}});
            harness.physical_side.patch("v1/ConfigMap", &place("settings").await?, &changed).await?;
            harness.physical_side.delete("v1/Secret", &place("login").await?).await?;
            // All that marks it as ours goes, and its value is another: as `kubectl replace` leaves it.
            let stripped = json!({"metadata": {"labels": null, "annotations": null}, "data": {"a": "theirs"}});
            harness.physical_side.patch("v1/ConfigMap", &place("stripped").await?, &stripped).await?;
            let output = harness.tapestry(&["drift", &harness.name, "--settle", "1s"]).await?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            for source in ["settings", "login", "stripped"] {
                ensure!(said.contains(source), "nothing about {source}: {said}");
            }
            ensure!(!said.contains("theirs"), "a value is shown: {said}");

            harness.start().await?;
            for (kind, source) in [("ConfigMap", "settings"), ("Secret", "login")] {
                let restored = |copy: Option<&Value>| copy.is_some_and(|copy| copy["data"]["a"] != "theirs");
                copy_when(harness, kind, source, "is restored", restored).await?;
            }
            // It may be a stranger's by now, so it is left alone, and told: a user decides.
            let there = copy(harness, "ConfigMap", "stripped").await?.context("it was deleted")?;
            assert_eq!(there["data"]["a"], "theirs");
            Ok(())
        })
        .await
}
