//! What to do about one backstop. Pure but for `settle_guard`, which folds answers in.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Sub, Target, Verb};
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use super::cover::Asks;
use super::row::GuardRow;
use super::want::{difference, isolation, quota_for, same};
use super::{Guard, Look, QUOTA_EVERY, Trouble};
use crate::pair::{Key, Pair};
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

/// How long a name that somebody else has is left alone.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(5);

impl Pair {
    /// The plan for this backstop, wanted or not.
    pub(crate) fn plan_guard(&self, guard: Guard, now: Now) -> Plan<Why> {
        let (Some(bound), Ok(name)) = (self.working(), Name::parse(guard.name())) else { return Plan::Rest };
        let target = Target::namespaced(Side::Physical, guard.kind(), self.home.mount.clone(), name);
        // They stand until the last copy has gone, and go with the binding.
        let wanted = guard.wanted(&bound.binding) && !(bound.leaving() && self.nothing_lent());
        match (self.guards.row(guard), wanted) {
            (None, false) => Plan::Rest,
            (Some(there), false) if there.deleting => Plan::Rest,
            (Some(there), false) => Why::RemoveGuard.call(target.uid(&there.uid), Verb::Delete { grace: None }),
            (_, true) if guard == Guard::Quota && self.guards.due > now.steady => Plan::Wait(self.guards.due),
            (None, true) => self.plan_new_guard(guard, target, now),
            (Some(there), true) => self.plan_kept_guard(guard, target, there, now),
        }
    }

    fn plan_new_guard(&self, guard: Guard, target: Target, now: Now) -> Plan<Why> {
        match self.guards.looks[guard as usize] {
            Look::Foreign(at) if at + LOOK_AGAIN > now.steady => Plan::Wait(at + LOOK_AGAIN),
            Look::Unknown | Look::Foreign(_) => Why::LookForGuard.call(target, Verb::Get),
            Look::Missing => {
                let body = self.dress(json!({"spec": self.guard_spec(guard, &self.asks(now.wall), now)}), &target);
                Why::CreateGuard.call(target, Verb::Create(body))
            }
        }
    }

    /// Kept as wanted, whoever changes it.
    fn plan_kept_guard(&self, guard: Guard, target: Target, there: &GuardRow, now: Now) -> Plan<Why> {
        let labels: Map<String, Value> = self
            .origin
            .labels()
            .into_iter()
            .filter(|(key, value)| there.labels.get(*key).map(|label| &**label) != Some(value))
            .map(|(key, value)| (key.to_owned(), json!(value)))
            .collect();
        let mut patch = json!({});
        if !labels.is_empty() {
            patch["metadata"]["labels"] = json!(labels);
        }
        if there.origin.as_ref() != Some(&self.origin.full) {
            patch["metadata"]["annotations"][keys::ORIGIN] = json!(self.origin.full);
        }
        let asks = self.asks(now.wall);
        let spec = self.guard_spec(guard, &asks, now);
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
        let total = asks.total(&self.guards.grants, now.steady);
        if self.ungranted(asks) && there.lets_in(&quota_for(&total)) {
            return Why::LookForGuard.call(target, Verb::Get);
        }
        let edge = asks.until.filter(|until| *until > now.wall).map(|until| steady_at(until, now));
        let next = edge.into_iter().chain(self.guards.grants.settled(now.steady)).min();
        next.map_or(Plan::Rest, Plan::Wait)
    }

    fn guard_spec(&self, guard: Guard, asks: &Asks, now: Now) -> Value {
        match guard {
            Guard::Quota => json!({"hard": quota_for(&asks.total(&self.guards.grants, now.steady))}),
            Guard::NetworkPolicy => isolation(),
        }
    }

    pub(crate) fn settle_guard(
        &mut self,
        guard: Guard,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let (rows, look) = (&mut self.guards.rows[guard as usize], &mut self.guards.looks[guard as usize]);
        match (done, why) {
            // One that lost its label is in no watch: what became of it only a read can tell.
            (Ok(_), Why::RemoveGuard) | (Err(Refusal::Gone | Refusal::Replaced), Why::MendGuard | Why::RemoveGuard) => {
                *look = Look::Unknown;
                if let Some(uid) = &call.target.uid {
                    rows.remove(uid);
                }
            }
            (Ok(answer), Why::LookForGuard | Why::CreateGuard | Why::MendGuard) => {
                let row = GuardRow::decode(&answer.object, guard, &self.home.mount, &self.origin).ok().flatten();
                match (row, why) {
                    (Some(row), _) => {
                        *look = Look::Unknown;
                        self.guards.troubles[guard as usize] = None;
                        rows.put(row, None);
                    }
                    (None, Why::LookForGuard) => {
                        if !matches!(look, Look::Foreign(_)) {
                            tracing::warn!(kind = guard.kind().kind, name = guard.name(), namespace = %self.home.mount,
                                "this object is not ours: it is left alone, and the binding's guard is not in force");
                        }
                        *look = Look::Foreign(now.steady);
                        self.guards.troubles[guard as usize] = Some(Trouble::Foreign);
                    }
                    (None, _) => {}
                }
                if guard == Guard::Quota {
                    if why != Why::LookForGuard {
                        self.guards.due = now.steady + QUOTA_EVERY;
                    }
                    self.grant(now, dirty);
                }
            }
            (Err(Refusal::Gone), Why::LookForGuard) => *look = Look::Missing,
            (Err(Refusal::Exists), Why::CreateGuard) => *look = Look::Unknown,
            (Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_))), _) => {
                let why = refused.message();
                tracing::warn!(
                    kind = guard.kind().kind,
                    name = guard.name(),
                    why,
                    "the binding's guard is not in force"
                );
                self.guards.troubles[guard as usize] = Some(Trouble::Refused(why.into()));
                dirty.mark(Key::Binding);
                self.admit_all(now, dirty);
                return;
            }
            (Err(_), _) => return,
        }
        dirty.mark(Key::Binding);
        dirty.mark(Key::Guard(guard));
    }
}
