//! The mass-delete breaker (law 1): when many pods would end at once and no user asked for the end of each, nothing ends until
//! a user has looked, or until all of them are there again. Kept in the binding's status, so that a restart does not forget
//! it; cleared by `tapestry resume`, or by itself. Counts and holds back; what would be done about a pod is its own plan.

mod deleted;
mod weigh;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tapestry_api::binding::{BreakerTrip, UnaskedEnds};
use tapestry_cluster::Uid;
use tapestry_engine::Now;

pub(crate) use self::deleted::{MANY_DELETED, tell_deleted};
pub(crate) use self::weigh::{Circumstances, Verdict};

/// How long an end counts, and how long while more than a few pods are missing from the watch: those belong to the same loss.
const WINDOW: Duration = Duration::from_mins(1);
const LONG_WINDOW: Duration = Duration::from_hours(1);
/// What is written in the binding is good for this long, so that the process that reads it after a crash still counts it.
const FRESH: Duration = Duration::from_secs(30);
/// Reason of condition and event while it holds pods back.
pub(crate) const MASS_DELETION: &str = "MassDeletion";
/// Reason of the event when it holds none back any more.
pub(crate) const CLEARED: &str = "BreakerCleared";

/// So many may end without a question.
const FEW: usize = 20;
/// More than this share of the pods is too much: one in so many.
const SHARE: usize = 4;

/// What is known of ends that no user asked for.
/// INVARIANT: no pod is both in `alone` and in `let_go`.
#[derive(Default)]
pub(crate) struct Breaker {
    /// All lists are in, and the loss state of each pod is recorded.
    begun: bool,
    /// Pods that run on one side and that the watch of the other side does not show, although no user asked for their end.
    alone: BTreeMap<Uid, Evidence>,
    /// How many of them are proven to end.
    proven: usize,
    /// Those of them that a user has looked at.
    approved: BTreeSet<Uid>,
    /// Those that may end because the binding says that they are counted, and those that have.
    let_go: BTreeMap<Uid, LetGo>,
    /// What the binding says that another process let go before us, and when, in steady time.
    inherited: Option<(usize, Duration)>,
    /// Under which name the binding says what we let go; another one in each term.
    name: Option<String>,
    /// What the binding says.
    written: Option<UnaskedEnds>,
    trip: Option<BreakerTrip>,
    /// The last trip that was resumed or cleared: until the binding says so too, it is not a new one.
    closed: Option<String>,
    deleted: deleted::DeletedCopies,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Evidence {
    Lacking,
    /// It would end now.
    Proven,
}

struct LetGo {
    at: Duration,
    /// It has ended; until then it counts for as long as that takes.
    over: bool,
    /// Because its node is drained: it ends by our deletion.
    drained: bool,
}

/// How close a pod is to its end.
#[derive(Clone, Copy)]
pub(crate) enum LossState {
    /// The watch of the other side does not show it, and it is not proven yet that it is gone there.
    Alone,
    /// It would end now although no user asked for it.
    Ends,
    /// It does not run (any more).
    Over,
    /// It goes on, or a user asked for its end.
    Fine,
}

/// How many ends are certain, and how many there may be at most.
#[derive(Clone, Copy)]
struct Tally {
    certain: usize,
    most: usize,
}

impl Breaker {
    /// Why everything is held back.
    pub(crate) fn trip(&self) -> Option<&BreakerTrip> {
        self.trip.as_ref()
    }

    /// Whether this pod must not end now, whatever is proven.
    pub(crate) fn holds(&self, uid: &Uid) -> bool {
        self.trip.is_some() && !self.approved.contains(uid)
    }

    /// Whether this pod is counted, in the binding too, or a user has looked at it.
    pub(crate) fn lets_go(&self, uid: &Uid) -> bool {
        self.approved.contains(uid) || (self.trip.is_none() && self.let_go.contains_key(uid))
    }

    /// Whether this pod was let go because its node is drained.
    pub(crate) fn sends_away(&self, uid: &Uid) -> bool {
        self.let_go.get(uid).is_some_and(|gone| gone.drained)
    }

    /// Records that the loss state of a pod may have changed.
    pub(crate) fn record(&mut self, uid: &Uid, state: LossState, now: Now) {
        if let Some(gone) = self.let_go.get_mut(uid) {
            match state {
                LossState::Over if !gone.over => (gone.at, gone.over) = (now.steady, true),
                LossState::Fine if !gone.over => drop(self.let_go.remove(uid)),
                _ => {}
            }
            return;
        }
        let before = self.alone.remove(uid);
        self.proven -= usize::from(before == Some(Evidence::Proven));
        match state {
            LossState::Alone => drop(self.alone.insert(uid.clone(), Evidence::Lacking)),
            LossState::Ends => {
                self.alone.insert(uid.clone(), Evidence::Proven);
                self.proven += 1;
            }
            LossState::Over | LossState::Fine => drop(self.approved.remove(uid)),
        }
    }

    /// All evidence has to be gathered again.
    pub(crate) fn doubt(&mut self) {
        self.alone.values_mut().for_each(|evidence| *evidence = Evidence::Lacking);
        self.proven = 0;
    }

    /// We lead from now on. What we believed while another one led was never weighed against all that it did; what the
    /// binding says of it is all that counts.
    pub(crate) fn take_lead(&mut self) {
        (self.trip, self.closed, self.name) = (None, None, None);
        for (uid, gone) in std::mem::take(&mut self.let_go) {
            if !gone.over {
                self.alone.insert(uid, Evidence::Lacking);
            }
        }
        self.doubt();
    }

    /// A user has looked at all pods that are missing: none of them counts any more.
    fn approve_all(&mut self) {
        for (uid, _) in std::mem::take(&mut self.let_go).into_iter().filter(|(_, gone)| !gone.over) {
            self.alone.insert(uid, Evidence::Proven);
            self.proven += 1;
        }
        self.approved = self.alone.keys().cloned().collect();
        self.inherited = None;
    }

    /// All lists are in, and the loss state of each pod is recorded.
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// Whether one of these pods is missing from the watch on one side.
    pub(crate) fn misses_one_of(&self, is: impl Fn(&Uid) -> bool) -> bool {
        self.alone.keys().any(is)
    }

    /// Those that no user has looked at.
    fn unapproved(&self) -> usize {
        self.alone.len() - self.approved.iter().filter(|uid| self.alone.contains_key(*uid)).count()
    }

    fn window(&self) -> Duration {
        if self.alone.len() > FEW { LONG_WINDOW } else { WINDOW }
    }

    fn forget_old(&mut self, now: Now) {
        let window = self.window();
        self.let_go.retain(|_, gone| !gone.over || gone.at + window >= now.steady);
        self.inherited.take_if(|(_, at)| *at + window < now.steady);
    }

    fn tally(&self, now: Now) -> Tally {
        let window = self.window();
        let counts = |at: Duration| at + window >= now.steady;
        let own = self.let_go.values().filter(|gone| !gone.over || counts(gone.at)).count();
        let inherited = self.inherited.filter(|(_, at)| counts(*at)).map_or(0, |(ends, _)| ends);
        let looked_at = self.approved.iter().filter(|uid| self.alone.get(*uid) == Some(&Evidence::Proven)).count();
        let past = own + inherited;
        Tally { certain: past + self.proven - looked_at, most: past + self.unapproved() }
    }

    /// Those that would end now if they were counted in the binding.
    fn waiting(&self) -> impl Iterator<Item = &Uid> {
        let proven = self.alone.iter().filter(|(_, evidence)| **evidence == Evidence::Proven).map(|(uid, _)| uid);
        proven.filter(|uid| !self.approved.contains(*uid))
    }

    /// Whether the binding says that so many have ended recently, and that it was us.
    fn is_written(&self, ends: usize, now: Now) -> bool {
        let Some(UnaskedEnds { ends: written, at, by }) = &self.written else { return false };
        let age = at.parse().map_or(Duration::MAX, |at: Timestamp| age(at, now));
        self.name.as_ref() == Some(by) && sane(*written) >= ends && age < FRESH
    }

    /// What the binding says of ends before us counts like our own.
    fn read(&mut self, written: Option<UnaskedEnds>, now: Now) {
        if let Some(UnaskedEnds { ends, at, by }) = &written
            && self.name.as_ref() != Some(by)
        {
            let age = at.parse().map_or(Duration::ZERO, |at: Timestamp| age(at, now));
            // The process that wrote it has counted ours, if there were any.
            let others = sane(*ends).saturating_sub(self.let_go.len());
            self.inherited = Some((others, now.steady.saturating_sub(age)));
        }
        self.written = written;
    }
}

/// The message of a trip.
pub(crate) fn tell_trip(trip: &BreakerTrip, binding: &str) -> String {
    format!(
        "{} of {} pods would end although no user asked for it: no pod is deleted; find out why, then run `tapestry resume {binding}`",
        trip.ends, trip.pods
    )
}

/// The message of a trip that cleared itself.
pub(crate) fn tell_cleared(trip: &BreakerTrip) -> String {
    format!(
        "each of the {} pods that the mass-delete breaker counted is there again or was asked to end: pods end as usual",
        trip.ends
    )
}

/// A count as a user may have edited it: none is fewer than zero, and no cluster has more pods than this.
fn sane(count: i64) -> usize {
    const MOST: i64 = 1_000_000;
    usize::try_from(count.clamp(0, MOST)).unwrap_or_default()
}

/// How long ago; a moment that is still to come is now.
fn age(at: Timestamp, now: Now) -> Duration {
    Duration::try_from(now.wall.duration_since(at)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
