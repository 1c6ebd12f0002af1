//! What we keep of PersistentVolumes, their claims and classes, decoded straight from JSON.
//! Of the physical cluster only what carries our origin is kept, besides the classes.

mod shape;

use std::sync::Arc;

use bytes::Bytes;
use tapestry_api::keys;
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::quantity::Quantity;
use tapestry_domain::shape::Text;
use tapestry_domain::volumes::{Backend, RETAIN, read_volume};

use self::shape::{ClaimObject, ClaimSpec, ClaimStatus, ClassObject, Condition, Storage, VolumeObject, VolumeSpec};
use super::Id;
use crate::dependents::needs::Needs;
use crate::json::Meta;
use crate::origin::Origin;

/// The phase of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimPhase {
    /// No volume yet.
    Pending,
    Bound,
    /// Its volume is gone.
    Lost,
}

/// The phase of a volume, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VolumePhase {
    Bound,
    /// Available, released, failed or not looked at yet.
    Other,
}

/// A claim of the virtual cluster.
#[derive(Debug, Clone)]
pub struct VClaim {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) id: Arc<Id>,
    pub(super) phase: ClaimPhase,
    pub(super) volume: Option<Name>,
    /// How much it asks for.
    pub(super) request: Option<Box<str>>,
    /// How much it has.
    pub(super) capacity: Option<Box<str>>,
    /// Its controller: the pod of an ephemeral volume.
    pub(super) owner: Option<Uid>,
    /// The node for which its volume is to be made.
    pub(super) selected: Option<Name>,
    /// Conditions of a resize, as JSON without times.
    pub(super) resizing: Option<Box<str>>,
}

/// A volume of the virtual cluster.
#[derive(Debug, Clone)]
pub struct VVolume {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    /// The claim that it is bound to, or is kept for, and its UID once it is bound.
    pub(super) claim: Option<(Arc<Id>, Option<Uid>)>,
    /// The binding that holds it.
    pub(super) holder: Option<Box<str>>,
    /// Whether one cluster at a time may attach it.
    pub(super) exclusive: bool,
    pub(super) backend: Backend,
    /// The Secrets that it names.
    pub(super) needs: Option<Arc<Needs>>,
    pub(super) class: Box<str>,
    pub(super) capacity: Option<Box<str>>,
}

/// A volume of the physical cluster that carries our origin.
#[derive(Debug, Clone)]
pub struct PVolume {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    pub(super) deleting: bool,
    /// Whether all our labels and annotations are on it.
    pub(super) marked: bool,
    /// Whose copy it says it is. Believed only under the name that we would give it (law 5).
    pub(super) of: Option<OfVolume>,
    /// Whether its data stays when its claim goes.
    pub(super) retain: bool,
    pub(super) phase: VolumePhase,
    /// The claim that it is for.
    pub(super) claim: Option<ClaimRef>,
}

/// Whose copy a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OfVolume {
    pub(super) volume: Name,
    pub(super) uid: Uid,
    /// The virtual claim.
    pub(super) claim: Arc<Id>,
}

/// `spec.claimRef`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimRef {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) uid: Option<Uid>,
}

/// A claim in the mount namespace that carries our origin.
#[derive(Debug, Clone)]
pub struct PClaim {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    pub(super) deleting: bool,
    /// Whether all our labels and annotations are on it.
    pub(super) marked: bool,
    /// Whose copy it says it is, and the UID of that claim.
    pub(super) of: Option<(Arc<Id>, Uid)>,
    pub(super) phase: ClaimPhase,
    pub(super) volume: Option<Name>,
    pub(super) request: Option<Box<str>>,
    pub(super) capacity: Option<Box<str>>,
    pub(super) class: Box<str>,
    /// Conditions of a resize, as JSON without times.
    pub(super) resizing: Option<Box<str>>,
}

/// A StorageClass of the physical cluster.
#[derive(Debug, Clone)]
pub struct PClass {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    /// Whether its volumes can grow.
    pub(super) expands: bool,
}

macro_rules! rows {
    ($($row:ident: $deleting:expr;)*) => {
        $(impl Row for $row {
            fn uid(&self) -> &Uid {
                &self.uid
            }
            fn rv(&self) -> Rv {
                self.rv
            }
            fn deleting(&self) -> bool {
                let deleting: fn(&Self) -> bool = $deleting;
                deleting(self)
            }
        })*
    };
}

rows! {
    // Nothing is ended because one of the virtual cluster is absent.
    VClaim: |_| false;
    VVolume: |_| false;
    PClass: |_| false;
    PVolume: |volume| volume.deleting;
    PClaim: |claim| claim.deleting;
}

/// Types of conditions that say how a resize goes.
const RESIZE: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

impl VClaim {
    /// Decodes a claim of the virtual cluster.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let ClaimObject { metadata: meta, spec, status } = serde_json::from_slice(json)?;
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let selected = meta.annotation(SELECTED_NODE).and_then(|node| Name::parse(node).ok());
        let owner = meta.owner_references.iter().find(|owner| owner.controller).map(|owner| Uid::new(&*owner.uid));
        let Some(namespace) = meta.namespace else { return Ok(None) };
        Ok(Some(Self {
            uid: meta.uid,
            rv: meta.resource_version,
            id: Arc::new(Id { namespace, name: meta.name }),
            phase: ClaimPhase::read(&status),
            volume: named(spec.volume_name.as_ref()),
            request: spec.request(),
            capacity: amount(status.capacity.as_ref()),
            owner,
            selected,
            resizing: status.resizing(),
        }))
    }
}

impl VClaim {
    /// Itself, as events name what they are about.
    pub(crate) fn whom(&self) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": self.id.namespace.as_str(),
            "name": self.id.name.as_str(), "uid": self.uid.as_str(),
        })
    }
}

impl VVolume {
    /// Decodes a volume of the virtual cluster.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let VolumeObject { metadata: meta, spec: raw, .. } = serde_json::from_slice(json)?;
        let spec: VolumeSpec<'_> = serde_json::from_str(raw.get())?;
        let reference = spec.claim_ref.as_ref();
        let claim = reference.and_then(|reference| {
            let (namespace, name) = (named(reference.namespace.as_ref())?, named(reference.name.as_ref())?);
            Some((Arc::new(Id { namespace, name }), text(reference.uid.as_ref()).map(Uid::new)))
        });
        let beside = claim.as_ref().map_or("", |(id, _)| id.namespace.as_str());
        let read = read_volume(raw.get(), beside).map_err(serde::de::Error::custom)?;
        let modes = spec.access_modes.unwrap_or_default();
        let shared = modes.iter().any(|mode| &**mode == "ReadWriteMany");
        let read_only = !modes.is_empty() && modes.iter().all(|mode| &**mode == "ReadOnlyMany");
        Ok(Some(Self {
            claim,
            holder: meta.annotation(keys::VOLUME_HOLDER).filter(|holder| !holder.is_empty()).map(Into::into),
            exclusive: !shared && !read_only,
            backend: read.backend,
            needs: Needs::of_secrets(&read.secrets),
            class: text(spec.storage_class_name.as_ref()).unwrap_or_default().into(),
            capacity: amount(spec.capacity.as_ref()),
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
        }))
    }
}

impl PVolume {
    /// Decodes a volume of the physical cluster; `None` when it does not carry our origin.
    pub fn decode(json: &Bytes, origin: &Origin) -> Result<Option<Self>, serde_json::Error> {
        let VolumeObject { metadata: meta, spec, status } = serde_json::from_slice(json)?;
        let Some(marked) = marked(&meta, origin) else { return Ok(None) };
        let spec: VolumeSpec<'_> = serde_json::from_str(spec.get())?;
        let name = |key: &str| meta.annotation(key).and_then(|text| Name::parse(text).ok());
        let claim = meta.annotation(keys::VIRTUAL_CLAIM).and_then(Id::parse);
        let of = match (name(keys::VIRTUAL_NAME), meta.annotation(keys::VIRTUAL_UID), claim) {
            (Some(volume), Some(uid), Some(claim)) => {
                Some(OfVolume { volume, uid: Uid::new(uid), claim: Arc::new(claim) })
            }
            _ => None,
        };
        let bound = status.and_then(|status| status.phase).is_some_and(|phase| &*phase == "Bound");
        Ok(Some(Self {
            of,
            marked,
            deleting: meta.deletion_timestamp.is_some(),
            retain: text(spec.persistent_volume_reclaim_policy.as_ref()) == Some(RETAIN),
            phase: if bound { VolumePhase::Bound } else { VolumePhase::Other },
            claim: spec.claim_ref.as_ref().map(|reference| ClaimRef {
                namespace: text(reference.namespace.as_ref()).unwrap_or_default().into(),
                name: text(reference.name.as_ref()).unwrap_or_default().into(),
                uid: text(reference.uid.as_ref()).map(Uid::new),
            }),
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
        }))
    }
}

/// What is read of a volume that has the name of a copy and does not carry our origin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unmarked {
    pub(super) retain: bool,
    /// Namespace and name of the claim that it is for.
    pub(super) claim: Option<(Box<str>, Box<str>)>,
}

impl Unmarked {
    pub(super) fn decode(json: &Bytes) -> Option<Self> {
        let VolumeObject { spec, .. } = serde_json::from_slice(json).ok()?;
        let spec: VolumeSpec<'_> = serde_json::from_str(spec.get()).ok()?;
        let part = |part: Option<&Text<'_>>| text(part).unwrap_or_default().into();
        Some(Self {
            retain: text(spec.persistent_volume_reclaim_policy.as_ref()) == Some(RETAIN),
            claim: spec.claim_ref.as_ref().map(|claim| (part(claim.namespace.as_ref()), part(claim.name.as_ref()))),
        })
    }
}

impl PClaim {
    /// Decodes a claim of the mount namespace; `None` when it does not carry our origin.
    pub fn decode(json: &Bytes, origin: &Origin) -> Result<Option<Self>, serde_json::Error> {
        let ClaimObject { metadata: meta, spec, status } = serde_json::from_slice(json)?;
        let Some(marked) = marked(&meta, origin) else { return Ok(None) };
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let name = |key: &str| meta.annotation(key).and_then(|text| Name::parse(text).ok());
        let of = match (name(keys::VIRTUAL_NAMESPACE), name(keys::VIRTUAL_NAME), meta.annotation(keys::VIRTUAL_UID)) {
            (Some(namespace), Some(name), Some(uid)) => Some((Arc::new(Id { namespace, name }), Uid::new(uid))),
            _ => None,
        };
        Ok(Some(Self {
            of,
            marked,
            deleting: meta.deletion_timestamp.is_some(),
            phase: ClaimPhase::read(&status),
            volume: named(spec.volume_name.as_ref()),
            request: spec.request(),
            capacity: amount(status.capacity.as_ref()),
            class: text(spec.storage_class_name.as_ref()).unwrap_or_default().into(),
            resizing: status.resizing(),
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
        }))
    }
}

impl PClass {
    /// Decodes a class.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let ClassObject { metadata: meta, allow_volume_expansion } = serde_json::from_slice(json)?;
        let expands = allow_volume_expansion.unwrap_or_default();
        Ok(Some(Self { uid: meta.uid, rv: meta.resource_version, name: meta.name, expands }))
    }
}

impl ClaimPhase {
    fn read(status: &ClaimStatus<'_>) -> Self {
        match text(status.phase.as_ref()) {
            Some("Bound") => Self::Bound,
            Some("Lost") => Self::Lost,
            _ => Self::Pending,
        }
    }
}

impl ClaimSpec<'_> {
    fn request(&self) -> Option<Box<str>> {
        amount(self.resources.as_ref()?.requests.as_ref())
    }
}

impl ClaimStatus<'_> {
    fn resizing(&self) -> Option<Box<str>> {
        let told = |condition: &Condition<'_>| {
            let part = |part: &Option<Text<'_>>| part.as_deref().unwrap_or_default().to_owned();
            serde_json::json!({
                "type": &*condition.kind, "status": part(&condition.status),
                "reason": part(&condition.reason), "message": part(&condition.message),
            })
        };
        let conditions = self.conditions.iter().flatten().filter(|condition| RESIZE.contains(&&*condition.kind));
        let told: Vec<_> = conditions.map(told).collect();
        (!told.is_empty()).then(|| serde_json::Value::from(told).to_string().into())
    }
}

impl Id {
    /// Reads `<namespace>/<name>`.
    fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        Some(Self { namespace: Name::parse(namespace).ok()?, name: Name::parse(name).ok()? })
    }
}

/// Whether the second amount is the larger one.
pub(super) fn grows(from: Option<&str>, to: Option<&str>) -> bool {
    let read = |text: &str| Quantity::parse(text).ok();
    match (from.and_then(read), to.and_then(read)) {
        (Some(from), Some(to)) => to > from,
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

/// Whether all our marks are on an object; `None` when it does not carry our origin. Either mark is enough to know it again.
fn marked(meta: &Meta<'_>, origin: &Origin) -> Option<bool> {
    let labelled = meta.label(keys::ORIGIN) == Some(&*origin.label);
    let annotated = meta.annotation(keys::ORIGIN) == Some(&*origin.full);
    let labels = origin.labels().iter().all(|(key, value)| meta.label(key) == Some(value));
    let annotations = origin.annotations().iter().all(|(key, value)| meta.annotation(key) == Some(value));
    (labelled || annotated).then_some(labels && annotations)
}

fn text<'t>(text: Option<&'t Text<'_>>) -> Option<&'t str> {
    text.map(|text| &**text).filter(|text| !text.is_empty())
}

fn named(name: Option<&Text<'_>>) -> Option<Name> {
    Name::parse(text(name)?).ok()
}

fn amount(storage: Option<&Storage<'_>>) -> Option<Box<str>> {
    text(storage?.storage.as_ref()).map(Into::into)
}
