//! Every cell of the table of DESIGN §9, as plans.

mod timing;

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::Change;
use tapestry_cluster::{Call, Side, Uid, Verb};
use tapestry_engine::Plan;

use crate::pair::{Fact, Key};
use crate::scene::{Scene, mapped, merge, name, pnode, run, vpod};

const HOUR: Duration = Duration::from_hours(1);
const MINUTE: Duration = Duration::from_mins(1);

fn key(pod: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{pod}")))
}

/// Announces and then deletes: returns the delete.
fn forced(scene: &mut Scene, pod: &str) -> Call {
    let announce = scene.call(&key(pod));
    assert_eq!(announce.why, "AnnounceReclaim");
    let condition = &announce.body().unwrap()["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("DisruptionTarget"), &json!("Reclaimed")));
    let row = scene.pair.pods.vpods.get_mut(&Uid::new(format!("v-{pod}"))).unwrap();
    row.digest.disruption = true;
    scene.call(&key(pod))
}

fn nightly(force: bool) -> Value {
    json!({
        "cluster": "east", "forceReclaim": force, "gracefulReclaimPeriodSeconds": 60,
        "timeWindows": [{"start": "20:00", "end": "06:00"}],
    })
}

fn taints(scene: &Scene, key: &str) -> Vec<String> {
    let row = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
    row.taints.iter().filter(|taint| taint.key == key).map(|taint| taint.effect.clone()).collect()
}

fn grace(call: &Call) -> Option<u32> {
    match call.verb {
        Verb::Delete { grace } => grace,
        _ => panic!("not a delete: {call}"),
    }
}

/// The window of the night ends at six; the scene begins at midnight.
fn end_of_window(force: bool) -> Scene {
    let mut scene = Scene::new();
    scene.see_policy("all", nightly(force));
    scene.follow_node("n1");
    run(&mut scene, "web", json!({}));
    run(
        &mut scene,
        "spared",
        json!({"spec": {"tolerations": [{"key": keys::TAINT_VNODE, "operator": "Exists"}, {"key": keys::TAINT_OUT_OF_TIME_WINDOWS, "operator": "Exists"}]}}),
    );
    run(
        &mut scene,
        "any",
        json!({"spec": {"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 300}}),
    );
    assert!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS).is_empty());
    scene.pass(6 * HOUR);
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS), ["NoSchedule"]);
    scene
}

#[test]
fn when_a_window_ends_without_force_running_pods_stay() {
    let mut scene = end_of_window(false);
    scene.pass(4 * HOUR);
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS), ["NoSchedule"]);
    for pod in ["web", "spared", "any"] {
        assert_eq!(scene.plan(&key(pod)), Plan::Rest);
    }
}

#[test]
fn when_a_window_ends_with_force_pods_have_their_grace_and_then_go_but_for_those_that_tolerate_exactly_this() {
    let mut scene = end_of_window(true);
    let Plan::Wait(until) = scene.plan(&key("web")) else { panic!("it goes at once") };
    let wait = until.saturating_sub(scene.now.steady);
    assert!(wait <= MINUTE + Duration::from_secs(1) && wait > Duration::from_secs(57), "{wait:?}");
    scene.pass(wait);
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS), ["NoExecute", "NoSchedule"]);
    assert_eq!(grace(&forced(&mut scene, "web")), Some(30));
    assert_eq!(
        grace(&forced(&mut scene, "any")),
        Some(60),
        "at most the policy's grace; tolerating everything does not help"
    );
    assert_eq!(scene.plan(&key("spared")), Plan::Rest);
}

#[test]
fn a_pod_that_is_going_slowly_is_hurried_when_force_comes() {
    let mut scene = end_of_window(true);
    let row = scene.pair.pods.vpods.get_mut(&Uid::new("v-any")).unwrap();
    row.deleting = Some(300);
    scene.pass(2 * MINUTE);
    let call = scene.call(&key("any"));
    assert_eq!((call.why, grace(&call)), ("Reclaim", Some(60)));
}

#[test]
fn a_pod_that_is_deleted_with_grace_is_going_and_not_gone() {
    let mut scene = end_of_window(true);
    scene.pass(2 * MINUTE);
    let call = forced(&mut scene, "web");
    let mut going = vpod("web");
    merge(
        &mut going,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T06:02:30Z", "deletionGracePeriodSeconds": 30}}),
    );
    let object = scene.stamp(going);
    scene.settle(&key("web"), &call, Ok(tapestry_cluster::Answer { object }));
    assert_eq!(scene.call(&key("web")).why, "VirtualPodDeleted");
}

#[test]
fn law_08_a_restart_in_the_middle_of_taking_back_goes_on_where_it_was() {
    let mut scene = Scene::new();
    let (up, ppod) = run(&mut scene, "web", json!({}));
    scene.see_binding(json!({"suspend": true}));
    scene.follow_node("n1");
    scene.pass(20 * Duration::from_secs(1));
    // As a new process learns it: virtual nodes before physical ones.
    let mut fresh = Scene::empty();
    fresh.now = scene.now;
    fresh.see_binding(json!({"suspend": true}));
    fresh.see_policy("all", json!({"cluster": "east"}));
    fresh.see_vnode(scene.vnode("vnode-east-n1"));
    fresh.see_vpod(&up);
    fresh.see_pnode(pnode("n1"));
    fresh.see_ppod(&ppod);
    fresh.complete();
    let Plan::Wait(until) = fresh.plan(&key("web")) else { panic!("reclaim does not go on") };
    let wait = until.saturating_sub(fresh.now.steady);
    assert!(wait <= Duration::from_secs(11), "it began again: {wait:?}");
    fresh.pass(wait);
    assert_eq!(forced(&mut fresh, "web").why, "Reclaim");
}

#[test]
fn when_one_stop_follows_another_every_pod_has_the_grace_of_the_second() {
    let mut scene = end_of_window(false);
    scene.pass(2 * HOUR);
    let owner = json!({"cluster": "*", "gracefulReclaimPeriodSeconds": 600, "timeWindows": [{"start": "20:00", "end": "08:00"}]});
    scene.see_policy_of(Side::Physical, "mine", owner);
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS), ["NoSchedule"]);
    let Plan::Wait(until) = scene.plan(&key("web")) else { panic!("no grace at all") };
    assert!(until.saturating_sub(scene.now.steady) > Duration::from_secs(595));
}

#[test]
fn a_resize_that_was_not_carried_out_evicts_no_pod() {
    let mut scene = Scene::new();
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": true}));
    scene.follow_node("n1");
    let (mut greedy, _) = run(&mut scene, "greedy", json!({}));
    run(&mut scene, "web", json!({}));
    greedy["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("100");
    scene.see_vpod(&greedy);
    scene.follow_node("n1");
    assert!(taints(&scene, keys::TAINT_OVER_LEASED).is_empty());
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    assert_eq!(scene.pair.check_sums(), Ok(()));
}

#[test]
fn law_09_a_pod_that_was_admitted_before_a_stop_is_not_started_during_it() {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("late"));
    let map = scene.call(&key("late"));
    let copy = map.body().unwrap()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME].as_str().unwrap().to_owned();
    scene.see_vpod(&mapped(vpod("late"), &copy, None));
    assert_eq!(scene.call(&key("late")).why, "CreateCopy");
    scene.see_binding(json!({"suspend": true}));
    assert_eq!(scene.plan(&key("late")), Plan::Rest);
    scene.see_binding(json!({"suspend": false}));
    scene.complete();
    assert_eq!(scene.call(&key("late")).why, "CreateCopy");
}

#[test]
fn inside_the_window_again_the_taint_goes_and_all_pods_stay() {
    let mut scene = end_of_window(true);
    scene.pass(14 * HOUR);
    scene.follow_node("n1");
    assert!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS).is_empty());
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    assert_eq!(scene.vnode("vnode-east-n1")["status"]["allocatable"]["cpu"], "4");
}

#[test]
fn a_tenant_who_takes_the_taint_away_wins_no_time() {
    let mut scene = end_of_window(true);
    scene.pass(30 * Duration::from_secs(1));
    let mut bare = scene.vnode("vnode-east-n1");
    bare["spec"]["taints"] = json!([]);
    scene.see_vnode(bare);
    scene.pass(29 * Duration::from_secs(1));
    scene.follow_node("n1");
    scene.pass(Duration::from_secs(3));
    assert_eq!(scene.call(&key("web")).why, "AnnounceReclaim");
}

#[test]
fn law_09_an_owners_stop_is_always_forced_and_no_toleration_helps() {
    for stop in ["suspend", "never", "owner"] {
        let mut scene = Scene::new();
        run(
            &mut scene,
            "spared",
            json!({"spec": {"tolerations": [{"key": keys::TAINT_VNODE, "operator": "Exists"}, {"key": keys::TAINT_OUT_OF_TIME_WINDOWS, "operator": "Exists"}]}}),
        );
        match stop {
            "suspend" => scene.see_binding(json!({"suspend": true})),
            "never" => {
                let mut node = pnode("n1");
                node["metadata"]["annotations"][keys::LEND] = json!(keys::LEND_NEVER);
                scene.see_pnode(node);
            }
            _ => scene.see_policy_of(
                Side::Physical,
                "mine",
                json!({"cluster": "*", "timeWindows": [{"start": "12:00", "end": "13:00"}]}),
            ),
        }
        scene.follow_node("n1");
        assert_eq!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS), ["NoSchedule"], "{stop}");
        scene.pass(31 * Duration::from_secs(1));
        scene.follow_node("n1");
        assert_eq!(forced(&mut scene, "spared").why, "Reclaim", "{stop}");
        // Lent again.
        match stop {
            "suspend" => scene.see_binding(json!({"suspend": false})),
            "never" => scene.see_pnode(pnode("n1")),
            _ => scene.see_policy_of(Side::Physical, "mine", json!({"cluster": "*"})),
        }
        scene.follow_node("n1");
        assert!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS).is_empty(), "{stop}");
    }
}

fn crowd(force: bool) -> Scene {
    let mut scene = Scene::new();
    // What the node had before we first saw it is unknown.
    scene.pass(2 * MINUTE);
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": force, "gracefulReclaimPeriodSeconds": 60}));
    scene.follow_node("n1");
    run(
        &mut scene,
        "low",
        json!({"spec": {"priority": -1}, "metadata": {"creationTimestamp": "2025-12-01T00:00:00Z"}}),
    );
    run(&mut scene, "old", json!({"metadata": {"creationTimestamp": "2025-11-01T00:00:00Z"}}));
    run(&mut scene, "new", json!({"metadata": {"creationTimestamp": "2025-12-31T00:00:00Z"}}));
    let own = json!({
        "metadata": {"name": "own", "namespace": "x", "uid": "own"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "2500m"}}}]},
        "status": {"phase": "Running"},
    });
    scene.see_ppod(&own);
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OVER_LEASED), ["NoSchedule"]);
    scene
}

#[test]
fn when_less_is_lent_than_pods_use_only_as_many_as_needed_are_evicted_lowest_and_youngest_first() {
    let mut scene = crowd(true);
    // 1500m are left for three pods of one CPU each.
    assert_eq!(scene.call(&key("low")).verb, Verb::Evict { grace: None });
    assert_eq!(scene.call(&key("new")).verb, Verb::Evict { grace: None });
    assert_eq!(scene.plan(&key("old")), Plan::Rest);
    scene.pass(2 * MINUTE);
    assert_eq!(grace(&forced(&mut scene, "low")), Some(30));
    assert!(!taints(&scene, keys::TAINT_OVER_LEASED).contains(&"NoExecute".to_owned()), "it would defeat the order");
}

#[test]
fn when_less_is_lent_without_force_running_pods_stay_and_no_new_pod_is_admitted() {
    let mut scene = crowd(false);
    scene.pass(HOUR);
    for pod in ["low", "new", "old"] {
        assert_eq!(scene.plan(&key(pod)), Plan::Rest);
    }
    scene.see_vpod(&vpod("late"));
    let told = scene.call(&key("late"));
    assert_eq!(told.body().unwrap()["status"]["conditions"][0]["reason"], "OutOfLease");
}

#[test]
fn when_no_policy_selects_the_node_it_is_drained_by_the_rules_it_was_lent_by_and_then_removed() {
    let mut scene = Scene::new();
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 7}));
    scene.follow_node("n1");
    run(&mut scene, "web", json!({}));
    scene.see_policy("all", json!({"cluster": "somebody-else"}));
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS), ["NoSchedule"]);
    assert!(matches!(scene.plan(&key("web")), Plan::Wait(_)));
    scene.pass(9 * Duration::from_secs(1));
    assert_eq!(grace(&forced(&mut scene, "web")), Some(7));
    assert_eq!(scene.follow_node("n1"), Plan::Rest, "a pod still runs there");
    assert!(taints(&scene, keys::TAINT_VNODE_DELETING).is_empty());
    let row = scene.pair.pods.vpods.get(&Uid::new("v-web")).unwrap().clone();
    let ppod = scene.pair.pods.ppods.iter().next().unwrap().clone();
    scene.see(Fact::PPod(Change::Gone { row: ppod, proven: true }));
    scene.see(Fact::VPod(Change::Gone { row, proven: true }));
    removed(&mut scene);
}

/// No pod is left on the node: it says so, and goes.
fn removed(scene: &mut Scene) {
    let node = Key::Node(name("n1"));
    while scene.call(&node).why != "RemoveNode" {
        let call = scene.call(&node);
        let mut object = scene.vnode("vnode-east-n1");
        crate::scene::patch(&mut object, call.body().unwrap().into_owned());
        let object = scene.stamp(object);
        scene.settle(&node, &call, Ok(tapestry_cluster::Answer { object }));
    }
    assert_eq!(taints(scene, keys::TAINT_VNODE_DELETING), ["NoSchedule"]);
}

#[test]
fn a_pod_without_a_copy_on_a_leaving_node_is_released_when_pods_with_copies_are_gone() {
    let mut scene = Scene::new();
    let mut daemon = vpod("daemon");
    daemon["metadata"]["ownerReferences"] = json!([{"kind": "DaemonSet", "name": "d", "controller": true}]);
    let told = json!({"type": keys::CONDITION_ADMITTED, "status": "False", "reason": "DaemonSetExcluded"});
    daemon["status"]["conditions"] = json!([told]);
    scene.see_vpod(&daemon);
    run(&mut scene, "web", json!({}));
    scene.see_policy("all", json!({"cluster": "somebody-else"}));
    scene.follow_node("n1");
    assert_eq!(scene.plan(&key("daemon")), Plan::Rest);
    let row = scene.pair.pods.vpods.get(&Uid::new("v-web")).unwrap().clone();
    let ppod = scene.pair.pods.ppods.iter().next().unwrap().clone();
    scene.see(Fact::PPod(Change::Gone { row: ppod, proven: true }));
    scene.see(Fact::VPod(Change::Gone { row, proven: true }));
    scene.follow_node("n1");
    let release = scene.call(&key("daemon"));
    assert_eq!((release.why, grace(&release)), ("ReleaseWithNode", Some(0)));
}

#[test]
fn with_reclaim_before_end_the_capacity_is_back_when_the_window_ends() {
    let mut scene = Scene::new();
    let mut policy = nightly(true);
    policy["reclaimBeforeEnd"] = json!(true);
    scene.see_policy("all", policy);
    scene.follow_node("n1");
    run(&mut scene, "web", json!({"spec": {"terminationGracePeriodSeconds": 45}}));
    // Back at 06:00: told at 06:00 − 60 s − 45 s and a second for whole seconds, forced at 06:00 − 45 s.
    scene.pass(Duration::from_secs(6 * 3600 - 108));
    assert!(matches!(scene.follow_node("n1"), Plan::Wait(_)));
    assert!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS).is_empty());
    scene.pass(2 * Duration::from_secs(1));
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS), ["NoSchedule"]);
    let Plan::Wait(until) = scene.plan(&key("web")) else { panic!("no force is planned") };
    scene.pass(until.saturating_sub(scene.now.steady));
    let end: jiff::Timestamp = "2026-01-01T06:00:00Z".parse().unwrap();
    assert!(scene.now.wall + Duration::from_secs(45) <= end, "{}", scene.now.wall);
    assert_eq!(grace(&forced(&mut scene, "web")), Some(45));
}

#[test]
fn a_refused_pod_of_a_controller_is_deleted_after_five_minutes_and_the_node_is_tainted_for_a_while() {
    let mut scene = Scene::new();
    let mut big = vpod("big");
    merge(
        &mut big,
        json!({
            "metadata": {"ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": true}]},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "9"}}}]},
        }),
    );
    scene.see_vpod(&big);
    let refuse = scene.call(&key("big"));
    assert_eq!(refuse.why, "Refuse");
    big["status"]["conditions"] = refuse.body().unwrap()["status"]["conditions"].clone();
    scene.see_vpod(&big);
    assert_eq!(scene.plan(&key("big")), Plan::Wait(scene.now.steady + 5 * MINUTE));
    scene.pass(5 * MINUTE);
    assert_eq!(scene.call(&key("big")).why, "AnnounceSendAway");
    scene.pair.pods.vpods.get_mut(&Uid::new("v-big")).unwrap().digest.disruption = true;
    let away = scene.call(&key("big"));
    assert_eq!((away.why, grace(&away)), ("SendAway", Some(0)));
    let object = scene.stamp(big);
    scene.settle(&key("big"), &away, Ok(tapestry_cluster::Answer { object }));
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_PLACEMENT_FAILED), ["NoSchedule"]);
    scene.pass(2 * MINUTE);
    scene.follow_node("n1");
    assert!(taints(&scene, keys::TAINT_PLACEMENT_FAILED).is_empty());
}
