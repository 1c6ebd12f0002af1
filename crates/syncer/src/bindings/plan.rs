//! What to do about our binding: pin identities, keep our finalizer, count ends, and report status. Pure but for what
//! follows from a fact about it. Reads every other room; writes to none.

use serde_json::{Value, json};
use tapestry_api::{Status, keys};
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Name, Side, Sub, Target, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan, Reason as _};

use super::status::Said;
use super::{BindingRow, Bound, News, Why};
use crate::connections::PHYSICAL_RESTORED;
use crate::guards::Guard;
use crate::pair::{Key, Pair};
use crate::pods::admission::PendingReason;
use crate::prerequisites::Prerequisite;

/// What condition `Connected` is to say, and whether the same with another message is news: what keeps a cluster from answering
/// may be put in other words every time.
struct Judgement {
    said: Said,
    wording_counts: bool,
}

impl Judgement {
    fn new(status: Status, reason: &str, message: impl Into<String>) -> Self {
        Self { said: Said::new(status, reason, message), wording_counts: false }
    }

    /// The message says what to do, which may be something else by now, for the same reason.
    fn wording_counts(self) -> Self {
        Self { wording_counts: true, ..self }
    }

    fn is_told(&self, there: &Said) -> bool {
        let Said { status, reason, message, .. } = &self.said;
        there.status == *status && there.reason == *reason && (!self.wording_counts || there.message == *message)
    }
}

impl Pair {
    /// Follows what the binding says of the breaker.
    pub(crate) fn heed_binding(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(row) = self.bindings.row() {
            let (kept, resume) = ((row.trip.clone(), row.unasked.clone()), row.resume.clone());
            self.follow_breaker(kept, resume.as_deref(), now, dirty);
        }
    }

    /// Carries out what follows from a fact about the binding.
    pub(crate) fn follow_binding(&mut self, news: News, now: Now, dirty: &mut Dirty<Key>) {
        if news != News::Nothing {
            self.heed_binding(now, dirty);
        }
        if news == News::Terms {
            self.prerequisites.reset();
            self.follow_api_access(dirty);
            self.follow_service_namespaces(dirty);
            self.admit_all(now, dirty);
        }
    }

    pub(crate) fn plan_binding(&self, now: Now) -> Plan<Why> {
        let (Some(bound), Some(row)) = (self.bindings.bound(), self.bindings.row()) else {
            return self.plan_unheeded(now);
        };
        let target = target(row);
        if !self.in_pinned_cluster(bound) {
            // Not the cluster this binding was made in: write nothing.
            return Plan::Rest;
        }
        if let Connection::Restored(what) = self.connections.get(Side::Virtual) {
            let message = tell_restored(Side::Virtual, what);
            // Nothing of it can be as new as the row, so the answer to this report is the last word.
            let row = bound.told.as_deref().unwrap_or(row);
            return self.report_connection(row, &Judgement::new(Status::False, "VirtualClusterRestored", message), now);
        }
        if bound.doubted.is_some() {
            return match self.connections.get(Side::Virtual) {
                Connection::Up(_) => Why::LookForBinding.call(target, Verb::Get),
                _ => Plan::Rest,
            };
        }
        // The first connection pins; what is pinned is never overwritten.
        let mut pins = serde_json::Map::new();
        for (side, field) in [(Side::Virtual, "virtualClusterUID"), (Side::Physical, "physicalClusterUID")] {
            if let (None, Some(seen)) = (bound.pin(side), self.connections.identity(side)) {
                pins.insert(field.to_owned(), json!(seen.as_str()));
            }
        }
        if !pins.is_empty() {
            let verb = Verb::Merge(Sub::Status, json!({"status": pins}));
            return Why::PinIdentity.call(target.rv(row.rv), verb);
        }
        if let Some(finalizers) = self.want_finalizers(bound, row) {
            let verb = Verb::Merge(Sub::Main, json!({"metadata": {"finalizers": finalizers}}));
            return Why::Finalizer.call(target.rv(row.rv), verb);
        }
        if self.connections.get(Side::Physical) == &Connection::Unknown {
            return Plan::Rest;
        }
        if let Some(ends) = self.unwritten_ends(now) {
            // Under the version we looked at: the leader before us may have counted more.
            let verb = Verb::Merge(Sub::Status, json!({"status": {"unaskedEnds": ends}}));
            return Why::CountEnds.call(target.rv(row.rv), verb);
        }
        self.report_connection(row, &self.judge_connection(bound, row), now)
    }

    fn report_connection(&self, row: &BindingRow, connected: &Judgement, now: Now) -> Plan<Why> {
        let told = row.report.connected.as_ref().is_some_and(|there| connected.is_told(there));
        self.report(row, &connected.said, told, now)
    }

    /// A binding that cannot be served at all, because it was never parsed: only its condition is written.
    fn plan_unheeded(&self, now: Now) -> Plan<Why> {
        let Some(row) = self.bindings.row() else { return Plan::Rest };
        let ours = self.origin.virtual_cluster();
        let strange = row.pinned.virtual_cluster.as_deref().is_some_and(|pinned| pinned != ours);
        if strange || !self.in_own_cluster() {
            return Plan::Rest;
        }
        let Err(invalid) = &row.parsed else { return Plan::Rest };
        let message = format!("the binding is invalid: {invalid}");
        let connected = Judgement::new(Status::False, invalid.reason(), message).wording_counts();
        self.report_connection(row, &connected, now)
    }

    /// Before the first virtual node ours is there; it goes when nothing of ours is left on either side.
    fn want_finalizers(&self, bound: &Bound, row: &BindingRow) -> Option<Vec<String>> {
        let there = row.finalizers.iter().any(|finalizer| finalizer == keys::FINALIZER_SYNCER);
        let others = row.finalizers.iter().filter(|finalizer| *finalizer != keys::FINALIZER_SYNCER).cloned();
        match (bound.leaving(), there) {
            (false, false) => Some(others.chain([keys::FINALIZER_SYNCER.to_owned()]).collect()),
            (true, true) if self.operational().is_some() && self.left().is_none() => Some(others.collect()),
            _ => None,
        }
    }

    /// Something of ours went: a binding that is being deleted goes with the last of it.
    pub(crate) fn mark_leaving(&self, dirty: &mut Dirty<Key>) {
        if self.bindings.bound().is_some_and(Bound::leaving) {
            dirty.mark(Key::Binding);
            dirty.mark(Key::Prerequisite(Prerequisite::ServiceAccount));
            for guard in Guard::ALL {
                dirty.mark(Key::Guard(guard));
            }
            self.services.keys().for_each(|key| dirty.mark(key));
        }
    }

    /// Why one of the clusters cannot be used, as condition `Connected` says it; `None` when both answer and are the right ones.
    pub(crate) fn tell_connection(&self) -> Option<String> {
        for side in Side::BOTH {
            if let Connection::Down(why) = self.connections.get(side) {
                return Some(format!("the {} cluster does not answer: {why}", side.as_str()));
            }
        }
        match self.connections.get(Side::Virtual) {
            Connection::Refused(refused) => return Some(format!("virtual cluster: {refused}; {}", refused.hint())),
            Connection::Restored(what) => return Some(tell_restored(Side::Virtual, what)),
            Connection::Unknown | Connection::Up(_) | Connection::Down(_) => {}
        }
        let Said { status, message, .. } = self.judge_connection(self.bindings.bound()?, self.bindings.row()?).said;
        (status == Status::False).then_some(message)
    }

    fn judge_connection(&self, bound: &Bound, row: &BindingRow) -> Judgement {
        let no = |reason: &str, message: String| Judgement::new(Status::False, reason, message);
        let out_of_sync = |message| no(PendingReason::WatchOutOfSync.as_str(), message).wording_counts();
        if let Err(invalid) = &row.parsed {
            let message = format!("the binding is invalid, and what it said before stays in force: {invalid}");
            return Judgement::new(Status::Unknown, invalid.reason(), message);
        }
        match self.connections.get(Side::Physical) {
            Connection::Up(seen) if bound.pin(Side::Physical).is_some_and(|pin| pin != seen.as_str()) => {
                let message = format!(
                    "the kubeconfig leads to cluster {seen}, which is not the one this binding was made for; nothing is written"
                );
                no("PhysicalClusterChanged", message)
            }
            Connection::Up(_) => match self.out_of_sync.tell(&self.connections) {
                Some(message) => out_of_sync(message),
                None => match &row.report.connected {
                    // Before all lists are in, a syncer that has just started knows no better than the one before it.
                    Some(said) if !self.everything_listed() && said.is_for(PendingReason::WatchOutOfSync) => {
                        out_of_sync(said.message.clone())
                    }
                    _ => Judgement::new(Status::True, "Connected", "the physical cluster answers"),
                },
            },
            Connection::Down(why) => no("Unreachable", why.clone()),
            Connection::Refused(refused) => {
                let message = format!("{refused}; running pods stay and nothing new is admitted; {}", refused.hint());
                no(refused.reason(), message)
            }
            Connection::Restored(what) => no(PHYSICAL_RESTORED, tell_restored(Side::Physical, what)),
            Connection::Unknown => Judgement::new(Status::Unknown, "NotYet", String::new()),
        }
    }
}

fn tell_restored(side: Side, what: &str) -> String {
    let side = side.as_str();
    format!(
        "the {side} cluster was restored from a backup ({what}): no pod is touched; restart the syncer to continue from the current state"
    )
}

pub(super) fn target(row: &BindingRow) -> Target {
    Target::cluster(Side::Virtual, &kind::CLUSTER_BINDING, row.name.clone()).uid(&row.uid)
}

pub(super) fn with_name(mut body: Value, name: &Name) -> Value {
    body["metadata"]["name"] = json!(name.as_str());
    body
}
