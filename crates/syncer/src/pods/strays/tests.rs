//! Copies whose back-pointer a client removed while no syncer watched.

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Call;
use tapestry_cluster::feed::Change;
use tapestry_cluster::{Answer, Refusal, Uid};
use tapestry_engine::Plan;

use super::*;
use crate::pair::Fact;
use crate::scene::{Scene, created, mapped, merge, vpod};

const BACK: [&str; 3] = [keys::VIRTUAL_POD_NAMESPACE, keys::VIRTUAL_POD_NAME, keys::VIRTUAL_POD_UID];

/// A pod that is copied and runs: it with what it recorded, and its copy, neither seen yet.
fn copied(scene: &mut Scene, pod: &str) -> (Value, Value) {
    let object = vpod(pod);
    scene.see_vpod(&object);
    let key = Key::Pod(Uid::new(format!("v-{pod}")));
    let map = scene.call(&key);
    let copy = map.body().unwrap()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME].as_str().unwrap().to_owned();
    scene.see_vpod(&mapped(object.clone(), &copy, None));
    let mut ppod = created(&scene.call(&key));
    merge(&mut ppod, json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}));
    let mut up = mapped(object, &copy, ppod["metadata"]["uid"].as_str());
    merge(&mut up, json!({"status": {"phase": "Running"}}));
    (up, ppod)
}

/// A running pod and its copy, as a first syncer left them.
fn left() -> (Value, Value) {
    copied(&mut Scene::new(), "web")
}

/// Another tenant's pod of the same name.
fn namesake() -> Value {
    let mut object = vpod("web");
    merge(&mut object, json!({"metadata": {"namespace": "elsewhere", "uid": "v-namesake"}}));
    object
}

fn strip(ppod: &mut Value, keys: &[&str]) {
    for part in ["labels", "annotations"] {
        if let Some(part) = ppod["metadata"][part].as_object_mut() {
            part.retain(|key, _| !keys.contains(&key.as_str()));
        }
    }
}

fn key(ppod: &Value) -> Key {
    Key::Stray(Uid::new(ppod["metadata"]["uid"].as_str().unwrap()))
}

fn answer(scene: &mut Scene, ppod: &Value, call: &Call) {
    let object = scene.stamp(ppod.clone());
    scene.settle(&key(ppod), call, Ok(Answer { object }));
}

/// Looks at it as it is.
fn look(scene: &mut Scene, ppod: &Value) {
    let call = scene.call(&key(ppod));
    assert_eq!(call.why, "LookAtStray");
    answer(scene, ppod, &call);
}

#[test]
fn a_copy_that_lost_its_back_pointer_gets_it_back_from_the_pod_that_recorded_it() {
    let (up, mut ppod) = left();
    let whole = ppod.clone();
    strip(&mut ppod, &BACK);
    let mut scene = Scene::new();
    scene.see_vpod(&up);
    scene.see_ppod(&ppod);
    let call = scene.call(&key(&ppod));
    assert_eq!((call.why, call.target.uid.is_some()), ("MarkStray", true));
    let body = call.body().unwrap().into_owned();
    for key in BACK {
        assert_eq!(body["metadata"]["annotations"][key], whole["metadata"]["annotations"][key]);
    }
    answer(&mut scene, &whole, &call);
    assert_eq!(scene.plan(&key(&ppod)), Plan::Rest);
    assert!(scene.pair.pods.copy(&Uid::new("v-web")).is_some(), "it is a copy again");
    scene.pair.check_sums().unwrap();
}

#[test]
fn law_05_a_pod_that_only_names_it_or_shares_it_gets_nothing() {
    let (up, mut ppod) = left();
    strip(&mut ppod, &BACK);
    // Its name may be guessed, its UID was not recorded.
    let mut scene = Scene::new();
    let copy = ppod["metadata"]["name"].as_str().unwrap().to_owned();
    scene.see_vpod(&mapped(vpod("web"), &copy, Some("another")));
    scene.see_ppod(&ppod);
    assert_eq!(scene.plan(&key(&ppod)), Plan::Rest);
    scene.pass(COLLECT_AFTER * 2);
    assert_eq!(scene.plan(&key(&ppod)), Plan::Rest, "a virtual pod names it: it is not collected");
    // Two say that it is theirs.
    let mut scene = Scene::new();
    scene.see_vpod(&up);
    scene.see_vpod(&mapped(namesake(), &copy, ppod["metadata"]["uid"].as_str()));
    scene.see_ppod(&ppod);
    assert_eq!(scene.plan(&key(&ppod)), Plan::Rest);
}

#[test]
fn a_stray_that_no_pod_names_is_reported_and_collected_after_a_second_live_read() {
    let (_, mut ppod) = left();
    strip(&mut ppod, &BACK);
    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    look(&mut scene, &ppod);
    let told = scene.pair.events.keys().map(|key| scene.call(&key)).collect::<Vec<_>>();
    assert_eq!(told.len(), 1);
    let event = told[0].body().unwrap().into_owned();
    assert_eq!((&event["reason"], &event["involvedObject"]["kind"]), (&json!("OrphanFound"), &json!("ClusterBinding")));
    assert!(matches!(scene.plan(&key(&ppod)), Plan::Wait(_)));
    scene.pass(COLLECT_AFTER);
    // The way to a cluster changed: what was read before proves nothing.
    scene.pair.pods.doubt_evidence();
    look(&mut scene, &ppod);
    assert_eq!(scene.pair.events.keys().count(), 1, "told once");
    let call = scene.call(&key(&ppod));
    assert_eq!((call.why, call.target.uid.is_some()), ("CollectStray", true));
    scene.lose_ppod(&ppod, true);
    assert_eq!(scene.plan(&key(&ppod)), Plan::Rest);
}

#[test]
fn law_06_an_imitation_of_our_copies_is_reported_and_left_alone() {
    for also in [keys::MANAGED_BY, keys::CLUSTER_BINDING] {
        let (_, mut ppod) = left();
        strip(&mut ppod, &BACK);
        strip(&mut ppod, &[also]);
        let mut scene = Scene::new();
        scene.see_ppod(&ppod);
        look(&mut scene, &ppod);
        scene.pass(COLLECT_AFTER * 2);
        assert_eq!(scene.plan(&key(&ppod)), Plan::Rest, "without {also}");
    }
    // And however many there are, and however often they are read: none of them would end.
    let mut scene = Scene::new();
    let crowd: Vec<Value> = (0..21)
        .map(|n| {
            let (_, mut ppod) = left();
            strip(&mut ppod, &BACK);
            strip(&mut ppod, &[keys::MANAGED_BY]);
            merge(&mut ppod, json!({"metadata": {"name": format!("like-{n}"), "uid": format!("l-{n}")}}));
            scene.see_ppod(&ppod);
            look(&mut scene, &ppod);
            ppod
        })
        .collect();
    scene.pass(COLLECT_AFTER);
    scene.pair.pods.doubt_evidence();
    for ppod in &crowd {
        look(&mut scene, ppod);
    }
    assert_eq!(scene.pair.breaker.trip(), None);
    // In another namespace nothing is ours.
    let (_, mut ppod) = left();
    strip(&mut ppod, &BACK);
    ppod["metadata"]["namespace"] = "elsewhere".into();
    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    assert_eq!(scene.plan(&key(&ppod)), Plan::Rest);
}

#[test]
fn strays_go_one_at_a_time_and_never_past_the_breaker() {
    let mut scene = Scene::new();
    let crowd: Vec<Value> = (0..21)
        .map(|n| {
            let (_, mut ppod) = left();
            strip(&mut ppod, &BACK);
            merge(&mut ppod, json!({"metadata": {"name": format!("stray-{n}"), "uid": format!("s-{n}")}}));
            scene.see_ppod(&ppod);
            look(&mut scene, &ppod);
            ppod
        })
        .collect();
    scene.pass(COLLECT_AFTER);
    let (last, first) = crowd.split_last().unwrap();
    for ppod in first {
        look(&mut scene, ppod);
    }
    let collects = |scene: &Scene| {
        first
            .iter()
            .filter(|ppod| matches!(scene.plan(&key(ppod)), Plan::Do(call, _) if call.why == "CollectStray"))
            .count()
    };
    assert_eq!(collects(&scene), 1);
    let one = first.iter().find(|ppod| matches!(scene.plan(&key(ppod)), Plan::Do(..))).unwrap();
    let call = scene.call(&key(one));
    scene.settle(&key(one), &call, Err(Refusal::Unknown("cut".into())));
    assert_eq!(collects(&scene), 0, "not so soon after another");
    scene.pass(PACE);
    assert_eq!(collects(&scene), 1);
    look(&mut scene, last);
    assert!(scene.pair.breaker.trip().is_some(), "twenty-one pods would end although no user asked for it");
    scene.pass(PACE);
    assert_eq!(collects(&scene), 0);
}

/// Makes a copy point to another virtual pod.
fn forge(ppod: &mut Value, uid: &str) {
    ppod["metadata"]["annotations"][keys::VIRTUAL_POD_UID] = uid.into();
}

#[test]
fn law_01_a_copy_whose_back_pointer_names_no_pod_is_given_back_to_the_pod_that_recorded_it() {
    let (up, mut ppod) = left();
    let whole = ppod.clone();
    forge(&mut ppod, "zzz");
    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    scene.see_vpod(&up);
    let wrong = Key::Pod(Uid::new("zzz"));
    let call = scene.call(&wrong);
    assert_eq!((call.why, call.target.uid.is_some()), ("GiveBack", true));
    let object = scene.stamp(whole);
    scene.settle(&wrong, &call, Ok(Answer { object }));
    assert_eq!(scene.plan(&wrong), Plan::Rest);
    assert!(scene.pair.pods.copy(&Uid::new("v-web")).is_some());
    scene.pair.check_sums().unwrap();
}

#[test]
fn law_01_a_copy_that_another_leader_gave_back_is_the_pods_that_names_it() {
    let (_, mut ppod) = left();
    let whole = ppod.clone();
    forge(&mut ppod, "zzz");
    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    // Its copy has not reported yet, so no UID is recorded.
    scene.see_vpod(&mapped(vpod("web"), ppod["metadata"]["name"].as_str().unwrap(), None));
    scene.see_ppod(&whole);
    assert_eq!(scene.plan(&Key::Pod(Uid::new("zzz"))), Plan::Rest);
    assert!(scene.pair.pods.copy(&Uid::new("v-web")).is_some());
}

#[test]
fn law_01_a_copy_made_to_point_to_a_neighbour_is_given_back_and_lends_nothing_twice() {
    let (up, mut ppod) = left();
    let whole = ppod.clone();
    let mut scene = Scene::new();
    // The neighbour, with a copy of its own.
    let (_, own) = copied(&mut scene, "other");
    let key = Key::Pod(Uid::new("v-other"));
    scene.see_ppod(&own);
    forge(&mut ppod, "v-other");
    scene.see_ppod(&ppod);
    assert_eq!(scene.pair.pods.used(&crate::scene::name("n1")).iter().filter(|(_, used)| !used.is_zero()).count(), 2);
    scene.see_vpod(&up);
    let call = scene.call(&key);
    assert_eq!((call.why, call.target.name.as_str()), ("GiveBack", ppod["metadata"]["name"].as_str().unwrap()));
    let object = scene.stamp(whole);
    scene.settle(&key, &call, Ok(Answer { object }));
    assert_ne!(scene.call(&key).why, "GiveBack");
    scene.pair.check_sums().unwrap();
}

#[test]
fn law_01_a_copy_made_to_point_to_a_pod_without_a_copy_is_given_back() {
    let waiting = vpod("other");
    let mut deleting = waiting.clone();
    merge(
        &mut deleting,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}}),
    );
    let mut finished = waiting.clone();
    merge(&mut finished, json!({"status": {"phase": "Succeeded"}}));
    for other in [waiting, deleting, finished] {
        let (up, mut ppod) = left();
        forge(&mut ppod, "v-other");
        let mut scene = Scene::new();
        scene.see_vpod(&up);
        scene.see_vpod(&other);
        scene.see_ppod(&ppod);
        assert_eq!(scene.call(&Key::Pod(Uid::new("v-other"))).why, "GiveBack");
    }
}

#[test]
fn law_05_a_copy_whose_pod_was_deleted_by_force_is_not_given_to_another_pod_that_names_it() {
    let (up, ppod) = left();
    let mut scene = Scene::new();
    scene.see_vpod(&up);
    scene.see_ppod(&ppod);
    let copy = ppod["metadata"]["name"].as_str().unwrap();
    scene.see_vpod(&mapped(namesake(), copy, ppod["metadata"]["uid"].as_str()));
    let row = scene.pair.pods.vpods.get(&Uid::new("v-web")).unwrap().clone();
    scene.see(Fact::VPod(Change::Gone { row, proven: true }));
    assert_eq!(scene.call(&Key::Pod(Uid::new("v-web"))).why, "VirtualPodGone");
    // Nor is a stray given to a virtual pod on a node that is not ours.
    let (_, mut ppod) = left();
    strip(&mut ppod, &BACK);
    let mut scene = Scene::new();
    let mut elsewhere = mapped(namesake(), copy, ppod["metadata"]["uid"].as_str());
    elsewhere["spec"]["nodeName"] = "vnode-east-2-n1".into();
    scene.see_vpod(&elsewhere);
    scene.see_ppod(&ppod);
    assert_eq!(scene.call(&key(&ppod)).why, "LookAtStray");
}

#[test]
fn an_answer_that_the_watch_has_overtaken_is_not_believed() {
    let (up, mut ppod) = left();
    let whole = ppod.clone();
    strip(&mut ppod, &BACK);
    let mut scene = Scene::new();
    scene.see_vpod(&up);
    scene.see_ppod(&ppod);
    let call = scene.call(&key(&ppod));
    let object = scene.stamp(whole);
    // Marked, and stripped again before we heard of it.
    scene.see_ppod(&ppod);
    scene.settle(&key(&ppod), &call, Ok(Answer { object }));
    assert_eq!(scene.call(&key(&ppod)).why, "MarkStray");
}

#[test]
fn law_05_a_mapping_copied_from_another_pod_is_replaced_at_admission() {
    let (up, ppod) = left();
    let mut scene = Scene::new();
    scene.see_vpod(&up);
    scene.see_ppod(&ppod);
    let copy = ppod["metadata"]["name"].as_str().unwrap();
    // The first name that this scene would draw is the one that the other scene has drawn.
    scene.pair.pods.fresh_mark();
    scene.see_vpod(&mapped(namesake(), copy, ppod["metadata"]["uid"].as_str()));
    let twin = Key::Pod(Uid::new("v-namesake"));
    let look = scene.call(&twin);
    assert_eq!(look.why, "LookForCopy");
    let object = scene.stamp(ppod.clone());
    scene.settle(&twin, &look, Ok(Answer { object }));
    let map = scene.call(&twin);
    assert_eq!(map.why, "Map");
    let annotations = map.body().unwrap()["metadata"]["annotations"].clone();
    assert_ne!(annotations[keys::PHYSICAL_POD_NAME], *copy);
    assert!(annotations[keys::PHYSICAL_POD_UID].is_null());
}

#[test]
fn a_deleted_pod_waits_for_its_stray_to_be_marked() {
    let (mut up, mut ppod) = left();
    strip(&mut ppod, &BACK);
    merge(
        &mut up,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}}),
    );
    let mut scene = Scene::new();
    scene.see_vpod(&up);
    let pod = Key::Pod(Uid::new("v-web"));
    let look = scene.call(&pod);
    assert_eq!(look.why, "LookForCopy");
    let object = scene.stamp(ppod.clone());
    scene.settle(&pod, &look, Ok(Answer { object }));
    assert!(matches!(scene.plan(&pod), Plan::Wait(_)), "it is not released");
    assert_eq!(scene.call(&key(&ppod)).why, "MarkStray");
}

#[test]
fn nothing_is_collected_while_a_pod_misses_its_copy_and_all_of_it_when_the_binding_goes() {
    let (mut up, mut ppod) = left();
    strip(&mut ppod, &BACK);
    strip(&mut up, &[keys::PHYSICAL_POD_NAMESPACE, keys::PHYSICAL_POD_NAME, keys::PHYSICAL_POD_UID]);
    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    look(&mut scene, &ppod);
    scene.see_vpod(&up);
    scene.pass(COLLECT_AFTER);
    assert!(matches!(scene.plan(&key(&ppod)), Plan::Wait(_)), "it may be the copy of the pod that lost its mapping");
    merge(&mut up, json!({"status": {"phase": "Succeeded"}}));
    scene.see_vpod(&up);
    look(&mut scene, &ppod);
    assert_eq!(scene.call(&key(&ppod)).why, "CollectStray");

    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    assert!(!scene.pair.pods.none_left());
    scene.see_binding_leaving(json!({}));
    look(&mut scene, &ppod);
    assert_eq!(scene.call(&key(&ppod)).why, "CollectStray");
}

#[test]
fn of_two_copies_of_one_pod_the_recorded_one_stays() {
    let (up, ppod) = left();
    let mut scene = Scene::new();
    scene.see_vpod(&up);
    scene.see_ppod(&ppod);
    let mut second = ppod.clone();
    merge(&mut second, json!({"metadata": {"name": "web-secondcopy", "uid": "p-second"}}));
    scene.see_ppod(&second);
    let pod = Key::Pod(Uid::new("v-web"));
    let call = scene.call(&pod);
    assert_eq!((call.why, call.target.name.as_str()), ("SurplusCopy", "web-secondcopy"));
    assert!(call.target.uid.is_some() && call.target.rv.is_some());
    // Its end is not taken for the end of the pod's own copy.
    merge(
        &mut second,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}}),
    );
    let object = scene.stamp(second);
    scene.settle(&pod, &call, Ok(Answer { object }));
    assert_eq!(scene.pair.pods.cases[&Uid::new("v-web")].asked, None);
}

#[test]
fn a_stray_that_was_marked_and_is_gone_before_the_watch_shows_it_is_no_longer_counted() {
    let (_, mut ppod) = left();
    let whole = ppod.clone();
    strip(&mut ppod, &BACK);
    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    scene.lose_ppod(&whole, true);
    scene.pair.check_sums().unwrap();
    assert_eq!(scene.plan(&key(&ppod)), Plan::Rest);
}

#[test]
fn law_01_a_copy_that_a_pod_on_a_node_out_of_sight_names_is_left_alone() {
    let (mut up, mut ppod) = left();
    // A node that lost our label, before a process which just started has found it again.
    up["spec"]["nodeName"] = json!("vnode-east-n9");
    forge(&mut ppod, "zzz");
    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    scene.see_vpod(&up);
    assert_eq!(scene.plan(&Key::Pod(Uid::new("zzz"))), Plan::Rest);
    // The same without a back-pointer.
    let mut scene = Scene::new();
    strip(&mut ppod, &BACK);
    scene.see_ppod(&ppod);
    scene.see_vpod(&up);
    look(&mut scene, &ppod);
    scene.pass(COLLECT_AFTER * 2);
    assert_eq!(scene.plan(&key(&ppod)), Plan::Rest);
}

#[test]
fn law_01_a_look_that_shows_the_pod_which_names_a_bent_copy_gives_it_back() {
    let (up, mut ppod) = left();
    forge(&mut ppod, "zzz");
    let mut scene = Scene::new();
    // What this process knows of the pod is older than its mapping.
    scene.see_vpod(&vpod("web"));
    scene.see_ppod(&ppod);
    let wrong = Key::Pod(Uid::new("zzz"));
    let look = scene.call(&wrong);
    assert_eq!(look.why, "LookForVirtualPod");
    let object = scene.stamp(up);
    scene.settle(&wrong, &look, Ok(Answer { object }));
    assert_eq!(scene.call(&wrong).why, "GiveBack");
}

#[test]
fn what_a_stray_may_use_is_kept_until_it_has_ended_or_gone() {
    let (_, mut ppod) = left();
    strip(&mut ppod, &BACK);
    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    assert!(!scene.pair.pods.needs_known());
    scene.see_binding_leaving(json!({}));
    let mut ended = ppod.clone();
    merge(&mut ended, json!({"status": {"phase": "Failed"}}));
    scene.see_ppod(&ended);
    assert!(scene.pair.pods.needs_known(), "one that has ended uses nothing");

    let mut scene = Scene::new();
    scene.see_ppod(&ppod);
    merge(&mut ppod, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    scene.lose_ppod(&ppod, true);
    assert!(scene.pair.pods.needs_known());
}
