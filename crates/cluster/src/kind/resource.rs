//! How metrics and log lines name a resource: `pods`, or `gadgets.example.com` where another group may have the same plural.

use std::fmt::{self, Write as _};

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

use super::Kind;

/// The groups of the kinds that we name ourselves. No two of their resources have the same plural.
const DISTINCT: [&str; 6] =
    ["", "cloud.tencent.com", "coordination.k8s.io", "networking.k8s.io", "scheduling.k8s.io", "storage.k8s.io"];

/// A resource, as metrics and log lines name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Resource {
    plural: &'static str,
    /// Empty where the plural alone says which it is.
    group: &'static str,
}

impl Resource {
    /// What a call is about that is about no object: `discovery`.
    pub(crate) const fn named(plural: &'static str) -> Self {
        Self { plural, group: "" }
    }
}

impl From<&'static Kind> for Resource {
    fn from(kind: &'static Kind) -> Self {
        Self { plural: kind.plural, group: if DISTINCT.contains(&kind.group) { "" } else { kind.group } }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            "" => f.write_str(self.plural),
            group => write!(f, "{}.{group}", self.plural),
        }
    }
}

impl EncodeLabelValue for Resource {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        write!(encoder, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind;

    #[test]
    fn kinds_of_ours_are_named_by_their_plural_and_discovered_ones_with_their_group() {
        for known in [&kind::POD, &kind::LEASE, &kind::CSI_NODE, &kind::NETWORK_POLICY, &kind::PRIORITY_CLASS] {
            assert_eq!(Resource::from(known).to_string(), known.plural);
        }
        for known in [&kind::CLUSTER_BINDING, &kind::POLICY] {
            assert_eq!(Resource::from(known).to_string(), known.plural);
        }
        let [one, other] = ["one.example.com", "other.example.com"]
            .map(|group| Resource::from(Kind::intern(group, "v1", "nodes", "Node", true).unwrap()));
        assert_eq!((one.to_string().as_str(), one == other), ("nodes.one.example.com", false));
    }
}
