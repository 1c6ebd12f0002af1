//! A virtual node offers more only when the quota admits it, and the quota is lowered only when no node offers it any more.

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Refusal, Uid, Verb};
use tapestry_engine::Plan;

use super::{Guard, QUOTA, scene};
use crate::pair::{Key, Why};
use crate::scene::{Scene, merge, name, pnode, vpod};

const HOUR: Duration = Duration::from_hours(1);

fn node() -> Key {
    Key::Node(name("n1"))
}

fn pod(name: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{name}")))
}

fn cpu(scene: &Scene) -> String {
    scene.vnode("vnode-east-n1")["status"]["allocatable"]["cpu"].as_str().unwrap().to_owned()
}

/// What is planned for a new node when none is found under its names.
fn sought(scene: &mut Scene, node: &str) -> Plan<Why> {
    let key = Key::Node(name(node));
    while matches!(scene.plan(&key), Plan::Do(call, _) if call.verb == Verb::Get) {
        scene.refuse(&key, Refusal::Gone);
    }
    scene.plan(&key)
}

/// Carries out the patch of the quota that is planned and gives the quota as it is then.
fn mend_quota(scene: &mut Scene, quota: &Value) -> Value {
    let call = scene.call(&QUOTA);
    let mut mended = quota.clone();
    merge(&mut mended, call.body().unwrap().into_owned());
    scene.answer_guard(&QUOTA, &call, mended.clone());
    scene.pass(Duration::from_secs(2));
    mended
}

/// The node is lent from six to eight, with a quota; the scene begins at midnight.
fn until_six() -> (Scene, Value) {
    let mut scene = scene(&json!({"quota": true}));
    let quota = scene.make_guard(&QUOTA);
    scene.see_policy("all", json!({"cluster": "east", "timeWindows": [{"start": "06:00", "end": "08:00"}]}));
    scene.follow_node("n1");
    scene.pass(Duration::from_secs(2));
    assert_eq!(cpu(&scene), "0");
    scene.revoke(&quota);
    let quota = mend_quota(&mut scene, &quota);
    assert_eq!(quota["spec"]["hard"]["requests.cpu"], "0", "lowered after the node");
    (scene, quota)
}

#[test]
fn at_the_start_of_a_window_the_quota_is_raised_before_the_node_and_before_pods_that_wait() {
    let (mut scene, quota) = until_six();
    scene.see_vpod(&vpod("web"));
    let told = scene.call(&pod("web"));
    assert_eq!(told.body().unwrap()["status"]["conditions"][0]["reason"], "OutOfTimeWindows");
    let Plan::Wait(edge) = scene.plan(&QUOTA) else { panic!("the quota does not know of the window") };
    scene.pass(edge.saturating_sub(scene.now.steady));
    // At six no fact comes in; the node says that it is lent again, but offers nothing yet.
    scene.follow_node("n1");
    assert_eq!(cpu(&scene), "0");
    scene.see_pnode(pnode("n1"));
    assert_ne!(scene.call(&pod("web")).why, "Map", "its copy would be refused");
    scene.pass(Duration::from_secs(2));
    let quota = mend_quota(&mut scene, &quota);
    assert_eq!(quota["spec"]["hard"]["requests.cpu"], "4");
    scene.follow_node("n1");
    assert_eq!(cpu(&scene), "4");
    assert_eq!(scene.call(&pod("web")).why, "Map");
    // At eight the other way round.
    scene.pass(2 * HOUR);
    assert!(!matches!(scene.plan(&QUOTA), Plan::Do(..)), "not before the node offers less");
    scene.follow_node("n1");
    scene.pass(Duration::from_secs(2));
    scene.revoke(&quota);
    assert_eq!(mend_quota(&mut scene, &quota)["spec"]["hard"]["requests.cpu"], "0");
}

#[test]
fn a_pod_that_was_admitted_before_a_stop_is_created_when_the_quota_admits_it_again() {
    let mut scene = scene(&json!({"quota": true}));
    let quota = scene.make_guard(&QUOTA);
    scene.see_vpod(&vpod("web"));
    let map = scene.call(&pod("web"));
    let copy = map.body().unwrap()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME].as_str().unwrap().to_owned();
    let mapped = crate::scene::mapped(vpod("web"), &copy, None);
    scene.see_binding(json!({"guard": {"quota": true}, "suspend": true}));
    scene.see_vpod(&mapped);
    scene.follow_node("n1");
    scene.pass(Duration::from_secs(2));
    scene.revoke(&quota);
    let quota = mend_quota(&mut scene, &quota);
    scene.see_binding(json!({"guard": {"quota": true}}));
    scene.prepare();
    assert!(!matches!(scene.plan(&pod("web")), Plan::Do(..)), "its copy would be refused");
    scene.pass(Duration::from_secs(2));
    mend_quota(&mut scene, &quota);
    assert!(matches!(scene.call(&pod("web")).verb, Verb::Create(_)));
}

#[test]
fn kubernetes_must_have_taken_notice_of_a_raised_quota() {
    let (mut scene, quota) = until_six();
    scene.pass(6 * HOUR);
    let call = scene.call(&QUOTA);
    let mut raised = quota.clone();
    merge(&mut raised, call.body().unwrap().into_owned());
    // What it enforces follows a moment later.
    raised["status"]["hard"] = quota["spec"]["hard"].clone();
    scene.answer_guard(&QUOTA, &call, raised.clone());
    scene.pass(Duration::from_secs(2));
    scene.follow_node("n1");
    assert_eq!(cpu(&scene), "0");
    raised["status"]["hard"] = raised["spec"]["hard"].clone();
    scene.see_guard_object(Guard::Quota, &raised);
    scene.follow_node("n1");
    assert_eq!(cpu(&scene), "4");
}

#[test]
fn a_new_node_waits_for_the_quota_too() {
    let mut scene = scene(&json!({"quota": true}));
    let quota = scene.make_guard(&QUOTA);
    scene.see_pnode(pnode("n2"));
    assert_eq!(sought(&mut scene, "n2"), Plan::Rest);
    scene.pass(Duration::from_secs(2));
    assert_eq!(mend_quota(&mut scene, &quota)["spec"]["hard"]["requests.cpu"], "8");
    assert_eq!(scene.call(&Key::Node(name("n2"))).why, "CreateNode");
}

#[test]
fn after_a_start_a_quota_that_lets_everything_in_already_is_read_before_nodes_offer_more() {
    let mut scene = scene(&json!({"quota": true}));
    scene.see_pnode(pnode("n2"));
    let hard =
        json!({"requests.cpu": "8", "requests.memory": "16Gi", "requests.ephemeral-storage": "0", "pods": "220"});
    let origin = scene.pair.origin.clone();
    let labels: std::collections::BTreeMap<_, _> = origin.labels().into_iter().collect();
    let quota = json!({
        "metadata": {"name": "tapestry-leased", "namespace": "mount", "uid": "g-1", "labels": labels,
            "annotations": {keys::ORIGIN: *origin.full}},
        "spec": {"hard": hard},
    });
    let look = scene.call(&QUOTA);
    assert_eq!(sought(&mut scene, "n2"), Plan::Rest);
    scene.answer_guard(&QUOTA, &look, quota);
    assert_eq!(scene.call(&Key::Node(name("n2"))).why, "CreateNode");
}

#[test]
fn a_quota_is_not_lowered_while_a_write_that_offers_more_may_be_on_its_way() {
    let (mut scene, quota) = until_six();
    scene.pass(6 * HOUR);
    let quota = mend_quota(&mut scene, &quota);
    let offer = scene.call(&node());
    assert_eq!(offer.why, "NodeStatus");
    // The policy changes before it arrives.
    scene.see_policy("all", json!({"cluster": "east", "timeWindows": [{"start": "20:00", "end": "21:00"}]}));
    scene.pass(Duration::from_secs(2));
    scene.revoke(&quota);
    assert_eq!(cpu(&scene), "0");
    assert_eq!(mend_quota(&mut scene, &quota)["spec"]["hard"]["requests.cpu"], "0");
}

#[test]
fn a_quota_that_cannot_be_written_keeps_growth_back_and_says_so() {
    let (mut scene, _) = until_six();
    scene.see_vpod(&vpod("web"));
    scene.pass(6 * HOUR);
    let call = scene.call(&QUOTA);
    let status = tapestry_cluster::refusal::Status { message: "no patch".to_owned(), ..Default::default() };
    scene.settle(&QUOTA, &call, Err(Refusal::Denied(Box::new(status))));
    scene.follow_node("n1");
    assert_eq!(cpu(&scene), "0");
    let told = scene.call(&pod("web")).body().unwrap().into_owned();
    let condition = &told["status"]["conditions"][0];
    assert_eq!(condition["reason"], "QuotaRefused");
    assert!(condition["message"].as_str().unwrap().contains("no patch"), "{condition}");
    let report = scene.call(&Key::Binding).body().unwrap()["status"].clone();
    let said = |kind: &str| {
        let conditions = report["conditions"].as_array().unwrap();
        conditions.iter().find(|condition| condition["type"] == kind).unwrap()["reason"].clone()
    };
    assert_eq!((said("GuardsInForce"), said("Ready")), (json!("QuotaRefused"), json!("QuotaRefused")));
}

#[test]
fn a_start_takes_nothing_back_because_the_quota_is_not_read_yet() {
    let before = scene(&json!({"quota": true}));
    let mut scene = Scene::empty();
    scene.now = before.now;
    scene.see_binding(json!({"guard": {"quota": true}}));
    scene.see_policy("all", json!({"cluster": "east"}));
    scene.see_vnode(before.vnode("vnode-east-n1"));
    scene.see_pnode(pnode("n1"));
    scene.complete();
    assert_eq!(scene.plan(&node()), Plan::Rest);
    assert_eq!(cpu(&scene), "4");
}
