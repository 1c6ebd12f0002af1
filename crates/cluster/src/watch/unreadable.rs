//! Counts the objects of one watch that cannot be fully read, as they come, change and go. Decides nothing about them.

use std::collections::HashMap;

use prometheus_client::metrics::gauge::Gauge;
use serde::Deserialize;

use crate::feed::Epoch;

/// Those of one watch. Subtracts its count from the gauge when the watch ends.
pub(super) struct Unreadable {
    gauge: Gauge,
    /// By UID, with the list that last held each.
    seen: HashMap<Box<str>, Epoch>,
}

impl Unreadable {
    pub(super) fn new(gauge: Gauge) -> Self {
        Self { gauge, seen: HashMap::new() }
    }

    /// An object exists, and can be fully read or not.
    pub(super) fn put(&mut self, uid: &str, unreadable: bool, epoch: Epoch) {
        if !unreadable {
            self.lose(uid);
        } else if self.seen.insert(uid.into(), epoch).is_none() {
            self.gauge.inc();
        }
    }

    /// Like [`Self::put`], for an object that could not be decoded: by its UID if that can be read, else by its position.
    pub(super) fn put_bad(&mut self, named: &Named, epoch: Epoch) {
        self.put(&named.id(), true, epoch);
    }

    /// An object left the watch.
    pub(super) fn lose(&mut self, uid: &str) {
        if self.seen.remove(uid).is_some() {
            self.gauge.dec();
        }
    }

    /// A list is complete: what was not in it is gone.
    pub(super) fn listed(&mut self, epoch: Epoch) {
        let before = self.seen.len();
        self.seen.retain(|_, last| *last >= epoch);
        self.gauge.dec_by(number(before - self.seen.len()));
    }
}

impl Drop for Unreadable {
    fn drop(&mut self) {
        self.gauge.dec_by(number(self.seen.len()));
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What we read of an object that cannot be decoded, for the log and for the count.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Named {
    pub(super) metadata: NamedBy,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct NamedBy {
    pub(super) namespace: String,
    pub(super) name: String,
    uid: String,
}

impl Named {
    fn id(&self) -> String {
        let NamedBy { namespace, name, uid } = &self.metadata;
        if uid.is_empty() { format!("{namespace}/{name}") } else { uid.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauge_follows_what_can_be_read_what_is_deleted_and_the_end_of_the_watch() {
        let gauge = Gauge::default();
        let mut watch = Unreadable::new(gauge.clone());
        let mut other = Unreadable::new(gauge.clone());
        other.put("z", true, Epoch(1));
        for uid in ["a", "b", "c", "c"] {
            watch.put(uid, true, Epoch(1));
        }
        assert_eq!(gauge.get(), 4);
        watch.put("a", false, Epoch(1));
        watch.lose("b");
        watch.lose("never seen");
        assert_eq!(gauge.get(), 2);
        watch.put("d", true, Epoch(2));
        watch.listed(Epoch(2));
        assert_eq!(gauge.get(), 2, "c was not in the list");
        drop(watch);
        assert_eq!(gauge.get(), 1, "the other watch goes on");
    }
}
