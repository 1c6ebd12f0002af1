//! Copies in the mount namespace that do not say of what, because a client changed that while no syncer watched. One that a pod uses
//! is found by its name when it is to be created, and restored. One that no pod uses is removed if it is certain that we made
//! it. Must not touch what may be another client's imitation (law 6).

use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Target, Uid, Verb};
use tapestry_domain::dependents::DependentKind;
use tapestry_domain::names;
use tapestry_engine::{Dirty, Plan, Reason as _};

use super::plan::Why;
use super::row::Of;
use super::{Dependents, Look, Setting, Trouble, kind_of};
use crate::origin::Origin;
use crate::pair::Key;

impl Dependents {
    pub(super) fn stray_keys(&self) -> impl Iterator<Item = Key> {
        self.strays.iter().map(|(kind, uid)| Key::StrayDependent(*kind, uid.clone()))
    }

    /// The plan for one of them.
    pub(crate) fn plan_stray(&self, kind: DependentKind, uid: &Uid, setting: &Setting<'_>) -> Plan<Why> {
        let stray = self.copies[kind as usize].get(uid).filter(|copy| copy.of == Of::Unknown && !copy.deleting);
        let Some(stray) = stray.filter(|stray| setting.may_collect && stray.certainly_ours()) else {
            return Plan::Rest;
        };
        if self.needs_name(kind, &stray.name, setting.origin) {
            return Plan::Rest;
        }
        let target = Target::namespaced(Side::Physical, kind_of(kind), setting.mount.clone(), stray.name.clone());
        Why::RemoveDependent.call(target.uid(uid).rv(stray.rv), Verb::Delete { grace: None })
    }

    /// Folds in how its removal ended.
    pub(crate) fn settle_stray(&mut self, kind: DependentKind, call: &Call, done: &Result<Answer, Refusal>) {
        // What was changed meanwhile, or gave no answer, the watch shows as it is.
        if let (Ok(_) | Err(Refusal::Gone), Some(uid)) = (done, &call.target.uid) {
            self.copies[kind as usize].remove(uid);
            self.strays.remove(&(kind, uid.clone()));
        }
    }

    /// Whether a pod uses the copy of this name.
    fn needs_name(&self, kind: DependentKind, name: &Name, origin: &Origin) -> bool {
        let used = self.cases.iter().filter(|(id, case)| id.kind == kind && !case.users.is_empty());
        let mut names = used.filter_map(|(id, _)| id.copy_name(origin));
        names.any(|copy| copy == *name)
            || (kind == DependentKind::Secret && self.tokens.keys().any(|vuid| self.has_token_name(vuid, name, origin)))
    }

    fn has_token_name(&self, vuid: &Uid, name: &Name, origin: &Origin) -> bool {
        let wanted = self.tokens.get(vuid).and_then(|case| case.pod_name());
        wanted.is_some_and(|pod| names::token_secret_name(&origin.label, vuid.as_str(), pod) == name.as_str())
    }

    /// An object that is not ours is gone: what waited for its name is planned at once.
    pub(super) fn free_name(&mut self, kind: DependentKind, name: &Name, origin: &Origin, dirty: &mut Dirty<Key>) {
        let waits = |trouble: &Option<Trouble>| matches!(trouble, Some(Trouble::Foreign(taken)) if taken == name);
        if let Some((id, case)) = self.cases.iter_mut().find(|(id, case)| id.kind == kind && waits(&case.trouble)) {
            (case.look, case.trouble) = (Look::Unknown, None);
            let id = id.clone();
            self.mark(&id, dirty);
        }
        let waits = self.tokens.iter().filter(|(_, case)| matches!(case.look, Look::Foreign(_)));
        let named = waits.map(|(vuid, _)| vuid).find(|vuid| self.has_token_name(vuid, name, origin)).cloned();
        if let Some(vuid) = named.filter(|_| kind == DependentKind::Secret) {
            if let Some(case) = self.tokens.get_mut(&vuid) {
                case.see_name_free();
            }
            dirty.mark(Key::Token(vuid.clone()));
            dirty.mark(Key::Pod(vuid));
        }
    }
}
