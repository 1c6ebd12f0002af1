use std::time::Duration;

use serde_json::json;
use tapestry_api::keys;
use tapestry_engine::{Dirty, Plan};

use crate::scene::{Scene, name, pnode};

const MINUTE: Duration = Duration::from_mins(1);

/// The value of the taint, which is the number of failures in a row; `None` when the node is not tainted.
fn failures(scene: &Scene) -> Option<String> {
    let vnode = scene.vnode("vnode-east-n1");
    let taints = vnode["spec"]["taints"].as_array().unwrap();
    let taint = taints.iter().find(|taint| taint["key"] == keys::TAINT_PLACEMENT_FAILED)?;
    Some(taint["value"].as_str().unwrap_or_default().to_owned())
}

fn fail(scene: &mut Scene) {
    let now = scene.now;
    scene.pair.keep_away(&name("vnode-east-n1"), now, &mut Dirty::default());
    scene.follow_node("n1");
}

/// How long until the taint comes off.
fn lasts(scene: &mut Scene) -> Duration {
    let began = scene.now.steady;
    let Plan::Wait(until) = scene.follow_node("n1") else { panic!("nothing ends the taint") };
    scene.pass(until.saturating_sub(scene.now.steady));
    scene.follow_node("n1");
    assert_eq!(failures(scene), None);
    until.saturating_sub(began)
}

#[test]
fn each_failure_in_a_row_keeps_pods_away_for_twice_as_long_up_to_half_an_hour() {
    let mut scene = Scene::new();
    for (failure, minutes) in [1, 2, 4, 8, 16, 32, 32].into_iter().enumerate() {
        fail(&mut scene);
        assert_eq!(failures(&scene), Some((failure + 1).min(6).to_string()));
        let lasted = lasts(&mut scene);
        assert!(lasted <= minutes * MINUTE && lasted + 3 * Duration::from_secs(1) >= minutes * MINUTE, "{lasted:?}");
    }
}

#[test]
fn pods_that_fail_while_others_are_kept_away_are_one_failure() {
    let mut scene = Scene::new();
    for _ in 0..20 {
        fail(&mut scene);
    }
    assert_eq!(failures(&scene), Some("1".to_owned()));
}

#[test]
fn after_a_copy_found_its_node_or_half_an_hour_of_calm_the_first_failure_counts_again() {
    let mut scene = Scene::new();
    fail(&mut scene);
    // It was on its way before.
    let now = scene.now;
    scene.pair.nodes.note_placed(&name("n1"), now);
    lasts(&mut scene);
    fail(&mut scene);
    assert_eq!(failures(&scene), Some("2".to_owned()));
    lasts(&mut scene);
    let now = scene.now;
    scene.pair.nodes.note_placed(&name("n1"), now);
    fail(&mut scene);
    assert_eq!(failures(&scene), Some("1".to_owned()));
    lasts(&mut scene);
    scene.pass(31 * MINUTE);
    fail(&mut scene);
    assert_eq!(failures(&scene), Some("1".to_owned()));
}

#[test]
fn a_restart_neither_forgets_the_taint_nor_keeps_it_longer() {
    let mut scene = Scene::new();
    fail(&mut scene);
    lasts(&mut scene);
    fail(&mut scene);
    scene.pass(MINUTE / 2);
    let vnode = scene.vnode("vnode-east-n1");
    let mut fresh = Scene::empty();
    fresh.now = scene.now;
    fresh.see_binding(json!({}));
    fresh.see_policy("all", json!({"cluster": "east"}));
    fresh.see_pnode(pnode("n1"));
    fresh.see_vnode(vnode);
    fresh.complete();
    fresh.follow_node("n1");
    assert_eq!(failures(&fresh), Some("2".to_owned()));
    let rest = lasts(&mut fresh);
    assert!(rest <= 2 * MINUTE && rest >= MINUTE, "{rest:?}");
    fail(&mut fresh);
    assert_eq!(failures(&fresh), Some("3".to_owned()));
}

#[test]
fn a_taint_with_a_time_to_come_or_a_number_of_its_own_lasts_no_longer_than_the_longest() {
    let mut scene = Scene::new();
    let mut vnode = scene.vnode("vnode-east-n1");
    vnode["spec"]["taints"].as_array_mut().unwrap().push(json!({
        "key": keys::TAINT_PLACEMENT_FAILED, "value": "4000000000", "effect": "NoSchedule", "timeAdded": "2036-01-01T00:00:00Z",
    }));
    scene.see_vnode(vnode);
    scene.follow_node("n1");
    assert!(lasts(&mut scene) <= 32 * MINUTE);
}
