//! Plans for nodes, one sentence at a time.

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Refusal, Uid, Verb};
use tapestry_engine::Plan;

use crate::pair::{Fact, Key};
use crate::scene::{Scene, merge, name, pnode, vpod};

fn key() -> Key {
    Key::Node(name("n1"))
}

/// The virtual node as the scene knows it.
fn vnode(scene: &Scene) -> Value {
    scene.vnode("vnode-east-n1")
}

fn foreign_pod(cpu: &str) -> Value {
    json!({
        "metadata": {"name": "own", "namespace": "x", "uid": "own"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Running"},
    })
}

#[test]
fn a_lendable_node_appears_with_what_is_idle_and_then_rests() {
    let scene = Scene::new();
    let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
    assert_eq!(row.allocatable.to_string(), "cpu=4 memory=8Gi pods=110");
    assert_eq!(row.labels["zone"], "a");
    assert_eq!(row.labels["kubernetes.io/hostname"], "vnode-east-n1");
    assert!(row.has_taint(keys::TAINT_VNODE));
    assert_eq!(scene.plan(&key()), Plan::Rest);
}

#[test]
fn law_09_what_others_use_is_not_lent_and_a_policy_limits_the_rest() {
    let mut scene = Scene::new();
    scene.see_ppod(&foreign_pod("1"));
    let patch = scene.call(&key()).body().unwrap().into_owned();
    assert_eq!(patch["status"]["allocatable"]["cpu"], "3");
    assert_eq!(patch["status"]["allocatable"]["pods"], "109");
    scene.see_policy(
        "half",
        json!({"cluster": "east", "priority": 1, "resourceLimits": [{"resource": "cpu", "percent": 50}]}),
    );
    // The figures first, then which policy made them.
    let patch = scene.call(&key()).body().unwrap().into_owned();
    assert_eq!(patch["status"]["allocatable"]["cpu"], "1500m");
    let mut there = vnode(&scene);
    merge(&mut there, patch);
    scene.see_vnode(there);
    let patch = scene.call(&key()).body().unwrap().into_owned();
    assert_eq!(patch["metadata"]["annotations"][keys::POLICIES_APPLIED], "half");
}

#[test]
fn law_09_nothing_is_lent_without_a_policy_nor_outside_its_hours() {
    let mut scene = Scene::empty();
    scene.see_binding(json!({}));
    scene.see_pnode(pnode("n1"));
    let row = scene.pair.nodes.pnode(&name("n1")).unwrap().clone();
    assert!(scene.pair.terms(&row, scene.now.wall).is_none());
    scene.see_policy("others", json!({"cluster": "west"}));
    assert!(scene.pair.terms(&row, scene.now.wall).is_none());
    scene.see_policy("noon", json!({"cluster": "east", "timeWindows": [{"start": "12:00", "end": "13:00"}]}));
    let closed = scene.pair.terms(&row, scene.now.wall).unwrap();
    assert_eq!(closed.leased().to_string(), "cpu=0 memory=0 pods=0");
    scene.see_policy("all", json!({"cluster": "*"}));
    let open = scene.pair.terms(&row, scene.now.wall).unwrap();
    assert_eq!(open.leased().to_string(), "cpu=4 memory=8Gi pods=110");
}

#[test]
fn law_03_users_own_metadata_survives_and_ours_is_put_back() {
    let mut scene = Scene::new();
    let mut there = vnode(&scene);
    merge(&mut there, json!({"metadata": {"labels": {"mine": "1", "zone": "changed"}}}));
    there["metadata"]["labels"].as_object_mut().unwrap().remove(keys::NODE_TYPE);
    there["spec"]["taints"] = json!([{"key": "mine", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
    scene.see_vnode(there);
    let call = scene.call(&key());
    let patch = call.body().unwrap().into_owned();
    assert!(call.target.rv.is_some(), "taints are one list shared with Kubernetes");
    assert_eq!(patch["metadata"]["labels"], json!({"zone": "a", keys::NODE_TYPE: "virtual"}));
    let taints: Vec<&str> =
        patch["spec"]["taints"].as_array().unwrap().iter().map(|t| t["key"].as_str().unwrap()).collect();
    assert_eq!(taints, ["mine", "node.kubernetes.io/not-ready", keys::TAINT_VNODE]);
}

#[test]
fn a_label_that_the_physical_node_lost_goes_and_a_cordon_becomes_a_taint() {
    let mut scene = Scene::new();
    let mut changed = pnode("n1");
    changed["metadata"]["labels"] = json!({"node-role.kubernetes.io/worker": ""});
    changed["metadata"]["annotations"] = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
    changed["spec"] =
        json!({"unschedulable": true, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]});
    scene.see_pnode(changed);
    let patch = scene.call(&key()).body().unwrap().into_owned();
    assert_eq!(patch["metadata"]["labels"], json!({"zone": null}));
    let taints = patch["spec"]["taints"].to_string();
    assert!(taints.contains(keys::TAINT_PHYSICAL_CORDONED) && !taints.contains("node.kubernetes.io"), "{taints}");
    assert!(!patch.to_string().contains("attach-detach"), "no physical annotation is copied");
}

#[test]
fn law_04_a_heartbeat_alone_is_not_written() {
    let mut scene = Scene::new();
    let mut beat = pnode("n1");
    beat["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-01-01T00:05:00Z");
    scene.see_pnode(beat);
    assert_eq!(scene.plan(&key()), Plan::Rest);
}

#[test]
fn law_03_foreign_conditions_survive_a_status_patch() {
    let mut scene = Scene::new();
    let mut there = vnode(&scene);
    there["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "Mine", "status": "True"}));
    scene.see_vnode(there);
    assert_eq!(scene.plan(&key()), Plan::Rest);
    scene.see_ppod(&foreign_pod("1"));
    let conditions = scene.call(&key()).body().unwrap().into_owned()["status"]["conditions"].to_string();
    assert!(conditions.contains("Mine"), "{conditions}");
}

#[test]
fn a_node_whose_name_is_taken_by_a_strangers_node_gets_a_hashed_one() {
    let mut scene = Scene::new();
    scene.see_pnode(pnode("n2"));
    let n2 = Key::Node(name("n2"));
    scene.refuse(&n2, Refusal::Gone);
    scene.refuse(&n2, Refusal::Exists);
    let look = scene.call(&n2);
    assert_eq!(look.verb, Verb::Get);
    let object = scene.stamp(json!({"metadata": {"name": "vnode-east-n2", "uid": "s"}}));
    scene.settle(&n2, &look, Ok(Answer { object }));
    let create = scene.call(&n2);
    assert_ne!(create.target.name.as_str(), "vnode-east-n2");
    assert!(create.target.name.as_str().starts_with("vnode-east-n2-"));
}

#[test]
fn law_01_a_vanished_node_is_looked_for_twice_a_minute_apart_and_removed_when_it_is_empty() {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("web"));
    let row = scene.pair.nodes.pnode(&name("n1")).unwrap().clone();
    scene.see(Fact::PNode(tapestry_cluster::feed::Change::Gone { row, proven: false }));
    scene.refuse(&key(), Refusal::Gone);
    assert!(matches!(scene.plan(&key()), Plan::Wait(_)));
    scene.now.steady += std::time::Duration::from_secs(61);
    scene.refuse(&key(), Refusal::Gone);
    assert_eq!(scene.call(&key()).why, "TaintDeleting");
    let mut there = vnode(&scene);
    there["spec"]["taints"] = json!([{"key": keys::TAINT_VNODE_DELETING, "effect": "NoSchedule"}]);
    scene.see_vnode(there);
    assert_eq!(scene.plan(&key()), Plan::Rest, "a pod is still there");
    let mut done = vpod("web");
    done["status"]["phase"] = json!("Failed");
    scene.see_vpod(&done);
    let remove = scene.call(&key());
    assert_eq!((remove.why, remove.target.uid), ("RemoveNode", Some(Uid::new("uid-of-vnode-east-n1"))));
}

#[test]
fn law_01_an_absence_that_ended_before_its_proof_arrived_is_no_proof_of_the_next_one() {
    let mut scene = Scene::new();
    let lose = |scene: &mut Scene| {
        let row = scene.pair.nodes.pnode(&name("n1")).unwrap().clone();
        scene.see(Fact::PNode(tapestry_cluster::feed::Change::Gone { row, proven: false }));
    };
    scene.see_vnode(vnode(&scene));
    lose(&mut scene);
    let look = scene.call(&key());
    scene.see_pnode(pnode("n1"));
    scene.settle(&key(), &look, Err(Refusal::Gone));
    scene.now.steady += std::time::Duration::from_secs(61);
    lose(&mut scene);
    scene.refuse(&key(), Refusal::Gone);
    assert!(matches!(scene.plan(&key()), Plan::Wait(_)), "one proof is not two");
}

#[test]
fn a_condition_that_the_physical_node_lost_goes_from_the_virtual_one_too() {
    let mut scene = Scene::new();
    let mut pressed = pnode("n1");
    let pressure = json!({"type": "DiskPressure", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    pressed["status"]["conditions"].as_array_mut().unwrap().push(pressure);
    for (physical, there) in [(pressed, true), (pnode("n1"), false)] {
        scene.see_pnode(physical);
        while let Plan::Do(call, _) = scene.plan(&key()) {
            let mut object = vnode(&scene);
            merge(&mut object, call.body().unwrap().into_owned());
            scene.see_vnode(object);
        }
        let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
        assert_eq!(row.conditions.iter().any(|condition| condition.kind == "DiskPressure"), there);
    }
}

#[test]
fn a_virtual_node_without_our_annotations_is_known_by_its_provider_id_and_restored() {
    let mut scene = Scene::new();
    let mut stripped = vnode(&scene);
    stripped["metadata"]["annotations"] = json!({});
    stripped["spec"]["providerID"] = json!("tapestry://east/n1");
    scene.see_vnode(stripped);
    let patch = scene.call(&key()).body().unwrap().into_owned();
    assert_eq!(patch["metadata"]["annotations"][keys::PHYSICAL_NODE_NAME], "n1");
}

#[test]
fn a_name_whose_hashed_form_is_taken_too_is_left_alone_for_a_while() {
    let mut scene = Scene::new();
    scene.see_pnode(pnode("n2"));
    let n2 = Key::Node(name("n2"));
    scene.refuse(&n2, Refusal::Gone);
    for _ in 0..2 {
        scene.refuse(&n2, Refusal::Exists);
        let look = scene.call(&n2);
        let object = scene.stamp(json!({"metadata": {"name": look.target.name.as_str(), "uid": "s"}}));
        scene.settle(&n2, &look, Ok(Answer { object }));
    }
    assert!(matches!(scene.plan(&n2), Plan::Wait(_)));
}

#[test]
fn law_12_an_invalid_binding_gets_a_condition_and_its_last_valid_spec_stays_in_force() {
    let mut scene = Scene::new();
    scene.see_binding(json!({"secretRef": {"name": "", "namespace": "t"}}));
    assert_eq!(scene.plan(&key()), Plan::Rest, "nothing changed for the node");
    let report = scene.call(&Key::Binding).body().unwrap().into_owned();
    assert_eq!(report["status"]["conditions"][0]["reason"], "ValidationFailed");
}
