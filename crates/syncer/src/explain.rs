//! Why a node lends what it lends, and when a cluster lends: the syncer's own figures, for people.
//! Decides nothing: every value here is one that plans use.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use tapestry_api::Policy;
use tapestry_cluster::{Name, Side};
use tapestry_domain::capacity::Limit;
use tapestry_domain::quantity::{Percent, Quantity};
use tapestry_domain::resources::{ResourceName, Resources};
use tapestry_engine::Reason as _;

use crate::nodes::row::PNode;
use crate::pair::Pair;
use crate::terms::Terms;

/// Every figure of one node, from allocatable to leased.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStory {
    /// The physical node.
    pub node: String,
    /// Its virtual node, when there is one.
    pub virtual_node: Option<String>,
    /// The binding.
    pub binding: String,
    /// Whether it is lent now.
    pub lending: bool,
    /// Why, or why not.
    pub reason: String,
    /// The same for people.
    pub message: String,
    /// When the calendar next changes something.
    pub until: Option<Timestamp>,
    /// The policies that select it, the one that applies first.
    pub policies: Vec<PolicyStory>,
    /// One line for each resource.
    pub resources: Vec<Figure>,
}

/// A policy that selects a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStory {
    /// Its name.
    pub name: String,
    /// Whether it is the owner's, in the physical cluster.
    pub owner: bool,
    /// Whether it applies to the node.
    pub holds: bool,
    /// Whether one of its windows is open.
    pub open: bool,
    /// When that changes.
    pub until: Option<Timestamp>,
    /// Its priority.
    pub priority: i32,
}

/// One resource of a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figure {
    /// Which one.
    pub resource: String,
    /// What the physical node can allocate.
    pub allocatable: String,
    /// What others use of it.
    pub used: String,
    /// The rest.
    pub idle: String,
    /// What the policies make of it.
    pub limits: Vec<LimitStory>,
    /// What is lent.
    pub leased: String,
    /// What virtual pods hold of that.
    pub held: String,
}

/// One limit on one resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitStory {
    /// Whose limit.
    pub policy: String,
    /// As written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<String>,
    /// As written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// What it leaves.
    pub cap: String,
}

/// When a cluster lends.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Agenda {
    /// The binding.
    pub binding: String,
    /// Its clusterID.
    pub cluster: String,
    /// How many nodes policies cover.
    pub nodes: usize,
    /// What keeps nodes from being lent whatever the hours are.
    pub stops: Vec<StopStory>,
    /// Without gaps, from the first moment asked for to the last.
    pub spans: Vec<Span>,
}

/// What keeps nodes from being lent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StopStory {
    /// As in condition `Lending` of the nodes.
    pub reason: String,
    /// The same for people.
    pub message: String,
    /// How many nodes.
    pub nodes: usize,
}

/// A time in which nothing changes by the calendar.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// From.
    pub from: Timestamp,
    /// To, not included.
    pub to: Timestamp,
    /// How many nodes are lent.
    pub lent: usize,
    /// By which policies.
    pub policies: BTreeSet<String>,
    /// What they offer together, going by what is idle now.
    pub leased: Resources,
}

impl Pair {
    /// The story of a node, by its physical or its virtual name; `None` when we know no such node.
    #[must_use]
    pub fn explain_node(&self, name: &str, at: Timestamp) -> Option<NodeStory> {
        let name = Name::parse(name).ok()?;
        let physical = self.nodes.vnode(&name).map_or(&name, |vnode| &vnode.physical);
        let pnode = self.nodes.pnode(physical)?;
        let binding = &self.bindings.bound()?.binding;
        let terms = self.terms(pnode, at);
        let (reason, message) = match &terms {
            None => ("NoPolicy", "no policy covers the node, or the binding does not select it"),
            Some(Terms { stop: Some(stop), .. }) => (stop.reason().as_str(), stop.message()),
            Some(_) => ("Lending", "the node is lent"),
        };
        let vnode = self.nodes.vnode_of(&pnode.name);
        let held = vnode.and_then(|vnode| self.pods.held(&vnode.name)).cloned().unwrap_or_default();
        let resources =
            pnode.allocatable.iter().map(|(resource, _)| self.figure(pnode, terms.as_ref(), &held, resource));
        Some(NodeStory {
            node: pnode.name.to_string(),
            virtual_node: vnode.map(|vnode| vnode.name.to_string()),
            binding: binding.name.to_string(),
            lending: terms.as_ref().is_some_and(|terms| terms.stop.is_none()),
            reason: reason.to_owned(),
            message: message.to_owned(),
            until: terms.as_ref().and_then(|terms| terms.until),
            policies: self.policies_of(pnode, terms.as_ref(), at),
            resources: resources.collect(),
        })
    }

    /// What policies allow on a physical node; `None` when nothing is lent of it.
    pub(crate) fn limits_of(&self, node: &str, at: Timestamp) -> Option<Vec<Limit>> {
        let pnode = self.nodes.pnode(&Name::parse(node).ok()?)?;
        let terms = self.terms(pnode, at).filter(|terms| terms.stop.is_none())?;
        Some([terms.policy, terms.owner].into_iter().flatten().flat_map(|policy| policy.limits.clone()).collect())
    }

    fn policies_of(&self, pnode: &PNode, terms: Option<&Terms<'_>>, at: Timestamp) -> Vec<PolicyStory> {
        let Some(bound) = self.bindings.bound() else { return Vec::new() };
        let holders = terms.map(|terms| [terms.policy, terms.owner]).unwrap_or_default();
        let sides = [Side::Virtual, Side::Physical].into_iter().zip(holders);
        let mut told: Vec<PolicyStory> = Vec::new();
        for (side, holder) in sides {
            for (policy, hours) in self.policies.selecting(side, &bound.binding, pnode, at) {
                told.push(PolicyStory {
                    name: policy.name.clone(),
                    owner: side == Side::Physical,
                    holds: holder.is_some_and(|holder| holder.uid == policy.uid),
                    open: hours.open,
                    until: hours.until,
                    priority: policy.priority,
                });
            }
        }
        told.sort_by_key(|policy| (!policy.holds, policy.owner, policy.name.clone()));
        told
    }

    fn figure(&self, pnode: &PNode, terms: Option<&Terms<'_>>, held: &Resources, resource: &ResourceName) -> Figure {
        let show = |quantity: Quantity| quantity.display(resource.format()).to_string();
        let allocatable = pnode.allocatable.get(resource);
        let used = self.pods.used(&pnode.name).get(resource);
        let idle = allocatable.saturating_sub(used).max(Quantity::ZERO);
        let policies = terms.into_iter().flat_map(|terms| [(terms.policy, ""), (terms.owner, "owner/")]);
        let policies = policies.filter_map(|(policy, whose)| Some((policy?, whose)));
        let limits = policies.flat_map(|(policy, whose): (&Policy, _)| {
            let of_it = policy.limits.iter().filter(|limit| limit.resource == *resource);
            of_it.map(move |limit| tell_limit(format!("{whose}{}", policy.name), limit, idle, show))
        });
        Figure {
            resource: resource.to_string(),
            allocatable: show(allocatable),
            used: show(used),
            idle: show(idle),
            limits: limits.collect(),
            leased: show(terms.map(|terms| terms.leased().get(resource)).unwrap_or_default()),
            held: show(held.get(resource)),
        }
    }

    /// When this cluster lends, going by what is idle now.
    #[must_use]
    pub fn agenda(&self, from: Timestamp, to: Timestamp) -> Option<Agenda> {
        let binding = &self.bindings.bound()?.binding;
        let mut edges: BTreeSet<Timestamp> = [from, to].into();
        for policy in self.policies.all(binding) {
            let spans = policy.calendar.spans(from, to);
            edges.extend(spans.into_iter().flat_map(|(start, end)| [start, end]).filter(|at| from < *at && *at < to));
        }
        let edges: Vec<Timestamp> = edges.into_iter().collect();
        let stops = self.stops(&edges);
        let spans = edges.windows(2).map(|edge| self.span(edge[0], edge[1])).collect();
        let nodes = self.nodes.pnodes().filter(|pnode| self.terms_by_hours(pnode, from).is_some()).count();
        let (binding, cluster) = (binding.name.to_string(), binding.cluster_id.to_string());
        Some(Agenda { binding, cluster, nodes, stops, spans })
    }

    /// What keeps nodes from being lent at these moments, other than hours. At some of them an owner's hours may hide another stop.
    fn stops(&self, edges: &[Timestamp]) -> Vec<StopStory> {
        let mut most = BTreeMap::new();
        for at in edges {
            let mut here = BTreeMap::<_, usize>::new();
            let stops = self.nodes.pnodes().filter_map(|pnode| self.terms_by_hours(pnode, *at)?.stop);
            for stop in stops.filter(|stop| !stop.is_hours()) {
                *here.entry((stop.reason().as_str(), stop.message())).or_default() += 1;
            }
            for (stop, nodes) in here {
                let known = most.entry(stop).or_default();
                *known = nodes.max(*known);
            }
        }
        let tell = |((reason, message), nodes): ((&str, &str), usize)| StopStory {
            reason: reason.to_owned(),
            message: message.to_owned(),
            nodes,
        };
        most.into_iter().map(tell).collect()
    }

    fn span(&self, from: Timestamp, to: Timestamp) -> Span {
        let mut span = Span { from, to, lent: 0, policies: BTreeSet::new(), leased: Resources::new() };
        for pnode in self.nodes.pnodes() {
            if let Some(terms) = self.terms_by_hours(pnode, from).filter(|terms| terms.stop.is_none()) {
                span.lent += 1;
                span.policies.insert(terms.names());
                span.leased.add(&terms.offered);
            }
        }
        span
    }
}

fn tell_limit(policy: String, limit: &Limit, idle: Quantity, show: impl Fn(Quantity) -> String) -> LimitStory {
    let part = limit.percent.map(|percent| idle.percent_floor(percent));
    let cap = [limit.quantity, part, Some(idle)].into_iter().flatten().min().unwrap_or(idle);
    LimitStory {
        policy,
        quantity: limit.quantity.map(&show),
        percent: limit.percent.map(Percent::get),
        cap: show(limit.resource.floor(cap)),
    }
}

#[cfg(test)]
mod tests;
