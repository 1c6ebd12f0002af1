//! The same for volumes and claims.

use super::*;

/// A pod that mounts claim `data`, its copy, and the copies of the claim and its volume.
fn with_claim() -> (Value, Value, Value, Value) {
    let origin = tapestry_domain::names::origin_hash("v", "b");
    let claim = tapestry_domain::names::claim_name(&origin, "shop", "data");
    let volumes = json!([{ "name": "d", "persistentVolumeClaim": { "claimName": "data" } }]);
    let annotations = json!({ keys::ORIGIN: ORIGIN, keys::VIRTUAL_CLAIM: "shop/data" });
    let pvolume = json!({
        "metadata": { "name": "disk-x", "annotations": annotations },
        "spec": { "persistentVolumeReclaimPolicy": "Retain", "claimRef": { "uid": "c1" } },
    });
    let pclaim = json!({
        "metadata": { "name": claim, "namespace": "mount", "uid": "c1", "annotations": annotations },
        "spec": { "volumeName": "disk-x" }, "status": { "phase": "Bound" },
    });
    (with(vpod(), "/spec/volumes", volumes), ppod(), pvolume, pclaim)
}

fn volume_violations(vpods: &[&Value], ppods: &[&Value], volumes: &[&Value], claims: &[&Value]) -> String {
    let snapshot = Snapshot {
        origin: ORIGIN,
        vpods: vpods.to_vec(),
        ppods: ppods.to_vec(),
        vnodes: Vec::new(),
        pnodes: Vec::new(),
        sources: Vec::new(),
        dependents: Vec::new(),
        volumes: volumes.to_vec(),
        claims: claims.to_vec(),
        services: CarriedServices::default(),
        api_access: false,
        limits: &|_| Some(Vec::new()),
    };
    snapshot.violations().join("\n")
}

#[test]
fn volumes_that_pods_lack_or_do_not_need_are_found() {
    let (vpod, ppod, volume, claim) = with_claim();
    assert_eq!(volume_violations(&[&vpod], &[&ppod], &[&volume], &[&claim]), "");
    let without = volume_violations(&[&vpod], &[&ppod], &[&volume], &[]);
    assert!(without.contains("needs PersistentVolumeClaim data, which has no copy"), "{without}");
    let lost = with(claim.clone(), "/status/phase", "Lost");
    assert!(volume_violations(&[&vpod], &[&ppod], &[&volume], &[&lost]).contains("which is not bound"));
    let deletes = with(volume.clone(), "/spec/persistentVolumeReclaimPolicy", "Delete");
    assert!(volume_violations(&[&vpod], &[&ppod], &[&deletes], &[&claim]).contains("does not retain its data"));
    let unused = volume_violations(&[], &[], &[&volume], &[&claim]);
    assert!(unused.contains("PersistentVolume disk-x is used by no pod"), "{unused}");
    assert!(unused.contains("PersistentVolumeClaim mount/"), "{unused}");
    let foreign = with(volume, "/metadata/annotations", json!({}));
    assert_eq!(volume_violations(&[], &[], &[&foreign], &[]), "", "others' volumes are theirs");
}
