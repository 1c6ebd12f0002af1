//! Builders of objects: `pod("web").on("vnode-a-1").cpu("250m").build()`, plain JSON as an API server accepts
//! it. Must not fill in fields that the test does not set: servers set defaults.

use serde_json::{Value, json};

mod leasing;
mod nodes;
mod workloads;

pub use leasing::{Binding, Policy, binding, kubeconfig_secret, policy};
pub use nodes::{Node, node};
pub use workloads::{Deployment, Pod, deployment, pod};

/// A namespace.
#[must_use]
pub fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

/// What every builder can do with its object, whatever the kind.
macro_rules! object {
    ($($builder:ident),*) => {$(
        impl $builder {
            /// Sets a label of the object.
            #[must_use]
            pub fn label(mut self, key: &str, value: &str) -> Self {
                self.0["metadata"]["labels"][key] = value.into();
                self
            }

            /// Sets an annotation of the object.
            #[must_use]
            pub fn annotation(mut self, key: &str, value: &str) -> Self {
                self.0["metadata"]["annotations"][key] = value.into();
                self
            }

            /// Sets any field by JSON pointer (`/spec/priorityClassName`), for fields without their own method. Missing objects
            /// on the path are created; lists are not.
            #[must_use]
            pub fn with(mut self, pointer: &str, value: impl Into<serde_json::Value>) -> Self {
                $crate::builders::set(&mut self.0, pointer, value.into());
                self
            }

            /// The object.
            #[must_use]
            pub fn build(self) -> serde_json::Value {
                self.0
            }
        }

        impl From<$builder> for serde_json::Value {
            fn from(builder: $builder) -> Self {
                builder.build()
            }
        }
    )*};
}
use object;

/// Sets the field at `pointer`, an invariant of the caller: it is written in the test, not read from outside.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut field = object;
    for key in pointer.split('/').skip(1) {
        let key = key.replace("~1", "/").replace("~0", "~");
        field = match key.parse::<usize>() {
            Ok(index) if field.is_array() => &mut field[index],
            _ => &mut field[key],
        };
    }
    *field = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_only_what_the_test_sets() {
        let built =
            pod("web").namespace("shop").on("vnode-a-1").cpu("250m").memory("64Mi").label("app", "web").tolerate_all();
        assert_eq!(
            built.with("/spec/containers/0/command", json!(["run"])).build(),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": "web", "namespace": "shop", "labels": { "app": "web" } },
                "spec": {
                    "nodeName": "vnode-a-1",
                    "containers": [{
                        "name": "main", "image": "testbed.invalid/image", "command": ["run"],
                        "resources": { "requests": { "cpu": "250m", "memory": "64Mi" } },
                    }],
                    "tolerations": [{ "operator": "Exists" }],
                },
            })
        );
    }

    #[test]
    fn a_policy_limits_by_quantity_and_percent() {
        let built = policy("night").cluster("east").limit("cpu", "4").limit_percent("memory", 50).build();
        let limits = json!([{ "resource": "cpu", "quantity": "4" }, { "resource": "memory", "percent": 50 }]);
        assert_eq!(built["spec"], json!({ "cluster": "east", "resourceLimits": limits }));
    }
}
