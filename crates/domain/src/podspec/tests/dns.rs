//! Tests of how a pod's names are resolved: as a kubelet of the virtual cluster would set it up.
//! They must not accept what an API server refuses.

use super::*;

/// `dnsPolicy` and `dnsConfig` of a copy whose virtual cluster has a DNS.
fn resolved(spec: &Value) -> (Value, Value) {
    let mut copy = render_copy(&vpod("web", spec), &reaching()).unwrap();
    (copy["spec"]["dnsPolicy"].take(), copy["spec"]["dnsConfig"].take())
}

#[test]
fn a_pod_asks_the_virtual_clusters_dns_with_the_virtual_namespaces_search_list() {
    let expected = json!({
        "nameservers": ["10.1.2.3"],
        "searches": ["team1.svc.cluster.local", "svc.cluster.local", "cluster.local"],
        "options": [{ "name": "ndots", "value": "5" }],
    });
    for spec in [
        json!({}),
        json!({ "dnsPolicy": "ClusterFirst", "dnsConfig": null }),
        json!({ "dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true }),
    ] {
        assert_eq!(resolved(&spec), (json!("None"), expected.clone()), "{spec}");
    }
}

#[test]
fn a_pod_that_does_not_ask_its_cluster_keeps_its_resolver() {
    let own = json!({ "nameservers": ["1.1.1.1"] });
    for spec in [
        json!({ "dnsPolicy": "Default" }),
        json!({ "dnsPolicy": "None", "dnsConfig": own }),
        json!({ "dnsPolicy": "ClusterFirst", "hostNetwork": true }),
        json!({ "hostNetwork": true, "dnsConfig": own }),
    ] {
        assert_eq!(resolved(&spec), (spec["dnsPolicy"].clone(), spec["dnsConfig"].clone()), "{spec}");
    }
}

#[test]
fn without_a_virtual_dns_nothing_changes() {
    let spec = json!({ "dnsPolicy": "ClusterFirst", "dnsConfig": { "searches": ["example.com"] } });
    let copy = copy_of(&spec);
    assert_eq!(copy["spec"]["dnsPolicy"], "ClusterFirst");
    assert_eq!(copy["spec"]["dnsConfig"], spec["dnsConfig"]);
}

#[test]
fn a_pods_own_dns_config_is_added_and_its_options_win() {
    let own = json!({
        "nameservers": ["10.1.2.3", "1.1.1.1"], "searches": ["example.com", "cluster.local"],
        "options": [{ "name": "timeout", "value": "1" }, { "name": "ndots", "value": "2" }], "newInDns": true,
    });
    let (_, config) = resolved(&json!({ "dnsPolicy": "ClusterFirst", "dnsConfig": own }));
    assert_eq!(
        config,
        json!({
            "nameservers": ["10.1.2.3", "1.1.1.1"],
            "searches": ["team1.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com"],
            "options": [{ "name": "timeout", "value": "1" }, { "name": "ndots", "value": "2" }],
            "newInDns": true,
        })
    );
}

#[test]
fn no_more_entries_than_an_api_server_takes() {
    let searches: Vec<String> = (0..32).map(|number| format!("zone-{number}.example.com")).collect();
    let own = json!({ "nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3"], "searches": searches });
    let (_, config) = resolved(&json!({ "dnsConfig": own }));
    assert_eq!(config["nameservers"], json!(["10.1.2.3", "1.1.1.1", "1.1.1.2"]));
    assert_eq!(config["searches"].as_array().unwrap().len(), 32);

    let long: Vec<String> = (0..20).map(|number| format!("{number}.{}", "x".repeat(110))).collect();
    let (_, config) = resolved(&json!({ "dnsConfig": { "searches": long } }));
    let searches: Vec<&str> = config["searches"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    let length = searches.join(" ").len();
    assert!(length <= 2048 && length > 1900, "{length}");
    assert_eq!(searches[0], "team1.svc.cluster.local");
}
