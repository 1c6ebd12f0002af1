//! Who we are on the physical cluster: the identity that every object we make there carries.
//! Nothing without it is ever touched (law 6).

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::object::BadName;
use tapestry_cluster::{Name, Target, Uid};
use tapestry_domain::names;

/// One virtual cluster and one of its bindings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Annotation: `<virtual cluster UID>/<binding UID>`.
    pub full: Box<str>,
    /// Label: its hash.
    pub label: Box<str>,
    /// Label: name of the binding, shortened where it is too long for one.
    pub binding_label: Box<str>,
    /// Annotation: the whole name of the binding, where the label is shortened.
    whole_name: Option<Box<str>>,
}

/// The label by which everything of a binding is found.
#[must_use]
pub fn binding_label(binding: &str) -> String {
    names::label_value(binding).into_owned()
}

/// Where a binding's objects are: known at the start, immutable for its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// All names of our virtual nodes start like this.
    pub vnode_prefix: Box<str>,
    /// The physical namespace of all copies.
    pub mount: Name,
}

impl Home {
    /// The home of this binding's objects.
    pub fn new(cluster_id: &str, mount_namespace: &str) -> Result<Self, BadName> {
        Ok(Self { vnode_prefix: format!("vnode-{cluster_id}-").into(), mount: Name::parse(mount_namespace)? })
    }
}

impl Origin {
    /// The origin of this binding in this virtual cluster.
    #[must_use]
    pub fn new(virtual_cluster: &str, binding_uid: &str, binding_name: &str) -> Self {
        let binding_label = binding_label(binding_name);
        Self {
            whole_name: (binding_label != binding_name).then(|| binding_name.into()),
            full: format!("{virtual_cluster}/{binding_uid}").into(),
            label: names::origin_hash(virtual_cluster, binding_uid).into(),
            binding_label: binding_label.into(),
        }
    }

    /// UID of the virtual cluster.
    pub(crate) fn virtual_cluster(&self) -> &str {
        self.full.split_once('/').map_or("", |(cluster, _)| cluster)
    }

    /// Whether the cluster that calls itself this is the virtual cluster that our nodes were made in, and the pinned one if one is.
    pub(crate) fn is_own_cluster(&self, seen: Option<&Uid>, pinned: Option<&str>) -> bool {
        let seen = seen.map(Uid::as_str);
        seen == Some(self.virtual_cluster()) && pinned.is_none_or(|pinned| seen == Some(pinned))
    }

    /// The labels of every object we make.
    pub(crate) fn labels(&self) -> [(&'static str, String); 3] {
        [
            (keys::MANAGED_BY, keys::MANAGED_BY_TAPESTRY.to_owned()),
            (keys::CLUSTER_BINDING, self.binding_label.to_string()),
            (keys::ORIGIN, self.label.to_string()),
        ]
    }
    /// The whole name of the binding, for an object whose label has only the beginning of it.
    pub(crate) fn whole_name(&self) -> Option<(&'static str, String)> {
        self.whole_name.as_ref().map(|name| (keys::CLUSTER_BINDING, name.to_string()))
    }

    /// The annotations of every physical object we make.
    pub(crate) fn annotations(&self) -> Vec<(&'static str, String)> {
        std::iter::once((keys::ORIGIN, self.full.to_string())).chain(self.whole_name()).collect()
    }

    /// The body of a physical object to create: `spec` and such from the caller, and our origin (law 6).
    pub(crate) fn new_object(&self, target: &Target, mut body: Value) -> Value {
        body["apiVersion"] = json!(target.kind.api_version());
        body["kind"] = json!(target.kind.kind);
        body["metadata"] = json!({"name": target.name.as_str()});
        for (key, value) in self.annotations() {
            body["metadata"]["annotations"][key] = json!(value);
        }
        for (key, value) in self.labels() {
            body["metadata"]["labels"][key] = json!(value);
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_too_long_for_a_label_is_whole_in_an_annotation() {
        let long = "a-binding-with-a-name.that-is-longer-than-the-sixty-three.characters-of-a-label";
        let origin = Origin::new("v", "b", long);
        assert!(origin.binding_label.len() <= 63);
        assert_eq!(origin.whole_name(), Some((keys::CLUSTER_BINDING, long.to_owned())));
        assert_eq!(origin.annotations().len(), 2);
        let short = Origin::new("v", "b", "east");
        assert_eq!(short.annotations(), [(keys::ORIGIN, "v/b".to_owned())]);
    }
}
