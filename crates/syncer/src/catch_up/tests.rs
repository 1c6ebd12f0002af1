//! A pair that missed something: what waits, what runs, and when it goes on.

use serde_json::{Value, json};
use tapestry_cluster::feed::Change;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Answer, Refusal, Rv, Side, Uid, Verb};
use tapestry_engine::{Model as _, Plan};

use crate::pair::{Fact, Key};
use crate::scene::{Scene, created, mapped, merge, vpod};

fn web() -> Key {
    Key::Pod(Uid::new("v-web"))
}

/// One pod that runs, and watches that have told everything up to version 10.
fn running() -> (Scene, Value, Value) {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("web"));
    let copy = scene.call(&web()).body().unwrap()["metadata"]["annotations"].clone();
    let copy = copy[tapestry_api::keys::PHYSICAL_POD_NAME].as_str().unwrap().to_owned();
    scene.see_vpod(&mapped(vpod("web"), &copy, None));
    let mut ppod = created(&scene.call(&web()));
    merge(&mut ppod, json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}));
    scene.see_ppod(&ppod);
    let mut up = mapped(vpod("web"), &copy, ppod["metadata"]["uid"].as_str());
    merge(&mut up, json!({"status": {"phase": "Running"}}));
    scene.see_vpod(&up);
    reach(&mut scene, Side::Virtual, 10);
    reach(&mut scene, Side::Physical, 10);
    (scene, up, ppod)
}

fn reach(scene: &mut Scene, side: Side, rv: u64) {
    scene.see(match side {
        Side::Virtual => Fact::VPod(Change::Reached(Rv::new(rv))),
        Side::Physical => Fact::PPod(Change::Reached(Rv::new(rv))),
    });
}

/// The process was frozen.
fn freeze(scene: &mut Scene) {
    let now = scene.now;
    scene.pair.gap(now);
}

fn questions(scene: &Scene) -> Vec<Key> {
    scene.pair.keys().into_iter().filter(|key| matches!(key, Key::CatchUp(..))).collect()
}

fn answer(scene: &mut Scene, key: &Key, rv: u64) {
    let call = scene.call(key);
    assert_eq!(call.verb, Verb::Version);
    let object = json!({"metadata": {"resourceVersion": rv.to_string()}, "items": []}).to_string().into();
    scene.settle(key, &call, Ok(Answer { object }));
}

/// Its copy is gone, which only a read has shown.
fn lose(scene: &mut Scene, ppod: &Value) {
    scene.lose_ppod(ppod, false);
    let look = scene.call(&web());
    assert_eq!(look.why, "LookForCopy");
    scene.settle(&web(), &look, Err(Refusal::Gone));
}

#[test]
fn after_a_gap_an_end_that_was_not_asked_for_waits_until_both_watches_have_come_so_far() {
    let (mut scene, _, ppod) = running();
    freeze(&mut scene);
    lose(&mut scene, &ppod);
    assert_eq!(scene.plan(&web()), Plan::Rest);
    let asked = questions(&scene);
    assert_eq!(asked.len(), 2, "each side is asked once");
    for key in &asked {
        answer(&mut scene, key, 20);
        assert_eq!(scene.plan(key), Plan::Rest);
    }
    assert_eq!(questions(&scene), []);
    reach(&mut scene, Side::Physical, 20);
    reach(&mut scene, Side::Virtual, 19);
    assert_eq!(scene.plan(&web()), Plan::Rest, "the virtual watch is late");
    reach(&mut scene, Side::Virtual, 21);
    scene.count_ends();
    assert_eq!(scene.call(&web()).why, "PhysicalPodLost");
}

#[test]
fn what_the_late_watch_brings_may_show_that_the_end_was_asked_for() {
    let (mut scene, up, ppod) = running();
    freeze(&mut scene);
    lose(&mut scene, &ppod);
    let mut going = up;
    merge(
        &mut going["metadata"],
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}),
    );
    scene.see_vpod(&going);
    assert_eq!(scene.call(&web()).why, "Release", "and asked ends do not wait");
}

#[test]
fn without_a_gap_nothing_is_asked_and_nothing_waits() {
    let (mut scene, _, ppod) = running();
    assert_eq!(questions(&scene), []);
    lose(&mut scene, &ppod);
    assert_eq!(scene.call(&web()).why, "PhysicalPodLost");
    // Nor does a syncer ask that leads before its first lists are in: those are new by themselves.
    let mut fresh = Scene::empty();
    let now = fresh.now;
    fresh.pair.take_lead(now);
    fresh.see_binding(json!({}));
    fresh.complete();
    assert_eq!(questions(&fresh), []);
}

#[test]
fn a_new_leader_and_a_connection_that_came_back_have_to_catch_up_and_list_nothing() {
    for gap in [0, 1] {
        let (mut scene, ..) = running();
        if gap == 0 {
            let now = scene.now;
            scene.pair.take_lead(now);
        } else {
            scene.see(Fact::Connection(Side::Physical, Connection::Down("no way".to_owned())));
            scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))));
        }
        assert_eq!(questions(&scene).len(), 2);
    }
}

#[test]
fn an_answer_from_before_the_gap_is_too_old() {
    let (mut scene, _, ppod) = running();
    freeze(&mut scene);
    let asked = questions(&scene);
    let calls: Vec<_> = asked.iter().map(|key| scene.call(key)).collect();
    // Frozen once more while the answers were on their way.
    freeze(&mut scene);
    for (key, call) in asked.iter().zip(&calls) {
        let object = json!({"metadata": {"resourceVersion": "10"}, "items": []}).to_string().into();
        scene.settle(key, call, Ok(Answer { object }));
        assert_eq!(scene.plan(key), Plan::Rest, "it is not asked for any more");
    }
    lose(&mut scene, &ppod);
    assert_eq!(scene.plan(&web()), Plan::Rest);
    assert_eq!(questions(&scene).len(), 2);
}

#[test]
fn pods_that_no_longer_run_do_not_wait_for_the_catch_up() {
    let (mut scene, up, mut ppod) = running();
    freeze(&mut scene);
    merge(&mut ppod, json!({"status": {"phase": "Succeeded"}}));
    scene.see_ppod(&ppod);
    let row = crate::pods::row::VPod::decode(&scene.stamp(up), &scene.pair.home).unwrap().unwrap();
    scene.see(Fact::VPod(Change::Gone { row, proven: false }));
    let look = scene.call(&web());
    assert_eq!(look.why, "LookForVirtualPod");
    scene.settle(&web(), &look, Err(Refusal::Gone));
    assert_eq!(scene.call(&web()).why, "VirtualPodGone");
}
