//! Copies that users of the physical cluster delete there one by one, each seen by the watch: each end was asked for, so the breaker
//! does not weigh it (ADR 12). Many at once are an event on the binding.

use std::collections::VecDeque;
use std::time::Duration;

use tapestry_engine::Now;

use super::{Breaker, FEW, WINDOW};

/// Reason of the event.
pub(crate) const MANY_DELETED: &str = "PhysicalPodsDeleted";

/// When running pods ended because their copies were deleted.
#[derive(Default)]
pub(super) struct DeletedCopies {
    /// In steady time, those of the last minute.
    recent: VecDeque<Duration>,
    told: Option<Duration>,
}

impl Breaker {
    /// A running pod has ended because its copy was deleted in the physical cluster; how many did within a minute, when that is to
    /// be told.
    #[must_use]
    pub(crate) fn count_deleted(&mut self, now: Now) -> Option<usize> {
        let DeletedCopies { recent, told } = &mut self.deleted;
        recent.push_back(now.steady);
        while recent.front().is_some_and(|at| *at + WINDOW < now.steady) {
            recent.pop_front();
        }
        let quiet = told.is_none_or(|told| told + WINDOW <= now.steady);
        let many = Some(recent.len()).filter(|count| *count > FEW && quiet)?;
        *told = Some(now.steady);
        Some(many)
    }
}

/// The message for users.
pub(crate) fn tell_deleted(many: usize, mount: &str) -> String {
    format!(
        "{many} running pods ended within a minute because their copies in namespace {mount} of the physical cluster were deleted there, and more may follow: \
         its audit log says who deletes them; set spec.suspend of the binding to stop lending"
    )
}
