use serde_json::{Value, json};
use tapestry_cluster::{Answer, Uid};
use tapestry_engine::Plan;

use crate::pair::Key;
use crate::scene::{Scene, merge, run};

fn key() -> Key {
    Key::Pod(Uid::new("v-web"))
}

const READY_AT: &str = "2025-12-31T23:59:00Z";

/// A pod with two readiness gates whose copy runs and is ready.
fn scene() -> (Scene, Value, Value) {
    let mut scene = Scene::new();
    let gates = json!([{"conditionType": "example.com/a"}, {"conditionType": "example.com/b"}]);
    let (up, mut ppod) = run(&mut scene, "web", json!({"spec": {"readinessGates": gates}}));
    assert!(ppod["spec"].get("readinessGates").is_none(), "stripped from the copy");
    ppod["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "lastTransitionTime": READY_AT}]);
    scene.see_ppod(&ppod);
    (scene, up, ppod)
}

/// The Ready condition that is written; it is then as the API server would have it.
fn written(scene: &mut Scene, vpod: &mut Value, ppod: &Value) -> Value {
    if scene.call(&key()).why == "ReadStatus" {
        // It is not kept once both sides agree.
        let (read, object) = (scene.call(&key()), scene.stamp(ppod.clone()));
        scene.settle(&key(), &read, Ok(Answer { object }));
    }
    let call = scene.call(&key());
    assert_eq!(call.why, "Status");
    let body = call.body().unwrap().into_owned();
    let ready = body["status"]["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Ready").unwrap();
    set(vpod, ready.clone());
    scene.see_vpod(vpod);
    assert_eq!(scene.plan(&key()), Plan::Rest);
    ready.clone()
}

/// Merges a condition by its type.
fn set(vpod: &mut Value, condition: Value) {
    let conditions = vpod["status"]["conditions"].as_array_mut().unwrap();
    match conditions.iter_mut().find(|known| known["type"] == condition["type"]) {
        Some(known) => merge(known, condition),
        None => conditions.push(condition),
    }
}

fn gate(name: &str, status: &str) -> Value {
    json!({"type": format!("example.com/{name}"), "status": status})
}

#[test]
fn a_pod_is_ready_when_its_copy_and_all_gates_are() {
    let (mut scene, mut up, ppod) = scene();
    let ready = written(&mut scene, &mut up, &ppod);
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("ReadinessGatesNotReady")));
    assert_eq!(
        ready["message"],
        r#"corresponding condition of pod readiness gate "example.com/a" does not exist., corresponding condition of pod readiness gate "example.com/b" does not exist."#
    );
    assert_eq!(ready["lastTransitionTime"], "2026-01-01T00:00:00Z");

    scene.pass(std::time::Duration::from_mins(1));
    set(&mut up, gate("a", "True"));
    set(&mut up, gate("b", "False"));
    scene.see_vpod(&up);
    let ready = written(&mut scene, &mut up, &ppod);
    assert_eq!(ready["message"], r#"the status of pod readiness gate "example.com/b" is not "True", but False"#);
    assert!(ready.get("lastTransitionTime").is_none(), "it was not ready before either: {ready}");

    set(&mut up, gate("b", "True"));
    scene.see_vpod(&up);
    let ready = written(&mut scene, &mut up, &ppod);
    assert_eq!((&ready["status"], &ready["message"]), (&json!("True"), &Value::Null));
    // It became ready with the last gate, long after its copy.
    assert_eq!(ready["lastTransitionTime"], "2026-01-01T00:01:00Z");

    set(&mut up, gate("a", "Unknown"));
    scene.see_vpod(&up);
    assert_eq!(written(&mut scene, &mut up, &ppod)["status"], "False");
}

#[test]
fn a_copy_that_is_not_ready_says_why_itself() {
    let (mut scene, mut up, mut ppod) = scene();
    written(&mut scene, &mut up, &ppod);
    let unready = json!({"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "c", "lastTransitionTime": READY_AT});
    ppod["status"]["conditions"] = json!([unready]);
    scene.see_ppod(&ppod);
    let ready = written(&mut scene, &mut up, &ppod);
    assert_eq!((&ready["reason"], &ready["lastTransitionTime"]), (&json!("ContainersNotReady"), &json!(READY_AT)));
}

#[test]
fn what_the_controller_manager_writes_over_it_is_corrected() {
    let (mut scene, mut up, ppod) = scene();
    written(&mut scene, &mut up, &ppod);
    for name in ["a", "b"] {
        set(&mut up, gate(name, "True"));
    }
    scene.see_vpod(&up);
    written(&mut scene, &mut up, &ppod);
    set(&mut up, json!({"type": "Ready", "status": "False"}));
    scene.see_vpod(&up);
    assert_eq!(written(&mut scene, &mut up, &ppod)["status"], "True");
}

#[test]
fn a_copy_that_another_client_deletes_is_not_ready_whatever_its_gates_say() {
    let (mut scene, mut up, mut ppod) = scene();
    written(&mut scene, &mut up, &ppod);
    for name in ["a", "b"] {
        set(&mut up, gate(name, "True"));
    }
    scene.see_vpod(&up);
    written(&mut scene, &mut up, &ppod);
    ppod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:30Z");
    ppod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    scene.see_ppod(&ppod);
    let body = scene.call(&key()).body().unwrap().into_owned();
    let ready = body["status"]["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Ready").unwrap();
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("PhysicalPodTerminating")));
}
