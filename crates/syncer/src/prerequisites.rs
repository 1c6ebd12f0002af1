//! What must exist in the physical cluster before the first pod: the `ServiceAccount` and `PriorityClass` of all copies.
//! Creates them when missing; never changes what it finds. The `ServiceAccount` goes with the binding that made it; the
//! `PriorityClass` stays, because pods of other bindings may have it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tapestry_api::keys;
use tapestry_cluster::{Answer, Name, Refusal, Side, Target, Uid, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use crate::bindings::Bound;
use crate::origin::Origin;
use crate::pair::Key;
use crate::pods::Pods;
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
    /// Why one of them is not there and cannot be created.
    failure: Option<String>,
    doubted: Option<Duration>,
    /// What becomes of the `ServiceAccount` with a binding that is being deleted.
    account: Account,
}

/// What the room reads of others.
pub(crate) struct Setting<'a> {
    pub(crate) origin: &'a Origin,
    /// The namespace of the account.
    pub(crate) mount: &'a Name,
    pub(crate) pods: &'a Pods,
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

    /// The plan for one of them. At the end of a binding the account is removed `last`: when nothing else of ours is left.
    pub(crate) fn plan(&self, which: Prerequisite, bound: &Bound, last: bool, setting: &Setting<'_>) -> Plan<Why> {
        match (which, bound.leaving()) {
            (_, false) => self.plan_presence(which, bound, setting),
            (Prerequisite::ServiceAccount, true) if last => self.plan_account_removal(setting.mount),
            (Prerequisite::ServiceAccount | Prerequisite::PriorityClass, true) => Plan::Rest,
        }
    }

    fn plan_presence(&self, which: Prerequisite, bound: &Bound, setting: &Setting<'_>) -> Plan<Why> {
        let (target, body) = match which {
            Prerequisite::ServiceAccount => {
                let Some(target) = account_target(setting.mount) else { return Plan::Rest };
                (target, json!({"automountServiceAccountToken": false}))
            }
            Prerequisite::PriorityClass => {
                let Ok(name) = Name::parse(&bound.binding.priority_class) else { return Plan::Rest };
                let body = json!({
                    "value": -10000, "preemptionPolicy": "Never",
                    "description": "Pods of virtual clusters: they yield to the owner's pods.",
                });
                (Target::cluster(Side::Physical, &kind::PRIORITY_CLASS, name), body)
            }
        };
        match self.states[which as usize] {
            State::There => Plan::Rest,
            State::Unknown => Why::LookForPrerequisite.call(target, Verb::Peek),
            State::Missing => {
                let verb = Verb::Create(setting.origin.new_object(&target, body));
                Why::CreatePrerequisite.call(target, verb)
            }
        }
    }

    /// The account goes if we made it, and if no other pod runs as it: another binding may have the same mount namespace.
    fn plan_account_removal(&self, mount: &Name) -> Plan<Why> {
        let Some(target) = account_target(mount) else { return Plan::Rest };
        match &self.account {
            Account::Unknown => Why::LookForAccount.call(target, Verb::Peek),
            Account::Ours(uid) => Why::RemovePrerequisite.call(target.uid(uid), Verb::Delete { grace: None }),
            Account::Settled => Plan::Rest,
        }
    }

    /// The account was looked for, or removed.
    fn settle_account(&mut self, account: Result<Account, &Refusal>, dirty: &mut Dirty<Key>) {
        self.account = match account {
            Ok(account) => account,
            Err(Refusal::Gone | Refusal::Replaced | Refusal::Invalid(_) | Refusal::Denied(_)) => Account::Settled,
            Err(_) => return,
        };
        dirty.mark(Key::Prerequisite(Prerequisite::ServiceAccount));
        dirty.mark(Key::Binding);
    }

    /// Folds in how a call ended. `class` is the `PriorityClass` that the binding names, if there is a binding.
    pub(crate) fn settle(
        &mut self,
        which: Prerequisite,
        why: Why,
        done: &Result<Answer, Refusal>,
        class: Option<&str>,
        setting: &Setting<'_>,
        dirty: &mut Dirty<Key>,
    ) {
        match why {
            Why::LookForPrerequisite | Why::CreatePrerequisite => {
                let learnt = learn(which, done, class, setting.mount);
                self.settle_presence(which, learnt, dirty);
            }
            Why::LookForAccount => {
                let ours = |answer| {
                    let uid = read_account(answer, &setting.origin.full);
                    uid.filter(|_| !setting.pods.account_used(setting.mount)).map_or(Account::Settled, Account::Ours)
                };
                self.settle_account(done.as_ref().map(ours), dirty);
            }
            Why::RemovePrerequisite => self.settle_account(done.as_ref().map(|_| Account::Settled), dirty),
        }
    }

    fn settle_presence(&mut self, which: Prerequisite, learnt: Learnt, dirty: &mut Dirty<Key>) {
        match learnt {
            Learnt::Nothing => {}
            Learnt::State(state) => {
                self.states[which as usize] = state;
                dirty.mark(Key::Prerequisite(which));
                if self.ready() {
                    self.failure = None;
                    dirty.mark_all();
                }
            }
            // Pods wait for it, and say so; so does the binding.
            Learnt::Failure(why) => {
                let failure = format!("the physical cluster is not ready for pods: {why}");
                if self.failure.as_ref() != Some(&failure) {
                    self.failure = Some(failure);
                    dirty.mark_all();
                }
            }
        }
    }
}

/// What an answer says of one of them.
enum Learnt {
    Nothing,
    State(State),
    /// It is not there and cannot be made, and this is what to do.
    Failure(String),
}

fn learn(which: Prerequisite, done: &Result<Answer, Refusal>, class: Option<&str>, mount: &Name) -> Learnt {
    let named = class.filter(|class| which == Prerequisite::PriorityClass && *class != keys::PRIORITY_CLASS);
    match (done, named) {
        (Ok(_), _) => Learnt::State(State::There),
        // The owner creates it: we look again now and then.
        (Err(Refusal::Gone), Some(class)) => Learnt::Failure(format!(
            "PriorityClass {class}, which the binding names in podPriorityClassName, does not exist: create it"
        )),
        (Err(Refusal::Gone), None) => Learnt::State(State::Missing),
        (Err(Refusal::Exists), _) => Learnt::State(State::Unknown),
        (Err(Refusal::Invalid(status)), _) if status.code == 404 => {
            Learnt::Failure(format!("namespace {mount} does not exist: create it"))
        }
        // A role in a namespace goes with it: without the namespace we are told that we may not look.
        (Err(Refusal::Denied(status)), _) if which == Prerequisite::ServiceAccount => Learnt::Failure(format!(
            "{}; create namespace {mount} and apply deploy/rbac/physical.yaml to it",
            status.message
        )),
        (Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_))), _) => Learnt::Failure(refused.message().to_owned()),
        (Err(_), _) => Learnt::Nothing,
    }
}

fn account_target(mount: &Name) -> Option<Target> {
    let name = Name::parse(keys::POD_SERVICE_ACCOUNT).ok()?;
    Some(Target::namespaced(Side::Physical, &kind::SERVICE_ACCOUNT, mount.clone(), name))
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
