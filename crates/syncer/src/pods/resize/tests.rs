//! Resizes as plans: who is given room, what is called, what is told.

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Answer, Call, Refusal, Side, Sub, Verb};
use tapestry_engine::Plan;

use super::super::tests::{key, run};
use crate::pair::Fact;
use crate::scene::{Scene, merge, vpod};

/// A pod of so many CPUs that runs, told on both sides; returns both objects.
fn settled(scene: &mut Scene, pod: &str, cpu: &str) -> (Value, Value) {
    let (up, ppod) = run(scene, &sized(vpod(pod), cpu, 1));
    scene.see_vpod(&up);
    assert_eq!(scene.plan(&key(pod)), Plan::Rest);
    (up, ppod)
}

fn sized(mut pod: Value, cpu: &str, generation: u32) -> Value {
    pod["metadata"]["generation"] = json!(generation);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    pod
}

/// What the physical cluster makes of a call on a copy.
fn carried_out(scene: &mut Scene, call: &Call, ppod: &mut Value) -> Answer {
    match &call.verb {
        Verb::Strategic(Sub::Resize, patch) => {
            ppod["spec"]["containers"][0]["resources"] = patch["spec"]["containers"][0]["resources"].clone();
        }
        _ => merge(ppod, json!({"metadata": call.body().unwrap()["metadata"]})),
    }
    Answer { object: scene.stamp(ppod.clone()) }
}

fn pending(call: &Call) -> Value {
    let body = call.body().unwrap().into_owned();
    let conditions = body["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == "PodResizePending").unwrap().clone()
}

/// The virtual pod with this condition.
fn told(mut up: Value, condition: Value) -> Value {
    up["status"]["conditions"].as_array_mut().unwrap().push(condition);
    up
}

#[test]
fn a_resize_that_fits_is_pushed_then_marked_then_rests() {
    let mut scene = Scene::new();
    let (up, mut ppod) = settled(&mut scene, "web", "1");
    scene.see_vpod(&sized(up, "2", 2));
    let resize = scene.call(&key("web"));
    assert_eq!((resize.why, resize.target.side, resize.sub()), ("Resize", Side::Physical, Sub::Resize));
    let body = resize.body().unwrap().into_owned();
    assert_eq!(body["spec"]["containers"], json!([{"name": "c", "resources": {"requests": {"cpu": "2"}}}]));
    assert_eq!(body["metadata"]["uid"], ppod["metadata"]["uid"]);

    let answer = carried_out(&mut scene, &resize, &mut ppod);
    scene.settle(&key("web"), &resize, Ok(answer));
    let mark = scene.call(&key("web"));
    assert_eq!(mark.why, "MarkResized");
    assert_eq!(mark.body().unwrap()["metadata"]["annotations"][keys::VIRTUAL_POD_GENERATION], "2");

    let answer = carried_out(&mut scene, &mark, &mut ppod);
    scene.settle(&key("web"), &mark, Ok(answer));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    scene.pair.check_sums().unwrap();
}

#[test]
fn law_09_a_resize_that_does_not_fit_is_deferred_and_admitted_when_there_is_room() {
    let mut scene = Scene::new();
    let (up, _) = settled(&mut scene, "web", "1");
    let (big, copy) = settled(&mut scene, "big", "3");
    let grown = sized(up, "2", 2);
    scene.see_vpod(&grown);
    let told_so = scene.call(&key("web"));
    assert_eq!((told_so.why, told_so.target.side), ("DeferResize", Side::Virtual));
    let condition = pending(&told_so);
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("Deferred")));
    assert_eq!(condition["message"], "not enough cpu is lent; the pod is resized when there is room");
    scene.see_vpod(&told(grown, condition));
    assert_eq!(scene.plan(&key("web")), Plan::Rest, "said once");

    let mut ended = big;
    ended["status"]["phase"] = json!("Succeeded");
    let mut last = copy;
    last["status"]["phase"] = json!("Succeeded");
    scene.see_ppod(&last);
    scene.see_vpod(&ended);
    assert_eq!(scene.call(&key("web")).why, "Resize");
    scene.pair.check_sums().unwrap();
}

#[test]
fn law_09_two_resizes_cannot_both_take_the_last_place() {
    let mut scene = Scene::new();
    let (one, _) = settled(&mut scene, "one", "1");
    let (two, _) = settled(&mut scene, "two", "1");
    scene.see_vpod(&sized(one, "2500m", 2));
    scene.see_vpod(&sized(two, "2500m", 2));
    assert_eq!(scene.call(&key("one")).why, "Resize");
    assert_eq!(scene.call(&key("two")).why, "DeferResize");
    scene.pair.check_sums().unwrap();
}

#[test]
fn law_09_a_pod_cannot_enter_where_a_resize_took_the_room() {
    let mut scene = Scene::new();
    let (one, _) = settled(&mut scene, "one", "1");
    scene.see_vpod(&sized(one, "3500m", 2));
    scene.see_vpod(&vpod("late"));
    assert_eq!(scene.call(&key("late")).why, "Refuse");
}

#[test]
fn a_smaller_size_needs_no_room_also_where_nothing_is_lent() {
    let mut scene = Scene::new();
    let (up, _) = settled(&mut scene, "web", "2");
    scene.see_binding(json!({"suspend": true}));
    scene.see_vpod(&sized(up, "1", 2));
    assert_eq!(scene.call(&key("web")).why, "Resize");
}

#[test]
fn a_resize_on_a_node_that_is_not_lent_waits_until_it_is() {
    let mut scene = Scene::new();
    let (up, _) = settled(&mut scene, "web", "1");
    scene.see_binding(json!({"suspend": true}));
    scene.see_vpod(&sized(up, "2", 2));
    assert!(pending(&scene.call(&key("web")))["message"].as_str().unwrap().starts_with("the binding is suspended"));
    scene.see_binding(json!({}));
    assert_eq!(scene.call(&key("web")).why, "Resize");
}

#[test]
fn a_resize_that_is_taken_back_loses_its_condition_and_writes_nothing_to_the_copy() {
    let mut scene = Scene::new();
    let (up, _) = settled(&mut scene, "web", "1");
    let grown = sized(up.clone(), "9", 2);
    scene.see_vpod(&grown);
    let condition = pending(&scene.call(&key("web")));
    scene.see_vpod(&told(sized(up, "1", 3), condition));
    let untold = scene.call(&key("web"));
    // The status of the copy was forgotten when both sides agreed.
    assert_eq!((untold.why, untold.target.side), ("ReadStatus", Side::Physical));
}

#[test]
fn law_12_sizes_that_the_physical_cluster_refuses_are_infeasible_and_hold_no_room() {
    let mut scene = Scene::new();
    let (up, _) = settled(&mut scene, "web", "1");
    let grown = sized(up, "3500m", 2);
    scene.see_vpod(&grown);
    let resize = scene.call(&key("web"));
    scene.settle(&key("web"), &resize, Err(Refusal::Invalid(Box::default())));
    let told_so = scene.call(&key("web"));
    assert_eq!((told_so.why, &pending(&told_so)["reason"]), ("DeferResize", &json!("Infeasible")));
    scene.see_vpod(&vpod("late"));
    assert_eq!(scene.call(&key("late")).why, "Map", "three CPUs are free");
    scene.pair.check_sums().unwrap();
}

#[test]
fn law_08_a_crash_between_the_two_calls_repeats_the_first_one_also_on_a_full_node() {
    let mut scene = Scene::new();
    let (up, mut ppod) = settled(&mut scene, "web", "1");
    settled(&mut scene, "big", "2");
    // Resized by a process that was killed before it could say so.
    ppod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
    scene.see_ppod(&ppod);
    scene.see_vpod(&sized(up, "2", 2));
    assert_eq!(scene.call(&key("web")).why, "Resize");
    scene.pair.check_sums().unwrap();
}

#[test]
fn what_others_do_to_the_size_of_a_copy_is_not_undone() {
    let mut scene = Scene::new();
    let (_, mut ppod) = settled(&mut scene, "web", "1");
    ppod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1500m");
    scene.see_ppod(&ppod);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn an_answer_to_a_resize_counts_for_the_size_that_was_asked_for_and_no_other() {
    let mut scene = Scene::new();
    let (up, mut ppod) = settled(&mut scene, "web", "1");
    scene.see_vpod(&sized(up.clone(), "2", 2));
    let resize = scene.call(&key("web"));
    scene.see_vpod(&sized(up, "8", 3));
    let answer = carried_out(&mut scene, &resize, &mut ppod);
    scene.settle(&key("web"), &resize, Ok(answer));
    assert_eq!(scene.call(&key("web")).why, "DeferResize", "there is no room for eight");
    scene.pair.check_sums().unwrap();
}

#[test]
fn a_resize_taken_back_before_it_was_marked_is_undone() {
    for crashed in [false, true] {
        let mut scene = Scene::new();
        let (up, mut ppod) = settled(&mut scene, "web", "1");
        scene.see_vpod(&sized(up.clone(), "2", 2));
        let resize = scene.call(&key("web"));
        let answer = carried_out(&mut scene, &resize, &mut ppod);
        if crashed {
            // The new process does not remember the call.
            scene.see_ppod(&ppod);
            scene.pair.pods.cases.get_mut(&tapestry_cluster::Uid::new("v-web")).unwrap().sizing = None;
        } else {
            scene.settle(&key("web"), &resize, Ok(answer));
        }
        scene.see_vpod(&sized(up, "1", 3));
        let back = scene.call(&key("web"));
        assert_eq!(back.why, "Resize");
        assert_eq!(back.body().unwrap()["spec"]["containers"][0]["resources"]["requests"]["cpu"], "1");
    }
}

#[test]
fn law_09_a_status_that_says_infeasible_admits_nothing() {
    let mut scene = Scene::new();
    let mut sly = vpod("sly");
    sly["metadata"]["generation"] = json!(2);
    sly["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "9"}});
    sly["status"]["conditions"] = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
    sly["status"]["containerStatuses"] = json!([{"name": "c", "resources": {"requests": {"cpu": "1m"}}}]);
    scene.see_vpod(&sly);
    assert_eq!(scene.call(&key("sly")).why, "Refuse");
}

#[test]
fn a_pod_that_grew_before_it_was_made_asks_once_more() {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("web"));
    assert_eq!(scene.call(&key("web")).why, "Map");
    scene.see_vpod(&sized(vpod("web"), "9", 2));
    assert_eq!(scene.call(&key("web")).why, "Refuse");
    scene.pair.check_sums().unwrap();
}

#[test]
fn the_status_goes_on_when_a_resize_fails_for_no_reason_we_know() {
    let mut scene = Scene::new();
    let (up, _) = settled(&mut scene, "web", "1");
    scene.see_vpod(&sized(up, "2", 2));
    let resize = scene.call(&key("web"));
    scene.settle(&key("web"), &resize, Err(Refusal::Unknown("a webhook failed".to_owned())));
    assert_eq!(scene.call(&key("web")).why, "DeferResize", "it is told, and the pod's own status is not behind it");
}

#[test]
fn law_09_a_pod_that_was_to_grow_waits_for_admission_again_when_less_is_lent() {
    let mut scene = Scene::new();
    let (up, _) = settled(&mut scene, "web", "1");
    scene.see_vpod(&sized(up, "3", 2));
    assert_eq!(scene.call(&key("web")).why, "Resize");
    scene.see_policy("all", json!({"cluster": "east", "resourceLimits": [{"resource": "cpu", "quantity": "2"}]}));
    assert_eq!(scene.call(&key("web")).why, "DeferResize");
    scene.see_policy("all", json!({"cluster": "east"}));
    assert_eq!(scene.call(&key("web")).why, "Resize");
    scene.see_binding(json!({"suspend": true}));
    assert_eq!(scene.call(&key("web")).why, "DeferResize");
    scene.pair.check_sums().unwrap();
}

#[test]
fn law_09_no_pod_is_admitted_before_all_running_pods_are_known() {
    let mut before = Scene::new();
    let inside: Vec<_> = ["a", "b", "c", "d"].iter().map(|pod| settled(&mut before, pod, "1")).collect();
    let mut fresh = Scene::empty();
    fresh.see_binding(json!({}));
    fresh.see_policy("all", json!({"cluster": "east"}));
    fresh.see(Fact::Policy(Side::Physical, Change::Listed(Epoch(1))));
    fresh.see_vnode(before.vnode("vnode-east-n1"));
    // As after a restart: the virtual pods are known first, the copies last.
    fresh.see_vpod(&vpod("late"));
    for (up, _) in &inside {
        fresh.see_vpod(up);
    }
    fresh.see_pnode(crate::scene::pnode("n1"));
    assert!(!fresh.pair.pods.unmade(&tapestry_cluster::Uid::new("v-late")), "not yet");
    for (_, ppod) in &inside {
        fresh.see_ppod(ppod);
    }
    fresh.complete();
    assert_eq!(fresh.call(&key("late")).why, "Refuse", "four CPUs, four pods");
    fresh.pair.check_sums().unwrap();
}
