//! What to do about one ConfigMap or Secret. Pure but for `settle`, which folds answers in.

use std::sync::Arc;

use tapestry_cluster::{Answer, Call, CarryMarks, Name, Refusal, Shape, Side, Target, Verb};
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use super::both_ways::plan_both_ways;
use super::row::{DependentCopy, Of, Source};
use super::{Case, Dependents, Id, Look, Setting, Trouble, kind_of};
use crate::events::Event;
use crate::origin::Origin;
use crate::pair::Key;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// A pod needs it and the mount namespace does not have it.
        CreateDependent,
        /// The source changed.
        UpdateDependent,
        /// Another client changed the copy.
        RevertDependent,
        /// The name of the copy is taken: by what?
        LookForDependent,
        /// The copy cannot be changed into what the source is now.
        ReplaceDependent,
        /// No pod uses it any more.
        RemoveDependent,
        /// Another client changed the copy, and the user of the source asks for it: note what may go up.
        OfferDependent,
        /// Take up what is noted.
        RaiseDependent,
        /// Tell the user of the source about changes that flow both ways.
        TellDependent,
        /// The user was told of conflicts.
        ForgetConflicts,
    }
}

const CONTESTED: &str = "another client keeps changing or deleting the copy in the physical cluster; it is left as it is for ten minutes, and then restored";

/// What users have to be told.
#[must_use]
pub(crate) enum Notice {
    Nothing,
    /// Another client keeps changing or deleting the copy of this source.
    Contested,
    /// This cluster refuses the new values of this source, or to let us read them, in these words; its copy stays as it is.
    NotUpdated(Side, Box<str>),
    /// An object that is not ours has the name of the copy.
    Taken(Name),
}

impl Dependents {
    /// The plan for one of them.
    pub(crate) fn plan(&self, id: &Arc<Id>, setting: &Setting<'_>) -> Plan<Why> {
        let Some(case) = self.cases.get(id).filter(|_| self.complete(id.kind)) else { return Plan::Rest };
        let Some(name) = id.copy_name(setting.origin) else { return Plan::Rest };
        let target = Target::namespaced(Side::Physical, kind_of(id.kind), setting.mount.clone(), name);
        let used = !case.users.is_empty();
        match (self.source(id), self.copy(id)) {
            (_, Some(copy)) if copy.deleting => Plan::Rest,
            (Some(source), Some(copy)) if !used && case.owes(source, copy, setting.now) => {
                plan_kept(case, target, id, source, copy, setting)
            }
            (_, Some(copy)) if !used => {
                // Under the version we looked at: the process that leads by then may need it again.
                let remove =
                    || Why::RemoveDependent.call(target.uid(&copy.uid).rv(copy.rv), Verb::Delete { grace: None });
                if setting.may_collect { remove() } else { Plan::Rest }
            }
            (Some(source), None) if self.may_copy(id, case) => plan_new(case, target, id, source, setting),
            (Some(source), Some(copy)) => plan_kept(case, target, id, source, copy, setting),
            // Running pods keep what they have; a pod that is to start says what is missing.
            (None, _) | (Some(_), None) => Plan::Rest,
        }
    }

    /// Folds in how a call ended; says what users have to be told.
    pub(crate) fn settle(
        &mut self,
        id: &Arc<Id>,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        setting: &Setting<'_>,
        dirty: &mut Dirty<Key>,
    ) -> Notice {
        let Some(case) = self.cases.get_mut(id) else { return Notice::Nothing };
        let mut notice = Notice::Nothing;
        match (why, done) {
            (Why::CreateDependent | Why::UpdateDependent | Why::RevertDependent | Why::OfferDependent, Ok(answer)) => {
                let lost = std::mem::take(&mut case.lost);
                if lost || why == Why::RevertDependent {
                    let _ = case.reverts.count(setting.now.steady);
                }
                // Also a change of the source leaves a copy contested: what others do to it next is left alone.
                let contested = case.reverts.until(setting.now.steady).is_some();
                case.trouble = contested.then_some(Trouble::Contested);
                if contested && (lost || why == Why::RevertDependent) {
                    notice = Notice::Contested;
                }
                self.learn_written(id, &answer, setting.origin, dirty);
            }
            (Why::LookForDependent, Ok(answer)) => {
                if !self.learn(id, &answer, setting.origin, dirty) {
                    let case = self.cases.entry(Arc::clone(id)).or_default();
                    case.look = Look::Foreign(setting.now.steady);
                    let trouble = Some(Trouble::Foreign(call.target.name.clone()));
                    if case.trouble != trouble {
                        notice = Notice::Taken(call.target.name.clone());
                    }
                    case.trouble = trouble;
                }
            }
            // Changed since we looked, or gone: if it is still ours, the watch brings it back.
            (Why::RemoveDependent | Why::ReplaceDependent, Ok(_) | Err(Refusal::Gone | Refusal::Replaced)) => {
                case.trouble = None;
                self.forget_copy(id, call);
            }
            (Why::LookForDependent, Err(Refusal::Gone)) => case.look = Look::Unknown,
            (Why::RaiseDependent, done) => self.settle_raise(id, call, done, setting.now, dirty),
            (Why::TellDependent, Ok(_) | Err(Refusal::Exists | Refusal::Invalid(_) | Refusal::Denied(_))) => {
                self.settle_told(id, call, setting.now);
            }
            (Why::ForgetConflicts, Ok(answer)) => drop(self.learn(id, &answer, setting.origin, dirty)),
            (
                Why::UpdateDependent | Why::RevertDependent | Why::OfferDependent | Why::ForgetConflicts,
                Err(Refusal::Gone),
            ) => {
                case.lost = true;
                self.forget_copy(id, call);
            }
            (Why::CreateDependent, Err(Refusal::Exists)) => case.look = Look::Taken,
            // Immutable, or of another type: Kubernetes allows no change. What a policy of the cluster refuses stays as it is: a
            // copy that is deleted and then refused would be lost to the pods that use it.
            (Why::UpdateDependent | Why::RevertDependent | Why::OfferDependent, Err(refused)) if refused.is_fixed() => {
                case.trouble = Some(Trouble::Fixed);
                if why == Why::RevertDependent && case.reverts.count(setting.now.steady) {
                    notice = Notice::Contested;
                }
            }
            (
                Why::CreateDependent | Why::UpdateDependent | Why::RevertDependent | Why::OfferDependent,
                Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_))),
            ) => {
                let side = refused.bars(call).map_or(Side::Physical, |need| need.side);
                let trouble = Some(Trouble::Refused(side, refused.message().into()));
                if why != Why::CreateDependent && case.trouble != trouble {
                    notice = Notice::NotUpdated(side, refused.message().into());
                }
                case.trouble = trouble;
            }
            (Why::OfferDependent, Err(_)) => {
                self.settle_not_offered(id, setting.now);
                return notice;
            }
            // Not what we looked at, or no answer: the watch brings the truth, the next plan is made from it.
            (
                Why::CreateDependent
                | Why::UpdateDependent
                | Why::RevertDependent
                | Why::LookForDependent
                | Why::ReplaceDependent
                | Why::RemoveDependent
                | Why::TellDependent
                | Why::ForgetConflicts,
                Err(_),
            ) => return notice,
        }
        self.mark(id, dirty);
        self.drop_unused(id);
        notice
    }

    /// What is told on a source about its copy.
    pub(crate) fn event(&self, id: &Id, notice: &Notice, now: Now) -> Option<Event> {
        let source = self.source(id)?;
        let (reason, message) = match notice {
            Notice::Taken(copy) => return self.taken_event(id, source, copy, now),
            Notice::Nothing => return None,
            Notice::Contested => ("CopyContested", CONTESTED.to_owned()),
            Notice::NotUpdated(side, why) => {
                let refused = match side {
                    Side::Virtual => "the virtual cluster does not let the syncer read the new values",
                    Side::Physical => "the physical cluster refused the new values",
                };
                ("CopyNotUpdated", format!("{refused}, running pods keep the old ones: {why}"))
            }
        };
        Event::about_dependent(id, &source.uid, reason, &message, now)
    }

    /// Only where pods run with what they have: one that has not started says it in its condition.
    fn taken_event(&self, id: &Id, source: &Source, copy: &Name, now: Now) -> Option<Event> {
        let users = self.cases.get(id)?.users.iter();
        users.filter_map(|who| self.users.get(who)).find(|user| user.copied)?;
        let message = format!(
            "{} {copy} in the mount namespace was not created by this binding, changes do not reach running pods: delete it",
            id.kind
        );
        Event::about_dependent_once(id, &source.uid, "CopyNotUpdated", &message, copy.as_str(), now)
    }

    /// Takes over the copy as it was written, and remembers of which version of the source.
    fn learn_written(&mut self, id: &Arc<Id>, answer: &Answer, origin: &Origin, dirty: &mut Dirty<Key>) {
        let ours = self.learn(id, answer, origin, dirty);
        let said = self.copy(id).filter(|_| ours).and_then(|copy| match copy.of {
            Of::Source { version, .. } => version,
            Of::Pod { .. } | Of::Unknown => None,
        });
        // Where the cluster stored it without our annotation, the copy does not say.
        let wrote = said.or_else(|| self.source(id).map(|source| source.rv));
        let mutable = self.copy(id).is_some_and(|copy| !copy.immutable());
        if let Some(case) = self.cases.get_mut(id) {
            (case.wrote, case.mutable) = (wrote, mutable);
        }
    }

    /// Takes over the copy as an answer shows it; says whether it is this dependent's.
    fn learn(&mut self, id: &Arc<Id>, answer: &Answer, origin: &Origin, dirty: &mut Dirty<Key>) -> bool {
        let Ok(Some(mut row)) = DependentCopy::decode(&answer.object, id.kind, origin) else { return false };
        let known = self.copies[id.kind as usize].get(&row.uid).is_some_and(|known| known.of != Of::Unknown);
        if row.ours && id.copy_name(origin).as_ref() == Some(&row.name) {
            row.adopt_for(id);
        } else if !known {
            return false;
        }
        self.put_copy(id.kind, row, None, origin, dirty);
        true
    }

    fn forget_copy(&mut self, id: &Arc<Id>, call: &Call) {
        let Some(uid) = &call.target.uid else { return };
        self.copies[id.kind as usize].remove(uid);
        if let Some(case) = self.cases.get_mut(id).filter(|case| case.copy.as_ref() == Some(uid)) {
            case.copy = None;
        }
    }
}

fn plan_new(case: &Case, target: Target, id: &Id, source: &Source, setting: &Setting<'_>) -> Plan<Why> {
    if let Some(until) = case.reverts.until(setting.now.steady).filter(|_| case.lost) {
        return Plan::Wait(until);
    }
    let create = |target| Why::CreateDependent.call(target, carry(id, source, setting.origin));
    case.look.plan(target, setting.now.steady, Why::LookForDependent, create)
}

fn plan_kept(
    case: &Case,
    target: Target,
    id: &Id,
    source: &Source,
    copy: &DependentCopy,
    setting: &Setting<'_>,
) -> Plan<Why> {
    let target = target.uid(&copy.uid);
    if case.trouble == Some(Trouble::Fixed) {
        return Why::ReplaceDependent.call(target.rv(copy.rv), Verb::Delete { grace: None });
    }
    // A copy that does not say the version that we wrote was changed by another client as much as one with another value.
    if !case.holds(copy, source) && !case.wrote_for(source) {
        return Why::UpdateDependent.call(target, carry(id, source, setting.origin));
    }
    if case.kept_as_written(copy, source) && copy.marked && copy.says_ways(source) {
        return plan_both_ways(case, target, id, source, copy, setting);
    }
    plan_revert(case, target, id, source, setting)
}

/// Another client changed a copy.
pub(super) fn plan_revert(case: &Case, target: Target, id: &Id, source: &Source, setting: &Setting<'_>) -> Plan<Why> {
    match case.reverts.until(setting.now.steady) {
        Some(until) => Plan::Wait(until),
        None => Why::RevertDependent.call(target, carry(id, source, setting.origin)),
    }
}

/// Reads the source and writes the copy, inside the gate: no value comes here.
pub(super) fn carry(id: &Id, source: &Source, origin: &Origin) -> Verb {
    let from = Target::namespaced(Side::Virtual, kind_of(id.kind), id.namespace.clone(), id.name.clone());
    let shape = Shape::Dependent(id.kind, origin.marks());
    Verb::Carry { from: Box::new(from.uid(&source.uid)), shape: Box::new(shape) }
}

impl Origin {
    /// What every copy carries, as the gate writes it.
    pub(crate) fn marks(&self) -> CarryMarks {
        CarryMarks { labels: self.labels().into(), annotations: self.annotations(), salt: self.full.as_ref().into() }
    }
}
