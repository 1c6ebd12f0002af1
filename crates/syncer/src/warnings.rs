//! Warning events of the physical cluster about copies, shown on the virtual pods. Watches the warnings in the mount namespace; writes
//! events through `events`. Keeps no warning but a few that came before their copy, and is never needed for correctness.
//!
//! Each occurrence is told once, by this rule: what is there when a process first lists the warnings is history; after that, what
//! is newer than all versions that were seen before the present list is news. So a restart tells nothing again, a watch that starts over tells
//! only what happened in its gap, and a process that follows moves on with the leader without telling anything. A warning that occurs
//! while no process leads is told when it occurs again. Two processes that tell the same occurrence write an event of the same name,
//! which the API server takes once.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use jiff::Timestamp;
use serde::Deserialize;
use tapestry_cluster::feed::{Change, Epoch, Row};
use tapestry_cluster::{Rv, Uid};
use tapestry_domain::shape::Text;
use tapestry_engine::{Dirty, Now};

use crate::events::Event;
use crate::json::{Meta, fingerprint};
use crate::pair::{Key, Pair};

/// A pod is told of the same reason once in this time.
const ONCE_IN: Duration = Duration::from_mins(5);
/// So many warnings are told of all pods of a binding within a minute.
const MOST_A_MINUTE: usize = 100;
const MINUTE: Duration = Duration::from_mins(1);
/// So many warnings wait for their copy to be seen, and for so long: two watches have no common order.
const EARLY: usize = 64;
const EARLY_FOR: Duration = Duration::from_secs(30);
/// As much of a reason and a message as is carried; what another client writes there has no limit of its own.
const LONGEST_REASON: usize = 128;
const LONGEST_MESSAGE: usize = 1000;

/// A warning about a physical pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Warning {
    uid: Uid,
    rv: Rv,
    /// The UID of the pod that it is about.
    pod: Uid,
    pub(crate) reason: Box<str>,
    pub(crate) message: Box<str>,
    /// How often it has occurred.
    pub(crate) count: u32,
    /// When it first did, by the physical cluster.
    pub(crate) first: Option<Timestamp>,
}

impl Row for Warning {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        // Events go without a deletionTimestamp, and what becomes of them means nothing.
        false
    }
}

/// An event as core/v1 has it, also one that was written as events.k8s.io/v1.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventJson<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    involved_object: About<'a>,
    #[serde(borrow, default, rename = "type")]
    urgency: Option<Text<'a>>,
    #[serde(borrow, default)]
    reason: Option<Text<'a>>,
    #[serde(borrow, default)]
    message: Option<Text<'a>>,
    #[serde(default)]
    count: Option<u32>,
    #[serde(default)]
    series: Option<Series>,
    #[serde(borrow, default)]
    first_timestamp: Option<Text<'a>>,
    #[serde(borrow, default)]
    event_time: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct About<'a> {
    #[serde(borrow, default)]
    kind: Option<Text<'a>>,
    #[serde(default)]
    uid: Option<Uid>,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    count: Option<u32>,
}

impl Warning {
    /// Decodes a warning about a pod; `None` for any other event.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let event: EventJson<'_> = serde_json::from_slice(json)?;
        let about = event.involved_object;
        let warns = event.urgency.as_deref() == Some("Warning") && about.kind.as_deref() == Some("Pod");
        let Some(pod) = about.uid.filter(|uid| warns && !uid.as_str().is_empty()) else { return Ok(None) };
        let cut = |text: Option<Text<'_>>, most: usize| {
            text.as_deref().unwrap_or_default().chars().take(most).collect::<String>().into_boxed_str()
        };
        let first = event.first_timestamp.or(event.event_time);
        Ok(Some(Self {
            uid: event.metadata.uid,
            rv: event.metadata.resource_version,
            pod,
            reason: cut(event.reason, LONGEST_REASON),
            message: cut(event.message, LONGEST_MESSAGE),
            count: event.series.and_then(|series| series.count).or(event.count).unwrap_or(1).max(1),
            first: first.as_deref().and_then(|first| first.parse().ok()),
        }))
    }

    /// The same in every process that has seen this occurrence.
    pub(crate) fn mark(&self) -> (&str, Rv) {
        (self.uid.as_str(), self.rv)
    }
}

/// What is known of warnings.
#[derive(Default)]
pub(crate) struct Warnings {
    /// Whether those that were there before us have been listed.
    listed: bool,
    epoch: Epoch,
    /// What an earlier list of the watch, or the watch after it, has shown.
    floor: Rv,
    /// The latest version that was shown.
    latest: Rv,
    /// Those whose pod was not known yet, with the steady time when they came.
    early: VecDeque<(Duration, Warning)>,
    /// When a pod was last told of a reason, by the fingerprint of both; at most what is told within [`ONCE_IN`].
    told: HashMap<u64, Duration, RandomState>,
    /// When warnings were told within the last minute.
    recent: VecDeque<Duration>,
}

impl Warnings {
    /// What is news.
    fn observe(&mut self, change: Change<Warning>) -> Option<Warning> {
        match change {
            Change::Put(row, epoch) => {
                if epoch != self.epoch {
                    // A list shows what was told before it once more, and in no order.
                    (self.epoch, self.floor) = (epoch, self.latest);
                }
                self.latest = self.latest.max(row.rv);
                (self.listed && row.rv > self.floor).then_some(row)
            }
            Change::Listed(_) => {
                self.listed = true;
                None
            }
            Change::Gone { .. } | Change::Unserved | Change::Reached(_) => None,
        }
    }

    /// Whether a pod may be told of a reason now. It then counts as told.
    fn may_tell(&mut self, vpod: &Uid, reason: &str, now: Now) -> bool {
        let now = now.steady;
        while self.recent.front().is_some_and(|at| *at + MINUTE <= now) {
            self.recent.pop_front();
            self.told.retain(|_, at| *at + ONCE_IN > now);
        }
        let what = fingerprint((vpod.as_str(), reason));
        if self.recent.len() >= MOST_A_MINUTE || self.told.get(&what).is_some_and(|at| *at + ONCE_IN > now) {
            return false;
        }
        self.recent.push_back(now);
        self.told.insert(what, now);
        true
    }

    fn keep_early(&mut self, warning: Warning, now: Now) {
        if self.early.len() >= EARLY {
            self.early.pop_front();
        }
        self.early.push_back((now.steady, warning));
    }
}

impl Pair {
    pub(crate) fn see_warning(&mut self, change: Change<Warning>, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(warning) = self.warnings.observe(change)
            && let Some(early) = self.tell_warning(warning, now, dirty)
        {
            self.warnings.keep_early(early, now);
        }
    }

    /// Tells what came before its copy, if that is known by now.
    pub(crate) fn tell_early_warnings(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if self.warnings.early.is_empty() {
            return;
        }
        for (at, warning) in std::mem::take(&mut self.warnings.early) {
            let early = if now.steady < at + EARLY_FOR { self.tell_warning(warning, now, dirty) } else { None };
            self.warnings.early.extend(early.map(|early| (at, early)));
        }
    }

    /// Tells a warning about a copy on its virtual pod. One that is about a pod which is not known yet is given back.
    fn tell_warning(&mut self, warning: Warning, now: Now, dirty: &mut Dirty<Key>) -> Option<Warning> {
        if !self.pods.knows_physical(&warning.pod) {
            return Some(warning);
        }
        let vpod = self.pods.vpod_of(&warning.pod)?;
        if self.warnings.may_tell(&vpod.uid, &warning.reason, now) {
            let vpod = self.pods.vpod_of(&warning.pod)?;
            self.events.add(Event::of_copy(vpod, &warning, now), dirty);
        }
        None
    }
}

#[cfg(test)]
mod tests;
