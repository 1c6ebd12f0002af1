//! A policy as the syncer uses it: checked, with every default filled in. It must not
//! decide which policy is in force on a node, nor whether a window is open.

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use tapestry_domain::calendar::{Calendar, WindowText};
use tapestry_domain::capacity::Limit;
use tapestry_domain::quantity::{Percent, Quantity};
use tapestry_domain::resources::ResourceName;
use tapestry_domain::selector::Selector;

use super::{GRACEFUL_RECLAIM_PERIOD_SECONDS, ResourceLeasingPolicy, ResourceLeasingPolicySpec, ResourceLimit};
use crate::invalid::{Invalid, Problems};
use crate::selector;

/// A valid policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`, for `observedGeneration` of conditions.
    pub generation: i64,
    /// `metadata.creationTimestamp`: of two policies of equal priority the older one applies.
    pub created: Timestamp,
    /// Which bindings it is for.
    pub cluster: Cluster,
    /// Which physical nodes it is for.
    pub nodes: Selector,
    /// How much of each node is lent; a resource without limit is lent as far as it is idle.
    pub limits: Vec<Limit>,
    /// Of several policies for a node the one with the highest priority applies.
    pub priority: i32,
    /// When it lends.
    pub calendar: Calendar,
    /// Whether pods are removed to reclaim capacity.
    pub force_reclaim: bool,
    /// How long they may keep running before that.
    pub grace: Duration,
    /// Whether capacity is back *at* the end of a window.
    pub reclaim_before_end: bool,
}

/// `spec.cluster`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cluster {
    /// `*`.
    Every,
    /// The name of a binding, or its clusterID.
    Named(String),
}

impl Cluster {
    /// Reads `spec.cluster`; `None` when it is empty.
    #[must_use]
    pub fn parse(cluster: &str) -> Option<Self> {
        match cluster {
            "" => None,
            "*" => Some(Self::Every),
            name => Some(Self::Named(name.to_owned())),
        }
    }

    /// Whether this names the binding.
    #[must_use]
    pub fn matches(&self, binding_name: &str, cluster_id: &str) -> bool {
        match self {
            Self::Every => true,
            Self::Named(name) => name == binding_name || name == cluster_id,
        }
    }
}

impl Policy {
    /// Parses a policy as an API server sent it; returns all problems at once.
    pub fn parse(policy: &ResourceLeasingPolicy) -> Result<Self, Invalid> {
        let ResourceLeasingPolicy { metadata, spec, .. } = policy;
        let mut problems = Problems::default();
        if metadata.uid.is_none() || metadata.creation_timestamp.is_none() {
            problems
                .add("metadata", "lacks uid or creationTimestamp: a policy is valid only as an API server returns it");
        }
        let cluster = Cluster::parse(&spec.cluster);
        if cluster.is_none() {
            problems.add("spec.cluster", "is empty: name a ClusterBinding or its clusterID, or `*` for every binding");
        }
        let nodes = selector::parse(spec.node_selector.as_ref(), &mut problems);
        let calendar = parse_calendar(spec, &mut problems);
        let limits = spec.resource_limits.iter().enumerate();
        let limits: Vec<_> = limits.filter_map(|(i, limit)| parse_limit(i, limit, &mut problems)).collect();
        let grace = spec.graceful_reclaim_period_seconds.unwrap_or(GRACEFUL_RECLAIM_PERIOD_SECONDS);
        let grace = u64::try_from(grace).map_err(|_| format!("is {grace}: give 0 seconds or more"));
        let grace = problems.keep("spec.gracefulReclaimPeriodSeconds", grace);
        let read = || {
            Some(Self {
                name: policy.name_any(),
                uid: metadata.uid.clone()?,
                generation: metadata.generation.unwrap_or_default(),
                created: metadata.creation_timestamp.as_ref()?.0,
                cluster: cluster?,
                nodes: nodes?,
                limits,
                priority: spec.priority,
                calendar: calendar?,
                force_reclaim: spec.force_reclaim,
                grace: Duration::from_secs(grace?),
                reclaim_before_end: spec.reclaim_before_end,
            })
        };
        problems.or(read())
    }

    /// Of the policies that select a node, the one with the least rank applies: highest priority, then oldest, then name.
    #[must_use]
    pub fn rank(&self) -> (Reverse<i32>, Timestamp, &str) {
        (Reverse(self.priority), self.created, &self.name)
    }
}

fn parse_calendar(spec: &ResourceLeasingPolicySpec, problems: &mut Problems) -> Option<Calendar> {
    let windows = spec.time_windows.iter().map(|window| WindowText {
        start: &window.start,
        end: &window.end,
        days: &window.days,
        zone: window.time_zone.as_deref(),
    });
    let windows: Vec<_> = windows.collect();
    let read = Calendar::parse(&windows, spec.time_zone.as_deref(), &spec.except_dates);
    let tell = |(field, change)| problems.add(format!("spec.{field}"), format!("{change}"));
    read.map_err(|wrong| wrong.into_iter().for_each(tell)).ok()
}

fn parse_limit(i: usize, limit: &ResourceLimit, problems: &mut Problems) -> Option<Limit> {
    let field = format!("spec.resourceLimits[{i}]");
    let resource = problems.keep(&format!("{field}.resource"), ResourceName::parse_policy(&limit.resource));
    let quantity = limit.quantity.as_ref().map(|given| {
        let read = Quantity::parse(&given.0).map_err(|bad| bad.to_string()).and_then(not_negative);
        problems.keep(&format!("{field}.quantity"), read)
    });
    let percent = limit.percent.map(|given| problems.keep(&format!("{field}.percent"), Percent::parse(given.into())));
    if quantity.is_none() && percent.is_none() {
        problems.add(field, "limits nothing: give quantity, percent or both");
        return None;
    }
    Some(Limit { resource: resource?, quantity: quantity.flatten(), percent: percent.flatten() })
}

fn not_negative(quantity: Quantity) -> Result<Quantity, String> {
    if quantity < Quantity::ZERO {
        return Err(format!("is {quantity}: give 0 or more"));
    }
    Ok(quantity)
}

#[cfg(test)]
mod tests;
