//! A physical node in trouble: the virtual cluster decides how long a pod stays there, not the physical one.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_testbed::builders::pod;
use tapestry_testbed::eventually;

use crate::harness::{Harness, pattern};
use crate::looks::{SOON, items, name, uid};

const TROUBLE: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Leaves a node in trouble at once.
fn impatient(key: &str) -> Value {
    json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 })
}

/// The first two tolerations of a pod.
fn first_two(pod: &Value) -> Vec<Value> {
    items(&pod["spec"]["tolerations"]).iter().take(2).cloned().collect()
}

/// The copy as it is, which must be the same pod and not being deleted.
async fn stays(harness: &Harness, copy: &Value) -> Result<Value> {
    let seen =
        harness.physical_side.get("v1/Pod", &format!("{}/{}", harness.mount, name(copy))).await?.unwrap_or_default();
    ensure!(uid(&seen) == uid(copy) && seen["metadata"]["deletionTimestamp"].is_null(), "it is being deleted: {seen}");
    Ok(seen)
}

#[tokio::test]
async fn the_physical_cluster_does_not_evict_a_copy_from_a_node_in_trouble() -> Result<()> {
    let patient = TROUBLE.map(|key| json!({ "key": key, "operator": "Exists", "effect": "NoExecute" }));
    pattern("patience")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let every_key = json!({ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 });
            let [not_ready, unreachable] = TROUBLE.map(impatient);
            let vpod = harness.pod("web").tolerate(not_ready.clone()).tolerate(unreachable.clone()).tolerate(every_key);
            harness.virtual_side.create(&vpod.build()).await?;
            let (_, copy) = harness.runs("web").await?;
            ensure!(first_two(&copy) == patient, "{}", copy["spec"]["tolerations"]);
            let limited = items(&copy["spec"]["tolerations"])
                .iter()
                .filter(|one| TROUBLE.map(Some).contains(&one["key"].as_str()));
            ensure!(limited.count() == 2, "admission added others: {}", copy["spec"]["tolerations"]);

            // A pod of the owner shows that the taint does evict.
            let witness = pod("witness").namespace(&harness.mount).on(harness.node());
            harness.physical_side.create(&witness.tolerate(not_ready).tolerate(unreachable).build()).await?;
            let taints = json!([{ "key": TROUBLE[1], "effect": "NoExecute" }]);
            harness.physical_side.patch("v1/Node", harness.node(), &json!({ "spec": { "taints": taints } })).await?;
            eventually("the owner's pod is evicted", SOON, async || {
                let seen = harness.physical_side.get("v1/Pod", &format!("{}/witness", harness.mount)).await;
                match seen.map_err(|error| error.to_string())? {
                    Some(seen) if seen["metadata"]["deletionTimestamp"].is_null() => Err(seen["status"].to_string()),
                    _ => Ok(()),
                }
            })
            .await?;
            stays(harness, &copy).await?;
            harness.physical_side.patch("v1/Node", harness.node(), &json!({ "spec": { "taints": null } })).await?;

            // A copy with other tolerations, from an older version or an edit of the owner, is updated while it runs.
            let mut limited = items(&copy["spec"]["tolerations"]).to_vec();
            limited[0]["tolerationSeconds"] = json!(300);
            limited[1]["tolerationSeconds"] = json!(5);
            limited.reverse();
            let place = format!("{}/{}", harness.mount, name(&copy));
            harness.physical_side.patch("v1/Pod", &place, &json!({ "spec": { "tolerations": limited } })).await?;
            eventually("the copy is updated", SOON, async || {
                let seen = stays(harness, &copy).await.map_err(|error| error.to_string())?;
                if first_two(&seen) == patient { Ok(()) } else { Err(seen["spec"]["tolerations"].to_string()) }
            })
            .await
        })
        .await
}
