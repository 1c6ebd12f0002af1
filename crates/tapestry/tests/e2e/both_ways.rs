//! ConfigMaps and Secrets whose changes flow both ways, on real clusters: up, down, in conflict, and without the right to it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_domain::names;
use tapestry_testbed::eventually;

use crate::dependents::{copy_name, copy_when, object};
use crate::fixtures::Fixture;
use crate::harness::{Harness, event_reasons, pattern, wind_up};
use crate::looks::{SOON, condition};
use crate::timing::timed;

/// After a refusal the syncer asks again within 30 s; the rest is for the machine.
const ASKED_AGAIN: Duration = Duration::from_mins(1);

/// Gives the syncer its own account in the virtual cluster; `both`: with the role that lets changes flow up.
async fn account(harness: &mut Harness, both: bool) -> Result<String> {
    harness.pardon();
    let name = format!("both-{}", harness.name);
    harness.virtual_kubeconfig = harness.virtual_cluster.virtual_account_named(&name).await?;
    if both {
        harness.virtual_cluster.grant_both_ways(&name).await?;
    }
    Ok(name)
}

/// A source that asks for both ways.
async fn share(harness: &Harness, kind: &str, data: &Value) -> Result<()> {
    let mut source = object(harness, kind, "settings", data);
    source["metadata"]["annotations"] = json!({keys::SYNC_DIRECTION: keys::SYNC_BOTH});
    harness.virtual_side.create(&source).await.map(drop)?;
    Ok(())
}

fn mounts(harness: &Harness, pod: &str, kind: &str) -> Value {
    let volume = match kind {
        "Secret" => json!([{"name": "files", "secret": {"secretName": "settings"}}]),
        _ => json!([{"name": "files", "configMap": {"name": "settings"}}]),
    };
    harness.bound(pod).with("/spec/volumes", volume).build()
}

async fn source_when(harness: &Harness, kind: &str, what: &str, within: Duration, data: &Value) -> Result<()> {
    eventually(&format!("the source {what}"), within, async || {
        let source = harness.virtual_side.get(&format!("v1/{kind}"), &harness.at("settings")).await;
        let source = source.map_err(|error| error.to_string())?;
        if source.as_ref().is_some_and(|source| source["data"] == *data) { Ok(()) } else { Err(format!("{source:?}")) }
    })
    .await
}

/// The owner of the physical cluster changes the copy.
async fn change_copy(harness: &Harness, kind: &str, data: &Value) -> Result<()> {
    let place = format!("{}/{}", harness.mount, copy_name(harness, "settings").await?);
    harness.physical_side.patch(&format!("v1/{kind}"), &place, &json!({"data": data})).await.map(drop)?;
    Ok(())
}

async fn change_source(harness: &Harness, kind: &str, data: &Value) -> Result<()> {
    let patch = json!({"data": data});
    harness.virtual_side.patch(&format!("v1/{kind}"), &harness.at("settings"), &patch).await.map(drop)?;
    Ok(())
}

async fn told(harness: &Harness, reason: &str, within: Duration) -> Result<()> {
    eventually(&format!("event {reason}"), within, async || {
        let reasons = event_reasons(&harness.virtual_side, &harness.name, "settings").await;
        let reasons = reasons.map_err(|error| error.to_string())?;
        if reasons.iter().any(|told| told == reason) { Ok(()) } else { Err(format!("{reasons:?}")) }
    })
    .await
}

#[tokio::test]
async fn changes_of_copies_of_configmaps_and_secrets_go_up_and_changes_of_sources_go_down() -> Result<()> {
    pattern("sharing")
        .run_without(async |harness| {
            account(harness, true).await?;
            harness.start().await?;
            harness.vnode_ready(harness.node()).await?;
            for (kind, pod) in [("ConfigMap", "map"), ("Secret", "secret")] {
                share(harness, kind, &json!({"a": "1", "b": "1"})).await?;
                harness.virtual_side.create(&mounts(harness, pod, kind)).await?;
                harness.runs(pod).await?;
            }
            change_copy(harness, "ConfigMap", &json!({"a": "2", "b": null, "c": "new"})).await?;
            source_when(harness, "ConfigMap", "has the changes", SOON, &json!({"a": "2", "c": "new"})).await?;
            change_copy(harness, "Secret", &json!({"a": "Mg=="})).await?;
            source_when(harness, "Secret", "has the change", SOON, &json!({"a": "Mg==", "b": "MQ=="})).await?;
            change_source(harness, "ConfigMap", &json!({"a": "3"})).await?;
            let followed =
                |copy: Option<&Value>| copy.is_some_and(|copy| copy["data"] == json!({"a": "3", "c": "new"}));
            copy_when(harness, "ConfigMap", "settings", "follows", followed).await?;
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn a_key_that_changed_in_both_clusters_keeps_the_value_of_the_virtual_one_and_an_event_names_it() -> Result<()> {
    pattern("disputed")
        .run_without(async |harness| {
            account(harness, true).await?;
            harness.start().await?;
            harness.vnode_ready(harness.node()).await?;
            share(harness, "ConfigMap", &json!({"disputed": "1", "other": "1"})).await?;
            harness.virtual_side.create(&mounts(harness, "web", "ConfigMap")).await?;
            harness.runs("web").await?;
            harness.stop().await?;
            change_copy(harness, "ConfigMap", &json!({"disputed": "hidden-theirs", "other": "2"})).await?;
            change_source(harness, "ConfigMap", &json!({"disputed": "hidden-ours"})).await?;
            harness.start().await?;
            let agreed = json!({"disputed": "hidden-ours", "other": "2"});
            source_when(harness, "ConfigMap", "keeps its value", SOON, &agreed).await?;
            copy_when(harness, "ConfigMap", "settings", "agrees", |copy| {
                copy.is_some_and(|copy| copy["data"] == agreed)
            })
            .await?;
            told(harness, "SyncConflict", SOON).await?;
            let events = harness.virtual_side.list("v1/Event", &harness.name).await?;
            let event = events.iter().find(|event| event["reason"] == "SyncConflict").context("no event")?;
            let message = event["message"].as_str().unwrap_or_default();
            ensure!(message.contains("disputed") && !message.contains("hidden"), "{message}");
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn law_12_without_the_role_the_source_says_so_changes_go_down_and_with_it_all_flows() -> Result<()> {
    pattern("unasked")
        .run_without(async |harness| {
            let account = account(harness, false).await?;
            harness.start().await?;
            harness.vnode_ready(harness.node()).await?;
            share(harness, "ConfigMap", &json!({"a": "1", "b": "1"})).await?;
            harness.virtual_side.create(&mounts(harness, "web", "ConfigMap")).await?;
            harness.runs("web").await?;
            change_copy(harness, "ConfigMap", &json!({"a": "2"})).await?;
            told(harness, "SyncRefused", SOON).await?;
            change_source(harness, "ConfigMap", &json!({"b": "2"})).await?;
            let both = json!({"a": "2", "b": "2"});
            copy_when(harness, "ConfigMap", "settings", "follows", |copy| {
                copy.is_some_and(|copy| copy["data"] == both)
            })
            .await?;
            let binding = harness.binding().await?;
            ensure!(condition(&binding, "Ready")["status"] == "True", "{binding}");
            harness.virtual_cluster.grant_both_ways(&account).await?;
            source_when(harness, "ConfigMap", "has the change", ASKED_AGAIN, &both).await?;
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn two_bindings_share_one_source_and_all_three_agree() -> Result<()> {
    // Boxed: it holds several harnesses.
    Box::pin(timed(async {
        let (mut left, mut right) = tokio::try_join!(
            pattern("sharing-left").on(Fixture::East).set_up(),
            pattern("sharing-right").on(Fixture::West).set_up(),
        )?;
        let test = async {
            account(&mut left, true).await?;
            account(&mut right, true).await?;
            tokio::try_join!(left.start(), right.start())?;
            tokio::try_join!(left.vnode_ready(left.node()), right.vnode_ready(right.node()))?;
            share(&left, "ConfigMap", &json!({"a": "1"})).await?;
            left.virtual_side.create(&mounts(&left, "web", "ConfigMap")).await?;
            left.runs("web").await?;
            let mut beside = mounts(&right, "beside", "ConfigMap");
            beside["metadata"]["namespace"] = json!(left.name);
            left.virtual_side.create(&beside).await?;
            let origin = right.origin().await?;
            let (cluster, binding) = origin.split_once('/').context("an origin has two parts")?;
            let copy = names::dependent_name(&names::origin_hash(cluster, binding), &left.name, "settings");
            let place = format!("{}/{copy}", right.mount);
            let agrees = async |data: &Value| {
                eventually("the other copy agrees", SOON, async || {
                    let copy = right.physical_side.get("v1/ConfigMap", &place).await;
                    let copy = copy.map_err(|error| error.to_string())?;
                    if copy.as_ref().is_some_and(|copy| copy["data"] == *data) {
                        Ok(())
                    } else {
                        Err(format!("{copy:?}"))
                    }
                })
                .await
            };
            agrees(&json!({"a": "1"})).await?;
            change_copy(&left, "ConfigMap", &json!({"a": "left"})).await?;
            agrees(&json!({"a": "left"})).await?;
            right.physical_side.patch("v1/ConfigMap", &place, &json!({"data": {"b": "right"}})).await?;
            let all = json!({"a": "left", "b": "right"});
            source_when(&left, "ConfigMap", "has both changes", SOON, &all).await?;
            copy_when(&left, "ConfigMap", "settings", "agrees", |copy| copy.is_some_and(|copy| copy["data"] == all))
                .await?;
            left.virtual_side.delete("v1/Pod", &left.at("beside")).await?;
            left.gone("beside").await
        };
        let ended = Box::pin(test).await;
        wind_up(ended, [left, right]).await
    }))
    .await
}
