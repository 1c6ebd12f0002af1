//! What a component is to the engine: facts in, at most one call per key out, all of it pure.
//! No I/O, no clock, no lock, no randomness in anything that implements this.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use tapestry_cluster::{Answer, Call, Refusal, Side, Target, Verb};

use crate::Now;

/// Everything that is known about one pair of clusters, and what follows from it.
pub trait Model {
    /// What work is about: one object, seen from both sides.
    type Key: Clone + Eq + Hash + Ord + Debug;
    /// A fact: a watch event, a connection's state, a tick.
    type Fact;
    /// What its calls are for; `settle` matches on it.
    type Why: Reason;

    /// Applies a fact and names the keys it may concern.
    fn observe(&mut self, fact: Self::Fact, now: Now, dirty: &mut Dirty<Self::Key>);

    /// What to do about a key. Planning twice from the same facts gives the same plan.
    fn plan(&self, key: &Self::Key, now: Now) -> Plan<Self::Why>;

    /// Applies how a call ended. Only this believes that a call happened. Not called for a call that was never sent because we
    /// no longer lead.
    fn settle(
        &mut self,
        key: &Self::Key,
        why: Self::Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Self::Key>,
    );

    /// We lead from now on; every key is planned after this. State that only answers show may have changed under another leader.
    fn take_lead(&mut self, _now: Now) {}

    /// Another process leads from now on.
    fn follow(&mut self) {}

    /// The API server does not let us take part in the election, and no process leads as far as we know: every key is planned
    /// after this, but only calls that several processes may make at a time. Only where [`crate::lead::Leadership::or_stand_in`]
    /// allows it. Ends with `take_lead` or `follow`.
    fn stand_in(&mut self, _why: &str, _now: Now) {}

    /// The process was frozen for a while, or the machine slept. What is known may be old without any sign of it; the facts
    /// that came meanwhile are applied after this, and then every key is planned.
    fn gap(&mut self, _now: Now) {}

    /// All keys that may need a plan: the full re-plan.
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

    /// Keys that go before the others, because a timer of Kubernetes runs (leases).
    fn urgent(_key: &Self::Key) -> bool {
        false
    }
}

/// What a call is for. A room has an enum of its own, made by [`reasons!`](crate::reasons), so that no code compares texts and a
/// reason that `settle` forgets does not compile.
pub trait Reason: Copy + Eq + Debug {
    /// In `PascalCase`: audit line, metric label.
    fn as_str(self) -> &'static str;

    /// The plan to make this call.
    #[must_use]
    fn call(self, target: Target, verb: Verb) -> Plan<Self> {
        Plan::Do(Box::new(self.call_alone(target, verb)), self)
    }

    /// This call, for what has no plans.
    #[must_use]
    fn call_alone(self, target: Target, verb: Verb) -> Call {
        Call { target, verb, why: self.as_str() }
    }
}

/// An enum that knows all its members, for documents and the tests that compare them.
pub trait Listed: Sized + 'static {
    /// All of them, in the order in which they are written.
    const ALL: &'static [Self];
}

/// What to do about one key now.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan<W> {
    /// Nothing, until a fact says otherwise.
    Rest,
    /// Nothing before this steady time.
    Wait(Duration),
    /// This call, and what it is for. Made by [`Reason::call`].
    Do(Box<Call>, W),
}

impl<W> Plan<W> {
    /// The same plan as part of a larger model.
    pub fn map<V>(self, wrap: impl FnOnce(W) -> V) -> Plan<V> {
        match self {
            Self::Rest => Plan::Rest,
            Self::Wait(until) => Plan::Wait(until),
            Self::Do(call, why) => Plan::Do(call, wrap(why)),
        }
    }

    /// The call, if there is one.
    pub fn call(&self) -> Option<&Call> {
        match self {
            Self::Do(call, _) => Some(call),
            Self::Rest | Self::Wait(_) => None,
        }
    }
}

/// An enum of reasons whose texts are the names of its variants; or, where every variant holds the reasons of a room, theirs.
#[macro_export]
macro_rules! reasons {
    ($(#[$about:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(clippy::enum_variant_names, reason = "they are metric labels, which do not have the name of their room")]
        $vis enum $name { $($(#[$doc])* $variant),+ }

        impl $crate::Reason for $name {
            fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }

        impl $crate::Listed for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];
        }
    };
    ($(#[$about:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident($room:ty)),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[$doc])* $variant($room)),+ }

        impl $crate::Reason for $name {
            fn as_str(self) -> &'static str {
                match self { $(Self::$variant(why) => $crate::Reason::as_str(why)),+ }
            }
        }
    };
}

/// Keys that a fact may concern, collected while it is applied.
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

    /// This key needs a new plan now, whatever went wrong with it before: a user asked for something else.
    pub fn urge(&mut self, key: K) {
        self.urged.push(key);
    }

    /// Every key may need a new plan.
    pub fn mark_all(&mut self) {
        self.all = true;
    }

    /// Adds what was collected for a part of the model, under other keys.
    pub fn take<P>(&mut self, part: Dirty<P>, wrap: impl Fn(P) -> K) {
        let Dirty { keys, urged, all, all_urged } = part;
        self.keys.extend(keys.into_iter().map(&wrap));
        self.urged.extend(urged.into_iter().map(&wrap));
        (self.all, self.all_urged) = (self.all || all, self.all_urged || all_urged);
    }

    /// Every key needs a new plan now: earlier failures happened under other circumstances.
    pub fn urge_all(&mut self) {
        (self.all, self.all_urged) = (true, true);
    }
}
