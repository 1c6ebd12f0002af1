//! PersistentVolumes and their claims: what the copies in the physical cluster say.
//! It must not let the deletion of a copy destroy data, nor let a volume read a Secret of another user.

pub mod keys;
mod secrets;
#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::secrets::visit_secrets;
use crate::metadata::{carry_annotations, carry_labels};
use crate::names;
use crate::shape::nullable;

/// What a copy of a volume or claim has besides what it carries.
#[derive(Debug, Clone, Copy)]
pub struct VolumeFrame<'a> {
    /// The name of the copy.
    pub name: &'a str,
    /// The mount namespace.
    pub mount: &'a str,
    /// The origin's labels; they win over the source's.
    pub labels: &'a [(&'static str, String)],
    /// The origin's annotations, besides those in [`keys`].
    pub annotations: &'a [(&'static str, String)],
    /// The hash of the origin, from which the names of copies follow.
    pub origin: &'a str,
    /// A class of the physical cluster, or empty: none.
    pub storage_class: &'a str,
    /// The virtual claim: namespace and name.
    pub claim: (&'a str, &'a str),
    /// For the copy of a volume: UID of the claim's copy, if there is one. For the copy of a claim: the copy of its volume.
    pub other: Option<&'a str>,
}

/// What a volume is made of, as far as it decides whether it can be carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A directory of whichever node the pod runs on.
    HostPath,
    /// A disk of one node, which the virtual cluster knows by another name.
    Local,
    /// It names Endpoints, which are not carried.
    Glusterfs,
    /// Something that is reached over the network, by a driver of the physical cluster.
    Network,
}

/// A Secret of the virtual cluster that a volume names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

/// What is read of the `spec` of a virtual volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeNeeds {
    /// What it is made of.
    pub backend: Backend,
    /// The Secrets that drivers get with it, sorted, each once.
    pub secrets: Vec<SecretName>,
}

/// The text is not such an object. Its content is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the object cannot be read (line {line}, column {column})")]
pub struct Malformed {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1.
    pub column: usize,
}

impl From<serde_json::Error> for Malformed {
    fn from(error: serde_json::Error) -> Self {
        Self { line: error.line(), column: error.column() }
    }
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(default, deserialize_with = "nullable")]
    spec: Map<String, Value>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default, deserialize_with = "nullable")]
    namespace: String,
    #[serde(default, deserialize_with = "nullable")]
    uid: String,
    #[serde(default, deserialize_with = "nullable")]
    labels: Map<String, Value>,
    #[serde(default, deserialize_with = "nullable")]
    annotations: Map<String, Value>,
}

/// Annotations by which the volume controller, schedulers and provisioners of one cluster remember what they did there.
const OF_CONTROLLERS: [&str; 3] = ["pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/"];

/// Labels by which the physical scheduler keeps the pods of a volume in a zone, as a node affinity does.
const OF_ZONES: [&str; 2] = ["topology.kubernetes.io/", "failure-domain.beta.kubernetes.io/"];

/// Fields of a volume that mean something in the virtual cluster only.
const VOLUME_DROPPED: [&str; 2] = ["nodeAffinity", "volumeAttributesClassName"];

/// Fields of a claim by which a volume is found or filled: it is found already.
const CLAIM_DROPPED: [&str; 4] = ["dataSource", "dataSourceRef", "selector", "volumeAttributesClassName"];

/// The policy under which the end of a claim leaves the data alone.
pub const RETAIN: &str = "Retain";

/// What the copy of a volume says of the claim that it is for. Pre-bound: without it any claim of the cluster could take the volume.
#[must_use]
pub fn claim_reference(frame: &VolumeFrame<'_>) -> Value {
    let (namespace, name) = frame.claim;
    let mut reference = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": frame.mount,
        "name": names::claim_name(frame.origin, namespace, name),
    });
    if let Some(uid) = frame.other {
        reference["uid"] = uid.into();
    }
    reference
}

/// The body of a new copy of a PersistentVolume.
pub fn render_volume_copy(source: &str, frame: &VolumeFrame<'_>) -> Result<Value, Malformed> {
    let Object { metadata, mut spec } = serde_json::from_str(source)?;
    spec.retain(|field, _| !VOLUME_DROPPED.contains(&field.as_str()));
    visit_secrets(&mut spec, frame.claim.0, &mut |secret| {
        let name = names::dependent_name(frame.origin, &secret.namespace, &secret.name);
        Some(SecretName { namespace: frame.mount.into(), name: name.into() })
    });
    spec.insert("persistentVolumeReclaimPolicy".into(), RETAIN.into());
    spec.insert("storageClassName".into(), frame.storage_class.into());
    spec.insert("claimRef".into(), claim_reference(frame));
    let (namespace, claim) = frame.claim;
    let written = [
        (keys::VIRTUAL_NAME, metadata.name.clone()),
        (keys::VIRTUAL_UID, metadata.uid.clone()),
        (keys::VIRTUAL_CLAIM, format!("{namespace}/{claim}")),
    ];
    Ok(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": metadata.carried(&written, frame),
        "spec": spec,
    }))
}

/// The body of a new copy of a PersistentVolumeClaim.
pub fn render_claim_copy(source: &str, frame: &VolumeFrame<'_>) -> Result<Value, Malformed> {
    let Object { metadata, mut spec } = serde_json::from_str(source)?;
    spec.retain(|field, _| !CLAIM_DROPPED.contains(&field.as_str()));
    spec.insert("storageClassName".into(), frame.storage_class.into());
    spec.insert("volumeName".into(), frame.other.unwrap_or_default().into());
    let written = [
        (keys::VIRTUAL_NAMESPACE, metadata.namespace.clone()),
        (keys::VIRTUAL_NAME, metadata.name.clone()),
        (keys::VIRTUAL_UID, metadata.uid.clone()),
    ];
    let mut carried = metadata.carried(&written, frame);
    carried["namespace"] = frame.mount.into();
    Ok(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": carried,
        "spec": spec,
    }))
}

/// Reads what a virtual volume is made of; `claim_namespace` is where a Secret without a namespace is.
pub fn read_volume(spec: &str, claim_namespace: &str) -> Result<VolumeNeeds, Malformed> {
    let mut spec: Map<String, Value> = serde_json::from_str(spec)?;
    let is = |source: &str| spec.get(source).is_some_and(|source| !source.is_null());
    let backend = if is("hostPath") {
        Backend::HostPath
    } else if is("local") {
        Backend::Local
    } else if is("glusterfs") {
        Backend::Glusterfs
    } else {
        Backend::Network
    };
    let mut secrets = Vec::new();
    visit_secrets(&mut spec, claim_namespace, &mut |secret| {
        secrets.push(secret);
        None
    });
    secrets.sort_unstable();
    secrets.dedup();
    Ok(VolumeNeeds { backend, secrets })
}

impl Metadata {
    fn carried(self, written: &[(&'static str, String)], frame: &VolumeFrame<'_>) -> Value {
        let Self { mut labels, mut annotations, .. } = self;
        labels.retain(|key, _| !OF_ZONES.iter().any(|zone| key.starts_with(zone)));
        annotations.retain(|key, _| !OF_CONTROLLERS.iter().any(|theirs| key.starts_with(theirs)));
        let ours: Vec<_> = frame.annotations.iter().chain(written).cloned().collect();
        json!({
            "name": frame.name,
            "labels": carry_labels(labels, frame.labels),
            "annotations": carry_annotations(annotations, &ours),
        })
    }
}
