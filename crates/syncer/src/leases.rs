//! Node Leases of the virtual nodes, a room of the keeper: they tell the virtual cluster that a syncer serves the nodes.
//! Writes `kube-node-lease/<vnode>`; renews whatever becomes of the physical cluster and the binding, because outages never kill.
//! Each has its own moment in every ten seconds, so that a thousand of them are no burst.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tapestry_api::keys;
use tapestry_cluster::{Answer, Name, Refusal, Side, Sub, Target, Uid, Verb, kind};
use tapestry_engine::{Now, Plan, Reason as _, reasons};

use crate::origin::Origin;

/// How often.
pub const RENEW_EVERY: Duration = Duration::from_secs(10);
/// How long a Lease holds.
pub(crate) const LEASE_SECONDS: u32 = 40;
/// A Lease older than this is renewed before anything else: at 50 s Kubernetes calls the node dead.
const OLD: Duration = Duration::from_secs(20);
/// The smallest step of a Lease's time.
const TICK: Duration = Duration::from_micros(1);
/// Where Kubernetes looks for them.
pub(crate) const NAMESPACE: &str = "kube-node-lease";

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// Whether a node has a Lease, and how old it is.
        LookForLease,
        /// A new node has none.
        CreateLease,
        /// Every ten seconds.
        RenewLease,
    }
}

/// What is known of the Leases, by virtual node.
#[derive(Default)]
pub(crate) struct Leases {
    states: HashMap<Name, State, RandomState>,
    turns: Turns,
}

enum State {
    Absent,
    Held { uid: Uid, turn: Duration, renew_at: Duration, renewed: Option<Timestamp>, origin: Option<Box<str>> },
}

impl Leases {
    pub(crate) fn forget(&mut self, vnode: &Name) {
        self.states.remove(vnode);
    }

    /// A virtual node was made just now: it has no Lease yet, and a look for one would cost two reads.
    pub(crate) fn expect_none(&mut self, vnode: &Name) {
        self.states.entry(vnode.clone()).or_insert(State::Absent);
    }

    fn turn(&mut self, vnode: &Name) -> Duration {
        match self.states.get(vnode) {
            Some(State::Held { turn, .. }) => *turn,
            _ => self.turns.next(),
        }
    }
}

/// Hands out moments within the ten seconds, each far from those before it.
#[derive(Default)]
struct Turns(u64);

impl Turns {
    fn next(&mut self) -> Duration {
        // Multiples of the golden ratio: however many there are, no second gets more than its share (and two).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let nanos = (u128::from(self.0) * RENEW_EVERY.as_nanos()) >> 64;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

/// When its turn next comes, at the earliest then. One that was late goes back to its own moment: Leases that a slow API server
/// delayed together would otherwise be renewed together from then on.
fn next_turn(turn: Duration, earliest: Duration) -> Duration {
    let rounds = earliest.saturating_sub(turn).as_nanos().div_ceil(RENEW_EVERY.as_nanos());
    turn + RENEW_EVERY * u32::try_from(rounds).unwrap_or(u32::MAX)
}

impl Leases {
    /// What to do about the Lease of the virtual node of this name and UID. It carries our origin: when the node has lost its
    /// marks, the Lease says whose it is.
    pub(crate) fn plan(&self, vnode: &Name, uid: &Uid, origin: &Origin, now: Now) -> Plan<Why> {
        let Ok(namespace) = Name::parse(NAMESPACE) else { return Plan::Rest };
        let target = Target::namespaced(Side::Virtual, &kind::LEASE, namespace, vnode.clone());
        let state = self.states.get(vnode);
        let spec = json!({
            "holderIdentity": vnode.as_str(), "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": format!("{:.6}", renew_time(state, now.wall)),
        });
        let marks = json!({keys::ORIGIN: origin.full});
        match state {
            None => Why::LookForLease.call(target, Verb::Peek),
            Some(State::Absent) => {
                let owner = json!({"apiVersion": "v1", "kind": "Node", "name": vnode.as_str(), "uid": uid.as_str()});
                let body = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
                    "metadata": {
                        "name": vnode.as_str(), "namespace": NAMESPACE, "ownerReferences": [owner], "annotations": marks,
                    },
                });
                Why::CreateLease.call(target, Verb::Create(body))
            }
            Some(State::Held { renew_at, .. }) if *renew_at > now.steady => Plan::Wait(*renew_at),
            Some(State::Held { uid, origin: marked, .. }) => {
                let mut patch = json!({"spec": spec});
                if marked.as_ref() != Some(&origin.full) {
                    patch["metadata"]["annotations"] = marks;
                }
                Why::RenewLease.call(target.uid(uid), Verb::Merge(Sub::Main, patch))
            }
        }
    }

    /// Folds in how a call ended; says whether something was learnt.
    pub(crate) fn settle(&mut self, vnode: &Name, why: Why, done: &Result<Answer, Refusal>, now: Now) -> bool {
        let state = match done {
            Ok(answer) => read(answer).map(|(uid, renewed, origin)| {
                let turn = self.turn(vnode);
                let age = age(renewed, now);
                let renew_at = match why {
                    Why::LookForLease if age > OLD => now.steady,
                    // It came late at worst: its own moment is not ten seconds away.
                    Why::RenewLease => next_turn(turn, now.steady + RENEW_EVERY / 2),
                    // Not before it is due: a thousand new ones would be written twice in a row.
                    Why::LookForLease | Why::CreateLease => {
                        next_turn(turn, now.steady + RENEW_EVERY.saturating_sub(age))
                    }
                };
                State::Held { uid, turn, renew_at, renewed, origin }
            }),
            Err(Refusal::Gone) => Some(State::Absent),
            Err(Refusal::Exists | Refusal::Replaced) => None,
            Err(_) => return false,
        };
        match state {
            Some(state) => drop(self.states.insert(vnode.clone(), state)),
            None => self.forget(vnode),
        }
        true
    }
}

/// The controller-manager counts a renewal only if its time is later than that of the last one. A clock that was set back
/// would make the node look dead until it has caught up, so time does not go back here.
fn renew_time(state: Option<&State>, now: Timestamp) -> Timestamp {
    let Some(State::Held { renewed: Some(renewed), .. }) = state else { return now };
    now.max(renewed.checked_add(TICK).unwrap_or(now))
}

fn age(renewed: Option<Timestamp>, now: Now) -> Duration {
    renewed.map_or(Duration::MAX, |renewed| now.wall.duration_since(renewed).unsigned_abs())
}

fn read(answer: &Answer) -> Option<(Uid, Option<Timestamp>, Option<Box<str>>)> {
    #[derive(Deserialize)]
    struct Lease {
        metadata: Metadata,
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: Uid,
        #[serde(default)]
        annotations: HashMap<String, Box<str>>,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        renew_time: Option<String>,
    }
    let Lease { mut metadata, spec } = serde_json::from_slice(&answer.object).ok()?;
    let origin = metadata.annotations.remove(keys::ORIGIN);
    Some((metadata.uid, spec.renew_time.and_then(|time| time.parse().ok()), origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most that come within one second, wherever it begins; the last second goes over into the first.
    fn fullest_second(mut moments: Vec<Duration>) -> usize {
        moments.sort_unstable();
        let again: Vec<_> = moments.iter().map(|moment| *moment + RENEW_EVERY).collect();
        moments.extend(again);
        let second = |begin: &Duration| {
            moments.iter().filter(|moment| (*begin..*begin + Duration::from_secs(1)).contains(*moment)).count()
        };
        moments.iter().map(second).max().unwrap_or(0)
    }

    #[test]
    fn renewals_of_many_nodes_are_spread_evenly() {
        for nodes in [10_usize, 57, 1000, 5000] {
            let mut turns = Turns::default();
            let most = fullest_second((0..nodes).map(|_| turns.next()).collect());
            assert!(most <= nodes / 10 + 3, "{most} of {nodes}");
        }
    }

    #[test]
    fn renewals_that_were_held_up_together_go_back_to_their_own_moments() {
        let mut turns = Turns::default();
        let turns: Vec<_> = (0..1000).map(|_| turns.next()).collect();
        // All that were due within three seconds are answered at once.
        let answered = Duration::from_secs(1003);
        let late = turns.into_iter().filter(|turn| *turn < Duration::from_secs(3));
        let next: Vec<_> = late.map(|turn| next_turn(turn, answered + RENEW_EVERY / 2)).collect();
        assert!(fullest_second(next.clone()) <= 103);
        let soon = (answered + RENEW_EVERY / 2)..=(answered + RENEW_EVERY * 3 / 2);
        assert!(next.iter().all(|at| soon.contains(at)), "neither at once nor late");
    }

    #[test]
    fn a_turn_comes_once_in_ten_seconds() {
        let turn = Duration::from_millis(2500);
        let next = |earliest: u64| next_turn(turn, Duration::from_millis(earliest)).as_millis();
        assert_eq!([0, 2500, 2600, 12500, 13000].map(next), [2500, 2500, 12500, 12500, 22500]);
    }
}
