//! What virtual nodes say of a physical cluster that is unreachable, refuses us or was restored, and when Kubernetes is to evict.

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::connect::AccessRefused;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Side, Uid};
use tapestry_engine::Plan;

use crate::pair::{Fact, Key};
use crate::scene::{Scene, merge, name, pnode};

fn key() -> Key {
    Key::Node(name("n1"))
}

/// The virtual node as the scene knows it.
fn vnode(scene: &Scene) -> Value {
    scene.vnode("vnode-east-n1")
}

#[test]
fn an_unreachable_physical_cluster_shows_as_taint_and_condition() {
    let mut scene = Scene::new();
    scene.see(Fact::Connection(Side::Physical, Connection::Down("refused".to_owned())));
    let patch = scene.call(&key()).body().unwrap().into_owned();
    assert!(patch["status"]["conditions"].to_string().contains("ApiServerSilent"), "{patch}");
    let mut there = vnode(&scene);
    merge(&mut there, patch);
    scene.see_vnode(there);
    let patch = scene.call(&key()).body().unwrap().into_owned();
    assert!(patch["spec"]["taints"].to_string().contains(keys::TAINT_PHYSICAL_UNREACHABLE));
}

#[test]
fn an_outage_that_lasts_makes_nodes_unknown_only_where_the_binding_says_so() {
    for (partition, outcome) in [("Hold", "True"), ("Evict", "Unknown")] {
        let mut scene = Scene::new();
        scene.see_binding(json!({"partition": partition, "evictAfterSeconds": 60}));
        let ready = |scene: &Scene| {
            let vnode = vnode(scene);
            let conditions = vnode["status"]["conditions"].as_array().unwrap();
            conditions.iter().find(|condition| condition["type"] == "Ready").unwrap()["status"].clone()
        };
        scene.see(Fact::Connection(Side::Physical, Connection::Down("refused".to_owned())));
        scene.follow_node("n1");
        scene.pass(Duration::from_secs(50));
        scene.follow_node("n1");
        assert_eq!(ready(&scene), "True", "{partition}: not yet");
        scene.pass(Duration::from_secs(20));
        scene.follow_node("n1");
        assert_eq!(ready(&scene), outcome, "{partition}");
        scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))));
        scene.follow_node("n1");
        assert_eq!(ready(&scene), "True", "{partition}: it is back");
    }
}

/// A syncer that restarted while the physical cluster is unreachable: it has all of the virtual side and nothing of the physical.
fn restarted_in_an_outage(spec: Value) -> Scene {
    let before = Scene::new();
    let mut scene = Scene::empty();
    scene.see_binding(spec);
    scene.see_vnode(vnode(&before));
    scene.see(Fact::VNode(tapestry_cluster::feed::Change::Listed(tapestry_cluster::feed::Epoch(1))));
    scene.see(Fact::Connection(Side::Virtual, Connection::Up(Uid::new("v-cluster"))));
    assert_eq!(scene.plan(&key()), Plan::Rest, "no probe has answered yet");
    scene
}

#[test]
fn a_syncer_started_during_an_outage_shows_it_and_touches_nothing_else() {
    let mut scene = restarted_in_an_outage(json!({}));
    scene.see(Fact::Connection(Side::Physical, Connection::Down("refused".to_owned())));
    let before = vnode(&scene);
    let taints = scene.call(&key());
    assert!(taints.target.rv.is_some(), "taints are one list shared with Kubernetes");
    assert_eq!(scene.follow_node("n1"), Plan::Rest);
    let mut after = vnode(&scene);
    let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
    assert!(row.has_taint(keys::TAINT_PHYSICAL_UNREACHABLE) && row.has_taint(keys::TAINT_VNODE));
    let told = row.condition(keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE).unwrap();
    assert_eq!((told.status.as_str(), told.reason.as_str()), ("False", "ApiServerSilent"));
    assert_eq!(row.condition("Ready").unwrap().status, "True", "outages never kill");
    (after["spec"], after["status"]["conditions"]) = (before["spec"].clone(), before["status"]["conditions"].clone());
    assert_eq!(after, before);
    // It answers: everything is as it was.
    scene.see_policy("all", json!({"cluster": "east"}));
    scene.see_pnode(pnode("n1"));
    scene.complete();
    scene.follow_node("n1");
    assert!(!scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap().has_taint(keys::TAINT_PHYSICAL_UNREACHABLE));
}

#[test]
fn an_outage_goes_on_counting_over_a_restart_and_a_restore_is_no_outage() {
    let mut scene = restarted_in_an_outage(json!({"partition": "Evict", "evictAfterSeconds": 60}));
    let ready = |scene: &Scene| {
        let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
        row.condition("Ready").unwrap().status.clone()
    };
    scene.see(Fact::Connection(Side::Physical, Connection::Restored("versions went back".to_owned())));
    assert_eq!(scene.plan(&key()), Plan::Rest);
    scene.see(Fact::Connection(Side::Physical, Connection::Down("refused".to_owned())));
    let due = scene.now.steady + Duration::from_mins(1);
    assert_eq!(scene.follow_node("n1"), Plan::Wait(due));
    assert_eq!(ready(&scene), "True", "not yet");
    scene.pass(Duration::from_secs(61));
    assert_eq!(scene.follow_node("n1"), Plan::Rest);
    assert_eq!(ready(&scene), "Unknown");
}

#[test]
fn a_restored_physical_cluster_does_not_count_as_unreachable_and_never_makes_nodes_unknown() {
    let mut scene = Scene::new();
    scene.see_binding(json!({"partition": "Evict", "evictAfterSeconds": 60}));
    let said = |scene: &Scene, kind: &str| {
        let vnode = vnode(scene);
        let conditions = vnode["status"]["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|condition| condition["type"] == kind).unwrap();
        format!("{} {}", condition["status"].as_str().unwrap(), condition["reason"].as_str().unwrap())
    };
    scene.see(Fact::Connection(Side::Physical, Connection::Restored("versions went back".to_owned())));
    for _ in 0..3 {
        scene.follow_node("n1");
        scene.pass(Duration::from_hours(1));
    }
    assert_eq!(said(&scene, keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE), "False PhysicalClusterRestored");
    assert_eq!(said(&scene, "Ready"), "True KubeletReady", "it answers: no pod has to go");
    // When the API server becomes unreachable after that, the time counts from then.
    scene.see(Fact::Connection(Side::Physical, Connection::Down("refused".to_owned())));
    scene.follow_node("n1");
    assert_eq!(said(&scene, keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE), "False ApiServerSilent");
    assert_eq!(said(&scene, "Ready"), "True KubeletReady", "it has only just fallen silent");
    scene.pass(Duration::from_secs(70));
    scene.follow_node("n1");
    assert!(said(&scene, "Ready").starts_with("Unknown"));
}

/// As the physical API server answers one whose token has expired, and one who lost a right.
fn refusals() -> [Connection; 2] {
    [AccessRefused::Credentials, AccessRefused::Right("eve cannot get namespaces".to_owned())].map(Connection::Refused)
}

#[test]
fn an_api_server_that_refuses_us_does_not_count_as_unreachable_and_never_makes_nodes_unknown() {
    for (refused, reason) in refusals().into_iter().zip(["CredentialsRefused", "RightMissing"]) {
        let mut scene = Scene::new();
        scene.see_binding(json!({"partition": "Evict", "evictAfterSeconds": 60}));
        let said = |scene: &Scene, kind: &str| {
            let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
            let condition = row.condition(kind).unwrap();
            format!("{} {}", condition.status, condition.reason)
        };
        // Unreachable time before the refusal does not count, and after it the time starts from zero.
        scene.see(Fact::Connection(Side::Physical, Connection::Down("no route".to_owned())));
        scene.follow_node("n1");
        scene.pass(Duration::from_secs(50));
        scene.see(Fact::Connection(Side::Physical, refused));
        for _ in 0..3 {
            scene.follow_node("n1");
            scene.pass(Duration::from_hours(1));
        }
        assert_eq!(said(&scene, keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE), format!("False {reason}"));
        assert_eq!(said(&scene, "Ready"), "True KubeletReady", "it answers: no pod has to go");
        let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
        assert!(row.has_taint(keys::TAINT_PHYSICAL_UNREACHABLE), "nothing new is placed");
        scene.see(Fact::Connection(Side::Physical, Connection::Down("no route".to_owned())));
        scene.follow_node("n1");
        assert_eq!(said(&scene, "Ready"), "True KubeletReady", "it has only just fallen silent");
        scene.pass(Duration::from_secs(70));
        scene.follow_node("n1");
        assert!(said(&scene, "Ready").starts_with("Unknown"));
    }
}

#[test]
fn a_syncer_started_with_refused_credentials_shows_that_and_ends_the_silence_before_it() {
    for refused in refusals() {
        let mut scene = restarted_in_an_outage(json!({"partition": "Evict", "evictAfterSeconds": 60}));
        scene.see(Fact::Connection(Side::Physical, Connection::Down("no route".to_owned())));
        scene.follow_node("n1");
        scene.pass(Duration::from_secs(50));
        scene.see(Fact::Connection(Side::Physical, refused));
        assert_eq!(scene.follow_node("n1"), Plan::Rest, "no time is waited for");
        scene.pass(Duration::from_hours(1));
        assert_eq!(scene.follow_node("n1"), Plan::Rest);
        let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
        assert!(row.has_taint(keys::TAINT_PHYSICAL_UNREACHABLE));
        assert_ne!(row.condition(keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE).unwrap().reason, "ApiServerSilent");
        assert_eq!(row.condition("Ready").unwrap().status, "True");
    }
}

#[test]
fn law_01_nodes_that_a_cluster_lost_sight_of_in_an_outage_are_not_mirrored_at_once() {
    let ready = |scene: &Scene| {
        let vnode = vnode(scene);
        let conditions = vnode["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|condition| condition["type"] == "Ready").unwrap()["status"].clone()
    };
    let unknown = |status: &str| {
        let mut node = pnode("n1");
        let ready = json!({"type": "Ready", "status": status, "reason": "NodeStatusUnknown"});
        node["status"]["conditions"] = json!([ready]);
        node
    };
    let outage = || {
        let mut scene = Scene::new();
        scene.see(Fact::Connection(Side::Physical, Connection::Down("refused".to_owned())));
        scene.follow_node("n1");
        scene.pass(Duration::from_mins(3));
        // The watch may resume before the next probe.
        scene.see_pnode(unknown("Unknown"));
        scene.follow_node("n1");
        scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))));
        scene.follow_node("n1");
        assert_eq!(ready(&scene), "True", "its heartbeats could not be received");
        scene
    };
    let mut scene = outage();
    scene.pass(Duration::from_secs(110));
    scene.follow_node("n1");
    assert_eq!(ready(&scene), "True");
    scene.pass(Duration::from_secs(15));
    scene.follow_node("n1");
    assert_eq!(ready(&scene), "Unknown", "by now they would have come");

    let mut scene = outage();
    scene.see_pnode(unknown("False"));
    scene.follow_node("n1");
    assert_eq!(ready(&scene), "False", "the kubelet itself says so");

    let mut scene = Scene::new();
    scene.see_pnode(unknown("Unknown"));
    scene.follow_node("n1");
    assert_eq!(ready(&scene), "Unknown", "there was no outage");
}
