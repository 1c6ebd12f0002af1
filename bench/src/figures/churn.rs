//! Pods that came and went, round after round, as data. Must not measure anything itself.

use serde::Serialize;

use super::Who;
use super::medians::Median;
use crate::budget::mib;
use crate::load::Load;
use crate::machine::Memory;

/// Many pods, of which few exist at a time, by one process.
#[derive(Debug, Serialize)]
pub(crate) struct Churned {
    pub(crate) who: Who,
    /// Each round.
    pub(crate) load: Load,
    pub(crate) rounds: Vec<ChurnRound>,
}

/// One round: all created and running, all deleted.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ChurnRound {
    /// From the first create to the last pod running, and from the first delete to none left.
    pub(crate) seconds: [f64; 2],
    /// Of the subject, in all.
    pub(crate) cpu_ms_per_pod: f64,
    /// After the round, when no pod is left.
    pub(crate) memory: Memory,
}

impl Churned {
    /// How much memory grew, in MiB, and over how many pods: from the second quarter of the rounds to the last one, by their
    /// medians. The first quarter fills what is kept and reused: connections, buffers, the allocator's free lists.
    /// `None` when there are too few rounds to say.
    pub(crate) fn growth(&self) -> Option<(f64, u32)> {
        let quarter = self.rounds.len() / 4;
        let rss = |rounds: &[ChurnRound]| Median::of(rounds.iter().map(|round| mib(round.memory.now)).collect());
        let (early, late) = (self.rounds.get(quarter..2 * quarter)?, self.rounds.get(self.rounds.len() - quarter..)?);
        let apart = u32::try_from(self.rounds.len() - 2 * quarter).ok()?;
        (quarter > 0).then(|| (rss(late).middle - rss(early).middle, apart * self.load.pods))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn churned(kib: impl Iterator<Item = u64>) -> Churned {
        let round =
            |now| ChurnRound { seconds: [1.0; 2], cpu_ms_per_pod: 1.0, memory: Memory { now, peak: now, anon: now } };
        Churned { who: Who::Syncer, load: Load::burst(1000), rounds: kib.map(round).collect() }
    }

    #[test]
    fn memory_that_a_process_fills_once_is_no_growth() {
        let filled = churned([10, 18, 20, 20, 20, 20, 20, 20].into_iter().map(|mib| mib * 1024));
        assert_eq!(filled.growth(), Some((0.0, 4000)));
    }

    #[test]
    fn memory_that_every_round_takes_is() {
        assert_eq!(churned((1..=20).map(|mib| mib * 1024)).growth(), Some((10.0, 10_000)));
        assert_eq!(churned(1..=3).growth(), None);
    }
}
