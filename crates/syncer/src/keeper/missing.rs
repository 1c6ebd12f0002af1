//! Virtual nodes that left the keeper's watch, which is by our label, without proof that they are gone: they are kept, their
//! Leases are renewed, and they are looked for by name until the API server says that they are not there. Writes nothing.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use tapestry_cluster::{Name, Side, Target, Uid, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use super::Key;

/// How often a node is looked for that is there and that no watch shows. The syncer gives it its label back within seconds; it
/// stays like this only while the syncer does not work.
const LOOK_EVERY: Duration = Duration::from_secs(30);

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// Whether a node that left the watch is there.
        LookForNode,
    }
}

/// The nodes that the watch no longer shows, and when each is looked for next.
#[derive(Default)]
pub(super) struct Missing(HashMap<Name, Duration, RandomState>);

impl Missing {
    /// It left the watch: it is looked for at once.
    pub(super) fn begin(&mut self, vnode: &Name, now: Now) {
        self.0.entry(vnode.clone()).or_insert(now.steady);
    }

    /// The watch shows it again, or it is gone.
    pub(super) fn end(&mut self, vnode: &Name) {
        self.0.remove(vnode);
    }

    /// It was looked for, and is there.
    pub(super) fn put_off(&mut self, vnode: &Name, now: Now) {
        if let Some(due) = self.0.get_mut(vnode) {
            *due = now.steady + LOOK_EVERY;
        }
    }

    /// If the watch does not show it: something suggests that it has changed or gone.
    pub(super) fn hasten(&mut self, vnode: &Name, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(due) = self.0.get_mut(vnode) {
            *due = now.steady;
            dirty.mark(Key::Node(vnode.clone()));
        }
    }

    /// The look for the node of this name and UID.
    pub(super) fn plan(&self, vnode: &Name, uid: &Uid, now: Now) -> Plan<Why> {
        match self.0.get(vnode) {
            None => Plan::Rest,
            Some(due) if *due > now.steady => Plan::Wait(*due),
            Some(_) => {
                let target = Target::cluster(Side::Virtual, &kind::NODE, vnode.clone()).uid(uid);
                Why::LookForNode.call(target, Verb::Get)
            }
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.0.keys().cloned().map(Key::Node)
    }
}
