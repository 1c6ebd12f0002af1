//! How the leaf rooms are wired: what each is given of others, and what follows in others from what it says.
//! Decides nothing itself.

use tapestry_cluster::feed::Change;
use tapestry_cluster::{Answer, Call, Name, Refusal};
use tapestry_engine::{Dirty, Now, Plan};

use super::{Key, Pair};
use crate::bindings::Bound;
use crate::bindings::deletion::Left;
use crate::csinodes;
use crate::guards::plan::Effect;
use crate::guards::row::GuardRow;
use crate::guards::{self, Guard};
use crate::prerequisites::{self, Prerequisite};

impl Pair {
    /// The plan of a room that plans only while everything may be planned.
    pub(super) fn when_operational<W>(&self, plan: impl FnOnce(&Bound) -> Plan<W>) -> Plan<W> {
        self.operational().map_or(Plan::Rest, plan)
    }

    pub(super) fn plan_csinode(&self, vnode: &Name, now: Now) -> Plan<csinodes::plan::Why> {
        let setting = csinodes::Setting { nodes: &self.nodes, origin: &self.origin, now };
        self.when_operational(|_| self.csinodes.plan(vnode, &setting))
    }

    pub(super) fn settle_csinode(
        &mut self,
        vnode: &Name,
        why: csinodes::plan::Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let setting = csinodes::Setting { nodes: &self.nodes, origin: &self.origin, now };
        self.csinodes.settle(vnode, why, call, done, &setting, dirty);
    }

    pub(super) fn plan_prerequisite(&self, which: Prerequisite) -> Plan<prerequisites::Why> {
        let setting = prerequisites::Setting { origin: &self.origin, mount: &self.home.mount, pods: &self.pods };
        self.when_operational(|bound| {
            let last = match self.left() {
                Some(Left::Nodes | Left::Pods | Left::Guards) => false,
                Some(Left::Account) | None => true,
            };
            self.prerequisites.plan(which, bound, last, &setting)
        })
    }

    pub(super) fn settle_prerequisite(
        &mut self,
        which: Prerequisite,
        why: prerequisites::Why,
        done: &Result<Answer, Refusal>,
        dirty: &mut Dirty<Key>,
    ) {
        let setting = prerequisites::Setting { origin: &self.origin, mount: &self.home.mount, pods: &self.pods };
        let class = self.bindings.bound().map(|bound| bound.binding.priority_class.as_str());
        self.prerequisites.settle(which, why, done, class, &setting, dirty);
    }

    pub(super) fn see_guard(&mut self, guard: Guard, change: Change<GuardRow>, now: Now, dirty: &mut Dirty<Key>) {
        let progress = change.is_progress();
        if self.guards.observe(guard, change, dirty) {
            self.grant(now, dirty);
        }
        if !progress {
            self.mark_leaving(dirty);
        }
    }

    pub(super) fn plan_guard(&self, guard: Guard, now: Now) -> Plan<guards::plan::Why> {
        let setting = guards::Setting { origin: &self.origin, mount: &self.home.mount, now };
        self.when_operational(|bound| {
            // They are kept until the last copy has gone, and go with the binding.
            let last = match self.left() {
                Some(Left::Nodes | Left::Pods) => false,
                Some(Left::Guards | Left::Account) | None => true,
            };
            let wanted = guard.wanted(&bound.binding) && !(bound.leaving() && last);
            self.guards.plan(guard, wanted, &setting, || self.asks(now.wall))
        })
    }

    pub(super) fn settle_guard(
        &mut self,
        guard: Guard,
        why: guards::plan::Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let setting = guards::Setting { origin: &self.origin, mount: &self.home.mount, now };
        match self.guards.settle(guard, why, call, done, &setting, dirty) {
            Effect::Nothing => {}
            Effect::QuotaRead => self.grant(now, dirty),
            Effect::Refused => self.admit_all(now, dirty),
        }
    }
}
