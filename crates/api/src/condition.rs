//! Conditions: the status that every one has, and those of a binding. Who writes which is in the syncer; decides nothing.

use std::fmt;

/// The status of any condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "Kubernetes defines the three")]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    /// As objects have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    /// What an object says. Anything else than true or false says nothing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let known = [Self::True, Self::False].into_iter().find(|status| status.as_str() == text);
        known.unwrap_or(Self::Unknown)
    }
}

/// A condition of a `ClusterBinding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindingCondition {
    /// Whether the physical cluster is connected.
    Connected,
    /// Whether everything works for the binding.
    Ready,
    /// Whether it is known which policies there are. Absent until that is in question for the first time.
    PoliciesKnown,
    /// Whether the binding's guards are in force. Absent until that is in question for the first time.
    GuardsInForce,
    /// Whether the mass-delete breaker holds pods back. Absent while it does not.
    BreakerTripped,
    /// Whether a process can lead. Absent until none can for the first time.
    LeaderElected,
    /// Whether the Leases of its nodes may be renewed. Absent until they may not for the first time.
    LeasesRenewed,
    /// Whether the kubeconfig in its Secret is the one in use. Absent until it is not for the first time.
    KubeconfigCurrent,
}

impl BindingCondition {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Connected,
        Self::Ready,
        Self::PoliciesKnown,
        Self::GuardsInForce,
        Self::BreakerTripped,
        Self::LeaderElected,
        Self::LeasesRenewed,
        Self::KubeconfigCurrent,
    ];

    /// Its `type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "Connected",
            Self::Ready => "Ready",
            Self::PoliciesKnown => "PoliciesKnown",
            Self::GuardsInForce => "GuardsInForce",
            Self::BreakerTripped => "BreakerTripped",
            Self::LeaderElected => "LeaderElected",
            Self::LeasesRenewed => "LeasesRenewed",
            Self::KubeconfigCurrent => "KubeconfigCurrent",
        }
    }

    /// The condition of this `type`; `None` for one that we do not write.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|condition| condition.as_str() == text)
    }

    /// Whether this status of it means that something is wrong.
    #[must_use]
    pub fn is_trouble(self, status: Status) -> bool {
        match self {
            Self::BreakerTripped => status == Status::True,
            Self::Connected
            | Self::Ready
            | Self::PoliciesKnown
            | Self::GuardsInForce
            | Self::LeaderElected
            | Self::LeasesRenewed
            | Self::KubeconfigCurrent => status != Status::True,
        }
    }
}

impl fmt::Display for BindingCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reason of condition `Ready` of a binding that is being deleted together with the definition of bindings.
pub const DEFINITION_DELETED: &str = "DefinitionDeleted";

/// Reason of condition `Ready` of a binding whose deletion its syncer carries out.
pub const DELETING: &str = "Deleting";
