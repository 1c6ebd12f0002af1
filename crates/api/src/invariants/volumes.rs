//! What must hold of volumes and claims that pods need: there for every pod that runs, bound to each other, retaining their data, and no
//! other copy of ours.

use std::collections::BTreeSet;

use serde_json::Value;
use tapestry_domain::names;
use tapestry_domain::podspec::SpecNeeds;
use tapestry_domain::volumes::{RETAIN, read_volume};

use super::{Snapshot, annotation, finished, leaving, name, namespace, place, refused, text, uid};
use crate::keys;

impl Snapshot<'_> {
    /// Every pod that runs has its claims bound below; copies that no pod names are gone.
    pub(super) fn volumes_follow(&self, found: &mut Vec<String>) {
        let ours = |copy: &&&Value| annotation(copy, keys::ORIGIN) == self.origin;
        let label = self.origin_label();
        let mut used: BTreeSet<String> = BTreeSet::new();
        for vpod in self.vpods.iter().filter(|vpod| !finished(vpod) || leaving(vpod)) {
            for claim in claims_of(vpod) {
                let copy = names::claim_name(&label, namespace(vpod), &claim);
                if self.runs(vpod) {
                    self.bound(vpod, &claim, &copy, found);
                }
                used.insert(copy);
            }
        }
        for copy in self.claims.iter().filter(ours).filter(|copy| !leaving(copy)) {
            if !used.contains(name(copy)) {
                found.push(format!("PersistentVolumeClaim {} is used by no pod", place(copy)));
            }
        }
        for copy in self.volumes.iter().filter(ours).filter(|copy| !leaving(copy)) {
            if text(&copy["spec"]["persistentVolumeReclaimPolicy"]) != RETAIN {
                found.push(format!("PersistentVolume {} does not retain its data", name(copy)));
            }
            let bound = text(&copy["spec"]["claimRef"]["uid"]);
            let own = self.claims.iter().filter(ours).any(|claim| uid(claim) == bound);
            if text(&copy["status"]["phase"]) == "Bound" && !own {
                // A claim of another client has it.
                continue;
            }
            let claim = annotation(copy, keys::VIRTUAL_CLAIM).split_once('/');
            let claim = claim.map(|(namespace, claim)| names::claim_name(&label, namespace, claim));
            if claim.is_none_or(|claim| !used.contains(&claim)) {
                found.push(format!("PersistentVolume {} is used by no pod", name(copy)));
            }
        }
    }

    fn runs(&self, vpod: &Value) -> bool {
        let own = |ppod: &&Value| annotation(ppod, keys::VIRTUAL_POD_UID) == uid(vpod) && self.ours(ppod);
        self.ppods.iter().any(|ppod| own(ppod) && !finished(ppod) && !leaving(ppod)) && !leaving(vpod)
    }

    fn bound(&self, vpod: &Value, claim: &str, copy: &str, found: &mut Vec<String>) {
        let Some(there) = self.claims.iter().find(|there| name(there) == copy) else {
            found.push(format!("{} needs PersistentVolumeClaim {claim}, which has no copy", place(vpod)));
            return;
        };
        let volume = self.volumes.iter().find(|volume| name(volume) == text(&there["spec"]["volumeName"]));
        let back = volume.is_some_and(|volume| text(&volume["spec"]["claimRef"]["uid"]) == uid(there));
        if text(&there["status"]["phase"]) != "Bound" || !back {
            found.push(format!("{} runs with PersistentVolumeClaim {}, which is not bound", place(vpod), place(there)));
        }
    }

    /// Whether a copied volume names this Secret, or one may that is still to be copied.
    pub(super) fn secret_of_volume(&self, secret: &str) -> bool {
        let waits = |vpod: &&Value| refused(vpod) && !finished(vpod) && !claims_of(vpod).is_empty();
        let named = |volume: &&Value| {
            let needs = read_volume(&volume["spec"].to_string(), "");
            needs.is_ok_and(|needs| needs.secrets.iter().any(|named| *named.name == *secret))
        };
        self.volumes.iter().any(named) || self.vpods.iter().any(waits)
    }
}

fn claims_of(vpod: &Value) -> Vec<String> {
    let spec = vpod["spec"].to_string();
    let Ok(needs) = serde_json::from_str::<SpecNeeds<'_>>(&spec) else { return Vec::new() };
    needs.claims(name(vpod)).into_iter().map(|claim| claim.name.into()).collect()
}
