//! Objects that cannot be fully read, and quantities that no user can mean: each is answered, none is overlooked.

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_engine::Plan;

use crate::nodes::row::{PNode, VNode};
use crate::pair::{Fact, Key};
use crate::pods::row::{PPod, VPod};
use crate::pods::tests::{key, running};
use crate::scene::{Scene, merge, name, pnode, vpod};

/// The pod with an amount of a form that no version knows yet.
fn of_tomorrow(mut pod: Value) -> Value {
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!({"atLeast": "1"});
    pod
}

/// A foreign pod on `n1`.
fn stranger(request: &Value) -> Value {
    json!({
        "metadata": {"name": "db", "namespace": "owner", "uid": "db-uid"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": request}}}]},
        "status": {"phase": "Running"},
    })
}

/// Reason and message of the condition that is planned for a pod.
fn refused(scene: &Scene, pod: &str) -> (String, String) {
    let call = scene.call(&key(pod));
    assert_eq!(call.why, "Refuse");
    let condition = call.body().unwrap()["status"]["conditions"][0].clone();
    assert_eq!(condition["type"], keys::CONDITION_ADMITTED);
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    (text("reason"), text("message"))
}

fn leased(scene: &mut Scene) -> String {
    scene.follow_node("n1");
    scene.vnode("vnode-east-n1")["status"]["allocatable"]["cpu"].as_str().unwrap().to_owned()
}

#[test]
fn law_12_a_virtual_pod_that_cannot_be_read_says_so_once_and_can_be_deleted() {
    let mut scene = Scene::new();
    let mut odd = of_tomorrow(vpod("odd"));
    scene.see_vpod(&odd);
    let (reason, message) = refused(&scene, "odd");
    assert_eq!(reason, "PodUnreadable");
    assert!(message.contains("spec") && message.contains("delete it"), "{message}");
    let said = json!([{"type": keys::CONDITION_ADMITTED, "status": "False", "reason": reason, "message": message}]);
    merge(&mut odd, json!({"status": {"conditions": said}}));
    scene.see_vpod(&odd);
    assert_eq!(scene.plan(&key("odd")), Plan::Rest);
    merge(
        &mut odd,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30}}),
    );
    scene.see_vpod(&odd);
    assert_eq!(scene.call(&key("odd")).why, "Release", "its namespace must not hang");
    // The others are none the worse for it.
    scene.see_vpod(&vpod("web"));
    assert_eq!(scene.call(&key("web")).why, "Map");
}

#[test]
fn a_running_pod_that_can_no_longer_be_read_keeps_its_copy_and_its_place() {
    let mut scene = Scene::new();
    let (up, ppod) = running(&mut scene);
    scene.see_vpod(&up);
    let mut odd = of_tomorrow(up);
    scene.see_vpod(&odd);
    assert_eq!(refused(&scene, "web").0, "PodUnreadable");
    scene.pair.check_sums().unwrap();
    let held = scene.pair.pods.held(&name("vnode-east-n1")).unwrap().to_string();
    assert!(held.contains("cpu=1 "), "{held}");
    merge(
        &mut odd,
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 5}}),
    );
    scene.see_vpod(&odd);
    let delete = scene.call(&key("web"));
    assert_eq!(
        (delete.why, delete.target.uid.as_ref().unwrap().as_str()),
        ("VirtualPodDeleted", ppod["metadata"]["uid"].as_str().unwrap())
    );
}

#[test]
fn law_09_nothing_is_admitted_beside_a_physical_pod_that_cannot_be_read_and_no_pod_is_evicted() {
    let mut scene = Scene::new();
    scene.see_policy("all", json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 1}));
    let (up, _) = running(&mut scene);
    scene.see_vpod(&up);
    let odd = of_tomorrow(stranger(&json!("1")));
    scene.see_ppod(&odd);
    assert_eq!(leased(&mut scene), "0");
    let lending = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap().condition(keys::CONDITION_LENDING).unwrap();
    assert_eq!((&*lending.status, &*lending.reason), ("False", "PhysicalPodUnreadable"));
    assert!(lending.message.contains("owner/db"), "{}", lending.message);
    scene.see_vpod(&vpod("new"));
    let (reason, message) = refused(&scene, "new");
    assert_eq!(reason, "PhysicalPodUnreadable");
    assert!(message.contains("owner/db"), "{message}");
    scene.pass(std::time::Duration::from_hours(1));
    assert_eq!(scene.plan(&key("web")), Plan::Rest, "who runs stays");
    scene.pair.check_sums().unwrap();
    // It is gone.
    scene.lose_ppod(&odd, true);
    assert_eq!(leased(&mut scene), "4");
    assert_eq!(scene.call(&key("new")).why, "Map");
}

#[test]
fn a_physical_pod_that_cannot_be_read_and_uses_no_node_blocks_none() {
    let mut scene = Scene::new();
    let mut ended = of_tomorrow(stranger(&json!("1")));
    ended["status"]["phase"] = json!("Succeeded");
    let mut waiting = of_tomorrow(stranger(&json!("1")));
    waiting["metadata"]["uid"] = json!("other");
    waiting["spec"]["nodeName"].take();
    for pod in [ended, waiting] {
        scene.see_ppod(&pod);
    }
    scene.see_vpod(&vpod("web"));
    assert_eq!(scene.call(&key("web")).why, "Map");
    // Without a readable node or phase there is nothing to say but that it is there.
    let mut blind = of_tomorrow(stranger(&json!("1")));
    blind["spec"]["nodeName"] = json!(["n1"]);
    let text = scene.stamp(blind);
    assert!(PPod::decode(&text, &scene.pair.origin).is_err());
}

#[test]
fn a_copy_whose_status_cannot_be_read_is_not_lost() {
    let mut scene = Scene::new();
    let (up, mut ppod) = running(&mut scene);
    scene.see_vpod(&up);
    ppod["status"]["conditions"] = json!({"of": "tomorrow"});
    scene.see_ppod(&ppod);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    let text = scene.stamp(up);
    assert!(VPod::decode(&text, &scene.pair.home).unwrap().unwrap().unreadable.is_none());
}

#[test]
fn law_12_a_node_that_can_no_longer_be_read_is_neither_absent_nor_lent() {
    let mut scene = Scene::new();
    let (up, _) = running(&mut scene);
    scene.see_vpod(&up);
    let mut odd = pnode("n1");
    odd["status"]["allocatable"]["cpu"] = json!({"atLeast": "4"});
    scene.see_pnode(odd.clone());
    scene.see(Fact::PNode(Change::Listed(Epoch(1))));
    assert_eq!(leased(&mut scene), "0");
    let vnode = scene.pair.nodes.vnode(&name("vnode-east-n1")).unwrap();
    assert_eq!(vnode.condition(keys::CONDITION_LENDING).unwrap().reason, "NodeUnreadable");
    assert_eq!(vnode.condition("Ready").unwrap().status, "True", "what it said before");
    assert!(!vnode.has_taint(keys::TAINT_VNODE_DELETING));
    scene.see_vpod(&vpod("new"));
    assert_eq!(refused(&scene, "new").0, "NodeUnreadable");
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    scene.see_pnode(pnode("n1"));
    assert_eq!(leased(&mut scene), "4");
}

#[test]
fn a_node_that_was_never_read_changes_nothing_of_its_virtual_node() {
    let scene = Scene::new();
    let there = scene.vnode("vnode-east-n1");
    let mut fresh = Scene::empty();
    fresh.see_binding(json!({}));
    fresh.see_policy("all", json!({"cluster": "east"}));
    let mut odd = pnode("n1");
    odd["spec"]["taints"] = json!("of tomorrow");
    fresh.see_pnode(odd.clone());
    fresh.see_vnode(there);
    fresh.complete();
    assert_eq!(fresh.plan(&Key::Node(name("n1"))), Plan::Rest);
    let text = fresh.stamp(odd);
    assert!(PNode::decode(&text).unwrap().is_some());
}

#[test]
fn a_virtual_node_that_cannot_be_read_is_left_as_it_is_and_takes_nothing_new() {
    let mut scene = Scene::new();
    let mut odd = scene.vnode("vnode-east-n1");
    odd["status"]["conditions"] = json!("of tomorrow");
    scene.see_vnode(odd.clone());
    let mut changed = pnode("n1");
    changed["metadata"]["labels"]["zone"] = json!("b");
    scene.see_pnode(changed);
    assert_eq!(scene.plan(&Key::Node(name("n1"))), Plan::Rest);
    scene.see_vpod(&vpod("new"));
    assert_eq!(refused(&scene, "new").0, "NodeUnreadable");
    let text = scene.stamp(odd);
    assert!(VNode::decode(&text).unwrap().is_some());
}

#[test]
fn law_09_absurd_quantities_count_as_more_than_any_node_has() {
    let mut scene = Scene::new();
    for absurd in ["1e308", "1e30", "999999999999999999999999999999999999999"] {
        let mut pod = vpod("absurd");
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(absurd);
        scene.see_vpod(&pod);
        assert_eq!(refused(&scene, "absurd").0, "OutOfLease", "{absurd}");
        let stranger = stranger(&json!(absurd));
        scene.see_ppod(&stranger);
        assert_eq!(leased(&mut scene), "0", "{absurd}");
        scene.pair.check_sums().unwrap();
        scene.lose_ppod(&stranger, true);
        assert_eq!(leased(&mut scene), "4", "{absurd}");
    }
}
