//! The life of a call: sent, carried out or lost, answered or not.
//! The only place where a leader's call meets a server; every rule is checked here.

use std::sync::Arc;
use std::time::Duration;

use tapestry_cluster::{Answer, Call, Name, Refusal};
use tapestry_engine::Model;
use tapestry_engine::run::REPLAN_EVERY;

use super::super::journal::{Entry, Failure};
use super::super::server::Denial;
use super::super::{Executed, server};
use super::{Faults, Flight, Leader, Schedule};

/// One in this many executed calls is one whose leader has ended.
const SLOW: u8 = 16;

impl<M: Model> Schedule<M> {
    /// Lets some leader send its next call.
    pub(super) fn send_one(&mut self) -> bool {
        let shift = self.rng.usize(..self.leaders.len());
        (0..self.leaders.len()).any(|place| self.send((place + shift) % self.leaders.len()))
    }

    /// Lets a leader send its next call.
    pub(super) fn send(&mut self, leader: usize) -> bool {
        let now = self.world.now();
        let deposed = self.leaders[leader].deposed > 0;
        if self.leaders[leader].frozen {
            return false;
        }
        let Some(alive) = &mut self.leaders[leader].alive else { return false };
        if deposed {
            alive.desk.follow();
            return false;
        }
        if !alive.desk.leads() {
            alive.desk.lead(now);
        }
        if now.steady >= alive.replan_at {
            alive.replan_at = now.steady + REPLAN_EVERY;
            alive.desk.replan();
        }
        let Some((key, why, call)) = alive.desk.next(now) else { return false };
        let call = Arc::new(call);
        alive.flights.push(Flight { key, why, call: Arc::clone(&call), done: None });
        self.note(Entry::Sent { leader, call });
        true
    }

    /// Lets one of the calls in flight arrive, or not.
    pub(super) fn execute_one(&mut self) -> Result<bool, Failure> {
        // A call whose leader has ended may take long: the worst moment is rarely the next one.
        if !self.escaped.is_empty() && self.rng.u8(..SLOW) == 0 {
            let pick = self.rng.usize(..self.escaped.len());
            let (leader, call) = self.escaped.swap_remove(pick);
            if self.world.reaches(&call) {
                // No leader gets the answer.
                let _ = self.carry_out(leader, &call)?;
            }
            return Ok(true);
        }
        let waiting = |leader: &Leader<M>| leader.flights().iter().filter(|flight| flight.done.is_none()).count();
        let counts: Vec<usize> = self.leaders.iter().map(waiting).collect();
        let all = counts.iter().sum::<usize>();
        if all == 0 {
            return Ok(false);
        }
        let mut pick = self.rng.usize(..all);
        for (leader, count) in counts.into_iter().enumerate() {
            if pick < count {
                self.execute(leader, pick)?;
                return Ok(true);
            }
            pick -= count;
        }
        Ok(false)
    }

    /// Executes the n-th call of a leader that has no outcome yet.
    pub(super) fn execute(&mut self, leader: usize, nth: usize) -> Result<(), Failure> {
        let mut waiting = self.leaders[leader].flights().iter().enumerate().filter(|(_, flight)| flight.done.is_none());
        let Some((place, flight)) = waiting.nth(nth) else { return Ok(()) };
        let call = Arc::clone(&flight.call);
        let Faults { lose_call, late_call, busy, lose_answer, .. } = self.config.faults;
        let lost = |why: &str| Err(Refusal::Unknown(why.to_owned()));
        // Half of the calls of a deposed leader had passed the gate before.
        let stopped = self.leaders[leader].deposed > 0 && self.rng.bool();
        let done = if stopped {
            Err(Refusal::NotLeading)
        } else if !self.world.reaches(&call) {
            lost("the cluster cannot be reached")
        } else if self.chance(lose_call) {
            lost("the request was lost")
        } else if self.chance(busy) {
            Err(Refusal::Later(Duration::from_secs(1)))
        } else if self.chance(late_call) {
            self.escaped.push((leader, Arc::clone(&call)));
            lost("no answer in time")
        } else {
            let done = self.carry_out(leader, &call)?;
            if self.crash.is_some_and(|crash| crash.call == self.executed) {
                let escape = self.crash.map(|crash| crash.escape);
                self.leaders[leader].forget(place);
                self.kill(leader, "crashes before it gets the answer", escape);
                return Ok(());
            }
            if self.chance(lose_answer) { lost("the answer was lost") } else { done }
        };
        if let Some(alive) = &mut self.leaders[leader].alive {
            alive.flights[place].done = Some(done);
        }
        Ok(())
    }

    /// The moment at which a call takes effect.
    pub(super) fn carry_out(&mut self, leader: usize, call: &Arc<Call>) -> Result<Result<Answer, Refusal>, Failure> {
        for hook in &self.hooks {
            if let Err(why) = hook(&self.world, leader, call) {
                return Err(self.fail(format!("leader {leader}'s {call}: {why}")));
            }
        }
        let (side, namespace) = (call.target.side, call.target.namespace.as_ref().map(Name::as_str));
        let path = server::path(namespace, call.target.name.as_str());
        let before = self.world.server(side).find(call.target.kind, &path).cloned();
        let version = self.world.server(side).rv();
        let forbidden = self.world.server(side).asks_budget(call) && self.chance(self.config.faults.budget);
        let done = if forbidden { Err(Denial::disruption_budget().classify(call)) } else { self.world.call(call) };
        let outcome = outcome(&done);
        let changed = self.world.server(side).rv() != version;
        self.executed += 1;
        let at = self.world.now();
        self.world.audit.push(Executed { leader, at, call: Arc::clone(call), before, outcome, changed });
        self.note(Entry::Executed { leader, call: Arc::clone(call), outcome });
        self.note_changes();
        if changed {
            for rule in &self.rules {
                rule(&self.world).map_err(|why| self.fail(format!("after leader {leader}'s {call}: {why}")))?;
            }
        }
        Ok(done)
    }

    /// Gives some leader the outcome of one of its calls.
    pub(super) fn answer_one(&mut self) -> bool {
        let answered = |leader: &Leader<M>| {
            let hears = !leader.frozen;
            leader.flights().iter().filter(|flight| hears && flight.done.is_some()).count()
        };
        let counts: Vec<usize> = self.leaders.iter().map(answered).collect();
        let all: usize = counts.iter().sum();
        if all == 0 {
            return false;
        }
        let mut pick = self.rng.usize(..all);
        for (leader, count) in counts.into_iter().enumerate() {
            if pick < count {
                self.answer(leader, pick);
                return true;
            }
            pick -= count;
        }
        false
    }

    /// Gives a leader the outcome of its n-th call that has one.
    pub(super) fn answer(&mut self, leader: usize, nth: usize) {
        let now = self.world.now();
        let Some(alive) = &mut self.leaders[leader].alive else { return };
        let mut answered = alive.flights.iter().enumerate().filter(|(_, flight)| flight.done.is_some());
        let Some((place, _)) = answered.nth(nth) else { return };
        let Flight { key, why, call, done } = alive.flights.remove(place);
        let Some(done) = done else { return };
        let outcome = outcome(&done);
        alive.desk.done(&key, why, &call, done, now);
        self.note(Entry::Answered { leader, call, outcome });
    }
}

fn outcome(done: &Result<Answer, Refusal>) -> &'static str {
    done.as_ref().map_or_else(Refusal::reason, |_| "Ok")
}
