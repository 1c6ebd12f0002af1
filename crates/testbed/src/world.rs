//! Two API servers and a clock in memory, and a seeded driver that runs whole Models against them with every fault it
//! has. No tokio, no real time, no global state: one seed decides everything.
//!
//! Real servers prove what Kubernetes does; World proves what we do.
//! | room | contents |
//! |---|---|
//! | [`server`] | an API server: objects, versions, preconditions, graceful deletion, a log |
//! | `carry` | calls that consist of several requests |
//! | [`observer`] | a watch, as one leader sees it: late, coalesced, started over |
//! | [`schedule`] | leaders, actors and faults; one step at a time, then no faults |
//! | [`kubelet`] | scheduler and kubelets of one side, as an actor |
//! | [`controller`] | the controller-manager of one side, as an actor |
//! | [`volumes`] | the volume controller of one side, as an actor |
//! | [`crash`] | the same run again and again, with a crash after every call |

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tapestry_cluster::call::carry::Carry;
use tapestry_cluster::call::token::Tokens;
use tapestry_cluster::{Answer, Call, Kind, Refusal, Side};
use tapestry_engine::Now;

mod carry;
pub mod controller;
pub mod crash;
pub mod journal;
pub mod kubelet;
pub mod observer;
mod patch;
pub mod schedule;
pub mod server;
mod strategy;
pub mod volumes;

pub use controller::ControllerManager;
pub use crash::{exhaustive_crash, explore};
pub use journal::Failure;
pub use kubelet::{ABSENT_SCHEDULER, Kubelet, set_condition};
pub use observer::{Observer, View};
pub use schedule::{Actor, Birth, Config, Faults, Life, Schedule};
pub use server::{Server, Serving, Version};
pub use volumes::{Destroyed, VolumeController};

/// Two clusters and the time.
pub struct World {
    servers: [Server; 2],
    reachable: [bool; 2],
    now: Now,
    /// Every call of a leader that reached a server, oldest first.
    pub audit: Vec<Executed>,
}

/// A call that reached a server.
#[derive(Debug, Clone)]
pub struct Executed {
    /// Which leader made it.
    pub leader: usize,
    /// When it took effect.
    pub at: Now,
    /// The call.
    pub call: Arc<Call>,
    /// The object that the target named, as it was before.
    pub before: Option<Arc<Version>>,
    /// `Ok`, or why it was refused. The leader may never have got the answer.
    pub outcome: &'static str,
    /// Whether it changed anything.
    pub changed: bool,
}

/// Monday 2026-01-05, midnight UTC.
const START: i64 = 1_767_571_200;

impl Default for World {
    fn default() -> Self {
        let wall = Timestamp::from_second(START).unwrap_or_default();
        Self {
            servers: Side::BOTH.map(|side| Server::new(side, wall)),
            reachable: [true; 2],
            now: Now { wall, steady: Duration::ZERO },
            audit: Vec::new(),
        }
    }
}

impl World {
    /// This moment.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// Lets time pass.
    pub fn advance(&mut self, by: Duration) {
        self.now = Now { wall: self.now.wall + by, steady: self.now.steady + by };
    }

    /// One of the two servers.
    #[must_use]
    pub fn server(&self, side: Side) -> &Server {
        &self.servers[index(side)]
    }

    /// Whether leaders reach this side.
    #[must_use]
    pub fn reachable(&self, side: Side) -> bool {
        self.reachable[index(side)]
    }

    pub(crate) fn reach(&mut self, side: Side, reachable: bool) {
        self.reachable[index(side)] = reachable;
    }

    /// Whether leaders reach all servers that a call needs.
    #[must_use]
    pub fn reaches(&self, call: &Call) -> bool {
        self.reachable(call.target.side) && call.needs().iter().all(|need| self.reachable(need.side))
    }

    /// Carries out a call at its server, at this moment; at both, if it needs both.
    pub fn call(&mut self, call: &Call) -> Result<Answer, Refusal> {
        if let Some(carry) = Carry::of(call) {
            return self.carry(carry);
        }
        if let Some(tokens) = Tokens::of(call) {
            return self.issue_tokens(tokens);
        }
        self.servers[index(call.target.side)].call(call, self.now.wall)
    }

    /// The object at `namespace/name`, or `name` for a cluster-scoped kind.
    #[must_use]
    pub fn get(&self, side: Side, kind: &Kind, path: &str) -> Option<&Value> {
        self.server(side).find(kind, path).map(|object| object.value())
    }

    /// All objects of a kind, in order of their paths.
    pub fn list(&self, side: Side, kind: &Kind) -> impl Iterator<Item = &Value> {
        self.server(side).all(kind).map(|object| object.value())
    }

    /// Creates an object as another client would; `apiVersion`, `kind` and a missing namespace (`default`) are filled in.
    /// Returns whether it was new: an object of that name may exist.
    ///
    /// # Panics
    /// When the server finds the object invalid: the test itself is wrong.
    #[track_caller]
    pub fn make(&mut self, side: Side, kind: &'static Kind, object: impl Into<Value>) -> bool {
        let mut object: Value = object.into();
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.into();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let namespace = kind.namespaced.then_some(namespace.as_str());
        match self.servers[index(side)].create(kind, namespace, &object, self.now.wall) {
            Ok(_) => true,
            Err(denial) if denial.is_exists() => false,
            Err(denial) => panic!("{} {}: {denial}", side.as_str(), kind.plural),
        }
    }

    /// Changes an object without the rules of patches, as users, schedulers and kubelets do through their own
    /// paths. Fields that only servers write are kept. Returns whether anything changed.
    pub fn edit(&mut self, side: Side, kind: &'static Kind, path: &str, change: impl FnOnce(&mut Value)) -> bool {
        self.servers[index(side)].edit(kind, path, change)
    }

    /// Deletes an object as another client would; `None` leaves the grace period to it. Returns whether it existed.
    pub fn delete(&mut self, side: Side, kind: &'static Kind, path: &str, grace: Option<u32>) -> bool {
        let server = &mut self.servers[index(side)];
        let Some(object) = server.find(kind, path).cloned() else { return false };
        server.end(kind, path, &object, grace.map(u64::from), self.now.wall);
        true
    }

    /// Serves a kind in another way from now on. Watches of a kind that is not served report it; when it is served again they
    /// list it.
    pub fn serve(&mut self, side: Side, kind: &'static Kind, serving: Serving) {
        self.servers[index(side)].serve(kind, serving);
    }

    /// The path of a random object of a kind; `None` when none fits.
    pub fn pick(
        &self,
        side: Side,
        kind: &Kind,
        rng: &mut fastrand::Rng,
        fits: impl Fn(&Value) -> bool,
    ) -> Option<String> {
        let all: Vec<_> = self.server(side).all(kind).filter(|object| fits(object.value())).collect();
        rng.choice(all).map(|object| object.path())
    }
}

fn index(side: Side) -> usize {
    match side {
        Side::Virtual => 0,
        Side::Physical => 1,
    }
}

#[cfg(test)]
mod tests;
