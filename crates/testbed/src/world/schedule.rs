//! The driver: leaders, actors and faults around a World, one step at a time, in an order that the seed decides.
//! Knows no model and no kind; the test gives the rules that must hold.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tapestry_cluster::{Answer, Call, Refusal, Rv, Side};
use tapestry_engine::run::REPLAN_EVERY;
use tapestry_engine::{Desk, Model, Now};

use super::World;
use super::journal::{Entry, Failure, Journal};
use super::observer::Observer;

mod calls;
mod config;
mod peace;
mod watches;

pub use config::{Config, Faults};

/// An actor other than the leaders: a user, a kubelet, an owner. Closures are actors that stop when the faults do.
pub trait Actor {
    /// May do something.
    fn act(&mut self, world: &mut World, rng: &mut Rng);

    /// After the faults: does only what makes the world converge. Returns whether anything changed.
    fn settle(&mut self, _world: &mut World, _rng: &mut Rng) -> bool {
        false
    }
}

impl<F: FnMut(&mut World, &mut Rng)> Actor for F {
    fn act(&mut self, world: &mut World, rng: &mut Rng) {
        self(world, rng);
    }
}

/// The leader that a model is made for.
#[derive(Debug, Clone, Copy)]
pub struct Birth {
    /// Which leader.
    pub leader: usize,
    /// Its first life is 1.
    pub life: u32,
    /// For what the model draws at random (names).
    pub seed: u64,
    /// This moment.
    pub now: Now,
}

/// A leader's new life: an empty model, its watches, and other facts.
pub struct Life<M: Model> {
    /// Empty, as after a start.
    pub model: M,
    /// Its watches; each begins with a list.
    pub observers: Vec<Observer<M::Fact>>,
    /// Facts that it gets at its start.
    pub facts: Vec<M::Fact>,
}

/// Makes a new life.
type Factory<M> = Box<dyn FnMut(Birth) -> Life<M>>;
/// Must hold after every call.
type Rule = Box<dyn Fn(&World) -> Result<(), String>>;
/// Must hold before a call takes effect.
type Hook = Box<dyn Fn(&World, usize, &Call) -> Result<(), String>>;
/// Calls that a converged system keeps making.
type Quiet = Box<dyn Fn(&Call) -> bool>;
/// The fact that leaders get when a side becomes unreachable or reachable.
type OnReach<S> = Box<dyn Fn(Side, bool) -> Option<S>>;

/// A run.
pub struct Schedule<M: Model> {
    /// Both clusters.
    pub world: World,
    config: Config,
    rng: Rng,
    factory: Factory<M>,
    leaders: Vec<Leader<M>>,
    /// Calls in flight whose leader no longer waits for them.
    escaped: Vec<(usize, Arc<Call>)>,
    actors: Vec<Box<dyn Actor>>,
    rules: Vec<Rule>,
    hooks: Vec<Hook>,
    quiet: Quiet,
    on_reach: Option<OnReach<M::Fact>>,
    journal: Journal,
    steps: usize,
    executed: usize,
    crash: Option<CrashAt>,
    /// Steps until the unreachable side is back.
    outage: Option<(Side, u32)>,
    /// Versions that the journal has seen.
    noted: [Rv; 2],
}

/// Where to crash in the run of a story.
#[derive(Debug, Clone, Copy)]
pub(super) struct CrashAt {
    /// Right after this call of the run has been carried out.
    pub(super) call: usize,
    /// Whether the other calls in flight still arrive.
    pub(super) escape: bool,
}

struct Leader<M: Model> {
    alive: Option<Alive<M>>,
    lives: u32,
    /// For this many steps it gets no events.
    blind: u32,
    /// It does nothing at all, and does not know it.
    frozen: bool,
    /// For this many steps it may not lead; it learns of that when it wants to send, or from the gate.
    deposed: u32,
    /// It has ended: another one leads.
    retired: bool,
}

struct Alive<M: Model> {
    desk: Desk<M>,
    observers: Vec<Observer<M::Fact>>,
    flights: Vec<Flight<M>>,
    replan_at: Duration,
}

/// A call in flight; with its outcome once it has one.
struct Flight<M: Model> {
    key: M::Key,
    why: M::Why,
    call: Arc<Call>,
    done: Option<Result<Answer, Refusal>>,
}

/// What a step can be. The schedule takes the first possible one from a random place in the array.
#[derive(Clone, Copy)]
enum Step {
    Tell,
    Send,
    Execute,
    Answer,
    Act,
    Pass,
}

const STEPS: [Step; 15] = {
    use Step::{Act, Answer, Execute, Pass, Send, Tell};
    [Tell, Send, Execute, Answer, Act, Tell, Send, Execute, Answer, Act, Tell, Send, Execute, Answer, Pass]
};

/// A step takes this long, so that no two have the same time.
const TICK: Duration = Duration::from_millis(1);

impl<M: Model> Schedule<M> {
    /// A run in an empty world; leaders start at the first step.
    pub fn new(config: Config, factory: impl FnMut(Birth) -> Life<M> + 'static) -> Self {
        let leader = || Leader { alive: None, lives: 0, blind: 0, frozen: false, deposed: 0, retired: false };
        let world = World::default();
        Self {
            rng: Rng::with_seed(config.seed),
            factory: Box::new(factory),
            leaders: std::iter::repeat_with(leader).take(config.leaders.max(1)).collect(),
            escaped: Vec::new(),
            actors: Vec::new(),
            rules: Vec::new(),
            hooks: Vec::new(),
            quiet: Box::new(|call| call.is_read() || *call.target.kind == tapestry_cluster::kind::LEASE),
            on_reach: None,
            journal: Journal::new(config.journal),
            steps: 0,
            executed: 0,
            crash: None,
            outage: None,
            noted: Side::BOTH.map(|side| world.server(side).rv()),
            world,
            config,
        }
    }

    /// Adds an actor.
    #[must_use]
    pub fn actor(mut self, actor: impl Actor + 'static) -> Self {
        self.actors.push(Box::new(actor));
        self
    }

    /// Must hold after every call that changed something.
    #[must_use]
    pub fn rule(mut self, rule: impl Fn(&World) -> Result<(), String> + 'static) -> Self {
        self.rules.push(Box::new(rule));
        self
    }

    /// Must hold before every call takes effect; sees the world as it is before.
    #[must_use]
    pub fn on_call(mut self, hook: impl Fn(&World, usize, &Call) -> Result<(), String> + 'static) -> Self {
        self.hooks.push(Box::new(hook));
        self
    }

    /// Calls that may continue endlessly (default: reads, and all of Leases).
    #[must_use]
    pub fn quiet(mut self, quiet: impl Fn(&Call) -> bool + 'static) -> Self {
        self.quiet = Box::new(quiet);
        self
    }

    /// The fact that leaders get when a side becomes unreachable (`false`) or reachable again.
    #[must_use]
    pub fn on_reach(mut self, fact: impl Fn(Side, bool) -> Option<M::Fact> + 'static) -> Self {
        self.on_reach = Some(Box::new(fact));
        self
    }

    /// Runs this many steps, with faults.
    pub fn run(&mut self, steps: usize) -> Result<(), Failure> {
        for _ in 0..steps {
            self.step()?;
        }
        Ok(())
    }

    /// One step, perhaps with a fault.
    pub fn step(&mut self) -> Result<(), Failure> {
        self.steps += 1;
        self.world.advance(TICK);
        self.strike();
        let first = self.rng.usize(..STEPS.len());
        for offset in 0..STEPS.len() {
            let possible = match STEPS[(first + offset) % STEPS.len()] {
                Step::Tell => self.tell_one(),
                Step::Send => self.send_one(),
                Step::Execute => self.execute_one()?,
                Step::Answer => self.answer_one(),
                Step::Act => self.act_one(),
                Step::Pass => self.pass(),
            };
            if possible {
                break;
            }
        }
        Ok(())
    }

    /// Gives every living leader a fact that no watch delivers.
    pub fn tell(&mut self, fact: impl Fn() -> M::Fact) {
        let now = self.world.now();
        for alive in self.leaders.iter_mut().filter_map(|leader| leader.alive.as_mut()) {
            alive.desk.see(fact(), now);
        }
    }

    /// A living leader's model, for checks.
    #[must_use]
    pub fn model(&self, leader: usize) -> Option<&M> {
        self.leaders.get(leader)?.alive.as_ref().map(|alive| &alive.desk.model)
    }

    /// Crashes a leader now; its calls in flight may still arrive.
    pub fn crash(&mut self, leader: usize) {
        self.kill(leader, "crashes", None);
    }

    /// For this many steps from now on this leader may not lead.
    pub fn depose(&mut self, leader: usize, steps: u32) {
        self.leaders[leader].deposed = steps;
        self.note(Entry::Leader { leader, what: "may not lead for a while, or may again" });
    }

    /// Stops a leader in the middle of its work. Its calls in flight may arrive; it gets no answer.
    pub fn freeze(&mut self, leader: usize) {
        self.leaders[leader].frozen = true;
        self.note(Entry::Leader { leader, what: "is frozen" });
    }

    /// Lets it continue. As in the engine's loop, it first notices that it did not run.
    pub fn thaw(&mut self, leader: usize) {
        let now = self.world.now();
        self.leaders[leader].frozen = false;
        if let Some(alive) = &mut self.leaders[leader].alive {
            alive.desk.gap(now);
        }
        self.note(Entry::Leader { leader, what: "goes on" });
    }

    /// Makes a side unreachable or reachable.
    pub fn reach(&mut self, side: Side, reachable: bool) {
        if self.world.reachable(side) == reachable {
            return;
        }
        self.world.reach(side, reachable);
        self.note(Entry::Reach { side, reachable });
        let now = self.world.now();
        let Some(fact) = &self.on_reach else { return };
        for alive in self.leaders.iter_mut().filter_map(|leader| leader.alive.as_mut()) {
            if let Some(fact) = fact(side, reachable) {
                alive.desk.see(fact, now);
            }
        }
    }

    /// How many calls have been carried out.
    #[must_use]
    pub fn executed(&self) -> usize {
        self.executed
    }

    /// Equal for two runs that went the same way. Ask for it when a seed does not reproduce: something in the model (the order
    /// of a hash map, its own randomness) is not decided by the seed.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.journal.digest()
    }

    /// Checks the world; a broken rule comes with the trace.
    pub fn check(&self, rule: impl FnOnce(&World) -> Result<(), String>) -> Result<(), Failure> {
        rule(&self.world).map_err(|why| self.fail(why))
    }

    /// A failure of this run.
    pub fn fail(&self, why: impl Into<String>) -> Failure {
        Failure { seed: self.config.seed, why: why.into(), trace: self.journal.render() }
    }

    pub(super) fn crash_at(&mut self, crash: CrashAt) {
        self.crash = Some(crash);
    }

    /// Faults that happen by themselves.
    fn strike(&mut self) {
        let Faults { crash, blind, depose, relist, replay, outage, leap, .. } = self.config.faults;
        let leader = self.rng.usize(..self.leaders.len());
        if self.leaders[leader].alive.is_none() {
            // The first start is at once; later ones take time.
            if !self.leaders[leader].retired && (self.leaders[leader].lives == 0 || self.rng.u8(..8) == 0) {
                self.start_life(leader);
            }
        } else if self.chance(crash) {
            self.kill(leader, "crashes", None);
        } else if self.chance(blind) {
            self.leaders[leader].blind = self.rng.u32(20..200);
            self.note(Entry::Leader { leader, what: "gets no events for a while" });
        } else if self.chance(depose) {
            self.leaders[leader].deposed = self.rng.u32(20..200);
            self.note(Entry::Leader { leader, what: "may not lead for a while" });
        } else if self.chance(relist) {
            self.relist(leader, None);
        } else if self.chance(replay) {
            self.replay(leader);
        }
        for leader in &mut self.leaders {
            leader.blind = leader.blind.saturating_sub(1);
            leader.deposed = leader.deposed.saturating_sub(1);
        }
        if self.chance(leap) {
            let leap = Duration::from_secs(self.rng.u64(60..1200));
            self.world.advance(leap);
        }
        match self.outage {
            Some((side, left @ 1..)) => self.outage = Some((side, left - 1)),
            Some((side, 0)) => {
                self.outage = None;
                self.reach(side, true);
                self.resume(side);
            }
            None => {
                if self.chance(outage) {
                    let side = if self.rng.bool() { Side::Virtual } else { Side::Physical };
                    self.outage = Some((side, self.rng.u32(10..150)));
                    self.reach(side, false);
                }
            }
        }
    }

    fn act_one(&mut self) -> bool {
        if self.actors.is_empty() {
            return false;
        }
        let actor = self.rng.usize(..self.actors.len());
        self.actors[actor].act(&mut self.world, &mut self.rng);
        self.note_changes();
        true
    }

    /// Time passes: to the next moment that a leader waits for, or a little.
    fn pass(&mut self) -> bool {
        let now = self.world.now().steady;
        let by = match self.wake_at() {
            Some(at) if self.rng.bool() => at.saturating_sub(now),
            _ => Duration::from_millis(self.rng.u64(1..2000)),
        };
        self.world.advance(by);
        true
    }

    /// When some leader may have something to do although nothing happens.
    fn wake_at(&self) -> Option<Duration> {
        let now = self.world.now();
        self.leaders.iter().filter_map(|leader| leader.alive.as_ref()?.desk.wake_at(now)).min()
    }

    /// A leader's next life begins.
    fn start_life(&mut self, leader: usize) {
        let now = self.world.now();
        self.leaders[leader].lives += 1;
        self.leaders[leader].blind = 0;
        let birth = Birth { leader, life: self.leaders[leader].lives, seed: self.rng.u64(..), now };
        let Life { model, observers, facts } = (self.factory)(birth);
        let mut desk = Desk::new(model, self.rng.u64(..));
        for fact in facts {
            desk.see(fact, now);
        }
        let lost = Side::BOTH.into_iter().filter(|side| !self.world.reachable(*side));
        for fact in lost.filter_map(|side| self.on_reach.as_ref()?(side, false)) {
            desk.see(fact, now);
        }
        let replan_at = now.steady + REPLAN_EVERY;
        self.leaders[leader].alive = Some(Alive { desk, observers, flights: Vec::new(), replan_at });
        self.note(Entry::Leader { leader, what: "is born" });
    }

    /// A leader ends. `escape`: whether its calls in flight still arrive; `None` draws it for each call.
    fn kill(&mut self, leader: usize, what: &'static str, escape: Option<bool>) {
        let Some(alive) = self.leaders[leader].alive.take() else { return };
        for flight in alive.flights.into_iter().filter(|flight| flight.done.is_none()) {
            if escape.unwrap_or_else(|| self.rng.bool()) {
                self.escaped.push((leader, flight.call));
            }
        }
        self.note(Entry::Leader { leader, what });
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.f64() < probability
    }

    fn note(&mut self, entry: Entry) {
        self.journal.note(self.steps, self.world.now().steady, entry);
    }

    /// Records what has changed at the servers.
    fn note_changes(&mut self) {
        for (noted, side) in self.noted.iter_mut().zip(Side::BOTH) {
            let server = self.world.server(side);
            if server.rv() == *noted {
                continue;
            }
            for (kind, event) in server.since(*noted) {
                self.journal.note(self.steps, self.world.now().steady, Entry::changed(side, kind, event));
            }
            *noted = server.rv();
        }
    }
}

impl<M: Model> Leader<M> {
    fn flights(&self) -> &[Flight<M>] {
        self.alive.as_ref().map_or(&[], |alive| &alive.flights)
    }

    fn forget(&mut self, flight: usize) {
        if let Some(alive) = &mut self.alive {
            alive.flights.remove(flight);
        }
    }
}

#[cfg(test)]
mod tests;
