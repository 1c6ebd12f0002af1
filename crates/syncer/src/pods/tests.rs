//! Plans for pods, one sentence at a time.

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Answer, Refusal, Side, Uid, Verb};
use tapestry_engine::Plan;

use super::digest::StatusDigest;
use super::row::{PPod, VPod};
use crate::pair::Key;
use crate::scene::{Scene, created, mapped, merge, vpod};

pub(crate) fn key(pod: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{pod}")))
}

/// A scene with a running pod `web` that is known on both sides; returns both objects.
pub(crate) fn running(scene: &mut Scene) -> (Value, Value) {
    run(scene, &vpod("web"))
}

/// Lets the virtual pod run; returns both objects.
pub(super) fn run(scene: &mut Scene, vpod: &Value) -> (Value, Value) {
    let key = key(vpod["metadata"]["name"].as_str().unwrap());
    scene.see_vpod(vpod);
    let map = scene.call(&key);
    let name = map.body().unwrap().into_owned()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME]
        .as_str()
        .unwrap()
        .to_owned();
    scene.see_vpod(&mapped(vpod.clone(), &name, None));
    let create = scene.call(&key);
    let mut ppod = created(&create);
    merge(
        &mut ppod,
        json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Running", "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}]}}),
    );
    scene.see_ppod(&ppod);
    let uid = ppod["metadata"]["uid"].as_str().unwrap();
    let mut up = mapped(vpod.clone(), &name, Some(uid));
    merge(
        &mut up,
        json!({"status": {"phase": "Running", "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}]}}),
    );
    (up, ppod)
}

fn deleted(mut object: Value, grace: u32) -> Value {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    object
}

#[test]
fn a_pod_is_mapped_then_copied_then_its_status_comes_up_with_the_uid_and_then_it_rests() {
    let mut scene = Scene::new();
    scene.see_vpod(&vpod("web"));
    let map = scene.call(&key("web"));
    assert_eq!((map.why, map.target.side), ("Map", Side::Virtual));
    assert!(map.target.uid.is_some() && map.target.rv.is_some(), "two leaders must not choose two names");
    let annotations = &map.body().unwrap().into_owned()["metadata"]["annotations"];
    assert_eq!(annotations[keys::LAST_SYNC_TIME], "2026-01-01T00:00:00Z", "every real write tells its time");
    let (up, ppod) = running(&mut scene);
    let status = scene.call(&key("web"));
    let body = status.body().unwrap().into_owned();
    assert_eq!(status.why, "Status");
    assert_eq!(body["metadata"]["uid"], "v-web");
    assert_eq!(body["metadata"]["annotations"][keys::PHYSICAL_POD_UID], ppod["metadata"]["uid"]);
    assert_eq!(body["status"]["phase"], "Running");
    scene.see_vpod(&up);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn a_running_copy_that_its_node_could_evict_is_patched_once_and_not_again_if_reverted() {
    let mut scene = Scene::new();
    let (up, mut ppod) = running(&mut scene);
    scene.see_vpod(&up);
    let impatient = json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]);
    ppod["spec"]["tolerations"] = impatient.clone();
    scene.see_ppod(&ppod);
    let mend = scene.call(&key("web"));
    assert_eq!((mend.why, mend.target.side), ("MendTolerations", Side::Physical));
    assert!(mend.target.uid.is_some() && mend.target.rv.is_some(), "a list is replaced as a whole");
    let tolerations = mend.body().unwrap()["spec"]["tolerations"].clone();
    assert_eq!(
        tolerations[1],
        json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"})
    );
    ppod["spec"]["tolerations"] = tolerations;
    let object = scene.stamp(ppod.clone());
    scene.settle(&key("web"), &mend, Ok(Answer { object }));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    // Its owner wants it otherwise.
    ppod["spec"]["tolerations"] = impatient;
    scene.see_ppod(&ppod);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn tolerations_that_the_physical_cluster_refuses_are_not_tried_again() {
    let mut scene = Scene::new();
    let (up, mut ppod) = running(&mut scene);
    scene.see_vpod(&up);
    ppod["spec"]["tolerations"] = json!([]);
    scene.see_ppod(&ppod);
    scene.refuse(&key("web"), Refusal::Denied(Box::default()));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn law_12_a_pod_whose_annotations_name_a_strangers_pod_by_uid_says_why_it_is_not_run() {
    let mut scene = Scene::new();
    let mut forged = mapped(vpod("web"), "web-aaaaaaaaaa", Some("stranger"));
    scene.see_vpod(&forged);
    let look = scene.call(&key("web"));
    let stranger = json!({
        "metadata": {"name": "web-aaaaaaaaaa", "namespace": "mount", "uid": "stranger"},
        "spec": {"nodeName": "n1", "containers": []}, "status": {"phase": "Running"},
    });
    let object = scene.stamp(stranger);
    scene.settle(&key("web"), &look, Ok(Answer { object }));
    let refuse = scene.call(&key("web"));
    let condition = refuse.body().unwrap()["status"]["conditions"][0].clone();
    assert_eq!((refuse.why, &condition["reason"]), ("Refuse", &json!("PhysicalPodUnmarked")));
    merge(&mut forged, json!({"status": {"conditions": [condition]}}));
    scene.see_vpod(&forged);
    let look = scene.call(&key("web"));
    assert_eq!(look.why, "LookForCopy", "the pod changed, so it is looked at once more");
}

#[test]
fn law_07_the_copy_carries_fields_that_no_type_of_ours_knows() {
    let mut scene = Scene::new();
    let mut odd = vpod("web");
    merge(&mut odd, json!({"spec": {"aFieldOfTomorrow": {"deep": [1, 0.1, {"x": null}]}}}));
    scene.see_vpod(&mapped(odd, "web-xxxxxxxxxx", None));
    let create = scene.call(&key("web"));
    assert_eq!(created(&create)["spec"]["aFieldOfTomorrow"], json!({"deep": [1, 0.1, {"x": null}]}));
}

#[test]
fn law_06_the_copy_carries_our_origin_and_points_back() {
    let mut scene = Scene::new();
    let (_, ppod) = running(&mut scene);
    let labels = &ppod["metadata"]["labels"];
    assert_eq!(labels[keys::MANAGED_BY], keys::MANAGED_BY_TAPESTRY);
    assert_eq!(labels[keys::ORIGIN], *scene.pair.origin.label);
    let annotations = &ppod["metadata"]["annotations"];
    assert_eq!(annotations[keys::ORIGIN], *scene.pair.origin.full);
    assert_eq!(annotations[keys::VIRTUAL_POD_UID], "v-web");
}

#[test]
fn law_09_what_does_not_fit_stays_outside_and_says_why_until_there_is_room() {
    let mut scene = Scene::new();
    for pod in ["a", "b", "c", "d", "e"] {
        scene.see_vpod(&vpod(pod));
    }
    for pod in ["a", "b", "c", "d"] {
        assert_eq!(scene.call(&key(pod)).why, "Map", "{pod}");
    }
    let refuse = scene.call(&key("e"));
    let condition = &refuse.body().unwrap().into_owned()["status"]["conditions"][0];
    assert_eq!(
        (refuse.why, &condition["reason"], &condition["status"]),
        ("Refuse", &json!("OutOfLease"), &json!("False"))
    );
    // Written once, not again and again.
    let mut told = vpod("e");
    merge(&mut told, json!({"status": {"conditions": [condition]}}));
    scene.see_vpod(&told);
    assert_eq!(scene.plan(&key("e")), Plan::Rest);
    // One of the others ends.
    let mut done = vpod("a");
    done["status"]["phase"] = json!("Succeeded");
    scene.see_vpod(&done);
    assert_eq!(scene.call(&key("e")).why, "Map");
}

#[test]
fn law_09_a_mapping_written_by_a_user_admits_nothing() {
    let mut scene = Scene::new();
    let mut big = mapped(vpod("big"), "big-x", None);
    merge(&mut big, json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "5"}}}]}}));
    scene.see_vpod(&big);
    assert_eq!(scene.call(&key("big")).why, "Refuse");
}

#[test]
fn law_05_a_mapping_into_another_namespace_is_replaced_and_never_followed() {
    let mut scene = Scene::new();
    let mut forged = mapped(vpod("web"), "etcd-0", None);
    forged["metadata"]["annotations"][keys::PHYSICAL_POD_NAMESPACE] = json!("kube-system");
    scene.see_vpod(&forged);
    let map = scene.call(&key("web"));
    assert_eq!(map.body().unwrap().into_owned()["metadata"]["annotations"][keys::PHYSICAL_POD_NAMESPACE], "mount");
    // And when such a pod is deleted, it is released without a look at what it points to.
    scene.see_vpod(&deleted(forged, 30));
    assert_eq!(scene.call(&key("web")).why, "Release");
}

#[test]
fn a_name_that_a_stranger_has_is_given_up_for_another_one() {
    let mut scene = Scene::new();
    scene.see_vpod(&mapped(vpod("web"), "web-takentaken", None));
    scene.refuse(&key("web"), Refusal::Exists);
    let look = scene.call(&key("web"));
    assert_eq!((look.why, &look.verb), ("LookForCopy", &Verb::Get));
    let stranger =
        json!({"metadata": {"name": "web-takentaken", "namespace": "mount", "uid": "s"}, "spec": {"containers": []}});
    let object = scene.stamp(stranger);
    scene.settle(&key("web"), &look, Ok(Answer { object }));
    let map = scene.call(&key("web"));
    assert_eq!(map.why, "Map");
    assert_ne!(map.body().unwrap().into_owned()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME], "web-takentaken");
}

#[test]
fn a_name_that_our_own_copy_has_is_success() {
    let mut scene = Scene::new();
    scene.see_vpod(&mapped(vpod("web"), "web-xxxxxxxxxx", None));
    let create = scene.call(&key("web"));
    scene.refuse(&key("web"), Refusal::Exists);
    let look = scene.call(&key("web"));
    let object = scene.stamp(created(&create));
    scene.settle(&key("web"), &look, Ok(Answer { object }));
    // It only waits for its node.
    assert!(matches!(scene.plan(&key("web")), Plan::Wait(_)));
}

#[test]
fn deletion_goes_down_with_its_grace_and_again_when_it_shrinks() {
    let mut scene = Scene::new();
    let (up, ppod) = running(&mut scene);
    scene.see_vpod(&deleted(up.clone(), 30));
    let delete = scene.call(&key("web"));
    assert_eq!(delete.verb, Verb::Delete { grace: Some(30) });
    assert_eq!(delete.target.uid, Some(Uid::new(ppod["metadata"]["uid"].as_str().unwrap())));
    scene.see_ppod(&deleted(ppod.clone(), 30));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    scene.see_vpod(&deleted(up, 5));
    assert_eq!(scene.call(&key("web")).verb, Verb::Delete { grace: Some(5) });
}

#[test]
fn a_deleted_pod_gets_its_terminal_status_before_it_is_released() {
    let mut scene = Scene::new();
    let (up, mut ppod) = running(&mut scene);
    scene.see_vpod(&deleted(up.clone(), 30));
    ppod["status"]["phase"] = json!("Succeeded");
    scene.lose_ppod(&deleted(ppod, 30), true);
    let finish = scene.call(&key("web"));
    assert_eq!((finish.why, &finish.body().unwrap().into_owned()["status"]["phase"]), ("Finish", &json!("Succeeded")));
    let mut finished = deleted(up, 30);
    finished["status"]["phase"] = json!("Succeeded");
    scene.see_vpod(&finished);
    let release = scene.call(&key("web"));
    assert_eq!((release.why, &release.verb), ("Release", &Verb::Delete { grace: Some(0) }));
    assert!(release.target.uid.is_some());
    // With a finalizer of another controller it stays, and there is nothing more for us to do.
    finished["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    finished["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
    scene.see_vpod(&finished);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn an_unreported_end_is_made_up_only_for_pods_with_a_finalizer() {
    for (finalizers, next) in [(json!([]), "Release"), (json!(["batch.kubernetes.io/job-tracking"]), "Finish")] {
        let mut scene = Scene::new();
        let (up, ppod) = running(&mut scene);
        let mut going = deleted(up, 30);
        going["metadata"]["finalizers"] = finalizers;
        scene.see_vpod(&going);
        scene.lose_ppod(&deleted(ppod, 30), true);
        assert_eq!(scene.call(&key("web")).why, next);
    }
}

#[test]
fn law_01_a_copy_that_is_out_of_sight_is_looked_for_and_lost_only_when_the_server_says_so() {
    let mut scene = Scene::new();
    let (up, ppod) = running(&mut scene);
    scene.see_vpod(&up);
    scene.lose_ppod(&ppod, false);
    let look = scene.call(&key("web"));
    assert_eq!((look.why, &look.verb), ("LookForCopy", &Verb::Get));
    for proves_nothing in
        [Refusal::Unknown(String::new()), Refusal::Replaced, Refusal::Later(std::time::Duration::ZERO)]
    {
        scene.settle(&key("web"), &look, Err(proves_nothing));
        assert_eq!(scene.call(&key("web")).why, "LookForCopy");
    }
    scene.settle(&key("web"), &look, Err(Refusal::Gone));
    let lost = scene.call(&key("web"));
    assert_eq!(
        (lost.why, &lost.body().unwrap().into_owned()["status"]["reason"]),
        ("PhysicalPodLost", &json!("PhysicalPodLost"))
    );
}

#[test]
fn law_01_a_copy_is_deleted_only_when_the_server_says_that_its_pod_is_gone() {
    let mut scene = Scene::new();
    let (_, ppod) = running(&mut scene);
    let mut fresh = Scene::new();
    fresh.see_ppod(&ppod);
    let look = fresh.call(&key("web"));
    assert_eq!((look.why, look.target.side, &look.verb), ("LookForVirtualPod", Side::Virtual, &Verb::Get));
    fresh.settle(&key("web"), &look, Err(Refusal::Unknown("timeout".to_owned())));
    assert_eq!(fresh.call(&key("web")).verb, Verb::Get);
    fresh.settle(&key("web"), &look, Err(Refusal::Gone));
    let delete = fresh.call(&key("web"));
    assert_eq!((delete.why, delete.target.side), ("VirtualPodGone", Side::Physical));
    assert!(delete.target.uid.is_some());
}

#[test]
fn law_01_a_pod_that_has_another_uid_by_now_is_gone() {
    let mut scene = Scene::new();
    let (_, ppod) = running(&mut scene);
    let mut fresh = Scene::new();
    fresh.see_ppod(&ppod);
    let look = fresh.call(&key("web"));
    let mut successor = vpod("web");
    successor["metadata"]["uid"] = json!("another");
    let object = fresh.stamp(successor);
    fresh.settle(&key("web"), &look, Ok(Answer { object }));
    assert_eq!(fresh.call(&key("web")).why, "VirtualPodGone");
}

#[test]
fn law_01_nothing_is_planned_for_pods_while_a_cluster_is_unreachable_or_another_one() {
    use tapestry_cluster::probe::Connection;
    for connection in [Connection::Down("refused".to_owned()), Connection::Up(Uid::new("somebody-else"))] {
        let mut scene = Scene::new();
        let (up, ppod) = running(&mut scene);
        scene.see_vpod(&deleted(up, 30));
        scene.see(crate::pair::Fact::Connection(Side::Physical, connection));
        assert_eq!(scene.plan(&key("web")), Plan::Rest);
        scene.lose_ppod(&ppod, true);
        assert_eq!(scene.plan(&key("web")), Plan::Rest);
    }
}

#[test]
fn a_finished_pod_whose_copy_was_collected_stays_as_it_ended() {
    let mut scene = Scene::new();
    let (mut up, ppod) = running(&mut scene);
    up["status"]["phase"] = json!("Succeeded");
    scene.see_vpod(&up);
    scene.lose_ppod(&ppod, true);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn labels_taken_from_a_running_copy_are_put_back() {
    let mut scene = Scene::new();
    let (up, mut ppod) = running(&mut scene);
    scene.see_vpod(&up);
    ppod["metadata"]["labels"] = json!({});
    scene.see_ppod(&ppod);
    assert_eq!(scene.call(&key("web")).why, "MendLabels");
    // Even everything that says it is ours: it is the same object.
    ppod["metadata"]["annotations"] = json!({});
    scene.see_ppod(&ppod);
    let mend = scene.call(&key("web"));
    assert_eq!(mend.why, "MendLabels");
    assert_eq!(mend.body().unwrap().into_owned()["metadata"]["annotations"][keys::VIRTUAL_POD_UID], "v-web");
    // Whether or not they can be put back, an end that its user asked for comes first.
    scene.see_vpod(&deleted(up, 30));
    assert_eq!(scene.call(&key("web")).why, "VirtualPodDeleted");
}

#[test]
fn a_copy_that_a_user_deletes_takes_its_pod_out_of_service_at_once() {
    let mut scene = Scene::new();
    let (up, ppod) = running(&mut scene);
    scene.see_vpod(&up);
    scene.see_ppod(&deleted(ppod, 30));
    let status = scene.call(&key("web"));
    let conditions = status.body().unwrap().into_owned()["status"]["conditions"].clone();
    let says =
        |kind: &str| conditions.as_array().unwrap().iter().find(|c| c["type"] == kind).unwrap()["status"].clone();
    assert_eq!((says("Ready"), says("DisruptionTarget")), (json!("False"), json!("True")));
}

#[test]
fn law_04_a_field_that_the_virtual_server_drops_is_not_pushed_for_ever() {
    let mut scene = Scene::new();
    let (mut up, mut ppod) = running(&mut scene);
    ppod["status"]["hostIP"] = json!("1.2.3.4");
    scene.see_ppod(&ppod);
    let status = scene.call(&key("web"));
    // The answer lacks hostIP: an older server that does not know the field.
    let object = scene.stamp(up.clone());
    scene.settle(&key("web"), &status, Ok(Answer { object }));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    // But when another client changes the virtual status, ours is written again.
    merge(&mut up, json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}));
    scene.see_vpod(&up);
    assert_eq!(scene.call(&key("web")).why, "Status");
}

#[test]
fn law_03_foreign_conditions_do_not_make_us_write_and_ours_that_went_are_removed() {
    let with = |conditions: Value| {
        StatusDigest::read(&json!({"phase": "Running", "conditions": conditions}).to_string(), None).unwrap()
    };
    let physical = with(json!([{"type": "Ready", "status": "True"}]));
    let foreign = with(json!([{"type": "Ready", "status": "True"}, {"type": "example.com/Gate", "status": "True"}]));
    let containers = super::digest::Containers::default();
    assert!(foreign.agrees_with(&physical, &containers, &super::digest::Amend::default()));
    let stale = with(json!([{"type": "Ready", "status": "True"}, {"type": "PodResizePending", "status": "True"}]));
    assert!(!stale.agrees_with(&physical, &containers, &super::digest::Amend::default()));
}

#[test]
fn law_12_pods_that_name_what_we_do_not_carry_yet_are_refused_with_a_message() {
    let mut scene = Scene::new();
    let mut needy = vpod("web");
    merge(
        &mut needy,
        json!({"spec": {"volumes": [{"name": "v", "glusterfs": {"endpoints": "settings", "path": "p"}}]}}),
    );
    scene.see_vpod(&needy);
    let refuse = scene.call(&key("web"));
    let condition = &refuse.body().unwrap().into_owned()["status"]["conditions"][0];
    assert_eq!(condition["reason"], "DependentUnsupported");
    assert!(condition["message"].as_str().unwrap().contains("settings"), "{condition}");
}

#[test]
fn pods_of_excluded_namespaces_and_of_daemon_sets_are_told_once_why_they_are_not_run() {
    let mut scene = Scene::new();
    let mut daemon = vpod("d");
    daemon["metadata"]["ownerReferences"] = json!([{"kind": "DaemonSet"}]);
    scene.see_vpod(&daemon);
    let refuse = scene.call(&key("d"));
    let told = refuse.body().unwrap().into_owned()["status"]["conditions"][0].clone();
    assert_eq!(told["reason"], "DaemonSetExcluded");
    daemon["status"]["conditions"] = json!([told]);
    let object = scene.stamp(daemon.clone());
    scene.settle(&key("d"), &refuse, Ok(Answer { object }));
    assert_eq!(scene.call(&Key::Event(1)).body().unwrap()["reason"], "DaemonSetExcluded");
    assert_eq!(scene.plan(&key("d")), Plan::Rest);
    // Nor after a restart.
    let mut fresh = Scene::new();
    fresh.see_vpod(&daemon);
    assert_eq!(fresh.plan(&key("d")), Plan::Rest);
    let mut system = vpod("s");
    system["metadata"]["namespace"] = json!("kube-system");
    scene.see_vpod(&system);
    assert_eq!(
        scene.call(&key("s")).body().unwrap().into_owned()["status"]["conditions"][0]["reason"],
        "NamespaceExcluded"
    );
    // Deleting them needs no copy.
    scene.see_vpod(&deleted(daemon, 30));
    assert_eq!(scene.call(&key("d")).why, "Release");
}

#[test]
fn law_11_rows_are_small() {
    assert!(size_of::<VPod>() <= 320, "{}", size_of::<VPod>());
    assert!(size_of::<PPod>() <= 120, "{}", size_of::<PPod>());
    assert!(size_of::<super::row::PodCopy>() <= 240, "{}", size_of::<super::row::PodCopy>());
    assert!(size_of::<super::Case>() <= 256, "{}", size_of::<super::Case>());
}

#[test]
fn law_11_raw_json_is_kept_only_while_it_is_needed() {
    let mut scene = Scene::new();
    let (up, ppod) = running(&mut scene);
    let uid = Uid::new(ppod["metadata"]["uid"].as_str().unwrap());
    scene.see_vpod(&up);
    assert!(scene.pair.pods.vpods.get(&Uid::new("v-web")).unwrap().raw.is_none());
    assert!(scene.pair.pods.ppods.get(&uid).unwrap().ours.as_ref().unwrap().status.is_none());
}

#[test]
fn law_01_a_copy_that_is_made_to_point_to_another_pod_stays_what_it_was() {
    let mut scene = Scene::new();
    let (up, mut ppod) = running(&mut scene);
    scene.see_vpod(&up);
    ppod["metadata"]["annotations"][keys::VIRTUAL_POD_UID] = json!("v-nobody");
    scene.see_ppod(&ppod);
    assert_eq!(scene.call(&key("web")).why, "MendLabels");
    assert_eq!(scene.plan(&key("nobody")), Plan::Rest);
    assert_eq!(scene.pair.check_sums(), Ok(()));
}

#[test]
fn law_01_evidence_by_reading_does_not_outlive_a_change_of_connection() {
    let mut scene = Scene::new();
    let (_, ppod) = running(&mut scene);
    let mut fresh = Scene::new();
    fresh.see_ppod(&ppod);
    fresh.refuse(&key("web"), Refusal::Gone);
    assert_eq!(fresh.call(&key("web")).why, "VirtualPodGone");
    let up = tapestry_cluster::probe::Connection::Up(Uid::new("v-cluster"));
    fresh.see(crate::pair::Fact::Connection(Side::Virtual, up));
    assert_eq!(fresh.call(&key("web")).why, "LookForVirtualPod");
}

#[test]
fn a_running_pod_whose_mapping_is_gone_is_looked_for_by_its_former_name_and_never_failed_by_time() {
    let mut scene = Scene::new();
    let (up, ppod) = running(&mut scene);
    scene.see_vpod(&up);
    let mut bare = up.clone();
    bare["metadata"]["annotations"] = json!({});
    scene.see_vpod(&bare);
    scene.lose_ppod(&ppod, false);
    assert_eq!(scene.call(&key("web")).why, "LookForCopy");
    // A new process knows no former name: it says so, and does nothing.
    let mut fresh = Scene::new();
    fresh.see_vpod(&bare);
    let told = fresh.call(&key("web"));
    assert_eq!(told.body().unwrap()["status"]["conditions"][0]["reason"], "MappingLost");
}

#[test]
fn a_grace_period_of_centuries_is_a_grace_period() {
    let mut scene = Scene::new();
    let (up, _) = running(&mut scene);
    let mut going = deleted(up, 1);
    going["metadata"]["deletionGracePeriodSeconds"] = json!(5_000_000_000_i64);
    scene.see_vpod(&going);
    assert_eq!(scene.call(&key("web")).why, "VirtualPodDeleted");
}

#[test]
fn a_copy_stripped_of_everything_is_left_running_when_its_pod_goes_and_an_event_says_so() {
    let mut scene = Scene::new();
    let (up, ppod) = running(&mut scene);
    let mut fresh = Scene::new();
    fresh.see_vpod(&deleted(up, 30));
    let look = fresh.call(&key("web"));
    let mut stripped = ppod;
    (stripped["metadata"]["labels"], stripped["metadata"]["annotations"]) = (json!({}), json!({}));
    let object = fresh.stamp(stripped);
    fresh.settle(&key("web"), &look, Ok(Answer { object }));
    let event = fresh.call(&Key::Event(1));
    assert_eq!(event.body().unwrap()["reason"], "PhysicalPodLeft");
    assert_eq!(fresh.call(&key("web")).why, "Release");
}

#[test]
fn without_random_numbers_no_name_is_drawn_and_the_pod_waits_until_there_are_some() {
    let mut scene = Scene::new();
    let web = Key::Pod(Uid::new("v-web"));
    scene.pair.pods.entropy = Box::new(|| None);
    scene.see_vpod(&vpod("web"));
    let told = scene.call(&web).body().unwrap().to_string();
    assert!(told.contains("NoRandomNumbers"), "{told}");
    scene.pair.pods.entropy = Box::new(|| Some([7; 8]));
    scene.pass(std::time::Duration::from_secs(2));
    // Any fact will do.
    scene.see_vpod(&vpod("other"));
    let mapped = scene.call(&web).body().unwrap().to_string();
    assert!(mapped.contains(keys::PHYSICAL_POD_NAME), "{mapped}");
}

#[test]
fn a_pod_restored_from_a_saved_manifest_gets_a_copy_of_its_own() {
    let mut scene = Scene::new();
    // Its annotations name the copy of the pod it was saved from, which is gone.
    scene.see_vpod(&mapped(vpod("web"), "web-aaaaaaaaaa", Some("p-of-the-one-before")));
    let look = scene.call(&key("web"));
    assert_eq!(look.why, "LookForCopy");
    scene.settle(&key("web"), &look, Err(Refusal::Gone));
    let map = scene.call(&key("web"));
    assert_eq!(map.why, "Map");
    assert!(!map.body().unwrap().to_string().contains("web-aaaaaaaaaa"), "{map}");
}

#[test]
fn a_copys_uid_that_was_taken_away_or_forged_is_written_again() {
    for uid in [None, Some("forged")] {
        let mut scene = Scene::new();
        let (mut up, mut ppod) = running(&mut scene);
        let started = json!({"status": {"startTime": "2026-01-01T00:00:00Z"}});
        merge(&mut up, started.clone());
        merge(&mut ppod, started);
        scene.see_ppod(&ppod);
        scene.see_vpod(&up);
        assert_eq!(scene.plan(&key("web")), Plan::Rest);
        let annotations = up["metadata"]["annotations"].as_object_mut().unwrap();
        match uid {
            Some(uid) => annotations.insert(keys::PHYSICAL_POD_UID.to_owned(), json!(uid)),
            None => annotations.remove(keys::PHYSICAL_POD_UID),
        };
        scene.see_vpod(&up);
        let call = scene.call(&key("web"));
        let written = &call.body().unwrap().into_owned()["metadata"]["annotations"][keys::PHYSICAL_POD_UID];
        assert_eq!((call.why, written), ("RepairMapping", &ppod["metadata"]["uid"]), "{uid:?}");
    }
}
