//! What the status of a binding says, and how often.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapestry_cluster::connect::AccessRefused;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::refusal::Status;
use tapestry_cluster::watch::{Query, Trouble, WatchState};
use tapestry_cluster::watches::{Reader, Watched};
use tapestry_cluster::{Answer, Refusal, Side, Uid, kind};
use tapestry_engine::Plan;

use crate::pair::{Fact, Key};
use crate::prerequisites::Prerequisite;
use crate::scene::{Scene, created, mapped, vpod};

/// Carries out the report that is planned, as an API server would, and gives the status that came of it.
fn report(scene: &mut Scene) -> Value {
    let call = scene.call(&Key::Binding);
    assert_eq!(call.why, "ReportConnection");
    let status = call.body().unwrap()["status"].clone();
    let mut object = binding(&status);
    object["metadata"]["generation"] = status["observedGeneration"].clone();
    let object = scene.stamp(object);
    scene.settle(&Key::Binding, &call, Ok(Answer { object }));
    status
}

fn binding(status: &Value) -> Value {
    let mut object = json!({
        "metadata": {"name": "east", "uid": "b-uid", "finalizers": ["tapestry.io/syncer"]},
        "spec": {"clusterID": "east", "secretRef": {"name": "s", "namespace": "t"}, "mountNamespace": "mount"},
        "status": {"physicalClusterUID": "p-cluster", "virtualClusterUID": "v-cluster"},
    });
    crate::scene::merge(&mut object["status"], status.clone());
    object
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    status["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == kind).unwrap()
}

/// A pod that asks for one CPU is admitted and gets its copy.
fn let_in(scene: &mut Scene, pod: &str) {
    scene.see_vpod(&vpod(pod));
    let key = Key::Pod(Uid::new(format!("v-{pod}")));
    let call = scene.call(&key);
    let name = call.body().unwrap()["metadata"]["annotations"][tapestry_api::keys::PHYSICAL_POD_NAME].clone();
    let there = mapped(vpod(pod), name.as_str().unwrap(), None);
    let object = scene.stamp(there);
    scene.settle(&key, &call, Ok(Answer { object }));
    let call = scene.call(&key);
    assert_eq!(call.why, "CreateCopy");
    let object = scene.stamp(created(&call));
    scene.settle(&key, &call, Ok(Answer { object }));
}

#[test]
fn the_status_tells_phase_nodes_and_what_is_leased_and_used() {
    let mut scene = Scene::new();
    let_in(&mut scene, "web");
    let status = report(&mut scene);
    assert_eq!(status["phase"], "Ready");
    assert_eq!(status["nodes"], 1);
    assert_eq!(status["leased"], json!({"cpu": "4", "memory": "8Gi", "pods": "110"}));
    assert_eq!(status["used"], json!({"cpu": "1", "memory": "0", "pods": "1"}));
    assert_eq!(status["lastSyncTime"], "2026-01-01T00:00:00Z");
    assert_eq!(condition(&status, "Ready")["status"], "True");
}

#[test]
fn law_04_figures_are_written_at_most_once_in_ten_seconds_and_not_when_nothing_changed() {
    let mut scene = Scene::new();
    report(&mut scene);
    let next = scene.now.steady + Duration::from_secs(10);
    assert_eq!(scene.plan(&Key::Binding), Plan::Wait(next), "another look, when figures may be written again");
    let_in(&mut scene, "web");
    assert_eq!(scene.plan(&Key::Binding), Plan::Wait(next));
    scene.pass(Duration::from_secs(10));
    let status = report(&mut scene);
    assert_eq!(status["used"]["cpu"], "1");
    assert_eq!(status["lastSyncTime"], "2026-01-01T00:00:10Z");
    assert_eq!(condition(&status, "Ready")["lastTransitionTime"], "2026-01-01T00:00:00Z", "it lasts since then");
    scene.pass(Duration::from_secs(10));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest);
    scene.pass(Duration::from_hours(1));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "lastSyncTime never moves alone");
}

#[test]
fn an_admitted_pod_updates_the_figures() {
    let mut scene = Scene::new();
    report(&mut scene);
    scene.pass(Duration::from_secs(10));
    let text = scene.stamp(vpod("web"));
    let row = crate::pods::row::VPod::decode(&text, &scene.pair.home).unwrap().unwrap();
    let Scene { pair, now, .. } = scene;
    let mut desk = tapestry_engine::Desk::new(pair, 0);
    desk.see(Fact::VPod(tapestry_cluster::feed::Change::Put(row, tapestry_cluster::feed::Epoch(1))), now);
    let calls: Vec<_> = std::iter::from_fn(|| desk.next(now)).collect();
    let (.., call) = calls.iter().find(|(key, ..)| *key == Key::Binding).expect("the binding is looked at");
    assert_eq!(call.body().unwrap()["status"]["used"]["cpu"], "1");
}

#[test]
fn trouble_is_written_at_once_and_so_is_its_end() {
    let mut scene = Scene::new();
    report(&mut scene);
    scene.see(Fact::Connection(Side::Physical, Connection::Down("connection refused".to_owned())));
    let status = report(&mut scene);
    assert_eq!((&status["phase"], &status["nodes"]), (&json!("Failed"), &json!(1)));
    assert_eq!(condition(&status, "Ready")["reason"], "Unreachable");
    assert_eq!(condition(&status, "Connected")["message"], "connection refused");
    scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))));
    assert_eq!(report(&mut scene)["phase"], "Ready");
}

#[test]
fn a_cluster_that_refuses_us_is_reported_with_the_missing_right_and_nothing_is_admitted() {
    let mut scene = Scene::new();
    report(&mut scene);
    for (refused, reason, words) in [
        (AccessRefused::Credentials, "CredentialsRefused", "401"),
        (AccessRefused::Right("eve cannot get".to_owned()), "RightMissing", "get namespaces/kube-system"),
    ] {
        scene.see(Fact::Connection(Side::Physical, Connection::Refused(refused)));
        let status = report(&mut scene);
        assert_eq!((&status["phase"], &condition(&status, "Ready")["reason"]), (&json!("Failed"), &json!(reason)));
        let told = condition(&status, "Connected")["message"].as_str().unwrap().to_owned();
        assert!(told.contains(words) && told.contains("nothing new is admitted"), "{told}");
        assert_eq!(scene.pair.lacks(), Some(told), "readiness says the same");
        scene.see_vpod(&vpod("web"));
        assert_eq!(scene.plan(&Key::Pod(Uid::new("v-web"))), Plan::Rest);
    }
    scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))));
    assert_eq!(report(&mut scene)["phase"], "Ready");
}

#[test]
fn law_01_nothing_is_counted_in_another_cluster() {
    let mut scene = Scene::new();
    report(&mut scene);
    scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("another"))));
    let status = report(&mut scene);
    assert_eq!(status["leased"]["cpu"], "4", "as it was");
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest);
}

#[test]
fn a_syncer_that_has_just_started_leaves_the_phase_as_it_is_and_a_new_binding_is_pending() {
    for (before, phase) in
        [(json!({}), "Pending"), (json!({"phase": "Ready", "nodes": 7, "leased": {}, "used": {}}), "Ready")]
    {
        let mut scene = Scene::empty();
        let mut object = binding(&before);
        if phase == "Ready" {
            object["status"]["conditions"] =
                json!([{"type": "Ready", "status": "True", "reason": "Ready", "message": "m"}]);
        }
        let text = scene.stamp(object);
        let row = super::BindingRow::decode(&text).unwrap().unwrap();
        scene.see(Fact::Binding(tapestry_cluster::feed::Change::Put(row, tapestry_cluster::feed::Epoch(1))));
        scene.see(Fact::Connection(Side::Virtual, Connection::Up(Uid::new("v-cluster"))));
        scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))));
        let status = report(&mut scene);
        assert_eq!(status["phase"], phase);
        assert_eq!(
            status["nodes"],
            if phase == "Ready" { json!(7) } else { Value::Null },
            "nothing has been counted yet"
        );
    }
}

#[test]
fn a_missing_mount_namespace_shows_in_the_status_until_it_is_there() {
    let mut scene = Scene::empty();
    scene.see_binding(json!({}));
    scene.see_policy("all", json!({"cluster": "east"}));
    scene.see_lists();
    let account = Key::Prerequisite(Prerequisite::ServiceAccount);
    scene.refuse(&account, Refusal::Gone);
    let missing = Status { kind: "Status".to_owned(), code: 404, message: "not found".to_owned(), ..Status::default() };
    scene.refuse(&account, Refusal::Invalid(Box::new(missing)));
    let status = report(&mut scene);
    let ready = condition(&status, "Ready");
    assert_eq!((&status["phase"], &ready["reason"]), (&json!("Failed"), &json!("PhysicalClusterNotReady")));
    let words = ready["message"].as_str().unwrap();
    assert!(words.contains("namespace mount does not exist: create it"), "{words}");
    scene.see_binding(json!({"suspend": true}));
    assert_eq!(report(&mut scene)["phase"], "Failed", "another change of the binding does not mend it");
    scene.prepare();
    assert_eq!(report(&mut scene)["phase"], "Ready");
}

#[test]
fn law_12_a_missing_class_that_the_binding_names_shows_in_the_status() {
    let mut scene = Scene::new();
    scene.see_binding(json!({"podPriorityClassName": "theirs"}));
    let class = Key::Prerequisite(Prerequisite::PriorityClass);
    scene.refuse(&class, Refusal::Gone);
    let status = report(&mut scene);
    let words = condition(&status, "Ready")["message"].as_str().unwrap().to_owned();
    assert!(words.contains("PriorityClass theirs") && words.contains("create it"), "{words}");
    assert_eq!(scene.call(&class).why, "LookForPrerequisite", "it is looked for again");
}

#[test]
fn a_missing_mount_namespace_is_reported_also_when_its_watches_fail() {
    let mut scene = Scene::new();
    let query = Arc::new(Query::all(&kind::RESOURCE_QUOTA));
    let quotas = Watched { reader: Reader::Syncer, side: Side::Physical, query };
    let trouble = Trouble { verb: "list", why: "HTTP 403 Forbidden".to_owned() };
    scene.see(Fact::Watch(quotas, WatchState::OutOfSync(trouble)));
    // It looks whether what it needs there is still there, and may not.
    let denied = Status { code: 403, message: "serviceaccounts is forbidden".to_owned(), ..Status::default() };
    scene.refuse(&Key::Prerequisite(Prerequisite::ServiceAccount), Refusal::Denied(Box::new(denied)));
    let status = report(&mut scene);
    assert_eq!(condition(&status, "Connected")["reason"], "WatchOutOfSync");
    let ready = condition(&status, "Ready");
    assert_eq!(ready["reason"], "PhysicalClusterNotReady");
    assert!(ready["message"].as_str().unwrap().contains("create namespace mount"), "{ready}");
}
