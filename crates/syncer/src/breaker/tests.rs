//! The breaker, with thirty pods that run.

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::binding::UnaskedEnds;
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Refusal, Side, Uid};
use tapestry_engine::{Model as _, Plan};

use crate::pair::{Fact, Key};
use crate::scene::{Scene, mapped, merge, vpod, why};

mod drains;
mod weigh;

const PODS: usize = 30;

fn key(n: usize) -> Key {
    Key::Pod(Uid::new(format!("v-p{n}")))
}

/// Pods that run on a node with room for them.
fn crowd(pods: usize) -> (Scene, Vec<(Value, Value)>) {
    let mut scene = Scene::new();
    let mut crowd = Vec::new();
    for n in 0..pods {
        let mut object = vpod(&format!("p{n}"));
        object["spec"]["containers"][0]["resources"] = json!({});
        scene.see_vpod(&object);
        let map = scene.call(&key(n));
        let copy = map.body().unwrap()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME].as_str().unwrap().to_owned();
        scene.see_vpod(&mapped(object.clone(), &copy, None));
        let mut ppod = crate::scene::created(&scene.call(&key(n)));
        merge(&mut ppod, json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}));
        scene.see_ppod(&ppod);
        let mut up = mapped(object, &copy, ppod["metadata"]["uid"].as_str());
        merge(&mut up, json!({"status": {"phase": "Running"}}));
        scene.see_vpod(&up);
        crowd.push((up, ppod));
    }
    (scene, crowd)
}

/// Plans every pod once and answers as an empty physical cluster would; gives how many were told to be lost.
fn round(scene: &mut Scene, pods: usize) -> usize {
    let mut lost = 0;
    for n in 0..pods {
        let Plan::Do(call, _) = scene.plan(&key(n)) else { continue };
        match call.why {
            "LookForCopy" => scene.settle(&key(n), &call, Err(Refusal::Gone)),
            "PhysicalPodLost" => {
                lost += 1;
                let row = scene.pair.pods.vpod(&format!("v-p{n}")).unwrap();
                let mut failed = vpod(row.name.as_str());
                merge(&mut failed, json!({"status": {"phase": "Failed"}}));
                let object = scene.stamp(failed);
                scene.settle(&key(n), &call, Ok(tapestry_cluster::Answer { object }));
            }
            other => panic!("{other}"),
        }
    }
    lost
}

fn failed(up: &Value) -> Value {
    let mut failed = up.clone();
    merge(&mut failed, json!({"status": {"phase": "Failed"}}));
    failed
}

/// The physical cluster was emptied while no syncer watched.
fn emptied(pods: usize) -> Scene {
    let (mut scene, _) = crowd(pods);
    scene.see(Fact::PPod(Change::Listed(Epoch(2))));
    scene
}

#[test]
fn law_01_an_emptied_cluster_trips_the_breaker_and_no_pod_ends_until_a_user_resumes() {
    let mut scene = emptied(PODS);
    assert_eq!(round(&mut scene, PODS), 0, "first everybody is looked for");
    let trip = scene.call(&Key::Binding);
    let body = trip.body().unwrap().into_owned();
    let conditions = body["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "BreakerTripped" && c["status"] == "True"), "{body}");
    assert_eq!((&body["status"]["breaker"]["ends"], &body["status"]["breaker"]["pods"]), (&json!(30), &json!(30)));
    assert_eq!(round(&mut scene, PODS), 0);
    scene.pass(Duration::from_hours(1));
    assert_eq!(round(&mut scene, PODS), 0, "time alone clears nothing");

    let id = body["status"]["breaker"]["id"].as_str().unwrap();
    for wrong in ["something/30", &format!("{id}/29"), id] {
        scene.see_binding_tripped(&body["status"]["breaker"], wrong);
        assert_eq!(round(&mut scene, PODS), 0, "{wrong} is another trip, or not all of it");
    }
    let resume = format!("{id}/30");
    scene.see_binding_tripped(&body["status"]["breaker"], &resume);
    assert_eq!(round(&mut scene, PODS), PODS);
    let cleared = scene.call(&Key::Binding).body().unwrap().into_owned();
    assert!(cleared["status"].get("breaker").is_none(), "{cleared}");
    // The binding says so a little longer: that is not another trip.
    scene.see_binding_tripped(&body["status"]["breaker"], &resume);
    assert_eq!(scene.pair.breaker.trip(), None);
}

#[test]
fn a_few_lost_pods_are_reported_at_once() {
    let mut scene = emptied(15);
    round(&mut scene, 15);
    assert_eq!(round(&mut scene, 15), 15, "no more than twenty");
}

#[test]
fn ends_that_a_user_asked_for_never_count() {
    let (mut scene, crowd) = crowd(PODS);
    for (_, ppod) in &crowd {
        scene.lose_ppod(ppod, true);
    }
    assert_eq!(round(&mut scene, PODS), PODS);
    assert_eq!(scene.pair.breaker.trip(), None);
}

#[test]
fn ends_in_a_row_count_together_for_a_minute() {
    let (mut scene, crowd) = crowd(PODS);
    let lose = |scene: &mut Scene, which: std::ops::Range<usize>| {
        for (_, ppod) in &crowd[which] {
            scene.lose_ppod(ppod, false);
        }
        round(scene, PODS);
        round(scene, PODS)
    };
    assert_eq!(lose(&mut scene, 0..15), 15);
    scene.pass(Duration::from_secs(61));
    assert_eq!(lose(&mut scene, 15..25), 10, "the first fifteen are history");
    assert_eq!(scene.pair.breaker.trip(), None);
    assert_eq!(lose(&mut scene, 25..30), 5, "no more than twenty in a minute");
}

#[test]
fn an_end_counts_whichever_way_we_learn_of_it_first() {
    let (mut scene, crowd) = crowd(PODS);
    let fail = |scene: &mut Scene, n: usize| {
        scene.see_vpod(&failed(&crowd[n].0));
    };
    for (_, ppod) in &crowd[..20] {
        scene.lose_ppod(ppod, false);
    }
    round(&mut scene, PODS);
    for n in 0..20 {
        let call = scene.call(&key(n));
        assert_eq!(call.why, "PhysicalPodLost");
        // The watch is faster than the answer; or the line breaks, and the answer never comes.
        if n == 19 {
            scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))));
            scene.settle(&key(n), &call, Err(Refusal::Unknown("cut".into())));
        }
        fail(&mut scene, n);
    }
    scene.lose_ppod(&crowd[20].1, false);
    round(&mut scene, PODS);
    let trip = scene.pair.breaker.trip().expect("twenty-one in a minute");
    assert_eq!((trip.ends, trip.pods), (21, 30));
}

#[test]
fn law_01_it_trips_at_the_twenty_first_however_slowly_they_are_proven() {
    let mut scene = emptied(100);
    let mut lost = 0;
    for n in 0..100 {
        // One pod in four seconds: looked for, then lost.
        scene.pass(Duration::from_secs(4));
        let look = scene.call(&key(n));
        scene.settle(&key(n), &look, Err(Refusal::Gone));
        let Plan::Do(call, _) = scene.plan(&key(n)) else { break };
        assert_eq!(call.why, "PhysicalPodLost");
        lost += 1;
        let mut failed = vpod(&format!("p{n}"));
        merge(&mut failed, json!({"status": {"phase": "Failed"}}));
        let object = scene.stamp(failed);
        scene.settle(&key(n), &call, Ok(tapestry_cluster::Answer { object }));
    }
    assert_eq!(lost, 20);
    let trip = scene.pair.breaker.trip().unwrap();
    assert_eq!((trip.ends, trip.pods), (100, 100), "it says how many there may be");
}

#[test]
fn a_trip_grows_with_what_is_lost_later_and_an_old_resume_is_not_enough() {
    let (mut scene, crowd) = crowd(PODS);
    let lose = |scene: &mut Scene, which: std::ops::Range<usize>| {
        for (_, ppod) in &crowd[which] {
            scene.lose_ppod(ppod, false);
        }
        round(scene, PODS)
    };
    lose(&mut scene, 0..21);
    let seen = json!(scene.pair.breaker.trip().unwrap());
    let resume = scene.pair.breaker.trip().unwrap().resume_mark();
    assert_eq!(seen["ends"], 21);
    lose(&mut scene, 21..30);
    let body = scene.call(&Key::Binding).body().unwrap().into_owned();
    assert_eq!(body["status"]["breaker"]["ends"], 30);
    scene.see_binding_tripped(&seen, &resume);
    assert_eq!(round(&mut scene, PODS), 0, "no user has looked at the other nine");
}

#[test]
fn an_old_resume_does_not_clear_a_new_trip() {
    let (mut scene, crowd) = crowd(60);
    for (_, ppod) in &crowd[..30] {
        scene.lose_ppod(ppod, false);
    }
    round(&mut scene, 60);
    let first = json!(scene.pair.breaker.trip().unwrap());
    let resume = scene.pair.breaker.trip().unwrap().resume_mark();
    scene.see_binding_tripped(&first, &resume);
    assert_eq!(round(&mut scene, 60), 30);
    // Before the binding says so, others are lost.
    for (_, ppod) in &crowd[30..] {
        scene.lose_ppod(ppod, false);
    }
    round(&mut scene, 60);
    assert!(scene.pair.breaker.trip().is_some());
    scene.see_binding_tripped(&first, &resume);
    assert_eq!(round(&mut scene, 60), 0);
    assert!(scene.pair.breaker.trip().is_some());
}

#[test]
fn pods_that_users_deleted_by_force_are_no_mass_deletion_because_the_line_broke() {
    let (mut scene, crowd) = crowd(PODS);
    for (up, _) in &crowd {
        let row = scene.pair.pods.vpod(up["metadata"]["uid"].as_str().unwrap()).unwrap().clone();
        scene.see(Fact::VPod(Change::Gone { row, proven: true }));
    }
    scene.see(Fact::Connection(Side::Physical, Connection::Up(Uid::new("p-cluster"))));
    for n in 0..PODS {
        assert_eq!(scene.call(&key(n)).why, "VirtualPodGone");
    }
    assert_eq!(scene.pair.breaker.trip(), None);
}

#[test]
fn law_01_ends_by_another_process_count_for_a_minute() {
    let begin = || {
        let (mut scene, crowd) = crowd(PODS);
        scene.see(Fact::PPod(Change::Listed(Epoch(2))));
        // It ended twenty, and was killed.
        for (up, _) in &crowd[..20] {
            scene.see_vpod(&failed(up));
        }
        scene.see_binding_counting(20);
        let now = scene.now;
        scene.pair.take_lead(now);
        scene
    };
    let look = |scene: &mut Scene| {
        let look = scene.call(&key(20));
        scene.settle(&key(20), &look, Err(Refusal::Gone));
    };
    let mut scene = begin();
    look(&mut scene);
    let trip = scene.pair.breaker.trip().expect("the twenty-first");
    assert_eq!((trip.ends, trip.pods), (30, 30));
    let mut scene = begin();
    scene.pass(Duration::from_secs(61));
    look(&mut scene);
    assert_eq!(scene.call(&key(20)).why, "PhysicalPodLost");
}

#[test]
fn an_absurd_count_in_the_binding_neither_overflows_nor_hides_a_loss() {
    for absurd in [-1, i64::MIN, i64::MAX] {
        let (mut scene, _) = crowd(3);
        let by = "another".to_owned();
        let now = scene.now;
        scene.pair.breaker.read(Some(UnaskedEnds { ends: absurd, at: format!("{:.0}", now.wall), by }), now);
        let tally = scene.pair.breaker.tally(now);
        assert_eq!(tally.certain, if absurd < 0 { 0 } else { 1_000_000 }, "{absurd}");
        scene.see(Fact::PPod(Change::Listed(Epoch(2))));
        let look = scene.call(&key(0));
        scene.settle(&key(0), &look, Err(Refusal::Gone));
        assert_eq!(scene.pair.breaker.trip().is_some(), absurd > 0, "{absurd}");
    }
}

#[test]
fn law_08_a_pod_ends_only_after_the_binding_says_that_it_is_counted() {
    let mut scene = emptied(3);
    let look = scene.call(&key(0));
    let now = scene.now;
    scene.pair.settle(
        &key(0),
        why(&key(0), &look),
        &look,
        Err(Refusal::Gone),
        now,
        &mut tapestry_engine::Dirty::default(),
    );
    assert_eq!(scene.plan(&key(0)), Plan::Rest, "a crash now would forget it");
    let count = scene.call(&Key::Binding);
    assert_eq!((count.why, count.target.rv.is_some()), ("CountEnds", true), "not over what another one has counted");
    assert_eq!(count.body().unwrap()["status"]["unaskedEnds"]["ends"], 1);
    scene.count_ends();
    assert_eq!(scene.call(&key(0)).why, "PhysicalPodLost");
    assert_eq!(round(&mut scene, 3), 1);
    assert_eq!(round(&mut scene, 3), 2);
    assert_ne!(scene.call(&Key::Binding).why, "CountEnds", "what has ended is counted already");
}

#[test]
fn pods_that_came_and_went_while_one_watch_was_late_never_count() {
    let (mut scene, crowd) = crowd(PODS);
    // The virtual watch is late: of these nothing was seen but the copies, and how they were deleted.
    for n in 0..60 {
        let mut copy = crowd[0].1.clone();
        copy["metadata"]["uid"] = json!(format!("late-{n}"));
        copy["metadata"]["annotations"][keys::VIRTUAL_POD_UID] = json!(format!("v-late-{n}"));
        scene.see_ppod(&copy);
        scene.lose_ppod(&copy, true);
    }
    for (_, ppod) in &crowd[..21] {
        scene.lose_ppod(ppod, true);
    }
    assert_eq!(round(&mut scene, PODS), 21);
    assert_eq!(scene.pair.breaker.trip(), None);
}

#[test]
fn an_end_that_was_asked_for_on_either_side_never_counts_even_if_no_watch_saw_the_request() {
    let (mut scene, crowd) = crowd(60);
    // Deleted by their users; when the list came again they were gone, and their copies were not yet.
    for (up, _) in &crowd[..30] {
        let mut going = up.clone();
        merge(
            &mut going["metadata"],
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}),
        );
        scene.see_vpod(&going);
    }
    for (up, _) in &crowd[30..] {
        scene.see_vpod_in(up, Epoch(2));
    }
    scene.see(Fact::VPod(Change::Listed(Epoch(2))));
    for n in 0..30 {
        let look = scene.call(&key(n));
        assert_eq!(look.why, "LookForVirtualPod");
        scene.settle(&key(n), &look, Err(Refusal::Gone));
        assert_eq!(scene.call(&key(n)).why, "VirtualPodGone");
    }
    // Copies that their owner deletes, and that the next list does not have.
    for (_, ppod) in &crowd[30..] {
        let mut going = ppod.clone();
        merge(
            &mut going["metadata"],
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}),
        );
        scene.see_ppod(&going);
    }
    scene.see(Fact::PPod(Change::Listed(Epoch(2))));
    for n in 30..60 {
        let look = scene.call(&key(n));
        assert_eq!(look.why, "LookForCopy");
        scene.settle(&key(n), &look, Err(Refusal::Gone));
        assert_eq!(scene.call(&key(n)).why, "PhysicalPodLost");
    }
    assert_eq!(scene.pair.breaker.trip(), None);
}

#[test]
fn a_trip_never_speaks_of_more_pods_than_there_are() {
    let (mut scene, crowd) = crowd(PODS);
    for (_, ppod) in &crowd[..21] {
        scene.lose_ppod(ppod, false);
    }
    round(&mut scene, PODS);
    for n in 0..300 {
        let mut copy = crowd[0].1.clone();
        copy["metadata"]["uid"] = json!(format!("new-{n}"));
        copy["metadata"]["annotations"][keys::VIRTUAL_POD_UID] = json!(format!("v-new-{n}"));
        scene.see_ppod(&copy);
    }
    let trip = scene.pair.breaker.trip().unwrap();
    assert_eq!((trip.ends, trip.pods), (321, 330));
}

#[test]
fn a_trip_clears_itself_once_every_pod_is_there_again_or_asked_to_end() {
    let (mut scene, crowd) = crowd(PODS);
    for (_, ppod) in &crowd {
        scene.lose_ppod(ppod, false);
    }
    round(&mut scene, PODS);
    let trip = json!(scene.pair.breaker.trip().unwrap());
    scene.see_binding_tripped(&trip, "");
    for (_, ppod) in &crowd[..15] {
        scene.see_ppod(ppod);
    }
    for (up, _) in &crowd[15..29] {
        let mut going = up.clone();
        merge(
            &mut going["metadata"],
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}),
        );
        scene.see_vpod(&going);
    }
    assert!(scene.pair.breaker.trip().is_some(), "one is missing");
    scene.see_ppod(&crowd[29].1);
    assert_eq!(scene.pair.breaker.trip(), None);
    let told = scene.pair.keys().into_iter().filter(|key| matches!(key, Key::Event(_))).map(|key| scene.call(&key));
    let told: Vec<_> = told.map(|call| call.body().unwrap()["reason"].clone()).collect();
    assert_eq!(told, ["MassDeletion", "BreakerCleared"]);
    let report = scene.call(&Key::Binding).body().unwrap().into_owned();
    assert!(report["status"].get("breaker").is_none(), "{report}");
    // What is lost after it is weighed again.
    for (_, ppod) in &crowd[..15] {
        scene.lose_ppod(ppod, false);
    }
    round(&mut scene, 15);
    assert_eq!(round(&mut scene, 15), 15);
}

#[test]
fn a_trip_of_a_process_that_did_not_lead_is_weighed_again_when_it_does() {
    let (mut scene, crowd) = crowd(PODS);
    for (_, ppod) in &crowd[..25] {
        scene.lose_ppod(ppod, false);
    }
    round(&mut scene, PODS);
    assert!(scene.pair.breaker.trip().is_some());
    // The binding never said so, and all copies are there.
    for (_, ppod) in &crowd[..24] {
        scene.see_ppod(ppod);
    }
    // Those that it counted before it tripped are history by then.
    scene.pass(Duration::from_secs(61));
    let now = scene.now;
    scene.pair.take_lead(now);
    assert_eq!(scene.pair.breaker.trip(), None);
    round(&mut scene, PODS);
    assert_eq!(round(&mut scene, PODS), 1, "the one that is really lost");
}

/// A syncer that starts when its predecessor has tripped, and a user may have resumed.
fn restarted(resume: &str) -> Scene {
    let (before, crowd) = crowd(PODS);
    let vnode = before.vnode("vnode-east-n1");
    let mut scene = Scene::empty();
    let trip = json!({"id": "t-1", "since": "2026-01-01T00:00:00Z", "ends": 21, "pods": 30});
    scene.see_binding_tripped(&trip, resume);
    scene.see_policy("all", json!({"cluster": "east"}));
    scene.see_pnode(crate::scene::pnode("n1"));
    scene.see_vnode(vnode);
    // The lists come one after the other.
    for (up, _) in &crowd {
        scene.see_vpod(up);
    }
    for (_, ppod) in &crowd[21..] {
        scene.see_ppod(ppod);
    }
    scene.complete();
    scene
}

#[test]
fn a_restart_neither_grows_a_trip_nor_forgets_that_a_user_resumed() {
    let mut scene = restarted("");
    assert_eq!(scene.pair.breaker.trip().map(|trip| trip.ends), Some(21));
    assert_eq!(round(&mut scene, PODS), 0);
    assert_eq!(round(&mut scene, PODS), 0);
    let mut scene = restarted("t-1/21");
    assert_eq!(scene.pair.breaker.trip(), None);
    round(&mut scene, PODS);
    assert_eq!(round(&mut scene, PODS), 21);
    assert_eq!(scene.pair.breaker.trip(), None);
}

/// The events that wait to be written: reason and message.
fn events(scene: &Scene) -> Vec<(String, String)> {
    let keys = scene.pair.keys().into_iter().filter(|key| matches!(key, Key::Event(_)));
    let bodies = keys.map(|key| scene.call(&key).body().unwrap().into_owned());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    bodies.map(|body| (text(&body["reason"]), text(&body["message"]))).collect()
}

#[test]
fn a_trip_is_an_event_on_the_binding_once_and_says_how_to_resume() {
    let mut scene = emptied(PODS);
    round(&mut scene, PODS);
    let told = events(&scene);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].0, "MassDeletion");
    assert!(told[0].1.contains("30 of 30 pods") && told[0].1.contains("tapestry resume east"), "{told:?}");
    scene.pass(Duration::from_mins(2));
    round(&mut scene, PODS);
    assert_eq!(events(&scene).len(), 1, "it holds on and is not told again");
}

#[test]
fn many_copies_deleted_within_a_minute_are_an_event_on_the_binding_once_a_minute_and_trip_nothing() {
    let (mut scene, crowd) = crowd(70);
    let lose = |scene: &mut Scene, range: std::ops::Range<usize>| {
        let count = range.len();
        for (_, ppod) in &crowd[range] {
            scene.lose_ppod(ppod, true);
        }
        assert_eq!(round(scene, 70), count);
        events(scene)
    };
    assert_eq!(lose(&mut scene, 0..20), [], "twenty a minute are told on each pod alone");
    let told = lose(&mut scene, 20..40);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].0, "PhysicalPodsDeleted");
    assert!(told[0].1.starts_with("21 running pods") && told[0].1.contains("audit log"), "{told:?}");
    scene.pass(Duration::from_secs(61));
    assert_eq!(lose(&mut scene, 40..49).len(), 1, "a few a minute");
    assert_eq!(lose(&mut scene, 49..70).len(), 2, "many again, in another minute");
    assert_eq!(scene.pair.breaker.trip(), None);
}
