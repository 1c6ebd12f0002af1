//! For tests of the plans: objects as JSON and a pair that has seen them. Small on purpose; World does the rest.

use bytes::Bytes;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Answer, Call, Refusal, Side, Uid};
use tapestry_domain::dependents::DependentKind;
use tapestry_engine::{Dirty, Listed, Model as _, Now, Plan, Reason};

use crate::bindings::BindingRow;
use crate::nodes::row::{PNode, VNode};
use crate::origin::{Home, Origin};
use crate::pair::{Fact, Key, Pair, Why};
use crate::pods::row::{PPod, VPod};
use crate::policies::PolicyRow;
use crate::warnings::Warning;

/// A pair with its binding, one policy, one node of 4 CPU lent whole, everything listed and connected.
pub(crate) struct Scene {
    pub(crate) pair: Pair,
    pub(crate) now: Now,
    rv: u64,
    /// As it was last seen.
    pub(crate) binding: Value,
}

/// What a call was for, by its text: tests keep calls and not plans.
pub(crate) fn named<W: Reason + Listed>(call: &Call) -> W {
    let found = W::ALL.iter().find(|why| why.as_str() == call.why);
    *found.unwrap_or_else(|| panic!("no such reason: {call}"))
}

/// What a call about this key was for.
pub(crate) fn why(key: &Key, call: &Call) -> Why {
    match key {
        Key::Binding => Why::Binding(named(call)),
        Key::BindingServing => Why::BindingServing(named(call)),
        Key::Prerequisite(_) => Why::Prerequisite(named(call)),
        Key::Guard(_) => Why::Guard(named(call)),
        Key::Node(_) => Why::Node(named(call)),
        Key::CsiNode(_) => Why::CsiNode(named(call)),
        Key::Pod(_) => Why::Pod(named(call)),
        Key::Stray(_) => Why::Stray(named(call)),
        Key::Dependent(_) | Key::StrayDependent(..) => Why::Dependent(named(call)),
        Key::Claim(_) | Key::Volume(_) => Why::Volume(named(call)),
        Key::Token(_) => Why::Token(named(call)),
        Key::Serving(_) => Why::Serving(named(call)),
        Key::Policy(..) => Why::Policy(named(call)),
        Key::Event(_) => Why::Event(named(call)),
        Key::CatchUp(..) => Why::CatchUp(named(call)),
        Key::Service(_) => Why::Service(named(call)),
    }
}

impl Scene {
    pub(crate) fn new() -> Self {
        let mut scene = Self::empty();
        scene.see_binding(json!({}));
        scene.see_policy("all", json!({"cluster": "east"}));
        scene.see_pnode(pnode("n1"));
        scene.complete();
        scene.do_all(&Key::Node(name("n1")));
        scene
    }

    /// All lists are in, both clusters answer, the prerequisite is laid.
    pub(crate) fn complete(&mut self) {
        self.see(Fact::Policy(Side::Physical, Change::Listed(Epoch(1))));
        self.complete_but_owner();
    }

    /// The same before the owner's policies are listed.
    pub(crate) fn complete_but_owner(&mut self) {
        self.see_lists();
        self.prepare();
        // Nothing is asked for a binding that cannot be served.
        if self.plan(&Key::Serving(Side::Virtual)) != Plan::Rest {
            self.discover(Side::Virtual, Some(&["create", "delete", "get", "list", "watch"]));
        }
    }

    /// The same before the tenant's policies are listed.
    pub(crate) fn complete_but_policies(&mut self) {
        self.see(Fact::Policy(Side::Physical, Change::Listed(Epoch(1))));
        self.see_lists_but_policies();
        self.prepare();
    }

    /// Creates what must exist in the physical cluster.
    pub(crate) fn prepare(&mut self) {
        self.do_all(&Key::Prerequisite(crate::prerequisites::Prerequisite::ServiceAccount));
        self.do_all(&Key::Prerequisite(crate::prerequisites::Prerequisite::PriorityClass));
    }

    /// All lists but the owner's policies are in, both clusters answer.
    pub(crate) fn see_lists(&mut self) {
        self.see(Fact::Policy(Side::Virtual, Change::Listed(Epoch(1))));
        self.see_lists_but_policies();
    }

    fn see_lists_but_policies(&mut self) {
        for seen in [
            Fact::VNode(Change::Listed(Epoch(1))),
            Fact::PNode(Change::Listed(Epoch(1))),
            Fact::VPod(Change::Listed(Epoch(1))),
            Fact::PPod(Change::Listed(Epoch(1))),
            Fact::Source(DependentKind::ConfigMap, Change::Listed(Epoch(1))),
            Fact::Source(DependentKind::Secret, Change::Listed(Epoch(1))),
            Fact::DependentCopy(DependentKind::ConfigMap, Change::Listed(Epoch(1))),
            Fact::DependentCopy(DependentKind::Secret, Change::Listed(Epoch(1))),
            Fact::VService(Change::Listed(Epoch(1))),
            Fact::PService(Change::Listed(Epoch(1))),
            Fact::VClaim(Change::Listed(Epoch(1))),
            Fact::VVolume(Change::Listed(Epoch(1))),
            Fact::PClaim(Change::Listed(Epoch(1))),
            Fact::PVolume(Change::Listed(Epoch(1))),
            Fact::Class(Change::Listed(Epoch(1))),
            Fact::Connection(Side::Virtual, Connection::Up(Uid::new("v-cluster"))),
            Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))),
        ] {
            self.see(seen);
        }
    }

    /// Discovery is asked about policies, when it is time, and names these verbs; `None` when it names no such resource.
    pub(crate) fn discover(&mut self, side: Side, verbs: Option<&[&str]>) {
        self.discover_kind(&Key::Serving(side), verbs);
    }

    /// The same of the kind that this key is about.
    pub(crate) fn discover_kind(&mut self, key: &Key, verbs: Option<&[&str]>) {
        let Plan::Wait(due) = self.plan(key) else { panic!("discovery is not to be asked: {:?}", self.plan(key)) };
        let at = Now { steady: due, ..self.now };
        let Plan::Do(call, _) = self.pair.plan(key, at) else { panic!("discovery is not asked in time") };
        let entry = |verbs: &[&str]| json!({"name": "resourceleasingpolicies", "verbs": verbs}).to_string();
        let done = verbs.map(|verbs| Answer { object: entry(verbs).into() }).ok_or(Refusal::Gone);
        self.settle(key, &call, done);
    }

    /// A policy goes: because a user deletes it, or with its kind.
    pub(crate) fn lose_policy_of(&mut self, side: Side, policy: &str) {
        let text = json!({
            "apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy", "spec": {"cluster": "east"},
            "metadata": {
                "name": policy, "uid": format!("uid-{policy}"), "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
        });
        let text = self.stamp(text);
        let row = PolicyRow::decode(&text).unwrap().unwrap();
        self.see(Fact::Policy(side, Change::Gone { row, proven: true }));
    }

    /// A pair that has seen nothing.
    pub(crate) fn empty() -> Self {
        let origin = Origin::new("v-cluster", "b-uid", "east");
        let mut count = 0u64;
        let entropy = Box::new(move || {
            count += 1;
            Some(count.to_le_bytes())
        });
        let now = Now { wall: "2026-01-01T00:00:00Z".parse().unwrap(), steady: std::time::Duration::from_secs(100) };
        Self {
            pair: Pair::new(origin, Home::new("east", "mount").unwrap(), "b-uid", entropy),
            now,
            rv: 1,
            binding: Value::Null,
        }
    }

    /// What the binding has to say of ends before they happen is written at once.
    pub(crate) fn see(&mut self, seen: Fact) {
        self.pair.observe(seen, self.now, &mut Dirty::default());
        self.count_ends();
    }

    /// Gives the object the next version and returns its text.
    pub(crate) fn stamp(&mut self, mut object: Value) -> Bytes {
        self.rv += 1;
        object["metadata"]["resourceVersion"] = json!(self.rv.to_string());
        object.to_string().into()
    }

    pub(crate) fn see_binding(&mut self, spec: Value) {
        self.see_binding_with(spec, &json!({}));
    }

    /// A user deletes it, and discovery says that its definition stays.
    pub(crate) fn see_binding_leaving(&mut self, spec: Value) {
        self.see_binding_deleted(spec);
        self.discover_kind(&Key::BindingServing, Some(&["create", "delete", "get", "list", "watch"]));
    }

    /// It is being deleted, with its definition or without.
    pub(crate) fn see_binding_deleted(&mut self, spec: Value) {
        self.see_binding_with(spec, &json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
    }

    /// A user wants the pods of a binding to end that goes with its definition.
    pub(crate) fn see_binding_deletion_resumed(&mut self) {
        let metadata = json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {keys::RESUME: tapestry_api::binding::RESUME_DELETION},
        });
        self.see_binding_with(json!({}), &metadata);
    }

    /// Its breaker has tripped, and a user has looked at this trip.
    pub(crate) fn see_binding_tripped(&mut self, trip: &Value, resume: &str) {
        self.see_binding_as(json!({}), &json!({"annotations": {keys::RESUME: resume}}), &json!({"breaker": trip}));
    }

    fn see_binding_with(&mut self, spec: Value, metadata: &Value) {
        self.see_binding_as(spec, metadata, &json!({}));
    }

    fn see_binding_as(&mut self, spec: Value, metadata: &Value, status: &Value) {
        let mut whole =
            json!({"clusterID": "east", "secretRef": {"name": "s", "namespace": "t"}, "mountNamespace": "mount"});
        merge(&mut whole, spec);
        let mut object = json!({
            "apiVersion": "cloud.tencent.com/v1beta1", "kind": "ClusterBinding", "metadata": {"name": "east", "uid": "b-uid", "finalizers": [keys::FINALIZER_SYNCER]},
            "spec": whole, "status": {"physicalClusterUID": "p-cluster", "virtualClusterUID": "v-cluster"},
        });
        merge(&mut object, json!({"metadata": metadata, "status": status}));
        self.binding = object;
        self.see_binding_again();
    }

    fn see_binding_again(&mut self) {
        let text = self.stamp(self.binding.clone());
        let row = BindingRow::decode(&text).unwrap().unwrap();
        self.see(Fact::Binding(Change::Put(row, Epoch(1))));
    }

    pub(crate) fn see_policy(&mut self, policy: &str, spec: Value) {
        self.see_policy_of(Side::Virtual, policy, spec);
    }

    /// Every sight of it is a new generation.
    pub(crate) fn see_policy_of(&mut self, side: Side, policy: &str, spec: Value) {
        self.put_policy(side, policy, &format!("uid-{policy}"), spec, Epoch(1));
    }

    /// Another object of that name, in a later list.
    pub(crate) fn see_policy_as(&mut self, policy: &str, uid: &str, spec: Value, epoch: u32) {
        self.put_policy(Side::Virtual, policy, uid, spec, Epoch(epoch));
    }

    fn put_policy(&mut self, side: Side, policy: &str, uid: &str, spec: Value, epoch: Epoch) {
        let mut object = json!({
            "apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy",
            "metadata": {"name": policy, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"},
        });
        object["metadata"]["generation"] = json!(self.rv);
        object["spec"] = spec;
        let text = self.stamp(object);
        let row = PolicyRow::decode(&text).unwrap().unwrap();
        self.see(Fact::Policy(side, Change::Put(row, epoch)));
    }

    pub(crate) fn see_pnode(&mut self, object: Value) {
        let text = self.stamp(object);
        self.see(Fact::PNode(Change::Put(PNode::decode(&text).unwrap().unwrap(), Epoch(1))));
    }

    pub(crate) fn see_vnode(&mut self, object: Value) {
        let text = self.stamp(object);
        self.see(Fact::VNode(Change::Put(VNode::decode(&text).unwrap().unwrap(), Epoch(1))));
    }

    pub(crate) fn lose_vnode(&mut self, vnode: &str) {
        let mut gone = self.vnode(vnode);
        gone["metadata"]["finalizers"] = json!([]);
        let text = self.stamp(gone);
        let row = VNode::decode(&text).unwrap().unwrap();
        self.see(Fact::VNode(Change::Gone { row, proven: true }));
    }

    pub(crate) fn see_vpod(&mut self, object: &Value) {
        self.see_vpod_in(object, Epoch(1));
    }

    /// As part of this list.
    pub(crate) fn see_vpod_in(&mut self, object: &Value, epoch: Epoch) {
        let text = self.stamp(object.clone());
        self.see(Fact::VPod(Change::Put(VPod::decode(&text, &self.pair.home).unwrap().unwrap(), epoch)));
    }

    pub(crate) fn see_ppod(&mut self, object: &Value) {
        let text = self.stamp(object.clone());
        let row = PPod::decode(&text, &self.pair.origin).unwrap().unwrap();
        self.see(Fact::PPod(Change::Put(row, Epoch(1))));
    }

    /// A warning event about a physical pod, in this list of the watch.
    pub(crate) fn see_warning_in(&mut self, epoch: u32, event: &Value) {
        let text = self.stamp(event.clone());
        let row = Warning::decode(&text).unwrap().unwrap();
        self.see(Fact::Warning(Change::Put(row, Epoch(epoch))));
    }

    pub(crate) fn lose_ppod(&mut self, object: &Value, proven: bool) {
        let text = self.stamp(object.clone());
        let row = PPod::decode(&text, &self.pair.origin).unwrap().unwrap();
        self.see(Fact::PPod(Change::Gone { row, proven }));
    }

    pub(crate) fn plan(&self, key: &Key) -> Plan<Why> {
        let plan = self.pair.plan(key, self.now);
        assert_eq!(plan, self.pair.plan(key, self.now), "planning twice gives the same plan");
        plan
    }

    /// The call that is planned.
    pub(crate) fn call(&self, key: &Key) -> Call {
        match self.plan(key) {
            Plan::Do(call, _) => *call,
            other => panic!("no call for {key:?} but {other:?}"),
        }
    }

    /// What the binding has to say of ends before they happen is written at once.
    pub(crate) fn settle(&mut self, key: &Key, call: &Call, done: Result<Answer, Refusal>) {
        self.pair.settle(key, why(key, call), call, done, self.now, &mut Dirty::default());
        self.count_ends();
    }

    /// Writes into the binding how many pods end that no user asked to end.
    pub(crate) fn count_ends(&mut self) {
        while let Plan::Do(call, _) = self.plan(&Key::Binding)
            && call.why == "CountEnds"
        {
            merge(&mut self.binding["status"], call.body().unwrap()["status"].clone());
            self.see_binding_again();
        }
    }

    /// The binding says so many ends, counted by another process at this moment.
    pub(crate) fn see_binding_counting(&mut self, ends: usize) {
        let at = format!("{:.0}", self.now.wall);
        let status = json!({"unaskedEnds": {"ends": ends, "at": at, "by": "another"}});
        self.see_binding_as(json!({}), &json!({}), &status);
    }

    pub(crate) fn refuse(&mut self, key: &Key, refusal: Refusal) {
        let call = self.call(key);
        self.settle(key, &call, Err(refusal));
    }

    /// The virtual node of this name as JSON.
    pub(crate) fn vnode(&self, vnode: &str) -> Value {
        let row = self.pair.nodes.vnode(&name(vnode)).unwrap();
        let taint = |t: &crate::nodes::row::Taint| json!({"key": t.key, "value": t.value, "effect": t.effect, "timeAdded": t.added});
        json!({
            "metadata": {
                "name": row.name.as_str(), "uid": row.uid.as_str(), "labels": row.labels, "annotations": row.annotations,
                "finalizers": row.finalizers, "deletionTimestamp": row.deleting.then_some("2026-01-01T00:00:00Z"),
            },
            "spec": {"providerID": &*row.provider_id, "taints": row.taints.iter().map(taint).collect::<Vec<_>>()},
            "status": {
                "capacity": row.capacity, "allocatable": row.allocatable,
                "conditions": row.conditions.iter().map(|c| json!({"type": c.kind, "status": c.status, "reason": c.reason, "message": c.message, "lastTransitionTime": c.last_transition_time})).collect::<Vec<_>>(),
                "nodeInfo": {"kubeletVersion": "v1.36.0"}, "addresses": [{"type": "Hostname", "address": vnode}],
            },
        })
    }

    /// Carries out the patches of a node until there is nothing left to do at this moment.
    pub(crate) fn follow_node(&mut self, node: &str) -> Plan<Why> {
        let key = Key::Node(name(node));
        loop {
            let call = match self.plan(&key) {
                Plan::Do(call, _) => call,
                // The second between two writes of a status.
                Plan::Wait(until) if until <= self.now.steady + std::time::Duration::from_secs(1) => {
                    self.pass(until.saturating_sub(self.now.steady));
                    continue;
                }
                other => return other,
            };
            let tapestry_cluster::Verb::Merge(..) = call.verb else { panic!("not a patch: {call}") };
            let mut object = self.vnode(call.target.name.as_str());
            patch(&mut object, call.body().unwrap().into_owned());
            let object = self.stamp(object);
            self.settle(&key, &call, Ok(Answer { object }));
        }
    }

    /// Time goes by.
    pub(crate) fn pass(&mut self, time: std::time::Duration) {
        self.now.steady += time;
        self.now.wall += time;
    }

    /// Carries out creations until the key rests: what is read is missing, what is created is as asked.
    fn do_all(&mut self, key: &Key) {
        while let Plan::Do(call, _) = self.plan(key) {
            let done = match &call.verb {
                tapestry_cluster::Verb::Create(body) => {
                    let mut object = body.clone();
                    object["metadata"]["uid"] = json!(format!("uid-of-{}", call.target.name));
                    Ok(Answer { object: self.stamp(object) })
                }
                tapestry_cluster::Verb::Get | tapestry_cluster::Verb::Peek => Err(Refusal::Gone),
                other => panic!("not expected here: {other:?}"),
            };
            self.settle(key, &call, done);
        }
    }
}

/// A ready node of 4 CPU, 8 GiB, 110 pods.
pub(crate) fn pnode(node: &str) -> Value {
    json!({
        "metadata": {"name": node, "uid": format!("uid-{node}"), "labels": {"zone": "a"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0"},
        },
    })
}

/// A pending virtual pod on the virtual node of `n1`, asking for one CPU.
pub(crate) fn vpod(pod: &str) -> Value {
    json!({
        "metadata": {"name": pod, "namespace": "demo", "uid": format!("v-{pod}"), "generation": 1},
        "spec": {
            "nodeName": "vnode-east-n1",
            "tolerations": [{"key": keys::TAINT_VNODE, "operator": "Exists"}],
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    })
}

/// What the physical cluster made of a create call.
pub(crate) fn created(call: &Call) -> Value {
    let tapestry_cluster::Verb::Create(body) = &call.verb else { panic!("not a create: {call}") };
    let mut object = body.clone();
    object["metadata"]["uid"] = json!(format!("p-{}", object["metadata"]["name"].as_str().unwrap()));
    object["status"] = json!({"phase": "Pending"});
    object
}

/// Puts a pod on the node that runs there.
pub(crate) fn run(scene: &mut Scene, pod: &str, extra: Value) -> (Value, Value) {
    let mut object = vpod(pod);
    merge(&mut object, extra);
    let key = Key::Pod(Uid::new(format!("v-{pod}")));
    scene.see_vpod(&object);
    let map = scene.call(&key);
    let copy = map.body().unwrap()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME].as_str().unwrap().to_owned();
    scene.see_vpod(&mapped(object.clone(), &copy, None));
    let mut ppod = created(&scene.call(&key));
    merge(&mut ppod, json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}));
    scene.see_ppod(&ppod);
    let uid = ppod["metadata"]["uid"].as_str().unwrap();
    let mut up = mapped(object, &copy, Some(uid));
    merge(&mut up, json!({"status": {"phase": "Running"}}));
    scene.see_vpod(&up);
    assert_eq!(scene.plan(&key), Plan::Rest);
    (up, ppod)
}

/// Sets the mapping annotations as our own patch would.
pub(crate) fn mapped(mut vpod: Value, ppod: &str, uid: Option<&str>) -> Value {
    let annotations = &mut vpod["metadata"]["annotations"];
    annotations[keys::PHYSICAL_POD_NAMESPACE] = json!("mount");
    annotations[keys::PHYSICAL_POD_NAME] = json!(ppod);
    if let Some(uid) = uid {
        annotations[keys::PHYSICAL_POD_UID] = json!(uid);
    }
    vpod
}

pub(crate) fn name(text: &str) -> tapestry_cluster::Name {
    tapestry_cluster::Name::parse(text).unwrap()
}

/// A JSON merge patch: as [`merge`], and null takes away.
pub(crate) fn patch(into: &mut Value, from: Value) {
    merge(into, from);
    prune(into);
}

fn prune(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(prune);
    }
}

pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
