//! Which name a copy gets, and what happens where it is taken.

use super::*;

fn foreign(service: &str) -> Value {
    json!({"metadata": {"name": service, "namespace": "mount", "uid": format!("f-{service}")}, "spec": {"theirs": 1}})
}

/// The name that is planned for the copy.
fn planned(scene: &Scene, key: &Key) -> String {
    let call = scene.call(key);
    assert_eq!(call.why, "CreateService");
    call.target.name.to_string()
}

#[test]
fn law_06_a_foreign_service_keeps_its_name_and_the_copy_gets_another() {
    let mut scene = scene();
    see_copy(&mut scene, &foreign("web"));
    let web = service(json!({}));
    see(&mut scene, &web);
    let other = planned(&scene, &key("web"));
    assert!(other.starts_with("web-") && other.len() == 20, "{other}");
    let copy = carry(&mut scene, &key("web"), &web, None);
    // An existing copy keeps its name.
    lose_copy(&mut scene, &foreign("web"));
    see_copy(&mut scene, &copy);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn law_06_a_name_that_was_taken_meanwhile_is_looked_at_and_left() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    scene.refuse(&key("web"), Refusal::Exists);
    let look = scene.call(&key("web"));
    assert_eq!((look.why, &look.verb, look.target.name.as_str()), ("LookForServiceCopy", &Verb::Peek, "web"));
    let object = scene.stamp(foreign("web"));
    scene.settle(&key("web"), &look, Ok(Answer { object }));
    assert_ne!(planned(&scene, &key("web")), "web");
    // Also the other name is taken: it waits and says so.
    scene.refuse(&key("web"), Refusal::Exists);
    let look = scene.call(&key("web"));
    let object = scene.stamp(foreign(look.target.name.as_str()));
    scene.settle(&key("web"), &look, Ok(Answer { object }));
    let tell = scene.call(&key("web"));
    assert_eq!((tell.why, &tell.body().unwrap()["reason"]), ("TellUncarried", &json!("CopyNameTaken")));
    scene.settle(&key("web"), &tell, Err(Refusal::Exists));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    // The owner deletes one of them.
    lose_copy(&mut scene, &foreign("web"));
    assert_eq!(planned(&scene, &key("web")), "web");
}

#[test]
fn law_08_a_copy_whose_creation_was_not_answered_is_found_under_its_name() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let create = scene.call(&key("web"));
    let copy = carried(&mut scene, &create, &web, None);
    scene.refuse(&key("web"), Refusal::Exists);
    let look = scene.call(&key("web"));
    let object = scene.stamp(copy);
    scene.settle(&key("web"), &look, Ok(Answer { object }));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn of_two_services_of_one_name_one_gets_it() {
    let mut scene = scene();
    let (web, team) = (service(json!({})), service_in("team", "web", json!({})));
    see(&mut scene, &web);
    see(&mut scene, &team);
    assert_eq!(planned(&scene, &key("web")), planned(&scene, &key_in("team", "web")));
    carry(&mut scene, &key("web"), &web, None);
    let copy = carry(&mut scene, &key_in("team", "web"), &team, None);
    assert_ne!(copy["metadata"]["name"], "web");
    assert_eq!(copy["spec"]["selector"][keys::VIRTUAL_NAMESPACE], "team");
    assert_eq!((scene.plan(&key("web")), scene.plan(&key_in("team", "web"))), (Plan::Rest, Plan::Rest));
}

#[test]
fn a_name_that_only_newer_servers_accept_is_replaced() {
    let mut scene = scene();
    see(&mut scene, &service_in("shop", "1web", json!({})));
    assert!(planned(&scene, &key("1web")).starts_with("service-"));
}

#[test]
fn law_02_of_two_copies_of_one_service_the_newer_goes() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let copy = carry(&mut scene, &key("web"), &web, None);
    let other = names_of(&scene);
    let mut second = copy.clone();
    second["metadata"]["name"] = json!(other);
    second["metadata"]["uid"] = json!("a-second");
    second["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:01Z");
    see_copy(&mut scene, &second);
    let call = scene.call(&key("web"));
    assert_eq!((call.why, call.target.name.as_str()), ("RemoveSecondService", other.as_str()));
    assert!(call.target.uid.is_some() && call.target.rv.is_some());
    gone(&mut scene, &key("web"));
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
}

#[test]
fn law_05_a_service_under_a_name_that_we_do_not_give_is_not_ours() {
    let mut scene = scene();
    let web = service(json!({}));
    see(&mut scene, &web);
    let mut copy = carry(&mut scene, &key("web"), &web, None);
    copy["metadata"]["name"] = json!("owners-own");
    copy["metadata"]["uid"] = json!("owners-own");
    see_copy(&mut scene, &copy);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    lose(&mut scene, &web);
    let look = scene.call(&key("web"));
    scene.settle(&key("web"), &look, Err(Refusal::Gone));
    gone(&mut scene, &key("web"));
    assert!(scene.pair.services.none_left());
}

/// The other name of `shop/web`.
fn names_of(scene: &Scene) -> String {
    tapestry_domain::names::service_name(&scene.pair.origin.label, "shop", "web")
}
