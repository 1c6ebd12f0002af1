//! Later changes: what a user changes in a pod that runs reaches its copy, each part by its own call (DESIGN §11). The copy says
//! what was pushed last; only what the virtual pod changed since then is pushed, so that what the physical cluster rewrote or
//! added stays. Sizes are in `resize`.
//! Must not push what the binding's Pod Security Standard forbids, or what the physical cluster refused before: the pod says so
//! instead.

use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Call, Refusal, Rv, Sub, Uid, Verb};
use tapestry_domain::podspec::{Changes, render_changes};
use tapestry_domain::security::{Level, check_pod};
use tapestry_domain::shape::Text;
use tapestry_engine::{Dirty, Now, Plan, Reason as _};

use super::admission::{LONGEST_TEXT, PendingReason, Verdict};
use super::plan::{patch_status, ppod_target, vpod_target};
use super::row::{PPod, PodCopy, VPod, read_raw};
use super::settle::read_uid;
use super::{NotAdmitted, Pods, Why};
use crate::bindings::Bound;
use crate::dependents::Readiness;
use crate::json::fingerprint;
use crate::pair::{Key, Pair};

/// After this long a push whose end is unknown is tried again. Meanwhile the status of the copy goes up.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// After this long a change that was denied is tried again: soon enough for `refused` to see that a right is still missing.
const ASK_AGAIN: Duration = Duration::from_mins(2);

/// Marks of what a virtual pod says that can change while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) metadata: u64,
    /// `None`: as it was created.
    pub(crate) spec: Option<NonZeroU64>,
}

/// How far a change has come on its way to the copy.
#[derive(Debug)]
pub(super) struct Changing {
    /// Which one: a user may change his mind at any time.
    said: Said,
    /// The Pod Security Standard that it was held to.
    level: Level,
    /// The virtual pod as JSON, while something of it can be pushed.
    vpod: Option<Box<str>>,
    /// The copy as JSON, and its version.
    copy: Option<(Bytes, Rv)>,
    held: Vec<Held>,
}

/// A part that is not pushed.
#[derive(Debug)]
struct Held {
    part: Part,
    /// What its user is told; `None` when it is tried again soon.
    verdict: Option<Verdict>,
    /// When it is tried again; `None`: when the pod or the binding changes.
    again: Option<Duration>,
}

/// What is pushed by one call, and can be refused alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Labels and annotations.
    Metadata,
    /// Images, tolerations, deadline.
    Spec,
    EphemeralContainers,
    /// Only the marks that say what was pushed.
    Marks,
}

impl Part {
    const ALL: [Self; 4] = [Self::Metadata, Self::Spec, Self::EphemeralContainers, Self::Marks];

    fn why(self) -> Why {
        match self {
            Self::Metadata => Why::PushMetadata,
            Self::Spec => Why::PushSpec,
            Self::EphemeralContainers => Why::PushEphemeralContainers,
            Self::Marks => Why::MarkPushed,
        }
    }

    fn sub(self) -> Sub {
        match self {
            Self::Metadata | Self::Spec | Self::Marks => Sub::Main,
            Self::EphemeralContainers => Sub::EphemeralContainers,
        }
    }

    fn of(self, changes: &Changes) -> Option<&Value> {
        match self {
            Self::Metadata => changes.metadata.as_ref(),
            Self::Spec => changes.spec.as_ref(),
            Self::EphemeralContainers => changes.ephemeral.as_ref(),
            Self::Marks => changes.marks.as_ref(),
        }
    }
}

impl Said {
    /// Whether it says something else than what was last pushed to a copy.
    pub(super) fn differs_from(self, copy: &PodCopy) -> bool {
        copy.pushed.is_none_or(|pushed| {
            pushed.metadata != self.metadata || self.spec.is_some_and(|spec| pushed.spec != spec.get())
        })
    }
}

impl Changing {
    fn is_current(&self, vpod: &VPod, level: Level, now: Now) -> bool {
        let due = self.held.iter().filter_map(|held| held.again).any(|again| again <= now.steady);
        self.said == vpod.said && self.level == level && !due
    }

    fn holds(&self, part: Part) -> bool {
        self.held.iter().any(|held| held.part == part)
    }
}

impl Pods {
    /// Whether the copy of a pod has its ephemeral containers, or they may be pushed: the pod as it is now was read and found to meet
    /// the Pod Security Standard.
    pub(super) fn adds(&self, vuid: &Uid) -> bool {
        let Some(vpod) = self.vpods.get(vuid) else { return true };
        let pushed =
            self.copy(vuid).and_then(|ppod| ppod.ours.as_ref()).is_some_and(|copy| !vpod.said.differs_from(copy));
        let changing = || self.cases.get(vuid)?.changing.as_deref();
        pushed || changing().is_some_and(|changing| changing.said == vpod.said && changing.vpod.is_some())
    }
}

impl Pair {
    /// What a change of a pod wants done now; `Rest` when nothing.
    pub(super) fn plan_changes(&self, vpod: &VPod, ppod: &PPod, copy: &PodCopy, now: Now) -> Plan<Why> {
        let ends = vpod.deleting.is_some() || vpod.terminal() || ppod.deleting.is_some() || ppod.terminal;
        let Some(bound) = self.operational().filter(|_| !ends && ppod.unreadable.is_none()) else { return Plan::Rest };
        if !vpod.said.differs_from(copy) {
            return vpod.told.map_or(Plan::Rest, |_| tell(vpod, None, now));
        }
        let current = |changing: &&Changing| changing.is_current(vpod, bound.binding.pod_security, now);
        let changing = self.pods.cases.get(&vpod.uid).and_then(|case| case.changing.as_deref());
        let Some(changing) = changing.filter(current) else {
            let target = vpod_target(&vpod.namespace, &vpod.name).uid(&vpod.uid);
            return Why::ReadChanged.call(target, Verb::Get);
        };
        if let Some(push) = self.plan_push(bound, changing, vpod, ppod, copy) {
            return push;
        }
        match self.unpushed(vpod) {
            Some(verdict) if vpod.told != mark(verdict.reason.as_str(), &verdict.message) => {
                tell(vpod, Some(&verdict), now)
            }
            Some(_) | None => changing.held.iter().filter_map(|held| held.again).min().map_or(Plan::Rest, Plan::Wait),
        }
    }

    /// The first part that can be pushed. Under the version of the copy that was read: lists are replaced as a whole (law 2).
    fn plan_push(
        &self,
        bound: &Bound,
        changing: &Changing,
        vpod: &VPod,
        ppod: &PPod,
        copy: &PodCopy,
    ) -> Option<Plan<Why>> {
        changing.vpod.as_ref()?;
        let target = ppod_target(copy).uid(&ppod.uid);
        let Some((_, rv)) = &changing.copy else { return Some(Why::ReadCopy.call(target, Verb::Get)) };
        let changes = self.changes(bound, changing, vpod, copy)?;
        let part = Part::ALL.into_iter().find(|part| {
            part.of(&changes).is_some()
                && !changing.holds(*part)
                && self.part_readiness(*part, vpod) == Readiness::Ready
        })?;
        let patch = part.of(&changes)?.clone();
        Some(part.why().call(target.rv(*rv), Verb::Strategic(part.sub(), patch)))
    }

    /// What a pod changed since it was last pushed, once both were read.
    fn changes(&self, bound: &Bound, changing: &Changing, vpod: &VPod, copy: &PodCopy) -> Option<Changes> {
        let (raw, (there, _)) = (changing.vpod.as_ref()?, changing.copy.as_ref()?);
        let there = std::str::from_utf8(there).ok()?;
        // Sizes of the same generation take their own way, and their own time.
        let generation = self.pods.wanted_sizes(vpod).is_none().then_some(vpod.generation);
        let rendered = self.with_frame(bound, vpod, &copy.name, &vpod.node, Vec::new(), |frame| {
            render_changes(raw, there, generation, frame)
        });
        match rendered {
            Ok(changes) => Some(changes),
            Err(refused) => {
                tracing::warn!(namespace = %vpod.namespace, name = %vpod.name, %refused, "a change is not pushed");
                None
            }
        }
    }

    /// Whether what a part needs is in the physical cluster: only ephemeral containers name something new.
    fn part_readiness(&self, part: Part, vpod: &VPod) -> Readiness<'_> {
        match part {
            Part::Metadata | Part::Spec | Part::Marks => Readiness::Ready,
            Part::EphemeralContainers => {
                let needs = self.pods.cases.get(&vpod.uid).and_then(|case| case.needs());
                needs.map_or(Readiness::Ready, |needs| self.dependents.readiness_to_add(needs))
            }
        }
    }

    /// Why a change of a pod does not reach its copy.
    pub(super) fn unpushed(&self, vpod: &VPod) -> Option<Verdict> {
        let changing = self.pods.cases.get(&vpod.uid)?.changing.as_deref().filter(|known| known.said == vpod.said)?;
        if let Some(verdict) = changing.held.iter().find_map(|held| held.verdict.clone()) {
            return Some(verdict);
        }
        let copy = self.pods.copy(&vpod.uid)?.ours.as_ref()?;
        let changes = self.changes(self.operational()?, changing, vpod, copy)?;
        Part::ALL
            .into_iter()
            .filter(|part| part.of(&changes).is_some())
            .find_map(|part| Verdict::of(&self.part_readiness(part, vpod)))
    }

    /// Folds in what a virtual pod says that was changed. As in Kubernetes, the whole pod is judged, not only what is new.
    pub(super) fn begin_change(&mut self, vuid: &Uid, answer: &Answer, dirty: &mut Dirty<Key>) {
        let (Ok(Some(row)), Ok(raw)) = (VPod::decode(&answer.object, &self.home), read_raw(&answer.object)) else {
            return;
        };
        let Some(bound) = self.bindings.bound().filter(|_| row.uid == *vuid) else { return };
        let level = bound.binding.pod_security;
        let insecure = match check_pod(level, &raw) {
            Ok(violations) if violations.is_empty() => None,
            Ok(violations) => {
                let told: Vec<_> = violations.iter().map(|violation| violation.message.as_str()).collect();
                Some(told.join(", "))
            }
            Err(_) => Some("the pod cannot be read".to_owned()),
        };
        let held = insecure.map(|why| {
            let verdict = NotAdmitted::Insecure(cut(&why)).verdict();
            let message = format!("a change does not reach the running pod: {}", verdict.message);
            Held { part: Part::Spec, verdict: Some(Verdict { message, ..verdict }), again: None }
        });
        // Without its text no part of it can be pushed.
        let vpod = Some(raw).filter(|_| held.is_none());
        let changing = Changing { said: row.said, level, vpod, copy: None, held: held.into_iter().collect() };
        if let Some(case) = self.pods.cases.get_mut(vuid) {
            case.changing = Some(Box::new(changing));
        }
        self.follow_needs(vuid, dirty);
    }

    /// Folds in the copy as it is now: it was read, or something was pushed.
    pub(super) fn learn_change(&mut self, vuid: &Uid, call: &Call, answer: &Answer) {
        let same = read_uid(answer).is_some_and(|uid| call.target.uid.as_ref() == Some(&uid));
        let changing = self.pods.cases.get_mut(vuid).and_then(|case| case.changing.as_mut());
        if let (Some(changing), Some(rv)) = (changing.filter(|_| same), answer.version()) {
            changing.copy = Some((answer.object.clone(), rv));
        }
    }

    /// Folds in that a part could not be pushed.
    pub(super) fn hold_change(&mut self, vuid: &Uid, part: Part, refusal: &Refusal, now: Now, dirty: &mut Dirty<Key>) {
        let Some(changing) = self.pods.cases.get_mut(vuid).and_then(|case| case.changing.as_mut()) else { return };
        let refused = || {
            let message = format!(
                "a change does not reach the running pod: the physical cluster refused it: {}",
                cut(refusal.message())
            );
            Some(Verdict { reason: PendingReason::PhysicalClusterRefused, message })
        };
        match refusal {
            // Not what we looked at, or not now: it is read again.
            Refusal::Gone
            | Refusal::Replaced
            | Refusal::Exists
            | Refusal::NotLeading
            | Refusal::Later(_)
            | Refusal::Held(..) => changing.copy = None,
            Refusal::Invalid(_) => changing.held.push(Held { part, verdict: refused(), again: None }),
            Refusal::Denied(_) => {
                changing.held.push(Held { part, verdict: refused(), again: Some(now.steady + ASK_AGAIN) });
            }
            // Whatever it is, the pod's status must not wait for it.
            Refusal::Unknown(_) => {
                changing.held.push(Held { part, verdict: None, again: Some(now.steady + TRY_AGAIN) });
            }
        }
        self.forget_texts(vuid);
        dirty.mark(Key::Pod(vuid.clone()));
    }

    /// The JSON of both pods is kept only while a part of it can be pushed.
    fn forget_texts(&mut self, vuid: &Uid) {
        let left = || {
            if self.pods.cases.get(vuid)?.changing.as_deref()?.copy.is_none() {
                // It is about to be read.
                return Some(Part::Marks);
            }
            let (vpod, copy) = (self.pods.vpods.get(vuid)?, self.pods.copy(vuid)?.ours.as_ref()?);
            let changing = self.pods.cases.get(vuid)?.changing.as_deref()?;
            let changes = self.changes(self.bindings.bound()?, changing, vpod, copy)?;
            Part::ALL.into_iter().find(|part| part.of(&changes).is_some() && !changing.holds(*part))
        };
        let nothing = left().is_none();
        let changing = self.pods.cases.get_mut(vuid).and_then(|case| case.changing.as_mut());
        if let Some(changing) = changing.filter(|_| nothing) {
            (changing.vpod, changing.copy) = (None, None);
        }
    }
}

/// As much of a message as an event can show.
fn cut(text: &str) -> String {
    text.chars().take(LONGEST_TEXT).collect()
}

/// Says why a change does not reach the copy; `None` when it did.
fn tell(vpod: &VPod, verdict: Option<&Verdict>, now: Now) -> Plan<Why> {
    let kind = keys::CONDITION_CHANGES_PUSHED;
    let condition = match verdict {
        Some(Verdict { reason, message }) => json!({
            "type": kind, "status": "False", "reason": reason.as_str(), "message": message,
            "lastTransitionTime": format!("{:.0}", now.wall), "observedGeneration": vpod.generation,
        }),
        None => json!({"type": kind, "$patch": "delete"}),
    };
    patch_status(vpod, json!({"status": {"conditions": [condition]}}), Why::TellChange)
}

fn mark(reason: &str, message: &str) -> Option<NonZeroU64> {
    NonZeroU64::new(fingerprint((reason, message)))
}

/// A mark of what a virtual pod's status says of a change that does not reach its copy.
pub(super) fn read_told(status: &str) -> Result<Option<NonZeroU64>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Status<'a> {
        #[serde(borrow, default)]
        conditions: Vec<Condition<'a>>,
    }
    #[derive(Deserialize)]
    struct Condition<'a> {
        #[serde(borrow, rename = "type")]
        kind: Text<'a>,
        #[serde(borrow, default)]
        reason: Option<Text<'a>>,
        #[serde(borrow, default)]
        message: Option<Text<'a>>,
    }
    // Almost no pod has the condition: look at the text before parsing it once more.
    if !status.contains(keys::CONDITION_CHANGES_PUSHED) {
        return Ok(None);
    }
    let status: Status<'_> = serde_json::from_str(status)?;
    let ours = status.conditions.iter().find(|condition| &*condition.kind == keys::CONDITION_CHANGES_PUSHED);
    let text = |text: &Option<Text<'_>>| text.as_deref().unwrap_or_default().to_owned();
    Ok(ours.and_then(|condition| mark(&text(&condition.reason), &text(&condition.message))))
}

#[cfg(test)]
mod tests;
