//! What the keeper does about Leases, taints and the binding, whatever becomes of the syncer beside it.

mod lapses;

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_cluster::feed::Epoch;

use super::*;
use crate::scene::{name, named};

/// A keeper, the time, and the version that the next object gets.
struct Scene {
    keeper: Keeper,
    now: Now,
    rv: u64,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self::unasked();
        scene.see(Fact::Connection(Connection::Up(Uid::new("v-cluster"))));
        scene
    }

    /// Before the cluster has said who it is.
    fn unasked() -> Self {
        Self {
            keeper: Keeper::new(Origin::new("v-cluster", "b-uid", "east"), "b-uid"),
            now: Now { wall: "2026-01-01T00:00:00Z".parse().unwrap(), steady: Duration::from_secs(100) },
            rv: 1,
        }
    }

    /// Nothing was there before it.
    fn with_new_node() -> Self {
        let mut scene = Self::new();
        scene.see(Fact::Node(Change::Listed(Epoch(1))));
        scene.see_node(&json!([]));
        scene
    }

    fn see(&mut self, seen: Fact) {
        self.keeper.observe(seen, self.now, &mut Dirty::default());
    }

    fn stamp(&mut self, mut object: Value) -> bytes::Bytes {
        self.rv += 1;
        object["metadata"]["resourceVersion"] = json!(self.rv.to_string());
        object.to_string().into()
    }

    fn see_node(&mut self, taints: &Value) {
        let object =
            self.stamp(json!({"metadata": {"name": "vnode-east-n1", "uid": "n-uid"}, "spec": {"taints": taints}}));
        self.see(Fact::Node(Change::Put(KeptNode::decode(&object).unwrap().unwrap(), Epoch(1))));
    }

    fn see_binding(&mut self, uid: &str, status: &Value) {
        let object = self.stamp(json!({"metadata": {"name": "east", "uid": uid, "generation": 3}, "status": status}));
        self.see(Fact::Binding(Change::Put(KeptBinding::decode(&object).unwrap().unwrap(), Epoch(1))));
    }

    fn plan(&self, key: &Key) -> Plan<Why> {
        let plan = self.keeper.plan(key, self.now);
        assert_eq!(plan, self.keeper.plan(key, self.now), "planning twice gives the same plan");
        plan
    }

    fn call(&self, key: &Key) -> Call {
        match self.plan(key) {
            Plan::Do(call, _) => *call,
            other => panic!("no call for {key:?} but {other:?}"),
        }
    }

    fn settle(&mut self, key: &Key, call: &Call, done: Result<Answer, Refusal>) {
        self.keeper.settle(key, why(key, call), call, done, self.now, &mut Dirty::default());
    }

    fn pass(&mut self, time: Duration) {
        self.now.steady += time;
        self.now.wall += time;
    }

    /// The Lease as the call leaves it.
    fn answer(&mut self, call: &Call) -> bytes::Bytes {
        let mut object = call.body().unwrap().into_owned();
        object["metadata"]["uid"] = json!("l");
        self.stamp(object)
    }

    /// The conditions that would be written.
    fn conditions(&self) -> Vec<Value> {
        let call = self.call(&Key::Binding);
        assert!(call.target.rv.is_some(), "a list that others write too");
        call.body().unwrap()["status"]["conditions"].as_array().unwrap().clone()
    }
}

fn why(key: &Key, call: &Call) -> Why {
    match key {
        Key::Lease(_) => Why::Lease(named(call)),
        Key::Taint(_) => Why::Taint(named(call)),
        Key::Node(_) => Why::Node(named(call)),
        Key::Binding => Why::Binding(named(call)),
    }
}

fn lease() -> Key {
    Key::Lease(name("vnode-east-n1"))
}

fn taint() -> Key {
    Key::Taint(name("vnode-east-n1"))
}

fn stopped() -> Fact {
    Fact::Work(Work::Stopped(Trouble {
        reason: "SyncerPanicked",
        message: "look at its log".to_owned(),
        generation: None,
    }))
}

#[test]
fn the_lease_of_a_new_virtual_node_is_made_at_once_and_that_of_a_known_one_looked_for() {
    let mut scene = Scene::with_new_node();
    let create = scene.call(&lease());
    assert_eq!(create.why, "CreateLease");
    scene.settle(&lease(), &create, Err(Refusal::Exists));
    assert_eq!(scene.call(&lease()).why, "LookForLease", "another one was quicker");
    let mut restarted = Scene::new();
    restarted.see_node(&json!([]));
    restarted.see(Fact::Node(Change::Listed(Epoch(1))));
    assert_eq!(restarted.call(&lease()).why, "LookForLease");
}

#[test]
fn the_time_of_a_lease_never_goes_back_because_kubernetes_would_not_count_it() {
    let mut scene = Scene::with_new_node();
    let mut told = Vec::new();
    for hours in [0, 5, -10, 0] {
        scene.now.wall += jiff::SignedDuration::from_hours(hours);
        scene.pass(Duration::from_secs(30));
        let call = scene.call(&lease());
        let time = call.body().unwrap()["spec"]["renewTime"].as_str().unwrap().parse::<jiff::Timestamp>();
        told.push(time.unwrap());
        let object = scene.answer(&call);
        scene.settle(&lease(), &call, Ok(Answer { object }));
    }
    assert!(told.is_sorted_by(|earlier, later| earlier < later), "{told:?}");
    let ahead = told[1].duration_since(told[0]);
    assert!(ahead > jiff::SignedDuration::from_hours(4), "a clock set forward is followed: {ahead:?}");
}

#[test]
fn a_lease_is_first_renewed_when_it_is_ten_to_twenty_seconds_old() {
    let mut scene = Scene::with_new_node();
    let call = scene.call(&lease());
    let object = scene.answer(&call);
    scene.settle(&lease(), &call, Ok(Answer { object: object.clone() }));
    let due = |plan: Plan<Why>, since: Duration| match plan {
        Plan::Wait(until) => until.saturating_sub(since).as_secs(),
        other => panic!("not waiting: {other:?}"),
    };
    assert!((10..20).contains(&due(scene.plan(&lease()), scene.now.steady)));
    // A process that finds it seven seconds later takes its age into account.
    let born = scene.now;
    let mut restarted = Scene::new();
    restarted.now = born;
    restarted.pass(Duration::from_secs(7));
    restarted.see_node(&json!([]));
    restarted.see(Fact::Node(Change::Listed(Epoch(1))));
    let look = restarted.call(&lease());
    restarted.settle(&lease(), &look, Ok(Answer { object }));
    assert!((10..20).contains(&due(restarted.plan(&lease()), born.steady)));
}

#[test]
fn leases_are_renewed_whatever_becomes_of_the_binding_the_syncer_or_the_connection() {
    let mut scene = Scene::with_new_node();
    let facts = [
        Fact::Binding(Change::Listed(Epoch(2))),
        stopped(),
        Fact::Work(Work::Starts),
        Fact::Connection(Connection::Down("refused".to_owned())),
        Fact::Connection(Connection::Restored("versions went back".to_owned())),
    ];
    for fact in facts {
        let what = format!("{fact:?}");
        scene.see(fact);
        assert_eq!(scene.call(&lease()).why, "CreateLease", "{what}");
    }
    scene.see(Fact::Connection(Connection::Up(Uid::new("another"))));
    assert_eq!(scene.plan(&lease()), Plan::Rest, "but in our own cluster only");
    scene.see(Fact::Connection(Connection::Up(Uid::new("v-cluster"))));
    scene.see_binding("b-uid", &json!({"virtualClusterUID": "another"}));
    assert_eq!(scene.plan(&lease()), Plan::Rest, "nor for a binding of another one");
}

#[test]
fn law_06_the_keeper_renews_no_lease_of_another_bindings_node_to_which_a_user_gave_our_label() {
    let mut scene = Scene::new();
    scene.see(Fact::Node(Change::Listed(Epoch(1))));
    let labels = json!({keys::ORIGIN: scene.keeper.origin.label, keys::CLUSTER_BINDING: "west"});
    let object = scene.stamp(json!({"metadata": {"name": "vnode-east-n1", "uid": "n-uid", "labels": labels}}));
    scene.see(Fact::Node(Change::Put(KeptNode::decode(&object).unwrap().unwrap(), Epoch(1))));
    scene.see(stopped());
    assert_eq!((scene.plan(&lease()), scene.plan(&taint())), (Plan::Rest, Plan::Rest));
}

#[test]
fn a_lease_says_whose_node_it_is_and_is_told_so_once() {
    let mut scene = Scene::with_new_node();
    let create = scene.call(&lease());
    let origin = json!({keys::ORIGIN: "v-cluster/b-uid"});
    assert_eq!(create.body().unwrap()["metadata"]["annotations"], origin);
    // An earlier version made it.
    let mut made = create.body().unwrap().into_owned();
    made["metadata"]["uid"] = json!("l");
    made["metadata"].as_object_mut().unwrap().remove("annotations");
    let object = scene.stamp(made.clone());
    scene.settle(&lease(), &create, Ok(Answer { object }));
    scene.pass(Duration::from_secs(20));
    let renewal = scene.call(&lease());
    assert_eq!(renewal.body().unwrap()["metadata"]["annotations"], origin);
    made["metadata"]["annotations"] = origin;
    let object = scene.stamp(made);
    scene.settle(&lease(), &renewal, Ok(Answer { object }));
    scene.pass(Duration::from_secs(20));
    assert!(scene.call(&lease()).body().unwrap()["metadata"]["annotations"].is_null());
}

#[test]
fn law_01_while_the_cluster_forbids_to_ask_who_it_is_its_binding_and_nodes_prove_enough_for_leases_and_a_condition() {
    let refused = || Fact::Connection(Connection::Refused(AccessRefused::Right("no".to_owned())));
    let started = |pinned: &Value, there: bool| {
        let mut scene = Scene::unasked();
        scene.see(refused());
        scene.see_binding("b-uid", &json!({"virtualClusterUID": pinned}));
        if there {
            scene.see_node(&json!([]));
        }
        scene.see(Fact::Node(Change::Listed(Epoch(1))));
        scene.see(stopped());
        scene
    };
    let silent = |scene: &Scene| [lease(), taint(), Key::Binding].iter().all(|key| scene.plan(key) == Plan::Rest);
    let mut scene = started(&json!("v-cluster"), true);
    assert_eq!(scene.call(&lease()).why, "LookForLease");
    assert_eq!(scene.conditions()[0]["type"], "Connected");
    assert_eq!(scene.plan(&taint()), Plan::Rest, "a node is written to only in a cluster that says who it is");
    for unproven in [
        Connection::Down("no answer".to_owned()),
        Connection::Refused(AccessRefused::Credentials),
        Connection::Up(Uid::new("another")),
    ] {
        scene.see(Fact::Connection(unproven.clone()));
        assert!(silent(&scene), "{unproven:?}");
    }
    scene.see(refused());
    assert!(silent(&scene), "it has said that it is another one");
    assert!(silent(&started(&Value::Null, true)), "nothing is pinned");
    assert!(silent(&started(&json!("another"), true)), "another cluster is pinned");
    assert!(silent(&started(&json!("v-cluster"), false)), "no node of our origin");
}

/// The node as an event or an answer has it.
fn node_row(scene: &mut Scene, uid: &str) -> KeptNode {
    KeptNode::decode(&node_object(scene, uid)).unwrap().unwrap()
}

fn node_object(scene: &mut Scene, uid: &str) -> bytes::Bytes {
    scene.stamp(json!({"metadata": {"name": "vnode-east-n1", "uid": uid}, "spec": {}}))
}

fn look() -> Key {
    Key::Node(name("vnode-east-n1"))
}

#[test]
fn a_node_that_is_gone_has_no_lease_to_renew() {
    let mut proven = Scene::with_new_node();
    let row = node_row(&mut proven, "n-uid");
    proven.see(Fact::Node(Change::Gone { row, proven: true }));
    let mut looked_for = Scene::with_new_node();
    looked_for.see(Fact::Node(Change::Listed(Epoch(2))));
    let call = looked_for.call(&look());
    looked_for.settle(&look(), &call, Err(Refusal::Gone));
    let mut another = Scene::with_new_node();
    another.see(Fact::Node(Change::Listed(Epoch(2))));
    let call = another.call(&look());
    let object = node_object(&mut another, "n-uid-2");
    another.settle(&look(), &call, Ok(Answer { object }));
    for scene in [proven, looked_for, another] {
        assert_eq!(scene.plan(&lease()), Plan::Rest);
        assert_eq!(scene.keeper.keys(), [Key::Binding]);
    }
}

#[test]
fn law_01_a_node_that_left_the_watch_keeps_its_lease_until_its_name_is_free_or_anothers() {
    let leaves: [fn(&mut Scene); 2] = [
        |scene| {
            let row = node_row(scene, "n-uid");
            scene.see(Fact::Node(Change::Gone { row, proven: false }));
        },
        |scene| scene.see(Fact::Node(Change::Listed(Epoch(2)))),
    ];
    for leave in leaves {
        let mut scene = Scene::with_new_node();
        leave(&mut scene);
        assert_eq!(scene.call(&lease()).why, "CreateLease", "absence proves nothing");
        let call = scene.call(&look());
        assert_eq!((call.why, &call.verb), ("LookForNode", &Verb::Get));
        scene.settle(&look(), &call, Err(Refusal::Unknown("no answer".to_owned())));
        assert_eq!(scene.call(&look()).why, "LookForNode", "nor does silence");
        // It is there, without our label.
        let object = node_object(&mut scene, "n-uid");
        scene.settle(&look(), &call, Ok(Answer { object }));
        assert!(matches!(scene.plan(&look()), Plan::Wait(_)));
        scene.see(stopped());
        assert_eq!(scene.call(&taint()).why, "SyncerStopped", "as on any other node");
        scene.pass(Duration::from_mins(1));
        assert_eq!(scene.call(&lease()).why, "CreateLease");
        assert_eq!(scene.call(&look()).why, "LookForNode", "and is looked for again");
        // Its label is back.
        scene.see_node(&json!([]));
        assert_eq!(scene.plan(&look()), Plan::Rest);
        assert_eq!(scene.call(&lease()).why, "CreateLease");
    }
}

#[test]
fn a_node_out_of_sight_is_looked_for_at_once_when_its_lease_is_gone() {
    let mut scene = Scene::with_new_node();
    let call = scene.call(&lease());
    let object = scene.answer(&call);
    scene.settle(&lease(), &call, Ok(Answer { object }));
    scene.see(Fact::Node(Change::Listed(Epoch(2))));
    let call = scene.call(&look());
    let object = node_object(&mut scene, "n-uid");
    scene.settle(&look(), &call, Ok(Answer { object }));
    scene.pass(Duration::from_secs(20));
    assert!(matches!(scene.plan(&look()), Plan::Wait(_)));
    let renewal = scene.call(&lease());
    assert_eq!(renewal.why, "RenewLease");
    scene.settle(&lease(), &renewal, Err(Refusal::Gone));
    assert_eq!(scene.call(&look()).why, "LookForNode");
}

#[test]
fn law_03_while_the_syncer_is_stopped_nothing_new_is_scheduled_and_every_other_taint_survives() {
    let mut scene = Scene::with_new_node();
    let others = json!([{"key": "mine", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]);
    scene.see_node(&others);
    assert_eq!(scene.plan(&taint()), Plan::Rest, "the syncer has only begun");
    scene.see(stopped());
    let call = scene.call(&taint());
    assert!(call.target.rv.is_some() && call.target.uid.is_some());
    let taints = call.body().unwrap()["spec"]["taints"].clone();
    let ours = json!({"key": keys::TAINT_SYNCER_STOPPED, "effect": "NoSchedule"});
    assert_eq!(taints, json!([others[0], ours]));
    scene.see_node(&taints);
    assert_eq!(scene.plan(&taint()), Plan::Rest, "once");
    scene.see(Fact::Work(Work::Starts));
    assert_eq!(scene.plan(&taint()), Plan::Rest, "a new life has to show first that it lasts");
    scene.see(Fact::Work(Work::Goes));
    assert_eq!(scene.call(&taint()).body().unwrap()["spec"]["taints"], others);
}

#[test]
fn law_03_the_binding_says_why_and_keeps_everything_else_in_its_status() {
    let mut scene = Scene::new();
    let tripped = json!({"type": "BreakerTripped", "status": "True", "reason": "MassDeletion"});
    let connected = json!({"type": "Connected", "status": "True", "reason": "Connected", "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"});
    scene.see_binding("b-uid", &json!({"conditions": [connected, tripped], "breaker": {"id": "x"}}));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest);
    scene.see(stopped());
    let body = scene.call(&Key::Binding).body().unwrap().into_owned();
    let fields: Vec<_> = body["status"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["conditions", "observedGeneration", "phase"], "nothing else: {body}");
    assert_eq!((&body["status"]["phase"], &body["status"]["observedGeneration"]), (&json!("Failed"), &json!(3)));
    let conditions = scene.conditions();
    assert_eq!(conditions[1], tripped);
    for (place, kind) in [(0, "Connected"), (2, "Ready")] {
        let words = ["type", "status", "reason", "message", "lastTransitionTime"];
        let words = words.map(|word| conditions[place][word].as_str().unwrap());
        assert_eq!(words, [kind, "False", "SyncerPanicked", "look at its log", "2026-01-01T00:00:00Z"]);
    }
    scene.see_binding("b-uid", &body["status"]);
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "once");
    let other = Trouble { reason: "SyncerPanicked", message: "something else".to_owned(), generation: None };
    scene.see(Fact::Work(Work::Stopped(other)));
    assert_eq!(scene.conditions()[0]["message"], "something else", "what to do is always true");
    scene.see(Fact::Work(Work::Goes));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "that it works again is for the syncer to say");
}

#[test]
fn a_trouble_is_said_of_the_generation_that_it_was_found_in() {
    let mut scene = Scene::new();
    scene.see_binding("b-uid", &json!({}));
    let found_in = |generation: i64| {
        let message = "edit the binding".to_owned();
        Fact::Work(Work::Stopped(Trouble { reason: "InvalidBinding", message, generation: Some(generation) }))
    };
    scene.see(found_in(2));
    let status = scene.call(&Key::Binding).body().unwrap()["status"].clone();
    assert_eq!((&status["phase"], &status["observedGeneration"]), (&json!("Failed"), &json!(2)));
    scene.see_binding("b-uid", &status);
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "what the third generation is worth is not known yet");
    scene.see(found_in(3));
    let status = scene.call(&Key::Binding).body().unwrap()["status"].clone();
    assert_eq!(status["observedGeneration"], 3);
    let generations = status["conditions"].as_array().unwrap().iter().map(|said| said["observedGeneration"].clone());
    assert_eq!(generations.collect::<Vec<_>>(), [3, 3]);
}

#[test]
fn a_kubeconfig_that_is_not_in_use_is_reported_until_it_is() {
    let mut scene = Scene::new();
    scene.see_binding("b-uid", &json!({}));
    scene.see(Fact::Kubeconfig(None));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "all is well, and was before");
    scene.see(Fact::Kubeconfig(Some(Trouble {
        reason: "KubeconfigUnreadable",
        message: "mend it".to_owned(),
        generation: None,
    })));
    let told = scene.conditions();
    assert_eq!([&told[0]["type"], &told[0]["status"]], ["KubeconfigCurrent", "False"]);
    scene.see_binding("b-uid", &json!({"conditions": told}));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "once");
    scene.see(Fact::Kubeconfig(None));
    let told = scene.conditions();
    assert_eq!([&told[0]["status"], &told[0]["reason"]], ["True", "Current"]);
    scene.see_binding("b-uid", &json!({"conditions": told}));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest);
}

#[test]
fn law_01_another_binding_of_our_name_is_ours_no_more_if_our_own_cluster_says_so() {
    let mut scene = Scene::new();
    scene.see(Fact::Connection(Connection::Up(Uid::new("another"))));
    scene.see_binding("b-uid-2", &json!({}));
    assert!(!scene.keeper.replaced());
    scene.see(Fact::Connection(Connection::Up(Uid::new("v-cluster"))));
    assert!(scene.keeper.replaced());
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "and it is not written");
}
