//! The keeper: renews the Leases of our virtual nodes whatever becomes of the syncer beside it, and says on the binding and on the
//! nodes when that cannot work. Knows the virtual cluster alone: its nodes of our origin and the binding.
//! Must not depend on the rest: it has its own watches, connections, loop and thread, so that no panic, stall or overload of `Pair`
//! makes running pods look dead.

pub(crate) mod inbox;
pub mod row;

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde_json::json;
use tapestry_api::keys;
use tapestry_cluster::feed::Change;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Sub, Target, Uid, Verb, kind};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Model, Now, Plan, Table};

use self::row::{KeptBinding, KeptNode};
use crate::leases::Leases;
use crate::nodes::row::Taint;
use crate::nodes::want::render_taint;
use crate::origin::Origin;
use crate::rights::Ask;

/// What work is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The Lease of a virtual node.
    Lease(Name),
    /// The taint that says whether the syncer works.
    Taint(Name),
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

/// How it stands with the syncer beside the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Work {
    /// It has started and has not read everything yet: nothing new is known.
    #[default]
    Starts,
    /// It has read everything and works.
    Goes,
    /// It cannot work.
    LossState(Trouble),
}

impl Work {
    /// A new life begins; says whether that is news.
    pub(crate) fn start(&mut self) -> bool {
        self.become_now(Self::Starts)
    }

    /// Everything is read; says whether that is news.
    pub(crate) fn go(&mut self) -> bool {
        self.become_now(Self::Goes)
    }

    fn become_now(&mut self, now: Self) -> bool {
        let news = *self != now;
        *self = now;
        news
    }

    /// Whether it stands because of this.
    pub(crate) fn stands_for(&self, trouble: &Trouble) -> bool {
        matches!(self, Self::LossState(known) if known == trouble)
    }
}

/// What is wrong, for the binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// `PascalCase`, for the condition.
    pub reason: &'static str,
    /// What happened and what to do.
    pub message: String,
}

/// Condition of the binding: whether the physical cluster is connected. The keeper writes it only while the syncer cannot.
const CONNECTED: &str = "Connected";
/// Condition of the binding: whether the kubeconfig in its Secret is the one in use. There from the first time it was not.
pub(crate) const KUBECONFIG_CURRENT: &str = "KubeconfigCurrent";

/// One binding's keeper as a value.
pub struct Keeper {
    origin: Origin,
    binding_uid: Box<str>,
    nodes: Table<KeptNode>,
    names: HashMap<Name, Uid, RandomState>,
    leases: Leases,
    binding: Option<KeptBinding>,
    /// Another binding has our name: ours is gone for good.
    replaced: bool,
    /// Who the virtual cluster last said it is, kept while it does not answer.
    identity: Option<Uid>,
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
            leases: Leases::default(),
            binding: None,
            replaced: false,
            identity: None,
            work: Work::default(),
            kubeconfig: None,
        }
    }

    /// Whether our binding was deleted and another one has its name.
    pub(crate) fn replaced(&self) -> bool {
        self.replaced && self.identity.as_ref().map(Uid::as_str) == Some(self.origin.virtual_cluster())
    }

    /// Whether the virtual cluster is the one that our nodes were made in. Known without the binding: whatever becomes of it,
    /// its nodes must not look dead.
    fn at_home(&self) -> bool {
        let seen = self.identity.as_ref().map(Uid::as_str);
        let pinned = self.binding.as_ref().and_then(|binding| binding.virtual_cluster.as_deref());
        seen == Some(self.origin.virtual_cluster()) && pinned.is_none_or(|pinned| seen == Some(pinned))
    }

    fn node(&self, name: &Name) -> Option<&KeptNode> {
        self.nodes.get(self.names.get(name)?)
    }

    fn see_node(&mut self, change: Change<KeptNode>, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => {
                let (name, uid) = (row.name.clone(), row.uid.clone());
                let Put::Fresh(before) = self.nodes.put(row, Some(epoch)) else { return };
                if before.is_none() && self.nodes.complete() {
                    // It was not there when all were listed.
                    self.leases.expect_none(&name);
                }
                self.names.insert(name.clone(), uid);
                dirty.mark(Key::Lease(name.clone()));
                dirty.mark(Key::Taint(name));
            }
            Change::Gone { row, .. } => self.lose_node(&row.uid),
            Change::Unserved | Change::Reached(_) => {}
            Change::Listed(epoch) => {
                for uid in self.nodes.listed(epoch) {
                    self.lose_node(&uid);
                }
                dirty.mark_all();
            }
        }
    }

    fn lose_node(&mut self, uid: &Uid) {
        let Some(row) = self.nodes.remove(uid) else { return };
        if self.names.get(&row.name) == Some(uid) {
            self.names.remove(&row.name);
            self.leases.forget(&row.name);
        }
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

    fn plan_lease(&self, vnode: &Name, now: Now) -> Plan {
        match self.node(vnode).filter(|_| self.at_home()) {
            Some(row) => self.leases.plan(vnode, &row.uid, now),
            None => Plan::Rest,
        }
    }

    /// Nothing new should come while nobody would run it. The list is one with Kubernetes and with `Pair`, so under its version.
    fn plan_taint(&self, vnode: &Name) -> Plan {
        let Some(row) = self.node(vnode).filter(|row| self.at_home() && !row.deleting) else { return Plan::Rest };
        let there = |taint: &&Taint| taint.key == keys::TAINT_SYNCER_STOPPED;
        let wanted = match self.work {
            Work::Starts => return Plan::Rest,
            Work::Goes => false,
            Work::LossState(_) => true,
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
        Call { target, verb, why: if wanted { "SyncerStopped" } else { "SyncerWorks" } }.into()
    }

    /// Merges our conditions into those that are there: an apply would take away what it leaves out, and `Pair` applies the rest.
    fn plan_binding(&self, now: Now) -> Plan {
        let Some(row) = self.binding.as_ref().filter(|_| self.at_home()) else { return Plan::Rest };
        let mut conditions = row.conditions.clone();
        if let Work::LossState(Trouble { reason, message }) = &self.work {
            row.set(&mut conditions, CONNECTED, "False", reason, message, now);
        }
        match &self.kubeconfig {
            Some(Trouble { reason, message }) => {
                row.set(&mut conditions, KUBECONFIG_CURRENT, "False", reason, message, now);
            }
            None if row.says(KUBECONFIG_CURRENT) => {
                let message = "the kubeconfig in the Secret is the one in use";
                row.set(&mut conditions, KUBECONFIG_CURRENT, "True", "Current", message, now);
            }
            None => {}
        }
        if conditions == row.conditions {
            return Plan::Rest;
        }
        let target = Target::cluster(Side::Virtual, &kind::CLUSTER_BINDING, row.name.clone()).uid(&row.uid).rv(row.rv);
        let verb = Verb::Merge(Sub::Status, json!({"status": {"conditions": conditions}}));
        Call { target, verb, why: "ReportTrouble" }.into()
    }
}

impl Model for Keeper {
    type Key = Key;
    type Fact = Fact;

    fn observe(&mut self, seen: Fact, _now: Now, dirty: &mut Dirty<Key>) {
        match seen {
            Fact::Node(change) => self.see_node(change, dirty),
            Fact::Binding(Change::Put(row, _)) => self.take_binding(row, dirty),
            // Whether it is gone is for `Pair` to prove; our Leases are renewed all the same.
            Fact::Binding(Change::Gone { .. } | Change::Listed(_) | Change::Unserved | Change::Reached(_)) => {}
            Fact::Connection(connection) => {
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

    fn plan(&self, key: &Key, now: Now) -> Plan {
        let plan = match key {
            Key::Lease(vnode) => self.plan_lease(vnode, now),
            Key::Taint(vnode) => self.plan_taint(vnode),
            Key::Binding => self.plan_binding(now),
        };
        // INVARIANT: no call goes beyond the declared rights (law 10).
        if let Plan::Do(call) = &plan {
            debug_assert!(Ask::call(call).is_declared(""), "not in syncer::rights: {call}");
        }
        plan
    }

    fn settle(&mut self, key: &Key, call: &Call, done: Result<Answer, Refusal>, now: Now, dirty: &mut Dirty<Key>) {
        match key {
            Key::Lease(vnode) if self.node(vnode).is_none() => self.leases.forget(vnode),
            Key::Lease(vnode) => {
                if self.leases.settle(vnode, call, &done, now) {
                    dirty.mark(key.clone());
                }
            }
            Key::Taint(_) => {
                if let Ok(Ok(Some(row))) = done.map(|answer| KeptNode::decode(&answer.object)) {
                    self.nodes.put(row, None);
                }
            }
            Key::Binding => {
                if let Ok(Ok(Some(row))) = done.map(|answer| KeptBinding::decode(&answer.object)) {
                    self.take_binding(row, dirty);
                }
            }
        }
    }

    fn keys(&self) -> Vec<Key> {
        let nodes = self.names.keys().flat_map(|name| [Key::Lease(name.clone()), Key::Taint(name.clone())]);
        nodes.chain([Key::Binding]).collect()
    }

    fn urgent(key: &Key) -> bool {
        matches!(key, Key::Lease(_))
    }
}

#[cfg(test)]
mod tests;
