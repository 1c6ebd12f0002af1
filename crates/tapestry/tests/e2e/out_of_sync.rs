//! Watches that are refused, fail or deliver nothing: what reports it, what stops, what continues, and how it heals.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_testbed::builders::node;
use tapestry_testbed::eventually;
use tapestry_testbed::proxy::{Fault, Requests};

use crate::harness::{Harness, pattern};
use crate::looks::{condition, taints, uid};

const ROLE: &str = "rbac.authorization.k8s.io/v1/ClusterRole";
const ROLE_BINDING: &str = "rbac.authorization.k8s.io/v1/ClusterRoleBinding";
/// A watch counts as failing after 40 s; the rest is for the machine.
const REFUSED: Duration = Duration::from_secs(75);
/// And as out of sync without any event after 150 s.
const SILENT: Duration = Duration::from_secs(190);
/// A watch that delivers nothing is opened again within 10 s and its back-off, twice.
const REOPENED: Duration = Duration::from_secs(25);

/// Waits until condition `Connected` of the binding has this status and reason; returns its message.
async fn connected(harness: &Harness, status: &str, reason: &str, within: Duration) -> Result<String> {
    connected_saying(harness, (status, reason), within, |_| true).await
}

/// The same, with a message that satisfies a condition.
async fn connected_saying(
    harness: &Harness,
    (status, reason): (&str, &str),
    within: Duration,
    says: impl Fn(&str) -> bool,
) -> Result<String> {
    eventually(&format!("Connected={status}/{reason}"), within, async || {
        let binding = harness.binding().await.map_err(|error| error.to_string())?;
        let seen = condition(&binding, "Connected");
        let message = seen["message"].as_str().unwrap_or_default();
        let same = seen["status"] == status && seen["reason"] == reason && says(message);
        if same { Ok(message.to_owned()) } else { Err(seen.to_string()) }
    })
    .await
}

/// Whether the virtual node offers nothing, and says why.
fn offers_nothing(vnode: &Value) -> bool {
    let tainted = taints(vnode).iter().any(|(key, _)| key == keys::TAINT_OUT_OF_SYNC);
    let nothing = vnode["status"]["allocatable"]["cpu"] == "0";
    tainted && nothing && lending(vnode) == (json!("False"), json!("WatchOutOfSync"))
}

/// Waits until a pod says that it waits for a watch, and has no copy.
async fn waits_outside(harness: &Harness, pod: &str) -> Result<()> {
    let told = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["reason"] == "WatchOutOfSync";
    harness.vpod_when(pod, "says why it waits", told).await?;
    ensure!(harness.copies(pod).await?.is_empty(), "it was admitted on stale tables");
    Ok(())
}

/// Takes one right from the syncer's account in the physical cluster.
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
async fn law_09_without_the_right_to_watch_physical_pods_nothing_new_is_admitted_and_everything_says_so() -> Result<()>
{
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
            harness.vnode_when(harness.node(), "says that it lends nothing", offers_nothing).await?;
            // It tolerates everything and bypasses the scheduler.
            let late = harness.bound("late").tolerate(json!({ "operator": "Exists" })).cpu("20").build();
            harness.virtual_side.create(&late).await?;
            waits_outside(harness, "late").await?;

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
async fn a_watch_that_fails_or_delivers_nothing_is_reported_and_heals_while_probes_are_answered() -> Result<()> {
    pattern("mute")
        .through_proxies()
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            // For later: nothing comes on the watch of physical nodes, and the connection stays open.
            let mute = harness.proxy(Side::Physical).inject(Fault::Freeze, Requests::watches().of("nodes"));
            // And the watch of physical pods opens whenever it is requested, and delivers nothing.
            let bodiless = harness.proxy(Side::Physical).inject(Fault::HeadOnly, Requests::watches().of("pods"));
            let broken = harness.proxy(Side::Virtual).inject(Fault::InternalError, Requests::watches().of("pods"));
            harness.proxy(Side::Virtual).reset();
            let message = connected(harness, "False", "WatchOutOfSync", REFUSED).await?;
            ensure!(message.contains("watch pods in the virtual cluster: HTTP 500"), "{message}");
            drop(broken);
            connected(harness, "True", "Connected", REFUSED).await?;
            let of =
                |resource: &str, message: &str| message.contains(&format!("watch {resource} in the physical cluster"));
            let out_of_sync = ("False", "WatchOutOfSync");
            let both = |message: &str| of("nodes", message) && of("pods", message);
            connected_saying(harness, out_of_sync, SILENT, both).await?;
            drop(mute);
            connected_saying(harness, out_of_sync, REFUSED, |message| !of("nodes", message)).await?;
            let (opened, until) = (bodiless.hits(), Instant::now() + REOPENED);
            while Instant::now() < until {
                let vnode = harness.vnode_when(harness.node(), "is there", |_| true).await?;
                ensure!(offers_nothing(&vnode), "a stream that only opened was trusted: {vnode}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            ensure!(bodiless.hits() >= opened + 2, "the watch was not opened again");
            drop(bodiless);
            connected(harness, "True", "Connected", REFUSED).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            harness.runs("web").await.map(drop)
        })
        .await
}

#[tokio::test]
async fn law_09_a_restart_of_the_api_server_does_not_admit_pods_while_a_watch_is_refused() -> Result<()> {
    pattern("relapse")
        .through_proxies()
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let physical = harness.proxy(Side::Physical);
            let broken = physical.inject(Fault::InternalError, Requests::watches().of("pods"));
            physical.reset();
            connected(harness, "False", "WatchOutOfSync", REFUSED).await?;
            harness.vnode_when(harness.node(), "says that it lends nothing", offers_nothing).await?;
            harness.virtual_side.create(&harness.bound("late").build()).await?;
            waits_outside(harness, "late").await?;

            physical.cut();
            connected(harness, "False", "Unreachable", REFUSED).await?;
            let vnode = harness.vnode_when(harness.node(), "is there", |_| true).await?;
            ensure!(offers_nothing(&vnode), "an outage ended the trouble: {vnode}");
            physical.restore();
            let began = Instant::now();
            connected(harness, "False", "WatchOutOfSync", REFUSED).await?;
            let took = began.elapsed();
            ensure!(took < Duration::from_secs(20), "it looked healthy for {took:?}");
            waits_outside(harness, "late").await?;

            drop(broken);
            connected(harness, "True", "Connected", REFUSED).await?;
            harness.runs("late").await.map(drop)
        })
        .await
}

#[tokio::test]
async fn law_12_a_syncer_that_may_not_list_physical_pods_when_it_starts_says_so_on_nodes_and_pods() -> Result<()> {
    pattern("unseeing")
        .run(async |harness| {
            harness.pardon();
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("before").build()).await?;
            let (before, copy) = harness.runs("before").await?;
            harness.stop().await?;
            let binding = take_away(harness, "pods", ["list", "watch"]).await?;
            harness.start_wrong().await?;
            connected(harness, "False", "WatchOutOfSync", REFUSED).await?;
            harness.vnode_when(harness.node(), "says that it lends nothing", offers_nothing).await?;
            harness.virtual_side.create(&harness.bound("late").build()).await?;
            waits_outside(harness, "late").await?;

            give_back(harness, &binding).await?;
            connected(harness, "True", "Connected", REFUSED).await?;
            harness.runs("late").await?;
            harness.vnode_ready(harness.node()).await?;
            let (after, same) = harness.runs("before").await?;
            ensure!(uid(&after) == uid(&before) && uid(&same) == uid(&copy), "a running pod was replaced");
            Ok(())
        })
        .await
}
