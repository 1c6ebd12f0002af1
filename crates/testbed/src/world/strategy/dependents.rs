//! What the API server does to ConfigMaps and Secrets: the type of a Secret, `stringData`, and `immutable`.
//! Knows nothing of copies.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::super::server::Denial;
use super::drop_empty;

/// Defaults of a new Secret.
pub(super) fn prepare_secret(secret: &mut Value) {
    if secret.get("type").is_none() {
        secret["type"] = json!("Opaque");
    }
}

/// Encodes `stringData` into `data`, and drops what is empty.
pub(super) fn normalise(object: &mut Value) {
    let given = object.as_object_mut().and_then(|object| object.remove("stringData"));
    for (key, text) in given.as_ref().and_then(Value::as_object).into_iter().flatten() {
        let bytes = text.as_str().unwrap_or_default().as_bytes().to_vec();
        object["data"][key] = json!(ByteString(bytes));
    }
    for field in ["data", "binaryData"] {
        drop_empty(object, field);
    }
}

/// Refuses values that are no text, another type, and changes of an immutable object.
pub(super) fn validate(old: Option<&Value>, new: &Value) -> Result<(), Denial> {
    for field in ["data", "binaryData", "stringData"] {
        let texts = |values: &Value| values.as_object().is_some_and(|values| values.values().all(Value::is_string));
        if new.get(field).is_some_and(|values| !texts(values)) {
            return Err(Denial::bad_request(format!("{field} is not a map of strings")));
        }
    }
    let Some(old) = old else { return Ok(()) };
    if old.get("type") != new.get("type") {
        return Err(Denial::invalid("type", "field is immutable"));
    }
    if old["immutable"] == true {
        for field in ["immutable", "data", "binaryData"] {
            if old.get(field) != new.get(field) {
                return Err(Denial::fixed(field, FIXED));
            }
        }
        if new.get("stringData").is_some() {
            return Err(Denial::fixed("data", FIXED));
        }
    }
    Ok(())
}

const FIXED: &str = "field is immutable when `immutable` is set";
