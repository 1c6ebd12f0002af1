//! Limits in the physical cluster: a quota at what is leased, a network policy that isolates.

use anyhow::{Context as _, Result, ensure};
use jiff::SignedDuration;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_engine::clock::{Clock as _, SystemClock};
use tapestry_testbed::builders::{node, policy};
use tapestry_testbed::eventually;
use tapestry_testbed::proxy::{Fault, Requests};

use crate::fixtures::Fixture;
use crate::harness::{BINDING, Harness, POLICY, pattern};
use crate::looks::{SOON, condition, label, text, uid};
use crate::windows::{closed, hour, minute_after};

const QUOTA: &str = "v1/ResourceQuota";
const NETWORK_POLICY: &str = "networking.k8s.io/v1/NetworkPolicy";

impl Harness {
    /// Waits until the object in the mount namespace satisfies a condition.
    async fn guard_when(&self, kind: &str, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let place = format!("{}/{name}", self.mount);
        eventually(&format!("{place} {what}"), SOON, async || match self.physical_side.get(kind, &place).await {
            Ok(Some(seen)) if holds(&seen) => Ok(seen),
            other => Err(format!("{other:?}")),
        })
        .await
    }

    async fn guard_gone(&self, kind: &str, name: &str) -> Result<()> {
        let place = format!("{}/{name}", self.mount);
        eventually(&format!("{place} is gone"), SOON, async || match self.physical_side.get(kind, &place).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
    }

    /// Waits until the quota is in force for this much CPU, memory and pods.
    async fn quota_is(&self, cpu: &str, memory: &str, pods: &str) -> Result<Value> {
        let hard = json!({
            "requests.cpu": cpu, "requests.memory": memory, "requests.ephemeral-storage": "0", "pods": pods,
        });
        let holds = |quota: &Value| quota["spec"]["hard"] == hard && quota["status"]["hard"] == hard;
        self.guard_when(QUOTA, keys::QUOTA, &format!("says {hard}"), holds).await
    }

    async fn guard(&self, guard: Value) -> Result<()> {
        let patch = json!({ "spec": { "guard": guard } });
        self.virtual_side.patch(BINDING, &self.name, &patch).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_quota_equals_what_is_leased_and_pods_without_requests_are_admitted() -> Result<()> {
    pattern("quotaed")
        .node(node("quotaed-a").cpu("8").memory("16Gi").pods(20))
        .node(node("quotaed-b").cpu("4").memory("8Gi").pods(10))
        .binding(|binding| binding.with("/spec/guard", json!({ "quota": true })))
        .run(async |harness| {
            harness.vnode_ready("quotaed-a").await?;
            harness.vnode_ready("quotaed-b").await?;
            let quota = harness.quota_is("12", "24Gi", "30").await?;
            assert_eq!(label(&quota, keys::CLUSTER_BINDING), "quotaed");
            ensure!(label(&quota, keys::ORIGIN).len() == 32, "{}", quota["metadata"]);

            // It has no requests; under this quota Kubernetes itself would refuse it.
            harness.virtual_side.create(&harness.pod("silent").build()).await?;
            let (vpod, ppod) = harness.runs("silent").await?;
            assert_eq!(ppod["spec"]["containers"][0]["resources"]["requests"], json!({ "cpu": "0", "memory": "0" }));
            assert_eq!(
                (text(&vpod["status"]["qosClass"]), text(&ppod["status"]["qosClass"])),
                ("BestEffort", "BestEffort")
            );
            harness.virtual_side.create(&harness.pod("asks").cpu("3").build()).await?;
            harness.runs("asks").await?;

            let half = policy("quotaed").cluster("quotaed").limit_percent("cpu", 50).limit("memory", "6Gi").build();
            harness.virtual_side.patch(POLICY, "quotaed", &json!({ "spec": half["spec"] })).await?;
            let quota = harness.quota_is("6", "12Gi", "30").await?;
            assert_eq!(quota["status"]["used"]["requests.cpu"], "3");
            harness.virtual_side.patch(POLICY, "quotaed", &json!({ "spec": { "resourceLimits": null } })).await?;
            harness.quota_is("12", "24Gi", "30").await?;

            // The quota also refuses pods that bypass the syncer.
            let mut rogue = harness.pod("rogue").namespace(&harness.mount).cpu("10").memory("1Gi").build();
            rogue["spec"]["nodeSelector"] = Value::Null;
            let refused = harness.physical_side.create(&rogue).await;
            ensure!(refused.as_ref().is_err_and(|error| error.to_string().contains("exceeded quota")), "{refused:?}");

            harness.guard(json!({ "quota": false })).await?;
            harness.guard_gone(QUOTA, keys::QUOTA).await?;
            harness.runs("asks").await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_pod_that_the_quota_refuses_says_so_and_starts_when_there_is_room() -> Result<()> {
    pattern("quota-full")
        .node(node("quota-full-0").cpu("4").memory("8Gi").pods(10))
        .binding(|binding| binding.with("/spec/guard", json!({ "quota": true })))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.quota_is("4", "8Gi", "10").await?;
            // Another user's pod, which runs on none of our nodes but counts for the quota.
            let foreign = tapestry_testbed::builders::pod("foreign")
                .namespace(&harness.mount)
                .on("nowhere")
                .cpu("3")
                .memory("1Gi");
            harness.physical_side.create(&foreign.build()).await?;
            harness.virtual_side.create(&harness.bound("web").cpu("2").build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "False";
            let vpod = harness.vpod_when("web", "is refused", refused).await?;
            let message = text(&condition(&vpod, keys::CONDITION_ADMITTED)["message"]).to_owned();
            ensure!(message.contains("exceeded quota: tapestry-leased"), "{message}");
            let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            harness.physical_side.delete_with("v1/Pod", &format!("{}/foreign", harness.mount), &now).await?;
            harness.runs("web").await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn at_the_start_of_a_window_the_quota_is_raised_before_the_node_and_no_pod_is_refused_by_it() -> Result<()> {
    let start = SystemClock::start().now().wall;
    let (opens, closes) = (minute_after(start, 3)?, minute_after(start, 63)?);
    pattern("quota-hours")
        .node(node("quota-hours-0").cpu("4").memory("8Gi").pods(10))
        .binding(|binding| binding.with("/spec/guard", json!({ "quota": true })))
        .policy(|policy| policy.window(&hour(opens), &hour(closes), &[]))
        .through_proxies()
        .run(async |harness| {
            harness.vnode_when(harness.node(), "is closed", closed).await?;
            harness.quota_is("0", "0", "0").await?;
            // They bypass scheduler and taints, and wait for admission.
            let names: Vec<String> = (0..8).map(|number| format!("early-{number}")).collect();
            for name in &names {
                harness.virtual_side.create(&harness.bound(name).cpu("500m").tolerate_all().build()).await?;
            }
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["reason"] == "OutOfTimeWindows";
            for name in &names {
                harness.vpod_when(name, "is refused", refused).await?;
            }
            // A syncer that does not wait for the quota would be faster than it.
            let late = Fault::Delay(std::time::Duration::from_secs(3));
            let _slow = harness.proxy(Side::Physical).inject(late, Requests::writes().of("resourcequotas"));
            let ahead = opens.duration_since(harness.now()) - SignedDuration::from_secs(2);
            harness.skip(std::time::Duration::try_from(ahead)?);
            for name in &names {
                harness.runs(name).await?;
            }
            harness.quota_is("4", "8Gi", "10").await?;
            let (_, asked) = &harness.asked().await?[1];
            let refused = asked.only(|request| request.resource == "pods" && request.code == 403);
            ensure!(refused.count() == 0, "the quota refused copies:\n{}", refused.summary());
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_network_policy_is_created_restored_and_removed() -> Result<()> {
    pattern("isolation")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let place = format!("{}/{}", harness.mount, keys::NETWORK_POLICY);
            ensure!(harness.physical_side.get(NETWORK_POLICY, &place).await?.is_none(), "the binding does not ask for it");
            harness.guard(json!({ "networkPolicy": true })).await?;
            let made = harness.guard_when(NETWORK_POLICY, keys::NETWORK_POLICY, "is there", |_| true).await?;
            assert_eq!(made["spec"]["podSelector"], json!({ "matchLabels": { keys::MANAGED_BY: "tapestry" } }));
            assert_eq!(made["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
            assert_eq!(label(&made, keys::CLUSTER_BINDING), "isolation");

            // A user opens it.
            let open = json!({ "spec": { "ingress": [{}], "podSelector": { "matchExpressions": [{ "key": "x", "operator": "Exists" }] } } });
            harness.physical_side.patch(NETWORK_POLICY, &place, &open).await?;
            let whole = |seen: &Value| seen["spec"] == made["spec"];
            let mended = harness.guard_when(NETWORK_POLICY, keys::NETWORK_POLICY, "is mended", whole).await?;
            assert_eq!(uid(&mended), uid(&made));
            // And removes the labels it is found by.
            let strip = json!({ "metadata": { "labels": { keys::ORIGIN: null, keys::MANAGED_BY: null } }, "spec": { "egress": [{}] } });
            harness.physical_side.patch(NETWORK_POLICY, &place, &strip).await?;
            let labelled = |seen: &Value| whole(seen) && seen["metadata"]["labels"] == made["metadata"]["labels"];
            harness.guard_when(NETWORK_POLICY, keys::NETWORK_POLICY, "has its labels again", labelled).await?;
            // And deletes it.
            harness.physical_side.delete(NETWORK_POLICY, &place).await?;
            let recreated = |seen: &Value| uid(seen) != uid(&made) && seen["spec"] == made["spec"];
            harness.guard_when(NETWORK_POLICY, keys::NETWORK_POLICY, "is created again", recreated).await?;

            // Switched off while no syncer runs.
            harness.stop().await?;
            harness.guard(Value::Null).await?;
            harness.start().await?;
            harness.guard_gone(NETWORK_POLICY, keys::NETWORK_POLICY).await
        })
        .await
}

#[tokio::test]
async fn law_06_a_network_policy_of_that_name_that_is_not_ours_is_left_alone() -> Result<()> {
    pattern("isolated-by-them")
        .on(Fixture::Still)
        .binding(|binding| binding.with("/spec/guard", json!({ "networkPolicy": true, "quota": true })))
        .run_without(async |harness| {
            let place = format!("{}/{}", harness.mount, keys::NETWORK_POLICY);
            let theirs = json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "name": keys::NETWORK_POLICY, "namespace": harness.mount }, "spec": { "podSelector": {} },
            });
            let theirs = harness.physical_side.create(&theirs).await?;
            harness.start().await?;
            // The other guard exists, so the syncer has checked this one as well.
            harness.guard_when(QUOTA, keys::QUOTA, "is there", |_| true).await?;
            harness.guard(json!({ "networkPolicy": false, "quota": false })).await?;
            harness.guard_gone(QUOTA, keys::QUOTA).await?;
            let seen = harness.physical_side.get(NETWORK_POLICY, &place).await?.context("it is gone")?;
            assert_eq!(text(&seen["metadata"]["resourceVersion"]), text(&theirs["metadata"]["resourceVersion"]));
            Ok(())
        })
        .await
}
