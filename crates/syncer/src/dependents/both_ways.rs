//! Changes of a copy that flow up to its source, where the user of the source asks for it: when they are offered, taken up and
//! reported. Which keys go which way is decided in the gate, by `domain::dependents`: no value comes here.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tapestry_api::keys;
use tapestry_cluster::{Answer, Call, Name, Refusal, Rv, Shape, Side, Sub, Target, Verb};
use tapestry_domain::dependents::{Bar, Changes, Conflicts, Ways, Wish};
use tapestry_engine::{Dirty, Now, Plan, Reason as _};

use super::plan::{Why, carry, plan_revert};
use super::row::{DependentCopy, Of, Shared, Source};
use super::{Case, Dependents, Id, Setting, kind_of};
use crate::events::Event;
use crate::pair::Key;

/// Changes of one copy go up at most this often, however often another client changes it.
const PACE: Duration = Duration::from_secs(1);
/// After a refusal: the right may be granted at any time.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// So many keys are named in an event.
const NAMED: usize = 20;

/// What is known of the changes of one copy that flow up.
#[derive(Default)]
pub(super) struct Up {
    /// When the last call ended that took changes up, or that failed to offer them.
    tried: Option<Duration>,
    /// The virtual cluster refuses them.
    refused: Option<Refused>,
    /// The versions of source and copy of which nothing went up.
    idle: Option<(Rv, Rv)>,
    /// Names of the events that were written.
    told: Vec<Name>,
}

struct Refused {
    words: Box<str>,
    /// Whether we lack the right.
    right: bool,
    /// When it is asked again.
    until: Duration,
}

/// What a user is told about a source.
struct Complaint {
    reason: &'static str,
    message: String,
    /// Tells two of the same words apart.
    at: String,
}

impl Complaint {
    fn of(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), at: String::new() }
    }

    fn of_bar(bar: Bar) -> Self {
        let why = match bar {
            Bar::Immutable => "it is immutable",
            Bar::Token => "it holds a token of this cluster",
            Bar::TooManyKeys => "it has too many keys",
        };
        Self::of(
            "SyncOneWay",
            format!("{why}: changes of its copy in the physical cluster do not flow up, they are undone"),
        )
    }

    fn of_conflicts(conflicts: &Conflicts) -> Self {
        let named: Vec<&str> = conflicts.keys.iter().take(NAMED).map(String::as_str).collect();
        let more = if conflicts.keys.len() > NAMED { " and others" } else { "" };
        let message = format!(
            "changed in both clusters: {}{more}; the values of this cluster are kept, those of the physical cluster are overwritten",
            named.join(", ")
        );
        Self { reason: "SyncConflict", message, at: conflicts.at.clone() }
    }

    fn of_refusal(refused: &Refused) -> Self {
        let cure = if refused.right { "; apply deploy/rbac/virtual-both-ways.yaml" } else { "" };
        let message =
            format!("changes of its copy in the physical cluster cannot be written here: {}{cure}", refused.words);
        Self::of("SyncRefused", message)
    }
}

impl DependentCopy {
    fn shared(&self) -> Option<&Shared> {
        match &self.of {
            Of::Source { shared, .. } => Some(shared),
            Of::Pod { .. } | Of::Unknown => None,
        }
    }

    /// Whether changes of both flow to the other. The source asks for it, and the gate found that it can be.
    pub(super) fn shares(&self, source: &Source) -> bool {
        source.wish == Wish::Both
            && self.shared().is_some_and(|shared| shared.ways == Some(Ways::Both) && shared.changes != Changes::Unknown)
    }

    /// Whether it says in which direction changes flow, where its source asks for both.
    pub(super) fn says_ways(&self, source: &Source) -> bool {
        self.shared().is_some_and(|shared| shared.ways.is_some() == (source.wish == Wish::Both))
    }

    /// Whether it has changes that are to go up.
    fn changed(&self, source: &Source) -> bool {
        let changed = |shared: &Shared| matches!(shared.changes, Changes::New | Changes::Offered);
        self.shares(source) && self.shared().is_some_and(changed) && !source.deleting
    }
}

impl Case {
    fn complaints(&self, source: &Source, copy: &DependentCopy) -> Vec<Complaint> {
        let mut all = Vec::new();
        if source.wish == Wish::Unknown {
            let key = keys::SYNC_DIRECTION;
            let message = format!(
                "the value of annotation {key} is not known: set it to {} or remove it; changes flow to the physical cluster only",
                keys::SYNC_BOTH
            );
            all.push(Complaint::of("SyncDirectionUnknown", message));
        }
        let shared = copy.shared();
        if let (Wish::Both, Some(Ways::Down(bar))) = (source.wish, shared.and_then(|shared| shared.ways)) {
            all.push(Complaint::of_bar(bar));
        }
        all.extend(shared.and_then(|shared| shared.conflicts.as_deref()).map(Complaint::of_conflicts));
        let refused = self.up.as_ref().and_then(|up| up.refused.as_ref()).filter(|_| copy.changed(source));
        all.extend(refused.map(Complaint::of_refusal));
        all
    }

    /// The events that are not written yet, each under a name of its own: another process that tells the same finds it taken.
    fn events(&self, id: &Id, source: &Source, copy: &DependentCopy, now: Now) -> Vec<Event> {
        let event = |complaint: Complaint| {
            let Complaint { reason, message, at } = complaint;
            let unique = (copy.name.as_str(), at);
            Event::about_dependent_once(id, &source.uid, reason, &message, unique, now)
        };
        self.complaints(source, copy).into_iter().filter_map(event).collect()
    }

    fn told(&self, event: &Event) -> bool {
        self.up.as_ref().is_some_and(|up| up.told.contains(event.name()))
    }

    /// Whether changes of a copy that no pod uses any more should go up before it is removed.
    pub(super) fn owes(&self, source: &Source, copy: &DependentCopy, now: Now) -> bool {
        let barred = self.up.as_ref().is_some_and(|up| up.refused.is_some() || up.is_idle(source, copy));
        copy.changed(source) && !barred && self.trouble.is_none() && self.reverts.until(now.steady).is_none()
    }
}

impl Up {
    fn is_idle(&self, source: &Source, copy: &DependentCopy) -> bool {
        self.idle == Some((source.rv, copy.rv))
    }

    fn waits_until(&self) -> Option<Duration> {
        let refused = self.refused.as_ref().map(|refused| refused.until);
        self.tried.map(|tried| tried + PACE).max(refused)
    }
}

/// The plan for a copy that is as it should be but for changes of other clients.
pub(super) fn plan_both_ways(
    case: &Case,
    target: Target,
    id: &Id,
    source: &Source,
    copy: &DependentCopy,
    setting: &Setting<'_>,
) -> Plan<Why> {
    let events = case.events(id, source, copy, setting.now);
    if let Some(event) = events.into_iter().find(|event| !case.told(event)) {
        let (target, verb) = event.write_call();
        return Why::TellDependent.call(target, verb);
    }
    if copy.shared().is_some_and(|shared| shared.conflicts.is_some()) {
        let forget = json!({"metadata": {"annotations": {keys::CONFLICTS: null}}});
        return Why::ForgetConflicts.call(target.rv(copy.rv), Verb::Merge(Sub::Main, forget));
    }
    if !copy.changed(source) {
        return Plan::Rest;
    }
    let up = case.up.as_deref();
    if let Some(until) = up.and_then(Up::waits_until).filter(|until| *until > setting.now.steady) {
        return Plan::Wait(until);
    }
    if copy.shared().is_none_or(|shared| shared.changes != Changes::Offered) {
        return Why::OfferDependent.call(target, carry(id, source, setting.origin));
    }
    if up.is_some_and(|up| up.is_idle(source, copy)) {
        // What it says of the values that both had is not true: it is written again.
        return plan_revert(case, target, id, source, setting);
    }
    let to = Target::namespaced(Side::Virtual, kind_of(id.kind), id.namespace.clone(), id.name.clone());
    let shape = Shape::Raise { kind: id.kind, salt: setting.origin.full.as_ref().into() };
    let from = Box::new(target.rv(copy.rv));
    Why::RaiseDependent.call(to.uid(&source.uid), Verb::Carry { from, shape: Box::new(shape) })
}

impl Dependents {
    /// Folds in how it ended to take changes up.
    pub(super) fn settle_raise(
        &mut self,
        id: &Arc<Id>,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let known = self.source(id).map(|source| source.rv);
        let Some(case) = self.cases.get_mut(id) else { return };
        let up = case.up.get_or_insert_default();
        up.tried = Some(now.steady);
        match done {
            Ok(answer) => {
                up.refused = None;
                let Ok(Some(row)) = Source::decode(&answer.object, id.kind) else { return };
                if let (Verb::Carry { from, .. }, true) = (&call.verb, known == Some(row.rv)) {
                    up.idle = from.rv.map(|copy| (row.rv, copy));
                }
                self.put_source(id.kind, row, None, dirty);
            }
            Err(refusal @ (Refusal::Denied(_) | Refusal::Invalid(_))) => {
                let right = matches!(refusal, Refusal::Denied(_));
                up.refused = Some(Refused { words: refusal.message().into(), right, until: now.steady + ASK_AGAIN });
                // The next change of the source goes down all the same.
                dirty.urge(Key::Dependent(Arc::clone(id)));
            }
            // Not what we looked at, or no answer: the watches bring the truth.
            Err(_) => {}
        }
    }

    /// An event was written, or cannot be.
    pub(super) fn settle_told(&mut self, id: &Arc<Id>, call: &Call, now: Now) {
        let (Some(source), Some(copy)) = (self.source(id).cloned(), self.copy(id).cloned()) else { return };
        let Some(case) = self.cases.get_mut(id) else { return };
        let current = case.events(id, &source, &copy, now);
        let told = &mut case.up.get_or_insert_default().told;
        told.retain(|name| current.iter().any(|event| event.name() == name));
        told.push(call.target.name.clone());
    }

    /// The changes of a copy could not be offered.
    pub(super) fn settle_not_offered(&mut self, id: &Id, now: Now) {
        if let Some(case) = self.cases.get_mut(id) {
            case.up.get_or_insert_default().tried = Some(now.steady);
        }
    }
}
