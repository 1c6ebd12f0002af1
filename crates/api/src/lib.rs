//! What users write: the custom resources, the keys on objects, how both are read into domain types, and what must hold
//! between the objects that carry them. Nothing here talks to an API server, reads a clock or decides anything.

#![expect(
    clippy::doc_markdown,
    reason = "doc comments of fields are shown by `kubectl explain`, which has no code formatting"
)]
#![expect(
    clippy::duplicated_attributes,
    reason = "the lint takes the print columns of the kube derive for repetitions"
)]

pub mod binding;
pub mod condition;
pub mod crds;
pub mod generated;
pub mod invalid;
pub mod invariants;
pub mod keys;
pub mod policy;
mod schema;
mod selector;

pub use binding::{Binding, ClusterBinding};
pub use condition::{BindingCondition, Status};
pub use invalid::Invalid;
pub use policy::{Cluster, Policy, ResourceLeasingPolicy, ResourceLeasingPolicyStatus};

/// The API group of both kinds.
pub const GROUP: &str = "cloud.tencent.com";
/// The API version of both kinds.
pub const VERSION: &str = "v1beta1";
