use std::time::Duration;

use serde_json::{Value, json};
use tapestry_cluster::Call;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_engine::{Model as _, Plan};

use super::{EARLY, MOST_A_MINUTE, ONCE_IN, Warning, Warnings};
use crate::pair::{Fact, Key};
use crate::scene::{Scene, run};

/// A warning of a kubelet about a physical pod.
fn warning(ppod: &Value, reason: &str) -> Value {
    json!({
        "metadata": {"name": format!("w.{reason}"), "namespace": "mount", "uid": format!("e-{reason}")},
        "involvedObject": {"kind": "Pod", "namespace": "mount", "uid": ppod["metadata"]["uid"]},
        "type": "Warning", "reason": reason, "message": "it does not work", "count": 3,
        "firstTimestamp": "2025-12-31T23:59:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
    })
}

/// A scene with a running pod, whose warnings are listed.
fn scene() -> (Scene, Value, Value) {
    let mut scene = Scene::new();
    let (up, ppod) = run(&mut scene, "web", json!({}));
    scene.see(Fact::Warning(Change::Listed(Epoch(1))));
    (scene, up, ppod)
}

/// The events that wait to be written.
fn told(scene: &Scene) -> Vec<Call> {
    let keys = scene.pair.keys().into_iter().filter(|key| matches!(key, Key::Event(_)));
    keys.filter_map(|key| if let Plan::Do(call, _) = scene.plan(&key) { Some(*call) } else { None }).collect()
}

#[test]
fn a_warning_about_a_copy_is_told_on_its_virtual_pod() {
    let (mut scene, _, ppod) = scene();
    scene.see_warning_in(1, &warning(&ppod, "FailedMount"));
    let [call] = &told(&scene)[..] else { panic!("not one event") };
    let event = call.body().unwrap().into_owned();
    assert_eq!(call.target.namespace.as_ref().unwrap().as_str(), "demo");
    assert_eq!((&event["involvedObject"]["uid"], &event["involvedObject"]["name"]), (&json!("v-web"), &json!("web")));
    assert_eq!(
        (&event["type"], &event["reason"], &event["count"]),
        (&json!("Warning"), &json!("FailedMount"), &json!(3))
    );
    assert_eq!(event["message"], "In the physical cluster: it does not work");
    assert_eq!(event["firstTimestamp"], "2025-12-31T23:59:00Z");
}

#[test]
fn what_was_there_before_a_process_came_is_not_told() {
    let mut scene = Scene::new();
    let (_, ppod) = run(&mut scene, "web", json!({}));
    scene.see_warning_in(1, &warning(&ppod, "FailedMount"));
    scene.see(Fact::Warning(Change::Listed(Epoch(1))));
    assert_eq!(told(&scene), []);
    // It occurs again.
    scene.see_warning_in(1, &warning(&ppod, "FailedMount"));
    assert_eq!(told(&scene).len(), 1);
}

#[test]
fn a_watch_that_starts_over_tells_only_what_happened_in_its_gap() {
    let (mut scene, _, ppod) = scene();
    let old = scene.stamp(warning(&ppod, "FailedMount"));
    let old = Warning::decode(&old).unwrap().unwrap();
    scene.see(Fact::Warning(Change::Put(old.clone(), Epoch(1))));
    assert_eq!(told(&scene).len(), 1);
    scene.pass(ONCE_IN);
    // Lists are in no order.
    scene.see_warning_in(2, &warning(&ppod, "BackOff"));
    scene.see(Fact::Warning(Change::Put(old, Epoch(2))));
    scene.see(Fact::Warning(Change::Listed(Epoch(2))));
    let told = told(&scene);
    let reasons: Vec<_> = told.iter().map(|call| call.body().unwrap()["reason"].clone()).collect();
    assert_eq!(reasons, ["FailedMount", "BackOff"]);
}

#[test]
fn a_pod_is_told_of_the_same_reason_once_in_five_minutes() {
    let (mut scene, _, ppod) = scene();
    for _ in 0..10 {
        scene.see_warning_in(1, &warning(&ppod, "BackOff"));
        scene.see_warning_in(1, &warning(&ppod, "Unhealthy"));
    }
    assert_eq!(told(&scene).len(), 2);
    scene.pass(ONCE_IN);
    scene.see_warning_in(1, &warning(&ppod, "BackOff"));
    assert_eq!(told(&scene).len(), 3);
}

#[test]
fn law_05_a_warning_about_a_pod_that_is_not_a_copy_is_told_to_no_pod() {
    let (mut scene, mut up, ppod) = scene();
    let mut stranger = ppod.clone();
    (stranger["metadata"]["uid"], stranger["metadata"]["name"]) = (json!("s"), json!("stranger"));
    scene.see_ppod(&stranger);
    scene.see_warning_in(1, &warning(&stranger, "FailedMount"));
    assert_eq!(told(&scene), [], "its name is none that we made");
    // A virtual pod that names another copy.
    up["metadata"]["annotations"][tapestry_api::keys::PHYSICAL_POD_UID] = json!("another");
    scene.see_vpod(&up);
    scene.see_warning_in(1, &warning(&ppod, "FailedMount"));
    assert_eq!(told(&scene), [], "the pod does not point to it");
}

#[test]
fn a_warning_that_comes_before_its_copy_is_told_when_the_copy_is_seen() {
    let (mut scene, _, ppod) = scene();
    scene.lose_ppod(&ppod, false);
    scene.see_warning_in(1, &warning(&ppod, "FailedScheduling"));
    assert_eq!(told(&scene), []);
    scene.see_ppod(&ppod);
    assert_eq!(told(&scene).len(), 1);
    scene.see_ppod(&ppod);
    assert_eq!(told(&scene).len(), 1);
}

#[test]
fn a_warning_of_a_pod_that_never_comes_is_forgotten() {
    let (mut scene, _, ppod) = scene();
    scene.lose_ppod(&ppod, false);
    scene.see_warning_in(1, &warning(&ppod, "FailedScheduling"));
    scene.pass(Duration::from_secs(31));
    scene.see_ppod(&ppod);
    assert_eq!(told(&scene), []);
}

#[test]
fn law_11_what_is_kept_of_warnings_and_what_is_told_of_them_is_bounded() {
    let now = Scene::empty().now;
    let mut warnings = Warnings::default();
    let uid = tapestry_cluster::Uid::new("v");
    let allowed = (0..10 * MOST_A_MINUTE).filter(|n| warnings.may_tell(&uid, &n.to_string(), now)).count();
    assert_eq!(allowed, MOST_A_MINUTE);
    let mut later = now;
    for minute in 1..20 {
        later.steady = now.steady + Duration::from_mins(minute);
        for n in 0..200 {
            warnings.may_tell(&uid, &format!("{minute}-{n}"), later);
        }
    }
    assert!(warnings.told.len() <= 6 * MOST_A_MINUTE, "{}", warnings.told.len());
    let (mut scene, _, mut ppod) = scene();
    for n in 0..10 * EARLY {
        ppod["metadata"]["uid"] = json!(format!("not-known-{n}"));
        scene.see_warning_in(1, &warning(&ppod, "FailedMount"));
    }
    assert_eq!(scene.pair.warnings.early.len(), EARLY);
}

#[test]
fn an_event_of_the_newer_api_is_a_warning_like_any_other() {
    let event = json!({
        "metadata": {"name": "web.1", "namespace": "mount", "uid": "e", "resourceVersion": "7"},
        "involvedObject": {"kind": "Pod", "uid": "p"}, "type": "Warning", "reason": "FailedScheduling",
        "message": "0/1 nodes are available", "eventTime": "2026-01-01T00:00:00.123456Z", "firstTimestamp": null,
        "lastTimestamp": null, "series": {"count": 4, "lastObservedTime": "2026-01-01T00:01:00.000000Z"},
    });
    let row = Warning::decode(&event.to_string().into()).unwrap().unwrap();
    assert_eq!((row.count, row.first), (4, Some("2026-01-01T00:00:00.123456Z".parse().unwrap())));
    for (field, value) in [("type", json!("Normal")), ("involvedObject", json!({"kind": "Node", "uid": "n"}))] {
        let mut other = event.clone();
        other[field] = value;
        assert_eq!(Warning::decode(&other.to_string().into()).unwrap(), None, "{field}");
    }
}

#[test]
fn what_another_client_writes_into_a_warning_is_cut() {
    let mut long = warning(&json!({"metadata": {"uid": "p"}}), "R");
    (long["reason"], long["message"]) = (json!("r".repeat(5000)), json!("ü".repeat(5000)));
    long["metadata"]["resourceVersion"] = json!("7");
    let row = Warning::decode(&long.to_string().into()).unwrap().unwrap();
    assert_eq!((row.reason.len(), row.message.chars().count()), (128, 1000));
}
