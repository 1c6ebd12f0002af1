//! The kinds of objects we use, and the API path of each. Those we name ourselves are constants; what discovery names while we run
//! is interned. Knows no field of any of them.

mod intern;
mod resource;

use std::fmt::Write as _;

pub use intern::BadKind;
pub(crate) use resource::Resource;

/// One resource of the API. Compared by value, never by address. Always `&'static`, so that it can be part of a key and a metric
/// label: the constants below, or [`Kind::intern`].
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version, `v1`.
    pub version: &'static str,
    /// Name of the resource in paths, `pods`.
    pub plural: &'static str,
    /// Name of the kind in objects, `Pod`.
    pub kind: &'static str,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
}

const fn core(plural: &'static str, kind: &'static str, namespaced: bool) -> Kind {
    Kind { group: "", version: "v1", plural, kind, namespaced }
}

/// core/v1 Pod.
pub static POD: Kind = core("pods", "Pod", true);
/// core/v1 Node.
pub static NODE: Kind = core("nodes", "Node", false);
/// core/v1 Event.
pub static EVENT: Kind = core("events", "Event", true);
/// core/v1 Namespace.
pub static NAMESPACE: Kind = core("namespaces", "Namespace", false);
/// core/v1 `ServiceAccount`.
pub static SERVICE_ACCOUNT: Kind = core("serviceaccounts", "ServiceAccount", true);
/// core/v1 `ConfigMap`.
pub static CONFIG_MAP: Kind = core("configmaps", "ConfigMap", true);
/// core/v1 Secret.
pub static SECRET: Kind = core("secrets", "Secret", true);
/// core/v1 `ResourceQuota`.
pub static RESOURCE_QUOTA: Kind = core("resourcequotas", "ResourceQuota", true);
/// core/v1 Service.
pub static SERVICE: Kind = core("services", "Service", true);
/// core/v1 `PersistentVolume`.
pub static PERSISTENT_VOLUME: Kind = core("persistentvolumes", "PersistentVolume", false);
/// core/v1 `PersistentVolumeClaim`.
pub static PERSISTENT_VOLUME_CLAIM: Kind = core("persistentvolumeclaims", "PersistentVolumeClaim", true);
/// networking.k8s.io/v1 `NetworkPolicy`.
pub static NETWORK_POLICY: Kind = Kind {
    group: "networking.k8s.io",
    version: "v1",
    plural: "networkpolicies",
    kind: "NetworkPolicy",
    namespaced: true,
};
/// scheduling.k8s.io/v1 `PriorityClass`.
pub static PRIORITY_CLASS: Kind = Kind {
    group: "scheduling.k8s.io",
    version: "v1",
    plural: "priorityclasses",
    kind: "PriorityClass",
    namespaced: false,
};
/// coordination.k8s.io/v1 Lease.
pub static LEASE: Kind =
    Kind { group: "coordination.k8s.io", version: "v1", plural: "leases", kind: "Lease", namespaced: true };
/// storage.k8s.io/v1 `CSINode`.
pub static CSI_NODE: Kind =
    Kind { group: "storage.k8s.io", version: "v1", plural: "csinodes", kind: "CSINode", namespaced: false };
/// storage.k8s.io/v1 `StorageClass`.
pub static STORAGE_CLASS: Kind =
    Kind { group: "storage.k8s.io", version: "v1", plural: "storageclasses", kind: "StorageClass", namespaced: false };
/// Our `ClusterBinding`.
pub static CLUSTER_BINDING: Kind = Kind {
    group: "cloud.tencent.com",
    version: "v1beta1",
    plural: "clusterbindings",
    kind: "ClusterBinding",
    namespaced: false,
};
/// Our `ResourceLeasingPolicy`.
pub static POLICY: Kind = Kind {
    group: "cloud.tencent.com",
    version: "v1beta1",
    plural: "resourceleasingpolicies",
    kind: "ResourceLeasingPolicy",
    namespaced: false,
};

impl Kind {
    /// `v1` or `group/version`, as objects spell it.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The path of the collection, or of one object when a name is given.
    #[must_use]
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut path = if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", self.group) };
        // Writing to a String cannot fail.
        let _ = write!(path, "/{}", self.version);
        if let Some(namespace) = namespace {
            let _ = write!(path, "/namespaces/{namespace}");
        }
        let _ = write!(path, "/{}", self.plural);
        if let Some(name) = name {
            let _ = write!(path, "/{name}");
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api_server() {
        assert_eq!(POD.path(Some("a"), Some("b")), "/api/v1/namespaces/a/pods/b");
        assert_eq!(POD.path(None, None), "/api/v1/pods");
        assert_eq!(NODE.path(None, Some("n")), "/api/v1/nodes/n");
        assert_eq!(
            LEASE.path(Some("kube-node-lease"), None),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        );
    }
}
