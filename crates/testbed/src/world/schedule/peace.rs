//! After the faults: one leader is left and does everything that waits, until nothing changes any more, or the
//! run fails. Must not hide changes: a system that keeps writing has not converged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use tapestry_cluster::Side;
use tapestry_engine::Model;

use super::super::journal::{Entry, Failure};
use super::{Faults, Schedule};

/// Converging may take this many times as long as the calm that ends it.
const LONGEST: u32 = 20;

/// What has happened since the faults ended.
struct Peace {
    /// Steady time of the last write or change.
    moved: Duration,
    /// Calls so far.
    calls: usize,
    /// The actors have not had their turn since something changed.
    unsettled: bool,
    /// Everything has been listed and planned once more since anything changed.
    proven: bool,
}

impl<M: Model> Schedule<M> {
    /// Ends all faults, leaves one leader, and runs until nothing has been written for [`Config::calm`](super::Config::calm) and
    /// a last complete list and look at everything brings nothing new. Faults come back with the next step.
    pub fn quiesce(&mut self) -> Result<(), Failure> {
        let faults = std::mem::replace(&mut self.config.faults, Faults::NONE);
        let done = self.come_to_rest();
        self.config.faults = faults;
        done
    }

    fn come_to_rest(&mut self) -> Result<(), Failure> {
        self.outage = None;
        for side in Side::BOTH {
            if !self.world.reachable(side) {
                self.reach(side, true);
                self.resume(side);
            }
        }
        let survivor = self.leave_one();
        self.journal.turn_page();
        let began = self.world.now().steady;
        let mut peace = Peace { moved: began, calls: 0, unsettled: true, proven: false };
        loop {
            self.steps += 1;
            if peace.calls > self.config.patience || self.world.now().steady > began + LONGEST * self.config.calm {
                return Err(self.restless(peace.calls));
            }
            let calls = peace.calls;
            let moved = self.round(survivor, &mut peace)?;
            let now = self.world.now().steady;
            if moved {
                peace.moved = now;
                peace.proven = false;
            } else if peace.calls > calls {
                // The answer of a quiet call may have made work.
            } else if now >= peace.moved + self.config.calm {
                if peace.proven {
                    return Ok(());
                }
                peace.proven = true;
                peace.unsettled = true;
                self.look_again(survivor);
            } else {
                self.wait_until(survivor, peace.moved + self.config.calm);
            }
        }
    }

    /// The calls that are still being made.
    fn restless(&self, calls: usize) -> Failure {
        let latest = self.world.audit.iter().rev().take(calls.min(50)).filter(|done| !(self.quiet)(&done.call));
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for done in latest {
            *counts.entry(format!("{} -> {}", done.call, done.outcome)).or_default() += 1;
        }
        let mut why = format!("not converged: {calls} calls since the faults ended, most recently");
        for (call, count) in counts {
            // Writing to a String cannot fail.
            let _ = write!(why, "\n  {count} x {call}");
        }
        self.fail(why)
    }

    /// All leaders except one end; calls in flight arrive sooner or later, or not.
    fn leave_one(&mut self) -> usize {
        let survivor = self.rng.usize(..self.leaders.len());
        for leader in 0..self.leaders.len() {
            self.leaders[leader].blind = 0;
            self.leaders[leader].frozen = false;
            self.leaders[leader].deposed = 0;
            if leader != survivor {
                self.leaders[leader].retired = true;
                self.kill(leader, "no longer leads", None);
            }
        }
        self.leaders[survivor].retired = false;
        survivor
    }

    /// Does everything that waits once. Returns whether anything changed that must not continue endlessly.
    fn round(&mut self, survivor: usize, peace: &mut Peace) -> Result<bool, Failure> {
        let mut moved = false;
        self.world.advance(super::TICK);
        for late in (0..self.escaped.len()).rev() {
            if self.rng.bool() {
                let (leader, call) = self.escaped.swap_remove(late);
                let _ = self.carry_out(leader, &call)?;
                moved = true;
            }
        }
        if self.leaders[survivor].alive.is_none() {
            self.start_life(survivor);
            moved = true;
        }
        self.deliver_all(survivor);
        self.bookmark(survivor);
        while self.send(survivor) {}
        while let count @ 1.. = self.leaders[survivor].flights().iter().filter(|flight| flight.done.is_none()).count() {
            let nth = self.rng.usize(..count);
            peace.calls += 1;
            let call = self.leaders[survivor].flights().iter().filter(|flight| flight.done.is_none()).nth(nth);
            moved |= call.is_some_and(|flight| !(self.quiet)(&flight.call));
            self.execute(survivor, nth)?;
            // Facts and answers come in any order, also without faults.
            if self.rng.bool() {
                self.answer(survivor, 0);
            }
        }
        while !self.leaders[survivor].flights().is_empty() {
            self.answer(survivor, 0);
        }
        // Endless calls concern no actor; everything else may.
        if moved || peace.unsettled {
            peace.unsettled = false;
            for actor in &mut self.actors {
                peace.unsettled |= actor.settle(&mut self.world, &mut self.rng);
            }
            moved |= peace.unsettled;
            self.note_changes();
        }
        Ok(moved || !self.escaped.is_empty())
    }

    fn deliver_all(&mut self, leader: usize) {
        let observers = self.leaders[leader].alive.as_ref().map_or(0, |alive| alive.observers.len());
        for observer in 0..observers {
            while self.leaders[leader].alive.as_mut().is_some_and(|alive| alive.observers[observer].waits(&self.world))
            {
                let most = self.rng.usize(1..10);
                self.deliver(leader, observer, most);
            }
        }
    }

    /// A converged system plans nothing from a complete list either.
    fn look_again(&mut self, leader: usize) {
        for side in Side::BOTH {
            self.relist(leader, Some(side));
        }
        self.deliver_all(leader);
        if let Some(alive) = &mut self.leaders[leader].alive {
            alive.desk.replan();
        }
        self.note(Entry::Leader { leader, what: "plans everything once more" });
    }

    /// Lets time pass to the next moment that the leader waits for, but not beyond `until`.
    fn wait_until(&mut self, leader: usize, until: Duration) {
        let now = self.world.now().steady;
        let Some(alive) = &mut self.leaders[leader].alive else { return };
        let wake = alive.desk.wake_at(self.world.now()).into_iter().chain([alive.replan_at, until]).min();
        self.world.advance(wake.unwrap_or(until).saturating_sub(now));
    }
}
