//! Nodes and pods as a busy cluster holds them, as JSON text: with sidecars, volumes, statuses and managedFields.
//! Must not be smaller than what real API servers send: decoding is measured with them.

use anyhow::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Name;
use tapestry_testbed::builders::{node, pod};

use crate::known::stamp;

/// Nodes take turns.
pub(super) fn node_name(index: u32, nodes: u32) -> Result<Name> {
    Ok(Name::parse(&format!("node-{}", index % nodes))?)
}

/// A physical node that its kubelet reports as ready.
pub(super) fn pnode(index: u32, nodes: u32) -> Value {
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "KubeletSays", "message": "kubelet says how it is",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let conditions = json!([
        condition("MemoryPressure", "False"),
        condition("DiskPressure", "False"),
        condition("PIDPressure", "False"),
        condition("Ready", "True"),
    ]);
    let info = json!({ "architecture": "amd64", "kubeletVersion": "v1.36.3", "operatingSystem": "linux" });
    node(&format!("node-{}", index % nodes))
        .label("topology.kubernetes.io/zone", "zone-a")
        .label("node.kubernetes.io/instance-type", "large")
        .with("/metadata/uid", format!("pnode-{index}"))
        .with("/metadata/resourceVersion", "1")
        .with("/status/conditions", conditions)
        .with("/status/nodeInfo", info)
        .build()
}

/// A running pod of another user: two containers, a sidecar, an init container, about 5 KB.
pub(super) fn ppod(index: u32, nodes: u32) -> Bytes {
    let cpu = format!("{}m", 50 + index % 7 * 25);
    let container = |name: &str| {
        json!({
            "name": name, "image": "registry.example/team/service:1.2.3",
            "env": [{ "name": "LOG_LEVEL", "value": "info" }, { "name": "REGION", "value": "eu-1" }],
            "resources": { "requests": { "cpu": cpu, "memory": "128Mi" }, "limits": { "memory": "256Mi" } },
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }, { "name": "token", "mountPath": "/token" }],
        })
    };
    let mut sidecar = container("sidecar");
    sidecar["restartPolicy"] = "Always".into();
    let status = |name: &str| {
        json!({
            "name": name, "image": "registry.example/team/service:1.2.3", "ready": true, "restartCount": 0, "started": true,
            "imageID": "registry.example/team/service@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "containerID": "containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "state": { "running": { "startedAt": "2026-01-01T00:00:05Z" } },
            "allocatedResources": { "cpu": cpu, "memory": "128Mi" },
            "resources": { "requests": { "cpu": cpu, "memory": "128Mi" }, "limits": { "memory": "256Mi" } },
        })
    };
    let condition =
        |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z" });
    let conditions: Vec<_> =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition).into();
    let owner = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "service-7d9c6b5f4", "uid": "rs-1", "controller": true,
    }]);
    let pod = pod(&format!("service-7d9c6b5f4-{index}"))
        .namespace("team")
        .on(&format!("node-{}", index % nodes))
        .label("app", "service")
        .label("pod-template-hash", "7d9c6b5f4")
        .annotation("prometheus.io/scrape", "true")
        .with("/metadata/generateName", "service-7d9c6b5f4-")
        .with("/metadata/ownerReferences", owner)
        .with("/metadata/managedFields", managed_fields())
        .with("/spec/containers", json!([container("main"), container("helper")]))
        .with("/spec/initContainers", json!([container("prepare"), sidecar]))
        .with("/spec/volumes", json!([{ "name": "data", "emptyDir": {} }, { "name": "token", "emptyDir": {} }]))
        .with("/spec/tolerations", json!([{ "key": "team", "operator": "Exists", "effect": "NoSchedule" }]))
        .with("/status/phase", "Running")
        .with("/status/conditions", conditions)
        .with("/status/initContainerStatuses", json!([status("prepare"), status("sidecar")]))
        .with("/status/containerStatuses", json!([status("main"), status("helper")]));
    stamp(pod.build(), &format!("ppod-{index}"))
}

/// A virtual pod that admission lets in.
pub(super) fn vpod(index: u32, vnode: &str) -> Bytes {
    let toleration = json!({ "key": keys::TAINT_VNODE, "operator": "Exists" });
    let pod = pod(&format!("batch-{index}")).namespace("tenant").on(vnode).cpu("100m").memory("64Mi");
    stamp(pod.tolerate(toleration).with("/status/phase", "Pending").build(), &format!("vpod-{index}"))
}

/// Who set what: as large as with a controller, a scheduler and a kubelet.
fn managed_fields() -> Value {
    let fields = |names: &[&str]| {
        let all: serde_json::Map<String, Value> =
            names.iter().map(|name| (format!("f:{name}"), json!({ ".": {}, "f:name": {}, "f:value": {} }))).collect();
        json!({ "f:spec": all })
    };
    let by = |manager: &str, names: &[&str]| {
        json!({
            "manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": fields(names),
        })
    };
    json!([
        by("kube-controller-manager", &["containers", "env", "resources", "volumes", "tolerations", "initContainers"]),
        by("kubelet", &["conditions", "containerStatuses", "initContainerStatuses", "phase", "podIPs", "startTime"]),
    ])
}
