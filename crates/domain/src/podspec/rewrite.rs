//! The spec of a copy: removes what the virtual cluster decided, adds what the physical cluster must follow.
//! It must not touch a field that is not named here: unknown fields survive as they are.

use serde_json::{Map, Value, json};

use super::downward::items;
use super::{Frame, Identity, api_access, dns, downward, patience, references};
use crate::names;

/// Fields that were for the virtual cluster's scheduler and admission, or that only their own subresource may set.
pub(super) const DROPPED: [&str; 16] = [
    // The node is decided; the physical cluster could only contradict.
    "affinity",
    "topologySpreadConstraints",
    "nodeSelector",
    "nodeName",
    "schedulerName",
    "schedulingGates",
    // Gangs are groups of the virtual scheduler; the physical one would wait for a group it does not have.
    "schedulingGroup",
    "workloadRef",
    // Computed by admission from classes of the virtual cluster; the physical one computes its own and refuses others.
    "overhead",
    "priority",
    "priorityClassName",
    "preemptionPolicy",
    // A virtual account means nothing there.
    "serviceAccount",
    "serviceAccountName",
    // Controllers of the virtual cluster set these conditions on the virtual pod; on the copy they would never come.
    "readinessGates",
    // Refused on create; they have a subresource of their own.
    "ephemeralContainers",
];

/// Rewrites the spec in place; `injected` are the volumes by which the virtual cluster gave its API token.
pub(super) fn spec(spec: &mut Map<String, Value>, vpod: &Identity, injected: &[&str], frame: &Frame<'_>) {
    spec.retain(|field, _| !DROPPED.contains(&field.as_str()));
    place(spec, frame);
    patience::rewrite(spec);
    account(spec, frame);
    hostname(spec, &vpod.name);
    explicit_requests(spec, frame.explicit_requests);
    dns::rewrite(spec, &vpod.namespace, frame);
    containers(spec, &vpod.name, injected, frame);
}

/// What also holds for ephemeral containers, which are added later.
pub(super) fn containers(spec: &mut Map<String, Value>, vpod: &str, injected: &[&str], frame: &Frame<'_>) {
    // First: it counts volumes as the virtual pod has them.
    references::rewrite(spec, vpod, frame);
    api_access::rewrite(spec, injected, frame);
    downward::rewrite(spec);
}

/// To exactly one node, through the physical scheduler unless the binding says otherwise.
fn place(spec: &mut Map<String, Value>, frame: &Frame<'_>) {
    if frame.direct_scheduling {
        spec.insert("nodeName".into(), frame.node.into());
    } else {
        // By field, not by hostname label: labels can lie, the name cannot.
        let term = json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [frame.node] }] });
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
        spec.insert("affinity".into(), json!({ "nodeAffinity": required }));
    }
    if let Some(class) = frame.priority_class {
        spec.insert("priorityClassName".into(), class.into());
    }
}

/// No token of the physical cluster, and no environment variables of Services in the mount namespace.
fn account(spec: &mut Map<String, Value>, frame: &Frame<'_>) {
    spec.insert("serviceAccountName".into(), frame.service_account.into());
    spec.insert("automountServiceAccountToken".into(), false.into());
    spec.insert("enableServiceLinks".into(), false.into());
}

/// A pod sees its virtual name as its host's; with the host's network it sees the host's.
fn hostname(spec: &mut Map<String, Value>, vpod_name: &str) {
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or_default();
    let named = spec.get("hostname").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    if !host_network
        && !named
        && let Some(name) = names::hostname(vpod_name)
    {
        spec.insert("hostname".into(), name.into());
    }
}

/// A quota on CPU or memory refuses a pod with a container that does not request it. Zero changes neither its QoS class
/// nor what it is granted. A limit alone is enough: the API server makes it the request.
fn explicit_requests(spec: &mut Map<String, Value>, resources: &[&str]) {
    // With pod-level resources a quota needs no figures of containers, and their zeros would become the pod's sum.
    if figures(spec.get("resources")).any(|figures| !figures.is_empty()) {
        return;
    }
    for list in ["containers", "initContainers"] {
        for container in items(spec.get_mut(list)) {
            for resource in resources {
                if !figures(container.get("resources")).any(|figures| figures.contains_key(*resource)) {
                    container["resources"]["requests"][*resource] = "0".into();
                }
            }
        }
    }
}

/// Requests and limits of a container or pod.
fn figures(resources: Option<&Value>) -> impl Iterator<Item = &Map<String, Value>> {
    ["requests", "limits"].into_iter().filter_map(move |list| resources?.get(list)?.as_object())
}
