//! Whether a cluster serves a kind of ours at all, and so whether the absence or deletion of an object of it means that a user
//! deleted it. Deleting a `CustomResourceDefinition` deletes every object first, each like any other: only discovery can tell the
//! two apart. Decides nothing about nodes or pods.

use std::time::Duration;

use tapestry_cluster::served::accepts_new;
use tapestry_cluster::{Answer, Call, Kind, Refusal, Side, Target, Verb};
use tapestry_engine::{Now, Plan, Reason};

/// How long after a loss discovery is asked: the API server deletes the objects of a definition right after it has marked the
/// definition, and its discovery, or that of another server of the same cluster, follows a moment later.
pub(crate) const SETTLED: Duration = Duration::from_secs(5);

/// What discovery says of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// Its objects can be made, read and deleted: one that is not there was deleted.
    Fully,
    /// No new one can be made: its definition is being deleted, and they with it.
    Ending,
    /// The kind is not known.
    Not,
    /// We may not read discovery.
    Unclear,
}

/// What is known of one side.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    said: Option<Served>,
    /// Counts what made an answer necessary; one that was asked for before the last of it says nothing.
    mark: u64,
    /// When discovery has to be asked.
    due: Option<Duration>,
}

impl Serving {
    /// A policy is gone, or going.
    pub(crate) fn lose(&mut self, now: Now) {
        // Once unknown, only a complete list makes us ask again: what is lost meanwhile may be listed by then.
        if !self.unknown() {
            self.ask(now);
        }
    }

    /// All policies that exist have been listed.
    pub(crate) fn listed(&mut self, now: Now) {
        // Policies may have gone while no syncer ran, with their kind or without it.
        if self.unknown() || self.said.is_none() {
            self.ask(now);
        }
    }

    /// Whether the first answer is still to come.
    pub(crate) fn awaited(&self) -> bool {
        self.said.is_none() && self.due.is_some()
    }

    /// The watch has proven that the kind is not served.
    pub(crate) fn unserved(&mut self) {
        self.mark += 1;
        (self.said, self.due) = (Some(Served::Not), None);
    }

    fn ask(&mut self, now: Now) {
        self.mark += 1;
        self.due = Some(now.steady + SETTLED);
    }

    /// Whether a missing policy was deleted on purpose by a user.
    pub(crate) fn confirmed(&self) -> bool {
        self.said == Some(Served::Fully) && self.due.is_none()
    }

    /// Whether it cannot be known which policies exist.
    pub(crate) fn unknown(&self) -> bool {
        matches!(self.said, Some(Served::Ending | Served::Not))
    }

    /// Whether nothing can be read or written of policies: they have not been listed since their kind went.
    pub(crate) fn unreadable(&self) -> bool {
        self.unknown() && self.due.is_none()
    }

    pub(crate) fn said(&self) -> Option<Served> {
        self.said
    }

    /// Asks discovery when a loss has to be judged.
    pub(crate) fn plan<W: Reason>(&self, side: Side, kind: &'static Kind, why: W, now: Now) -> Plan<W> {
        let (Some(due), Some(target)) = (self.due, Target::kind(side, kind)) else { return Plan::Rest };
        if now.steady < due {
            return Plan::Wait(due);
        }
        why.call(target, Verb::Discover { mark: self.mark })
    }

    /// Folds in what discovery answered; `None` when that says nothing about the last loss.
    pub(crate) fn settle(&mut self, call: &Call, done: Result<Answer, Refusal>) -> Option<Served> {
        let served = match (&call.verb, done) {
            (Verb::Discover { mark }, _) if *mark != self.mark => return None,
            (Verb::Discover { .. }, Ok(answer)) => match accepts_new(&answer.object) {
                Some(true) => Served::Fully,
                Some(false) => Served::Ending,
                None => Served::Unclear,
            },
            (_, Err(Refusal::Gone)) => Served::Not,
            (_, Err(Refusal::Denied(_) | Refusal::Invalid(_))) => Served::Unclear,
            // No answer; the desk asks again.
            (_, _) => return None,
        };
        self.said = Some(served);
        // What may not be read is asked for again, at the desk's pace.
        self.due = self.due.filter(|_| served == Served::Unclear);
        Some(served)
    }
}
