//! Every place where a volume names a Secret, also those that are newer than this code.
//! It must not leave out a place: a name left as it was would read another user's Secret in the physical cluster.

use serde_json::{Map, Value};

use super::SecretName;

/// Texts for a driver, in which no key means anything to us.
const OPAQUE: [&str; 2] = ["volumeAttributes", "options"];

/// Shows each Secret that the spec of a volume names, and writes what it becomes. One without a namespace is in `default`.
pub(super) fn visit_secrets(
    spec: &mut Map<String, Value>,
    default: &str,
    visit: &mut dyn FnMut(SecretName) -> Option<SecretName>,
) {
    // Of the driver itself, or of Azure's files, which spell it in two fields.
    replace(spec, ["secretNamespace", "secretName"], default, visit);
    for (field, value) in spec.iter_mut() {
        match value {
            Value::Object(reference) if field == "secretRef" || field.ends_with("SecretRef") => {
                replace(reference, ["namespace", "name"], default, visit);
            }
            Value::Object(_) if OPAQUE.contains(&field.as_str()) => {}
            Value::Object(inner) => visit_secrets(inner, default, visit),
            Value::Array(items) => {
                for inner in items.iter_mut().filter_map(Value::as_object_mut) {
                    visit_secrets(inner, default, visit);
                }
            }
            _ => {}
        }
    }
}

fn replace(
    reference: &mut Map<String, Value>,
    [namespace, name]: [&str; 2],
    default: &str,
    visit: &mut dyn FnMut(SecretName) -> Option<SecretName>,
) {
    let text = |field: &str| reference.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let Some(named) = text(name) else { return };
    let secret = SecretName { namespace: text(namespace).unwrap_or(default).into(), name: named.into() };
    if let Some(becomes) = visit(secret) {
        reference.insert(namespace.to_owned(), String::from(becomes.namespace).into());
        reference.insert(name.to_owned(), String::from(becomes.name).into());
    }
}
