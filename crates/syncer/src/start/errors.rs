//! Why a syncer cannot start or go on, for people: what, why, and what to do about it. Never quotes a credential.

use tapestry_api::Invalid;
use tapestry_cluster::Name;
use tapestry_cluster::connect::ConnectError;
use tapestry_engine::tasks::TaskEnded;

/// The rule for names, as a hint.
pub const NAMES: &str = "names are 1 to 253 lower-case letters, digits, '-' and '.'";

/// Why a syncer cannot start; a user has to fix each of these.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The user gave an invalid name.
    #[error("{0}")]
    BadName(#[from] tapestry_cluster::object::BadName),
    /// The virtual cluster does not answer, or not as an API server.
    #[error("the virtual cluster cannot be used")]
    ConnectVirtual(#[source] ConnectError),
    /// The physical cluster's kubeconfig is missing or refused.
    #[error("the physical cluster cannot be used")]
    ConnectPhysical(#[source] ConnectError),
    /// An object that must be there cannot be read.
    #[error("cannot read {what}: {why}")]
    ReadObject {
        /// Which one.
        what: String,
        /// What the API server said.
        why: String,
    },
    /// The Secret with the kubeconfig cannot be read.
    #[error("cannot read {what}: {why}")]
    ReadSecret {
        /// Which one.
        what: String,
        /// What the API server said, or what is missing in it.
        why: String,
    },
    /// An object that must be there may not be read.
    #[error("cannot read {what}: {why}")]
    Denied {
        /// Which one.
        what: String,
        /// What the API server said.
        why: String,
    },
    /// The virtual cluster did not answer when it was asked for an object.
    #[error("cannot read {what}: {why}")]
    Unanswered {
        /// Which one.
        what: String,
        /// What was heard instead.
        why: String,
    },
    /// The binding says something that cannot be obeyed.
    #[error("ClusterBinding {name} is invalid: {why}")]
    InvalidBinding {
        /// Its name.
        name: String,
        /// What to change.
        why: Invalid,
    },
    /// Another binding has taken the name: another origin.
    #[error("ClusterBinding {0} was deleted, and another one was created under its name")]
    Replaced(Name),
    /// It was told to stop before it had found its binding.
    #[error("stopped before the binding was found")]
    Cancelled,
}

impl StartError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::BadName(_) => NAMES,
            Self::ConnectVirtual(ConnectError::Refused(refused))
            | Self::ConnectPhysical(ConnectError::Refused(refused)) => refused.hint(),
            Self::ConnectVirtual(_) | Self::Unanswered { .. } => {
                "check --virtual-kubeconfig, and that its API server answers"
            }
            Self::ConnectPhysical(_) => "check the kubeconfig in the Secret that the binding's secretRef names",
            Self::ReadObject { .. } => {
                "check that the object exists and that the syncer's ServiceAccount, or your user for a command, may get it"
            }
            Self::ReadSecret { .. } => {
                "check that the Secret exists and has the key `kubeconfig`, and that the syncer's ServiceAccount, or your user for a command, may get it"
            }
            Self::Denied { .. } => "grant the syncer's account this right (deploy/rbac/virtual.yaml)",
            Self::InvalidBinding { .. } => "edit the binding as the message says",
            Self::Cancelled => "start it again",
            Self::Replaced(_) => "start the syncer again to serve the new binding; a Deployment does so by itself",
        }
    }

    /// `PascalCase`, for the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::BadName(_) | Self::ReadObject { .. } | Self::ReadSecret { .. } | Self::Denied { .. } => {
                "KubeconfigUnusable"
            }
            Self::ConnectVirtual(ConnectError::Unreachable(_)) | Self::Unanswered { .. } => "VirtualClusterSilent",
            Self::ConnectVirtual(error) | Self::ConnectPhysical(error) => error.reason(),
            Self::InvalidBinding { why, .. } => why.reason(),
            Self::Replaced(_) => "BindingReplaced",
            Self::Cancelled => "Stopped",
        }
    }

    /// What is wrong, why, and what to do about it.
    pub(crate) fn told(&self) -> String {
        let cause = std::error::Error::source(self).map_or(String::new(), |cause| format!(": {cause}"));
        format!("{self}{cause}; {}", self.hint())
    }

    /// What is wrong with the kubeconfig in the Secret, and what to do about it.
    pub(crate) fn tell_kubeconfig(&self) -> String {
        let why = match self {
            Self::ConnectPhysical(ConnectError::InvalidKubeconfig(bad)) => bad.to_string(),
            Self::ConnectPhysical(error) => error.to_string(),
            other => other.to_string(),
        };
        format!("{why}; {}", self.hint())
    }
}

/// Why a syncer ended although it was not asked to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A watch, a probe or the election is not there any more.
    #[error("the syncer cannot continue")]
    TaskEnded(#[from] TaskEnded),
    /// What it served is not there any more.
    #[error(transparent)]
    Start(StartError),
}

impl RunError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::TaskEnded(_) => "start it again; if it recurs, report it with its log",
            Self::Start(error) => error.hint(),
        }
    }
}
