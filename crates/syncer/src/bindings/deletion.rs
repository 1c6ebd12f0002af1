//! Whether the deletion of a binding was meant. Deleting the `CustomResourceDefinition` of bindings deletes each of them, and with
//! each all its pods would end: so discovery is asked before anything ends. While the definition is being deleted nothing ends,
//! until a user says so (`tapestry resume`).

use std::borrow::Cow;

use tapestry_api::condition::DEFINITION_DELETED;
use tapestry_cluster::{Answer, Call, Refusal, Side, kind};
use tapestry_engine::{Dirty, Now, Plan, reasons};

use super::{Bindings, Bound, Deletion};
use crate::events::Event;
use crate::pair::{Key, Pair};
use crate::pods::row::Stray;
use crate::serving::Served;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// Whether the kind of bindings is served.
        LookForBindingKind,
    }
}

/// What discovery's answer means for a deletion that is not confirmed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answered {
    /// The user deleted the binding, and nothing else.
    Meant,
    /// Perhaps not; whether that is news.
    Unclear(Served, bool),
}

/// What of ours is left, in the order in which it goes with a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Virtual nodes.
    Nodes,
    /// Copies.
    Pods,
    /// Copies of volumes and claims, and volumes that are held.
    Volumes,
    /// Copies of ConfigMaps and Secrets.
    Dependents,
    /// Guards in the mount namespace.
    Guards,
    /// The `ServiceAccount` of the copies.
    Account,
    /// Copies of Services, and addresses of theirs in the virtual cluster; before the guards.
    Services,
}

impl Bindings {
    /// Asks discovery whether the definition of bindings is being deleted.
    pub(crate) fn plan_serving(&self, now: Now) -> Plan<Why> {
        if self.bound().is_some_and(Bound::deletion_unconfirmed) {
            self.serving.plan(Side::Virtual, &kind::CLUSTER_BINDING, Why::LookForBindingKind, now)
        } else {
            Plan::Rest
        }
    }

    /// Folds in what discovery said; `None` when it says nothing about a deletion that is not confirmed.
    pub(crate) fn settle_serving(&mut self, why: Why, call: &Call, done: Result<Answer, Refusal>) -> Option<Answered> {
        let before = self.serving.said();
        let served = match why {
            Why::LookForBindingKind => self.serving.settle(call, done)?,
        };
        let bound = self.bound.as_mut().filter(|bound| bound.deletion_unconfirmed())?;
        if served == Served::Fully {
            bound.deletion = Deletion::Confirmed;
            return Some(Answered::Meant);
        }
        Some(Answered::Unclear(served, before != Some(served)))
    }

    /// Whether discovery is still to say whether the deletion was meant.
    pub(crate) fn awaits_discovery(&self) -> bool {
        self.serving.awaited()
    }
}

impl Pair {
    /// Carries out what follows from discovery's answer.
    pub(crate) fn follow_serving(&mut self, answered: Option<Answered>, now: Now, dirty: &mut Dirty<Key>) {
        match (answered, self.bindings.bound()) {
            (Some(Answered::Meant), _) => {
                self.prerequisites.reset();
                self.admit_all(now, dirty);
            }
            (Some(Answered::Unclear(served, true)), Some(Bound { binding, .. })) => {
                tracing::warn!(
                    ?served,
                    "the binding is being deleted, perhaps only with its definition: no pod ends because of it"
                );
                let event = Event::about_binding(binding, DEFINITION_DELETED, &told(served, &binding.name), now);
                self.events.add(event, dirty);
            }
            (Some(Answered::Unclear(..)), _) => {}
            (None, _) => return,
        }
        dirty.mark_all();
    }

    /// The message while a deletion is not confirmed; `None` when there is nothing to report.
    pub(super) fn tell_deletion(&self) -> Option<String> {
        let bound = self.bindings.bound().filter(|bound| bound.deletion_unconfirmed())?;
        let served = self.bindings.serving.said().filter(|served| *served != Served::Fully)?;
        Some(told(served, &bound.binding.name))
    }

    /// What of ours goes next on either side; `None` when nothing of ours is left.
    pub(crate) fn left(&self) -> Option<Left> {
        if !self.nodes.none_left() {
            Some(Left::Nodes)
        } else if !self.pods.none_left() {
            Some(Left::Pods)
        } else if !self.volumes.none_left(&self.origin.holder()) {
            Some(Left::Volumes)
        } else if !self.dependents.none_left() {
            Some(Left::Dependents)
        } else if !self.services.none_left() {
            Some(Left::Services)
        } else if !self.guards.none_left() {
            Some(Left::Guards)
        } else {
            (!self.prerequisites.cleared()).then_some(Left::Account)
        }
    }

    /// What a binding that is being deleted waits for.
    pub(super) fn tell_leaving(&self) -> Option<Cow<'static, str>> {
        self.bindings.bound().filter(|bound| bound.leaving())?;
        let left = self.left();
        if let (Some(Left::Dependents), Some(Stray { namespace, name, .. })) = (left, self.pods.live_stray()) {
            return Some(Cow::Owned(format!(
                "the binding is being deleted: physical pod {namespace}/{name} does not say which virtual pod it belongs to and may use copies of ConfigMaps and Secrets, so they stay until it has gone: delete it if it is not needed"
            )));
        }
        Some(Cow::Borrowed(match left {
            Some(Left::Nodes) => "the binding is being deleted: the syncer deletes its pods, then its virtual nodes",
            Some(Left::Pods) => "the binding is being deleted: physical pods of this binding have not ended yet",
            Some(Left::Volumes) => {
                "the binding is being deleted: copies of PersistentVolumes and claims in the physical cluster go, their data stays"
            }
            Some(Left::Dependents) => {
                "the binding is being deleted: copies of ConfigMaps and Secrets in the physical cluster go"
            }
            Some(Left::Services) => "the binding is being deleted: copies of Services in the physical cluster go",
            Some(Left::Guards) => {
                "the binding is being deleted: its quota or network policy in the physical cluster is still there"
            }
            Some(Left::Account) | None => {
                "the binding is being deleted: everything is given back; the syncer removes its finalizer next"
            }
        }))
    }
}

fn told(served: Served, binding: &str) -> String {
    let why = match served {
        Served::Unclear => {
            "the syncer may not read discovery, so it cannot tell whether only their definition is being deleted"
        }
        Served::Fully | Served::Ending | Served::Not => {
            "the CustomResourceDefinition of ClusterBindings is being deleted, and this binding with it"
        }
    };
    format!(
        "{why}; no pod ends because of it and nothing new is admitted; to let the pods of this binding end, run `tapestry resume {binding}`"
    )
}

#[cfg(test)]
mod tests;
