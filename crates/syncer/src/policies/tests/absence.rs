//! What it means that a policy is not there: deleted, gone with its kind, or not to be known.

use std::time::Duration;

use serde_json::json;
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Answer, Refusal, Side, Uid, Verb};
use tapestry_engine::{Model as _, Plan};

use crate::nodes::departure::Departure;
use crate::nodes::lending::LendingState;
use crate::pair::{Fact, Key};
use crate::scene::{Scene, name, pnode, run, vpod};

const SERVED: Option<&[&str]> = Some(&["create", "delete", "get", "list", "watch"]);
const ENDING: Option<&[&str]> = Some(&["delete", "deletecollection", "get", "list", "watch"]);
const MINUTE: Duration = Duration::from_mins(1);

fn pod(name: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{name}")))
}

/// A node lent by a policy, with a pod that runs there and one that tolerates the end of windows.
fn lent(force: bool) -> Scene {
    let mut scene = Scene::new();
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": force, "gracefulReclaimPeriodSeconds": 60}));
    scene.follow_node("n1");
    run(&mut scene, "web", json!({}));
    let tolerations = [keys::TAINT_VNODE, keys::TAINT_OUT_OF_TIME_WINDOWS];
    let tolerations = tolerations.map(|key| json!({"key": key, "operator": "Exists"}));
    run(&mut scene, "spared", json!({"spec": {"tolerations": tolerations}}));
    scene
}

/// A scene in which a user deletes the policy, and nothing else.
fn without_policy(force: bool) -> Scene {
    let mut scene = lent(force);
    scene.lose_policy_of(Side::Virtual, "all");
    scene.discover(Side::Virtual, SERVED);
    scene.follow_node("n1");
    scene
}

/// A new process that finds what another one left.
fn restarted(before: &Scene) -> Scene {
    let mut scene = Scene::empty();
    scene.now = before.now;
    scene.see_binding(json!({}));
    scene.see_vnode(before.vnode("vnode-east-n1"));
    scene.see_pnode(pnode("n1"));
    scene
}

fn taints(scene: &Scene) -> Vec<(String, String)> {
    let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
    let ours = [keys::TAINT_OUT_OF_TIME_WINDOWS, keys::TAINT_VNODE_DELETING];
    let taints = row.taints.iter().filter(|taint| ours.contains(&taint.key.as_str()));
    taints.map(|taint| (taint.key.clone(), taint.effect.clone())).collect()
}

fn taint(key: &str, effect: &str) -> (String, String) {
    (key.to_owned(), effect.to_owned())
}

fn stopped() -> Vec<(String, String)> {
    vec![taint(keys::TAINT_OUT_OF_TIME_WINDOWS, "NoSchedule")]
}

fn lending(scene: &Scene) -> (String, String) {
    let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
    let said = row.condition(keys::CONDITION_LENDING).unwrap();
    (said.status.clone(), said.reason.clone())
}

fn not_lending(reason: &str) -> (String, String) {
    ("False".to_owned(), reason.to_owned())
}

fn departure(scene: &Scene) -> Option<Departure> {
    lending_state(scene).departure
}

fn lending_state(scene: &Scene) -> LendingState {
    let vnode = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
    let pnode = scene.pair.nodes.pnode(&name("n1")).unwrap();
    let terms = scene.pair.terms(pnode, scene.now.wall);
    scene.pair.lending_state(vnode, terms.as_ref(), scene.now.wall)
}

/// An hour later it is as it was.
fn stay(scene: &mut Scene) {
    scene.pass(Duration::from_hours(1));
    scene.follow_node("n1");
    for name in ["web", "spared"] {
        assert_eq!(scene.plan(&pod(name)), Plan::Rest, "{name}");
    }
}

fn end(scene: &mut Scene, name: &str) {
    let vpod = scene.pair.pods.vpod(&format!("v-{name}")).unwrap().clone();
    let ppod = scene.pair.pods.copy_of(&format!("v-{name}")).unwrap().clone();
    scene.see(Fact::PPod(Change::Gone { row: ppod, proven: true }));
    scene.see(Fact::VPod(Change::Gone { row: vpod, proven: true }));
}

#[test]
fn a_deleted_policy_that_forces_ends_like_its_window_and_spares_whom_a_window_spares() {
    let mut scene = without_policy(true);
    assert_eq!((taints(&scene), lending(&scene)), (stopped(), not_lending("PolicyDeleted")));
    assert_eq!(departure(&scene), Some(Departure::PolicyDeleted));
    assert!(departure(&scene).is_some_and(Departure::vanished));
    assert!(matches!(scene.plan(&pod("web")), Plan::Wait(_)), "it has its grace");
    scene.pass(MINUTE + Duration::from_secs(2));
    scene.follow_node("n1");
    assert!(taints(&scene).contains(&taint(keys::TAINT_OUT_OF_TIME_WINDOWS, "NoExecute")));
    assert_eq!(scene.call(&pod("web")).why, "AnnounceReclaim");
    assert_eq!(scene.plan(&pod("spared")), Plan::Rest);
}

#[test]
fn a_deleted_policy_without_force_lets_pods_stay_and_the_node_goes_when_it_is_empty() {
    let mut scene = without_policy(false);
    assert_eq!(taints(&scene), stopped());
    assert_eq!(scene.vnode("vnode-east-n1")["status"]["allocatable"]["cpu"], "0");
    stay(&mut scene);
    // A pod that waits there does not keep it.
    scene.see_vpod(&vpod("late"));
    end(&mut scene, "web");
    end(&mut scene, "spared");
    scene.follow_node("n1");
    assert!(taints(&scene).contains(&taint(keys::TAINT_VNODE_DELETING, "NoSchedule")));
    assert_eq!(scene.call(&pod("late")).why, "ReleaseWithNode");
}

#[test]
fn a_policy_that_comes_back_lends_the_node_again() {
    let mut scene = without_policy(true);
    scene.see_policy("again", json!({"cluster": "east"}));
    scene.follow_node("n1");
    assert_eq!((taints(&scene), lending(&scene).1), (vec![], "Lending".to_owned()));
}

#[test]
fn a_policy_that_is_replaced_under_its_name_is_replaced_at_once() {
    let mut scene = lent(true);
    scene.lose_policy_of(Side::Virtual, "all");
    let limits = json!([{"resource": "cpu", "quantity": "2"}]);
    scene.see_policy_as("all", "uid-all-again", json!({"cluster": "east", "resourceLimits": limits}), 1);
    scene.follow_node("n1");
    assert_eq!(scene.vnode("vnode-east-n1")["status"]["allocatable"]["cpu"], "2");
    assert_eq!(taints(&scene), []);
}

#[test]
fn a_selector_that_no_longer_matches_ends_like_a_window_be_it_the_bindings_or_the_policys() {
    for (force, of_binding) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut scene = lent(force);
        if of_binding {
            let term = json!({"matchExpressions": [{"key": "gone", "operator": "Exists"}]});
            scene.see_binding(json!({"nodeSelector": {"nodeSelectorTerms": [term]}}));
        } else {
            scene.see_policy("all", json!({"cluster": "somebody-else"}));
        }
        scene.follow_node("n1");
        assert_eq!(departure(&scene), Some(Departure::Unselected));
        assert_eq!((taints(&scene), lending(&scene)), (stopped(), not_lending("NotSelected")));
        if force {
            scene.pass(MINUTE + Duration::from_secs(2));
            assert_eq!(scene.call(&pod("web")).why, "AnnounceReclaim");
            assert_eq!(scene.plan(&pod("spared")), Plan::Rest);
        } else {
            stay(&mut scene);
        }
    }
}

#[test]
fn an_owners_stop_forces_also_where_the_policy_is_gone() {
    let mut scene = without_policy(false);
    scene.see_binding(json!({"suspend": true}));
    scene.follow_node("n1");
    scene.pass(MINUTE + Duration::from_secs(2));
    for name in ["web", "spared"] {
        assert_eq!(scene.call(&pod(name)).why, "AnnounceReclaim");
    }
}

#[test]
fn policies_deleted_with_their_definition_evict_no_pod_and_nothing_new_is_lent() {
    for verbs in [ENDING, None] {
        let mut scene = lent(true);
        scene.lose_policy_of(Side::Virtual, "all");
        scene.discover(Side::Virtual, verbs);
        scene.follow_node("n1");
        assert_eq!((lending(&scene), departure(&scene)), (not_lending("PoliciesNotServed"), None));
        stay(&mut scene);
        scene.see_vpod(&vpod("late"));
        let told = scene.call(&pod("late")).body().unwrap().into_owned();
        assert_eq!(told["status"]["conditions"][0]["reason"], "PoliciesNotServed");
        let report = scene.call(&Key::Binding).body().unwrap().into_owned();
        let conditions = report["status"]["conditions"].as_array().unwrap();
        let known = conditions.iter().find(|condition| condition["type"] == "PoliciesKnown").unwrap();
        assert_eq!((&known["status"], &known["reason"]), (&json!("False"), &json!("PoliciesNotServed")));
        assert!(!scene.pair.ready());
    }
}

#[test]
fn a_process_that_follows_is_ready_again_when_it_has_listed_the_policies_of_a_kind_that_is_back() {
    for leads in [true, false] {
        let mut scene = lent(true);
        if leads {
            let now = scene.now;
            scene.pair.take_lead(now);
        } else {
            scene.pair.follow();
        }
        scene.lose_policy_of(Side::Virtual, "all");
        scene.see(Fact::Policy(Side::Virtual, Change::Unserved));
        assert!(!scene.pair.ready() && scene.pair.lacks().is_some());
        scene.see_policy_as("all", "uid-all-2", json!({"cluster": "east"}), 2);
        scene.see(Fact::Policy(Side::Virtual, Change::Listed(Epoch(2))));
        // Only the leader asks discovery, and until it has an answer it does not rely on the list.
        assert_eq!((scene.pair.ready(), scene.pair.lacks().is_none()), (!leads, !leads), "leads: {leads}");
        if leads {
            scene.discover(Side::Virtual, SERVED);
            assert!(scene.pair.ready());
        } else {
            let now = scene.now;
            scene.pair.take_lead(now);
            assert!(!scene.pair.ready(), "a new leader asks first");
        }
    }
}

#[test]
fn a_kind_that_is_served_again_heals_by_itself() {
    let mut scene = lent(true);
    scene.lose_policy_of(Side::Virtual, "all");
    scene.discover(Side::Virtual, ENDING);
    scene.see(Fact::Policy(Side::Virtual, Change::Unserved));
    scene.follow_node("n1");
    stay(&mut scene);
    assert_eq!(scene.plan(&Key::Serving(Side::Virtual)), Plan::Rest, "the watch tells when it is back");
    // The definition is there again, and so is the policy, as another object.
    scene.see_policy_as("all", "uid-all-again", json!({"cluster": "east", "forceReclaim": true}), 2);
    scene.see(Fact::Policy(Side::Virtual, Change::Listed(Epoch(2))));
    scene.follow_node("n1");
    assert_eq!(lending(&scene).1, "PoliciesNotServed", "not before discovery says so");
    scene.discover(Side::Virtual, SERVED);
    scene.follow_node("n1");
    assert_eq!((taints(&scene), lending(&scene).1), (vec![], "Lending".to_owned()));
    stay(&mut scene);
}

#[test]
fn an_answer_of_discovery_from_before_the_loss_proves_nothing() {
    let mut scene = lent(true);
    let serving = Key::Serving(Side::Virtual);
    scene.see_policy("other", json!({"cluster": "west"}));
    scene.lose_policy_of(Side::Virtual, "other");
    scene.pass(Duration::from_secs(5));
    let asked = scene.call(&serving);
    scene.lose_policy_of(Side::Virtual, "all");
    let entry = json!({"name": "resourceleasingpolicies", "verbs": ["create"]}).to_string();
    scene.settle(&serving, &asked, Ok(Answer { object: entry.into() }));
    scene.follow_node("n1");
    assert_eq!(lending(&scene).1, "Lending", "it holds until the second answer");
    scene.discover(Side::Virtual, None);
    scene.follow_node("n1");
    assert_eq!(lending(&scene).1, "PoliciesNotServed");
}

#[test]
fn until_discovery_answers_a_policy_stays_in_force_and_without_the_right_to_ask_no_pod_is_evicted() {
    let mut scene = lent(true);
    let serving = Key::Serving(Side::Virtual);
    scene.lose_policy_of(Side::Virtual, "all");
    assert!(matches!(scene.plan(&serving), Plan::Wait(_)), "discovery follows a deletion after a moment");
    scene.pass(Duration::from_secs(5));
    let asked = scene.call(&serving);
    assert!(matches!(asked.verb, Verb::Discover { .. }));
    scene.settle(&serving, &asked, Err(Refusal::Unknown("no answer".to_owned())));
    assert_eq!(scene.call(&serving), asked);
    scene.follow_node("n1");
    assert_eq!(lending(&scene).1, "Lending");
    scene.settle(&serving, &asked, Err(Refusal::Denied(Box::default())));
    stay(&mut scene);
    assert_eq!(scene.call(&serving), asked, "it is asked again");
}

#[test]
fn a_start_without_the_kind_keeps_pods_in_step_and_lends_nothing_new() {
    let mut scene = restarted(&lent(true));
    scene.see(Fact::Policy(Side::Virtual, Change::Unserved));
    scene.complete_but_policies();
    scene.follow_node("n1");
    assert_eq!(lending(&scene), not_lending("PoliciesNotServed"));
    let annotations = scene.vnode("vnode-east-n1")["metadata"]["annotations"].clone();
    assert_eq!(annotations[keys::POLICIES_APPLIED], "all");
    assert_eq!(annotations[keys::RECLAIM_RULES], r#"{"force":true,"graceSeconds":60}"#);
    scene.see_pnode(pnode("n2"));
    assert_eq!(scene.plan(&Key::Node(name("n2"))), Plan::Rest, "nothing new");
    assert!(scene.pair.operational().is_some(), "what runs is kept in step");
}

#[test]
fn a_start_without_the_policy_goes_on_where_it_was_once_discovery_has_answered() {
    let before = without_policy(true);
    let mut scene = restarted(&before);
    scene.pass(Duration::from_secs(20));
    scene.see(Fact::Policy(Side::Virtual, Change::Listed(Epoch(1))));
    scene.complete_but_policies();
    assert_eq!(scene.plan(&Key::Node(name("n1"))), Plan::Rest);
    scene.discover(Side::Virtual, SERVED);
    assert_ne!(scene.plan(&Key::Node(name("n1"))), Plan::Rest);
    assert_eq!(lending_state(&scene).since.stopped, lending_state(&before).since.stopped, "pods win no time");
    assert_eq!(departure(&scene), Some(Departure::PolicyDeleted));
}

#[test]
fn the_owners_policies_hold_as_they_were_when_their_kind_goes() {
    let mut scene = lent(false);
    let limit = json!([{"resource": "cpu", "quantity": "3"}]);
    scene.see_policy_of(Side::Physical, "mine", json!({"cluster": "east", "resourceLimits": limit}));
    scene.follow_node("n1");
    let cpu = |scene: &Scene| scene.vnode("vnode-east-n1")["status"]["allocatable"]["cpu"].clone();
    assert_eq!(cpu(&scene), "3");
    scene.lose_policy_of(Side::Physical, "mine");
    scene.discover(Side::Physical, ENDING);
    scene.see(Fact::Policy(Side::Physical, Change::Unserved));
    scene.follow_node("n1");
    assert_eq!(cpu(&scene), "3", "the last known ones");
    assert!(scene.call(&Key::Binding).body().unwrap().to_string().contains("OwnerPoliciesNotServed"));

    // The owner installs the kind again, without the policy: then it is known that there is none.
    scene.see(Fact::Policy(Side::Physical, Change::Listed(Epoch(2))));
    scene.discover(Side::Physical, SERVED);
    scene.follow_node("n1");
    assert_eq!(cpu(&scene), "4");
    assert_eq!(scene.vnode("vnode-east-n1")["metadata"]["annotations"][keys::POLICIES_APPLIED], "all");
    scene.see(Fact::Policy(Side::Physical, Change::Unserved));
    scene.follow_node("n1");
    assert_eq!(cpu(&scene), "4", "not served means no restriction where none applied");
}

#[test]
fn an_owners_policy_that_is_deleted_restricts_until_discovery_has_answered() {
    let mut scene = lent(false);
    let noon = json!({"cluster": "east", "timeWindows": [{"start": "12:00", "end": "13:00"}]});
    scene.see_policy_of(Side::Physical, "mine", noon);
    scene.follow_node("n1");
    assert_eq!(lending(&scene), not_lending("OwnerOutOfTimeWindows"));
    scene.lose_policy_of(Side::Physical, "mine");
    scene.follow_node("n1");
    assert_eq!(lending(&scene), not_lending("OwnerOutOfTimeWindows"));
    scene.discover(Side::Physical, SERVED);
    scene.follow_node("n1");
    assert_eq!(lending(&scene).1, "Lending");
}

#[test]
fn law_09_a_start_without_the_owners_kind_lends_nothing_where_an_owners_policy_applied() {
    let mut before = lent(false);
    before.see_policy_of(Side::Physical, "mine", json!({"cluster": "east"}));
    before.follow_node("n1");
    let mut scene = restarted(&before);
    scene.see_policy("all", json!({"cluster": "east"}));
    scene.see_pnode(pnode("n2"));
    scene.see(Fact::Policy(Side::Physical, Change::Unserved));
    scene.complete_but_owner();
    scene.follow_node("n1");
    assert_eq!(lending(&scene), not_lending("OwnerPoliciesNotServed"));
    let applied = scene.vnode("vnode-east-n1")["metadata"]["annotations"][keys::POLICIES_APPLIED].clone();
    assert_eq!(applied, "all,owner/mine", "it must be known after the next start too");
    assert_eq!(scene.plan(&Key::Node(name("n2"))), Plan::Rest);

    // An operator removes the annotation on purpose.
    let mut vnode = scene.vnode("vnode-east-n1");
    vnode["metadata"]["annotations"].as_object_mut().unwrap().remove(keys::POLICIES_APPLIED);
    scene.see_vnode(vnode);
    scene.follow_node("n1");
    assert_eq!(lending(&scene).1, "Lending");
}

#[test]
fn law_09_a_start_while_the_owners_kind_is_being_deleted_lifts_no_restriction() {
    let cpu = |scene: &Scene| scene.vnode("vnode-east-n1")["status"]["allocatable"]["cpu"].clone();
    let start = || {
        let mut before = lent(false);
        let limit = json!([{"resource": "cpu", "quantity": "3"}]);
        before.see_policy_of(Side::Physical, "mine", json!({"cluster": "east", "resourceLimits": limit}));
        before.follow_node("n1");
        let mut scene = restarted(&before);
        scene.see_policy("all", json!({"cluster": "east"}));
        // The kind is still served, and the policies are gone already.
        scene.complete();
        scene.follow_node("n1");
        assert_eq!(cpu(&scene), "3", "an empty list alone lifts nothing");
        scene
    };
    let mut scene = start();
    scene.discover(Side::Physical, ENDING);
    scene.follow_node("n1");
    assert_eq!(lending(&scene), not_lending("OwnerPoliciesNotServed"));
    let applied = scene.vnode("vnode-east-n1")["metadata"]["annotations"][keys::POLICIES_APPLIED].clone();
    assert_eq!(applied, "all,owner/mine");

    let mut scene = start();
    scene.discover(Side::Physical, SERVED);
    scene.follow_node("n1");
    assert_eq!(cpu(&scene), "4", "the owner deleted the policy");
}
