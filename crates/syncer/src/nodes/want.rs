//! How a virtual node should look, and the patches that make it look so (DESIGN §10). Pure.
//! Touches only what is ours: a user's own labels, annotations and taints, and Kubernetes' taints, survive.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tapestry_api::{Status, keys};
use tapestry_cluster::probe::Connection;
use tapestry_domain::names::label_value;
use tapestry_domain::resources::Resources;
use tapestry_engine::{Reason as _, reasons};

use super::departure::applied;
use super::lending::{LendingState, render_rules};
use super::row::{Condition, NO_EXECUTE, NO_SCHEDULE, PNode, Taint, VNode};
use crate::bindings::Bound;
use crate::connections::PHYSICAL_RESTORED;
use crate::origin::Origin;
use crate::terms::{Stop, Terms};

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
    /// What it is to offer.
    pub(crate) leased: Resources,
    /// The physical cluster does not serve policies.
    pub(crate) owner_unknown: bool,
    pub(crate) origin: &'a Origin,
    /// How the virtual node is or will be called.
    pub(crate) name: &'a str,
    /// The virtual node, once there is one.
    pub(crate) vnode: Option<&'a VNode>,
    /// On which terms it is lent; `None` when it is on its way out.
    pub(crate) terms: Option<&'a Terms<'a>>,
    pub(crate) lending_state: &'a LendingState,
    /// Until when a node of which the physical cluster knows nothing is taken for the trace of an outage.
    pub(crate) settles: Option<jiff::Timestamp>,
    /// The way to the physical cluster.
    pub(crate) connection: &'a Connection,
    /// The taint of a node on which a pod could not be placed recently.
    pub(crate) crowded: Option<Taint>,
    /// What people are told while it is not lent.
    pub(crate) stopped: Option<Box<str>>,
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
            ("kubernetes.io/hostname", about.name.to_owned()),
            ("node.kubernetes.io/exclude-from-external-load-balancers", "true".to_owned()),
        ];
        labels.extend(about.origin.labels().into_iter().chain(own_labels).map(|(key, value)| (key.to_owned(), value)));

        let mut taints: Vec<Taint> =
            pnode.taints.iter().filter(|taint| !derived(taint) && !keys::ours(&taint.key)).cloned().collect();
        taints.extend(own_taints(pnode, about));
        taints.sort();

        let rules = match (about.terms.and_then(|terms| terms.policy), about.vnode) {
            // The policy is gone, or invalid: what it said last holds.
            (None, Some(vnode)) => vnode.rules.as_deref().map(ToOwned::to_owned),
            _ => Some(render_rules(&about.lending_state.rules)),
        };
        let mut annotations: BTreeMap<String, String> = [
            (keys::PHYSICAL_NODE_NAME, pnode.name.to_string()),
            (keys::PHYSICAL_NODE_UID, pnode.uid.to_string()),
            (keys::POLICIES_APPLIED, applied(about.terms, about.vnode, about.owner_unknown)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        annotations.extend(rules.map(|rules| (keys::RECLAIM_RULES.to_owned(), rules)));
        annotations.extend(about.origin.annotations().into_iter().map(|(key, value)| (key.to_owned(), value)));
        let mut want = Self {
            labels,
            annotations,
            taints,
            leased: about.leased.clone(),
            conditions: pnode.conditions.clone(),
            info: pnode.info.clone(),
            features: pnode.features.clone(),
            provider_id: format!("tapestry://{}/{}", binding.cluster_id, pnode.name),
        };
        if let Some(held) = held_ready(pnode, about) {
            want.conditions.retain(|condition| condition.kind != READY);
            want.conditions.push(held.clone());
        }
        if let Some(due) = unknown_from(about.bound, about.vnode, about.connection).filter(|due| *due <= about.now) {
            want.conditions.iter_mut().filter(|condition| condition.kind == READY).for_each(|ready| ready.forget(due));
        }
        want.conditions.push(reachable(about.vnode, about.connection, about.now));
        want.conditions.push(lending(about));
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
            "metadata": {
                "name": name, "labels": self.labels, "annotations": annotations, "finalizers": [keys::FINALIZER_VNODE],
            },
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
        // Our finalizer turns another client's delete into a drain; once the deletion has begun no finalizer can be added.
        let held = vnode.deleting || vnode.finalizers.iter().any(|finalizer| finalizer == keys::FINALIZER_VNODE);
        if labels.is_empty() && annotations.is_empty() && taints.is_none() && held {
            return None;
        }
        annotations.insert(keys::LAST_SYNC_TIME.to_owned(), json!(format!("{now:.0}")));
        let mut patch = json!({"metadata": {"labels": labels, "annotations": annotations}});
        if let Some(taints) = taints {
            patch["spec"]["taints"] = json!(taints);
        }
        if !held {
            let others = vnode.finalizers.iter().map(String::as_str);
            patch["metadata"]["finalizers"] = others.chain([keys::FINALIZER_VNODE]).collect();
        }
        Some(patch)
    }

    /// The whole list, because Kubernetes replaces it as a whole: ours as wanted, those of others as they are.
    fn merge_taints(&self, vnode: &VNode, before: &Expected) -> Option<Vec<Value>> {
        let key = |taint: &Taint| (taint.key.clone(), taint.effect.clone());
        let wanted: BTreeSet<_> = self.taints.iter().map(key).collect();
        let mut merged: Vec<&Taint> = vnode
            .taints
            .iter()
            // No other client sets a taint under our prefix, except to mislead us.
            .filter(|taint| {
                !wanted.contains(&key(taint)) && !before.taints.contains(&key(taint)) && !keys::ours(&taint.key)
            })
            .collect();
        let foreign = merged.len();
        let there =
            |taint: &Taint| vnode.taints.iter().find(|there| key(there) == key(taint) && there.value == taint.value);
        // One that is there keeps the time it was added.
        merged.extend(self.taints.iter().map(|taint| there(taint).unwrap_or(taint)));
        let same = |taint: &Taint| there(taint).is_some();
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
                // Ours have no transition time of their own: they keep the one they were written with.
                if OWN_CONDITIONS.contains(&condition.kind.as_str()) {
                    return there.kind == condition.kind
                        && there.status == condition.status
                        && there.reason == condition.reason
                        && there.message == condition.message;
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

/// Conditions that the physical node has not got.
const OWN_CONDITIONS: [&str; 2] = [keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE, keys::CONDITION_LENDING];

const READY: &str = "Ready";

/// What the virtual node says of its readiness, when the physical cluster knows nothing of the node and that may only be the trace
/// of an outage of its API server: Kubernetes would evict pods that run. What the kubelet itself says is never held back.
pub(super) fn held_ready<'a>(pnode: &PNode, about: &Circumstances<'a>) -> Option<&'a Condition> {
    let outage = !matches!(about.connection, Connection::Up(_))
        || about.vnode.is_some_and(|vnode| !vnode.reachable())
        || about.settles.is_some_and(|settles| about.now < settles);
    let unknown = pnode.conditions.iter().any(|condition| condition.kind == READY && condition.status == "Unknown");
    let said = about.vnode.and_then(|vnode| vnode.condition(READY));
    said.filter(|said| said.status == "True" && outage && unknown)
}

/// The taints that say why nothing new should come.
fn own_taints(pnode: &PNode, about: &Circumstances<'_>) -> Vec<Taint> {
    let Circumstances { lending_state, now, .. } = about;
    let mut taints = Vec::new();
    if let Some(stop) = lending_state.stop.filter(|stop| *stop != Stop::OutOfSync) {
        let since = lending_state.since.stopped.map_or(*now, |(_, since)| since);
        let value = stop.clock(&lending_state.rules).as_str().to_owned();
        taints.push(Taint { value, ..Taint::since(keys::TAINT_OUT_OF_TIME_WINDOWS, NO_SCHEDULE, since) });
    }
    let mut since = |wanted: bool, key: &str, since: Option<jiff::Timestamp>| {
        if wanted {
            taints.push(Taint::since(key, NO_SCHEDULE, since.unwrap_or(*now)));
        }
    };
    since(lending_state.over, keys::TAINT_OVER_LEASED, lending_state.since.over);
    since(lending_state.leaving, keys::TAINT_VNODE_DELETING, lending_state.since.leaving);
    if lending_state.force_at().is_some_and(|at| at <= *now) {
        taints.push(Taint::since(keys::TAINT_OUT_OF_TIME_WINDOWS, NO_EXECUTE, *now));
    }
    let plain = [
        (pnode.cordoned, keys::TAINT_PHYSICAL_CORDONED),
        (!about.bound.binding.disable_default_taint, keys::TAINT_VNODE),
        (!matches!(about.connection, Connection::Up(_)), keys::TAINT_PHYSICAL_UNREACHABLE),
        (lending_state.stop == Some(Stop::OutOfSync), keys::TAINT_OUT_OF_SYNC),
    ];
    taints.extend(plain.into_iter().filter(|(wanted, _)| *wanted).map(|(_, key)| Taint::plain(key)));
    taints.extend(about.crowded.clone());
    taints
}

/// With `partition: Evict`: from when on the node's state is unknown, if the physical API server stays unreachable.
/// Kubernetes then evicts its pods. An API server that answers is not unreachable, whatever else is wrong with it.
pub(super) fn unknown_from(bound: &Bound, vnode: Option<&VNode>, connection: &Connection) -> Option<jiff::Timestamp> {
    let Connection::Down(_) = connection else { return None };
    let told = vnode?.condition(keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE)?;
    let silent =
        Some(told).filter(|told| told.is(Status::False) && told.reason == Reachability::ApiServerSilent.as_str())?;
    let since: jiff::Timestamp = silent.last_transition_time.as_ref()?.parse().ok()?;
    since.checked_add(bound.binding.evict_after?).ok()
}

reasons! {
    /// Reason of condition `PhysicalClusterReachable`, where no refusal gives one.
    enum Reachability {
        /// It does.
        ApiServerAnswers,
        /// It does not; the age of the condition is the length of the outage.
        ApiServerSilent,
    }
}

pub(super) fn reachable(vnode: Option<&VNode>, connection: &Connection, now: jiff::Timestamp) -> Condition {
    let (status, reason, message) = match connection {
        Connection::Up(_) => ("True", Reachability::ApiServerAnswers.as_str(), "the physical API server answers"),
        Connection::Down(_) | Connection::Unknown => (
            "False",
            Reachability::ApiServerSilent.as_str(),
            "the physical API server does not answer; pods keep running and nothing new is placed",
        ),
        Connection::Refused(refused) => (
            "False",
            refused.reason(),
            "the physical API server answers and refuses the syncer, as the binding says; pods keep running and nothing new is placed",
        ),
        Connection::Restored(_) => (
            "False",
            PHYSICAL_RESTORED,
            "the physical cluster was restored from a backup; pods keep running and nothing new is placed until the syncer restarts",
        ),
    };
    let kind = keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE;
    let mut condition = own_condition(vnode, now, kind, status, reason, message.to_owned());
    if vnode.and_then(|vnode| vnode.condition(kind)).is_some_and(|known| known.reason != reason) {
        // Another trouble begins at its own time: an outage is not as old as the restore before it.
        condition.last_transition_time.clone_from(&condition.last_heartbeat_time);
    }
    condition
}

/// Whether the node is lent, and if not, why and until when.
fn lending(about: &Circumstances<'_>) -> Condition {
    let LendingState { stop, over, leaving, departure, .. } = about.lending_state;
    let until = about.terms.and_then(|terms| terms.until).map_or(String::new(), |until| format!(", until {until:.0}"));
    let (status, reason, message) = match (leaving, stop) {
        (true, _) => {
            let why = departure.map_or(String::new(), |departure| format!(": {}", departure.message()));
            ("False", "Leaving", format!("the node is being removed{why}"))
        }
        (false, Some(stop)) => {
            let told = about.stopped.as_deref().unwrap_or(stop.message());
            ("False", stop.reason().as_str(), format!("{told}{until}"))
        }
        (false, None) if *over => ("True", "OverLeased", "the node lends less than its pods request".to_owned()),
        (false, None) => {
            ("True", "Lending", format!("lent by {}{until}", about.terms.map(Terms::names).unwrap_or_default()))
        }
    };
    own_condition(about.vnode, about.now, keys::CONDITION_LENDING, status, reason, message)
}

pub(super) fn own_condition(
    vnode: Option<&VNode>,
    now: jiff::Timestamp,
    kind: &str,
    status: &str,
    reason: &str,
    message: String,
) -> Condition {
    let now = format!("{now:.0}");
    let known = vnode.and_then(|vnode| vnode.condition(kind)).filter(|known| known.status == status);
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: known.and_then(|known| known.last_transition_time.clone()).or_else(|| Some(now.clone())),
        last_heartbeat_time: Some(now),
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

pub(crate) fn render_taint(taint: &Taint) -> Value {
    let mut value = json!({"key": taint.key, "effect": taint.effect});
    if !taint.value.is_empty() {
        value["value"] = json!(taint.value);
    }
    if let Some(added) = &taint.added {
        value["timeAdded"] = json!(added);
    }
    value
}

pub(super) fn render_condition(condition: &Condition) -> Value {
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
