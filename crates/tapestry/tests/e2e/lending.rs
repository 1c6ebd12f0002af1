//! What is lent: exactly what policies, owners and other users of a node leave.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::{node, pod, policy};
use tapestry_testbed::eventually;

use crate::grounds::Ground;
use crate::looks::{SOON, annotation, condition, phase, text};
use crate::loom::{BINDING, Loom, POLICY, pattern};
use crate::windows::closed;

/// What a virtual node offers of CPU, memory and pods.
fn offers(vnode: &Value) -> [&str; 3] {
    ["cpu", "memory", "pods"].map(|resource| text(&vnode["status"]["allocatable"][resource]))
}

/// Waits until the virtual node of `node` offers exactly this.
async fn lends(loom: &Loom, node: &str, offer: [&str; 3]) -> Result<Value> {
    loom.vnode_when(node, &format!("offers {offer:?}"), |vnode| offers(vnode) == offer).await
}

#[tokio::test]
async fn every_selected_node_appears_ready_with_exactly_what_is_lent() -> Result<()> {
    let pattern = pattern("lent")
        .node(node("lent-a").cpu("8").memory("16Gi").pods(20))
        .node(node("lent-b").cpu("3").allocatable("cpu", "2500m").memory("1000000001").pods(5))
        .other_node(node("lent-c"))
        .policy(|policy| policy.limit("cpu", "4").limit_percent("memory", 50));
    pattern
        .run(async |loom| {
            // min(4, idle) CPU, half of the memory rounded down, all pods.
            lends(loom, "lent-a", ["4", "8Gi", "20"]).await?;
            let vnode = lends(loom, "lent-b", ["2500m", "500M", "5"]).await?;
            ensure!(vnode["status"]["capacity"] == vnode["status"]["allocatable"], "{}", vnode["status"]);
            loom.vnode_ready("lent-a").await?;
            loom.vnode_ready("lent-b").await?;
            let unselected = loom.virtual_side.get("v1/Node", &loom.vnode_of("lent-c")).await?;
            ensure!(unselected.is_none(), "a node that nobody selects is lent");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_strangers_pod_shrinks_what_is_lent_and_its_end_gives_it_back() -> Result<()> {
    let pattern = pattern("foreign")
        .node(node("foreign-0").cpu("4").memory("8Gi").pods(10))
        .policy(|policy| policy.limit_percent("cpu", 50).limit("memory", "7Gi"));
    pattern
        .run(async |loom| {
            lends(loom, "foreign-0", ["2", "7Gi", "10"]).await?;
            let stranger = |name: &str| pod(name).namespace(&loom.mount).on("foreign-0");
            // Physical admission wants the account that the controller-manager makes.
            let account = format!("{}/default", loom.mount);
            eventually("the mount namespace takes pods", SOON, async || {
                match loom.physical_side.get("v1/ServiceAccount", &account).await {
                    Ok(Some(_)) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await?;
            loom.physical_side.create(&stranger("one").cpu("1").memory("2Gi").build()).await?;
            lends(loom, "foreign-0", ["1500m", "6Gi", "9"]).await?;
            loom.physical_side.create(&stranger("two").cpu("1500m").memory("1Gi").build()).await?;
            lends(loom, "foreign-0", ["750m", "5Gi", "8"]).await?;
            loom.physical_side.delete("v1/Pod", &format!("{}/one", loom.mount)).await?;
            lends(loom, "foreign-0", ["1250m", "7Gi", "9"]).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn the_policy_of_the_highest_priority_holds_and_the_next_follows_it() -> Result<()> {
    pattern("ranks")
        .on(Ground::Still)
        .policy(|policy| policy.limit("cpu", "1"))
        .another_policy(policy("ranks-high").limit("cpu", "3").with("/spec/priority", 10))
        .another_policy(
            policy("ranks-elsewhere").limit("cpu", "5").with("/spec/priority", 20).node_label("zone", "none"),
        )
        .run(async |loom| {
            let vnode = lends(loom, loom.node(), ["3", "256Gi", "110"]).await?;
            assert_eq!(annotation(&vnode, keys::POLICIES_APPLIED), "ranks-high");
            loom.virtual_side.delete(POLICY, "ranks-high").await?;
            lends(loom, loom.node(), ["1", "256Gi", "110"]).await?;
            // The status is written first, its name right after.
            let named = |vnode: &Value| annotation(vnode, keys::POLICIES_APPLIED) == "ranks";
            loom.vnode_when(loom.node(), "names its policy", named).await?;
            loom.virtual_side.patch(POLICY, "ranks", &json!({ "spec": { "resourceLimits": [] } })).await?;
            lends(loom, loom.node(), ["32", "256Gi", "110"]).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_nothing_is_lent_without_a_policy() -> Result<()> {
    pattern("lawless")
        .on(Ground::Still)
        .without_policy()
        .run(async |loom| {
            let quiet = async || {
                // Half a second after the syncer was ready it had every chance to create one.
                tokio::time::sleep(Duration::from_millis(500)).await;
                loom.virtual_side.get("v1/Node", &loom.vnode()).await
            };
            ensure!(quiet().await?.is_none(), "a node is lent without a policy");
            // A policy for another binding lends nothing here.
            loom.virtual_side.create(&policy("lawless-other").cluster("somebody").build()).await?;
            ensure!(quiet().await?.is_none(), "another binding's policy lends our node");
            loom.virtual_side.delete(POLICY, "lawless-other").await?;
            loom.virtual_side.create(&policy("lawless").cluster("lawless").build()).await?;
            loom.vnode_ready(loom.node()).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_nothing_enters_after_the_policy_is_deleted() -> Result<()> {
    pattern("repealed")
        .on(Ground::Still)
        .run(async |loom| {
            loom.vnode_ready(loom.node()).await?;
            loom.virtual_side.create(&loom.bound("early").cpu("1").build()).await?;
            loom.play_running(&loom.copy("early").await?).await?;
            loom.runs("early").await?;

            loom.virtual_side.delete(POLICY, "repealed").await?;
            loom.vnode_when(loom.node(), "is closed", closed).await?;
            // Past the scheduler, and past every taint.
            loom.virtual_side.create(&loom.bound("late").tolerate_all().build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            let late = loom.vpod_when("late", "is refused", refused).await?;
            assert_eq!(condition(&late, keys::CONDITION_ADMITTED)["reason"], "NotLending");
            assert_eq!(loom.copies("late").await?.len(), 0);
            assert_eq!(phase(&loom.vpod("early").await?), "Running");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_an_owners_stop_takes_everything_back_from_the_next_pod() -> Result<()> {
    pattern("stops")
        .on(Ground::Still)
        .run(async |loom| {
            loom.vnode_ready(loom.node()).await?;
            let never = json!({ "metadata": { "annotations": { keys::LEND: keys::LEND_NEVER } } });
            loom.physical_side.patch("v1/Node", loom.node(), &never).await?;
            lends(loom, loom.node(), ["0", "0", "0"]).await?;
            loom.virtual_side.create(&loom.bound("late").build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            loom.vpod_when("late", "is refused", refused).await?;
            assert_eq!(loom.ppods().await?.len(), 0);

            let lend = json!({ "metadata": { "annotations": { keys::LEND: null } } });
            loom.physical_side.patch("v1/Node", loom.node(), &lend).await?;
            loom.copy("late").await?;
            let suspend = json!({ "spec": { "suspend": true } });
            loom.virtual_side.patch(BINDING, &loom.name, &suspend).await?;
            lends(loom, loom.node(), ["0", "0", "0"]).await?;
            Ok(())
        })
        .await
}

/// A node's name may have 253 characters, a label's value and a host name 63.
fn long_name() -> String {
    let label = "n".repeat(49);
    format!("odd.{}", [label.as_str(); 5].join("."))
}

#[tokio::test]
async fn law_12_odd_nodes_are_lent_as_far_as_they_go_and_stop_nobody() -> Result<()> {
    let long = long_name();
    assert_eq!(long.len(), 253);
    let nothing = node("odd-nothing").with("/status/allocatable", json!({})).with("/status/capacity", json!({}));
    let vast =
        node("odd-vast").cpu("9223372036854775807").memory("9223372036854775807").resource("example.com/x", "9E");
    pattern("odd")
        // Where nobody fills in what a node does not say.
        .on(Ground::Still)
        .node(node(&long).label("kubernetes.io/hostname", "long").cpu("2").memory("4Gi").pods(5))
        .node(nothing)
        .node(vast)
        .run(async |loom| {
            let vnode = lends(loom, &long, ["2", "4Gi", "5"]).await?;
            ensure!(vnode["metadata"]["name"].as_str().is_some_and(|name| name.len() <= 63), "{}", vnode["metadata"]);
            assert_eq!(annotation(&vnode, keys::PHYSICAL_NODE_NAME), long);
            loom.vnode_ready(&long).await?;
            loom.virtual_side.create(&loom.bound_to(&long, "web").cpu("1").build()).await?;
            let copy = loom.copy("web").await?;
            assert_eq!(copy["spec"]["nodeName"], long.as_str());

            loom.vnode_when("odd-nothing", "offers nothing", |vnode| offers(vnode) == ["", "", ""]).await?;
            loom.virtual_side.create(&loom.bound_to("odd-nothing", "none").build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            let none = loom.vpod_when("none", "is refused", refused).await?;
            assert_eq!(condition(&none, keys::CONDITION_ADMITTED)["reason"], "OutOfLease");

            let vast = ["9223372036854775807", "9223372036854775807", "110"];
            lends(loom, "odd-vast", vast).await?;
            loom.virtual_side.create(&loom.bound_to("odd-vast", "small").cpu("1").build()).await?;
            loom.copy("small").await?;
            Ok(())
        })
        .await
}
