//! What we keep of a node on either side, decoded straight from JSON.
//! Nodes are few, so their rows hold what is mirrored itself and no fingerprints.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use tapestry_api::{Status, keys};
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::resources::Resources;

use crate::json::{Meta, Pairs, fingerprint};
use crate::origin::Marks;

/// A physical node.
#[derive(Debug, Clone)]
pub struct PNode {
    pub(crate) uid: Uid,
    pub(crate) rv: Rv,
    pub(crate) name: Name,
    pub(crate) labels: BTreeMap<String, String>,
    /// The owner said never to lend it.
    pub(crate) lend_never: bool,
    pub(crate) cordoned: bool,
    pub(crate) taints: Vec<Taint>,
    pub(crate) allocatable: Resources,
    pub(crate) conditions: Vec<Condition>,
    /// `status.nodeInfo` as JSON.
    pub(crate) info: Option<Box<str>>,
    /// `status.declaredFeatures` as JSON.
    pub(crate) features: Option<Box<str>>,
    /// Set when it cannot be fully read.
    pub(crate) unread: Option<Unread>,
}

/// What a row says of a node that cannot be fully read, beyond its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// What it said before.
    Known,
    /// Nothing: it was never seen otherwise.
    Blank,
}

/// A virtual node of ours.
#[derive(Debug, Clone)]
pub struct VNode {
    pub(crate) uid: Uid,
    pub(crate) rv: Rv,
    pub(crate) name: Name,
    pub(crate) deleting: bool,
    pub(crate) finalizers: Vec<String>,
    /// The physical node.
    pub(crate) physical: Name,
    /// `spec.providerID`, which is immutable.
    pub(crate) provider_id: Box<str>,
    /// What becomes of its pods when no policy says it any more; also when a client removed the annotation.
    pub(crate) rules: Option<Box<str>>,
    /// The policies that it says it is lent by, as annotation `policies-applied` has them; the same.
    pub(crate) applied: Option<Box<str>>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) capacity: Resources,
    pub(crate) allocatable: Resources,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) info: Option<Box<str>>,
    pub(crate) features: Option<Box<str>>,
    /// `status.addresses` as JSON.
    pub(crate) addresses: Option<Box<str>>,
    /// Set when it cannot be fully read.
    pub(crate) unread: Option<Unread>,
}

/// One taint. When it was added is for Kubernetes to know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct Taint {
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) value: String,
    pub(crate) effect: String,
    #[serde(default, rename = "timeAdded")]
    pub(crate) added: Option<String>,
}

impl Taint {
    /// One that only says something.
    pub(crate) fn plain(key: &str) -> Self {
        Self { key: key.to_owned(), value: String::new(), effect: NO_SCHEDULE.to_owned(), added: None }
    }

    /// A taint from which time is counted. Kubernetes keeps whole seconds: we round up, so that no pod gets less time.
    pub(crate) fn since(key: &str, effect: &str, since: Timestamp) -> Self {
        let second = since.as_second() + i64::from(since.subsec_nanosecond() > 0);
        let added = Timestamp::from_second(second).unwrap_or(since);
        Self { effect: effect.to_owned(), added: Some(format!("{added:.0}")), ..Self::plain(key) }
    }
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) last_transition_time: Option<String>,
    #[serde(default)]
    pub(crate) last_heartbeat_time: Option<String>,
}

impl Row for PNode {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        // Nodes go without a deletionTimestamp, so only a live read proves that one is gone.
        false
    }
    fn unreadable(&self) -> bool {
        self.unread.is_some()
    }
}

impl Row for VNode {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.deleting
    }
    fn unreadable(&self) -> bool {
        self.unread.is_some()
    }
}

#[derive(Deserialize)]
struct NodeJson<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(default)]
    spec: SpecJson,
    #[serde(borrow, default)]
    status: StatusJson<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SpecJson {
    #[serde(rename = "providerID")]
    provider_id: String,
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct StatusJson<'a> {
    capacity: Resources,
    allocatable: Resources,
    conditions: Vec<Condition>,
    #[serde(borrow)]
    node_info: Option<&'a RawValue>,
    #[serde(borrow)]
    declared_features: Option<&'a RawValue>,
    #[serde(borrow)]
    addresses: Option<&'a RawValue>,
}

impl<'a> NodeJson<'a> {
    /// The node, or what its metadata says with nothing else: an unreadable node must not look absent.
    fn read(json: &'a Bytes) -> Result<(Self, Option<Unread>), serde_json::Error> {
        #[derive(Deserialize)]
        struct Outline<'a> {
            #[serde(borrow)]
            metadata: Meta<'a>,
            #[serde(default)]
            spec: serde_json::Value,
        }
        if let Ok(whole) = serde_json::from_slice(json) {
            return Ok((whole, None));
        }
        let Outline { metadata, spec } = serde_json::from_slice(json)?;
        let provider_id = spec["providerID"].as_str().unwrap_or_default().to_owned();
        let spec = SpecJson { provider_id, ..SpecJson::default() };
        Ok((Self { metadata, spec, status: StatusJson::default() }, Some(Unread::Blank)))
    }
}

impl PNode {
    /// Decodes any physical node. One that cannot be fully read is a row that says so.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let (NodeJson { metadata: meta, spec, status }, unread) = NodeJson::read(json)?;
        Ok(Some(Self {
            unread,
            lend_never: meta.annotation(keys::LEND) == Some(keys::LEND_NEVER),
            labels: owned(meta.labels.as_ref()),
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
            cordoned: spec.unschedulable,
            taints: spec.taints,
            allocatable: status.allocatable,
            conditions: status.conditions,
            info: text(status.node_info),
            features: text(status.declared_features),
        }))
    }

    /// What it can no longer be read to say, it says as before.
    pub(super) fn inherit(&mut self, known: &Self) {
        if self.unread.is_some() && known.unread != Some(Unread::Blank) {
            let Self { uid, rv, name, labels, lend_never, .. } = self.clone();
            *self = Self { uid, rv, name, labels, lend_never, unread: Some(Unread::Known), ..known.clone() };
        }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

impl VNode {
    /// Decodes a virtual node; `None` when it does not say which physical node it is. One that cannot be fully read is a row that
    /// says so.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let (NodeJson { metadata: meta, spec, status }, unread) = NodeJson::read(json)?;
        // Annotations can be taken away or forged, the provider ID cannot be changed: the annotation follows it.
        let provided = spec.provider_id.rsplit_once('/').map(|(_, node)| node);
        let provided = provided.filter(|_| spec.provider_id.starts_with("tapestry://"));
        let physical = provided.or(meta.annotation(keys::PHYSICAL_NODE_NAME)).and_then(|name| Name::parse(name).ok());
        let Some(physical) = physical else { return Ok(None) };
        Ok(Some(Self {
            unread,
            rules: meta.annotation(keys::RECLAIM_RULES).map(Into::into),
            applied: meta.annotation(keys::POLICIES_APPLIED).map(Into::into),
            provider_id: spec.provider_id.into(),
            labels: owned(meta.labels.as_ref()),
            annotations: owned(meta.annotations.as_ref()),
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
            deleting: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers.iter().map(|finalizer| (**finalizer).to_owned()).collect(),
            physical,
            taints: spec.taints,
            capacity: status.capacity,
            allocatable: status.allocatable,
            conditions: status.conditions,
            info: text(status.node_info),
            features: text(status.declared_features),
            addresses: text(status.addresses),
        }))
    }
}

impl VNode {
    /// What it can no longer be read to say, it says as before.
    pub(super) fn inherit(&mut self, known: &Self) {
        self.rules = self.rules.take().or_else(|| known.rules.clone());
        // A client that removes only this annotation wants it forgotten; one that removes all of them only strips the node.
        let stripped = !self.annotations.contains_key(keys::EXPECTED_METADATA);
        self.applied = self.applied.take().or_else(|| known.applied.clone().filter(|_| stripped));
        if self.unread.is_some() && known.unread != Some(Unread::Blank) {
            let Self { uid, rv, name, deleting, finalizers, labels, annotations, .. } = self.clone();
            let now = Self { uid, rv, name, deleting, finalizers, labels, annotations, ..known.clone() };
            *self = Self { unread: Some(Unread::Known), ..now };
        }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    /// What it says of the binding that made it.
    pub(super) fn marks(&self) -> Marks {
        let annotation = |key: &str| self.annotations.get(key).map(String::as_str);
        Marks::read(|key| self.label(key), annotation)
    }

    /// Whether it says that the physical cluster answers.
    pub(crate) fn reachable(&self) -> bool {
        let told = self.condition(keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE);
        told.is_none_or(|told| told.status == "True")
    }

    pub(crate) fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| taint.key == key)
    }

    /// When a taint of ours was put on it.
    pub(crate) fn tainted(&self, key: &str, value: &str) -> Option<Timestamp> {
        let ours = |taint: &&Taint| taint.key == key && taint.value == value && taint.effect == NO_SCHEDULE;
        let taint = self.taints.iter().find(ours)?;
        taint.added.as_ref()?.parse().ok()
    }

    /// Whether capacity is being taken back from its pods, or may be soon.
    pub(crate) fn reclaiming(&self) -> bool {
        let ours = [keys::TAINT_OUT_OF_TIME_WINDOWS, keys::TAINT_OVER_LEASED, keys::TAINT_VNODE_DELETING];
        self.taints.iter().any(|taint| ours.contains(&taint.key.as_str()))
    }

    /// Fingerprint of the status, heartbeats aside.
    pub(crate) fn digest(&self) -> u64 {
        let said = |condition: &Condition| {
            let Condition { kind, status, reason, message, .. } = condition.clone();
            (kind, status, reason, message)
        };
        let conditions: Vec<_> = self.conditions.iter().map(said).collect();
        fingerprint((&self.capacity, &self.allocatable, conditions, &self.info, &self.features, &self.addresses))
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// The taint effect that keeps new pods away.
pub(crate) const NO_SCHEDULE: &str = "NoSchedule";
/// The taint effect that makes Kubernetes evict.
pub(crate) const NO_EXECUTE: &str = "NoExecute";

impl Condition {
    /// Whether it has this status.
    pub(crate) fn is(&self, status: Status) -> bool {
        self.status == status.as_str()
    }

    /// Sets the condition to unknown since then.
    pub(crate) fn forget(&mut self, since: jiff::Timestamp) {
        "Unknown".clone_into(&mut self.status);
        "PhysicalClusterUnreachable".clone_into(&mut self.reason);
        "the physical API server has not answered for as long as the binding allows".clone_into(&mut self.message);
        self.last_transition_time = Some(format!("{since:.0}"));
    }

    /// Equal as far as it matters: heartbeats are only heartbeats.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        let said = |condition: &Self| {
            let Self { kind, status, reason, message, last_transition_time, .. } = condition.clone();
            (kind, status, reason, message, last_transition_time)
        };
        said(self) == said(other)
    }
}

fn owned(pairs: Option<&Pairs<'_>>) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .flat_map(|pairs| &pairs.0)
        .map(|(key, value)| ((**key).to_owned(), (**value).to_owned()))
        .collect()
}

fn text(raw: Option<&RawValue>) -> Option<Box<str>> {
    raw.map(|raw| raw.get().into())
}
