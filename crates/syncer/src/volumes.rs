//! PersistentVolumes and claims that pods need, copied to the physical cluster before the pods and removed after them.
//! Watches all claims and volumes of the virtual cluster, claims of the mount namespace, volumes and classes of the physical cluster;
//! writes copies, one annotation of virtual volumes, and the size of claims. The graph: vpod --> vclaim <--> vvolume, each --name, UID-->
//! its copy, and copy of the claim <--> copy of the volume. No data is ever destroyed: every copy of a volume retains it (ADR 24).

pub(crate) mod plan;
mod readiness;
pub mod row;
mod settle;
mod size;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::names;
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now, Table};

pub(crate) use self::readiness::{Object, Readiness};
use self::row::{ClaimPhase, PClaim, PClass, PVolume, VClaim, VVolume};
pub(crate) use self::settle::Learning;
use crate::dependents::Dependents;
use crate::dependents::needs::Needs;
use crate::nodes::Nodes;
use crate::origin::Origin;
use crate::pair::Key;

/// A claim of the virtual cluster, by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    /// Its namespace in the virtual cluster.
    pub namespace: Name,
    /// Its name there.
    pub name: Name,
}

/// What is known of them.
#[derive(Default)]
pub(crate) struct Volumes {
    vclaims: Table<VClaim>,
    vvolumes: Table<VVolume>,
    pclaims: Table<PClaim>,
    pvolumes: Table<PVolume>,
    classes: Table<PClass>,
    /// Which object has a name now.
    claim_named: HashMap<Arc<Id>, Uid, RandomState>,
    volume_named: HashMap<Name, Uid, RandomState>,
    class_named: HashMap<Name, Uid, RandomState>,
    /// Claims that are used, have a copy, or wait for a node of ours.
    claims: HashMap<Arc<Id>, ClaimCase, RandomState>,
    /// Volumes of the virtual cluster that are used, have a copy, or are held.
    volumes: HashMap<Name, VolumeCase, RandomState>,
    /// What each pod needs that is inside, or whose copy may run.
    users: HashMap<Uid, Arc<Needs>, RandomState>,
    /// Volumes whose Secrets may be needed from now on, or no longer.
    touched: BTreeSet<Name>,
}

/// What is known of one claim beyond its rows.
#[derive(Default)]
struct ClaimCase {
    /// Virtual pods that name it and are inside, or have a copy that may run; and whether they have a copy.
    users: BTreeMap<Uid, bool>,
    /// The copy that points back to it.
    copy: Option<Uid>,
    /// Virtual volumes whose copies are for this claim.
    volumes: BTreeSet<Name>,
    look: Look,
    /// What a read showed of the copy of its volume, when the copy of the claim was to go.
    read: VolumeRead,
    trouble: Option<Trouble>,
    repairs: Repairs,
    /// Since when it waits for a volume on a node of ours.
    waits: Option<Duration>,
    /// What was told about it.
    told: Told,
    /// How much it asked for when the physical cluster refused that.
    refused: Option<Box<str>>,
}

/// What was told on a claim, each once.
#[derive(Default)]
struct Told {
    needs_provisioner: bool,
    /// How much it asked for.
    resize: Option<Box<str>>,
}

/// What is known of one volume beyond its rows.
#[derive(Default)]
struct VolumeCase {
    /// The copy that points back to it.
    copy: Option<Uid>,
    look: Look,
    /// A read has shown that there is no copy.
    gone: bool,
    trouble: Option<Trouble>,
    repairs: Repairs,
    /// The Secrets that it names, once it was read; kept until its copy is gone too.
    needs: Option<Option<Arc<Needs>>>,
}

/// When a copy was last changed back that another client had changed.
#[derive(Default)]
struct Repairs(VecDeque<Duration>);

/// A copy that another client changes so often in this time is changed back at the end of it.
const REPAIRS: usize = 3;
const REPAIRS_WITHIN: Duration = Duration::from_mins(1);

impl Repairs {
    fn count(&mut self, at: Duration) {
        self.0.retain(|then| *then + REPAIRS_WITHIN > at);
        self.0.push_back(at);
    }

    /// Until when another client's change is left alone.
    fn until(&self, now: Duration) -> Option<Duration> {
        let oldest = *self.0.len().checked_sub(REPAIRS).and_then(|first| self.0.get(first))?;
        Some(oldest + REPAIRS_WITHIN).filter(|until| *until > now)
    }
}

/// What is known of a copy that the watch does not show.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Creating it will tell.
    #[default]
    Unknown,
    /// Its name is taken: reading it will tell by what.
    Taken,
    /// By an object that is not ours, as we saw at this time.
    Foreign(Duration),
}

/// What a read showed of the copy of a volume, when the copy of its claim was to go.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum VolumeRead {
    /// Reading it will tell.
    #[default]
    Unread,
    /// It is gone.
    Gone,
    /// At this version it retains its data.
    Retains(Rv),
    /// Its data would go with the claim; so we saw at this time.
    Hazard(Duration),
}

/// Why a copy is not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// An object of the copy's name is there that is not ours.
    Foreign(Name),
    /// The physical cluster refuses the copy, in these words.
    Refused(Box<str>),
}

/// What the room reads of others.
pub(crate) struct Setting<'a> {
    pub(crate) origin: &'a Origin,
    /// The namespace of the claims' copies.
    pub(crate) mount: &'a Name,
    /// What a volume says that this binding holds.
    pub(crate) holder: String,
    /// Whether pods may use directories of the nodes that they run on.
    pub(crate) privileged: bool,
    pub(crate) dependents: &'a Dependents,
    pub(crate) nodes: &'a Nodes,
    pub(crate) now: Now,
    /// Whether copies that no pod uses may be removed: it is known of every copied pod what it needs.
    pub(crate) may_collect: bool,
}

impl Id {
    /// The name of its copy.
    fn copy_name(&self, origin: &Origin) -> Option<Name> {
        Name::parse(&names::claim_name(&origin.label, self.namespace.as_str(), self.name.as_str())).ok()
    }
}

/// The name of the copy of a volume.
fn volume_copy_name(volume: &Name, origin: &Origin) -> Option<Name> {
    Name::parse(&names::volume_name(&origin.label, volume.as_str())).ok()
}

impl Volumes {
    /// Whether all lists are in.
    fn complete(&self) -> bool {
        let ours = self.pclaims.complete() && self.pvolumes.complete() && self.classes.complete();
        self.vclaims.complete() && self.vvolumes.complete() && ours
    }

    fn vclaim(&self, id: &Id) -> Option<&VClaim> {
        self.vclaims.get(self.claim_named.get(id)?)
    }

    fn vvolume(&self, volume: &Name) -> Option<&VVolume> {
        self.vvolumes.get(self.volume_named.get(volume)?)
    }

    fn claim_copy(&self, id: &Id) -> Option<&PClaim> {
        self.pclaims.get(self.claims.get(id)?.copy.as_ref()?)
    }

    fn volume_copy(&self, volume: &Name) -> Option<&PVolume> {
        self.pvolumes.get(self.volumes.get(volume)?.copy.as_ref()?)
    }

    fn class(&self, name: &str) -> Option<&PClass> {
        self.classes.get(self.class_named.get(&Name::parse(name).ok()?)?)
    }

    /// The volume of a claim, if both say that they are bound to each other.
    fn volume_of(&self, vclaim: &VClaim) -> Option<&VVolume> {
        let vvolume = self.vvolume(vclaim.volume.as_ref()?).filter(|_| vclaim.phase == ClaimPhase::Bound)?;
        vvolume.is_for(vclaim).then_some(vvolume)
    }

    /// The claim for which a pod needs this volume.
    fn wanted_by(&self, vvolume: &VVolume) -> Option<&VClaim> {
        let (id, _) = vvolume.claim.as_ref()?;
        let vclaim =
            self.vclaim(id).filter(|vclaim| self.volume_of(vclaim).is_some_and(|one| one.uid == vvolume.uid))?;
        self.claims.get(id).filter(|case| !case.users.is_empty()).map(|_| vclaim)
    }

    /// Whether nothing of ours is left on either side.
    pub(crate) fn none_left(&self, holder: &str) -> bool {
        let copies = self.pclaims.complete() && self.pclaims.is_empty() && self.pvolumes.is_empty();
        let held = || self.vvolumes.iter().any(|vvolume| vvolume.holder.as_deref() == Some(holder));
        copies && self.pvolumes.complete() && self.vvolumes.complete() && !held()
    }

    /// Whether it is known of every copied volume which Secrets it names.
    pub(crate) fn needs_known(&self) -> bool {
        self.volumes.values().all(|case| case.copy.is_none() || case.needs.is_some())
    }

    /// Evidence that came from a read is gathered again.
    pub(crate) fn doubt_evidence(&mut self) {
        self.volumes.values_mut().for_each(|case| case.gone = false);
        self.claims.values_mut().for_each(|case| case.read = VolumeRead::Unread);
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        let claims = self.claims.keys().map(|id| Key::Claim(Arc::clone(id)));
        claims.chain(self.volumes.keys().cloned().map(Key::Volume))
    }

    /// The volumes whose Secrets may be needed from now on, or no longer, each with those Secrets.
    pub(crate) fn take_touched(&mut self) -> Vec<(Name, Option<Arc<Needs>>)> {
        let touched = std::mem::take(&mut self.touched);
        touched.into_iter().map(|volume| (volume.clone(), self.needs_of(&volume))).collect()
    }

    fn needs_of(&self, volume: &Name) -> Option<Arc<Needs>> {
        let case = self.volumes.get(volume)?;
        let vvolume = self.vvolume(volume);
        let wanted = || vvolume.is_some_and(|vvolume| self.wanted_by(vvolume).is_some());
        let needed = case.copy.is_some() || wanted();
        case.needs.clone().flatten().filter(|_| needed)
    }

    /// What a pod needs now; `None` when it cannot run any more. Says nothing new when it is called again.
    pub(crate) fn follow(&mut self, vuid: &Uid, needs: Option<&Arc<Needs>>, copied: bool, dirty: &mut Dirty<Key>) {
        let needs = needs.filter(|needs| needs.claims().next().is_some());
        if needs.is_none() && !self.users.contains_key(vuid) {
            return;
        }
        let before = match needs {
            Some(needs) => self.users.insert(vuid.clone(), Arc::clone(needs)),
            None => self.users.remove(vuid),
        };
        let now: BTreeSet<&Arc<Id>> = needs.iter().flat_map(|needs| needs.claims()).map(|(id, _)| id).collect();
        for (id, _) in before.iter().flat_map(|needs| needs.claims()).filter(|(id, _)| !now.contains(id)) {
            if let Some(case) = self.claims.get_mut(id) {
                case.users.remove(vuid);
            }
            self.mark_claim(id, dirty);
            self.drop_claim(id);
        }
        for id in now {
            let case = self.claims.entry(Arc::clone(id)).or_default();
            if case.users.insert(vuid.clone(), copied) != Some(copied) {
                self.mark_claim(id, dirty);
            }
        }
    }

    /// Folds in what the watch says of virtual claims.
    pub(crate) fn observe_vclaim(&mut self, change: Change<VClaim>, vnodes: &str, now: Now, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_vclaim(row, Some(epoch), vnodes, now, dirty),
            Change::Gone { row, .. } => {
                self.vclaims.remove_proven(&row.uid, row.rv.before());
                self.lose_vclaim(&row, dirty);
            }
            Change::Listed(epoch) => {
                for uid in self.vclaims.listed(epoch) {
                    if let Some(row) = self.vclaims.remove(&uid) {
                        self.lose_vclaim(&row, dirty);
                    }
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_vclaim(&mut self, row: VClaim, epoch: Option<Epoch>, vnodes: &str, now: Now, dirty: &mut Dirty<Key>) {
        let (uid, id) = (row.uid.clone(), Arc::clone(&row.id));
        let waits = row.phase == ClaimPhase::Pending
            && row.selected.as_ref().is_some_and(|node| node.as_str().starts_with(vnodes));
        let Put::Fresh(before) = self.vclaims.put(row, epoch) else { return };
        self.claim_named.insert(Arc::clone(&id), uid);
        if waits {
            let case = self.claims.entry(Arc::clone(&id)).or_default();
            case.waits = case.waits.or(Some(now.steady));
        } else if let Some(case) = self.claims.get_mut(&id) {
            (case.waits, case.told.needs_provisioner) = (None, false);
        }
        if let Some(volume) = before.and_then(|before| before.volume) {
            self.mark_volume(&volume, dirty);
        }
        self.mark_claim(&id, dirty);
        self.drop_claim(&id);
    }

    /// Its copy stays as long as a pod uses it.
    fn lose_vclaim(&mut self, row: &VClaim, dirty: &mut Dirty<Key>) {
        if self.claim_named.get(&row.id) == Some(&row.uid) {
            self.claim_named.remove(&row.id);
        }
        if let Some(case) = self.claims.get_mut(&row.id) {
            case.waits = None;
        }
        if let Some(volume) = &row.volume {
            self.mark_volume(volume, dirty);
        }
        self.mark_claim(&row.id, dirty);
        self.drop_claim(&row.id);
    }

    /// Folds in what the watch says of virtual volumes.
    pub(crate) fn observe_vvolume(&mut self, change: Change<VVolume>, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_vvolume(row, Some(epoch), dirty),
            Change::Gone { row, .. } => {
                self.vvolumes.remove_proven(&row.uid, row.rv.before());
                self.lose_vvolume(&row, dirty);
            }
            Change::Listed(epoch) => {
                for uid in self.vvolumes.listed(epoch) {
                    if let Some(row) = self.vvolumes.remove(&uid) {
                        self.lose_vvolume(&row, dirty);
                    }
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_vvolume(&mut self, row: VVolume, epoch: Option<Epoch>, dirty: &mut Dirty<Key>) {
        let (uid, name, needs) = (row.uid.clone(), row.name.clone(), row.needs.clone());
        let Put::Fresh(before) = self.vvolumes.put(row, epoch) else { return };
        self.volume_named.insert(name.clone(), uid);
        if let Some(case) = self.volumes.get_mut(&name) {
            case.needs = Some(needs);
        }
        if let Some((id, _)) = before.and_then(|before| before.claim) {
            self.mark_claim(&id, dirty);
        }
        self.mark_volume(&name, dirty);
    }

    fn lose_vvolume(&mut self, row: &VVolume, dirty: &mut Dirty<Key>) {
        if self.volume_named.get(&row.name) == Some(&row.uid) {
            self.volume_named.remove(&row.name);
        }
        if let Some((id, _)) = &row.claim {
            self.mark_claim(id, dirty);
        }
        self.mark_volume(&row.name, dirty);
    }

    /// Folds in what the watch says of classes.
    pub(crate) fn observe_class(&mut self, change: Change<PClass>, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => {
                let (uid, name) = (row.uid.clone(), row.name.clone());
                if let Put::Fresh(_) = self.classes.put(row, Some(epoch)) {
                    self.class_named.insert(name, uid);
                }
            }
            Change::Gone { row, .. } => {
                self.classes.remove_proven(&row.uid, row.rv.before());
                if self.class_named.get(&row.name) == Some(&row.uid) {
                    self.class_named.remove(&row.name);
                }
            }
            Change::Listed(epoch) => {
                for uid in self.classes.listed(epoch) {
                    self.classes.remove(&uid);
                }
                self.class_named = self.classes.iter().map(|row| (row.name.clone(), row.uid.clone())).collect();
            }
            Change::Unserved | Change::Reached(_) => return,
        }
        // There are few of them, and they hardly ever change.
        dirty.mark_all();
    }

    /// Folds in what the watch says of copies of claims.
    pub(crate) fn observe_pclaim(&mut self, change: Change<PClaim>, origin: &Origin, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_pclaim(row, Some(epoch), origin, dirty),
            Change::Gone { row, .. } => {
                // Of a whole namespace nothing leaves the watch but what is deleted, or lost all that marks it as ours.
                self.pclaims.remove_proven(&row.uid, row.rv.before());
                self.lose_pclaim(&row, dirty);
            }
            Change::Listed(epoch) => {
                for uid in self.pclaims.listed(epoch) {
                    if let Some(row) = self.pclaims.remove(&uid) {
                        self.lose_pclaim(&row, dirty);
                    }
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_pclaim(&mut self, row: PClaim, epoch: Option<Epoch>, origin: &Origin, dirty: &mut Dirty<Key>) {
        let (uid, name, of) = (row.uid.clone(), row.name.clone(), row.of.clone());
        if !matches!(self.pclaims.put(row, epoch), Put::Fresh(_)) {
            return;
        }
        // Both ways or not at all (law 5): only under the name that we give it.
        let Some((id, _)) = of.filter(|(id, _)| id.copy_name(origin).as_ref() == Some(&name)) else { return };
        let case = self.claims.entry(Arc::clone(&id)).or_default();
        (case.copy, case.look, case.trouble) = (Some(uid), Look::Unknown, None);
        self.mark_claim(&id, dirty);
    }

    fn lose_pclaim(&mut self, row: &PClaim, dirty: &mut Dirty<Key>) {
        let Some((id, _)) = &row.of else { return };
        if let Some(case) = self.claims.get_mut(id).filter(|case| case.copy.as_ref() == Some(&row.uid)) {
            (case.copy, case.look, case.read) = (None, Look::Unknown, VolumeRead::Unread);
        }
        self.mark_claim(id, dirty);
        self.drop_claim(id);
    }

    /// Folds in what the watch says of copies of volumes.
    pub(crate) fn observe_pvolume(&mut self, change: Change<PVolume>, origin: &Origin, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_pvolume(row, Some(epoch), origin, dirty),
            Change::Gone { row, .. } => {
                self.pvolumes.remove_proven(&row.uid, row.rv.before());
                self.lose_pvolume(&row, dirty);
            }
            Change::Listed(epoch) => {
                for uid in self.pvolumes.listed(epoch) {
                    if let Some(row) = self.pvolumes.remove(&uid) {
                        self.lose_pvolume(&row, dirty);
                    }
                }
                dirty.mark_all();
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn put_pvolume(&mut self, row: PVolume, epoch: Option<Epoch>, origin: &Origin, dirty: &mut Dirty<Key>) {
        let (uid, name, of) = (row.uid.clone(), row.name.clone(), row.of.clone());
        if !matches!(self.pvolumes.put(row, epoch), Put::Fresh(_)) {
            return;
        }
        // Both ways or not at all (law 5): only under the name that we give it.
        let Some(of) = of.filter(|of| volume_copy_name(&of.volume, origin).as_ref() == Some(&name)) else { return };
        let needs = self.vvolume(&of.volume).map(|vvolume| vvolume.needs.clone());
        let case = self.volumes.entry(of.volume.clone()).or_default();
        (case.copy, case.look, case.trouble, case.gone) = (Some(uid), Look::Unknown, None, false);
        case.needs = case.needs.take().or(needs);
        self.claims.entry(Arc::clone(&of.claim)).or_default().volumes.insert(of.volume.clone());
        self.mark_volume(&of.volume, dirty);
        self.mark_claim(&of.claim, dirty);
    }

    fn lose_pvolume(&mut self, row: &PVolume, dirty: &mut Dirty<Key>) {
        let Some(of) = &row.of else { return };
        if let Some(case) = self.volumes.get_mut(&of.volume).filter(|case| case.copy.as_ref() == Some(&row.uid)) {
            (case.copy, case.look, case.gone) = (None, Look::Unknown, false);
            if let Some(case) = self.claims.get_mut(&of.claim) {
                case.volumes.remove(&of.volume);
            }
        }
        self.mark_volume(&of.volume, dirty);
        self.mark_claim(&of.claim, dirty);
        self.drop_claim(&of.claim);
    }

    /// A claim or its copy changed: it is planned, and so are its volumes and the pods that wait for it.
    fn mark_claim(&mut self, id: &Arc<Id>, dirty: &mut Dirty<Key>) {
        let Some(case) = self.claims.get(id) else { return };
        dirty.mark(Key::Claim(Arc::clone(id)));
        for user in case.users.keys() {
            dirty.mark(Key::Pod(user.clone()));
        }
        let bound = self.vclaim(id).and_then(|vclaim| vclaim.volume.clone());
        let volumes: Vec<Name> = case.volumes.iter().cloned().chain(bound).collect();
        for volume in volumes {
            self.note_volume(&volume, dirty);
        }
    }

    /// A volume or its copy changed: it is planned, and so are its claim and the pods that wait for it.
    fn mark_volume(&mut self, volume: &Name, dirty: &mut Dirty<Key>) {
        self.note_volume(volume, dirty);
        let claim = self.vvolume(volume).and_then(|vvolume| vvolume.claim.as_ref()).map(|(id, _)| Arc::clone(id));
        let Some((id, case)) = claim.and_then(|id| self.claims.get(&id).map(|case| (id, case))) else { return };
        dirty.mark(Key::Claim(id));
        for user in case.users.keys() {
            dirty.mark(Key::Pod(user.clone()));
        }
    }

    /// Whether a volume concerns us may be something else now.
    fn note_volume(&mut self, volume: &Name, dirty: &mut Dirty<Key>) {
        let vvolume = self.vvolume(volume);
        let held = vvolume.is_some_and(|vvolume| vvolume.holder.is_some());
        let wanted = vvolume.is_some_and(|vvolume| self.wanted_by(vvolume).is_some());
        let needs = vvolume.map(|vvolume| vvolume.needs.clone());
        let copied = self.volumes.get(volume).is_some_and(|case| case.copy.is_some());
        if held || wanted || copied {
            let case = self.volumes.entry(volume.clone()).or_default();
            case.needs = needs.or(case.needs.take());
        } else {
            self.volumes.remove(volume);
        }
        dirty.mark(Key::Volume(volume.clone()));
        self.touched.insert(volume.clone());
    }

    fn drop_claim(&mut self, id: &Id) {
        let unused = |case: &ClaimCase| {
            case.users.is_empty() && case.copy.is_none() && case.volumes.is_empty() && case.waits.is_none()
        };
        if self.claims.get(id).is_some_and(unused) {
            self.claims.remove(id);
        }
    }
}

impl VVolume {
    /// Whether it is bound to this very claim.
    fn is_for(&self, vclaim: &VClaim) -> bool {
        self.claim.as_ref().is_some_and(|(id, uid)| *id == vclaim.id && uid.as_ref() == Some(&vclaim.uid))
    }

    /// Whether another binding has it.
    fn held_by_other(&self, holder: &str) -> Option<&str> {
        self.holder.as_deref().filter(|held| self.exclusive && *held != holder)
    }
}

impl ClaimCase {
    /// Whether a pod that uses it has a copy.
    fn copied(&self) -> bool {
        self.users.values().any(|copied| *copied)
    }
}

#[cfg(test)]
mod tests;
