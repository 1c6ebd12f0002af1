//! Virtual nodes that lost our label: found again, mended, never doubled.

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Answer, Call, Refusal, Verb};
use tapestry_engine::Plan;

use crate::nodes::row::VNode;
use crate::origin::Origin;
use crate::pair::{Fact, Key};
use crate::pods::tests::{key as pod, running};
use crate::scene::{Scene, name, pnode};

const VNODE: &str = "vnode-east-n1";

fn key() -> Key {
    Key::Node(name("n1"))
}

/// The virtual node without a label or annotation.
fn stripped(scene: &Scene) -> Value {
    let mut vnode = scene.vnode(VNODE);
    (vnode["metadata"]["labels"], vnode["metadata"]["annotations"]) = (json!({}), json!({}));
    vnode
}

/// What a watch by label says of a node that lost it.
fn leave_watch(scene: &mut Scene, vnode: &Value) {
    let text = scene.stamp(vnode.clone());
    let row = VNode::decode(&text).unwrap().unwrap();
    let proven = row.deleting;
    scene.see(Fact::VNode(Change::Gone { row, proven }));
}

fn answer(scene: &mut Scene, key: &Key, call: &Call, object: Value) {
    let object = scene.stamp(object);
    scene.settle(key, call, Ok(Answer { object }));
}

/// The call that is planned, which must be a look at this object.
fn look_at(scene: &Scene, kind: &str, object: &str) -> Call {
    let look = scene.call(&key());
    assert_eq!((&look.verb, look.target.kind.kind, look.target.name.as_str()), (&Verb::Get, kind, object));
    look
}

/// A syncer that starts beside a virtual node it cannot see, up to its look at that node.
fn restarted(there: &Value) -> Scene {
    let mut scene = Scene::empty();
    scene.see_binding(json!({}));
    scene.see_policy("all", json!({"cluster": "east"}));
    scene.see_pnode(pnode("n1"));
    scene.complete();
    scene.refuse(&key(), Refusal::Gone);
    let create = scene.call(&key());
    assert_eq!((create.why, create.target.name.as_str()), ("CreateNode", VNODE), "no node has the hashed name");
    scene.settle(&key(), &create, Err(Refusal::Exists));
    let look = look_at(&scene, "Node", VNODE);
    answer(&mut scene, &key(), &look, there.clone());
    scene
}

fn lease(owner: &str) -> Value {
    json!({"metadata": {"name": VNODE, "uid": "l", "ownerReferences": [{"kind": "Node", "name": VNODE, "uid": owner}]}})
}

/// The virtual node with the marks of binding `west`, which has our cluster ID.
fn another_bindings() -> Value {
    let (mut vnode, west) = (Scene::new().vnode(VNODE), Origin::new("v-cluster", "w-uid", "west"));
    for (key, value) in west.labels() {
        vnode["metadata"]["labels"][key] = json!(value);
    }
    vnode["metadata"]["annotations"][keys::ORIGIN] = json!(west.full);
    vnode
}

/// The next event, which must be of this reason.
fn event(scene: &Scene, reason: &str) -> String {
    let event = scene.call(&Key::Event(1)).body().unwrap().into_owned();
    assert_eq!((&event["reason"], &event["involvedObject"]["kind"]), (&json!(reason), &json!("ClusterBinding")));
    event["message"].as_str().unwrap().to_owned()
}

/// The patch that gives a stripped node everything back.
fn mends(scene: &Scene) -> Call {
    let mend = scene.call(&key());
    let metadata = &mend.body().unwrap()["metadata"];
    assert_eq!(metadata["labels"][keys::ORIGIN], *scene.pair.origin.label);
    assert_eq!(metadata["labels"]["zone"], "a");
    for annotation in [keys::PHYSICAL_NODE_UID, keys::RECLAIM_RULES, keys::EXPECTED_METADATA, keys::POLICIES_APPLIED] {
        assert!(metadata["annotations"][annotation].is_string(), "{annotation}");
    }
    assert!(mend.target.uid.is_some() && mend.target.rv.is_some());
    mend
}

#[test]
fn a_virtual_node_stripped_of_everything_is_looked_for_and_restored_and_its_pods_keep_running() {
    let mut scene = Scene::new();
    let (up, _) = running(&mut scene);
    scene.see_vpod(&up);
    let bare = stripped(&scene);
    leave_watch(&mut scene, &bare);
    assert_eq!(scene.plan(&pod("web")), Plan::Rest);
    let look = look_at(&scene, "Node", VNODE);
    answer(&mut scene, &key(), &look, bare);
    mends(&scene);
    assert_eq!(scene.plan(&pod("web")), Plan::Rest);
    scene.pair.check_sums().unwrap();
}

#[test]
fn absence_from_a_list_is_only_a_reason_to_look() {
    let mut scene = Scene::new();
    scene.see(Fact::VNode(Change::Listed(Epoch(2))));
    let look = look_at(&scene, "Node", VNODE);
    scene.settle(&key(), &look, Err(Refusal::Unknown("no answer".to_owned())));
    look_at(&scene, "Node", VNODE);
    scene.refuse(&key(), Refusal::Gone);
    scene.refuse(&key(), Refusal::Gone);
    assert_eq!(scene.call(&key()).why, "CreateNode", "it is gone indeed, and no other has the hashed name");
}

#[test]
fn a_node_that_is_leaving_and_loses_our_label_is_not_gone_while_a_finalizer_holds_it() {
    let mut scene = Scene::new();
    let mut bare = stripped(&scene);
    bare["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    leave_watch(&mut scene, &bare);
    look_at(&scene, "Node", VNODE);
    bare["metadata"]["finalizers"] = json!([]);
    leave_watch(&mut scene, &bare);
    assert!(scene.pair.nodes.vnode(&name(VNODE)).is_none());
}

#[test]
fn whoever_strips_a_node_again_and_again_costs_one_look_a_second() {
    let mut scene = Scene::new();
    let bare = stripped(&scene);
    for _ in 0..3 {
        leave_watch(&mut scene, &bare);
        let look = look_at(&scene, "Node", VNODE);
        answer(&mut scene, &key(), &look, bare.clone());
        mends(&scene);
        leave_watch(&mut scene, &bare);
        assert!(matches!(scene.plan(&key()), Plan::Wait(_)));
        scene.pass(Duration::from_secs(1));
    }
}

#[test]
fn a_stripped_node_that_changed_before_it_was_restored_is_read_once_more() {
    let mut scene = Scene::new();
    let bare = stripped(&scene);
    leave_watch(&mut scene, &bare);
    let look = look_at(&scene, "Node", VNODE);
    answer(&mut scene, &key(), &look, bare);
    let mend = mends(&scene);
    scene.pass(Duration::from_secs(1));
    scene.settle(&key(), &mend, Err(Refusal::Replaced));
    look_at(&scene, "Node", VNODE);
}

#[test]
fn a_restarted_syncer_knows_a_stripped_node_by_the_owner_of_its_lease() {
    let bare = stripped(&Scene::new());
    let mut scene = restarted(&bare);
    let look = look_at(&scene, "Lease", VNODE);
    answer(&mut scene, &key(), &look, lease(bare["metadata"]["uid"].as_str().unwrap()));
    mends(&scene);
}

#[test]
fn law_09_one_physical_node_is_never_lent_twice_while_it_is_unclear_whose_a_node_is() {
    let bare = stripped(&Scene::new());
    let unclear = |scene: &mut Scene| {
        assert!(matches!(scene.plan(&key()), Plan::Wait(_)), "no second node");
        assert!(event(scene, "VirtualNodeUnclear").contains(VNODE));
        // It is looked at again, and not told again.
        scene.pass(Duration::from_mins(6));
        assert_eq!(scene.call(&key()).why, "CreateNode", "the name may be free by now");
    };
    for owner in ["another-uid", ""] {
        let mut scene = restarted(&bare);
        let look = look_at(&scene, "Lease", VNODE);
        answer(&mut scene, &key(), &look, lease(owner));
        unclear(&mut scene);
    }
    let mut scene = restarted(&bare);
    scene.refuse(&key(), Refusal::Gone);
    unclear(&mut scene);
    // Another binding's label.
    let mut other = bare;
    other["metadata"]["labels"][keys::ORIGIN] = json!("0123456789");
    unclear(&mut restarted(&other));
}

#[test]
fn law_06_a_node_of_another_binding_with_our_cluster_id_is_never_taken_over_nor_offered_to_be_deleted_or_labelled() {
    let theirs = another_bindings();
    let mut scene = restarted(&theirs);
    assert!(matches!(scene.plan(&key()), Plan::Wait(_)), "no second node");
    let told = event(&scene, "ClusterIdInUse");
    assert!(told.contains("clusterID east is already used by ClusterBinding west"), "{told}");
    assert!(told.contains("leave the node as it is") && !told.contains("label"), "{told}");
    let status = scene.call(&Key::Binding).body().unwrap()["status"].clone();
    let ready = status["conditions"].as_array().unwrap().iter().find(|said| said["type"] == "Ready").unwrap();
    assert_eq!((&ready["reason"], &ready["message"]), (&json!("ClusterIdInUse"), &json!(told)));
    // A user gives it our label all the same, and an earlier version of the other syncer wrote no annotation.
    let mut labelled = theirs.clone();
    labelled["metadata"]["labels"][keys::ORIGIN] = json!(scene.pair.origin.label);
    let mut plain = labelled.clone();
    plain["metadata"]["annotations"].as_object_mut().unwrap().remove(keys::ORIGIN);
    let mut both = labelled.clone();
    both["metadata"]["labels"][keys::CLUSTER_BINDING] = json!("east");
    for vnode in [labelled, plain, both] {
        scene.see_vnode(vnode.clone());
        assert!(scene.pair.nodes.vnode(&name(VNODE)).is_none(), "taken over: {}", vnode["metadata"]);
        let found = restarted(&vnode);
        assert!(found.pair.nodes.vnode(&name(VNODE)).is_none(), "taken over: {}", vnode["metadata"]);
    }
    // It is gone at last, and the binding is well again.
    scene.pass(Duration::from_mins(6));
    let create = scene.call(&key());
    scene.settle(&key(), &create, Err(Refusal::Exists));
    scene.refuse(&key(), Refusal::Gone);
    assert!(scene.pair.nodes.rival().is_none());
}

#[test]
fn a_node_that_a_user_gave_to_another_binding_is_known_by_its_annotation_and_gets_its_labels_back() {
    let mut given = Scene::new().vnode(VNODE);
    let theirs = another_bindings()["metadata"]["labels"].clone();
    for label in [keys::ORIGIN, keys::CLUSTER_BINDING] {
        given["metadata"]["labels"][label] = theirs[label].clone();
        let scene = restarted(&given);
        let labels = scene.call(&key()).body().unwrap()["metadata"]["labels"].clone();
        assert_eq!(labels[keys::ORIGIN], *scene.pair.origin.label, "at the start");
        let mut scene = Scene::new();
        leave_watch(&mut scene, &given);
        let look = look_at(&scene, "Node", VNODE);
        answer(&mut scene, &key(), &look, given.clone());
        let labels = scene.call(&key()).body().unwrap()["metadata"]["labels"].clone();
        assert_eq!(labels[keys::ORIGIN], *scene.pair.origin.label, "at work");
    }
}

#[test]
fn law_06_a_stripped_node_whose_lease_another_binding_renews_is_not_taken_over() {
    let bare = stripped(&Scene::new());
    let mut scene = restarted(&bare);
    let look = look_at(&scene, "Lease", VNODE);
    let mut lease = lease(bare["metadata"]["uid"].as_str().unwrap());
    lease["metadata"]["annotations"] = json!({keys::ORIGIN: "v-cluster/w-uid"});
    answer(&mut scene, &key(), &look, lease);
    assert!(matches!(scene.plan(&key()), Plan::Wait(_)));
    assert!(!event(&scene, "VirtualNodeUnclear").contains("give it the label"));
}

#[test]
fn rules_and_policies_that_a_user_removed_from_a_node_are_remembered() {
    let mut scene = Scene::new();
    let applied = scene.vnode(VNODE)["metadata"]["annotations"][keys::POLICIES_APPLIED].clone();
    let rules = scene.vnode(VNODE)["metadata"]["annotations"][keys::RECLAIM_RULES].clone();
    let bare = stripped(&scene);
    scene.see_vnode(bare);
    let row = scene.pair.nodes.vnode(&name(VNODE)).unwrap();
    assert_eq!((row.rules.as_deref(), row.applied.as_deref()), (rules.as_str(), applied.as_str()));
}

#[test]
fn an_answer_from_before_a_node_was_stripped_does_not_end_the_doubt() {
    let mut scene = Scene::new();
    let mut changed = pnode("n1");
    changed["metadata"]["labels"]["zone"] = json!("b");
    scene.see_pnode(changed);
    let patch = scene.call(&key());
    let before = scene.vnode(VNODE);
    let before = scene.stamp(before);
    let bare = stripped(&scene);
    leave_watch(&mut scene, &bare);
    scene.settle(&key(), &patch, Ok(Answer { object: before }));
    look_at(&scene, "Node", VNODE);
}
