//! What must stand in the physical cluster before the first pod: the `ServiceAccount` and `PriorityClass` of all copies.
//! Creates them when missing; never changes what it finds. The `ServiceAccount` goes with the binding that made it; the
//! `PriorityClass` stays, because pods of other bindings may have it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Name, Refusal, Side, Target, Uid, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use crate::pair::{Key, Pair};
use crate::pods::admission::{PendingReason, Verdict};

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Prerequisite {
    /// `tapestry-pod`, without rights and secrets: a tenant's pod never gets a physical token.
    ServiceAccount,
    /// `tapestry-default`: below everything the owner runs, and never preempting.
    PriorityClass,
}

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// Whether one of them is there.
        LookForPrerequisite,
        /// It is not.
        CreatePrerequisite,
        /// Whether the `ServiceAccount` is ours: the binding goes.
        LookForAccount,
        /// It is.
        RemovePrerequisite,
    }
}

/// What is known of them.
#[derive(Default)]
pub(crate) struct Prerequisites {
    states: [State; 2],
    /// Why one of them cannot be had.
    failure: Option<String>,
    doubted: Option<Duration>,
    /// What becomes of the `ServiceAccount` with a binding that is being deleted.
    account: Account,
}

/// How far the removal of the `ServiceAccount` has come.
#[derive(Default, Clone, PartialEq, Eq)]
enum Account {
    #[default]
    Unknown,
    /// We made it.
    Ours(Uid),
    /// It is gone, or stays because it is not ours or cannot be removed.
    Settled,
}

/// How often a refused pod makes us look again.
const LOOK_EVERY: Duration = Duration::from_mins(1);

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Unknown,
    Missing,
    There,
}

impl Prerequisite {
    pub(crate) const ALL: [Self; 2] = [Self::ServiceAccount, Self::PriorityClass];
}

impl Prerequisites {
    pub(crate) fn ready(&self) -> bool {
        self.states.iter().all(|state| *state == State::There)
    }

    /// Starts over: the binding changed. What failed is told until it is known to work.
    pub(crate) fn reset(&mut self) {
        *self = Self { failure: self.failure.take(), ..Self::default() };
    }

    /// Whether nothing has to be removed any more before the binding may go.
    pub(crate) fn cleared(&self) -> bool {
        self.account == Account::Settled
    }

    /// Looks again, now and then: the physical cluster refused a pod.
    pub(crate) fn doubt(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if self.doubted.is_none_or(|at| now.steady >= at + LOOK_EVERY) {
            self.reset();
            self.doubted = Some(now.steady);
            for prerequisite in Prerequisite::ALL {
                dirty.mark(Key::Prerequisite(prerequisite));
            }
        }
    }

    /// Why pods have to wait for them.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let message = self.failure.clone()?;
        Some(Verdict { reason: PendingReason::PhysicalClusterNotReady, message })
    }
}

impl Pair {
    pub(crate) fn plan_prerequisite(&self, prerequisite: Prerequisite) -> Plan<Why> {
        let Some(bound) = self.working() else { return Plan::Rest };
        if bound.leaving() {
            return if prerequisite == Prerequisite::ServiceAccount { self.plan_account_removal() } else { Plan::Rest };
        }
        let (target, body) = match prerequisite {
            Prerequisite::ServiceAccount => {
                let Some(target) = self.account_target() else { return Plan::Rest };
                (target, json!({"automountServiceAccountToken": false}))
            }
            Prerequisite::PriorityClass => {
                let Ok(name) = Name::parse(&bound.binding.priority_class) else { return Plan::Rest };
                let body = json!({
                    "value": -10000, "preemptionPolicy": "Never",
                    "description": "Pods of virtual clusters: they yield to everything of the owner's.",
                });
                (Target::cluster(Side::Physical, &kind::PRIORITY_CLASS, name), body)
            }
        };
        match self.prerequisites.states[prerequisite as usize] {
            State::There => Plan::Rest,
            State::Unknown => Why::LookForPrerequisite.call(target, Verb::Get),
            State::Missing => {
                let verb = Verb::Create(self.dress(body, &target));
                Why::CreatePrerequisite.call(target, verb)
            }
        }
    }

    fn account_target(&self) -> Option<Target> {
        let name = Name::parse(keys::POD_SERVICE_ACCOUNT).ok()?;
        Some(Target::namespaced(Side::Physical, &kind::SERVICE_ACCOUNT, self.home.mount.clone(), name))
    }

    /// When nothing of ours is left that could need it, the account goes if we made it, and if no other pod runs as it: another
    /// binding may have the same mount namespace.
    fn plan_account_removal(&self) -> Plan<Why> {
        let Some(target) = self.account_target().filter(|_| self.nothing_lent() && self.guards.none_left()) else {
            return Plan::Rest;
        };
        match &self.prerequisites.account {
            Account::Unknown => Why::LookForAccount.call(target, Verb::Get),
            Account::Ours(uid) => Why::RemovePrerequisite.call(target.uid(uid), Verb::Delete { grace: None }),
            Account::Settled => Plan::Rest,
        }
    }

    fn settle_account_removal(&mut self, why: Why, done: &Result<Answer, Refusal>, dirty: &mut Dirty<Key>) {
        self.prerequisites.account = match (why, done) {
            (Why::LookForAccount, Ok(answer)) => match read_account(answer, &self.origin.full) {
                Some(uid) if !self.pods.account_used(&self.home.mount) => Account::Ours(uid),
                _ => Account::Settled,
            },
            (_, Ok(_) | Err(Refusal::Gone | Refusal::Replaced | Refusal::Invalid(_) | Refusal::Denied(_))) => {
                Account::Settled
            }
            (_, Err(_)) => return,
        };
        dirty.mark(Key::Prerequisite(Prerequisite::ServiceAccount));
        dirty.mark(Key::Binding);
    }

    /// Everything we make carries our origin (law 6).
    pub(crate) fn dress(&self, mut body: Value, target: &Target) -> Value {
        body["apiVersion"] = json!(target.kind.api_version());
        body["kind"] = json!(target.kind.kind);
        body["metadata"] = json!({"name": target.name.as_str()});
        for (key, value) in self.origin.annotations() {
            body["metadata"]["annotations"][key] = json!(value);
        }
        for (key, value) in self.origin.labels() {
            body["metadata"]["labels"][key] = json!(value);
        }
        body
    }

    pub(crate) fn settle_prerequisite(
        &mut self,
        prerequisite: Prerequisite,
        why: Why,
        done: &Result<Answer, Refusal>,
        dirty: &mut Dirty<Key>,
    ) {
        match why {
            Why::LookForPrerequisite | Why::CreatePrerequisite => self.settle_presence(prerequisite, done, dirty),
            Why::LookForAccount | Why::RemovePrerequisite => self.settle_account_removal(why, done, dirty),
        }
    }

    fn settle_presence(&mut self, prerequisite: Prerequisite, done: &Result<Answer, Refusal>, dirty: &mut Dirty<Key>) {
        let named = self.bound.as_ref().map(|bound| bound.binding.priority_class.as_str());
        let named = named.filter(|class| prerequisite == Prerequisite::PriorityClass && *class != keys::PRIORITY_CLASS);
        let state = match (done, named) {
            (Ok(_), _) => State::There,
            // It is the owner's to make: we look again now and then.
            (Err(Refusal::Gone), Some(class)) => {
                let why = format!(
                    "PriorityClass {class}, which the binding names in podPriorityClassName, does not exist: create it"
                );
                return self.fail_prerequisite(&why, dirty);
            }
            (Err(Refusal::Gone), None) => State::Missing,
            (Err(Refusal::Exists), _) => State::Unknown,
            (Err(Refusal::Invalid(status)), _) if status.code == 404 => {
                return self
                    .fail_prerequisite(&format!("namespace {} does not exist: create it", self.home.mount), dirty);
            }
            // A role in a namespace goes with it: without the namespace we are told that we may not look.
            (Err(Refusal::Denied(status)), _) if prerequisite == Prerequisite::ServiceAccount => {
                let mount = &self.home.mount;
                let why =
                    format!("{}; create namespace {mount} and apply deploy/rbac/physical.yaml to it", status.message);
                return self.fail_prerequisite(&why, dirty);
            }
            (Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_))), _) => {
                return self.fail_prerequisite(refused.message(), dirty);
            }
            (Err(_), _) => return,
        };
        self.prerequisites.states[prerequisite as usize] = state;
        dirty.mark(Key::Prerequisite(prerequisite));
        if self.prerequisites.ready() {
            self.prerequisites.failure = None;
            dirty.mark_all();
        }
    }
    /// Pods wait for it, and say so; so does the binding.
    fn fail_prerequisite(&mut self, why: &str, dirty: &mut Dirty<Key>) {
        let failure = format!("the physical cluster is not ready for pods: {why}");
        if self.prerequisites.failure.as_ref() != Some(&failure) {
            self.prerequisites.failure = Some(failure);
            dirty.mark_all();
        }
    }
}

/// The account's UID, if it carries our origin.
fn read_account(answer: &Answer, origin: &str) -> Option<Uid> {
    #[derive(Deserialize)]
    struct Account {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: Uid,
        #[serde(default)]
        annotations: BTreeMap<String, String>,
    }
    let Metadata { uid, annotations } = serde_json::from_slice::<Account>(&answer.object).ok()?.metadata;
    annotations.get(keys::ORIGIN).is_some_and(|there| there == origin).then_some(uid)
}

#[cfg(test)]
mod tests;
