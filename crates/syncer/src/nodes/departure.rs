//! Why a virtual node goes, or will go when it is empty. Says nothing of when; that is in `lending`.

use tapestry_cluster::Side;

use super::row::VNode;
use crate::pair::Pair;
use crate::pods::admission::PendingReason;
use crate::terms::Terms;

/// Why a virtual node is no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The binding is being deleted.
    BindingDeleted,
    /// The virtual node itself is being deleted; it is not known by which client.
    NodeDeleted,
    /// The physical node is not there any more.
    NodeGone,
    /// The policy that lent it is not there any more.
    PolicyDeleted,
    /// The selector of its binding or of its policies does not match it any more.
    Unselected,
}

impl Departure {
    /// Whether its cause is that something is not there any more, which may be one mistake affecting many pods: the breaker weighs such
    /// ends. A binding or a virtual node that is being deleted was deleted by name.
    pub(crate) fn vanished(self) -> bool {
        match self {
            Self::NodeGone | Self::PolicyDeleted | Self::Unselected => true,
            Self::BindingDeleted | Self::NodeDeleted => false,
        }
    }

    /// For conditions and events.
    pub(crate) fn reason(self) -> PendingReason {
        match self {
            Self::BindingDeleted | Self::NodeDeleted | Self::NodeGone => PendingReason::Leaving,
            Self::PolicyDeleted => PendingReason::PolicyDeleted,
            Self::Unselected => PendingReason::NotSelected,
        }
    }

    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::BindingDeleted => "the binding is being deleted",
            Self::NodeDeleted => "the virtual node is being deleted",
            Self::NodeGone => "the physical node is gone",
            Self::PolicyDeleted => "its policy was deleted; the virtual node is removed when its pods are gone",
            Self::Unselected => {
                "the binding or its policies no longer select the node; the virtual node is removed when its pods are gone"
            }
        }
    }
}

impl Pair {
    /// Why no policy lends a virtual node that is there. Its annotation tells which ones did.
    pub(crate) fn lost_policy(&self, vnode: Option<&VNode>) -> Departure {
        let applied = vnode.into_iter().flat_map(VNode::policies).filter(|policy| policy.side == Side::Virtual);
        let there = applied.into_iter().any(|policy| self.policies.named(policy.side, policy.name));
        if there { Departure::Unselected } else { Departure::PolicyDeleted }
    }
}

/// A policy that a virtual node says it is lent by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Applied<'a> {
    /// The owner's are in the physical cluster.
    pub(crate) side: Side,
    pub(crate) name: &'a str,
}

/// Marks the owner's policies in annotation `policies-applied`.
pub(crate) const OWNER: &str = "owner/";

impl VNode {
    /// The policies that the virtual node says it is lent by.
    pub(crate) fn policies(&self) -> impl Iterator<Item = Applied<'_>> {
        let text = self.applied.as_deref().unwrap_or_default();
        text.split(',').filter(|name| !name.is_empty()).map(|name| match name.strip_prefix(OWNER) {
            Some(name) => Applied { side: Side::Physical, name },
            None => Applied { side: Side::Virtual, name },
        })
    }

    /// Whether it says that an owner's policy applies to it.
    pub(crate) fn has_owner(&self) -> bool {
        self.policies().any(|policy| policy.side == Side::Physical)
    }
}

/// The policies in force, as annotation `policies-applied` tells them. Those that cannot be known any more are kept: after a
/// restart nothing else tells that they were.
pub(super) fn applied(terms: Option<&Terms<'_>>, vnode: Option<&VNode>, owner_unknown: bool) -> String {
    let mut names = terms.map(Terms::names).unwrap_or_default();
    let keeps = |side: Side| match side {
        Side::Virtual => terms.is_some_and(|terms| terms.policy.is_none()),
        Side::Physical => owner_unknown && terms.is_some_and(|terms| terms.owner.is_none()),
    };
    for Applied { side, name } in vnode.into_iter().flat_map(VNode::policies).filter(|known| keeps(known.side)) {
        names = match side {
            Side::Virtual if names.is_empty() => name.to_owned(),
            Side::Virtual => format!("{name},{names}"),
            Side::Physical if names.is_empty() => format!("{OWNER}{name}"),
            Side::Physical => format!("{names},{OWNER}{name}"),
        };
    }
    names
}
