//! The annotations that hold the virtual pod's values on its copy. It must not list any
//! other key: keys live in `tapestry-api`; these are here because the transformation both writes and reads them.

/// `metadata.name` of the virtual pod.
pub const VIRTUAL_POD_NAME: &str = "tapestry.io/virtual-pod-name";
/// `metadata.namespace` of the virtual pod.
pub const VIRTUAL_POD_NAMESPACE: &str = "tapestry.io/virtual-pod-namespace";
/// `metadata.uid` of the virtual pod.
pub const VIRTUAL_POD_UID: &str = "tapestry.io/virtual-pod-uid";
/// `spec.nodeName` of the virtual pod.
pub const VIRTUAL_NODE_NAME: &str = "tapestry.io/virtual-node-name";
/// `spec.serviceAccountName` of the virtual pod.
pub const VIRTUAL_SERVICE_ACCOUNT: &str = "tapestry.io/virtual-service-account";
/// `metadata.generation` of the virtual pod that was last pushed.
pub const VIRTUAL_POD_GENERATION: &str = "tapestry.io/virtual-pod-generation";
/// Marks of all that can change later in a virtual pod, as they were when it was last pushed: [`super::Marks`].
pub const VIRTUAL_POD_MARKS: &str = "tapestry.io/virtual-pod-marks";
/// JSON with each label, annotation, image and toleration that was pushed, and a mark of its value.
pub const CARRIED: &str = "tapestry.io/carried";
