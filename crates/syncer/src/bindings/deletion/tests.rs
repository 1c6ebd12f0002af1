//! A binding that is deleted, with its definition or without.

use std::time::Duration;

use serde_json::json;
use tapestry_cluster::{Refusal, Uid};
use tapestry_engine::Plan;

use crate::pair::Key;
use crate::scene::{Scene, run, vpod};

const ENDING: Option<&[&str]> = Some(&["delete", "deletecollection", "get", "list", "watch"]);

fn pod(name: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{name}")))
}

/// A binding with a running pod, whose definition is being deleted.
fn definition_deleted() -> Scene {
    let mut scene = Scene::new();
    run(&mut scene, "web", json!({}));
    scene.see_binding_deleted(json!({}));
    assert_eq!(scene.plan(&pod("web")), Plan::Rest, "nothing ends before discovery has answered");
    scene.discover_kind(&Key::BindingServing, ENDING);
    scene
}

#[test]
fn law_01_no_pod_ends_because_the_definition_of_bindings_is_deleted() {
    let mut scene = definition_deleted();
    scene.pass(Duration::from_hours(1));
    scene.follow_node("n1");
    assert_eq!(scene.plan(&pod("web")), Plan::Rest);
    let node = scene.vnode("vnode-east-n1").to_string();
    assert!(node.contains("BindingDeletionUnconfirmed") && !node.contains("vnode-deleting"), "{node}");
    let status = scene.call(&Key::Binding).body().unwrap().to_string();
    assert!(status.contains("DefinitionDeleted") && status.contains("tapestry resume east"), "{status}");
    scene.see_vpod(&vpod("late"));
    let told = scene.call(&pod("late")).body().unwrap().to_string();
    assert!(told.contains("BindingDeletionUnconfirmed"), "{told}");
}

#[test]
fn who_may_not_read_discovery_ends_nothing_either() {
    let mut scene = Scene::new();
    run(&mut scene, "web", json!({}));
    scene.see_binding_deleted(json!({}));
    scene.pass(Duration::from_secs(5));
    scene.refuse(&Key::BindingServing, Refusal::Denied(Box::default()));
    scene.pass(Duration::from_hours(1));
    scene.follow_node("n1");
    assert_eq!(scene.plan(&pod("web")), Plan::Rest);
}

#[test]
fn pods_end_once_a_user_resumes() {
    let mut scene = definition_deleted();
    scene.see_binding_deletion_resumed();
    scene.follow_node("n1");
    scene.pass(Duration::from_mins(10));
    scene.follow_node("n1");
    assert_eq!(scene.call(&pod("web")).why, "AnnounceReclaim");
}

#[test]
fn a_binding_that_is_being_deleted_is_not_ready_and_says_what_it_waits_for() {
    let mut scene = Scene::new();
    run(&mut scene, "web", json!({}));
    scene.see_binding_leaving(json!({}));
    let status = scene.call(&Key::Binding).body().unwrap().into_owned()["status"].clone();
    assert_eq!(status["phase"], "Pending");
    let ready = status["conditions"].as_array().unwrap().iter().find(|said| said["type"] == "Ready").unwrap();
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("Deleting")));
    assert!(ready["message"].as_str().unwrap().contains("the syncer deletes its pods"), "{ready}");
}
