//! The settings of a run: how many leaders, how likely each fault, how long to wait for convergence.
//! Everything is data, so that a test turns on exactly what it is about.

use std::time::Duration;

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// Decides everything random.
    pub seed: u64,
    /// How many leaders believe that they lead.
    pub leaders: usize,
    /// What goes wrong.
    pub faults: Faults,
    /// How long, in simulated time, nothing may be written before a run counts as converged. Longer than any wait that
    /// matters: the desk backs off for five minutes at most. (The run does not wait for the full re-plan, but triggers it
    /// at the end.)
    pub calm: Duration,
    /// How many calls may be made after the faults have ended before the run fails as not converging.
    pub patience: usize,
    /// How many steps a failure prints.
    pub journal: usize,
}

/// The chance of each fault. Those of a call are per call, the others per step.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// A call: it is carried out, but its answer is lost.
    pub lose_answer: f64,
    /// A call: it never arrives, and its leader does not know.
    pub lose_call: f64,
    /// A call: its deadline passes while it is in flight, and it is carried out later.
    pub late_call: f64,
    /// A call: the server asks to come back later.
    pub busy: f64,
    /// An eviction of a running pod: a disruption budget forbids it for now.
    pub budget: f64,
    /// A delivery: several changes at once, coalesced per object.
    pub coalesce: f64,
    /// A watch shows again what it has shown before.
    pub replay: f64,
    /// A watch starts over: what happened meanwhile is only seen in the new list.
    pub relist: f64,
    /// A leader gets no events for a long while, but keeps working.
    pub blind: f64,
    /// A leader may not lead for a while. It still gets all events, and knows no more than the others when it leads again.
    pub depose: f64,
    /// A leader crashes; its calls in flight may still arrive, at any time.
    pub crash: f64,
    /// A side cannot be reached for a while.
    pub outage: f64,
    /// Time jumps by minutes.
    pub leap: f64,
}

impl Faults {
    /// A run in which things happen in any order, but nothing goes wrong.
    pub const NONE: Self = Self {
        lose_answer: 0.0,
        lose_call: 0.0,
        late_call: 0.0,
        busy: 0.0,
        budget: 0.0,
        coalesce: 0.3,
        replay: 0.0,
        relist: 0.0,
        blind: 0.0,
        depose: 0.0,
        crash: 0.0,
        outage: 0.0,
        leap: 0.0,
    };

    /// Every fault happens, now and then.
    pub const ALL: Self = Self {
        lose_answer: 0.05,
        lose_call: 0.05,
        late_call: 0.05,
        busy: 0.02,
        budget: 0.3,
        coalesce: 0.3,
        replay: 0.02,
        relist: 0.01,
        blind: 0.005,
        depose: 0.005,
        crash: 0.005,
        outage: 0.003,
        leap: 0.005,
    };
}

impl Config {
    /// One leader and every fault.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, leaders: 1, faults: Faults::ALL, calm: Duration::from_mins(6), patience: 5000, journal: 120 }
    }

    /// With these faults.
    #[must_use]
    pub fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// With this many leaders at once.
    #[must_use]
    pub fn leaders(self, leaders: usize) -> Self {
        Self { leaders, ..self }
    }
}
