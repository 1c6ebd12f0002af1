//! Pods, both ways. Watches all bound virtual pods and all physical pods; writes annotations and status of virtual
//! pods, and whole physical pods of our origin. The graph: vpod --mapping--> ppod --origin, name, UID--> vpod.
//! This file folds facts in; what they add up to is in `sums`, what to do about them in `plan`, which pods are admitted in `admission`.

pub(crate) mod admission;
mod admissions;
mod case;
mod change;
pub(crate) mod digest;
mod drain;
mod plan;
pub(crate) mod reclaim;
mod resize;
pub mod row;
mod settle;
pub(crate) mod strays;
mod sums;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use foldhash::fast::RandomState;
use tapestry_cluster::feed::{Change, Epoch, Row as _};
use tapestry_cluster::{Name, Side, Uid};
use tapestry_domain::names::physical_pod_name;
use tapestry_domain::resources::Resources;
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now, Table, reasons};

use self::admissions::Admissions;
use self::case::{Admitted, Case, Ended, Last, NotAdmitted, Proof, Request, Told};
use self::digest::Amend;
use self::row::{Mapping, PPod, VPod};
use self::strays::Strays;
use self::sums::Delta;
use crate::breaker::LossState;
use crate::json::fingerprint;
use crate::pair::{Key, Pair};

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
    /// How many marks were drawn.
    marks: u64,
    /// When a name was last asked for and could not be drawn.
    nameless: Option<Duration>,
    strays: Strays,
    /// Physical pods that cannot be fully read, with their node and `namespace/name`.
    unreadable: BTreeMap<Uid, (Name, Box<str>)>,
}

/// A source of random names; `None` when the operating system gives no random numbers.
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

impl Pair {
    /// Folds in what a watch said of a virtual pod.
    pub(crate) fn see_vpod(&mut self, change: Change<VPod>, now: Now, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_vpod(row, Some(epoch), now, dirty),
            Change::Gone { row, proven } => {
                let uid = row.uid.clone();
                self.change_pod(&uid, now, dirty, |pods| {
                    if proven {
                        pods.vpods.remove_proven(&uid, row.rv);
                        pods.case(&uid).vpod_gone = Some(Proof::Seen);
                    } else {
                        pods.vpods.remove(&uid);
                    }
                });
            }
            Change::Unserved => {}
            Change::Listed(epoch) => {
                for uid in self.pods.vpods.listed(epoch) {
                    // Absence from a list proves nothing (law 1): the plan will look.
                    self.change_pod(&uid, now, dirty, |pods| {
                        if pods.vpods.remove(&uid).is_some_and(|row| row.deleting()) {
                            pods.case(&uid).request = Request::Seen;
                        }
                    });
                }
                dirty.mark_all();
            }
            Change::Reached(rv) => self.note_reached(Side::Virtual, rv, now, dirty),
        }
    }

    /// Folds in what a watch said of a physical pod.
    pub(crate) fn see_ppod(&mut self, change: Change<PPod>, now: Now, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.put_ppod(row, Some(epoch), now, dirty),
            Change::Gone { row, proven } => self.lose_ppod(row, proven, now, dirty),
            Change::Unserved => {}
            Change::Listed(epoch) => {
                for uid in self.pods.ppods.listed(epoch) {
                    if let Some(row) = self.pods.ppods.get(&uid).cloned() {
                        self.lose_ppod(row, false, now, dirty);
                    }
                }
                dirty.mark_all();
            }
            Change::Reached(rv) => self.note_reached(Side::Physical, rv, now, dirty),
        }
    }

    fn put_vpod(&mut self, mut row: VPod, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) {
        let uid = row.uid.clone();
        if let Some(known) = self.pods.vpods.get(&uid) {
            row.inherit(known);
        }
        let mut asked = false;
        self.change_pod(&uid, now, dirty, |pods| {
            asked = pods.take_vpod(&uid, row, epoch);
            pods.forget_agreed(&uid);
        });
        if asked {
            // Whatever went wrong before, its user wants something else now.
            dirty.urge(Key::Pod(uid));
        }
    }

    fn put_ppod(&mut self, mut row: PPod, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(known) = self.pods.ppods.get(&row.uid) {
            row.inherit(known);
        }
        let uid = row.uid.clone();
        self.fold_ppod(row, epoch, now, dirty);
        self.note_unreadable(&uid, now, dirty);
    }

    fn fold_ppod(&mut self, mut row: PPod, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) {
        row.disown_outside(&self.home.mount);
        if self.pods.ppods.get(&row.uid).is_some_and(|known| known.rv > row.rv) {
            // An answer that the watch has overtaken; only that it was listed counts.
            return drop(self.pods.ppods.put(row, epoch));
        }
        let (name, uid) = (row.ours.as_ref().map(|copy| copy.name.clone()), row.uid.clone());
        let claimed = |pods: &Pods, vuid: &Uid| {
            pods.vpods.get(vuid).is_some_and(|vpod| name.as_ref().is_some_and(|name| vpod.claims(name, &uid)))
        };
        match (self.pods.ppods.get(&row.uid), &mut row.ours) {
            // A client stripped its marks. It is the same object, so it stays ours, and we put the marks back.
            (Some(PPod { ours: Some(known), .. }), None) => {
                row.ours = Some(Box::new(row::PodCopy { intact: false, ..(**known).clone() }));
            }
            // The pod it now points to names it and the other does not: both ends agree (law 5), the table was mistaken.
            (Some(known @ PPod { ours: Some(before), .. }), Some(claims))
                if claimed(&self.pods, &claims.vpod.uid) && !claimed(&self.pods, &before.vpod.uid) =>
            {
                let known = known.clone();
                self.lose_ppod(known, false, now, dirty);
            }
            // A client made it point to another pod: we trust our table instead.
            (Some(PPod { ours: Some(known), .. }), Some(claims)) if known.vpod != claims.vpod => {
                claims.vpod = known.vpod.clone();
                claims.intact = false;
            }
            // Counted as a foreign pod until now.
            (Some(stranger @ PPod { ours: None, .. }), Some(_)) => {
                let before = self.pods.contribution(stranger);
                self.pods.ppods.remove(&row.uid);
                self.forget_stray(&row.uid, LossState::Fine, now);
                self.recount(before.as_ref(), None, now, dirty);
            }
            _ => {}
        }
        let Some(vuid) = row.ours.as_ref().map(|copy| copy.vpod.uid.clone()) else {
            return self.put_stranger(row, epoch, now, dirty);
        };
        let uid = row.uid.clone();
        self.change_pod(&vuid, now, dirty, |pods| {
            if let Put::Fresh(_) = pods.ppods.put(row, epoch) {
                let case = pods.case(&vuid);
                if !case.claimants.contains(&uid) {
                    case.claimants.push(uid);
                }
                case.ended = None;
                case.refused = None;
                (case.taken, case.unmarked) = (false, false);
                case.looked = None;
            }
            pods.forget_agreed(&vuid);
        });
    }

    /// A pod that is not ours only uses room.
    fn put_stranger(&mut self, row: PPod, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) {
        let after = self.pods.contribution(&row);
        let uid = row.uid.clone();
        let Put::Fresh(before) = self.pods.ppods.put(row, epoch) else { return };
        self.see_stray(&uid, now, dirty);
        let before = before.and_then(|row| self.pods.contribution(&row));
        if before != after {
            self.recount(before.as_ref(), after.as_ref(), now, dirty);
        }
    }

    fn lose_ppod(&mut self, row: PPod, proven: bool, now: Now, dirty: &mut Dirty<Key>) {
        let uid = row.uid.clone();
        self.drop_ppod(row, proven, now, dirty);
        self.note_unreadable(&uid, now, dirty);
    }

    fn drop_ppod(&mut self, mut row: PPod, proven: bool, now: Now, dirty: &mut Dirty<Key>) {
        row.disown_outside(&self.home.mount);
        let uid = row.uid.clone();
        // What the table knows may say more than a stripped last state.
        let known = self.pods.ppods.get(&uid).and_then(|known| known.ours.as_ref()).map(|copy| copy.vpod.uid.clone());
        if known.is_none() {
            // Counted as a foreign pod until now.
            let before = self.pods.ppods.remove(&uid).and_then(|known| self.pods.contribution(&known));
            self.forget_stray(&uid, LossState::Over, now);
            self.recount(before.as_ref(), None, now, dirty);
        }
        let Some(vuid) = known.or_else(|| row.ours.as_ref().map(|copy| copy.vpod.uid.clone())) else {
            if proven {
                self.pods.ppods.remove_proven(&uid, row.rv);
            }
            return;
        };
        self.change_pod(&vuid, now, dirty, |pods| {
            let sought = pods.copy(&vuid).is_some_and(|copy| copy.uid == uid && copy.deleting.is_some());
            if proven {
                pods.ppods.remove_proven(&uid, row.rv);
            } else {
                pods.ppods.remove(&uid);
            }
            let case = pods.case(&vuid);
            if sought {
                case.request = Request::Seen;
            }
            case.claimants.retain(|claimant| *claimant != uid);
            case.asked = None;
            case.mended = false;
            case.pushed = None;
            case.looked = None;
            if proven && case.claimants.is_empty() {
                let last = row.ours.and_then(|copy| {
                    let terminal = copy.digest.phase.terminal();
                    copy.status.filter(|_| terminal).map(|status| Last { status, generation: copy.generation })
                });
                case.ended = Some(Box::new(Ended { existed: true, seen: true, last }));
            }
        });
        self.mark_leaving(dirty);
    }
}

impl Pods {
    #[cfg(test)]
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
    fn take_vpod(&mut self, uid: &Uid, row: VPod, epoch: Option<Epoch>) -> bool {
        let deleting = row.deleting();
        let grown = self.vpods.get(uid).is_some_and(|known| row.request.fits_within(&known.request).is_err());
        let mapping = row.mapping.clone();
        let Put::Fresh(before) = self.vpods.put(row, epoch) else { return false };
        let case = self.case(uid);
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

    /// A pod that waits does so somewhere else now, or no more.
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
        if let Some(vpod) = self.vpods.get_mut(vuid) {
            vpod.raw = None;
            if sized {
                vpod.sizes = None;
            }
        }
        if sized && let Some(case) = self.cases.get_mut(vuid) {
            case.sizing = None;
        }
        if agreed && let Some(copy) = self.ppods.get_mut(&uid).and_then(|ppod| ppod.ours.as_mut()) {
            copy.status = None;
        }
    }

    /// What the virtual status says beyond that of the copy.
    fn amend(&self, vuid: &Uid) -> Amend {
        let (Some(vpod), Some(ppod)) = (self.vpods.get(vuid), self.copy(vuid)) else { return Amend::default() };
        // When another client deletes a physical pod, its virtual pod is taken out of service at once.
        Amend { leaving: ppod.deleting.is_some() && vpod.deleting.is_none(), pending: self.pending(vpod) }
    }
}

#[cfg(test)]
pub(crate) mod tests;
