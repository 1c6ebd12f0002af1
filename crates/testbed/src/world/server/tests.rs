//! The server answers like a real one; each test name is a fact of Kubernetes.

use tapestry_cluster::Target;

use super::*;

const NOW: i64 = 1_767_571_200;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

fn server() -> Server {
    Server::new(Side::Physical, at(0))
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn pod_target() -> Target {
    Target::namespaced(Side::Physical, &kind::POD, name("default"), name("web"))
}

fn call(target: Target, verb: Verb) -> Call {
    Call { target, verb, why: "Test" }
}

fn pod(node: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn with_pod(node: Option<&str>) -> (Server, Target) {
    let mut server = server();
    let made = send(&mut server, pod_target(), Verb::Create(pod(node))).unwrap();
    let target = pod_target().uid(&Uid::new(made["metadata"]["uid"].as_str().unwrap()));
    (server, target)
}

fn send(server: &mut Server, target: Target, verb: Verb) -> Result<Value, Refusal> {
    server.call(&call(target, verb), at(0)).map(|answer| serde_json::from_slice(&answer.object).unwrap())
}

fn merge(sub: Sub, patch: Value) -> Verb {
    Verb::Merge(sub, patch)
}

#[expect(clippy::needless_pass_by_value, reason = "reads better where it is called")]
fn status(patch: Value) -> Verb {
    Verb::Strategic(Sub::Status, json!({"status": patch}))
}

fn is_invalid(done: &Result<Value, Refusal>) -> bool {
    matches!(done, Err(Refusal::Invalid(_)))
}

fn whats(server: &Server) -> Vec<What> {
    server.log(&kind::POD).iter().map(|event| event.what).collect()
}

#[test]
fn a_created_object_has_uid_version_time_and_defaults_and_no_status_of_its_creator() {
    let mut server = server();
    let mut body = pod(None);
    body["status"] = json!({"phase": "Running"});
    let made = send(&mut server, pod_target(), Verb::Create(body)).unwrap();
    let metadata = &made["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["creationTimestamp"], "2026-01-05T00:00:00Z");
    assert_eq!(metadata["resourceVersion"], server.rv().to_string());
    assert_eq!(made["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    assert_eq!(made["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(send(&mut server, pod_target(), Verb::Get).unwrap(), made);
}

#[test]
fn a_name_is_taken_once() {
    let (mut server, _) = with_pod(None);
    assert_eq!(send(&mut server, pod_target(), Verb::Create(pod(None))), Err(Refusal::Exists));
}

#[test]
fn an_object_that_cannot_be_created_is_invalid() {
    let mut server = server();
    let nowhere = Target::namespaced(Side::Physical, &kind::POD, name("nowhere"), name("web"));
    assert!(is_invalid(&send(&mut server, nowhere, Verb::Create(pod(None)))), "its namespace does not exist");
    for (field, value) in [
        ("/kind", json!("Node")),
        ("/metadata/name", json!("Not_A_Name")),
        ("/metadata/labels", json!({"a": "x".repeat(64)})),
        ("/metadata/annotations", json!({"a": 1})),
        ("/spec/containers", json!([])),
    ] {
        let mut body = pod(None);
        body["metadata"]["labels"] = json!({});
        body["metadata"]["annotations"] = json!({});
        *body.pointer_mut(field).unwrap() = value;
        assert!(is_invalid(&send(&mut server, pod_target(), Verb::Create(body))), "{field}");
    }
    assert_eq!(server.count(&kind::POD), 0);
}

#[test]
fn a_missing_object_is_gone_for_every_verb_except_an_apply_with_uid() {
    let mut server = server();
    let patch = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}});
    for verb in [
        Verb::Get,
        Verb::Delete { grace: None },
        Verb::Evict { grace: None },
        merge(Sub::Main, patch.clone()),
        status(json!({})),
        Verb::Apply(Sub::Status, patch.clone()),
    ] {
        assert_eq!(send(&mut server, pod_target(), verb.clone()), Err(Refusal::Gone), "{verb:?}");
    }
    let stale = pod_target().uid(&Uid::new("u"));
    assert_eq!(send(&mut server, stale, Verb::Apply(Sub::Main, patch)), Err(Refusal::Replaced));
    let made = send(&mut server, pod_target(), Verb::Apply(Sub::Main, pod(None))).unwrap();
    assert_eq!(made["metadata"]["name"], "web", "without a uid it creates");
}

#[test]
fn law_02_a_stale_uid_or_version_changes_nothing() {
    let (mut server, target) = with_pod(Some("n"));
    let typed = json!({"apiVersion": "v1", "kind": "Pod"});
    let before = server.rv();
    for stale in [pod_target().uid(&Uid::new("other")), target.rv(Rv::new(1))] {
        for verb in [
            Verb::Delete { grace: Some(0) },
            Verb::Evict { grace: Some(0) },
            merge(Sub::Main, json!({"metadata": {"labels": {"a": "b"}}})),
            status(json!({"phase": "Running"})),
            Verb::Apply(Sub::Status, typed.clone()),
        ] {
            assert_eq!(send(&mut server, stale.clone(), verb.clone()), Err(Refusal::Replaced), "{verb:?}");
        }
    }
    assert_eq!(server.rv(), before);
}

#[test]
fn a_patch_that_changes_nothing_is_answered_but_not_written() {
    let (mut server, target) = with_pod(None);
    let patch = merge(Sub::Main, json!({"metadata": {"labels": {"a": "b"}}}));
    let once = send(&mut server, target.clone(), patch.clone()).unwrap();
    let (rv, events) = (server.rv(), whats(&server).len());
    assert_eq!(send(&mut server, target, patch).unwrap(), once);
    assert_eq!((server.rv(), whats(&server).len()), (rv, events));
}

#[test]
fn a_main_patch_never_touches_status_and_a_status_patch_touches_only_status_and_annotations() {
    let (mut server, target) = with_pod(None);
    let patch = json!({"metadata": {"annotations": {"a": "b"}}, "status": {"phase": "Running"}});
    let main = send(&mut server, target.clone(), merge(Sub::Main, patch.clone())).unwrap();
    assert_eq!(main["status"]["phase"], "Pending");
    let mut patch = patch;
    patch["metadata"]["annotations"]["c"] = json!("d");
    patch["spec"] = json!({"nodeName": "n"});
    let sub = send(&mut server, target, merge(Sub::Status, patch)).unwrap();
    assert_eq!(sub["status"]["phase"], "Running");
    assert_eq!(sub["metadata"]["annotations"], json!({"a": "b", "c": "d"}));
    assert_eq!(sub["spec"].get("nodeName"), None);
    assert_eq!(sub["metadata"]["generation"], 1);
}

#[test]
fn a_patch_cannot_write_fields_that_only_servers_write() {
    let (mut server, target) = with_pod(None);
    let before = send(&mut server, target.clone(), Verb::Get).unwrap();
    let patch =
        json!({"metadata": {"generation": 9, "deletionTimestamp": "2026-01-01T00:00:00Z", "creationTimestamp": null}});
    assert_eq!(send(&mut server, target, merge(Sub::Main, patch)).unwrap(), before);
}

#[test]
fn generation_counts_changes_of_spec() {
    let (mut server, target) = with_pod(None);
    let patch = json!({"spec": {"activeDeadlineSeconds": 5}});
    assert_eq!(send(&mut server, target.clone(), merge(Sub::Main, patch)).unwrap()["metadata"]["generation"], 2);
    let frozen = json!({"spec": {"hostNetwork": true}});
    assert!(is_invalid(&send(&mut server, target, merge(Sub::Main, frozen))), "most of a pod's spec is frozen");
}

#[test]
fn one_forbidden_field_refuses_the_whole_status_patch() {
    let (mut server, target) = with_pod(Some("n"));
    let patch = json!({"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]});
    send(&mut server, target.clone(), status(patch)).unwrap();
    let rv = server.rv();
    for bad in [
        json!({"phase": "Failed", "qosClass": "Guaranteed"}),
        json!({"phase": "Failed", "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]}),
    ] {
        assert!(is_invalid(&send(&mut server, target.clone(), status(bad.clone()))), "{bad}");
    }
    assert_eq!(server.rv(), rv);
    let good = json!({"podIP": "10.0.0.2", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]});
    assert_eq!(send(&mut server, target, status(good)).unwrap()["status"]["podIPs"], json!([{"ip": "10.0.0.2"}]));
}

#[test]
fn times_of_a_status_lose_their_fractions() {
    let (mut server, target) = with_pod(Some("n"));
    let patch =
        json!({"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-05T00:00:00.25Z"}]});
    let done = send(&mut server, target, status(patch)).unwrap();
    assert_eq!(done["status"]["conditions"][0]["lastTransitionTime"], "2026-01-05T00:00:00Z");
    assert_eq!(done["status"]["conditions"][0].get("lastProbeTime"), Some(&Value::Null));
}

#[test]
fn a_lease_time_needs_six_digits() {
    let mut server = server();
    let target = Target::namespaced(Side::Physical, &kind::LEASE, name("kube-node-lease"), name("n"));
    let lease = |time: &str| {
        let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n"}, "spec": {"renewTime": time}});
        Verb::Create(body)
    };
    assert!(is_invalid(&send(&mut server, target.clone(), lease("2026-01-05T00:00:00Z"))));
    assert!(is_invalid(&send(&mut server, target.clone(), lease("2026-01-05T00:00:00.123456789Z"))));
    assert!(send(&mut server, target, lease("2026-01-05T00:00:00.123456Z")).is_ok());
}

#[test]
fn a_bound_pod_stays_until_its_grace_is_ended() {
    let (mut server, target) = with_pod(Some("n"));
    let delete = |grace| Verb::Delete { grace };
    let marked = send(&mut server, target.clone(), delete(None)).unwrap();
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-05T00:00:30Z");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["generation"], 2);
    for longer in [None, Some(30), Some(60)] {
        assert_eq!(send(&mut server, target.clone(), delete(longer)).unwrap(), marked);
    }
    let shorter = send(&mut server, target.clone(), delete(Some(5))).unwrap();
    assert_eq!(shorter["metadata"]["deletionTimestamp"], "2026-01-05T00:00:05Z");
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    send(&mut server, target.clone(), delete(Some(0))).unwrap();
    assert_eq!(send(&mut server, target, Verb::Get), Err(Refusal::Gone));
    assert_eq!(whats(&server), [What::Added, What::Modified, What::Modified, What::Modified, What::Deleted]);
}

#[test]
fn an_eviction_says_why_and_then_deletes_and_is_answered_with_a_status() {
    let (mut server, target) = with_pod(Some("n"));
    let done = send(&mut server, target.clone(), Verb::Evict { grace: Some(5) }).unwrap();
    assert_eq!((&done["kind"], &done["status"]), (&json!("Status"), &json!("Success")));
    let marked = send(&mut server, target, Verb::Get).unwrap();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 5);
    let condition = &marked["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("DisruptionTarget"), &json!("True")));
    assert_eq!(whats(&server), [What::Added, What::Modified, What::Modified]);
    let unbound = with_pod(None);
    let (mut server, target) = unbound;
    send(&mut server, target, Verb::Evict { grace: None }).unwrap();
    assert_eq!(server.count(&kind::POD), 0);
}

#[test]
fn a_budget_applies_only_to_the_eviction_of_a_running_pod() {
    let (mut server, target) = with_pod(Some("n"));
    let asks = |server: &Server, verb| server.asks_budget(&call(target.clone(), verb));
    let evict = Verb::Evict { grace: None };
    assert!(!asks(&server, evict.clone()), "it does not run yet");
    send(&mut server, target.clone(), status(json!({"phase": "Running"}))).unwrap();
    assert!(asks(&server, evict.clone()));
    assert!(!asks(&server, Verb::Delete { grace: None }));
    let refusal = Denial::disruption_budget().classify(&call(target.clone(), evict.clone()));
    assert!(matches!(refusal, Refusal::Held(..)), "{refusal:?}");
    send(&mut server, target.clone(), evict.clone()).unwrap();
    assert!(!asks(&server, evict), "it is going already");
}

#[test]
fn pods_that_run_nowhere_are_removed_at_once_and_their_last_event_has_a_deletion_timestamp() {
    for (node, phase) in [(None, "Pending"), (Some("n"), "Failed"), (Some("n"), "Succeeded")] {
        let (mut server, target) = with_pod(node);
        send(&mut server, target.clone(), status(json!({"phase": phase}))).unwrap();
        send(&mut server, target, Verb::Delete { grace: Some(30) }).unwrap();
        assert_eq!(server.count(&kind::POD), 0);
        let last = server.log(&kind::POD).last().unwrap();
        assert_eq!((last.what, last.object.deleting(), last.object.rv()), (What::Deleted, true, server.rv()));
    }
}

#[test]
fn finalizers_hold_an_object_until_the_last_is_removed() {
    let (mut server, target) = with_pod(Some("n"));
    let finalizers = |list: Value| merge(Sub::Main, json!({"metadata": {"finalizers": list}}));
    send(&mut server, target.clone(), finalizers(json!(["a"]))).unwrap();
    send(&mut server, target.clone(), Verb::Delete { grace: Some(0) }).unwrap();
    let held = send(&mut server, target.clone(), Verb::Get).unwrap();
    assert_eq!(held["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(send(&mut server, target.clone(), Verb::Delete { grace: Some(0) }).unwrap(), held);
    assert!(is_invalid(&send(&mut server, target.clone(), finalizers(json!(["a", "b"])))));
    send(&mut server, target.clone(), finalizers(json!([]))).unwrap();
    assert_eq!(send(&mut server, target, Verb::Get), Err(Refusal::Gone));
}

#[test]
fn a_node_is_created_with_a_taint_and_removed_at_once_without_a_deletion_timestamp() {
    let mut server = server();
    let target = Target::cluster(Side::Physical, &kind::NODE, name("n"));
    let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let made = send(&mut server, target.clone(), Verb::Create(body)).unwrap();
    assert_eq!(made["spec"]["taints"][0]["key"], "node.kubernetes.io/not-ready");
    let done = send(&mut server, target.clone(), Verb::Delete { grace: None }).unwrap();
    assert_eq!((&done["kind"], &done["status"]), (&json!("Status"), &json!("Success")));
    assert!(!server.log(&kind::NODE).last().unwrap().object.deleting());
    assert_eq!(send(&mut server, target, Verb::Get), Err(Refusal::Gone));
}

#[test]
fn custom_resources_refuse_strategic_merge_and_their_status_path_writes_only_status() {
    let mut server = server();
    let target = Target::cluster(Side::Physical, &kind::CLUSTER_BINDING, name("b"));
    let body = json!({
        "apiVersion": "cloud.tencent.com/v1beta1",
        "kind": "ClusterBinding",
        "metadata": {"name": "b"},
        "status": {"phase": "Ready"},
    });
    let made = send(&mut server, target.clone(), Verb::Create(body)).unwrap();
    assert_eq!(made.get("status"), None);
    assert!(is_invalid(&send(&mut server, target.clone(), status(json!({"phase": "Ready"})))));
    let patch = json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Ready"}});
    let done = send(&mut server, target, merge(Sub::Status, patch)).unwrap();
    assert_eq!((&done["status"]["phase"], done["metadata"].get("labels")), (&json!("Ready"), None));
}

#[test]
fn a_new_object_of_an_old_name_is_another_one() {
    let (mut server, target) = with_pod(None);
    send(&mut server, target.clone(), Verb::Delete { grace: None }).unwrap();
    let again = send(&mut server, pod_target(), Verb::Create(pod(None))).unwrap();
    assert_ne!(again["metadata"]["uid"].as_str(), target.uid.as_ref().map(Uid::as_str));
    assert_eq!(send(&mut server, target, Verb::Delete { grace: None }), Err(Refusal::Replaced));
}
