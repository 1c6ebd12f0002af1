//! The keeper: renews the Leases of our virtual nodes whatever becomes of the syncer beside it, and says on the binding and on the
//! nodes when that cannot work. Knows the virtual cluster alone: its nodes of our origin and the binding. While the syncer works
//! it leaves the binding's phase and readiness to it.
//! Must not depend on the rest: it has its own watches, connections, loop and thread, so that no panic, stall or overload of `Pair`
//! makes running pods look dead.

pub(crate) mod inbox;
mod lapse;
mod missing;
pub mod row;
mod work;

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde_json::json;
use tapestry_api::binding::Phase;
use tapestry_api::{BindingCondition, Status, keys};
use tapestry_cluster::connect::AccessRefused;
use tapestry_cluster::feed::Change;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Sub, Target, Uid, Verb, kind};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Model, Now, Plan, Reason as _, Table, reasons};

use self::lapse::Lapses;
use self::missing::Missing;
use self::row::{KeptBinding, KeptNode, Said};
pub use self::work::{Trouble, Work};
use crate::leases::{self, Leases};
use crate::nodes::row::Taint;
use crate::nodes::want::render_taint;
use crate::origin::{Claim, Origin};
use crate::rights::Ask;

/// What work is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The Lease of a virtual node.
    Lease(Name),
    /// The taint that says whether the syncer works.
    Taint(Name),
    /// Whether a virtual node that left the watch is still there.
    Node(Name),
    /// What the binding says of it.
    Binding,
}

/// A fact.
#[derive(Debug, Clone)]
pub enum Fact {
    /// About a virtual node of our origin.
    Node(Change<KeptNode>),
    /// About a binding of our name.
    Binding(Change<KeptBinding>),
    /// About the way to the virtual cluster.
    Connection(Connection),
    /// About the syncer beside us.
    Work(Work),
    /// About the kubeconfig in the Secret: why it is not the one in use.
    Kubeconfig(Option<Trouble>),
}

reasons! {
    /// What the keeper's calls are for, by key.
    pub enum Why {
        /// [`Key::Lease`].
        Lease(leases::Why),
        /// [`Key::Taint`].
        Taint(TaintWhy),
        /// [`Key::Node`].
        Node(missing::Why),
        /// [`Key::Binding`].
        Binding(ReportWhy),
    }
}

reasons! {
    /// What the taint says.
    pub enum TaintWhy {
        /// The syncer cannot work.
        SyncerStopped,
        /// It works again.
        SyncerWorks,
    }
}

reasons! {
    /// Reports on the binding.
    pub enum ReportWhy {
        /// The syncer cannot work, or its kubeconfig is not the one in use.
        ReportTrouble,
        /// Leases are not renewed, or no process leads.
        ReportLapse,
    }
}

/// One binding's keeper as a value.
pub struct Keeper {
    origin: Origin,
    binding_uid: Box<str>,
    nodes: Table<KeptNode>,
    names: HashMap<Name, Uid, RandomState>,
    missing: Missing,
    leases: Leases,
    lapses: Lapses,
    binding: Option<KeptBinding>,
    /// Another binding has our name: ours is gone.
    replaced: bool,
    /// Who the virtual cluster last said it is, kept while it does not answer.
    identity: Option<Uid>,
    /// It answers and forbids to ask who it is.
    unnamed: bool,
    work: Work,
    kubeconfig: Option<Trouble>,
}

impl Keeper {
    /// A keeper that knows nothing yet but who it is.
    #[must_use]
    pub fn new(origin: Origin, binding_uid: &str) -> Self {
        Self {
            origin,
            binding_uid: binding_uid.into(),
            nodes: Table::default(),
            names: HashMap::default(),
            missing: Missing::default(),
            leases: Leases::default(),
            lapses: Lapses::default(),
            binding: None,
            replaced: false,
            identity: None,
            unnamed: false,
            work: Work::default(),
            kubeconfig: None,
        }
    }

    /// What keeps it from renewing Leases, or any process from leading; `None` when nothing does.
    pub(crate) fn lacks(&self) -> Option<String> {
        let nodes = || (!self.nodes.complete()).then(|| "waiting for the initial list of its nodes".to_owned());
        self.lapses.lacks().or_else(nodes)
    }

    /// Of the binding, as it was last seen.
    pub(crate) fn generation(&self) -> Option<i64> {
        self.binding.as_ref().map(|binding| binding.generation)
    }

    /// Whether our binding was deleted and another one has its name.
    pub(crate) fn replaced(&self) -> bool {
        self.replaced && self.identity.as_ref().map(Uid::as_str) == Some(self.origin.virtual_cluster())
    }

    /// Whether the virtual cluster is the one that our nodes were made in. Known without the binding: whatever becomes of it,
    /// its nodes must not look dead.
    fn in_own_cluster(&self) -> bool {
        let pinned = self.binding.as_ref().and_then(|binding| binding.virtual_cluster.as_deref());
        self.origin.is_own_cluster(self.identity.as_ref(), pinned)
    }

    /// Whether Leases may be renewed and the binding may say why nothing else is done. While a cluster that has never said who it is
    /// forbids to ask, it is ours if it has our binding, with our cluster pinned in its status, and nodes of our origin.
    fn may_keep(&self) -> bool {
        let pinned = self.binding.as_ref().and_then(|binding| binding.virtual_cluster.as_deref());
        let proven = pinned == Some(self.origin.virtual_cluster()) && !self.names.is_empty();
        self.in_own_cluster() || (self.unnamed && self.identity.is_none() && proven)
    }

    fn is_foreign(&self, row: &KeptNode) -> bool {
        matches!(self.origin.claim(&row.marks), Claim::Others(_))
    }

    fn node(&self, name: &Name) -> Option<&KeptNode> {
        self.nodes.get(self.names.get(name)?)
    }

    fn see_node(&mut self, change: Change<KeptNode>, now: Now, dirty: &mut Dirty<Key>) {
        match change {
            // Another binding's, to which a user gave our label: that binding's keeper renews its Lease.
            Change::Put(row, _) if self.nodes.get(&row.uid).is_none() && self.is_foreign(&row) => {}
            Change::Put(row, epoch) => {
                let (name, uid) = (row.name.clone(), row.uid.clone());
                self.missing.end(&name);
                if let Some(other) = self.names.get(&name).filter(|known| **known != uid).cloned() {
                    // Two nodes cannot have one name, so that one is gone.
                    self.lose_node(&other);
                }
                let Put::Fresh(before) = self.nodes.put(row, Some(epoch)) else { return };
                if before.is_none() && self.nodes.complete() {
                    // It was not there when all were listed.
                    self.leases.expect_none(&name);
                }
                self.names.insert(name.clone(), uid);
                dirty.mark(Key::Lease(name.clone()));
                dirty.mark(Key::Taint(name));
            }
            Change::Gone { row, proven: true } => self.lose_node(&row.uid),
            Change::Gone { row, .. } => self.miss_node(&row.uid, now, dirty),
            Change::Unserved | Change::Reached(_) => {}
            Change::Listed(epoch) => {
                for uid in self.nodes.listed(epoch) {
                    self.miss_node(&uid, now, dirty);
                }
                dirty.mark_all();
            }
        }
    }

    fn lose_node(&mut self, uid: &Uid) {
        let Some(row) = self.nodes.remove(uid) else { return };
        if self.names.get(&row.name) == Some(uid) {
            self.names.remove(&row.name);
            self.missing.end(&row.name);
            self.leases.forget(&row.name);
        }
    }

    /// It left the watch, or was not in a list, and that proves nothing (law 1): its label may have been taken away.
    fn miss_node(&mut self, uid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        let Some(name) = self.nodes.get(uid).map(|row| row.name.clone()) else { return };
        self.missing.begin(&name, now);
        dirty.mark(Key::Node(name));
    }

    fn plan_look(&self, vnode: &Name, now: Now) -> Plan<missing::Why> {
        match self.node(vnode).filter(|_| self.in_own_cluster()) {
            Some(row) => self.missing.plan(vnode, &row.uid, now),
            None => Plan::Rest,
        }
    }

    /// Only a 404, or another node under the name, says that it is gone.
    fn settle_look(&mut self, vnode: &Name, done: Result<Answer, Refusal>, now: Now, dirty: &mut Dirty<Key>) {
        let Some(known) = self.node(vnode).map(|row| row.uid.clone()) else { return };
        match done.map(|answer| KeptNode::decode(&answer.object)) {
            Ok(Ok(Some(row))) if row.uid == known => {
                self.nodes.put(row, None);
                self.missing.put_off(vnode, now);
                dirty.mark(Key::Taint(vnode.clone()));
            }
            Ok(Ok(Some(_))) | Err(Refusal::Gone) => self.lose_node(&known),
            // It is there, and that is all that can be said of it.
            Ok(Ok(None) | Err(_)) => self.missing.put_off(vnode, now),
            Err(_) => return,
        }
        dirty.mark(Key::Node(vnode.clone()));
    }

    fn take_binding(&mut self, row: KeptBinding, dirty: &mut Dirty<Key>) {
        // Another binding of the same name is another origin: not ours to serve.
        if row.uid.as_str() != &*self.binding_uid {
            self.replaced = true;
            return;
        }
        if self.binding.as_ref().is_none_or(|known| known.rv <= row.rv) {
            self.binding = Some(row);
            dirty.mark(Key::Binding);
        }
    }

    fn plan_lease(&self, vnode: &Name, now: Now) -> Plan<leases::Why> {
        match self.node(vnode).filter(|_| self.may_keep()) {
            Some(row) => self.leases.plan(vnode, &row.uid, &self.origin, now),
            None => Plan::Rest,
        }
    }

    /// No new pods should come while no syncer would run them. Kubernetes and `Pair` write the same list of taints, so we write
    /// it under its version.
    fn plan_taint(&self, vnode: &Name) -> Plan<TaintWhy> {
        let writes = self.in_own_cluster() && !self.lapses.stands_in();
        let Some(row) = self.node(vnode).filter(|row| writes && !row.deleting) else { return Plan::Rest };
        let there = |taint: &&Taint| taint.key == keys::TAINT_SYNCER_STOPPED;
        let wanted = match self.work {
            Work::Starts => return Plan::Rest,
            Work::Goes => false,
            Work::Stopped(_) => true,
        };
        if row.taints.iter().any(|taint| there(&taint)) == wanted {
            return Plan::Rest;
        }
        let mut taints: Vec<_> = row.taints.iter().filter(|taint| !there(taint)).map(render_taint).collect();
        if wanted {
            taints.push(render_taint(&Taint::plain(keys::TAINT_SYNCER_STOPPED)));
        }
        let target = Target::cluster(Side::Virtual, &kind::NODE, vnode.clone()).uid(&row.uid).rv(row.rv);
        let verb = Verb::Merge(Sub::Main, json!({"spec": {"taints": taints}}));
        let why = if wanted { TaintWhy::SyncerStopped } else { TaintWhy::SyncerWorks };
        why.call(target, verb)
    }

    /// Merges our conditions into those that are there: an apply would take away what it leaves out, and `Pair` applies the rest.
    fn plan_binding(&self, now: Now) -> Plan<ReportWhy> {
        let Some(row) = self.binding.as_ref().filter(|_| self.may_keep()) else { return Plan::Rest };
        let lapse = self.report_lapse(row, now);
        if lapse.is_some() || self.lapses.stands_in() {
            // A process that does not lead need not report whether its syncer works.
            return lapse.unwrap_or(Plan::Rest);
        }
        let mut conditions = row.conditions.clone();
        let mut status = serde_json::Map::new();
        if let Work::Stopped(Trouble { reason, message, generation }) = &self.work {
            let observed = generation.unwrap_or(row.generation);
            // The syncer writes these while it works.
            for kind in [BindingCondition::Connected, BindingCondition::Ready] {
                let said = Said { kind, status: Status::False, reason, message };
                row.set(&mut conditions, &said, Some(observed), now);
            }
            if row.phase != Some(Phase::Failed) {
                status.insert("phase".to_owned(), json!(Phase::Failed));
            }
            if row.observed != Some(observed) {
                status.insert("observedGeneration".to_owned(), json!(observed));
            }
        }
        let kind = BindingCondition::KubeconfigCurrent;
        match &self.kubeconfig {
            Some(Trouble { reason, message, .. }) => {
                row.set(&mut conditions, &Said { kind, status: Status::False, reason, message }, None, now);
            }
            None if row.says(kind) => {
                let message = "the kubeconfig in the Secret is the one in use";
                row.set(&mut conditions, &Said { kind, status: Status::True, reason: "Current", message }, None, now);
            }
            None => {}
        }
        if conditions != row.conditions {
            status.insert("conditions".to_owned(), json!(conditions));
        }
        if status.is_empty() {
            return Plan::Rest;
        }
        let target = Target::cluster(Side::Virtual, &kind::CLUSTER_BINDING, row.name.clone()).uid(&row.uid).rv(row.rv);
        let verb = Verb::Merge(Sub::Status, json!({ "status": status }));
        ReportWhy::ReportTrouble.call(target, verb)
    }
}

impl Model for Keeper {
    type Key = Key;
    type Fact = Fact;
    type Why = Why;

    fn observe(&mut self, fact: Fact, now: Now, dirty: &mut Dirty<Key>) {
        if self.lapses.forget(now) {
            dirty.mark(Key::Binding);
        }
        match fact {
            Fact::Node(change) => self.see_node(change, now, dirty),
            Fact::Binding(Change::Put(row, _)) => self.take_binding(row, dirty),
            // Whether it is gone is for `Pair` to prove; our Leases are renewed all the same.
            Fact::Binding(Change::Gone { .. } | Change::Listed(_) | Change::Unserved | Change::Reached(_)) => {}
            Fact::Connection(connection) => {
                self.unnamed = matches!(connection, Connection::Refused(AccessRefused::Right(_)));
                if let Connection::Up(identity) = connection {
                    self.identity = Some(identity);
                }
                dirty.urge_all();
            }
            Fact::Work(work) => {
                self.work = work;
                dirty.urge_all();
            }
            Fact::Kubeconfig(trouble) => {
                self.kubeconfig = trouble;
                dirty.mark(Key::Binding);
            }
        }
    }

    fn take_lead(&mut self, _now: Now) {
        self.lapses = Lapses::default();
    }

    fn follow(&mut self) {
        self.lapses = Lapses::default();
    }

    fn stand_in(&mut self, why: &str, _now: Now) {
        self.lapses.stand_in(why);
    }

    fn plan(&self, key: &Key, now: Now) -> Plan<Why> {
        let plan = match key {
            Key::Lease(vnode) => self.plan_lease(vnode, now).map(Why::Lease),
            Key::Taint(vnode) => self.plan_taint(vnode).map(Why::Taint),
            Key::Node(vnode) => self.plan_look(vnode, now).map(Why::Node),
            Key::Binding => self.plan_binding(now).map(Why::Binding),
        };
        // INVARIANT: no call goes beyond the declared rights (law 10).
        if let Some(call) = plan.call() {
            debug_assert!(Ask::declares(call, ""), "not in syncer::rights: {call}");
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
        match (why, key) {
            (Why::Lease(_), Key::Lease(vnode)) if self.node(vnode).is_none() => self.leases.forget(vnode),
            (Why::Lease(why), Key::Lease(vnode)) => {
                if self.lapses.learn(call, &done, now) {
                    dirty.mark(Key::Binding);
                }
                if let Err(Refusal::Gone) = done {
                    // It goes with its node.
                    self.missing.hasten(vnode, now, dirty);
                }
                if self.leases.settle(vnode, why, &done, now) {
                    dirty.mark(key.clone());
                }
            }
            (Why::Taint(TaintWhy::SyncerStopped | TaintWhy::SyncerWorks), Key::Taint(vnode)) => {
                match done.map(|answer| KeptNode::decode(&answer.object)) {
                    Ok(Ok(Some(row))) => drop(self.nodes.put(row, None)),
                    // No watch tells how it looks by now.
                    Err(Refusal::Gone | Refusal::Replaced) => self.missing.hasten(vnode, now, dirty),
                    _ => {}
                }
            }
            (Why::Node(missing::Why::LookForNode), Key::Node(vnode)) => self.settle_look(vnode, done, now, dirty),
            (Why::Binding(ReportWhy::ReportTrouble | ReportWhy::ReportLapse), Key::Binding) => {
                if let Ok(Ok(Some(row))) = done.map(|answer| KeptBinding::decode(&answer.object)) {
                    self.lapses.settle(&row);
                    self.take_binding(row, dirty);
                }
            }
            (Why::Lease(_) | Why::Taint(_) | Why::Node(_) | Why::Binding(_), key) => {
                debug_assert!(false, "{why:?} was not planned for {key:?}");
            }
        }
    }

    fn keys(&self) -> Vec<Key> {
        let nodes = self.names.keys().flat_map(|name| [Key::Lease(name.clone()), Key::Taint(name.clone())]);
        nodes.chain(self.missing.keys()).chain([Key::Binding]).collect()
    }

    fn urgent(key: &Key) -> bool {
        matches!(key, Key::Lease(_))
    }
}

#[cfg(test)]
mod tests;
