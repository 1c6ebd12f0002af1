//! Physical pods as decisions need them: small for foreign pods, with the rest for copies of ours, and for strays.

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tapestry_api::keys;
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::names::is_physical_pod_name;
use tapestry_domain::podspec::{Marks as PushedMarks, has_api_access, mend_tolerations};
use tapestry_domain::ports::HostPorts;
use tapestry_domain::resources::Resources;

use super::{Outline, Part, PodJson, SpecJson, at_least, born, count, deleting, read_ports};
use crate::json::Meta;
use crate::origin::Origin;
use crate::pods::digest::StatusDigest;
use crate::pods::strays::namespace_label;

/// A physical pod: small when foreign, with the rest when ours.
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
    pub(crate) ours: Option<Box<PodCopy>>,
    /// Set when it carries our origin and points nowhere.
    pub(crate) stray: Option<Box<Stray>>,
    /// Set, to its namespace, when it runs as an account of the name that ours has.
    pub(crate) account: Option<Box<Name>>,
    /// Set when it cannot be fully read: what it uses of its node is then not known.
    pub(crate) unreadable: Option<Box<Unreadable>>,
}

/// A physical pod that cannot be fully read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) part: Part,
    /// `namespace/name`, for people.
    pub(crate) place: Box<str>,
}

/// The part of a physical pod whose back-pointer a client removed.
#[derive(Debug, Clone)]
pub(crate) struct Stray {
    pub(crate) namespace: Name,
    pub(crate) name: Name,
    /// All our other marks are there: we made it, and it is not an imitation.
    pub(crate) marked: bool,
}

/// The part of a physical pod that only copies of ours have.
#[derive(Debug, Clone)]
pub(crate) struct PodCopy {
    pub(crate) namespace: Name,
    pub(crate) name: Name,
    pub(crate) vpod: Back,
    /// All our labels and annotations are there.
    pub(crate) intact: bool,
    /// The virtual generation that was pushed.
    pub(crate) generation: i64,
    /// The mark of the sizes that were pushed; empty when the copy has none.
    pub(crate) sizes: Box<str>,
    /// The marks of what was pushed besides; `None` when it does not say.
    pub(crate) pushed: Option<PushedMarks>,
    /// The tolerations it should have, while its own let the physical cluster evict it from a node in trouble.
    pub(crate) tolerations: Option<Box<Value>>,
    pub(crate) digest: StatusDigest,
    /// When it was created, in seconds since 1970 by the physical cluster.
    pub(crate) born: i64,
    /// Whether it mounts what the virtual cluster injects to reach its API server.
    pub(crate) api_access: bool,
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
    fn unreadable(&self) -> bool {
        self.unreadable.is_some()
    }
}

impl PPod {
    /// Decodes any physical pod. One that cannot be fully read is a row that says so: it uses a node, and it is unknown how much.
    pub fn decode(json: &Bytes, origin: &Origin) -> Result<Option<Self>, serde_json::Error> {
        Self::decode_whole(json, origin).or_else(|_| Self::decode_outline(json, origin)).map(Some)
    }

    fn decode_whole(json: &Bytes, origin: &Origin) -> Result<Self, serde_json::Error> {
        let PodJson { metadata: meta, spec: raw_spec, status } = serde_json::from_slice(json)?;
        let spec: SpecJson<'_> = serde_json::from_str(raw_spec.get())?;
        let status = status.map_or("{}", RawValue::get);
        let mut row = Self::of_meta(&meta, spec.node_name.clone(), origin);
        let (digest, shape) = StatusDigest::read_shape(status, row.ours.as_ref().map(|copy| copy.generation))?;
        row.terminal = digest.phase.terminal();
        if let Some(copy) = &mut row.ours {
            (copy.digest, copy.status) = (digest, Some(status.into()));
            copy.tolerations = mend_tolerations(spec.tolerations.map_or("null", RawValue::get))?.map(Box::new);
            copy.api_access = has_api_access(raw_spec.get());
        }
        let same = spec.service_account_name.as_deref() == Some(keys::POD_SERVICE_ACCOUNT);
        row.account = meta.namespace.clone().filter(|_| same).map(Box::new);
        row.ports = read_ports(raw_spec)?;
        row.request = count(spec, &shape);
        Ok(row)
    }

    fn decode_outline(json: &Bytes, origin: &Origin) -> Result<Self, serde_json::Error> {
        let outline = Outline::read(json)?;
        let mut row = Self::of_meta(&outline.meta, outline.node.clone(), origin);
        row.terminal = outline.phase.terminal();
        if let Some(copy) = &mut row.ours {
            copy.digest = outline.digest(Some(copy.generation));
            copy.status = (outline.unreadable == Part::Spec).then(|| outline.status.into());
        }
        let namespace = outline.meta.namespace.as_ref().map_or("", Name::as_str);
        let place = format!("{namespace}/{}", outline.meta.name).into();
        row.unreadable = Some(Box::new(Unreadable { part: outline.unreadable, place }));
        Ok(row)
    }

    /// What a pod's metadata says; of the rest nothing.
    fn of_meta(meta: &Meta<'_>, node: Option<Name>, origin: &Origin) -> Self {
        let ours = PodCopy::read(meta, origin).map(Box::new);
        Self {
            stray: if ours.is_none() { Stray::read(meta, origin).map(Box::new) } else { None },
            ours,
            uid: meta.uid.clone(),
            rv: meta.resource_version,
            node,
            deleting: deleting(meta),
            terminal: false,
            request: at_least(),
            ports: HostPorts::default(),
            account: None,
            unreadable: None,
        }
    }
}

impl PPod {
    /// What it can no longer be read to use, it uses as before.
    pub(crate) fn inherit(&mut self, known: &Self) {
        if self.unreadable.is_some() {
            self.request.clone_from(&known.request);
            self.ports.clone_from(&known.ports);
            if let (Some(copy), Some(known)) = (&mut self.ours, &known.ours) {
                copy.api_access = known.api_access;
            }
        }
    }

    /// Whether its status can be followed.
    pub(crate) fn speaks(&self) -> bool {
        self.unreadable.as_ref().is_none_or(|unreadable| unreadable.part != Part::Status)
    }

    /// Whether it carries all our marks but the one that says whose copy it is.
    pub(crate) fn made_by_us(&self) -> bool {
        self.stray.as_ref().is_some_and(|stray| stray.marked)
    }

    /// Outside the mount namespace there is no copy of ours, whatever a pod says of itself: a client copied one of ours.
    pub(crate) fn disown_outside(&mut self, mount: &Name) {
        self.ours.take_if(|copy| copy.namespace != *mount);
        self.stray.take_if(|stray| stray.namespace != *mount);
    }
}

impl PodCopy {
    /// A pod is ours when it names our origin and a virtual pod; the labels alone prove nothing.
    fn read(meta: &Meta<'_>, origin: &Origin) -> Option<Self> {
        let marks = Marks::read(meta, origin);
        if !marks.origin() {
            return None;
        }
        let name = |key| meta.annotation(key).and_then(|text| Name::parse(text).ok());
        let uid = meta.annotation(keys::VIRTUAL_POD_UID).filter(|uid| !uid.is_empty());
        let (Some(namespace), Some(vpod), Some(uid), Some(own)) =
            (name(keys::VIRTUAL_POD_NAMESPACE), name(keys::VIRTUAL_POD_NAME), uid, &meta.namespace)
        else {
            return None;
        };
        // A name that we did not make for that pod: a client made it point there.
        if !is_physical_pod_name(meta.name.as_str(), vpod.as_str()) {
            return None;
        }
        let (key, value) = namespace_label(&namespace);
        let selected = meta.label(key) == Some(&*value);
        let generation = meta.annotation(keys::VIRTUAL_POD_GENERATION).and_then(|text| text.parse().ok()).unwrap_or(0);
        Some(Self {
            namespace: own.clone(),
            name: meta.name.clone(),
            vpod: Back { namespace, name: vpod, uid: Uid::new(uid) },
            intact: marks.all() && selected,
            generation,
            sizes: meta.annotation(keys::VIRTUAL_POD_SIZES).unwrap_or_default().into(),
            pushed: meta.annotation(keys::VIRTUAL_POD_MARKS).and_then(PushedMarks::parse),
            tolerations: None,
            // Where the spec cannot be read, it may.
            api_access: true,
            digest: StatusDigest::default(),
            born: born(meta),
            deleted: meta.deletion_timestamp.as_deref().map(Into::into),
            status: None,
        })
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
