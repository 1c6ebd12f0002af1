//! The rules in force on one line. Must not act on a request, only say what strikes it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::asked::{Asked, Requests};
use super::fault::{Fault, Moment};

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
    /// Requests it was about so far.
    seen: u32,
    struck: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self { active: Mutex::default(), changed_tx: watch::Sender::new(0) }
    }
}

impl Rules {
    /// A rule in force from now on; gives its number.
    pub(crate) fn add(&self, fault: Fault, requests: Requests) -> u64 {
        let mut active = self.active();
        let id = *self.changed_tx.borrow() + 1;
        active.push(Rule { id, fault, requests, seen: 0, struck: 0 });
        self.changed_tx.send_replace(id);
        id
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut active = self.active();
        active.retain(|rule| rule.id != id);
        self.changed_tx.send_modify(|changes| *changes += 1);
    }

    pub(crate) fn struck(&self, id: u64) -> u32 {
        self.active().iter().find(|rule| rule.id == id).map_or(0, |rule| rule.struck)
    }

    /// What strikes this request now. It counts as struck.
    pub(crate) fn strike(&self, asked: &Asked, moment: Moment) -> Option<Fault> {
        let mut active = self.active();
        let about = |rule: &&mut Rule| rule.fault.strikes_at(moment) && rule.requests.contain(asked);
        for rule in active.iter_mut().filter(about) {
            rule.seen = rule.seen.saturating_add(1);
            let left = rule.requests.times.is_none_or(|times| rule.struck < times);
            if rule.seen > rule.requests.skip && left {
                rule.struck += 1;
                tracing::debug!(%asked, fault = %rule.fault, "struck");
                return Some(rule.fault.clone());
            }
        }
        None
    }

    /// Whether the request that silence struck has to wait still.
    pub(crate) fn silent(&self, asked: &Asked) -> bool {
        self.active().iter().any(|rule| rule.fault == Fault::Silence && rule.requests.contain(asked))
    }

    /// Whether nothing may pass on a stream at this moment. Rules that count are about new requests only.
    pub(crate) fn silences(&self, asked: &Asked) -> bool {
        let mut active = self.active();
        let about = |rule: &&mut Rule| {
            rule.fault == Fault::Silence && rule.requests.counts_nothing() && rule.requests.contain(asked)
        };
        active.iter_mut().find(about).map(|rule| rule.struck += 1).is_some()
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
