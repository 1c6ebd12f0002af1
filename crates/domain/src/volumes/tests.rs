//! Tests of copies of volumes and claims: what they say, which Secrets they name, and what never gets in.
//! They must not compare text: the order of JSON keys does not matter.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn frame<'a>(labels: &'a [(&'static str, String)], annotations: &'a [(&'static str, String)]) -> VolumeFrame<'a> {
    VolumeFrame {
        name: "copy",
        mount: "mount",
        labels,
        annotations,
        origin: "0123",
        storage_class: "fast",
        claim: ("shop", "data"),
        other: None,
    }
}

fn volume_copy(source: &Value) -> Value {
    let (labels, annotations) = (ours(), ours());
    render_volume_copy(&source.to_string(), &frame(&labels, &annotations)).unwrap()
}

fn claim_copy(source: &Value) -> Value {
    let (labels, annotations) = (ours(), ours());
    let frame = VolumeFrame { other: Some("pv-copy"), ..frame(&labels, &annotations) };
    render_claim_copy(&source.to_string(), &frame).unwrap()
}

fn ours() -> [(&'static str, String); 1] {
    [("tapestry.io/origin", "0123".to_owned())]
}

/// A volume as a provisioner makes it.
fn volume() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": "pvc-1", "uid": "v1", "resourceVersion": "7", "finalizers": ["kubernetes.io/pv-protection"],
            "labels": { "team": "a", "topology.kubernetes.io/zone": "z1", "tapestry.io/origin": "forged" },
            "annotations": {
                "note": "kept", "pv.kubernetes.io/provisioned-by": "disk.example.com", "pv.kubernetes.io/bound-by-controller": "yes",
                "volume.kubernetes.io/provisioner-deletion-secret-name": "s", "tapestry.io/volume-holder": "east/b1",
            },
        },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "mountOptions": ["noatime"],
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "virtual-class", "volumeAttributesClassName": "gold",
            "claimRef": { "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data", "uid": "c1", "resourceVersion": "3" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [] } },
            "csi": {
                "driver": "disk.example.com", "volumeHandle": "h-1", "volumeAttributes": { "a": "1", "secretName": "shown" },
                "nodeStageSecretRef": { "name": "stage", "namespace": "infra" },
                "nodePublishSecretRef": { "name": "publish", "namespace": "shop" },
                "newInKubernetesSecretRef": { "name": "new", "namespace": "shop" },
            },
            "newInKubernetes": { "deep": [1e-7, null] },
        },
        "status": { "phase": "Bound" },
    })
}

#[test]
fn law_07_the_copy_of_a_volume_keeps_what_the_data_is_and_nothing_of_the_virtual_cluster() {
    let secret = |namespace: &str, name: &str| json!({ "namespace": "mount", "name": names::dependent_name("0123", namespace, name) });
    assert_eq!(
        volume_copy(&volume()),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": "copy",
                "labels": { "team": "a", "tapestry.io/origin": "0123" },
                "annotations": {
                    "note": "kept", "tapestry.io/origin": "0123", "tapestry.io/virtual-name": "pvc-1",
                    "tapestry.io/virtual-uid": "v1", "tapestry.io/virtual-claim": "shop/data",
                },
            },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "mountOptions": ["noatime"],
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "fast",
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "mount",
                    "name": names::claim_name("0123", "shop", "data"),
                },
                "csi": {
                    "driver": "disk.example.com", "volumeHandle": "h-1", "volumeAttributes": { "a": "1", "secretName": "shown" },
                    "nodeStageSecretRef": secret("infra", "stage"),
                    "nodePublishSecretRef": secret("shop", "publish"),
                    "newInKubernetesSecretRef": secret("shop", "new"),
                },
                "newInKubernetes": { "deep": [1e-7, null] },
            },
        })
    );
}

#[test]
fn a_volume_that_is_made_again_is_for_the_claim_that_is_there() {
    let (labels, annotations) = (ours(), ours());
    let frame = VolumeFrame { other: Some("u9"), ..frame(&labels, &annotations) };
    let copy = render_volume_copy(&volume().to_string(), &frame).unwrap();
    assert_eq!(copy["spec"]["claimRef"]["uid"], "u9");
}

#[test]
fn law_07_the_copy_of_a_claim_is_bound_to_the_copy_of_its_volume() {
    let source = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data", "namespace": "shop", "uid": "c1", "resourceVersion": "9", "finalizers": ["kubernetes.io/pvc-protection"],
            "ownerReferences": [{ "kind": "Pod", "uid": "p" }], "labels": { "app": "db" },
            "annotations": {
                "pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "vnode-a-1",
                "volume.beta.kubernetes.io/storage-provisioner": "x", "note": "kept",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } }, "volumeMode": "Block",
            "volumeName": "pvc-1", "storageClassName": "virtual-class", "volumeAttributesClassName": "gold",
            "selector": { "matchLabels": { "a": "b" } }, "dataSource": { "kind": "VolumeSnapshot", "name": "s" },
            "dataSourceRef": { "kind": "VolumeSnapshot", "name": "s" }, "newInKubernetes": 1,
        },
        "status": { "phase": "Bound" },
    });
    assert_eq!(
        claim_copy(&source),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "copy", "namespace": "mount", "labels": { "app": "db", "tapestry.io/origin": "0123" },
                "annotations": {
                    "note": "kept", "tapestry.io/origin": "0123", "tapestry.io/virtual-namespace": "shop",
                    "tapestry.io/virtual-name": "data", "tapestry.io/virtual-uid": "c1",
                },
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } }, "volumeMode": "Block",
                "volumeName": "pv-copy", "storageClassName": "fast", "newInKubernetes": 1,
            },
        })
    );
}

fn read(spec: &Value) -> VolumeNeeds {
    read_volume(&spec.to_string(), "shop").unwrap()
}

fn secret(namespace: &str, name: &str) -> SecretName {
    SecretName { namespace: namespace.into(), name: name.into() }
}

#[test]
fn a_secret_is_found_in_every_place_that_can_name_it() {
    for driver in ["flexVolume", "cephfs", "cinder", "rbd", "iscsi", "scaleIO", "storageos"] {
        let spec = json!({ driver: { "secretRef": { "name": "it", "namespace": "infra" } } });
        assert_eq!(read(&spec).secrets, [secret("infra", "it")], "{driver}");
        let local = json!({ driver: { "secretRef": { "name": "it" } } });
        assert_eq!(read(&local).secrets, [secret("shop", "it")], "{driver}: that of the claim's namespace");
    }
    for reference in ["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"] {
        let spec = json!({ "csi": { format!("{reference}SecretRef"): { "name": "it", "namespace": "infra" } } });
        assert_eq!(read(&spec).secrets, [secret("infra", "it")], "{reference}");
    }
    let azure = json!({ "azureFile": { "secretName": "it", "secretNamespace": "infra", "shareName": "s" } });
    assert_eq!(read(&azure).secrets, [secret("infra", "it")]);
    let copy = volume_copy(&json!({ "metadata": { "name": "v" }, "spec": azure }));
    let mapped = names::dependent_name("0123", "infra", "it");
    assert_eq!(
        copy["spec"]["azureFile"],
        json!({ "secretName": mapped, "secretNamespace": "mount", "shareName": "s" })
    );
    assert_eq!(read(&json!({ "nfs": { "server": "s", "path": "/" }, "csi": null })).secrets, []);
}

#[test]
fn what_a_volume_is_made_of_is_told_apart() {
    for (spec, backend) in [
        (json!({ "hostPath": { "path": "/" } }), Backend::HostPath),
        (json!({ "local": { "path": "/disk" } }), Backend::Local),
        (json!({ "glusterfs": { "endpoints": "e" } }), Backend::Glusterfs),
        (json!({ "nfs": { "server": "s" }, "hostPath": null }), Backend::Network),
        (json!({ "newDriver": {} }), Backend::Network),
    ] {
        assert_eq!(read(&spec).backend, backend, "{spec}");
    }
}

#[test]
fn what_cannot_be_read_is_not_repeated() {
    let error = read_volume(r#"{"csi":{"volumeAttributes":{"key":hush"#, "shop").unwrap_err();
    assert!(!error.to_string().contains("hush"), "{error}");
}

/// JSON with references to Secrets anywhere in it.
fn spec() -> impl Strategy<Value = Value> {
    let reference = ("virtual-[a-c]", prop::option::of("virtual-ns-[a-b]"))
        .prop_map(|(name, namespace)| json!({ "name": name, "namespace": namespace }));
    let leaf = prop_oneof![
        ("(node|controller|new)[A-Z]{0,2}SecretRef|secretRef", reference).prop_map(|(field, to)| json!({ field: to })),
        ("virtual-[a-c]", prop::option::of("virtual-ns-[a-b]"))
            .prop_map(|(name, namespace)| json!({ "secretName": name, "secretNamespace": namespace })),
        Just(json!({ "kept": [1e-7, null, "x"] })),
    ];
    let driver = prop_oneof![
        leaf.clone(),
        leaf.clone().prop_map(|inner| json!({ "deep": inner })),
        prop::collection::vec(leaf, 0..3).prop_map(|list| json!({ "list": list })),
    ];
    ("csi|flexVolume|newDriver", driver)
        .prop_map(|(field, driver)| json!({ field: driver, "capacity": { "storage": "1Gi" } }))
}

proptest! {
    #[test]
    fn law_10_a_copy_names_secrets_of_the_mount_namespace_only_and_all_that_are_found(spec in spec()) {
        let found: BTreeSet<SecretName> = read(&spec).secrets.into_iter()
            .map(|found| secret("mount", &names::dependent_name("0123", &found.namespace, &found.name))).collect();
        let mut copy = volume_copy(&json!({ "metadata": { "name": "v" }, "spec": spec }))["spec"].take();
        copy.as_object_mut().unwrap().remove("claimRef");
        let named: BTreeSet<SecretName> = read(&copy).secrets.into_iter().collect();
        prop_assert_eq!(named, found);
        prop_assert!(!copy.to_string().contains("virtual-ns"));
        prop_assert_eq!(&copy["persistentVolumeReclaimPolicy"], RETAIN);
        prop_assert_eq!(&copy["capacity"], &spec["capacity"]);
    }
}
