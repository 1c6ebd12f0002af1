//! Whether the deletion of a binding was meant. Deleting the `CustomResourceDefinition` of bindings deletes each of them, and with
//! each all its pods would end: so discovery is asked before anything ends. While the definition is being deleted nothing ends,
//! until a user says so (`tapestry resume`).

use tapestry_cluster::{Answer, Call, Refusal, Side, kind};
use tapestry_engine::{Dirty, Now, Plan, reasons};

use super::Bound;
use crate::events::Event;
use crate::pair::{Key, Pair};
use crate::serving::Served;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// Whether the kind of bindings is served.
        LookForBindingKind,
    }
}

/// Reason of condition `Ready` and of the event.
pub(super) const DEFINITION_DELETED: &str = "DefinitionDeleted";

impl Pair {
    /// Asks discovery whether the definition of bindings is being deleted.
    pub(crate) fn plan_binding_serving(&self, now: Now) -> Plan<Why> {
        let asks = self.working().is_some_and(Bound::deletion_unconfirmed);
        if asks {
            self.binding_serving.plan(Side::Virtual, &kind::CLUSTER_BINDING, Why::LookForBindingKind, now)
        } else {
            Plan::Rest
        }
    }

    pub(crate) fn settle_binding_serving(
        &mut self,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let before = self.binding_serving.said();
        let Some(served) = self.binding_serving.settle(call, done) else { return };
        let Some(bound) = self.bound.as_mut().filter(|bound| bound.deletion_unconfirmed()) else { return };
        if served == Served::Fully {
            bound.deletion_confirmed = true;
            self.prerequisites.reset();
            self.admit_all(now, dirty);
            return dirty.mark_all();
        }
        if before != Some(served) {
            tracing::warn!(
                ?served,
                "the binding is being deleted, perhaps only with its definition: no pod ends because of it"
            );
            let event =
                Event::about_binding(&bound.binding, DEFINITION_DELETED, &told(served, &bound.binding.name), now);
            self.events.add(event, dirty);
        }
        dirty.mark_all();
    }

    /// What people are told while a deletion is not confirmed; `None` when there is nothing to tell.
    pub(super) fn tell_deletion(&self) -> Option<String> {
        let bound = self.bound.as_ref().filter(|bound| bound.deletion_unconfirmed())?;
        let served = self.binding_serving.said().filter(|served| *served != Served::Fully)?;
        Some(told(served, &bound.binding.name))
    }

    /// What a binding that is being deleted waits for.
    pub(super) fn tell_leaving(&self) -> Option<&'static str> {
        self.bound.as_ref().filter(|bound| bound.leaving())?;
        Some(if !self.nodes.none_left() {
            "the binding is being deleted: its pods end, then its virtual nodes go"
        } else if !self.pods.none_left() {
            "the binding is being deleted: physical pods of this binding have not ended yet"
        } else if !self.guards.none_left() {
            "the binding is being deleted: its quota or network policy in the physical cluster is still there"
        } else {
            "the binding is being deleted: everything is given back, its finalizer goes next"
        })
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
