//! `ClusterBinding`: one physical cluster bound to this virtual cluster, with its spec and its status.
//! The doc comments of fields are the user's documentation (`kubectl explain cb.spec`). Decides nothing.

mod parse;

pub use parse::{Binding, Kubeconfig, Pinned};

use std::collections::BTreeMap;
use std::ops::Not;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// `evictAfterSeconds` when it is not given.
pub const EVICT_AFTER_SECONDS: i32 = 300;

/// Which physical cluster is bound, how to reach it, and which pods may run there.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cloud.tencent.com",
    version = "v1beta1",
    kind = "ClusterBinding",
    plural = "clusterbindings",
    shortname = "cb",
    category = "tapestry",
    status = "ClusterBindingStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "ClusterBinding binds one physical cluster to this virtual cluster. Its nodes are lent as virtual nodes as far \
           as ResourceLeasingPolicies allow; without a policy nothing is lent.",
    printcolumn(name = "ClusterID", type_ = "string", json_path = ".spec.clusterID"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes", description = "Virtual nodes"),
    printcolumn(name = "CPU", type_ = "string", json_path = ".status.leased.cpu", description = "CPU leased"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".status.leased.memory", description = "Memory leased"),
    printcolumn(
        name = "CPU-Used",
        type_ = "string",
        json_path = ".status.used.cpu",
        description = "CPU that pods request",
        priority = 1
    ),
    printcolumn(
        name = "Memory-Used",
        type_ = "string",
        json_path = ".status.used.memory",
        description = "Memory that pods request",
        priority = 1
    ),
    printcolumn(name = "Suspended", type_ = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
// A rule on the field alone would miss that a user removes it and sets it again.
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(oldSelf.mountNamespace) || oldSelf.mountNamespace == '' || (has(self.mountNamespace) && self.mountNamespace == oldSelf.mountNamespace)",
    "message": "mountNamespace cannot change once set, because pods already run there: delete the binding and bind the cluster again",
    "fieldPath": ".mountNamespace",
}]))]
#[expect(clippy::struct_excessive_bools, reason = "the fields are the API; each is an independent switch")]
pub struct ClusterBindingSpec {
    /// Short name of the physical cluster: a DNS label of at most 24 characters, unique among all bindings. It becomes
    /// part of the names of virtual nodes and cannot change.
    #[serde(rename = "clusterID")]
    #[schemars(length(min = 1, max = 24), regex(pattern = schema::LABEL))]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "self == oldSelf",
        "message": "clusterID cannot change, because virtual nodes are named after it: delete the binding and bind the cluster again",
    }]))]
    pub cluster_id: String,

    /// The Secret in this virtual cluster that holds, under the key `kubeconfig`, how to reach the physical cluster. The
    /// kubeconfig must be self-contained: no `exec`, no `auth-provider`, no file paths. A changed Secret takes effect
    /// without a restart.
    pub secret_ref: SecretRef,

    /// Which physical nodes may be lent, as in a pod's node affinity. Default: every node. Policies can narrow it further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::node_selector")]
    pub node_selector: Option<NodeSelector>,

    /// The one namespace in the physical cluster that receives all pods. Required, and it must exist: without it pods stay
    /// Pending and the condition Ready says so. It cannot change once set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63), regex(pattern = schema::LABEL_OR_EMPTY))]
    pub mount_namespace: String,

    /// Namespaces of the virtual cluster whose Services are carried to the physical cluster. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 63), regex(pattern = schema::LABEL_OR_EMPTY)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub service_namespaces: Vec<String>,

    /// Namespaces of the virtual cluster whose pods are never mirrored. A list given here, even an empty one, replaces
    /// the default: kube-system, kube-public, kube-node-lease, default and Tapestry's own namespace (tapestry-system).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 63), regex(pattern = schema::LABEL)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub excluded_namespaces: Option<Vec<String>>,

    /// Do not put the taint `tapestry.io/vnode:NoSchedule` on virtual nodes. Default: false, so only pods that tolerate
    /// it are scheduled there.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub disable_node_default_taint: bool,

    /// PriorityClass, in the physical cluster, of all pods of this binding. Default: `tapestry-default` (value -10000, never
    /// preempts), which is created when missing. A class named here must exist.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253), regex(pattern = schema::SUBDOMAIN_OR_EMPTY))]
    pub pod_priority_class_name: String,

    /// Mirror pods of DaemonSets too. Default: false, so only those with the annotation
    /// `tapestry.io/running-daemonset: "true"` are mirrored.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub running_daemonset_by_default: bool,

    /// Bind pods to their physical node directly (`spec.nodeName`) instead of letting the physical scheduler do so by
    /// node affinity. Faster, but the physical scheduler's checks are skipped. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub direct_scheduling: bool,

    /// The Pod Security Standard that a pod must meet before it may enter the physical cluster: `privileged`, `baseline`
    /// or `restricted`. A pod that does not stays Pending and says why. Default: `baseline`.
    #[serde(default)]
    pub pod_security: PodSecurity,

    /// What happens to pods while the physical API server does not answer. `Hold`: they stay as they are, nothing new is
    /// scheduled there. `Evict`: after `evictAfterSeconds` their nodes become Unknown and Kubernetes replaces the pods
    /// elsewhere. Default: `Hold`.
    #[serde(default)]
    pub partition: Partition,

    /// With `partition: Evict`, how long the physical API server may be unreachable before its nodes become
    /// Unknown, in seconds. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800), extend("default" = EVICT_AFTER_SECONDS))]
    pub evict_after_seconds: Option<i32>,

    /// Limits in the physical cluster that hold even against a rogue virtual cluster. Default: all off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,

    /// Accept a kubeconfig that says `insecure-skip-tls-verify`. Default: false, such a kubeconfig is refused.
    #[serde(default, rename = "insecureSkipTLSVerify", skip_serializing_if = "Not::not")]
    pub insecure_skip_tls_verify: bool,

    /// Where pods reach the API server of the virtual cluster. Pods then get its address and a token for it, as in any cluster.
    /// Default: pods get no address of an API server, and no token but those that they ask for.
    #[serde(default, rename = "virtualAPIServer", skip_serializing_if = "Option::is_none")]
    pub virtual_api_server: Option<VirtualApiServer>,

    /// Where pods reach the DNS of the virtual cluster. Default: pods use the physical cluster's.
    #[serde(default, rename = "virtualDNS", skip_serializing_if = "Option::is_none")]
    pub virtual_dns: Option<VirtualDns>,

    /// Stop lending now. Virtual nodes take no more pods, and running pods are reclaimed after the policy's grace period,
    /// whether or not they tolerate it. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub suspend: bool,
}

/// A Secret in the virtual cluster. Both fields are required; a binding without them becomes Failed and says so.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretRef {
    /// Name of the Secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253), regex(pattern = schema::SUBDOMAIN_OR_EMPTY))]
    pub name: String,

    /// Namespace of the Secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63), regex(pattern = schema::LABEL_OR_EMPTY))]
    pub namespace: String,
}

/// A Pod Security Standard.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the Kubernetes documentation defines the three")]
pub enum PodSecurity {
    Privileged,
    #[default]
    Baseline,
    Restricted,
}

/// What an outage of the physical API server does to pods.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Partition {
    /// Nothing: they stay as they were last seen.
    #[default]
    Hold,
    /// Their nodes become Unknown after a while, and Kubernetes evicts them.
    Evict,
}

/// Limits in the physical cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Guard {
    /// Keep a ResourceQuota `tapestry-leased` in the mount namespace at what is leased. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub quota: bool,

    /// Keep a NetworkPolicy `tapestry-isolation` in the mount namespace that isolates the pods of this binding from the
    /// rest of the physical cluster: only pods of the mount namespace reach them, and they reach only the mount namespace,
    /// DNS, addresses outside the private ranges, and `virtualAPIServer` if its `host` is an IP address (a NetworkPolicy cannot
    /// name a host, so a host name must lead to a public address). Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub network_policy: bool,
}

/// An address of the virtual API server that pods in the physical cluster can reach.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct VirtualApiServer {
    /// Host name or IP address.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9.:-]+$"))]
    pub host: String,

    /// Port. Default: 443.
    #[serde(default = "https")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

fn https() -> i32 {
    443
}

/// A name server of the virtual cluster that pods in the physical cluster can reach.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct VirtualDns {
    /// IP address, version 4 or 6.
    #[schemars(length(max = 45), extend("anyOf" = [{ "format": "ipv4" }, { "format": "ipv6" }]))]
    pub ip: String,
}

/// The state of the binding. The syncer writes it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterBindingStatus {
    /// The state of the binding in one word; the condition Ready says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// The state of the binding in detail, each with a reason and what to do. Connected: the physical cluster answers and
    /// is the right one. Ready: everything that the syncer does for the binding works. BreakerTripped, only while the mass-delete
    /// breaker holds pods back. The others appear when they are False for the first time. PoliciesKnown: the syncer can
    /// read the policies of both clusters. GuardsInForce: the syncer could write the objects that `guard` asks for.
    /// KubeconfigCurrent: the kubeconfig in the Secret is the one in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// The metadata.generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// When this status last changed. It is never written alone, so an old time means that nothing has changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,

    /// Identity of the physical cluster (UID of its kube-system namespace), pinned at the first connect. If another
    /// cluster ever answers, the binding becomes Failed and nothing is written.
    #[serde(default, rename = "physicalClusterUID", skip_serializing_if = "Option::is_none")]
    pub physical_cluster_uid: Option<String>,

    /// Identity of the virtual cluster, pinned in the same way.
    #[serde(default, rename = "virtualClusterUID", skip_serializing_if = "Option::is_none")]
    pub virtual_cluster_uid: Option<String>,

    /// Set while the mass-delete breaker holds everything back; see the condition BreakerTripped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerTrip>,

    /// Pods that Tapestry ended recently because they were lost on one side. Written before they end, so that a restarted
    /// syncer continues the count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unasked_ends: Option<UnaskedEnds>,

    /// The number of virtual nodes. At most ten seconds old, like `leased` and `used`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i64>,

    /// What the virtual nodes offer, summed by resource: cpu, memory, pods, and any other resource that they have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::quantities")]
    pub leased: BTreeMap<String, Quantity>,

    /// What the pods that were admitted on virtual nodes request, summed in the same way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::quantities")]
    pub used: BTreeMap<String, Quantity>,
}

/// Why the mass-delete breaker tripped.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct BreakerTrip {
    /// Identifies the trip: `tapestry resume` names it, and the number of pods.
    pub id: String,

    /// When it tripped.
    pub since: String,

    /// How many pods at most would end although no user asked for it.
    pub ends: i64,

    /// Of how many pods in total.
    pub pods: i64,
}

/// How many pods ended recently although no user asked for it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct UnaskedEnds {
    /// How many within the last minute, or the last hour while many are missing.
    #[schemars(range(min = 0))]
    pub ends: i64,

    /// When the last of them was counted.
    pub at: String,

    /// Which term of which syncer counted them.
    pub by: String,
}

/// The value of the annotation `tapestry.io/resume` with which a user lets the pods end of a binding that is being deleted
/// together with the definition of bindings.
pub const RESUME_DELETION: &str = "definition-deleted";

impl BreakerTrip {
    /// The value of the annotation `tapestry.io/resume` with which a user resumes this trip.
    #[must_use]
    pub fn resume_mark(&self) -> String {
        format!("{}/{}", self.id, self.ends)
    }
}

/// Pending: the syncer is reading both clusters for the first time, or the binding is being deleted. Ready: connected, and
/// everything works. Failed:
/// something does not; the conditions say what to do.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The syncer is reading both clusters for the first time, or cleans up because the binding is being deleted.
    Pending,
    /// Connected, and everything works.
    Ready,
    /// Something does not work; the conditions say what to do.
    Failed,
}
