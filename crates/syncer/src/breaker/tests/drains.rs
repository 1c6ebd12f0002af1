//! Pods that have to go because what lent their node is not there any more.

use super::*;

/// Pods on a node whose policy takes capacity back by force, a minute after it ends.
fn lent(pods: usize) -> Scene {
    let (mut scene, _) = crowd(pods);
    let policy = json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 60});
    scene.see_policy("all", policy);
    scene.follow_node("n1");
    scene
}

fn lose_policy(scene: &mut Scene) {
    scene.lose_policy_of(Side::Virtual, "all");
    scene.discover(Side::Virtual, Some(&["create", "delete", "get", "list", "watch"]));
    scene.follow_node("n1");
}

fn told_to_evict(scene: &Scene) -> bool {
    scene.vnode("vnode-east-n1")["spec"]["taints"]
        .as_array()
        .unwrap()
        .iter()
        .any(|taint| taint["effect"] == "NoExecute")
}

fn later(scene: &mut Scene) {
    scene.pass(Duration::from_secs(62));
    scene.follow_node("n1");
}

#[test]
fn law_01_a_drain_whose_cause_vanished_is_weighed_and_held_until_a_user_resumes() {
    let mut scene = lent(PODS);
    lose_policy(&mut scene);
    let trip = scene.pair.breaker.trip().expect("thirty would go").clone();
    assert_eq!((trip.ends, trip.pods), (30, 30));
    later(&mut scene);
    assert!(!told_to_evict(&scene));
    for n in 0..PODS {
        assert_eq!(scene.plan(&key(n)), Plan::Rest, "its grace is over, and it is held");
    }
    scene.see_binding_tripped(&json!(trip), &trip.resume_mark());
    scene.follow_node("n1");
    assert!(told_to_evict(&scene));
    for n in 0..PODS {
        assert_eq!(scene.call(&key(n)).why, "AnnounceReclaim");
    }
}

#[test]
fn a_drain_whose_cause_comes_back_clears_the_trip() {
    let mut scene = lent(PODS);
    lose_policy(&mut scene);
    assert!(scene.pair.breaker.trip().is_some());
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 60}));
    scene.follow_node("n1");
    assert_eq!(scene.pair.breaker.trip(), None);
}

#[test]
fn a_few_pods_whose_policy_was_deleted_are_counted_and_go() {
    let mut scene = lent(15);
    lose_policy(&mut scene);
    later(&mut scene);
    assert!(told_to_evict(&scene));
    for n in 0..15 {
        assert_eq!(scene.call(&key(n)).why, "AnnounceReclaim");
    }
    assert_eq!(scene.pair.breaker.trip(), None);
    assert_eq!(scene.binding["status"]["unaskedEnds"]["ends"], 15);
}

#[test]
fn a_stop_and_a_deleted_binding_were_asked_for_and_are_never_weighed() {
    let stops: [fn(&mut Scene); 2] =
        [|scene| scene.see_binding(json!({"suspend": true})), |scene| scene.see_binding_leaving(json!({}))];
    for stop in stops {
        let mut scene = lent(PODS);
        stop(&mut scene);
        scene.follow_node("n1");
        later(&mut scene);
        assert_eq!(scene.call(&key(0)).why, "AnnounceReclaim");
        assert_eq!((scene.pair.breaker.trip(), &scene.binding["status"]["unaskedEnds"]), (None, &Value::Null));
    }
}
