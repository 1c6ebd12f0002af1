//! Tests of the transformation: one realistic pod in full, then each rule and each refusal by itself.
//! They must not compare text: the order of JSON keys does not matter.

mod containers;
mod dns;
mod needs;
mod pods;
mod properties;

use super::*;

pub(super) fn frame() -> Frame<'static> {
    Frame {
        name: "web-7d4b9c-x2x9q-abcdefghij",
        namespace: "mount",
        node: "n1",
        direct_scheduling: false,
        priority_class: Some("tapestry-default"),
        service_account: "tapestry-pod",
        explicit_requests: &[],
        dependent_name: &mapped,
        claim_name: &|name| format!("mapped-claim-{name}"),
        token_secret: "web-token",
        virtual_api_server: None,
        virtual_dns: None,
        labels: vec![("tapestry.io/managed-by", "tapestry".into()), ("tapestry.io/origin", "0123".into())],
        annotations: vec![("tapestry.io/origin", "vc/cb".into())],
    }
}

/// The name that a dependent has in the mount namespace, in these tests.
fn mapped(kind: DependentKind, name: &str) -> String {
    format!("mapped-{kind}-{name}").to_lowercase()
}

/// Of a pod that can reach the virtual cluster.
pub(super) fn reaching() -> Frame<'static> {
    Frame { virtual_api_server: Some(("api.virtual", 6443)), virtual_dns: Some("10.1.2.3"), ..frame() }
}

pub(super) fn vpod(name: &str, spec: &Value) -> String {
    json!({ "metadata": { "name": name, "namespace": "team1", "uid": "u1" }, "spec": spec }).to_string()
}

fn copy_of(spec: &Value) -> Value {
    render_copy(&vpod("web", spec), &frame()).unwrap()
}

fn refusal(spec: &Value) -> Option<Unsupported> {
    unsupported(&serde_json::from_str(&spec.to_string()).unwrap())
}

#[test]
fn law_07_a_realistic_pod_is_copied_without_loss() {
    let expected: Value = serde_json::from_str(include_str!("tests/physical.json")).unwrap();
    let copy = render_copy(include_str!("tests/virtual.json"), &frame()).unwrap();
    for part in ["apiVersion", "kind", "metadata"] {
        assert_eq!(copy[part], expected[part], "{part}");
    }
    for (field, value) in expected["spec"].as_object().unwrap() {
        assert_eq!(&copy["spec"][field], value, "spec.{field}");
    }
    assert_eq!(copy, expected);
}

#[test]
fn law_07_numbers_keep_their_digits() {
    let text = render_copy(include_str!("tests/virtual.json"), &frame()).unwrap().to_string();
    for digits in [":1e-7", ":0.1", "18446744073709551615", "9007199254740993"] {
        assert!(text.contains(digits), "{digits}");
    }
}

#[test]
fn with_direct_scheduling_the_copy_is_bound_by_us() {
    let spec = json!({ "nodeName": "vnode-a-n1", "affinity": {}, "containers": [] });
    let copy = render_copy(&vpod("web", &spec), &Frame { direct_scheduling: true, ..frame() }).unwrap();
    assert_eq!(copy["spec"]["nodeName"], "n1");
    assert_eq!(copy["spec"].get("affinity"), None);
    assert_eq!(copy["metadata"]["annotations"][keys::VIRTUAL_NODE_NAME], "vnode-a-n1");
}

#[test]
fn a_virtual_priority_class_never_reaches_the_physical_cluster() {
    let spec = json!({ "priorityClassName": "system-node-critical", "priority": 2_000_001_000 });
    let copy = render_copy(&vpod("web", &spec), &Frame { priority_class: None, ..frame() }).unwrap();
    assert_eq!(copy["spec"].get("priorityClassName"), None);
    assert_eq!(copy["spec"].get("priority"), None);
}

#[test]
fn a_host_name_is_set_only_where_the_pod_has_none_of_its_own() {
    assert_eq!(copy_of(&json!({}))["spec"]["hostname"], "web");
    assert_eq!(copy_of(&json!({ "hostname": "" }))["spec"]["hostname"], "web");
    assert_eq!(copy_of(&json!({ "hostname": "db" }))["spec"]["hostname"], "db");
    assert_eq!(copy_of(&json!({ "hostNetwork": true }))["spec"].get("hostname"), None);
    let dotted = render_copy(&vpod("web.v1", &json!({})), &frame()).unwrap();
    assert_eq!(dotted["spec"]["hostname"], "web-v1");
}

#[test]
fn ours_win_over_forged_labels_and_annotations() {
    let forged = json!({ "metadata": {
        "name": "web", "namespace": "team1", "uid": "u1",
        "labels": { "tapestry.io/origin": "theirs", "tapestry.io/": "x", "tapestry.iox/kept": "yes" },
        "annotations": { "cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "tapestry.io/virtual-pod-name": "other", "tapestry.io/lend": "x" },
    }, "spec": {} });
    let copy = render_copy(&forged.to_string(), &frame()).unwrap();
    let labels =
        json!({ "tapestry.io/managed-by": "tapestry", "tapestry.io/origin": "0123", "tapestry.iox/kept": "yes" });
    assert_eq!(copy["metadata"]["labels"], labels);
    let annotations = copy["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "true");
    assert_eq!(annotations[keys::VIRTUAL_POD_NAME], "web");
    assert!(!annotations.contains_key("tapestry.io/lend"));
}

#[test]
fn nulls_are_no_reason_to_refuse() {
    let text = r#"{"metadata":{"name":"web","namespace":null,"labels":null,"annotations":null},
        "spec":{"volumes":null,"containers":[{"name":"a","env":null,"envFrom":null,"volumeMounts":null}],"initContainers":null,
        "imagePullSecrets":null,"affinity":null,"hostname":null}}"#;
    assert_eq!(render_copy(text, &frame()).unwrap()["spec"]["hostname"], "web");
}

#[test]
fn a_malformed_pod_is_refused_without_repeating_it() {
    for text in [
        "",
        "[]",
        "{}",
        r#"{"metadata":{"name":"web"}}"#,
        r#"{"metadata":{},"spec":{}}"#,
        r#"{"metadata":{"name":"web"},"spec":"hunter2"}"#,
    ] {
        let refused = render_copy(text, &frame()).unwrap_err();
        assert!(matches!(refused, Refused::Malformed { .. }), "{text}");
        assert!(!refused.to_string().contains("hunter2"));
    }
}

#[test]
fn a_pod_that_needs_nothing_is_copied() {
    let pod: Value = serde_json::from_str(include_str!("tests/virtual.json")).unwrap();
    assert_eq!(refusal(&pod["spec"]), None);
    assert_eq!(
        refusal(
            &json!({ "volumes": [{ "name": "h", "hostPath": { "path": "/" } }, { "name": "c", "csi": { "driver": "x" } }] })
        ),
        None
    );
}

#[test]
fn a_refusal_says_what_to_change() {
    let refused = refusal(&json!({ "resourceClaims": [{ "name": "gpu" }] })).unwrap();
    assert_eq!(
        refused.to_string(),
        "the pod needs resource claim `gpu`, which Tapestry does not carry to the physical cluster; remove it from the pod"
    );
}

#[test]
fn where_a_quota_counts_a_container_without_requests_requests_zero() {
    let framed = |spec: &Value| {
        let frame = Frame { explicit_requests: &["cpu", "memory"], ..frame() };
        render_copy(&vpod("web", spec), &frame).unwrap()["spec"].clone()
    };
    let silent = json!({ "name": "silent" });
    let asks = json!({ "name": "asks", "resources": { "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } } });
    let bare = json!({ "name": "bare", "resources": null });
    let spec = framed(&json!({ "containers": [silent, asks, bare], "initContainers": [silent] }));
    let zero = json!({ "requests": { "cpu": "0", "memory": "0" } });
    for container in [&spec["containers"][0], &spec["containers"][2], &spec["initContainers"][0]] {
        assert_eq!(container["resources"], zero);
    }
    assert_eq!(
        spec["containers"][1]["resources"], asks["resources"],
        "what it asks for, and a limit that becomes its request, stay"
    );

    let whole = framed(&json!({ "resources": { "limits": { "cpu": "2" } }, "containers": [silent] }));
    assert_eq!(whole["containers"][0].get("resources"), None, "pod-level figures need no figures of containers");
    let empty = framed(&json!({ "resources": { "limits": {} }, "containers": [silent] }));
    assert_eq!(empty["containers"][0]["resources"], zero);
    assert_eq!(copy_of(&json!({ "containers": [silent] }))["spec"]["containers"][0].get("resources"), None);
}

/// The two that every copy begins with.
fn patient() -> [Value; 2] {
    ["not-ready", "unreachable"]
        .map(|trouble| json!({ "key": format!("node.kubernetes.io/{trouble}"), "operator": "Exists", "effect": "NoExecute" }))
}

fn tolerations_of_copy(tolerations: &Value) -> Value {
    copy_of(&json!({ "containers": [], "tolerations": tolerations }))["spec"]["tolerations"].take()
}

#[test]
fn a_copy_stays_on_a_node_in_trouble_whatever_toleration_seconds_its_tenant_sets() {
    let [not_ready, unreachable] = patient();
    assert_eq!(tolerations_of_copy(&json!(null)), json!([not_ready, unreachable]));
    let impatient =
        |key: &str| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 });
    let tenants = json!([impatient("node.kubernetes.io/unreachable"), impatient("node.kubernetes.io/not-ready")]);
    assert_eq!(tolerations_of_copy(&tenants), json!([not_ready, unreachable]));
    // Every key: it counts for other taints, and ours come before it.
    let all = json!({ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 });
    let own = json!({ "key": "gpu", "operator": "Exists", "effect": "NoSchedule" });
    let placed = json!({ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule" });
    let kept = tolerations_of_copy(&json!([all, own, placed]));
    assert_eq!(kept, json!([not_ready, unreachable, all, own, placed]));
}

#[test]
fn a_running_copy_is_updated_by_a_change_that_an_api_server_allows() {
    let [not_ready, unreachable] = patient();
    let mend = |tolerations: Value| mend_tolerations(&tolerations.to_string()).unwrap();
    let seconds = |mut toleration: Value, seconds: i64| {
        toleration["tolerationSeconds"] = json!(seconds);
        toleration
    };
    // What admission added: only its seconds are removed.
    let added = json!([seconds(not_ready.clone(), 300), seconds(unreachable.clone(), 300)]);
    assert_eq!(mend(added), Some(json!([not_ready, unreachable])));
    assert_eq!(mend(json!(null)), Some(json!([not_ready, unreachable])));
    // Another operator is another toleration, which must stay.
    let equal = json!({ "key": "node.kubernetes.io/not-ready", "operator": "Equal", "effect": "NoExecute", "tolerationSeconds": 5 });
    let all = json!({ "operator": "Exists", "tolerationSeconds": 5, "effect": "NoExecute" });
    let mended = mend(json!([all, equal, not_ready])).unwrap();
    assert_eq!(mended, json!([not_ready, unreachable, all, equal]));
    assert_eq!(mend(mended), None, "mended once, it stays as it is");
    // A copy that tolerates everything without limit needs no update.
    assert_eq!(mend(json!([{ "operator": "Exists" }, seconds(not_ready, 5)])), None);
}
