//! How a claim grows, and what is told on one that cannot, or gets no volume.

use super::*;

fn sized(expands: bool) -> Stage {
    let mut stage = Stage::new();
    stage.see_class("fast", expands);
    stage.carry();
    stage.start("web");
    stage.vclaim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    stage.see_claim();
    stage
}

#[test]
fn a_claim_that_asks_for_more_gets_it_where_the_class_allows_it() {
    let mut stage = sized(true);
    let grow = stage.scene.call(&claim_key());
    assert_eq!(grow.why, "GrowClaim", "{grow}");
    let body = grow.body().unwrap().into_owned();
    assert_eq!(body["spec"]["resources"]["requests"]["storage"], "2Gi");
    patch(&mut stage.pclaim, body);
    stage.pclaim["status"]["conditions"] = json!([
        {"type": "Resizing", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}, {"type": "Other", "status": "True"},
    ]);
    let object = stage.scene.stamp(stage.pclaim.clone());
    stage.scene.settle(&claim_key(), &grow, Ok(Answer { object }));
    let tell = stage.scene.call(&claim_key());
    assert_eq!(tell.why, "GrowVirtualClaim", "{tell}");
    let conditions = tell.body().unwrap()["status"]["conditions"].clone();
    assert_eq!(conditions, json!([{"type": "Resizing", "status": "True", "reason": "", "message": ""}]));
    stage.vclaim["status"]["conditions"] = conditions;
    stage.see_claim();
    assert_eq!(stage.why(&claim_key()), "");

    stage.pclaim["status"] = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
    stage.see_pclaim();
    let volume = stage.scene.call(&claim_key());
    assert_eq!(volume.why, "GrowVirtualVolume", "{volume}");
    stage.apply_to_vvolume(&claim_key(), &volume);
    let claim = stage.scene.call(&claim_key());
    assert_eq!(claim.why, "GrowVirtualClaim", "{claim}");
    let body = claim.body().unwrap().into_owned();
    assert_eq!(body["status"]["capacity"]["storage"], "2Gi");
    assert_eq!(body["status"]["conditions"], json!([{"type": "Resizing", "$patch": "delete"}]));
    assert_eq!(body["status"].get("phase"), None, "law 3: it belongs to the virtual cluster");
    stage.vclaim["status"] = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
    stage.see_claim();
    assert_eq!(stage.why(&claim_key()), "");
}

#[test]
fn a_claim_that_cannot_grow_is_told_once() {
    let mut stage = sized(false);
    let tell = stage.scene.call(&claim_key());
    let Verb::Create(event) = &tell.verb else { panic!("{tell}") };
    assert_eq!((tell.why, &event["reason"]), ("TellResizeUnsupported", &json!("ResizeUnsupported")));
    assert!(event["message"].as_str().unwrap().contains("allowVolumeExpansion"), "{event}");
    let object = stage.scene.stamp(event.clone());
    stage.scene.settle(&claim_key(), &tell, Ok(Answer { object }));
    assert_eq!(stage.why(&claim_key()), "");
}

#[test]
fn a_growth_that_the_physical_cluster_refuses_is_told_too() {
    let mut stage = sized(true);
    stage.scene.refuse(&claim_key(), refused("no"));
    assert_eq!(stage.why(&claim_key()), "TellResizeUnsupported");
}

#[test]
fn a_claim_that_waits_for_a_volume_on_a_virtual_node_is_told_what_is_missing() {
    let mut stage = Stage::bare();
    stage.vclaim["status"]["phase"] = json!("Pending");
    stage.vclaim["spec"].as_object_mut().unwrap().remove("volumeName");
    stage.vclaim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("vnode-east-n1");
    stage.see_claim();
    assert_eq!(stage.why(&claim_key()), "Wait");
    stage.scene.pass(Duration::from_secs(30));
    let tell = stage.scene.call(&claim_key());
    let Verb::Create(event) = &tell.verb else { panic!("{tell}") };
    assert_eq!(event["reason"], "VolumeNeedsVirtualProvisioner");
    assert_eq!(
        (&event["involvedObject"]["kind"], &event["involvedObject"]["name"]),
        (&json!("PersistentVolumeClaim"), &json!("data"))
    );
    stage.scene.refuse(&claim_key(), Refusal::Exists);
    assert_eq!(stage.why(&claim_key()), "", "another process told it");
    stage.vclaim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("vnode-west-n1");
    stage.see_claim();
    assert_eq!(stage.why(&claim_key()), "", "a node of another binding");
}
