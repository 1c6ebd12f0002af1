//! What becomes of everything else when something becomes of the binding.

use serde_json::{Value, json};
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Answer, Refusal, Side, Uid, Verb};
use tapestry_engine::Plan;

use super::BindingRow;
use crate::pair::{Fact, Key};
use crate::scene::{Scene, name, vpod};

/// A list of bindings in which ours is not.
fn list_without(scene: &mut Scene, epoch: u32) {
    scene.see(Fact::Binding(Change::Listed(Epoch(epoch))));
}

fn binding() -> Value {
    json!({
        "metadata": {"name": "east", "uid": "b-uid", "finalizers": ["tapestry.io/syncer"], "generation": 2},
        "spec": {"clusterID": "east", "secretRef": {"name": "s", "namespace": "t"}, "mountNamespace": "mount"},
        "status": {"physicalClusterUID": "p-cluster", "virtualClusterUID": "v-cluster"},
    })
}

fn see(scene: &mut Scene, object: Value, epoch: u32) {
    let text = scene.stamp(object);
    let row = BindingRow::decode(&text).unwrap().unwrap();
    scene.see(Fact::Binding(Change::Put(row, Epoch(epoch))));
}

fn reported(scene: &Scene) -> Value {
    let call = scene.call(&Key::Binding);
    assert_eq!(call.why, "ReportConnection");
    call.body().unwrap()["status"]["conditions"][0].clone()
}

#[test]
fn law_01_a_binding_that_is_absent_from_a_list_is_looked_for_and_stays_in_force() {
    let mut scene = Scene::new();
    let web = Key::Pod(Uid::new("v-web"));
    list_without(&mut scene, 2);
    scene.see_vpod(&vpod("web"));
    assert!(matches!(scene.plan(&web), Plan::Do(..)), "it holds until it is proven to be gone");
    let look = scene.call(&Key::Binding);
    assert_eq!((look.why, &look.verb), ("LookForBinding", &Verb::Get));
    scene.refuse(&Key::Binding, Refusal::Unknown("no answer".to_owned()));
    assert_eq!(scene.call(&Key::Binding).why, "LookForBinding", "no answer is no proof");
    let object = scene.stamp(binding());
    scene.settle(&Key::Binding, &look, Ok(Answer { object }));
    assert_ne!(scene.call(&Key::Binding).why, "LookForBinding", "it is there");
    list_without(&mut scene, 3);
    scene.refuse(&Key::Binding, Refusal::Gone);
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest);
    assert_eq!(scene.plan(&web), Plan::Rest, "now it is proven");
}

#[test]
fn law_01_a_binding_is_not_looked_for_in_a_cluster_that_does_not_answer() {
    let mut scene = Scene::new();
    list_without(&mut scene, 2);
    scene.see(Fact::Connection(Side::Virtual, Connection::Down("refused".to_owned())));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest);
}

#[test]
fn a_deletion_without_its_timestamp_is_looked_into_and_one_with_it_is_believed() {
    for (metadata, plan) in
        [(json!({}), Some("LookForBinding")), (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), None)]
    {
        let mut scene = Scene::new();
        let mut object = binding();
        crate::scene::merge(&mut object["metadata"], metadata);
        let text = scene.stamp(object);
        let row = BindingRow::decode(&text).unwrap().unwrap();
        let proven = tapestry_cluster::feed::Row::deleting(&row);
        scene.see(Fact::Binding(Change::Gone { row, proven }));
        let planned = match scene.plan(&Key::Binding) {
            Plan::Do(call, _) => Some(call.why),
            _ => None,
        };
        assert_eq!(planned, plan);
    }
}

#[test]
fn law_12_a_binding_of_a_newer_version_is_answered_and_what_it_said_before_stays_in_force() {
    for (field, value) in [
        ("/spec/podSecurity", json!("paranoid")),
        ("/spec/partition", json!("Migrate")),
        ("/spec/secretRef", json!("elsewhere")),
        ("/status/breaker", json!("closed")),
    ] {
        let mut scene = Scene::new();
        let mut newer = binding();
        let at = field.rsplit_once('/').unwrap();
        newer.pointer_mut(at.0).unwrap()[at.1] = value;
        see(&mut scene, newer, 2);
        list_without(&mut scene, 2);
        let said = reported(&scene);
        assert_eq!((said["status"].as_str(), said["reason"].as_str()), (Some("Unknown"), Some("ValidationFailed")));
        let words = said["message"].as_str().unwrap();
        assert!(words.contains(&field[1..5]) && words.contains("stays in force"), "{field}: {words}");
        scene.see_vpod(&vpod("web"));
        assert!(matches!(scene.plan(&Key::Pod(Uid::new("v-web"))), Plan::Do(..)), "{field}");
    }
}

#[test]
fn law_12_a_newer_status_beside_what_we_read_of_it_is_none_of_our_business() {
    let mut scene = Scene::new();
    let mut newer = binding();
    newer["status"]["hibernating"] = json!("since May");
    newer["status"]["conditions"] =
        json!([{"type": "Connected", "status": "True", "reason": "Connected", "lastTransitionTime": 12}]);
    newer["status"]["leased"] = json!("much");
    see(&mut scene, newer, 1);
    let status = scene.call(&Key::Binding).body().unwrap()["status"].clone();
    assert_eq!((&status["phase"], &status["leased"]["cpu"]), (&json!("Ready"), &json!("4")), "ours is mended");
    assert_eq!(status["hibernating"], Value::Null, "what is not ours is not touched");
}

#[test]
fn law_12_a_binding_that_was_never_parsed_gets_a_condition() {
    let there = Scene::new().vnode("vnode-east-n1");
    let mut scene = Scene::empty();
    let mut newer = binding();
    newer["spec"]["partition"] = json!("Migrate");
    see(&mut scene, newer.clone(), 1);
    scene.see_vnode(there);
    scene.complete();
    let said = reported(&scene);
    assert_eq!((said["status"].as_str(), said["reason"].as_str()), (Some("False"), Some("ValidationFailed")));
    newer["status"] = scene.call(&Key::Binding).body().unwrap()["status"].clone();
    newer["metadata"]["labels"] = json!({"a": "longer text than before"});
    see(&mut scene, newer.clone(), 1);
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "once, whatever else changes");
    newer["status"] = json!({"virtualClusterUID": "another"});
    see(&mut scene, newer, 1);
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "a binding of another cluster is not written");
}

#[test]
fn a_restored_virtual_cluster_stops_everything_and_says_so_once() {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("web"));
    let mut there = binding();
    see(&mut scene, there.clone(), 1);
    crate::scene::merge(&mut there["status"], scene.call(&Key::Binding).body().unwrap()["status"].clone());
    see(&mut scene, there.clone(), 1);
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "all is well");
    scene.see(Fact::Connection(Side::Virtual, Connection::Restored("versions went back".to_owned())));
    let said = reported(&scene);
    assert_eq!((said["status"].as_str(), said["reason"].as_str()), (Some("False"), Some("VirtualClusterRestored")));
    for key in [Key::Pod(Uid::new("v-web")), Key::Node(name("n1"))] {
        assert_eq!(scene.plan(&key), Plan::Rest, "{key:?}");
    }
    // The answer is of the past, in which its versions are.
    let call = scene.call(&Key::Binding);
    there["metadata"]["resourceVersion"] = json!("1");
    crate::scene::merge(&mut there["status"], call.body().unwrap()["status"].clone());
    scene.settle(&Key::Binding, &call, Ok(Answer { object: there.to_string().into() }));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "once");
}
