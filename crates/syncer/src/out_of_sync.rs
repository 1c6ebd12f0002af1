//! Watches that are out of sync, and what follows: nothing new is admitted on what they feed, and conditions say which they are.
//! Running pods are left alone: that we know less is no reason to end anything.

use std::collections::BTreeMap;

use tapestry_cluster::watch::{Trouble, WatchState};
use tapestry_cluster::watches::Watched;
use tapestry_cluster::{Kind, Side, kind};
use tapestry_engine::Dirty;

use crate::guards::Guard;
use crate::pair::{Key, Pair};

/// What does not bear on who may enter a virtual node. Every other kind does.
const NOT_FOR_ADMISSION: [&Kind; 4] = [&kind::CSI_NODE, &kind::RESOURCE_QUOTA, &kind::NETWORK_POLICY, &kind::SECRET];

/// The watches that are out of sync, each with its trouble.
#[derive(Default)]
pub(crate) struct OutOfSync(BTreeMap<Watched, Trouble>);

impl OutOfSync {
    /// Folds in how a watch stands; says whether that is news.
    fn learn(&mut self, watched: Watched, state: WatchState) -> bool {
        match state {
            WatchState::OutOfSync(trouble) => self.0.insert(watched, trouble.clone()).as_ref() != Some(&trouble),
            WatchState::InSync | WatchState::Starting => self.0.remove(&watched).is_some(),
        }
    }

    fn lacks(&self, watched: &Watched) -> bool {
        self.0.contains_key(watched)
    }

    /// Those of the clusters that answer: where the cluster itself does not, that is what has to be said.
    fn of<'a>(&'a self, answers: impl Fn(Side) -> bool + 'a) -> impl Iterator<Item = (&'a Watched, &'a Trouble)> {
        self.0.iter().filter(move |(watched, _)| answers(watched.side))
    }
}

/// What does not work, and why.
pub(crate) fn tell(Watched { side, kind }: Watched, Trouble { verb, why }: &Trouble) -> String {
    format!("cannot {verb} {} in the {} cluster: {why}", kind.plural, side.as_str())
}

impl Pair {
    pub(crate) fn see_watch(&mut self, watched: Watched, state: WatchState, dirty: &mut Dirty<Key>) {
        if let WatchState::OutOfSync(Trouble { verb, why }) = &state {
            let (side, resource) = (watched.side.as_str(), watched.kind.plural);
            tracing::error!(side, resource, verb, why, "a watch is out of sync");
        }
        let blind = self.blind();
        if !self.out_of_sync.learn(watched, state) {
            return;
        }
        if self.out_of_sync.lacks(&watched) && Guard::ALL.iter().any(|guard| guard.kind() == watched.kind) {
            // These are in the mount namespace: perhaps it is gone, and our rights with it.
            self.prerequisites.doubt(self.now, dirty);
        }
        dirty.mark(Key::Binding);
        if blind != self.blind() {
            self.admit_all(dirty);
        }
    }

    /// Whether something that admission relies on may have changed without us knowing.
    pub(crate) fn blind(&self) -> bool {
        self.untrusted().any(|(watched, _)| !NOT_FOR_ADMISSION.contains(&watched.kind))
    }

    /// What cannot be watched, why, and what to do; `None` when everything is in sync.
    pub(crate) fn tell_out_of_sync(&self) -> Option<String> {
        let told: Vec<String> = self.untrusted().map(|(watched, trouble)| tell(*watched, trouble)).collect();
        if told.is_empty() {
            return None;
        }
        let then = if self.blind() { "no new pod is admitted until this works again" } else { "pods are not affected" };
        Some(format!(
            "{}; {then}; check the rights of the kubeconfig (deploy/rbac) and the API server",
            told.join("; ")
        ))
    }

    fn untrusted(&self) -> impl Iterator<Item = (&Watched, &Trouble)> {
        self.out_of_sync.of(|side| self.answers(side))
    }
}

#[cfg(test)]
mod tests;
