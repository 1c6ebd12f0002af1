//! Plans for the backstops, one sentence at a time.

mod order;

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Answer, Call, Refusal, Rv, Side, Verb, kind};
use tapestry_domain::resources::Resources;
use tapestry_engine::Plan;

use super::row::GuardRow;
use super::want::{difference, isolation, quota_for, same};
use super::{Guard, plan::LOOK_AGAIN};
use crate::pair::{Fact, Key};
use crate::scene::{Scene, merge, pnode};

const QUOTA: Key = Key::Guard(Guard::Quota);
const POLICY: Key = Key::Guard(Guard::NetworkPolicy);

/// A scene whose binding wants this guard.
fn scene(guard: &Value) -> Scene {
    let mut scene = Scene::new();
    scene.see_binding(json!({"guard": guard}));
    scene.now.steady += Duration::from_secs(2);
    scene
}

impl Scene {
    fn answer_guard(&mut self, key: &Key, call: &Call, object: Value) {
        let object = self.stamp(object);
        self.settle(key, call, Ok(Answer { object }));
    }

    /// Finds nothing, creates, and gives what came of it.
    fn make_guard(&mut self, key: &Key) -> Value {
        assert_eq!(self.call(key).verb, Verb::Peek);
        self.refuse(key, Refusal::Gone);
        let call = self.call(key);
        let Verb::Create(body) = &call.verb else { panic!("not a creation: {call}") };
        let mut object = body.clone();
        merge(&mut object, json!({"metadata": {"uid": "g-1", "namespace": "mount"}}));
        self.answer_guard(key, &call, object.clone());
        self.now.steady += Duration::from_secs(2);
        assert_eq!(self.plan(key), Plan::Rest);
        object
    }

    /// The quota is read, so that nodes offer no more than they are to; and no write from before is on its way any more.
    fn revoke(&mut self, quota: &Value) {
        let look = self.call(&QUOTA);
        assert_eq!((look.why, &look.verb), ("LookForGuard", &Verb::Peek));
        self.answer_guard(&QUOTA, &look, quota.clone());
        let Plan::Wait(until) = self.plan(&QUOTA) else { panic!("it is lowered at once") };
        self.pass(until.saturating_sub(self.now.steady));
    }

    fn see_guard_object(&mut self, guard: Guard, object: &Value) {
        let text = self.stamp(object.clone());
        let row = GuardRow::decode(&text, guard, &self.pair.home.mount, &self.pair.origin).unwrap().unwrap();
        self.see(Fact::Guard(guard, Change::Put(row, Epoch(1))));
    }

    /// Returns the version at which it left the watch.
    fn lose_guard_object(&mut self, guard: Guard, object: &Value) -> Rv {
        let text = self.stamp(object.clone());
        let row = GuardRow::decode(&text, guard, &self.pair.home.mount, &self.pair.origin).unwrap().unwrap();
        self.see(Fact::Guard(guard, Change::Gone { row: row.clone(), proven: false }));
        row.rv
    }
}

fn resources(amounts: &[(&str, &str)]) -> Resources {
    Resources::parse(amounts.iter().copied()).unwrap()
}

#[test]
fn a_quota_names_what_is_leased_as_kubernetes_counts_it() {
    let total = resources(&[
        ("cpu", "2500m"),
        ("memory", "500000000"),
        ("pods", "20"),
        ("hugepages-2Mi", "4Mi"),
        ("nvidia.com/gpu", "3"),
        ("attachable-volumes-ebs", "39"),
        ("some.kubernetes.io/thing", "1"),
    ]);
    let hard = json!({
        "requests.cpu": "2500m", "requests.memory": "500000000", "requests.ephemeral-storage": "0", "pods": "20",
        "requests.hugepages-2Mi": "4Mi", "requests.nvidia.com/gpu": "3",
    });
    assert_eq!(Value::Object(quota_for(&total)), hard);
}

#[test]
fn law_09_what_is_not_leased_is_limited_to_nothing() {
    let hard = json!({"requests.cpu": "0", "requests.memory": "0", "requests.ephemeral-storage": "0", "pods": "0"});
    assert_eq!(Value::Object(quota_for(&Resources::new())), hard);
}

#[test]
fn what_the_physical_cluster_adds_to_a_copy_is_not_taken_from_the_quota_twice() {
    let mut scene = Scene::new();
    let (_, mut ppod) = crate::scene::run(&mut scene, "web", json!({}));
    let sidecar = json!({"name": "sidecar", "resources": {"requests": {"cpu": "100m"}}});
    ppod["spec"]["containers"].as_array_mut().unwrap().push(sidecar);
    scene.see_ppod(&ppod);
    scene.follow_node("n1");
    assert_eq!(scene.vnode("vnode-east-n1")["status"]["allocatable"]["cpu"], "3900m");
    scene.see_binding(json!({"guard": {"quota": true}}));
    scene.now.steady += Duration::from_secs(2);
    // The copy uses 1100m of it, so the 2900m fit that are left on the virtual node.
    assert_eq!(scene.make_guard(&QUOTA)["spec"]["hard"]["requests.cpu"], "4");
}

#[test]
fn a_difference_takes_away_what_a_stranger_added() {
    let want = isolation(None);
    let mut edited = want.clone();
    edited["egress"] = json!([{}]);
    edited["podSelector"]["matchExpressions"] = json!([{"key": "x", "operator": "Exists"}]);
    let patch = difference(&edited, &want);
    assert_eq!(patch, json!({"egress": want["egress"], "podSelector": {"matchExpressions": null}}));
    assert!(same(Guard::NetworkPolicy, &want, &isolation(None)) && !same(Guard::NetworkPolicy, &edited, &want));
}

#[test]
fn law_04_an_amount_in_other_words_is_no_difference() {
    let (a, b) = (json!({"hard": {"requests.memory": "500000000"}}), json!({"hard": {"requests.memory": "500M"}}));
    assert!(same(Guard::Quota, &a, &b));
    assert!(!same(Guard::Quota, &a, &json!({"hard": {"requests.memory": "501M"}})));
    assert!(!same(Guard::Quota, &a, &json!({"hard": {"requests.memory": "500M", "pods": "1"}})));
}

#[test]
fn without_a_wish_nothing_is_asked_or_made() {
    let scene = Scene::new();
    assert_eq!((scene.plan(&QUOTA), scene.plan(&POLICY)), (Plan::Rest, Plan::Rest));
}

#[test]
fn a_quota_equals_what_the_nodes_lend_and_carries_our_origin() {
    let mut scene = scene(&json!({"quota": true}));
    let look = scene.call(&QUOTA);
    assert_eq!((look.target.side, look.target.kind), (Side::Physical, &kind::RESOURCE_QUOTA));
    let made = scene.make_guard(&QUOTA);
    assert_eq!(made["metadata"]["name"], "tapestry-leased");
    assert_eq!(made["metadata"]["labels"][keys::ORIGIN], *scene.pair.origin.label);
    assert_eq!(made["metadata"]["annotations"][keys::ORIGIN], *scene.pair.origin.full);
    let hard = json!({"requests.cpu": "4", "requests.memory": "8Gi", "requests.ephemeral-storage": "0", "pods": "110"});
    assert_eq!(made["spec"]["hard"], hard);
}

#[test]
fn a_quota_is_raised_before_the_virtual_node_is_written_and_lowered_after() {
    let mut scene = scene(&json!({"quota": true}));
    let made = scene.make_guard(&QUOTA);
    let mut larger = pnode("n1");
    larger["status"]["allocatable"]["cpu"] = json!("6");
    scene.see_pnode(larger);
    let call = scene.call(&QUOTA);
    assert_eq!(call.verb, Verb::Merge(tapestry_cluster::Sub::Main, json!({"spec": {"hard": {"requests.cpu": "6"}}})));
    assert!(call.target.uid.is_some() && call.target.rv.is_none());
    let mut raised = made.clone();
    merge(&mut raised, call.body().unwrap().into_owned());
    scene.answer_guard(&QUOTA, &call, raised.clone());

    // What the node lends shrinks again, below what its virtual node still says.
    let mut smaller = pnode("n1");
    smaller["status"]["allocatable"]["cpu"] = json!("1");
    scene.see_pnode(smaller);
    assert!(matches!(scene.plan(&QUOTA), Plan::Wait(_)), "at most one write in a second");
    scene.now.steady += Duration::from_secs(2);
    scene.revoke(&raised);
    let patch = scene.call(&QUOTA).body().unwrap().into_owned();
    assert_eq!(patch["spec"]["hard"]["requests.cpu"], "4", "no lower than what the virtual node says");
}

#[test]
fn law_11_many_facts_make_one_sum_a_second() {
    let mut scene = scene(&json!({"quota": true}));
    scene.make_guard(&QUOTA);
    scene.see_pnode(pnode("n1"));
    assert_eq!(scene.plan(&QUOTA), Plan::Rest, "the first fact after a while is looked at right away");
    scene.see_pnode(pnode("n1"));
    let Plan::Wait(until) = scene.plan(&QUOTA) else { panic!("the next one waits") };
    scene.see_pnode(pnode("n1"));
    assert_eq!(scene.plan(&QUOTA), Plan::Wait(until), "and those after it with it");
    scene.now.steady = until;
    assert_eq!(scene.plan(&QUOTA), Plan::Rest);
}

#[test]
fn a_network_policy_is_created_and_restored_under_the_version_that_was_read() {
    let mut scene = scene(&json!({"networkPolicy": true}));
    assert_eq!(scene.plan(&QUOTA), Plan::Rest);
    let made = scene.make_guard(&POLICY);
    assert_eq!(made["metadata"]["name"], "tapestry-isolation");
    assert_eq!(made["spec"], isolation(None));
    let mut edited = made.clone();
    edited["spec"]["ingress"] = json!([{}]);
    edited["metadata"]["labels"][keys::MANAGED_BY] = json!("me");
    edited["metadata"]["annotations"] = json!({});
    scene.see_guard_object(Guard::NetworkPolicy, &edited);
    let call = scene.call(&POLICY);
    let patch = call.body().unwrap().into_owned();
    assert!(call.target.rv.is_some());
    assert_eq!(patch["spec"], json!({"ingress": made["spec"]["ingress"]}));
    assert_eq!(patch["metadata"]["labels"], json!({keys::MANAGED_BY: "tapestry"}));
    assert_eq!(patch["metadata"]["annotations"][keys::ORIGIN], *scene.pair.origin.full);
}

#[test]
fn pods_reach_the_virtual_api_server_at_its_address_and_name_servers_wherever_they_are() {
    let ports = |rule: &Value| rule["ports"].clone();
    let dns = json!([{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]);
    let api = json!([{"port": 6443, "protocol": "TCP"}]);
    let egress = |server| isolation(server)["egress"].as_array().unwrap().clone();
    // Whatever `virtualDNS` says: queries may go anywhere.
    assert!(egress(None).iter().any(|rule| ports(rule) == dns && rule.get("to").is_none()));
    assert!(!egress(None).iter().any(|rule| ports(rule) == api));
    for (host, to) in [
        ("10.9.8.7", json!([{"ipBlock": {"cidr": "10.9.8.7/32"}}])),
        ("fd00::7", json!([{"ipBlock": {"cidr": "fd00::7/128"}}])),
    ] {
        let rules = egress(Some((host, 6443)));
        let rule = rules.iter().find(|rule| ports(rule) == api).unwrap();
        assert_eq!(rule["to"], to, "{host}");
    }
    // A policy knows no names, and a port that is open to any address would open the owner's API server.
    assert_eq!(egress(Some(("api.virtual.example", 6443))), egress(None));
    let mut scene = scene(&json!({"networkPolicy": true}));
    scene.make_guard(&POLICY);
    let server = json!({"host": "10.9.8.7", "port": 6443});
    scene.see_binding(json!({"guard": {"networkPolicy": true}, "virtualAPIServer": server}));
    let call = scene.call(&POLICY);
    assert_eq!(
        (call.why, &call.body().unwrap()["spec"]["egress"]),
        ("MendGuard", &isolation(Some(("10.9.8.7", 6443)))["egress"])
    );
}

#[test]
fn one_that_lost_its_labels_or_its_life_is_found_again_or_made_again() {
    let mut scene = scene(&json!({"networkPolicy": true}));
    let made = scene.make_guard(&POLICY);
    let rv = scene.lose_guard_object(Guard::NetworkPolicy, &made);
    let look = scene.call(&POLICY);
    let mut stripped = made.clone();
    stripped["metadata"]["labels"] = json!({});
    // A label taken away shows as DELETED at the version that the object has now.
    stripped["metadata"]["resourceVersion"] = json!(rv.to_string());
    scene.settle(&POLICY, &look, Ok(Answer { object: stripped.to_string().into() }));
    let patch = scene.call(&POLICY).body().unwrap().into_owned();
    assert_eq!(patch["metadata"]["labels"][keys::ORIGIN], *scene.pair.origin.label);
    assert_eq!(patch["metadata"]["uid"], "g-1");

    scene.lose_guard_object(Guard::NetworkPolicy, &made);
    scene.make_guard(&POLICY);
}

#[test]
fn law_06_an_object_of_that_name_that_is_not_ours_is_left_alone() {
    let mut scene = scene(&json!({"networkPolicy": true}));
    let look = scene.call(&POLICY);
    let theirs = json!({"metadata": {"name": "tapestry-isolation", "namespace": "mount", "uid": "s"}, "spec": {}});
    scene.answer_guard(&POLICY, &look, theirs);
    assert!(matches!(scene.plan(&POLICY), Plan::Wait(_)));
    scene.now.steady += LOOK_AGAIN;
    assert_eq!(scene.call(&POLICY).verb, Verb::Peek);
    scene.see_binding(json!({"guard": {}}));
    assert_eq!(scene.plan(&POLICY), Plan::Rest, "nor when it is not wanted any more");
}

#[test]
fn what_is_switched_off_is_removed_by_its_uid() {
    let mut scene = scene(&json!({"quota": true, "networkPolicy": true}));
    for (key, guard) in [(QUOTA, Guard::Quota), (POLICY, Guard::NetworkPolicy)] {
        let made = scene.make_guard(&key);
        scene.see_binding(json!({"guard": null}));
        let call = scene.call(&key);
        assert_eq!(call.verb, Verb::Delete { grace: None });
        assert_eq!(call.target.uid.as_ref().unwrap().as_str(), "g-1");
        scene.answer_guard(&key, &call, made.clone());
        assert_eq!(scene.plan(&key), Plan::Rest);
        // A syncer that finds an unwanted one at its start removes it too.
        scene.see_guard_object(guard, &made);
        assert_eq!(scene.call(&key).why, "RemoveGuard");
        scene.lose_guard_object(guard, &made);
        scene.see_binding(json!({"guard": {"quota": true, "networkPolicy": true}}));
    }
}

#[test]
fn a_container_must_name_its_requests_only_where_a_quota_counts() {
    let asks = |scene: &Scene| super::explicit_requests(&scene.pair.bindings.bound().unwrap().binding);
    assert_eq!(asks(&scene(&json!({"quota": true}))), ["cpu", "memory"]);
    assert!(asks(&scene(&json!({"networkPolicy": true}))).is_empty());
}

#[test]
fn guards_stay_until_the_last_copy_is_gone_and_the_binding_ends_after_them() {
    let mut scene = scene(&json!({"networkPolicy": true}));
    for guard in Guard::ALL {
        scene.see(Fact::Guard(guard, Change::Listed(Epoch(1))));
    }
    scene.make_guard(&POLICY);
    scene.see_binding_leaving(json!({"guard": {"networkPolicy": true}}));
    assert_eq!(scene.plan(&POLICY), Plan::Rest, "a virtual node is there still");
    scene.lose_vnode("vnode-east-n1");
    let remove = scene.call(&POLICY);
    assert_eq!(remove.why, "RemoveGuard");
    assert_ne!(scene.call(&Key::Binding).why, "Finalizer", "not before it has gone");
    let object = scene.stamp(json!({}));
    scene.settle(&POLICY, &remove, Ok(Answer { object }));
    scene.refuse(
        &Key::Prerequisite(crate::prerequisites::Prerequisite::ServiceAccount),
        tapestry_cluster::Refusal::Gone,
    );
    assert_eq!(scene.call(&Key::Binding).why, "Finalizer");
}
