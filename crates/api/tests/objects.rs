//! The tables of good and bad objects agree with the types; end-to-end tests show what API servers answer.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use serde_json::Value;
use tapestry_api::{Binding, ClusterBinding, Policy, ResourceLeasingPolicy};

const GOOD: &str = include_str!("../testdata/good-objects.yaml");
const BAD: &str = include_str!("../testdata/bad-objects.yaml");

fn table(text: &str) -> Vec<Value> {
    let entries: Vec<Value> = serde_saphyr::from_str(text).unwrap();
    assert!(entries.len() > 10);
    entries
}

fn drop_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

/// Whether every field that the object has, and is not its type's zero, is in the copy.
fn lost(object: &Value, copy: &Value) -> bool {
    match (object, copy) {
        (Value::Object(object), Value::Object(copy)) => object.iter().any(|(key, value)| match copy.get(key) {
            Some(copy) => lost(value, copy),
            None => value != "",
        }),
        // A quantity that was a number is a string afterwards.
        (Value::Number(object), Value::String(copy)) => object.to_string() != *copy,
        (Value::Array(object), Value::Array(copy)) => {
            object.len() != copy.len() || object.iter().zip(copy).any(|(object, copy)| lost(object, copy))
        }
        _ => object != copy,
    }
}

#[test]
fn good_objects_go_through_our_types_without_loss() {
    for entry in table(GOOD) {
        let mut object = entry["object"].clone();
        drop_nulls(&mut object);
        let copy = match object["kind"].as_str().unwrap() {
            "ClusterBinding" => serde_json::to_value(serde_json::from_value::<ClusterBinding>(object.clone()).unwrap()),
            _ => serde_json::to_value(serde_json::from_value::<ResourceLeasingPolicy>(object.clone()).unwrap()),
        };
        let copy = copy.unwrap();
        assert!(!lost(&object, &copy), "{}: {object} became {copy}", entry["why"]);
    }
}

#[test]
fn good_objects_are_valid_unless_only_the_status_can_refuse_them() {
    for entry in table(GOOD) {
        let mut object = entry["object"].clone();
        drop_nulls(&mut object);
        // Fields that the API server adds.
        object["metadata"]["uid"] = "u".into();
        object["metadata"]["creationTimestamp"] = "2026-11-15T00:00:00Z".into();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        // What the status refuses with Failed, and a zone that no schema can know.
        let answered = ["good-empty", "good-missing", "good-late-mount", "good-unknown-zone"];
        let wanted = !answered.contains(&name.as_str());
        let obeyed = match object["kind"].as_str().unwrap() {
            "ClusterBinding" => Binding::parse(&serde_json::from_value(object).unwrap()).map(|_| ()),
            _ => Policy::parse(&serde_json::from_value(object).unwrap()).map(|_| ()),
        };
        assert_eq!(obeyed.is_ok(), wanted, "{name}: {obeyed:?}");
    }
}

#[test]
fn bad_objects_say_what_is_wrong_and_are_one_object_or_two() {
    for entry in table(BAD) {
        assert!(entry["why"].is_string() && entry["says"].is_string(), "{entry}");
        let (one, two) = (entry["object"].is_object(), entry["first"].is_object() && entry["then"].is_object());
        assert!(one != two, "{entry}");
    }
}
