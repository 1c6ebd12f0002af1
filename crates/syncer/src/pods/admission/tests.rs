//! Who may not enter, and why. All of these pods were bound by hand, past every scheduler.

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Uid;

use crate::pair::Key;
use crate::scene::{Scene, merge, vpod};

fn key(pod: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{pod}")))
}

/// What admission says to a pod; `None` when it admits the pod.
fn verdict(scene: &mut Scene, pod: &str, extra: Value) -> Option<(String, String)> {
    let mut object = vpod(pod);
    merge(&mut object, extra);
    scene.see_vpod(&object);
    let call = scene.call(&key(pod));
    let body = call.body().unwrap();
    let condition = &body["status"]["conditions"][0];
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    (call.why == "Refuse").then(|| (text("reason"), text("message")))
}

fn refused(scene: &mut Scene, pod: &str, extra: Value) -> String {
    verdict(scene, pod, extra).map(|(reason, _)| reason).unwrap_or_default()
}

fn port(port: u16) -> Value {
    let container =
        json!({"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": port, "protocol": "TCP"}]});
    json!({"spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]}})
}

#[test]
fn law_09_one_too_many_waits_and_gets_in_when_there_is_room() {
    let mut scene = Scene::new();
    for pod in ["a", "b", "c", "d"] {
        assert_eq!(verdict(&mut scene, pod, json!({})), None);
    }
    let (reason, message) = verdict(&mut scene, "e", json!({})).unwrap();
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("OutOfLease", "cpu: 1 wanted, 0 free; the pod starts when there is room")
    );
    let mut done = vpod("a");
    done["status"]["phase"] = json!("Succeeded");
    scene.see_vpod(&done);
    assert_eq!(scene.call(&key("e")).why, "Map");
}

#[test]
fn a_pod_that_no_scheduler_would_have_put_there_is_refused() {
    let mut scene = Scene::new();
    let bare = json!({"spec": {"tolerations": []}});
    assert_eq!(refused(&mut scene, "bare", bare), "UntoleratedTaint");
    assert_eq!(refused(&mut scene, "picky", json!({"spec": {"nodeSelector": {"zone": "b"}}})), "NodeSelectorMismatch");
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]});
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
    assert_eq!(refused(&mut scene, "afar", json!({"spec": {"affinity": affinity}})), "NodeAffinityMismatch");
    assert_eq!(verdict(&mut scene, "fits", json!({"spec": {"nodeSelector": {"zone": "a"}}})), None);
}

#[test]
fn a_pod_below_the_security_standard_is_refused_with_what_to_change() {
    let mut scene = Scene::new();
    let privileged = json!({"name": "c", "image": "i", "securityContext": {"privileged": true}});
    let pod = json!({"spec": {"containers": [privileged]}});
    let (reason, message) = verdict(&mut scene, "root", pod.clone()).unwrap();
    assert_eq!(reason, "PodSecurityViolation");
    assert!(message.contains("privileged"), "{message}");
    assert_eq!(refused(&mut scene, "port", port(8080)), "PodSecurityViolation", "host ports are for the privileged");
    scene.see_binding(json!({"podSecurity": "privileged"}));
    assert_eq!(scene.call(&key("root")).why, "Map");
    scene.see_binding(json!({"podSecurity": "restricted"}));
    assert_eq!(refused(&mut scene, "plain", json!({})), "PodSecurityViolation");
}

#[test]
fn a_host_port_that_anybody_has_on_the_physical_node_is_refused_until_it_is_free() {
    let mut scene = Scene::new();
    scene.see_binding(json!({"podSecurity": "privileged"}));
    let mut own = json!({
        "metadata": {"name": "own", "namespace": "x", "uid": "own"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"},
    });
    merge(&mut own, port(8080));
    scene.see_ppod(&own);
    let (reason, message) = verdict(&mut scene, "late", port(8080)).unwrap();
    assert_eq!(reason, "HostPortConflict");
    assert!(message.contains("8080/TCP"), "{message}");
    assert_eq!(verdict(&mut scene, "other", port(8081)), None);
    assert_eq!(refused(&mut scene, "twin", port(8081)), "HostPortConflict", "its copy is not there yet, its place is");
    scene.lose_ppod(&own, true);
    assert_eq!(scene.call(&key("late")).why, "Map");
}

#[test]
fn taints_that_follow_from_a_nodes_state_do_not_prevent_admission() {
    let mut scene = Scene::new();
    let mut there = scene.vnode("vnode-east-n1");
    let taints = there["spec"]["taints"].as_array_mut().unwrap();
    taints.push(json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}));
    taints.push(json!({"key": keys::TAINT_PLACEMENT_FAILED, "effect": "NoSchedule"}));
    scene.see_vnode(there.clone());
    assert_eq!(verdict(&mut scene, "web", json!({})), None);
    let taints = there["spec"]["taints"].as_array_mut().unwrap();
    taints.push(json!({"key": "team", "value": "blue", "effect": "NoSchedule"}));
    scene.see_vnode(there);
    assert_eq!(refused(&mut scene, "red", json!({})), "UntoleratedTaint");
}
