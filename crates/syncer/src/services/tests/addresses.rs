//! Addresses of load balancers on their way up.

use super::*;

/// `shop/web` of type LoadBalancer with its copy, which has this address.
fn balanced(scene: &mut Scene, ip: &str) -> (Value, Value) {
    let web = service(json!({"type": "LoadBalancer"}));
    see(scene, &web);
    let mut copy = carry(scene, &key("web"), &web, None);
    copy["status"] = json!({"loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"}]}});
    see_copy(scene, &copy);
    (web, copy)
}

/// Carries out the write that is planned, on this Service. Returns it as it is then.
fn write(scene: &mut Scene, why: &str, mut web: Value) -> Value {
    let call = scene.call(&key("web"));
    assert_eq!((call.why, call.part()), (why, "status"));
    assert!(call.target.uid.is_some() && call.target.rv.is_some(), "the list is replaced as a whole: {call}");
    let mut body = call.body().unwrap().into_owned();
    body["metadata"] = json!({"annotations": body["metadata"]["annotations"]});
    patch(&mut web, body);
    let object = scene.stamp(web.clone());
    scene.settle(&key("web"), &call, Ok(Answer { object }));
    web
}

fn ips(web: &Value) -> Vec<&str> {
    let entries = web["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    entries.map(|entry| entry["ip"].as_str().unwrap()).collect()
}

#[test]
fn the_address_of_a_copy_comes_to_those_of_other_clusters_and_is_written_once() {
    let mut scene = scene();
    let (mut web, mut copy) = balanced(&mut scene, "1.1.1.1");
    web["status"] = json!({"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}});
    web["metadata"]["annotations"] = json!({"tapestry.io/load-balancer.west": "[{\"ip\":\"9.9.9.9\"}]"});
    see(&mut scene, &web);
    let web = write(&mut scene, "WriteAddresses", web);
    assert_eq!(ips(&web), ["9.9.9.9", "1.1.1.1"]);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    // The other cluster writes its own again, in another order.
    let mut turned = web.clone();
    turned["status"]["loadBalancer"]["ingress"].as_array_mut().unwrap().reverse();
    see(&mut scene, &turned);
    assert_eq!(scene.plan(&key("web")), Plan::Rest);
    copy["status"]["loadBalancer"]["ingress"][0]["ip"] = json!("2.2.2.2");
    see_copy(&mut scene, &copy);
    let web = write(&mut scene, "WriteAddresses", web);
    assert_eq!(ips(&web), ["9.9.9.9", "2.2.2.2"]);
}

#[test]
fn addresses_go_before_the_copy() {
    let mut scene = scene();
    let (web, _) = balanced(&mut scene, "1.1.1.1");
    let web = write(&mut scene, "WriteAddresses", web);
    scene.see_binding(json!({"serviceNamespaces": []}));
    let web = write(&mut scene, "WriteAddresses", web);
    assert!(ips(&web).is_empty() && web["metadata"]["annotations"].get(RECORD).is_none(), "{web}");
    assert_eq!(scene.call(&key("web")).why, "RemoveService");
    gone(&mut scene, &key("web"));
    assert!(scene.pair.services.none_left());
}

#[test]
fn addresses_go_when_the_copy_is_gone_or_the_type_changes() {
    let mut scene = scene();
    let (web, copy) = balanced(&mut scene, "1.1.1.1");
    let web = write(&mut scene, "WriteAddresses", web);
    lose_copy(&mut scene, &copy);
    let web = write(&mut scene, "WriteAddresses", web);
    assert!(ips(&web).is_empty());
    assert_eq!(scene.call(&key("web")).why, "CreateService");
    let mut copy = carry(&mut scene, &key("web"), &web, None);
    copy["status"] = json!({"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}});
    see_copy(&mut scene, &copy);
    let mut web = write(&mut scene, "WriteAddresses", web);
    assert_eq!(web["status"]["loadBalancer"]["ingress"], json!([{"hostname": "lb.example.com"}]));
    web["spec"]["type"] = json!("ClusterIP");
    web["status"] = json!({"loadBalancer": {}});
    see(&mut scene, &web);
    let web = write(&mut scene, "WriteAddresses", web);
    assert!(web["metadata"]["annotations"].get(RECORD).is_none());
    assert_eq!(scene.call(&key("web")).why, "UpdateService");
}

#[test]
fn law_08_addresses_whose_copy_is_gone_since_the_last_start_are_taken_back() {
    let mut scene = scene();
    let mut web = service_in("other", "web", json!({"type": "LoadBalancer"}));
    web["metadata"]["annotations"] = json!({RECORD: "[{\"ip\":\"1.1.1.1\"}]"});
    web["status"] = json!({"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}]}});
    see(&mut scene, &web);
    assert!(!scene.pair.services.none_left());
    let call = scene.call(&key_in("other", "web"));
    let body = call.body().unwrap().into_owned();
    assert_eq!((call.why, &body["status"]["loadBalancer"]["ingress"]), ("WriteAddresses", &Value::Null));
    // Refused, it keeps nothing else back.
    let denied = Refusal::Denied(Box::new(Status { code: 403, ..Default::default() }));
    scene.settle(&key_in("other", "web"), &call, Err(denied));
    assert!(matches!(scene.plan(&key_in("other", "web")), Plan::Wait(_)));
    assert!(scene.pair.services.none_left());
}

#[test]
fn law_11_addresses_that_another_client_keeps_removing_are_left_after_three_times() {
    let mut scene = scene();
    let (web, _) = balanced(&mut scene, "1.1.1.1");
    let mut web = write(&mut scene, "WriteAddresses", web);
    for _ in 0..3 {
        web["status"] = json!({"loadBalancer": {}});
        see(&mut scene, &web);
        web = write(&mut scene, "RestoreAddresses", web);
    }
    web["status"] = json!({"loadBalancer": {}});
    see(&mut scene, &web);
    assert!(matches!(scene.plan(&key("web")), Plan::Wait(_)));
    assert_eq!(events(&scene), ["AddressesContested"]);
}

#[test]
fn a_record_that_a_user_wrote_is_written_again() {
    let mut scene = scene();
    let (web, _) = balanced(&mut scene, "1.1.1.1");
    let mut web = write(&mut scene, "WriteAddresses", web);
    for forged in ["no JSON", "{}", "[{\"ip\":\"9.9.9.9\"}]"] {
        web["metadata"]["annotations"][RECORD] = json!(forged);
        see(&mut scene, &web);
        web = write(&mut scene, "WriteAddresses", web);
        assert_eq!(ips(&web), ["1.1.1.1"]);
    }
}
