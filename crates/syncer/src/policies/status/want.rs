//! What the status of a policy should say: phase, conditions, the nodes of each cluster. Pure; writes nothing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tapestry_api::policy::{ClusterShare, Phase};
use tapestry_api::{Policy, ResourceLeasingPolicyStatus};
use tapestry_cluster::Side;
use tapestry_cluster::feed::Row as _;
use tapestry_domain::calendar::Hours;
use tapestry_engine::{Now, Reason as _};

use super::{Setting, same};
use crate::nodes::row::PNode;
use crate::pods::admission::PendingReason;
use crate::policies::{Policies, PolicyRow};

/// Conditions that we write; others on the list belong to other writers.
const OURS: [&str; 2] = ["Valid", "Active"];

/// On how many nodes of ours a policy is wanted, on how many it holds, and which one holds on the others.
#[derive(Default)]
struct Reach<'a> {
    selected: i64,
    held: i64,
    shadowed_by: Option<&'a str>,
}

/// Status, reason and message of a condition.
type Says = (&'static str, &'static str, String);

impl Policies {
    pub(super) fn want_status(
        &self,
        side: Side,
        row: &PolicyRow,
        setting: &Setting<'_>,
        hours: Option<Hours>,
        now: Now,
    ) -> ResourceLeasingPolicyStatus {
        let reach = self.reach(side, row, setting, now);
        let clusters = shares(side, row, setting, reach.held);
        let nodes: i64 = clusters.iter().map(|known| known.nodes).sum();
        let open = hours.is_some_and(|hours| hours.open);
        let mut conditions = row.status.conditions.clone();
        conditions.retain(|known| !OURS.contains(&known.type_.as_str()));
        conditions.push(condition(row, "Valid", judge_valid(row), now));
        conditions.push(condition(row, "Active", judge_active(row, setting, hours, &clusters, &reach), now));
        let phase = match (row.parsed(), open) {
            (Err(_), _) => Phase::Failed,
            (Ok(_), true) => Phase::Active,
            (Ok(_), false) => Phase::Inactive,
        };
        let mut wanted = ResourceLeasingPolicyStatus {
            phase: Some(phase),
            conditions,
            active_time_window: Some(open),
            next_transition_time: hours.and_then(|hours| hours.until).map(Time),
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

    fn reach(&self, side: Side, row: &PolicyRow, setting: &Setting<'_>, now: Now) -> Reach<'_> {
        let mut reach = Reach::default();
        let binding = setting.binding;
        let ours = |pnode: &&PNode| binding.nodes.matches(|key| pnode.label(key), pnode.name.as_str());
        for pnode in setting.nodes.pnodes().filter(ours) {
            let selects = |policy: &Policy| {
                policy.nodes.matches(|key| pnode.label(key), pnode.name.as_str()) && row.names(binding)
            };
            if !row.in_force().is_some_and(selects) {
                continue;
            }
            reach.selected += 1;
            match self.holder(side, binding, pnode, now.wall) {
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
}

/// The nodes of each cluster: those that others counted as they are, and ours.
fn shares(side: Side, row: &PolicyRow, setting: &Setting<'_>, held: i64) -> Vec<ClusterShare> {
    let share = setting.share_name(side);
    let mut clusters = row.status.clusters.clone();
    clusters.retain(|known| known.name != share);
    if row.names(setting.binding) && !setting.leaving {
        clusters.push(ClusterShare { name: share, nodes: held });
    }
    clusters.sort_by(|a, b| a.name.cmp(&b.name));
    clusters
}

fn judge_valid(row: &PolicyRow) -> Says {
    match row.parsed() {
        Ok(_) => ("True", "Valid", String::new()),
        Err(invalid) => ("False", invalid.reason(), invalid.to_string()),
    }
}

fn judge_active(
    row: &PolicyRow,
    setting: &Setting<'_>,
    hours: Option<Hours>,
    clusters: &[ClusterShare],
    reach: &Reach<'_>,
) -> Says {
    if row.parsed().is_err() {
        return ("False", "Invalid", "an invalid policy is not applied".to_owned());
    }
    if let Some(Hours { open: false, until, .. }) = hours {
        let opens = until.map_or("and none will open".to_owned(), |at| format!("the next one opens at {at}"));
        return ("False", PendingReason::OutOfTimeWindows.as_str(), format!("no time window is open, {opens}"));
    }
    // What concerns this cluster alone is said only where no other one shares the policy.
    let alone = clusters.len() == 1;
    if setting.binding.suspend && alone {
        return ("False", PendingReason::Suspended.as_str(), format!("binding {} is suspended", setting.binding.name));
    }
    let (nodes, selected) = (clusters.iter().map(|known| known.nodes).sum::<i64>(), reach.selected);
    match reach.shadowed_by.filter(|_| alone) {
        Some(other) if nodes > 0 => {
            let message = format!("applies to {nodes} of {selected} nodes, overridden on the others by policy {other}");
            ("True", "Lending", message)
        }
        None if nodes > 0 => ("True", "Lending", format!("applies to {}", count(nodes))),
        Some(other) if selected == 1 => ("False", "Shadowed", format!("overridden on its node by policy {other}")),
        Some(other) => ("False", "Shadowed", format!("overridden on all {selected} nodes by policy {other}")),
        None => ("False", "NoNodes", "no node matches the selectors of both policy and binding".to_owned()),
    }
}

fn count(nodes: i64) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}

fn condition(row: &PolicyRow, kind: &str, (status, reason, message): Says, now: Now) -> Condition {
    let before = row.status.conditions.iter().find(|known| known.type_ == kind && known.status == status);
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: Some(row.generation()),
        last_transition_time: before.map_or_else(|| whole_seconds(now), |known| known.last_transition_time.clone()),
    }
}

fn whole_seconds(now: Now) -> Time {
    Time(jiff::Timestamp::from_second(now.wall.as_second()).unwrap_or(now.wall))
}
