//! JSON merge patches (RFC 7396) that make one object say what another says. Knows no kind.

use serde_json::{Map, Value};

/// Adds changes of a field, if there are any.
pub(crate) fn insert(patch: &mut Map<String, Value>, field: &str, changes: Map<String, Value>) {
    if !changes.is_empty() {
        patch.insert(field.to_owned(), Value::Object(changes));
    }
}

/// What a merge patch must say so that each of these fields becomes as wanted; fields that only the copy has stay.
pub(crate) fn changed(wanted: Map<String, Value>, there: &Map<String, Value>) -> Map<String, Value> {
    let differs = |(field, value): (String, Value)| {
        let change = difference(there.get(&field), value)?;
        Some((field, change))
    };
    wanted.into_iter().filter_map(differs).collect()
}

/// A merge patch from one value to another. In it `null` means absent, and objects are merged: what they lost must be named.
pub(crate) fn difference(there: Option<&Value>, wanted: Value) -> Option<Value> {
    match (there, wanted) {
        (None, Value::Null) => None,
        (Some(there), wanted) if *there == wanted => None,
        (Some(Value::Object(there)), Value::Object(wanted)) => {
            let lost = there.iter().filter(|(field, value)| !value.is_null() && !wanted.contains_key(*field));
            let mut changes: Map<String, Value> = lost.map(|(field, _)| (field.clone(), Value::Null)).collect();
            changes.extend(changed(wanted, there));
            (!changes.is_empty()).then_some(Value::Object(changes))
        }
        (_, wanted) => Some(wanted),
    }
}
