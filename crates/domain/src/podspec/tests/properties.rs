//! What holds for every pod, tried on generated ones.
//! They must not know a rule of the transformation: only what no rule may break.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::dependents::DependentKind::{ConfigMap, Secret};

/// Names of objects in the virtual namespace; nothing else in a generated pod is called so.
fn name() -> impl Strategy<Value = String> {
    "virtual-[a-d]"
}

fn reference() -> impl Strategy<Value = Value> {
    (name(), any::<Option<bool>>())
        .prop_map(|(name, optional)| json!({ "name": name, "key": "k", "optional": optional }))
}

fn source() -> impl Strategy<Value = Value> {
    prop_oneof![
        reference().prop_map(|map| json!({ "configMap": map })),
        reference().prop_map(|secret| json!({ "secret": secret })),
        ("[a-z]{0,3}", 600..9000).prop_map(|(audience, seconds)| {
            json!({ "serviceAccountToken": { "audience": audience, "expirationSeconds": seconds, "path": "t" } })
        }),
        Just(json!({ "downwardAPI": { "items": [{ "path": "n", "fieldRef": { "fieldPath": "metadata.name" } }] } })),
        Just(json!({ "newSource": { "kept": 1e-7 } })),
    ]
}

fn volume() -> impl Strategy<Value = Value> {
    let of_volume = prop_oneof![
        reference().prop_map(|map| json!({ "configMap": map })),
        name().prop_map(|name| json!({ "secret": { "secretName": name } })),
        name().prop_map(|name| json!({ "azureFile": { "secretName": name, "shareName": "s" } })),
        name().prop_map(|name| json!({ "csi": { "driver": "d", "nodePublishSecretRef": { "name": name } } })),
        ("flexVolume|cephfs|cinder|rbd|iscsi|scaleIO|storageos", name())
            .prop_map(|(driver, name)| json!({ driver: { "secretRef": { "name": name } } })),
        prop::collection::vec(source(), 0..4).prop_map(|sources| json!({ "projected": { "sources": sources } })),
        name().prop_map(|name| json!({ "persistentVolumeClaim": { "claimName": name, "readOnly": true } })),
        name().prop_map(
            |class| json!({ "ephemeral": { "volumeClaimTemplate": { "spec": { "storageClassName": class } } } })
        ),
        Just(json!({ "emptyDir": {} })),
        Just(json!({ "newDriver": { "kept": [null, 18_446_744_073_709_551_615_u64] } })),
    ];
    ("kube-api-access-|v", of_volume).prop_map(|(name, mut volume)| {
        volume["name"] = name.into();
        volume
    })
}

/// Each with a name of its own, as an API server demands.
fn volumes() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec(volume(), 0..5).prop_map(|mut volumes| {
        for (index, volume) in volumes.iter_mut().enumerate() {
            volume["name"] = format!("{}{index}", volume["name"].as_str().unwrap_or_default()).into();
        }
        volumes
    })
}

fn env() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[A-Z]{1,3}|KUBERNETES_SERVICE_HOST".prop_map(|name| json!({ "name": name, "value": "v" })),
        reference().prop_map(|map| json!({ "name": "M", "valueFrom": { "configMapKeyRef": map } })),
        reference().prop_map(|secret| json!({ "name": "S", "valueFrom": { "secretKeyRef": secret } })),
        "metadata.name|metadata.uid|spec.nodeName|status.podIP|metadata.labels\\['a'\\]"
            .prop_map(|path| json!({ "name": "F", "valueFrom": { "fieldRef": { "fieldPath": path } } })),
    ]
}

fn container() -> impl Strategy<Value = Value> {
    let env_from = prop_oneof![
        reference().prop_map(|map| json!({ "configMapRef": map })),
        reference().prop_map(|secret| json!({ "prefix": "P_", "secretRef": secret })),
    ];
    let mount = "(kube-api-access-|v)[0-4]".prop_map(|name| json!({ "name": name, "mountPath": "/m" }));
    let lists = (
        prop::option::of(prop::collection::vec(env(), 0..4)),
        prop::option::of(prop::collection::vec(env_from, 0..3)),
        prop::option::of(prop::collection::vec(mount, 0..3)),
    );
    lists.prop_map(|(env, env_from, mounts)| {
        json!({ "name": "c", "image": "i", "env": env, "envFrom": env_from, "volumeMounts": mounts, "newInContainer": 0.1 })
    })
}

/// Specs with everything that is rewritten, and things that are not.
fn spec() -> impl Strategy<Value = Value> {
    let lists = (
        prop::option::of(volumes()),
        prop::collection::vec(container(), 1..3),
        prop::option::of(prop::collection::vec(container(), 0..2)),
        prop::option::of(prop::collection::vec(container(), 0..2)),
        prop::option::of(prop::collection::vec(name().prop_map(|name| json!({ "name": name })), 0..3)),
    );
    let settings = (
        prop::option::of("Default|None|ClusterFirst|ClusterFirstWithHostNet"),
        any::<Option<bool>>(),
        prop::option::of("[a-z]{1,5}"),
    );
    (lists, settings).prop_map(|((volumes, containers, init, ephemeral, pull), (dns, host_network, hostname))| {
        json!({
            "volumes": volumes, "containers": containers, "initContainers": init, "ephemeralContainers": ephemeral,
            "imagePullSecrets": pull, "dnsPolicy": dns, "hostNetwork": host_network, "hostname": hostname,
            "nodeName": "only-virtual", "nodeSelector": { "only-virtual": "x" }, "schedulerName": "only-virtual",
            "affinity": { "nodeAffinity": { "x": "only-virtual" } }, "topologySpreadConstraints": [{ "topologyKey": "only-virtual" }],
            "priorityClassName": "only-virtual", "readinessGates": [{ "conditionType": "only-virtual" }],
            "serviceAccountName": "only-virtual", "serviceAccount": "only-virtual", "schedulingGates": [{ "name": "only-virtual" }],
            "securityContext": { "runAsUser": 1000 }, "newInSpec": { "kept": [1.5e300, 9_007_199_254_740_993_u64] },
        })
    })
}

fn frames() -> [Frame<'static>; 2] {
    [frame(), reaching()]
}

/// Every text in a JSON value.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::Object(fields) => fields.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

proptest! {
    #[test]
    fn the_same_pod_gives_the_same_copy(spec in spec()) {
        for frame in frames() {
            let pod = vpod("web", &spec);
            prop_assert_eq!(render_copy(&pod, &frame).unwrap().to_string(), render_copy(&pod, &frame).unwrap().to_string());
        }
    }

    #[test]
    fn a_copy_names_mapped_objects_only_and_all_that_are_found(spec in spec()) {
        for frame in frames() {
            let access = frame.virtual_api_server.is_some();
            let pod = vpod("web", &spec);
            let mut copy = render_copy(&pod, &frame).unwrap()["spec"].take();
            copy["ephemeralContainers"] = render_ephemeral_containers(&pod, &frame).unwrap();
            // No name of the virtual namespace is left, wherever it may stand.
            prop_assert!(!texts(&copy).iter().any(|text| text.starts_with("virtual-")), "{}", copy);

            let text = spec.to_string();
            let needs: SpecNeeds<'_> = serde_json::from_str(&text).unwrap();
            let mut expected: BTreeSet<(DependentKind, String)> =
                needs.references(access).into_iter().map(|found| (found.kind, mapped(found.kind, &found.name))).collect();
            if !needs.tokens(access).is_empty() {
                expected.insert((Secret, frame.token_secret.to_owned()));
            }
            let text = copy.to_string();
            let needs: SpecNeeds<'_> = serde_json::from_str(&text).unwrap();
            let named: BTreeSet<_> = needs.references(true).into_iter().map(|found| (found.kind, found.name.into())).collect();
            prop_assert_eq!(named, expected);
            let wanted: BTreeSet<String> = serde_json::from_str::<SpecNeeds<'_>>(&spec.to_string()).unwrap()
                .claims("web").into_iter().map(|claim| (frame.claim_name)(&claim.name)).collect();
            let claims: BTreeSet<String> = needs.claims("other").into_iter().map(|claim| claim.name.into()).collect();
            prop_assert_eq!(claims, wanted);
            prop_assert_eq!(needs.tokens(true), [], "a kubelet would ask the physical cluster for a token");
        }
    }

    #[test]
    fn nothing_that_is_for_the_virtual_cluster_only_is_in_a_copy(spec in spec()) {
        for frame in frames() {
            let copy = render_copy(&vpod("web", &spec), &frame).unwrap();
            prop_assert!(!copy["spec"].to_string().contains("only-virtual"));
            prop_assert_eq!(copy["spec"].get("ephemeralContainers"), None);
            prop_assert_eq!(&copy["spec"]["automountServiceAccountToken"], false);
        }
    }

    #[test]
    fn what_is_kept_is_kept_in_order_and_without_loss(spec in spec()) {
        for frame in frames() {
            let copy = render_copy(&vpod("web", &spec), &frame).unwrap()["spec"].take();
            for field in ["securityContext", "newInSpec", "hostNetwork"] {
                prop_assert_eq!(&copy[field], &spec[field]);
            }
            for list in ["containers", "initContainers"] {
                let (there, here) = (copy[list].as_array(), spec[list].as_array());
                prop_assert_eq!(there.map(Vec::len), here.map(Vec::len));
                for (there, here) in there.into_iter().flatten().zip(here.into_iter().flatten()) {
                    for field in ["name", "image", "newInContainer"] {
                        prop_assert_eq!(&there[field], &here[field]);
                    }
                    let names = |container: &Value| -> Vec<String> {
                        let env = container["env"].as_array().cloned().unwrap_or_default();
                        env.iter().map(|env| env["name"].as_str().unwrap().to_owned()).collect()
                    };
                    prop_assert!(names(there).ends_with(&names(here)));
                }
            }
            let unknown = |spec: &Value| -> Vec<Value> {
                let volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
                volumes.into_iter().filter(|volume| volume.get("newDriver").is_some()).collect()
            };
            prop_assert_eq!(unknown(&copy), unknown(&spec));
        }
    }
}

#[test]
fn references_of_both_kinds_are_told_apart() {
    let spec = json!({ "volumes": [{ "name": "a", "configMap": { "name": "it" } }, { "name": "b", "secret": { "secretName": "it" } }] });
    let copy = copy_of(&spec)["spec"].take();
    assert_eq!(copy["volumes"][0]["configMap"]["name"], mapped(ConfigMap, "it"));
    assert_eq!(copy["volumes"][1]["secret"]["secretName"], mapped(Secret, "it"));
}
