//! What we keep of a CSINode on either side, decoded straight from JSON.
//! Drivers stay text: they are copied, not understood (law 7).

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tapestry_api::keys;
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};

use crate::json::{Meta, Pairs};

/// In-tree volumes that the kubelet hands to a driver. The scheduler counts those against the driver's limit, so this is
/// the one annotation of a physical object that is copied.
pub(super) const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// A physical CSINode.
#[derive(Debug, Clone)]
pub struct PCsiNode {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    /// Also the name of its node.
    pub(super) name: Name,
    pub(super) drivers: Drivers,
    pub(super) migrated: Option<Box<str>>,
}

/// A virtual CSINode of ours.
#[derive(Debug, Clone)]
pub struct VCsiNode {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    /// Also the name of its virtual node.
    pub(super) name: Name,
    pub(super) deleting: bool,
    /// The UIDs of the nodes that own it.
    pub(super) owners: Box<[Uid]>,
    /// Labels and annotations under our prefix, and the migrated plugins.
    pub(super) labels: BTreeMap<Box<str>, Box<str>>,
    pub(super) annotations: BTreeMap<Box<str>, Box<str>>,
    pub(super) drivers: Drivers,
}

/// `spec.drivers` as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Drivers(Box<str>);

impl Row for PCsiNode {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        // They go without a deletionTimestamp, so only a live read proves that one is gone.
        false
    }
}

impl Row for VCsiNode {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.deleting
    }
}

#[derive(Deserialize)]
struct CsiNodeJson<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow, default)]
    spec: SpecJson<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SpecJson<'a> {
    #[serde(borrow)]
    drivers: Option<&'a RawValue>,
}

impl PCsiNode {
    /// Decodes any physical CSINode.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let CsiNodeJson { metadata: meta, spec } = serde_json::from_slice(json)?;
        Ok(Some(Self {
            migrated: meta.annotation(MIGRATED_PLUGINS).map(Into::into),
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
            drivers: Drivers::new(spec.drivers),
        }))
    }
}

impl VCsiNode {
    /// Decodes a virtual CSINode; `None` when it carries no origin, and so cannot be ours.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let CsiNodeJson { metadata: meta, spec } = serde_json::from_slice(json)?;
        if meta.label(keys::ORIGIN).is_none() {
            return Ok(None);
        }
        let nodes = meta.owner_references.iter().filter(|owner| &*owner.kind == "Node");
        Ok(Some(Self {
            owners: nodes.map(|node| Uid::new(&*node.uid)).collect(),
            labels: kept(meta.labels.as_ref()),
            annotations: kept(meta.annotations.as_ref()),
            deleting: meta.deletion_timestamp.is_some(),
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
            drivers: Drivers::new(spec.drivers),
        }))
    }
}

impl Drivers {
    fn new(raw: Option<&RawValue>) -> Self {
        Self(raw.map_or("[]", RawValue::get).into())
    }

    pub(super) fn parse(&self) -> Vec<serde_json::Value> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

fn kept(pairs: Option<&Pairs<'_>>) -> BTreeMap<Box<str>, Box<str>> {
    let all = pairs.into_iter().flat_map(|pairs| &pairs.0);
    let kept = all.filter(|(key, _)| keys::ours(key) || &**key == MIGRATED_PLUGINS);
    kept.map(|(key, value)| ((**key).into(), (**value).into())).collect()
}
