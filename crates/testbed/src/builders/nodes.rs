//! Nodes as a kubelet registers them. Must not make them Ready: on a physical cluster kwok does, on a virtual one the syncer.

use serde_json::{Value, json};

use super::object;

/// A node.
#[derive(Debug, Clone)]
pub struct Node(Value);

object!(Node);

/// A node with 32 CPU, 256 GiB and room for 110 pods.
#[must_use]
pub fn node(name: &str) -> Node {
    Node(json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
            // kwok's mark for nodes that no kubelet serves.
            "annotations": { "kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0" },
        },
        "spec": {},
        "status": {},
    }))
    .cpu("32")
    .memory("256Gi")
    .pods(110)
}

impl Node {
    /// CPU, capacity and allocatable alike.
    #[must_use]
    pub fn cpu(self, quantity: &str) -> Self {
        self.resource("cpu", quantity)
    }

    /// Memory, capacity and allocatable alike.
    #[must_use]
    pub fn memory(self, quantity: &str) -> Self {
        self.resource("memory", quantity)
    }

    /// How many pods it takes.
    #[must_use]
    pub fn pods(self, count: u32) -> Self {
        self.resource("pods", &count.to_string())
    }

    /// Any resource, capacity and allocatable alike.
    #[must_use]
    pub fn resource(mut self, resource: &str, quantity: &str) -> Self {
        self.0["status"]["capacity"][resource] = quantity.into();
        self.0["status"]["allocatable"][resource] = quantity.into();
        self
    }

    /// What pods may use of a resource, where that is less than the capacity.
    #[must_use]
    pub fn allocatable(mut self, resource: &str, quantity: &str) -> Self {
        self.0["status"]["allocatable"][resource] = quantity.into();
        self
    }

    /// Adds a taint with this effect (`NoSchedule`, `NoExecute`, `PreferNoSchedule`).
    #[must_use]
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        let taint = json!({ "key": key, "value": value, "effect": effect });
        match &mut self.0["spec"]["taints"] {
            Value::Array(taints) => taints.push(taint),
            none => *none = json!([taint]),
        }
        self
    }
}
