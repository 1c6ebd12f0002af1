//! Pods and Deployments. Must not access a cluster.

use serde_json::{Value, json};

use super::object;

/// A pod with one container `main`.
#[derive(Debug, Clone)]
pub struct Pod(Value);

/// A Deployment whose pods carry the label `app: <name>`.
#[derive(Debug, Clone)]
pub struct Deployment(Value);

object!(Pod, Deployment);

/// A pod in the namespace `default` that the scheduler may put anywhere.
#[must_use]
pub fn pod(name: &str) -> Pod {
    Pod(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "containers": [{ "name": "main", "image": "testbed.invalid/image" }] },
    }))
}

impl Pod {
    /// Puts it into a namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.with("/metadata/namespace", namespace)
    }

    /// Binds it to a node, without the scheduler (and so without checks of taints and resources).
    #[must_use]
    pub fn on(self, node: &str) -> Self {
        self.with("/spec/nodeName", node)
    }

    /// Lets the scheduler choose among nodes with this label.
    #[must_use]
    pub fn node_label(mut self, key: &str, value: &str) -> Self {
        self.0["spec"]["nodeSelector"][key] = value.into();
        self
    }

    /// Requests CPU.
    #[must_use]
    pub fn cpu(self, quantity: &str) -> Self {
        self.request("cpu", quantity)
    }

    /// Requests memory.
    #[must_use]
    pub fn memory(self, quantity: &str) -> Self {
        self.request("memory", quantity)
    }

    /// Requests any resource. Extended resources also need a limit: `.limit(…)`.
    #[must_use]
    pub fn request(mut self, resource: &str, quantity: &str) -> Self {
        self.0["spec"]["containers"][0]["resources"]["requests"][resource] = quantity.into();
        self
    }

    /// Limits any resource.
    #[must_use]
    pub fn limit(mut self, resource: &str, quantity: &str) -> Self {
        self.0["spec"]["containers"][0]["resources"]["limits"][resource] = quantity.into();
        self
    }

    /// Names the image of `main`.
    #[must_use]
    pub fn image(self, image: &str) -> Self {
        self.with("/spec/containers/0/image", image)
    }

    /// Tolerates every taint.
    #[must_use]
    pub fn tolerate_all(self) -> Self {
        self.tolerate(json!({ "operator": "Exists" }))
    }

    /// Adds a toleration.
    #[must_use]
    pub fn tolerate(mut self, toleration: Value) -> Self {
        match &mut self.0["spec"]["tolerations"] {
            Value::Array(tolerations) => tolerations.push(toleration),
            none => *none = json!([toleration]),
        }
        self
    }
}

/// A Deployment in the namespace `default`.
#[must_use]
pub fn deployment(name: &str, replicas: u32) -> Deployment {
    Deployment(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } } },
    }))
    .pods(pod(name))
}

impl Deployment {
    /// Puts it into a namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.with("/metadata/namespace", namespace)
    }

    /// Takes labels, annotations and spec of `pod` for its pods; the label `app` is added.
    #[must_use]
    pub fn pods(self, pod: Pod) -> Self {
        let app = self.0["metadata"]["name"].clone();
        let mut template = pod.with("/metadata/labels/app", app).build();
        let metadata = json!({
            "labels": template["metadata"]["labels"].take(),
            "annotations": template["metadata"]["annotations"].take(),
        });
        self.with("/spec/template", json!({ "metadata": metadata, "spec": template["spec"].take() }))
    }
}
