//! The downward API: what a container asks about its pod is answered with the virtual pod's values.
//! It must not touch references whose physical answer is the right one (addresses, labels, limits).

use serde_json::{Map, Value};

use super::{CONTAINERS, keys};

/// Points every reference to name, namespace, UID, node and account at the annotation that holds the virtual value.
pub(super) fn rewrite(spec: &mut Map<String, Value>) {
    for list in CONTAINERS {
        for container in items(spec.get_mut(list)) {
            for env in items(container.get_mut("env")) {
                rewrite_field(env.get_mut("valueFrom"));
            }
        }
    }
    for volume in items(spec.get_mut("volumes")) {
        rewrite_files(volume.get_mut("downwardAPI"));
        if let Some(projected) = volume.get_mut("projected") {
            for source in items(projected.get_mut("sources")) {
                rewrite_files(source.get_mut("downwardAPI"));
            }
        }
    }
}

/// The members of a JSON list; none when it is absent or something else.
pub(super) fn items(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

fn rewrite_files(source: Option<&mut Value>) {
    if let Some(source) = source {
        for file in items(source.get_mut("items")) {
            rewrite_field(Some(file));
        }
    }
}

/// Rewrites `fieldRef` of an env var's source or of a file.
fn rewrite_field(holder: Option<&mut Value>) {
    let Some(path) = holder.and_then(|holder| holder.get_mut("fieldRef")?.get_mut("fieldPath")) else { return };
    if let Some(key) = path.as_str().and_then(virtual_value) {
        *path = Value::String(format!("metadata.annotations['{key}']"));
    }
}

/// The annotation that holds what a field says on the virtual side.
fn virtual_value(path: &str) -> Option<&'static str> {
    Some(match path {
        "metadata.name" => keys::VIRTUAL_POD_NAME,
        "metadata.namespace" => keys::VIRTUAL_POD_NAMESPACE,
        "metadata.uid" => keys::VIRTUAL_POD_UID,
        // `spec.host` is what v1 called it first; API servers still take it.
        "spec.nodeName" | "spec.host" => keys::VIRTUAL_NODE_NAME,
        "spec.serviceAccountName" => keys::VIRTUAL_SERVICE_ACCOUNT,
        _ => return None,
    })
}
