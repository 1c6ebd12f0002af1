//! Who we are on the physical cluster: the identity that every object we make there carries.
//! Nothing without it is ever touched (law 6).

use tapestry_api::keys;
use tapestry_domain::names;

/// One virtual cluster and one of its bindings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Annotation: `<virtual cluster UID>/<binding UID>`.
    pub full: Box<str>,
    /// Label: its hash.
    pub label: Box<str>,
    /// Label: name of the binding.
    pub binding_label: Box<str>,
}

impl Origin {
    /// The origin of this binding in this virtual cluster.
    #[must_use]
    pub fn new(virtual_cluster: &str, binding_uid: &str, binding_name: &str) -> Self {
        Self {
            full: format!("{virtual_cluster}/{binding_uid}").into(),
            label: names::origin_hash(virtual_cluster, binding_uid).into(),
            binding_label: names::label_value(binding_name).into(),
        }
    }

    /// The labels of every object we make.
    pub(crate) fn labels(&self) -> [(&'static str, String); 3] {
        [
            (keys::MANAGED_BY, keys::MANAGED_BY_TAPESTRY.to_owned()),
            (keys::CLUSTER_BINDING, self.binding_label.to_string()),
            (keys::ORIGIN, self.label.to_string()),
        ]
    }
}
