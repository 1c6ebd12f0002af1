//! What policies say about themselves, and when they hold.

mod absence;

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Answer, Refusal, Side, Uid, Verb};
use tapestry_engine::Plan;

use super::PolicyRow;
use crate::pair::{Fact, Key};
use crate::pods::admission::PendingReason;
use crate::scene::{Scene, name, patch, pnode, vpod};

fn key(policy: &str) -> Key {
    Key::Policy(Side::Virtual, Uid::new(format!("uid-{policy}")))
}

fn status_of(scene: &Scene, key: &Key) -> Value {
    scene.call(key).body().unwrap()["status"].clone()
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    status["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == kind).unwrap()
}

/// Nine to five on weekdays. The scene begins on Thursday 2026-01-01 at midnight.
fn office() -> Value {
    json!({
        "cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 60,
        "timeWindows": [{"start": "09:00", "end": "17:00", "days": ["mon", "tue", "wed", "thu", "fri"]}],
    })
}

const HOUR: Duration = Duration::from_hours(1);

#[test]
fn a_status_says_what_is_true_is_written_once_and_rests_until_the_next_edge() {
    let mut scene = Scene::new();
    scene.see_policy("all", office());
    let call = scene.call(&key("all"));
    let body = call.body().unwrap().into_owned();
    let status = &body["status"];
    assert_eq!((&status["phase"], &status["activeTimeWindow"]), (&json!("Inactive"), &json!(false)));
    assert_eq!(status["nextTransitionTime"], "2026-01-01T09:00:00Z");
    assert_eq!(status["nodes"], 1);
    assert_eq!(condition(status, "Valid")["status"], "True");
    assert_eq!(condition(status, "Active")["reason"], "OutOfTimeWindows");
    assert!(call.target.rv.is_some(), "several syncers may write the same status");

    let mut object = json!({
        "apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy", "spec": office(),
        "metadata": {"name": "all", "uid": "uid-all", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
    });
    patch(&mut object, body);
    object["metadata"]["generation"] = status_generation(&object);
    let object = scene.stamp(object);
    scene.settle(&key("all"), &call, Ok(Answer { object }));
    assert_eq!(scene.plan(&key("all")), Plan::Wait(scene.now.steady + 9 * HOUR));
    scene.pass(9 * HOUR);
    let open = status_of(&scene, &key("all"));
    assert_eq!((&open["phase"], &open["activeTimeWindow"]), (&json!("Active"), &json!(true)));
    assert_eq!(condition(&open, "Active")["reason"], "Lending");
}

fn status_generation(object: &Value) -> Value {
    object["status"]["observedGeneration"].clone()
}

#[test]
fn law_12_an_invalid_policy_says_what_to_change_lends_nothing_and_stops_no_other_policy() {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("web"));
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": true, "timeZone": "Mars/Olympus"}));
    let status = status_of(&scene, &key("all"));
    assert_eq!(status["phase"], "Failed");
    let valid = condition(&status, "Valid");
    assert_eq!(valid["status"], "False");
    assert!(valid["message"].as_str().unwrap().contains("spec.timeZone"), "{valid}");
    scene.follow_node("n1");
    let vnode = scene.vnode("vnode-east-n1");
    assert_eq!(vnode["status"]["allocatable"]["cpu"], "0");
    scene.pass(HOUR);
    assert_ne!(scene.call(&Key::Pod(Uid::new("v-web"))).why, "Reclaim");
}

#[test]
fn a_policy_that_another_one_overrides_names_it() {
    let mut scene = Scene::new();
    scene.see_policy("first", json!({"cluster": "*", "priority": 5}));
    let status = status_of(&scene, &key("all"));
    let active = condition(&status, "Active");
    assert_eq!((&active["status"], &active["reason"]), (&json!("False"), &json!("Shadowed")));
    assert_eq!(active["message"], "overridden on its node by policy first");
    assert_eq!(status["nodes"], 0);
    let first = status_of(&scene, &key("first"));
    assert_eq!(first["nodes"], 1);
    assert_eq!(condition(&first, "Active")["message"], "applies to 1 node");
}

#[test]
fn a_policy_that_is_closed_does_not_shadow_one_that_is_open() {
    let mut scene = Scene::new();
    let mut strict = office();
    strict["priority"] = json!(9);
    scene.see_policy("office", strict);
    let row = scene.pair.nodes.pnode(&name("n1")).unwrap().clone();
    assert_eq!(scene.pair.terms(&row, scene.now.wall).unwrap().names(), "all");
    assert_eq!(scene.pair.terms(&row, scene.now.wall + 10 * HOUR).unwrap().names(), "office");
}

#[test]
fn several_syncers_share_a_policy_and_each_counts_its_own() {
    let mut scene = Scene::new();
    let mut object = json!({
        "apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy", "spec": {"cluster": "*"},
        "metadata": {"name": "all", "uid": "uid-all", "generation": 7, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"clusters": [{"name": "west", "nodes": 3}]},
    });
    let text = scene.stamp(object.take());
    let row = super::PolicyRow::decode(&text).unwrap().unwrap();
    let put = tapestry_cluster::feed::Change::Put(row, tapestry_cluster::feed::Epoch(1));
    scene.see(crate::pair::Fact::Policy(Side::Virtual, put));
    let status = status_of(&scene, &key("all"));
    assert_eq!(status["clusters"], json!([{"name": "east", "nodes": 1}, {"name": "west", "nodes": 3}]));
    assert_eq!(status["nodes"], 4);
}

#[test]
fn law_09_the_owners_policy_cuts_what_is_lent_and_its_hours_end_it() {
    let mut scene = Scene::new();
    let owner = json!({
        "cluster": "east", "resourceLimits": [{"resource": "cpu", "quantity": "1"}],
        "timeWindows": [{"start": "00:00", "end": "06:00"}],
    });
    scene.see_policy_of(Side::Physical, "mine", owner);
    scene.follow_node("n1");
    let vnode = scene.vnode("vnode-east-n1");
    assert_eq!(vnode["status"]["allocatable"]["cpu"], "1");
    assert_eq!(vnode["metadata"]["annotations"][keys::POLICIES_APPLIED], "all,owner/mine");
    scene.pass(6 * HOUR);
    scene.follow_node("n1");
    let vnode = scene.vnode("vnode-east-n1");
    assert_eq!(vnode["status"]["allocatable"]["cpu"], "0");
    assert_eq!(vnode["spec"]["taints"][0]["key"], keys::TAINT_OUT_OF_TIME_WINDOWS);
}

#[test]
fn an_owners_slip_of_the_pen_lifts_no_restriction() {
    let mut scene = Scene::new();
    let limit = json!([{"resource": "cpu", "quantity": "1"}]);
    scene.see_policy_of(Side::Physical, "mine", json!({"cluster": "east", "resourceLimits": limit}));
    scene.see_policy_of(Side::Physical, "mine", json!({"cluster": "east", "timeZone": "nowhere"}));
    let row = scene.pair.nodes.pnode(&name("n1")).unwrap().clone();
    let terms = scene.pair.terms(&row, scene.now.wall).unwrap();
    assert_eq!(terms.leased().to_string(), "cpu=1 memory=8Gi pods=110");
    // One that was never valid: nothing is lent, no pod has to go.
    let mut scene = Scene::new();
    scene.see_policy_of(Side::Physical, "mine", json!({"cluster": "east", "timeZone": "nowhere"}));
    let terms = scene.pair.terms(&row, scene.now.wall).unwrap();
    assert_eq!(
        (terms.stop.map(crate::terms::Stop::reason), terms.rules.force),
        (Some(PendingReason::PolicyInvalid), false)
    );
}

#[test]
fn while_the_owners_policies_cannot_be_read_nothing_new_is_lent_and_no_pod_is_evicted() {
    let mut scene = Scene::empty();
    scene.see_binding(json!({"suspend": true}));
    scene.see_policy("all", json!({"cluster": "east"}));
    scene.see_pnode(pnode("n1"));
    scene.see_vpod(&vpod("web"));
    scene.complete_but_owner();
    assert_eq!(scene.plan(&Key::Node(name("n1"))), Plan::Rest);
    assert_eq!(scene.plan(&Key::Pod(Uid::new("v-web"))), Plan::Rest);
    assert!(!scene.pair.ready());
}

#[test]
fn a_node_that_no_policy_selects_any_more_leaves_and_one_that_comes_is_counted() {
    let mut scene = Scene::new();
    scene.see_pnode(pnode("n2"));
    assert_eq!(status_of(&scene, &key("all"))["nodes"], 2);
}

#[test]
fn law_01_a_policy_that_is_out_of_sight_holds_until_the_api_server_says_that_it_is_gone() {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("web"));
    scene.see(Fact::Policy(Side::Virtual, Change::Listed(Epoch(2))));
    let look = scene.call(&key("all"));
    assert_eq!((look.why, &look.verb), ("LookForPolicy", &Verb::Get));
    scene.follow_node("n1");
    assert!(scene.vnode("vnode-east-n1")["spec"]["taints"].to_string().find(keys::TAINT_VNODE_DELETING).is_none());
    assert_eq!(scene.call(&Key::Pod(Uid::new("v-web"))).why, "Map");

    // No answer proves nothing.
    scene.settle(&key("all"), &look, Err(Refusal::Unknown("no answer".to_owned())));
    assert_eq!(scene.call(&key("all")).why, "LookForPolicy");
    scene.settle(&key("all"), &look, Err(Refusal::Gone));
    assert_eq!(scene.plan(&key("all")), Plan::Rest, "nor does a proper 404: perhaps its kind is going");
    scene.follow_node("n1");
    assert!(!scene.vnode("vnode-east-n1")["spec"]["taints"].to_string().contains(keys::TAINT_VNODE_DELETING));
    scene.discover(Side::Virtual, Some(&["create", "delete"]));
    scene.follow_node("n1");
    assert!(scene.vnode("vnode-east-n1")["spec"]["taints"].to_string().contains(keys::TAINT_VNODE_DELETING));
}

#[test]
fn law_01_a_policy_that_was_only_out_of_sight_is_as_it_was() {
    let mut scene = Scene::new();
    scene.see(Fact::Policy(Side::Virtual, Change::Listed(Epoch(2))));
    let look = scene.call(&key("all"));
    let object = json!({
        "apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy", "spec": {"cluster": "east"},
        "metadata": {"name": "all", "uid": "uid-all", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
    });
    let object = scene.stamp(object);
    scene.settle(&key("all"), &look, Ok(Answer { object }));
    assert_eq!(scene.call(&key("all")).why, "PolicyStatus");
}

#[test]
fn a_policy_that_cannot_even_be_decoded_is_an_invalid_one_and_not_an_absent_one() {
    let mut scene = Scene::new();
    scene.see_policy("all", json!({"cluster": "east", "timeWindows": "every night"}));
    scene.follow_node("n1");
    let vnode = scene.vnode("vnode-east-n1");
    assert!(!vnode["spec"]["taints"].to_string().contains(keys::TAINT_VNODE_DELETING), "no pod is drained");
    assert_eq!(vnode["status"]["allocatable"]["cpu"], "0", "and nothing is lent");
    assert_eq!(status_of(&scene, &key("all"))["phase"], "Failed");
}

#[test]
fn law_09_an_answer_from_before_a_policy_went_does_not_bring_it_back() {
    let mut scene = Scene::new();
    let status = scene.call(&key("all"));
    let text = |rv: u64| {
        json!({
            "apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy", "spec": {"cluster": "east"},
            "metadata": {
                "name": "all", "uid": "uid-all", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
                "resourceVersion": rv.to_string(),
            },
        })
    };
    let gone = PolicyRow::decode(&text(1012).to_string().into()).unwrap().unwrap();
    scene.see(Fact::Policy(Side::Virtual, Change::Gone { row: gone, proven: false }));
    scene.settle(&key("all"), &status, Ok(Answer { object: text(1011).to_string().into() }));
    assert_eq!(scene.call(&key("all")).why, "LookForPolicy");
}
