//! The life of one Service and its copy, call by call.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::call::carry::Carry;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::refusal::{Cause, Details, Status};
use tapestry_cluster::watch::{Query, Trouble, WatchState};
use tapestry_cluster::watches::{Reader, Watched};
use tapestry_cluster::{Answer, Call, Refusal, Side, Verb, kind};
use tapestry_engine::{Listed as _, Plan, Reason as _};

use super::Id;
use super::reason::ServiceReason;
use super::row::{PService, VService};
use crate::pair::{Fact, Key};
use crate::scene::{Scene, name, patch};

mod addresses;
mod names;

fn key(service: &str) -> Key {
    key_in("shop", service)
}

fn key_in(namespace: &str, service: &str) -> Key {
    Key::Service(Arc::new(Id { namespace: name(namespace), name: name(service) }))
}

/// A pair whose binding carries the Services of `shop` and `team`.
fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.see_binding(json!({"serviceNamespaces": ["shop", "team"]}));
    scene
}

fn service(spec: Value) -> Value {
    service_in("shop", "web", spec)
}

fn service_in(namespace: &str, service: &str, spec: Value) -> Value {
    let mut whole = json!({"type": "ClusterIP", "selector": {"app": "web"}, "ports": [{"port": 80}]});
    patch(&mut whole, spec);
    let metadata = json!({"name": service, "namespace": namespace, "uid": format!("s-{namespace}-{service}")});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": whole})
}

fn see(scene: &mut Scene, object: &Value) {
    let text = scene.stamp(object.clone());
    let row = VService::decode(&text, &scene.pair.origin, RECORD).unwrap().unwrap();
    scene.see(Fact::VService(Change::Put(row, Epoch(1))));
}

fn lose(scene: &mut Scene, object: &Value) {
    let text = scene.stamp(object.clone());
    let row = VService::decode(&text, &scene.pair.origin, RECORD).unwrap().unwrap();
    scene.see(Fact::VService(Change::Gone { row, proven: false }));
}

fn see_copy(scene: &mut Scene, copy: &Value) {
    let text = scene.stamp(copy.clone());
    let row = PService::decode(&text, &scene.pair.origin).unwrap().unwrap();
    scene.see(Fact::PService(Change::Put(row, Epoch(1))));
}

fn lose_copy(scene: &mut Scene, copy: &Value) {
    let text = scene.stamp(copy.clone());
    let row = PService::decode(&text, &scene.pair.origin).unwrap().unwrap();
    scene.see(Fact::PService(Change::Gone { row, proven: false }));
}

const RECORD: &str = "tapestry.io/load-balancer.east";

/// What the gate would write for a call that carries, from this Service into this copy.
fn carried(scene: &mut Scene, call: &Call, service: &Value, copy: Option<&Value>) -> Value {
    let carry = Carry::of(call).unwrap_or_else(|| panic!("nothing is carried: {call}"));
    let source = Answer { object: scene.stamp(service.clone()) };
    let there = copy.map(|copy| Answer { object: scene.stamp(copy.clone()) });
    let write = carry.write(&source, there.as_ref()).unwrap();
    match (write.map(|write| write.verb), copy) {
        (Some(Verb::Create(mut body)), _) => {
            body["metadata"]["uid"] = json!(format!("c-{}", call.target.name));
            body["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            if body["spec"]["clusterIP"].is_null() && body["spec"]["type"] != "ExternalName" {
                body["spec"]["clusterIP"] = json!("10.1.2.3");
            }
            body
        }
        (Some(Verb::Merge(_, body)), Some(copy)) => {
            let mut copy = copy.clone();
            patch(&mut copy, body);
            copy
        }
        (None, Some(copy)) => copy.clone(),
        (other, _) => panic!("{other:?}"),
    }
}

/// Carries the call out that is planned. Returns the copy.
fn carry(scene: &mut Scene, key: &Key, service: &Value, copy: Option<&Value>) -> Value {
    let call = scene.call(key);
    let copy = carried(scene, &call, service, copy);
    let object = scene.stamp(copy.clone());
    scene.settle(key, &call, Ok(Answer { object }));
    copy
}

fn gone(scene: &mut Scene, key: &Key) {
    let call = scene.call(key);
    scene.settle(key, &call, Ok(Answer { object: "{}".into() }));
}

fn stale(scene: &mut Scene) {
    let watched = Watched { reader: Reader::Syncer, side: Side::Virtual, query: Query::all(&kind::SERVICE).into() };
    let trouble = Trouble { verb: "watch", why: "no".into() };
    scene.see(Fact::Watch(watched, WatchState::OutOfSync(trouble)));
}

fn events(scene: &Scene) -> Vec<String> {
    let told =
        scene.pair.events.keys().map(|key| scene.call(&key).body().unwrap()["reason"].as_str().unwrap().to_owned());
    told.collect()
}

#[test]
fn a_service_of_a_listed_namespace_has_a_copy_of_its_own_name_and_then_nothing_is_written() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let call = scene.call(&key("web"));
    assert_eq!((call.why, call.target.name.as_str()), ("CreateService", "web"));
    let copy = carry(&mut scene, &key("web"), &web, None);
    assert_eq!(copy["metadata"]["annotations"][keys::VIRTUAL_UID], "s-shop-web");
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    // A status that changes is no change of what is carried.
    see(&mut scene, &web);
    see_copy(&mut scene, &copy);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn other_namespaces_and_the_api_servers_own_service_are_not_carried() {
    let mut scene = scene();
    see(&mut scene, &service_in("other", "web", json!({})));
    assert_eq!(scene.plan(&key_in("other", "web")), Plan::Rest);
    let own = service_in("default", "kubernetes", json!({})).to_string();
    let text = scene.stamp(serde_json::from_str(&own).unwrap());
    assert!(VService::decode(&text, &scene.pair.origin, RECORD).unwrap().is_none());
}

#[test]
fn a_change_goes_down_and_a_new_service_of_the_name_keeps_the_copy() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let copy = carry(&mut scene, &key("web"), &web, None);
    let web = service(json!({"ports": [{"port": 81}]}));
    see(&mut scene, &web);
    assert_eq!(scene.call(&key("web")).why, "UpdateService");
    let copy = carry(&mut scene, &key("web"), &web, Some(&copy));
    assert_eq!((&copy["spec"]["ports"][0]["port"], &copy["spec"]["clusterIP"]), (&json!(81), &json!("10.1.2.3")));
    let mut again = web.clone();
    again["metadata"]["uid"] = json!("s-again");
    lose(&mut scene, &web);
    see(&mut scene, &again);
    assert_eq!(scene.call(&key("web")).why, "UpdateService");
    let copy = carry(&mut scene, &key("web"), &again, Some(&copy));
    assert_eq!(copy["metadata"]["annotations"][keys::VIRTUAL_UID], "s-again");
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn law_01_a_copy_goes_only_after_a_live_read_proves_that_its_service_is_gone() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let copy = carry(&mut scene, &key("web"), &web, None);
    lose(&mut scene, &web);
    let look = scene.call(&key("web"));
    assert_eq!((look.why, &look.verb, look.target.side), ("LookForService", &Verb::Get, Side::Virtual));
    assert_eq!(look.target.uid.as_ref().map(tapestry_cluster::Uid::as_str), Some("s-shop-web"));
    // No answer, or another Service of the name: the watch tells.
    scene.settle(&key("web"), &look, Err(Refusal::Unknown("no answer".to_owned())));
    scene.settle(&key("web"), &look, Err(Refusal::Replaced));
    assert_eq!(scene.call(&key("web")).why, "LookForService");
    scene.settle(&key("web"), &look, Err(Refusal::Gone));
    let remove = scene.call(&key("web"));
    assert_eq!(remove.why, "RemoveService");
    assert!(remove.target.uid.is_some() && remove.target.rv.is_some(), "{remove}");
    // What was proven in another term is read again.
    scene.pair.services.doubt_evidence();
    assert_eq!(scene.call(&key("web")).why, "LookForService");
    scene.settle(&key("web"), &look, Err(Refusal::Gone));
    gone(&mut scene, &key("web"));
    lose_copy(&mut scene, &copy);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    assert!(scene.pair.services.none_left() && scene.pair.services.keys().next().is_none());
}

#[test]
fn law_01_a_read_that_finds_the_service_keeps_the_copy() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let copy = carry(&mut scene, &key("web"), &web, None);
    lose(&mut scene, &web);
    let look = scene.call(&key("web"));
    let object = scene.stamp(web.clone());
    scene.settle(&key("web"), &look, Ok(Answer { object }));
    see_copy(&mut scene, &copy);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn law_01_nothing_is_removed_while_a_watch_is_behind() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    carry(&mut scene, &key("web"), &web, None);
    stale(&mut scene);
    lose(&mut scene, &web);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    scene.see_binding(json!({"serviceNamespaces": []}));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn a_namespace_that_leaves_the_list_takes_its_copies_away_and_comes_back() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let copy = carry(&mut scene, &key("web"), &web, None);
    scene.see_binding(json!({"serviceNamespaces": ["team"]}));
    assert_eq!(scene.call(&key("web")).why, "RemoveService");
    gone(&mut scene, &key("web"));
    lose_copy(&mut scene, &copy);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    scene.see_binding(json!({"serviceNamespaces": ["shop"]}));
    assert_eq!(scene.call(&key("web")).why, "CreateService");
}

#[test]
fn copies_go_with_the_binding() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    carry(&mut scene, &key("web"), &web, None);
    scene.see_binding_leaving(json!({"serviceNamespaces": ["shop"]}));
    assert_eq!(scene.plan(&key("web")), Plan::Rest, "virtual nodes and pods go first");
    scene.lose_vnode("vnode-east-n1");
    assert_eq!(scene.call(&key("web")).why, "RemoveService");
    gone(&mut scene, &key("web"));
    assert!(scene.pair.services.none_left());
}

#[test]
fn a_service_that_is_not_carried_is_told_once_and_loses_its_copy() {
    for (spec, reason) in [
        (json!({"externalIPs": ["1.2.3.4"]}), ServiceReason::ExternalIPsRefused),
        (json!({"selector": null}), ServiceReason::NoSelector),
    ] {
        let mut scene = scene();
        let web = service(json!({}));
        see(&mut scene, &web);
        carry(&mut scene, &key("web"), &web, None);
        let unfit = service(spec);
        see(&mut scene, &unfit);
        let call = scene.call(&key("web"));
        let body = call.body().unwrap().into_owned();
        assert_eq!((call.why, &body["reason"]), ("TellUncarried", &json!(reason.as_str())));
        assert_eq!(body["involvedObject"]["uid"], "s-shop-web");
        // Another process told it before.
        scene.settle(&key("web"), &call, Err(Refusal::Exists));
        assert_eq!(scene.call(&key("web")).why, "RemoveService");
        gone(&mut scene, &key("web"));
        see(&mut scene, &unfit);
        assert_eq!(scene.plan(&key("web")), Plan::Rest);
        see(&mut scene, &web);
        assert_eq!(scene.call(&key("web")).why, "CreateService");
    }
}

#[test]
fn a_copy_that_another_client_changes_is_restored_three_times_and_then_left_alone() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let copy = carry(&mut scene, &key("web"), &web, None);
    for _ in 0..3 {
        let mut theirs = copy.clone();
        theirs["spec"]["selector"] = json!({"app": "theirs"});
        see_copy(&mut scene, &theirs);
        assert_eq!(scene.call(&key("web")).why, "RevertService");
        assert_eq!(carry(&mut scene, &key("web"), &web, Some(&theirs)), copy);
    }
    let mut theirs = copy.clone();
    theirs["spec"]["selector"] = json!({"app": "theirs"});
    see_copy(&mut scene, &theirs);
    assert!(matches!(scene.plan(&key("web")), Plan::Wait(_)));
    assert_eq!(events(&scene), ["CopyContested"]);
    // A change of the Service goes down at once, and after ten minutes all is restored.
    let changed = service(json!({"ports": [{"port": 81}]}));
    see(&mut scene, &changed);
    assert_eq!(scene.call(&key("web")).why, "UpdateService");
    scene.pass(Duration::from_mins(10));
    see(&mut scene, &web);
    assert_eq!(scene.call(&key("web")).why, "RevertService");
}

#[test]
fn a_copy_that_lost_its_marks_gets_them_back() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let copy = carry(&mut scene, &key("web"), &web, None);
    for stripped in ["labels", "annotations"] {
        let mut theirs = copy.clone();
        theirs["metadata"][stripped] = json!({});
        see_copy(&mut scene, &theirs);
        assert_eq!(scene.call(&key("web")).why, "RevertService");
        assert_eq!(carry(&mut scene, &key("web"), &web, Some(&theirs)), copy);
    }
}

#[test]
fn a_copy_without_all_its_marks_is_not_ours_any_more_and_another_is_made() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let mut copy = carry(&mut scene, &key("web"), &web, None);
    (copy["metadata"]["labels"], copy["metadata"]["annotations"]) = (json!({}), json!({}));
    see_copy(&mut scene, &copy);
    let call = scene.call(&key("web"));
    assert_eq!(call.why, "CreateService");
    assert_ne!(call.target.name.as_str(), "web");
}

#[test]
fn a_copy_that_kubernetes_does_not_let_change_is_replaced() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let copy = carry(&mut scene, &key("web"), &web, None);
    let headless = service(json!({"clusterIP": "None"}));
    see(&mut scene, &headless);
    let call = scene.call(&key("web"));
    assert_eq!((call.why, call.target.rv.is_some()), ("ReplaceService", true));
    gone(&mut scene, &key("web"));
    lose_copy(&mut scene, &copy);
    let copy = carry(&mut scene, &key("web"), &headless, None);
    assert_eq!(copy["spec"]["clusterIP"], "None");
    // Its load balancer class is fixed too.
    let other = service(json!({"clusterIP": "None", "loadBalancerClass": "example.com/other"}));
    see(&mut scene, &other);
    let cause =
        Cause { reason: "FieldValueInvalid".into(), field: "spec.loadBalancerClass".into(), ..Default::default() };
    let details = Details { causes: vec![cause], ..Default::default() };
    scene.refuse(&key("web"), Refusal::Invalid(Box::new(Status { code: 422, details, ..Default::default() })));
    assert_eq!(scene.call(&key("web")).why, "ReplaceService");
}

#[test]
fn a_refusal_of_the_physical_cluster_is_told_once() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let quota =
        || Refusal::Denied(Box::new(Status { code: 403, message: "exceeded quota".into(), ..Default::default() }));
    scene.refuse(&key("web"), quota());
    scene.refuse(&key("web"), quota());
    assert_eq!(events(&scene), ["CopyRefused"]);
    let copy = carry(&mut scene, &key("web"), &web, None);
    see(&mut scene, &service(json!({"type": "LoadBalancer"})));
    scene.refuse(&key("web"), quota());
    assert_eq!(events(&scene), ["CopyRefused", "CopyNotUpdated"]);
    see_copy(&mut scene, &copy);
    assert_eq!(scene.call(&key("web")).why, "UpdateService");
}

#[test]
fn every_reason_is_in_the_guide() {
    let guide = include_str!("../../../../docs/guide/services.md");
    for reason in ServiceReason::ALL {
        assert!(guide.contains(&format!("`{}`", reason.as_str())), "{reason:?}");
    }
}

#[test]
fn law_11_rows_are_small() {
    assert!(size_of::<VService>() <= 88, "{}", size_of::<VService>());
    assert!(size_of::<PService>() <= 48, "{}", size_of::<PService>());
    assert!(size_of::<super::row::Of>() <= 88, "{}", size_of::<super::row::Of>());
    assert!(size_of::<super::Case>() <= 240, "{}", size_of::<super::Case>());
}
