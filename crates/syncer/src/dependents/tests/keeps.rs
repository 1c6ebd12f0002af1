//! That a copy in use stays when less is known than before, or when the physical cluster does not take its new values.

use super::tokens::{issue, push_volume, token_key, wants_token};
use super::*;
use tapestry_engine::{Dirty, Model as _};

#[test]
fn a_copy_stays_while_the_creation_of_its_pod_may_be_in_flight() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    carry(&mut scene, "settings", &text);
    assert_eq!(scene.call(&pod_key("web")).why, "CreateCopy");
    // The call is on its way when another pod takes all that the node has.
    let container = json!({"name": "c", "resources": {"requests": {"cpu": "4"}}});
    let other = json!({
        "metadata": {"name": "app", "namespace": "owner", "uid": "app"},
        "spec": {"nodeName": "n1", "containers": [container]}, "status": {"phase": "Running"},
    });
    scene.see_ppod(&other);
    assert_ne!(scene.call(&pod_key("web")).why, "CreateCopy", "it has lost its place");
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
}

#[test]
fn law_01_an_emptied_list_of_copies_or_sources_removes_nothing() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let copy = carry(&mut scene, "settings", &text);
    start(&mut scene, "web");
    scene.see(Fact::Source(MAP, Change::Listed(Epoch(2))));
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
    scene.see(Fact::DependentCopy(MAP, Change::Listed(Epoch(2))));
    assert_eq!(scene.plan(&key("settings")), Plan::Rest, "without a source there is nothing to write");
    see_source(&mut scene, source("settings", &json!({"a": "1"})));
    assert_eq!(scene.call(&key("settings")).why, "CreateDependent");
    see_copy(&mut scene, &copy);
    assert_eq!(scene.call(&key("settings")).why, "UpdateDependent", "the version of the source is another");
}

#[test]
fn law_01_no_copy_is_removed_while_a_watch_of_pods_or_copies_is_out_of_sync() {
    for (side, kind) in [(Side::Virtual, &kind::POD), (Side::Physical, &kind::POD), (Side::Physical, &kind::CONFIG_MAP)]
    {
        let mut scene = Scene::new();
        let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
        let web = admit(&mut scene, "web", &mounts("web", "settings", false));
        carry(&mut scene, "settings", &text);
        let watched = Watched { reader: Reader::Syncer, side, query: Arc::new(Query::all(kind)) };
        let trouble = Trouble { verb: "watch", why: "HTTP 403".to_owned() };
        scene.see(Fact::Watch(watched.clone(), WatchState::OutOfSync(trouble)));
        let mut gone = web;
        merge(
            &mut gone,
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}}),
        );
        scene.see_vpod(&gone);
        assert_eq!(scene.plan(&key("settings")), Plan::Rest, "{side:?} {}", kind.plural);
        scene.see(Fact::Watch(watched, WatchState::InSync));
        assert_eq!(scene.call(&key("settings")).why, "RemoveDependent", "{side:?} {}", kind.plural);
    }
}

#[test]
fn law_01_an_emptied_list_of_pods_on_either_side_removes_nothing() {
    for physical in [false, true] {
        let mut scene = Scene::new();
        let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
        let mut web = mounts("web", "settings", false);
        push_volume(&mut web, &wants_token("web"));
        web["spec"]["serviceAccountName"] = json!("robot");
        admit(&mut scene, "web", &web);
        carry(&mut scene, "settings", &text);
        issue(&mut scene, "web", "2026-01-01T00:48:00Z");
        start(&mut scene, "web");
        scene.see(if physical { Fact::PPod(Change::Listed(Epoch(2))) } else { Fact::VPod(Change::Listed(Epoch(2))) });
        assert_eq!(scene.plan(&key("settings")), Plan::Rest, "physical: {physical}");
        assert!(matches!(scene.plan(&token_key("web")), Plan::Wait(_)), "physical: {physical}");
    }
}

#[test]
fn law_01_no_copy_is_removed_while_it_is_unknown_what_a_copied_pod_needs() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let copy = carry(&mut scene, "settings", &text);
    let ppod = start(&mut scene, "web");

    // A process that starts, sees both copies, and does not see the pod.
    let mut scene = Scene::new();
    see_source(&mut scene, source("settings", &json!({"a": "1"})));
    see_copy(&mut scene, &copy);
    scene.see_ppod(&ppod);
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
    // When the copied pod is gone, nothing can need it any more.
    let mut gone = ppod.clone();
    merge(&mut gone, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    scene.lose_ppod(&gone, true);
    assert_eq!(scene.call(&key("settings")).why, "RemoveDependent");
}

#[test]
fn law_01_a_copy_in_use_stays_when_a_policy_of_the_cluster_refuses_its_new_values() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    carry(&mut scene, "settings", &text);
    start(&mut scene, "web");
    see_source(&mut scene, source("settings", &json!({"a": "forbidden"})));
    let message = "ValidatingAdmissionPolicy 'owner' denied request".to_owned();
    let status = Status { code: 422, message, ..Default::default() };
    scene.refuse(&key("settings"), Refusal::Invalid(Box::new(status)));
    let call = scene.call(&key("settings"));
    assert_eq!(call.why, "UpdateDependent", "it is tried again, and nothing is deleted");
    scene.see_vpod(&mounts("late", "settings", false));
    let (reason, message) = told(&scene, "late");
    assert_eq!(reason, PendingReason::DependentRefused.as_str());
    assert!(message.contains("'owner' denied"), "{message}");
}

#[test]
fn a_pod_that_lacks_two_objects_names_the_other_one_when_the_first_has_come() {
    let mut scene = Scene::new();
    let mut web = mounts("web", "first", false);
    push_volume(&mut web, &mounts("web", "second", false));
    scene.see_vpod(&web);
    let call = scene.call(&pod_key("web"));
    let (_, message) = told(&scene, "web");
    assert!(message.contains("demo/first"), "{message}");
    web["status"]["conditions"] = call.body().unwrap()["status"]["conditions"].clone();
    let object = scene.stamp(web.clone());
    scene.settle(&pod_key("web"), &call, Ok(Answer { object }));
    admit(&mut scene, "web", &web);
    assert_eq!(scene.plan(&pod_key("web")), Plan::Rest, "told once");
    see_source(&mut scene, source("first", &json!({"a": "1"})));
    let (reason, message) = told(&scene, "web");
    assert_eq!(reason, PendingReason::DependentMissing.as_str());
    assert!(message.contains("demo/second"), "{message}");
}

#[test]
fn law_04_a_copy_that_is_newer_than_what_the_watch_shows_of_its_source_is_not_read_again() {
    let mut scene = Scene::new();
    let seen = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    // The gate reads the source later than the watch showed it.
    let newer = String::from_utf8(scene.stamp(source("settings", &json!({"a": "2"}))).to_vec()).unwrap();
    let copy = carry(&mut scene, "settings", &newer);
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
    assert_eq!(scene.call(&pod_key("web")).why, "CreateCopy");

    // A process that did not write it cannot know: perhaps the virtual cluster was restored from a backup.
    let mut scene = Scene::new();
    let row = Source::decode(&seen.into(), MAP).unwrap().unwrap();
    scene.see(Fact::Source(MAP, Change::Put(row, Epoch(1))));
    see_copy(&mut scene, &copy);
    admit(&mut scene, "web", &mounts("web", "settings", false));
    assert_eq!(scene.call(&key("settings")).why, "UpdateDependent");
}

#[test]
fn law_11_a_copy_that_another_client_keeps_deleting_is_created_again_three_times_and_then_left() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    let web = admit(&mut scene, "web", &mounts("web", "settings", false));
    let mut copy = carry(&mut scene, "settings", &text);
    for _ in 0..3 {
        lose_copy(&mut scene, &copy);
        assert_eq!(scene.call(&key("settings")).why, "CreateDependent");
        copy = carry(&mut scene, "settings", &text);
    }
    assert_eq!(scene.pair.events.keys().count(), 1, "it is told on the source");
    assert_eq!(scene.call(&pod_key("web")).why, "CreateCopy", "while it is there, pods start");
    lose_copy(&mut scene, &copy);
    let Plan::Wait(until) = scene.plan(&key("settings")) else { panic!("{:?}", scene.plan(&key("settings"))) };
    scene.see_vpod(&web);
    let (reason, message) = told(&scene, "web");
    assert_eq!(reason, PendingReason::DependentConflict.as_str());
    assert!(message.contains("keeps deleting the copy of ConfigMap demo/settings"), "{message}");
    scene.pass(until.saturating_sub(scene.now.steady) + Duration::from_secs(1));
    assert_eq!(scene.call(&key("settings")).why, "CreateDependent");
}

#[test]
fn law_11_tokens_that_another_client_keeps_deleting_are_issued_again_three_times_and_then_not() {
    let mut scene = Scene::new();
    let ci = admit(&mut scene, "ci", &wants_token("ci"));
    for number in 0..4 {
        let secret = issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
        let text = scene.stamp(secret);
        let row = DependentCopy::decode(&text, DependentKind::Secret, &scene.pair.origin).unwrap().unwrap();
        scene.see(Fact::DependentCopy(DependentKind::Secret, Change::Gone { row, proven: false }));
        assert_eq!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)), number == 3, "{number}");
    }
    scene.see_vpod(&ci);
    let (reason, message) = told(&scene, "ci");
    assert_eq!(reason, PendingReason::TokenRefused.as_str());
    assert!(message.contains("keeps deleting Secret"), "{message}");
}

#[test]
fn a_contested_copy_stays_contested_when_its_source_changes_and_pods_start_all_the_same() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let mut copy = carry(&mut scene, "settings", &text);
    copy["data"]["a"] = json!("theirs");
    for _ in 0..3 {
        see_copy(&mut scene, &copy);
        carry(&mut scene, "settings", &text);
    }
    let text = see_source(&mut scene, source("settings", &json!({"a": "2"})));
    assert_eq!(scene.call(&key("settings")).why, "UpdateDependent");
    let mut copy = carry(&mut scene, "settings", &text);
    copy["data"]["a"] = json!("theirs");
    see_copy(&mut scene, &copy);
    assert!(matches!(scene.plan(&key("settings")), Plan::Wait(_)));
    assert_eq!(
        scene.call(&pod_key("web")).why,
        "CreateCopy",
        "a pod that waited for the other client would wait for ever"
    );
    assert_eq!(scene.pair.events.keys().count(), 1, "it is told once");
}

#[test]
fn a_source_that_was_refused_is_tried_again_at_once_when_a_user_corrects_it() {
    let mut scene = Scene::new();
    see_source(&mut scene, source("settings", &json!({"a": "forbidden"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    scene.refuse(&key("settings"), Refusal::Invalid(Box::new(Status { code: 422, ..Default::default() })));
    let text = scene.stamp(source("settings", &json!({"a": "1"})));
    let row = Source::decode(&text, MAP).unwrap().unwrap();
    let mut dirty = Dirty::default();
    scene.pair.observe(Fact::Source(MAP, Change::Put(row, Epoch(1))), scene.now, &mut dirty);
    assert!(format!("{dirty:?}").contains("urged: [Dependent("), "{dirty:?}");
}

#[test]
fn a_pod_says_which_cluster_refused_what_it_needs() {
    for side in Side::BOTH {
        let mut scene = Scene::new();
        see_source(&mut scene, source("settings", &json!({"a": "1"})));
        let web = admit(&mut scene, "web", &mounts("web", "settings", false));
        // As the authorizer says it: for a create it names no object.
        let (name, words) = match side {
            Side::Virtual => ("settings", "the virtual cluster does not let the syncer read ConfigMap demo/settings"),
            Side::Physical => ("", "the physical cluster refused the copy of ConfigMap demo/settings"),
        };
        let details = Details { name: name.to_owned(), kind: "configmaps".to_owned(), ..Default::default() };
        let status = Status { code: 403, message: "forbidden".to_owned(), details, ..Default::default() };
        scene.refuse(&key("settings"), Refusal::Denied(Box::new(status)));
        scene.see_vpod(&web);
        let (reason, message) = told(&scene, "web");
        assert_eq!((reason.as_str(), message), ("DependentRefused", format!("{words}: forbidden")));
    }
}

#[test]
fn a_pod_says_that_a_watch_is_out_of_sync_while_that_is_all_that_is_known_of_what_it_needs() {
    for (side, kind, missing) in [
        (Side::Virtual, &kind::CONFIG_MAP, true),
        (Side::Virtual, &kind::SECRET, false),
        (Side::Physical, &kind::CONFIG_MAP, false),
    ] {
        let mut scene = Scene::new();
        if !missing {
            see_source(&mut scene, source("settings", &json!({"a": "1"})));
        }
        scene.see_vpod(&mounts("web", "settings", false));
        let watched = Watched { reader: Reader::Syncer, side, query: Arc::new(Query::all(kind)) };
        let trouble = Trouble { verb: "watch", why: "HTTP 403".to_owned() };
        scene.see(Fact::Watch(watched.clone(), WatchState::OutOfSync(trouble)));
        let (reason, message) = told(&scene, "web");
        assert_eq!(reason, PendingReason::WatchOutOfSync.as_str(), "{message}");
        let words = format!("the syncer cannot watch {} in the {} cluster: HTTP 403", kind.plural, side.as_str());
        assert!(message.starts_with(&words), "{message}");
        scene.see(Fact::Watch(watched, WatchState::InSync));
        if missing {
            assert_eq!(told(&scene, "web").0, PendingReason::DependentMissing.as_str());
        } else {
            assert_eq!(scene.call(&pod_key("web")).why, "Map");
        }
    }
}

#[test]
fn a_pod_says_which_copy_is_being_deleted_and_starts_when_it_was_created_again() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    let mut web = mounts("web", "settings", false);
    push_volume(&mut web, &wants_token("web"));
    web["spec"]["serviceAccountName"] = json!("robot");
    admit(&mut scene, "web", &web);
    let leaving =
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/hold"]}});
    let mut copy = carry(&mut scene, "settings", &text);
    let mut secret = issue(&mut scene, "web", "2026-01-01T00:48:00Z");
    assert_eq!(scene.call(&pod_key("web")).why, "CreateCopy");

    merge(&mut secret, leaving.clone());
    super::tokens::see_tokens(&mut scene, &secret);
    let (reason, message) = told(&scene, "web");
    assert_eq!(reason, PendingReason::DependentTerminating.as_str());
    assert!(message.contains(&format!("Secret {}", secret["metadata"]["name"].as_str().unwrap())), "{message}");

    merge(&mut copy, leaving);
    see_copy(&mut scene, &copy);
    let (_, message) = told(&scene, "web");
    assert!(message.contains(&format!("ConfigMap {}", copy["metadata"]["name"].as_str().unwrap())), "{message}");
    lose_copy(&mut scene, &copy);
    assert_eq!(scene.call(&key("settings")).why, "CreateDependent");
}

#[test]
fn a_copy_that_another_client_made_immutable_is_replaced_at_most_three_times_in_ten_minutes() {
    let mut scene = Scene::new();
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let mut copy = carry(&mut scene, "settings", &text);
    start(&mut scene, "web");
    for round in 0..3 {
        assert_eq!(scene.plan(&key("settings")), Plan::Rest);
        copy["immutable"] = json!(true);
        see_copy(&mut scene, &copy);
        assert_eq!(scene.call(&key("settings")).why, "RevertDependent");
        scene.refuse(&key("settings"), fixed());
        let call = scene.call(&key("settings"));
        assert_eq!(call.why, "ReplaceDependent");
        scene.settle(&key("settings"), &call, Ok(Answer { object: "{}".into() }));
        lose_copy(&mut scene, &copy);
        let call = scene.call(&key("settings"));
        assert_eq!(call.why, "CreateDependent");
        copy = copied(&scene, &call, &text);
        copy["metadata"]["uid"] = json!(format!("c-{round}"));
        let object = scene.stamp(copy.clone());
        scene.settle(&key("settings"), &call, Ok(Answer { object }));
    }
    copy["immutable"] = json!(true);
    see_copy(&mut scene, &copy);
    assert!(matches!(scene.plan(&key("settings")), Plan::Wait(_)), "{:?}", scene.plan(&key("settings")));
    assert_eq!(scene.pair.events.keys().count(), 1, "it is told on the source");
}

#[test]
fn law_04_the_copy_of_an_immutable_source_rests() {
    let mut scene = Scene::new();
    let mut object = source("settings", &json!({"a": "1"}));
    object["immutable"] = json!(true);
    let text = see_source(&mut scene, object);
    admit(&mut scene, "web", &mounts("web", "settings", false));
    let copy = carry(&mut scene, "settings", &text);
    assert_eq!(copy["immutable"], true);
    see_copy(&mut scene, &copy);
    assert_eq!(scene.plan(&key("settings")), Plan::Rest);
    assert_eq!(scene.call(&pod_key("web")).why, "CreateCopy");
}
