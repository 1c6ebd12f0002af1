//! Leader election by a `coordination.k8s.io` Lease, watched and not polled, in the format of client-go's leader election.
//! Must not decide what a leader does; the loop asks it, and it fences the gate.
//! | room | contents |
//! |---|---|
//! | [`election`] | what is known of the Lease and when; what to do next; pure |
//! | [`record`] | the Lease as client-go writes it |
//! | `barred` | calls of the election that the API server refuses |
//! | [`fence`] | until when we lead, checked right before every call |

mod barred;
pub mod election;
pub mod fence;
pub mod record;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tapestry_cluster::feed::Change;
use tapestry_cluster::watch::Query;
use tapestry_cluster::watches::{Pulse, Reader, WatchSet, Wrap};
use tapestry_cluster::{Cluster, Gate, Lead, Refusal, Side, kind};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

pub use self::election::{BadTimings, LeaseTimings, Seat};
pub use self::fence::Leadership;

use self::election::{Election, Hold, Step};
use self::fence::Fence;
use self::record::Record;
use crate::clock::Clock;
use crate::run::Inbox;

/// How often we read the clock while waiting: timers stop while the machine sleeps, and a Lease does not.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The number of calls to give a Lease back: a try, a read of what changed meanwhile, another try.
const LAST_WORDS: usize = 3;

/// After a panic of the candidate or its watch, a new candidacy begins this much later.
const RETRY_CANDIDACY: Duration = Duration::from_secs(1);

/// Runs for the seat until `resign` is cancelled; the Lease has been given back when `tasks` are done. The gate should have
/// its own connections, so that no burst of work delays a renewal; `cluster` is where the Lease is watched.
pub fn campaign(
    seat: Seat,
    cluster: Cluster,
    gate: Arc<dyn Gate>,
    clock: Arc<dyn Clock>,
    pulse: Pulse,
    tasks: &mut JoinSet<()>,
    resign: &CancellationToken,
) -> Leadership {
    let fence = Arc::new(Fence::new(Arc::clone(&clock)));
    let leadership = Leadership::behind(Arc::clone(&fence));
    let (shared, resigned) = (Arc::clone(&fence), resign.clone());
    let candidacy = move |served: u64, life: &mut JoinSet<()>| {
        let (namespace, fields) = (Some(seat.namespace.clone()), format!("metadata.name={}", seat.name));
        let query = Query { namespace, fields, ..Query::all(&kind::LEASE) };
        // The syncer reports the state of this watch; the election relies on the times of the Lease.
        let (pulse, cancel) = (pulse.clone(), resigned.clone());
        let mut lease =
            WatchSet::new(Reader::Election, Wrap { state: |_, _| None, connection: |_, _| None }, pulse, cancel, life);
        let decode = |json: &Bytes| Record::decode(json).map(Some);
        lease.add(cluster.clone(), (Side::Virtual, query), decode, std::convert::identity);
        let (election, fence) = (Election::after(seat.clone(), served), Arc::clone(&shared));
        let (gate, clock) = (Arc::clone(&gate), Arc::clone(&clock));
        let candidate = Candidate { election, gate, clock, fence, told: None, follows: None };
        life.spawn(candidate.run(lease, resigned.clone()).in_current_span());
    };
    tasks.spawn(persist(fence, resign.clone(), candidacy).in_current_span());
    leadership
}

/// Stays a candidate: when a task of a candidacy panics, we no longer lead, and the next candidacy begins a moment later.
/// `candidacy` starts one; terms go on from the number it is given, so that no call of an earlier candidacy passes the fence.
async fn persist(fence: Arc<Fence>, resign: CancellationToken, mut candidacy: impl FnMut(u64, &mut JoinSet<()>)) {
    loop {
        let mut life = JoinSet::new();
        candidacy(fence.last_term(), &mut life);
        let ended = life.join_next().await;
        if resign.is_cancelled() {
            while life.join_next().await.is_some() {}
            return;
        }
        fence.shut();
        fence.ring();
        life.shutdown().await;
        let how = match ended {
            Some(Err(panicked)) => panicked.to_string(),
            _ => "its task ended early".to_owned(),
        };
        tracing::error!(how, again_in = ?RETRY_CANDIDACY, "the election failed: this process does not lead, and starts a new candidacy");
        if resign.run_until_cancelled(tokio::time::sleep(RETRY_CANDIDACY)).await.is_none() {
            return;
        }
    }
}

/// A candidate: the election, and how it reads and writes the Lease.
struct Candidate {
    election: Election,
    gate: Arc<dyn Gate>,
    clock: Arc<dyn Clock>,
    fence: Arc<Fence>,
    /// What the loop knows.
    told: Option<Hold>,
    /// The holder that was logged last.
    follows: Option<Box<str>>,
}

impl Candidate {
    async fn run(mut self, mut lease: impl Inbox<Change<Record>>, resign: CancellationToken) {
        let (bell, mut changes) = (lease.bell(), Vec::new());
        let seat = self.election.seat();
        tracing::info!(lease = %seat.name, namespace = %seat.namespace, identity = &*seat.identity, "waiting to become leader");
        while !resign.is_cancelled() {
            lease.drain(&mut changes);
            for change in changes.drain(..) {
                self.election.see(change, self.clock.now().steady);
            }
            let now = self.clock.now();
            match self.election.plan(now) {
                Step::Lost => self.election.lose(),
                Step::Wait(until) => {
                    self.tell();
                    tokio::select! {
                        () = bell.notified() => {}
                        () = resign.cancelled() => {}
                        () = sleep_until(until, &*self.clock) => {}
                    }
                }
                Step::Do { call, within } => {
                    self.tell();
                    self.carry_out(call, within, now.steady).await;
                }
            }
            self.tell();
        }
        self.give_back().await;
    }

    async fn carry_out(&mut self, call: tapestry_cluster::Call, within: Duration, sent: Duration) {
        let call = Arc::new(call);
        // The election's own calls are fenced by the version of the Lease.
        let answer = tokio::time::timeout(within, self.gate.call(Arc::clone(&call), Lead::always())).await;
        let done = answer.unwrap_or_else(|_| Err(Refusal::Unknown(format!("no answer within {within:?}"))));
        if let Err(refused @ (Refusal::Denied(_) | Refusal::Invalid(_))) = &done {
            tracing::warn!(%call, why = refused.message(), "cannot take part in the leader election: grant this right, or switch the election off");
        }
        self.election.settle(&call, sent, self.clock.now().steady, done);
    }

    /// Ends our term first and then releases the Lease, so that the others need not wait.
    async fn give_back(mut self) {
        let led = self.election.hold().is_some();
        self.election.lose();
        self.fence.shut();
        for _ in 0..LAST_WORDS {
            let now = self.clock.now();
            let Some(call) = self.election.plan_release(now, led) else { break };
            let within = self.election.seat().timings.retry;
            self.carry_out(call, within, now.steady).await;
        }
        if led {
            let released = self.election.holder().is_none_or(str::is_empty);
            tracing::info!(released, "leadership released");
        }
    }

    /// Tells the gate, the loop and the log whether we lead.
    fn tell(&mut self) {
        let hold = self.election.hold();
        let before = std::mem::replace(&mut self.told, hold).map(|hold| hold.term);
        match hold {
            Some(hold) => self.fence.open(hold.term, hold.until),
            None => self.fence.shut(),
        }
        self.tell_barred();
        if hold.map(|hold| hold.term) == before {
            return self.tell_holder();
        }
        match (before, hold) {
            (Some(_), None) => {
                let holder = self.election.holder().unwrap_or_default();
                let taken = !holder.is_empty() && holder != &*self.election.seat().identity;
                let why =
                    if taken { "another process has taken the Lease" } else { "the Lease was not renewed in time" };
                tracing::info!(holder, why, "leadership lost: waiting to become leader again");
            }
            (_, Some(hold)) => {
                tracing::info!(term = hold.term, identity = &*self.election.seat().identity, "leading");
                self.follows = None;
            }
            (None, None) => {}
        }
        self.fence.ring();
    }

    fn tell_barred(&self) {
        let barred = self.election.barred(self.clock.now().steady);
        if self.fence.bar(barred) {
            if let Some(why) = barred {
                tracing::error!(why, "cannot take part in the leader election, and no process leads");
            } else {
                tracing::info!("taking part in the leader election again");
            }
            self.fence.ring();
        }
    }

    fn tell_holder(&mut self) {
        let other = |holder: &&str| !holder.is_empty() && *holder != &*self.election.seat().identity;
        let Some(holder) = self.election.holder().filter(other) else { return };
        if self.follows.as_deref() != Some(holder) {
            tracing::info!(holder, "following");
            self.follows = Some(holder.into());
        }
    }
}

async fn sleep_until(until: Duration, clock: &dyn Clock) {
    loop {
        let left = until.saturating_sub(clock.now().steady);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK_EVERY)).await;
    }
}

/// A unique name for this process: the host's, and a random part.
#[must_use]
pub fn own_identity() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{:016x}", fastrand::u64(..))
}

#[cfg(test)]
mod tests;
