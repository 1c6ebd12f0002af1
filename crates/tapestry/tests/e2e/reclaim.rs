//! Capacity is reclaimed: which pods have to go, in which order, with how much grace; on real servers with their own
//! eviction and budgets.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::{SignedDuration, ToSpan as _};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_engine::clock::{Clock as _, SystemClock};
use tapestry_testbed::builders::{node, pod};
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{BINDING, Harness, POLICY, TEST, event_reasons, pattern};
use crate::looks::{SOON, condition, phase, taints};
use crate::windows::{closed, hour, minute_after};

pub(crate) async fn running(harness: &Harness, pods: &[Value]) -> Result<()> {
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        harness.virtual_side.create(pod).await?;
        harness.play_running(&harness.copy(name).await?).await?;
        harness.runs(name).await?;
    }
    Ok(())
}

pub(crate) fn deleting(vpod: &Value) -> bool {
    !vpod["metadata"]["deletionTimestamp"].is_null()
}

fn over(vnode: &Value) -> bool {
    taints(vnode).contains(&(keys::TAINT_OVER_LEASED.to_owned(), "NoSchedule".to_owned()))
}

#[tokio::test]
async fn when_a_window_ends_with_force_pods_have_their_grace_and_only_exact_tolerations_spare() -> Result<()> {
    pattern("ended")
        .on(Fixture::Still)
        .policy(|policy| policy.with("/spec/forceReclaim", true).with("/spec/gracefulReclaimPeriodSeconds", 20))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let exact = json!({ "key": keys::TAINT_OUT_OF_TIME_WINDOWS, "operator": "Exists" });
            let pods = [
                harness.bound("web").build(),
                harness.bound("spared").tolerate(exact).build(),
                harness.bound("any").tolerate_all().build(),
            ];
            running(harness, &pods).await?;
            let now = harness.now();
            let window = json!([{ "start": hour(now + 1.hours()), "end": hour(now + 2.hours()) }]);
            harness.virtual_side.patch(POLICY, "ended", &json!({ "spec": { "timeWindows": window } })).await?;
            harness.vnode_when(harness.node(), "is closed", closed).await?;
            for name in ["web", "spared", "any"] {
                ensure!(!deleting(&harness.vpod(name).await?), "{name} had no grace");
            }
            harness.skip(Duration::from_secs(22));
            let executed = |vnode: &Value| {
                taints(vnode).contains(&(keys::TAINT_OUT_OF_TIME_WINDOWS.to_owned(), "NoExecute".to_owned()))
            };
            harness.vnode_when(harness.node(), "is forced", executed).await?;
            for name in ["web", "any"] {
                harness.vpod_when(name, "goes", deleting).await?;
                harness.play_removed(&harness.physical_leaving(&harness.copy(name).await?).await?).await?;
                harness.gone(name).await?;
            }
            let told = event_reasons(&harness.virtual_side, &harness.name, "any").await?;
            ensure!(told.iter().any(|reason| reason == "Reclaimed"), "{told:?}");
            assert_eq!(phase(&harness.vpod("spared").await?), "Running");
            ensure!(!deleting(&harness.vpod("spared").await?), "the spared pod is being deleted");
            let always = json!({ "spec": { "timeWindows": [] } });
            harness.virtual_side.patch(POLICY, "ended", &always).await?;
            harness.vnode_when(harness.node(), "is open", |vnode| !closed(vnode) && !executed(vnode)).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn with_reclaim_before_end_the_capacity_is_back_when_the_window_ends() -> Result<()> {
    let start = SystemClock::start().now().wall;
    let ends = minute_after(start, 3)?;
    pattern("back-in-time")
        // Its kubelets end pods by themselves.
        .on(Fixture::East)
        .policy(|policy| {
            let rules = policy.with("/spec/forceReclaim", true).with("/spec/gracefulReclaimPeriodSeconds", 15);
            rules.with("/spec/reclaimBeforeEnd", true).window(&hour(start - 1.hours()), &hour(ends), &[])
        })
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            // Pods that take five seconds to end, and one that would take a minute.
            for (name, grace) in [("quick", 5), ("slow", 60)] {
                let pod = harness.bound(name).with("/spec/terminationGracePeriodSeconds", grace).build();
                harness.virtual_side.create(&pod).await?;
                harness.runs(name).await?;
            }
            // The reclaim begins at the end − 15 s of grace − 15 s, the longest forced grace − 1 s: just before that.
            let ahead = ends.duration_since(harness.now()) - SignedDuration::from_secs(34);
            harness.skip(Duration::try_from(ahead)?);
            harness.vnode_when(harness.node(), "is closed", closed).await?;
            let early = ends.duration_since(harness.now());
            ensure!(early > SignedDuration::from_secs(15), "it began {early:#} before the end");
            for name in ["quick", "slow"] {
                harness.gone(name).await?;
            }
            let back = ends.duration_since(harness.now());
            ensure!(back >= SignedDuration::ZERO, "the capacity was back {:#} after the end", back.abs());
            assert_eq!(harness.ppods().await?.len(), 0);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn when_less_is_lent_the_lowest_are_evicted_and_a_budget_is_respected_until_force_is_due() -> Result<()> {
    pattern("shrunk")
        .on(Fixture::Still)
        .node(node("shrunk-0").cpu("4"))
        .policy(|policy| policy.with("/spec/forceReclaim", true).with("/spec/gracefulReclaimPeriodSeconds", 30))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let budget = json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                "metadata": { "name": "guarded", "namespace": harness.name },
                "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "guarded" } } },
            });
            harness.virtual_side.create(&budget).await?;
            let guarded = harness.bound("guarded").cpu("1").label("app", "guarded").build();
            // Of pods that are created within the same second none is the youngest.
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": "shrunk-high" }, "value": 100,
            });
            harness.virtual_side.create(&class).await?;
            let high = harness.bound("high").cpu("2").with("/spec/priorityClassName", "shrunk-high").build();
            running(harness, &[high, guarded, harness.bound("low").cpu("1").build()]).await?;
            // No pod is evicted for capacity that a node had before the syncer first saw it.
            harness.skip(Duration::from_secs(121));
            // The owner's own pod: 2 CPUs are left for three pods that ask for four.
            let own = pod("shrunk-own").namespace(&harness.mount).on(harness.node()).cpu("2").build();
            harness.physical_side.create(&own).await?;
            harness.vnode_when(harness.node(), "is over-leased", over).await?;
            harness.vpod_when("low", "is evicted", deleting).await?;
            assert_eq!(condition(&harness.vpod("low").await?, "DisruptionTarget")["reason"], "EvictionByEvictionAPI");
            harness.play_removed(&harness.physical_leaving(&harness.copy("low").await?).await?).await?;
            harness.gone("low").await?;
            // The budget allows no disruption of its pods.
            ensure!(!deleting(&harness.vpod("guarded").await?), "the budget was ignored");
            harness.skip(Duration::from_secs(31));
            harness.vpod_when("guarded", "is deleted by force", deleting).await?;
            assert_eq!(condition(&harness.vpod("guarded").await?, "DisruptionTarget")["reason"], "Reclaimed");
            harness.play_removed(&harness.physical_leaving(&harness.copy("guarded").await?).await?).await?;
            harness.gone("guarded").await?;
            harness.vnode_when(harness.node(), "is no longer over-leased", |vnode| !over(vnode)).await?;
            ensure!(!deleting(&harness.vpod("high").await?), "more pods were deleted than needed");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_users_delete_of_a_virtual_node_is_a_drain_and_the_node_comes_back() -> Result<()> {
    pattern("kicked")
        .on(Fixture::Still)
        .policy(|policy| policy.with("/spec/gracefulReclaimPeriodSeconds", 1))
        .run(async |harness| {
            let before = harness.vnode_ready(harness.node()).await?;
            running(harness, &[harness.bound("web").build()]).await?;
            harness.virtual_side.delete("v1/Node", &harness.vnode()).await?;
            harness.vpod_when("web", "goes", deleting).await?;
            ensure!(
                harness.virtual_side.get("v1/Node", &harness.vnode()).await?.is_some(),
                "it was removed before its pod"
            );
            harness.play_removed(&harness.physical_leaving(&harness.copy("web").await?).await?).await?;
            harness.gone("web").await?;
            let again = |vnode: &Value| vnode["metadata"]["uid"] != before["metadata"]["uid"];
            harness.vnode_when(harness.node(), "is another one", again).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_deleted_binding_cleans_everything_up_before_it_is_gone() -> Result<()> {
    pattern("unbound")
        .on(Fixture::Still)
        .policy(|policy| policy.with("/spec/gracefulReclaimPeriodSeconds", 1))
        .node(node("unbound-0").label(TEST, "unbound"))
        .node(node("unbound-1").label(TEST, "unbound"))
        .run(async |harness| {
            harness.vnode_ready("unbound-0").await?;
            harness.vnode_ready("unbound-1").await?;
            running(harness, &[harness.bound("web").build()]).await?;
            harness.virtual_side.delete(BINDING, &harness.name).await?;
            harness.vnode_gone("unbound-1").await?;
            harness.vpod_when("web", "goes", deleting).await?;
            ensure!(
                harness.virtual_side.get(BINDING, &harness.name).await?.is_some(),
                "the binding was gone before its pods"
            );
            harness.play_removed(&harness.physical_leaving(&harness.copy("web").await?).await?).await?;
            harness.gone("web").await?;
            harness.vnode_gone("unbound-0").await?;
            eventually("the binding is gone", SOON, async || {
                let binding =
                    harness.virtual_side.get(BINDING, &harness.name).await.map_err(|error| error.to_string())?;
                binding.map_or(Ok(()), |binding| Err(binding["metadata"].to_string()))
            })
            .await?;
            let account = format!("{}/{}", harness.mount, keys::POD_SERVICE_ACCOUNT);
            ensure!(harness.physical_side.get("v1/ServiceAccount", &account).await?.is_none(), "the account stayed");
            Ok(())
        })
        .await
}
