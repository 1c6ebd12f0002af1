//! The life of one ConfigMap, Secret and token beside the pods that need them, call by call.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::call::token::Tokens;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::refusal::{Cause, Details, Status};
use tapestry_cluster::{Answer, Call, Refusal, Side, Uid, Verb};
use tapestry_domain::dependents::{DependentKind, Marks, render_copy};
use tapestry_engine::{Plan, Reason as _};

use super::Id;
use super::row::{DependentCopy, Source};
use crate::pair::{Fact, Key};
use crate::pods::admission::PendingReason;
use crate::pods::row::VPod;
use crate::scene::{Scene, created, mapped, merge, name, vpod};

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
fn law_01_no_copy_is_removed_while_it_is_unknown_what_a_copied_pod_needs() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let copy = carry(&mut scene, "settings", &text);
    let ppod = start(&mut scene, "web");

    // A process that starts, sees both copies, and does not see the pod.
    let mut scene = Scene::new();
    see_source(&mut scene, source("settings", &json!({"a": "1"})));
    see_copy(&mut scene, &copy);
    scene.see_ppod(&ppod);
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
    // When the copied pod is gone, nothing can need it any more.
    let mut gone = ppod.clone();
    merge(&mut gone, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    scene.lose_ppod(&gone, true);
    assert_eq!(scene.call(&key("settings")).why, "RemoveDependent");
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
fn law_01_a_copy_in_use_stays_when_a_policy_of_the_cluster_refuses_its_new_values() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    carry(&mut scene, "settings", &text);
    start(&mut scene, "web");
    see_source(&mut scene, source("settings", &json!({"a": "forbidden"})));
    let message = "ValidatingAdmissionPolicy 'owner' denied request".to_owned();
    let status = Status { code: 422, message, ..Default::default() };
    scene.refuse(&key("settings"), Refusal::Invalid(Box::new(status)));
    let call = scene.call(&key("settings"));
    assert_eq!(call.why, "UpdateDependent", "it is tried again, and nothing is deleted");
    scene.see_vpod(&mounts("late", "settings", false));
    let (reason, message) = told(&scene, "late");
    assert_eq!(reason, PendingReason::DependentRefused.as_str());
    assert!(message.contains("'owner' denied"), "{message}");
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
fn law_01_an_emptied_list_of_copies_or_sources_removes_nothing() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let copy = carry(&mut scene, "settings", &text);
    start(&mut scene, "web");
    scene.see(Fact::Source(MAP, Change::Listed(Epoch(2))));
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
    scene.see(Fact::DependentCopy(MAP, Change::Listed(Epoch(2))));
    assert_eq!(scene.plan(&key("settings")), Plan::Rest, "without a source there is nothing to write");
    see_source(&mut scene, source("settings", &json!({"a": "1"})));
    assert_eq!(scene.call(&key("settings")).why, "CreateDependent");
    see_copy(&mut scene, &copy);
    assert_eq!(scene.call(&key("settings")).why, "UpdateDependent", "the version of the source is another");
}

#[test]
fn law_01_an_emptied_list_of_pods_on_either_side_removes_nothing() {
    for physical in [false, true] {
        let mut scene = Scene::new();
        let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
        let mut web = mounts("web", "settings", false);
        push_volume(&mut web, &wants_token("web"));
        web["spec"]["serviceAccountName"] = json!("robot");
        admit(&mut scene, "web", &web);
        carry(&mut scene, "settings", &text);
        issue(&mut scene, "web", "2026-01-01T00:48:00Z");
        start(&mut scene, "web");
        scene.see(if physical { Fact::PPod(Change::Listed(Epoch(2))) } else { Fact::VPod(Change::Listed(Epoch(2))) });
        assert_eq!(scene.plan(&key("settings")), Plan::Rest, "physical: {physical}");
        assert!(matches!(scene.plan(&token_key("web")), Plan::Wait(_)), "physical: {physical}");
    }
}

#[test]
fn a_pod_that_names_what_no_object_can_be_called_is_told() {
    let mut scene = Scene::new();
    scene.see_vpod(&mounts("web", "../../etc", false));
    let (reason, message) = told(&scene, "web");
    assert_eq!(reason, PendingReason::DependentMissing.as_str());
    assert!(message.contains("no object can have that name"), "{message}");
}

// ---- tokens ----

fn wants_token(pod: &str) -> Value {
    let mut object = vpod(pod);
    let token = json!({"serviceAccountToken": {"audience": "vault", "expirationSeconds": 3600, "path": "token"}});
    let volumes = json!([{"name": "vault", "projected": {"sources": [token]}}]);
    merge(&mut object, json!({"spec": {"serviceAccountName": "robot", "volumes": volumes}}));
    object
}

fn token_key(pod: &str) -> Key {
    Key::Token(Uid::new(format!("v-{pod}")))
}

/// Writes the Secret as the gate would, to be renewed at this time.
fn issue(scene: &mut Scene, pod: &str, refresh: &str) -> Value {
    let call = scene.call(&token_key(pod));
    let Verb::Token { account, pod: bound, .. } = &call.verb else { panic!("no token: {call}") };
    assert_eq!((account.side, account.name.as_str()), (Side::Virtual, "robot"));
    assert_eq!(bound.name.as_str(), pod);
    let secret = issued(&call, refresh);
    let object = scene.stamp(secret.clone());
    scene.settle(&token_key(pod), &call, Ok(Answer { object }));
    secret
}

/// The Secret as a server stores it.
fn issued(call: &Call, refresh: &str) -> Value {
    let tokens = Tokens::of(call).unwrap();
    let answer = br#"{"status":{"token":"t","expirationTimestamp":"2026-01-01T01:00:00Z"}}"#;
    let grants: Vec<_> = tokens.asks.iter().map(|ask| tokens.read(ask, answer).unwrap()).collect();
    let mut secret = tokens.write(&grants).body().unwrap().into_owned();
    secret["data"] = secret["stringData"].take();
    secret["metadata"]["uid"] = json!(format!("t-{}", tokens.pod.name));
    (secret["metadata"]["name"], secret["metadata"]["namespace"]) = (json!(call.target.name.as_str()), json!("mount"));
    secret["metadata"]["annotations"][keys::TOKEN_REFRESH] = json!(refresh);
    secret
}

fn see_tokens(scene: &mut Scene, secret: &Value) {
    let text = scene.stamp(secret.clone());
    let row = DependentCopy::decode(&text, DependentKind::Secret, &scene.pair.origin).unwrap().unwrap();
    scene.see(Fact::DependentCopy(DependentKind::Secret, Change::Put(row, Epoch(1))));
}

#[test]
fn a_token_is_issued_before_its_pod_starts_and_renewed_in_time() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    assert_eq!(scene.plan(&pod_key("ci")), Plan::Rest);
    assert_eq!(scene.call(&token_key("ci")).why, "CreateToken");
    issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    assert_eq!(scene.call(&pod_key("ci")).why, "CreateCopy");
    assert!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)));
    scene.pass(Duration::from_mins(48));
    let call = scene.call(&token_key("ci"));
    assert_eq!(call.why, "RefreshToken");
    assert!(call.target.uid.is_some());
}

#[test]
fn a_pod_whose_account_is_missing_says_so() {
    let mut scene = Scene::new();
    let ci = admit(&mut scene, "ci", &wants_token("ci"));
    let message = "ServiceAccount demo/robot does not exist".into();
    let status = Status { code: 404, message, ..Default::default() };
    scene.refuse(&token_key("ci"), Refusal::Invalid(status.into()));
    scene.see_vpod(&ci);
    let (reason, message) = told(&scene, "ci");
    assert_eq!(reason, PendingReason::TokenRefused.as_str());
    assert!(message.contains("demo/robot does not exist"), "{message}");
}

#[test]
fn tokens_go_with_their_pod() {
    let mut scene = Scene::new();
    let ci = admit(&mut scene, "ci", &wants_token("ci"));
    issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    let mut gone = ci;
    merge(
        &mut gone,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}}),
    );
    scene.see_vpod(&gone);
    let call = scene.call(&token_key("ci"));
    assert_eq!(call.why, "RemoveToken");
    assert!(call.target.uid.is_some() && call.target.rv.is_some());
}

#[test]
fn law_05_a_secret_of_the_tokens_name_that_is_not_ours_is_left_alone_and_not_read_again_and_again() {
    let mut scene = Scene::new();
    let ci = admit(&mut scene, "ci", &wants_token("ci"));
    scene.refuse(&token_key("ci"), Refusal::Exists);
    let look = scene.call(&token_key("ci"));
    assert_eq!((look.why, &look.verb), ("LookForToken", &Verb::Peek));
    let foreign = json!({"metadata": {"name": look.target.name.as_str(), "namespace": "mount", "uid": "theirs"}});
    let object = scene.stamp(foreign);
    scene.settle(&token_key("ci"), &look, Ok(Answer { object }));
    assert!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)), "{:?}", scene.plan(&token_key("ci")));
    scene.see_vpod(&ci);
    assert_eq!(told(&scene, "ci").0, PendingReason::TokenRefused.as_str());
}

#[test]
fn tokens_that_another_client_changed_emptied_or_unmarked_are_issued_again_and_at_most_once_a_minute() {
    let changes: [fn(&mut Value); 4] = [
        |secret| secret["data"]["vault.0"] = json!("theirs"),
        |secret| secret["data"] = json!({}),
        |secret| secret["metadata"]["labels"] = json!({}),
        |secret| drop(secret["metadata"]["annotations"].as_object_mut().unwrap().remove(keys::VIRTUAL_POD_UID)),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut scene = Scene::new();
        admit(&mut scene, "ci", &wants_token("ci"));
        let mut secret = issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
        change(&mut secret);
        see_tokens(&mut scene, &secret);
        assert!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)), "{number}");
        scene.pass(Duration::from_secs(61));
        let call = scene.call(&token_key("ci"));
        assert_eq!((call.why, call.target.uid.is_some()), ("RefreshToken", true), "{number}");
        issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
        assert!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)), "{number}");
    }
}

#[test]
fn a_secret_with_tokens_that_another_client_made_immutable_is_replaced() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    scene.pass(Duration::from_mins(48));
    scene.refuse(&token_key("ci"), fixed());
    let call = scene.call(&token_key("ci"));
    assert_eq!((call.why, call.target.rv.is_some()), ("ReplaceToken", true));
    scene.settle(&token_key("ci"), &call, Ok(Answer { object: "{}".into() }));
    assert_eq!(scene.call(&token_key("ci")).why, "CreateToken");
}

/// With the volume that the virtual cluster injects.
fn injected(pod: &str) -> Value {
    let mut object = vpod(pod);
    let sources = json!([
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]);
    let volumes = json!([{"name": "kube-api-access-abcde", "projected": {"sources": sources}}]);
    merge(&mut object, json!({"spec": {"serviceAccountName": "robot", "volumes": volumes}}));
    object
}

/// The binding has an address of the virtual API server, or has none.
fn reach(scene: &mut Scene, server: bool) {
    scene.see_binding(if server { json!({"virtualAPIServer": {"host": "10.9.8.7", "port": 6443}}) } else { json!({}) });
    scene.prepare();
}

fn push_volume(pod: &mut Value, of: &Value) {
    pod["spec"]["volumes"].as_array_mut().unwrap().push(of["spec"]["volumes"][0].clone());
}

#[test]
fn law_01_a_copy_keeps_its_token_and_ca_when_the_address_of_the_virtual_api_server_is_taken_back() {
    let mut scene = Scene::new();
    reach(&mut scene, true);
    let text = see_source(&mut scene, source("kube-root-ca.crt", &json!({"ca.crt": "pem"})));
    admit(&mut scene, "ci", &injected("ci"));
    carry(&mut scene, "kube-root-ca.crt", &text);
    issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    start(&mut scene, "ci");
    reach(&mut scene, false);
    assert_eq!(scene.plan(&key("kube-root-ca.crt")), Plan::Rest, "a running pod mounts it");
    assert!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)), "a running pod mounts it");
    scene.pass(Duration::from_mins(48));
    assert_eq!(scene.call(&token_key("ci")).why, "RefreshToken");
    // A pod that is made now gets neither.
    admit(&mut scene, "late", &injected("late"));
    assert_eq!(scene.plan(&token_key("late")), Plan::Rest);
    let late = created(&scene.call(&pod_key("late")));
    assert!(late["spec"]["volumes"].as_array().is_none_or(Vec::is_empty), "{late}");
}

#[test]
fn a_running_pod_gets_no_token_when_an_address_of_the_virtual_api_server_is_set_and_a_waiting_one_does() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &injected("ci"));
    start(&mut scene, "ci");
    let mut both = injected("late");
    push_volume(&mut both, &wants_token("late"));
    admit(&mut scene, "late", &both);
    issue(&mut scene, "late", "2026-01-01T00:48:00Z");
    reach(&mut scene, true);
    assert_eq!(scene.plan(&token_key("ci")), Plan::Rest, "nothing in its copy would read it");
    let text = see_source(&mut scene, source("kube-root-ca.crt", &json!({"ca.crt": "pem"})));
    carry(&mut scene, "kube-root-ca.crt", &text);
    assert_eq!(scene.plan(&pod_key("late")), Plan::Rest, "one of its two tokens is missing");
    scene.pass(Duration::from_secs(61));
    let call = scene.call(&token_key("late"));
    let Verb::Token { asks, .. } = &call.verb else { panic!("{call}") };
    assert_eq!((call.why, asks.len()), ("RefreshToken", 2));
    issue(&mut scene, "late", "2026-01-01T00:48:00Z");
    assert_eq!(scene.call(&pod_key("late")).why, "CreateCopy");
}

#[test]
fn law_11_tokens_whose_time_has_come_before_they_did_are_not_issued_again_at_once() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    issue(&mut scene, "ci", "2025-12-31T00:00:00Z");
    let Plan::Wait(again) = scene.plan(&token_key("ci")) else { panic!("{:?}", scene.plan(&token_key("ci"))) };
    scene.pass(again.saturating_sub(scene.now.steady) + Duration::from_secs(1));
    assert_eq!(scene.call(&token_key("ci")).why, "RefreshToken");
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
    let [a, b] = ["a", "b"].map(|pod| Arc::clone(&users[&Uid::new(format!("v-{pod}"))]));
    assert!(Arc::ptr_eq(&a, &b), "{a:?} {b:?}");
}

#[test]
fn law_11_rows_are_small() {
    assert!(size_of::<Source>() <= 32, "{}", size_of::<Source>());
    assert!(size_of::<DependentCopy>() <= 96, "{}", size_of::<DependentCopy>());
    assert!(size_of::<super::Case>() <= 136, "{}", size_of::<super::Case>());
    assert!(size_of::<super::TokenCase>() <= 152, "{}", size_of::<super::TokenCase>());
}
