use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Refusal, Uid, Verb};
use tapestry_engine::Plan;

use crate::pair::Key;
use crate::scene::{Scene, created, mapped, merge, run, vpod};

const MINUTE: Duration = Duration::from_mins(1);

fn key(pod: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{pod}")))
}

/// A pod with a copy that has no node; both as JSON.
fn waiting(scene: &mut Scene, pod: &str) -> (Value, Value) {
    let object = vpod(pod);
    scene.see_vpod(&object);
    let map = scene.call(&key(pod));
    let copy = map.body().unwrap()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME].as_str().unwrap().to_owned();
    let object = mapped(object, &copy, None);
    scene.see_vpod(&object);
    let mut ppod = created(&scene.call(&key(pod)));
    ppod["metadata"]["creationTimestamp"] = json!(format!("{:.0}", scene.now.wall));
    let why = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"});
    ppod["status"]["conditions"] = json!([why]);
    scene.see_ppod(&ppod);
    (object, ppod)
}

/// As the API server answers and the watch shows it: a pod without a node goes at once.
fn going(scene: &mut Scene, ppod: &Value) -> Value {
    let mut gone = ppod.clone();
    gone["metadata"]["deletionTimestamp"] = json!(format!("{:.0}", scene.now.wall));
    gone["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    gone
}

fn give_up(scene: &mut Scene, pod: &str, ppod: &Value) {
    scene.pass(5 * MINUTE);
    let delete = scene.call(&key(pod));
    assert_eq!((delete.why, &delete.verb), ("NotScheduled", &Verb::Delete { grace: None }));
    assert!(delete.target.uid.is_some() && delete.target.rv.is_some(), "under what we looked at: {delete}");
    let gone = going(scene, ppod);
    let object = scene.stamp(gone);
    scene.settle(&key(pod), &delete, Ok(Answer { object }));
}

#[test]
fn a_copy_that_is_not_scheduled_for_five_minutes_is_deleted_and_then_its_pod_fails() {
    let mut scene = Scene::new();
    let (up, ppod) = waiting(&mut scene, "web");
    assert_eq!(scene.plan(&key("web")), Plan::Wait(scene.now.steady + 5 * MINUTE));
    give_up(&mut scene, "web", &ppod);
    assert_eq!(scene.plan(&key("web")), Plan::Rest, "not before it is gone, and nothing is said of its deletion");
    let gone = going(&mut scene, &ppod);
    scene.lose_ppod(&gone, true);
    // The node is tainted first, so that the next pod of its controller goes elsewhere.
    assert!(matches!(scene.plan(&key("web")), Plan::Wait(_)));
    scene.follow_node("n1");
    let fail = scene.call(&key("web"));
    assert_eq!(fail.why, "PhysicalUnschedulable");
    assert!(fail.target.rv.is_some());
    let status = fail.body().unwrap().into_owned()["status"].clone();
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("PhysicalUnschedulable")));
    assert!(status["message"].as_str().unwrap().ends_with("0/1 nodes are available"), "{status}");
    let conditions = status["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|one| one["type"] == "DisruptionTarget" && one["status"] == "True"), "{status}");

    let mut failed = up;
    merge(&mut failed, json!({"status": {"phase": "Failed", "reason": "PhysicalUnschedulable"}}));
    let object = scene.stamp(failed);
    scene.settle(&key("web"), &fail, Ok(Answer { object }));
    let event = scene.call(&Key::Event(1)).body().unwrap().into_owned();
    assert_eq!((&event["reason"], &event["involvedObject"]["uid"]), (&json!("FailedSchedulingPod"), &json!("v-web")));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    assert_eq!(scene.pair.check_sums(), Ok(()));
}

#[test]
fn a_node_that_cannot_be_tainted_does_not_keep_the_pod_from_failing() {
    let mut scene = Scene::new();
    let (_, ppod) = waiting(&mut scene, "web");
    give_up(&mut scene, "web", &ppod);
    let gone = going(&mut scene, &ppod);
    scene.lose_ppod(&gone, true);
    let Plan::Wait(until) = scene.plan(&key("web")) else { panic!("it waits for nothing") };
    scene.pass(until.saturating_sub(scene.now.steady));
    assert_eq!(scene.call(&key("web")).why, "PhysicalUnschedulable");
}

#[test]
fn law_02_a_copy_that_finds_its_node_in_time_stays() {
    let mut scene = Scene::new();
    let (_, mut ppod) = waiting(&mut scene, "web");
    scene.pass(5 * MINUTE);
    let delete = scene.call(&key("web"));
    // It was placed before the call arrived.
    scene.settle(&key("web"), &delete, Err(Refusal::Replaced));
    ppod["spec"]["nodeName"] = json!("n1");
    scene.see_ppod(&ppod);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    scene.pass(60 * MINUTE);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn a_restart_does_not_begin_the_five_minutes_again_and_a_wrong_clock_does_not_end_them_at_once() {
    let mut scene = Scene::new();
    let (up, ppod) = waiting(&mut scene, "web");
    scene.pass(4 * MINUTE + MINUTE / 2);
    let mut fresh = Scene::new();
    fresh.now = scene.now;
    fresh.see_vpod(&up);
    fresh.see_ppod(&ppod);
    assert_eq!(fresh.plan(&key("web")), Plan::Wait(fresh.now.steady + MINUTE));
    let mut skewed = Scene::new();
    let mut old = ppod;
    old["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    skewed.see_vpod(&up);
    skewed.see_ppod(&old);
    assert_eq!(skewed.plan(&key("web")), Plan::Wait(skewed.now.steady + MINUTE));
    skewed.pass(MINUTE);
    assert_eq!(skewed.call(&key("web")).why, "NotScheduled");
}

#[test]
fn law_08_a_crash_between_deletion_and_failure_only_begins_again() {
    let mut scene = Scene::new();
    let (up, ppod) = waiting(&mut scene, "web");
    give_up(&mut scene, "web", &ppod);
    let mut fresh = Scene::new();
    fresh.see_vpod(&up);
    let create = fresh.call(&key("web"));
    assert_eq!((create.why, create.target.name.as_str()), ("CreateCopy", ppod["metadata"]["name"].as_str().unwrap()));
}

#[test]
fn a_copy_whose_end_no_watch_showed_is_looked_for_before_its_pod_fails() {
    let mut scene = Scene::new();
    let (_, ppod) = waiting(&mut scene, "web");
    give_up(&mut scene, "web", &ppod);
    scene.lose_ppod(&ppod, false);
    scene.follow_node("n1");
    let look = scene.call(&key("web"));
    assert_eq!(look.why, "LookForCopy");
    scene.settle(&key("web"), &look, Err(Refusal::Gone));
    assert_eq!(scene.call(&key("web")).why, "PhysicalUnschedulable");
}

#[test]
fn law_01_the_breaker_does_not_weigh_copies_that_never_ran_and_holds_them_while_it_is_tripped() {
    let mut scene = Scene::new();
    let small =
        json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "10m"}}}]}});
    let all: Vec<_> = (0..30)
        .map(|n| {
            let pod = format!("p{n}");
            let mut object = vpod(&pod);
            merge(&mut object, small.clone());
            scene.see_vpod(&object);
            let map = scene.call(&key(&pod));
            let annotations = map.body().unwrap()["metadata"]["annotations"].clone();
            let object = mapped(object, annotations[keys::PHYSICAL_POD_NAME].as_str().unwrap(), None);
            scene.see_vpod(&object);
            let mut ppod = created(&scene.call(&key(&pod)));
            ppod["metadata"]["creationTimestamp"] = json!(format!("{:.0}", scene.now.wall));
            scene.see_ppod(&ppod);
            (pod, ppod)
        })
        .collect();
    scene.pass(5 * MINUTE);
    for (pod, ppod) in &all {
        let delete = scene.call(&key(pod));
        let gone = going(&mut scene, ppod);
        let object = scene.stamp(gone.clone());
        scene.settle(&key(pod), &delete, Ok(Answer { object }));
        scene.lose_ppod(&gone, true);
    }
    assert!(scene.pair.breaker.trip().is_none());
    scene.follow_node("n1");
    for (pod, _) in &all {
        assert_eq!(scene.call(&key(pod)).why, "PhysicalUnschedulable");
    }
    let mut tripped = Scene::new();
    let (_, lost) = run(&mut tripped, "lost", json!({}));
    waiting(&mut tripped, "web");
    tripped.lose_ppod(&lost, false);
    let trip = json!({"id": "trip-1", "ends": 30, "pods": 40, "since": "2026-01-01T00:00:00Z"});
    tripped.see_binding_tripped(&trip, "");
    tripped.pass(5 * MINUTE);
    assert!(tripped.pair.breaker.trip().is_some());
    assert_eq!(tripped.plan(&key("web")), Plan::Rest);
}

#[test]
fn a_pod_that_was_placed_never_counts_as_unscheduled() {
    let mut scene = Scene::new();
    run(&mut scene, "web", json!({}));
    scene.pass(60 * MINUTE);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn law_08_a_lost_answer_to_the_deletion_fails_the_pod_for_the_same_reason() {
    for planned in [true, false] {
        let mut scene = Scene::new();
        let (_, ppod) = waiting(&mut scene, "web");
        scene.pass(5 * MINUTE);
        if planned {
            let delete = scene.call(&key("web"));
            scene.settle(&key("web"), &delete, Err(Refusal::Unknown("no answer".to_owned())));
        }
        let gone = going(&mut scene, &ppod);
        scene.lose_ppod(&gone, true);
        assert!(matches!(scene.plan(&key("web")), Plan::Wait(_)), "the node is tainted first");
        scene.follow_node("n1");
        assert_eq!(scene.call(&key("web")).why, "PhysicalUnschedulable", "planned by this process: {planned}");
    }
}

#[test]
fn a_copy_that_another_client_deletes_before_its_time_is_lost_and_its_node_stays_open() {
    let mut scene = Scene::new();
    let (_, ppod) = waiting(&mut scene, "web");
    scene.pass(MINUTE);
    let gone = going(&mut scene, &ppod);
    scene.lose_ppod(&gone, true);
    assert_ne!(scene.call(&key("web")).why, "PhysicalUnschedulable");
}
