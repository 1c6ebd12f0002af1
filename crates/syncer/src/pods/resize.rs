//! In-place resize: the sizes that a virtual pod asks for reach its copy when the node has room for them (DESIGN §11).
//! Admission gives room, in order of arrival; here is what follows: two calls, and what its status says meanwhile.

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Refusal, Sub, Uid, Verb};
use tapestry_domain::podspec::Sizes;
use tapestry_domain::resources::Resources;
use tapestry_engine::{Dirty, Now, Plan, Reason as _};

use super::digest::{Pending, PendingResize};
use super::plan::{LOOK_AGAIN, ppod_target};
use super::row::{PPod, PodCopy, VPod};
use super::{NotAdmitted, Pods, Why};
use crate::pair::{Key, Pair};

/// How far sizes have come on their way to the copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sizing {
    /// Which ones: a user may change his mind at any time.
    mark: Box<str>,
    step: Step,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Admission gave room.
    LetIn,
    /// The physical cluster took them; the mark on the copy is still to be written.
    Pushed,
    /// The physical cluster did not take them now; it is asked again.
    Denied { why: String, at: Duration },
    /// It never will.
    Invalid { why: String },
}

impl Pods {
    /// The sizes that a pod asks for and its copy was not given yet.
    pub(super) fn wanted_sizes<'a>(&self, vpod: &'a VPod) -> Option<&'a Sizes> {
        let sizes = vpod.sizes.as_deref().filter(|_| vpod.deleting.is_none() && !vpod.terminal())?;
        let ppod = self.copy(&vpod.uid).filter(|ppod| ppod.deleting.is_none() && !ppod.terminal)?;
        let copy = ppod.ours.as_ref()?;
        // Others may have been pushed since the mark was written: by us, or by a process that was killed.
        let other = match self.cases.get(&vpod.uid).and_then(|case| case.sizing.as_deref()) {
            Some(Sizing { mark, step: Step::Pushed }) => *mark != sizes.mark || copy.sizes != sizes.mark,
            _ => copy.sizes != sizes.mark || (copy.generation != vpod.generation && vpod.asks_otherwise(ppod)),
        };
        other.then_some(sizes)
    }

    fn sizing(&self, vpod: &VPod) -> Option<&Step> {
        let sizes = self.wanted_sizes(vpod)?;
        let sizing = self.cases.get(&vpod.uid)?.sizing.as_deref()?;
        (sizing.mark == sizes.mark).then_some(&sizing.step)
    }

    /// What a pod holds: what it asks for, but no more than its copy does; a resize takes room when admission gave it some.
    pub(super) fn granted(&self, vpod: &VPod) -> Resources {
        match self.sizing(vpod) {
            Some(Step::LetIn | Step::Pushed) => vpod.request.clone(),
            // A resize that the physical cluster did not take drives no pod away.
            Some(Step::Denied { .. } | Step::Invalid { .. }) | None => self.given(vpod),
        }
    }

    fn given(&self, vpod: &VPod) -> Resources {
        let mut request = vpod.request.clone();
        if let Some(ppod) = self.copy(&vpod.uid) {
            request.map(|name, quantity| quantity.min(ppod.request.get(name)));
        }
        request
    }

    /// The room that a pod inside still needs to be resized; `None` when it waits for none.
    pub(super) fn grows_by(&self, vpod: &VPod) -> Option<Resources> {
        self.wanted_sizes(vpod).filter(|_| self.sizing(vpod).is_none())?;
        self.growth(vpod)
    }

    fn growth(&self, vpod: &VPod) -> Option<Resources> {
        let mut more = vpod.request.clone();
        more.saturating_sub(&self.given(vpod));
        let grows = more.iter().any(|(_, quantity)| quantity.is_positive());
        grows.then_some(more)
    }

    /// Whether admission gave it room to grow, and it has not grown yet.
    pub(super) fn may_grow(&self, vuid: &Uid) -> bool {
        self.vpods.get(vuid).is_some_and(|vpod| self.sizing(vpod) == Some(&Step::LetIn))
    }

    /// The condition of a pod whose resize does not happen, as a kubelet would write it.
    pub(super) fn pending(&self, vpod: &VPod) -> Option<Pending> {
        self.wanted_sizes(vpod)?;
        let (reason, message) = match self.sizing(vpod) {
            Some(Step::LetIn | Step::Pushed) => return None,
            Some(Step::Invalid { why }) => {
                (PendingResize::Infeasible, format!("the physical cluster refused it: {why}"))
            }
            Some(Step::Denied { why, .. }) => {
                (PendingResize::Deferred, format!("the physical cluster refused it: {why}"))
            }
            None => (PendingResize::Deferred, self.cases.get(&vpod.uid)?.not_admitted.as_deref()?.deferral()),
        };
        Some(Pending { reason, message })
    }

    /// Admission gives room to what the pod asks for now.
    pub(super) fn let_grow(&mut self, vuid: &Uid) {
        let mark = self.vpods.get(vuid).and_then(|vpod| vpod.sizes.as_ref()).map(|sizes| sizes.mark.clone());
        if let Some(mark) = mark {
            self.case(vuid).sizing = Some(Box::new(Sizing { mark, step: Step::LetIn }));
        }
    }
}

impl NotAdmitted {
    /// Without figures: they change with every neighbour, and each change would be a write.
    fn deferral(&self) -> String {
        match self {
            Self::Short(short) => {
                format!("not enough {} is lent; the pod is resized when there is room", short.resource)
            }
            Self::Unguarded(_, told) => format!("{told}; the pod is resized when there is room"),
            Self::Stopped(_, told) => format!("{told}; the pod is resized when the node is lent again"),
            Self::NotLending | Self::Misplaced(_) | Self::Port(_) | Self::Nameless | Self::Insecure(_) => {
                "the virtual node lends nothing at the moment; the pod is resized when it does".to_owned()
            }
        }
    }
}

impl Pair {
    /// What a resize wants done now; `Rest` when nothing.
    pub(super) fn plan_resize(&self, vpod: &VPod, ppod: &PPod, copy: &PodCopy, now: Now) -> Plan<Why> {
        let Some(sizes) = self.pods.wanted_sizes(vpod) else { return Plan::Rest };
        let target = ppod_target(copy).uid(&ppod.uid);
        let grows = self.pods.growth(vpod);
        match self.pods.sizing(vpod) {
            Some(Step::Invalid { .. }) => Plan::Rest,
            Some(Step::Denied { at, .. }) if now.steady < *at + LOOK_AGAIN => Plan::Wait(*at + LOOK_AGAIN),
            // Given room, or about to try again: only while there is some (law 9).
            Some(Step::LetIn | Step::Denied { .. })
                if grows.as_ref().is_some_and(|more| !self.has_room(vpod, more, now)) =>
            {
                Plan::Rest
            }
            Some(Step::Pushed) => {
                let annotations = json!({
                    keys::VIRTUAL_POD_SIZES: &*sizes.mark,
                    keys::VIRTUAL_POD_GENERATION: vpod.generation.to_string(),
                });
                let patch = json!({"metadata": {"annotations": annotations}});
                Why::MarkResized.call(target, Verb::Merge(Sub::Main, patch))
            }
            // It waits for admission.
            None if self.pods.grows_by(vpod).is_some() => Plan::Rest,
            Some(Step::LetIn | Step::Denied { .. }) | None => {
                let Ok(mut patch) = serde_json::from_str::<Value>(&sizes.patch) else { return Plan::Rest };
                // The subresource takes no metadata: this is for the code that reads the answer.
                patch["metadata"]["annotations"][keys::VIRTUAL_POD_SIZES] = json!(&*sizes.mark);
                Why::Resize.call(target, Verb::Strategic(Sub::Resize, patch))
            }
        }
    }

    /// Whether this much more is free now. A pod that was admitted is counted already.
    fn has_room(&self, vpod: &VPod, more: &Resources, now: Now) -> bool {
        let Some(Ok(lent)) = self.lent(&vpod.node, now.wall) else { return false };
        let mut held = self.pods.held(&vpod.node).cloned().unwrap_or_default();
        if !matches!(self.pods.sizing(vpod), Some(Step::LetIn)) {
            held.add(more);
        }
        held.fits_within(&lent).is_ok()
    }

    /// Folds in how the resize of a copy ended. By now the pod may ask for something else.
    pub(super) fn settle_resize(
        &mut self,
        vuid: &Uid,
        patch: &Value,
        refused: Option<&Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let Some(mark) = patch["metadata"]["annotations"][keys::VIRTUAL_POD_SIZES].as_str() else { return };
        let why = |refusal: &Refusal| refusal.message().to_owned();
        let step = match refused {
            None => Step::Pushed,
            Some(refusal @ Refusal::Invalid(_)) => Step::Invalid { why: why(refusal) },
            // Not what we looked at: planned again.
            Some(Refusal::Gone | Refusal::Replaced | Refusal::Exists | Refusal::NotLeading | Refusal::Later(_)) => {
                return;
            }
            // Whatever it is, the pod's status must not wait for it.
            Some(refusal) => Step::Denied { why: why(refusal), at: now.steady },
        };
        let sizing = Sizing { mark: mark.into(), step };
        self.change_pod(vuid, now, dirty, |pods| {
            if let Some(case) = pods.cases.get_mut(vuid) {
                case.sizing = Some(Box::new(sizing));
            }
        });
    }
}

#[cfg(test)]
mod tests;
