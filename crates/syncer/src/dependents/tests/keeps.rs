//! That a copy in use stays when less is known than before, or when the physical cluster does not take its new values.

use super::tokens::{issue, push_volume, token_key, wants_token};
use super::*;

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
