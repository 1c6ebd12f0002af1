//! Services of the namespaces that the binding names, copied to the mount namespace; addresses of load balancers come back.
//! Watches all Services of the virtual cluster and of the mount namespace; writes copies, and the status of virtual Services. The
//! graph: service --name, UID--> copy --origin, namespace, name--> service.
//! Endpoints are not carried: the physical cluster makes its own from the pods that a copy selects (ADR 25).

mod addresses;
pub(crate) mod plan;
pub(crate) mod reason;
pub mod row;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Name, Side, Target, Uid, kind};
use tapestry_domain::names::{self, DnsLabel};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Table};

use self::reason::ServiceReason;
use self::row::{Of, PService, VService};
use crate::contest::Contest;
use crate::origin::Origin;
use crate::pair::Key;

/// A Service of the virtual cluster, by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    /// Its namespace.
    pub namespace: Name,
    /// Its name there.
    pub name: Name,
}

/// What is known of them.
#[derive(Default)]
pub(crate) struct Services {
    sources: Table<VService>,
    /// Which Service has a name now.
    present: HashMap<Arc<Id>, Uid, RandomState>,
    /// All Services of the mount namespace, also those of others.
    copies: Table<PService>,
    /// Which of them has a name.
    names: HashMap<Name, Uid, RandomState>,
    /// Those that are carried, or have a copy or addresses of ours.
    cases: HashMap<Arc<Id>, Case, RandomState>,
    /// Virtual namespaces whose Services are carried.
    namespaces: BTreeSet<DnsLabel>,
}

/// What is known of one beyond its rows.
#[derive(Default)]
struct Case {
    /// Those that point back to it: one, but for two leaders.
    copies: BTreeSet<Uid>,
    /// A live read proves that no Service has this name.
    gone: bool,
    /// Its name was taken when it was created: reading it will tell by what.
    taken: bool,
    /// Of which Service we last wrote what, by its mark.
    wrote: Option<(Uid, u64)>,
    /// When the copy was found changed by another client, and changed back.
    reverts: Contest,
    /// The same of our addresses in the status.
    restored: Contest,
    /// When the virtual cluster refused our addresses.
    addresses_refused: Option<Duration>,
    trouble: Option<Trouble>,
    /// What its user was told: why this Service has no copy.
    told: Option<(Uid, ServiceReason)>,
}

/// Why a copy is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Trouble {
    /// The physical cluster refuses it, in these words.
    Refused(Box<str>),
    /// Kubernetes does not let it become what the Service is: it is deleted and created again.
    Fixed,
}

/// What the room reads of others.
pub(crate) struct Setting<'a> {
    pub(crate) origin: &'a Origin,
    /// The namespace of all copies.
    pub(crate) mount: &'a Name,
    pub(crate) now: tapestry_engine::Now,
    /// The annotation of virtual Services that says which addresses are ours.
    pub(crate) record: &'a str,
    /// Copies go with the binding.
    pub(crate) leaving: bool,
    /// Whether copies may be removed: no watch is behind, and nothing is held back.
    pub(crate) may_remove: bool,
}

impl Id {
    /// The name of its copy where its own is taken.
    fn other_name(&self, origin: &Origin) -> Option<Name> {
        Name::parse(&names::service_name(&origin.label, self.namespace.as_str(), self.name.as_str())).ok()
    }

    /// Whether we give its copy this name.
    fn may_be_called(&self, name: &Name, origin: &Origin) -> bool {
        *name == self.name || self.other_name(origin).as_ref() == Some(name)
    }

    fn target(&self) -> Target {
        Target::namespaced(Side::Virtual, &kind::SERVICE, self.namespace.clone(), self.name.clone())
    }
}

impl Services {
    /// Whether both lists are in.
    fn complete(&self) -> bool {
        self.sources.complete() && self.copies.complete()
    }

    fn source(&self, id: &Id) -> Option<&VService> {
        self.sources.get(self.present.get(id)?)
    }

    /// The copy that is kept, the oldest, and those that are too many.
    fn copies(&self, case: &Case) -> (Option<(&PService, &Of)>, Vec<&PService>) {
        let all = case.copies.iter().filter_map(|uid| self.copies.get(uid));
        let mut all: Vec<_> = all.filter_map(|row| Some((row, row.of.as_deref()?))).collect();
        // One that is being deleted is no copy if there is another.
        all.sort_unstable_by_key(|(row, of)| (of.deleting, of.born, row.uid.clone()));
        let surplus = all.iter().skip(1).filter(|(_, of)| !of.deleting).map(|(row, _)| *row).collect();
        (all.first().copied(), surplus)
    }

    fn is_listed(&self, id: &Id) -> bool {
        self.namespaces.iter().any(|namespace| **namespace == *id.namespace.as_str())
    }

    /// Whether nothing of ours is left: no copy, and no address in a status that the virtual cluster lets us take back.
    pub(crate) fn none_left(&self) -> bool {
        let recorded = |(id, case): (&Arc<Id>, &Case)| {
            case.addresses_refused.is_none() && self.source(id).is_some_and(|source| source.recorded.is_some())
        };
        self.complete() && self.copies.iter().all(|row| row.of.is_none()) && !self.cases.iter().any(recorded)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.cases.keys().cloned().map(Key::Service)
    }

    /// What was proven is read again.
    pub(crate) fn doubt_evidence(&mut self) {
        self.cases.values_mut().for_each(|case| case.gone = false);
    }

    /// Services of these namespaces are carried from now on.
    pub(crate) fn set_namespaces(&mut self, namespaces: &BTreeSet<DnsLabel>, dirty: &mut Dirty<Key>) {
        if self.namespaces == *namespaces {
            return;
        }
        self.namespaces.clone_from(namespaces);
        let all: Vec<Arc<Id>> = self.present.keys().chain(self.cases.keys()).cloned().collect();
        for id in all {
            self.mark(&id, dirty);
        }
    }

    /// Folds in what the watch says of Services of the virtual cluster.
    pub(crate) fn observe_source(&mut self, change: Change<VService>, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_source(row, Some(epoch), dirty),
            Change::Gone { row, .. } => {
                self.sources.remove_proven(&row.uid, row.rv.before());
                self.lose_source(&row.id, &row.uid, dirty);
            }
            Change::Listed(epoch) => {
                for uid in self.sources.listed(epoch) {
                    if let Some(row) = self.sources.remove(&uid) {
                        self.lose_source(&row.id, &uid, dirty);
                    }
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_source(&mut self, row: VService, epoch: Option<Epoch>, dirty: &mut Dirty<Key>) {
        let (uid, id) = (row.uid.clone(), Arc::clone(&row.id));
        if let Put::Fresh(_) = self.sources.put(row, epoch) {
            self.present.insert(Arc::clone(&id), uid);
            if let Some(case) = self.cases.get_mut(&id) {
                case.gone = false;
            }
            self.mark(&id, dirty);
        }
    }

    /// Its copy stays until a live read proves that it is gone.
    fn lose_source(&mut self, id: &Arc<Id>, uid: &Uid, dirty: &mut Dirty<Key>) {
        if self.present.get(id) == Some(uid) {
            self.present.remove(id);
        }
        self.mark(id, dirty);
    }

    /// Folds in what the watch says of Services of the mount namespace.
    pub(crate) fn observe_copy(&mut self, change: Change<PService>, origin: &Origin, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_copy(row, Some(epoch), origin, dirty),
            Change::Gone { row, .. } => {
                self.copies.remove_proven(&row.uid, row.rv.before());
                self.lose_copy(&row, dirty);
            }
            Change::Listed(epoch) => {
                for uid in self.copies.listed(epoch) {
                    if let Some(row) = self.copies.remove(&uid) {
                        self.lose_copy(&row, dirty);
                    }
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_copy(&mut self, mut row: PService, epoch: Option<Epoch>, origin: &Origin, dirty: &mut Dirty<Key>) {
        // Both ways or not at all (law 5): only under a name that we give it.
        row.of.take_if(|of| !of.id.may_be_called(&row.name, origin));
        let (uid, name, of) = (row.uid.clone(), row.name.clone(), row.of.as_ref().map(|of| Arc::clone(&of.id)));
        let Put::Fresh(before) = self.copies.put(row, epoch) else { return };
        if let Some(before) = before.as_ref().filter(|before| before.id() != of.as_ref()) {
            self.disown(before, dirty);
        }
        self.names.insert(name, uid.clone());
        if let Some(id) = of {
            let case = self.cases.entry(Arc::clone(&id)).or_default();
            case.copies.insert(uid);
            case.taken = false;
            self.mark(&id, dirty);
        }
    }

    fn lose_copy(&mut self, row: &PService, dirty: &mut Dirty<Key>) {
        if self.names.get(&row.name) == Some(&row.uid) {
            self.names.remove(&row.name);
            // Some may wait for a name.
            let waiting = self.cases.iter().filter(|(_, case)| case.copies.is_empty());
            waiting.for_each(|(id, _)| dirty.mark(Key::Service(Arc::clone(id))));
        }
        self.disown(row, dirty);
    }

    /// It is no copy of its Service any more.
    fn disown(&mut self, row: &PService, dirty: &mut Dirty<Key>) {
        let Some(id) = row.id().cloned() else { return };
        if let Some(case) = self.cases.get_mut(&id) {
            case.copies.remove(&row.uid);
        }
        self.mark(&id, dirty);
    }

    /// A Service changed: it is planned if it is carried, or something of it is ours; else it is forgotten.
    fn mark(&mut self, id: &Arc<Id>, dirty: &mut Dirty<Key>) {
        let source = self.source(id);
        let ours = source.is_some_and(|source| source.recorded.is_some());
        let wanted = ours || (source.is_some() && self.is_listed(id));
        if wanted || self.cases.get(id).is_some_and(|case| !case.copies.is_empty()) {
            self.cases.entry(Arc::clone(id)).or_default();
            dirty.mark(Key::Service(Arc::clone(id)));
        } else {
            self.cases.remove(id);
        }
    }
}

#[cfg(test)]
mod tests;
