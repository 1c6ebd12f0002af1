//! What a component is to the engine: facts in, at most one call per key out, all of it pure.
//! No I/O, no clock, no lock, no randomness in anything that implements this.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use tapestry_cluster::{Answer, Call, Refusal, Side};

use crate::Now;

/// Everything that is known about one pair of clusters, and what follows from it.
pub trait Model {
    /// What work is about: one object, seen from both sides.
    type Key: Clone + Eq + Hash + Ord + Debug;
    /// A fact: a watch event, a connection's state, a tick.
    type Fact;

    /// Folds a fact in and names the keys it may concern.
    fn observe(&mut self, seen: Self::Fact, now: Now, dirty: &mut Dirty<Self::Key>);

    /// What to do about a key. Planning twice from the same facts gives the same plan.
    fn plan(&self, key: &Self::Key, now: Now) -> Plan;

    /// Folds in how a call ended. Only this believes that a call happened. Not told of a call that was never sent because we do
    /// not lead any more.
    fn settle(
        &mut self,
        key: &Self::Key,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Self::Key>,
    );

    /// We lead from now on; every key is planned after this. What only answers can tell may have changed under another leader.
    fn take_lead(&mut self, _now: Now) {}

    /// Another one leads from now on.
    fn follow(&mut self) {}

    /// The API server does not let us take part in the election, and no process leads as far as can be told: every key is planned
    /// after this, and only what may be done by several processes at a time. Only where [`crate::lead::Leadership::or_stand_in`]
    /// allows it. Ends with `take_lead` or `follow`.
    fn stand_in(&mut self, _why: &str, _now: Now) {}

    /// The process did not run for a while: it was frozen, or the machine slept. What is known may be old although nothing says
    /// so; the facts that came meanwhile are folded in after this, and every key is planned then.
    fn gap(&mut self, _now: Now) {}

    /// All keys there is something to say about: the full re-plan.
    fn keys(&self) -> Vec<Self::Key>;

    /// To which side the call of this key would probably go: a guess that is cheaper than a plan, and may be wrong.
    /// Keys whose side has no room are not even planned.
    fn side(&self, _key: &Self::Key) -> Option<Side> {
        None
    }

    /// Whether work on this key has begun. A busy cluster gets such keys before those that have not, so that objects are finished
    /// before others are started.
    fn begun(&self, _key: &Self::Key) -> bool {
        false
    }

    /// Keys that go before the others, because somebody's timer runs (leases).
    fn urgent(_key: &Self::Key) -> bool {
        false
    }
}

/// What to do about one key now.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// Nothing, until a fact says otherwise.
    Rest,
    /// Nothing before this steady time.
    Wait(Duration),
    /// This call.
    Do(Box<Call>),
}

impl From<Call> for Plan {
    fn from(call: Call) -> Self {
        Self::Do(Box::new(call))
    }
}

/// Keys that a fact may concern, collected while it is folded in.
#[derive(Debug)]
pub struct Dirty<K> {
    pub(crate) keys: Vec<K>,
    /// Keys whose penalty ends with this fact.
    pub(crate) urged: Vec<K>,
    pub(crate) all: bool,
    pub(crate) all_urged: bool,
}

impl<K> Default for Dirty<K> {
    fn default() -> Self {
        Self { keys: Vec::new(), urged: Vec::new(), all: false, all_urged: false }
    }
}

impl<K> Dirty<K> {
    /// This key may need a new plan.
    pub fn mark(&mut self, key: K) {
        self.keys.push(key);
    }

    /// This key needs a new plan now, whatever went wrong with it before: somebody asked for something else.
    pub fn urge(&mut self, key: K) {
        self.urged.push(key);
    }

    /// Every key may need a new plan.
    pub fn mark_all(&mut self) {
        self.all = true;
    }

    /// What was collected for a part of the model, under other keys.
    pub fn take<P>(&mut self, part: Dirty<P>, wrap: impl Fn(P) -> K) {
        let Dirty { keys, urged, all, all_urged } = part;
        self.keys.extend(keys.into_iter().map(&wrap));
        self.urged.extend(urged.into_iter().map(&wrap));
        (self.all, self.all_urged) = (self.all || all, self.all_urged || all_urged);
    }

    /// Every key needs one now: what went wrong before went wrong under other circumstances.
    pub fn urge_all(&mut self) {
        (self.all, self.all_urged) = (true, true);
    }
}
