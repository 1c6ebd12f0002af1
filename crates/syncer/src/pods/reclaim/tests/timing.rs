//! When capacity is taken back: early ends, dips, forgeries, and whose clock runs.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_engine::Plan;

use super::{HOUR, MINUTE, forced, grace, key, nightly, run, taints};
use crate::pair::Key;
use crate::scene::{Scene, name, pnode};

const SECOND: Duration = Duration::from_secs(1);

fn at(time: &str) -> Timestamp {
    format!("2026-01-01T{time}Z").parse().unwrap()
}

#[test]
fn a_node_that_shrinks_for_a_moment_evicts_no_pod_and_one_that_shrinks_for_good_does() {
    let mut scene = Scene::new();
    scene.pass(2 * MINUTE);
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 60}));
    scene.follow_node("n1");
    run(&mut scene, "web", json!({}));
    let mut dip = pnode("n1");
    dip["status"]["allocatable"]["cpu"] = json!("0");
    scene.see_pnode(dip.clone());
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OVER_LEASED), ["NoSchedule"], "no pod comes meanwhile");
    let Plan::Wait(until) = scene.plan(&key("web")) else { panic!("it is not ridden out") };
    scene.pass(MINUTE);
    scene.see_pnode(pnode("n1"));
    scene.follow_node("n1");
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    assert!(taints(&scene, keys::TAINT_OVER_LEASED).is_empty());
    assert!(until > scene.now.steady);

    scene.pass(2 * MINUTE);
    scene.see_pnode(dip);
    scene.follow_node("n1");
    scene.pass(2 * MINUTE);
    assert_eq!(scene.call(&key("web")).why, "Evict");
}

#[test]
fn law_08_a_dip_that_a_restart_hides_is_ridden_out_as_well() {
    let mut scene = Scene::new();
    let force = json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 60});
    scene.see_policy("all", force.clone());
    scene.follow_node("n1");
    let (up, ppod) = run(&mut scene, "web", json!({}));
    let mut dip = pnode("n1");
    dip["status"]["allocatable"]["cpu"] = json!("0");
    scene.see_pnode(dip.clone());
    scene.follow_node("n1");

    let mut fresh = Scene::empty();
    fresh.now = scene.now;
    fresh.see_binding(json!({}));
    fresh.see_policy("all", force);
    fresh.see_vnode(scene.vnode("vnode-east-n1"));
    fresh.see_vpod(&up);
    fresh.see_pnode(dip);
    fresh.see_ppod(&ppod);
    fresh.complete();
    fresh.follow_node("n1");
    assert!(matches!(fresh.plan(&key("web")), Plan::Wait(_)), "{:?}", fresh.plan(&key("web")));
}

#[test]
fn with_reclaim_before_end_an_edge_that_is_no_end_does_not_hide_the_end() {
    let mut scene = Scene::new();
    // At 05:59:30 the owner's first window passes into a second one; at six the night ends.
    let mut policy = nightly(true);
    policy["reclaimBeforeEnd"] = json!(true);
    scene.see_policy("all", policy);
    let windows = json!([{"start": "00:00", "end": "05:59"}, {"start": "05:00", "end": "12:00"}]);
    scene.see_policy_of(Side::Physical, "mine", json!({"cluster": "*", "timeWindows": windows}));
    scene.follow_node("n1");
    run(&mut scene, "web", json!({"spec": {"terminationGracePeriodSeconds": 45}}));
    scene.pass(Duration::from_secs(6 * 3600 - 106));
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS), ["NoSchedule"], "a minute before the owner's edge");
}

#[test]
fn with_reclaim_before_end_who_begins_late_forces_all_the_same_in_time() {
    let mut scene = Scene::new();
    scene.see_policy("all", nightly(true));
    scene.follow_node("n1");
    run(&mut scene, "web", json!({"spec": {"terminationGracePeriodSeconds": 45}}));
    scene.pass(Duration::from_secs(6 * 3600 - 50));
    // Only now does the policy say so: ten seconds are left of the minute.
    let mut policy = nightly(true);
    policy["reclaimBeforeEnd"] = json!(true);
    scene.see_policy("all", policy);
    scene.follow_node("n1");
    let Plan::Wait(until) = scene.plan(&key("web")) else { panic!("no force is planned") };
    scene.pass(until.saturating_sub(scene.now.steady));
    assert!(scene.now.wall + Duration::from_secs(45) <= at("06:00:00"), "{}", scene.now.wall);
    assert_eq!(grace(&forced(&mut scene, "web")), Some(45));
}

#[test]
fn an_owner_who_wants_it_back_by_the_end_gives_the_grace_of_his_own_policy() {
    let mut scene = Scene::new();
    scene.see_policy("all", json!({"cluster": "east", "gracefulReclaimPeriodSeconds": 3600}));
    let owner = json!({
        "cluster": "*", "reclaimBeforeEnd": true, "gracefulReclaimPeriodSeconds": 10,
        "timeWindows": [{"start": "20:00", "end": "06:00"}],
    });
    scene.see_policy_of(Side::Physical, "mine", owner);
    scene.follow_node("n1");
    run(&mut scene, "web", json!({"spec": {"terminationGracePeriodSeconds": 45}}));
    scene.pass(Duration::from_secs(6 * 3600 - 23));
    scene.follow_node("n1");
    assert!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS).is_empty(), "10 + 10 + 1 s are enough");
    scene.pass(3 * SECOND);
    scene.follow_node("n1");
    assert_eq!(taints(&scene, keys::TAINT_OUT_OF_TIME_WINDOWS), ["NoSchedule"]);
    scene.pass(10 * SECOND);
    assert_eq!(grace(&forced(&mut scene, "web")), Some(10));
}

#[test]
fn a_slip_of_the_pen_in_one_policy_takes_nothing_back_through_another() {
    let mut scene = Scene::new();
    scene.see_policy("all", json!({"cluster": "east", "priority": 5}));
    // It would close at one o'clock and force, if it held.
    let strict = json!({
        "cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 0,
        "timeWindows": [{"start": "12:00", "end": "13:00"}],
    });
    scene.see_policy("strict", strict);
    scene.follow_node("n1");
    run(&mut scene, "web", json!({}));
    scene.see_policy("all", json!({"cluster": "east", "priority": 5, "timeZone": "Mars/Olympus"}));
    scene.follow_node("n1");
    scene.pass(HOUR);
    scene.follow_node("n1");
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn a_taint_dated_tomorrow_wins_no_time() {
    let mut scene = super::end_of_window(true);
    let mut vnode = scene.vnode("vnode-east-n1");
    for taint in vnode["spec"]["taints"].as_array_mut().unwrap() {
        taint["timeAdded"] = json!("2027-01-01T00:00:00Z");
    }
    scene.see_vnode(vnode);
    scene.pass(62 * SECOND);
    assert_eq!(forced(&mut scene, "web").why, "Reclaim");
}

#[test]
fn a_finished_pod_does_not_keep_a_leaving_node() {
    let mut scene = Scene::new();
    let (up, ppod) = run(&mut scene, "web", json!({}));
    scene.see_policy("all", json!({"cluster": "somebody-else"}));
    scene.follow_node("n1");
    assert_eq!(scene.plan(&Key::Node(name("n1"))), Plan::Rest);
    let done = |mut pod: serde_json::Value| {
        pod["status"]["phase"] = json!("Succeeded");
        pod
    };
    scene.see_ppod(&done(ppod));
    scene.see_vpod(&done(up));
    super::removed(&mut scene);
}

#[test]
fn what_the_owner_takes_back_is_taken_at_once_also_while_a_device_is_away() {
    let mut scene = Scene::new();
    scene.pass(2 * MINUTE);
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 60}));
    let mut whole = pnode("n1");
    whole["status"]["allocatable"]["example.com/gpu"] = json!("4");
    scene.see_pnode(whole.clone());
    scene.follow_node("n1");
    run(&mut scene, "web", json!({}));
    let mut dip = whole;
    dip["status"]["allocatable"]["example.com/gpu"] = json!("0");
    scene.see_pnode(dip);
    let own = json!({
        "metadata": {"name": "own", "namespace": "x", "uid": "own"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "3500m"}}}]},
        "status": {"phase": "Running"},
    });
    scene.see_ppod(&own);
    scene.follow_node("n1");
    assert_eq!(scene.call(&key("web")).why, "Evict");
}

#[test]
fn law_12_an_owners_policy_that_cannot_be_parsed_evicts_no_pod() {
    let mut scene = Scene::new();
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 0}));
    scene.follow_node("n1");
    run(&mut scene, "web", json!({}));
    scene.see_policy_of(Side::Physical, "mine", json!({"cluster": "*", "timeZone": "Mars/Olympus"}));
    scene.follow_node("n1");
    scene.pass(HOUR);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn force_comes_due_also_after_the_clock_was_set_back() {
    let mut scene = super::end_of_window(true);
    scene.now.wall -= jiff::SignedDuration::from_secs(20);
    scene.see_pnode(pnode("n1"));
    for _ in 0..9 {
        scene.pass(10 * SECOND);
        scene.see_pnode(pnode("n1"));
    }
    assert_eq!(forced(&mut scene, "web").why, "Reclaim");
}

#[test]
fn with_reclaim_before_end_an_unforced_end_of_the_tenants_hours_does_not_hide_the_owners() {
    let mut scene = Scene::new();
    scene.see_policy("all", json!({"cluster": "east", "timeWindows": [{"start": "00:00", "end": "06:00"}]}));
    let owner = json!({
        "cluster": "*", "reclaimBeforeEnd": true, "gracefulReclaimPeriodSeconds": 60,
        "timeWindows": [{"start": "00:00", "end": "08:00"}],
    });
    scene.see_policy_of(Side::Physical, "mine", owner);
    scene.follow_node("n1");
    run(&mut scene, "web", json!({}));
    scene.pass(7 * HOUR);
    scene.follow_node("n1");
    assert_eq!(scene.plan(&key("web")), Plan::Rest, "the tenant's end forces no pod");
    scene.pass(Duration::from_mins(59));
    scene.follow_node("n1");
    scene.pass(Duration::from_secs(30));
    assert_eq!(forced(&mut scene, "web").why, "Reclaim", "thirty seconds before eight");
}
