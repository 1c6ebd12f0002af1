//! Watches that are out of sync, and what follows: nothing new is admitted on what they feed, and conditions say which they are.
//! Running pods are left alone: that we know less is no reason to end anything.

use std::collections::BTreeMap;

use tapestry_cluster::watch::{Trouble, WatchState};
use tapestry_cluster::watches::{Reader, Watched};
use tapestry_cluster::{Kind, Side, kind};

use crate::connections::Connections;

/// What admission does not rely on to decide who may enter a virtual node. A kind in neither list counts as relied on.
/// ConfigMaps, Secrets, claims and volumes delay only pods that name one; events are only shown, Services wait for themselves.
const NOT_FOR_ADMISSION: [&Kind; 10] = [
    &kind::CSI_NODE,
    &kind::RESOURCE_QUOTA,
    &kind::NETWORK_POLICY,
    &kind::CONFIG_MAP,
    &kind::SECRET,
    &kind::PERSISTENT_VOLUME,
    &kind::PERSISTENT_VOLUME_CLAIM,
    &kind::STORAGE_CLASS,
    &kind::EVENT,
    &kind::SERVICE,
];

/// Who needs which ConfigMap, Secret, token, claim and volume follows from these.
const OF_DEPENDENTS: [&Kind; 5] =
    [&kind::POD, &kind::CONFIG_MAP, &kind::SECRET, &kind::PERSISTENT_VOLUME, &kind::PERSISTENT_VOLUME_CLAIM];

/// What admission relies on. A test keeps both lists complete.
#[cfg(test)]
const FOR_ADMISSION: [&Kind; 4] = [&kind::CLUSTER_BINDING, &kind::POLICY, &kind::NODE, &kind::POD];

/// Whether one of the two lists has the kind, and not both.
#[cfg(test)]
pub(crate) fn is_classified(kind: &'static Kind) -> bool {
    FOR_ADMISSION.contains(&kind) != NOT_FOR_ADMISSION.contains(&kind)
}

/// The watches that are out of sync.
#[derive(Default)]
pub(crate) struct OutOfSync(BTreeMap<Watched, Entry>);

struct Entry {
    trouble: Trouble,
    /// It was out of sync before its cluster stopped answering.
    before_outage: bool,
}

impl OutOfSync {
    /// Folds in the state of a watch; says whether that is news.
    pub(crate) fn observe(&mut self, watched: Watched, state: WatchState) -> bool {
        match state {
            WatchState::OutOfSync(trouble) => {
                let known = self.0.get(&watched);
                let news = known.is_none_or(|known| known.trouble != trouble);
                let before_outage = known.is_some_and(|known| known.before_outage);
                self.0.insert(watched, Entry { trouble, before_outage });
                news
            }
            WatchState::InSync | WatchState::Starting => self.0.remove(&watched).is_some(),
        }
    }

    pub(crate) fn lacks(&self, watched: &Watched) -> bool {
        self.0.contains_key(watched)
    }

    /// The cluster of a side stops answering. Its watches that were in sync are excused until it answers again.
    pub(crate) fn begin_outage(&mut self, side: Side) {
        let those = self.0.iter_mut().filter(|(watched, _)| watched.side == side);
        those.for_each(|(_, entry)| entry.before_outage = true);
    }
}

/// What does not work, and why.
pub(crate) fn tell(Watched { reader, side, query }: &Watched, Trouble { verb, why }: &Trouble) -> String {
    let who = match reader {
        Reader::Syncer => "",
        Reader::Keeper => "the keeper of the nodes' Leases ",
        Reader::Election => "the leader election ",
    };
    format!("{who}cannot {verb} {} in the {} cluster: {why}", query.kind.plural, side.as_str())
}

impl OutOfSync {
    /// Whether something that admission relies on may have changed without us knowing. An outage alone is no reason: nodes keep
    /// what they offer, and nothing is made while it lasts. It is no cure either.
    pub(crate) fn concerns_admission(&self, connections: &Connections) -> bool {
        let relied =
            |watched: &Watched| watched.reader == Reader::Syncer && !NOT_FOR_ADMISSION.contains(&watched.kind());
        let counts = |watched: &Watched, entry: &Entry| entry.before_outage || connections.answers(watched.side);
        self.0.iter().any(|(watched, entry)| relied(watched) && counts(watched, entry))
    }

    /// Whether a pod may have come, or a copy may have changed, without us knowing: then no copy is removed as unused.
    pub(crate) fn concerns_dependents(&self) -> bool {
        let relied = |watched: &Watched| watched.reader == Reader::Syncer && OF_DEPENDENTS.contains(&watched.kind());
        self.0.keys().any(relied)
    }

    /// Which watch of ConfigMaps or Secrets on one of these sides is out of sync, where that cluster answers.
    pub(crate) fn tell_dependents(&self, sides: &[Side], connections: &Connections) -> Option<String> {
        let carried = |watched: &Watched| [&kind::CONFIG_MAP, &kind::SECRET].contains(&watched.kind());
        let counts = |watched: &Watched| sides.contains(&watched.side) && connections.answers(watched.side);
        let mut those = self.0.iter().filter(|(watched, _)| watched.reader == Reader::Syncer && carried(watched));
        those.find(|(watched, _)| counts(watched)).map(|(watched, entry)| tell(watched, &entry.trouble))
    }

    /// Whether a Service or a copy of one may have changed without us knowing: then no copy is removed.
    pub(crate) fn concerns_services(&self) -> bool {
        self.0.keys().any(|watched| watched.reader == Reader::Syncer && watched.kind() == &kind::SERVICE)
    }

    /// What cannot be watched, why, and what to do; `None` when everything is in sync.
    pub(crate) fn tell(&self, connections: &Connections) -> Option<String> {
        // Where the cluster itself does not answer, that is what has to be said.
        let said = self.0.iter().filter(|(watched, _)| connections.answers(watched.side));
        let told: Vec<String> = said.map(|(watched, entry)| tell(watched, &entry.trouble)).collect();
        if told.is_empty() {
            return None;
        }
        let then = if self.concerns_admission(connections) {
            "no new pod is admitted until this works again"
        } else if self.concerns_dependents() {
            "copies of ConfigMaps, Secrets and volumes may be out of date, and pods that name one may wait"
        } else if self.concerns_services() {
            "copies of Services may be out of date, and pods are not affected"
        } else {
            "pods are not affected"
        };
        Some(format!(
            "{}; {then}; check the rights of the kubeconfig (deploy/rbac) and the API server",
            told.join("; ")
        ))
    }
}

#[cfg(test)]
mod tests;
