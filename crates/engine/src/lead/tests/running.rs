//! The task of a candidate, with a clock that can be set forward.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tapestry_cluster::feed::{Mailbox, Sender, mailbox};
use tapestry_cluster::{Gate, Lead};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::fence::{Fence, Leadership};
use super::super::{Candidate, Clock, persist};
use super::*;
use crate::run::Inbox;

/// Real time, and what was slept through.
struct Sleeper {
    start: Instant,
    slept: AtomicU64,
}

impl Clock for Sleeper {
    fn now(&self) -> Now {
        let steady = self.start.elapsed() + Duration::from_secs(self.slept.load(Ordering::Relaxed));
        Now { wall: Timestamp::UNIX_EPOCH + steady, steady }
    }
}

/// A server that sends events to its watchers, unless it is muted.
#[derive(Default)]
struct Shared {
    server: Mutex<Server>,
    watches: Mutex<Vec<Sender<Record>>>,
}

/// What the server sends.
struct Told {
    mailbox: Mailbox<Record>,
    bell: Arc<Notify>,
}

impl Inbox<Change<Record>> for Told {
    fn drain(&mut self, into: &mut Vec<Change<Record>>) {
        into.extend(self.mailbox.drain());
    }

    fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bell)
    }
}

struct LeaseGate(Arc<Shared>);

/// A gate whose next call panics on demand.
struct Trap(LeaseGate, AtomicBool);

impl Gate for Trap {
    fn call(&self, call: Arc<Call>, lead: Lead) -> BoxFuture<'static, Result<Answer, Refusal>> {
        assert!(!self.1.swap(false, Ordering::Relaxed), "a call that cannot be");
        self.0.call(call, lead)
    }
}

impl Gate for LeaseGate {
    fn call(&self, call: Arc<Call>, lead: Lead) -> BoxFuture<'static, Result<Answer, Refusal>> {
        let shared = Arc::clone(&self.0);
        async move {
            assert!(lead.lasts());
            let mut server = shared.server.lock().unwrap();
            let before = server.log.len();
            let done = server.call(&call);
            for event in &server.log[before..] {
                for watch in &*shared.watches.lock().unwrap() {
                    watch.send(change(event));
                }
            }
            done
        }
        .boxed()
    }
}

struct Running {
    leadership: Leadership,
    clock: Arc<Sleeper>,
    resign: CancellationToken,
    tasks: JoinSet<()>,
}

/// Short timings: a second is the shortest lease.
const TIMINGS: LeaseTimings = LeaseTimings {
    lease: Duration::from_secs(1),
    renew_deadline: Duration::from_millis(800),
    retry: Duration::from_millis(200),
};

fn campaign(shared: &Arc<Shared>, identity: &str, timings: LeaseTimings) -> Running {
    let bell = Arc::new(Notify::new());
    let (sender, mailbox) = mailbox(Arc::clone(&bell));
    shared.watches.lock().unwrap().push(sender);
    let clock = Arc::new(Sleeper { start: Instant::now(), slept: AtomicU64::new(0) });
    let fence = Arc::new(Fence::new(Arc::clone(&clock) as Arc<dyn Clock>));
    let leadership = Leadership::behind(Arc::clone(&fence));
    let candidate = Candidate {
        election: Election::new(Seat { timings, ..seat(identity) }),
        gate: Arc::new(LeaseGate(Arc::clone(shared))),
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        fence,
        told: None,
        follows: None,
    };
    let (mut tasks, resign) = (JoinSet::new(), CancellationToken::new());
    tasks.spawn(candidate.run(Told { mailbox, bell }, resign.clone()));
    Running { leadership, clock, resign, tasks }
}

impl Running {
    /// The lead, as soon as the candidate has it, and how long that took.
    async fn leads(&self) -> (Lead, Duration) {
        let began = Instant::now();
        let mut leadership = self.leadership.clone();
        let wait = async {
            loop {
                if let Some(lead) = leadership.lead() {
                    return lead;
                }
                leadership.changed().await;
            }
        };
        let lead = tokio::time::timeout(Duration::from_secs(10), wait).await.expect("never leads");
        (lead, began.elapsed())
    }

    async fn end(mut self) {
        self.resign.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

#[tokio::test]
async fn an_election_that_panics_stops_leading_and_is_a_candidate_again_in_a_later_term() {
    let shared: Arc<Shared> = Arc::default();
    let clock = Arc::new(Sleeper { start: Instant::now(), slept: AtomicU64::new(0) });
    let fence = Arc::new(Fence::new(Arc::clone(&clock) as Arc<dyn Clock>));
    let (leadership, resign) = (Leadership::behind(Arc::clone(&fence)), CancellationToken::new());
    let trap = Arc::new(Trap(LeaseGate(Arc::clone(&shared)), AtomicBool::new(false)));
    let (gate, given, inner, resigned) = (Arc::clone(&trap), Arc::clone(&clock), Arc::clone(&fence), resign.clone());
    let candidacy = move |served: u64, life: &mut JoinSet<()>| {
        let bell = Arc::new(Notify::new());
        let (_, mailbox) = mailbox(Arc::clone(&bell));
        let election = Election::after(Seat { timings: TIMINGS, ..seat("us") }, served);
        let (gate, clock, fence) = (Arc::clone(&gate), Arc::clone(&given), Arc::clone(&inner));
        let candidate = Candidate { election, gate, clock, fence, told: None, follows: None };
        life.spawn(candidate.run(Told { mailbox, bell }, resigned.clone()));
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(persist(fence, resign.clone(), candidacy));
    let mut us = Running { leadership, clock, resign, tasks };
    let (first, _) = us.leads().await;
    trap.1.store(true, Ordering::Relaxed);
    let lost = async {
        while us.leadership.lead().is_some() {
            us.leadership.changed().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), lost).await.expect("it believes that it leads");
    let (again, _) = us.leads().await;
    assert!(again.lasts() && !first.lasts(), "a call planned before the panic is not sent");
    us.end().await;
    assert_eq!(shared.server.lock().unwrap().lease.as_ref().unwrap()["spec"]["holderIdentity"], "");
}

#[tokio::test]
async fn a_machine_that_slept_does_not_believe_that_it_leads() {
    let shared = Arc::default();
    let us = campaign(&shared, "us", LeaseTimings::default());
    let (lead, _) = us.leads().await;
    assert!(lead.lasts());
    us.clock.slept.fetch_add(11, Ordering::Relaxed);
    // Before anything had time to run.
    assert!(!lead.lasts());
    assert!(us.leadership.lead().is_none());
    // No other process took it meanwhile, so it leads again; but calls planned before the sleep are not sent.
    let (again, _) = us.leads().await;
    assert_eq!((lead.term(), again.term()), (1, 2));
    assert!(!lead.lasts() && again.lasts());
    us.end().await;
}

#[tokio::test]
async fn a_release_is_seen_at_once_and_a_crash_after_the_lease() {
    let shared: Arc<Shared> = Arc::default();
    let first = campaign(&shared, "first", TIMINGS);
    first.leads().await;
    let second = campaign(&shared, "second", TIMINGS);
    // The first keeps it for as long as it renews.
    tokio::time::sleep(2 * TIMINGS.lease).await;
    assert!(first.leadership.lead().is_some());
    assert!(second.leadership.lead().is_none());
    first.end().await;
    let (_, took) = second.leads().await;
    assert!(took < TIMINGS.lease / 2, "{took:?} after a release");
    assert_eq!(shared.server.lock().unwrap().holder(), "second");

    let third = campaign(&shared, "third", TIMINGS);
    assert!(third.leadership.lead().is_none());
    // As if it were killed.
    drop(second);
    let (_, took) = third.leads().await;
    assert!(took > TIMINGS.lease / 2 && took < TIMINGS.lease + Duration::from_secs(1), "{took:?} after a crash");
    third.end().await;
    assert_eq!(shared.server.lock().unwrap().holder(), "");
}
