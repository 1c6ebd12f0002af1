//! ConfigMaps, Secrets and tokens that pods need, copied to the mount namespace before the pods and removed after them.
//! Watches metadata of all ConfigMaps and Secrets of the virtual cluster, and those in the mount namespace; writes only those of the
//! latter that are ours, and values of a source whose user asks for it (ADR 26).
//! The graph: vpod --reference--> source --name, UID--> copy --origin, namespace, name--> source.
//! Nothing else is written to a source (ADR 23), and no value is kept: the gate carries them.

mod both_ways;
mod look;
pub(crate) mod needs;
pub(crate) mod plan;
pub mod row;
mod strays;
pub(crate) mod tokens;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Kind, Name, Rv, Side, Uid, kind};
use tapestry_domain::dependents::DependentKind;
use tapestry_domain::names;
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Table};

use self::both_ways::Up;
use self::look::Look;
use self::needs::Needs;
use self::row::{DependentCopy, Of, Source};
use self::tokens::TokenCase;
use crate::contest::Contest;
use crate::origin::Origin;
use crate::pair::Key;

/// Who needs a ConfigMap or Secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Who {
    /// A virtual pod.
    Pod(Uid),
    /// A volume of the virtual cluster.
    Volume(Name),
}

/// A ConfigMap or Secret of the virtual cluster, by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    /// Which of the two.
    pub kind: DependentKind,
    /// Its namespace in the virtual cluster.
    pub namespace: Name,
    /// Its name there.
    pub name: Name,
}

/// What is known of them.
#[derive(Default)]
pub(crate) struct Dependents {
    sources: [Table<Source>; 2],
    /// Which source has a name now.
    present: HashMap<Arc<Id>, Uid, RandomState>,
    copies: [Table<DependentCopy>; 2],
    /// Copies that do not say of what.
    strays: BTreeSet<(DependentKind, Uid)>,
    /// Those that are used or have a copy.
    cases: HashMap<Arc<Id>, Case, RandomState>,
    /// What each pod needs that is inside, or whose copy may run; and each volume that is carried.
    users: HashMap<Who, User, RandomState>,
    /// By virtual pod.
    tokens: HashMap<Uid, TokenCase, RandomState>,
    /// Whether pods that are made now get what the virtual cluster injects to reach its API server.
    api_access: bool,
    /// Lists of needs, each once; those of pods that are gone stay until there are many.
    shared: HashSet<Arc<Needs>, RandomState>,
    sweep_at: usize,
}

/// What one pod or volume needs.
#[derive(PartialEq, Eq)]
struct User {
    needs: Arc<Needs>,
    /// Whether it has what the virtual cluster injects: a copy that was made keeps what it was made with.
    api_access: bool,
    /// Whether it has a copy, which runs or may run.
    copied: bool,
    /// Whether its ephemeral containers may be pushed, or were: what only they name is not copied before.
    adds: bool,
}

/// What is known of the copy of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Whether it has what the virtual cluster injects; `None` without a copy.
    pub(crate) api_access: Option<bool>,
    /// Whether the ephemeral containers of the pod may be pushed to it, or were.
    pub(crate) adds: bool,
}

/// So many lists of needs are kept without looking whether they are still used.
const SWEEP: usize = 64;

/// What is known of one beyond its rows.
#[derive(Default)]
struct Case {
    /// Virtual pods that name it and are inside, or have a copy that may run; and volumes.
    users: BTreeSet<Who>,
    /// The copy that points back to it.
    copy: Option<Uid>,
    /// What is known of a copy that the watch does not show.
    look: Look,
    /// The version of the source that we last wrote.
    wrote: Option<Rv>,
    /// When the copy was found changed or deleted by another client, and restored.
    reverts: Contest,
    /// Another client deleted the copy, and it was not created again.
    lost: bool,
    /// What we last wrote while we lead was mutable, and so is the source.
    mutable: bool,
    trouble: Option<Trouble>,
    /// `None` until changes of the copy flow up.
    up: Option<Box<Up>>,
}

/// Why a dependent is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// An object of the copy's name is there that is not ours.
    Foreign(Name),
    /// The physical cluster refuses the copy, or the virtual one to let us read the source, in these words.
    Refused(Side, Box<str>),
    /// The copy cannot become what the source is (its type, or it is immutable): it is deleted and created again.
    Fixed,
    /// Another client keeps changing or deleting the copy: it is left alone for a while.
    Contested,
}

/// Whether what a pod needs is there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Readiness<'a> {
    Ready,
    /// It is on its way.
    NotYet,
    /// The virtual cluster does not have it.
    Missing(&'a Id),
    /// The pod names something that cannot exist.
    Impossible(DependentKind, &'a str),
    /// It cannot be copied.
    Hindered(&'a Id, &'a Trouble),
    /// What has the name of the copy, or of the Secret with its tokens, is being deleted and waits for finalizers.
    Terminating(DependentKind, &'a Name),
    /// Its tokens cannot be issued, in these words.
    NoToken(&'a str),
}

/// What the room reads of others.
pub(crate) struct Setting<'a> {
    pub(crate) origin: &'a Origin,
    /// The namespace of all copies.
    pub(crate) mount: &'a Name,
    pub(crate) now: tapestry_engine::Now,
    /// Whether copies that no pod uses may be removed: it is known of every copied pod what it needs.
    pub(crate) may_collect: bool,
}

/// All kinds that are carried.
pub(crate) const KINDS: [DependentKind; 2] = [DependentKind::ConfigMap, DependentKind::Secret];

/// The resource of a dependent.
pub(crate) fn kind_of(kind: DependentKind) -> &'static Kind {
    match kind {
        DependentKind::ConfigMap => &kind::CONFIG_MAP,
        DependentKind::Secret => &kind::SECRET,
    }
}

impl Id {
    /// The name of its copy.
    pub(crate) fn copy_name(&self, origin: &Origin) -> Option<Name> {
        Name::parse(&names::dependent_name(&origin.label, self.namespace.as_str(), self.name.as_str())).ok()
    }
}

impl Dependents {
    /// Whether all lists of this kind are in.
    fn complete(&self, kind: DependentKind) -> bool {
        self.sources[kind as usize].complete() && self.copies[kind as usize].complete()
    }

    fn source(&self, id: &Id) -> Option<&Source> {
        self.sources[id.kind as usize].get(self.present.get(id)?)
    }

    fn copy(&self, id: &Id) -> Option<&DependentCopy> {
        self.copies[id.kind as usize].get(self.cases.get(id)?.copy.as_ref()?)
    }

    /// Whether pods that are made now get what the virtual cluster injects to reach its API server.
    pub(crate) fn api_access(&self) -> bool {
        self.api_access
    }

    /// Whether no copy of ours is left.
    pub(crate) fn none_left(&self) -> bool {
        let counts = |copy: &DependentCopy| copy.of != Of::Unknown || copy.certainly_ours();
        self.copies.iter().all(|copies| copies.complete() && !copies.iter().any(counts))
    }

    /// This process leads from now on: what another one wrote or removed meanwhile is not the work of other clients.
    pub(crate) fn take_lead(&mut self) {
        self.tokens.values_mut().for_each(TokenCase::doubt);
        self.cases.values_mut().for_each(|case| (case.lost, case.mutable) = (false, false));
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        let dependents = self.cases.keys().map(|id| Key::Dependent(Arc::clone(id)));
        dependents.chain(self.tokens.keys().cloned().map(Key::Token)).chain(self.stray_keys())
    }

    /// Folds in what the watch says of sources.
    pub(crate) fn observe_source(&mut self, kind: DependentKind, change: Change<Source>, dirty: &mut Dirty<Key>) {
        let table = &mut self.sources[kind as usize];
        match change {
            Change::Put(row, epoch) => self.put_source(kind, row, Some(epoch), dirty),
            Change::Gone { row, .. } => {
                table.remove_proven(&row.uid, row.rv.before());
                self.lose_source(&row.id, &row.uid, dirty);
            }
            Change::Listed(epoch) => {
                for uid in table.listed(epoch) {
                    if let Some(row) = self.sources[kind as usize].remove(&uid) {
                        self.lose_source(&row.id, &uid, dirty);
                    }
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_source(&mut self, kind: DependentKind, row: Source, epoch: Option<Epoch>, dirty: &mut Dirty<Key>) {
        let (uid, id) = (row.uid.clone(), Arc::clone(&row.id));
        if let Put::Fresh(_) = self.sources[kind as usize].put(row, epoch) {
            self.present.insert(Arc::clone(&id), uid);
            self.mark(&id, dirty);
            if self.cases.get(&id).is_some_and(|case| matches!(case.trouble, Some(Trouble::Refused(..)))) {
                // A user corrected what was refused: the wait after the refusal is over.
                dirty.urge(Key::Dependent(id));
            }
        }
    }

    /// Its copy stays as long as a pod uses it: running pods keep what they have.
    fn lose_source(&mut self, id: &Arc<Id>, uid: &Uid, dirty: &mut Dirty<Key>) {
        if self.present.get(id) == Some(uid) {
            self.present.remove(id);
        }
        self.mark(id, dirty);
    }

    /// Folds in what the watch says of copies.
    pub(crate) fn observe_copy(
        &mut self,
        kind: DependentKind,
        change: Change<DependentCopy>,
        origin: &Origin,
        dirty: &mut Dirty<Key>,
    ) {
        match change {
            Change::Put(row, epoch) => self.put_copy(kind, row, Some(epoch), origin, dirty),
            Change::Gone { row, .. } => {
                // Of a whole namespace nothing leaves the watch but what is deleted. What the table knows may say more than a
                // stripped last state.
                let table = &mut self.copies[kind as usize];
                if row.ours || table.get(&row.uid).is_some() {
                    let known = table.remove_proven(&row.uid, row.rv.before());
                    self.lose_copy(kind, &known.unwrap_or(row), dirty);
                } else {
                    self.free_name(kind, &row.name, origin, dirty);
                }
            }
            Change::Listed(epoch) => {
                for uid in self.copies[kind as usize].listed(epoch) {
                    if let Some(row) = self.copies[kind as usize].remove(&uid) {
                        self.lose_copy(kind, &row, dirty);
                    }
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_copy(
        &mut self,
        kind: DependentKind,
        mut row: DependentCopy,
        epoch: Option<Epoch>,
        origin: &Origin,
        dirty: &mut Dirty<Key>,
    ) {
        let table = &mut self.copies[kind as usize];
        let known = table.get(&row.uid);
        if known.is_none() && !row.ours {
            return;
        }
        row.check_back(known, origin);
        let (uid, name, of) = (row.uid.clone(), row.name.clone(), row.of.clone());
        if !matches!(table.put(row, epoch), Put::Fresh(_)) {
            return;
        }
        self.strays.remove(&(kind, uid.clone()));
        match of {
            Of::Source { id, .. } => {
                let case = self.cases.entry(Arc::clone(&id)).or_default();
                (case.copy, case.look) = (Some(uid), Look::Unknown);
                self.mark(&id, dirty);
            }
            Of::Pod { uid: vuid, .. } => {
                self.tokens.entry(vuid.clone()).or_default().claim(uid, name);
                dirty.mark(Key::Pod(vuid.clone()));
                dirty.mark(Key::Token(vuid));
            }
            Of::Unknown => {
                dirty.mark(Key::StrayDependent(kind, uid.clone()));
                self.strays.insert((kind, uid));
            }
        }
    }

    fn lose_copy(&mut self, kind: DependentKind, row: &DependentCopy, dirty: &mut Dirty<Key>) {
        match &row.of {
            Of::Source { id, .. } => {
                if let Some(case) = self.cases.get_mut(id).filter(|case| case.copy.as_ref() == Some(&row.uid)) {
                    (case.copy, case.look) = (None, Look::Unknown);
                    // One that we replace is deleted by ourselves.
                    case.lost = !case.users.is_empty() && case.trouble != Some(Trouble::Fixed);
                }
                self.mark(id, dirty);
                self.drop_unused(id);
            }
            Of::Pod { uid: vuid, .. } => {
                if let Some(case) = self.tokens.get_mut(vuid) {
                    case.lose_to_others(&row.uid);
                }
                dirty.mark(Key::Pod(vuid.clone()));
                dirty.mark(Key::Token(vuid.clone()));
                self.drop_token(vuid);
            }
            Of::Unknown => drop(self.strays.remove(&(kind, row.uid.clone()))),
        }
    }

    /// A dependent changed: it is planned, and so are the pods that wait for it.
    fn mark(&self, id: &Arc<Id>, dirty: &mut Dirty<Key>) {
        let Some(case) = self.cases.get(id) else { return };
        dirty.mark(Key::Dependent(Arc::clone(id)));
        for user in &case.users {
            dirty.mark(match user {
                Who::Pod(vuid) => Key::Pod(vuid.clone()),
                Who::Volume(volume) => Key::Volume(volume.clone()),
            });
        }
    }

    fn drop_unused(&mut self, id: &Id) {
        if self.cases.get(id).is_some_and(|case| case.users.is_empty() && case.copy.is_none()) {
            self.cases.remove(id);
        }
    }

    /// What a pod needs now; `None` when it cannot run any more. Says nothing new when it is called again.
    pub(crate) fn follow(
        &mut self,
        vuid: &Uid,
        pod: Option<(&Name, &Name)>,
        needs: Option<&Arc<Needs>>,
        copied: Copied,
        dirty: &mut Dirty<Key>,
    ) {
        let api_access = copied.api_access.unwrap_or(self.api_access);
        let user = needs.map(|needs| User {
            needs: Arc::clone(needs),
            api_access,
            copied: copied.api_access.is_some(),
            adds: copied.adds || !needs.adds_any(),
        });
        if self.use_by(&Who::Pod(vuid.clone()), user, dirty) {
            self.want_tokens(vuid, pod, needs, api_access, dirty);
        }
    }

    /// The Secrets that a volume needs now; `None` when it is not carried any more.
    pub(crate) fn follow_volume(&mut self, volume: &Name, needs: Option<&Arc<Needs>>, dirty: &mut Dirty<Key>) {
        let user = |needs: &Arc<Needs>| User { needs: Arc::clone(needs), api_access: false, copied: false, adds: true };
        self.use_by(&Who::Volume(volume.clone()), needs.map(user), dirty);
    }

    /// Says whether that is news.
    fn use_by(&mut self, who: &Who, user: Option<User>, dirty: &mut Dirty<Key>) -> bool {
        if let (Some(known), Some(user)) = (self.users.get_mut(who), &user) {
            known.copied = user.copied;
        }
        if self.users.get(who) == user.as_ref() {
            return false;
        }
        let wanted: Vec<Arc<Id>> = user.iter().flat_map(User::dependents).cloned().collect();
        let before = match user {
            Some(user) => self.users.insert(who.clone(), user),
            None => self.users.remove(who),
        };
        for id in before.iter().flat_map(User::dependents) {
            if let Some(case) = self.cases.get_mut(id) {
                case.users.remove(who);
                dirty.mark(Key::Dependent(Arc::clone(id)));
            }
        }
        for id in wanted {
            self.cases.entry(Arc::clone(&id)).or_default().users.insert(who.clone());
            dirty.mark(Key::Dependent(id));
        }
        for id in before.iter().flat_map(User::dependents) {
            self.drop_unused(id);
        }
        // Whether a stray is used may be another answer now.
        self.stray_keys().for_each(|key| dirty.mark(key));
        true
    }

    /// Whether pods that are made now get what the virtual cluster injects; says whether that is news. Then every pod has to be
    /// followed again.
    #[must_use]
    pub(crate) fn set_api_access(&mut self, api_access: bool) -> bool {
        std::mem::replace(&mut self.api_access, api_access) != api_access
    }

    /// Pods of one template share one list of needs.
    pub(crate) fn share(&mut self, needs: Arc<Needs>) -> Arc<Needs> {
        if let Some(shared) = self.shared.get(&needs) {
            return Arc::clone(shared);
        }
        if self.shared.len() >= self.sweep_at {
            self.shared.retain(|needs| Arc::strong_count(needs) > 1);
            self.sweep_at = SWEEP.max(2 * self.shared.len());
        }
        self.shared.insert(Arc::clone(&needs));
        needs
    }

    /// Whether a pod or volume that uses it lets us copy it.
    fn may_copy(&self, id: &Id, case: &Case) -> bool {
        let mut users = case.users.iter().filter_map(|who| self.users.get(who));
        users.any(|user| user.adds || !user.needs.only_adds(id))
    }

    /// Whether what a pod needs is there.
    pub(crate) fn readiness<'a>(&'a self, vuid: &Uid, needs: &'a Needs) -> Readiness<'a> {
        match (self.readiness_for_volume(needs), needs.wants_tokens(self.api_access)) {
            (Readiness::Ready, true) => self.token_readiness(vuid),
            (readiness, _) => readiness,
        }
    }

    /// Whether the objects that a volume needs are there, which needs no tokens.
    pub(crate) fn readiness_for_volume<'a>(&'a self, needs: &'a Needs) -> Readiness<'a> {
        if let Some((kind, name)) = needs.impossible() {
            return Readiness::Impossible(kind, name);
        }
        let mut readiness = Readiness::Ready;
        // A pod is created without its ephemeral containers.
        for (id, optional) in needs.dependents(self.api_access).filter(|(id, _)| !needs.only_adds(id)) {
            match self.readiness_of(id, optional) {
                Readiness::Ready => {}
                Readiness::NotYet => readiness = Readiness::NotYet,
                other => return other,
            }
        }
        readiness
    }

    /// The same for what ephemeral containers name, which are added to a pod that runs. What the virtual cluster does not have keeps
    /// nothing back: a container that needs it waits for it, the others run on.
    pub(crate) fn readiness_to_add<'a>(&'a self, needs: &'a Needs) -> Readiness<'a> {
        let mut readiness = Readiness::Ready;
        for id in needs.added() {
            match self.readiness_of(id, true) {
                Readiness::Ready => {}
                Readiness::NotYet => readiness = Readiness::NotYet,
                other => return other,
            }
        }
        readiness
    }

    fn readiness_of<'a>(&'a self, id: &'a Id, optional: bool) -> Readiness<'a> {
        if !self.complete(id.kind) {
            return Readiness::NotYet;
        }
        let Some(source) = self.source(id) else {
            return if optional { Readiness::Ready } else { Readiness::Missing(id) };
        };
        let case = self.cases.get(id);
        let trouble = case.and_then(|case| case.trouble.as_ref());
        let written = case.is_some_and(|case| case.wrote_for(source));
        match (self.copy(id), trouble) {
            (Some(copy), _) if copy.deleting => Readiness::Terminating(id.kind, &copy.name),
            // It is what another client made of it; a pod that waited for the end of that would wait for ever.
            (Some(_), Some(Trouble::Contested)) if written => Readiness::Ready,
            (Some(copy), _) if case.is_some_and(|case| case.kept_as_written(copy, source)) => Readiness::Ready,
            (_, Some(trouble @ (Trouble::Foreign(_) | Trouble::Refused(..))))
            | (None, Some(trouble @ Trouble::Contested)) => Readiness::Hindered(id, trouble),
            (Some(_) | None, _) => Readiness::NotYet,
        }
    }
}

impl User {
    fn dependents(&self) -> impl Iterator<Item = &Arc<Id>> {
        self.needs.dependents(self.api_access).map(|(id, _)| id)
    }
}

impl Case {
    /// Whether we wrote what the source says now, or later: the gate may read more than the watch has shown.
    fn wrote_for(&self, source: &Source) -> bool {
        self.wrote.is_some_and(|wrote| wrote >= source.rv)
    }

    /// Whether the copy says that it holds what the source says now. A later version counts only if this process wrote it: the
    /// versions of a cluster that was restored from a backup begin below those that its copies say.
    fn holds(&self, copy: &DependentCopy, source: &Source) -> bool {
        let Of::Source { uid, version: Some(version), .. } = &copy.of else { return false };
        *uid == source.uid && (*version == source.rv || (*version > source.rv && self.wrote == Some(*version)))
    }

    /// The same, and no client has changed it since but for changes that flow up.
    fn kept_as_written(&self, copy: &DependentCopy, source: &Source) -> bool {
        let intact = matches!(copy.of, Of::Source { intact, .. } if intact);
        // Kubelets would not see the next change of one that another client made immutable.
        let fixed = self.mutable && copy.immutable();
        !copy.deleting && !fixed && (intact || copy.shares(source)) && self.holds(copy, source)
    }
}

#[cfg(test)]
mod tests;
