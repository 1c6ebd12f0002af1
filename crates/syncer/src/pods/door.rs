//! Admission at the virtual node's door: who may enter, in which order, and why not.
//! Decided while facts are folded in, so that two pods planned at once cannot both take the last place (law 9).

use tapestry_cluster::{Name, Uid};
use tapestry_domain::names::physical_pod_name;
use tapestry_engine::Dirty;

use super::row::{Daemon, VPod};
use super::{Closed, Door};
use crate::bindings::Bound;
use crate::pair::{Key, Pair};

/// Why a pod stays outside, as its condition and event say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Verdict {
    /// It ran, its mapping is gone, and no physical pod points back to it: nothing is proven, so nothing is done.
    pub(super) fn mapping_lost() -> Self {
        let message =
            "its mapping annotations were removed and its physical pod is not in sight; delete the pod to start anew";
        Self { reason: "MappingLost", message: message.to_owned() }
    }
}

impl Pair {
    /// Whether a pod is carried at all, room or not.
    pub(crate) fn eligible(&self, vpod: &VPod) -> Result<(), Option<Verdict>> {
        let Some(Bound { binding, .. }) = &self.bound else { return Err(None) };
        match vpod.daemon {
            Daemon::Yes if !binding.running_daemonset_by_default => return Err(None),
            Daemon::Yes | Daemon::OptedIn | Daemon::No => {}
        }
        if binding.excludes(vpod.namespace.as_str()) {
            let message =
                format!("namespace {} is excluded by the binding: run the pod in another one", vpod.namespace);
            return Err(Some(Verdict { reason: "NamespaceExcluded", message }));
        }
        match &vpod.unsupported {
            Some(unsupported) => Err(Some(Verdict { reason: unsupported.reason(), message: unsupported.to_string() })),
            None => Ok(()),
        }
    }

    /// Whether a pod that is not inside stands in the queue.
    pub(super) fn may_wait(&self, vpod: &VPod) -> bool {
        vpod.deleting.is_none() && !vpod.terminal() && !vpod.was_copied() && self.eligible(vpod).is_ok()
    }

    /// Lets in whoever fits, in order of arrival; the others learn why not.
    pub(crate) fn open_door(&mut self, vnode: &Name, dirty: &mut Dirty<Key>) {
        let lent = self.lent(vnode);
        let Some(Door { held, waiting }) = self.pods.doors.get(vnode) else { return };
        let mut held = held.clone();
        let queue: Vec<(u64, Uid)> = waiting.iter().map(|(turn, uid)| (*turn, uid.clone())).collect();
        for (turn, uid) in queue {
            let Some(vpod) = self.pods.vpods.get(&uid) else { continue };
            let closed = match &lent {
                None => Some(Closed::NotLending),
                Some(lent) => {
                    let mut free = lent.clone();
                    free.saturating_sub(&held);
                    vpod.request.fits_within(&free).err().map(Closed::Short)
                }
            };
            if let Some(closed) = closed {
                let case = self.pods.case(&uid);
                if case.closed.as_deref() != Some(&closed) {
                    case.closed = Some(Box::new(closed));
                    dirty.mark(Key::Pod(uid));
                }
                continue;
            }
            held.add(&vpod.request);
            let name = self.choose_name(&uid);
            let case = self.pods.case(&uid);
            case.name = name;
            case.turn = None;
            case.closed = None;
            dirty.mark(Key::Pod(uid));
            if let Some(door) = self.pods.doors.get_mut(vnode) {
                door.waiting.remove(&turn);
                door.held.clone_from(&held);
            }
        }
    }

    /// All doors anew: the rules changed.
    pub(crate) fn open_all_doors(&mut self, dirty: &mut Dirty<Key>) {
        // Who waited longer stays before who came later.
        let mut queue: Vec<(Option<u64>, Uid)> = Vec::with_capacity(self.pods.cases.len());
        queue.extend(self.pods.cases.iter_mut().map(|(uid, case)| (case.turn.take(), uid.clone())));
        queue.sort_unstable();
        self.pods.doors.clear();
        for (_, uid) in &queue {
            let footprint = self.footprint(uid);
            if let Some((vnode, request)) = footprint.held {
                self.pods.doors.entry(vnode).or_default().held.add(&request);
            }
            self.pods.queue(uid, None, footprint.waits.as_ref());
        }
        let mut vnodes: Vec<Name> = self.pods.doors.keys().cloned().collect();
        vnodes.sort_unstable();
        for vnode in vnodes {
            self.open_door(&vnode, dirty);
        }
        dirty.mark_all();
    }

    /// The name under which a pod enters: the one it was given before a restart, else a new one.
    fn choose_name(&mut self, uid: &Uid) -> Option<Name> {
        let vpod = self.pods.vpods.get(uid)?;
        if let Some(mapping) = &vpod.mapping {
            return Some(mapping.name.clone());
        }
        self.new_name(uid)
    }

    /// A fresh random name; also for a pod whose name turned out to be a stranger's.
    pub(super) fn new_name(&mut self, uid: &Uid) -> Option<Name> {
        let vpod = self.pods.vpods.get(uid)?;
        Name::parse(&physical_pod_name(vpod.name.as_str(), (self.pods.entropy)())).ok()
    }
}

impl Closed {
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::NotLending => {
                let message = "the virtual node lends nothing at the moment; the pod starts when it does".to_owned();
                Verdict { reason: "NotLending", message }
            }
            Self::Short(short) => {
                Verdict { reason: "OutOfLease", message: format!("{short}; the pod starts when there is room") }
            }
        }
    }
}
