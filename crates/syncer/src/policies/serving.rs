//! Whether a cluster serves policies at all, and so whether the absence of one means that somebody deleted it.
//! Deleting their `CustomResourceDefinition` deletes every policy first, each with a proper 404: only discovery can tell the two
//! apart. Decides nothing about nodes or pods.

use std::time::Duration;

use tapestry_cluster::served::accepts_new;
use tapestry_cluster::{Answer, Call, Refusal, Side, Target, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan};

use crate::pair::{Key, Pair};

/// How long after a loss discovery is asked: the API server deletes the objects of a definition right after it has marked the
/// definition, and its discovery, or that of another server of the same cluster, follows a moment later.
pub(super) const SETTLED: Duration = Duration::from_secs(5);

/// What discovery says of policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// They can be made, read and deleted: one that is not there was deleted.
    Fully,
    /// No new one can be made: their definition is being deleted, and they with it.
    Ending,
    /// The kind is not known.
    Not,
    /// We may not read discovery.
    Unclear,
}

/// What is known of one side.
#[derive(Debug, Default)]
pub(super) struct Serving {
    said: Option<Served>,
    /// Counts what made an answer necessary; one that was asked for before the last of it says nothing.
    mark: u64,
    /// When discovery has to be asked.
    due: Option<Duration>,
}

impl Serving {
    /// A policy is gone, or going.
    pub(super) fn lose(&mut self, now: Now) {
        // Once unknown, only a complete list begins anew: what is lost meanwhile may be listed by then.
        if !self.unknown() {
            self.ask(now);
        }
    }

    /// All policies that exist have been listed.
    pub(super) fn listed(&mut self, now: Now) {
        // Policies may have gone while no syncer ran, with their kind or without it.
        if self.unknown() || self.said.is_none() {
            self.ask(now);
        }
    }

    /// Whether the first answer is still to come.
    pub(super) fn awaited(&self) -> bool {
        self.said.is_none() && self.due.is_some()
    }

    /// The watch has proven that the kind is not served.
    pub(super) fn unserved(&mut self) {
        self.mark += 1;
        (self.said, self.due) = (Some(Served::Not), None);
    }

    fn ask(&mut self, now: Now) {
        self.mark += 1;
        self.due = Some(now.steady + SETTLED);
    }

    /// Whether what is not there was deleted by somebody who meant it.
    pub(super) fn confirmed(&self) -> bool {
        self.said == Some(Served::Fully) && self.due.is_none()
    }

    /// Whether nobody can say which policies there are.
    pub(super) fn unknown(&self) -> bool {
        matches!(self.said, Some(Served::Ending | Served::Not))
    }

    /// Whether nothing can be read or written of policies: they have not been listed since their kind went.
    pub(super) fn unreadable(&self) -> bool {
        self.unknown() && self.due.is_none()
    }

    pub(super) fn said(&self) -> Option<Served> {
        self.said
    }
}

impl Pair {
    /// Asks discovery when a loss has to be judged.
    pub(crate) fn plan_serving(&self, side: Side, now: Now) -> Plan {
        let serving = self.policies.serving(side);
        let (Some(due), Some(_), Some(target)) = (serving.due, self.working(), Target::kind(side, &kind::POLICY))
        else {
            return Plan::Rest;
        };
        if now.steady < due {
            return Plan::Wait(due);
        }
        Call { target, verb: Verb::Discover { mark: serving.mark }, why: "LookForPolicyKind" }.into()
    }

    pub(crate) fn settle_serving(
        &mut self,
        side: Side,
        call: &Call,
        done: Result<Answer, Refusal>,
        dirty: &mut Dirty<Key>,
    ) {
        let serving = &mut self.policies.serving[side as usize];
        let Verb::Discover { mark } = call.verb else { return };
        if mark != serving.mark {
            return;
        }
        let served = match done {
            Ok(answer) => match accepts_new(&answer.object) {
                Some(true) => Served::Fully,
                Some(false) => Served::Ending,
                None => Served::Unclear,
            },
            Err(Refusal::Gone) => Served::Not,
            Err(Refusal::Denied(_) | Refusal::Invalid(_)) => Served::Unclear,
            // No answer; the desk asks again.
            Err(_) => return,
        };
        if serving.said != Some(served) && served != Served::Fully {
            tracing::warn!(
                side = side.as_str(),
                ?served,
                "it is not known which policies there are: nothing new is lent"
            );
        }
        serving.said = Some(served);
        // What may not be read is asked for again, at the desk's pace.
        serving.due = serving.due.filter(|_| served == Served::Unclear);
        self.forget_deleted_policies(side, dirty);
        self.note_drains(dirty);
    }
}
