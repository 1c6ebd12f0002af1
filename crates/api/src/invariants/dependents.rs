//! What must hold of ConfigMaps, Secrets and tokens that pods need. No value is repeated.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tapestry_domain::dependents::{Changes, DependentKind, Reference, Ways, Wish, read_copy};
use tapestry_domain::names;
use tapestry_domain::podspec::{self, SpecNeeds, TokenAsk};

use super::{Snapshot, annotation, finished, held_back, leaving, marked, name, namespace, place, refused, text, uid};
use crate::keys;

impl Snapshot<'_> {
    /// A copy exists for every pod that runs and names its source, says what the source says, and no other copy of ours exists.
    pub(super) fn dependents_follow(&self, found: &mut Vec<String>) {
        let copies = self.dependents.iter().filter(|(_, copy)| self.carries_origin(copy));
        let copies: BTreeMap<(DependentKind, &str), &Value> =
            copies.map(|(kind, copy)| ((*kind, name(copy)), *copy)).collect();
        let sources: BTreeMap<(DependentKind, &str, &str), &Value> =
            self.sources.iter().map(|(kind, source)| ((*kind, namespace(source), name(source)), *source)).collect();
        let mut used: BTreeSet<(DependentKind, String)> = BTreeSet::new();
        for vpod in self.vpods.iter().filter(|vpod| !finished(vpod) && !leaving(vpod) && !refused(vpod)) {
            let spec = vpod["spec"].to_string();
            let Ok(needs) = serde_json::from_str::<SpecNeeds<'_>>(&spec) else { continue };
            let api_access = self.has_api_access(vpod);
            for reference in needs.references(api_access) {
                let kind = reference.kind;
                let copy = names::dependent_name(&self.origin_label(), namespace(vpod), &reference.name);
                let source = sources.get(&(kind, namespace(vpod), &*reference.name));
                match (source, copies.get(&(kind, &*copy))) {
                    (Some(source), Some(copy)) => {
                        points_back(copy, &self.back_to(source), found);
                        same_values(reference.kind, source, copy, found);
                        marked(copy, found);
                    }
                    // An object of another client has the name of the copy: it is left alone.
                    (Some(_), None) if self.taken(kind, &copy) => {}
                    // What only a container names that is not pushed is not copied.
                    (Some(_), None) if held_back(vpod) && !needs.names_from_the_start(kind, &reference.name) => {}
                    (Some(_), None) => {
                        found.push(format!("{} needs {kind} {}, which has no copy", place(vpod), reference.name));
                    }
                    // Without its source a copy stays as it is.
                    (None, _) => {}
                }
                used.insert((kind, copy));
            }
            let tokens = needs.tokens(api_access);
            if !tokens.is_empty() {
                let secret = names::token_secret_name(&self.origin_label(), uid(vpod), name(vpod));
                match copies.get(&(DependentKind::Secret, &*secret)) {
                    Some(there) => {
                        points_back(there, &self.back_to_pod(vpod), found);
                        tokens_there(vpod, there, &tokens, found);
                        marked(there, found);
                    }
                    None if self.taken(DependentKind::Secret, &secret) => {}
                    None => found.push(format!("{} needs tokens and has none", place(vpod))),
                }
                used.insert((DependentKind::Secret, secret));
            }
        }
        // What only imitates our copies, under a name that another client chose, is left alone.
        let given = |copy: &&str| names::ends_with_hash(copy);
        for ((kind, copy), _) in copies.iter().filter(|((_, copy), object)| given(copy) && !leaving(object)) {
            // A pod that is finished or waits may keep what it had; one that is gone may not.
            let of_volume = || *kind == DependentKind::Secret && self.secret_of_volume(copy);
            if !used.contains(&(*kind, (*copy).to_owned())) && !self.may_be_used(*kind, copy) && !of_volume() {
                found.push(format!("{kind} {copy} is used by no pod"));
            }
        }
    }

    /// What pods that run need and do not get any more, because an object of another client has the name of the copy. It is
    /// left alone (law 6), so this is no violation.
    #[must_use]
    pub fn taken_names(&self) -> Vec<String> {
        let mut told = Vec::new();
        let runs = |vpod: &Value| {
            let own = |ppod: &&Value| self.ours(ppod) && annotation(ppod, keys::VIRTUAL_POD_UID) == uid(vpod);
            !finished(vpod) && self.ppods.iter().any(own)
        };
        for vpod in self.vpods.iter().filter(|vpod| runs(vpod)) {
            let spec = vpod["spec"].to_string();
            let Ok(needs) = serde_json::from_str::<SpecNeeds<'_>>(&spec) else { continue };
            let (api_access, label) = (self.has_api_access(vpod), self.origin_label());
            for Reference { kind, name, .. } in needs.references(api_access) {
                let copy = names::dependent_name(&label, namespace(vpod), &name);
                let has_source = self.sources.iter().any(|(other, source)| {
                    (*other, namespace(source), super::name(source)) == (kind, namespace(vpod), &*name)
                });
                if has_source && self.taken(kind, &copy) {
                    told.push(format!(
                        "{} gets no changes of {kind} {name}: {kind} {copy} is not ours, delete it",
                        place(vpod)
                    ));
                }
            }
            let secret = names::token_secret_name(&label, uid(vpod), name(vpod));
            if !needs.tokens(api_access).is_empty() && self.taken(DependentKind::Secret, &secret) {
                told.push(format!("{} gets no new tokens: Secret {secret} is not ours, delete it", place(vpod)));
            }
        }
        told
    }

    /// Whether a copy carries our origin, as annotation or as label: what lost one of them is still ours.
    fn carries_origin(&self, copy: &Value) -> bool {
        let label = text(&copy["metadata"]["labels"][keys::ORIGIN]);
        annotation(copy, keys::ORIGIN) == self.origin || label == self.origin_label()
    }

    /// Whether an object of another client has this name: one that says nothing of us. What points back and lost its origin is
    /// a copy of ours that is not as it must be.
    fn taken(&self, kind: DependentKind, copy: &str) -> bool {
        let points = [keys::VIRTUAL_UID, keys::VIRTUAL_POD_UID];
        let ours = |object: &Value| {
            self.carries_origin(object) || points.iter().any(|key| !annotation(object, key).is_empty())
        };
        self.dependents.iter().any(|(other, object)| *other == kind && name(object) == copy && !ours(object))
    }

    /// What the copy of a source says of it.
    fn back_to<'a>(&'a self, source: &'a Value) -> [(&'static str, &'a str); 4] {
        [
            (keys::ORIGIN, self.origin),
            (keys::VIRTUAL_NAMESPACE, namespace(source)),
            (keys::VIRTUAL_NAME, name(source)),
            (keys::VIRTUAL_UID, uid(source)),
        ]
    }

    /// What the Secret with the tokens of a pod says of it.
    fn back_to_pod<'a>(&'a self, vpod: &'a Value) -> [(&'static str, &'a str); 4] {
        [
            (keys::ORIGIN, self.origin),
            (keys::VIRTUAL_POD_NAMESPACE, namespace(vpod)),
            (keys::VIRTUAL_POD_NAME, name(vpod)),
            (keys::VIRTUAL_POD_UID, uid(vpod)),
        ]
    }

    /// Whether a pod has what the virtual cluster injects to reach its API server: its copy keeps what it was made with.
    fn has_api_access(&self, vpod: &Value) -> bool {
        let own = |ppod: &&&Value| self.ours(ppod) && annotation(ppod, keys::VIRTUAL_POD_UID) == uid(vpod);
        let copy = self.ppods.iter().find(own);
        copy.map_or(self.api_access, |copy| podspec::has_api_access(&copy["spec"].to_string()))
    }

    pub(super) fn origin_label(&self) -> String {
        let (cluster, binding) = self.origin.split_once('/').unwrap_or((self.origin, ""));
        names::origin_hash(cluster, binding)
    }

    /// Whether a pod that is refused, finished or going names it.
    fn may_be_used(&self, kind: DependentKind, copy: &str) -> bool {
        self.vpods.iter().any(|vpod| {
            let spec = vpod["spec"].to_string();
            let Ok(needs) = serde_json::from_str::<SpecNeeds<'_>>(&spec) else { return true };
            let label = self.origin_label();
            let named = |reference: &Reference| {
                reference.kind == kind && names::dependent_name(&label, namespace(vpod), &reference.name) == copy
            };
            let token = names::token_secret_name(&label, uid(vpod), name(vpod)) == copy;
            let api_access = self.has_api_access(vpod);
            (!finished(vpod) || leaving(vpod)) && (token || needs.references(api_access).iter().any(named))
        })
    }
}

/// A copy names what it is a copy of (law 5).
fn points_back(copy: &Value, back: &[(&str, &str)], found: &mut Vec<String>) {
    for (key, expected) in back {
        let said = annotation(copy, key);
        if said != *expected {
            found.push(format!("{} says {key} {said:?} instead of {expected:?}", place(copy)));
        }
    }
}

/// The Secret holds every token that the pod asks for.
fn tokens_there(vpod: &Value, secret: &Value, asks: &[TokenAsk], found: &mut Vec<String>) {
    for ask in asks.iter().filter(|ask| secret["data"][&*ask.key].is_null()) {
        found.push(format!("Secret {} does not have token {} of {}", place(secret), ask.key, place(vpod)));
    }
}

/// The copy holds this version of the source, as we wrote it; and every key of the source, where its values are known, has its
/// value in the copy.
fn same_values(kind: DependentKind, source: &Value, copy: &Value, found: &mut Vec<String>) {
    let version = text(&source["metadata"]["resourceVersion"]);
    if annotation(copy, keys::VIRTUAL_RESOURCE_VERSION) != version {
        found.push(format!("{kind} {} does not hold version {version} of {}", place(copy), place(source)));
    }
    let digest = read_copy(kind, &copy.to_string()).unwrap_or_default();
    let asked = Wish::parse(source["metadata"]["annotations"][keys::SYNC_DIRECTION].as_str()) == Wish::Both;
    if asked != digest.ways.is_some() {
        found.push(format!("{kind} {} does not say in which direction changes flow", place(copy)));
    }
    let shared = asked && digest.ways == Some(Ways::Both) && digest.changes != Changes::Unknown;
    let rising = shared && digest.changes != Changes::None;
    if shared {
        if rising {
            found.push(format!("{kind} {} has changes that {} does not have yet", place(copy), place(source)));
        }
        if digest.conflicts.is_some() {
            found.push(format!("{kind} {} has conflicts that are not reported", place(copy)));
        }
    } else if !digest.intact {
        found.push(format!("{kind} {} was changed by another client", place(copy)));
    }
    if leaving(copy) {
        found.push(format!("{kind} {} is still being deleted", place(copy)));
    }
    for field in ["data", "binaryData"] {
        for (key, value) in source[field].as_object().into_iter().flatten() {
            if !rising && copy[field].get(key) != Some(value) {
                found.push(format!("{kind} {} does not have {field}[{key}] of {}", place(copy), place(source)));
            }
        }
    }
}
