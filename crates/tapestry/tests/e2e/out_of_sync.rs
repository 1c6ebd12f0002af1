//! Watches that are refused, fail or say nothing: who says so, what stops, what goes on, and how it heals.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_testbed::builders::node;
use tapestry_testbed::eventually;
use tapestry_testbed::proxy::{Fault, Requests};

use crate::harness::{Harness, pattern};
use crate::looks::{condition, uid};

const ROLE: &str = "rbac.authorization.k8s.io/v1/ClusterRole";
const ROLE_BINDING: &str = "rbac.authorization.k8s.io/v1/ClusterRoleBinding";
/// A watch counts as failing after 40 s; the rest is for the machine.
const REFUSED: Duration = Duration::from_secs(75);
/// And as silent after 150 s.
const SILENT: Duration = Duration::from_secs(190);

/// Waits until condition `Connected` of the binding has this status and reason; gives its message.
async fn connected(harness: &Harness, status: &str, reason: &str, within: Duration) -> Result<String> {
    eventually(&format!("Connected={status}/{reason}"), within, async || {
        let binding = harness.binding().await.map_err(|error| error.to_string())?;
        let seen = condition(&binding, "Connected");
        let same = seen["status"] == status && seen["reason"] == reason;
        if same { Ok(seen["message"].as_str().unwrap_or_default().to_owned()) } else { Err(seen.to_string()) }
    })
    .await
}

/// What the syncer's account may do in all of the physical cluster, from now on without this.
async fn take_away(harness: &Harness, resource: &str, verbs: [&str; 2]) -> Result<Value> {
    let objects = &harness.physical_side;
    let name = format!("tapestry-syncer-physical-{}", harness.mount);
    let mut role = objects.get(ROLE, "tapestry-syncer-physical").await?.context("no role")?;
    for rule in role["rules"].as_array_mut().context("no rules")? {
        if rule["resources"] == json!([resource]) {
            rule["verbs"].as_array_mut().context("no verbs")?.retain(|verb| !verbs.iter().any(|gone| verb == gone));
        }
    }
    role["rules"].as_array_mut().context("no rules")?.retain(|rule| rule["verbs"] != json!([]));
    role["metadata"] = json!({ "name": &name });
    objects.create(&role).await?;
    let binding = objects.get(ROLE_BINDING, &name).await?.context("no role binding")?;
    objects.delete(ROLE_BINDING, &name).await?;
    let mut less = binding.clone();
    less["metadata"] = json!({ "name": format!("{name}-less") });
    less["roleRef"]["name"] = json!(&name);
    objects.create(&less).await?;
    Ok(binding)
}

/// Undoes [`take_away`].
async fn give_back(harness: &Harness, binding: &Value) -> Result<()> {
    let mut whole = binding.clone();
    let name = binding["metadata"]["name"].clone();
    whole["metadata"] = json!({ "name": name });
    harness.physical_side.create(&whole).await?;
    let name = name.as_str().unwrap_or_default();
    harness.physical_side.delete(ROLE_BINDING, &format!("{name}-less")).await?;
    Ok(harness.physical_side.delete(ROLE, name).await?)
}

fn lending(vnode: &Value) -> (Value, Value) {
    let lending = condition(vnode, keys::CONDITION_LENDING);
    (lending["status"].clone(), lending["reason"].clone())
}

#[tokio::test]
async fn law_09_without_the_right_to_watch_physical_pods_nothing_new_enters_and_everything_says_so() -> Result<()> {
    pattern("blind")
        .node(node("blind-0").cpu("64"))
        .through_proxies()
        .run(async |harness| {
            harness.pardon();
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("before").cpu("1").build()).await?;
            let (before, copy) = harness.runs("before").await?;

            let binding = take_away(harness, "pods", ["list", "watch"]).await?;
            harness.proxy(Side::Physical).reset();
            let message = connected(harness, "False", "WatchOutOfSync", REFUSED).await?;
            ensure!(message.contains("watch pods in the physical cluster: HTTP 403"), "{message}");
            let status = harness.tapestry(&["status", &harness.name]).await?;
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            ensure!(status.contains("WatchOutOfSync") && status.contains("watch pods"), "{status}");
            let drift = harness.tapestry(&["drift", &harness.name]).await?;
            let told = String::from_utf8_lossy(&drift.stderr).into_owned();
            ensure!(!drift.status.success() && told.contains("cannot watch pods in the physical cluster"), "{told}");
            harness
                .vnode_when(harness.node(), "says that it lends nothing", |vnode| {
                    lending(vnode) == (json!("False"), json!("WatchOutOfSync"))
                        && vnode["status"]["allocatable"]["cpu"] == "0"
                })
                .await?;
            // It tolerates everything and asks no scheduler.
            let late = harness.bound("late").tolerate(json!({ "operator": "Exists" })).cpu("20").build();
            harness.virtual_side.create(&late).await?;
            harness
                .vpod_when("late", "is told why it waits", |vpod| {
                    condition(vpod, keys::CONDITION_ADMITTED)["reason"] == "WatchOutOfSync"
                })
                .await?;
            ensure!(harness.copies("late").await?.is_empty(), "it entered blindly");

            give_back(harness, &binding).await?;
            connected(harness, "True", "Connected", REFUSED).await?;
            harness.runs("late").await?;
            let (after, same) = harness.runs("before").await?;
            ensure!(uid(&after) == uid(&before) && uid(&same) == uid(&copy), "a running pod was replaced");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_watch_that_fails_or_says_nothing_is_told_of_and_heals_while_probes_are_answered() -> Result<()> {
    pattern("mute")
        .through_proxies()
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            // For later: nothing comes on the watch of physical nodes, and the connection stays open.
            let mute = harness.proxy(Side::Physical).inject(Fault::Freeze, Requests::watches().of("nodes"));
            let broken = harness.proxy(Side::Virtual).inject(Fault::InternalError, Requests::watches().of("pods"));
            harness.proxy(Side::Virtual).reset();
            let message = connected(harness, "False", "WatchOutOfSync", REFUSED).await?;
            ensure!(message.contains("watch pods in the virtual cluster: HTTP 500"), "{message}");
            drop(broken);
            connected(harness, "True", "Connected", REFUSED).await?;
            let message = connected(harness, "False", "WatchOutOfSync", SILENT).await?;
            ensure!(message.contains("watch nodes in the physical cluster"), "{message}");
            drop(mute);
            connected(harness, "True", "Connected", REFUSED).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            harness.runs("web").await.map(drop)
        })
        .await
}
