//! The desk with a model that wants one call per key until the call is settled.

use std::collections::BTreeSet;

use serde_json::json;
use tapestry_cluster::{Name, Target, Verb, kind};

use super::*;
use crate::Reason as _;

/// Wants each of its keys created once, on the side in the key.
#[derive(Default)]
struct Wants {
    keys: BTreeSet<(u32, Side)>,
    wait: Option<Duration>,
    /// Every granted call is wanted again.
    never_content: bool,
}

crate::reasons! {
    enum Why { Test }
}

impl Model for Wants {
    type Key = (u32, Side);
    type Fact = (u32, Side);
    type Why = Why;
    fn observe(&mut self, seen: Self::Fact, _: Now, dirty: &mut Dirty<Self::Key>) {
        self.keys.insert(seen);
        dirty.mark(seen);
    }
    fn plan(&self, key: &Self::Key, now: Now) -> Plan<Why> {
        if !self.keys.contains(key) {
            return Plan::Rest;
        }
        if let Some(until) = self.wait.filter(|until| *until > now.steady) {
            return Plan::Wait(until);
        }
        let target = Target::cluster(key.1, &kind::NODE, Name::parse(&format!("n{}", key.0)).unwrap());
        Why::Test.call(target, Verb::Create(json!({})))
    }
    fn settle(
        &mut self,
        key: &Self::Key,
        _: Why,
        _: &Call,
        done: Result<Answer, Refusal>,
        _: Now,
        _: &mut Dirty<Self::Key>,
    ) {
        if done.is_ok() && !self.never_content {
            self.keys.remove(key);
        }
    }
    fn keys(&self) -> Vec<Self::Key> {
        self.keys.iter().copied().collect()
    }
    fn begun(&self, key: &Self::Key) -> bool {
        key.0 >= BEGUN
    }
    fn urgent(key: &Self::Key) -> bool {
        key.0 == 0
    }
}

/// Work on keys from this number on has begun.
const BEGUN: u32 = 1_000_000;

fn at(seconds: f64) -> Now {
    Now { wall: jiff::Timestamp::UNIX_EPOCH, steady: Duration::from_secs_f64(seconds) }
}
fn answer() -> Answer {
    Answer { object: "{}".into() }
}
fn desk() -> Desk<Wants> {
    Desk::new(Wants::default(), 1)
}
const V: Side = Side::Virtual;
const P: Side = Side::Physical;

#[test]
fn a_key_has_at_most_one_call_in_flight_and_rests_when_it_is_settled() {
    let mut desk = desk();
    desk.see((1, V), at(0.0));
    let (key, why, call) = desk.next(at(0.0)).unwrap();
    desk.see((1, V), at(0.0));
    desk.replan();
    assert!(desk.next(at(0.0)).is_none());
    desk.done(&key, why, &call, Ok(answer()), at(0.1));
    assert!(desk.next(at(0.1)).is_none());
    assert_eq!((desk.flying(), desk.tasks.len(), desk.wake_at(at(0.1))), (0, 0, None));
}

#[test]
fn urgent_keys_go_first_and_the_rest_in_order_of_arrival() {
    let mut desk = desk();
    for key in [3, 2, 0, 1] {
        desk.see((key, V), at(0.0));
    }
    let order: Vec<u32> = std::iter::from_fn(|| desk.next(at(0.0))).map(|(key, ..)| key.0).collect();
    assert_eq!(order, [0, 3, 2, 1]);
}

#[test]
fn an_error_is_retried_with_growing_pauses_that_facts_do_not_shorten() {
    let mut desk = desk();
    desk.see((1, V), at(0.0));
    let mut now = 0.0;
    for failure in 1..14 {
        let (key, why, call) = desk.next(at(now)).unwrap();
        desk.done(&key, why, &call, Err(Refusal::Unknown(String::new())), at(now));
        desk.see((1, V), at(now));
        assert!(desk.next(at(now)).is_none(), "failure {failure}");
        let wake = desk.wake_at(at(now)).unwrap().as_secs_f64();
        // Half a second, doubling to five minutes; jitter removes at most half.
        let full = (0.5 * f64::from(1 << (failure - 1))).min(300.0);
        assert!((full / 2.0 - 1e-6..=full + 1e-6).contains(&(wake - now)), "failure {failure}: {}", wake - now);
        now = wake;
    }
}

#[test]
fn a_refused_call_is_retried_within_half_a_minute_and_later_only_where_thousands_wait() {
    let mut desk = desk();
    let longest = |desk: &mut Desk<Wants>, from: f64| {
        desk.see((1, V), at(from));
        let (mut now, mut longest) = (from, 0.0_f64);
        for _ in 0..14 {
            let Some((key, why, call)) = desk.next(at(now)) else { panic!("nothing is tried") };
            desk.done(&key, why, &call, Err(Refusal::Denied(Box::default())), at(now));
            let Place::Waiting { until, .. } = desk.tasks[&key].place else { panic!("it does not wait") };
            longest = longest.max(until.as_secs_f64() - now);
            now = until.as_secs_f64();
        }
        longest
    };
    let few = longest(&mut desk, 0.0);
    assert!((15.0..=30.0).contains(&few), "{few}");
    let until = Duration::from_hours(10);
    desk.timers.extend((2..5000).map(|key| (until, (key, V))));
    let many = longest(&mut desk, 7200.0);
    assert!((60.0..=120.0).contains(&many), "{many}");
}

#[test]
fn after_a_stale_view_a_key_is_planned_again_as_soon_as_a_fact_comes() {
    let mut desk = desk();
    desk.see((1, V), at(0.0));
    let (key, why, call) = desk.next(at(0.0)).unwrap();
    desk.done(&key, why, &call, Err(Refusal::Replaced), at(0.0));
    assert!(desk.next(at(0.0)).is_none());
    desk.see((1, V), at(0.001));
    assert!(desk.next(at(0.001)).is_some());
}

#[test]
fn a_cluster_that_hangs_does_not_delay_the_other() {
    let mut desk = desk();
    for key in 1..=1000 {
        desk.see((key, P), at(0.0));
    }
    desk.see((2000, V), at(0.0));
    let calls: Vec<_> = std::iter::from_fn(|| desk.next(at(0.0))).collect();
    assert_eq!(calls.iter().filter(|(key, ..)| key.1 == P).count(), CONCURRENCY);
    assert_eq!(calls.iter().filter(|(key, ..)| key.1 == V).count(), 1);
    // One answer makes room for one more.
    desk.done(&calls[0].0, calls[0].1, &calls[0].2, Ok(answer()), at(0.1));
    assert!(desk.next(at(0.1)).is_some());
    assert!(desk.next(at(0.1)).is_none());
}

#[test]
fn a_busy_cluster_is_left_alone_for_as_long_as_it_asks_and_then_gets_half() {
    let mut desk = desk();
    for key in 1..=200 {
        desk.see((key, P), at(0.0));
    }
    let calls: Vec<_> = std::iter::from_fn(|| desk.next(at(0.0))).collect();
    for (key, why, call) in &calls {
        desk.done(key, *why, call, Err(Refusal::Later(Duration::from_secs(3))), at(0.0));
    }
    assert!(desk.next(at(2.9)).is_none());
    assert_eq!(desk.wake_at(at(0.0)), Some(Duration::from_secs(3)));
    assert_eq!(std::iter::from_fn(|| desk.next(at(3.0))).count(), CONCURRENCY / 2);
}

#[test]
fn a_pod_that_is_held_waits_alone() {
    let mut desk = desk();
    for key in 1..=200 {
        desk.see((key, P), at(0.0));
    }
    let calls: Vec<_> = std::iter::from_fn(|| desk.next(at(0.0))).collect();
    for (key, why, call) in &calls {
        desk.done(key, *why, call, Err(Refusal::Held(Duration::from_secs(10), Box::default())), at(0.0));
    }
    let others: Vec<_> = std::iter::from_fn(|| desk.next(at(0.0))).collect();
    assert_eq!(others.len(), CONCURRENCY, "the lane is as wide as before");
    for (key, why, call) in &others {
        desk.done(key, *why, call, Ok(answer()), at(0.1));
    }
    while let Some((key, why, call)) = desk.next(at(0.1)) {
        assert!(key.0 > 50, "{} did not wait", key.0);
        desk.done(&key, why, &call, Ok(answer()), at(0.1));
    }
    assert_eq!(desk.wake_at(at(0.1)), Some(Duration::from_secs(10)));
    assert_eq!(std::iter::from_fn(|| desk.next(at(10.0))).count(), CONCURRENCY);
}

#[test]
fn a_plan_that_waits_is_made_again_at_its_time_or_at_the_next_fact() {
    let mut desk = desk();
    desk.model.wait = Some(Duration::from_secs(10));
    desk.see((1, V), at(0.0));
    assert!(desk.next(at(0.0)).is_none());
    assert_eq!(desk.wake_at(at(0.0)), Some(Duration::from_secs(10)));
    assert!(desk.next(at(9.9)).is_none());
    desk.model.wait = None;
    desk.see((1, V), at(9.9));
    assert!(desk.next(at(9.9)).is_some());
    assert_eq!(desk.wake_at(at(9.9)), None);
}

#[test]
fn law_04_a_call_that_is_granted_and_wanted_again_is_not_repeated_at_the_speed_of_the_network() {
    let mut desk = desk();
    desk.model.never_content = true;
    desk.see((1, V), at(0.0));
    let (mut now, mut calls) = (0.0, 0);
    while now < 60.0 {
        while let Some((key, why, call)) = desk.next(at(now)) {
            calls += 1;
            desk.done(&key, why, &call, Ok(answer()), at(now));
            // The echo of our own write is a fact, and must not end the wait.
            desk.see((1, V), at(now));
        }
        now = desk.wake_at(at(now)).unwrap().as_secs_f64();
    }
    assert!(calls < 20, "{calls} calls in a minute");
}

#[test]
fn an_urgent_key_is_retried_within_seconds_however_often_it_failed() {
    let mut desk = desk();
    desk.see((0, V), at(0.0));
    let mut now = 0.0;
    for _ in 0..20 {
        let (key, why, call) = desk.next(at(now)).unwrap();
        desk.done(&key, why, &call, Err(Refusal::Unknown(String::new())), at(now));
        let wake = desk.wake_at(at(now)).unwrap().as_secs_f64();
        assert!(wake - now <= 5.0 + 1e-6, "{}", wake - now);
        now = wake;
    }
}

#[test]
fn an_urgent_key_does_not_wait_behind_those_that_are_parked() {
    let mut desk = desk();
    for key in 1..=200 {
        desk.see((key, V), at(0.0));
    }
    let calls: Vec<_> = std::iter::from_fn(|| desk.next(at(0.0))).collect();
    desk.see((0, V), at(0.1));
    assert!(desk.next(at(0.1)).is_none(), "no room");
    desk.done(&calls[0].0, calls[0].1, &calls[0].2, Ok(answer()), at(0.2));
    assert_eq!(desk.next(at(0.2)).unwrap().0, (0, V));
}

#[test]
fn parked_keys_that_need_no_call_any_more_do_not_delay_the_rest() {
    let mut desk = desk();
    for key in 1..=60 {
        desk.see((key, V), at(0.0));
    }
    let calls: Vec<_> = std::iter::from_fn(|| desk.next(at(0.0))).collect();
    assert_eq!(calls.len(), CONCURRENCY);
    // All parked keys except the last need no call any more.
    desk.model.keys.retain(|key| key.0 == 60 || key.0 <= 50);
    desk.done(&calls[0].0, calls[0].1, &calls[0].2, Ok(answer()), at(0.1));
    assert_eq!(desk.next(at(0.1)).unwrap().0, (60, V));
}

#[test]
fn an_urged_key_is_planned_at_once_also_from_a_penalty() {
    let mut desk = desk();
    desk.see((1, V), at(0.0));
    let (key, why, call) = desk.next(at(0.0)).unwrap();
    desk.done(&key, why, &call, Err(Refusal::Unknown(String::new())), at(0.0));
    assert!(desk.next(at(0.0)).is_none());
    desk.urge_all();
    assert!(desk.next(at(0.0)).is_some());
}

#[test]
fn a_follower_plans_nothing_and_a_new_leader_plans_everything() {
    let mut desk = desk();
    desk.follow();
    for key in 1..=100 {
        desk.see((key, V), at(0.0));
    }
    desk.replan();
    assert!(desk.next(at(0.0)).is_none());
    assert_eq!((desk.waiting(), desk.tasks.len(), desk.wake_at(at(0.0))), (0, 0, None), "nothing piles up");
    desk.lead(at(1.0));
    let (now, mut calls) = (at(1.0), 0);
    while let Some((key, why, call)) = desk.next(now) {
        calls += 1;
        desk.done(&key, why, &call, Ok(answer()), now);
    }
    assert_eq!(calls, 100);
}

#[test]
fn a_call_that_was_not_sent_is_no_failure_and_its_key_stays_dirty() {
    let mut desk = desk();
    desk.see((1, V), at(0.0));
    for _ in 0..20 {
        let (key, why, call) = desk.next(at(0.0)).expect("no back-off");
        desk.done(&key, why, &call, Err(Refusal::NotLeading), at(0.0));
    }
    // Also when we learn only afterwards that we follow, or lead again before that.
    let (key, why, call) = desk.next(at(0.0)).unwrap();
    desk.follow();
    desk.done(&key, why, &call, Err(Refusal::NotLeading), at(0.0));
    assert_eq!((desk.flying(), desk.tasks.len()), (0, 0));
    desk.lead(at(1.0));
    let (key, why, call) = desk.next(at(1.0)).unwrap();
    desk.follow();
    desk.lead(at(2.0));
    assert!(desk.next(at(2.0)).is_none(), "its call of the last term is still in flight");
    desk.done(&key, why, &call, Err(Refusal::NotLeading), at(2.0));
    assert!(desk.next(at(2.0)).is_some());
}

#[test]
fn keys_that_waited_or_were_penalised_are_planned_when_we_lead_again() {
    let mut desk = desk();
    for key in [1, 2] {
        desk.see((key, V), at(0.0));
        let (key, why, call) = desk.next(at(0.0)).unwrap();
        desk.done(&key, why, &call, Err(Refusal::Unknown(String::new())), at(0.0));
    }
    assert!(desk.next(at(0.0)).is_none());
    desk.follow();
    assert!(desk.next(at(1000.0)).is_none(), "no timer of the last term fires");
    desk.lead(at(1000.0));
    assert_eq!(std::iter::from_fn(|| desk.next(at(1000.0))).count(), 2);
}

#[test]
fn for_a_busy_cluster_begun_keys_go_first_and_the_others_do_not_starve() {
    let mut desk = desk();
    let full = u32::try_from(CONCURRENCY).unwrap();
    let (waiting, begun) = (full + 1..full + 10, BEGUN..BEGUN + 10);
    for number in (1..=full).chain(waiting).chain(begun) {
        desk.see((number, V), at(0.0));
    }
    let mut flying: VecDeque<_> = std::iter::from_fn(|| desk.next(at(0.0))).collect();
    assert_eq!(flying.len(), CONCURRENCY);
    let mut order = Vec::new();
    for _ in 0..8 {
        let (key, why, call) = flying.pop_front().unwrap();
        desk.done(&key, why, &call, Ok(answer()), at(0.0));
        order.push(desk.next(at(0.0)).unwrap().0.0);
        assert!(desk.next(at(0.0)).is_none(), "there is room for one");
    }
    let [b, n] = [BEGUN, full + 1];
    assert_eq!(order, [b, b + 1, b + 2, n, b + 3, b + 4, b + 5, n + 1]);
}
