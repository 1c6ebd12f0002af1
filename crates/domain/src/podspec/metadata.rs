//! The metadata of a copy: the virtual pod's labels and annotations without what is hostile, then ours.
//! It must not carry owner references, finalizers or anything an API server writes.

use serde_json::{Map, Value, json};

use super::changes::Carried;
use super::{Frame, Identity, VirtualMetadata, keys};
use crate::metadata::{carry_annotations, carry_labels, set};

/// A copy may be evicted by the owner's autoscaler: lent capacity must not keep a node alive.
pub(super) const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Reads `spec` before it is rewritten: the virtual node and account are still in it. `carried` is what can change later.
pub(super) fn render(
    vpod: VirtualMetadata,
    spec: &Map<String, Value>,
    carried: &Carried,
    frame: &Frame<'_>,
) -> (Identity, Value) {
    let labels = carry_labels(vpod.labels, &frame.labels);
    let of_spec = |field: &str| spec.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let account = match of_spec("serviceAccountName") {
        none if none.is_empty() => of_spec("serviceAccount"),
        account => account,
    };
    let ours = [
        (SAFE_TO_EVICT, "true".to_owned()),
        (keys::VIRTUAL_POD_NAME, vpod.name.clone()),
        (keys::VIRTUAL_POD_NAMESPACE, vpod.namespace.clone()),
        (keys::VIRTUAL_POD_UID, vpod.uid),
        (keys::VIRTUAL_NODE_NAME, of_spec("nodeName")),
        (keys::VIRTUAL_SERVICE_ACCOUNT, account),
        (keys::VIRTUAL_POD_MARKS, carried.marks().to_string()),
        (keys::CARRIED, carried.render()),
    ];
    let mut annotations = carry_annotations(vpod.annotations, &ours);
    set(&mut annotations, &frame.annotations);

    let json = json!({
        "name": frame.name,
        "namespace": frame.namespace,
        "labels": labels,
        "annotations": annotations,
    });
    (Identity { name: vpod.name, namespace: vpod.namespace }, json)
}
