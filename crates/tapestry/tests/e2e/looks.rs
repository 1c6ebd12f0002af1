//! Small queries on objects as plain JSON. Must not ask a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

/// The deadline of what takes seconds, on a machine that may be busy with other tests.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// The deadline for hundreds of pods.
pub(crate) const LATE: Duration = Duration::from_mins(3);

/// A string field; empty when it is no string.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The items of a list; empty when it is no list.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

pub(crate) fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    text(&object["metadata"]["annotations"][key])
}

pub(crate) fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    text(&object["metadata"]["labels"][key])
}

pub(crate) fn phase(pod: &Value) -> &str {
    text(&pod["status"]["phase"])
}

/// A condition by its type; null when there is none.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    static NONE: Value = Value::Null;
    items(&object["status"]["conditions"]).iter().find(|condition| condition["type"] == kind).unwrap_or(&NONE)
}

/// Keys and effects of a node's taints, without those that the controller-manager keeps.
pub(crate) fn taints(node: &Value) -> BTreeSet<(String, String)> {
    let all = items(&node["spec"]["taints"]).iter();
    let ours = all.filter(|taint| !text(&taint["key"]).starts_with("node.kubernetes.io/"));
    ours.map(|taint| (text(&taint["key"]).to_owned(), text(&taint["effect"]).to_owned())).collect()
}

/// Whether the scheduler would use it: Ready, and the taint that admission puts on new nodes is gone.
pub(crate) fn takes_pods(node: &Value) -> bool {
    condition(node, "Ready")["status"] == "True"
        && !items(&node["spec"]["taints"]).iter().any(|taint| taint["key"] == "node.kubernetes.io/not-ready")
}

/// A map of strings.
pub(crate) fn strings(value: &Value) -> BTreeMap<String, String> {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(key, value)| (key.clone(), text(value).to_owned())).collect()
}
