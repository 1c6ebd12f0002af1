//! What a policy's status says: always true, written only when it is not, at most once a second.
//! Several syncers may share a policy: each counts its own nodes, and all derive the rest from the same facts.

mod want;

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use serde_json::{Value, json};
use tapestry_api::{Binding, ResourceLeasingPolicyStatus};
use tapestry_cluster::feed::Row as _;
use tapestry_cluster::{Answer, Refusal, Side, Sub, Target, Uid, Verb, kind};
use tapestry_domain::calendar::Hours;
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use super::{Policies, PolicyRow};
use crate::nodes::Nodes;
use crate::origin::Origin;
use crate::pair::Key;
use crate::terms::steady_at;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// A policy that left the watch: is it gone?
        LookForPolicy,
        /// What it says is not true any more.
        PolicyStatus,
    }
}

/// When each status was last written, so that a burst of nodes is one write.
pub(super) type Written = HashMap<Uid, Duration, RandomState>;

const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// What a status says depends on this, beside the policies themselves.
pub(crate) struct Setting<'a> {
    pub(crate) binding: &'a Binding,
    /// A user deletes the binding on purpose.
    pub(crate) leaving: bool,
    pub(crate) origin: &'a Origin,
    pub(crate) nodes: &'a Nodes,
}

impl Policies {
    /// Looks for a policy that the watch no longer shows, and writes the status of one that is there.
    pub(crate) fn plan_status(&self, side: Side, uid: &Uid, setting: &Setting<'_>, now: Now) -> Plan<Why> {
        let Some(row) = self.get(side, uid).filter(|_| !self.serving(side).unreadable()) else { return Plan::Rest };
        if let Some(doubt) = self.doubted[side as usize].get(uid) {
            if doubt.gone {
                // Its kind is asked about: `plan_serving`.
                return Plan::Rest;
            }
            let target = Target::cluster(side, &kind::POLICY, row.name().clone()).uid(uid);
            return Why::LookForPolicy.call(target, Verb::Get);
        }
        let share = setting.share_name(side);
        let concerns = row.names(setting.binding) || row.status.clusters.iter().any(|known| known.name == share);
        if row.deleting || !concerns {
            return Plan::Rest;
        }
        // Only what every syncer knows: what an invalid one said before, a restarted one has forgotten.
        let hours = row.parsed().ok().map(|policy| row.hours_at(policy, now.wall));
        let wanted = self.want_status(side, row, setting, hours, now);
        if same(&wanted, &row.status) {
            return self.next_edge(hours, now).map_or(Plan::Rest, Plan::Wait);
        }
        let next = self.status.get(uid).map(|at| *at + AT_MOST_EVERY);
        if let Some(next) = next.filter(|next| *next > now.steady) {
            return Plan::Wait(next);
        }
        let target = Target::cluster(side, &kind::POLICY, row.name().clone()).uid(uid).rv(row.rv());
        let verb = Verb::Merge(Sub::Status, json!({"status": render(&wanted, &row.status)}));
        Why::PolicyStatus.call(target, verb)
    }

    /// When the calendar next changes something: which policy holds may change at any policy's edge.
    fn next_edge(&self, hours: Option<Hours>, now: Now) -> Option<Duration> {
        let until = hours.and_then(|hours| hours.until).into_iter().chain(self.until).min()?;
        (now.wall < until && until < Timestamp::MAX).then(|| steady_at(until, now))
    }

    /// Folds in how a call ended; says whether what is lent may be something else now, on every node.
    #[must_use]
    pub(crate) fn settle_status(
        &mut self,
        side: Side,
        uid: &Uid,
        why: Why,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) -> bool {
        match (why, done) {
            (Why::LookForPolicy, done) => self.settle_look(side, uid, done, now, dirty),
            (Why::PolicyStatus, Ok(answer)) => {
                let Ok(Some(row)) = PolicyRow::decode(&answer.object) else { return false };
                self.status.insert(uid.clone(), now.steady);
                self.put(side, row, None, now, dirty)
            }
            (Why::PolicyStatus, Err(_)) => false,
        }
    }

    /// The policy that left the watch was looked for.
    fn settle_look(
        &mut self,
        side: Side,
        uid: &Uid,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) -> bool {
        let known = self.get(side, uid).map(PolicyRow::rv);
        match (done, known) {
            (Ok(answer), known) => {
                let Ok(Some(row)) = PolicyRow::decode(&answer.object) else { return false };
                if let Some(rv) = known.filter(|_| row.uid() != uid) {
                    // Another one has the name by now, so the one we asked for is gone.
                    self.lose(side, uid, rv);
                }
                self.put(side, row, None, now, dirty)
            }
            (Err(Refusal::Gone), Some(rv)) => {
                self.doubt(side, uid, rv, true, now, dirty);
                false
            }
            (Err(_), _) => false,
        }
    }
}

impl Setting<'_> {
    /// How this syncer's entry is called. In the physical cluster bindings of several virtual clusters meet.
    fn share_name(&self, side: Side) -> String {
        match side {
            Side::Virtual => self.binding.name.to_string(),
            Side::Physical => format!("{}@{}", self.binding.name, self.origin.label),
        }
    }
}

/// The same but for the time at which it was last written; the order of conditions says nothing.
fn same(wanted: &ResourceLeasingPolicyStatus, there: &ResourceLeasingPolicyStatus) -> bool {
    let sorted = |status: &ResourceLeasingPolicyStatus| {
        let mut status = ResourceLeasingPolicyStatus { last_applied_time: None, ..status.clone() };
        status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        status.clusters.sort_by(|a, b| a.name.cmp(&b.name));
        status
    };
    sorted(wanted) == sorted(there)
}

/// The whole status; what is no longer said is taken away.
fn render(wanted: &ResourceLeasingPolicyStatus, there: &ResourceLeasingPolicyStatus) -> Value {
    let mut value = json!(wanted);
    if there.next_transition_time.is_some() && wanted.next_transition_time.is_none() {
        value["nextTransitionTime"] = Value::Null;
    }
    // An empty list is left out by serde, and left out of a patch means untouched.
    value["clusters"] = json!(wanted.clusters);
    value
}
