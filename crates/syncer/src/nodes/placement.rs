//! How long new pods are kept off a virtual node on which one could not be placed: a taint with a time and the number of failures in a
//! row. The taint itself is the memory: a process that starts reads both from it, and takes it off when its time has come.
//! Does not decide that a placement failed.

use std::time::Duration;

use jiff::Timestamp;
use tapestry_api::keys;
use tapestry_cluster::Name;
use tapestry_engine::{Dirty, Now};

use super::Nodes;
use super::row::{NO_SCHEDULE, Taint, VNode};
use crate::pair::{Key, Pair};

/// How long pods are kept off a node after the first failure; doubles up to about half an hour.
const KEEP_AWAY: Duration = Duration::from_mins(1);
/// More failures than this do not make it longer: 2^5 minutes.
const MOST: u32 = 6;
/// After this long without trouble the first time counts again.
const CALM: Duration = Duration::from_mins(30);

/// How often a pod could not be placed recently, and until when no other one is wanted.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Placement {
    /// In a row; a copy that found its node ends it.
    failures: u32,
    away: Option<Away>,
}

/// Others are kept away.
#[derive(Debug, Clone, Copy)]
struct Away {
    /// What the taint says.
    since: Timestamp,
    failures: u32,
    /// In steady time.
    until: Duration,
}

/// How long after so many failures in a row.
fn back_off(failures: u32) -> Duration {
    KEEP_AWAY * 2u32.pow(failures.clamp(1, MOST) - 1)
}

impl Placement {
    /// A pod could not be placed. Those that fail while others are kept away belong to the same failure.
    fn fail(&mut self, now: Now) {
        let calm = self.away.is_none_or(|away| away.until + CALM < now.steady);
        if self.until(now).is_some() {
            return;
        }
        let failures = if calm { 1 } else { (self.failures + 1).min(MOST) };
        let until = now.steady + back_off(failures);
        *self = Self { failures, away: Some(Away { since: now.wall, failures, until }) };
    }

    /// A pod was placed; one that was placed while others are kept away was on its way before.
    fn succeed(&mut self, now: Now) {
        if self.until(now).is_none() {
            self.failures = 0;
        }
    }

    /// What the taint of an earlier process says. A time that is still to come can only be meant to gain time.
    fn adopt(&mut self, taint: &Taint, now: Now) {
        if self.away.is_some() {
            return;
        }
        let failures = taint.value.parse().unwrap_or(1).clamp(1, MOST);
        let since = taint.added.as_ref().and_then(|added| added.parse().ok()).unwrap_or(now.wall).min(now.wall);
        let age = Duration::try_from(now.wall.duration_since(since)).unwrap_or_default();
        let until = (now.steady + back_off(failures)).saturating_sub(age);
        *self = Self { failures, away: Some(Away { since, failures, until }) };
    }

    /// Until when others are kept away, in steady time.
    pub(super) fn until(&self, now: Now) -> Option<Duration> {
        self.away.map(|away| away.until).filter(|until| *until > now.steady)
    }

    /// The taint that keeps them away.
    pub(super) fn taint(&self, now: Now) -> Option<Taint> {
        let Away { since, failures, .. } = self.away.filter(|_| self.until(now).is_some())?;
        let taint = Taint::since(keys::TAINT_PLACEMENT_FAILED, NO_SCHEDULE, since);
        Some(Taint { value: failures.to_string(), ..taint })
    }
}

impl Nodes {
    /// A copy found its node.
    pub(crate) fn note_placed(&mut self, physical: &Name, now: Now) {
        if let Some(case) = self.cases.get_mut(physical) {
            case.placement.succeed(now);
        }
    }

    /// What a virtual node says of a failure before this process knew it.
    pub(super) fn adopt_placement(&mut self, vnode: &VNode, now: Now) {
        let ours = |taint: &&Taint| taint.key == keys::TAINT_PLACEMENT_FAILED && taint.effect == NO_SCHEDULE;
        if let Some(taint) = vnode.taints.iter().find(ours) {
            self.cases.entry(vnode.physical.clone()).or_default().placement.adopt(taint, now);
        }
    }
}

impl Pair {
    /// A pod could not be placed on a virtual node: others are kept off it for a while, longer each time.
    pub(crate) fn keep_away(&mut self, vnode: &Name, now: Now, dirty: &mut Dirty<Key>) {
        let Some(physical) = self.nodes.vnode(vnode).map(|vnode| vnode.physical.clone()) else { return };
        self.nodes.cases.entry(physical.clone()).or_default().placement.fail(now);
        dirty.mark(Key::Node(physical));
    }
}

#[cfg(test)]
mod tests;
