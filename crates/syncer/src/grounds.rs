//! What must stand in the physical cluster before the first pod: the `ServiceAccount` and `PriorityClass` of all copies.
//! Creates them when missing; never changes what it finds.

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Target, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan};

use crate::pair::{Key, Pair};
use crate::pods::door::Verdict;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ground {
    /// `tapestry-pod`, without rights and secrets: a tenant's pod never gets a physical token.
    ServiceAccount,
    /// `tapestry-default`: below everything the owner runs, and never preempting.
    PriorityClass,
}

/// What is known of them.
#[derive(Default)]
pub(crate) struct Grounds {
    states: [State; 2],
    /// Why one of them cannot be had.
    failure: Option<String>,
    doubted: Option<Duration>,
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

impl Ground {
    pub(crate) const ALL: [Self; 2] = [Self::ServiceAccount, Self::PriorityClass];
}

impl Grounds {
    pub(crate) fn ready(&self) -> bool {
        self.states.iter().all(|state| *state == State::There)
    }

    /// Starts over: the binding changed. What failed is told until it is known to work.
    pub(crate) fn reset(&mut self) {
        *self = Self { failure: self.failure.take(), ..Self::default() };
    }

    /// Looks again, now and then: the physical cluster refused a pod.
    pub(crate) fn doubt(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if self.doubted.is_none_or(|at| now.steady >= at + LOOK_EVERY) {
            self.reset();
            self.doubted = Some(now.steady);
            for ground in Ground::ALL {
                dirty.mark(Key::Ground(ground));
            }
        }
    }

    /// Why pods have to wait for them.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let message = self.failure.clone()?;
        Some(Verdict { reason: "PhysicalClusterNotReady", message })
    }
}

impl Pair {
    pub(crate) fn plan_ground(&self, ground: Ground) -> Plan {
        let Some(bound) = self.working() else { return Plan::Rest };
        let (target, body) = match ground {
            Ground::ServiceAccount => {
                let Ok(name) = Name::parse(keys::POD_SERVICE_ACCOUNT) else { return Plan::Rest };
                let body = json!({"automountServiceAccountToken": false});
                (Target::namespaced(Side::Physical, &kind::SERVICE_ACCOUNT, self.home.mount.clone(), name), body)
            }
            Ground::PriorityClass => {
                let Ok(name) = Name::parse(&bound.binding.priority_class) else { return Plan::Rest };
                let body = json!({
                    "value": -10000, "preemptionPolicy": "Never",
                    "description": "Pods of virtual clusters: they yield to everything of the owner's.",
                });
                (Target::cluster(Side::Physical, &kind::PRIORITY_CLASS, name), body)
            }
        };
        match self.grounds.states[ground as usize] {
            State::There => Plan::Rest,
            State::Unknown => Call { target, verb: Verb::Get, why: "LookForGround" }.into(),
            State::Missing => {
                let verb = Verb::Create(self.dress(body, &target));
                Call { target, verb, why: "CreateGround" }.into()
            }
        }
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

    pub(crate) fn settle_ground(&mut self, ground: Ground, done: &Result<Answer, Refusal>, dirty: &mut Dirty<Key>) {
        let named = self.bound.as_ref().map(|bound| bound.binding.priority_class.as_str());
        let named = named.filter(|class| ground == Ground::PriorityClass && *class != keys::PRIORITY_CLASS);
        let state = match (done, named) {
            (Ok(_), _) => State::There,
            // It is the owner's to make: we look again now and then.
            (Err(Refusal::Gone), Some(class)) => {
                let why = format!(
                    "PriorityClass {class}, which the binding names in podPriorityClassName, does not exist: create it"
                );
                return self.fail_ground(&why, dirty);
            }
            (Err(Refusal::Gone), None) => State::Missing,
            (Err(Refusal::Exists), _) => State::Unknown,
            (Err(Refusal::Invalid(status)), _) if status.code == 404 => {
                return self.fail_ground(&format!("namespace {} does not exist: create it", self.home.mount), dirty);
            }
            // A role in a namespace goes with it: without the namespace we are told that we may not look.
            (Err(Refusal::Denied(status)), _) if ground == Ground::ServiceAccount => {
                let mount = &self.home.mount;
                let why =
                    format!("{}; create namespace {mount} and apply deploy/rbac/physical.yaml to it", status.message);
                return self.fail_ground(&why, dirty);
            }
            (Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_))), _) => {
                return self.fail_ground(refused.message(), dirty);
            }
            (Err(_), _) => return,
        };
        self.grounds.states[ground as usize] = state;
        dirty.mark(Key::Ground(ground));
        if self.grounds.ready() {
            self.grounds.failure = None;
            dirty.mark_all();
        }
    }
    /// Pods wait for it, and say so; so does the binding.
    fn fail_ground(&mut self, why: &str, dirty: &mut Dirty<Key>) {
        let failure = format!("the physical cluster is not ready for pods: {why}");
        if self.grounds.failure.as_ref() != Some(&failure) {
            self.grounds.failure = Some(failure);
            dirty.mark_all();
        }
    }
}
