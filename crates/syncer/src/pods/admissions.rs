//! What the pods inside each virtual node hold, and which pods wait for room there, in order of arrival.
//! Keeps the sums and the queues; who may enter is decided in `admission`.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use tapestry_cluster::{Name, Uid};
use tapestry_domain::resources::Resources;

/// The place of a pod in a queue: lower first.
pub(super) type Turn = u64;

/// By virtual node.
#[derive(Default)]
pub(super) struct Admissions {
    nodes: HashMap<Name, Admission, RandomState>,
    /// The last turn that was given to a pod that waits.
    turns: Turn,
}

#[derive(Default)]
struct Admission {
    held: Resources,
    /// By turn.
    waiting: BTreeMap<Turn, Uid>,
}

impl Admissions {
    /// Counts a pod's request as held.
    pub(super) fn hold(&mut self, vnode: &Name, request: &Resources) {
        self.nodes.entry(vnode.clone()).or_default().held.add(request);
    }

    /// Releases a pod's request.
    pub(super) fn release(&mut self, vnode: &Name, request: &Resources) {
        self.nodes.entry(vnode.clone()).or_default().held.saturating_sub(request);
    }

    /// Appends a pod to the queue.
    pub(super) fn enqueue(&mut self, vnode: &Name, uid: &Uid) {
        self.turns += 1;
        self.nodes.entry(vnode.clone()).or_default().waiting.insert(self.turns, uid.clone());
    }

    /// Removes a pod from the queue. Scans all that wait for this virtual node.
    pub(super) fn leave(&mut self, vnode: &Name, uid: &Uid) {
        if let Some(admission) = self.nodes.get_mut(vnode) {
            admission.waiting.retain(|_, waits| waits != uid);
        }
    }

    /// The pods that wait, first come first; `None` when nothing is known of this virtual node.
    pub(super) fn waiting(&self, vnode: &Name) -> Option<Vec<(Turn, Uid)>> {
        Some(self.nodes.get(vnode)?.waiting.iter().map(|(turn, uid)| (*turn, uid.clone())).collect())
    }

    /// Admits the pod with this turn, and counts what it requests as held.
    pub(super) fn enter(&mut self, vnode: &Name, turn: Turn, more: &Resources) {
        if let Some(admission) = self.nodes.get_mut(vnode) {
            admission.waiting.remove(&turn);
            admission.held.add(more);
        }
    }

    /// What the pods inside hold.
    pub(super) fn held(&self, vnode: &Name) -> Option<&Resources> {
        self.nodes.get(vnode).map(|admission| &admission.held)
    }

    /// What all of them hold together.
    pub(super) fn total(&self) -> Resources {
        let mut total = Resources::new();
        self.nodes.values().for_each(|admission| total.add(&admission.held));
        total
    }

    /// Forgets a virtual node for which no pod waits and in which no pod holds anything.
    pub(super) fn forget_unused(&mut self, vnode: &Name) {
        let unused = |admission: &Admission| {
            admission.waiting.is_empty() && admission.held.iter().all(|(_, quantity)| quantity.is_zero())
        };
        if self.nodes.get(vnode).is_some_and(unused) {
            self.nodes.remove(vnode);
        }
    }

    /// Starts over. All pods that waited, first come first, whatever they waited for.
    pub(super) fn clear(&mut self) -> Vec<Uid> {
        let waiting: BTreeMap<Turn, Uid> = self.nodes.drain().flat_map(|(_, admission)| admission.waiting).collect();
        waiting.into_values().collect()
    }

    /// All virtual nodes, in order: the order of a hash map is another one in each process, and a run must be repeatable.
    pub(super) fn vnodes(&self) -> Vec<Name> {
        let mut vnodes: Vec<Name> = self.nodes.keys().cloned().collect();
        vnodes.sort_unstable();
        vnodes
    }
}
