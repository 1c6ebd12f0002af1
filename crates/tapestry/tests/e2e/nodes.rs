//! Nodes: every lendable physical node appears as a virtual node, with exactly what is lent.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_syncer::start::user_agent;
use tapestry_testbed::builders::node;
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{BINDING, TEST, pattern};
use crate::looks::{SOON, annotation, condition, items, label, strings, taints, text};

fn no_schedule(keys: &[&str]) -> std::collections::BTreeSet<(String, String)> {
    keys.iter().map(|key| ((*key).to_owned(), "NoSchedule".to_owned())).collect()
}

#[tokio::test]
async fn a_virtual_node_says_what_it_is_and_copies_no_annotation() -> Result<()> {
    let lent = node("looks-0")
        .label("zone", "a")
        .label("node-role.kubernetes.io/worker", "")
        .label("karpenter.sh/nodepool", "x")
        .label("tapestry.io/forged", "x")
        .annotation("volumes.kubernetes.io/controller-managed-attach-detach", "true")
        .annotation("owner", "a-user")
        .taint("team", "red", "PreferNoSchedule")
        .taint("tapestry.io/forged", "x", "NoSchedule");
    pattern("looks")
        .node(lent)
        .run(async |harness| {
            let vnode = harness.vnode_ready("looks-0").await?;
            let pnode = harness.physical_side.get("v1/Node", "looks-0").await?.context("no physical node")?;
            let origin = label(&vnode, keys::ORIGIN).to_owned();
            ensure!(origin.len() == 32, "origin {origin}");
            let expected: BTreeMap<String, String> = [
                ("kubernetes.io/os", "linux"),
                ("kubernetes.io/arch", "amd64"),
                ("kubernetes.io/hostname", "vnode-looks-looks-0"),
                ("node.kubernetes.io/exclude-from-external-load-balancers", "true"),
                ("zone", "a"),
                (TEST, "looks"),
                (keys::MANAGED_BY, "tapestry"),
                (keys::CLUSTER_BINDING, "looks"),
                (keys::ORIGIN, &origin),
                (keys::NODE_TYPE, "virtual"),
                (keys::PHYSICAL_CLUSTER_ID, "looks"),
                (keys::PHYSICAL_NODE_NAME, "looks-0"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
            let mut labels = strings(&vnode["metadata"]["labels"]);
            // The virtual controller-manager's own.
            labels.retain(|key, _| !key.starts_with("beta.kubernetes.io/"));
            assert_eq!(labels, expected);

            let mut annotations = strings(&vnode["metadata"]["annotations"]);
            // The virtual controller-manager's own.
            annotations.remove("node.alpha.kubernetes.io/ttl");
            let keys: Vec<&str> = annotations.keys().map(String::as_str).collect();
            let ours = [
                keys::EXPECTED_METADATA,
                keys::LAST_SYNC_TIME,
                keys::ORIGIN,
                keys::PHYSICAL_NODE_NAME,
                keys::PHYSICAL_NODE_UID,
                keys::POLICIES_APPLIED,
                keys::RECLAIM_RULES,
            ];
            assert_eq!(keys, ours);
            assert_eq!(annotation(&vnode, keys::PHYSICAL_NODE_UID), pnode["metadata"]["uid"]);
            assert_eq!(annotation(&vnode, keys::POLICIES_APPLIED), "looks");

            assert_eq!(vnode["spec"]["providerID"], "tapestry://looks/looks-0");
            assert_eq!(vnode["spec"]["unschedulable"], Value::Null);
            let mut expected = no_schedule(&[keys::TAINT_VNODE]);
            expected.insert(("team".to_owned(), "PreferNoSchedule".to_owned()));
            assert_eq!(taints(&vnode), expected);

            assert_eq!(vnode["status"]["addresses"], json!([{ "type": "Hostname", "address": "vnode-looks-looks-0" }]));
            assert_eq!(vnode["status"]["nodeInfo"], pnode["status"]["nodeInfo"]);
            for there in items(&pnode["status"]["conditions"]) {
                let here = condition(&vnode, text(&there["type"]));
                for field in ["status", "reason", "message", "lastTransitionTime"] {
                    assert_eq!(here[field], there[field], "{} {field}", there["type"]);
                }
            }
            assert_eq!(condition(&vnode, keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE)["status"], "True");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_virtual_node_follows_its_physical_node() -> Result<()> {
    pattern("follow")
        .on(Fixture::Still)
        .node(node("follow-0").label("zone", "a").label("old", "x").taint("team", "red", "NoSchedule"))
        .run(async |harness| {
            harness.vnode_ready("follow-0").await?;
            let change = json!({ "metadata": { "labels": { "zone": "b", "old": null, "new": "y" } },
                "spec": { "unschedulable": true, "taints": [{ "key": "team", "value": "blue", "effect": "NoExecute" }] } });
            harness.physical_side.patch("v1/Node", "follow-0", &change).await?;
            let mut expected = no_schedule(&[keys::TAINT_VNODE, keys::TAINT_PHYSICAL_CORDONED]);
            expected.insert(("team".to_owned(), "NoExecute".to_owned()));
            let vnode = harness.vnode_when("follow-0", "has the new taints", |vnode| taints(vnode) == expected).await?;
            assert_eq!([label(&vnode, "zone"), label(&vnode, "old"), label(&vnode, "new")], ["b", "", "y"]);

            let not_ready = json!([
                { "type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "broken",
                  "lastTransitionTime": "2026-01-02T00:00:00Z", "lastHeartbeatTime": "2026-01-02T00:00:00Z" },
                { "type": "DiskPressure", "status": "True", "reason": "Full", "message": "",
                  "lastTransitionTime": "2026-01-02T00:00:00Z", "lastHeartbeatTime": "2026-01-02T00:00:00Z" },
            ]);
            let status = json!({ "status": { "conditions": not_ready } });
            harness.physical_side.patch_subresource("status", "v1/Node", "follow-0", &status).await?;
            let broken = |vnode: &Value| {
                let ready = condition(vnode, "Ready");
                ready["status"] == "False" && ready["message"] == "broken" && condition(vnode, "DiskPressure")["status"] == "True"
            };
            harness.vnode_when("follow-0", "is as broken as its physical node", broken).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn the_default_taint_can_be_disabled() -> Result<()> {
    pattern("untainted")
        .on(Fixture::Still)
        .binding(|binding| binding.with("/spec/disableNodeDefaultTaint", true))
        .run(async |harness| {
            let vnode = harness.vnode_ready(harness.node()).await?;
            assert_eq!(taints(&vnode), no_schedule(&[]));
            let patch = json!({ "spec": { "disableNodeDefaultTaint": false } });
            harness.virtual_side.patch(BINDING, &harness.name, &patch).await?;
            let tainted = |vnode: &Value| taints(vnode) == no_schedule(&[keys::TAINT_VNODE]);
            harness.vnode_when(harness.node(), "has the default taint", tainted).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn the_lease_of_a_virtual_node_is_owned_by_it_and_renewed() -> Result<()> {
    pattern("lease")
        .on(Fixture::Still)
        .run(async |harness| {
            let vnode = harness.vnode_ready(harness.node()).await?;
            let place = format!("kube-node-lease/{}", harness.vnode());
            let lease = async |what: &str, holds: &dyn Fn(&Value) -> bool| {
                eventually(what, SOON, async || {
                    match harness.virtual_side.get("coordination.k8s.io/v1/Lease", &place).await {
                        Ok(Some(lease)) if holds(&lease) => Ok(lease),
                        other => Err(format!("{other:?}")),
                    }
                })
                .await
            };
            let first = lease("there is a Lease", &|_| true).await?;
            assert_eq!(first["spec"]["holderIdentity"], harness.vnode());
            assert_eq!(first["spec"]["leaseDurationSeconds"], 40);
            let owner = &first["metadata"]["ownerReferences"];
            assert_eq!(
                *owner,
                json!([{ "apiVersion": "v1", "kind": "Node", "name": harness.vnode(), "uid": vnode["metadata"]["uid"] }])
            );
            let since = first["spec"]["renewTime"].clone();
            // Timestamps of one format compare as text.
            lease("the Lease is renewed", &|lease| text(&lease["spec"]["renewTime"]) > text(&since)).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_users_own_label_annotation_and_taint_survive_and_ours_are_restored() -> Result<()> {
    pattern("users")
        .on(Fixture::Still)
        .node(node("users-0").label("zone", "a"))
        .run(async |harness| {
            let vnode = harness.vnode_ready("users-0").await?;
            let mut list = items(&vnode["spec"]["taints"]).to_vec();
            list.push(json!({ "key": "mine", "effect": "NoSchedule" }));
            let own = json!({ "metadata": { "labels": { "mine": "yes" }, "annotations": { "mine": "yes" } },
                "spec": { "taints": list } });
            harness.virtual_side.patch("v1/Node", &harness.vnode(), &own).await?;
            // Ours: a label removed, one changed, an annotation removed, the taint removed.
            let theirs = json!({ "metadata": {
                "labels": { keys::MANAGED_BY: null, "zone": "elsewhere" }, "annotations": { keys::PHYSICAL_NODE_UID: null } },
                "spec": { "taints": [{ "key": "mine", "effect": "NoSchedule" }] } });
            harness.virtual_side.patch("v1/Node", &harness.vnode(), &theirs).await?;
            harness.physical_side.patch("v1/Node", "users-0", &json!({ "metadata": { "labels": { "fresh": "1" } } })).await?;
            let whole = |vnode: &Value| {
                label(vnode, keys::MANAGED_BY) == "tapestry"
                    && label(vnode, "zone") == "a"
                    && label(vnode, "fresh") == "1"
                    && !annotation(vnode, keys::PHYSICAL_NODE_UID).is_empty()
                    && taints(vnode) == no_schedule(&[keys::TAINT_VNODE, "mine"])
            };
            let vnode = harness.vnode_when("users-0", "is mended", whole).await?;
            assert_eq!((label(&vnode, "mine"), annotation(&vnode, "mine")), ("yes", "yes"));
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_virtual_node_that_lost_the_labels_it_is_found_by_is_found_again() -> Result<()> {
    pattern("stripped")
        .on(Fixture::Still)
        .run(async |harness| {
            let before = harness.vnode_ready(harness.node()).await?;
            let strip = json!({ "metadata": { "labels": { keys::ORIGIN: null, keys::MANAGED_BY: null } } });
            harness.virtual_side.patch("v1/Node", &harness.vnode(), &strip).await?;
            let whole =
                |vnode: &Value| !label(vnode, keys::ORIGIN).is_empty() && !label(vnode, keys::MANAGED_BY).is_empty();
            let after = harness.vnode_when(harness.node(), "has its labels again", whole).await?;
            assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_virtual_node_that_a_user_deleted_comes_back() -> Result<()> {
    pattern("comes-back")
        .on(Fixture::Still)
        .run(async |harness| {
            let before = harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.delete("v1/Node", &harness.vnode()).await?;
            let recreated = |vnode: &Value| vnode["metadata"]["uid"] != before["metadata"]["uid"];
            harness.vnode_when(harness.node(), "exists again", recreated).await?;
            harness.vnode_ready(harness.node()).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_deselected_node_is_tainted_and_removed_when_empty() -> Result<()> {
    pattern("deselect")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.pod("web").build()).await?;
            let ppod = harness.copy("web").await?;
            harness.play_running(&ppod).await?;
            harness.runs("web").await?;
            let deselect = json!({ "metadata": { "labels": { TEST: null } } });
            harness.physical_side.patch("v1/Node", harness.node(), &deselect).await?;
            // As at the end of a window: nothing new is admitted, and running pods may stay.
            let withdrawn = |vnode: &Value| {
                taints(vnode).contains(&(keys::TAINT_OUT_OF_TIME_WINDOWS.to_owned(), "NoSchedule".to_owned()))
            };
            harness.vnode_when(harness.node(), "is tainted", withdrawn).await?;
            let (vpod, _) = harness.runs("web").await?;
            ensure!(vpod["metadata"]["deletionTimestamp"].is_null(), "the pod that ran was touched");

            harness.virtual_side.delete("v1/Pod", &harness.at("web")).await?;
            let leaving = harness.physical_leaving(&ppod).await?;
            harness.play_removed(&leaving).await?;
            harness.gone("web").await?;
            harness.vnode_gone(harness.node()).await
        })
        .await
}

#[tokio::test]
async fn the_virtual_node_of_a_physical_node_that_is_gone_for_a_minute_is_removed() -> Result<()> {
    pattern("vanish")
        .on(Fixture::Still)
        .run(async |harness| {
            let before = harness.vnode_ready(harness.node()).await?;
            harness.physical_side.delete("v1/Node", harness.node()).await?;
            // Not at once: a node that is registered again keeps its virtual node.
            let again = node(harness.node()).label(TEST, &harness.name).build();
            let again = harness.physical_side.create(&again).await?;
            let renewed = |vnode: &Value| annotation(vnode, keys::PHYSICAL_NODE_UID) == again["metadata"]["uid"];
            let after = harness.vnode_when(harness.node(), "is of the new node", renewed).await?;
            assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);

            let mark = harness.physical_cluster.audit().mark().await?;
            harness.physical_side.delete("v1/Node", harness.node()).await?;
            // The first proof is a live read; the second comes a minute later.
            eventually("the syncer looks for the node", SOON, async || {
                let asked = harness.physical_cluster.audit().since(&mark).await.map_err(|error| error.to_string())?;
                let asked = asked.by_agent(&user_agent(&harness.name)).only(|request| request.verb == "get");
                let looked = asked.0.iter().any(|request| request.name == harness.node() && request.code == 404);
                if looked { Ok(()) } else { Err(asked.summary()) }
            })
            .await?;
            ensure!(harness.virtual_side.get("v1/Node", &harness.vnode()).await?.is_some(), "it was removed at once");
            // The answer is in the log before the syncer has read it, so one minute may pass too early: let many pass.
            eventually("the virtual node is gone", SOON, async || {
                harness.skip(Duration::from_secs(61));
                match harness.virtual_side.get("v1/Node", &harness.vnode()).await.map_err(|error| error.to_string())? {
                    None => Ok(()),
                    Some(vnode) => Err(vnode["spec"].to_string()),
                }
            })
            .await
        })
        .await
}
