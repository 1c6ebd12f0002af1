//! What the bare client keeps of a pod on either side. Must not parse more than it needs: its cost is the yardstick.

use std::collections::HashMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tapestry_api::keys;
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::dependents::Reference;
use tapestry_domain::podspec::SpecNeeds;

/// Label of the bare client's copies: UID of the virtual pod.
pub(super) const LABEL: &str = "bench-bare";

#[derive(Clone)]
pub(super) struct VPod {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) namespace: Name,
    pub(super) name: Name,
    pub(super) node: Name,
    pub(super) phase: Box<str>,
    pub(super) mapped: bool,
    pub(super) deleting: bool,
    pub(super) json: Bytes,
    /// The ConfigMaps and Secrets it names; read with `json`, or when the client has just started.
    pub(super) needs: Vec<Reference>,
}

#[derive(Clone)]
pub(super) struct PPod {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    pub(super) vuid: Uid,
    pub(super) phase: Box<str>,
    pub(super) deleting: bool,
    pub(super) status: Bytes,
}

#[derive(Deserialize)]
struct PodJson<'a> {
    metadata: Meta,
    spec: Spec,
    #[serde(borrow)]
    status: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    namespace: Name,
    name: Name,
    uid: Uid,
    resource_version: Rv,
    deletion_timestamp: Option<Box<str>>,
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    annotations: HashMap<Box<str>, Box<str>>,
}

#[derive(Deserialize, Default)]
struct Labels {
    #[serde(rename = "bench-bare")]
    vuid: Option<Uid>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<Name>,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    phase: Box<str>,
}

impl VPod {
    /// `starting`: what a pod names is not known of any pod yet, also not of those that are mapped.
    pub(super) fn decode(json: &Bytes, prefix: &str, starting: bool) -> Result<Option<Self>, serde_json::Error> {
        let pod: PodJson<'_> = serde_json::from_slice(json)?;
        let Status { phase } = serde_json::from_str(pod.status.get())?;
        let node = pod.spec.node_name.filter(|node| node.as_str().starts_with(prefix));
        let mapped = pod.metadata.annotations.contains_key(keys::PHYSICAL_POD_NAME);
        let needs = if starting || !mapped { read_needs(json)? } else { Vec::new() };
        Ok(node.map(|node| Self {
            uid: pod.metadata.uid,
            rv: pod.metadata.resource_version,
            namespace: pod.metadata.namespace,
            name: pod.metadata.name,
            node,
            phase,
            mapped,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            // Needed once, for the copy. A copy of its own: the slice would hold the whole frame.
            json: if mapped { Bytes::new() } else { Bytes::copy_from_slice(json) },
            needs,
        }))
    }
}

fn read_needs(json: &Bytes) -> Result<Vec<Reference>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Needy<'a> {
        #[serde(borrow)]
        spec: SpecNeeds<'a>,
    }
    let pod: Needy<'_> = serde_json::from_slice(json)?;
    Ok(pod.spec.references(false))
}

impl PPod {
    pub(super) fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let pod: PodJson<'_> = serde_json::from_slice(json)?;
        let Status { phase } = serde_json::from_str(pod.status.get())?;
        Ok(pod.metadata.labels.vuid.map(|vuid| Self {
            uid: pod.metadata.uid,
            rv: pod.metadata.resource_version,
            name: pod.metadata.name,
            vuid,
            phase,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            status: Bytes::copy_from_slice(pod.status.get().as_bytes()),
        }))
    }
}

impl Row for VPod {
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

impl Row for PPod {
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
