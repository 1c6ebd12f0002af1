//! What must hold of ConfigMaps, Secrets and tokens that pods need. No value is repeated.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tapestry_domain::dependents::{DependentKind, read_copy};
use tapestry_domain::names;
use tapestry_domain::podspec::SpecNeeds;

use super::{Snapshot, annotation, finished, leaving, name, namespace, place, refused, text, uid};
use crate::keys;

impl Snapshot<'_> {
    /// A copy exists for every pod that runs and names its source, says what the source says, and no other copy of ours exists.
    pub(super) fn dependents_follow(&self, found: &mut Vec<String>) {
        let ours = |copy: &Value| annotation(copy, keys::ORIGIN) == self.origin;
        let copies = self.dependents.iter().filter(|(_, copy)| ours(copy));
        let copies: BTreeMap<(DependentKind, &str), &Value> =
            copies.map(|(kind, copy)| ((*kind, name(copy)), *copy)).collect();
        let sources: BTreeMap<(DependentKind, &str, &str), &Value> =
            self.sources.iter().map(|(kind, source)| ((*kind, namespace(source), name(source)), *source)).collect();
        let mut used: BTreeSet<(DependentKind, String)> = BTreeSet::new();
        for vpod in self.vpods.iter().filter(|vpod| !finished(vpod) && !leaving(vpod) && !refused(vpod)) {
            let spec = vpod["spec"].to_string();
            let Ok(needs) = serde_json::from_str::<SpecNeeds<'_>>(&spec) else { continue };
            for reference in needs.references(self.api_access) {
                let kind = reference.kind;
                let copy = names::dependent_name(&self.origin_label(), namespace(vpod), &reference.name);
                let source = sources.get(&(kind, namespace(vpod), &*reference.name));
                match (source, copies.get(&(kind, &*copy))) {
                    (Some(source), Some(copy)) => same_values(reference.kind, source, copy, found),
                    (Some(_), None) => {
                        found.push(format!("{} needs {kind} {}, which has no copy", place(vpod), reference.name));
                    }
                    (None, _) => {}
                }
                used.insert((kind, copy));
            }
            if !needs.tokens(self.api_access).is_empty() {
                let secret = names::token_secret_name(&self.origin_label(), uid(vpod), name(vpod));
                if !copies.contains_key(&(DependentKind::Secret, &*secret)) {
                    found.push(format!("{} needs tokens and has none", place(vpod)));
                }
                used.insert((DependentKind::Secret, secret));
            }
        }
        for ((kind, copy), _) in copies.iter().filter(|(_, copy)| !leaving(copy)) {
            // A pod that is finished or waits may keep what it had; one that is gone may not.
            if !used.contains(&(*kind, (*copy).to_owned())) && !self.may_be_used(*kind, copy) {
                found.push(format!("{kind} {copy} is used by no pod"));
            }
        }
    }

    fn origin_label(&self) -> String {
        let (cluster, binding) = self.origin.split_once('/').unwrap_or((self.origin, ""));
        names::origin_hash(cluster, binding)
    }

    /// Whether a pod that is refused, finished or going names it.
    fn may_be_used(&self, kind: DependentKind, copy: &str) -> bool {
        self.vpods.iter().any(|vpod| {
            let spec = vpod["spec"].to_string();
            let Ok(needs) = serde_json::from_str::<SpecNeeds<'_>>(&spec) else { return true };
            let label = self.origin_label();
            let named = |reference: &tapestry_domain::dependents::Reference| {
                reference.kind == kind && names::dependent_name(&label, namespace(vpod), &reference.name) == copy
            };
            (!finished(vpod) || leaving(vpod)) && needs.references(self.api_access).iter().any(named)
                || names::token_secret_name(&label, uid(vpod), name(vpod)) == copy
        })
    }
}

/// The copy holds this version of the source, as we wrote it; and every key of the source, where its values are known, has its
/// value in the copy.
fn same_values(kind: DependentKind, source: &Value, copy: &Value, found: &mut Vec<String>) {
    let version = text(&source["metadata"]["resourceVersion"]);
    if annotation(copy, keys::VIRTUAL_RESOURCE_VERSION) != version {
        found.push(format!("{kind} {} does not hold version {version} of {}", place(copy), place(source)));
    }
    if !read_copy(kind, &copy.to_string()).is_ok_and(|digest| digest.intact) {
        found.push(format!("{kind} {} was changed by another client", place(copy)));
    }
    for field in ["data", "binaryData"] {
        for (key, value) in source[field].as_object().into_iter().flatten() {
            if copy[field].get(key) != Some(value) {
                found.push(format!("{kind} {} does not have {field}[{key}] of {}", place(copy), place(source)));
            }
        }
    }
}
