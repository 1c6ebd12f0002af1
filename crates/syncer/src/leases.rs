//! Node Leases of the virtual nodes: says to the virtual cluster that somebody looks after them.
//! Writes `kube-node-lease/<vnode>`; renews whatever the physical cluster does, because outages never kill.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Sub, Target, Uid, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan};

use crate::json::stable_hash;
use crate::pair::{Key, Pair};

/// How often.
pub const RENEW_EVERY: Duration = Duration::from_secs(10);
/// How long a Lease holds.
const LEASE_SECONDS: u32 = 40;
/// A Lease older than this is renewed before anything else: at 50 s Kubernetes calls the node dead.
const OLD: Duration = Duration::from_secs(20);
/// Where Kubernetes looks for them.
pub(crate) const NAMESPACE: &str = "kube-node-lease";

/// What is known of the Leases, by virtual node.
#[derive(Default)]
pub(crate) struct Leases {
    states: HashMap<Name, State, RandomState>,
}

enum State {
    Absent,
    Held { uid: Uid, renew_at: Duration },
}

impl Leases {
    pub(crate) fn forget(&mut self, vnode: &Name) {
        self.states.remove(vnode);
    }
}

impl Pair {
    pub(crate) fn plan_lease(&self, vnode: &Name, now: Now) -> Plan {
        // Whatever the physical cluster does: a silent one must not look like a dead node.
        let (Some(row), true) = (self.nodes.vnode(vnode), self.at_home()) else { return Plan::Rest };
        let Ok(namespace) = Name::parse(NAMESPACE) else { return Plan::Rest };
        let target = Target::namespaced(Side::Virtual, &kind::LEASE, namespace, vnode.clone());
        let spec = json!({
            "holderIdentity": vnode.as_str(), "leaseDurationSeconds": LEASE_SECONDS, "renewTime": format!("{:.6}", now.wall),
        });
        match self.leases.states.get(vnode) {
            None => Call { target, verb: Verb::Get, why: "LookForLease" }.into(),
            Some(State::Absent) => {
                let owner =
                    json!({"apiVersion": "v1", "kind": "Node", "name": vnode.as_str(), "uid": row.uid.as_str()});
                let body = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
                    "metadata": {"name": vnode.as_str(), "namespace": NAMESPACE, "ownerReferences": [owner]},
                });
                Call { target, verb: Verb::Create(body), why: "CreateLease" }.into()
            }
            Some(State::Held { renew_at, .. }) if *renew_at > now.steady => Plan::Wait(*renew_at),
            Some(State::Held { uid, .. }) => {
                let verb = Verb::Merge(Sub::Main, json!({"spec": spec}));
                Call { target: target.uid(uid), verb, why: "RenewLease" }.into()
            }
        }
    }

    pub(crate) fn settle_lease(
        &mut self,
        vnode: &Name,
        call: &Call,
        done: &Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        if self.nodes.vnode(vnode).is_none() {
            return self.leases.forget(vnode);
        }
        let state = match done {
            Ok(answer) => read(answer).map(|(uid, renewed)| {
                let wait = match call.verb {
                    Verb::Merge(..) => RENEW_EVERY,
                    _ if !matches!(call.verb, Verb::Create(_)) && age(renewed, now) > OLD => Duration::ZERO,
                    // From the first renewal on they are spread evenly, and stay so.
                    _ => RENEW_EVERY
                        .mul_f64(f64::from(u16::try_from(stable_hash(vnode.as_str()) % 1000).unwrap_or(0)) / 1000.0),
                };
                State::Held { uid, renew_at: now.steady + wait }
            }),
            Err(Refusal::Gone) => Some(State::Absent),
            Err(Refusal::Exists | Refusal::Replaced) => None,
            Err(_) => return,
        };
        match state {
            Some(state) => drop(self.leases.states.insert(vnode.clone(), state)),
            None => self.leases.forget(vnode),
        }
        dirty.mark(Key::Lease(vnode.clone()));
    }
}

fn age(renewed: Option<Timestamp>, now: Now) -> Duration {
    renewed.map_or(Duration::MAX, |renewed| now.wall.duration_since(renewed).unsigned_abs())
}

fn read(answer: &Answer) -> Option<(Uid, Option<Timestamp>)> {
    #[derive(Deserialize)]
    struct Lease {
        metadata: Metadata,
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: Uid,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        renew_time: Option<String>,
    }
    let lease: Lease = serde_json::from_slice(&answer.object).ok()?;
    Some((lease.metadata.uid, lease.spec.renew_time.and_then(|time| time.parse().ok())))
}
