//! Copies that users of the physical cluster delete there one by one, each seen by the watch: each end was asked for, so the breaker
//! does not weigh it (ADR 12). Many at once are told on the binding.

use std::collections::VecDeque;
use std::time::Duration;

use tapestry_engine::{Dirty, Now};

use super::{FEW, WINDOW};
use crate::events::Event;
use crate::pair::{Key, Pair};

const MANY: &str = "PhysicalPodsDeleted";

/// When running pods ended because their copies were deleted.
#[derive(Default)]
pub(super) struct DeletedCopies {
    /// In steady time, those of the last minute.
    recent: VecDeque<Duration>,
    told: Option<Duration>,
}

impl DeletedCopies {
    /// Counts one more; how many there were within a minute, when that is to be told.
    fn count(&mut self, now: Now) -> Option<usize> {
        self.recent.push_back(now.steady);
        while self.recent.front().is_some_and(|at| *at + WINDOW < now.steady) {
            self.recent.pop_front();
        }
        let quiet = self.told.is_none_or(|told| told + WINDOW <= now.steady);
        let many = Some(self.recent.len()).filter(|count| *count > FEW && quiet)?;
        self.told = Some(now.steady);
        Some(many)
    }
}

impl Pair {
    /// A running pod has ended because its copy was deleted in the physical cluster.
    pub(crate) fn count_deleted_copy(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        let Some(many) = self.breaker.deleted.count(now) else { return };
        let message = format!(
            "{many} running pods ended within a minute because their copies in namespace {} of the physical cluster were deleted there, and more may follow: \
             its audit log says who deletes them; set spec.suspend of the binding to stop lending",
            self.home.mount
        );
        let told = self.bound.as_ref().and_then(|bound| Event::about_binding(&bound.binding, MANY, &message, now));
        self.events.add(told, dirty);
    }
}
