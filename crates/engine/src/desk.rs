//! The order of work for one model: which keys are dirty, which calls are in flight, which keys wait and how long. While
//! another process leads there is no work.
//! Pure: the loop (or the World of the tests) carries out the calls it returns and reports how they ended.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;
use tapestry_cluster::{Answer, Call, Refusal, Side};

use crate::{Dirty, Model, Now, Plan};

/// How many calls may be in flight to one cluster.
pub const CONCURRENCY: usize = 50;
/// After an error: half a second, doubling to five minutes.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(5));
/// After `Denied`: the right may be granted at any time, and keys that wait for it should go on soon. At most this long while
/// few keys wait, and this long however many do, so that thousands of refused keys do not flood the server.
const REFUSED_BACKOFF: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(2));
/// Half a minute more for each this many waiting keys.
const FEW: usize = 1000;
/// After `Replaced`: the watch is already delivering the new version, so start small; a fact ends the wait.
const STALE_BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(30));

/// Urgent keys are retried soon, whatever happened: a Lease expires otherwise.
const URGENT_BACKOFF: Duration = Duration::from_secs(5);
/// This many calls of one sort in a row for one key, all granted, and the plan still wants the same call.
const IN_VAIN: u32 = 3;

/// Of the keys that wait for a busy cluster, every fourth is one that has not begun, so that none starves.
const FAIR: u32 = 4;

/// A model and the state of its work.
pub struct Desk<M: Model> {
    /// What is known.
    pub model: M,
    tasks: HashMap<M::Key, Task<M::Why>, RandomState>,
    /// Urgent keys, then the others; each in order of arrival.
    ready: [VecDeque<M::Key>; 2],
    timers: BTreeSet<(Duration, M::Key)>,
    lanes: [Lane<M::Key>; 2],
    /// Without it the desk applies facts and does nothing else.
    leads: bool,
    random: fastrand::Rng,
}

/// The state of a key that is not at rest.
struct Task<W> {
    place: Place,
    failures: u32,
    /// The reason of the last call, and how often in a row it was made.
    last: Option<(W, u32)>,
}

impl<W> Default for Task<W> {
    fn default() -> Self {
        Self { place: Place::Rest, failures: 0, last: None }
    }
}

/// Where a key is.
#[derive(Default)]
enum Place {
    #[default]
    Rest,
    /// In a ready queue, or parked until a busy cluster has room.
    Queued,
    /// Its call is in flight; `again` when a fact came meanwhile.
    Flying { again: bool },
    /// Until a time; facts do not shorten a penalty.
    Waiting { until: Duration, penalty: bool },
}

/// The calls to one cluster.
struct Lane<K> {
    flying: usize,
    limit: usize,
    paused: Duration,
    /// Keys whose calls had no room, by [`Rank`]; each in order of arrival.
    parked: [VecDeque<K>; 3],
    /// How often one of them was taken.
    taken: u32,
}

/// In which order parked keys are planned for a busy cluster.
#[derive(Clone, Copy)]
enum Rank {
    /// [`Model::urgent`].
    Urgent,
    /// [`Model::begun`].
    Begun,
    /// All others.
    New,
}

impl<M: Model> Desk<M> {
    /// A desk for this model, which leads. The seed decides the jitter.
    pub fn new(model: M, seed: u64) -> Self {
        let lane =
            || Lane { flying: 0, limit: CONCURRENCY, paused: Duration::ZERO, parked: Default::default(), taken: 0 };
        Self {
            model,
            tasks: HashMap::default(),
            ready: Default::default(),
            timers: BTreeSet::new(),
            lanes: [lane(), lane()],
            leads: true,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Applies a fact.
    pub fn see(&mut self, seen: M::Fact, now: Now) {
        let mut dirty = Dirty::default();
        self.model.observe(seen, now, &mut dirty);
        self.mark(dirty);
    }

    /// Another process leads: from now on the desk only applies facts. It keeps no key dirty, because all keys are when we
    /// lead again; otherwise keys of deleted objects would pile up.
    pub fn follow(&mut self) {
        self.leads = false;
        self.model.follow();
        self.tasks.retain(|_, task| matches!(task.place, Place::Flying { .. }));
        self.ready.iter_mut().for_each(VecDeque::clear);
        self.lanes.iter_mut().flat_map(|lane| &mut lane.parked).for_each(VecDeque::clear);
        self.timers.clear();
    }

    /// We lead: plans every key now, from what is known already.
    pub fn lead(&mut self, now: Now) {
        self.leads = true;
        self.model.take_lead(now);
        self.urge_all();
    }

    /// No process leads, and we stand in for it where the model can.
    pub fn stand_in(&mut self, why: &str, now: Now) {
        self.leads = true;
        self.model.stand_in(why, now);
        self.urge_all();
    }

    /// The process was frozen for a while: plans every key again.
    pub fn gap(&mut self, now: Now) {
        self.model.gap(now);
        self.urge_all();
    }

    /// Whether we lead.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Plans every key again: on a timer, after a complete list.
    pub fn replan(&mut self) {
        if !self.leads {
            return;
        }
        let mut keys = self.model.keys();
        // Models keep hash maps, whose order differs between processes; a run must be repeatable.
        keys.sort_unstable();
        for key in keys {
            self.touch(key);
        }
    }

    /// Plans every key now, whatever it waits for: its wait was computed under other circumstances.
    pub fn urge_all(&mut self) {
        let mut dirty = Dirty::default();
        dirty.urge_all();
        self.mark(dirty);
    }

    /// The next call to carry out, if there is one and room for it; [`Desk::done`] takes all three back.
    pub fn next(&mut self, now: Now) -> Option<(M::Key, M::Why, Call)> {
        self.fire_timers(now.steady);
        loop {
            let Some(key) = self.ready.iter_mut().find_map(VecDeque::pop_front) else {
                // Only now: a parked key that finds no room a second time would lose its place. If the keys before it needed no
                // call, or a pause is over, there is still room.
                if self.unpark_all(now.steady) {
                    continue;
                }
                return None;
            };
            let guess = self.model.side(&key).map(lane_of);
            if let Some(lane) = guess.filter(|lane| !self.lanes[*lane].has_room(now.steady)) {
                self.park(lane, key);
                continue;
            }
            match self.model.plan(&key, now) {
                Plan::Rest => {
                    self.tasks.remove(&key);
                }
                Plan::Wait(until) => {
                    self.tasks.entry(key.clone()).or_default().last = None;
                    // A time that has passed already would spin.
                    self.wait(key, until.max(now.steady + Duration::from_millis(1)), false);
                }
                Plan::Do(call, why) => {
                    let lane = lane_of(call.target.side);
                    if !self.lanes[lane].has_room(now.steady) {
                        self.park(lane, key);
                        continue;
                    }
                    self.lanes[lane].flying += 1;
                    self.tasks.entry(key.clone()).or_default().place = Place::Flying { again: false };
                    return Some((key, why, *call));
                }
            }
        }
    }

    /// Reports how a call ended.
    pub fn done(&mut self, key: &M::Key, why: M::Why, call: &Call, done: Result<Answer, Refusal>, now: Now) {
        let refusal = done.as_ref().err().cloned();
        self.lanes[lane_of(call.target.side)].landed(refusal.as_ref(), now.steady);
        let mut dirty = Dirty::default();
        if refusal != Some(Refusal::NotLeading) {
            self.model.settle(key, why, call, done, now, &mut dirty);
        }
        if !self.leads {
            self.tasks.remove(key);
            return;
        }
        let task = self.tasks.entry(key.clone()).or_default();
        let again = matches!(std::mem::take(&mut task.place), Place::Flying { again: true });
        match refusal {
            None => {
                task.failures = 0;
                let times = task.last.filter(|(last, _)| *last == why).map_or(1, |(_, times)| times + 1);
                task.last = Some((why, times));
                if times < IN_VAIN {
                    self.touch(key.clone());
                } else {
                    // Another writer undoes or drops what we write: do not repeat it at the speed of the network.
                    let wait = backoff(STALE_BACKOFF, times - IN_VAIN + 1, &mut self.random);
                    self.wait(key.clone(), now.steady + wait, true);
                }
            }
            // Planned in a term that has ended, and never sent: this is no failure, and the key is as dirty as before.
            Some(Refusal::NotLeading) => self.touch(key.clone()),
            Some(refusal) => {
                task.failures += 1;
                let stale = matches!(refusal, Refusal::Gone | Refusal::Replaced | Refusal::Exists);
                // Plan again at once after the first surprise: `settle` has just learnt from it.
                let learnt = task.failures == 1 && dirty.keys.contains(key);
                dirty.keys.retain(|dirtied| dirtied != key);
                if stale && (again || learnt) {
                    self.touch(key.clone());
                } else {
                    let wait = match refusal {
                        Refusal::Later(wait) | Refusal::Held(wait, _) => wait,
                        _ if stale => backoff(STALE_BACKOFF, task.failures, &mut self.random),
                        Refusal::Denied(_) => {
                            let (few, most) = REFUSED_BACKOFF;
                            let many = u32::try_from(self.timers.len() / FEW).unwrap_or(u32::MAX);
                            let longest = few.saturating_mul(many.saturating_add(1)).min(most);
                            backoff((BACKOFF.0, longest), task.failures, &mut self.random)
                        }
                        _ => backoff(BACKOFF, task.failures, &mut self.random),
                    };
                    let wait = if M::urgent(key) { wait.min(URGENT_BACKOFF) } else { wait };
                    self.wait(key.clone(), now.steady + wait, !stale);
                }
            }
        }
        self.unpark(lane_of(call.target.side));
        self.mark(dirty);
    }

    /// When [`Desk::next`] may have a call although no fact came.
    pub fn wake_at(&self, now: Now) -> Option<Duration> {
        let paused = self.lanes.iter().filter(|lane| lane.waiting() > 0 && lane.paused > now.steady);
        let timer = self.timers.first().map(|(at, _)| *at);
        paused.map(|lane| lane.paused).chain(timer).min()
    }

    /// Calls in flight, both sides.
    pub fn flying(&self) -> usize {
        self.lanes.iter().map(|lane| lane.flying).sum()
    }

    /// Keys that wait to be planned.
    pub fn waiting(&self) -> usize {
        self.ready.iter().map(VecDeque::len).chain(self.lanes.iter().map(Lane::waiting)).sum()
    }

    fn mark(&mut self, dirty: Dirty<M::Key>) {
        if !self.leads {
            return;
        }
        if dirty.all_urged {
            let penalised = self.tasks.iter().filter(|(_, task)| matches!(task.place, Place::Waiting { .. }));
            let mut keys: Vec<M::Key> = penalised.map(|(key, _)| key.clone()).collect();
            keys.sort_unstable();
            for key in keys {
                self.urge(key);
            }
        }
        for key in dirty.urged {
            self.urge(key);
        }
        if dirty.all {
            self.replan();
        }
        for key in dirty.keys {
            self.touch(key);
        }
    }

    /// A fact concerns this key.
    fn touch(&mut self, key: M::Key) {
        let task = self.tasks.entry(key.clone()).or_default();
        match &mut task.place {
            Place::Flying { again } => *again = true,
            Place::Queued | Place::Waiting { penalty: true, .. } => {}
            Place::Rest => self.enqueue(key),
            Place::Waiting { until, penalty: false } => {
                self.timers.remove(&(*until, key.clone()));
                self.enqueue(key);
            }
        }
    }

    /// Ends any wait of the key.
    fn urge(&mut self, key: M::Key) {
        match self.tasks.get(&key).map(|task| &task.place) {
            Some(Place::Waiting { until, .. }) => {
                self.timers.remove(&(*until, key.clone()));
                self.enqueue(key);
            }
            _ => self.touch(key),
        }
    }

    fn enqueue(&mut self, key: M::Key) {
        self.tasks.entry(key.clone()).or_default().place = Place::Queued;
        self.ready[usize::from(!M::urgent(&key))].push_back(key);
    }

    fn wait(&mut self, key: M::Key, until: Duration, penalty: bool) {
        self.tasks.entry(key.clone()).or_default().place = Place::Waiting { until, penalty };
        self.timers.insert((until, key));
    }

    fn fire_timers(&mut self, now: Duration) {
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.timers.pop_first() else { return };
            self.enqueue(key);
        }
    }

    /// Returns whether a key was taken out.
    fn unpark_all(&mut self, now: Duration) -> bool {
        let waiting = |desk: &Self| desk.lanes.iter().map(Lane::waiting).sum::<usize>();
        let before = waiting(self);
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].has_room(now) {
                self.unpark(lane);
            }
        }
        waiting(self) < before
    }

    fn park(&mut self, lane: usize, key: M::Key) {
        let rank = match &key {
            key if M::urgent(key) => Rank::Urgent,
            key if self.model.begun(key) => Rank::Begun,
            _ => Rank::New,
        };
        self.lanes[lane].parked[rank as usize].push_back(key);
    }

    /// Parked keys are planned again when there is room: their plans may have changed.
    fn unpark(&mut self, lane: usize) {
        let Lane { flying, limit, .. } = self.lanes[lane];
        for _ in flying..limit {
            let Some(key) = self.lanes[lane].take() else { return };
            self.ready[usize::from(!M::urgent(&key))].push_back(key);
        }
    }
}

impl<K> Lane<K> {
    fn waiting(&self) -> usize {
        self.parked.iter().map(VecDeque::len).sum()
    }

    /// The next parked key.
    fn take(&mut self) -> Option<K> {
        self.taken = self.taken.wrapping_add(1);
        let order = if self.taken.is_multiple_of(FAIR) {
            [Rank::Urgent, Rank::New, Rank::Begun]
        } else {
            [Rank::Urgent, Rank::Begun, Rank::New]
        };
        order.into_iter().find_map(|rank| self.parked[rank as usize].pop_front())
    }

    fn has_room(&self, now: Duration) -> bool {
        self.flying < self.limit && self.paused <= now
    }

    /// A busy cluster gets half the calls, and none for as long as it asks; each success raises the limit a little.
    fn landed(&mut self, refusal: Option<&Refusal>, now: Duration) {
        self.flying = self.flying.saturating_sub(1);
        match refusal {
            // Halve once per overload: other calls in flight fail for the same reason.
            Some(Refusal::Later(wait)) if self.paused <= now => {
                self.limit = (self.limit / 2).max(1);
                self.paused = now + *wait;
            }
            // Other failures, also a pod that is held, are not overload.
            Some(_) => {}
            None => self.limit = (self.limit + 1).min(CONCURRENCY),
        }
    }
}

fn lane_of(side: Side) -> usize {
    match side {
        Side::Virtual => 0,
        Side::Physical => 1,
    }
}

fn backoff((first, last): (Duration, Duration), failures: u32, random: &mut fastrand::Rng) -> Duration {
    let full = (first * 2u32.saturating_pow(failures.saturating_sub(1).min(20))).min(last);
    full.mul_f64(0.5 + random.f64() / 2.0)
}

#[cfg(test)]
mod tests;
