//! What a policy's status says: always true, written only when it is not, at most once a second.
//! Several syncers may share a policy: each counts its own nodes, and all derive the rest from the same facts.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use serde_json::{Value, json};
use tapestry_api::policy::{ClusterShare, Phase};
use tapestry_api::{Binding, ResourceLeasingPolicyStatus};
use tapestry_cluster::feed::Row as _;
use tapestry_cluster::{Answer, Refusal, Side, Sub, Target, Uid, Verb, kind};
use tapestry_domain::calendar::Hours;
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use super::PolicyRow;
use crate::bindings::Bound;
use crate::nodes::row::PNode;
use crate::pair::{Key, Pair};
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

/// Conditions that we write; others on the list are somebody else's.
const OURS: [&str; 2] = ["Valid", "Active"];

/// On how many nodes of ours a policy is wanted, on how many it holds, and who holds on the others.
#[derive(Default)]
struct Reach<'a> {
    selected: i64,
    held: i64,
    shadowed_by: Option<&'a str>,
}

impl Pair {
    pub(crate) fn plan_policy(&self, side: Side, uid: &Uid, now: Now) -> Plan<Why> {
        let (Some(row), Some(bound)) = (self.policies.get(side, uid), self.working()) else { return Plan::Rest };
        if self.policies.serving(side).unreadable() {
            return Plan::Rest;
        }
        if let Some(doubt) = self.policies.doubted[side as usize].get(uid) {
            if doubt.gone {
                // Its kind is asked about: `plan_serving`.
                return Plan::Rest;
            }
            let target = Target::cluster(side, &kind::POLICY, row.name().clone()).uid(uid);
            return Why::LookForPolicy.call(target, Verb::Get);
        }
        if row.deleting {
            return Plan::Rest;
        }
        let binding = &bound.binding;
        let share = self.share_name(side, binding);
        if !row.names(binding) && row.status.clusters.iter().all(|known| known.name != share) {
            return Plan::Rest;
        }
        // Only what every syncer knows: what an invalid one said before, a restarted one has forgotten.
        let hours = row.parsed().ok().map(|policy| row.hours_at(policy, now.wall));
        // Who holds may change at any policy's edge.
        let until = hours.and_then(|hours| hours.until).into_iter().chain(self.policies.until).min();
        let until =
            until.filter(|until| now.wall < *until && *until < Timestamp::MAX).map(|until| steady_at(until, now));
        let rest = || until.map_or(Plan::Rest, Plan::Wait);
        let wanted = self.want_status(side, row, binding, share, hours, now);
        if same(&wanted, &row.status) {
            return rest();
        }
        if let Some(next) =
            self.policies.status.get(uid).map(|at| *at + AT_MOST_EVERY).filter(|next| *next > now.steady)
        {
            return Plan::Wait(next);
        }
        let target = Target::cluster(side, &kind::POLICY, row.name().clone()).uid(uid).rv(row.rv());
        let verb = Verb::Merge(Sub::Status, json!({"status": render(&wanted, &row.status)}));
        Why::PolicyStatus.call(target, verb)
    }

    pub(crate) fn settle_policy(
        &mut self,
        side: Side,
        uid: &Uid,
        why: Why,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let known = self.policies.get(side, uid).map(PolicyRow::rv);
        match (done, why, known) {
            (Ok(answer), why, _) => {
                let Ok(Some(row)) = PolicyRow::decode(&answer.object) else { return };
                if why == Why::PolicyStatus {
                    self.policies.status.insert(uid.clone(), now.steady);
                } else if row.uid() != uid
                    && let Some(rv) = known
                {
                    // Another one has the name by now, so the one we asked for is gone.
                    self.lose_policy(side, uid, rv);
                }
                // An answer belongs to no list.
                self.put_policy(side, row, None, now, dirty);
            }
            (Err(Refusal::Gone), Why::LookForPolicy, Some(rv)) => self.doubt_policy(side, uid, rv, true, now, dirty),
            (Err(_), ..) => {}
        }
    }

    /// How this syncer's entry is called. In the physical cluster bindings of several virtual clusters meet.
    fn share_name(&self, side: Side, binding: &Binding) -> String {
        match side {
            Side::Virtual => binding.name.to_string(),
            Side::Physical => format!("{}@{}", binding.name, self.origin.label),
        }
    }

    fn reach<'a>(&'a self, side: Side, row: &PolicyRow, binding: &'a Binding, now: Now) -> Reach<'a> {
        let mut reach = Reach::default();
        let ours = |pnode: &&PNode| binding.nodes.matches(|key| pnode.label(key), pnode.name.as_str());
        for pnode in self.nodes.pnodes().filter(ours) {
            let selects = |policy: &tapestry_api::Policy| {
                policy.nodes.matches(|key| pnode.label(key), pnode.name.as_str()) && row.names(binding)
            };
            if !row.in_force().is_some_and(selects) {
                continue;
            }
            reach.selected += 1;
            match self.policies.holder(side, binding, pnode, now.wall) {
                Some((policy, ..)) if policy.uid == row.uid().as_str() => reach.held += 1,
                Some((policy, ..)) => {
                    let name = policy.name.as_str();
                    reach.shadowed_by = Some(reach.shadowed_by.map_or(name, |known| known.min(name)));
                }
                None => {}
            }
        }
        reach
    }

    fn want_status(
        &self,
        side: Side,
        row: &PolicyRow,
        binding: &Binding,
        share: String,
        hours: Option<Hours>,
        now: Now,
    ) -> ResourceLeasingPolicyStatus {
        let reach = self.reach(side, row, binding, now);
        let mut clusters = row.status.clusters.clone();
        clusters.retain(|known| known.name != share);
        if row.names(binding) && !self.bound.as_ref().is_some_and(Bound::leaving) {
            clusters.push(ClusterShare { name: share, nodes: reach.held });
        }
        clusters.sort_by(|a, b| a.name.cmp(&b.name));
        let nodes: i64 = clusters.iter().map(|known| known.nodes).sum();
        let open = hours.is_some_and(|hours| hours.open);
        let (active, reason, message) = match (row.parsed(), hours) {
            (Err(_), _) => ("False", "Invalid", "an invalid policy is not applied".to_owned()),
            (Ok(_), Some(Hours { open: false, until, .. })) => {
                let opens = until.map_or("and none will open".to_owned(), |at| format!("the next one opens at {at}"));
                ("False", "OutOfTimeWindows", format!("no time window is open, {opens}"))
            }
            (Ok(_), _) if binding.suspend && clusters.len() == 1 => {
                ("False", "Suspended", format!("binding {} is suspended", binding.name))
            }
            (Ok(_), _) if nodes > 0 => match reach.shadowed_by.filter(|_| clusters.len() == 1) {
                Some(other) => {
                    let message = format!(
                        "holds on {nodes} of {} nodes; on others {other} does, which goes first",
                        reach.selected
                    );
                    ("True", "Lending", message)
                }
                None => ("True", "Lending", format!("holds on {nodes} nodes")),
            },
            (Ok(_), _) => match reach.shadowed_by.filter(|_| clusters.len() == 1) {
                Some(other) => {
                    ("False", "Shadowed", format!("on all {} nodes {other} holds, which goes first", reach.selected))
                }
                None => {
                    ("False", "NoNodes", "no node of the cluster is selected by both policy and binding".to_owned())
                }
            },
        };
        let (valid, valid_reason, valid_message) = match row.parsed() {
            Ok(_) => ("True", "Valid", String::new()),
            Err(invalid) => ("False", invalid.reason(), invalid.to_string()),
        };
        let phase = match (row.parsed(), open) {
            (Err(_), _) => Phase::Failed,
            (Ok(_), true) => Phase::Active,
            (Ok(_), false) => Phase::Inactive,
        };
        let condition = |kind: &str, status: &str, reason: &str, message: String| {
            let before = row.status.conditions.iter().find(|known| known.type_ == kind && known.status == status);
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason: reason.to_owned(),
                message,
                observed_generation: Some(row.generation()),
                last_transition_time: before
                    .map_or_else(|| whole_seconds(now), |known| known.last_transition_time.clone()),
            }
        };
        let mut conditions: Vec<_> = row.status.conditions.clone();
        conditions.retain(|known| !OURS.contains(&known.type_.as_str()));
        conditions.push(condition("Valid", valid, valid_reason, valid_message));
        conditions.push(condition("Active", active, reason, message));
        let mut wanted = ResourceLeasingPolicyStatus {
            phase: Some(phase),
            conditions,
            active_time_window: Some(open),
            next_transition_time: hours
                .and_then(|hours| hours.until)
                .map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time),
            last_applied_time: row.status.last_applied_time.clone(),
            nodes: Some(nodes),
            clusters,
            observed_generation: Some(row.generation()),
        };
        if !same(&wanted, &row.status) {
            wanted.last_applied_time = Some(whole_seconds(now));
        }
        wanted
    }
}

fn whole_seconds(now: Now) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    let seconds = jiff::Timestamp::from_second(now.wall.as_second()).unwrap_or(now.wall);
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(seconds)
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
