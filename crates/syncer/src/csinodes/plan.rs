//! What to do about the CSINode of one virtual node. Pure but for `settle`, which folds answers in.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Sub, Target, Verb, kind};
use tapestry_domain::names::label_value;
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use super::row::{MIGRATED_PLUGINS, PCsiNode, VCsiNode};
use super::{Case, CsiNodes, Setting};
use crate::json::fingerprint;
use crate::nodes::Nodes;
use crate::nodes::row::VNode;
use crate::origin::Origin;
use crate::pair::Key;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// The physical one left the watch: is it gone?
        LookForPhysicalCsiNode,
        /// The name is taken: by what?
        LookForCsiNode,
        /// A virtual node has none.
        CreateCsiNode,
        /// It is not as the physical one.
        UpdateCsiNode,
        /// It differs in what Kubernetes does not let us change.
        ReplaceCsiNode,
        /// The physical one is gone.
        PhysicalCsiNodeGone,
    }
}

/// How long a name that another object has is left alone.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(5);

type Texts = BTreeMap<Box<str>, Box<str>>;

impl CsiNodes {
    /// The plan for the CSINode of this virtual node.
    pub(crate) fn plan(&self, name: &Name, setting: &Setting<'_>) -> Plan<Why> {
        if !self.complete() {
            return Plan::Rest;
        }
        // Without its node it has no owner, and Kubernetes removes it; with a node on its way out nothing starts.
        let Some(vnode) = setting.nodes.vnode(name).filter(|vnode| !vnode.deleting) else { return Plan::Rest };
        let case = self.cases.get(name).cloned().unwrap_or_default();
        match (self.pcsinode(&vnode.physical), self.vcsinode(name)) {
            (_, Some(there)) if there.deleting => Plan::Rest,
            (None, None) => Plan::Rest,
            (Some(pcsinode), None) => plan_new(&case, pcsinode, vnode, setting),
            (Some(pcsinode), Some(there)) => plan_same(&case, pcsinode, there, vnode, setting),
            // The watch does not show it: gone only if the API server says so (law 1).
            (None, Some(there)) if case.gone => remove(there, Why::PhysicalCsiNodeGone),
            (None, Some(_)) => {
                let target = Target::cluster(Side::Physical, &kind::CSI_NODE, vnode.physical.clone());
                Why::LookForPhysicalCsiNode.call(target, Verb::Get)
            }
        }
    }

    /// Folds in how a call ended.
    pub(crate) fn settle(
        &mut self,
        name: &Name,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        setting: &Setting<'_>,
        dirty: &mut Dirty<Key>,
    ) {
        match (why, done) {
            (Why::ReplaceCsiNode | Why::PhysicalCsiNodeGone, Ok(_)) => {
                if let Some(uid) = &call.target.uid {
                    self.vcsinodes.remove(uid);
                    self.forget_virtual(name, uid, setting.nodes, dirty);
                }
            }
            (Why::LookForPhysicalCsiNode, Ok(answer)) => {
                if let Ok(Some(row)) = PCsiNode::decode(&answer.object) {
                    self.put_physical(row, None, setting.nodes, dirty);
                }
            }
            (Why::LookForCsiNode, Ok(answer)) => self.learn_look(name, &answer, setting, dirty),
            (Why::CreateCsiNode | Why::UpdateCsiNode, Ok(answer)) => {
                self.learn_write(name, call, &answer, setting.origin, dirty);
            }
            (why, Err(refusal)) => self.learn_refusal(name, why, &refusal, setting.nodes, dirty),
        }
    }

    fn learn_refusal(&mut self, name: &Name, why: Why, refusal: &Refusal, nodes: &Nodes, dirty: &mut Dirty<Key>) {
        let gone = nodes.vnode(name).is_some_and(|vnode| self.pcsinode(&vnode.physical).is_none());
        let case = self.cases.entry(name.clone()).or_default();
        match (why, refusal) {
            // The watch shows one that came back while we asked: the answer is about the one before it.
            (Why::LookForPhysicalCsiNode, Refusal::Gone) => case.gone = gone,
            (Why::LookForCsiNode, Refusal::Gone) => (case.taken, case.foreign) = (false, None),
            (Why::CreateCsiNode, Refusal::Exists) => case.taken = true,
            (Why::UpdateCsiNode, Refusal::Invalid(_)) => case.stiff = true,
            (
                Why::LookForPhysicalCsiNode
                | Why::LookForCsiNode
                | Why::CreateCsiNode
                | Why::UpdateCsiNode
                | Why::ReplaceCsiNode
                | Why::PhysicalCsiNodeGone,
                _,
            ) => return,
        }
        dirty.mark(Key::CsiNode(name.clone()));
    }

    /// The API server showed what has the name.
    fn learn_look(&mut self, name: &Name, answer: &Answer, setting: &Setting<'_>, dirty: &mut Dirty<Key>) {
        if let Some(row) = read_ours(answer, setting.origin) {
            self.put_virtual(row, None, dirty);
        } else {
            let case = self.cases.entry(name.clone()).or_default();
            if case.foreign.is_none() {
                tracing::warn!(csinode = %name, "a CSINode that is not ours has the name of our virtual node: it is left unchanged");
            }
            (case.taken, case.foreign) = (false, Some(setting.now.steady));
        }
        dirty.mark(Key::CsiNode(name.clone()));
    }

    /// The virtual CSINode was created or changed.
    fn learn_write(&mut self, name: &Name, call: &Call, answer: &Answer, origin: &Origin, dirty: &mut Dirty<Key>) {
        if let Some(row) = read_ours(answer, origin) {
            if let Verb::Create(body) | Verb::Merge(_, body) = &call.verb
                && let Some(Value::Array(sent)) = body.pointer("/spec/drivers")
            {
                let case = self.cases.entry(name.clone()).or_default();
                case.pushed = Some((digest(sent), digest(&row.drivers.parse())));
            }
            self.put_virtual(row, None, dirty);
        }
        dirty.mark(Key::CsiNode(name.clone()));
    }
}

/// The CSINode that the API server showed, if it is ours.
fn read_ours(answer: &Answer, origin: &Origin) -> Option<VCsiNode> {
    let row = VCsiNode::decode(&answer.object).ok().flatten();
    row.filter(|row| row.labels.get(keys::ORIGIN) == Some(&origin.label))
}

fn plan_new(case: &Case, pcsinode: &PCsiNode, vnode: &VNode, &Setting { origin, now, .. }: &Setting<'_>) -> Plan<Why> {
    let target = Target::cluster(Side::Virtual, &kind::CSI_NODE, vnode.name.clone());
    if let Some(again) = case.foreign.map(|at| at + LOOK_AGAIN).filter(|again| *again > now.steady) {
        return Plan::Wait(again);
    }
    if case.taken || case.foreign.is_some() {
        return Why::LookForCsiNode.call(target, Verb::Peek);
    }
    let mut annotations = annotations(pcsinode);
    annotations.insert(keys::LAST_SYNC_TIME.into(), stamp(now));
    let body = json!({
        "apiVersion": kind::CSI_NODE.api_version(), "kind": kind::CSI_NODE.kind,
        "metadata": {
            "name": vnode.name.as_str(), "labels": labels(origin, pcsinode), "annotations": annotations,
            "ownerReferences": [owner(vnode)],
        },
        "spec": {"drivers": pcsinode.drivers.parse()},
    });
    Why::CreateCsiNode.call(target, Verb::Create(body))
}

/// Both exist: what differs is patched where Kubernetes allows it, and replaced where it does not.
fn plan_same(
    case: &Case,
    pcsinode: &PCsiNode,
    there: &VCsiNode,
    vnode: &VNode,
    &Setting { origin, now, .. }: &Setting<'_>,
) -> Plan<Why> {
    let drivers = (pcsinode.drivers != there.drivers).then(|| (there.drivers.parse(), pcsinode.drivers.parse()));
    let drivers = drivers.filter(|(old, new)| old != new && case.pushed != Some((digest(new), digest(old))));
    if let Some((old, new)) = &drivers
        && frozen(old, new, case.stiff)
    {
        return remove(there, Why::ReplaceCsiNode);
    }
    let labels = difference(&labels(origin, pcsinode), &there.labels);
    let wanted = annotations(pcsinode);
    let mut annotations = difference(&wanted, &there.annotations);
    if there.annotations.contains_key(MIGRATED_PLUGINS) && !wanted.contains_key(MIGRATED_PLUGINS) {
        annotations.insert(MIGRATED_PLUGINS.to_owned(), Value::Null);
    }
    let owned = there.owners.contains(&vnode.uid);
    if labels.is_empty() && annotations.is_empty() && owned && drivers.is_none() {
        return Plan::Rest;
    }
    annotations.insert(keys::LAST_SYNC_TIME.to_owned(), json!(stamp(now)));
    let mut patch = json!({"metadata": {"labels": labels, "annotations": annotations}});
    if !owned {
        patch["metadata"]["ownerReferences"] = json!([owner(vnode)]);
    }
    if let Some((_, new)) = drivers {
        patch["spec"]["drivers"] = json!(new);
    }
    // Both lists are replaced as a whole, so only in the version that was looked at (law 2).
    let target = Target::cluster(Side::Virtual, &kind::CSI_NODE, there.name.clone()).uid(&there.uid).rv(there.rv);
    Why::UpdateCsiNode.call(target, Verb::Merge(Sub::Main, patch))
}

fn labels(origin: &Origin, pcsinode: &PCsiNode) -> Texts {
    let node = (keys::PHYSICAL_NODE_NAME, label_value(pcsinode.name.as_str()).into_owned());
    origin.labels().into_iter().chain([node]).map(|(key, value)| (key.into(), value.into())).collect()
}

/// Whether a patch would be refused: what an entry says besides `allocatable` is immutable (with `stiff`,
/// `allocatable` is too). Whole entries may come and go.
fn frozen(old: &[Value], new: &[Value], stiff: bool) -> bool {
    let fixed = |driver: &Value| {
        let mut driver = driver.clone();
        if let Some(driver) = driver.as_object_mut().filter(|_| !stiff) {
            driver.remove("allocatable");
        }
        driver
    };
    new.iter().any(|new| old.iter().any(|old| old["name"] == new["name"] && fixed(old) != fixed(new)))
}

fn digest(drivers: &[Value]) -> u64 {
    fingerprint(json!(drivers).to_string())
}

fn annotations(pcsinode: &PCsiNode) -> Texts {
    let migrated = pcsinode.migrated.as_ref().map(|plugins| (MIGRATED_PLUGINS.into(), plugins.clone()));
    [(keys::PHYSICAL_NODE_NAME.into(), pcsinode.name.as_str().into())].into_iter().chain(migrated).collect()
}

fn owner(vnode: &VNode) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": vnode.name.as_str(), "uid": vnode.uid.as_str()})
}

/// What is not there as it is wanted.
fn difference(want: &Texts, there: &Texts) -> Map<String, Value> {
    let set = want.iter().filter(|(key, value)| there.get(*key) != Some(*value));
    set.map(|(key, value)| (key.to_string(), json!(value))).collect()
}

fn remove(there: &VCsiNode, why: Why) -> Plan<Why> {
    let target = Target::cluster(Side::Virtual, &kind::CSI_NODE, there.name.clone()).uid(&there.uid);
    why.call(target, Verb::Delete { grace: None })
}

fn stamp(now: Now) -> Box<str> {
    format!("{:.0}", now.wall).into()
}
