//! What is lent: exactly what policies, owners and other users of a node leave.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::{node, pod, policy};
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{BINDING, Harness, POLICY, pattern};
use crate::looks::{SOON, annotation, condition, phase, text};
use crate::windows::closed;

/// What a virtual node offers of CPU, memory and pods.
fn offers(vnode: &Value) -> [&str; 3] {
    ["cpu", "memory", "pods"].map(|resource| text(&vnode["status"]["allocatable"][resource]))
}

/// Waits until the virtual node of `node` offers exactly this.
async fn lends(harness: &Harness, node: &str, offer: [&str; 3]) -> Result<Value> {
    harness.vnode_when(node, &format!("offers {offer:?}"), |vnode| offers(vnode) == offer).await
}

#[tokio::test]
async fn every_selected_node_appears_ready_with_exactly_what_is_lent() -> Result<()> {
    let pattern = pattern("lent")
        .node(node("lent-a").cpu("8").memory("16Gi").pods(20))
        .node(node("lent-b").cpu("3").allocatable("cpu", "2500m").memory("1000000001").pods(5))
        .other_node(node("lent-c"))
        .policy(|policy| policy.limit("cpu", "4").limit_percent("memory", 50));
    pattern
        .run(async |harness| {
            // min(4, idle) CPU, half of the memory rounded down, all pods.
            lends(harness, "lent-a", ["4", "8Gi", "20"]).await?;
            let vnode = lends(harness, "lent-b", ["2500m", "500M", "5"]).await?;
            ensure!(vnode["status"]["capacity"] == vnode["status"]["allocatable"], "{}", vnode["status"]);
            harness.vnode_ready("lent-a").await?;
            harness.vnode_ready("lent-b").await?;
            let unselected = harness.virtual_side.get("v1/Node", &harness.vnode_of("lent-c")).await?;
            ensure!(unselected.is_none(), "a node that the binding does not select is lent");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_pod_of_the_owner_shrinks_what_is_lent_and_its_end_gives_it_back() -> Result<()> {
    let pattern = pattern("foreign")
        .node(node("foreign-0").cpu("4").memory("8Gi").pods(10))
        .policy(|policy| policy.limit_percent("cpu", 50).limit("memory", "7Gi"));
    pattern
        .run(async |harness| {
            lends(harness, "foreign-0", ["2", "7Gi", "10"]).await?;
            let stranger = |name: &str| pod(name).namespace(&harness.mount).on("foreign-0");
            // Physical admission needs the account that the controller-manager creates.
            let account = format!("{}/default", harness.mount);
            eventually("the mount namespace takes pods", SOON, async || {
                match harness.physical_side.get("v1/ServiceAccount", &account).await {
                    Ok(Some(_)) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await?;
            harness.physical_side.create(&stranger("one").cpu("1").memory("2Gi").build()).await?;
            lends(harness, "foreign-0", ["1500m", "6Gi", "9"]).await?;
            harness.physical_side.create(&stranger("two").cpu("1500m").memory("1Gi").build()).await?;
            lends(harness, "foreign-0", ["750m", "5Gi", "8"]).await?;
            harness.physical_side.delete("v1/Pod", &format!("{}/one", harness.mount)).await?;
            lends(harness, "foreign-0", ["1250m", "7Gi", "9"]).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn the_policy_of_the_highest_priority_holds_and_the_next_follows_it() -> Result<()> {
    pattern("ranks")
        .on(Fixture::Still)
        .policy(|policy| policy.limit("cpu", "1"))
        .another_policy(policy("ranks-high").limit("cpu", "3").with("/spec/priority", 10))
        .another_policy(
            policy("ranks-elsewhere").limit("cpu", "5").with("/spec/priority", 20).node_label("zone", "none"),
        )
        .run(async |harness| {
            let vnode = lends(harness, harness.node(), ["3", "256Gi", "110"]).await?;
            assert_eq!(annotation(&vnode, keys::POLICIES_APPLIED), "ranks-high");
            harness.virtual_side.delete(POLICY, "ranks-high").await?;
            lends(harness, harness.node(), ["1", "256Gi", "110"]).await?;
            // The status is written first, its name right after.
            let named = |vnode: &Value| annotation(vnode, keys::POLICIES_APPLIED) == "ranks";
            harness.vnode_when(harness.node(), "names its policy", named).await?;
            harness.virtual_side.patch(POLICY, "ranks", &json!({ "spec": { "resourceLimits": [] } })).await?;
            lends(harness, harness.node(), ["32", "256Gi", "110"]).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_nothing_is_lent_without_a_policy() -> Result<()> {
    pattern("lawless")
        .on(Fixture::Still)
        .without_policy()
        .run(async |harness| {
            let quiet = async || {
                // Half a second after the syncer was ready it could have created one.
                tokio::time::sleep(Duration::from_millis(500)).await;
                harness.virtual_side.get("v1/Node", &harness.vnode()).await
            };
            ensure!(quiet().await?.is_none(), "a node is lent without a policy");
            // A policy for another binding lends nothing here.
            harness.virtual_side.create(&policy("lawless-other").cluster("other").build()).await?;
            ensure!(quiet().await?.is_none(), "another binding's policy lends our node");
            harness.virtual_side.delete(POLICY, "lawless-other").await?;
            harness.virtual_side.create(&policy("lawless").cluster("lawless").build()).await?;
            harness.vnode_ready(harness.node()).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_nothing_enters_after_the_policy_is_deleted() -> Result<()> {
    pattern("repealed")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("early").cpu("1").build()).await?;
            harness.play_running(&harness.copy("early").await?).await?;
            harness.runs("early").await?;

            harness.virtual_side.delete(POLICY, "repealed").await?;
            harness.vnode_when(harness.node(), "is closed", closed).await?;
            // Past the scheduler, and past every taint.
            harness.virtual_side.create(&harness.bound("late").tolerate_all().build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            let late = harness.vpod_when("late", "is refused", refused).await?;
            assert_eq!(condition(&late, keys::CONDITION_ADMITTED)["reason"], "NotLending");
            assert_eq!(harness.copies("late").await?.len(), 0);
            assert_eq!(phase(&harness.vpod("early").await?), "Running");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_an_owners_stop_takes_everything_back_from_the_next_pod() -> Result<()> {
    pattern("stops")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let never = json!({ "metadata": { "annotations": { keys::LEND: keys::LEND_NEVER } } });
            harness.physical_side.patch("v1/Node", harness.node(), &never).await?;
            lends(harness, harness.node(), ["0", "0", "0"]).await?;
            harness.virtual_side.create(&harness.bound("late").build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            harness.vpod_when("late", "is refused", refused).await?;
            assert_eq!(harness.ppods().await?.len(), 0);

            let lend = json!({ "metadata": { "annotations": { keys::LEND: null } } });
            harness.physical_side.patch("v1/Node", harness.node(), &lend).await?;
            harness.copy("late").await?;
            let suspend = json!({ "spec": { "suspend": true } });
            harness.virtual_side.patch(BINDING, &harness.name, &suspend).await?;
            lends(harness, harness.node(), ["0", "0", "0"]).await?;
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
async fn law_12_odd_nodes_are_lent_as_far_as_possible_and_stop_no_other_node() -> Result<()> {
    let long = long_name();
    assert_eq!(long.len(), 253);
    let nothing = node("odd-nothing").with("/status/allocatable", json!({})).with("/status/capacity", json!({}));
    let vast =
        node("odd-vast").cpu("9223372036854775807").memory("9223372036854775807").resource("example.com/x", "9E");
    pattern("odd")
        // A still cluster, where no kubelet fills in missing fields.
        .on(Fixture::Still)
        .node(node(&long).label("kubernetes.io/hostname", "long").cpu("2").memory("4Gi").pods(5))
        .node(nothing)
        .node(vast)
        .run(async |harness| {
            let vnode = lends(harness, &long, ["2", "4Gi", "5"]).await?;
            ensure!(vnode["metadata"]["name"].as_str().is_some_and(|name| name.len() <= 63), "{}", vnode["metadata"]);
            assert_eq!(annotation(&vnode, keys::PHYSICAL_NODE_NAME), long);
            harness.vnode_ready(&long).await?;
            harness.virtual_side.create(&harness.bound_to(&long, "web").cpu("1").build()).await?;
            let copy = harness.copy("web").await?;
            assert_eq!(copy["spec"]["nodeName"], long.as_str());

            harness.vnode_when("odd-nothing", "offers nothing", |vnode| offers(vnode) == ["", "", ""]).await?;
            harness.virtual_side.create(&harness.bound_to("odd-nothing", "none").build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            let none = harness.vpod_when("none", "is refused", refused).await?;
            assert_eq!(condition(&none, keys::CONDITION_ADMITTED)["reason"], "OutOfLease");

            let vast = ["9223372036854775807", "9223372036854775807", "110"];
            lends(harness, "odd-vast", vast).await?;
            harness.virtual_side.create(&harness.bound_to("odd-vast", "small").cpu("1").build()).await?;
            harness.copy("small").await?;
            Ok(())
        })
        .await
}
