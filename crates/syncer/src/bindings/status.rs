//! What a binding's status says beside the identities: conditions, phase, and figures of what is lent and used.
//! Conditions and phase are written as soon as they change, figures at most once in ten seconds, nothing when nothing changed.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tapestry_api::binding::Phase;
use tapestry_api::condition::{DEFINITION_DELETED, DELETING};
use tapestry_api::{BindingCondition, Status};
use tapestry_cluster::{Side, Sub, Verb, kind};
use tapestry_domain::resources::{ResourceName, Resources};
use tapestry_engine::{Now, Plan, Reason};

use super::plan::{target, with_name};
use super::{BindingRow, Why};
use crate::breaker::{MASS_DELETION, tell_trip};
use crate::nodes::CLUSTER_ID_IN_USE;
use crate::pair::Pair;
use crate::terms::Stop;

/// Figures change with every pod; they are summed up and written no more often than this.
const FIGURES_EVERY: Duration = Duration::from_secs(10);

const REQUESTS_REFUSED: &str = "RequestsRefused";

/// A condition, as the status has it or as it should have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) status: Status,
    pub(super) reason: String,
    pub(super) message: String,
    /// When `status` last changed; `None` when that is not known.
    pub(super) since: Option<Timestamp>,
}

/// What the status says of the binding, as far as we write it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Report {
    pub(super) connected: Option<Said>,
    pub(super) ready: Option<Said>,
    /// Condition `PoliciesKnown`.
    pub(super) policies: Option<Said>,
    /// Condition `GuardsInForce`.
    pub(super) guarded: Option<Said>,
    /// A condition of the keeper's that says that something is wrong, and its type. We only repeat its reason.
    pub(super) kept: Option<(BindingCondition, Said)>,
    pub(super) phase: Option<Phase>,
    /// The generation that it speaks of.
    pub(super) observed: Option<i64>,
    pub(super) figures: Option<Figures>,
}

/// How much there is of everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    /// How many virtual nodes.
    pub(super) nodes: i64,
    /// What they offer.
    pub(super) leased: Resources,
    /// What the admitted pods on them ask for.
    pub(super) used: Resources,
}

impl Said {
    pub(super) fn new(status: Status, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: message.into(), since: None }
    }

    pub(super) fn same(&self, other: &Self) -> bool {
        (&self.status, &self.reason, &self.message) == (&other.status, &other.reason, &other.message)
    }

    /// Whether it is said for this reason.
    pub(super) fn is_for(&self, reason: impl Reason) -> bool {
        self.reason == reason.as_str()
    }

    /// As Kubernetes has it. It lasts since it was first said, if `before` says it already.
    fn render(&self, kind: BindingCondition, before: Option<&Self>, generation: i64, now: Now) -> Value {
        let lasting = before.filter(|before| before.status == self.status).and_then(|before| before.since);
        json!({
            "type": kind.as_str(), "status": self.status.as_str(), "reason": self.reason, "message": self.message,
            "lastTransitionTime": format!("{:.0}", self.since.or(lasting).unwrap_or(now.wall)),
            "observedGeneration": generation,
        })
    }
}

impl Pair {
    /// Reports the status of the binding, if it changed. `told`: condition `Connected` says so already.
    pub(super) fn report(&self, row: &BindingRow, connected: &Said, told: bool, now: Now) -> Plan<Why> {
        let (phase, ready) = self.judge_ready(row, connected);
        let (policies, guarded) = (self.judge_policies(row), self.judge_guards(row));
        let same = |said: &Option<Said>, says: &Option<Said>| match (said, says) {
            (Some(said), Some(says)) => said.same(says),
            (said, says) => said.is_none() && says.is_none(),
        };
        let news = !told
            || !same(&row.report.policies, &policies)
            || !same(&row.report.guarded, &guarded)
            || row.trip.as_ref() != self.breaker.trip()
            || row.report.phase != Some(phase)
            || row.report.observed != Some(row.generation)
            || !row.report.ready.as_ref().is_some_and(|said| said.same(&ready));
        // Nothing is counted in a cluster that is not the right one, or was restored.
        let counts = self.trusted().is_some();
        if !news {
            match self.bindings.reported.map(|at| at + FIGURES_EVERY) {
                _ if !counts => return Plan::Rest,
                Some(next) if next > now.steady => return Plan::Wait(next),
                _ => {}
            }
        }
        let figures = if counts { Some(self.figures()) } else { row.report.figures.clone() };
        if !news && row.report.figures == figures {
            return Plan::Rest;
        }
        let says = [Some(connected), Some(&ready), policies.as_ref(), guarded.as_ref()];
        let status = self.render_status(row, phase, says, figures.as_ref(), now);
        let kind = &kind::CLUSTER_BINDING;
        let body = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "status": status});
        let verb = Verb::Apply(Sub::Status, with_name(body, &row.name));
        Why::ReportConnection.call(target(row), verb)
    }

    /// All that is ours in one: what an apply leaves out, it takes away.
    fn render_status(
        &self,
        row: &BindingRow,
        phase: Phase,
        says: [Option<&Said>; 4],
        figures: Option<&Figures>,
        now: Now,
    ) -> Value {
        let Report { connected, ready, policies, guarded, .. } = &*row.report;
        let said = [
            (BindingCondition::Connected, connected),
            (BindingCondition::Ready, ready),
            (BindingCondition::PoliciesKnown, policies),
            (BindingCondition::GuardsInForce, guarded),
        ];
        let conditions = said.into_iter().zip(says).filter_map(|((kind, before), says)| {
            says.map(|says| says.render(kind, before.as_ref(), row.generation, now))
        });
        let mut conditions: Vec<Value> = conditions.collect();
        let mut status = json!({
            "phase": phase, "observedGeneration": row.generation, "lastSyncTime": format!("{:.0}", now.wall),
        });
        if let Some(trip) = self.breaker.trip() {
            let told = tell_trip(trip, row.name.as_str());
            let tripped = Said { since: trip.since.parse().ok(), ..Said::new(Status::True, MASS_DELETION, told) };
            conditions.push(tripped.render(BindingCondition::BreakerTripped, None, row.generation, now));
            status["breaker"] = json!(trip);
        }
        status["conditions"] = json!(conditions);
        if let Some(Figures { nodes, leased, used }) = figures {
            status["nodes"] = json!(nodes);
            status["leased"] = json!(leased);
            status["used"] = json!(used);
        }
        status
    }

    /// Whether everything works for this binding, and if not, where to read why.
    fn judge_ready(&self, row: &BindingRow, connected: &Said) -> (Phase, Said) {
        let failed = |reason: &str, message: String| (Phase::Failed, Said::new(Status::False, reason, message));
        let see = |kind: BindingCondition, said: &Said| failed(&said.reason, format!("see condition {kind}"));
        if let Some(told) = self.tell_deletion() {
            return failed(DEFINITION_DELETED, told);
        }
        // First: without the mount namespace our rights in it are gone too, and watches fail for no other reason.
        if let Some(missing) = self.prerequisites.verdict().filter(|_| self.connections.answers(Side::Physical)) {
            return failed(missing.reason.as_str(), missing.message);
        }
        let kind = BindingCondition::Connected;
        if kind.is_trouble(connected.status) {
            return see(kind, connected);
        }
        if self.breaker.trip().is_some() {
            return failed(MASS_DELETION, format!("see condition {}", BindingCondition::BreakerTripped));
        }
        if let Some((kind, said)) = &row.report.kept {
            return see(*kind, said);
        }
        let kind = BindingCondition::PoliciesKnown;
        if let Some(policies) = self.judge_policies(row).filter(|policies| kind.is_trouble(policies.status)) {
            return see(kind, &policies);
        }
        let kind = BindingCondition::GuardsInForce;
        if let Some(guarded) = self.judge_guards(row).filter(|guarded| kind.is_trouble(guarded.status)) {
            return see(kind, &guarded);
        }
        if let Some(message) = self.refused.tell() {
            return failed(REQUESTS_REFUSED, message);
        }
        if let (Some(rival), Some(bound)) = (self.nodes.rival(), self.bindings.bound()) {
            return failed(CLUSTER_ID_IN_USE, rival.tell(bound.binding.cluster_id.as_str()));
        }
        if let Some(told) = self.tell_leaving() {
            return (Phase::Pending, Said::new(Status::False, DELETING, told));
        }
        match (row.report.phase, &row.report.ready) {
            _ if self.lists_complete() => {
                (Phase::Ready, Said::new(Status::True, "Ready", "nodes are lent as policies allow"))
            }
            // A syncer that has just started knows no better than the one before it.
            (Some(phase), Some(ready)) => (phase, ready.clone()),
            _ => (Phase::Pending, Said::new(Status::False, "Starting", "the syncer is reading both clusters")),
        }
    }

    /// Whether it is known which policies there are; `None` while that has never been in question.
    fn judge_policies(&self, row: &BindingRow) -> Option<Said> {
        let told = |stop: Stop| {
            let message = format!("{}; nothing new is lent, and no pod is evicted", stop.message());
            Some(Said::new(Status::False, stop.reason().as_str(), message))
        };
        if let Some(served) = self.policies.unknown(Side::Virtual) {
            return told(Stop::PoliciesUnknown(served));
        }
        match self.policies.unknown(Side::Physical).filter(|_| self.nodes.any_with_owner()) {
            Some(_) if self.policies.none_known(Side::Physical) => told(Stop::OwnerUnserved),
            Some(_) => {
                let held = "the physical cluster no longer serves ResourceLeasingPolicies; the owner's last known policies stay in force";
                Some(Said::new(Status::False, Stop::OwnerUnserved.reason().as_str(), held))
            }
            None => {
                row.report.policies.is_some().then(|| Said::new(Status::True, "Known", "all policies have been read"))
            }
        }
    }

    /// Whether the guards that the binding wants are in force; `None` while that has never been in question.
    fn judge_guards(&self, row: &BindingRow) -> Option<Said> {
        let binding = &self.bindings.bound()?.binding;
        match self.guards.trouble(binding) {
            Some((guard, trouble)) => {
                Some(Said::new(Status::False, guard.reason(trouble), guard.message(trouble, &self.home.mount)))
            }
            None => row.report.guarded.is_some().then(|| Said::new(Status::True, "InForce", "guards are in place")),
        }
    }

    /// Sums over all virtual nodes: cpu, memory and pods always, other resources where there are any.
    fn figures(&self) -> Figures {
        let always = [ResourceName::Cpu, ResourceName::Memory, ResourceName::Pods];
        let compact = |total: Resources| -> Resources {
            let others = total.iter().filter(|(name, amount)| !amount.is_zero() && !always.contains(name));
            let others = others.map(|(name, amount)| (name.clone(), amount)).collect::<Vec<_>>();
            always.iter().map(|name| (name.clone(), total.get(name))).chain(others).collect()
        };
        let (mut nodes, mut leased) = (0, Resources::new());
        for vnode in self.nodes.vnodes() {
            nodes += 1;
            leased.add(&vnode.allocatable);
        }
        Figures { nodes, leased: compact(leased), used: compact(self.pods.held_total()) }
    }
}

#[cfg(test)]
mod tests;
