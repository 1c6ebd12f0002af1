//! What a syncer may do in each cluster: every verb of every call and watch, declared once. `deploy/rbac` is written from it
//! and plans are held to it (law 10). Must grant nothing that no call needs: tests compare both ways.
//!
//! Not declared because every authenticated user has them: discovery, and asking for one's own rights.

mod render;

use tapestry_api::keys;
use tapestry_cluster::watch::Query;
use tapestry_cluster::{Call, Kind, Name, Need, Side, kind};

use crate::leases;

pub use render::render;

/// One rule of a role.
#[derive(Debug)]
pub struct Right {
    /// In which cluster.
    pub side: Side,
    /// Of which role.
    pub role: Role,
    /// Where in it.
    pub place: Place,
    /// Of which resource.
    pub kind: &'static Kind,
    /// Which subresource; empty for the object itself.
    pub part: &'static str,
    /// Only objects of these names; empty for all. Kubernetes cannot tell the name of what is created, so `create` is a rule of its own.
    pub names: &'static [&'static str],
    /// What may be done.
    pub verbs: &'static [&'static str],
    /// Why, for those who grant it.
    pub why: &'static str,
}

/// Roles that are granted each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// What every syncer needs.
    Syncer,
    /// What it needs in addition where changes of copies flow up: it may then write every ConfigMap and Secret.
    BothWays,
}

/// The namespace of a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The whole cluster.
    Everywhere,
    /// Tapestry's own namespace.
    System,
    /// Where Kubernetes keeps the Leases of nodes.
    NodeLeases,
    /// The mount namespace of the binding.
    Mount,
}

/// A request as the API server's authorizer sees it. What does not apply is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask<'a> {
    /// Of which cluster.
    pub side: Side,
    /// `get`, `list`, `watch`, `create`, `patch`, `delete`.
    pub verb: &'a str,
    /// API group.
    pub group: &'a str,
    /// Plural of the resource.
    pub resource: &'a str,
    /// Subresource.
    pub part: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Name of the object; empty when it is created.
    pub name: &'a str,
}

impl Role {
    /// Whether a syncer does without it, and tells on the object what it means.
    pub(crate) fn is_optional(need: &Need<'_>) -> bool {
        let Need { side, verb, kind, part, .. } = need;
        let grants = |right: &&Right| {
            (right.side, right.kind, right.part) == (*side, *kind, *part) && right.verbs.contains(verb)
        };
        RIGHTS.iter().filter(grants).any(|right| right.role != Self::Syncer)
    }
}

impl Place {
    /// Its name; `None` for the whole cluster.
    #[must_use]
    pub fn namespace(self, mount: &str) -> Option<&str> {
        match self {
            Self::Everywhere => None,
            Self::System => Some(keys::NAMESPACE),
            Self::NodeLeases => Some(leases::NAMESPACE),
            Self::Mount => Some(mount),
        }
    }
}

impl<'a> Ask<'a> {
    /// What a call asks for, request by request; nothing for discovery.
    pub fn call(call: &'a Call) -> impl Iterator<Item = Self> {
        call.needs().into_iter().map(|Need { side, verb, kind, part, namespace, name }| Self {
            side,
            verb,
            group: kind.group,
            resource: kind.plural,
            part,
            namespace: namespace.map_or("", Name::as_str),
            name: name.map_or("", Name::as_str),
        })
    }

    /// What a watch asks for: once to `list` and once to `watch`.
    #[must_use]
    pub fn watch(side: Side, query: &'a Query, verb: &'a str) -> Self {
        let namespace = query.namespace.as_ref().map_or("", Name::as_str);
        Self { side, verb, group: query.kind.group, resource: query.kind.plural, part: "", namespace, name: "" }
    }

    /// Whether a syncer with this mount namespace has declared all that a call asks for.
    #[must_use]
    pub fn declares(call: &'a Call, mount: &str) -> bool {
        Self::call(call).all(|ask| ask.is_declared(mount))
    }

    /// Whether a syncer with this mount namespace has declared it.
    #[must_use]
    pub fn is_declared(&self, mount: &str) -> bool {
        RIGHTS.iter().any(|right| right.grants(self, mount))
    }
}

impl Right {
    /// Whether this rule allows it.
    #[must_use]
    pub fn grants(&self, ask: &Ask<'_>, mount: &str) -> bool {
        let resource = (self.side, self.kind.group, self.kind.plural, self.part);
        resource == (ask.side, ask.group, ask.resource, ask.part)
            && self.verbs.contains(&ask.verb)
            && (self.names.is_empty() || self.names.contains(&ask.name))
            && self.place.namespace(mount).is_none_or(|namespace| namespace == ask.namespace)
    }

    const fn part(mut self, part: &'static str) -> Self {
        self.part = part;
        self
    }

    const fn of(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    const fn only(mut self, names: &'static [&'static str]) -> Self {
        self.names = names;
        self
    }
}

const fn in_virtual(place: Place, kind: &'static Kind, verbs: &'static [&'static str], why: &'static str) -> Right {
    Right { side: Side::Virtual, role: Role::Syncer, place, kind, part: "", names: &[], verbs, why }
}

const fn in_physical(place: Place, kind: &'static Kind, verbs: &'static [&'static str], why: &'static str) -> Right {
    Right { side: Side::Physical, ..in_virtual(place, kind, verbs, why) }
}

const IDENTITY: &str = "The UID of this namespace is the identity of the cluster.";

/// All of them.
pub static RIGHTS: &[Right] = {
    use Place::{Everywhere, Mount, NodeLeases, System};
    &[
        in_virtual(Everywhere, &kind::NAMESPACE, &["get"], IDENTITY).only(&["kube-system"]),
        in_virtual(
            Everywhere,
            &kind::CLUSTER_BINDING,
            &["get", "list", "watch", "patch"],
            "The binding that is served, and a finalizer on it.",
        ),
        in_virtual(
            Everywhere,
            &kind::CLUSTER_BINDING,
            &["patch"],
            "Identities of both clusters, conditions, phase and figures.",
        )
        .part("status"),
        in_virtual(Everywhere, &kind::POLICY, &["get", "list", "watch"], "How much may be lent, and when."),
        in_virtual(Everywhere, &kind::POLICY, &["patch"], "Which policies are active, on how many nodes.")
            .part("status"),
        in_virtual(
            Everywhere,
            &kind::NODE,
            &["get", "list", "watch", "create", "patch", "delete"],
            "Virtual nodes: labels, taints, finalizer.",
        ),
        in_virtual(Everywhere, &kind::NODE, &["patch"], "What virtual nodes offer, and their conditions.")
            .part("status"),
        in_virtual(
            Everywhere,
            &kind::CSI_NODE,
            &["get", "list", "watch", "create", "patch", "delete"],
            "Storage drivers of virtual nodes.",
        ),
        in_virtual(
            Everywhere,
            &kind::POD,
            &["get", "list", "watch", "patch", "delete"],
            "Pods on virtual nodes: record their copies, delete them when their copies end.",
        ),
        in_virtual(Everywhere, &kind::POD, &["patch"], "Write back the status of copies.").part("status"),
        in_virtual(Everywhere, &kind::POD, &["create"], "Evict pods when less is lent; respects PodDisruptionBudgets.")
            .part("eviction"),
        in_virtual(Everywhere, &kind::EVENT, &["create"], "Write events on pods, nodes and bindings."),
        in_virtual(
            Everywhere,
            &kind::CONFIG_MAP,
            &["get", "list", "watch"],
            "ConfigMaps that pods on virtual nodes name are copied.",
        ),
        in_virtual(
            Everywhere,
            &kind::SECRET,
            &["get", "list", "watch"],
            "Secrets that pods on virtual nodes name are copied; also the binding's kubeconfig.",
        ),
        in_virtual(Everywhere, &kind::CONFIG_MAP, &["patch"], "Changes of the copies of ConfigMaps flow up.")
            .of(Role::BothWays),
        in_virtual(Everywhere, &kind::SECRET, &["patch"], "Changes of the copies of Secrets flow up.")
            .of(Role::BothWays),
        in_virtual(
            Everywhere,
            &kind::SERVICE_ACCOUNT,
            &["create"],
            "Tokens that pods on virtual nodes ask for, bound to these pods.",
        )
        .part("token"),
        in_virtual(
            Everywhere,
            &kind::SERVICE,
            &["get", "list", "watch"],
            "Services of spec.serviceNamespaces are copied.",
        ),
        in_virtual(Everywhere, &kind::SERVICE, &["patch"], "Addresses of their load balancers.").part("status"),
        in_virtual(
            Everywhere,
            &kind::PERSISTENT_VOLUME_CLAIM,
            &["get", "list", "watch"],
            "Claims that pods on virtual nodes name are copied.",
        ),
        in_virtual(Everywhere, &kind::PERSISTENT_VOLUME_CLAIM, &["patch"], "Write back the size of claims that grew.")
            .part("status"),
        in_virtual(
            Everywhere,
            &kind::PERSISTENT_VOLUME,
            &["get", "list", "watch", "patch"],
            "Volumes of these claims are copied; a volume says which binding has it, and its size when it grew.",
        ),
        in_virtual(
            System,
            &kind::LEASE,
            &["get", "list", "watch", "create", "patch"],
            "Leader election between the syncers of one binding.",
        ),
        in_virtual(
            NodeLeases,
            &kind::LEASE,
            &["get", "create", "patch"],
            "Leases of virtual nodes, renewed every ten seconds.",
        ),
        in_physical(Everywhere, &kind::NAMESPACE, &["get"], IDENTITY).only(&["kube-system"]),
        in_physical(Everywhere, &kind::NODE, &["get", "list", "watch"], "Nodes that can be lent."),
        in_physical(Everywhere, &kind::CSI_NODE, &["get", "list", "watch"], "Their storage drivers."),
        in_physical(Everywhere, &kind::POD, &["list", "watch"], "What pods of all namespaces use is not idle."),
        in_physical(Everywhere, &kind::POLICY, &["list", "watch"], "The owner's policies."),
        in_physical(Everywhere, &kind::POLICY, &["patch"], "Tell the owner which of them are active.").part("status"),
        in_physical(
            Everywhere,
            &kind::PRIORITY_CLASS,
            &["get", "create"],
            "The priority of all copies: tapestry-default is created when missing, others are only read.",
        ),
        in_physical(Mount, &kind::POD, &["get", "create", "patch", "delete"], "Copies of virtual pods."),
        in_physical(Mount, &kind::POD, &["patch"], "Resize the copy of a resized pod.").part("resize"),
        in_physical(Mount, &kind::POD, &["patch"], "Add the ephemeral containers of a pod to its copy.")
            .part("ephemeralcontainers"),
        in_physical(Mount, &kind::EVENT, &["list", "watch"], "Warnings about copies are shown on their virtual pods."),
        in_physical(
            Mount,
            &kind::CONFIG_MAP,
            &["get", "list", "watch", "create", "patch", "delete"],
            "Copies of ConfigMaps that pods name.",
        ),
        in_physical(
            Mount,
            &kind::SECRET,
            &["get", "list", "watch", "create", "patch", "delete"],
            "Copies of Secrets that pods name, and their tokens.",
        ),
        in_physical(
            Mount,
            &kind::SERVICE,
            &["get", "list", "watch", "create", "patch", "delete"],
            "Copies of Services.",
        ),
        in_physical(
            Mount,
            &kind::PERSISTENT_VOLUME_CLAIM,
            &["get", "list", "watch", "create", "patch", "delete"],
            "Copies of claims that pods name.",
        ),
        in_physical(
            Everywhere,
            &kind::PERSISTENT_VOLUME,
            &["get", "list", "watch", "create", "patch", "delete"],
            "Copies of the volumes of these claims; others are never written.",
        ),
        in_physical(
            Everywhere,
            &kind::STORAGE_CLASS,
            &["list", "watch"],
            "Which classes exist, and whether their volumes can grow.",
        ),
        in_physical(Mount, &kind::SERVICE_ACCOUNT, &["create"], "The copies' ServiceAccount, which has no rights."),
        in_physical(
            Mount,
            &kind::SERVICE_ACCOUNT,
            &["get", "delete"],
            "Check that it exists; delete it with the binding.",
        )
        .only(&[keys::POD_SERVICE_ACCOUNT]),
        in_physical(Mount, &kind::RESOURCE_QUOTA, &["list", "watch", "create"], "With guard.quota."),
        in_physical(Mount, &kind::RESOURCE_QUOTA, &["get", "patch", "delete"], "Ours alone.").only(&[keys::QUOTA]),
        in_physical(Mount, &kind::NETWORK_POLICY, &["list", "watch", "create"], "With guard.networkPolicy."),
        in_physical(Mount, &kind::NETWORK_POLICY, &["get", "patch", "delete"], "Ours alone.")
            .only(&[keys::NETWORK_POLICY]),
    ]
};

#[cfg(test)]
mod tests;
