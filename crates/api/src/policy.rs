//! `ResourceLeasingPolicy`: how much of which nodes is lent and when, with its spec and its status.
//! The doc comments of fields are the user's documentation (`kubectl explain rlp.spec`). Decides nothing.

mod parse;

pub use parse::{Cluster, Policy};

use std::ops::Not;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// `gracefulReclaimPeriodSeconds` when it is not given.
pub const GRACEFUL_RECLAIM_PERIOD_SECONDS: i32 = 30;
/// `timeZone` when it is not given.
pub const TIME_ZONE: &str = "UTC";

/// How much of which nodes is lent and when.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cloud.tencent.com",
    version = "v1beta1",
    kind = "ResourceLeasingPolicy",
    plural = "resourceleasingpolicies",
    shortname = "rlp",
    category = "tapestry",
    status = "ResourceLeasingPolicyStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "ResourceLeasingPolicy says how much of which physical nodes is lent, and when. Of several policies that select \
           a node and whose window is open, the one with the highest priority applies, then the oldest, then the first by name. A policy found in the \
           physical cluster is its owner's and restricts all others.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.cluster"),
    printcolumn(
        name = "Active",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Active\")].status",
        description = "Whether it lends nodes"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Active\")].reason",
        description = "Why, or why not"
    ),
    printcolumn(
        name = "Nodes",
        type_ = "integer",
        json_path = ".status.nodes",
        description = "Nodes that it applies to"
    ),
    printcolumn(
        name = "Open",
        type_ = "boolean",
        json_path = ".status.activeTimeWindow",
        description = "Whether a time window is open",
        priority = 1
    ),
    printcolumn(
        name = "Next",
        type_ = "string",
        json_path = ".status.nextTransitionTime",
        description = "When a window next opens or closes",
        priority = 1
    ),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceLeasingPolicySpec {
    /// Which cluster the policy is for: the name of a ClusterBinding, or its clusterID, or `*` for every binding.
    #[schemars(length(min = 1, max = 253), regex(pattern = schema::CLUSTER))]
    pub cluster: String,

    /// Which physical nodes the policy is for, as in a pod's node affinity. Default: every node of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::node_selector")]
    pub node_selector: Option<NodeSelector>,

    /// When the nodes are lent; any of the windows is enough. Default: always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub time_windows: Vec<TimeWindow>,

    /// IANA time zone of windows without their own, and of exceptDates without windows, such as `Asia/Shanghai`.
    /// Default: `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = schema::TIME_ZONE), extend("default" = TIME_ZONE))]
    pub time_zone: Option<String>,

    /// Days without lending, as `YYYY-MM-DD`: a window that would start on such a day of its time zone does not open;
    /// without windows nothing is lent from midnight to midnight. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::dates")]
    pub except_dates: Vec<String>,

    /// How much may be lent of each node, by resource. A resource that is not listed is lent as far as it is idle.
    /// Default: all that is idle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["resource"]))]
    pub resource_limits: Vec<ResourceLimit>,

    /// Reclaim capacity by removing pods when a window has ended or less is lent than pods use. Default: false, so
    /// running pods stay until they finish.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub force_reclaim: bool,

    /// How long pods may keep running before they are removed by force, in seconds. Default: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800), extend("default" = GRACEFUL_RECLAIM_PERIOD_SECONDS))]
    pub graceful_reclaim_period_seconds: Option<i32>,

    /// Start reclaiming so early that the capacity is back when the window ends, rather than a grace period later. Has an
    /// effect only with `forceReclaim`. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub reclaim_before_end: bool,

    /// Which of several policies applies to a node: of those whose window is open, the one with the highest priority. Default: 0.
    #[serde(default)]
    #[schemars(range(min = -1_000_000_000, max = 1_000_000_000))]
    pub priority: i32,
}

/// A recurring span of wall-clock time. A window that crosses midnight belongs to the day it starts on; one whose start
/// equals its end is the whole day.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TimeWindow {
    /// When lending starts: `HH:MM`, 00:00 to 23:59.
    #[schemars(regex(pattern = schema::WINDOW_START))]
    pub start: String,

    /// When lending ends: `HH:MM`, 00:00 to 24:00, not included in the window. Before the start: on the next day.
    #[schemars(regex(pattern = schema::WINDOW_END))]
    pub end: String,

    /// On which days the window starts: English names, full or three letters, in any case. Default: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7), inner(regex(pattern = schema::DAY)), extend("x-kubernetes-list-type" = "set"))]
    pub days: Vec<String>,

    /// IANA time zone of this window. Default: the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = schema::TIME_ZONE))]
    pub time_zone: Option<String>,
}

/// How much of one resource of a node may be lent. Give quantity, percent or both; of both the smaller holds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("anyOf" = [{ "required": ["quantity"] }, { "required": ["percent"] }]))]
pub struct ResourceLimit {
    /// Name of the resource, such as `cpu`, `memory`, `pods`, `nvidia.com/gpu`; `storage` means `ephemeral-storage`.
    #[schemars(length(min = 1, max = 317), regex(pattern = schema::RESOURCE))]
    pub resource: String,

    /// At most this much of each node, such as `4`, `500m` or `8Gi`. 0 lends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub quantity: Option<Quantity>,

    /// At most this share of what is idle on each node, in whole percent from 0 to 100. 0 lends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<i32>,
}

/// The state of the policy. The syncers of its clusters write it; without one it stays empty.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceLeasingPolicyStatus {
    /// The state of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// Valid and Active, each with a reason and what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Whether a time window is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_time_window: Option<bool>,

    /// When a window next opens or closes; absent when that never happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_transition_time: Option<Time>,

    /// When the policy last changed what is lent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_time: Option<Time>,

    /// To how many nodes the policy applies, not counting those where another policy overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i64>,

    /// To how many nodes of each cluster the policy applies; each syncer writes its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub clusters: Vec<ClusterShare>,

    /// The metadata.generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// To how many nodes of one cluster the policy applies.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterShare {
    /// Name of the ClusterBinding.
    pub name: String,

    /// To how many of its nodes the policy applies, not counting those where another policy overrides it.
    pub nodes: i64,
}

/// Active: a window is open. Inactive: none is. Failed: the policy is not applied; the conditions say what to change. Pending
/// is for a policy that no syncer has read; today such a policy has no phase.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No syncer has read it; not written today.
    Pending,
    /// A window is open.
    Active,
    /// No window is open.
    Inactive,
    /// Not applied; the conditions say what to change.
    Failed,
}
