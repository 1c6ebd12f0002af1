//! How facts about claims, volumes and classes are folded in. Says which keys they may concern, and decides nothing.

use std::sync::Arc;

use tapestry_cluster::feed::{Change, Epoch};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now};

use super::row::{ClaimPhase, PClaim, PClass, PVolume, VClaim, VVolume};
use super::{Look, Secrets, VolumeRead, Volumes, volume_copy_name};
use crate::origin::Origin;
use crate::pair::Key;

impl Volumes {
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

    pub(super) fn put_vclaim(
        &mut self,
        row: VClaim,
        epoch: Option<Epoch>,
        vnodes: &str,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let (uid, id) = (row.uid.clone(), Arc::clone(&row.id));
        let waits = row.phase == ClaimPhase::Pending
            && row.selected.as_ref().is_some_and(|node| node.as_str().starts_with(vnodes));
        let Put::Fresh(before) = self.vclaims.put(row, epoch) else { return };
        self.claim_named.insert(Arc::clone(&id), uid);
        if waits {
            let case = self.claim_cases.entry(Arc::clone(&id)).or_default();
            case.waits = case.waits.or(Some(now.steady));
        } else if let Some(case) = self.claim_cases.get_mut(&id) {
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
        if let Some(case) = self.claim_cases.get_mut(&row.id) {
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

    pub(super) fn put_vvolume(&mut self, row: VVolume, epoch: Option<Epoch>, dirty: &mut Dirty<Key>) {
        let (uid, name, needs) = (row.uid.clone(), row.name.clone(), row.needs.clone());
        let Put::Fresh(before) = self.vvolumes.put(row, epoch) else { return };
        self.volume_named.insert(name.clone(), uid);
        if let Some(case) = self.volume_cases.get_mut(&name) {
            case.needs = Secrets::Known(needs);
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

    pub(super) fn put_pclaim(&mut self, row: PClaim, epoch: Option<Epoch>, origin: &Origin, dirty: &mut Dirty<Key>) {
        let (uid, name, of) = (row.uid.clone(), row.name.clone(), row.of.clone());
        if !matches!(self.pclaims.put(row, epoch), Put::Fresh(_)) {
            return;
        }
        // Both ways or not at all (law 5): only under the name that we give it.
        let Some((id, _)) = of.filter(|(id, _)| id.copy_name(origin).as_ref() == Some(&name)) else { return };
        let case = self.claim_cases.entry(Arc::clone(&id)).or_default();
        (case.copy, case.look, case.trouble) = (Some(uid), Look::Unknown, None);
        self.mark_claim(&id, dirty);
    }

    pub(super) fn lose_pclaim(&mut self, row: &PClaim, dirty: &mut Dirty<Key>) {
        let Some((id, _)) = &row.of else { return };
        if let Some(case) = self.claim_cases.get_mut(id).filter(|case| case.copy.as_ref() == Some(&row.uid)) {
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

    pub(super) fn put_pvolume(&mut self, row: PVolume, epoch: Option<Epoch>, origin: &Origin, dirty: &mut Dirty<Key>) {
        let (uid, name, of) = (row.uid.clone(), row.name.clone(), row.of.clone());
        if !matches!(self.pvolumes.put(row, epoch), Put::Fresh(_)) {
            return;
        }
        // Both ways or not at all (law 5): only under the name that we give it.
        let Some(of) = of.filter(|of| volume_copy_name(&of.volume, origin).as_ref() == Some(&name)) else { return };
        let needs = self.vvolume(&of.volume).map(|vvolume| vvolume.needs.clone());
        let case = self.volume_cases.entry(of.volume.clone()).or_default();
        (case.copy, case.look, case.trouble, case.gone) = (Some(uid), Look::Unknown, None, false);
        if let Some(needs) = needs {
            case.needs = Secrets::Known(needs);
        }
        self.claim_cases.entry(Arc::clone(&of.claim)).or_default().volumes.insert(of.volume.clone());
        self.mark_volume(&of.volume, dirty);
        self.mark_claim(&of.claim, dirty);
    }

    pub(super) fn lose_pvolume(&mut self, row: &PVolume, dirty: &mut Dirty<Key>) {
        let Some(of) = &row.of else { return };
        if let Some(case) = self.volume_cases.get_mut(&of.volume).filter(|case| case.copy.as_ref() == Some(&row.uid)) {
            (case.copy, case.look, case.gone) = (None, Look::Unknown, false);
            if let Some(case) = self.claim_cases.get_mut(&of.claim) {
                case.volumes.remove(&of.volume);
            }
        }
        self.mark_volume(&of.volume, dirty);
        self.mark_claim(&of.claim, dirty);
        self.drop_claim(&of.claim);
    }
}
