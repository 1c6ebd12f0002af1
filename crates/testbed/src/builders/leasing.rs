//! Tapestry's own objects, as plain JSON, so that tests can also build invalid ones. Must not
//! use the types of `tapestry-api`, for that reason.

use serde_json::{Value, json};

use super::object;
use crate::kubeconfig::base64;

const API_VERSION: &str = "cloud.tencent.com/v1beta1";

/// A `ClusterBinding`.
#[derive(Debug, Clone)]
pub struct Binding(Value);

/// A `ResourceLeasingPolicy`.
#[derive(Debug, Clone)]
pub struct Policy(Value);

object!(Binding, Policy);

/// An empty binding: the test fills it in.
#[must_use]
pub fn binding(name: &str) -> Binding {
    Binding(json!({ "apiVersion": API_VERSION, "kind": "ClusterBinding", "metadata": { "name": name }, "spec": {} }))
}

impl Binding {
    /// The clusterID: part of the names of its virtual nodes.
    #[must_use]
    pub fn cluster_id(self, id: &str) -> Self {
        self.with("/spec/clusterID", id)
    }

    /// The Secret with the kubeconfig of the physical cluster.
    #[must_use]
    pub fn secret(self, namespace: &str, name: &str) -> Self {
        self.with("/spec/secretRef", json!({ "namespace": namespace, "name": name }))
    }

    /// The namespace of the physical cluster that holds the copies.
    #[must_use]
    pub fn mount_namespace(self, namespace: &str) -> Self {
        self.with("/spec/mountNamespace", namespace)
    }

    /// Lends only nodes with this label.
    #[must_use]
    pub fn node_label(self, key: &str, value: &str) -> Self {
        self.with("/spec/nodeSelector", one_label(key, value))
    }
}

/// An empty policy: the test fills it in.
#[must_use]
pub fn policy(name: &str) -> Policy {
    Policy(
        json!({ "apiVersion": API_VERSION, "kind": "ResourceLeasingPolicy", "metadata": { "name": name }, "spec": {} }),
    )
}

impl Policy {
    /// The binding it is for.
    #[must_use]
    pub fn cluster(self, binding: &str) -> Self {
        self.with("/spec/cluster", binding)
    }

    /// Lends at most this much of a resource.
    #[must_use]
    pub fn limit(self, resource: &str, quantity: &str) -> Self {
        self.resource_limit(json!({ "resource": resource, "quantity": quantity }))
    }

    /// Lends at most this share of a resource.
    #[must_use]
    pub fn limit_percent(self, resource: &str, percent: u32) -> Self {
        self.resource_limit(json!({ "resource": resource, "percent": percent }))
    }

    /// Applies only to nodes with this label.
    #[must_use]
    pub fn node_label(self, key: &str, value: &str) -> Self {
        self.with("/spec/nodeSelector", one_label(key, value))
    }

    /// Adds a time window, `"20:00"` to `"06:00"`, on these days (all when empty).
    #[must_use]
    pub fn window(mut self, start: &str, end: &str, days: &[&str]) -> Self {
        let mut window = json!({ "start": start, "end": end });
        if !days.is_empty() {
            window["days"] = json!(days);
        }
        self.push("timeWindows", window);
        self
    }

    fn resource_limit(mut self, limit: Value) -> Self {
        self.push("resourceLimits", limit);
        self
    }

    fn push(&mut self, list: &str, item: Value) {
        match &mut self.0["spec"][list] {
            Value::Array(items) => items.push(item),
            none => *none = json!([item]),
        }
    }
}

/// The Secret that a binding's `secretRef` names: the kubeconfig under the key `kubeconfig`.
#[must_use]
pub fn kubeconfig_secret(namespace: &str, name: &str, kubeconfig: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": name, "namespace": namespace },
        "data": { "kubeconfig": base64(kubeconfig) },
    })
}

/// A core/v1 `NodeSelector` for one label.
fn one_label(key: &str, value: &str) -> Value {
    json!({ "nodeSelectorTerms": [{ "matchExpressions": [{ "key": key, "operator": "In", "values": [value] }] }] })
}
