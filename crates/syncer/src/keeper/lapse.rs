//! What lets Leases lapse, a room of the keeper: calls for node Leases that are refused, and an election that no process may take
//! part in. Says so on the binding, in conditions that only the keeper writes, and by readiness.
//! Must not decide which process leads; it is told when we only substitute for a leader.

use std::time::Duration;

use serde_json::json;
use tapestry_api::binding::Phase;
use tapestry_api::{BindingCondition, Status};
use tapestry_cluster::{Answer, Call, Refusal, Side, Sub, Target, Verb, kind};
use tapestry_engine::{Now, Plan, Reason as _};

use super::row::{KeptBinding, Said};
use super::{Keeper, ReportWhy};
use crate::refused::{News, Refused};

/// A node is dead for Kubernetes after 50 s without a renewal, and two were due by then.
const TELL_AFTER: Duration = Duration::from_secs(20);

/// A condition that is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lapse {
    pub(super) kind: BindingCondition,
    pub(super) status: Status,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// What is known of it.
pub(super) struct Lapses {
    refused: Refused,
    /// Whether a node Lease was written since we began to lead.
    renewed: bool,
    stand_in: Option<StandIn>,
}

/// No process may be elected, and we substitute for the leader.
struct StandIn {
    why: String,
    /// The binding said so. When it does not any more, another process leads, and its report counts.
    reported: bool,
}

impl Default for Lapses {
    fn default() -> Self {
        Self { refused: Refused::after(TELL_AFTER), renewed: false, stand_in: None }
    }
}

impl Lapses {
    /// No process may be elected, and we renew until one can.
    pub(super) fn stand_in(&mut self, why: &str) {
        self.stand_in = Some(StandIn { why: why.to_owned(), reported: false });
    }

    pub(super) fn stands_in(&self) -> bool {
        self.stand_in.is_some()
    }

    /// Folds in how a call for a node Lease ended; says whether the binding has to say something else now.
    pub(super) fn learn(&mut self, call: &Call, done: &Result<Answer, Refusal>, now: Now) -> bool {
        let first = done.is_ok() && !call.is_read() && !std::mem::replace(&mut self.renewed, true);
        self.refused.learn(call, done, now) != News::None || first
    }

    /// Forgets what is not tried any more; says whether that is news.
    pub(super) fn forget(&mut self, now: Now) -> bool {
        self.refused.forget(now)
    }

    /// Our report was written; the binding is as given.
    pub(super) fn settle(&mut self, binding: &KeptBinding) {
        if let Some(stand_in) = &mut self.stand_in {
            stand_in.reported |= binding.says_as(BindingCondition::LeaderElected, Status::False);
        }
    }

    /// What the binding does not say yet. `idle`: there is no Lease to renew.
    pub(super) fn plan(&self, binding: &KeptBinding, idle: bool) -> Vec<Lapse> {
        let told = |lapse: &Lapse| binding.says_as(lapse.kind, lapse.status);
        let lapses = [self.judge_election(binding), self.judge_leases(binding, idle)];
        lapses.into_iter().flatten().filter(|lapse| !told(lapse)).collect()
    }

    fn judge_election(&self, binding: &KeptBinding) -> Option<Lapse> {
        let kind = BindingCondition::LeaderElected;
        match &self.stand_in {
            Some(StandIn { reported: true, .. }) => None,
            Some(StandIn { why, .. }) => {
                Some(Lapse { kind, status: Status::False, reason: "ElectionRefused", message: tell_election(why) })
            }
            None => binding.says(kind).then(|| {
                let message = "a leader is elected".to_owned();
                Lapse { kind, status: Status::True, reason: "Elected", message }
            }),
        }
    }

    fn judge_leases(&self, binding: &KeptBinding, idle: bool) -> Option<Lapse> {
        let kind = BindingCondition::LeasesRenewed;
        match self.tell_leases() {
            Some(message) => Some(Lapse { kind, status: Status::False, reason: "LeasesNotRenewed", message }),
            None => (binding.says(kind) && (self.renewed || idle)).then(|| {
                let message = "the Leases of the virtual nodes are renewed".to_owned();
                Lapse { kind, status: Status::True, reason: "Renewed", message }
            }),
        }
    }

    fn tell_leases(&self) -> Option<String> {
        let told = self.refused.tell()?;
        Some(format!(
            "the Leases of the virtual nodes are not renewed, so Kubernetes marks the nodes NotReady after about 40 s and evicts their pods after about 5 min: {told}"
        ))
    }

    /// What is wrong, for readiness; `None` when nothing is.
    pub(super) fn lacks(&self) -> Option<String> {
        let election = self.stand_in.as_ref().map(|stand_in| tell_election(&stand_in.why));
        election.or_else(|| self.tell_leases())
    }
}

impl Keeper {
    /// Says what lets Leases lapse, if the binding does not say so yet. Without a leader no process reports
    /// readiness, so this does.
    pub(super) fn report_lapse(&self, row: &KeptBinding, now: Now) -> Option<Plan<ReportWhy>> {
        let mut conditions = row.conditions.clone();
        let mut status = json!({});
        for Lapse { kind, status: value, reason, message } in self.lapses.plan(row, self.names.is_empty()) {
            let said = Said { kind, status: value, reason, message: &message };
            row.set(&mut conditions, &said, None, now);
            if kind == BindingCondition::LeaderElected && self.lapses.stands_in() {
                let message = format!("see condition {kind}");
                let ready = Said { kind: BindingCondition::Ready, status: Status::False, reason, message: &message };
                row.set(&mut conditions, &ready, None, now);
                status["phase"] = json!(Phase::Failed);
            }
        }
        if conditions == row.conditions {
            return None;
        }
        status["conditions"] = json!(conditions);
        let target = Target::cluster(Side::Virtual, &kind::CLUSTER_BINDING, row.name.clone()).uid(&row.uid).rv(row.rv);
        Some(ReportWhy::ReportLapse.call(target, Verb::Merge(Sub::Status, json!({ "status": status }))))
    }
}

fn tell_election(why: &str) -> String {
    format!(
        "no process can be elected: {why}; the syncer renews the Leases of the virtual nodes and does nothing else; \
         apply deploy/rbac/virtual.yaml"
    )
}
