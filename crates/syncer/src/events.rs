//! Events on users' objects: warnings and transitions only, each written once, forgotten if it cannot be.
//! Never needed for correctness; conditions are.

use std::hash::Hash;

use indexmap::IndexMap;
use serde_json::{Value, json};
use tapestry_api::{Binding, Status};
use tapestry_cluster::{Name, Side, Target, Uid, Verb, kind};
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

use crate::dependents::Id;
use crate::json::stable_hash;
use crate::nodes::row::{Condition, VNode};
use crate::pair::Key;
use crate::pods::row::VPod;
use crate::services;
use crate::volumes::row::VClaim;
use crate::warnings::Warning;

/// An event to be written.
pub(crate) struct Event {
    namespace: Name,
    name: Name,
    body: Value,
}

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// Write an event for users.
        Event,
    }
}

/// Events that wait to be written.
#[derive(Default)]
pub(crate) struct Events {
    waiting: IndexMap<u64, Event>,
    last: u64,
}

/// More than this wait only when the virtual cluster takes none; then the oldest are the least interesting.
const LIMIT: usize = 256;

impl Event {
    /// A warning about a virtual pod.
    pub(crate) fn about_vpod(vpod: &VPod, reason: &str, message: &str, now: Now) -> Option<Self> {
        let whom = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": vpod.namespace.as_str(),
            "name": vpod.name.as_str(), "uid": vpod.uid.as_str(),
        });
        Self::write(&whom, "Warning", reason, message, now)
    }

    /// A warning of the physical cluster about the copy of a virtual pod. The same occurrence has the same name, whichever process
    /// tells it.
    pub(crate) fn of_copy(vpod: &VPod, warning: &Warning, now: Now) -> Option<Self> {
        let whom = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": vpod.namespace.as_str(),
            "name": vpod.name.as_str(), "uid": vpod.uid.as_str(),
        });
        let message = format!("In the physical cluster: {}", warning.message);
        let unique = stable_hash((vpod.uid.as_str(), warning.mark()));
        let mut event = Self::write_as(&whom, "Warning", &warning.reason, &message, unique, now)?;
        event.body["count"] = json!(warning.count);
        if let Some(first) = warning.first.filter(|first| *first < now.wall) {
            event.body["firstTimestamp"] = json!(format!("{first:.0}"));
        }
        Some(event)
    }

    /// A warning about a ConfigMap or Secret.
    pub(crate) fn about_dependent(id: &Id, uid: &Uid, reason: &str, message: &str, now: Now) -> Option<Self> {
        let whom = json!({
            "apiVersion": "v1", "kind": id.kind.as_str(), "namespace": id.namespace.as_str(),
            "name": id.name.as_str(), "uid": uid.as_str(),
        });
        Self::write(&whom, "Warning", reason, message, now)
    }

    /// The same for what is told once: the same occurrence has the same name, whichever process tells it.
    pub(crate) fn about_dependent_once(
        id: &Id,
        uid: &Uid,
        reason: &str,
        message: &str,
        occurrence: impl Hash,
        now: Now,
    ) -> Option<Self> {
        let whom = json!({
            "apiVersion": "v1", "kind": id.kind.as_str(), "namespace": id.namespace.as_str(),
            "name": id.name.as_str(), "uid": uid.as_str(),
        });
        let unique = stable_hash((uid.as_str(), reason, message, occurrence));
        Self::write_as(&whom, "Warning", reason, message, unique, now)
    }

    /// A warning about a Service.
    pub(crate) fn about_service(id: &services::Id, uid: &Uid, reason: &str, message: &str, now: Now) -> Option<Self> {
        Self::write(&service(id, uid), "Warning", reason, message, now)
    }

    /// The same of what does not happen, but is so: it has the same name, whichever process tells it.
    pub(crate) fn about_service_once(
        id: &services::Id,
        uid: &Uid,
        reason: &str,
        message: &str,
        now: Now,
    ) -> Option<Self> {
        Self::write_as(&service(id, uid), "Warning", reason, message, stable_hash((uid.as_str(), reason)), now)
    }

    /// A warning about a claim, as an object to create. The same occasion has the same name, whichever process tells it.
    pub(crate) fn about_claim(
        vclaim: &VClaim,
        reason: &str,
        message: &str,
        occasion: &str,
        now: Now,
    ) -> Option<(Target, Value)> {
        let whom = vclaim.whom();
        let unique = stable_hash((whom["uid"].as_str(), reason, occasion));
        let event = Self::write_as(&whom, "Warning", reason, message, unique, now)?;
        Some((Target::namespaced(Side::Virtual, &kind::EVENT, event.namespace, event.name), event.body))
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// The call that writes it.
    pub(crate) fn write_call(&self) -> (Target, Verb) {
        let target = Target::namespaced(Side::Virtual, &kind::EVENT, self.namespace.clone(), self.name.clone());
        (target, Verb::Create(self.body.clone()))
    }

    /// A virtual node begins or ceases to be lent.
    pub(crate) fn about_vnode(vnode: &VNode, lending: &Condition, now: Now) -> Option<Self> {
        let kind = if lending.is(Status::True) { "Normal" } else { "Warning" };
        let whom = json!({"apiVersion": "v1", "kind": "Node", "name": vnode.name.as_str(), "uid": vnode.uid.as_str()});
        Self::write(&whom, kind, &lending.reason, &lending.message, now)
    }

    /// A warning about the binding.
    pub(crate) fn about_binding(binding: &Binding, reason: &str, message: &str, now: Now) -> Option<Self> {
        Self::of_binding(binding, "Warning", reason, message, now)
    }

    /// Something about the binding that needs no action.
    pub(crate) fn news(binding: &Binding, reason: &str, message: &str, now: Now) -> Option<Self> {
        Self::of_binding(binding, "Normal", reason, message, now)
    }

    fn of_binding(binding: &Binding, urgency: &str, reason: &str, message: &str, now: Now) -> Option<Self> {
        let kind = &kind::CLUSTER_BINDING;
        let api = format!("{}/{}", kind.group, kind.version);
        let whom = json!({"apiVersion": api, "kind": kind.kind, "name": binding.name, "uid": binding.uid});
        Self::write(&whom, urgency, reason, message, now)
    }

    /// Beside its object, or in `default` for one that is in no namespace: where `kubectl describe` looks for it.
    fn write(whom: &Value, kind: &str, reason: &str, message: &str, now: Now) -> Option<Self> {
        let unique = stable_hash((whom["uid"].as_str(), reason, now.wall.as_nanosecond()));
        Self::write_as(whom, kind, reason, message, unique, now)
    }

    fn write_as(whom: &Value, kind: &str, reason: &str, message: &str, unique: u64, now: Now) -> Option<Self> {
        let text = |key: &str| whom[key].as_str();
        // Event names are the object's, cut so that the suffix fits into 253 characters.
        let base: String = text("name")?.chars().take(236).collect();
        let name = Name::parse(&format!("{base}.{unique:016x}")).ok()?;
        let namespace = Name::parse(text("namespace").unwrap_or("default")).ok()?;
        let time = format!("{:.0}", now.wall);
        let body = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name.as_str(), "namespace": namespace.as_str()},
            "involvedObject": whom,
            "type": kind, "reason": reason, "message": message,
            "source": {"component": "tapestry-syncer"}, "reportingComponent": "tapestry-syncer",
            "firstTimestamp": time, "lastTimestamp": time, "count": 1,
        });
        Some(Self { namespace, name, body })
    }
}

fn service(id: &services::Id, uid: &Uid) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "namespace": id.namespace.as_str(), "name": id.name.as_str(),
        "uid": uid.as_str(),
    })
}

impl Events {
    pub(crate) fn add(&mut self, event: Option<Event>, dirty: &mut Dirty<Key>) {
        let Some(event) = event else { return };
        if self.waiting.len() >= LIMIT {
            self.waiting.shift_remove_index(0);
        }
        self.last += 1;
        self.waiting.insert(self.last, event);
        dirty.mark(Key::Event(self.last));
    }

    /// The other leader has written what we recorded while it led.
    pub(crate) fn forget(&mut self) {
        self.waiting.clear();
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.waiting.keys().copied().map(Key::Event)
    }

    /// Writes it.
    pub(crate) fn plan(&self, id: u64) -> Plan<Why> {
        let Some(event) = self.waiting.get(&id) else { return Plan::Rest };
        let (target, verb) = event.write_call();
        Why::Event.call(target, verb)
    }

    /// Written or not, an event is tried once.
    pub(crate) fn settle(&mut self, id: u64, why: Why) {
        match why {
            Why::Event => drop(self.waiting.shift_remove(&id)),
        }
    }
}
