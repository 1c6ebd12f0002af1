//! Plans for CSINodes, one sentence at a time.

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Answer, Call, Refusal, Side, Verb};
use tapestry_engine::Plan;

use super::row::{MIGRATED_PLUGINS, PCsiNode, VCsiNode};
use crate::pair::{Fact, Key};
use crate::scene::{Scene, merge, name};

fn key() -> Key {
    Key::CsiNode(name("vnode-east-n1"))
}

fn ebs(count: u32) -> Value {
    json!({"name": "ebs.csi", "nodeID": "i-1", "topologyKeys": ["zone"], "allocatable": {"count": count}})
}

fn nfs() -> Value {
    json!({"name": "nfs.csi", "nodeID": "n1", "topologyKeys": null, "fromTheFuture": {"deep": 1}})
}

fn pcsinode(drivers: &[Value]) -> Value {
    let annotations = json!({MIGRATED_PLUGINS: "kubernetes.io/aws-ebs", "owner": "somebody"});
    let labels = json!({"owner": "somebody"});
    json!({
        "metadata": {"name": "n1", "uid": "p-csi", "labels": labels, "annotations": annotations},
        "spec": {"drivers": drivers},
    })
}

/// A scene with all CSINodes listed, and this physical one.
fn scene(drivers: &[Value]) -> Scene {
    let mut scene = Scene::new();
    scene.see_pcsinode(pcsinode(drivers));
    scene.see(Fact::PCsiNode(Change::Listed(Epoch(1))));
    scene.see(Fact::VCsiNode(Change::Listed(Epoch(1))));
    scene
}

/// A scene in which the virtual one has been made of it.
fn settled(drivers: &[Value]) -> (Scene, Value) {
    let mut scene = scene(drivers);
    let made = scene.make_csinode("v-csi");
    assert_eq!(scene.plan(&key()), Plan::Rest);
    (scene, made)
}

impl Scene {
    fn see_pcsinode(&mut self, object: Value) {
        let text = self.stamp(object);
        self.see(Fact::PCsiNode(Change::Put(PCsiNode::decode(&text).unwrap().unwrap(), Epoch(1))));
    }

    fn see_vcsinode(&mut self, object: &Value) {
        let text = self.stamp(object.clone());
        self.see(Fact::VCsiNode(Change::Put(VCsiNode::decode(&text).unwrap().unwrap(), Epoch(1))));
    }

    fn lose_pcsinode(&mut self) {
        let text = self.stamp(pcsinode(&[]));
        let row = PCsiNode::decode(&text).unwrap().unwrap();
        self.see(Fact::PCsiNode(Change::Gone { row, proven: false }));
    }

    fn answer_csinode(&mut self, call: &Call, object: Value) {
        let object = self.stamp(object);
        self.settle(&key(), call, Ok(Answer { object }));
    }

    /// Grants the creation that is planned, and gives what came of it.
    fn make_csinode(&mut self, uid: &str) -> Value {
        let call = self.call(&key());
        let Verb::Create(body) = &call.verb else { panic!("not a creation: {call}") };
        let mut object = body.clone();
        object["metadata"]["uid"] = json!(uid);
        self.answer_csinode(&call, object.clone());
        object
    }
}

#[test]
fn a_virtual_node_gets_the_drivers_of_its_physical_node_and_nothing_else() {
    let (scene, made) = settled(&[ebs(25), nfs()]);
    assert_eq!(made["metadata"]["name"], "vnode-east-n1");
    assert_eq!(made["spec"]["drivers"], json!([ebs(25), nfs()]));
    let mut labels = json!({keys::PHYSICAL_NODE_NAME: "n1"});
    for (key, value) in scene.pair.origin.labels() {
        labels[key] = json!(value);
    }
    assert_eq!(made["metadata"]["labels"], labels);
    let annotations = json!({
        keys::PHYSICAL_NODE_NAME: "n1", keys::LAST_SYNC_TIME: "2026-01-01T00:00:00Z", MIGRATED_PLUGINS: "kubernetes.io/aws-ebs",
    });
    assert_eq!(made["metadata"]["annotations"], annotations);
    let vnode = &scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap().uid;
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "vnode-east-n1", "uid": vnode.as_str()}]);
    assert_eq!(made["metadata"]["ownerReferences"], owner);
}

#[test]
fn a_node_that_is_not_lent_has_no_csinode() {
    let mut scene = scene(&[ebs(25)]);
    let mut other = pcsinode(&[ebs(25)]);
    merge(&mut other, json!({"metadata": {"name": "n2", "uid": "p-csi-2"}}));
    scene.see_pcsinode(other);
    assert_eq!(scene.plan(&Key::CsiNode(name("vnode-east-n2"))), Plan::Rest);
    let keys: Vec<Key> = scene.pair.csinodes.keys(&scene.pair.nodes).collect();
    assert_eq!(keys, [key()]);
}

#[test]
fn drivers_that_come_and_go_and_an_allocatable_are_patched_in_the_version_that_was_looked_at() {
    let (mut scene, made) = settled(&[ebs(25)]);
    for drivers in [vec![ebs(25), nfs()], vec![ebs(7), nfs()], vec![nfs()]] {
        scene.see_pcsinode(pcsinode(&drivers));
        let call = scene.call(&key());
        let patch = call.body().unwrap().into_owned();
        assert_eq!(patch["spec"]["drivers"], json!(drivers));
        assert!(call.target.uid.is_some() && call.target.rv.is_some());
        assert!(patch["metadata"]["annotations"][keys::LAST_SYNC_TIME].is_string());
        let mut there = made.clone();
        merge(&mut there, patch);
        scene.answer_csinode(&call, there);
        assert_eq!(scene.plan(&key()), Plan::Rest, "law 4");
    }
}

#[test]
fn a_change_of_an_immutable_field_recreates_the_csinode() {
    for change in [json!({"topologyKeys": ["zone", "rack"]}), json!({"nodeID": "i-2"})] {
        let (mut scene, made) = settled(&[ebs(25), nfs()]);
        let mut changed = ebs(25);
        merge(&mut changed, change);
        scene.see_pcsinode(pcsinode(&[changed.clone(), nfs()]));
        let call = scene.call(&key());
        assert_eq!((&call.verb, call.why), (&Verb::Delete { grace: None }, "ReplaceCsiNode"));
        assert_eq!(call.target.uid.as_ref().unwrap().as_str(), "v-csi");
        scene.answer_csinode(&call, made);
        let made = scene.make_csinode("v-csi-2");
        assert_eq!(made["spec"]["drivers"], json!([changed, nfs()]));
        assert_eq!(scene.plan(&key()), Plan::Rest);
    }
}

#[test]
fn a_server_that_fixes_allocatable_too_gets_a_new_object() {
    let (mut scene, made) = settled(&[ebs(25)]);
    scene.see_pcsinode(pcsinode(&[ebs(26)]));
    assert_eq!(scene.call(&key()).why, "UpdateCsiNode");
    scene.refuse(&key(), Refusal::Invalid(Box::default()));
    let call = scene.call(&key());
    assert_eq!(call.why, "ReplaceCsiNode");
    scene.answer_csinode(&call, made);
    assert_eq!(scene.make_csinode("v-csi-2")["spec"]["drivers"], json!([ebs(26)]));
    assert_eq!(scene.plan(&key()), Plan::Rest);
}

#[test]
fn a_server_that_drops_what_it_does_not_know_is_not_fought() {
    let mut scene = scene(&[nfs()]);
    let call = scene.call(&key());
    let Verb::Create(body) = &call.verb else { panic!("not a creation: {call}") };
    let mut older = body.clone();
    older["metadata"]["uid"] = json!("v-csi");
    older["spec"]["drivers"][0].as_object_mut().unwrap().remove("fromTheFuture");
    scene.answer_csinode(&call, older);
    assert_eq!(scene.plan(&key()), Plan::Rest);
}

#[test]
fn law_01_only_a_read_proves_that_the_physical_csinode_is_gone() {
    let (mut scene, _) = settled(&[ebs(25)]);
    scene.lose_pcsinode();
    let look = scene.call(&key());
    assert_eq!((look.target.side, &look.verb, look.target.name.as_str()), (Side::Physical, &Verb::Get, "n1"));
    scene.answer_csinode(&look, pcsinode(&[ebs(25)]));
    assert_eq!(scene.plan(&key()), Plan::Rest, "it is still there");

    scene.lose_pcsinode();
    scene.refuse(&key(), Refusal::Gone);
    let call = scene.call(&key());
    assert_eq!(call.verb, Verb::Delete { grace: None });
    assert_eq!(call.target.uid.as_ref().unwrap().as_str(), "v-csi");
    // It comes back before the call is made.
    scene.see_pcsinode(pcsinode(&[ebs(25)]));
    assert_eq!(scene.plan(&key()), Plan::Rest);
}

#[test]
fn law_06_a_csinode_without_our_origin_is_left_alone_and_looked_at_again_later() {
    let mut scene = scene(&[ebs(25)]);
    scene.refuse(&key(), Refusal::Exists);
    let look = scene.call(&key());
    assert_eq!((look.target.side, &look.verb), (Side::Virtual, &Verb::Peek));
    let stranger = json!({"metadata": {"name": "vnode-east-n1", "uid": "s"}, "spec": {"drivers": []}});
    scene.answer_csinode(&look, stranger);
    assert!(matches!(scene.plan(&key()), Plan::Wait(_)));
    scene.now.steady += super::plan::LOOK_AGAIN;
    assert_eq!(scene.call(&key()).verb, Verb::Peek);
    scene.refuse(&key(), Refusal::Gone);
    assert_eq!(scene.call(&key()).why, "CreateCsiNode");
}

#[test]
fn law_03_ours_is_put_back_and_a_new_node_becomes_the_owner() {
    let (mut scene, made) = settled(&[ebs(25)]);
    let mut edited = made.clone();
    merge(
        &mut edited,
        json!({"metadata": {"labels": {"mine": "1", keys::CLUSTER_BINDING: "other"}, "annotations": {"mine": "1"}}}),
    );
    edited["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "old"}]);
    scene.see_vcsinode(&edited);
    let patch = scene.call(&key()).body().unwrap().into_owned();
    assert_eq!(patch["metadata"]["labels"], json!({keys::CLUSTER_BINDING: "east"}));
    assert_eq!(patch["metadata"]["ownerReferences"], made["metadata"]["ownerReferences"]);
    assert_eq!(patch["metadata"]["annotations"], json!({keys::LAST_SYNC_TIME: "2026-01-01T00:00:00Z"}));
    assert_eq!(patch.get("spec"), None);
}

#[test]
fn migrated_plugins_that_are_no_more_go() {
    let (mut scene, _) = settled(&[ebs(25)]);
    let mut bare = pcsinode(&[ebs(25)]);
    bare["metadata"]["annotations"] = json!({});
    scene.see_pcsinode(bare);
    let patch = scene.call(&key()).body().unwrap().into_owned();
    assert_eq!(patch["metadata"]["annotations"][MIGRATED_PLUGINS], Value::Null);
}

#[test]
fn nothing_is_planned_before_both_lists_are_in_nor_for_a_node_that_leaves() {
    let mut scene = Scene::new();
    scene.see_pcsinode(pcsinode(&[ebs(25)]));
    scene.see(Fact::PCsiNode(Change::Listed(Epoch(1))));
    assert_eq!(scene.plan(&key()), Plan::Rest);
    scene.see(Fact::VCsiNode(Change::Listed(Epoch(1))));
    assert_eq!(scene.call(&key()).why, "CreateCsiNode");
    let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
    let metadata = json!({
        "name": row.name.as_str(), "uid": row.uid.as_str(), "labels": row.labels, "annotations": row.annotations,
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    });
    scene.see_vnode(json!({"metadata": metadata, "spec": {}, "status": {}}));
    assert_eq!(scene.plan(&key()), Plan::Rest);
}
