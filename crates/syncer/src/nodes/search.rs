//! Whether a physical node has a virtual node that does not carry our label, before one is made, and what became of one that
//! left the watch, which is by that label. One physical node is never lent twice: while it is unclear whether
//! a node with its provider ID is ours, none is made, and the binding says so.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use tapestry_api::keys;
use tapestry_cluster::feed::Row as _;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Target, Uid, Verb, kind};
use tapestry_domain::names::{vnode_name, vnode_name_hashed};
use tapestry_engine::{Dirty, Now, Plan, Reason as _};

use super::Why;
use super::row::VNode;
use crate::bindings::Bound;
use crate::events::Event;
use crate::leases;
use crate::origin::Claim;
use crate::pair::{Key, Pair};

/// Reason of the event and of condition `Ready`.
pub(crate) const CLUSTER_ID_IN_USE: &str = "ClusterIdInUse";

/// How long a name is left alone that another node has, or of which it is not clear who has it.
const LOOK_AGAIN: Duration = Duration::from_mins(5);
/// A client that strips a node again and again costs one look and one write in this time.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// What is known of the names that the virtual node of a physical node may have.
#[derive(Default, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one answer that was given")]
pub(super) struct Search {
    /// When a known virtual node that left the watch is looked for, under its own name.
    doubted: Option<Duration>,
    /// When that was last done.
    looked: Option<Duration>,
    /// Under the hashed name there is no node of ours: it was looked for.
    hashed_free: bool,
    /// The plain name belongs to a node that represents something else.
    clash: bool,
    /// Creating the virtual node found the name taken, by what is not known yet.
    taken: bool,
    /// A node that represents our physical node and lacks our label: its Lease says whether we made it.
    suspect: Option<Box<VNode>>,
    /// When a look last showed that no virtual node can be made.
    blocked: Option<Duration>,
    /// An event on the binding reported a node that may not be ours.
    told: bool,
    /// The node under the name is another binding's.
    rival: Option<Box<Rival>>,
}

/// Another binding that has our cluster ID, and a virtual node of it under a name that one of ours would have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rival {
    vnode: Name,
    binding: Box<str>,
}

impl Rival {
    /// What to tell the user of the binding with this cluster ID.
    pub(crate) fn tell(&self, cluster_id: &str) -> String {
        let Self { vnode, binding } = self;
        format!(
            "clusterID {cluster_id} is already used by ClusterBinding {binding}, which made node {vnode}: delete this binding and \
             create it with another clusterID, and leave the node as it is"
        )
    }
}

impl Search {
    /// The virtual node is known: the watch shows it, or an answer to a call did.
    pub(super) fn end(&mut self, in_sight: bool) {
        let doubted = self.doubted.filter(|_| !in_sight);
        *self = Self { looked: self.looked, doubted, ..Self::default() };
    }

    /// What has to be asked before the virtual node of this physical node is created, or the name to create it under.
    pub(super) fn plan(&self, cluster_id: &str, physical: &Name, now: Now) -> Result<Name, Plan<Why>> {
        if let Some(again) = self.blocked.map(|at| at + LOOK_AGAIN).filter(|again| *again > now.steady) {
            return Err(Plan::Wait(again));
        }
        let parse = |name: String| Name::parse(&name).map_err(|_| Plan::Rest);
        let hashed = parse(vnode_name_hashed(cluster_id, physical.as_str()))?;
        let plain = parse(vnode_name(cluster_id, physical.as_str()))?;
        if let Some(suspect) = &self.suspect {
            let namespace = Name::parse(leases::NAMESPACE).map_err(|_| Plan::Rest)?;
            let target = Target::namespaced(Side::Virtual, &kind::LEASE, namespace, suspect.name.clone());
            return Err(Why::LookForOwner.call(target, Verb::Get));
        }
        if !self.hashed_free && !self.clash && hashed != plain {
            return Err(look(hashed));
        }
        let name = if self.clash { hashed } else { plain };
        if self.taken { Err(look(name)) } else { Ok(name) }
    }

    pub(super) fn rival(&self) -> Option<&Rival> {
        self.rival.as_deref()
    }

    fn block(&mut self, now: Now) {
        (self.blocked, self.taken, self.suspect) = (Some(now.steady), false, None);
    }
}

impl Pair {
    /// A virtual node left the watch, or was not in a list, without proof that it is gone: its label may have been taken away.
    pub(super) fn doubt_vnode(&mut self, uid: &Uid, now: Now, dirty: &mut Dirty<Key>) {
        let Some(physical) = self.nodes.vnodes.get(uid).map(|vnode| vnode.physical.clone()) else { return };
        let search = &mut self.nodes.cases.entry(physical.clone()).or_default().search;
        let next = search.looked.map_or(now.steady, |last| last + LOOK_AT_MOST_EVERY);
        search.doubted = Some(next.max(now.steady));
        dirty.mark(Key::Node(physical));
    }

    /// The look for a known virtual node that left the watch; `None` when it did not.
    pub(super) fn plan_doubted(&self, physical: &Name, vnode: &VNode, now: Now) -> Option<Plan<Why>> {
        let due = self.nodes.cases.get(physical)?.search.doubted?;
        if due > now.steady {
            return Some(Plan::Wait(due));
        }
        Some(look(vnode.name.clone()))
    }

    /// Creating the virtual node found the name taken: by what has to be looked at.
    pub(super) fn find_taken(&mut self, physical: &Name, dirty: &mut Dirty<Key>) {
        self.nodes.cases.entry(physical.clone()).or_default().search.taken = true;
        dirty.mark(Key::Node(physical.clone()));
    }

    /// Folds in what a look under a name brought.
    pub(super) fn settle_search(
        &mut self,
        physical: &Name,
        call: &Call,
        done: &Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let known =
            self.nodes.vnode_of(physical).filter(|vnode| vnode.name == call.target.name).map(|row| row.uid.clone());
        let search = &mut self.nodes.cases.entry(physical.clone()).or_default().search;
        if known.is_some() {
            search.looked = Some(now.steady);
        }
        let found = match done {
            Ok(answer) => VNode::decode(&answer.object),
            Err(Refusal::Gone) => {
                (search.taken, search.rival) = (false, None);
                search.hashed_free |= self.bindings.bound().is_some_and(|bound| is_hashed(call, bound, physical));
                if let Some(uid) = known {
                    self.lose_vnode(&uid, now, dirty);
                }
                return dirty.mark(Key::Node(physical.clone()));
            }
            Err(_) => return,
        };
        match (found, known) {
            // It lost only our label: the usual patch of a changed node restores it.
            (Ok(Some(row)), Some(uid)) if row.uid == uid => {
                search.doubted = None;
                self.put_vnode(row, None, now, dirty);
            }
            (Ok(row), known) => {
                if let Some(uid) = known {
                    self.lose_vnode(&uid, now, dirty);
                }
                self.learn_node(physical, call, row, now, dirty);
            }
            // It is there, and that is all that can be said of it.
            (Err(_), Some(_)) => search.doubted = Some(now.steady + LOOK_AGAIN),
            (Err(_), None) => search.block(now),
        }
        dirty.mark(Key::Node(physical.clone()));
    }

    /// A node that we do not know has a name that the virtual node of this physical node may have.
    fn learn_node(&mut self, physical: &Name, call: &Call, row: Option<VNode>, now: Now, dirty: &mut Dirty<Key>) {
        let Some(bound) = self.bindings.bound() else { return };
        let cluster_id = &bound.binding.cluster_id;
        let hashed = is_hashed(call, bound, physical);
        let stands_for = format!("tapestry://{cluster_id}/{physical}");
        let row = row.filter(|row| row.physical == *physical).map(|row| (self.origin.claim(&row.marks()), row));
        let row = row.filter(|(claim, row)| *claim == Claim::Ours || *row.provider_id == *stands_for);
        let search = &mut self.nodes.cases.entry(physical.clone()).or_default().search;
        search.rival = None;
        match row {
            Some((Claim::Ours, row)) => self.put_vnode(row, None, now, dirty),
            Some((Claim::Unmarked, row)) => search.suspect = Some(Box::new(row)),
            Some((Claim::Others(owner), row)) => self.tell_foreign(physical, &row.name, owner, now, dirty),
            // Under the hashed name nothing of ours is; as a name for a new one it counts only once the plain one is taken.
            None if hashed && !search.clash => (search.hashed_free, search.taken) = (true, false),
            // Both names: there is nothing left but to wait.
            None if hashed => search.block(now),
            None => (search.clash, search.taken) = (true, false),
        }
    }

    /// A node that we do not know has our label and another binding's marks: a user gave it our label.
    pub(super) fn refuse_vnode(&mut self, row: &VNode, owner: Option<Box<str>>, now: Now, dirty: &mut Dirty<Key>) {
        tracing::warn!(vnode = %row.name, ?owner, "a virtual node of another binding has our origin label: it is left alone");
        if self.nodes.pnode(&row.physical).is_some() {
            self.tell_foreign(&row.physical, &row.name, owner, now, dirty);
        }
    }

    /// Only syncers make a Lease that belongs to a virtual node, and only for one that they made; it says which binding's.
    pub(super) fn learn_owner(
        &mut self,
        physical: &Name,
        done: &Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let (owners, origin) = match done {
            Ok(answer) => read_owners(answer),
            Err(Refusal::Gone) => (Vec::new(), None),
            Err(_) => return,
        };
        let foreign = origin.is_some_and(|origin| origin != *self.origin.full);
        let search = &mut self.nodes.cases.entry(physical.clone()).or_default().search;
        let Some(suspect) = search.suspect.take() else { return };
        match owners.contains(suspect.uid()) {
            true if foreign => self.tell_foreign(physical, &suspect.name, None, now, dirty),
            true => self.put_vnode(*suspect, None, now, dirty),
            false => {
                let cure =
                    format!("delete {}, or give it the label {}={}", suspect.name, keys::ORIGIN, self.origin.label);
                self.tell_unclear(physical, &suspect.name, &cure, now, dirty);
            }
        }
        dirty.mark(Key::Node(physical.clone()));
    }

    /// The virtual node of this physical node would have the name of another binding's. It is never for us to touch, nor for a
    /// user to delete or to label: pods of the other binding may run there.
    fn tell_foreign(
        &mut self,
        physical: &Name,
        vnode: &Name,
        owner: Option<Box<str>>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let Some(binding) = owner else {
            let cure = format!("delete {vnode} and its finalizers");
            return self.tell_unclear(physical, vnode, &cure, now, dirty);
        };
        let known = self.nodes.rival().is_some();
        let rival = Rival { vnode: vnode.clone(), binding };
        let search = &mut self.nodes.cases.entry(physical.clone()).or_default().search;
        search.block(now);
        search.rival = Some(Box::new(rival.clone()));
        dirty.mark(Key::Binding);
        // Its other virtual nodes mean the same.
        if std::mem::replace(&mut search.told, true) || known {
            return;
        }
        let Some(binding) = self.bindings.bound().map(|bound| &bound.binding) else { return };
        let message = rival.tell(binding.cluster_id.as_str());
        tracing::warn!(message, "another binding has our clusterID");
        let event = Event::about_binding(binding, CLUSTER_ID_IN_USE, &message, now);
        self.events.add(event, dirty);
    }

    /// `cure`: what helps if the node is not another binding's.
    fn tell_unclear(&mut self, physical: &Name, vnode: &Name, cure: &str, now: Now, dirty: &mut Dirty<Key>) {
        let search = &mut self.nodes.cases.entry(physical.clone()).or_default().search;
        search.block(now);
        if std::mem::replace(&mut search.told, true) {
            return;
        }
        tracing::warn!(%vnode, %physical, "a node has the provider ID of a physical node but not our label; not lending the physical node");
        let Some(binding) = self.bindings.bound().map(|bound| &bound.binding) else { return };
        let message = format!(
            "node {vnode} has the provider ID of physical node {physical} but not this binding's marks, so {physical} is not lent. \
             If another ClusterBinding has clusterID {id}, create this one again with another clusterID and leave the node as it is; \
             if none has, {cure}",
            id = binding.cluster_id,
        );
        let event = Event::about_binding(binding, "VirtualNodeUnclear", &message, now);
        self.events.add(event, dirty);
    }
}

/// Whether a look was at the hashed name.
fn is_hashed(call: &Call, bound: &Bound, physical: &Name) -> bool {
    call.target.name.as_str() == vnode_name_hashed(&bound.binding.cluster_id, physical.as_str())
}

fn look(name: Name) -> Plan<Why> {
    let target = Target::cluster(Side::Virtual, &kind::NODE, name);
    Why::LookForVirtualNode.call(target, Verb::Get)
}

/// The nodes that own a Lease, and the origin of the syncer that renews it.
fn read_owners(answer: &Answer) -> (Vec<Uid>, Option<String>) {
    #[derive(Deserialize, Default)]
    struct Lease {
        metadata: Metadata,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        owner_references: Vec<Owner>,
        annotations: BTreeMap<String, String>,
    }
    #[derive(Deserialize)]
    struct Owner {
        kind: String,
        uid: Uid,
    }
    let Lease { metadata } = serde_json::from_slice(&answer.object).unwrap_or_default();
    let nodes = metadata.owner_references.into_iter().filter(|owner| owner.kind == "Node");
    (nodes.map(|owner| owner.uid).collect(), metadata.annotations.get(keys::ORIGIN).cloned())
}

#[cfg(test)]
mod tests;
