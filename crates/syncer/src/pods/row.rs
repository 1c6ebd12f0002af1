//! What we keep of a pod on either side, decoded straight from JSON.
//! Raw JSON stays only while it is needed: the spec until the copy exists, the status until both sides agree.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use tapestry_api::keys;
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::names::is_physical_pod_name;
use tapestry_domain::podspec::{Sizes, SpecNeeds, Unsupported, unsupported};
use tapestry_domain::ports::HostPorts;
use tapestry_domain::quantity::Quantity;
use tapestry_domain::request::{ContainerShape, RequestsShape, SpecShape, StatusShape, request};
use tapestry_domain::resources::{ResourceName, Resources};
use tapestry_domain::shape::Text;

use super::print::{Containers, Phase, Print};
use crate::json::{Meta, Pairs};
use crate::origin::{Home, Origin};

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
    /// Seconds, once somebody asked for its deletion.
    pub(crate) deleting: Option<u32>,
    pub(crate) finalizers: bool,
    /// Where its annotations say the copy is; user-writable, so never believed alone (law 5).
    pub(crate) mapping: Option<Mapping>,
    pub(crate) print: Print,
    pub(crate) containers: Containers,
    /// What it asks for, itself (`pods: 1`) included.
    pub(crate) request: Resources,
    pub(crate) ports: HostPorts,
    /// Why it says `tapestry.io/Admitted=False`, and since when.
    pub(crate) refused: Option<Box<Refused>>,
    pub(crate) daemon: Daemon,
    /// Whether a controller would make another one in its place.
    pub(crate) replaceable: bool,
    /// Whether it tolerates exactly the taint of a closed window: the only thing that spares it then.
    pub(crate) spared: bool,
    pub(crate) priority: i32,
    /// Seconds since 1970.
    pub(crate) born: i64,
    /// `spec.terminationGracePeriodSeconds`.
    pub(crate) grace: u32,
    /// What we cannot carry yet.
    pub(crate) unsupported: Option<Box<Unsupported>>,
    /// Metadata and spec as JSON, until the copy exists.
    pub(crate) raw: Option<Box<str>>,
    /// The sizes it asks for, if it has changed since it was made, until the copy has them.
    pub(crate) sizes: Option<Box<Sizes>>,
}

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

/// A physical pod: small for a stranger's, with the rest for ours.
#[derive(Debug, Clone)]
pub struct PPod {
    pub(crate) uid: Uid,
    pub(crate) rv: Rv,
    pub(crate) node: Option<Name>,
    pub(crate) deleting: Option<u32>,
    pub(crate) terminal: bool,
    /// What it asks for, itself included.
    pub(crate) request: Resources,
    pub(crate) ports: HostPorts,
    /// Set when the pod points back to a virtual pod of our origin.
    pub(crate) ours: Option<Box<Copy>>,
    /// Set when it carries our origin and points nowhere.
    pub(crate) stray: Option<Box<Stray>>,
}

/// The part of a physical pod that somebody took the back-pointer from.
#[derive(Debug, Clone)]
pub(crate) struct Stray {
    pub(crate) namespace: Name,
    pub(crate) name: Name,
    /// All our other marks are there: it was made by us, not in our likeness.
    pub(crate) marked: bool,
}

/// The part of a physical pod that only copies of ours have.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) namespace: Name,
    pub(crate) name: Name,
    pub(crate) vpod: Back,
    /// All our labels and annotations are there.
    pub(crate) intact: bool,
    /// The virtual generation that was pushed.
    pub(crate) generation: i64,
    /// The mark of the sizes that were pushed; empty when nobody said.
    pub(crate) sizes: Box<str>,
    pub(crate) print: Print,
    /// When its deletion was asked for.
    pub(crate) deleted: Option<Box<str>>,
    /// `status` as JSON, until the virtual side agrees.
    pub(crate) status: Option<Box<str>>,
}

/// Which virtual pod a physical one is the copy of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Back {
    pub(crate) namespace: Name,
    pub(crate) name: Name,
    pub(crate) uid: Uid,
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
}

impl Row for PPod {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.deleting.is_some()
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
    tolerations: Vec<TolerationJson<'a>>,
}

#[derive(Deserialize, Clone)]
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
    /// Decodes a virtual pod; `None` when it is bound to a node that cannot be ours.
    pub fn decode(json: &Bytes, home: &Home) -> Result<Option<Self>, serde_json::Error> {
        let PodJson { metadata: meta, spec: raw_spec, status } = serde_json::from_slice(json)?;
        let spec: SpecJson<'_> = serde_json::from_str(raw_spec.get())?;
        let Some(node) = spec.node_name.clone().filter(|node| node.as_str().starts_with(&*home.vnode_prefix)) else {
            return Ok(None);
        };
        let status = status.map_or("{}", RawValue::get);
        let print = Print::read(status, None)?;
        let mapping = Mapping::read(&meta, home);
        let created = mapping.as_ref().is_some_and(|mapping| mapping.uid.is_some());
        // The spec is kept for the copy, and only then.
        let wanted = !created && meta.deletion_timestamp.is_none() && !print.phase.terminal();
        let namespace = meta.namespace.clone().ok_or_else(|| serde::de::Error::custom("a pod without a namespace"))?;
        let opted_in = meta.annotation(keys::RUNNING_DAEMONSET) == Some(keys::TRUE);
        let daemon = match meta.owner_references.iter().any(|owner| &*owner.kind == "DaemonSet") {
            false => Daemon::No,
            true if opted_in => Daemon::OptedIn,
            true => Daemon::Yes,
        };
        let all = spec.containers.iter().chain(&spec.init_containers).chain(&spec.ephemeral_containers);
        Ok(Some(Self {
            containers: Containers::new(all.map(|container| &*container.name)),
            generation: meta.generation,
            deleting: deleting(&meta),
            finalizers: !meta.finalizers.is_empty(),
            refused: read_refused(status)?,
            daemon,
            replaceable: meta.owner_references.iter().any(|owner| owner.controller),
            spared: spec
                .tolerations
                .iter()
                .any(|toleration| toleration.key.as_deref() == Some(keys::TAINT_OUT_OF_TIME_WINDOWS)),
            priority: spec.priority.unwrap_or_default(),
            born: meta.creation_timestamp.as_deref().and_then(|time| time.parse().ok()).map_or(0, Timestamp::as_second),
            grace: spec
                .termination_grace_period_seconds
                .map_or(30, |grace| u32::try_from(grace.max(0)).unwrap_or(u32::MAX)),
            unsupported: if wanted { read_unsupported(raw_spec)? } else { None },
            raw: wanted.then(|| render_raw(&meta, &namespace, raw_spec)),
            sizes: if meta.generation > 1 { Some(Box::new(Sizes::read(raw_spec.get())?)) } else { None },
            ports: read_ports(raw_spec)?,
            request: asked(spec, status)?,
            mapping,
            print,
            node,
            namespace,
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
        }))
    }

    pub(crate) fn terminal(&self) -> bool {
        self.print.phase.terminal()
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
        self.recorded().is_some() || self.print.phase != Phase::Pending
    }
}

impl PPod {
    /// Decodes any physical pod.
    pub fn decode(json: &Bytes, origin: &Origin) -> Result<Option<Self>, serde_json::Error> {
        let PodJson { metadata: meta, spec: raw_spec, status } = serde_json::from_slice(json)?;
        let spec: SpecJson<'_> = serde_json::from_str(raw_spec.get())?;
        let status = status.map_or("{}", RawValue::get);
        let node = spec.node_name.clone();
        let ours = Copy::read(&meta, status, origin)?.map(Box::new);
        let stray = if ours.is_none() { Stray::read(&meta, origin).map(Box::new) } else { None };
        let terminal = match &ours {
            Some(copy) => copy.print.phase.terminal(),
            None => Print::read(status, None)?.phase.terminal(),
        };
        let deleting = deleting(&meta);
        Ok(Some(Self {
            ports: read_ports(raw_spec)?,
            request: count(spec, status)?,
            uid: meta.uid,
            rv: meta.resource_version,
            node,
            deleting,
            terminal,
            ours,
            stray,
        }))
    }
}

impl PPod {
    /// Whether it carries all our marks but the one that says whose copy it is.
    pub(crate) fn made_by_us(&self) -> bool {
        self.stray.as_ref().is_some_and(|stray| stray.marked)
    }

    /// Outside the mount namespace there is no copy of ours, whatever a pod says of itself: somebody copied one of ours.
    pub(crate) fn disown_outside(&mut self, mount: &Name) {
        self.ours.take_if(|copy| copy.namespace != *mount);
        self.stray.take_if(|stray| stray.namespace != *mount);
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

impl Copy {
    /// A pod is ours when it names our origin and a virtual pod; the labels alone prove nothing.
    fn read(meta: &Meta<'_>, status: &str, origin: &Origin) -> Result<Option<Self>, serde_json::Error> {
        let marks = Marks::read(meta, origin);
        if !marks.origin() {
            return Ok(None);
        }
        let name = |key| meta.annotation(key).and_then(|text| Name::parse(text).ok());
        let uid = meta.annotation(keys::VIRTUAL_POD_UID).filter(|uid| !uid.is_empty());
        let (Some(namespace), Some(vpod), Some(uid), Some(own)) =
            (name(keys::VIRTUAL_POD_NAMESPACE), name(keys::VIRTUAL_POD_NAME), uid, &meta.namespace)
        else {
            return Ok(None);
        };
        // A name that we did not make for that pod: somebody made it point there.
        if !is_physical_pod_name(meta.name.as_str(), vpod.as_str()) {
            return Ok(None);
        }
        let generation = meta.annotation(keys::VIRTUAL_POD_GENERATION).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(Some(Self {
            namespace: own.clone(),
            name: meta.name.clone(),
            vpod: Back { namespace, name: vpod, uid: Uid::new(uid) },
            intact: marks.all(),
            generation,
            sizes: meta.annotation(keys::VIRTUAL_POD_SIZES).unwrap_or_default().into(),
            print: Print::read(status, Some(generation))?,
            deleted: meta.deletion_timestamp.as_deref().map(Into::into),
            status: Some(status.into()),
        }))
    }
}

impl Stray {
    fn read(meta: &Meta<'_>, origin: &Origin) -> Option<Self> {
        let marks = Marks::read(meta, origin);
        let namespace = meta.namespace.clone().filter(|_| marks.origin())?;
        Some(Self { namespace, name: meta.name.clone(), marked: marks.all() })
    }
}

/// Which of our marks an object carries: the origin as annotation and as label, the other labels.
struct Marks([bool; 4]);

impl Marks {
    fn read(meta: &Meta<'_>, origin: &Origin) -> Self {
        Self([
            meta.annotation(keys::ORIGIN) == Some(&*origin.full),
            meta.label(keys::ORIGIN) == Some(&*origin.label),
            meta.label(keys::MANAGED_BY) == Some(keys::MANAGED_BY_TAPESTRY),
            meta.label(keys::CLUSTER_BINDING) == Some(&*origin.binding_label),
        ])
    }

    fn origin(&self) -> bool {
        self.0[0] || self.0[1]
    }

    fn all(&self) -> bool {
        self.0.iter().all(|there| *there)
    }
}

fn deleting(meta: &Meta<'_>) -> Option<u32> {
    let grace = meta.deletion_grace_period_seconds.unwrap_or(0).max(0);
    meta.deletion_timestamp.as_ref().map(|_| u32::try_from(grace).unwrap_or(u32::MAX))
}

/// What a virtual pod asks for. A status may say that it is given less; who may write it must win nothing by that.
fn asked(spec: SpecJson<'_>, status: &str) -> Result<Resources, serde_json::Error> {
    if !status.contains("PodResizePending") {
        return count(spec, status);
    }
    let mut asked = count(spec.clone(), "{}")?;
    asked.max(&count(spec, status)?);
    Ok(asked)
}

fn count(spec: SpecJson<'_>, status: &str) -> Result<Resources, serde_json::Error> {
    let SpecJson { containers, init_containers, overhead, resources, .. } = spec;
    let spec = SpecShape { containers, init_containers, overhead, resources };
    let status: StatusShape<'_> = serde_json::from_str(status)?;
    let mut total = request(&spec, &status);
    total.set(ResourceName::Pods, Quantity::from_whole(1));
    Ok(total)
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

fn read_unsupported(spec: &RawValue) -> Result<Option<Box<Unsupported>>, serde_json::Error> {
    let needs: SpecNeeds<'_> = serde_json::from_str(spec.get())?;
    Ok(unsupported(&needs).map(Box::new))
}

/// What the copy will be made from: no managedFields, no status.
fn render_raw(meta: &Meta<'_>, namespace: &Name, spec: &RawValue) -> Box<str> {
    let pairs = |pairs: &Option<Pairs<'_>>| {
        let all = pairs.iter().flat_map(|pairs| &pairs.0);
        serde_json::Value::Object(all.map(|(key, value)| ((**key).to_owned(), (**value).into())).collect())
    };
    let metadata = serde_json::json!({
        "name": meta.name.as_str(),
        "namespace": namespace.as_str(),
        "uid": meta.uid.as_str(),
        "labels": pairs(&meta.labels),
        "annotations": pairs(&meta.annotations),
    });
    format!(r#"{{"metadata":{metadata},"spec":{}}}"#, spec.get()).into()
}
