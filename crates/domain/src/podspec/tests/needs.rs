//! Tests of what a pod names: found everywhere, mapped everywhere, and what is refused.
//! They must not repeat a place: each stands once in a table, for reading and for rewriting.

use super::*;
use crate::dependents::DependentKind::{ConfigMap, Secret};
use crate::dependents::Reference;

fn volume(mut source: Value) -> Value {
    source["name"] = "v".into();
    json!({ "volumes": [source] })
}

fn projected(source: &Value) -> Value {
    volume(json!({ "projected": { "sources": [source] } }))
}

fn env(list: &str, source: &Value) -> Value {
    json!({ list: [{ "name": "c", "env": [{ "name": "E", "valueFrom": source }] }] })
}

fn env_from(list: &str, source: &Value) -> Value {
    json!({ list: [{ "name": "c", "envFrom": [source] }] })
}

/// Every place where a pod can name a ConfigMap or Secret called `it`, whether the pod starts without it there, and where
/// in the spec the name stands.
fn places() -> Vec<(Value, DependentKind, bool, &'static str)> {
    let secret = || json!({ "name": "it" });
    let mut places = vec![
        (volume(json!({ "configMap": { "name": "it" } })), ConfigMap, false, "/volumes/0/configMap/name"),
        (
            volume(json!({ "configMap": { "name": "it", "optional": true } })),
            ConfigMap,
            true,
            "/volumes/0/configMap/name",
        ),
        (volume(json!({ "secret": { "secretName": "it" } })), Secret, false, "/volumes/0/secret/secretName"),
        (
            volume(json!({ "secret": { "secretName": "it", "optional": true } })),
            Secret,
            true,
            "/volumes/0/secret/secretName",
        ),
        (
            volume(json!({ "azureFile": { "secretName": "it", "shareName": "x" } })),
            Secret,
            false,
            "/volumes/0/azureFile/secretName",
        ),
        (
            volume(json!({ "csi": { "driver": "d", "nodePublishSecretRef": secret() } })),
            Secret,
            false,
            "/volumes/0/csi/nodePublishSecretRef/name",
        ),
        (
            volume(json!({ "flexVolume": { "driver": "d", "secretRef": secret() } })),
            Secret,
            false,
            "/volumes/0/flexVolume/secretRef/name",
        ),
        (volume(json!({ "cephfs": { "secretRef": secret() } })), Secret, false, "/volumes/0/cephfs/secretRef/name"),
        (volume(json!({ "cinder": { "secretRef": secret() } })), Secret, false, "/volumes/0/cinder/secretRef/name"),
        (volume(json!({ "rbd": { "secretRef": secret() } })), Secret, false, "/volumes/0/rbd/secretRef/name"),
        (volume(json!({ "iscsi": { "secretRef": secret() } })), Secret, false, "/volumes/0/iscsi/secretRef/name"),
        (volume(json!({ "scaleIO": { "secretRef": secret() } })), Secret, false, "/volumes/0/scaleIO/secretRef/name"),
        (
            volume(json!({ "storageos": { "secretRef": secret() } })),
            Secret,
            false,
            "/volumes/0/storageos/secretRef/name",
        ),
        (
            projected(&json!({ "configMap": { "name": "it" } })),
            ConfigMap,
            false,
            "/volumes/0/projected/sources/0/configMap/name",
        ),
        (
            projected(&json!({ "secret": { "name": "it", "optional": true } })),
            Secret,
            true,
            "/volumes/0/projected/sources/0/secret/name",
        ),
        (json!({ "imagePullSecrets": [{ "name": "it" }] }), Secret, true, "/imagePullSecrets/0/name"),
    ];
    let of_containers = [
        (
            "containers",
            "/containers/0/env/1/valueFrom/configMapKeyRef/name",
            "/containers/0/env/1/valueFrom/secretKeyRef/name",
            "/containers/0/envFrom/0/configMapRef/name",
            "/containers/0/envFrom/0/secretRef/name",
        ),
        (
            "initContainers",
            "/initContainers/0/env/1/valueFrom/configMapKeyRef/name",
            "/initContainers/0/env/1/valueFrom/secretKeyRef/name",
            "/initContainers/0/envFrom/0/configMapRef/name",
            "/initContainers/0/envFrom/0/secretRef/name",
        ),
    ];
    for (list, map_key, secret_key, map, secret) in of_containers {
        let key = |optional: bool| json!({ "name": "it", "key": "k", "optional": optional });
        places.push((env(list, &json!({ "configMapKeyRef": key(false) })), ConfigMap, false, map_key));
        places.push((env(list, &json!({ "secretKeyRef": key(true) })), Secret, true, secret_key));
        places.push((
            env_from(list, &json!({ "prefix": "P_", "configMapRef": { "name": "it" } })),
            ConfigMap,
            false,
            map,
        ));
        places.push((
            env_from(list, &json!({ "secretRef": { "name": "it", "optional": true } })),
            Secret,
            true,
            secret,
        ));
    }
    places
}

fn references(spec: &Value, api_access: bool) -> Vec<Reference> {
    let text = spec.to_string();
    let needs: SpecNeeds<'_> = serde_json::from_str(&text).unwrap();
    needs.references(api_access)
}

fn tokens(spec: &Value, api_access: bool) -> Vec<TokenAsk> {
    let text = spec.to_string();
    let needs: SpecNeeds<'_> = serde_json::from_str(&text).unwrap();
    needs.tokens(api_access)
}

fn reference(kind: DependentKind, name: &str, optional: bool) -> Reference {
    Reference { kind, name: name.into(), optional }
}

#[test]
fn a_dependent_is_found_in_every_place_that_can_name_it() {
    for (spec, kind, optional, _) in places() {
        assert_eq!(references(&spec, false), [reference(kind, "it", optional)], "{spec}");
        assert_eq!(refusal(&spec), None, "{spec}");
    }
}

#[test]
fn a_copy_names_no_object_of_the_physical_namespace() {
    for (spec, kind, _, place) in places() {
        let copy = copy_of(&spec);
        assert_eq!(copy["spec"].pointer(place), Some(&json!(mapped(kind, "it"))), "{spec}\n{copy}");
        let names: Vec<_> = references(&copy["spec"], true).into_iter().map(|reference| reference.name).collect();
        assert_eq!(names, [mapped(kind, "it").into_boxed_str()], "{spec}");
    }
    for (spec, what, _) in refused() {
        let refused = render_copy(&vpod("web", &spec), &reaching()).map(|_| ());
        assert!(matches!(refused, Err(Refused::Unsupported(ref unsupported)) if unsupported.what == what), "{spec}");
    }
}

#[test]
fn a_volume_type_that_is_newer_than_this_code_reads_no_secret_of_the_physical_namespace() {
    let spec = volume(json!({ "newDriver": { "secretRef": { "name": "it" } } }));
    let copy = copy_of(&spec);
    assert_eq!(copy["spec"]["volumes"][0]["newDriver"]["secretRef"]["name"], mapped(Secret, "it"));
}

#[test]
fn required_beats_optional_and_each_is_listed_once() {
    let spec = json!({
        "volumes": [
            { "name": "a", "configMap": { "name": "shared", "optional": true } },
            { "name": "b", "projected": { "sources": [{ "configMap": { "name": "shared" } }, { "secret": { "name": "shared" } }] } },
            { "name": "c", "configMap": { "name": "maybe", "optional": true } },
        ],
        "containers": [{ "name": "c", "envFrom": [{ "configMapRef": { "name": "maybe", "optional": true } }, { "secretRef": { "name": "z" } }] }],
        "imagePullSecrets": [{ "name": "shared" }, { "name": "pull" }, { "name": "" }, {}],
    });
    let expected = [
        reference(ConfigMap, "maybe", true),
        reference(ConfigMap, "shared", false),
        reference(Secret, "pull", true),
        reference(Secret, "shared", false),
        reference(Secret, "z", false),
    ];
    assert_eq!(references(&spec, false), expected);
    assert_eq!(references(&json!({ "containers": [{ "name": "c" }] }), true), []);
}

#[test]
fn what_only_an_ephemeral_container_names_does_not_keep_the_pod_from_starting() {
    let debug = env_from("ephemeralContainers", &json!({ "secretRef": { "name": "it" } }));
    assert_eq!(references(&debug, false), [reference(Secret, "it", true)]);
    let mut both = debug;
    both["containers"] = json!([{ "name": "c", "envFrom": [{ "secretRef": { "name": "it" } }] }]);
    assert_eq!(references(&both, false), [reference(Secret, "it", false)]);
}

#[test]
fn an_empty_name_refers_to_nothing_on_either_side() {
    let spec = json!({ "imagePullSecrets": [{ "name": "" }, {}, { "name": null }] });
    assert_eq!(references(&spec, false), []);
    assert_eq!(copy_of(&spec)["spec"]["imagePullSecrets"], spec["imagePullSecrets"]);
}

fn claims(spec: &Value) -> Vec<(String, bool)> {
    let text = spec.to_string();
    let needs: SpecNeeds<'_> = serde_json::from_str(&text).unwrap();
    needs.claims("web").into_iter().map(|claim| (claim.name.into(), claim.own)).collect()
}

#[test]
fn a_claim_gets_the_name_of_its_copy_and_an_ephemeral_volume_becomes_one() {
    let named = volume(json!({ "persistentVolumeClaim": { "claimName": "data", "readOnly": true } }));
    assert_eq!(claims(&named), [("data".to_owned(), false)]);
    let copied = copy_of(&named)["spec"]["volumes"].take();
    let claim = json!({ "claimName": "mapped-claim-data", "readOnly": true });
    assert_eq!(copied, json!([{ "name": "v", "persistentVolumeClaim": claim }]));

    let own = volume(json!({ "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }));
    assert_eq!(claims(&own), [("web-v".to_owned(), true)], "as Kubernetes names it");
    let copied = copy_of(&own)["spec"]["volumes"].take();
    assert_eq!(copied, json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "mapped-claim-web-v" } }]));

    assert_eq!(claims(&volume(json!({ "persistentVolumeClaim": null, "ephemeral": null }))), []);
    assert_eq!(refusal(&named), None);
    assert_eq!(refusal(&own), None);
}

#[test]
fn a_claim_that_two_volumes_name_is_needed_once_and_is_own_if_one_says_so() {
    let spec = json!({ "volumes": [
        { "name": "a", "persistentVolumeClaim": { "claimName": "web-b" } },
        { "name": "b", "ephemeral": {} },
        { "name": "c", "persistentVolumeClaim": { "claimName": "data" } },
        { "name": "d", "persistentVolumeClaim": { "claimName": "data", "readOnly": true } },
    ] });
    assert_eq!(claims(&spec), [("data".to_owned(), false), ("web-b".to_owned(), true)]);
}

/// Every way to name something that is not carried across, with what must be said about it.
fn refused() -> Vec<(Value, Need, &'static str)> {
    vec![
        (
            volume(json!({ "csi": { "driver": "file", "volumeAttributes": { "secretName": "s" } } })),
            Need::DriverSecret,
            "v",
        ),
        (
            volume(json!({ "csi": { "driver": "d", "volumeAttributes": { "SecretProviderClass": "p" } } })),
            Need::DriverSecret,
            "v",
        ),
        (volume(json!({ "glusterfs": { "endpoints": "e", "path": "p" } })), Need::Endpoints, "e"),
        (projected(&json!({ "clusterTrustBundle": { "name": "b" } })), Need::ClusterTrustBundle, "v"),
        (projected(&json!({ "podCertificate": { "signerName": "x" } })), Need::PodCertificate, "v"),
        (
            json!({ "resourceClaims": [{ "name": "gpu", "resourceClaimTemplateName": "t" }] }),
            Need::ResourceClaim,
            "gpu",
        ),
    ]
}

#[test]
fn every_unmet_need_is_refused_by_name() {
    for (spec, what, name) in refused() {
        assert_eq!(refusal(&spec), Some(Unsupported { what, name: name.into() }), "{spec}");
    }
}

/// The volume that admission gives to every pod.
fn api_access() -> Value {
    json!({ "name": "kube-api-access-x", "projected": { "defaultMode": 420, "sources": [
        { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
        { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
    ] } })
}

#[test]
fn the_injected_volume_counts_only_where_the_virtual_api_server_can_be_reached() {
    let spec = json!({ "volumes": [api_access()] });
    assert_eq!((references(&spec, false), tokens(&spec, false)), (vec![], vec![]));
    assert_eq!(references(&spec, true), [reference(ConfigMap, "kube-root-ca.crt", false)]);
    let ask = TokenAsk { key: "0.0".into(), audience: None, expiration_seconds: 3607 };
    assert_eq!(tokens(&spec, true), [ask]);
}

#[test]
fn a_projected_token_comes_from_the_pods_own_secret() {
    let spec = json!({ "volumes": [
        { "name": "v", "projected": { "sources": [
            { "serviceAccountToken": { "audience": "vault", "expirationSeconds": 7200, "path": "vault/token" } },
            { "serviceAccountToken": null, "configMap": { "name": "it" } },
            { "serviceAccountToken": { "audience": "", "path": "token" } },
        ] } },
        { "name": "w", "projected": { "sources": [{ "serviceAccountToken": { "audience": "sts", "path": "t" } }] } },
    ] });
    let ask = |key: &str, audience: Option<&str>, expiration_seconds| TokenAsk {
        key: key.into(),
        audience: audience.map(Into::into),
        expiration_seconds,
    };
    let asks = [ask("0.0", Some("vault"), 7200), ask("0.2", None, 3600), ask("1.0", Some("sts"), 3600)];
    assert_eq!(tokens(&spec, false), asks);
    let from_secret =
        |key: &str, path: &str| json!({ "secret": { "name": "web-token", "items": [{ "key": key, "path": path }] } });
    assert_eq!(
        copy_of(&spec)["spec"]["volumes"],
        json!([
            { "name": "v", "projected": { "sources": [
                from_secret("0.0", "vault/token"),
                { "configMap": { "name": "mapped-configmap-it" } },
                from_secret("0.2", "token"),
            ] } },
            { "name": "w", "projected": { "sources": [from_secret("1.0", "t")] } },
        ])
    );
}

#[test]
fn the_key_of_a_token_is_the_same_with_and_without_the_injected_volume() {
    let own = json!({ "name": "own", "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }] } });
    let spec = json!({ "volumes": [api_access(), own] });
    let key = |api_access| tokens(&spec, api_access).pop().unwrap().key;
    assert_eq!((key(false), key(true)), ("1.0".into(), "1.0".into()));
    let volumes = copy_of(&spec)["spec"]["volumes"].take();
    assert_eq!(volumes.as_array().map(Vec::len), Some(1), "the injected volume is left out");
    assert_eq!(volumes[0]["projected"]["sources"][0]["secret"]["items"][0]["key"], "1.0");
}

#[test]
fn a_secret_cannot_hide_behind_the_name_of_the_token_volume() {
    let disguised = |sources: Value| json!({ "volumes": [{ "name": "kube-api-access-fake", "projected": { "sources": sources } }] });
    let token = json!({ "serviceAccountToken": { "path": "token" } });
    let secret = disguised(json!([token, { "secret": { "name": "s" } }]));
    assert_eq!(references(&secret, false), [reference(Secret, "s", false)]);
    assert_eq!(tokens(&secret, false).len(), 1);
    let other_map = disguised(json!([{ "configMap": { "name": "cm" } }, token]));
    assert_eq!(references(&other_map, false), [reference(ConfigMap, "cm", false)]);
    let no_token = disguised(json!([{ "configMap": { "name": "kube-root-ca.crt" } }]));
    assert_eq!(references(&no_token, false), [reference(ConfigMap, "kube-root-ca.crt", false)]);
    let bundle = disguised(json!([token, { "clusterTrustBundle": {} }]));
    assert_eq!(refusal(&bundle).unwrap().what, Need::ClusterTrustBundle);
}

#[test]
fn the_injected_volume_is_carried_or_left_out_with_its_mounts() {
    let container = json!({ "name": "c", "volumeMounts": [
        { "name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true },
        { "name": "other", "mountPath": "/other" },
    ] });
    let spec = json!({ "volumes": [api_access(), { "name": "other", "emptyDir": {} }], "containers": [container], "initContainers": [container] });
    let left_out = copy_of(&spec)["spec"].take();
    assert_eq!(left_out["volumes"], json!([{ "name": "other", "emptyDir": {} }]));
    let carried = render_copy(&vpod("web", &spec), &reaching()).unwrap()["spec"].take();
    let expected = json!({ "name": "kube-api-access-x", "projected": { "defaultMode": 420, "sources": [
        { "secret": { "name": "web-token", "items": [{ "key": "0.0", "path": "token" }] } },
        { "configMap": { "name": "mapped-configmap-kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.annotations['tapestry.io/virtual-pod-namespace']" } }] } },
    ] } });
    assert_eq!(carried["volumes"][0], expected);
    for list in ["containers", "initContainers"] {
        assert_eq!(left_out[list][0]["volumeMounts"], json!([{ "name": "other", "mountPath": "/other" }]));
        assert_eq!(carried[list][0]["volumeMounts"], container["volumeMounts"]);
    }
    assert_eq!(carried["automountServiceAccountToken"], false, "the physical cluster injects none of its own");
}

#[test]
fn readiness_gates_are_for_the_virtual_pod() {
    let spec = json!({ "readinessGates": [{ "conditionType": "example.com/lb" }] });
    assert_eq!(refusal(&spec), None);
    assert_eq!(copy_of(&spec)["spec"].get("readinessGates"), None);
    let text = spec.to_string();
    let needs: SpecNeeds<'_> = serde_json::from_str(&text).unwrap();
    assert_eq!(needs.readiness_gates().collect::<Vec<_>>(), ["example.com/lb"]);
}
