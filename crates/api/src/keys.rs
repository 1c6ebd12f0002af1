//! Every label, annotation, finalizer, taint and condition key, and every default name, once.
//! No other file spells a `tapestry.io/` string. "Syncer" and "manager" below say who writes a key; *virtual* and
//! *physical* say in which cluster the object lives.

/// Keys with this prefix are ours: they are never copied from one cluster to the other, only set.
pub const PREFIX: &str = "tapestry.io/";

/// Whether Tapestry owns this key. A key of ours found on an object that a user or a foreign cluster wrote is hostile.
#[must_use]
pub fn ours(key: &str) -> bool {
    key.starts_with(PREFIX)
}

/// Declares the keys and, for the tests and the reference documentation, the list of them all.
macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = $key:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $key;)*
        /// Every key of ours, in the order of this file.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

keys! {
    // ---- on every object that Tapestry creates ----
    /// Label, value [`MANAGED_BY_TAPESTRY`]: on every object that Tapestry created, on both sides.
    MANAGED_BY = "tapestry.io/managed-by";
    /// Label: name of the binding (shortened with a hash beyond 63 characters; the whole name is then an annotation of
    /// the same key). Syncer, on every physical object and every virtual node; manager, on what it deploys.
    CLUSTER_BINDING = "tapestry.io/cluster-binding";
    /// Label with a hash, and annotation with the full value: which virtual cluster and binding an object belongs to.
    /// Syncer, on every physical object.
    ORIGIN = "tapestry.io/origin";
    /// Annotation: RFC 3339 time of the last real write. Syncer, on virtual nodes and virtual pods; never written alone.
    LAST_SYNC_TIME = "tapestry.io/last-sync-time";

    // ---- virtual nodes ----
    /// Label, value [`NODE_TYPE_VIRTUAL`]. Syncer, on virtual nodes.
    NODE_TYPE = "tapestry.io/node-type";
    /// Label: `spec.clusterID` of the binding. Syncer, on virtual nodes.
    PHYSICAL_CLUSTER_ID = "tapestry.io/physical-cluster-id";
    /// Label (shortened with a hash beyond 63 characters) and annotation (always whole): name of the physical node.
    /// Syncer, on virtual nodes.
    PHYSICAL_NODE_NAME = "tapestry.io/physical-node-name";
    /// Annotation: UID of the physical node. Syncer, on virtual nodes.
    PHYSICAL_NODE_UID = "tapestry.io/physical-node-uid";
    /// Annotation: names of the policies whose rules are in force, comma-separated. Syncer, on virtual nodes.
    POLICIES_APPLIED = "tapestry.io/policies-applied";
    /// Annotation: JSON of the policy's reclaim rules, so that they are known after the policy is gone.
    /// Syncer, on virtual nodes.
    RECLAIM_RULES = "tapestry.io/reclaim-rules";
    /// Annotation: JSON of the labels, annotations and taints that we set, so that a user's own survive. Syncer, on virtual
    /// nodes.
    EXPECTED_METADATA = "tapestry.io/expected-metadata";

    // ---- virtual pods: where the copy is (user-writable, so never trusted alone) ----
    /// Annotation: namespace of the physical pod. Syncer, on virtual pods.
    PHYSICAL_POD_NAMESPACE = "tapestry.io/physical-pod-namespace";
    /// Annotation: name of the physical pod. Syncer, on virtual pods.
    PHYSICAL_POD_NAME = "tapestry.io/physical-pod-name";
    /// Annotation: UID of the physical pod. Syncer, on virtual pods, once the physical pod exists.
    PHYSICAL_POD_UID = "tapestry.io/physical-pod-uid";

    // ---- physical pods: where the original is ----
    /// Annotation: namespace of the virtual pod. Syncer, on physical pods.
    VIRTUAL_POD_NAMESPACE = "tapestry.io/virtual-pod-namespace";
    /// Annotation: name of the virtual pod. Syncer, on physical pods.
    VIRTUAL_POD_NAME = "tapestry.io/virtual-pod-name";
    /// Annotation: UID of the virtual pod. Syncer, on physical pods.
    VIRTUAL_POD_UID = "tapestry.io/virtual-pod-uid";
    /// Annotation: `metadata.generation` of the virtual pod that was last pushed. Syncer, on physical pods.
    VIRTUAL_POD_GENERATION = "tapestry.io/virtual-pod-generation";
    /// Annotation: a mark of the sizes (requests and limits) that the virtual pod asked for when they were last pushed.
    /// Syncer, on physical pods.
    VIRTUAL_POD_SIZES = "tapestry.io/virtual-pod-sizes";
    /// Annotation: marks of the virtual pod's labels and annotations, and of what can change in its spec, when they were last
    /// pushed. Syncer, on physical pods.
    VIRTUAL_POD_MARKS = "tapestry.io/virtual-pod-marks";
    /// Annotation: name of the virtual node. Syncer, on physical pods; the downward API reads it for `spec.nodeName`.
    VIRTUAL_NODE_NAME = "tapestry.io/virtual-node-name";
    /// Annotation: `spec.serviceAccountName` of the virtual pod. Syncer, on physical pods; read by the downward API.
    VIRTUAL_SERVICE_ACCOUNT = "tapestry.io/virtual-service-account";

    // ---- copies of ConfigMaps, Secrets and Services: where the source is ----
    /// Annotation: namespace of the source in the virtual cluster. Syncer, on copies. On physical pods a label: copies of Services
    /// select by it.
    VIRTUAL_NAMESPACE = "tapestry.io/virtual-namespace";
    /// Annotation: name of the source. Syncer, on copies.
    VIRTUAL_NAME = "tapestry.io/virtual-name";
    /// Annotation: UID of the source. Syncer, on copies.
    VIRTUAL_UID = "tapestry.io/virtual-uid";
    /// Annotation: `metadata.resourceVersion` of the source when it was last carried. Syncer, on copies.
    VIRTUAL_RESOURCE_VERSION = "tapestry.io/virtual-resource-version";
    /// Annotation: JSON with each carried key and a mark of its value, so that drift is found and a key that others added
    /// is kept. Syncer, on copies; on physical pods also with images and tolerations, so that only what the virtual pod changed is
    /// pushed.
    CARRIED = "tapestry.io/carried";
    /// Annotation: JSON with marks of values that another client wrote to a copy and that may have gone up to the source, by key.
    /// Syncer, on copies of sources with [`SYNC_DIRECTION`].
    OFFERED = "tapestry.io/offered";
    /// Annotation: JSON with the keys that were changed in both clusters, until an event says so. Syncer, on such copies.
    CONFLICTS = "tapestry.io/conflicts";

    // ---- volumes ----
    /// Annotation: `<namespace>/<name>` of the virtual claim that a volume is for. Syncer, on copies of PersistentVolumes.
    VIRTUAL_CLAIM = "tapestry.io/virtual-claim";
    /// Annotation: `<name>/<UID>` of the binding in whose physical cluster the volume may be attached. Syncer, on virtual
    /// PersistentVolumes that one cluster at a time may attach, from before their copy exists until it is gone.
    VOLUME_HOLDER = "tapestry.io/volume-holder";

    // ---- Secrets with tokens of virtual pods ----
    /// Annotation: RFC 3339 time at which the first of the tokens expires. Syncer, on token Secrets.
    TOKEN_EXPIRES = "tapestry.io/token-expires";
    /// Annotation: RFC 3339 time at which new tokens are asked for, after 80 % of the shortest life. Syncer, on token Secrets.
    TOKEN_REFRESH = "tapestry.io/token-refresh";

    // ---- virtual Services ----
    /// Annotation, with a dot and `spec.clusterID` after it: JSON of the addresses of load balancers that a physical cluster added to
    /// the status. Syncer, on virtual Services.
    LOAD_BALANCER = "tapestry.io/load-balancer";

    // ---- written by users ----
    /// Annotation, value [`LEND_NEVER`]: the owner of a physical node stops lending it at once.
    LEND = "tapestry.io/lend";
    /// Annotation, value: `<id of the trip>/<number of pods>`. `tapestry resume`, on a binding, to clear the mass-delete breaker.
    RESUME = "tapestry.io/resume";
    /// Annotation, value `true`: a user opts a DaemonSet's virtual pods in to being mirrored.
    RUNNING_DAEMONSET = "tapestry.io/running-daemonset";

    /// Annotation, value [`SYNC_BOTH`]: the user of a ConfigMap or Secret lets changes of its copies flow up too. The syncer writes on
    /// the copy whether they do.
    SYNC_DIRECTION = "tapestry.io/sync-direction";

    // ---- taints on virtual nodes, all written by the syncer ----
    /// Taint, NoSchedule: on every virtual node unless the binding sets `disableNodeDefaultTaint`.
    TAINT_VNODE = "tapestry.io/vnode";
    /// Taint, NoSchedule: the virtual node is being drained and will be removed.
    TAINT_VNODE_DELETING = "tapestry.io/vnode-deleting";
    /// Taint, NoSchedule, then NoExecute where reclaim is forced: no time window is open.
    TAINT_OUT_OF_TIME_WINDOWS = "tapestry.io/out-of-time-windows";
    /// Taint, NoSchedule, never NoExecute: less is leased than pods use.
    TAINT_OVER_LEASED = "tapestry.io/over-leased";
    /// Taint, NoSchedule: the physical node is cordoned.
    TAINT_PHYSICAL_CORDONED = "tapestry.io/physical-cordoned";
    /// Taint, NoSchedule: the physical API server does not answer.
    TAINT_PHYSICAL_UNREACHABLE = "tapestry.io/physical-unreachable";
    /// Taint, NoSchedule: the syncer cannot work, and only renews the node's Lease.
    TAINT_SYNCER_STOPPED = "tapestry.io/syncer-stopped";
    /// Taint, NoSchedule, for a while: the physical cluster could not place a pod there. Value: how often in a row.
    TAINT_PLACEMENT_FAILED = "tapestry.io/placement-failed";
    /// Taint: a watch that admission relies on is out of sync, so nothing new is placed.
    TAINT_OUT_OF_SYNC = "tapestry.io/out-of-sync";

    // ---- pod conditions ----
    /// Pod condition: whether the virtual node admitted the pod, and if not, why. Syncer, on virtual pods.
    CONDITION_ADMITTED = "tapestry.io/Admitted";
    /// Pod condition, only ever `False`: a change of a running pod does not reach its copy, and why. Syncer, on virtual pods.
    CONDITION_CHANGES_PUSHED = "tapestry.io/ChangesPushed";

    // ---- finalizers ----
    /// Finalizer of the manager, on bindings: what it deployed is gone before the binding is.
    FINALIZER_MANAGER = "tapestry.io/manager";
    /// Finalizer of the syncer, on bindings: both clusters are clean before the binding is gone.
    FINALIZER_SYNCER = "tapestry.io/syncer";
    /// Finalizer of the syncer, on virtual nodes: a user's delete becomes a drain. It is the same string as
    /// [`TAINT_VNODE`]; finalizers and taints are different lists.
    FINALIZER_VNODE = "tapestry.io/vnode";
}

/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_TAPESTRY: &str = "tapestry";
/// Value of [`NODE_TYPE`].
pub const NODE_TYPE_VIRTUAL: &str = "virtual";
/// Value of [`LEND`]; any other value is ignored.
pub const LEND_NEVER: &str = "never";
/// Value of [`SYNC_DIRECTION`]; any other value is reported.
pub const SYNC_BOTH: &str = "both";
/// Value of the opt-in annotations, such as [`RUNNING_DAEMONSET`].
pub const TRUE: &str = "true";

/// Node condition: whether the physical API server answers. Syncer, on virtual nodes; unprefixed, as node conditions are.
pub const CONDITION_PHYSICAL_CLUSTER_REACHABLE: &str = "PhysicalClusterReachable";

/// Node condition: whether the node is lent at the moment, and if not, why. Syncer, on virtual nodes.
pub const CONDITION_LENDING: &str = "Lending";

/// Tapestry's own namespace in the virtual cluster.
pub const NAMESPACE: &str = "tapestry-system";
/// `ConfigMap` in [`NAMESPACE`] that remembers bindings released by force, to clean up if their cluster returns.
pub const TOMBSTONES: &str = "tapestry-tombstones";
/// `ServiceAccount` of all physical pods, in the mount namespace; it has no secrets and no rights.
pub const POD_SERVICE_ACCOUNT: &str = "tapestry-pod";
/// Physical `PriorityClass` of all physical pods unless the binding names another; created when missing.
pub const PRIORITY_CLASS: &str = "tapestry-default";
/// `ResourceQuota` in the mount namespace, with `guard.quota`.
pub const QUOTA: &str = "tapestry-leased";
/// `NetworkPolicy` in the mount namespace, with `guard.networkPolicy`.
pub const NETWORK_POLICY: &str = "tapestry-isolation";
/// Virtual namespaces whose pods are not mirrored, unless the binding gives its own list.
pub const EXCLUDED_NAMESPACES: &[&str] = &["kube-system", "kube-public", "kube-node-lease", "default", NAMESPACE];
/// Key in the `Secret` of a binding that holds the kubeconfig.
pub const KUBECONFIG: &str = "kubeconfig";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A Kubernetes qualified name: at most 63 of `[-_.A-Za-z0-9]` after the prefix, alphanumeric at both ends.
    fn qualified(key: &str) -> bool {
        let Some(name) = key.strip_prefix(PREFIX) else {
            return false;
        };
        let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        name.len() <= 63
            && end(name.chars().next())
            && end(name.chars().next_back())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    }

    #[test]
    fn every_key_is_a_qualified_name_of_ours() {
        for key in ALL {
            assert!(ours(key) && qualified(key), "{key}");
        }
    }

    #[test]
    fn no_key_is_declared_twice_except_the_vnode_taint_and_finalizer() {
        let mut seen = BTreeSet::new();
        let twice: Vec<_> = ALL.iter().filter(|key| !seen.insert(**key)).collect();
        assert_eq!(twice, [&FINALIZER_VNODE]);
    }

    #[test]
    fn keys_that_the_transformations_write_are_spelled_as_here() {
        use tapestry_domain::{dependents, podspec, tokens, volumes};
        let pairs = [
            (ORIGIN, dependents::keys::ORIGIN),
            (VIRTUAL_NAMESPACE, dependents::keys::VIRTUAL_NAMESPACE),
            (VIRTUAL_NAME, dependents::keys::VIRTUAL_NAME),
            (VIRTUAL_UID, dependents::keys::VIRTUAL_UID),
            (VIRTUAL_RESOURCE_VERSION, dependents::keys::VIRTUAL_RESOURCE_VERSION),
            (CARRIED, dependents::keys::CARRIED),
            (SYNC_DIRECTION, dependents::keys::SYNC_DIRECTION),
            (OFFERED, dependents::keys::OFFERED),
            (CONFLICTS, dependents::keys::CONFLICTS),
            (VIRTUAL_POD_NAME, podspec::keys::VIRTUAL_POD_NAME),
            (VIRTUAL_POD_NAMESPACE, podspec::keys::VIRTUAL_POD_NAMESPACE),
            (VIRTUAL_POD_UID, podspec::keys::VIRTUAL_POD_UID),
            (VIRTUAL_NODE_NAME, podspec::keys::VIRTUAL_NODE_NAME),
            (VIRTUAL_SERVICE_ACCOUNT, podspec::keys::VIRTUAL_SERVICE_ACCOUNT),
            (VIRTUAL_POD_GENERATION, podspec::keys::VIRTUAL_POD_GENERATION),
            (VIRTUAL_POD_MARKS, podspec::keys::VIRTUAL_POD_MARKS),
            (CARRIED, podspec::keys::CARRIED),
            (VIRTUAL_CLAIM, volumes::keys::VIRTUAL_CLAIM),
            (TOKEN_EXPIRES, tokens::keys::TOKEN_EXPIRES),
            (TOKEN_REFRESH, tokens::keys::TOKEN_REFRESH),
        ];
        for (here, there) in pairs {
            assert_eq!(here, there);
        }
        assert_eq!(dependents::Wish::parse(Some(SYNC_BOTH)), dependents::Wish::Both);
    }

    #[test]
    fn keys_of_others_are_not_ours() {
        for key in ["tapestry.io", "nottapestry.io/managed-by", "kubernetes.io/hostname", ""] {
            assert!(!ours(key), "{key}");
        }
    }
}
