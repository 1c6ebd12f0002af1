//! Pods, both ways. Watches all bound virtual pods and all physical pods; writes annotations and status of virtual
//! pods, and whole physical pods of our origin. The graph: vpod --mapping--> ppod --origin, name, UID--> vpod.
//! This file holds the tables; `facts` folds facts in, what they add up to is in `sums`, what to do about them in `plan`, which pods are
//! admitted in `admission`.

pub(crate) mod admission;
mod admissions;
mod case;
mod change;
mod changes;
pub(crate) mod digest;
mod drain;
mod facts;
mod gates;
mod plan;
pub(crate) mod reason;
pub(crate) mod reclaim;
mod resize;
pub mod row;
mod settle;
pub(crate) mod strays;
mod sums;
mod unreadable;
mod unscheduled;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use foldhash::fast::RandomState;
use tapestry_cluster::feed::{Epoch, Row as _};
use tapestry_cluster::{Name, Side, Uid};
use tapestry_domain::names::physical_pod_name;
use tapestry_domain::resources::Resources;
use tapestry_engine::table::Put;
use tapestry_engine::{Table, reasons};

use self::admissions::Admissions;
use self::case::{Admitted, Case, Ended, Known, NotAdmitted, Proof, Told};
use self::digest::Amend;
use self::row::{Mapping, PPod, VPod};
use self::strays::Strays;
use self::sums::Delta;
use crate::json::fingerprint;
use crate::pair::Key;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// A pod gets the name of its copy, before the copy is made.
        Map,
        /// A pod does not name the copy that points back to it, or not its UID.
        RepairMapping,
        /// A pod is admitted and mapped.
        CreateCopy,
        /// A pod is mapped and the watch shows no copy: is there one?
        LookForCopy,
        /// The watch shows a copy and not its pod: is the pod gone?
        LookForVirtualPod,
        /// The JSON of a pod is needed once more.
        ReadPod,
        /// The status of a copy is needed once more.
        ReadStatus,
        /// The status of a copy goes up.
        Status,
        /// Why a pod is not run.
        Refuse,
        /// Why a pod is not resized.
        DeferResize,
        /// A pod that was not admitted will be deleted.
        AnnounceSendAway,
        /// It is deleted, so that its controller makes another one.
        SendAway,
        /// How a pod ended that is being deleted.
        Finish,
        /// A pod fails: its copy is gone.
        PhysicalPodLost,
        /// The physical cluster does not schedule a copy, which is deleted.
        NotScheduled,
        /// Its pod fails.
        PhysicalUnschedulable,
        /// Nothing runs for a pod that is being deleted: it may go.
        Release,
        /// A pod that was never run goes with its node.
        ReleaseWithNode,
        /// The virtual pod is being deleted, and its copy with it.
        VirtualPodDeleted,
        /// The virtual pod is gone.
        VirtualPodGone,
        /// The virtual pod has finished without this copy.
        PodFinished,
        /// A pod has two copies.
        SurplusCopy,
        /// A copy points to the wrong pod.
        GiveBack,
        /// A copy lost our labels or annotations.
        MendLabels,
        /// A copy lacks the tolerations that keep it on a node in trouble.
        MendTolerations,
        /// Capacity goes back: a pod is asked to leave.
        Evict,
        /// Capacity goes back: a pod will be deleted.
        AnnounceReclaim,
        /// Capacity goes back: it is deleted.
        Reclaim,
        /// The containers of a copy get other sizes.
        Resize,
        /// The copy says which sizes it was given.
        MarkResized,
        /// A pod that runs was changed: what does it say now?
        ReadChanged,
        /// The copy of such a pod: what does it have, and what was pushed to it?
        ReadCopy,
        /// Changed labels and annotations go to the copy.
        PushMetadata,
        /// A changed image, toleration or deadline goes to the copy.
        PushSpec,
        /// New ephemeral containers go to the copy.
        PushEphemeralContainers,
        /// The copy says what was pushed.
        MarkPushed,
        /// A change of a pod does not reach its copy; or it does again.
        TellChange,
    }
}

/// Everything known about pods.
pub(crate) struct Pods {
    vpods: Table<VPod>,
    ppods: Table<PPod>,
    cases: HashMap<Uid, Case, RandomState>,
    admissions: Admissions,
    /// All virtual pods of a virtual node, carried or not.
    residents: HashMap<Name, BTreeSet<Uid>, RandomState>,
    /// What others use of each physical node (DESIGN §8), kept up by differences.
    used: HashMap<Name, Resources, RandomState>,
    /// Where the random part of names comes from; passed in, so that plans stay pure and tests repeatable.
    entropy: Entropy,
    /// How many pods have a copy of which it is not known what it needs.
    unread: usize,
    /// How many marks were drawn.
    marks: u64,
    /// When a name was last asked for and could not be drawn.
    nameless: Option<Duration>,
    strays: Strays,
    /// Physical pods that cannot be fully read, with their node and `namespace/name`.
    unreadable: BTreeMap<Uid, (Name, Box<str>)>,
}

/// A source of random names; `None` when the OS entropy cannot be read.
pub type Entropy = Box<dyn FnMut() -> Option<[u8; 8]> + Send>;

impl Pods {
    pub(crate) fn new(entropy: Entropy) -> Self {
        Self {
            vpods: Table::default(),
            ppods: Table::default(),
            cases: HashMap::default(),
            admissions: Admissions::default(),
            residents: HashMap::default(),
            used: HashMap::default(),
            entropy,
            unread: 0,
            marks: 0,
            nameless: None,
            strays: Strays::default(),
            unreadable: BTreeMap::new(),
        }
    }

    /// What others use of a physical node.
    pub(crate) fn used(&self, node: &Name) -> Resources {
        self.used.get(node).cloned().unwrap_or_default()
    }

    /// All virtual pods of a virtual node.
    pub(crate) fn residents(&self, vnode: &Name) -> impl Iterator<Item = &Uid> {
        self.residents.get(vnode).into_iter().flatten()
    }

    /// Whether no unfinished pod is left on this virtual node. Kubernetes collects finished pods.
    pub(crate) fn left(&self, vnode: &Name) -> bool {
        self.residents(vnode).filter_map(|uid| self.vpods.get(uid)).all(VPod::terminal)
    }

    /// Whether a pod on this virtual node has a copy, or may have one.
    pub(crate) fn occupies(&self, vnode: &Name) -> bool {
        let inside = |uid: &&Uid| self.vpods.get(uid).is_some_and(|vpod| self.carried(vpod) && !self.unmade(uid));
        self.residents(vnode).any(|uid| inside(&uid))
    }

    /// Whether nothing of ours is left in the physical cluster.
    pub(crate) fn none_left(&self) -> bool {
        self.ppods.iter().all(|ppod| ppod.ours.is_none() && !ppod.made_by_us())
    }

    /// Whether a pod that is not ours runs as the copies' account, or may: a pod that cannot be read does not say.
    pub(crate) fn account_used(&self, mount: &Name) -> bool {
        let uses = |ppod: &PPod| ppod.unreadable.is_some() || ppod.account.as_deref() == Some(mount);
        self.ppods.iter().any(|ppod| ppod.ours.is_none() && !ppod.terminal && uses(ppod))
    }

    /// What the pods inside a virtual node ask for.
    pub(crate) fn held(&self, vnode: &Name) -> Option<&Resources> {
        self.admissions.held(vnode)
    }

    /// Whether we carry a pod. We do not carry pods that are only bound to the node (daemons, excluded ones) or await admission.
    fn carried(&self, vpod: &VPod) -> bool {
        let case = self.cases.get(&vpod.uid);
        !vpod.terminal() && case.is_some_and(Case::inside)
    }

    /// A pod that is admitted and mapped and has no copy waits for its creation, which is expensive to plan.
    pub(crate) fn side(&self, vuid: &Uid) -> Option<Side> {
        let case = self.cases.get(vuid).filter(|case| case.unmade())?;
        let mapped = self.vpods.get(vuid).is_some_and(|vpod| vpod.mapping.is_some() && vpod.deleting.is_none());
        (mapped && !case.taken).then_some(Side::Physical)
    }

    /// Whether a pod is mapped, or gone and perhaps survived by its copy.
    pub(crate) fn begun(&self, vuid: &Uid) -> bool {
        self.vpods.get(vuid).is_none_or(|vpod| vpod.mapping.is_some())
    }

    /// Whether a pod is admitted and has no copy yet.
    fn unmade(&self, vuid: &Uid) -> bool {
        self.cases.get(vuid).is_some_and(Case::unmade)
    }

    /// Those on a virtual node.
    pub(crate) fn unmade_on(&self, vnode: &Name) -> impl Iterator<Item = &Uid> {
        self.residents(vnode).filter(|uid| self.unmade(uid))
    }

    /// A mark that was never used before.
    pub(crate) fn fresh_mark(&mut self) -> String {
        self.marks += 1;
        // No user gains by foreseeing it: without random numbers the trip still needs one.
        let entropy = (self.entropy)().unwrap_or_else(|| fingerprint(self.marks).to_be_bytes());
        physical_pod_name("trip", entropy)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.cases.keys().cloned().map(Key::Pod).chain(self.strays.keys())
    }

    /// Whether a physical pod of this UID is known, ours or not.
    pub(crate) fn knows_physical(&self, uid: &Uid) -> bool {
        self.ppods.get(uid).is_some()
    }

    /// The virtual pod whose copy this is, when both say so (law 5).
    pub(crate) fn vpod_of(&self, uid: &Uid) -> Option<&VPod> {
        let copy = self.ppods.get(uid)?.ours.as_ref()?;
        self.vpods.get(&copy.vpod.uid).filter(|vpod| vpod.claims(&copy.name, uid))
    }

    /// The physical pod of a case: the one its mapping names, else the one that points back.
    fn copy(&self, vuid: &Uid) -> Option<&PPod> {
        let case = self.cases.get(vuid)?;
        let mapping = self.vpods.get(vuid).and_then(|vpod| vpod.mapping.as_ref());
        let claimants = || case.claimants.iter().filter_map(|uid| self.ppods.get(uid));
        let named = |ppod: &&PPod| match (&ppod.ours, mapping) {
            (Some(copy), Some(mapping)) => copy.name == mapping.name,
            _ => false,
        };
        claimants().find(named).or_else(|| claimants().next())
    }

    /// What copies ask for beyond their virtual pods, all together: containers that the physical cluster added, and copies whose
    /// virtual pod is gone.
    pub(crate) fn beyond_virtual(&self) -> Resources {
        let mut beyond = Resources::new();
        for ppod in self.ppods.iter().filter(|ppod| !ppod.terminal && (ppod.ours.is_some() || ppod.made_by_us())) {
            beyond.add(&self.counts(ppod));
        }
        beyond
    }

    /// What a physical pod takes away from what can be lent.
    fn contribution(&self, ppod: &PPod) -> Option<(Name, Resources)> {
        let node = ppod.node.clone().filter(|_| !ppod.terminal)?;
        Some((node, self.counts(ppod)))
    }

    fn counts(&self, ppod: &PPod) -> Resources {
        let mut counts = ppod.request.clone();
        if let Some(copy) = &ppod.ours
            && let Some(vpod) = self.vpods.get(&copy.vpod.uid).filter(|vpod| !vpod.terminal())
            && self.copy(&vpod.uid).is_none_or(|copy| copy.uid == ppod.uid)
        {
            // The virtual scheduler counts the virtual pod; only what the physical side added is others' use.
            counts.saturating_sub(&vpod.request);
        }
        counts
    }
}

impl Pods {
    /// The virtual pod of this UID.
    pub(crate) fn vpod(&self, uid: &str) -> Option<&VPod> {
        self.vpods.get(&Uid::new(uid))
    }

    #[cfg(test)]
    pub(crate) fn copy_of(&self, vuid: &str) -> Option<&PPod> {
        self.copy(&Uid::new(vuid))
    }

    /// Whether all pods of both sides have been listed.
    pub(crate) fn complete(&self) -> bool {
        self.vpods.complete() && self.ppods.complete()
    }

    /// Whether something is known of a virtual pod, or of a copy that points to it.
    pub(crate) fn knows(&self, vuid: &Uid) -> bool {
        self.cases.contains_key(vuid)
    }

    fn case(&mut self, vuid: &Uid) -> &mut Case {
        self.cases.entry(vuid.clone()).or_default()
    }

    /// Takes over what is said of a virtual pod; says whether its deletion is news.
    fn take_vpod(&mut self, uid: &Uid, mut row: VPod, epoch: Option<Epoch>) -> bool {
        let deleting = row.deleting();
        let needs = row.needs.take();
        let readable = row.unreadable.is_none();
        let grown = self.vpods.get(uid).is_some_and(|known| row.request.fits_within(&known.request).is_err());
        let mapping = row.mapping.clone();
        let Put::Fresh(before) = self.vpods.put(row, epoch) else { return false };
        let case = self.case(uid);
        if readable {
            case.needs = Known::Yes(needs);
        }
        let asked = deleting && before.as_ref().is_none_or(|before| before.deleting.is_none());
        let former = before.and_then(|before| before.mapping);
        case.unmarked &= former == mapping;
        if grown && case.claimants.is_empty() {
            // Not made yet, and larger now: it asks once more.
            case.admitted = Admitted::No;
        }
        let name = |mapping: Option<Mapping>| mapping.map(|mapping| mapping.name);
        match (name(former), name(mapping)) {
            (Some(lost), None) => case.former = Some(lost),
            (former, Some(name)) => {
                case.former = None;
                if case.is_admitted() && former != Some(name) {
                    // The first mapping that was written has chosen the name, also for us (law 2).
                    (case.admitted, case.taken) = (Admitted::AsMapped, false);
                }
            }
            (None, None) => {}
        }
        if deleting && case.claimants.is_empty() {
            // It will not be copied any more, so it holds nothing.
            case.admitted = Admitted::No;
        }
        case.vpod_gone = None;
        case.looked = None;
        asked
    }

    /// The mapping of a pod is as good as none.
    fn forget_mapping(&mut self, vuid: &Uid) {
        let mapping = self.vpods.get_mut(vuid).and_then(|vpod| vpod.mapping.take());
        if let (Some(mapping), Some(case)) = (mapping, self.cases.get_mut(vuid))
            && case.admitted == Admitted::AsMapped
        {
            case.admitted = Admitted::As(mapping.name);
        }
    }

    /// Evidence that came from a read is gathered again; what a watch showed with a deletionTimestamp stays.
    pub(crate) fn doubt_evidence(&mut self) {
        for case in self.cases.values_mut() {
            case.vpod_gone.take_if(|proof| *proof == Proof::Read);
            case.looked = None;
            case.ended = case.ended.take().filter(|ended| ended.seen);
        }
        self.strays.doubt();
    }

    /// A case with nothing on either side has nothing to say.
    fn drop_finished(&mut self, vuid: &Uid) {
        let finished = |case: &Case| case.claimants.is_empty() && self.vpods.get(vuid).is_none();
        if self.cases.get(vuid).is_some_and(finished) {
            self.cases.remove(vuid);
        }
    }

    /// Moves a waiting pod to another queue, or out of the queue.
    fn queue(&mut self, vuid: &Uid, before: Option<&Name>, after: Option<&Name>) {
        if before == after {
            return;
        }
        if let Some(vnode) = before {
            self.admissions.leave(vnode, vuid);
        }
        if let Some(vnode) = after {
            self.admissions.enqueue(vnode, vuid);
        } else if let Some(case) = self.cases.get_mut(vuid) {
            case.not_admitted = None;
        }
    }

    /// Raw JSON is kept only while it is needed.
    fn forget_agreed(&mut self, vuid: &Uid) {
        let Some(PPod { uid, ours: Some(copy), .. }) = self.copy(vuid) else { return };
        let Some(vpod) = self.vpods.get(vuid) else { return };
        let (uid, amend) = (uid.clone(), self.amend(vuid));
        let agreed = vpod.digest.agrees_with(&copy.digest, &vpod.containers, &amend);
        let sized = vpod.sizes.is_some() && self.wanted_sizes(vpod).is_none();
        let changed = vpod.said.differs_from(copy);
        if let Some(vpod) = self.vpods.get_mut(vuid) {
            vpod.raw = None;
            if sized {
                vpod.sizes = None;
            }
        }
        if let Some(case) = self.cases.get_mut(vuid) {
            case.sizing.take_if(|_| sized);
            case.changing.take_if(|_| !changed);
        }
        if agreed && let Some(copy) = self.ppods.get_mut(&uid).and_then(|ppod| ppod.ours.as_mut()) {
            copy.status = None;
        }
    }

    /// What the virtual status says beyond that of the copy.
    fn amend(&self, vuid: &Uid) -> Amend {
        let (Some(vpod), Some(ppod)) = (self.vpods.get(vuid), self.copy(vuid)) else { return Amend::default() };
        // When another client deletes a physical pod, its virtual pod is taken out of service at once.
        let leaving =
            ppod.deleting.is_some() && vpod.deleting.is_none() && !self.cases.get(vuid).is_some_and(Case::given_up);
        let gate = vpod.gates.as_ref().map(|gates| gates.gate()).unwrap_or_default();
        Amend { leaving, pending: self.pending(vpod), gate }
    }
}

#[cfg(test)]
pub(crate) mod tests;
