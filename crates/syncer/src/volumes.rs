//! PersistentVolumes and claims that pods need, copied to the physical cluster before the pods and removed after them.
//! Watches all claims and volumes of the virtual cluster, claims of the mount namespace, volumes and classes of the physical cluster;
//! writes copies, one annotation of virtual volumes, and the size of claims. The graph: vpod --> vclaim <--> vvolume, each --name, UID-->
//! its copy, and copy of the claim <--> copy of the volume. No data is ever destroyed: every copy of a volume retains it (ADR 24).

mod facts;
pub(crate) mod plan;
mod readiness;
pub mod row;
mod settle;
mod size;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::names;
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
    claim_cases: HashMap<Arc<Id>, ClaimCase, RandomState>,
    /// Volumes of the virtual cluster that are used, have a copy, or are held.
    volume_cases: HashMap<Name, VolumeCase, RandomState>,
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
    needs: Secrets,
}

/// The Secrets that a volume names.
#[derive(Default)]
enum Secrets {
    /// The volume was never read: perhaps only its copy is left.
    #[default]
    Unknown,
    /// None, or these.
    Known(Option<Arc<Needs>>),
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
        self.pclaims.get(self.claim_cases.get(id)?.copy.as_ref()?)
    }

    fn volume_copy(&self, volume: &Name) -> Option<&PVolume> {
        self.pvolumes.get(self.volume_cases.get(volume)?.copy.as_ref()?)
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
        self.claim_cases.get(id).filter(|case| !case.users.is_empty()).map(|_| vclaim)
    }

    /// Whether nothing of ours is left on either side.
    pub(crate) fn none_left(&self, holder: &str) -> bool {
        let copies = self.pclaims.complete() && self.pclaims.is_empty() && self.pvolumes.is_empty();
        let held = || self.vvolumes.iter().any(|vvolume| vvolume.holder.as_deref() == Some(holder));
        copies && self.pvolumes.complete() && self.vvolumes.complete() && !held()
    }

    /// Whether it is known of every copied volume which Secrets it names.
    pub(crate) fn needs_known(&self) -> bool {
        self.volume_cases.values().all(|case| case.copy.is_none() || matches!(case.needs, Secrets::Known(_)))
    }

    /// Evidence that came from a read is gathered again.
    pub(crate) fn doubt_evidence(&mut self) {
        self.volume_cases.values_mut().for_each(|case| case.gone = false);
        self.claim_cases.values_mut().for_each(|case| case.read = VolumeRead::Unread);
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        let claims = self.claim_cases.keys().map(|id| Key::Claim(Arc::clone(id)));
        claims.chain(self.volume_cases.keys().cloned().map(Key::Volume))
    }

    /// The volumes whose Secrets may be needed from now on, or no longer, each with those Secrets.
    pub(crate) fn take_touched(&mut self) -> Vec<(Name, Option<Arc<Needs>>)> {
        let touched = std::mem::take(&mut self.touched);
        touched.into_iter().map(|volume| (volume.clone(), self.needs_of(&volume))).collect()
    }

    fn needs_of(&self, volume: &Name) -> Option<Arc<Needs>> {
        let case = self.volume_cases.get(volume)?;
        let vvolume = self.vvolume(volume);
        let wanted = || vvolume.is_some_and(|vvolume| self.wanted_by(vvolume).is_some());
        let needed = case.copy.is_some() || wanted();
        match &case.needs {
            Secrets::Known(needs) => needs.clone().filter(|_| needed),
            Secrets::Unknown => None,
        }
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
            if let Some(case) = self.claim_cases.get_mut(id) {
                case.users.remove(vuid);
            }
            self.mark_claim(id, dirty);
            self.drop_claim(id);
        }
        for id in now {
            let case = self.claim_cases.entry(Arc::clone(id)).or_default();
            if case.users.insert(vuid.clone(), copied) != Some(copied) {
                self.mark_claim(id, dirty);
            }
        }
    }

    /// A claim or its copy changed: it is planned, and so are its volumes and the pods that wait for it.
    fn mark_claim(&mut self, id: &Arc<Id>, dirty: &mut Dirty<Key>) {
        let Some(case) = self.claim_cases.get(id) else { return };
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
        let Some((id, case)) = claim.and_then(|id| self.claim_cases.get(&id).map(|case| (id, case))) else { return };
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
        let copied = self.volume_cases.get(volume).is_some_and(|case| case.copy.is_some());
        if held || wanted || copied {
            let case = self.volume_cases.entry(volume.clone()).or_default();
            if let Some(needs) = needs {
                case.needs = Secrets::Known(needs);
            }
        } else {
            self.volume_cases.remove(volume);
        }
        dirty.mark(Key::Volume(volume.clone()));
        self.touched.insert(volume.clone());
    }

    fn drop_claim(&mut self, id: &Id) {
        let unused = |case: &ClaimCase| {
            case.users.is_empty() && case.copy.is_none() && case.volumes.is_empty() && case.waits.is_none()
        };
        if self.claim_cases.get(id).is_some_and(unused) {
            self.claim_cases.remove(id);
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
