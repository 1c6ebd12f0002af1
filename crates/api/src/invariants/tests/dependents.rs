//! The same for ConfigMaps, Secrets and tokens.

use super::*;
use tapestry_domain::dependents::{Marks as CopyMarks, render_copy};
use tapestry_domain::names;
use tapestry_domain::tokens::{Bearer, read_grant, render_secret};

const KIND: DependentKind = DependentKind::Secret;

fn label() -> String {
    names::origin_hash("v", "b")
}

fn marks() -> CopyMarks<'static> {
    let labels =
        [(keys::MANAGED_BY, "tapestry".to_owned()), (keys::CLUSTER_BINDING, "b".to_owned()), (keys::ORIGIN, label())];
    CopyMarks { labels: labels.into(), annotations: vec![(keys::ORIGIN, ORIGIN.to_owned())], salt: ORIGIN }
}

fn source() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": { "password": "aHVzaA==" },
        "metadata": { "name": "db", "namespace": "shop", "uid": "s1", "resourceVersion": "7" },
    })
}

fn copy() -> Value {
    let name = names::dependent_name(&label(), "shop", "db");
    let copy = render_copy(KIND, &source().to_string(), &name, "mount", &marks()).unwrap();
    with(copy, "/metadata/uid", "c1")
}

fn user() -> Value {
    with(vpod(), "/spec/volumes", json!([{ "name": "db", "secret": { "secretName": "db" } }]))
}

fn bearer() -> Value {
    let token = json!({ "serviceAccountToken": { "audience": "vault", "path": "token" } });
    with(vpod(), "/spec/volumes", json!([{ "name": "token", "projected": { "sources": [token] } }]))
}

fn tokens() -> Value {
    let spec = bearer()["spec"].to_string();
    let asks = serde_json::from_str::<tapestry_domain::podspec::SpecNeeds<'_>>(&spec).unwrap().tokens(false);
    let answer = br#"{"status":{"token":"t","expirationTimestamp":"2026-01-05T01:00:00Z"}}"#;
    let grants: Vec<_> = asks.iter().map(|ask| read_grant(ask, answer).unwrap()).collect();
    let bearer = Bearer { namespace: "shop", name: "web", uid: "v1" };
    let name = names::token_secret_name(&label(), "v1", "web");
    let mut secret = render_secret(&grants, &bearer, &name, "mount", &marks());
    secret["data"] = secret["stringData"].take();
    secret
}

fn violations(vpods: &[Value], copies: &[Value]) -> Vec<String> {
    look_at(vpods, copies).0
}

/// All violations, and what is left alone.
fn look_at(vpods: &[Value], copies: &[Value]) -> (Vec<String>, Vec<String>) {
    let (source, ppods) = (source(), if vpods.is_empty() { Vec::new() } else { vec![ppod()] });
    let snapshot = Snapshot {
        origin: ORIGIN,
        vpods: vpods.iter().collect(),
        ppods: ppods.iter().collect(),
        vnodes: Vec::new(),
        pnodes: Vec::new(),
        sources: vec![(KIND, &source)],
        dependents: copies.iter().map(|copy| (KIND, copy)).collect(),
        services: CarriedServices::default(),
        volumes: Vec::new(),
        claims: Vec::new(),
        api_access: false,
        limits: &|_| Some(Vec::new()),
    };
    (snapshot.violations(), snapshot.taken_names())
}

#[track_caller]
fn finds(vpod: Value, copies: &[Value], words: &str) {
    let found = violations(&[vpod], copies);
    assert!(found.iter().any(|violation| violation.contains(words)), "{words:?} is not in {found:#?}");
}

fn without(mut copy: Value, field: &str, key: &str) -> Value {
    copy["metadata"][field].as_object_mut().unwrap().remove(key).unwrap();
    copy
}

#[test]
fn copies_that_are_as_they_must_be_violate_nothing() {
    assert_eq!(violations(&[user()], &[copy()]), [""; 0]);
    assert_eq!(violations(&[bearer()], &[tokens()]), [""; 0]);
    assert_eq!(violations(&[], &[]), [""; 0]);
}

#[test]
fn a_missing_copy_and_missing_tokens_are_found() {
    finds(user(), &[], "which has no copy");
    finds(bearer(), &[], "needs tokens and has none");
}

#[test]
fn what_only_an_ephemeral_container_names_that_is_not_pushed_needs_no_copy() {
    let debug = json!([{ "name": "debug", "envFrom": [{ "secretRef": { "name": "db" } }] }]);
    let debugged = with(vpod(), "/spec/ephemeralContainers", debug.clone());
    finds(debugged.clone(), &[], "which has no copy");
    let held = json!([{ "type": keys::CONDITION_CHANGES_PUSHED, "status": "False" }]);
    assert_eq!(violations(&[with(debugged, "/status/conditions", held.clone())], &[]), [""; 0]);
    let user = with(with(user(), "/spec/ephemeralContainers", debug), "/status/conditions", held);
    finds(user, &[], "which has no copy");
}

#[test]
fn a_copy_that_no_pod_uses_is_found_and_an_imitation_of_one_is_not() {
    for copy in
        [copy(), tokens(), without(copy(), "annotations", keys::ORIGIN), without(copy(), "labels", keys::ORIGIN)]
    {
        assert!(violations(&[], &[copy])[0].contains("is used by no pod"));
    }
    assert_eq!(violations(&[], &[with(copy(), "/metadata/name", "db-backup")]), [""; 0]);
}

#[test]
fn lost_marks_and_back_pointers_are_found() {
    for key in [keys::ORIGIN, keys::VIRTUAL_NAMESPACE, keys::VIRTUAL_NAME, keys::VIRTUAL_UID] {
        finds(user(), &[without(copy(), "annotations", key)], key);
    }
    for key in [keys::ORIGIN, keys::VIRTUAL_POD_NAMESPACE, keys::VIRTUAL_POD_NAME, keys::VIRTUAL_POD_UID] {
        finds(bearer(), &[without(tokens(), "annotations", key)], key);
    }
    for (vpod, copy) in [(user(), copy()), (bearer(), tokens())] {
        finds(vpod, &[with(copy, "/metadata/labels", json!({}))], "lacks label");
    }
}

#[test]
fn a_copy_without_any_origin_that_points_back_is_found_and_a_stranger_under_its_name_is_told_apart() {
    let unmarked = without(without(copy(), "annotations", keys::ORIGIN), "labels", keys::ORIGIN);
    finds(user(), &[unmarked], "which has no copy");
    let stranger = json!({ "metadata": { "name": copy()["metadata"]["name"], "namespace": "mount", "uid": "x" } });
    let (found, told) = look_at(&[user()], std::slice::from_ref(&stranger));
    assert_eq!(found, [""; 0], "it is left alone");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("Secret db") && told[0].contains("is not ours"), "{told:?}");
    let other = with(stranger, "/metadata/name", tokens()["metadata"]["name"].clone());
    assert_eq!(look_at(&[bearer()], &[other]).1.len(), 1);
    assert_eq!(look_at(&[user(), bearer()], &[copy(), tokens()]).1, [""; 0]);
}

#[test]
fn values_that_differ_are_found_and_not_repeated() {
    let changed = with(copy(), "/data/password", "dGhlaXJz");
    finds(user(), std::slice::from_ref(&changed), "was changed by another client");
    finds(user(), std::slice::from_ref(&changed), "does not have data[password]");
    assert!(!violations(&[user()], &[changed]).concat().contains("aHVz"));
    let mut old = copy();
    old["metadata"]["annotations"][keys::VIRTUAL_RESOURCE_VERSION] = json!("6");
    finds(user(), &[old], "does not hold version 7");
    finds(bearer(), &[with(tokens(), "/data", json!({}))], "does not have token");
}
