//! Tests of copies of Services: what they say, how they follow their Service, and what a cluster allocated.
//! They must not compare text: the order of JSON keys does not matter.

use proptest::prelude::*;

use super::*;

const ORIGIN_LABEL: &str = "0123";

fn marks() -> Marks<'static> {
    Marks {
        labels: vec![("tapestry.io/managed-by", "tapestry".into()), (keys::ORIGIN, ORIGIN_LABEL.into())],
        annotations: vec![("tapestry.io/cluster-binding", "worker".into())],
        salt: "vc/cb",
    }
}

fn service(spec: &Value) -> Value {
    json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "7"}, "spec": spec})
}

fn copy_of(service: &Value) -> Value {
    render_copy(&service.to_string(), "web", "mount", &marks()).unwrap()
}

fn patch(service: &Value, copy: &Value) -> Option<Value> {
    render_patch(&service.to_string(), &copy.to_string(), &marks()).unwrap()
}

fn digest(copy: &Value) -> CopyDigest {
    read_copy(&copy.to_string()).unwrap()
}

fn mark(service: &Value) -> Result<u64, Unfit> {
    read_service(&service.to_string(), ORIGIN_LABEL).unwrap().mark
}

/// What an API server does with a JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, change) in changes {
        if change.is_null() {
            target.as_object_mut().unwrap().remove(field);
        } else {
            merge(&mut target[field], change);
        }
    }
}

/// What the physical cluster adds to a copy.
fn allocate(copy: &mut Value) {
    if copy["spec"]["type"] != "ExternalName" && copy["spec"]["clusterIP"].is_null() {
        copy["spec"]["clusterIP"] = "10.1.2.3".into();
        copy["spec"]["clusterIPs"] = json!(["10.1.2.3"]);
        copy["spec"]["ipFamilies"] = json!(["IPv4"]);
    }
    let numbered = copy["spec"]["type"] == "NodePort" || copy["spec"]["type"] == "LoadBalancer";
    for (at, port) in copy["spec"]["ports"].as_array_mut().into_iter().flatten().enumerate() {
        if numbered && port["nodePort"].is_null() {
            port["nodePort"] = (30_000 + at).into();
        }
    }
    copy["metadata"]["uid"] = "p1".into();
    copy["status"] = json!({"loadBalancer": {}});
}

/// The copy after the patch that its Service asks for.
fn followed(service: &Value, copy: &Value) -> Value {
    let mut copy = copy.clone();
    if let Some(patch) = patch(service, &copy) {
        merge(&mut copy, &patch);
    }
    assert_eq!(patch(service, &copy), None, "one patch is enough");
    assert_eq!(digest(&copy).mark, mark(service).ok());
    assert!(digest(&copy).intact, "{copy:#}");
    copy
}

#[test]
fn law_07_a_copy_says_what_its_service_says_but_for_what_was_allocated() {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "newInKubernetes": {"deep": [1e-7, null]},
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "7", "finalizers": ["x"],
            "labels": {"app": "web", "tapestry.io/origin": "forged"},
            "annotations": {
                "cloud.example.com/internal": "true", "tapestry.io/load-balancer.east": "[]",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
        },
        "spec": {
            "type": "LoadBalancer", "selector": {"app": "web", "tapestry.io/origin": "forged"},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web", "nodePort": 31234, "newToo": 1}],
            "clusterIP": "10.9.8.7", "clusterIPs": ["10.9.8.7"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "healthCheckNodePort": 32000, "loadBalancerIP": "1.2.3.4", "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}}, "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "loadBalancerClass": "example.com/lb", "publishNotReadyAddresses": true, "newField": {"a": 1},
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}},
    });
    let mut copy = copy_of(&service);
    let carried = copy["metadata"]["annotations"][keys::CARRIED].take();
    assert!(carried.as_str().unwrap().contains("\"spec.ports\""), "{carried}");
    assert_eq!(
        copy,
        json!({
            "apiVersion": "v1", "kind": "Service", "newInKubernetes": {"deep": [1e-7, null]},
            "metadata": {
                "name": "web", "namespace": "mount",
                "labels": {"app": "web", "tapestry.io/managed-by": "tapestry", "tapestry.io/origin": "0123"},
                "annotations": {
                    "cloud.example.com/internal": "true", "tapestry.io/cluster-binding": "worker",
                    "tapestry.io/origin": "vc/cb", "tapestry.io/virtual-namespace": "shop",
                    "tapestry.io/virtual-name": "web", "tapestry.io/virtual-uid": "u1", "tapestry.io/carried": null,
                },
            },
            "spec": {
                "type": "LoadBalancer",
                "selector": {"app": "web", "tapestry.io/origin": "0123", "tapestry.io/virtual-namespace": "shop"},
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web", "newToo": 1}],
                "ipFamilyPolicy": "SingleStack", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster",
                "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}},
                "loadBalancerSourceRanges": ["10.0.0.0/8"], "loadBalancerClass": "example.com/lb",
                "publishNotReadyAddresses": true, "newField": {"a": 1},
            },
        })
    );
}

/// Specs of every kind, and what the spec of the copy has to be.
fn table() -> Vec<(&'static str, Value, Value)> {
    let chosen = json!({"app": "web", "tapestry.io/origin": "0123", "tapestry.io/virtual-namespace": "shop"});
    let ports = |count: u64| (0..count).map(|at| json!({"name": format!("p{at}"), "port": 80 + at})).collect::<Value>();
    vec![
        (
            "NodePort",
            json!({"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "nodePort": 30001}]}),
            json!({"type": "NodePort", "selector": chosen, "ports": [{"port": 80}]}),
        ),
        (
            "ExternalName",
            json!({"type": "ExternalName", "externalName": "db.example.com", "sessionAffinity": "None"}),
            json!({"type": "ExternalName", "externalName": "db.example.com", "sessionAffinity": "None"}),
        ),
        (
            "headless",
            json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": {"app": "web"}}),
            json!({"clusterIP": "None", "selector": chosen}),
        ),
        (
            "headless without ports, for a StatefulSet",
            json!({"clusterIP": "None", "selector": {"app": "web"}, "publishNotReadyAddresses": true, "ports": null}),
            json!({"clusterIP": "None", "selector": chosen, "publishNotReadyAddresses": true}),
        ),
        (
            "dual stack",
            json!({
                "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"], "selector": {"app": "web"},
                "clusterIP": "fd00::1", "clusterIPs": ["fd00::1", "10.0.0.1"],
            }),
            json!({"ipFamilyPolicy": "PreferDualStack", "selector": chosen}),
        ),
        (
            "named and many ports",
            json!({"selector": {"app": "web"}, "ports": ports(40)}),
            json!({"selector": chosen, "ports": ports(40)}),
        ),
    ]
}

#[test]
fn every_kind_of_service_has_its_copy_and_that_needs_no_patch() {
    for (what, spec, wanted) in table() {
        let service = service(&spec);
        let mut copy = copy_of(&service);
        assert_eq!(copy["spec"], wanted, "{what}");
        assert_eq!(patch(&service, &copy), None, "{what}");
        allocate(&mut copy);
        assert_eq!(patch(&service, &copy), None, "{what}");
        let CopyDigest { mark: said, intact, headless } = digest(&copy);
        assert!(intact, "{what}");
        assert_eq!(said, mark(&service).ok(), "{what}");
        assert_eq!(headless, what.starts_with("headless"));
    }
}

#[test]
fn each_kind_becomes_any_other_by_one_patch() {
    for (from, before, _) in table() {
        for (to, after, _) in table() {
            let mut copy = copy_of(&service(&before));
            allocate(&mut copy);
            let after = service(&after);
            // Whether a copy is replaced instead is for the caller: Kubernetes never lets an address come or go.
            if digest(&copy).headless != read_service(&after.to_string(), ORIGIN_LABEL).unwrap().headless {
                continue;
            }
            let copy = followed(&after, &copy);
            assert_eq!(copy["spec"].get("externalName"), after["spec"].get("externalName"), "{from} to {to}");
        }
    }
}

#[test]
fn a_service_that_would_take_others_traffic_or_has_no_selector_is_not_carried() {
    let cases = [
        (json!({"selector": {"app": "web"}, "externalIPs": ["1.2.3.4"]}), Unfit::ExternalIps),
        (json!({"type": "ExternalName", "externalName": "x", "externalIPs": ["1.2.3.4"]}), Unfit::ExternalIps),
        (json!({"ports": [{"port": 80}]}), Unfit::NoSelector),
        (json!({"selector": {}}), Unfit::NoSelector),
        (json!({"selector": null, "type": "LoadBalancer"}), Unfit::NoSelector),
        (json!({"clusterIP": "None"}), Unfit::NoSelector),
    ];
    let good = copy_of(&service(&json!({"selector": {"app": "web"}})));
    for (spec, why) in cases {
        let service = service(&spec);
        assert_eq!(mark(&service), Err(why));
        // Also where the Service was changed after it was looked at.
        assert_eq!(render_copy(&service.to_string(), "web", "mount", &marks()), Err(Uncarried::Unfit(why)));
        assert_eq!(render_patch(&service.to_string(), &good.to_string(), &marks()), Err(Uncarried::Unfit(why)));
    }
    assert!(mark(&service(&json!({"selector": {"app": "web"}, "externalIPs": []}))).is_ok());
}

#[test]
fn what_the_service_loses_goes_and_what_others_added_stays() {
    let mut before = service(&json!({
        "type": "LoadBalancer", "selector": {"app": "web", "tier": "front"}, "loadBalancerSourceRanges": ["10.0.0.0/8"],
        "ports": [{"port": 80}],
    }));
    before["metadata"]["labels"] = json!({"app": "web", "old": "yes"});
    before["metadata"]["annotations"] = json!({"a": "1", "old": "yes"});
    let mut copy = copy_of(&before);
    allocate(&mut copy);
    copy["metadata"]["labels"]["theirs"] = "kept".into();
    copy["metadata"]["annotations"]["theirs"] = "kept".into();
    copy["spec"]["theirs"] = "kept".into();
    let mut after = service(&json!({"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]}));
    after["metadata"]["labels"] = json!({"app": "web"});
    after["metadata"]["annotations"] = json!({"a": "2"});
    let copy = followed(&after, &copy);
    assert_eq!(
        copy["spec"]["selector"],
        json!({"app": "web", "tapestry.io/origin": "0123", "tapestry.io/virtual-namespace": "shop"})
    );
    assert_eq!(copy["spec"].get("loadBalancerSourceRanges"), None);
    assert_eq!((&copy["spec"]["theirs"], &copy["spec"]["clusterIP"]), (&json!("kept"), &json!("10.1.2.3")));
    assert_eq!(copy["spec"]["ports"], json!([{"port": 80, "nodePort": 30_000}]));
    for field in ["labels", "annotations"] {
        assert_eq!(copy["metadata"][field]["theirs"], "kept");
        assert_eq!(copy["metadata"][field].get("old"), None);
    }
    assert_eq!(copy["metadata"]["annotations"]["a"], "2");
}

#[test]
fn drift_of_what_we_carried_is_seen_and_undone() {
    let service = service(&json!({"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80}]}));
    let mut copy = copy_of(&service);
    allocate(&mut copy);
    for (path, theirs) in [
        ("/spec/selector", json!({"app": "theirs"})),
        ("/spec/ports", json!([{"port": 81, "nodePort": 30_000}])),
        ("/spec/type", json!("ClusterIP")),
        ("/metadata/annotations/tapestry.io~1carried", json!("not json")),
    ] {
        let mut changed = copy.clone();
        *changed.pointer_mut(path).unwrap() = theirs;
        assert!(!digest(&changed).intact, "{path}");
        let back = followed(&service, &changed);
        assert_eq!(back["spec"]["selector"], copy["spec"]["selector"]);
        assert_eq!(back["spec"]["ports"][0]["port"], 80);
    }
    copy["spec"]["ports"][0]["nodePort"] = 30_777.into();
    assert!(digest(&copy).intact, "the number is the physical cluster's");
}

#[test]
fn ports_keep_the_numbers_that_the_physical_cluster_gave_them() {
    let spec = |ports: Value| service(&json!({"type": "NodePort", "selector": {"app": "web"}, "ports": ports}));
    let port = |name: &str, number: u64| json!({"name": name, "protocol": "TCP", "port": number});
    let mut copy = copy_of(&spec(json!([port("a", 80), port("b", 81), port("c", 82)])));
    allocate(&mut copy);
    // The second goes, the third becomes the first, the first gets another number under its name, and one is new.
    let copy = followed(&spec(json!([port("c", 82), port("a", 90), port("d", 99)])), &copy);
    let numbers: Vec<_> =
        copy["spec"]["ports"].as_array().unwrap().iter().map(|port| port["nodePort"].as_u64()).collect();
    assert_eq!(numbers, [Some(30_002), Some(30_000), None]);
    // Without node ports there is no number to keep.
    let plain = service(&json!({"type": "ClusterIP", "selector": {"app": "web"}, "ports": [port("a", 81)]}));
    assert_eq!(patch(&plain, &copy).unwrap()["spec"]["ports"], json!([port("a", 81)]));
}

#[test]
fn a_mark_follows_what_is_carried_and_nothing_else() {
    let plain = service(&json!({"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]}));
    let mut same = plain.clone();
    same["metadata"]["resourceVersion"] = "8".into();
    same["metadata"]["annotations"] = json!({"tapestry.io/load-balancer.east": "[]"});
    same["spec"]["clusterIP"] = "10.0.0.1".into();
    same["spec"]["ports"][0]["nodePort"] = 30_000.into();
    same["status"] = json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}});
    assert_eq!(mark(&plain), mark(&same));
    let mut other = plain.clone();
    other["metadata"]["labels"] = json!({"app": "web"});
    assert_ne!(mark(&plain), mark(&other));
}

#[test]
fn what_is_no_service_is_answered_with_its_place_only() {
    for text in ["", "[]", r#"{"metadata":"x"}"#, r#"{"spec":{}}"#, r#"{"metadata":{"name":"x"},"spec":[]}"#] {
        let error = render_copy(text, "x", "mount", &marks()).unwrap_err();
        assert!(matches!(error, Uncarried::Unreadable { .. }), "{error}");
        assert!(read_copy(text).is_err() && read_service(text, "").is_err());
    }
}

#[test]
fn addresses_of_several_clusters_do_not_disturb_each_other() {
    let [a, b, c] = ["1.1.1.1", "2.2.2.2", "3.3.3.3"].map(|ip| json!({"ip": ip}));
    let list = |entries: &[&Value]| entries.iter().map(|entry| (*entry).clone()).collect::<Vec<_>>();
    // Ours comes to that of another cluster.
    assert_eq!(ingress::merge(&list(&[&a]), &[], &list(&[&b])), list(&[&a, &b]));
    // In whichever order they are, nothing is written.
    assert!(ingress::holds(&list(&[&b, &a]), &list(&[&b]), &list(&[&b])));
    // Ours changes, then goes.
    assert!(!ingress::holds(&list(&[&b, &a]), &list(&[&b]), &list(&[&c])));
    assert_eq!(ingress::merge(&list(&[&b, &a]), &list(&[&b]), &list(&[&c])), list(&[&a, &c]));
    assert!(!ingress::holds(&list(&[&a, &c]), &list(&[&c]), &[]));
    assert_eq!(ingress::merge(&list(&[&a, &c]), &list(&[&c]), &[]), list(&[&a]));
    // Another cluster took ours away, or has the same.
    assert!(!ingress::holds(&list(&[&a]), &list(&[&b]), &list(&[&b])));
    assert_eq!(ingress::merge(&list(&[&a, &b]), &[], &list(&[&b])), list(&[&a, &b]));
}

fn content() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![Just("ClusterIP"), Just("NodePort"), Just("LoadBalancer"), Just("ExternalName")];
    let ports = prop::collection::btree_map(80..86u32, "[a-c]", 0..4);
    let selector = prop::collection::btree_map("[k-m]", "[a-c]", 1..3);
    let extra = prop_oneof![Just(json!(null)), Just(json!({"x": {"y": 1}})), Just(json!({"x": 2, "z": [null]}))];
    let labels = prop::collection::btree_map("[lm]", "[a-c]", 0..3);
    (kind, ports, selector, extra, labels).prop_map(|(kind, ports, selector, extra, labels)| {
        let ports: Vec<Value> = ports.iter().map(|(port, name)| json!({"name": name, "port": port})).collect();
        let mut content = service(&json!({"type": kind, "ports": ports, "selector": selector, "newField": extra}));
        content["metadata"]["labels"] = json!(labels);
        content["metadata"]["annotations"] = json!(labels);
        content["newInKubernetes"] = extra;
        content
    })
}

proptest! {
    #[test]
    fn one_patch_carries_any_change_and_then_nothing_differs(before in content(), after in content()) {
        let mut copy = copy_of(&before);
        allocate(&mut copy);
        let address = copy["spec"]["clusterIP"].clone();
        let copy = followed(&after, &copy);
        prop_assert_eq!(&copy["spec"]["clusterIP"], &address, "never touched");
        for field in ["type", "newField"] {
            prop_assert_eq!(&copy["spec"][field], &after["spec"][field]);
        }
        prop_assert_eq!(&copy["newInKubernetes"], &after["newInKubernetes"]);
        prop_assert_eq!(&copy["metadata"]["labels"]["l"], &after["metadata"]["labels"]["l"]);
        for (key, value) in after["spec"]["selector"].as_object().unwrap() {
            prop_assert_eq!(&copy["spec"]["selector"][key], value);
        }
    }

    #[test]
    fn a_copy_never_selects_pods_of_others(spec in content()) {
        let selector = copy_of(&spec)["spec"]["selector"].clone();
        prop_assert_eq!(&selector["tapestry.io/origin"], ORIGIN_LABEL);
        prop_assert_eq!(&selector["tapestry.io/virtual-namespace"], "shop");
    }
}
