//! What the API server does to an object of each kind in addition to storing it: defaults, confinement, validation,
//! normal form. Only what our calls can meet; rules that no plan could break are omitted.

use serde_json::{Value, json};
use tapestry_cluster::{Kind, Sub, kind};

use super::server::Denial;

mod dependents;
mod services;

/// Fields of `metadata` that only the server writes.
const SYSTEM: [&str; 9] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
];
/// Fields of a pod's spec that may change after its creation; images are checked separately.
const POD_MUTABLE: [&str; 3] = ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"];

/// Our own kinds are custom resources: no strategic merge, generation, status only through its subresource.
pub(super) fn is_custom(kind: &Kind) -> bool {
    kind.group.contains('.') && !kind.group.ends_with(".k8s.io")
}

/// Whether `status` is written through its own path.
fn has_status(kind: &Kind) -> bool {
    let volumes = [&kind::PERSISTENT_VOLUME, &kind::PERSISTENT_VOLUME_CLAIM];
    let others = [&kind::POD, &kind::NODE, &kind::NAMESPACE, &kind::SERVICE];
    is_custom(kind) || others.contains(&kind) || volumes.contains(&kind)
}

pub(super) fn has_generation(kind: &Kind) -> bool {
    is_custom(kind) || *kind == kind::POD
}

/// Defaults of a new object.
pub(super) fn prepare(kind: &Kind, object: &mut Value) {
    if has_generation(kind) {
        object["metadata"]["generation"] = json!(1);
    }
    if *kind == kind::POD {
        object["status"] = json!({"phase": "Pending", "qosClass": qos_class(object)});
        if object["spec"].is_object() {
            default(object, "spec", "terminationGracePeriodSeconds", || json!(30));
            default(object, "spec", "restartPolicy", || json!("Always"));
        }
    } else if *kind == kind::NODE {
        // Admission taints every new node until the controller-manager has seen that it is ready. Status may be set on create.
        let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
        match &mut object["spec"]["taints"] {
            Value::Array(taints) if taints.iter().any(|known| known["key"] == taint["key"]) => {}
            Value::Array(taints) => taints.push(taint),
            none => *none = json!([taint]),
        }
    } else if *kind == kind::NAMESPACE {
        object["status"] = json!({"phase": "Active"});
    } else if is_custom(kind)
        && let Value::Object(map) = object
    {
        map.remove("status");
    } else if *kind == kind::SECRET {
        dependents::prepare_secret(object);
    }
}

/// Restores what the path of a patch may not touch.
pub(super) fn confine(kind: &Kind, sub: Sub, old: &Value, new: &mut Value) {
    if sub == Sub::Resize {
        let sized = resized(&old["spec"], &new["spec"]);
        new.clone_from(old);
        put(new, "spec", sized);
    } else if sub == Sub::EphemeralContainers {
        let containers = new["spec"].get("ephemeralContainers").cloned().unwrap_or_default();
        new.clone_from(old);
        put(&mut new["spec"], "ephemeralContainers", containers);
    } else if sub == Sub::Status {
        let (metadata, status) = (new["metadata"].take(), new["status"].take());
        new.clone_from(old);
        put(new, "status", status);
        if !is_custom(kind) {
            put(new, "metadata", metadata);
            let owners = old["metadata"].get("ownerReferences").cloned().unwrap_or_default();
            put(&mut new["metadata"], "ownerReferences", owners);
        }
    } else if has_status(kind) {
        put(new, "status", old.get("status").cloned().unwrap_or_default());
    }
    keep_system(old, new);
}

/// The old spec with the sizes of the new one.
fn resized(old: &Value, new: &Value) -> Value {
    let mut spec = old.clone();
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let same = |other: &&Value| other["name"] == container["name"];
            let other = new[list].as_array().into_iter().flatten().find(same);
            if let Some(resources) = other.and_then(|other| other.get("resources")) {
                put(container, "resources", resources.clone());
            }
        }
    }
    if let Some(resources) = new.get("resources") {
        put(&mut spec, "resources", resources.clone());
    }
    spec
}

/// Restores what only the server writes.
pub(super) fn keep_system(old: &Value, new: &mut Value) {
    for field in ["apiVersion", "kind"] {
        new[field] = old[field].clone();
    }
    for field in SYSTEM {
        put(&mut new["metadata"], field, old["metadata"].get(field).cloned().unwrap_or_default());
    }
}

/// Increments the generation when the spec changes.
pub(super) fn count_generation(kind: &Kind, old: &Value, new: &mut Value) {
    let wanted = |object: &Value| object.get("spec").cloned();
    if has_generation(kind) && wanted(old) != wanted(new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        new["metadata"]["generation"] = json!(generation + 1);
    }
}

/// Normalises as the server's typed structs do: empty optional fields are dropped, times lose their fractions.
pub(super) fn normalise(kind: &Kind, object: &mut Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        drop_empty(&mut object["metadata"], field);
    }
    if let Value::Object(metadata) = &mut object["metadata"] {
        metadata.remove("managedFields");
    }
    if (*kind == kind::POD || *kind == kind::NODE)
        && let Some(status) = object.get_mut("status")
    {
        for field in [
            "conditions",
            "containerStatuses",
            "initContainerStatuses",
            "ephemeralContainerStatuses",
            "podIPs",
            "hostIPs",
            "podIP",
            "hostIP",
            "reason",
            "message",
            "addresses",
        ] {
            drop_empty(status, field);
        }
        cut_fraction(status, "startTime");
        for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
            for field in ["reason", "message"] {
                drop_empty(condition, field);
            }
            cut_fraction(condition, "lastTransitionTime");
            if *kind == kind::POD {
                // Not a pointer in Go: its zero value is written as null.
                default_field(condition, "lastProbeTime");
                default_field(condition, "lastTransitionTime");
            } else {
                cut_fraction(condition, "lastHeartbeatTime");
            }
        }
    }
    if *kind == kind::CONFIG_MAP || *kind == kind::SECRET {
        dependents::normalise(object);
    }
    if *kind == kind::SERVICE {
        services::normalise(object);
    }
    // Go writes fields in the order of its structs, whatever the order they came in.
    object.sort_all_objects();
}

/// Refuses objects that no server would store; `old` is `None` for a new object.
pub(super) fn validate(kind: &Kind, sub: Sub, old: Option<&Value>, new: &Value) -> Result<(), Denial> {
    validate_metadata(old, new)?;
    if *kind == kind::POD {
        match old {
            None if new["spec"]["containers"].as_array().is_none_or(Vec::is_empty) => {
                return Err(Denial::invalid("spec.containers", "Required value"));
            }
            None => {}
            Some(old) => validate_pod(sub, old, new)?,
        }
    }
    if *kind == kind::CONFIG_MAP || *kind == kind::SECRET {
        dependents::validate(old, new)?;
    }
    if *kind == kind::SERVICE {
        services::validate(old, new)?;
    }
    if *kind == kind::LEASE {
        for field in ["renewTime", "acquireTime"] {
            let time = new["spec"].get(field).and_then(Value::as_str);
            if time.is_some_and(|time| !is_micro_time(time)) {
                return Err(Denial::bad_request(format!("spec.{field}: not a MicroTime with six digits")));
            }
        }
    }
    Ok(())
}

fn validate_metadata(old: Option<&Value>, new: &Value) -> Result<(), Denial> {
    for field in ["labels", "annotations"] {
        let Some(pairs) = new["metadata"].get(field) else { continue };
        let Value::Object(pairs) = pairs else {
            return Err(Denial::bad_request(format!("metadata.{field} is not a map")));
        };
        for (key, value) in pairs {
            let Value::String(value) = value else {
                return Err(Denial::bad_request(format!("metadata.{field}[{key}] is not a string")));
            };
            let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if field == "labels" && (value.len() > 63 || !value.chars().all(legal)) {
                return Err(Denial::invalid("metadata.labels", format!("{key}: not a label value: {value:?}")));
            }
        }
    }
    let finalizers = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if let Some(old) = old
        && old["metadata"].get("deletionTimestamp").is_some()
        && finalizers(new).iter().any(|new| !finalizers(old).contains(new))
    {
        return Err(Denial::invalid(
            "metadata.finalizers",
            "no new finalizers can be added to an object being deleted",
        ));
    }
    Ok(())
}

fn validate_pod(sub: Sub, old: &Value, new: &Value) -> Result<(), Denial> {
    if sub == Sub::Main {
        return if may_become(&old["spec"], &new["spec"]) {
            Ok(())
        } else {
            Err(Denial::invalid("spec", "pod updates may not change fields other than image, deadline, tolerations"))
        };
    }
    if sub == Sub::Resize {
        return Ok(());
    }
    if sub == Sub::EphemeralContainers {
        let list = |pod: &Value| pod["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
        let (old, new) = (list(old), list(new));
        return if old.iter().all(|known| new.contains(known)) {
            Ok(())
        } else {
            Err(Denial::forbidden("existing ephemeral containers may not be changed or removed"))
        };
    }
    let (old, new) = (&old["status"], &new["status"]);
    if old["qosClass"] != new["qosClass"] {
        return Err(Denial::invalid("status.qosClass", "field is immutable"));
    }
    if old.get("nominatedNodeName") != new.get("nominatedNodeName") {
        return Err(Denial::forbidden("may not set nominatedNodeName of a bound pod"));
    }
    for (one, list) in [("podIP", "podIPs"), ("hostIP", "hostIPs")] {
        let ips: Vec<&str> =
            new[list].as_array().into_iter().flatten().filter_map(|entry| entry["ip"].as_str()).collect();
        let sixes = ips.iter().filter(|ip| ip.contains(':')).count();
        if sixes > 1 || ips.len() - sixes > 1 {
            return Err(Denial::invalid("status", format!("{list}: no more than one IP for each IP family")));
        }
        // One without the other is filled in by conversion; two that differ are refused.
        if let (Some(one), Some(first)) = (new[one].as_str(), ips.first())
            && one != *first
        {
            return Err(Denial::invalid("status", format!("{list}[0] is not {one}")));
        }
    }
    Ok(())
}

fn may_become(old: &Value, new: &Value) -> bool {
    let frozen = |spec: &Value| {
        let mut spec = spec.clone();
        for field in POD_MUTABLE {
            put(&mut spec, field, Value::Null);
        }
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                put(container, "image", Value::Null);
            }
        }
        spec
    };
    old == new || frozen(old) == frozen(new)
}

/// Whether the pod has ended.
pub(super) fn is_terminal(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn qos_class(pod: &Value) -> &'static str {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let asks = |container: &Value| {
        ["requests", "limits"]
            .iter()
            .any(|kind| container["resources"][*kind].as_object().is_some_and(|r| !r.is_empty()))
    };
    if containers.into_iter().any(asks) { "Burstable" } else { "BestEffort" }
}

/// Go parses it with a layout that has exactly six digits.
fn is_micro_time(text: &str) -> bool {
    text.split_once('.').is_some_and(|(_, fraction)| fraction.find(|c: char| !c.is_ascii_digit()) == Some(6))
        && text.parse::<jiff::Timestamp>().is_ok()
}

/// Sets a field, or removes it with null.
pub(super) fn put(object: &mut Value, field: &str, value: Value) {
    let Value::Object(map) = object else { return };
    if value.is_null() {
        map.remove(field);
    } else {
        map.insert(field.to_owned(), value);
    }
}

fn default(object: &mut Value, part: &str, field: &str, value: impl FnOnce() -> Value) {
    if object[part].get(field).is_none() {
        object[part][field] = value();
    }
}

fn default_field(object: &mut Value, field: &str) {
    if let Value::Object(map) = object {
        map.entry(field).or_insert(Value::Null);
    }
}

fn drop_empty(object: &mut Value, field: &str) {
    let Value::Object(map) = object else { return };
    let empty = match map.get(field) {
        Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(held)) => held.is_empty(),
        Some(Value::String(text)) => text.is_empty(),
        _ => false,
    };
    if empty {
        map.remove(field);
    }
}

fn cut_fraction(object: &mut Value, field: &str) {
    if let Some(Value::String(time)) = object.get_mut(field)
        && let Some(dot) = time.find('.')
        && time.ends_with('Z')
    {
        time.truncate(dot);
        time.push('Z');
    }
}
