//! The rules in force on one proxy. Must not act on a request, only say which fault applies.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::fault::{Fault, Moment};
use super::request_info::{RequestInfo, Requests};

/// Rules, oldest first.
pub(crate) struct Rules {
    active: Mutex<Vec<Rule>>,
    /// rules --changed--> requests and streams that wait
    changed_tx: watch::Sender<u64>,
}

struct Rule {
    id: u64,
    fault: Fault,
    requests: Requests,
    /// Requests it selected so far.
    seen: u32,
    hits: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self { active: Mutex::default(), changed_tx: watch::Sender::new(0) }
    }
}

impl Rules {
    /// Adds a rule; returns its number.
    pub(crate) fn add(&self, fault: Fault, requests: Requests) -> u64 {
        let mut active = self.active();
        let id = *self.changed_tx.borrow() + 1;
        active.push(Rule { id, fault, requests, seen: 0, hits: 0 });
        self.changed_tx.send_replace(id);
        id
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut active = self.active();
        active.retain(|rule| rule.id != id);
        self.changed_tx.send_modify(|changes| *changes += 1);
    }

    pub(crate) fn hits(&self, id: u64) -> u32 {
        self.active().iter().find(|rule| rule.id == id).map_or(0, |rule| rule.hits)
    }

    /// The fault that applies to this request now. It counts as a hit.
    pub(crate) fn hit(&self, info: &RequestInfo, moment: Moment) -> Option<Fault> {
        let mut active = self.active();
        let selects = |rule: &&mut Rule| rule.fault.applies_at(moment) && rule.requests.contain(info);
        for rule in active.iter_mut().filter(selects) {
            rule.seen = rule.seen.saturating_add(1);
            let left = rule.requests.times.is_none_or(|times| rule.hits < times);
            if rule.seen > rule.requests.skip && left {
                rule.hits += 1;
                tracing::debug!(%info, fault = %rule.fault, "fault injected");
                return Some(rule.fault.clone());
            }
        }
        None
    }

    /// Whether a request that a freeze has hit still has to wait.
    pub(crate) fn freezes_request(&self, info: &RequestInfo) -> bool {
        self.active().iter().any(|rule| rule.fault == Fault::Freeze && rule.requests.contain(info))
    }

    /// Whether nothing may pass on a stream at this moment. Rules with a count apply to new requests only.
    pub(crate) fn freezes_stream(&self, info: &RequestInfo) -> bool {
        let mut active = self.active();
        let selects = |rule: &&mut Rule| {
            matches!(rule.fault, Fault::Freeze | Fault::HeadOnly)
                && rule.requests.counts_nothing()
                && rule.requests.contain(info)
        };
        active.iter_mut().find(selects).map(|rule| rule.hits += 1).is_some()
    }

    /// Changes when the rules do.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed_tx.subscribe()
    }

    fn active(&self) -> MutexGuard<'_, Vec<Rule>> {
        // Nothing panics while it holds the lock.
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
