//! Tests of copies of ConfigMaps and Secrets: what they hold, how they follow their source, and what never gets in.
//! They must not compare text: the order of JSON keys does not matter.

use proptest::prelude::*;

use super::DependentKind::{ConfigMap, Secret};
use super::*;

mod both_ways;

fn marks() -> Marks<'static> {
    Marks {
        labels: vec![("tapestry.io/managed-by", "tapestry".into()), ("tapestry.io/origin", "0123".into())],
        annotations: vec![("tapestry.io/cluster-binding", "worker".into())],
        salt: "vc/cb",
    }
}

/// A source with this content beside its metadata.
fn source(mut content: Value) -> Value {
    content["metadata"] = json!({ "name": "settings", "namespace": "team1", "uid": "u1", "resourceVersion": "7" });
    content
}

fn copy_of(kind: DependentKind, source: &Value) -> Value {
    render_copy(kind, &source.to_string(), "settings-x", "mount", &marks()).unwrap()
}

fn patch(source: &Value, copy: &Value) -> Option<Value> {
    render_patch(ConfigMap, &source.to_string(), &copy.to_string(), &marks()).unwrap()
}

fn digest(copy: &Value) -> CopyDigest {
    read_copy(ConfigMap, &copy.to_string()).unwrap()
}

/// What an API server does with a JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, change) in changes {
        if change.is_null() {
            target.as_object_mut().unwrap().remove(field);
        } else {
            merge(&mut target[field], change);
        }
    }
}

/// The copy after the patch that its source asks for.
fn followed(source: &Value, copy: &Value) -> Value {
    let mut copy = copy.clone();
    if let Some(patch) = patch(source, &copy) {
        merge(&mut copy, &patch);
    }
    assert_eq!(patch(source, &copy), None, "one patch is enough");
    copy
}

#[test]
fn law_07_a_copy_holds_what_its_source_holds() {
    let source = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "immutable": true, "newInKubernetes": { "deep": [1e-7, null] },
        "data": { "a": "1", "empty": "" }, "binaryData": { "b": "AAE=" },
        "metadata": {
            "name": "settings", "namespace": "team1", "uid": "u1", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["x"], "ownerReferences": [{ "uid": "o" }],
            "managedFields": [{ "manager": "kubectl" }],
            "labels": { "app": "web", "tapestry.io/origin": "forged" },
            "annotations": {
                "note": "kept", "tapestry.io/carried": "{}", "tapestry.io/virtual-uid": "forged",
                "kubectl.kubernetes.io/last-applied-configuration": "{}", "kubernetes.io/config.source": "file",
            },
        },
    });
    let mut copy = copy_of(ConfigMap, &source);
    let carried = copy["metadata"]["annotations"][keys::CARRIED].take();
    let carried: Map<String, Value> = serde_json::from_str(carried.as_str().unwrap()).unwrap();
    assert_eq!(carried.keys().collect::<Vec<_>>(), ["a", "b", "empty"]);
    assert!(carried.values().all(|mark| mark.as_str().unwrap().len() == 10));
    assert_eq!(
        copy,
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "immutable": true, "newInKubernetes": { "deep": [1e-7, null] },
            "data": { "a": "1", "empty": "" }, "binaryData": { "b": "AAE=" },
            "metadata": {
                "name": "settings-x", "namespace": "mount",
                "labels": { "app": "web", "tapestry.io/managed-by": "tapestry", "tapestry.io/origin": "0123" },
                "annotations": {
                    "note": "kept", "tapestry.io/cluster-binding": "worker", "tapestry.io/origin": "vc/cb",
                    "tapestry.io/virtual-namespace": "team1", "tapestry.io/virtual-name": "settings",
                    "tapestry.io/virtual-uid": "u1", "tapestry.io/virtual-resource-version": "7",
                    "tapestry.io/carried": null,
                },
            },
        })
    );
}

#[test]
fn a_token_of_the_physical_cluster_never_gets_into_a_copy() {
    let mut token = source(json!({ "type": "kubernetes.io/service-account-token", "data": { "token": "dg==" } }));
    token["metadata"]["annotations"] = json!({ "kubernetes.io/service-account.name": "admin", "kubernetes.io/service-account.uid": "u", "kept": "yes" });
    let copy = copy_of(Secret, &token);
    assert_eq!(copy["type"], "Opaque");
    assert_eq!(copy["data"], json!({ "token": "dg==" }));
    let annotations = copy["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations["kept"], "yes");
    assert!(!annotations.keys().any(|key| key.starts_with("kubernetes.io/service-account")), "{annotations:?}");
    assert_eq!(patch(&token, &copy), None);
}

#[test]
fn other_types_of_secrets_are_kept_and_string_data_is_not() {
    let pull = source(
        json!({ "type": "kubernetes.io/dockerconfigjson", "stringData": { "s": "x" }, "data": { ".dockerconfigjson": "e30=" } }),
    );
    let copy = copy_of(Secret, &pull);
    assert_eq!(copy["type"], "kubernetes.io/dockerconfigjson");
    assert_eq!(copy.get("stringData"), None);
}

#[test]
fn a_copy_that_carries_its_source_needs_no_patch() {
    let source = source(json!({ "data": { "a": "1" }, "binaryData": { "b": "AAE=" } }));
    let copy = copy_of(ConfigMap, &source);
    assert_eq!(patch(&source, &copy), None);
    let expected = CopyDigest { intact: true, changes: Changes::None, ..CopyDigest::default() };
    assert_eq!(digest(&copy), expected);
}

#[test]
fn a_patch_says_only_what_differs() {
    let before = source(json!({ "data": { "a": "1", "same": "s", "gone": "x" } }));
    let copy = copy_of(ConfigMap, &before);
    let mut after = source(json!({ "data": { "a": "2", "same": "s", "new": "n" } }));
    after["metadata"]["resourceVersion"] = "8".into();
    after["metadata"]["labels"] = json!({ "app": "web" });
    let mut patch = patch(&after, &copy).unwrap();
    let annotations = patch["metadata"]["annotations"].as_object_mut().unwrap();
    assert!(annotations.remove(keys::CARRIED).is_some());
    assert_eq!(
        patch,
        json!({
            "data": { "a": "2", "new": "n", "gone": null },
            "metadata": { "labels": { "app": "web" }, "annotations": { "tapestry.io/virtual-resource-version": "8" } },
        })
    );
}

#[test]
fn keys_that_others_added_to_a_copy_stay_and_drift_of_ours_is_undone() {
    let source = source(json!({ "data": { "a": "1", "b": "2" } }));
    let mut copy = copy_of(ConfigMap, &source);
    copy["data"]["theirs"] = "kept".into();
    assert!(digest(&copy).intact);
    copy["data"]["a"] = "changed".into();
    copy["data"].as_object_mut().unwrap().remove("b");
    assert!(!digest(&copy).intact);
    let copy = followed(&source, &copy);
    assert_eq!(copy["data"], json!({ "a": "1", "b": "2", "theirs": "kept" }));
    assert!(digest(&copy).intact);
}

#[test]
fn a_key_that_moves_to_binary_data_is_in_one_field_only() {
    let copy = copy_of(ConfigMap, &source(json!({ "data": { "a": "AAE=" } })));
    let copy = followed(&source(json!({ "binaryData": { "a": "AAE=" } })), &copy);
    assert_eq!((&copy["data"], &copy["binaryData"]), (&json!({}), &json!({ "a": "AAE=" })));
    assert!(digest(&copy).intact);
}

#[test]
fn a_copy_without_readable_marks_is_not_intact_and_loses_no_key_of_others() {
    let source = source(json!({ "data": { "a": "1" } }));
    for damaged in [json!(null), json!("not json"), json!("[]"), json!(7)] {
        let mut copy = copy_of(ConfigMap, &source);
        copy["data"]["theirs"] = "kept".into();
        copy["metadata"]["annotations"][keys::CARRIED] = damaged;
        assert!(!digest(&copy).intact);
        let copy = followed(&source, &copy);
        assert_eq!(copy["data"], json!({ "a": "1", "theirs": "kept" }));
        assert!(digest(&copy).intact);
    }
}

#[test]
fn a_copy_with_very_many_keys_is_kept_exactly_equal_to_its_source() {
    let keys = |count: usize| (0..count).map(|number| (format!("key-{number:05}"), json!("v"))).collect::<Map<_, _>>();
    let many = source(json!({ "data": keys(5000) }));
    let mut copy = copy_of(ConfigMap, &many);
    assert!(copy["metadata"]["annotations"][keys::CARRIED].as_str().unwrap().len() < 100);
    assert!(digest(&copy).intact);
    copy["data"]["theirs"] = "goes".into();
    assert!(!digest(&copy).intact);
    let copy = followed(&many, &copy);
    assert_eq!(copy["data"], many["data"]);
    // From many to few: the rest goes, although no list says whose it was.
    let few = source(json!({ "data": keys(2) }));
    let copy = followed(&few, &copy);
    assert_eq!(copy["data"], few["data"]);
    assert!(digest(&copy).intact);
}

#[test]
fn an_immutable_source_makes_its_copy_immutable_and_a_mutable_one_asks_for_another_copy() {
    let mutable = source(json!({ "data": { "a": "1" } }));
    let immutable = source(json!({ "data": { "a": "1" }, "immutable": true }));
    let copy = copy_of(ConfigMap, &mutable);
    assert_eq!(patch(&immutable, &copy), Some(json!({ "immutable": true })));
    let copy = followed(&immutable, &copy);
    assert!(digest(&copy).immutable);
    assert_eq!(patch(&mutable, &copy), Some(json!({ "immutable": null })), "an API server refuses it");
}

#[test]
fn an_empty_value_of_a_secret_may_be_null() {
    let empty = source(json!({ "data": { "a": null }, "binaryData": null, "type": null, "immutable": null }));
    let copy = copy_of(Secret, &empty);
    assert_eq!(copy["data"], json!({ "a": "" }));
    assert_eq!(copy.get("type"), None);
    assert!(digest(&copy).intact);
}

#[test]
fn law_10_no_error_and_no_mark_shows_a_value() {
    for text in [
        r#"{"metadata":{"name":"x"},"data":{"password":["hunter2"]}}"#,
        r#"{"metadata":{"name":"x"},"data":"hunter2"}"#,
        r#"{"metadata":"hunter2"}"#,
        r#"{"data":{"password":"hunter2"}}"#,
        "hunter2",
    ] {
        let error = render_copy(Secret, text, "x", "mount", &marks()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        assert!(error.to_string().starts_with("the Secret cannot be read"), "{error}");
        assert_eq!(read_copy(Secret, text).unwrap_err(), error);
        assert_eq!(render_patch(Secret, text, text, &marks()), Err(error));
    }
    let copy = copy_of(Secret, &source(json!({ "data": { "password": "hunter2" } })));
    assert!(!copy["metadata"].to_string().contains("hunter2"));
    let theirs = Marks { salt: "vc/other", ..marks() };
    let text = source(json!({ "data": { "password": "hunter2" } })).to_string();
    let other = render_copy(Secret, &text, "x", "mount", &theirs).unwrap();
    let mark = |copy: &Value| copy["metadata"]["annotations"][keys::CARRIED].clone();
    assert_ne!(mark(&copy), mark(&other), "equal values of two origins cannot be recognised");
}

fn values() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-e]", "[xyz\\PC]{0,3}", 0..5).prop_map(|map| json!(map))
}

/// Content whose keys are in one field only, as an API server demands.
fn content() -> impl Strategy<Value = Value> {
    let unknown =
        prop_oneof![Just(json!(null)), Just(json!({ "x": { "y": 1 } })), Just(json!({ "x": 2, "z": [null] }))];
    let labels = prop::collection::btree_map("[lm]", "[a-c]", 0..3);
    (values(), values(), unknown, labels, 1..9u32).prop_map(|(data, mut binary, unknown, labels, version)| {
        binary.as_object_mut().unwrap().retain(|key, _| data.get(key).is_none());
        let mut content = source(json!({ "data": data, "binaryData": binary, "newInKubernetes": unknown }));
        content["metadata"]["labels"] = json!(labels);
        content["metadata"]["resourceVersion"] = version.to_string().into();
        content
    })
}

proptest! {
    #[test]
    fn one_patch_carries_any_change_and_then_nothing_differs(before in content(), after in content(), added in values()) {
        let mut copy = copy_of(ConfigMap, &before);
        let added: Vec<String> = added.as_object().unwrap().keys().map(|key| format!("theirs-{key}")).collect();
        for key in &added {
            copy["data"][key] = "theirs".into();
        }
        let copy = followed(&after, &copy);
        prop_assert!(digest(&copy).intact);
        for field in ["data", "binaryData"] {
            let mut there = copy.get(field).cloned().unwrap_or(json!({}));
            let theirs = there.as_object_mut().unwrap();
            for key in &added {
                prop_assert!(field != "data" || theirs.remove(key).is_some());
            }
            prop_assert_eq!(&there, &after[field]);
        }
        if !after["newInKubernetes"].is_null() {
            prop_assert_eq!(&copy["newInKubernetes"], &after["newInKubernetes"]);
        }
        prop_assert_eq!(&copy["metadata"]["annotations"][keys::VIRTUAL_RESOURCE_VERSION], &after["metadata"]["resourceVersion"]);
    }

    #[test]
    fn any_drift_of_a_carried_value_is_seen(content in content(), value in "[xyz]{4}") {
        let copy = copy_of(ConfigMap, &content);
        for field in ["data", "binaryData"] {
            for key in content[field].as_object().unwrap().keys() {
                let mut drifted = copy.clone();
                drifted[field][key] = value.clone().into();
                prop_assert!(!digest(&drifted).intact);
                drifted[field].as_object_mut().unwrap().remove(key);
                prop_assert!(!digest(&drifted).intact);
            }
        }
    }
}
