//! All that is known about one pair of clusters, and the one Model made of its rooms.
//! Only hands facts, plans and answers to the room they belong to.

mod ends;
mod leaves;

use std::sync::Arc;

use tapestry_cluster::feed::Change;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::watch::WatchState;
use tapestry_cluster::watches::Watched;
use tapestry_cluster::{Answer, Call, Name, Refusal, Rv, Side, Uid};
use tapestry_domain::dependents::DependentKind;
use tapestry_engine::{Dirty, Model, Now, Plan, reasons};

use crate::bindings::{self, BindingRow, Bindings};
use crate::breaker::Breaker;
use crate::catch_up::{self, CatchUp};
use crate::connections::{Connections, Transition};
use crate::csinodes::row::{PCsiNode, VCsiNode};
use crate::csinodes::{self, CsiNodes};
use crate::dependents::row::{DependentCopy, Source};
use crate::dependents::{self, Dependents};
use crate::events::{self, Events};
use crate::guards::row::GuardRow;
use crate::guards::{self, Guard, Guards};
use crate::nodes::row::{PNode, VNode};
use crate::nodes::{self, Nodes};
use crate::origin::{Home, Origin};
use crate::out_of_sync::OutOfSync;
use crate::pods::row::{PPod, VPod};
use crate::pods::{self, Entropy, Pods};
use crate::policies::{self, Policies, PolicyRow};
use crate::prerequisites::{self, Prerequisite, Prerequisites};
use crate::refused::Refused;
use crate::rights::Ask;
use crate::services::row::{PService, VService};
use crate::services::{self, Services};
use crate::volumes::row::{PClaim, PClass, PVolume, VClaim, VVolume};
use crate::volumes::{self, Volumes};
use crate::warnings::{Warning, Warnings};

/// What work is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Our binding.
    Binding,
    /// What the physical cluster must have first.
    Prerequisite(Prerequisite),
    /// A backstop in the physical cluster.
    Guard(Guard),
    /// A physical node, by name, and its virtual node.
    Node(Name),
    /// The CSINode of a virtual node.
    CsiNode(Name),
    /// A virtual pod, by UID, and its copy.
    Pod(Uid),
    /// A physical pod of our origin that does not say whose copy it is.
    Stray(Uid),
    /// A ConfigMap or Secret that pods need, and its copy.
    Dependent(Arc<dependents::Id>),
    /// A ConfigMap or Secret of our origin that does not say of what it is a copy.
    StrayDependent(DependentKind, Uid),
    /// A claim that pods need, and its copy.
    Claim(Arc<volumes::Id>),
    /// A volume of the virtual cluster, by name, and its copy.
    Volume(Name),
    /// The tokens of a virtual pod.
    Token(Uid),
    /// Whether a cluster serves policies at all.
    Serving(Side),
    /// Whether the virtual cluster serves bindings.
    BindingServing,
    /// The status of a policy, in the virtual cluster or the owner's.
    Policy(Side, Uid),
    /// An event to be written.
    Event(u64),
    /// Which version the pods of a side have, after the gap of this number.
    CatchUp(Side, u32),
    /// A Service that is carried, and its copy.
    Service(Arc<services::Id>),
}

/// A fact.
#[derive(Debug, Clone)]
pub enum Fact {
    /// About our binding.
    Binding(Change<BindingRow>),
    /// About a policy of the virtual cluster, or the owner's in the physical one.
    Policy(Side, Change<PolicyRow>),
    /// About a physical node.
    PNode(Change<PNode>),
    /// About a virtual node.
    VNode(Change<VNode>),
    /// About a physical CSINode.
    PCsiNode(Change<PCsiNode>),
    /// About a virtual CSINode.
    VCsiNode(Change<VCsiNode>),
    /// About a virtual pod.
    VPod(Change<VPod>),
    /// About a physical pod.
    PPod(Change<PPod>),
    /// About a ConfigMap or Secret of the virtual cluster.
    Source(DependentKind, Change<Source>),
    /// About a copy of one in the physical cluster.
    DependentCopy(DependentKind, Change<DependentCopy>),
    /// About a claim of the virtual cluster.
    VClaim(Change<VClaim>),
    /// About a volume of the virtual cluster.
    VVolume(Change<VVolume>),
    /// About a copy of a claim.
    PClaim(Change<PClaim>),
    /// About a copy of a volume.
    PVolume(Change<PVolume>),
    /// About a StorageClass of the physical cluster.
    Class(Change<PClass>),
    /// About a backstop in the physical cluster.
    Guard(Guard, Change<GuardRow>),
    /// A warning about a physical pod.
    Warning(Change<Warning>),
    /// About the way to a cluster.
    Connection(Side, Connection),
    /// About whether a watch can be relied on.
    Watch(Watched, WatchState),
    /// About a Service of the virtual cluster.
    VService(Change<VService>),
    /// About a Service of the mount namespace.
    PService(Change<PService>),
}

impl Fact {
    /// Whether it only says how far a watch has come.
    fn is_progress(&self) -> bool {
        match self {
            Self::Binding(change) => change.is_progress(),
            Self::Policy(_, change) => change.is_progress(),
            Self::PNode(change) => change.is_progress(),
            Self::VNode(change) => change.is_progress(),
            Self::PCsiNode(change) => change.is_progress(),
            Self::VCsiNode(change) => change.is_progress(),
            Self::VPod(change) => change.is_progress(),
            Self::PPod(change) => change.is_progress(),
            Self::Source(_, change) => change.is_progress(),
            Self::DependentCopy(_, change) => change.is_progress(),
            Self::VClaim(change) => change.is_progress(),
            Self::VVolume(change) => change.is_progress(),
            Self::PClaim(change) => change.is_progress(),
            Self::PVolume(change) => change.is_progress(),
            Self::Class(change) => change.is_progress(),
            Self::Guard(_, change) => change.is_progress(),
            Self::Warning(change) => change.is_progress(),
            Self::VService(change) => change.is_progress(),
            Self::PService(change) => change.is_progress(),
            Self::Connection(..) | Self::Watch(..) => false,
        }
    }
}

reasons! {
    /// What a syncer's calls are for, by room.
    pub enum Why {
        /// [`Key::Binding`].
        Binding(bindings::Why),
        /// [`Key::BindingServing`].
        BindingServing(bindings::deletion::Why),
        /// [`Key::Prerequisite`].
        Prerequisite(prerequisites::Why),
        /// [`Key::Guard`].
        Guard(guards::plan::Why),
        /// [`Key::Node`].
        Node(nodes::Why),
        /// [`Key::CsiNode`].
        CsiNode(csinodes::plan::Why),
        /// [`Key::Pod`].
        Pod(pods::Why),
        /// [`Key::Stray`].
        Stray(pods::strays::Why),
        /// [`Key::Dependent`], [`Key::StrayDependent`].
        Dependent(dependents::plan::Why),
        /// [`Key::Claim`] and [`Key::Volume`].
        Volume(volumes::plan::Why),
        /// [`Key::Token`].
        Token(dependents::tokens::Why),
        /// [`Key::Serving`].
        Serving(policies::serving::Why),
        /// [`Key::Policy`].
        Policy(policies::status::Why),
        /// [`Key::Event`].
        Event(events::Why),
        /// [`Key::CatchUp`].
        CatchUp(catch_up::Why),
        /// [`Key::Service`].
        Service(services::plan::Why),
    }
}

/// After this long without a success, refused calls for a verb and resource are reported on the binding.
pub(crate) const TELL_REFUSED: std::time::Duration = std::time::Duration::from_secs(40);

/// One binding's syncer as a value.
pub struct Pair {
    pub(crate) origin: Origin,
    pub(crate) home: Home,
    pub(crate) bindings: Bindings,
    /// Whether this process plans, and so asks what only answers can tell.
    pub(crate) leads: bool,
    /// The latest time on the wall, to notice when the clock is set back.
    wall: jiff::Timestamp,
    pub(crate) connections: Connections,
    pub(crate) out_of_sync: OutOfSync,
    pub(crate) refused: Refused,
    pub(crate) policies: Policies,
    pub(crate) nodes: Nodes,
    pub(crate) csinodes: CsiNodes,
    pub(crate) prerequisites: Prerequisites,
    pub(crate) guards: Guards,
    pub(crate) pods: Pods,
    pub(crate) dependents: Dependents,
    pub(crate) volumes: Volumes,
    pub(crate) breaker: Breaker,
    pub(crate) catch_up: CatchUp,
    pub(crate) events: Events,
    pub(crate) warnings: Warnings,
    pub(crate) services: Services,
}

impl Pair {
    /// A syncer that knows nothing yet but who it is.
    #[must_use]
    pub fn new(origin: Origin, home: Home, binding_uid: &str, entropy: Entropy) -> Self {
        Self {
            origin,
            home,
            bindings: Bindings::new(binding_uid),
            leads: false,
            wall: jiff::Timestamp::UNIX_EPOCH,
            connections: Connections::default(),
            out_of_sync: OutOfSync::default(),
            refused: Refused::after(TELL_REFUSED),
            policies: Policies::default(),
            nodes: Nodes::default(),
            csinodes: CsiNodes::default(),
            prerequisites: Prerequisites::default(),
            guards: Guards::default(),
            pods: Pods::new(entropy),
            dependents: Dependents::default(),
            volumes: Volumes::default(),
            breaker: Breaker::default(),
            catch_up: CatchUp::default(),
            events: Events::default(),
            warnings: Warnings::default(),
            services: Services::default(),
        }
    }

    /// Evidence is gathered again, in every room that has some. Names all rooms, so that a new one is not forgotten.
    fn doubt_evidence(&mut self) {
        let Self {
            pods,
            breaker,
            csinodes,
            services,
            volumes,
            // What these know stays as it is; `dependents` knows what it wrote, which only another leader makes old.
            origin: _,
            home: _,
            leads: _,
            wall: _,
            bindings: _,
            connections: _,
            out_of_sync: _,
            refused: _,
            policies: _,
            nodes: _,
            prerequisites: _,
            guards: _,
            dependents: _,
            catch_up: _,
            events: _,
            warnings: _,
        } = self;
        pods.doubt_evidence();
        breaker.doubt();
        csinodes.doubt_evidence();
        services.doubt_evidence();
        volumes.doubt_evidence();
    }

    fn see_connection(&mut self, side: Side, connection: Connection, now: Now, dirty: &mut Dirty<Key>) {
        let out_of_sync = self.admission_out_of_sync();
        match self.connections.observe(side, connection) {
            Transition::Back => self.catch_up.begin_gap(),
            Transition::Lost => self.out_of_sync.begin_outage(side),
            Transition::Same => {}
        }
        // What was proven before may have been another cluster's word; what failed before may work now.
        self.doubt_evidence();
        self.weigh_ends(now, dirty);
        if out_of_sync != self.admission_out_of_sync() {
            self.admit_all(now, dirty);
        }
        dirty.urge_all();
    }

    fn see_watch(&mut self, watched: &Watched, state: WatchState, now: Now, dirty: &mut Dirty<Key>) {
        let out_of_sync = self.admission_out_of_sync();
        let kept = self.out_of_sync.concerns_dependents() || self.out_of_sync.concerns_services();
        if !self.out_of_sync.observe(watched.clone(), state) {
            return;
        }
        if kept != (self.out_of_sync.concerns_dependents() || self.out_of_sync.concerns_services()) {
            // Copies that no pod uses may go, and those of Services; or pods that wait for one say why.
            dirty.mark_all();
        }
        if self.out_of_sync.lacks(watched) && Guard::ALL.iter().any(|guard| guard.kind() == watched.kind()) {
            // These are in the mount namespace: perhaps it is gone, and our rights with it.
            self.prerequisites.doubt(now, dirty);
        }
        dirty.mark(Key::Binding);
        if out_of_sync != self.admission_out_of_sync() {
            self.admit_all(now, dirty);
        }
    }

    /// The watches of pods have told everything that happened before the last gap ended: what was held back until now is weighed,
    /// and what a user said to it is heard.
    fn follow_catch_up(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        self.heed_binding(now, dirty);
        dirty.mark_all();
    }

    /// The watch of this side's pods has told everything up to this version.
    pub(crate) fn note_reached(&mut self, side: Side, rv: Rv, now: Now, dirty: &mut Dirty<Key>) {
        if self.catch_up.observe(side, rv) {
            self.follow_catch_up(now, dirty);
        }
    }

    /// Whether this pod may end although its end was not asked for: everything is known, and the breaker has counted it.
    pub(crate) fn may_end(&self, uid: &Uid) -> bool {
        self.catch_up.done() && self.breaker.lets_go(uid)
    }

    /// Whether the end of this pod, which was not asked for, has to wait. What does not run is not weighed.
    pub(crate) fn must_wait(&self, uid: &Uid) -> bool {
        self.pods.runs(uid) && !self.may_end(uid)
    }

    fn be_at(&mut self, now: Now) {
        if now.wall < self.wall {
            self.nodes.clamp(now.wall);
        }
        self.wall = now.wall;
        self.policies.keep_hours(now.wall);
    }

    /// What is lent may be something else now, on every node.
    fn change_policies(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        self.admit_all(now, dirty);
        self.note_drains(now, dirty);
    }

    fn plan_serving(&self, side: Side, now: Now) -> Plan<policies::serving::Why> {
        self.operational().map_or(Plan::Rest, |_| self.policies.plan_serving(side, now))
    }

    fn plan_policy(&self, side: Side, uid: &Uid, now: Now) -> Plan<policies::status::Why> {
        let Some(bound) = self.operational() else { return Plan::Rest };
        let setting = policies::status::Setting {
            binding: &bound.binding,
            leaving: bound.leaving(),
            origin: &self.origin,
            nodes: &self.nodes,
        };
        self.policies.plan_status(side, uid, &setting, now)
    }
}

impl Model for Pair {
    type Key = Key;
    type Fact = Fact;
    type Why = Why;

    fn observe(&mut self, fact: Fact, now: Now, dirty: &mut Dirty<Key>) {
        self.be_at(now);
        self.forget_refused(now, dirty);
        if !fact.is_progress() && guards::quota_wanted(self.bindings.bound()) {
            self.guards.stir_quota(now, dirty);
        }
        self.draw_again(now, dirty);
        let knew = self.lists_complete();
        match fact {
            Fact::Binding(change) => {
                let news = self.bindings.observe(change, now, dirty);
                self.follow_binding(news, now, dirty);
            }
            Fact::Policy(side, change) => {
                if self.policies.observe(side, change, now, dirty) {
                    self.change_policies(now, dirty);
                }
            }
            Fact::PNode(change) => self.see_pnode(change, now, dirty),
            Fact::VNode(change) => {
                self.csinodes.observe_node(&change, dirty);
                self.see_vnode(change, now, dirty);
            }
            Fact::PCsiNode(change) => self.csinodes.observe_physical(change, &self.nodes, dirty),
            Fact::VCsiNode(change) => self.csinodes.observe_virtual(change, &self.nodes, dirty),
            Fact::VPod(change) => self.see_vpod(change, now, dirty),
            Fact::PPod(change) => {
                self.see_ppod(change, now, dirty);
                self.tell_early_warnings(now, dirty);
            }
            Fact::Warning(change) => self.see_warning(change, now, dirty),
            Fact::Source(kind, change) => self.dependents.observe_source(kind, change, dirty),
            Fact::DependentCopy(kind, change) => self.see_dependent_copy(kind, change, dirty),
            Fact::VClaim(change) => self.see_vclaim(change, now, dirty),
            Fact::VVolume(change) => self.see_vvolume(change, dirty),
            Fact::PClaim(change) => self.see_pclaim(change, dirty),
            Fact::PVolume(change) => self.see_pvolume(change, dirty),
            Fact::Class(change) => self.volumes.observe_class(change, dirty),
            Fact::Guard(guard, change) => self.see_guard(guard, change, now, dirty),
            Fact::Watch(watched, state) => self.see_watch(&watched, state, now, dirty),
            Fact::VService(change) => self.services.observe_source(change, dirty),
            Fact::PService(change) => self.see_service_copy(change, dirty),
            Fact::Connection(side, connection) => self.see_connection(side, connection, now, dirty),
        }
        if !knew && self.lists_complete() {
            // Only now is it known who is inside.
            self.note_losses(now, dirty);
            self.admit_all(now, dirty);
            dirty.mark(Key::Binding);
        }
    }

    fn plan(&self, key: &Key, now: Now) -> Plan<Why> {
        let plan = match key {
            Key::Binding => self.plan_binding(now).map(Why::Binding),
            Key::Prerequisite(which) => self.plan_prerequisite(*which).map(Why::Prerequisite),
            Key::Guard(guard) => self.plan_guard(*guard, now).map(Why::Guard),
            Key::Node(name) => self.plan_node(name, now).map(Why::Node),
            Key::CsiNode(vnode) => self.plan_csinode(vnode, now).map(Why::CsiNode),
            Key::Pod(uid) => self.plan_pod(uid, now).map(Why::Pod),
            Key::Stray(uid) => self.plan_stray(uid, now).map(Why::Stray),
            Key::Dependent(id) => self.plan_dependent(id, now).map(Why::Dependent),
            Key::StrayDependent(kind, uid) => self.plan_stray_dependent(*kind, uid, now).map(Why::Dependent),
            Key::Claim(id) => self.plan_claim(id, now).map(Why::Volume),
            Key::Volume(volume) => self.plan_volume(volume, now).map(Why::Volume),
            Key::Token(uid) => self.plan_token(uid, now).map(Why::Token),
            Key::Serving(side) => self.plan_serving(*side, now).map(Why::Serving),
            Key::BindingServing => self.when_operational(|_| self.bindings.plan_serving(now)).map(Why::BindingServing),
            Key::Policy(side, uid) => self.plan_policy(*side, uid, now).map(Why::Policy),
            Key::Event(id) if self.trusted().is_some() => self.events.plan(*id).map(Why::Event),
            Key::CatchUp(side, gap) if self.operational().is_some() => {
                self.catch_up.plan(*side, *gap).map(Why::CatchUp)
            }
            Key::Service(id) => self.plan_service(id, now).map(Why::Service),
            Key::Event(_) | Key::CatchUp(..) => Plan::Rest,
        };
        // INVARIANT: no call goes beyond the declared rights (law 10).
        if let Some(call) = plan.call() {
            debug_assert!(Ask::declares(call, self.home.mount.as_str()), "not in syncer::rights: {call}");
        }
        plan
    }

    fn settle(
        &mut self,
        key: &Key,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        self.be_at(now);
        self.learn_refused(call, &done, now, dirty);
        match (why, key) {
            (Why::Binding(why), Key::Binding) => {
                let news = self.bindings.settle(why, done, now, dirty);
                self.follow_binding(news, now, dirty);
            }
            (Why::BindingServing(why), Key::BindingServing) => {
                let answered = self.bindings.settle_serving(why, call, done);
                self.follow_serving(answered, now, dirty);
            }
            (Why::Prerequisite(why), Key::Prerequisite(which)) => self.settle_prerequisite(*which, why, &done, dirty),
            (Why::Guard(why), Key::Guard(guard)) => self.settle_guard(*guard, why, call, done, now, dirty),
            (Why::Node(why), Key::Node(name)) => self.settle_node(name, why, call, done, now, dirty),
            (Why::CsiNode(why), Key::CsiNode(vnode)) => self.settle_csinode(vnode, why, call, done, now, dirty),
            (Why::Pod(why), Key::Pod(uid)) => {
                self.settle_pod(uid, why, call, done, now, dirty);
                self.tell_early_warnings(now, dirty);
            }
            (Why::Stray(why), Key::Stray(uid)) => self.settle_stray(uid, why, done, now, dirty),
            (Why::Dependent(why), Key::Dependent(id)) => self.settle_dependent(id, why, call, done, now, dirty),
            (Why::Dependent(_), Key::StrayDependent(kind, _)) => {
                self.dependents.settle_stray(*kind, call, &done);
                self.mark_leaving(dirty);
            }
            (Why::Volume(why), Key::Claim(id)) => self.settle_claim(id, why, call, done, now, dirty),
            (Why::Volume(why), Key::Volume(volume)) => self.settle_volume(volume, why, call, done, now, dirty),
            (Why::Token(why), Key::Token(uid)) => self.settle_token(uid, why, call, done, now, dirty),
            (Why::Serving(why), Key::Serving(side)) => {
                if self.policies.settle_serving(*side, why, call, done, now, dirty) {
                    self.change_policies(now, dirty);
                }
            }
            (Why::Policy(why), Key::Policy(side, uid)) => {
                if self.policies.settle_status(*side, uid, why, done, now, dirty) {
                    self.change_policies(now, dirty);
                }
            }
            (Why::Event(why), Key::Event(id)) => self.events.settle(*id, why),
            (Why::CatchUp(why), Key::CatchUp(side, gap)) => {
                if self.catch_up.settle(*side, *gap, why, done) {
                    self.follow_catch_up(now, dirty);
                }
            }
            (Why::Service(why), Key::Service(id)) => self.settle_service(id, why, call, done, now, dirty),
            (
                Why::Binding(_)
                | Why::BindingServing(_)
                | Why::Prerequisite(_)
                | Why::Guard(_)
                | Why::Node(_)
                | Why::CsiNode(_)
                | Why::Pod(_)
                | Why::Stray(_)
                | Why::Dependent(_)
                | Why::Volume(_)
                | Why::Token(_)
                | Why::Serving(_)
                | Why::Policy(_)
                | Why::Event(_)
                | Why::CatchUp(_)
                | Why::Service(_),
                key,
            ) => debug_assert!(false, "{why:?} was not planned for {key:?}"),
        }
    }

    fn follow(&mut self) {
        self.leads = false;
    }

    fn take_lead(&mut self, now: Now) {
        self.leads = true;
        self.be_at(now);
        // What we proved in an earlier term is older than what another leader has done since.
        self.doubt_evidence();
        self.dependents.take_lead();
        self.events.forget();
        self.refused = Refused::after(TELL_REFUSED);
        self.catch_up.begin_gap();
        self.breaker.take_lead();
        // Every key is planned after this.
        self.heed_binding(now, &mut Dirty::default());
    }

    fn gap(&mut self, now: Now) {
        self.be_at(now);
        self.catch_up.begin_gap();
    }

    fn keys(&self) -> Vec<Key> {
        let fixed = [Key::Binding, Key::BindingServing]
            .into_iter()
            .chain(Side::BOTH.map(Key::Serving))
            .chain(Prerequisite::ALL.map(Key::Prerequisite))
            .chain(Guard::ALL.map(Key::Guard));
        let nodes = self.nodes.keys().chain(self.csinodes.keys(&self.nodes));
        let rest =
            self.policies.keys().chain(self.events.keys()).chain(self.catch_up.keys()).chain(self.services.keys());
        let needed = self.dependents.keys().chain(self.volumes.keys());
        fixed.chain(nodes).chain(self.pods.keys()).chain(needed).chain(rest).collect()
    }

    fn side(&self, key: &Key) -> Option<Side> {
        match key {
            Key::Pod(uid) => self.pods.side(uid),
            Key::Prerequisite(_)
            | Key::Guard(_)
            | Key::Stray(_)
            | Key::Dependent(_)
            | Key::StrayDependent(..)
            | Key::Token(_) => Some(Side::Physical),
            Key::Serving(side) | Key::Policy(side, _) | Key::CatchUp(side, _) => Some(*side),
            Key::BindingServing => Some(Side::Virtual),
            Key::Binding
            | Key::Node(_)
            | Key::CsiNode(_)
            | Key::Claim(_)
            | Key::Volume(_)
            | Key::Service(_)
            | Key::Event(_) => None,
        }
    }

    fn begun(&self, key: &Key) -> bool {
        matches!(key, Key::Pod(uid) if self.pods.begun(uid))
    }

    fn urgent(key: &Key) -> bool {
        matches!(key, Key::Node(_) | Key::Binding)
    }
}
