//! The defaults of a binding, and the problems that wrong fields give.

use super::*;
use crate::binding::{ClusterBindingStatus, SecretRef};
use serde_json::json;

/// A valid binding with only the required fields.
fn binding() -> ClusterBinding {
    let spec = ClusterBindingSpec {
        cluster_id: "cls-a".into(),
        secret_ref: SecretRef { name: "kubeconfig-a".into(), namespace: "tapestry-system".into() },
        mount_namespace: "mount".into(),
        ..Default::default()
    };
    let mut binding = ClusterBinding::new("a", spec);
    binding.metadata.uid = Some("u-1".into());
    binding.metadata.generation = Some(3);
    binding
}

fn problems(binding: &ClusterBinding) -> Vec<String> {
    let invalid = Binding::parse(binding).unwrap_err();
    invalid.problems().iter().map(|problem| problem.field.clone()).collect()
}

#[test]
fn omitted_fields_have_their_documented_defaults() {
    let parsed = Binding::parse(&binding()).unwrap();
    assert_eq!((parsed.name.as_str(), parsed.uid.as_str(), parsed.generation), ("a", "u-1", 3));
    assert_eq!((parsed.cluster_id.as_str(), parsed.mount_namespace.as_str()), ("cls-a", "mount"));
    assert!(parsed.nodes.is_empty(), "no selector selects every node");
    assert_eq!(parsed.priority_class.as_str(), "tapestry-default");
    assert!(parsed.service_namespaces.is_empty());
    for excluded in ["kube-system", "kube-public", "kube-node-lease", "default", "tapestry-system"] {
        assert!(parsed.excludes(excluded), "{excluded}");
    }
    assert!(!parsed.excludes("shop"));
    assert!(!parsed.disable_default_taint && !parsed.running_daemonset_by_default);
    assert!(!parsed.direct_scheduling && !parsed.suspend && !parsed.kubeconfig.insecure_skip_tls_verify);
    assert_eq!(parsed.guard, Guard { quota: false, network_policy: false });
    assert_eq!(parsed.pinned, Pinned::default());
}

#[test]
fn excluded_namespaces_given_replace_the_default_even_when_empty() {
    let mut given = binding();
    given.spec.excluded_namespaces = Some(vec!["shop".into()]);
    let parsed = Binding::parse(&given).unwrap();
    assert!(parsed.excludes("shop") && !parsed.excludes("kube-system"));

    given.spec.excluded_namespaces = Some(Vec::new());
    assert!(!Binding::parse(&given).unwrap().excludes("kube-system"));
}

#[test]
fn pinned_identities_come_from_status() {
    let mut pinned = binding();
    pinned.status = Some(ClusterBindingStatus { physical_cluster_uid: Some("p".into()), ..Default::default() });
    let expected = Pinned { physical_cluster: Some("p".into()), virtual_cluster: None };
    assert_eq!(Binding::parse(&pinned).unwrap().pinned, expected);
}

#[test]
fn all_missing_fields_are_reported_at_once() {
    let mut empty = binding();
    empty.spec.secret_ref = SecretRef::default();
    empty.spec.mount_namespace = String::new();
    empty.spec.service_namespaces = vec!["shop".into(), String::new()];
    assert_eq!(
        problems(&empty),
        ["spec.secretRef.name", "spec.secretRef.namespace", "spec.mountNamespace", "spec.serviceNamespaces[1]"]
    );
    let told = Binding::parse(&empty).unwrap_err().to_string();
    assert!(told.contains("spec.mountNamespace: is empty: name the physical namespace"), "{told}");
}

#[test]
fn names_that_would_escape_a_url_path_are_refused() {
    let mut hostile = binding();
    hostile.spec.secret_ref.name = "../../kube-system/secrets/x".into();
    hostile.spec.mount_namespace = "a/b".into();
    hostile.spec.pod_priority_class_name = "..".into();
    assert_eq!(problems(&hostile), ["spec.secretRef.name", "spec.mountNamespace", "spec.podPriorityClassName"]);
}

#[test]
fn a_cluster_id_has_at_most_24_characters() {
    let mut long = binding();
    long.spec.cluster_id = "a".repeat(24);
    assert!(Binding::parse(&long).is_ok());
    long.spec.cluster_id = "a".repeat(25);
    assert_eq!(problems(&long), ["spec.clusterID"]);
}

#[test]
fn a_selector_selects_the_nodes_it_says_and_no_others() {
    let mut selecting = binding();
    let selector = json!({ "nodeSelectorTerms": [{ "matchFields": [
        { "key": "metadata.name", "operator": "In", "values": ["node-1"] }] }] });
    selecting.spec.node_selector = serde_json::from_value(selector).unwrap();
    let nodes = Binding::parse(&selecting).unwrap().nodes;
    assert!(nodes.matches(|_| None, "node-1") && !nodes.matches(|_| None, "node-2"));
}

#[test]
fn a_selector_that_cannot_be_parsed_does_not_select_every_node() {
    for selector in [
        json!({ "nodeSelectorTerms": [] }),
        json!({ "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "zone", "operator": "In" }] }] }),
    ] {
        let mut vague = binding();
        vague.spec.node_selector = serde_json::from_value(selector).unwrap();
        assert_eq!(problems(&vague), ["spec.nodeSelector"]);
    }
}
