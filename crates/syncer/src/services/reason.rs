//! What users are told on a Service, as events: why it has no copy, or why its copy is not what it says. Decides nothing.

use tapestry_domain::services::Unfit;
use tapestry_engine::{Now, Reason as _, reasons};

use super::{Id, Services};
use crate::events::Event;

reasons! {
    /// The reasons of events on Services. `docs/guide/services.md` explains each.
    pub(crate) enum ServiceReason {
        /// It has `externalIPs`.
        ExternalIPsRefused,
        /// It has no selector.
        NoSelector,
        /// Both names that its copy could have are taken by Services that are not ours.
        CopyNameTaken,
        /// The physical cluster refuses the copy.
        CopyRefused,
        /// The physical cluster refuses what changed; the copy stays as it is.
        CopyNotUpdated,
        /// Another client keeps changing the copy.
        CopyContested,
        /// Another client keeps removing the addresses of our load balancer.
        AddressesContested,
    }
}

/// What users have to be told.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notice(pub(super) ServiceReason, pub(super) String);

impl ServiceReason {
    pub(super) fn of(unfit: Unfit) -> Self {
        match unfit {
            Unfit::ExternalIps => Self::ExternalIPsRefused,
            Unfit::NoSelector => Self::NoSelector,
        }
    }

    /// With what it means, in these words where the cluster says it.
    pub(super) fn notice(self, said: &str) -> Notice {
        let message = match self {
            Self::ExternalIPsRefused | Self::NoSelector => said.to_owned(),
            Self::CopyNameTaken => format!(
                "Service {said} in the mount namespace is not ours, so this Service has no copy in the physical cluster: delete that one"
            ),
            Self::CopyRefused => format!("the physical cluster refused the copy of this Service: {said}"),
            Self::CopyNotUpdated => {
                format!("the physical cluster refused the change of this Service, its copy stays as it is: {said}")
            }
            Self::CopyContested => {
                "another client keeps changing the copy in the physical cluster; it is left as it is \
                                    for ten minutes, and then restored"
                    .to_owned()
            }
            Self::AddressesContested => {
                "another client keeps removing the addresses of the physical cluster's load balancer \
                                         from the status; they are added again in ten minutes"
                    .to_owned()
            }
        };
        Notice(self, message)
    }
}

impl Services {
    /// The event that tells it, on the Service.
    pub(crate) fn event(&self, id: &Id, notice: Option<&Notice>, now: Now) -> Option<Event> {
        let Notice(reason, message) = notice?;
        Event::about_service(id, &self.source(id)?.uid, reason.as_str(), message, now)
    }
}
