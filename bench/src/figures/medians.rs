//! One load carried several times: what its rounds have in common. Must not hide how far they lie apart.

use super::{Figures, Scene, Who};
use crate::budget::mib;
use crate::load::Load;

/// Rounds of one load by one subject.
pub(crate) struct Rounds<'a> {
    pub(crate) load: Load,
    pub(crate) who: Who,
    scenes: Vec<&'a Scene>,
}

/// A median, the lowest and the highest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Median {
    pub(crate) middle: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl<'a> Rounds<'a> {
    /// All loads in the order in which they were first carried, each by bare and then by the syncer.
    pub(crate) fn all(figures: &'a Figures) -> Vec<Self> {
        let mut loads = Vec::new();
        for scene in &figures.scenes {
            if !loads.contains(&scene.load.without_round()) {
                loads.push(scene.load.without_round());
            }
        }
        let both = loads.into_iter().flat_map(|load| [Who::Bare, Who::Syncer].map(|who| Self::of(figures, load, who)));
        both.filter(|rounds| !rounds.scenes.is_empty()).collect()
    }

    /// The rounds of this load by this subject; perhaps none.
    pub(crate) fn of(figures: &'a Figures, load: Load, who: Who) -> Self {
        let same = |scene: &&Scene| scene.load.without_round() == load && scene.who == who;
        Self { load, who, scenes: figures.scenes.iter().filter(same).collect() }
    }

    pub(crate) fn count(&self) -> usize {
        self.scenes.len()
    }

    /// What all rounds say of this.
    pub(crate) fn median(&self, of: impl Fn(&Scene) -> f64) -> Median {
        Median::of(self.scenes.iter().map(|scene| of(scene)).collect())
    }

    /// Whether pods ran about as fast as they were made, in every round.
    pub(crate) fn keep_up(&self) -> bool {
        self.scenes.iter().all(|scene| scene.keeps_up())
    }
}

/// How fast pods came to run.
pub(crate) fn pods_per_second(rounds: &Rounds<'_>) -> Median {
    rounds.median(|scene| scene.raised.pods_per_second)
}

/// How fast they were gone.
pub(crate) fn deletions_per_second(rounds: &Rounds<'_>) -> Median {
    rounds.median(|scene| scene.cleared.pods_per_second)
}

/// Milliseconds of the subject per pod, until all run.
pub(crate) fn cpu(rounds: &Rounds<'_>) -> Median {
    rounds.median(|scene| scene.raised.cost.cpu_ms_per_pod)
}

/// The same from the first delete until none is left.
pub(crate) fn cpu_cleared(rounds: &Rounds<'_>) -> Median {
    rounds.median(|scene| scene.cleared.cost.cpu_ms_per_pod)
}

/// Milliseconds of both control planes and kwok per pod, until all run.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of an hour are far below 2^52")]
pub(crate) fn servers_cpu(rounds: &Rounds<'_>) -> Median {
    rounds.median(|scene| scene.raised.cost.spent.clusters_ms as f64 / f64::from(scene.load.pods.max(1)))
}

/// MiB, the most of the whole scene.
pub(crate) fn peak_rss(rounds: &Rounds<'_>) -> Median {
    rounds.median(|scene| mib(scene.cleared.cost.memory.peak))
}

/// MiB that the process has allocated when all pods run; of its resident memory the rest is the program itself.
pub(crate) fn allocated(rounds: &Rounds<'_>) -> Median {
    rounds.median(|scene| mib(scene.raised.cost.memory.anon))
}

impl Median {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        // Of an even number, half way between the two in the middle.
        Self { middle: f64::midpoint(at(last / 2), at(values.len() / 2)), lowest: at(0), highest: at(last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_has_as_many_above_as_below() {
        let five = Median::of(vec![5.0, 1.0, 4.0, 100.0, 2.0]);
        assert_eq!(five, Median { middle: 4.0, lowest: 1.0, highest: 100.0 });
        assert!((Median::of(vec![3.0, 1.0]).middle - 2.0).abs() < f64::EPSILON);
        assert!((Median::of(vec![7.0]).middle - 7.0).abs() < f64::EPSILON);
        assert!(Median::of(Vec::new()).middle.is_nan());
    }
}
