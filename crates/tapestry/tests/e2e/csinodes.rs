//! CSINodes: a virtual node has the storage drivers of its physical node, as long as both exist.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_syncer::start::user_agent;
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{Harness, pattern};
use crate::looks::{SOON, annotation, label, strings, text, uid};

const CSI_NODE: &str = "storage.k8s.io/v1/CSINode";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";

fn driver(name: &str, node_id: &str, topology: &[&str], count: u32) -> Value {
    json!({ "name": name, "nodeID": node_id, "topologyKeys": topology, "allocatable": { "count": count } })
}

/// The CSINode that a kubelet would write.
fn csinode(node: &str, drivers: &[Value]) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": { "name": node, "labels": { "owner": "x" }, "annotations": { "owner": "x", MIGRATED: "kubernetes.io/aws-ebs" } },
        "spec": { "drivers": drivers },
    })
}

impl Harness {
    /// Waits until the virtual CSINode of the first node has these drivers.
    async fn has_drivers(&self, drivers: &[Value]) -> Result<Value> {
        eventually(&format!("the virtual CSINode has {} drivers", drivers.len()), SOON, async || {
            match self.virtual_side.get(CSI_NODE, &self.vnode()).await {
                Ok(Some(seen)) if seen["spec"]["drivers"] == json!(drivers) => Ok(seen),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    async fn has_no_csinode(&self) -> Result<()> {
        eventually("there is no virtual CSINode", SOON, async || {
            match self.virtual_side.get(CSI_NODE, &self.vnode()).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Lets the minute pass after which the syncer removes the virtual node of a deleted physical node.
    async fn node_gone(&self) -> Result<()> {
        self.physical_side.delete("v1/Node", self.node()).await?;
        eventually("the virtual node is gone", SOON, async || {
            self.skip(Duration::from_secs(61));
            match self.virtual_side.get("v1/Node", &self.vnode()).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }
}

#[tokio::test]
async fn a_csinode_that_was_there_before_is_copied_followed_and_goes_with_its_node() -> Result<()> {
    pattern("csi-before")
        .on(Fixture::Still)
        .run_without(async |harness| {
            let before = [driver("ebs.csi", "i-1", &["zone"], 25)];
            harness.physical_side.create(&csinode(harness.node(), &before)).await?;
            harness.start().await?;
            let vnode = harness.vnode_ready(harness.node()).await?;
            let seen = harness.has_drivers(&before).await?;
            assert_eq!(label(&seen, keys::MANAGED_BY), "tapestry");
            assert_eq!(label(&seen, keys::CLUSTER_BINDING), "csi-before");
            assert_eq!(label(&seen, keys::PHYSICAL_NODE_NAME), harness.node());
            assert_eq!(label(&seen, keys::ORIGIN), label(&vnode, keys::ORIGIN));
            assert_eq!(seen["metadata"]["labels"].as_object().map(serde_json::Map::len), Some(4));
            let annotations = strings(&seen["metadata"]["annotations"]);
            let keys: Vec<&str> = annotations.keys().map(String::as_str).collect();
            assert_eq!(keys, [MIGRATED, keys::LAST_SYNC_TIME, keys::PHYSICAL_NODE_NAME]);
            let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": harness.vnode(), "uid": uid(&vnode) }]);
            assert_eq!(seen["metadata"]["ownerReferences"], owner);

            // Another driver, and changes that do not concern the virtual cluster.
            let after = [driver("nfs.csi", "n-1", &["rack"], 3)];
            let metadata = json!({ "labels": { "owner": "y" }, "annotations": { "owner": "y", MIGRATED: null } });
            let change = json!({ "metadata": metadata, "spec": { "drivers": after } });
            harness.physical_side.patch(CSI_NODE, harness.node(), &change).await?;
            let seen = harness.has_drivers(&after).await?;
            ensure!(!seen.to_string().contains("owner\":\""), "{}", seen["metadata"]);
            assert_eq!(annotation(&seen, MIGRATED), "");

            harness.node_gone().await?;
            ensure!(
                harness.physical_side.get(CSI_NODE, harness.node()).await?.is_some(),
                "the physical CSINode was touched"
            );
            harness.has_no_csinode().await
        })
        .await
}

#[tokio::test]
async fn a_csinode_that_comes_later_is_copied_and_needs_both_its_node_and_its_original() -> Result<()> {
    pattern("csi-after")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let (ebs, nfs) = (driver("ebs.csi", "i-1", &["zone", "rack"], 25), driver("nfs.csi", "n-1", &["zone"], 3));
            harness.physical_side.create(&csinode(harness.node(), std::slice::from_ref(&ebs))).await?;
            let one = harness.has_drivers(std::slice::from_ref(&ebs)).await?;
            let add = json!({ "spec": { "drivers": [ebs, nfs] } });
            harness.physical_side.patch(CSI_NODE, harness.node(), &add).await?;
            let two = harness.has_drivers(&[ebs, nfs]).await?;
            assert_eq!(uid(&two), uid(&one), "a new driver needs no new object");

            harness.physical_side.delete(CSI_NODE, harness.node()).await?;
            harness.has_no_csinode().await?;
            harness.node_gone().await?;
            harness.physical_side.create(&csinode(harness.node(), &[])).await?;
            // Two seconds in which it could appear.
            tokio::time::sleep(Duration::from_secs(2)).await;
            ensure!(
                harness.virtual_side.get(CSI_NODE, &harness.vnode()).await?.is_none(),
                "a CSINode without its node"
            );
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_change_that_kubernetes_forbids_recreates_the_csinode_and_a_count_does_not() -> Result<()> {
    pattern("csi-frozen")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let first = [driver("ebs.csi", "i-1", &["zone"], 25)];
            harness.physical_side.create(&csinode(harness.node(), &first)).await?;
            let before = harness.has_drivers(&first).await?;

            let counted = [driver("ebs.csi", "i-1", &["zone"], 7)];
            harness.physical_side.patch(CSI_NODE, harness.node(), &json!({ "spec": { "drivers": counted } })).await?;
            let seen = harness.has_drivers(&counted).await?;
            assert_eq!(uid(&seen), uid(&before));

            let moved = [driver("ebs.csi", "i-1", &["zone", "rack"], 7)];
            let refused =
                harness.physical_side.patch(CSI_NODE, harness.node(), &json!({ "spec": { "drivers": moved } })).await;
            ensure!(refused.is_err(), "topology keys are not fixed any more");
            // Changed while no syncer runs, so that it must act on the difference alone.
            harness.stop().await?;
            harness.physical_side.delete(CSI_NODE, harness.node()).await?;
            harness.physical_side.create(&csinode(harness.node(), &moved)).await?;
            let mark = harness.virtual_cluster.audit().mark().await?;
            harness.start().await?;
            let recreated = harness.has_drivers(&moved).await?;
            ensure!(uid(&recreated) != uid(&before), "it was changed in place");
            assert_eq!(recreated["metadata"]["ownerReferences"], before["metadata"]["ownerReferences"]);
            let asked =
                harness.virtual_cluster.audit().since(&mark).await?.by_agent(&user_agent(&harness.name)).writes();
            let ours = asked.only(|request| request.resource == "csinodes.storage.k8s.io");
            assert_eq!(ours.0.iter().filter(|request| request.code >= 400).count(), 0, "{}", ours.summary());
            assert_eq!(ours.count(), 2, "{}", ours.summary());
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_06_a_csinode_of_that_name_that_is_not_ours_is_left_alone() -> Result<()> {
    pattern("csi-foreign")
        .on(Fixture::Still)
        .run_without(async |harness| {
            let theirs = csinode(&harness.vnode(), &[driver("their.csi", "x", &[], 1)]);
            let theirs = harness.virtual_side.create(&theirs).await?;
            let ours = [driver("ebs.csi", "i-1", &["zone"], 25)];
            harness.physical_side.create(&csinode(harness.node(), &ours)).await?;
            let mark = harness.virtual_cluster.audit().mark().await?;
            harness.start().await?;
            harness.vnode_ready(harness.node()).await?;
            let agent = user_agent(&harness.name);
            eventually("the syncer has read it", SOON, async || {
                let asked = harness.virtual_cluster.audit().since(&mark).await;
                let asked = asked.map_err(|error| error.to_string())?.by_agent(&agent);
                let met = asked.only(|request| request.resource == "csinodes.storage.k8s.io" && request.verb == "get");
                if met.count() > 0 { Ok(()) } else { Err(met.summary()) }
            })
            .await?;
            let seen = harness.virtual_side.get(CSI_NODE, &harness.vnode()).await?.context("it is gone")?;
            assert_eq!(text(&seen["metadata"]["resourceVersion"]), text(&theirs["metadata"]["resourceVersion"]));
            // Once it is deleted, the syncer creates ours at its next check.
            harness.virtual_side.delete(CSI_NODE, &harness.vnode()).await?;
            harness.skip(Duration::from_mins(6));
            harness.has_drivers(&ours).await?;
            Ok(())
        })
        .await
}
