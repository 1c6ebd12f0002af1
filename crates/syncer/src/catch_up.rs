//! Whether the watches of pods have told as much as they must. After a gap (the process was frozen, a connection came back,
//! another process led) each side is asked once which version its pods have. Until both watches have come so far, a pod that
//! is missing on one side may only be late: it is not weighed, and nothing ends that was not asked to end. Lists nothing.

use tapestry_cluster::{Answer, Name, Refusal, Rv, Side, Target, Uid, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use crate::pair::{Key, Pair};

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

impl Pair {
    /// The watch of this side's pods has told everything up to this version.
    pub(crate) fn note_reached(&mut self, side: Side, rv: Rv, now: Now, dirty: &mut Dirty<Key>) {
        self.progress(side, now, dirty, |side| side.reached = Some(rv));
    }

    /// Asks which version the pods of a side have now.
    pub(crate) fn plan_catch_up(&self, side: Side, gap: u32) -> Plan<Why> {
        let asks = self.catch_up.asks(side, gap) && self.working().is_some();
        let (true, Ok(pods)) = (asks, Name::parse(kind::POD.plural)) else { return Plan::Rest };
        let target = Target::cluster(side, &kind::POD, pods);
        Why::CatchUp.call(target, Verb::Version)
    }

    pub(crate) fn settle_catch_up(
        &mut self,
        (side, gap): (Side, u32),
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let version = done.ok().and_then(|answer| answer.version());
        if let Some(rv) = version.filter(|_| self.catch_up.asks(side, gap)) {
            self.progress(side, now, dirty, |side| side.need = Need::Version(rv));
        }
    }

    fn progress(&mut self, side: Side, now: Now, dirty: &mut Dirty<Key>, change: impl FnOnce(&mut Progress)) {
        let behind = !self.catch_up.done();
        let progress = &mut self.catch_up.sides[side as usize];
        change(progress);
        progress.settle();
        if behind && self.catch_up.done() {
            // What was held back until now is weighed, and what somebody said to it is heard.
            self.heed_binding(now, dirty);
            dirty.mark_all();
        }
    }

    /// Whether this pod may end although its end was not asked for: everything is known, and the breaker has counted it.
    pub(crate) fn may_end(&self, uid: &Uid) -> bool {
        self.catch_up.done() && self.breaker.lets_go(uid)
    }

    /// Whether the end of this pod, which was not asked for, has to wait. What does not run is not weighed.
    pub(crate) fn must_wait(&self, uid: &Uid) -> bool {
        self.pods.runs(uid) && !self.may_end(uid)
    }
}

#[cfg(test)]
mod tests;
