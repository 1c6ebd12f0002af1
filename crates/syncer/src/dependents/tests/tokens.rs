//! The life of a pod's tokens: issued before it starts, renewed in time, bound to what its copy was made with.

use super::*;
use tapestry_engine::Model as _;

pub(super) fn wants_token(pod: &str) -> Value {
    let mut object = vpod(pod);
    let token = json!({"serviceAccountToken": {"audience": "vault", "expirationSeconds": 3600, "path": "token"}});
    let volumes = json!([{"name": "vault", "projected": {"sources": [token]}}]);
    merge(&mut object, json!({"spec": {"serviceAccountName": "robot", "volumes": volumes}}));
    object
}

pub(super) fn token_key(pod: &str) -> Key {
    Key::Token(Uid::new(format!("v-{pod}")))
}

/// Writes the Secret as the gate would, to be renewed at this time.
pub(super) fn issue(scene: &mut Scene, pod: &str, refresh: &str) -> Value {
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

pub(super) fn see_tokens(scene: &mut Scene, secret: &Value) {
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
fn tokens_of_a_running_pod_stay_while_its_account_is_missing_and_are_renewed_when_it_is_back() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    start(&mut scene, "ci");
    scene.pass(Duration::from_mins(48));
    for _ in 0..2 {
        let status =
            Status { code: 404, message: "ServiceAccount demo/robot does not exist".into(), ..Default::default() };
        scene.refuse(&token_key("ci"), Refusal::Invalid(status.into()));
        assert_eq!(scene.call(&token_key("ci")).why, "RefreshToken");
    }
    assert_eq!(scene.pair.events.keys().count(), 1, "the pod is told once");
    let event = scene.pair.events.keys().next().map(|key| scene.call(&key)).unwrap();
    let body = event.body().unwrap();
    assert_eq!((&body["reason"], &body["involvedObject"]["uid"]), (&json!("TokenNotRenewed"), &json!("v-ci")));
    assert!(body["message"].as_str().unwrap().contains("demo/robot does not exist"), "{body}");
    issue(&mut scene, "ci", "2026-01-01T01:36:00Z");
    assert!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)));
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
        |secret| secret["data"]["0.0"] = json!("theirs"),
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

pub(super) fn push_volume(pod: &mut Value, of: &Value) {
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
fn tokens_that_another_leader_renewed_are_not_issued_again_when_leadership_returns() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    let mut secret = issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    scene.pair.follow();
    secret["data"] = json!({"0.0": "renewed"});
    see_tokens(&mut scene, &secret);
    scene.pass(Duration::from_secs(61));
    scene.pair.take_lead(scene.now);
    assert!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)), "{:?}", scene.plan(&token_key("ci")));
}

/// A token that says that it lives from 00:00 to 01:00, as a Secret holds it.
const AN_HOUR: &str = "ZTMwLmV5SnBZWFFpT2pFM05qY3lNalUyTURBc0ltVjRjQ0k2TVRjMk56SXlPVEl3TUgwLmMybG4=";

#[test]
fn tokens_are_renewed_in_time_whatever_another_client_writes_into_the_annotation() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    let mut secret = issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    secret["metadata"]["annotations"][keys::TOKEN_REFRESH] = json!("2099-01-01T00:00:00Z");
    see_tokens(&mut scene, &secret);
    scene.pass(Duration::from_secs(61));
    assert_eq!(scene.call(&token_key("ci")).why, "RefreshToken", "the process that wrote it knows");

    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    secret["data"] = json!({"0.0": AN_HOUR, "expired": "ZTMwLmV5SnBZWFFpT2pFc0ltVjRjQ0k2TW4wLmE="});
    see_tokens(&mut scene, &secret);
    let Plan::Wait(until) = scene.plan(&token_key("ci")) else { panic!("{:?}", scene.plan(&token_key("ci"))) };
    assert!(until.saturating_sub(scene.now.steady) <= Duration::from_mins(48), "{until:?}");
    scene.pass(Duration::from_mins(48));
    assert_eq!(scene.call(&token_key("ci")).why, "RefreshToken", "another one learns it from the token");
}

#[test]
fn a_secret_with_tokens_that_lost_all_marks_is_restored_by_a_process_that_knows_it() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    let mut secret = issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    start(&mut scene, "ci");
    (secret["metadata"]["labels"], secret["metadata"]["annotations"]) = (json!({}), json!({}));
    see_tokens(&mut scene, &secret);
    scene.pass(Duration::from_secs(61));
    let call = scene.call(&token_key("ci"));
    assert_eq!((call.why, call.target.uid.is_some()), ("RefreshToken", true));
}

#[test]
fn a_running_pod_is_told_once_that_another_object_has_the_name_of_its_tokens() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    let mut secret = issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    let ppod = start(&mut scene, "ci");
    // No process watches while all marks go.
    (secret["metadata"]["labels"], secret["metadata"]["annotations"]) = (json!({}), json!({}));

    for runs in [true, false] {
        let mut scene = Scene::new();
        admit(&mut scene, "ci", &wants_token("ci"));
        if runs {
            scene.see_ppod(&ppod);
        }
        see_tokens(&mut scene, &secret);
        scene.refuse(&token_key("ci"), Refusal::Exists);
        for _ in 0..2 {
            let look = scene.call(&token_key("ci"));
            assert_eq!(look.why, "LookForToken");
            let object = scene.stamp(secret.clone());
            scene.settle(&token_key("ci"), &look, Ok(Answer { object }));
            assert!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)));
            scene.pass(Duration::from_mins(5));
        }
        let events: Vec<_> = scene.pair.events.keys().map(|key| scene.call(&key)).collect();
        assert_eq!(events.len(), usize::from(runs), "{events:?}");
        for event in events {
            let body = event.body().unwrap();
            assert_eq!((&body["reason"], &body["involvedObject"]["uid"]), (&json!("TokenNotRenewed"), &json!("v-ci")));
            let name = secret["metadata"]["name"].as_str().unwrap();
            assert!(body["message"].as_str().unwrap().contains(&format!("Secret {name}")), "{body}");
        }
    }
}
