//! Labels and annotations of objects that a tenant wrote: what is carried to the physical cluster.
//! It must not trust a key: controllers, kubelets and network plugins there act on some of them.

use serde_json::{Map, Value};

/// Every key under it is ours; on a tenant's object it is a forgery.
pub(crate) const OURS: &str = "tapestry.io/";

/// Annotations that a kubelet (static pods) or a network plugin (more interfaces) acts on, which a tenant may not set; the
/// last one is kubectl's own record, as large as the object.
const HOSTILE_ANNOTATIONS: [&str; 3] =
    ["kubernetes.io/config.", "k8s.v1.cni.cncf.io/", "kubectl.kubernetes.io/last-applied-configuration"];

/// Whether a tenant's label of this key is carried.
pub(crate) fn carries_label(key: &str) -> bool {
    !key.starts_with(OURS)
}

/// Whether a tenant's annotation of this key is carried.
pub(crate) fn carries_annotation(key: &str) -> bool {
    !key.starts_with(OURS) && !HOSTILE_ANNOTATIONS.iter().any(|hostile| key.starts_with(hostile))
}

/// A tenant's labels without those that are not carried, then ours.
#[must_use]
pub fn carry_labels(mut labels: Map<String, Value>, ours: &[(&str, String)]) -> Map<String, Value> {
    labels.retain(|key, _| carries_label(key));
    set(&mut labels, ours);
    labels
}

/// A tenant's annotations without those that are not carried, then ours.
#[must_use]
pub fn carry_annotations(mut annotations: Map<String, Value>, ours: &[(&str, String)]) -> Map<String, Value> {
    annotations.retain(|key, _| carries_annotation(key));
    set(&mut annotations, ours);
    annotations
}

/// Sets pairs; they win over what is there.
pub(crate) fn set(map: &mut Map<String, Value>, pairs: &[(&str, String)]) {
    for (key, value) in pairs {
        map.insert((*key).to_owned(), Value::String(value.clone()));
    }
}
