//! How the leaf rooms are wired: what each is given of others, and what follows in others from what it says.
//! Decides nothing itself.

use std::sync::Arc;

use tapestry_cluster::feed::Change;
use tapestry_cluster::{Answer, Call, Name, Refusal, Uid};
use tapestry_domain::dependents::DependentKind;
use tapestry_domain::security::Level;
use tapestry_engine::{Dirty, Now, Plan, Reason as _};

use super::{Key, Pair};
use crate::bindings::Bound;
use crate::bindings::deletion::Left;
use crate::csinodes;
use crate::dependents::row::DependentCopy;
use crate::dependents::{self, Id, tokens};
use crate::events::Event;
use crate::guards::plan::Effect;
use crate::guards::row::GuardRow;
use crate::guards::{self, Guard};
use crate::pods::reason::PodReason;
use crate::prerequisites::{self, Prerequisite};
use crate::services;
use crate::services::row::PService;
use crate::volumes::row::{PClaim, PVolume, VClaim, VVolume};
use crate::volumes::{self, Learning};

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
                Some(Left::Nodes | Left::Pods | Left::Volumes | Left::Dependents | Left::Guards | Left::Services) => {
                    false
                }
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
        let server = self.bindings.bound().and_then(|bound| bound.binding.virtual_api_server());
        let setting = guards::Setting { origin: &self.origin, mount: &self.home.mount, server, now };
        self.when_operational(|bound| {
            // They are kept until the last copy has gone, and go with the binding.
            let last = match self.left() {
                Some(Left::Nodes | Left::Pods | Left::Volumes | Left::Dependents | Left::Services) => false,
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
        let setting = guards::Setting { origin: &self.origin, mount: &self.home.mount, server: None, now };
        match self.guards.settle(guard, why, call, done, &setting, dirty) {
            Effect::Nothing => {}
            Effect::QuotaRead => self.grant(now, dirty),
            Effect::Refused => self.admit_all(now, dirty),
        }
    }

    fn dependents_setting(&self, now: Now) -> dependents::Setting<'_> {
        // A copied pod whose virtual pod was never seen may need any of them, and so may one that a watch did not show.
        // A copied volume whose source was never seen may need any Secret.
        let may_collect = self.may_collect() && self.volumes.needs_known();
        dependents::Setting { origin: &self.origin, mount: &self.home.mount, now, may_collect }
    }

    /// Whether it is known of every copied pod what it needs, and both watches have told enough.
    fn may_collect(&self) -> bool {
        self.catch_up.done() && !self.out_of_sync.concerns_dependents() && self.pods.needs_known()
    }

    pub(crate) fn volumes_setting(&self, now: Now) -> volumes::Setting<'_> {
        let level = self.bindings.bound().map(|bound| bound.binding.pod_security);
        volumes::Setting {
            origin: &self.origin,
            mount: &self.home.mount,
            holder: self.origin.holder(),
            privileged: level == Some(Level::Privileged),
            dependents: &self.dependents,
            nodes: &self.nodes,
            now,
            may_collect: self.may_collect(),
        }
    }

    /// Volumes use Secrets as pods do.
    pub(crate) fn follow_volumes(&mut self, dirty: &mut Dirty<Key>) {
        for (volume, needs) in self.volumes.take_touched() {
            self.dependents.follow_volume(&volume, needs.as_ref(), dirty);
        }
    }

    pub(super) fn see_vclaim(&mut self, change: Change<VClaim>, now: Now, dirty: &mut Dirty<Key>) {
        self.volumes.observe_vclaim(change, &self.home.vnode_prefix, now, dirty);
        self.follow_volumes(dirty);
    }

    pub(super) fn see_vvolume(&mut self, change: Change<VVolume>, dirty: &mut Dirty<Key>) {
        let progress = change.is_progress();
        self.volumes.observe_vvolume(change, dirty);
        self.follow_volumes(dirty);
        if !progress {
            self.mark_leaving(dirty);
        }
    }

    pub(super) fn see_pclaim(&mut self, change: Change<PClaim>, dirty: &mut Dirty<Key>) {
        let progress = change.is_progress();
        self.volumes.observe_pclaim(change, &self.origin, dirty);
        self.follow_volumes(dirty);
        if !progress {
            self.mark_leaving(dirty);
        }
    }

    pub(super) fn see_pvolume(&mut self, change: Change<PVolume>, dirty: &mut Dirty<Key>) {
        let progress = change.is_progress();
        self.volumes.observe_pvolume(change, &self.origin, dirty);
        self.follow_volumes(dirty);
        if !progress {
            self.mark_leaving(dirty);
        }
    }

    pub(super) fn plan_claim(&self, id: &Arc<volumes::Id>, now: Now) -> Plan<volumes::plan::Why> {
        self.when_operational(|_| self.volumes.plan_claim(id, &self.volumes_setting(now)))
    }

    pub(super) fn plan_volume(&self, volume: &Name, now: Now) -> Plan<volumes::plan::Why> {
        self.when_operational(|_| self.volumes.plan_volume(volume, &self.volumes_setting(now)))
    }

    pub(super) fn settle_claim(
        &mut self,
        id: &Arc<volumes::Id>,
        why: volumes::plan::Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let vnodes = &self.home.vnode_prefix;
        let learning = Learning { origin: &self.origin, mount: &self.home.mount, vnodes, now };
        self.volumes.settle_claim(id, why, call, done, &learning, dirty);
        self.follow_volumes(dirty);
        self.mark_leaving(dirty);
    }

    pub(super) fn settle_volume(
        &mut self,
        volume: &Name,
        why: volumes::plan::Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let vnodes = &self.home.vnode_prefix;
        let learning = Learning { origin: &self.origin, mount: &self.home.mount, vnodes, now };
        self.volumes.settle_volume(volume, why, call, done, &learning, dirty);
        self.follow_volumes(dirty);
        self.mark_leaving(dirty);
    }

    pub(super) fn see_dependent_copy(
        &mut self,
        kind: DependentKind,
        change: Change<DependentCopy>,
        dirty: &mut Dirty<Key>,
    ) {
        let progress = matches!(change, Change::Reached(_));
        self.dependents.observe_copy(kind, change, &self.origin, dirty);
        if !progress {
            self.mark_leaving(dirty);
        }
    }

    pub(super) fn plan_dependent(&self, id: &Arc<Id>, now: Now) -> Plan<dependents::plan::Why> {
        self.when_operational(|_| self.dependents.plan(id, &self.dependents_setting(now)))
    }

    pub(super) fn plan_stray_dependent(&self, kind: DependentKind, uid: &Uid, now: Now) -> Plan<dependents::plan::Why> {
        self.when_operational(|_| self.dependents.plan_stray(kind, uid, &self.dependents_setting(now)))
    }

    pub(super) fn settle_dependent(
        &mut self,
        id: &Arc<Id>,
        why: dependents::plan::Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let setting = dependents::Setting { origin: &self.origin, mount: &self.home.mount, now, may_collect: false };
        let notice = self.dependents.settle(id, why, call, done, &setting, dirty);
        self.events.add(self.dependents.event(id, &notice, now), dirty);
        self.mark_leaving(dirty);
    }

    pub(super) fn plan_token(&self, vuid: &Uid, now: Now) -> Plan<tokens::Why> {
        self.when_operational(|_| self.dependents.plan_token(vuid, &self.dependents_setting(now)))
    }

    pub(super) fn settle_token(
        &mut self,
        vuid: &Uid,
        why: tokens::Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let setting = dependents::Setting { origin: &self.origin, mount: &self.home.mount, now, may_collect: false };
        let news = self.dependents.settle_token(vuid, why, call, done, &setting, dirty);
        if let (Some(why), Some(vpod)) = (news, self.pods.vpod(vuid.as_str())) {
            let message = format!("the pod's service account tokens are not renewed: {why}");
            self.events.add(Event::about_vpod(vpod, PodReason::TokenNotRenewed.as_str(), &message, now), dirty);
        }
        self.mark_leaving(dirty);
    }

    fn services_setting<'a>(&'a self, record: &'a str, bound: Option<&Bound>, now: Now) -> services::Setting<'a> {
        // Pods that end may still speak to each other.
        let last = !matches!(self.left(), Some(Left::Nodes | Left::Pods));
        let held = self.breaker.trip().is_some() || self.out_of_sync.concerns_services();
        services::Setting {
            origin: &self.origin,
            mount: &self.home.mount,
            now,
            record,
            leaving: bound.is_some_and(Bound::leaving) && last,
            may_remove: self.catch_up.done() && !held,
        }
    }

    /// Services of other namespaces than before are carried.
    pub(crate) fn follow_service_namespaces(&mut self, dirty: &mut Dirty<Key>) {
        if let Some(bound) = self.bindings.bound() {
            self.services.set_namespaces(&bound.binding.service_namespaces, dirty);
        }
    }

    pub(super) fn see_service_copy(&mut self, change: Change<PService>, dirty: &mut Dirty<Key>) {
        let progress = change.is_progress();
        self.services.observe_copy(change, &self.origin, dirty);
        if !progress {
            self.mark_leaving(dirty);
        }
    }

    pub(super) fn plan_service(&self, id: &Arc<services::Id>, now: Now) -> Plan<services::plan::Why> {
        let record = self.home.load_balancer_key();
        self.when_operational(|bound| self.services.plan(id, &self.services_setting(&record, Some(bound), now)))
    }

    pub(super) fn settle_service(
        &mut self,
        id: &Arc<services::Id>,
        why: services::plan::Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let record = self.home.load_balancer_key();
        let setting = services::Setting {
            origin: &self.origin,
            mount: &self.home.mount,
            now,
            record: &record,
            leaving: false,
            may_remove: false,
        };
        let notice = self.services.settle(id, why, call, done, &setting, dirty);
        self.events.add(self.services.event(id, notice.as_ref(), now), dirty);
        self.mark_leaving(dirty);
    }
}
