//! The three ways to change an object by a patch: JSON merge, strategic merge, and apply.
//! Knows which lists merge by a key, and no other rule of any kind.

use serde_json::{Map, Value};

/// The directive that strategic patches carry in maps and list entries.
const DIRECTIVE: &str = "$patch";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// How a list is merged.
enum ListMerge {
    /// The patch's list replaces the object's.
    Atomic,
    /// Entries with the same value of this field are merged.
    By(&'static str),
    /// Plain values, each at most once.
    Set,
}

/// RFC 7386.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    let target = object_at(target);
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}

/// Strategic merge. Also what we need of server-side apply, which sends no directives: fields that an earlier apply of the
/// same manager set and this one leaves out are *not* removed.
pub(super) fn strategic(target: &mut Value, patch: &Value) -> Result<(), String> {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return Ok(());
    };
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        None | Some("merge") => {}
        Some("replace") => {
            *target = clean(&Value::Object(patch.clone()));
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Null;
            return Ok(());
        }
        Some(other) => return Err(format!("unknown patch directive {other}")),
    }
    let target = object_at(target);
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_PRIMITIVES) {
            if let (Some(Value::Array(held)), Value::Array(gone)) = (target.get_mut(list), value) {
                held.retain(|entry| !gone.contains(entry));
            }
            continue;
        }
        if key == DIRECTIVE || key.starts_with(ELEMENT_ORDER) {
            continue;
        }
        match value {
            Value::Null => drop(target.remove(key)),
            Value::Array(list) => merge_list(target.entry(key.as_str()).or_insert(Value::Null), key, list)?,
            Value::Object(_) => {
                let field = target.entry(key.as_str()).or_insert(Value::Null);
                strategic(field, value)?;
                if field.is_null() {
                    target.remove(key);
                }
            }
            plain => drop(target.insert(key.clone(), plain.clone())),
        }
    }
    Ok(())
}

fn merge_list(target: &mut Value, field: &str, patch: &[Value]) -> Result<(), String> {
    let directive = |entry: &Value| entry.get(DIRECTIVE).and_then(Value::as_str).map(str::to_owned);
    let replace = patch.iter().any(|entry| directive(entry).as_deref() == Some("replace"));
    let how = list_merge(field);
    if replace || matches!(how, ListMerge::Atomic) {
        let entries = patch.iter().filter(|entry| directive(entry).as_deref() != Some("replace"));
        *target = Value::Array(entries.map(clean).collect());
        return Ok(());
    }
    if !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Value::Array(held) = target else { return Ok(()) };
    for entry in patch {
        let ListMerge::By(key) = how else {
            if !held.contains(entry) {
                held.push(entry.clone());
            }
            continue;
        };
        let wanted = entry.get(key).ok_or_else(|| format!("{field}: an entry without its merge key {key}"))?;
        let place = held.iter().position(|known| known.get(key) == Some(wanted));
        match (place, directive(entry).as_deref()) {
            (Some(place), Some("delete")) => drop(held.remove(place)),
            (None, Some("delete")) => {}
            (Some(place), _) => strategic(&mut held[place], entry)?,
            (None, _) => held.push(clean(entry)),
        }
    }
    Ok(())
}

/// By the field's name alone: among our kinds no two lists of one name merge differently.
fn list_merge(field: &str) -> ListMerge {
    match field {
        "conditions" | "addresses" => ListMerge::By("type"),
        "podIPs" | "hostIPs" => ListMerge::By("ip"),
        "containers" | "initContainers" | "ephemeralContainers" | "volumes" => ListMerge::By("name"),
        "ownerReferences" => ListMerge::By("uid"),
        "finalizers" => ListMerge::Set,
        _ => ListMerge::Atomic,
    }
}

/// A new value without directives and nulls, which only a patch has.
pub(super) fn clean(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, value)| !key.starts_with('$') && !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), clean(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(clean).collect()),
        plain => plain.clone(),
    }
}

/// The map at this place; any other value there is replaced.
pub(super) fn object_at(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it has just been made one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_merge_patch_replaces_lists_and_null_removes() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
        merge(&mut object, &json!({"a": {"b": null, "d": {"e": null, "f": 1}}, "l": [3]}));
        assert_eq!(object, json!({"a": {"c": 2, "d": {"f": 1}}, "l": [3]}));
    }

    #[test]
    fn a_strategic_patch_merges_conditions_by_type_and_deletes_by_directive() {
        let mut status = json!({"conditions": [
            {"type": "Ready", "status": "True", "reason": "Old"},
            {"type": "Foreign", "status": "True"},
            {"type": "Gone", "status": "True"},
        ]});
        let patch = json!({"conditions": [
            {"type": "Ready", "status": "False", "reason": null},
            {"type": "Gone", "$patch": "delete"},
            {"type": "Never", "$patch": "delete"},
            {"type": "New", "status": "True", "message": null},
        ]});
        strategic(&mut status, &patch).unwrap();
        let wanted = json!({"conditions": [
            {"type": "Ready", "status": "False"},
            {"type": "Foreign", "status": "True"},
            {"type": "New", "status": "True"},
        ]});
        assert_eq!(status, wanted);
        assert!(strategic(&mut status, &json!({"conditions": [{"status": "True"}]})).is_err());
    }

    #[test]
    fn a_strategic_patch_merges_addresses_by_ip_unless_the_list_says_replace() {
        let mut status = json!({"podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": [{"name": "a"}, {"name": "b"}]});
        let patch = json!({"podIPs": [{"ip": "10.0.0.2"}], "containerStatuses": [{"name": "b", "ready": true}]});
        strategic(&mut status, &patch).unwrap();
        assert_eq!(status["podIPs"], json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]));
        assert_eq!(status["containerStatuses"], json!([{"name": "b", "ready": true}]), "statuses are one atomic list");
        strategic(&mut status, &json!({"podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.3"}]})).unwrap();
        assert_eq!(status["podIPs"], json!([{"ip": "10.0.0.3"}]));
    }

    #[test]
    fn a_strategic_patch_adds_to_and_takes_from_lists_of_plain_values() {
        let mut meta = json!({"finalizers": ["a", "b"]});
        strategic(&mut meta, &json!({"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]})).unwrap();
        assert_eq!(meta, json!({"finalizers": ["b", "c"]}));
    }
}
