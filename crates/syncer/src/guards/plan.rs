//! What to do about one backstop. Pure but for `settle`, which folds answers in.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Sub, Target, Verb};
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use super::cover::Asks;
use super::row::GuardRow;
use super::want::{difference, isolation, quota_for, same};
use super::{Guard, Guards, Look, QUOTA_EVERY, Setting, Trouble};
use crate::pair::Key;
use crate::terms::steady_at;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// Whether it is there, and ours.
        LookForGuard,
        /// It is not there.
        CreateGuard,
        /// It is not as the binding wants it.
        MendGuard,
        /// The binding does not want it any more.
        RemoveGuard,
    }
}

/// How long a name that another object has is left alone. The watch shows only what is ours, not that the other one goes.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What follows for other rooms from the answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Effect {
    /// Nothing.
    Nothing,
    /// The quota is known as it is now: nodes may offer what it admits.
    QuotaRead,
    /// One is not in force: pods that wait for it are told why.
    Refused,
}

impl Guards {
    /// The plan for this backstop, wanted or not. `asks` gives what the quota has to admit: a sum over all nodes, which is only
    /// made when it is needed.
    pub(crate) fn plan(
        &self,
        guard: Guard,
        wanted: bool,
        setting: &Setting<'_>,
        asks: impl FnOnce() -> Asks,
    ) -> Plan<Why> {
        let Ok(name) = Name::parse(guard.name()) else { return Plan::Rest };
        let target = Target::namespaced(Side::Physical, guard.kind(), setting.mount.clone(), name);
        match (self.row(guard), wanted) {
            (None, false) => Plan::Rest,
            (Some(there), false) if there.deleting => Plan::Rest,
            (Some(there), false) => Why::RemoveGuard.call(target.uid(&there.uid), Verb::Delete { grace: None }),
            (_, true) if guard == Guard::Quota && self.due > setting.now.steady => Plan::Wait(self.due),
            (None, true) => self.plan_new(guard, target, setting, asks),
            (Some(there), true) => self.plan_kept(guard, target, there, setting, asks),
        }
    }

    fn plan_new(&self, guard: Guard, target: Target, setting: &Setting<'_>, asks: impl FnOnce() -> Asks) -> Plan<Why> {
        let now = setting.now;
        match self.looks[guard as usize] {
            Look::Foreign(at) if at + LOOK_AGAIN > now.steady => Plan::Wait(at + LOOK_AGAIN),
            Look::Unknown | Look::Foreign(_) => Why::LookForGuard.call(target, Verb::Peek),
            Look::Missing => {
                let spec = self.spec(guard, &asks(), setting);
                let body = setting.origin.new_object(&target, json!({"spec": spec}));
                Why::CreateGuard.call(target, Verb::Create(body))
            }
        }
    }

    /// Kept as wanted, whatever changes it.
    fn plan_kept(
        &self,
        guard: Guard,
        target: Target,
        there: &GuardRow,
        setting: &Setting<'_>,
        asks: impl FnOnce() -> Asks,
    ) -> Plan<Why> {
        let &Setting { origin, now, .. } = setting;
        let labels: Map<String, Value> = origin
            .labels()
            .into_iter()
            .filter(|(key, value)| there.labels.get(*key).map(|label| &**label) != Some(value))
            .map(|(key, value)| (key.to_owned(), json!(value)))
            .collect();
        let mut patch = json!({});
        if !labels.is_empty() {
            patch["metadata"]["labels"] = json!(labels);
        }
        if there.origin.as_ref() != Some(&origin.full) {
            patch["metadata"]["annotations"][keys::ORIGIN] = json!(origin.full);
        }
        let asks = asks();
        let spec = self.spec(guard, &asks, setting);
        if !same(guard, &there.spec, &spec) {
            patch["spec"] = difference(&there.spec, &spec);
        }
        if there.deleting {
            return Plan::Rest;
        }
        if patch.as_object().is_some_and(Map::is_empty) {
            return if guard == Guard::Quota { self.plan_same_quota(target, there, &asks, now) } else { Plan::Rest };
        }
        let target = match guard {
            // A map, of which every member is its own field; its version changes with every pod that it counts.
            Guard::Quota => target.uid(&there.uid),
            // Lists that are replaced as a whole (law 2).
            Guard::NetworkPolicy => target.uid(&there.uid).rv(there.rv),
        };
        Why::MendGuard.call(target, Verb::Merge(Sub::Main, patch))
    }

    /// The quota is as it should be. It is read once more before nodes are granted or refused something within the same sum; by
    /// time alone the sum changes at the edge of a window, and when what was revoked cannot come any more.
    fn plan_same_quota(&self, target: Target, there: &GuardRow, asks: &Asks, now: Now) -> Plan<Why> {
        let total = asks.total(&self.grants, now.steady);
        if !self.grants.cover(asks) && there.lets_in(&quota_for(&total)) {
            return Why::LookForGuard.call(target, Verb::Peek);
        }
        let edge = asks.until().filter(|until| *until > now.wall).map(|until| steady_at(until, now));
        let next = edge.into_iter().chain(self.grants.settled(now.steady)).min();
        next.map_or(Plan::Rest, Plan::Wait)
    }

    fn spec(&self, guard: Guard, asks: &Asks, setting: &Setting<'_>) -> Value {
        match guard {
            Guard::Quota => json!({"hard": quota_for(&asks.total(&self.grants, setting.now.steady))}),
            Guard::NetworkPolicy => isolation(setting.server),
        }
    }

    /// Folds in how a call ended; tells what follows for other rooms.
    pub(crate) fn settle(
        &mut self,
        guard: Guard,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        setting: &Setting<'_>,
        dirty: &mut Dirty<Key>,
    ) -> Effect {
        let (rows, look) = (&mut self.rows[guard as usize], &mut self.looks[guard as usize]);
        let mut effect = Effect::Nothing;
        match (why, done) {
            // One that lost its label is in no watch: what became of it only a read can tell.
            (Why::RemoveGuard, Ok(_)) | (Why::MendGuard | Why::RemoveGuard, Err(Refusal::Gone | Refusal::Replaced)) => {
                *look = Look::Unknown;
                if let Some(uid) = &call.target.uid {
                    rows.remove(uid);
                }
            }
            (Why::LookForGuard | Why::CreateGuard | Why::MendGuard, Ok(answer)) => {
                self.learn(guard, why, &answer, setting);
                if guard == Guard::Quota {
                    effect = Effect::QuotaRead;
                }
            }
            (Why::LookForGuard, Err(Refusal::Gone)) => *look = Look::Missing,
            (Why::CreateGuard, Err(Refusal::Exists)) => *look = Look::Unknown,
            (
                Why::LookForGuard | Why::CreateGuard | Why::MendGuard | Why::RemoveGuard,
                Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_))),
            ) => {
                let why = refused.message();
                tracing::warn!(
                    kind = guard.kind().kind,
                    name = guard.name(),
                    why,
                    "the binding's guard is not in force"
                );
                self.troubles[guard as usize] = Some(Trouble::Refused(why.into()));
                dirty.mark(Key::Binding);
                return Effect::Refused;
            }
            (Why::LookForGuard | Why::CreateGuard | Why::MendGuard | Why::RemoveGuard, Err(_)) => {
                return Effect::Nothing;
            }
        }
        dirty.mark(Key::Binding);
        dirty.mark(Key::Guard(guard));
        effect
    }

    /// The API server showed the object of this name.
    fn learn(&mut self, guard: Guard, why: Why, answer: &Answer, &Setting { origin, mount, now, .. }: &Setting<'_>) {
        let look = &mut self.looks[guard as usize];
        match (why, GuardRow::decode(&answer.object, guard, mount, origin).ok().flatten()) {
            (Why::LookForGuard | Why::CreateGuard | Why::MendGuard | Why::RemoveGuard, Some(row)) => {
                *look = Look::Unknown;
                self.troubles[guard as usize] = None;
                self.rows[guard as usize].put(row, None);
            }
            (Why::LookForGuard, None) => {
                if !matches!(look, Look::Foreign(_)) {
                    tracing::warn!(kind = guard.kind().kind, name = guard.name(), namespace = %mount,
                        "this object is not ours: it is left alone, and the binding's guard is not in force");
                }
                *look = Look::Foreign(now.steady);
                self.troubles[guard as usize] = Some(Trouble::Foreign);
            }
            (Why::CreateGuard | Why::MendGuard | Why::RemoveGuard, None) => {}
        }
        let written = match why {
            Why::LookForGuard => false,
            Why::CreateGuard | Why::MendGuard | Why::RemoveGuard => true,
        };
        if guard == Guard::Quota && written {
            self.due = now.steady + QUOTA_EVERY;
        }
    }
}
