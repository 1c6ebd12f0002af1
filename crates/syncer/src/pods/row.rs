//! What we keep of a pod on either side, decoded straight from JSON.
//! Raw JSON stays only while it is needed: the spec until the copy exists, the status until both sides agree.

mod outline;
mod physical;

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use tapestry_api::keys;
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::names::is_physical_pod_name;
use tapestry_domain::podspec::{Sizes, SpecNeeds, Unsupported, mark_metadata, mark_spec, unsupported};
use tapestry_domain::ports::HostPorts;
use tapestry_domain::quantity::Quantity;
use tapestry_domain::request::{ContainerShape, RequestsShape, SpecShape, StatusShape, request};
use tapestry_domain::resources::{ResourceName, Resources};
use tapestry_domain::shape::Text;
use tapestry_engine::Reason as _;

pub(crate) use self::outline::Part;
use self::outline::{Outline, at_least};
pub use self::physical::PPod;
pub(crate) use self::physical::{Back, PodCopy, Stray};
use super::admission::PendingReason;
use super::changes::{Said, read_told};
use super::digest::{Containers, Phase, StatusDigest};
use super::gates::Gates;
use crate::dependents::needs::Needs;
use crate::json::{Meta, Pairs};
use crate::origin::Home;

/// A virtual pod bound to a node that may be ours.
#[derive(Debug, Clone)]
pub struct VPod {
    pub(crate) uid: Uid,
    pub(crate) rv: Rv,
    pub(crate) namespace: Name,
    pub(crate) name: Name,
    /// The virtual node.
    pub(crate) node: Name,
    pub(crate) generation: i64,
    /// Seconds, once a client asked for its deletion.
    pub(crate) deleting: Option<u32>,
    pub(crate) finalizers: bool,
    /// Where its annotations say the copy is; user-writable, so never believed alone (law 5).
    pub(crate) mapping: Option<Mapping>,
    pub(crate) digest: StatusDigest,
    pub(crate) gates: Option<Box<Gates>>,
    pub(crate) containers: Containers,
    /// What it asks for, itself (`pods: 1`) included.
    pub(crate) request: Resources,
    pub(crate) ports: HostPorts,
    /// Why it says `tapestry.io/Admitted=False`, and since when.
    pub(crate) refused: Option<Box<Refused>>,
    pub(crate) daemon: Daemon,
    /// Whether a controller would make another one in its place.
    pub(crate) replaceable: bool,
    /// Whether it tolerates exactly the taint of a closed time window: the only thing that spares it then.
    pub(crate) spared: bool,
    pub(crate) priority: i32,
    /// Seconds since 1970.
    pub(crate) born: i64,
    /// `spec.terminationGracePeriodSeconds`.
    pub(crate) grace: u32,
    /// What it needs besides a node; taken out of the row when it is put into the table.
    pub(crate) needs: Option<Arc<Needs>>,
    /// What we cannot carry yet.
    pub(crate) unsupported: Option<Box<Unsupported>>,
    /// Metadata and spec as JSON, until the copy exists.
    pub(crate) raw: Option<Box<str>>,
    /// The sizes it asks for, if it has changed since it was made, until the copy has them.
    pub(crate) sizes: Option<Box<Sizes>>,
    /// Marks of what can change while it runs.
    pub(crate) said: Said,
    /// A mark of what it says of a change that does not reach its copy.
    pub(crate) told: Option<NonZeroU64>,
    /// Which part of it cannot be read: then all else is what it said before, or nothing.
    pub(crate) unreadable: Option<Part>,
}

/// Kubernetes' default.
const DEFAULT_GRACE: u32 = 30;

/// The condition `tapestry.io/Admitted=False`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) since: Option<Timestamp>,
}

/// Whether a DaemonSet made the pod, and whether its user wants it carried all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Daemon {
    No,
    Yes,
    OptedIn,
}

/// The mapping annotations of a virtual pod: which pod in the mount namespace is its copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) name: Name,
    pub(crate) uid: Option<Uid>,
}

impl Row for VPod {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.deleting.is_some()
    }
    fn unreadable(&self) -> bool {
        self.unreadable.is_some()
    }
}

#[derive(Deserialize)]
struct PodJson<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    spec: &'a RawValue,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

#[derive(Deserialize, Clone)]
#[serde(rename_all = "camelCase")]
struct SpecJson<'a> {
    #[serde(default)]
    node_name: Option<Name>,
    #[serde(borrow, default)]
    service_account_name: Option<Text<'a>>,
    #[serde(borrow)]
    containers: Vec<ContainerShape<'a>>,
    #[serde(borrow, default)]
    init_containers: Vec<ContainerShape<'a>>,
    #[serde(borrow, default)]
    ephemeral_containers: Vec<ContainerShape<'a>>,
    #[serde(default)]
    overhead: Resources,
    #[serde(default)]
    resources: RequestsShape,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    termination_grace_period_seconds: Option<i64>,
    #[serde(borrow, default)]
    tolerations: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct TolerationJson<'a> {
    #[serde(borrow, default)]
    key: Option<Text<'a>>,
}

#[derive(Deserialize, Default)]
struct AdmittedJson<'a> {
    #[serde(borrow, default)]
    conditions: Vec<AdmittedCondition<'a>>,
}

#[derive(Deserialize)]
struct AdmittedCondition<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
    #[serde(borrow, default)]
    reason: Option<Text<'a>>,
    #[serde(borrow, default)]
    message: Option<Text<'a>>,
    #[serde(borrow, default, rename = "lastTransitionTime")]
    since: Option<Text<'a>>,
}

impl VPod {
    /// Decodes a virtual pod; `None` when it is bound to a node that cannot be ours. One that cannot be fully read is a row that
    /// says so, never an absent one: it has to be answered, and to be let go.
    pub fn decode(json: &Bytes, home: &Home) -> Result<Option<Self>, serde_json::Error> {
        Self::decode_whole(json, home).or_else(|_| Self::decode_outline(json, home))
    }

    fn decode_whole(json: &Bytes, home: &Home) -> Result<Option<Self>, serde_json::Error> {
        let PodJson { metadata: meta, spec: raw_spec, status } = serde_json::from_slice(json)?;
        let spec: SpecJson<'_> = serde_json::from_str(raw_spec.get())?;
        let Some(node) = spec.node_name.clone().filter(|node| node.as_str().starts_with(&*home.vnode_prefix)) else {
            return Ok(None);
        };
        let status = status.map_or("{}", RawValue::get);
        let (digest, shape) = StatusDigest::read_shape(status, None)?;
        let mut row = Self::of_meta(&meta, node, digest, home)?;
        let created = row.recorded().is_some();
        // The spec is kept for the copy, and only then.
        let wanted = !created && row.deleting.is_none() && !row.terminal();
        let all = spec.containers.iter().chain(&spec.init_containers).chain(&spec.ephemeral_containers);
        row.containers = Containers::new(all.map(|container| &*container.name));
        row.refused = read_refused(status)?;
        row.spared = read_spared(spec.tolerations)?;
        row.priority = spec.priority.unwrap_or_default();
        let grace = |grace: i64| u32::try_from(grace.max(0)).unwrap_or(u32::MAX);
        row.grace = spec.termination_grace_period_seconds.map_or(DEFAULT_GRACE, grace);
        let needs: SpecNeeds<'_> = serde_json::from_str(raw_spec.get())?;
        row.needs = Needs::read(&needs, (&row.namespace, &row.name), spec.service_account_name.as_deref());
        row.gates = Gates::read(&needs, status)?;
        row.unsupported = if wanted { unsupported(&needs).map(Box::new) } else { None };
        row.raw = wanted.then(|| render_raw(&meta, &row.namespace, raw_spec));
        row.sizes = if meta.generation > 1 { Some(Box::new(Sizes::read(raw_spec.get())?)) } else { None };
        // The first generation is what the copy is created from.
        row.said.spec = if meta.generation == 1 { None } else { NonZeroU64::new(mark_spec(raw_spec.get())?) };
        row.told = read_told(status)?;
        row.ports = read_ports(raw_spec)?;
        row.request = asked(spec, &shape);
        Ok(Some(row))
    }

    fn decode_outline(json: &Bytes, home: &Home) -> Result<Option<Self>, serde_json::Error> {
        let outline = Outline::read(json)?;
        let ours = |node: &Name| node.as_str().starts_with(&*home.vnode_prefix);
        let Some(node) = outline.node.clone().filter(ours) else { return Ok(None) };
        let mut row = Self::of_meta(&outline.meta, node, outline.digest(None), home)?;
        row.unreadable = Some(outline.unreadable);
        // Where it cannot be read what it was told, it is not told again and again.
        row.refused = read_refused(outline.status).unwrap_or_else(|_| {
            Some(Box::new(Refused {
                reason: PendingReason::PodUnreadable.as_str().to_owned(),
                message: String::new(),
                since: None,
            }))
        });
        Ok(Some(row))
    }

    /// What a pod's metadata says; of the rest nothing.
    fn of_meta(meta: &Meta<'_>, node: Name, digest: StatusDigest, home: &Home) -> Result<Self, serde_json::Error> {
        let opted_in = meta.annotation(keys::RUNNING_DAEMONSET) == Some(keys::TRUE);
        let daemon = match meta.owner_references.iter().any(|owner| &*owner.kind == "DaemonSet") {
            false => Daemon::No,
            true if opted_in => Daemon::OptedIn,
            true => Daemon::Yes,
        };
        Ok(Self {
            namespace: meta.namespace.clone().ok_or_else(|| serde::de::Error::custom("a pod without a namespace"))?,
            generation: meta.generation,
            deleting: deleting(meta),
            finalizers: !meta.finalizers.is_empty(),
            mapping: Mapping::read(meta, home),
            daemon,
            replaceable: meta.owner_references.iter().any(|owner| owner.controller),
            born: born(meta),
            uid: meta.uid.clone(),
            rv: meta.resource_version,
            name: meta.name.clone(),
            node,
            digest,
            gates: None,
            containers: Containers::default(),
            request: at_least(),
            ports: HostPorts::default(),
            refused: None,
            spared: false,
            priority: 0,
            grace: DEFAULT_GRACE,
            needs: None,
            unsupported: None,
            raw: None,
            sizes: None,
            said: Said {
                metadata: mark_metadata(pairs(meta.labels.as_ref()), pairs(meta.annotations.as_ref())),
                spec: None,
            },
            told: None,
            unreadable: None,
        })
    }

    /// What it can no longer be read to say, it says as before.
    pub(crate) fn inherit(&mut self, known: &Self) {
        if self.unreadable.is_some() {
            self.gates.clone_from(&known.gates);
            self.containers.clone_from(&known.containers);
            self.request.clone_from(&known.request);
            self.ports.clone_from(&known.ports);
            (self.spared, self.priority, self.grace) = (known.spared, known.priority, known.grace);
        }
    }

    pub(crate) fn terminal(&self) -> bool {
        self.digest.phase.terminal()
    }

    /// Whether it asks for something else than a physical pod does; what only that one names was added there.
    pub(crate) fn asks_otherwise(&self, ppod: &PPod) -> bool {
        self.request.iter().any(|(name, quantity)| ppod.request.get(name) != quantity)
    }

    /// The UID of its copy, once that has reported something.
    pub(crate) fn recorded(&self) -> Option<&Uid> {
        self.mapping.as_ref().and_then(|mapping| mapping.uid.as_ref())
    }

    /// Whether its mapping says that this is its copy.
    pub(crate) fn names(&self, copy: &Name) -> bool {
        self.mapping.as_ref().is_some_and(|mapping| mapping.name == *copy)
    }

    /// Whether this is its copy, as far as it says: it names it, and recorded no other one under that name.
    pub(crate) fn claims(&self, name: &Name, uid: &Uid) -> bool {
        self.names(name) && self.recorded().is_none_or(|recorded| recorded == uid)
    }

    /// What its copy says of it.
    pub(crate) fn back(&self) -> Back {
        Back { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.uid.clone() }
    }

    /// Whether a copy of it must have existed: its UID was recorded, or its status speaks of one.
    pub(crate) fn was_copied(&self) -> bool {
        self.recorded().is_some() || self.digest.phase != Phase::Pending
    }

    /// Whether its copy may have run: its status speaks of one. A recorded UID alone may have come with a manifest that was saved
    /// from another pod.
    pub(crate) fn may_have_run(&self) -> bool {
        self.digest.phase != Phase::Pending || self.digest.started
    }
}

impl Mapping {
    /// What cannot be a name must never reach a URL (law 10), outside the mount namespace there is no copy of ours, and under a
    /// name that we did not make for this pod there is none either: such a mapping is as good as none.
    fn read(meta: &Meta<'_>, home: &Home) -> Option<Self> {
        let name = meta.annotation(keys::PHYSICAL_POD_NAME).and_then(|text| Name::parse(text).ok());
        let name = name.filter(|name| is_physical_pod_name(name.as_str(), meta.name.as_str()));
        let here = meta.annotation(keys::PHYSICAL_POD_NAMESPACE) == Some(home.mount.as_str());
        Some(Self {
            name: name.filter(|_| here)?,
            uid: meta.annotation(keys::PHYSICAL_POD_UID).filter(|uid| !uid.is_empty()).map(Uid::new),
        })
    }
}

/// In seconds since 1970.
fn born(meta: &Meta<'_>) -> i64 {
    meta.creation_timestamp.as_deref().and_then(|time| time.parse().ok()).map_or(0, Timestamp::as_second)
}

fn deleting(meta: &Meta<'_>) -> Option<u32> {
    let grace = meta.deletion_grace_period_seconds.unwrap_or(0).max(0);
    meta.deletion_timestamp.as_ref().map(|_| u32::try_from(grace).unwrap_or(u32::MAX))
}

/// What a virtual pod asks for. A status may say that it is given less; who may write it must win nothing by that.
fn asked(spec: SpecJson<'_>, status: &StatusShape<'_>) -> Resources {
    // The conditions of a shape are those of a resize that does not happen.
    if status.conditions.is_empty() {
        return count(spec, status);
    }
    let mut asked = count(spec.clone(), &StatusShape::default());
    asked.max(&count(spec, status));
    asked
}

fn count(spec: SpecJson<'_>, status: &StatusShape<'_>) -> Resources {
    let SpecJson { containers, init_containers, overhead, resources, .. } = spec;
    let spec = SpecShape { containers, init_containers, overhead, resources };
    let mut total = request(&spec, status);
    total.set(ResourceName::Pods, Quantity::from_whole(1));
    total
}

fn read_spared(tolerations: Option<&RawValue>) -> Result<bool, serde_json::Error> {
    // Almost no pod is: look at the text before parsing it.
    let Some(text) = tolerations.map(RawValue::get).filter(|text| text.contains(keys::TAINT_OUT_OF_TIME_WINDOWS))
    else {
        return Ok(false);
    };
    let tolerations: Vec<TolerationJson<'_>> = serde_json::from_str(text)?;
    let spares = |key: &Text<'_>| &**key == keys::TAINT_OUT_OF_TIME_WINDOWS;
    Ok(tolerations.iter().filter_map(|toleration| toleration.key.as_ref()).any(spares))
}

fn read_refused(status: &str) -> Result<Option<Box<Refused>>, serde_json::Error> {
    // Almost no pod has the condition: look at the text before parsing it once more.
    if !status.contains(keys::CONDITION_ADMITTED) {
        return Ok(None);
    }
    let status: AdmittedJson<'_> = serde_json::from_str(status)?;
    let ours = status.conditions.iter().find(|condition| &*condition.kind == keys::CONDITION_ADMITTED);
    let refused = ours.filter(|condition| &*condition.status == "False");
    let text = |text: Option<&Text<'_>>| text.map(|text| (**text).to_owned()).unwrap_or_default();
    Ok(refused.map(|condition| {
        Box::new(Refused {
            reason: text(condition.reason.as_ref()),
            message: text(condition.message.as_ref()),
            since: condition.since.as_deref().and_then(|since| since.parse().ok()),
        })
    }))
}

fn read_ports(spec: &RawValue) -> Result<HostPorts, serde_json::Error> {
    // Almost no pod has any: look at the text before parsing it once more.
    if !spec.get().contains(r#""hostPort""#) && !spec.get().contains(r#""hostNetwork""#) {
        return Ok(HostPorts::default());
    }
    serde_json::from_str(spec.get())
}

/// The text of a pod from which a copy is made or changed.
pub(super) fn read_raw(json: &Bytes) -> Result<Box<str>, serde_json::Error> {
    let PodJson { metadata, spec, .. } = serde_json::from_slice(json)?;
    let namespace = metadata.namespace.clone().ok_or_else(|| serde::de::Error::custom("a pod without a namespace"))?;
    Ok(render_raw(&metadata, &namespace, spec))
}

fn pairs<'t>(pairs: Option<&'t Pairs<'_>>) -> impl Iterator<Item = (&'t str, &'t str)> {
    pairs.into_iter().flat_map(|pairs| &pairs.0).map(|(key, value)| (&**key, &**value))
}

/// What the copy will be made from: no managedFields, no status.
fn render_raw(meta: &Meta<'_>, namespace: &Name, spec: &RawValue) -> Box<str> {
    let map = |all: Option<&Pairs<'_>>| {
        serde_json::Value::Object(pairs(all).map(|(key, value)| (key.to_owned(), value.into())).collect())
    };
    let metadata = serde_json::json!({
        "name": meta.name.as_str(),
        "namespace": namespace.as_str(),
        "uid": meta.uid.as_str(),
        "labels": map(meta.labels.as_ref()),
        "annotations": map(meta.annotations.as_ref()),
    });
    format!(r#"{{"metadata":{metadata},"spec":{}}}"#, spec.get()).into()
}
