//! What to do about one Service. Pure but for `settle`, which folds answers in.

use std::sync::Arc;
use std::time::Duration;

use tapestry_cluster::{Answer, Call, Name, Refusal, Shape, Side, Target, Verb, kind};
use tapestry_domain::names;
use tapestry_engine::{Dirty, Plan, Reason as _, reasons};

use super::reason::{Notice, ServiceReason};
use super::row::{Of, PService, VService};
use super::{Case, Id, Services, Setting, Trouble, addresses};
use crate::events::Event;
use crate::pair::Key;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// The mount namespace does not have it.
        CreateService,
        /// The Service changed.
        UpdateService,
        /// Another client changed the copy.
        RevertService,
        /// The name of the copy is taken: by what?
        LookForServiceCopy,
        /// The copy cannot be changed into what the Service is now.
        ReplaceService,
        /// Another leader made a second copy.
        RemoveSecondService,
        /// The watch does not show the Service: is it gone?
        LookForService,
        /// The Service is gone or not carried any more, or the binding goes.
        RemoveService,
        /// Addresses of the load balancer came, changed or went.
        WriteAddresses,
        /// Another client removed them from the status.
        RestoreAddresses,
        /// Tell why it is not carried.
        TellUncarried,
    }
}

/// How long a status that is refused is left alone.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(5);

impl Services {
    /// The plan for one of them.
    pub(crate) fn plan(&self, id: &Arc<Id>, setting: &Setting<'_>) -> Plan<Why> {
        let Some(case) = self.cases.get(id).filter(|_| self.complete()) else { return Plan::Rest };
        let source = self.source(id);
        let listed = source.filter(|_| self.is_listed(id) && !setting.leaving);
        let (copy, surplus) = self.copies(case);
        if let Some(second) = surplus.first().filter(|_| setting.may_remove) {
            return Why::RemoveSecondService.call(copy_target(second, setting).rv(second.rv), DELETE);
        }
        let untold = listed.and_then(|source| self.untold(case, source, copy.is_some(), setting));
        if let Some(event) = untold {
            let (target, verb) = event.write_call();
            return Why::TellUncarried.call(target, verb);
        }
        let wanted = listed.filter(|source| source.mark.is_ok());
        // Addresses go before the copy: no client must be sent to a load balancer that is gone.
        let of = copy.map(|(_, of)| of).filter(|_| wanted.is_some());
        let addresses = source.map_or(Plan::Rest, |source| addresses::plan(case, source, of, setting));
        if matches!(addresses, Plan::Do(..)) {
            return addresses;
        }
        let rest = match (wanted, copy) {
            (_, Some((_, of))) if of.deleting => Plan::Rest,
            (Some(source), None) => self.plan_new(case, source, setting),
            (Some(source), Some((row, of))) => plan_kept(case, source, row, of, setting),
            (None, Some((row, of))) if setting.may_remove => match source {
                None if !case.gone => {
                    let target = id.target();
                    let target = of.uid.as_ref().map_or(target.clone(), |uid| target.uid(uid));
                    Why::LookForService.call(target, Verb::Get)
                }
                // Under the version we looked at: the process that leads by then may carry it again.
                None | Some(_) => Why::RemoveService.call(copy_target(row, setting).rv(row.rv), DELETE),
            },
            (None, Some(_) | None) => Plan::Rest,
        };
        match (rest, addresses) {
            (Plan::Rest, addresses) => addresses,
            (Plan::Wait(at), Plan::Wait(until)) => Plan::Wait(at.min(until)),
            (rest, _) => rest,
        }
    }

    /// Creates the copy, under the name of its Service if that is free: pods there find it by its short name.
    fn plan_new(&self, case: &Case, source: &VService, setting: &Setting<'_>) -> Plan<Why> {
        let Some(name) = self.name_for(&source.id, setting) else { return Plan::Rest };
        let target = Target::namespaced(Side::Physical, &kind::SERVICE, setting.mount.clone(), name);
        if case.taken {
            return Why::LookForServiceCopy.call(target, Verb::Peek);
        }
        Why::CreateService.call(target, carry(source, setting))
    }

    /// `None` while both names are taken.
    fn name_for(&self, id: &Id, setting: &Setting<'_>) -> Option<Name> {
        let free = names::is_service_name(id.name.as_str()) && !self.names.contains_key(&id.name);
        let other = || id.other_name(setting.origin).filter(|other| !self.names.contains_key(other));
        if free { Some(id.name.clone()) } else { other() }
    }

    /// Why a Service has no copy.
    fn hindrance(&self, source: &VService, copied: bool, setting: &Setting<'_>) -> Option<Notice> {
        match source.mark {
            Err(unfit) => Some(ServiceReason::of(unfit).notice(&unfit.to_string())),
            Ok(_) if !copied && self.name_for(&source.id, setting).is_none() => {
                let name = source.id.other_name(setting.origin)?;
                Some(ServiceReason::CopyNameTaken.notice(name.as_str()))
            }
            Ok(_) => None,
        }
    }

    /// The event that tells a user why a Service has no copy, if that was not told. It has the same name whichever process tells it.
    fn untold(&self, case: &Case, source: &VService, copied: bool, setting: &Setting<'_>) -> Option<Event> {
        let Notice(reason, message) = self.hindrance(source, copied, setting)?;
        let told = case.told.as_ref().is_some_and(|(uid, told)| *uid == source.uid && *told == reason);
        let event = || Event::about_service_once(&source.id, &source.uid, reason.as_str(), &message, setting.now);
        if told { None } else { event() }
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
    ) -> Option<Notice> {
        let hindrance = self.source(id).and_then(|source| {
            let copied = self.cases.get(id).is_some_and(|case| !case.copies.is_empty());
            Some((source.uid.clone(), self.hindrance(source, copied, setting)?.0))
        });
        let case = self.cases.get_mut(id)?;
        let mut notice = None;
        match (why, done) {
            (Why::WriteAddresses | Why::RestoreAddresses, done) => {
                notice = self.settle_addresses(id, why == Why::RestoreAddresses, done, setting, dirty);
            }
            // Written or not, it is told once.
            (Why::TellUncarried, _) => case.told = hindrance,
            (Why::CreateService | Why::UpdateService, Ok(answer)) => {
                case.trouble = None;
                self.learn_written(id, &answer, setting, dirty);
            }
            (Why::RevertService, Ok(answer)) => {
                notice = case.reverts.count(setting.now.steady).then(|| ServiceReason::CopyContested.notice(""));
                self.learn_written(id, &answer, setting, dirty);
            }
            // Where another Service has the name, the copy gets another one.
            (Why::LookForServiceCopy, Ok(answer)) => {
                case.taken = false;
                self.learn(id, &answer, setting, dirty);
            }
            (Why::LookForServiceCopy, Err(Refusal::Gone)) => case.taken = false,
            (Why::CreateService, Err(Refusal::Exists)) => case.taken = true,
            (Why::LookForService, Ok(answer)) => {
                if let Ok(Some(row)) = VService::decode(&answer.object, setting.origin, setting.record) {
                    self.put_source(row, None, dirty);
                }
            }
            (Why::LookForService, Err(Refusal::Gone)) => case.gone = true,
            (Why::ReplaceService, Ok(_)) => {
                case.trouble = None;
                notice = case.reverts.count(setting.now.steady).then(|| ServiceReason::CopyContested.notice(""));
                self.forget_copy(call, dirty);
            }
            // Changed since we looked, or gone: if it is still ours, the watch brings it back.
            (Why::RemoveService | Why::RemoveSecondService, Ok(_))
            | (
                Why::RemoveService
                | Why::RemoveSecondService
                | Why::ReplaceService
                | Why::UpdateService
                | Why::RevertService,
                Err(Refusal::Gone),
            ) => self.forget_copy(call, dirty),
            (Why::UpdateService | Why::RevertService, Err(refused)) if refused.is_fixed() => {
                case.trouble = Some(Trouble::Fixed);
            }
            (
                Why::CreateService | Why::UpdateService | Why::RevertService,
                Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_))),
            ) => {
                let reason =
                    if why == Why::CreateService { ServiceReason::CopyRefused } else { ServiceReason::CopyNotUpdated };
                let trouble = Some(Trouble::Refused(refused.message().into()));
                notice = (case.trouble != trouble).then(|| reason.notice(refused.message()));
                case.trouble = trouble;
            }
            // Not what we looked at, or no answer: the watch brings the truth, the next plan is made from it.
            (
                Why::CreateService
                | Why::UpdateService
                | Why::RevertService
                | Why::LookForServiceCopy
                | Why::ReplaceService
                | Why::RemoveSecondService
                | Why::LookForService
                | Why::RemoveService,
                Err(_),
            ) => return None,
        }
        self.mark(id, dirty);
        notice
    }

    /// Takes over the copy as it was written, and remembers what was written.
    fn learn_written(&mut self, id: &Arc<Id>, answer: &Answer, setting: &Setting<'_>, dirty: &mut Dirty<Key>) {
        let ours = self.learn(id, answer, setting, dirty);
        let Some(case) = self.cases.get(id) else { return };
        let said = self.copies(case).0.filter(|_| ours).and_then(|(_, of)| of.mark);
        // Where the cluster stored it without our annotation, the copy does not say.
        let source = self.source(id);
        let wrote = source.and_then(|source| Some((source.uid.clone(), said.or(source.mark.ok())?)));
        if let Some(case) = self.cases.get_mut(id) {
            case.wrote = wrote;
        }
    }

    /// Takes over a Service of the mount namespace as an answer shows it; says whether it is this one's copy.
    fn learn(&mut self, id: &Arc<Id>, answer: &Answer, setting: &Setting<'_>, dirty: &mut Dirty<Key>) -> bool {
        let Ok(Some(row)) = PService::decode(&answer.object, setting.origin) else { return false };
        let uid = row.uid.clone();
        self.put_copy(row, None, setting.origin, dirty);
        self.cases.get(id).is_some_and(|case| case.copies.contains(&uid))
    }

    fn forget_copy(&mut self, call: &Call, dirty: &mut Dirty<Key>) {
        let row = call.target.uid.as_ref().and_then(|uid| self.copies.remove(uid));
        if let Some(row) = row {
            self.lose_copy(&row, dirty);
        }
    }
}

const DELETE: Verb = Verb::Delete { grace: None };

fn plan_kept(case: &Case, source: &VService, row: &PService, of: &Of, setting: &Setting<'_>) -> Plan<Why> {
    let target = copy_target(row, setting);
    let contested = case.reverts.until(setting.now.steady);
    // Kubernetes gives an address at creation, or never.
    if case.trouble == Some(Trouble::Fixed) || of.headless != source.headless {
        let replace = || Why::ReplaceService.call(target.rv(row.rv), DELETE);
        return contested.map_or_else(replace, Plan::Wait);
    }
    let mark = source.mark.ok();
    let current = of.uid.as_ref() == Some(&source.uid) && of.mark == mark;
    // A copy that does not say what we wrote was changed by another client as much as one with another port.
    let wrote = case.wrote.as_ref().is_some_and(|(uid, wrote)| *uid == source.uid && Some(*wrote) == mark);
    if !current && !wrote {
        return Why::UpdateService.call(target, carry(source, setting));
    }
    if current && of.intact {
        return Plan::Rest;
    }
    contested.map_or_else(|| Why::RevertService.call(target, carry(source, setting)), Plan::Wait)
}

fn copy_target(row: &PService, setting: &Setting<'_>) -> Target {
    Target::namespaced(Side::Physical, &kind::SERVICE, setting.mount.clone(), row.name.clone()).uid(&row.uid)
}

/// Reads the Service and writes the copy, inside the gate: fields that no row has are carried too.
fn carry(source: &VService, setting: &Setting<'_>) -> Verb {
    let shape = Shape::Service(setting.origin.marks());
    Verb::Carry { from: Box::new(source.id.target().uid(&source.uid)), shape: Box::new(shape) }
}
