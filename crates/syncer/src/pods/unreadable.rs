//! Physical pods that cannot be fully read. What they use of a node is not known, so nothing new is admitted there while they
//! last; no pod has to go because of them.

use tapestry_cluster::{Name, Uid};
use tapestry_engine::{Dirty, Now};

use super::Pods;
use crate::pair::{Key, Pair};

impl Pods {
    /// The first of those on a physical node, as `namespace/name`.
    pub(crate) fn unreadable_on(&self, node: &Name) -> Option<&str> {
        self.unreadable.values().find(|(on, _)| on == node).map(|(_, place)| &**place)
    }
}

impl Pair {
    /// Looks once more whether a physical pod that came, changed or went can be read.
    pub(super) fn note_unreadable(&mut self, uid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        let row = self.pods.ppods.get(uid).filter(|ppod| !ppod.terminal);
        let after = row.and_then(|ppod| Some((ppod.node.clone()?, ppod.unreadable.as_ref()?.place.clone())));
        let before = match &after {
            Some(unreadable) => self.pods.unreadable.insert(uid.clone(), unreadable.clone()),
            None => self.pods.unreadable.remove(uid),
        };
        if before == after {
            return;
        }
        for (node, _) in before.into_iter().chain(after) {
            self.reconsider(&node, now, dirty);
        }
    }
}

#[cfg(test)]
mod tests;
