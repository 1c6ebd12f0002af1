//! Who says that a right is missing, when, how often, and how it heals.

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_cluster::refusal::{Details, Status};
use tapestry_cluster::{Answer, Refusal, Side, Sub, Uid, Verb};
use tapestry_engine::{Dirty, Model as _, Plan};

use crate::pair::Key;
use crate::scene::{Scene, created, mapped, merge, run, vpod, why};

fn pod(name: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{name}")))
}

/// As the authorizer says it.
fn forbidden(words: &str) -> Refusal {
    let details = Details { kind: "pods".to_owned(), ..Details::default() };
    Refusal::Denied(Box::new(Status { code: 403, message: words.to_owned(), details, ..Status::default() }))
}

/// Carries out the report that is planned and gives its phase and condition `Ready`.
fn report(scene: &mut Scene) -> (Value, Value) {
    let call = scene.call(&Key::Binding);
    assert_eq!(call.why, "ReportConnection");
    let status = call.body().unwrap()["status"].clone();
    let mut object = scene.binding.clone();
    merge(&mut object["status"], status.clone());
    object["metadata"]["generation"] = status["observedGeneration"].clone();
    let object = scene.stamp(object);
    scene.settle(&Key::Binding, &call, Ok(Answer { object }));
    let ready = status["conditions"].as_array().unwrap().iter().find(|said| said["type"] == "Ready").unwrap();
    (status["phase"].clone(), ready.clone())
}

/// A pod that runs and is to be deleted.
fn deleted(scene: &mut Scene) {
    let (mut vpod, _) = run(scene, "web", json!({}));
    merge(
        &mut vpod,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}}),
    );
    scene.see_vpod(&vpod);
    let call = scene.call(&pod("web"));
    assert!(matches!((call.target.side, &call.verb), (Side::Physical, Verb::Delete { .. })), "{call}");
}

fn refuse_for(scene: &mut Scene, key: &Key, seconds: u64) {
    for n in 0..=seconds / 10 {
        scene.refuse(key, forbidden(&format!("pods \"web\" is forbidden, {n}")));
        scene.pass(Duration::from_secs(10));
    }
}

#[test]
fn law_12_a_right_that_is_missing_for_40_seconds_shows_on_the_binding_and_in_readiness_until_it_is_back() {
    let mut scene = Scene::new();
    report(&mut scene);
    deleted(&mut scene);
    refuse_for(&mut scene, &pod("web"), 30);
    assert_eq!(scene.pair.lacks(), None, "that may be a moment of its roles");
    refuse_for(&mut scene, &pod("web"), 0);
    let (phase, ready) = report(&mut scene);
    assert_eq!(
        (phase, &ready["status"], &ready["reason"]),
        (json!("Failed"), &json!("False"), &json!("RequestsRefused"))
    );
    let told = ready["message"].as_str().unwrap().to_owned();
    assert!(told.starts_with("the physical cluster refuses to delete pods: pods \"web\" is forbidden"), "{told}");
    assert!(told.contains("deploy/rbac") && told.contains("webhooks"), "{told}");
    assert_eq!(scene.pair.lacks().as_deref(), Some(&*told));

    let delete = scene.call(&pod("web"));
    let mut dirty = Dirty::default();
    let gone = Answer { object: "{}".into() };
    scene.pair.settle(&pod("web"), why(&pod("web"), &delete), &delete, Ok(gone), scene.now, &mut dirty);
    assert_eq!(scene.pair.lacks(), None);
    assert_eq!(report(&mut scene).0, "Ready");
    assert!(
        format!("{dirty:?}").contains("all_urged: true"),
        "calls that wait for the same right need not wait any longer"
    );
}

#[test]
fn law_04_a_refusal_with_another_message_each_time_is_written_once() {
    let mut scene = Scene::new();
    deleted(&mut scene);
    refuse_for(&mut scene, &pod("web"), 50);
    report(&mut scene);
    for _ in 0..5 {
        refuse_for(&mut scene, &pod("web"), 10);
        assert!(!matches!(scene.plan(&Key::Binding), Plan::Do(..)), "{:?}", scene.plan(&Key::Binding));
    }
}

#[test]
fn a_success_of_the_same_sort_in_between_says_that_it_is_one_object_that_is_refused() {
    let mut scene = Scene::new();
    deleted(&mut scene);
    for _ in 0..10 {
        refuse_for(&mut scene, &pod("web"), 20);
        let mut other = scene.call(&pod("web"));
        other.target.name = crate::scene::name("another");
        scene.pair.settle(
            &pod("another"),
            why(&pod("another"), &other),
            &other,
            Ok(Answer { object: "{}".into() }),
            scene.now,
            &mut Dirty::default(),
        );
    }
    assert_eq!(scene.pair.lacks(), None);
}

#[test]
fn calls_that_are_no_longer_planned_are_no_longer_reported() {
    let mut scene = Scene::new();
    deleted(&mut scene);
    refuse_for(&mut scene, &pod("web"), 50);
    assert!(scene.pair.lacks().is_some());
    scene.pass(Duration::from_secs(160));
    scene.see_pnode(crate::scene::pnode("n1"));
    assert_eq!(scene.pair.lacks(), None);
}

#[test]
fn every_refused_call_about_pods_is_reported_by_verb_resource_and_cluster() {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("web"));
    refuse_for(&mut scene, &pod("web"), 50);
    let lacks = scene.pair.lacks().unwrap_or_default();
    assert!(lacks.contains("the virtual cluster refuses to patch pods: "), "{lacks}");
    let map = scene.call(&pod("web"));
    let copy = map.body().unwrap()["metadata"]["annotations"][tapestry_api::keys::PHYSICAL_POD_NAME].clone();
    scene.see_vpod(&mapped(vpod("web"), copy.as_str().unwrap(), None));
    let create = scene.call(&pod("web"));
    for _ in 0..6 {
        scene.settle(&pod("web"), &create, Err(forbidden("pods is forbidden")));
        scene.pass(Duration::from_secs(10));
    }
    let lacks = scene.pair.lacks().unwrap_or_default();
    assert!(lacks.contains("the physical cluster refuses to create pods: "), "{lacks}");
    let mut ppod = created(&create);
    merge(&mut ppod, json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}));
    scene.see_ppod(&ppod);
    scene.see_vpod(&mapped(vpod("web"), copy.as_str().unwrap(), ppod["metadata"]["uid"].as_str()));
    assert_eq!(scene.call(&pod("web")).sub(), Sub::Status);
    refuse_for(&mut scene, &pod("web"), 50);
    let lacks = scene.pair.lacks().unwrap_or_default();
    assert!(lacks.contains("the virtual cluster refuses to patch pods/status: "), "{lacks}");
}

#[test]
fn law_12_what_a_quota_or_a_webhook_has_against_one_pod_stays_that_pods_matter() {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("web"));
    let map = scene.call(&pod("web"));
    let copy = map.body().unwrap()["metadata"]["annotations"][tapestry_api::keys::PHYSICAL_POD_NAME].clone();
    scene.see_vpod(&mapped(vpod("web"), copy.as_str().unwrap(), None));
    let create = scene.call(&pod("web"));
    for _ in 0..10 {
        let details = Details { kind: "pods".to_owned(), name: "web".to_owned(), ..Details::default() };
        let quota = Status { code: 403, message: "exceeded quota".to_owned(), details, ..Status::default() };
        scene.settle(&pod("web"), &create, Err(Refusal::Denied(Box::new(quota))));
        scene.pass(Duration::from_secs(10));
    }
    assert_eq!(scene.pair.lacks(), None);
}
