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

/// What an object says of the binding that made it. Users can change all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Label: hash of the origin.
    label: Option<Box<str>>,
    /// Annotation: the origin.
    full: Option<Box<str>>,
    /// Label: name of the binding, shortened where it is too long for one.
    binding: Option<Box<str>>,
    /// Annotation: the whole name of the binding, where the label is shortened.
    whole_name: Option<Box<str>>,
}

/// Whose an object is, by its marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Our binding's.
    Ours,
    /// Another binding's, with its name unless the name is ours: then it is of an earlier binding, or unknown.
    Others(Option<Box<str>>),
    /// It does not say.
    Unmarked,
}

impl Marks {
    /// The marks among these labels and annotations.
    pub(crate) fn read<'a>(
        label: impl Fn(&'static str) -> Option<&'a str>,
        annotation: impl Fn(&'static str) -> Option<&'a str>,
    ) -> Self {
        Self {
            label: label(keys::ORIGIN).map(Into::into),
            full: annotation(keys::ORIGIN).map(Into::into),
            binding: label(keys::CLUSTER_BINDING).map(Into::into),
            whole_name: annotation(keys::CLUSTER_BINDING).map(Into::into),
        }
    }
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

    /// The annotation of virtual Services that says which addresses of load balancers are this cluster's.
    #[must_use]
    pub fn load_balancer_key(&self) -> String {
        format!("{}.{}", keys::LOAD_BALANCER, self.cluster_id())
    }

    /// `spec.clusterID` of the binding.
    pub(crate) fn cluster_id(&self) -> &str {
        let id = self.vnode_prefix.strip_prefix("vnode-").and_then(|rest| rest.strip_suffix('-'));
        id.unwrap_or(&self.vnode_prefix)
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

    /// Whose an object with these marks is. The annotation decides: labels are what users copy to select by.
    pub(crate) fn claim(&self, marks: &Marks) -> Claim {
        let another = marks.binding.as_ref().filter(|binding| **binding != self.binding_label);
        match (&marks.full, &marks.label) {
            (Some(full), _) if *full == self.full => Claim::Ours,
            (None, Some(label)) if another.is_none() && *label == self.label => Claim::Ours,
            (None, None) if another.is_none() => Claim::Unmarked,
            _ => Claim::Others(another.map(|label| marks.whole_name.as_ref().unwrap_or(label).clone())),
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
    /// The whole name of the binding, for an object whose label has only the beginning of it.
    pub(crate) fn whole_name(&self) -> Option<(&'static str, String)> {
        self.whole_name.as_ref().map(|name| (keys::CLUSTER_BINDING, name.to_string()))
    }

    /// What a virtual volume says that this binding holds: `<binding name>/<binding UID>`.
    pub(crate) fn holder(&self) -> String {
        let name = self.whole_name.as_ref().unwrap_or(&self.binding_label);
        format!("{name}/{}", self.full.split_once('/').map_or("", |(_, binding)| binding))
    }

    /// The annotations of every node and every physical object we make.
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
    fn an_object_is_whose_its_annotation_says_and_without_one_whose_its_labels_say() {
        let (ours, theirs) = (Origin::new("v", "b", "east"), Origin::new("v", "c", "west"));
        let claim = |label: Option<&Origin>, binding: Option<&Origin>, full: Option<&Origin>| {
            ours.claim(&Marks {
                label: label.map(|origin| origin.label.clone()),
                binding: binding.map(|origin| origin.binding_label.clone()),
                full: full.map(|origin| origin.full.clone()),
                whole_name: None,
            })
        };
        let (us, them, west) = (Some(&ours), Some(&theirs), Claim::Others(Some("west".into())));
        assert_eq!(claim(us, us, us), Claim::Ours);
        assert_eq!(claim(us, us, None), Claim::Ours, "an earlier version writes no annotation");
        assert_eq!(claim(us, None, None), Claim::Ours, "labelled by a user because nothing else is known of it");
        assert_eq!(claim(them, them, us), Claim::Ours, "its labels were changed");
        assert_eq!(claim(None, None, None), Claim::Unmarked);
        assert_eq!(claim(None, us, None), Claim::Unmarked);
        assert_eq!(claim(them, them, them), west);
        assert_eq!(claim(us, them, None), west, "another binding's, with our label");
        assert_eq!(claim(us, them, them), west);
        assert_eq!(claim(None, them, None), west);
        assert_eq!(claim(us, us, them), Claim::Others(None));
        assert_eq!(claim(them, us, None), Claim::Others(None), "an earlier binding of our name");
    }

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
