//! How a virtual node should look, and the patches that make it look so (DESIGN §10). Pure.
//! Touches only what is ours: a user's own labels, annotations and taints, and Kubernetes' taints, survive.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_domain::names::label_value;
use tapestry_domain::resources::Resources;

use super::row::{Condition, PNode, Taint, VNode};
use crate::bindings::Bound;
use crate::origin::Origin;

/// How a virtual node should look.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Want {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) leased: Resources,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) info: Option<Box<str>>,
    pub(crate) features: Option<Box<str>>,
    pub(crate) provider_id: String,
}

/// What we set last time, kept in annotation `expected-metadata`: what is in it and no longer wanted is removed.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Expected {
    labels: BTreeSet<String>,
    annotations: BTreeSet<String>,
    /// Key and effect.
    taints: BTreeSet<(String, String)>,
    conditions: BTreeSet<String>,
}

/// What a plan knows besides the physical node.
pub(crate) struct Circumstances<'a> {
    pub(crate) bound: &'a Bound,
    pub(crate) origin: &'a Origin,
    pub(crate) vnode: &'a str,
    /// The policy in force; `None` when the node is on its way out.
    pub(crate) policy: Option<&'a str>,
    pub(crate) leased: Resources,
    pub(crate) reachable: bool,
    pub(crate) now: jiff::Timestamp,
}

/// Labels of the physical cluster that mean something to its own controllers only.
fn mirrored(label: &str) -> bool {
    !(label.starts_with("node-role.kubernetes.io/") || label.starts_with("karpenter.sh/") || keys::ours(label))
}

/// Taints that the virtual cluster's controller-manager derives from conditions: never ours, never touched.
fn derived(taint: &Taint) -> bool {
    taint.key.starts_with("node.kubernetes.io/") || taint.key.starts_with("node.cloudprovider.kubernetes.io/")
}

impl Want {
    pub(crate) fn new(pnode: &PNode, about: &Circumstances<'_>) -> Self {
        let binding = &about.bound.binding;
        let mut labels: BTreeMap<String, String> = pnode.labels.clone();
        labels.retain(|key, _| mirrored(key));
        let own_labels = [
            (keys::PHYSICAL_CLUSTER_ID, binding.cluster_id.as_str().to_owned()),
            (keys::PHYSICAL_NODE_NAME, label_value(pnode.name.as_str()).into_owned()),
            (keys::NODE_TYPE, keys::NODE_TYPE_VIRTUAL.to_owned()),
            ("kubernetes.io/hostname", about.vnode.to_owned()),
            ("node.kubernetes.io/exclude-from-external-load-balancers", "true".to_owned()),
        ];
        labels.extend(about.origin.labels().into_iter().chain(own_labels).map(|(key, value)| (key.to_owned(), value)));

        let mut taints: Vec<Taint> =
            pnode.taints.iter().filter(|taint| !derived(taint) && !keys::ours(&taint.key)).cloned().collect();
        let mut taint = |key: &str| {
            taints.push(Taint {
                key: key.to_owned(),
                value: String::new(),
                effect: "NoSchedule".to_owned(),
                added: None,
            });
        };
        if pnode.cordoned {
            taint(keys::TAINT_PHYSICAL_CORDONED);
        }
        if !binding.disable_default_taint {
            taint(keys::TAINT_VNODE);
        }
        if !about.reachable {
            taint(keys::TAINT_PHYSICAL_UNREACHABLE);
        }
        if about.policy.is_none() {
            taint(keys::TAINT_VNODE_DELETING);
        }
        taints.sort();

        let annotations = [
            (keys::PHYSICAL_NODE_NAME, pnode.name.to_string()),
            (keys::PHYSICAL_NODE_UID, pnode.uid.to_string()),
            (keys::POLICIES_APPLIED, about.policy.unwrap_or_default().to_owned()),
        ];
        let mut want = Self {
            labels,
            annotations: annotations.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            taints,
            leased: about.leased.clone(),
            conditions: pnode.conditions.clone(),
            info: pnode.info.clone(),
            features: pnode.features.clone(),
            provider_id: format!("tapestry://{}/{}", binding.cluster_id, pnode.name),
        };
        want.conditions.push(reachable(about.reachable, about.now));
        let expected = serde_json::to_string(&want.expected()).unwrap_or_default();
        want.annotations.insert(keys::EXPECTED_METADATA.to_owned(), expected);
        want
    }

    fn expected(&self) -> Expected {
        Expected {
            labels: self.labels.keys().cloned().collect(),
            annotations: self.annotations.keys().cloned().collect(),
            taints: self.taints.iter().map(|taint| (taint.key.clone(), taint.effect.clone())).collect(),
            conditions: self.conditions.iter().map(|condition| condition.kind.clone()).collect(),
        }
    }

    /// The whole node, for its creation.
    pub(crate) fn render(&self, name: &str, now: jiff::Timestamp) -> Value {
        let mut annotations = self.annotations.clone();
        annotations.insert(keys::LAST_SYNC_TIME.to_owned(), format!("{now:.0}"));
        let taints: Vec<Value> = self.taints.iter().map(render_taint).collect();
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": self.labels, "annotations": annotations},
            "spec": {"providerID": self.provider_id, "taints": taints},
            "status": self.render_status(name, &[]),
        })
    }

    /// What must change in metadata and taints; `None` when nothing.
    pub(crate) fn patch_metadata(&self, vnode: &VNode, now: jiff::Timestamp) -> Option<Value> {
        let before: Expected = vnode
            .annotations
            .get(keys::EXPECTED_METADATA)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let labels = patch_map(&self.labels, &vnode.labels, &before.labels);
        let mut annotations = patch_map(&self.annotations, &vnode.annotations, &before.annotations);
        let taints = self.merge_taints(vnode, &before);
        if labels.is_empty() && annotations.is_empty() && taints.is_none() {
            return None;
        }
        annotations.insert(keys::LAST_SYNC_TIME.to_owned(), json!(format!("{now:.0}")));
        let mut patch = json!({"metadata": {"labels": labels, "annotations": annotations}});
        if let Some(taints) = taints {
            patch["spec"]["taints"] = json!(taints);
        }
        Some(patch)
    }

    /// The whole list, because Kubernetes replaces it as a whole: ours as wanted, everybody else's as they are.
    fn merge_taints(&self, vnode: &VNode, before: &Expected) -> Option<Vec<Value>> {
        let key = |taint: &Taint| (taint.key.clone(), taint.effect.clone());
        let wanted: BTreeSet<_> = self.taints.iter().map(key).collect();
        let mut merged: Vec<&Taint> = vnode
            .taints
            .iter()
            .filter(|taint| !wanted.contains(&key(taint)) && !before.taints.contains(&key(taint)))
            .collect();
        let foreign = merged.len();
        merged.extend(&self.taints);
        let same =
            |taint: &Taint| vnode.taints.iter().any(|there| key(there) == key(taint) && there.value == taint.value);
        let unchanged = vnode.taints.len() == merged.len() && merged[foreign..].iter().all(|taint| same(taint));
        (!unchanged).then(|| merged.into_iter().map(render_taint).collect())
    }

    /// What must change in the status; `None` when nothing.
    pub(crate) fn patch_status(&self, vnode: &VNode) -> Option<Value> {
        let before: Expected = vnode
            .annotations
            .get(keys::EXPECTED_METADATA)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let wanted = |kind: &str| self.conditions.iter().any(|condition| condition.kind == kind);
        let foreign: Vec<Condition> = vnode
            .conditions
            .iter()
            .filter(|there| !wanted(&there.kind) && !before.conditions.contains(&there.kind))
            .cloned()
            .collect();
        let said = |condition: &Condition| {
            vnode.conditions.iter().any(|there| {
                // Ours has no transition time of its own: it keeps the one it was written with.
                if condition.kind == keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE {
                    return there.kind == condition.kind && there.status == condition.status;
                }
                there.says_the_same(condition)
            })
        };
        let same_conditions =
            self.conditions.iter().all(said) && vnode.conditions.len() == self.conditions.len() + foreign.len();
        let same = same_conditions
            && vnode.capacity == self.leased
            && vnode.allocatable == self.leased
            && same_json(vnode.info.as_deref(), self.info.as_deref())
            && same_json(vnode.features.as_deref(), self.features.as_deref())
            && same_json(vnode.addresses.as_deref(), Some(&addresses(vnode.name.as_str()).to_string()));
        if same {
            return None;
        }
        let mut status = self.render_status(vnode.name.as_str(), &foreign);
        for (field, there) in [("capacity", &vnode.capacity), ("allocatable", &vnode.allocatable)] {
            for (name, _) in there.iter().filter(|(name, _)| !self.leased.contains(name)) {
                status[field][name.as_str()] = Value::Null;
            }
        }
        Some(json!({"status": status}))
    }

    fn render_status(&self, name: &str, foreign: &[Condition]) -> Value {
        let conditions: Vec<Value> = foreign.iter().chain(&self.conditions).map(render_condition).collect();
        json!({
            "capacity": self.leased, "allocatable": self.leased, "conditions": conditions,
            "nodeInfo": parse_json(self.info.as_deref()), "declaredFeatures": parse_json(self.features.as_deref()),
            // A copied IP would let the virtual API server dial the physical kubelet.
            "addresses": addresses(name),
        })
    }
}

fn reachable(reachable: bool, now: jiff::Timestamp) -> Condition {
    let (status, reason, message) = if reachable {
        ("True", "ApiServerAnswers", "the physical API server answers")
    } else {
        (
            "False",
            "ApiServerSilent",
            "the physical API server does not answer; pods keep running and nothing new is placed",
        )
    };
    Condition {
        kind: keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Some(format!("{now:.0}")),
        last_heartbeat_time: Some(format!("{now:.0}")),
    }
}

fn addresses(vnode: &str) -> Value {
    json!([{"address": vnode, "type": "Hostname"}])
}

/// Set what differs, remove what we set before and no longer want, leave the rest alone.
fn patch_map(
    want: &BTreeMap<String, String>,
    there: &BTreeMap<String, String>,
    before: &BTreeSet<String>,
) -> Map<String, Value> {
    let set = want
        .iter()
        .filter(|(key, value)| there.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), json!(value)));
    let stale = before.iter().filter(|key| !want.contains_key(*key) && there.contains_key(*key));
    set.chain(stale.map(|key| (key.clone(), Value::Null))).collect()
}

fn render_taint(taint: &Taint) -> Value {
    let mut value = json!({"key": taint.key, "effect": taint.effect});
    if !taint.value.is_empty() {
        value["value"] = json!(taint.value);
    }
    if let Some(added) = &taint.added {
        value["timeAdded"] = json!(added);
    }
    value
}

fn render_condition(condition: &Condition) -> Value {
    let Condition { kind, status, reason, message, last_transition_time, last_heartbeat_time } = condition;
    let mut value = json!({"type": kind, "status": status, "reason": reason, "message": message});
    for (field, time) in [("lastTransitionTime", last_transition_time), ("lastHeartbeatTime", last_heartbeat_time)] {
        if let Some(time) = time {
            value[field] = json!(time);
        }
    }
    value
}

fn parse_json(text: Option<&str>) -> Value {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
}

/// Two servers may write the same with other spaces or order.
fn same_json(a: Option<&str>, b: Option<&str>) -> bool {
    a == b || parse_json(a) == parse_json(b)
}
