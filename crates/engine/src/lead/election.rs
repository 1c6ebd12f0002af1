//! What is known of the Lease, since when, and what follows from it: wait, look, take, renew, or we have lost.
//! Pure. Must not compare clocks: the age of a record is the time for which this process has seen it unchanged.

use std::time::Duration;

use serde_json::json;
use tapestry_cluster::feed::Change;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Sub, Target, Verb, kind};

use super::barred::Barred;
use super::record::{self, Record};
use crate::{Now, Reason as _, reasons};

reasons! {
    /// What its calls are for.
    enum Why {
        /// Which process has the Lease.
        LookForLead,
        /// The namespace of the Lease is missing.
        CreateNamespace,
        /// No process has it, or none has renewed it in time.
        TakeLead,
        /// It is ours.
        RenewLead,
        /// It is ours, and we stop.
        ReleaseLead,
    }
}

/// The Lease that a candidate competes for, and the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// Where the Lease is; created when it is missing.
    pub namespace: Name,
    /// The Lease.
    pub name: Name,
    /// Our name. A process whose name is in the Lease takes it at once, so two running processes must not share a name.
    pub identity: Box<str>,
    /// Its durations.
    pub timings: LeaseTimings,
}

/// How long things take, as client-go has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimings {
    /// A Lease that was unchanged for this long may be taken. Whole seconds.
    pub lease: Duration,
    /// We stop leading this long after the last successful renewal was sent.
    pub renew_deadline: Duration,
    /// Time between renewals, and between tries.
    pub retry: Duration,
}

/// The Lease keeps them as an int32.
const MOST_SECONDS: u64 = i32::MAX.unsigned_abs() as u64;

/// Durations that cannot work together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadTimings {
    /// The Lease has whole seconds.
    #[error("the lease duration must be whole seconds, at least one")]
    Fraction,
    /// Others would take the Lease while we still lead.
    #[error("the lease duration must be longer than the renew deadline")]
    Deadline,
    /// A single renewal that fails would end a term.
    #[error("the renew deadline must be longer than 1.2 times the retry period, which must not be zero")]
    Retry,
}

impl Default for LeaseTimings {
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), renew_deadline: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

impl LeaseTimings {
    /// The rules of client-go.
    pub fn check(&self) -> Result<(), BadTimings> {
        if self.lease.as_secs() == 0 || self.lease.subsec_nanos() != 0 || self.lease.as_secs() > MOST_SECONDS {
            return Err(BadTimings::Fraction);
        }
        if self.lease <= self.renew_deadline {
            return Err(BadTimings::Deadline);
        }
        if self.retry.is_zero() || self.renew_deadline <= self.retry.mul_f64(1.2) {
            return Err(BadTimings::Retry);
        }
        Ok(())
    }

    /// How long a call may take: a connection that died leaves time for a second one.
    fn patience(&self) -> Duration {
        self.renew_deadline / 2
    }

    /// After another writer changed the Lease: soon, but not at the speed of the network.
    fn moment(&self) -> Duration {
        self.retry / 20
    }
}

/// We lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Counts how often we became leader.
    pub term: u64,
    /// Steady time at which we stop unless we renew: the moment before the last successful renewal was sent, and the deadline.
    pub until: Duration,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing before this steady time, unless the Lease changes.
    Wait(Duration),
    /// This call, with its deadline.
    Do {
        /// Look, create, take or renew.
        call: Call,
        /// Then it has failed.
        within: Duration,
    },
    /// We no longer lead: [`Election::lose`].
    Lost,
}

/// What we know of the Lease.
#[derive(Debug, Clone, PartialEq)]
enum Observed {
    /// It was changed, or we have not read it yet.
    Unknown,
    /// There is none; until this time a former holder may still believe that it leads.
    Absent { from: Duration },
    /// Not even its namespace.
    Nowhere,
    /// It has looked like this since then.
    Seen { record: Record, since: Duration },
}

/// One candidate's view.
#[derive(Debug)]
pub struct Election {
    seat: Seat,
    observed: Observed,
    hold: Option<Hold>,
    /// How often we became leader.
    served: u64,
    /// Steady time of the next try.
    not_before: Duration,
    barred: Option<Barred>,
}

impl Election {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(seat: Seat) -> Self {
        Self::after(seat, 0)
    }

    /// Nothing is known yet, except the number of earlier terms.
    #[must_use]
    pub fn after(seat: Seat, served: u64) -> Self {
        Self { seat, observed: Observed::Unknown, hold: None, served, not_before: Duration::ZERO, barred: None }
    }

    /// What this candidate competes for.
    #[must_use]
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Whether and until when we lead.
    #[must_use]
    pub fn hold(&self) -> Option<Hold> {
        self.hold
    }

    /// The holder of the Lease as far as we know; empty without one.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        match &self.observed {
            Observed::Seen { record, .. } => Some(record.holder()),
            _ => None,
        }
    }

    /// Why we cannot take part in the election. `None` while we can, or lead, or another process leads, and before the
    /// refusals have lasted for the duration of a Lease. Otherwise no process leads, as far as we know.
    #[must_use]
    pub fn barred(&self, now: Duration) -> Option<&str> {
        let barred = self.barred.as_ref().filter(|_| self.hold.is_none())?;
        (now >= barred.since() + self.seat.timings.lease).then(|| barred.why())
    }

    /// Applies what the watch shows.
    pub fn see(&mut self, change: Change<Record>, now: Duration) {
        match change {
            Change::Put(record, _) => {
                // The answers to our own calls come before the watch shows them.
                let newer = match &self.observed {
                    Observed::Seen { record: known, .. } => record.rv > known.rv,
                    _ => true,
                };
                if newer {
                    self.know(record, now);
                }
            }
            Change::Gone { row, .. } => match &self.observed {
                Observed::Seen { record, since } if record.uid == row.uid => {
                    // The former holder will notice, and may create it again before any other process.
                    let foreign = !record.holder().is_empty() && record.holder() != &*self.seat.identity;
                    let from = if foreign { *since + record.lasts() } else { now };
                    self.observed = Observed::Absent { from };
                }
                _ => {}
            },
            // A Lease that the list missed shows as soon as we try.
            Change::Listed(_) | Change::Unserved | Change::Reached(_) => {}
        }
    }

    /// What to do now.
    #[must_use]
    pub fn plan(&self, now: Now) -> Step {
        let steady = now.steady;
        let timings = &self.seat.timings;
        let mut within = timings.patience();
        if let Some(hold) = self.hold {
            if steady >= hold.until {
                return Step::Lost;
            }
            within = within.min(hold.until.saturating_sub(steady));
        }
        let last = self.hold.map_or(Duration::MAX, |hold| hold.until);
        if steady < self.not_before {
            let told = self.barred.as_ref().map(|barred| barred.since() + timings.lease).filter(|at| *at > steady);
            return Step::Wait(self.not_before.min(last).min(told.unwrap_or(Duration::MAX)));
        }
        let (call, open) = match &self.observed {
            Observed::Unknown => (self.look(), steady),
            Observed::Nowhere => (self.create_namespace(), steady),
            Observed::Absent { from } => (self.create(now), *from),
            Observed::Seen { record, since } => (self.claim(record, now), self.claimable(record, *since)),
        };
        if steady < open { Step::Wait(open.min(last)) } else { Step::Do { call, within } }
    }

    /// When the Lease may be claimed. Another holder's Lease must be unchanged for its duration.
    fn claimable(&self, record: &Record, since: Duration) -> Duration {
        let free = record.holder().is_empty() || record.holder() == &*self.seat.identity;
        if free { Duration::ZERO } else { since + record.lasts() }
    }

    /// Applies how a call ended; `sent` is the moment before it was sent.
    pub fn settle(&mut self, call: &Call, sent: Duration, now: Duration, done: Result<Answer, Refusal>) {
        let timings = self.seat.timings;
        // Until something else is known: the same again, after the usual time.
        self.not_before = (sent + timings.retry).max(now + timings.moment());
        let about_namespace = *call.target.kind == kind::NAMESPACE;
        let seen = match &self.observed {
            Observed::Seen { record, .. } => Some(record),
            _ => None,
        };
        self.barred = Barred::settle(self.barred.take(), call, &done, seen, now);
        match done {
            Ok(_) | Err(Refusal::Exists) if about_namespace => {
                (self.observed, self.not_before) = (Observed::Absent { from: now }, now);
            }
            Ok(answer) => match Record::decode(&answer.object) {
                Ok(record) => {
                    let ours = record.holder() == &*self.seat.identity && !call.is_read();
                    // Read from etcd, or written by us: newer than all we knew, whatever its version.
                    self.know(record, now);
                    if ours {
                        self.renewed(sent, now);
                    } else {
                        self.not_before = now;
                    }
                }
                Err(_) => self.observed = Observed::Unknown,
            },
            Err(Refusal::Gone) => (self.observed, self.not_before) = (Observed::Absent { from: now }, now),
            Err(Refusal::Exists | Refusal::Replaced) => {
                (self.observed, self.not_before) = (Observed::Unknown, now + timings.moment());
            }
            Err(Refusal::Invalid(status)) if status.code == 404 => {
                (self.observed, self.not_before) = (Observed::Nowhere, now);
            }
            // A user has to fix this, so retry rarely. A leader retries as usual, because it loses the Lease otherwise.
            Err(Refusal::Denied(_) | Refusal::Invalid(_)) if self.hold.is_none() => {
                (self.observed, self.not_before) = (Observed::Unknown, now + timings.lease);
            }
            Err(_) => {}
        }
    }

    /// We no longer lead. If the Lease still has our name, we can claim it at once, as a new term.
    pub fn lose(&mut self) {
        self.hold = None;
        self.not_before = Duration::ZERO;
    }

    /// The call that gives the Lease back; `None` when it is not ours. `led`: it certainly was ours, so reading it again is
    /// worth a call.
    #[must_use]
    pub fn plan_release(&self, now: Now, led: bool) -> Option<Call> {
        match &self.observed {
            Observed::Seen { record, .. } if record.holder() == &*self.seat.identity => {
                let verb = Verb::Merge(Sub::Main, json!({"spec": record::render_release(now)}));
                let target = self.target().uid(&record.uid).rv(record.rv);
                Some(Why::ReleaseLead.call_alone(target, verb))
            }
            Observed::Unknown if led => Some(self.look()),
            _ => None,
        }
    }

    /// The Lease looks like this.
    fn know(&mut self, record: Record, now: Duration) {
        self.barred = self.barred.take().and_then(|barred| barred.see(&record, &self.seat.identity));
        // Also when it has no holder: any process that sees this may take it.
        if record.holder() != &*self.seat.identity {
            self.hold = None;
        }
        let since = match &self.observed {
            // A change by another writer, such as a label, is no sign that the holder lives.
            Observed::Seen { record: known, since } if known.uid == record.uid && known.spec == record.spec => *since,
            _ => {
                self.not_before = self.not_before.min(now);
                now
            }
        };
        self.observed = Observed::Seen { record, since };
    }

    /// The Lease was ours when the server answered, which was after `sent`.
    fn renewed(&mut self, sent: Duration, now: Duration) {
        let until = sent + self.seat.timings.renew_deadline;
        let term = match self.hold {
            Some(hold) if now < hold.until => hold.term,
            _ => self.served + 1,
        };
        // An answer that we read too late does not count: we may have slept.
        self.hold = (now < until).then_some(Hold { term, until });
        if self.hold.is_some() {
            self.served = term;
        }
        self.not_before = sent + self.seat.timings.retry;
    }

    fn target(&self) -> Target {
        Target::namespaced(Side::Virtual, &kind::LEASE, self.seat.namespace.clone(), self.seat.name.clone())
    }

    fn look(&self) -> Call {
        Why::LookForLead.call_alone(self.target(), Verb::Peek)
    }

    fn create_namespace(&self) -> Call {
        let name = &self.seat.namespace;
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name.as_str()}});
        let target = Target::cluster(Side::Virtual, &kind::NAMESPACE, name.clone());
        Why::CreateNamespace.call_alone(target, Verb::Create(body))
    }

    fn create(&self, now: Now) -> Call {
        Why::TakeLead.call_alone(self.target(), Verb::Create(record::render_first(&self.seat, now)))
    }

    /// Under the version that we read, so that only one of all candidates succeeds (law 2).
    fn claim(&self, record: &Record, now: Now) -> Call {
        let ours = record.holder() == &*self.seat.identity;
        let (spec, why) = if ours {
            (record::render_renewal(&self.seat, now), Why::RenewLead)
        } else {
            (record::render_taking(&self.seat, record, now), Why::TakeLead)
        };
        let target = self.target().uid(&record.uid).rv(record.rv);
        why.call_alone(target, Verb::Merge(Sub::Main, json!({"spec": spec})))
    }
}
