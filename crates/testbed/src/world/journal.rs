//! The recent steps of a run, kept cheaply and turned into text only when it has failed.
//! Its digest shows whether two runs of one seed were the same; it must not influence the run.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write as _};
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use tapestry_cluster::{Call, Kind, Side};

use super::observer::Shown;
use super::server::{Event, Version, What};

/// A run that broke a rule or did not converge. Prints as the seed, the reason, and the last steps.
pub struct Failure {
    /// Run it again with this.
    pub seed: u64,
    /// Which rule, and how.
    pub why: String,
    /// The last steps, a line each.
    pub trace: String,
}

/// The last steps of a run.
pub(super) struct Journal {
    lines: VecDeque<Line>,
    /// The end of the page before.
    before: VecDeque<Line>,
    /// How many to keep.
    keep: usize,
    digest: DefaultHasher,
}

struct Line {
    step: usize,
    at: Duration,
    entry: Entry,
}

/// One thing that happened.
#[derive(Clone)]
pub(super) enum Entry {
    /// A leader got a change.
    Told { leader: usize, side: Side, kind: &'static Kind, shown: Shown, note: &'static str },
    /// A leader has seen all objects of a kind.
    Listed { leader: usize, side: Side, kind: &'static Kind },
    /// A leader learnt that a kind is not served.
    Unserved { leader: usize, side: Side, kind: &'static Kind },
    /// A leader's watch starts over.
    Relist { leader: usize, side: Side, kind: &'static Kind },
    /// A leader sent a call.
    Sent { leader: usize, call: Arc<Call> },
    /// A call was carried out, or refused.
    Executed { leader: usize, call: Arc<Call>, outcome: &'static str },
    /// A leader got the outcome of its call.
    Answered { leader: usize, call: Arc<Call>, outcome: &'static str },
    /// A leader crashed, started, stopped getting events and so on.
    Leader { leader: usize, what: &'static str },
    /// A side could not be reached any more, or again.
    Reach { side: Side, reachable: bool },
    /// Something changed at a server.
    Changed { side: Side, kind: &'static Kind, what: What, object: Arc<Version> },
}

impl Journal {
    pub(super) fn new(keep: usize) -> Self {
        Self { lines: VecDeque::with_capacity(keep), before: VecDeque::new(), keep, digest: DefaultHasher::new() }
    }

    pub(super) fn note(&mut self, step: usize, at: Duration, entry: Entry) {
        entry.digest(&mut self.digest);
        at.hash(&mut self.digest);
        if self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        self.lines.push_back(Line { step, at, entry });
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// Starts a new page; what is on the old one will be printed too.
    pub(super) fn turn_page(&mut self) {
        self.before = std::mem::take(&mut self.lines);
    }

    /// The page before, and the last lines of this one.
    pub(super) fn render(&self) -> String {
        let gap = if self.lines.len() == self.keep { "       ...\n" } else { "" };
        format!("{}{gap}{}", render(&self.before), render(&self.lines))
    }
}

fn render(lines: &VecDeque<Line>) -> String {
    lines.iter().fold(String::new(), |mut text, Line { step, at, entry }| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{step:>6} {:>10.3}s  {entry}", at.as_secs_f64());
        text
    })
}

impl Entry {
    pub(super) fn changed(side: Side, kind: &'static Kind, event: &Event) -> Self {
        Self::Changed { side, kind, what: event.what, object: Arc::clone(&event.object) }
    }

    fn digest(&self, into: &mut DefaultHasher) {
        std::mem::discriminant(self).hash(into);
        match self {
            Self::Told { leader, side, shown, .. } => (leader, side, shown.object.rv(), shown.gone).hash(into),
            Self::Listed { leader, side, kind }
            | Self::Unserved { leader, side, kind }
            | Self::Relist { leader, side, kind } => {
                (leader, side, kind.plural).hash(into);
            }
            Self::Sent { leader, call } => (leader, &call.target.name, call.why).hash(into),
            Self::Executed { leader, call, outcome } | Self::Answered { leader, call, outcome } => {
                (leader, &call.target.name, call.why, outcome).hash(into);
            }
            Self::Leader { leader, what } => (leader, what).hash(into),
            Self::Reach { side, reachable } => (side, reachable).hash(into),
            Self::Changed { side, object, .. } => (side, object.rv()).hash(into),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told { leader, side, kind, shown: Shown { object, gone }, note } => {
                let (side, what) = (side.as_str(), if *gone { "gone" } else { "put" });
                let (plural, path, rv, phase) = (kind.plural, object.path(), object.rv(), life(object));
                write!(f, "leader {leader} gets{note}: {what} {side} {plural}/{path} rv {rv}{phase}")
            }
            Self::Listed { leader, side, kind } => {
                write!(f, "leader {leader} gets: listed all {} {}", side.as_str(), kind.plural)
            }
            Self::Unserved { leader, side, kind } => {
                write!(f, "leader {leader} gets: no {} {} are served", side.as_str(), kind.plural)
            }
            Self::Relist { leader, side, kind } => {
                write!(f, "leader {leader} lists {} {}", side.as_str(), kind.plural)
            }
            Self::Sent { leader, call } => write!(f, "leader {leader} sends {call}"),
            Self::Executed { leader, call, outcome } => write!(f, "leader {leader}'s {call} -> {outcome}"),
            Self::Answered { leader, call, outcome } => write!(f, "leader {leader} gets {outcome} for {call}"),
            Self::Leader { leader, what } => write!(f, "leader {leader} {what}"),
            Self::Reach { side, reachable: true } => write!(f, "the {} cluster can be reached again", side.as_str()),
            Self::Reach { side, reachable: false } => write!(f, "the {} cluster cannot be reached", side.as_str()),
            Self::Changed { side, kind, what, object } => {
                let (side, plural, path, rv) = (side.as_str(), kind.plural, object.path(), object.rv());
                write!(f, "    {what:?} {side} {plural}/{path} rv {rv} uid {}{}", object.uid(), life(object))
            }
        }
    }
}

/// The progress of a pod's life, which most rules are about.
fn life(object: &Version) -> String {
    let value = object.value();
    let mut text = String::new();
    if let Some(node) = value["spec"]["nodeName"].as_str() {
        let _ = write!(text, " on {node}");
    }
    if let Some(phase) = value["status"]["phase"].as_str() {
        let _ = write!(text, " {phase}");
    }
    if object.deleting() {
        let _ = write!(text, " deleting({})", value["metadata"]["deletionGracePeriodSeconds"]);
    }
    text
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, why, trace } = self;
        write!(f, "seed {seed}: {why}\nthe last steps:\n{trace}")
    }
}

/// Like Display, because `unwrap` prints this one.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}
