//! What a watch that is out of sync stops, what it leaves alone, and who says so.

use std::sync::Arc;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::probe::Connection;
use tapestry_cluster::watch::{Query, Trouble, WatchState};
use tapestry_cluster::watches::{Reader, Watched};
use tapestry_cluster::{Kind, Side, Uid, kind};
use tapestry_engine::Plan;

use crate::pair::{Fact, Key};
use crate::scene::{Scene, created, mapped, name, vpod};

fn watched(side: Side, kind: &'static Kind) -> Watched {
    watched_by(Reader::Syncer, side, kind)
}

fn watched_by(reader: Reader, side: Side, kind: &'static Kind) -> Watched {
    Watched { reader, side, query: Arc::new(Query::all(kind)) }
}

fn refused(scene: &mut Scene, side: Side, kind: &'static Kind) {
    let why = format!("HTTP 403 {} is forbidden", kind.plural);
    let state = WatchState::OutOfSync(Trouble { verb: "watch", why });
    scene.see(Fact::Watch(watched(side, kind), state));
}

fn works(scene: &mut Scene, side: Side, kind: &'static Kind) {
    scene.see(Fact::Watch(watched(side, kind), WatchState::InSync));
}

fn pod(name: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{name}")))
}

/// What the virtual node says once everything is written.
fn vnode(scene: &mut Scene) -> Value {
    scene.follow_node("n1");
    scene.vnode("vnode-east-n1")
}

fn lending(vnode: &Value) -> (Value, Value) {
    let conditions = vnode["status"]["conditions"].as_array().unwrap();
    let lending = conditions.iter().find(|condition| condition["type"] == keys::CONDITION_LENDING).unwrap();
    (lending["status"].clone(), lending["reason"].clone())
}

fn tainted(vnode: &Value) -> bool {
    vnode["spec"]["taints"].as_array().unwrap().iter().any(|taint| taint["key"] == keys::TAINT_OUT_OF_SYNC)
}

/// Every watch that tells who uses what, who may lend what, and who asks.
const RELIED_ON: [(Side, &Kind); 7] = [
    (Side::Physical, &kind::POD),
    (Side::Physical, &kind::NODE),
    (Side::Physical, &kind::POLICY),
    (Side::Virtual, &kind::POD),
    (Side::Virtual, &kind::NODE),
    (Side::Virtual, &kind::POLICY),
    (Side::Virtual, &kind::CLUSTER_BINDING),
];

#[test]
fn law_09_nothing_new_is_admitted_while_a_watch_is_out_of_sync_and_all_heals_by_itself() {
    for (side, kind) in RELIED_ON {
        let mut scene = Scene::new();
        scene.see_vpod(&vpod("old"));
        let map = scene.call(&pod("old"));
        let copy = map.body().unwrap()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME].clone();
        scene.see_vpod(&mapped(vpod("old"), copy.as_str().unwrap(), None));
        let create = scene.call(&pod("old"));
        scene.see_ppod(&created(&create));
        refused(&mut scene, side, kind);

        scene.see_vpod(&vpod("new"));
        let call = scene.call(&pod("new"));
        assert_eq!(call.why, "Refuse", "{side:?} {}", kind.plural);
        assert_eq!(call.body().unwrap()["status"]["conditions"][0]["reason"], "WatchOutOfSync");
        assert_eq!(scene.plan(&pod("old")), Plan::Rest, "who runs goes on");
        let node = vnode(&mut scene);
        assert_eq!(lending(&node), (json!("False"), json!("WatchOutOfSync")));
        assert_eq!(node["status"]["allocatable"]["cpu"], "0");
        assert!(tainted(&node));

        works(&mut scene, side, kind);
        assert_eq!(scene.call(&pod("new")).why, "Map");
        let node = vnode(&mut scene);
        assert_eq!((lending(&node).0, tainted(&node)), (json!("True"), false));
        assert_eq!(node["status"]["allocatable"]["cpu"], "4");
    }
}

#[test]
fn law_12_the_binding_and_readiness_say_what_cannot_be_watched_and_where() {
    let mut scene = Scene::new();
    assert_eq!(scene.pair.lacks(), None);
    refused(&mut scene, Side::Physical, &kind::POD);
    let condition = scene.call(&Key::Binding).body().unwrap()["status"]["conditions"][0].clone();
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("WatchOutOfSync")));
    let message = condition["message"].as_str().unwrap();
    let told = "cannot watch pods in the physical cluster: HTTP 403 pods is forbidden; no new pod is admitted";
    assert!(message.starts_with(told), "{message}");
    assert_eq!(scene.pair.lacks().as_deref(), Some(message));
    works(&mut scene, Side::Physical, &kind::POD);
    assert_eq!(scene.pair.lacks(), None);
}

#[test]
fn a_failing_watch_that_admission_does_not_need_is_reported_and_stops_nothing() {
    for (side, kind) in [(Side::Physical, &kind::CSI_NODE), (Side::Physical, &kind::RESOURCE_QUOTA)] {
        let mut scene = Scene::new();
        refused(&mut scene, side, kind);
        scene.see_vpod(&vpod("new"));
        assert_eq!(scene.call(&pod("new")).why, "Map");
        assert!(scene.pair.lacks().unwrap().contains(kind.plural));
        assert!(scene.pair.lacks().unwrap().contains("pods are not affected"));
    }
}

#[test]
fn while_the_cluster_itself_does_not_answer_that_is_what_is_said_and_nodes_keep_what_they_offer() {
    let mut scene = Scene::new();
    scene.see(Fact::Connection(Side::Physical, Connection::Down("no route".to_owned())));
    refused(&mut scene, Side::Physical, &kind::POD);
    let condition = scene.call(&Key::Binding).body().unwrap()["status"]["conditions"][0].clone();
    assert_eq!(condition["reason"], "Unreachable");
    let node = vnode(&mut scene);
    assert_eq!((node["status"]["allocatable"]["cpu"].clone(), tainted(&node)), (json!("4"), false));
}

#[test]
fn law_09_an_outage_does_not_open_admission_that_a_watch_had_closed_before_it() {
    let mut scene = Scene::new();
    refused(&mut scene, Side::Physical, &kind::POD);
    scene.see_vpod(&vpod("new"));
    let shut = |scene: &mut Scene| {
        let node = vnode(scene);
        assert_eq!((&node["status"]["allocatable"]["cpu"], tainted(&node)), (&json!("0"), true));
        assert_eq!(lending(&node), (json!("False"), json!("WatchOutOfSync")));
    };
    shut(&mut scene);
    scene.see(Fact::Connection(Side::Physical, Connection::Down("it restarts".to_owned())));
    shut(&mut scene);
    // The same trouble in other words.
    let state = WatchState::OutOfSync(Trouble { verb: "watch", why: "connection refused".to_owned() });
    scene.see(Fact::Watch(watched(Side::Physical, &kind::POD), state));
    shut(&mut scene);
    scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))));
    shut(&mut scene);
    assert_eq!(scene.call(&pod("new")).why, "Refuse");
    works(&mut scene, Side::Physical, &kind::POD);
    assert_eq!(scene.call(&pod("new")).why, "Map");
}

#[test]
fn no_virtual_node_is_made_while_a_watch_is_out_of_sync() {
    let mut scene = Scene::new();
    refused(&mut scene, Side::Physical, &kind::POD);
    scene.see_pnode(crate::scene::pnode("n2"));
    let n2 = Key::Node(name("n2"));
    assert_eq!(scene.plan(&n2), Plan::Rest);
    works(&mut scene, Side::Physical, &kind::POD);
    // No node of ours has its other name.
    scene.refuse(&n2, tapestry_cluster::Refusal::Gone);
    assert_eq!(scene.call(&n2).why, "CreateNode");
}

/// A syncer that has just started, beside a virtual node of the one before it, and has read everything but the physical pods.
fn started_without_pods() -> Scene {
    let node = Scene::new().vnode("vnode-east-n1");
    let mut scene = Scene::empty();
    scene.see_binding(json!({}));
    scene.see_policy("all", json!({"cluster": "east"}));
    scene.see_pnode(crate::scene::pnode("n1"));
    scene.see_vnode(node);
    for seen in [
        Fact::Policy(Side::Virtual, Change::Listed(Epoch(1))),
        Fact::Policy(Side::Physical, Change::Listed(Epoch(1))),
        Fact::VNode(Change::Listed(Epoch(1))),
        Fact::PNode(Change::Listed(Epoch(1))),
        Fact::VPod(Change::Listed(Epoch(1))),
        Fact::Connection(Side::Virtual, Connection::Up(Uid::new("v-cluster"))),
        Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))),
    ] {
        scene.see(seen);
    }
    scene
}

#[test]
fn law_12_a_syncer_that_is_blind_from_the_start_says_so_on_nodes_and_pods() {
    let mut scene = started_without_pods();
    let n1 = Key::Node(name("n1"));
    assert_eq!(scene.plan(&n1), Plan::Rest, "lists take a while");
    scene.see_vpod(&vpod("new"));
    scene.see_vpod(&mapped(vpod("old"), "old-aaaaaaaaaa", Some("p-old")));
    refused(&mut scene, Side::Physical, &kind::POD);

    let node = vnode(&mut scene);
    assert_eq!(lending(&node), (json!("False"), json!("WatchOutOfSync")));
    assert_eq!((&node["status"]["allocatable"]["cpu"], tainted(&node)), (&json!("0"), true));
    assert_eq!(scene.plan(&n1), Plan::Rest, "it says so once");
    let call = scene.call(&pod("new"));
    assert_eq!(call.why, "Refuse");
    assert_eq!(call.body().unwrap()["status"]["conditions"][0]["reason"], "WatchOutOfSync");
    assert_eq!(scene.plan(&pod("old")), Plan::Rest, "it may run");

    scene.see(Fact::PPod(Change::Listed(Epoch(1))));
    works(&mut scene, Side::Physical, &kind::POD);
    scene.prepare();
    let node = vnode(&mut scene);
    assert_eq!((lending(&node).0, tainted(&node)), (json!("True"), false));
    assert_eq!(node["status"]["allocatable"]["cpu"], "4");
    assert_eq!(scene.call(&pod("new")).why, "Map");
}

#[test]
fn law_12_a_failing_watch_of_the_keeper_or_the_election_is_reported_and_stops_no_pod() {
    for (reader, kind, told) in [
        (Reader::Keeper, &kind::NODE, "the keeper of the nodes' Leases cannot watch nodes in the virtual cluster"),
        (Reader::Election, &kind::LEASE, "the leader election cannot watch leases in the virtual cluster"),
    ] {
        let mut scene = Scene::new();
        let state = WatchState::OutOfSync(Trouble { verb: "watch", why: "forbidden".to_owned() });
        scene.see(Fact::Watch(watched_by(reader, Side::Virtual, kind), state));
        let lacks = scene.pair.lacks().unwrap();
        assert!(lacks.starts_with(told) && lacks.contains("pods are not affected"), "{lacks}");
        scene.see_vpod(&vpod("new"));
        assert_eq!(scene.call(&pod("new")).why, "Map");
        scene.see(Fact::Watch(watched_by(reader, Side::Virtual, kind), WatchState::InSync));
        assert_eq!(scene.pair.lacks(), None);
    }
}
