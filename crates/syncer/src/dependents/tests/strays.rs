//! What becomes of a copy whose marks or back-pointer another client removed or changed, and of objects that are not ours.

use super::tokens::{issue, token_key, wants_token};
use super::*;
use tapestry_engine::{Dirty, Model as _};

/// A copy in use, and its source.
fn carried(scene: &mut Scene) -> (String, Value) {
    let text = see_source(scene, source("settings", &json!({"a": "1"})));
    admit(scene, "web", &mounts("web", "settings", false));
    let copy = carry(scene, "settings", &text);
    (text, copy)
}

fn strip(copy: &mut Value) {
    (copy["metadata"]["labels"], copy["metadata"]["annotations"]) = (json!({}), json!({}));
}

fn edit(copy: &mut Value, annotation: &str, value: Option<&str>) {
    let annotations = copy["metadata"]["annotations"].as_object_mut().unwrap();
    match value {
        Some(value) => drop(annotations.insert(annotation.to_owned(), json!(value))),
        None => drop(annotations.remove(annotation)),
    }
}

fn end(scene: &mut Scene, pod: &str) {
    let mut gone = mounts(pod, "settings", false);
    merge(
        &mut gone,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}}),
    );
    scene.see_vpod(&gone);
}

/// The key of a copy that does not say of what.
fn stray_key(copy: &Value) -> Key {
    Key::StrayDependent(MAP, Uid::new(copy["metadata"]["uid"].as_str().unwrap()))
}

#[test]
fn a_copy_that_lost_all_our_marks_is_restored_and_goes_with_its_last_pod() {
    for restored in [true, false] {
        let mut scene = Scene::new();
        let (text, mut copy) = carried(&mut scene);
        strip(&mut copy);
        copy["data"]["a"] = json!("theirs");
        see_copy(&mut scene, &copy);
        assert_eq!(scene.call(&key("settings")).why, "RevertDependent");
        if restored {
            carry(&mut scene, "settings", &text);
            assert_eq!(scene.plan(&key("settings")), Plan::Rest);
        }
        end(&mut scene, "web");
        assert_eq!(scene.call(&key("settings")).why, "RemoveDependent");
        lose_copy(&mut scene, &copy);
        assert!(scene.pair.dependents.none_left());
    }
}

#[test]
fn a_copy_whose_back_pointer_was_changed_or_removed_is_restored_and_goes_with_its_last_pod() {
    for (annotation, value) in [
        (keys::VIRTUAL_NAME, Some("other")),
        (keys::VIRTUAL_NAME, None),
        (keys::VIRTUAL_NAMESPACE, Some("other")),
        (keys::VIRTUAL_UID, Some("other")),
        (keys::VIRTUAL_UID, None),
    ] {
        let mut scene = Scene::new();
        let (text, mut copy) = carried(&mut scene);
        edit(&mut copy, annotation, value);
        let row = DependentCopy::decode(&scene.stamp(copy.clone()), MAP, &scene.pair.origin).unwrap().unwrap();
        let mut dirty = Dirty::default();
        scene.pair.observe(Fact::DependentCopy(MAP, Change::Put(row, Epoch(1))), scene.now, &mut dirty);
        assert!(format!("{dirty:?}").contains("keys: [Dependent("), "{annotation} {value:?}: {dirty:?}");
        assert_eq!(scene.call(&key("settings")).why, "RevertDependent", "{annotation} {value:?}");
        carry(&mut scene, "settings", &text);
        assert_eq!(scene.plan(&key("settings")), Plan::Rest, "{annotation} {value:?}");
        see_copy(&mut scene, &copy);
        end(&mut scene, "web");
        assert_eq!(scene.call(&key("settings")).why, "RemoveDependent", "{annotation} {value:?}");
    }
}

#[test]
fn a_copy_that_a_new_process_finds_without_its_back_pointer_is_restored_if_a_pod_uses_it_and_removed_if_none_does() {
    let (_, mut copy) = carried(&mut Scene::new());
    edit(&mut copy, keys::VIRTUAL_NAME, None);

    let mut scene = Scene::new();
    see_copy(&mut scene, &copy);
    assert!(!scene.pair.dependents.none_left());
    assert!(scene.pair.dependents.keys().any(|key| key == stray_key(&copy)));
    let text = see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    assert_eq!(scene.plan(&stray_key(&copy)), Plan::Rest, "a pod uses it");
    scene.refuse(&key("settings"), Refusal::Exists);
    let look = scene.call(&key("settings"));
    let object = scene.stamp(copy.clone());
    scene.settle(&key("settings"), &look, Ok(Answer { object }));
    assert_eq!(scene.call(&key("settings")).why, "UpdateDependent");
    carry(&mut scene, "settings", &text);
    assert_eq!(scene.call(&pod_key("web")).why, "CreateCopy");

    let mut scene = Scene::new();
    see_copy(&mut scene, &copy);
    let call = scene.call(&stray_key(&copy));
    assert_eq!((call.why, call.target.rv.is_some()), ("RemoveDependent", true));
    scene.settle(&stray_key(&copy), &call, Ok(Answer { object: "{}".into() }));
    assert!(scene.pair.dependents.none_left());
}

#[test]
fn law_06_another_clients_imitation_of_a_copy_is_not_touched_and_holds_nothing_up() {
    let (_, copy) = carried(&mut Scene::new());
    let mut imitation = copy;
    (imitation["metadata"]["name"], imitation["metadata"]["uid"]) = (json!("settings-backup"), json!("theirs"));
    let mut scene = Scene::new();
    see_copy(&mut scene, &imitation);
    assert_eq!(scene.plan(&stray_key(&imitation)), Plan::Rest);
    assert!(scene.pair.dependents.none_left());
}

#[test]
fn what_waits_for_a_strangers_name_is_planned_when_the_stranger_is_gone() {
    let mut scene = Scene::new();
    see_source(&mut scene, source("settings", &json!({"a": "1"})));
    admit(&mut scene, "web", &mounts("web", "settings", false));
    scene.refuse(&key("settings"), Refusal::Exists);
    let look = scene.call(&key("settings"));
    let stranger = json!({"metadata": {"name": look.target.name.as_str(), "namespace": "mount", "uid": "theirs"}});
    let object = scene.stamp(stranger.clone());
    scene.settle(&key("settings"), &look, Ok(Answer { object }));
    see_copy(&mut scene, &stranger);
    assert!(matches!(scene.plan(&key("settings")), Plan::Wait(_)));
    lose_copy(&mut scene, &stranger);
    assert_eq!(scene.call(&key("settings")).why, "CreateDependent");
}

#[test]
fn tokens_that_wait_for_a_strangers_name_are_issued_when_the_stranger_is_gone() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    scene.refuse(&token_key("ci"), Refusal::Exists);
    let look = scene.call(&token_key("ci"));
    let stranger = json!({"metadata": {"name": look.target.name.as_str(), "namespace": "mount", "uid": "theirs"}});
    let object = scene.stamp(stranger.clone());
    scene.settle(&token_key("ci"), &look, Ok(Answer { object }));
    assert!(matches!(scene.plan(&token_key("ci")), Plan::Wait(_)));
    let text = scene.stamp(stranger);
    let row = DependentCopy::decode(&text, DependentKind::Secret, &scene.pair.origin).unwrap().unwrap();
    scene.see(Fact::DependentCopy(DependentKind::Secret, Change::Gone { row, proven: false }));
    assert_eq!(scene.call(&token_key("ci")).why, "CreateToken");
}

#[test]
fn tokens_that_a_new_process_finds_without_their_back_pointer_are_issued_again_and_go_with_their_pod() {
    let mut scene = Scene::new();
    admit(&mut scene, "ci", &wants_token("ci"));
    let mut secret = issue(&mut scene, "ci", "2026-01-01T00:48:00Z");
    edit(&mut secret, keys::VIRTUAL_POD_UID, None);

    let mut scene = Scene::new();
    let ci = admit(&mut scene, "ci", &wants_token("ci"));
    scene.refuse(&token_key("ci"), Refusal::Exists);
    let look = scene.call(&token_key("ci"));
    let object = scene.stamp(secret);
    scene.settle(&token_key("ci"), &look, Ok(Answer { object }));
    assert_eq!(scene.call(&token_key("ci")).why, "RefreshToken");
    let mut gone = ci;
    merge(
        &mut gone,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}}),
    );
    scene.see_vpod(&gone);
    assert_eq!(scene.call(&token_key("ci")).why, "RemoveToken");
}

#[test]
fn a_source_is_told_once_that_another_object_has_the_name_of_a_copy_that_a_running_pod_uses() {
    let mut scene = Scene::new();
    let (text, mut copy) = carried(&mut scene);
    let ppod = start(&mut scene, "web");
    strip(&mut copy);
    for runs in [true, false] {
        let mut scene = Scene::new();
        scene
            .see(Fact::Source(MAP, Change::Put(Source::decode(&text.clone().into(), MAP).unwrap().unwrap(), Epoch(1))));
        admit(&mut scene, "web", &mounts("web", "settings", false));
        if runs {
            scene.see_ppod(&ppod);
        }
        see_copy(&mut scene, &copy);
        scene.refuse(&key("settings"), Refusal::Exists);
        for _ in 0..2 {
            let look = scene.call(&key("settings"));
            assert_eq!(look.why, "LookForDependent");
            let object = scene.stamp(copy.clone());
            scene.settle(&key("settings"), &look, Ok(Answer { object }));
            assert!(matches!(scene.plan(&key("settings")), Plan::Wait(_)));
            scene.pass(Duration::from_mins(5));
        }
        let events: Vec<_> = scene.pair.events.keys().map(|key| scene.call(&key)).collect();
        assert_eq!(events.len(), usize::from(runs), "{events:?}");
        for event in events {
            let body = event.body().unwrap();
            assert_eq!(
                (&body["reason"], &body["involvedObject"]["uid"]),
                (&json!("CopyNotUpdated"), &json!("s-settings"))
            );
            let name = copy["metadata"]["name"].as_str().unwrap();
            assert!(body["message"].as_str().unwrap().contains(&format!("ConfigMap {name}")), "{body}");
        }
    }
}
