//! Each violation is found, and nothing else.

use serde_json::json;

use super::*;

mod dependents;
mod volumes;

const ORIGIN: &str = "v/b";

fn vpod() -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "v1",
            "annotations": {
                keys::PHYSICAL_POD_NAMESPACE: "mount", keys::PHYSICAL_POD_NAME: "web-x", keys::PHYSICAL_POD_UID: "p1",
            },
        },
        "spec": { "containers": [{ "name": "main" }] },
        "status": { "phase": "Running", "podIP": "10.0.0.1", "containerStatuses": statuses("main") },
    })
}

fn ppod() -> Value {
    let mut statuses = statuses("main");
    // Containers that the physical cluster adds are ignored.
    statuses.as_array_mut().unwrap().push(json!({ "name": "mesh", "ready": false, "restartCount": 9 }));
    json!({
        "metadata": {
            "name": "web-x", "namespace": "mount", "uid": "p1",
            "labels": { keys::MANAGED_BY: "tapestry", keys::CLUSTER_BINDING: "b", keys::ORIGIN: "hash" },
            "annotations": {
                keys::ORIGIN: ORIGIN, keys::VIRTUAL_POD_NAMESPACE: "shop", keys::VIRTUAL_POD_NAME: "web",
                keys::VIRTUAL_POD_UID: "v1",
            },
        },
        "spec": { "nodeName": "n1" },
        "status": { "phase": "Running", "podIP": "10.0.0.1", "containerStatuses": statuses },
    })
}

fn statuses(name: &str) -> Value {
    json!([{ "name": name, "ready": true, "restartCount": 0, "state": { "running": {} } }])
}

fn foreign_pod(cpu: &str) -> Value {
    json!({
        "metadata": { "name": "own", "namespace": "owner", "uid": "s1", "resourceVersion": "7" },
        "spec": { "nodeName": "n1", "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] },
        "status": { "phase": "Running" },
    })
}

fn node(name: &str, cpu: &str, pods: &str) -> Value {
    json!({
        "metadata": { "name": name, "annotations": { keys::PHYSICAL_NODE_NAME: "n1" } },
        "status": { "allocatable": { "cpu": cpu, "pods": pods } },
    })
}

fn violations(vpods: &[Value], ppods: &[Value]) -> Vec<String> {
    let snapshot = Snapshot {
        origin: ORIGIN,
        vpods: vpods.iter().collect(),
        ppods: ppods.iter().collect(),
        vnodes: Vec::new(),
        pnodes: Vec::new(),
        sources: Vec::new(),
        dependents: Vec::new(),
        volumes: Vec::new(),
        claims: Vec::new(),
        api_access: false,
        limits: &|_| Some(Vec::new()),
        services: CarriedServices::default(),
    };
    snapshot.violations()
}

fn with(mut object: Value, pointer: &str, value: impl Into<Value>) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[field] = value.into();
    object
}

#[track_caller]
fn finds(vpods: &[Value], ppods: &[Value], words: &str) {
    let found = violations(vpods, ppods);
    assert!(found.iter().any(|violation| violation.contains(words)), "{words:?} is not in {found:#?}");
}

#[test]
fn a_pod_and_its_copy_that_agree_violate_nothing() {
    assert_eq!(violations(&[vpod()], &[ppod(), foreign_pod("1")]), [""; 0]);
    let mut unrecorded = vpod();
    unrecorded["metadata"]["annotations"].as_object_mut().unwrap().remove(keys::PHYSICAL_POD_UID);
    assert_eq!(violations(&[unrecorded], &[ppod()]), [""; 0]);
}

#[test]
fn a_second_live_copy_is_found() {
    let second = with(with(ppod(), "/metadata/uid", "p2"), "/metadata/name", "web-y");
    finds(&[vpod()], &[ppod(), second], "2 live copies");
}

#[test]
fn a_copy_without_its_pod_is_an_orphan() {
    finds(&[], &[ppod()], "orphan: mount/web-x");
    assert_eq!(violations(&[], &[foreign_pod("1")]), [""; 0]);
}

#[test]
fn references_that_do_not_match_are_found() {
    for (key, of_vpod) in [
        (keys::PHYSICAL_POD_NAMESPACE, true),
        (keys::PHYSICAL_POD_NAME, true),
        (keys::PHYSICAL_POD_UID, true),
        (keys::VIRTUAL_POD_NAMESPACE, false),
        (keys::VIRTUAL_POD_NAME, false),
    ] {
        let pointer = format!("/metadata/annotations/{}", key.replace('/', "~1"));
        let (mut vpod, mut ppod) = (vpod(), ppod());
        *(if of_vpod { &mut vpod } else { &mut ppod }).pointer_mut(&pointer).unwrap() = json!("other");
        finds(&[vpod], &[ppod], key);
    }
}

#[test]
fn missing_labels_are_found() {
    finds(&[vpod()], &[with(ppod(), "/metadata/labels", json!({}))], "lacks label");
}

#[test]
fn changes_that_were_not_pushed_are_found_unless_the_pod_says_why() {
    let marks = |vpod: &Value| Marks {
        metadata: mark_metadata([], [("note", text(&vpod["metadata"]["annotations"]["note"]))]),
        spec: mark_spec(&vpod["spec"].to_string()).unwrap(),
    };
    let vpod = with(vpod(), "/metadata/annotations/note", "a");
    let mut copy = ppod();
    copy["metadata"]["annotations"][keys::VIRTUAL_POD_MARKS] = json!(marks(&vpod).to_string());
    assert_eq!(violations(std::slice::from_ref(&vpod), std::slice::from_ref(&copy)), [""; 0]);
    let labelled = with(vpod.clone(), "/metadata/labels", json!({ "app": "web" }));
    finds(std::slice::from_ref(&labelled), std::slice::from_ref(&copy), "labels or annotations of shop/web");
    let held = json!([{ "type": keys::CONDITION_CHANGES_PUSHED, "status": "False" }]);
    assert_eq!(violations(&[with(labelled, "/status/conditions", held)], std::slice::from_ref(&copy)), [""; 0]);
    let shorter = with(vpod, "/spec/activeDeadlineSeconds", 5);
    finds(&[shorter], &[copy], "a change of the spec of shop/web");
}

#[test]
fn statuses_that_differ_are_found() {
    finds(&[with(vpod(), "/status/phase", "Pending")], &[ppod()], "says phase");
    finds(&[with(vpod(), "/status/podIP", "10.0.0.2")], &[ppod()], "says podIP");
    finds(&[with(vpod(), "/status/containerStatuses", statuses("other"))], &[ppod()], "says of container");
}

#[test]
fn pods_that_have_not_converged_are_found() {
    let going = with(vpod(), "/metadata/deletionTimestamp", "2026-01-01T00:00:00Z");
    finds(std::slice::from_ref(&going), &[], "is still being deleted");
    let held = with(going, "/metadata/finalizers", json!(["example.com/wait"]));
    assert_eq!(violations(std::slice::from_ref(&held), &[]), [""; 0]);
    finds(&[held], &[ppod()], "is still being deleted, with 1 copies");
    finds(&[vpod()], &[], "has no copy");
    let refused = json!([{ "type": keys::CONDITION_ADMITTED, "status": "False" }]);
    assert_eq!(violations(&[with(vpod(), "/status/conditions", refused)], &[]), [""; 0]);
    let finished = with(vpod(), "/status/phase", "Failed");
    assert_eq!(violations(std::slice::from_ref(&finished), &[]), [""; 0]);
    finds(&[finished], &[with(ppod(), "/metadata/uid", "p2")], "still runs");
}

#[test]
fn law_09_a_node_that_offers_more_than_is_idle_or_allowed_is_found() {
    let (pnode, foreign_pod) = (node("n1", "8", "10"), foreign_pod("3"));
    let offers = |cpu: &str, pods: &str, limits: Option<&[Limit]>| {
        let vnode = node("vnode-1", cpu, pods);
        let snapshot = Snapshot {
            origin: ORIGIN,
            vpods: Vec::new(),
            ppods: vec![&foreign_pod],
            vnodes: vec![&vnode],
            pnodes: vec![&pnode],
            sources: Vec::new(),
            dependents: Vec::new(),
            volumes: Vec::new(),
            claims: Vec::new(),
            api_access: false,
            limits: &|_| limits.map(<[_]>::to_vec),
            services: CarriedServices::default(),
        };
        snapshot.violations()
    };
    assert_eq!(offers("5", "9", Some(&[])), [""; 0]);
    assert!(offers("6", "9", Some(&[]))[0].contains("offers 6 cpu, at most 5"));
    assert!(offers("5", "10", Some(&[]))[0].contains("pods"));
    assert!(offers("1", "0", None)[0].contains("at most 0"), "no policy allows anything");
    let two = Limit { resource: ResourceName::Cpu, quantity: Quantity::parse("2").ok(), percent: None };
    assert!(offers("5", "9", Some(&[two]))[0].contains("at most 2"));
}

#[test]
fn law_06_foreign_objects_that_were_touched_are_found() {
    let before = [foreign_pod("1"), ppod()];
    let foreign = ForeignObjects::among(&before, ORIGIN);
    let lives = with(with(foreign_pod("1"), "/metadata/resourceVersion", "8"), "/status/phase", "Failed");
    assert_eq!(foreign.touched([&lives]), [""; 0]);
    assert!(foreign.touched([&foreign_pod("2")])[0].contains("was"));
    assert!(foreign.touched([&ppod()])[0].contains("is gone"));
}

/// Violations of one LoadBalancer Service and these Services of the mount namespace.
fn service_violations(source: &Value, copies: &[Value]) -> Vec<String> {
    let snapshot = Snapshot {
        origin: ORIGIN,
        vpods: Vec::new(),
        ppods: Vec::new(),
        vnodes: Vec::new(),
        pnodes: Vec::new(),
        sources: Vec::new(),
        dependents: Vec::new(),
        volumes: Vec::new(),
        claims: Vec::new(),
        api_access: false,
        limits: &|_| Some(Vec::new()),
        services: CarriedServices {
            cluster: "east",
            namespaces: vec!["shop"],
            sources: vec![source],
            copies: copies.iter().collect(),
        },
    };
    snapshot.violations()
}

#[test]
fn a_service_and_its_copy_are_compared_with_their_addresses_and_names() {
    use tapestry_domain::dependents::Marks as CarryMarks;
    let (cluster, binding) = ORIGIN.split_once('/').unwrap();
    let label = tapestry_domain::names::origin_hash(cluster, binding);
    let spec = json!({"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]});
    let source = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "s"}, "spec": spec});
    let labels = [keys::MANAGED_BY, keys::CLUSTER_BINDING].map(|key| (key, "x".to_owned())).into_iter();
    let labels = labels.chain([(keys::ORIGIN, label)]).collect();
    let marks = CarryMarks { labels, annotations: Vec::new(), salt: ORIGIN };
    let copy = tapestry_domain::services::render_copy(&source.to_string(), "web", "mount", &marks).unwrap();
    let finds = |source: &Value, copy: &Value, words: &str| {
        let found = service_violations(source, std::slice::from_ref(copy));
        assert!(found.iter().any(|violation| violation.contains(words)), "{words:?} is not in {found:#?}");
    };
    assert_eq!(service_violations(&source, std::slice::from_ref(&copy)), [""; 0]);
    assert_eq!(service_violations(&source, &[]), ["Service shop/web has no copy"]);
    finds(&source, &with(copy.clone(), "/spec/selector", json!({"app": "theirs"})), "changed by another client");
    finds(&with(source.clone(), "/spec/ports", json!([{"port": 81}])), &copy, "does not hold");
    finds(&with(source.clone(), "/metadata/uid", "later"), &copy, "does not hold");
    finds(&with(source.clone(), "/metadata/namespace", "other"), &copy, "a copy of no Service");
    finds(&source, &with(copy.clone(), "/metadata/labels", json!({})), "lacks label");
    let balanced = with(copy.clone(), "/status", json!({"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}]}}));
    finds(&source, &balanced, "addresses");
    let mut told = with(source, "/status", balanced["status"].clone());
    told["metadata"]["annotations"] = json!({"tapestry.io/load-balancer.east": "[{\"ip\":\"1.1.1.1\"}]"});
    assert_eq!(service_violations(&told, &[balanced]), [""; 0]);
    finds(&told, &copy, "addresses");
}
