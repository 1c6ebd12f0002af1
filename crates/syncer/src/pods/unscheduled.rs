//! Copies that the scheduler of the physical cluster does not place. After five minutes the copy is deleted and its pod fails, so that
//! its controller can try elsewhere; the virtual node keeps new pods away for a while (`nodes::placement`).
//!
//! Such a copy has never run, so nothing is lost with it: the breaker, which protects what runs, does not weigh these ends (law 1). The
//! evidence is the copy itself: it is deleted under the UID and the version that say it has no node, so a copy that was placed
//! meanwhile stays. While the breaker holds pods back nothing is deleted here either, as its message says.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Sub, Uid, Verb};
use tapestry_domain::shape::Text;
use tapestry_engine::{Dirty, Now, Plan, Reason as _};

use super::case::Case;
use super::digest::render_failed;
use super::plan::{look_for_copy, ppod_target, stamp, vpod_target};
use super::reason::PodReason;
use super::row::{PPod, VPod};
use super::{Pods, Why};
use crate::events::Event;
use crate::pair::{Key, Pair};

/// How long a copy may wait for the physical scheduler.
const PATIENCE: Duration = Duration::from_mins(5);
/// This process has seen it wait for so long: the two clusters may not agree on the time.
const SEEN_WAITING: Duration = Duration::from_mins(1);
/// The taint is on the node before the pod fails and its controller makes another one; a node that cannot be written to delays it
/// by no more than this.
const TAINT_WITHIN: Duration = Duration::from_secs(10);
/// How many characters of the scheduler's message are told.
const WORDS: usize = 600;

/// A copy without a node.
#[derive(Debug)]
pub(super) struct Unscheduled {
    /// When this process first saw it so, in steady time.
    seen: Duration,
    given_up: Option<GivenUp>,
}

/// We deleted the copy.
#[derive(Debug)]
struct GivenUp {
    at: Duration,
    message: Box<str>,
}

impl Case {
    /// Whether we deleted the copy because it was not scheduled.
    pub(super) fn given_up(&self) -> bool {
        self.unscheduled.as_ref().is_some_and(|unscheduled| unscheduled.given_up.is_some())
    }
}

impl Pods {
    /// Whether a copy of ours found its node with this row.
    fn note_unscheduled(&mut self, uid: &Uid, now: Now) -> bool {
        let Some(PPod { node, terminal, ours: Some(copy), .. }) = self.ppods.get(uid) else { return false };
        let waits = node.is_none() && !terminal;
        let Some(case) = self.cases.get_mut(&copy.vpod.uid).filter(|case| !case.given_up()) else { return false };
        if waits {
            case.unscheduled.get_or_insert_with(|| Box::new(Unscheduled { seen: now.steady, given_up: None }));
            return false;
        }
        case.unscheduled.take().is_some() && node.is_some()
    }
}

impl Pair {
    /// A row of a physical pod was put into the table: perhaps a copy waits for its node, or has found it.
    pub(super) fn note_unscheduled(&mut self, uid: &Uid, now: Now) {
        if self.pods.note_unscheduled(uid, now)
            && let Some(node) = self.pods.ppods.get(uid).and_then(|ppod| ppod.node.as_ref())
        {
            self.nodes.note_placed(node, now);
        }
    }

    /// A copy that waits too long for a node is deleted, when there is nothing else to do about it.
    pub(super) fn plan_unscheduled(&self, case: &Case, vpod: &VPod, ppod: &PPod, now: Now) -> Plan<Why> {
        let (Some(unscheduled), Some(copy)) = (&case.unscheduled, &ppod.ours) else { return Plan::Rest };
        let going = vpod.deleting.is_some() || ppod.deleting.or(case.asked).is_some();
        if going || vpod.terminal() || ppod.terminal || ppod.node.is_some() || !copy.intact {
            return Plan::Rest;
        }
        if self.admission_out_of_sync() {
            // That we know less is no reason to end anything. Planned again when all watches deliver.
            return Plan::Rest;
        }
        let born = Timestamp::from_second(copy.born).unwrap_or(now.wall);
        let patient = PATIENCE.saturating_sub(age(born, now));
        let due = (now.steady + patient).max(unscheduled.seen + SEEN_WAITING);
        if now.steady < due {
            return Plan::Wait(due);
        }
        if self.breaker.trip().is_some() {
            // Planned again when it is cleared.
            return Plan::Rest;
        }
        let target = ppod_target(copy).uid(&ppod.uid).rv(ppod.rv);
        Why::NotScheduled.call(target, Verb::Delete { grace: None })
    }

    /// The copy was deleted because it was not scheduled: its pod fails, once that is proven.
    pub(super) fn plan_given_up(&self, case: &Case, vpod: &VPod, now: Now) -> Option<Plan<Why>> {
        let given_up = case.unscheduled.as_ref()?.given_up.as_ref()?;
        if case.ended.is_none() {
            let name = vpod.mapping.as_ref().map(|mapping| &mapping.name).or(case.former.as_ref())?;
            return Some(look_for_copy(case, &self.home.mount, name, now));
        }
        let tainted = self.nodes.vnode(&vpod.node).is_none_or(|vnode| vnode.has_taint(keys::TAINT_PLACEMENT_FAILED));
        let late = given_up.at + TAINT_WITHIN;
        if !tainted && now.steady < late {
            return Some(Plan::Wait(late));
        }
        let status = Value::Object(render_failed(PodReason::PhysicalUnschedulable, &given_up.message, now.wall));
        let patch = json!({"metadata": {"annotations": {keys::LAST_SYNC_TIME: stamp(now)}}, "status": status});
        // There is no way back from an end: only if nothing has changed since (law 2).
        let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid).rv(vpod.rv);
        Some(Why::PhysicalUnschedulable.call(target, Verb::Strategic(Sub::Status, patch)))
    }

    /// The physical cluster has taken the deletion of a copy that was not scheduled.
    pub(super) fn learn_not_scheduled(&mut self, vuid: &Uid, answer: &Answer, now: Now, dirty: &mut Dirty<Key>) {
        self.give_up(vuid, read_message(answer), now, dirty);
    }

    /// A copy is gone that had no node for too long: the answer to its deletion was lost, or another process deleted it.
    pub(super) fn note_unscheduled_end(&mut self, gone: &Uid, vuid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        let (Some(vpod), Some(case), Some(ppod)) =
            (self.pods.vpods.get(vuid), self.pods.cases.get(vuid), self.pods.ppods.get(gone))
        else {
            return;
        };
        let born = ppod.ours.as_ref().and_then(|copy| Timestamp::from_second(copy.born).ok());
        let waited = ppod.node.is_none() && !ppod.terminal && born.is_some_and(|born| age(born, now) >= PATIENCE);
        let runs_on = vpod.deleting.is_some() || vpod.terminal() || case.claimants.iter().any(|uid| uid != gone);
        if waited && !runs_on && !case.given_up() {
            self.give_up(vuid, None, now, dirty);
        }
    }

    fn give_up(&mut self, vuid: &Uid, why: Option<String>, now: Now, dirty: &mut Dirty<Key>) {
        let Some(case) = self.pods.cases.get_mut(vuid) else { return };
        let Some(unscheduled) = &mut case.unscheduled else { return };
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let minutes = PATIENCE.as_secs() / 60;
        let message = format!("the physical cluster did not schedule the pod for {minutes} minutes{why}").into();
        unscheduled.given_up = Some(GivenUp { at: now.steady, message });
        if let Some(vnode) = self.pods.vpods.get(vuid).map(|vpod| vpod.node.clone()) {
            self.keep_away(&vnode, now, dirty);
        }
    }

    /// What is told of a pod that failed so.
    pub(super) fn unscheduled_event(&self, vuid: &Uid, row: &VPod, now: Now) -> Option<Event> {
        let given_up = self.pods.cases.get(vuid)?.unscheduled.as_ref()?.given_up.as_ref()?;
        let message =
            format!("Failed: {}; its controller may create another one, which goes to another node", given_up.message);
        Event::about_vpod(row, PodReason::FailedSchedulingPod.as_str(), &message, now)
    }
}

/// How long ago; a moment that is still to come is now.
fn age(at: Timestamp, now: Now) -> Duration {
    Duration::try_from(now.wall.duration_since(at)).unwrap_or_default()
}

/// Why the scheduler did not place the copy, as it said last.
fn read_message(answer: &Answer) -> Option<String> {
    #[derive(Deserialize)]
    struct Pod<'a> {
        #[serde(borrow)]
        status: Status<'a>,
    }
    #[derive(Deserialize)]
    struct Status<'a> {
        #[serde(borrow, default)]
        conditions: Vec<Condition<'a>>,
    }
    #[derive(Deserialize)]
    struct Condition<'a> {
        #[serde(borrow, rename = "type")]
        kind: Text<'a>,
        #[serde(borrow, default)]
        message: Option<Text<'a>>,
    }
    let Pod { status } = serde_json::from_slice(&answer.object).ok()?;
    let said = status.conditions.into_iter().find(|condition| &*condition.kind == "PodScheduled")?.message?;
    Some(said.chars().take(WORDS).collect()).filter(|said: &String| !said.is_empty())
}

#[cfg(test)]
mod tests;
