//! The life of one ConfigMap, Secret and token beside the pods that need them, call by call.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::call::token::Tokens;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::refusal::{Cause, Details, Status};
use tapestry_cluster::watch::{Query, Trouble, WatchState};
use tapestry_cluster::watches::{Reader, Watched};
use tapestry_cluster::{Answer, Call, Refusal, Side, Uid, Verb, kind};
use tapestry_domain::dependents::{DependentKind, Marks, render_copy};
use tapestry_engine::{Plan, Reason as _};

use super::Id;
use super::row::{DependentCopy, Source};
use crate::pair::{Fact, Key};
use crate::pods::admission::PendingReason;
use crate::pods::row::VPod;
use crate::scene::{Scene, created, mapped, merge, name, vpod};

mod both_ways;
mod keeps;
mod strays;
mod tokens;

const MAP: DependentKind = DependentKind::ConfigMap;

fn key(map: &str) -> Key {
    Key::Dependent(Arc::new(Id { kind: MAP, namespace: name("demo"), name: name(map) }))
}

fn pod_key(pod: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{pod}")))
}

/// A pod that mounts this ConfigMap.
fn mounts(pod: &str, map: &str, optional: bool) -> Value {
    let mut object = vpod(pod);
    let volume = json!([{"name": "files", "configMap": {"name": map, "optional": optional}}]);
    merge(&mut object, json!({"spec": {"volumes": volume}}));
    object
}

/// A ConfigMap of the virtual cluster, at the version that `Scene::stamp` gives it.
fn source(map: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data, "metadata": {"name": map, "namespace": "demo", "uid": format!("s-{map}")}})
}

/// The virtual cluster has it now. Returns it with its version.
fn see_source(scene: &mut Scene, object: Value) -> String {
    let text = scene.stamp(object);
    let row = Source::decode(&text, MAP).unwrap().unwrap();
    scene.see(Fact::Source(MAP, Change::Put(row, Epoch(1))));
    String::from_utf8(text.to_vec()).unwrap()
}

/// What the gate would make of a source.
fn copied(scene: &Scene, call: &Call, source: &str) -> Value {
    let Verb::Carry { .. } = &call.verb else { panic!("nothing is carried: {call}") };
    let origin = &scene.pair.origin;
    let marks = Marks { labels: origin.labels().into(), annotations: origin.annotations(), salt: &origin.full };
    let mut copy = render_copy(MAP, source, call.target.name.as_str(), "mount", &marks).unwrap();
    copy["metadata"]["uid"] = json!(format!("c-{}", call.target.name));
    copy
}

fn see_copy(scene: &mut Scene, copy: &Value) {
    let text = scene.stamp(copy.clone());
    let row = DependentCopy::decode(&text, MAP, &scene.pair.origin).unwrap().unwrap();
    scene.see(Fact::DependentCopy(MAP, Change::Put(row, Epoch(1))));
}

fn lose_copy(scene: &mut Scene, copy: &Value) {
    let text = scene.stamp(copy.clone());
    let row = DependentCopy::decode(&text, MAP, &scene.pair.origin).unwrap().unwrap();
    scene.see(Fact::DependentCopy(MAP, Change::Gone { row, proven: false }));
}

/// Carries it out as planned. Returns the copy.
fn carry(scene: &mut Scene, map: &str, source: &str) -> Value {
    let call = scene.call(&key(map));
    let copy = copied(scene, &call, source);
    let object = scene.stamp(copy.clone());
    scene.settle(&key(map), &call, Ok(Answer { object }));
    copy
}

/// Sees a new pod and gives it the name of its copy. Returns it as it is then.
fn admit(scene: &mut Scene, pod: &str, object: &Value) -> Value {
    scene.see_vpod(object);
    let map = scene.call(&pod_key(pod));
    let copy = map.body().unwrap()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME].as_str().unwrap().to_owned();
    let object = mapped(object.clone(), &copy, None);
    scene.see_vpod(&object);
    object
}

/// Creates the copy of a pod for which everything is ready.
fn start(scene: &mut Scene, pod: &str) -> Value {
    let call = scene.call(&pod_key(pod));
    let ppod = created(&call);
    scene.see_ppod(&ppod);
    ppod
}

fn told(scene: &Scene, pod: &str) -> (String, String) {
    let call = scene.call(&pod_key(pod));
    assert_eq!(call.why, "Refuse", "{call}");
    let body = call.body().unwrap().into_owned();
    let condition = &body["status"]["conditions"][0];
    (condition["reason"].as_str().unwrap().to_owned(), condition["message"].as_str().unwrap().to_owned())
}

#[test]
fn a_pod_says_which_configmap_is_missing_and_starts_when_it_arrives() {
    let mut scene = Scene::new();
    scene.see_vpod(&mounts("web", "settings", false));
    let (reason, message) = told(&scene, "web");
    assert_eq!(reason, PendingReason::DependentMissing.as_str());
    assert_eq!(message, "ConfigMap demo/settings does not exist; the pod starts when it is created");
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);

    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    let web = admit(&mut scene, "web", &mounts("web", "settings", false));
    assert_eq!(scene.plan(&pod_key("web")), Plan::Rest, "its copy waits for the ConfigMap");
    let copy = carry(&mut scene, "settings", &text);
    let ppod = created(&scene.call(&pod_key("web")));
    assert_eq!(ppod["spec"]["volumes"][0]["configMap"]["name"], copy["metadata"]["name"]);
    assert_eq!(web["metadata"]["uid"], "v-web");
}

#[test]
fn law_04_many_pods_share_one_copy_and_it_is_written_once() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    carry(&mut scene, "settings", &text);
    admit(&mut scene, "api", &mounts("api", "settings", false));
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
    assert_eq!(scene.call(&pod_key("api")).why, "CreateCopy");
    assert_eq!(scene.pair.dependents.shared.len(), 1, "pods of one template share their needs");
}

#[test]
fn an_optional_configmap_that_is_missing_delays_nothing_and_is_carried_when_it_arrives() {
    let mut scene = Scene::new();
    admit(&mut scene, "web", &mounts("web", "settings", true));
    start(&mut scene, "web");
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    carry(&mut scene, "settings", &text);
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
}

#[test]
fn a_change_of_the_source_goes_down_under_the_copys_uid() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    carry(&mut scene, "settings", &text);
    let text = see_source(&mut scene, source("settings", &json!({"a": "2"})));
    let call = scene.call(&key("settings"));
    assert_eq!(call.why, "UpdateDependent");
    assert!(call.target.uid.is_some());
    carry(&mut scene, "settings", &text);
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
}

#[test]
fn law_01_the_copy_of_a_deleted_source_stays_while_a_pod_uses_it() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    carry(&mut scene, "settings", &text);
    start(&mut scene, "web");
    let row = Source::decode(&text.into(), MAP).unwrap().unwrap();
    scene.see(Fact::Source(MAP, Change::Gone { row, proven: false }));
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
    // A new pod cannot start with it.
    scene.see_vpod(&mounts("late", "settings", false));
    assert_eq!(told(&scene, "late").0, PendingReason::DependentMissing.as_str());
}

#[test]
fn a_copy_goes_with_its_last_pod_and_under_the_version_that_was_looked_at() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    let web = admit(&mut scene, "web", &mounts("web", "settings", false));
    carry(&mut scene, "settings", &text);
    let ppod = start(&mut scene, "web");
    let mut going = web.clone();
    merge(
        &mut going,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}}),
    );
    scene.see_vpod(&going);
    assert_eq!(scene.plan(&key("settings")), Plan::Rest, "the copy of the pod still runs");
    let mut gone = ppod.clone();
    merge(&mut gone, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    scene.lose_ppod(&gone, true);
    let text = scene.stamp(going);
    let row = VPod::decode(&text, &scene.pair.home).unwrap().unwrap();
    scene.see(Fact::VPod(Change::Gone { row, proven: true }));
    let call = scene.call(&key("settings"));
    assert_eq!(call.why, "RemoveDependent");
    assert!(call.target.uid.is_some() && call.target.rv.is_some(), "{call}");
    scene.settle(&key("settings"), &call, Ok(Answer { object: "{}".into() }));
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
}

#[test]
fn a_copy_that_another_client_keeps_changing_is_restored_three_times_and_then_left() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let copy = carry(&mut scene, "settings", &text);
    let mut changed = copy.clone();
    changed["data"]["a"] = json!("theirs");
    for _ in 0..3 {
        see_copy(&mut scene, &changed);
        assert_eq!(scene.call(&key("settings")).why, "RevertDependent");
        carry(&mut scene, "settings", &text);
    }
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
    see_copy(&mut scene, &changed);
    let Plan::Wait(until) = scene.plan(&key("settings")) else { panic!("{:?}", scene.plan(&key("settings"))) };
    assert_eq!(scene.pair.events.keys().count(), 1, "it is told on the source");
    assert_eq!(scene.call(&pod_key("web")).why, "CreateCopy", "pods start all the same");
    scene.pass(until.saturating_sub(scene.now.steady) + Duration::from_secs(1));
    assert_eq!(scene.call(&key("settings")).why, "RevertDependent");
}

#[test]
fn keys_that_others_added_to_a_copy_are_left_alone() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let mut copy = carry(&mut scene, "settings", &text);
    copy["data"]["extra"] = json!("theirs");
    see_copy(&mut scene, &copy);
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
}

#[test]
fn law_06_an_object_that_is_not_ours_is_not_touched_and_the_pod_says_so() {
    let mut scene = Scene::new();
    see_source(&mut scene, source("settings", &json!({"a": "1"})));
    let web = admit(&mut scene, "web", &mounts("web", "settings", false));
    scene.refuse(&key("settings"), Refusal::Exists);
    let look = scene.call(&key("settings"));
    assert_eq!((look.why, &look.verb), ("LookForDependent", &Verb::Peek));
    let foreign = json!({"metadata": {"name": look.target.name.as_str(), "namespace": "mount", "uid": "theirs"}});
    let object = scene.stamp(foreign);
    scene.settle(&key("settings"), &look, Ok(Answer { object }));
    assert!(matches!(scene.plan(&key("settings")), Plan::Wait(_)));
    scene.see_vpod(&web);
    assert_eq!(told(&scene, "web").0, PendingReason::DependentConflict.as_str());
}

#[test]
fn a_copy_that_lost_our_labels_is_found_by_its_name_and_gets_them_back() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let mut copy = carry(&mut scene, "settings", &text);
    lose_copy(&mut scene, &copy);
    scene.refuse(&key("settings"), Refusal::Exists);
    let look = scene.call(&key("settings"));
    copy["metadata"]["labels"] = json!({});
    let object = scene.stamp(copy);
    scene.settle(&key("settings"), &look, Ok(Answer { object }));
    let call = scene.call(&key("settings"));
    assert_eq!(call.why, "RevertDependent");
    assert!(call.target.uid.is_some());
}

#[test]
fn an_immutable_copy_is_deleted_and_created_again() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let copy = carry(&mut scene, "settings", &text);
    let mut other = source("settings", &json!({"a": "2"}));
    other["metadata"]["uid"] = json!("s-another");
    see_source(&mut scene, other);
    scene.refuse(&key("settings"), fixed());
    let call = scene.call(&key("settings"));
    assert_eq!(call.why, "ReplaceDependent");
    scene.settle(&key("settings"), &call, Ok(Answer { object: "{}".into() }));
    lose_copy(&mut scene, &copy);
    assert_eq!(scene.call(&key("settings")).why, "CreateDependent");
}

/// What Kubernetes says to a change of an immutable object.
fn fixed() -> Refusal {
    let cause = Cause { reason: "FieldValueForbidden".into(), field: "data".into(), ..Default::default() };
    let details = Details { causes: vec![cause], ..Default::default() };
    Refusal::Invalid(Box::new(Status { code: 422, details, ..Default::default() }))
}

#[test]
fn law_11_a_cluster_that_stores_copies_without_our_annotations_is_not_written_to_again_and_again() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let mut calls = Vec::new();
    while let Plan::Do(call, _) = scene.plan(&key("settings")) {
        assert!(calls.len() < 10, "{calls:?}");
        calls.push(call.why);
        let mut copy = copied(&scene, &call, &text);
        copy["metadata"]["annotations"].as_object_mut().unwrap().remove(keys::VIRTUAL_RESOURCE_VERSION);
        let object = scene.stamp(copy);
        scene.settle(&key("settings"), &call, Ok(Answer { object }));
    }
    assert_eq!(calls, ["CreateDependent", "RevertDependent", "RevertDependent", "RevertDependent"]);
    assert_eq!(scene.call(&pod_key("web")).why, "CreateCopy", "pods start all the same");
    // A change of the source goes down at once.
    see_source(&mut scene, source("settings", &json!({"a": "2"})));
    assert_eq!(scene.call(&key("settings")).why, "UpdateDependent");
}

#[test]
fn a_pod_that_names_what_no_object_can_be_called_is_told() {
    let mut scene = Scene::new();
    scene.see_vpod(&mounts("web", "../../etc", false));
    let (reason, message) = told(&scene, "web");
    assert_eq!(reason, PendingReason::DependentMissing.as_str());
    assert!(message.contains("no object can have that name"), "{message}");
}

#[test]
fn law_11_pods_of_one_template_share_one_list_of_needs() {
    let mut scene = Scene::new();
    for pod in ["a", "b"] {
        let mut object = mounts(pod, "cfg", false);
        let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}});
        let access = json!({"name": format!("kube-api-access-{pod}"), "projected": {"sources": [token]}});
        object["spec"]["volumes"].as_array_mut().unwrap().push(access);
        scene.see_vpod(&object);
    }
    let users = &scene.pair.dependents.users;
    let [a, b] = ["a", "b"].map(|pod| Arc::clone(&users[&super::Who::Pod(Uid::new(format!("v-{pod}")))].needs));
    assert!(Arc::ptr_eq(&a, &b), "{a:?} {b:?}");
}

#[test]
fn law_11_rows_are_small() {
    assert!(size_of::<Source>() <= 40, "{}", size_of::<Source>());
    assert!(size_of::<DependentCopy>() <= 128, "{}", size_of::<DependentCopy>());
    assert!(size_of::<super::Case>() <= 144, "{}", size_of::<super::Case>());
    assert!(size_of::<super::TokenCase>() <= 176, "{}", size_of::<super::TokenCase>());
}
