//! How long a copy stays on a physical node that is not ready or cannot be reached: until the virtual cluster evicts its pod.
//! The virtual node mirrors the state of the physical one, and one cluster decides; a tenant's `tolerationSeconds` are meant for
//! the virtual one. It must not change what a copy tolerates otherwise.

use serde_json::{Map, Value, json};

use crate::placement::{TaintRef, Toleration, tolerates_for_ever};

/// The taints by which Kubernetes evicts pods from a node in trouble.
const TROUBLE: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const NO_EXECUTE: &str = "NoExecute";

/// Puts tolerations without a limit in front: the first one that matches a taint counts, whatever a tenant's say after them.
pub(super) fn rewrite(spec: &mut Map<String, Value>) {
    let tenants = match spec.remove("tolerations") {
        Some(Value::Array(tolerations)) => tolerations,
        _ => Vec::new(),
    };
    spec.insert("tolerations".into(), tolerations(tenants).collect());
}

/// What a copy tolerates, given what its virtual pod does.
pub(super) fn tolerations(tenants: Vec<Value>) -> impl Iterator<Item = Value> {
    let replaced = |toleration: &Value| {
        let key = toleration["key"].as_str().unwrap_or_default();
        TROUBLE.contains(&key) && toleration["effect"] == NO_EXECUTE
    };
    ours().chain(tenants.into_iter().filter(move |toleration| !replaced(toleration)))
}

/// The tolerations that a running copy should have, given those it has as JSON; `None` when it stays on such a node already.
///
/// An API server lets a pod's tolerations change only so far: each one stays, except for its `tolerationSeconds`; new ones may
/// be added, in any order.
pub fn mend_tolerations(tolerations: &str) -> Result<Option<Value>, serde_json::Error> {
    let read: Option<Vec<Toleration<'_>>> = serde_json::from_str(tolerations)?;
    let read = read.unwrap_or_default();
    let stays = |key| tolerates_for_ever(&read, &TaintRef { key, value: "", effect: NO_EXECUTE });
    if TROUBLE.into_iter().all(stays) {
        return Ok(None);
    }
    let there: Option<Vec<Value>> = serde_json::from_str(tolerations)?;
    let mut there = there.unwrap_or_default();
    // A toleration that differs from ours only in its seconds becomes ours.
    there.retain(|toleration| {
        let mut unlimited = toleration.clone();
        unlimited.as_object_mut().map(|fields| fields.remove("tolerationSeconds"));
        ours().all(|own| own != unlimited)
    });
    Ok(Some(ours().chain(there).collect()))
}

fn ours() -> impl Iterator<Item = Value> {
    TROUBLE.into_iter().map(|key| json!({ "key": key, "operator": "Exists", "effect": NO_EXECUTE }))
}
