//! What watches and answers say of pods, folded into the tables. What follows from a change is in `change`.

use tapestry_cluster::feed::{Change, Epoch, Row as _};
use tapestry_cluster::{Side, Uid};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now};

use super::Pods;
use super::case::{Ended, Last, Proof, Request};
use super::row::{PPod, PodCopy, VPod};
use crate::breaker::LossState;
use crate::pair::{Key, Pair};

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

    pub(super) fn put_vpod(&mut self, mut row: VPod, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) {
        let uid = row.uid.clone();
        if let Some(known) = self.pods.vpods.get(&uid) {
            row.inherit(known);
        }
        row.needs = row.needs.take().map(|needs| self.dependents.share(needs));
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

    pub(super) fn put_ppod(&mut self, mut row: PPod, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(known) = self.pods.ppods.get(&row.uid) {
            row.inherit(known);
        }
        let uid = row.uid.clone();
        self.fold_ppod(row, epoch, now, dirty);
        self.note_unreadable(&uid, now, dirty);
        self.note_unscheduled(&uid, now);
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
                row.ours = Some(Box::new(PodCopy { intact: false, ..(**known).clone() }));
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
                self.forget_stray(&row.uid, LossState::Fine, now, dirty);
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

    pub(super) fn lose_ppod(&mut self, row: PPod, proven: bool, now: Now, dirty: &mut Dirty<Key>) {
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
            self.forget_stray(&uid, LossState::Over, now, dirty);
            self.recount(before.as_ref(), None, now, dirty);
        }
        let Some(vuid) = known.or_else(|| row.ours.as_ref().map(|copy| copy.vpod.uid.clone())) else {
            if proven {
                self.pods.ppods.remove_proven(&uid, row.rv);
            }
            return;
        };
        if proven {
            self.note_unscheduled_end(&uid, &vuid, now, dirty);
        }
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
