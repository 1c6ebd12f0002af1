//! That World copies ConfigMaps and Secrets and issues tokens as real API servers do through the gate.

use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Call, CarryMarks, Kind, PodRef, Shape, Side, Target, Uid, Verb};
use tapestry_domain::dependents::DependentKind;

use super::*;

fn world() -> World {
    let mut world = World::default();
    for side in Side::BOTH {
        for name in ["shop", "mount"] {
            world.make(side, &kind::NAMESPACE, json!({"metadata": {"name": name}}));
        }
    }
    world
}

fn object(side: Side, kind: &'static Kind, namespace: &str, name: &str) -> Target {
    Target::namespaced(side, kind, Name::parse(namespace).unwrap(), Name::parse(name).unwrap())
}

fn marks() -> CarryMarks {
    CarryMarks { labels: Vec::new(), annotations: Vec::new(), salt: "origin".to_owned() }
}

fn uid(world: &World, side: Side, kind: &Kind, path: &str) -> Uid {
    world.server(side).find(kind, path).unwrap().uid().clone()
}

/// Carries `shop/db` to `mount/copy`.
fn carry(world: &mut World, kind: &'static Kind, source: &Uid, copy: Option<&Uid>) -> Result<Value, Refusal> {
    let mut target = object(Side::Physical, kind, "mount", "copy");
    target.uid = copy.cloned();
    let from = Box::new(object(Side::Virtual, kind, "shop", "db").uid(source));
    let dependent = if *kind == kind::SECRET { DependentKind::Secret } else { DependentKind::ConfigMap };
    let shape = Box::new(Shape::Dependent(dependent, marks()));
    let done = world.call(&Call { target, verb: Verb::Carry { from, shape }, why: "Test" });
    done.map(|answer| serde_json::from_slice(&answer.object).unwrap())
}

#[test]
fn a_copy_follows_its_source_and_keeps_keys_of_others() {
    let mut world = world();
    let source = json!({"metadata": {"name": "db", "namespace": "shop"}, "data": {"stays": "YQ==", "goes": "YQ=="}});
    world.make(Side::Virtual, &kind::SECRET, source);
    let source = uid(&world, Side::Virtual, &kind::SECRET, "shop/db");
    let copy = carry(&mut world, &kind::SECRET, &source, None).unwrap();
    assert_eq!((&copy["type"], &copy["data"]["goes"]), (&json!("Opaque"), &json!("YQ==")));
    assert_eq!(copy["metadata"]["annotations"][keys::VIRTUAL_UID], source.as_str());
    assert_eq!(carry(&mut world, &kind::SECRET, &source, None), Err(Refusal::Exists));

    let copied = uid(&world, Side::Physical, &kind::SECRET, "mount/copy");
    let version = world.server(Side::Physical).rv();
    carry(&mut world, &kind::SECRET, &source, Some(&copied)).unwrap();
    assert_eq!(world.server(Side::Physical).rv(), version, "law 4: nothing differs");

    world.edit(Side::Virtual, &kind::SECRET, "shop/db", |source| source["data"] = json!({"stays": "Yg=="}));
    world.edit(Side::Physical, &kind::SECRET, "mount/copy", |copy| copy["data"]["theirs"] = json!("Yw=="));
    let copy = carry(&mut world, &kind::SECRET, &source, Some(&copied)).unwrap();
    assert_eq!(copy["data"], json!({"stays": "Yg==", "theirs": "Yw=="}));

    let other = Uid::new("other");
    assert_eq!(carry(&mut world, &kind::SECRET, &other, Some(&copied)), Err(Refusal::Replaced));
    assert_eq!(carry(&mut world, &kind::SECRET, &source, Some(&other)), Err(Refusal::Replaced));
    world.delete(Side::Physical, &kind::SECRET, "mount/copy", None);
    assert_eq!(carry(&mut world, &kind::SECRET, &source, Some(&copied)), Err(Refusal::Gone));
    world.delete(Side::Virtual, &kind::SECRET, "shop/db", None);
    assert_eq!(carry(&mut world, &kind::SECRET, &source, None), Err(Refusal::Replaced));
}

#[test]
fn an_immutable_copy_takes_no_other_value() {
    let mut world = world();
    let source =
        |value: &str| json!({"metadata": {"name": "db", "namespace": "shop"}, "data": {"k": value}, "immutable": true});
    world.make(Side::Virtual, &kind::CONFIG_MAP, source("one"));
    let first = uid(&world, Side::Virtual, &kind::CONFIG_MAP, "shop/db");
    carry(&mut world, &kind::CONFIG_MAP, &first, None).unwrap();
    world.delete(Side::Virtual, &kind::CONFIG_MAP, "shop/db", None);
    world.make(Side::Virtual, &kind::CONFIG_MAP, source("two"));
    let second = uid(&world, Side::Virtual, &kind::CONFIG_MAP, "shop/db");
    let copied = uid(&world, Side::Physical, &kind::CONFIG_MAP, "mount/copy");
    let refused = carry(&mut world, &kind::CONFIG_MAP, &second, Some(&copied));
    assert!(refused.as_ref().is_err_and(Refusal::is_fixed), "{refused:?}");
}

#[test]
fn tokens_are_bound_to_the_pod_and_refreshed_in_their_secret() {
    let mut world = world();
    let spec = json!({"serviceAccountName": "robot", "containers": [{"name": "c"}]});
    world.make(Side::Virtual, &kind::POD, json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}));
    let pod = uid(&world, Side::Virtual, &kind::POD, "shop/web");
    let issue = |world: &mut World, pod: &Uid, secret: Option<Uid>| {
        let target = Target { uid: secret, ..object(Side::Physical, &kind::SECRET, "mount", "tokens") };
        let verb = Verb::Token {
            account: Box::new(object(Side::Virtual, &kind::SERVICE_ACCOUNT, "shop", "robot")),
            pod: Box::new(PodRef { name: Name::parse("web").unwrap(), uid: pod.clone() }),
            asks: vec![TokenAsk { key: "api.0".into(), audience: None, expiration_seconds: 3600 }],
            marks: Box::new(marks()),
        };
        let done = world.call(&Call { target, verb, why: "Test" });
        done.map(|answer| serde_json::from_slice::<Value>(&answer.object).unwrap())
    };
    let missing = issue(&mut world, &pod, None).unwrap_err();
    assert_eq!(missing.message(), "ServiceAccount shop/robot does not exist in the virtual cluster: create it");
    world.make(Side::Virtual, &kind::SERVICE_ACCOUNT, json!({"metadata": {"name": "robot", "namespace": "shop"}}));
    assert_eq!(issue(&mut world, &Uid::new("other"), None), Err(Refusal::Replaced));

    let secret = issue(&mut world, &pod, None).unwrap();
    assert_eq!(secret["metadata"]["annotations"][keys::TOKEN_EXPIRES], "2026-01-05T01:00:00Z");
    assert_eq!(secret["metadata"]["annotations"][keys::TOKEN_REFRESH], "2026-01-05T00:48:00Z");
    assert!(secret["data"]["api.0"].is_string() && secret.get("stringData").is_none());
    world.advance(Duration::from_mins(48));
    let at = uid(&world, Side::Physical, &kind::SECRET, "mount/tokens");
    let refreshed = issue(&mut world, &pod, Some(at)).unwrap();
    assert_ne!(refreshed["data"], secret["data"]);
    assert_eq!(refreshed["metadata"]["annotations"][keys::TOKEN_EXPIRES], "2026-01-05T01:48:00Z");
    world.delete(Side::Virtual, &kind::POD, "shop/web", Some(0));
    assert_eq!(issue(&mut world, &pod, None), Err(Refusal::Replaced));
}
