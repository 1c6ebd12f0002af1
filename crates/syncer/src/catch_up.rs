//! Whether the watches of pods have told as much as they must. After a gap (the process was frozen, a connection came back,
//! another process led) each side is asked once which version its pods have. Until both watches have come so far, a pod that
//! is missing on one side may only be late: it is not weighed, and nothing ends that was not asked to end. Lists nothing.

use tapestry_cluster::{Answer, Name, Refusal, Rv, Side, Target, Verb, kind};
use tapestry_engine::{Plan, Reason as _, reasons};

use crate::pair::Key;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// How far a watch must come.
        CatchUp,
    }
}

/// How far both watches are, and how far they must be.
#[derive(Default)]
pub(crate) struct CatchUp {
    /// Counts gaps: the answer to a question that was asked before the last one is too old.
    gap: u32,
    /// By side.
    sides: [Progress; 2],
}

#[derive(Default)]
struct Progress {
    /// Everything up to this version has been folded in; `None` before the first complete list.
    reached: Option<Rv>,
    need: Need,
}

/// How far a watch must come.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// There was no gap, or it is behind us.
    #[default]
    Nothing,
    /// As far as the server is now, which has to be asked.
    Unknown,
    /// As far as this.
    Version(Rv),
}

impl CatchUp {
    /// What is known may be old from here on. A list that is still to come is new by itself.
    pub(crate) fn begin_gap(&mut self) {
        self.gap = self.gap.wrapping_add(1);
        for side in self.sides.iter_mut().filter(|side| side.reached.is_some()) {
            side.need = Need::Unknown;
        }
    }

    /// Whether everything is known that happened before the end of the last gap.
    pub(crate) fn done(&self) -> bool {
        self.sides.iter().all(|side| side.need == Need::Nothing)
    }

    /// The questions that are to be asked.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        let unknown = Side::BOTH.into_iter().filter(|side| self.sides[*side as usize].need == Need::Unknown);
        unknown.map(|side| Key::CatchUp(side, self.gap))
    }

    fn asks(&self, side: Side, gap: u32) -> bool {
        gap == self.gap && self.sides[side as usize].need == Need::Unknown
    }

    /// The watch of this side's pods has told everything up to this version. True when that was the last of what is needed.
    pub(crate) fn observe(&mut self, side: Side, rv: Rv) -> bool {
        self.progress(side, |side| side.reached = Some(rv))
    }

    /// Asks which version the pods of a side have now.
    pub(crate) fn plan(&self, side: Side, gap: u32) -> Plan<Why> {
        let (true, Ok(pods)) = (self.asks(side, gap), Name::parse(kind::POD.plural)) else { return Plan::Rest };
        Why::CatchUp.call(Target::cluster(side, &kind::POD, pods), Verb::Version)
    }

    /// Folds in which version that is. True when the watch has told all of it already, and nothing else is needed.
    pub(crate) fn settle(&mut self, side: Side, gap: u32, why: Why, done: Result<Answer, Refusal>) -> bool {
        match why {
            Why::CatchUp => {
                let version = done.ok().and_then(|answer| answer.version()).filter(|_| self.asks(side, gap));
                version.is_some_and(|rv| self.progress(side, |side| side.need = Need::Version(rv)))
            }
        }
    }

    fn progress(&mut self, side: Side, change: impl FnOnce(&mut Progress)) -> bool {
        let behind = !self.done();
        let progress = &mut self.sides[side as usize];
        change(progress);
        progress.settle();
        behind && self.done()
    }
}

impl Progress {
    fn settle(&mut self) {
        if let (Need::Version(needed), Some(reached)) = (self.need, self.reached)
            && reached >= needed
        {
            self.need = Need::Nothing;
        }
    }
}

#[cfg(test)]
mod tests;
