//! The loop with a clock that can be set and a model that waits for times.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Instant;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::json;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Target, Verb, kind};

use super::*;
use crate::lead::fence::Fence;
use crate::{Dirty, Plan, Reason as _};

/// Steady time is real, plus simulated sleep; wall time starts with the epoch and can be set.
struct Settable {
    start: Instant,
    ahead: AtomicI64,
    slept: AtomicU32,
    looks: AtomicU32,
}

impl Settable {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            ahead: AtomicI64::new(0),
            slept: AtomicU32::new(0),
            looks: AtomicU32::new(0),
        })
    }

    fn set_ahead(&self, by: Duration) {
        self.ahead.store(i64::try_from(by.as_millis()).unwrap(), Ordering::Relaxed);
    }
}

impl Clock for Settable {
    fn now(&self) -> Now {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let steady = self.start.elapsed() + Duration::from_secs(self.slept.load(Ordering::Relaxed).into());
        let ahead = SignedDuration::from_millis(self.ahead.load(Ordering::Relaxed));
        Now { wall: Timestamp::UNIX_EPOCH + steady + ahead, steady }
    }
}

/// Wants one call for each of its keys when wall time is so many milliseconds past the epoch.
struct Timetable {
    edges: Vec<u64>,
    plans: Arc<AtomicU32>,
    gaps: Arc<AtomicU32>,
}

crate::reasons! {
    enum Why { Test }
}

impl Model for Timetable {
    type Key = u64;
    type Fact = ();
    type Why = Why;
    fn observe(&mut self, (): (), _: Now, dirty: &mut Dirty<u64>) {
        dirty.mark_all();
    }
    fn plan(&self, key: &u64, now: Now) -> Plan<Why> {
        self.plans.fetch_add(1, Ordering::Relaxed);
        if !self.edges.contains(key) {
            return Plan::Rest;
        }
        let left = (Timestamp::UNIX_EPOCH + Duration::from_millis(*key)).duration_since(now.wall);
        if left.is_positive() {
            return Plan::Wait(now.steady + left.unsigned_abs());
        }
        let target = Target::cluster(Side::Virtual, &kind::NODE, Name::parse(&format!("n{key}")).unwrap());
        Why::Test.call(target, Verb::Create(json!({})))
    }
    fn settle(&mut self, key: &u64, _: Why, _: &Call, _: Result<Answer, Refusal>, _: Now, _: &mut Dirty<u64>) {
        self.edges.retain(|edge| edge != key);
    }
    fn gap(&mut self, _: Now) {
        self.gaps.fetch_add(1, Ordering::Relaxed);
    }
    fn keys(&self) -> Vec<u64> {
        self.edges.clone()
    }
}

/// Grants every call that is sent in a current term, and records when.
#[derive(Default)]
struct Notes {
    calls: Mutex<Vec<(String, Instant)>>,
    bell: Notify,
}

impl Gate for Notes {
    fn call(&self, call: Arc<Call>, lead: Lead) -> BoxFuture<'static, Result<Answer, Refusal>> {
        if !lead.lasts() {
            return async { Err(Refusal::NotLeading) }.boxed();
        }
        self.calls.lock().unwrap().push((call.target.name.to_string(), Instant::now()));
        self.bell.notify_one();
        async { Ok(Answer { object: "{}".into() }) }.boxed()
    }
}

impl Notes {
    fn count(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    async fn wait_for(&self, calls: usize) {
        let all = async {
            while self.count() < calls {
                self.bell.notified().await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(10), all).await;
        assert!(in_time.is_ok(), "{} of {calls} calls", self.count());
    }
}

/// One fact at the start, and none after it.
#[derive(Default)]
struct Once(bool);

impl Inbox<()> for Once {
    fn drain(&mut self, into: &mut Vec<()>) {
        into.extend((!std::mem::replace(&mut self.0, true)).then_some(()));
    }
    fn bell(&self) -> Arc<Notify> {
        Arc::default()
    }
}

struct Scene {
    clock: Arc<Settable>,
    gate: Arc<Notes>,
    plans: Arc<AtomicU32>,
    gaps: Arc<AtomicU32>,
}

impl Scene {
    fn new() -> Self {
        Self { clock: Settable::new(), gate: Arc::default(), plans: Arc::default(), gaps: Arc::default() }
    }

    /// Runs a loop for as long as the script does.
    async fn play(&self, edges: Vec<u64>, show: impl FnMut(&Desk<Timetable>), script: impl Future<Output = ()>) {
        self.play_under(Leadership::always(), edges, show, script).await;
    }

    async fn play_under(
        &self,
        leadership: Leadership,
        edges: Vec<u64>,
        show: impl FnMut(&Desk<Timetable>),
        script: impl Future<Output = ()>,
    ) {
        let (plans, gaps) = (Arc::clone(&self.plans), Arc::clone(&self.gaps));
        let desk = Desk::new(Timetable { edges, plans, gaps }, 1);
        let cancel = CancellationToken::new();
        let (gate, clock) = (Arc::clone(&self.gate), Arc::clone(&self.clock));
        let script = async {
            script.await;
            cancel.cancel();
        };
        tokio::join!(run(desk, gate, Once::default(), clock, leadership, show, cancel.clone()), script);
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < Duration::from_secs(10), "never: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn plans(&self) -> u32 {
        self.plans.load(Ordering::Relaxed)
    }
}

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test]
async fn a_clock_that_is_set_past_an_edge_is_noticed_within_a_second() {
    let scene = Scene::new();
    let edge = u64::try_from(HOUR.as_millis()).unwrap();
    let script = async {
        scene.until("the edge is waited for", || scene.plans() == 1).await;
        assert_eq!(scene.gate.count(), 0);
        scene.clock.set_ahead(HOUR);
        let set = Instant::now();
        scene.gate.wait_for(1).await;
        assert!(set.elapsed() < Duration::from_secs(1), "{:?}", set.elapsed());
    };
    scene.play(vec![edge], |_| {}, script).await;
}

#[tokio::test]
async fn a_process_that_did_not_run_for_a_while_notices_it_once_and_plans_everything_again() {
    let scene = Scene::new();
    let edge = u64::try_from(HOUR.as_millis()).unwrap();
    let gaps = || scene.gaps.load(Ordering::Relaxed);
    let script = async {
        scene.until("the edge is waited for", || scene.plans() == 1).await;
        let looks = scene.clock.looks.load(Ordering::Relaxed);
        scene.until("some looks", || scene.clock.looks.load(Ordering::Relaxed) >= looks + 3).await;
        assert_eq!(gaps(), 0, "an idle loop runs");
        scene.clock.slept.store(5, Ordering::Relaxed);
        scene.until("the gap is noticed", || gaps() == 1).await;
        scene.until("everything is planned again", || scene.plans() == 2).await;
        let looks = scene.clock.looks.load(Ordering::Relaxed);
        scene.until("some looks", || scene.clock.looks.load(Ordering::Relaxed) >= looks + 3).await;
        assert_eq!(gaps(), 1);
    };
    scene.play(vec![edge], |_| {}, script).await;
}

#[tokio::test]
async fn a_clock_that_drifts_is_a_clock_that_was_set() {
    let scene = Scene::new();
    let edge = u64::try_from(HOUR.as_millis()).unwrap();
    let script = async {
        scene.until("the edge is waited for", || scene.plans() == 1).await;
        for step in 1..=3 {
            let looks = scene.clock.looks.load(Ordering::Relaxed);
            scene.clock.set_ahead(Duration::from_millis(90) * step);
            scene.until("it is looked at", || scene.clock.looks.load(Ordering::Relaxed) > looks).await;
        }
        scene.until("270 ms in three small moves count", || scene.plans() == 2).await;
    };
    scene.play(vec![edge], |_| {}, script).await;
}

#[tokio::test]
async fn an_idle_loop_looks_at_the_clock_and_does_nothing_else() {
    let scene = Scene::new();
    let edge = u64::try_from(HOUR.as_millis()).unwrap();
    let mut shown = 0;
    let script = async {
        scene.until("the edge is waited for", || scene.plans() == 1).await;
        let looks = scene.clock.looks.load(Ordering::Relaxed);
        scene.until("some ticks", || scene.clock.looks.load(Ordering::Relaxed) >= looks + 3).await;
        assert_eq!(scene.plans(), 1);
    };
    scene.play(vec![edge], |_| shown += 1, script).await;
    // Once when it began to wait, once when it ended.
    assert_eq!(shown, 2);
}

#[tokio::test]
async fn a_wait_ends_within_fifty_milliseconds_of_its_time_however_long_the_loop_was_busy_before() {
    let scene = Scene::new();
    // In many phases of the half-second tick.
    let edges: Vec<u64> = (1..=9).map(|step| step * 287).collect();
    // As if planning, or metrics, took long.
    let busy = |_: &Desk<Timetable>| std::thread::sleep(Duration::from_millis(70));
    // A task that only sleeps, for comparison: on a busy machine both are late.
    let (start, times) = (scene.clock.start, edges.clone());
    let sleeper = std::thread::spawn(move || {
        let late = |edge: u64| {
            let at = start + Duration::from_millis(edge);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            at.elapsed()
        };
        times.into_iter().map(late).collect::<Vec<_>>()
    });
    scene.play(edges.clone(), busy, scene.gate.wait_for(edges.len())).await;
    let late = |(name, at): &(String, Instant)| {
        let edge = Duration::from_millis(name[1..].parse().unwrap());
        at.duration_since(scene.clock.start).checked_sub(edge).expect("before its time")
    };
    let middle = |mut late: Vec<Duration>| {
        late.sort_unstable();
        late[late.len() / 2]
    };
    let late = middle(scene.gate.calls.lock().unwrap().iter().map(late).collect());
    let sleeper = middle(sleeper.join().unwrap());
    assert!(late < sleeper * 3 + Duration::from_millis(50), "{late:?} late, a task that only sleeps {sleeper:?}");
}

#[tokio::test]
async fn a_loop_that_follows_calls_nothing_and_begins_as_soon_as_it_leads() {
    let scene = Scene::new();
    let fence = Arc::new(Fence::new(Arc::clone(&scene.clock) as Arc<dyn Clock>));
    let leadership = Leadership::behind(Arc::clone(&fence));
    let shown = AtomicU32::new(0);
    let script = async {
        scene.until("it has read", || shown.load(Ordering::Relaxed) > 0).await;
        assert_eq!((scene.plans(), scene.gate.count()), (0, 0));
        fence.open(1, HOUR);
        fence.ring();
        // Two are due, the third in an hour.
        scene.gate.wait_for(2).await;
        fence.shut();
        fence.ring();
        scene.clock.set_ahead(HOUR);
        let looks = scene.clock.looks.load(Ordering::Relaxed);
        scene.until("some looks", || scene.clock.looks.load(Ordering::Relaxed) >= looks + 3).await;
        assert_eq!(scene.gate.count(), 2, "it no longer led");
        fence.open(2, HOUR);
        fence.ring();
        scene.gate.wait_for(3).await;
    };
    let hour = u64::try_from(HOUR.as_millis()).unwrap();
    let show = |_: &Desk<Timetable>| {
        shown.fetch_add(1, Ordering::Relaxed);
    };
    scene.play_under(leadership, vec![0, 1, hour], show, script).await;
}

#[tokio::test]
async fn a_term_that_ends_without_a_bell_ends_all_the_same() {
    let scene = Scene::new();
    let fence = Arc::new(Fence::new(Arc::clone(&scene.clock) as Arc<dyn Clock>));
    let leadership = Leadership::behind(Arc::clone(&fence));
    // For a moment; no bell rings when it is over.
    fence.open(1, scene.clock.now().steady + Duration::from_millis(300));
    let script = async {
        scene.gate.wait_for(1).await;
        scene.until("the second is due", || scene.clock.start.elapsed() > Duration::from_millis(900)).await;
        assert_eq!(scene.gate.count(), 1);
        let plans = scene.plans();
        assert!(plans < 20, "{plans} plans");
        fence.open(2, HOUR);
        fence.ring();
        scene.gate.wait_for(2).await;
    };
    scene.play_under(leadership, vec![0, 600], |_| {}, script).await;
}
