//! The life of one claim and its volume beside the pods that need them, call by call.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch, Row};
use tapestry_cluster::refusal::Status;
use tapestry_cluster::{Answer, Call, Refusal, Shape, Side, Uid, Verb, kind};
use tapestry_domain::names;
use tapestry_domain::volumes::{VolumeFrame, render_claim_copy, render_volume_copy};
use tapestry_engine::{Plan, Reason as _};

use super::Id;
use super::row::{PClaim, PClass, PVolume, VClaim, VVolume};
use crate::dependents::row::Source;
use crate::pair::{Fact, Key};
use crate::pods::admission::PendingReason;
use crate::pods::row::VPod;
use crate::scene::{Scene, created, mapped, merge, name, patch, vpod};

mod removal;
mod sizes;

/// Both clusters as far as one pod `web`, its claim `data` and volume `disk` are concerned.
struct Stage {
    scene: Scene,
    vclaim: Value,
    vvolume: Value,
    pclaim: Value,
    pvolume: Value,
}

const HOLDER: &str = "east/b-uid";

fn claim_key() -> Key {
    Key::Claim(Arc::new(Id { namespace: name("demo"), name: name("data") }))
}

fn volume_key() -> Key {
    Key::Volume(name("disk"))
}

fn pod_key(pod: &str) -> Key {
    Key::Pod(Uid::new(format!("v-{pod}")))
}

fn mounts(pod: &str) -> Value {
    let mut object = vpod(pod);
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
    merge(&mut object, json!({"spec": {"volumes": volumes}}));
    object
}

fn vclaim() -> Value {
    json!({
        "metadata": {"name": "data", "namespace": "demo", "uid": "vc"},
        "spec": {"volumeName": "disk", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    })
}

fn vvolume() -> Value {
    json!({
        "metadata": {"name": "disk", "uid": "vv", "annotations": {}},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "demo", "name": "data", "uid": "vc"}, "nfs": {"server": "s", "path": "/"},
        },
        "status": {"phase": "Bound"},
    })
}

fn copies() -> (String, String) {
    let origin = crate::origin::Origin::new("v-cluster", "b-uid", "east");
    (names::volume_name(&origin.label, "disk"), names::claim_name(&origin.label, "demo", "data"))
}

impl Stage {
    /// A pod that is admitted and mapped, and its claim bound to its volume.
    fn new() -> Self {
        let mut stage = Self::bare();
        stage.see_claim();
        stage.see_volume();
        stage.admit("web");
        stage
    }

    fn bare() -> Self {
        Self { scene: Scene::new(), vclaim: vclaim(), vvolume: vvolume(), pclaim: Value::Null, pvolume: Value::Null }
    }

    /// With a running pod.
    fn running() -> Self {
        let mut stage = Self::new();
        stage.carry();
        stage.start("web");
        stage
    }

    fn see<R: Row>(
        &mut self,
        object: &Value,
        decode: impl Fn(&bytes::Bytes) -> Option<R>,
        wrap: impl Fn(Change<R>) -> Fact,
    ) {
        let text = self.scene.stamp(object.clone());
        self.scene.see(wrap(Change::Put(decode(&text).unwrap(), Epoch(1))));
    }

    fn see_claim(&mut self) {
        self.see(&self.vclaim.clone(), |text| VClaim::decode(text).unwrap(), Fact::VClaim);
    }

    fn see_volume(&mut self) {
        self.see(&self.vvolume.clone(), |text| VVolume::decode(text).unwrap(), Fact::VVolume);
    }

    fn see_pclaim(&mut self) {
        let origin = self.scene.pair.origin.clone();
        self.see(&self.pclaim.clone(), |text| PClaim::decode(text, &origin).unwrap(), Fact::PClaim);
    }

    fn see_pvolume(&mut self) {
        let origin = self.scene.pair.origin.clone();
        self.see(&self.pvolume.clone(), |text| PVolume::decode(text, &origin).unwrap(), Fact::PVolume);
    }

    fn lose_pclaim(&mut self) {
        let text = self.scene.stamp(self.pclaim.take());
        let row = PClaim::decode(&text, &self.scene.pair.origin).unwrap().unwrap();
        self.scene.see(Fact::PClaim(Change::Gone { row, proven: true }));
        if self.pvolume["status"]["phase"] == "Bound" {
            self.pvolume["status"]["phase"] = json!("Released");
            self.see_pvolume();
        }
    }

    fn lose_pvolume(&mut self) {
        let text = self.scene.stamp(self.pvolume.take());
        let row = PVolume::decode(&text, &self.scene.pair.origin).unwrap().unwrap();
        self.scene.see(Fact::PVolume(Change::Gone { row, proven: true }));
    }

    fn see_class(&mut self, class: &str, expands: bool) {
        let object =
            json!({"metadata": {"name": class, "uid": format!("class-{class}")}, "allowVolumeExpansion": expands});
        self.see(&object, |text| PClass::decode(text).unwrap(), Fact::Class);
    }

    fn admit(&mut self, pod: &str) {
        let object = mounts(pod);
        self.scene.see_vpod(&object);
        let mut refused = 0;
        let map = loop {
            let call = self.scene.call(&pod_key(pod));
            if call.why == "Map" {
                break call;
            }
            refused += 1;
            assert!(refused < 2, "{call}");
            let mut told = object.clone();
            told["status"]["conditions"] = call.body().unwrap()["status"]["conditions"].clone();
            self.scene.see_vpod(&told);
        };
        let copy = map.body().unwrap()["metadata"]["annotations"][keys::PHYSICAL_POD_NAME].as_str().unwrap().to_owned();
        self.scene.see_vpod(&mapped(object, &copy, None));
    }

    fn start(&mut self, pod: &str) -> Value {
        let ppod = created(&self.scene.call(&pod_key(pod)));
        self.scene.see_ppod(&ppod);
        ppod
    }

    fn told(&self) -> (String, String) {
        let call = self.scene.call(&pod_key("web"));
        assert_eq!(call.why, "Refuse", "{call}");
        let condition = call.body().unwrap()["status"]["conditions"][0].clone();
        (condition["reason"].as_str().unwrap().to_owned(), condition["message"].as_str().unwrap().to_owned())
    }

    fn expect(&self, reason: PendingReason, text: &str) {
        let (told, message) = self.told();
        assert_eq!(told, reason.as_str(), "{message}");
        assert!(message.contains(text), "{message}");
    }

    /// Writes the hold as planned.
    fn hold(&mut self) {
        let call = self.scene.call(&volume_key());
        assert_eq!((call.why, call.target.side), ("HoldVolume", Side::Virtual), "{call}");
        self.apply_to_vvolume(&volume_key(), &call);
    }

    fn apply_to_vvolume(&mut self, key: &Key, call: &Call) {
        assert!(call.target.uid.is_some() && call.target.rv.is_some(), "{call}");
        patch(&mut self.vvolume, call.body().unwrap().into_owned());
        let object = self.scene.stamp(self.vvolume.clone());
        self.scene.settle(key, call, Ok(Answer { object }));
    }

    /// What the gate makes of the volume, and the physical cluster of that.
    fn create_volume(&mut self) {
        let call = self.scene.call(&volume_key());
        assert_eq!(call.why, "CreateVolume", "{call}");
        let Verb::Carry { shape, .. } = &call.verb else { panic!("{call}") };
        let Shape::Volume(marks) = &**shape else { panic!("{call}") };
        let frame = frame(marks, call.target.name.as_str());
        self.pvolume = render_volume_copy(&self.vvolume.to_string(), &frame).unwrap();
        merge(&mut self.pvolume, json!({"metadata": {"uid": "pv"}, "status": {"phase": "Available"}}));
        let object = self.scene.stamp(self.pvolume.clone());
        self.scene.settle(&volume_key(), &call, Ok(Answer { object }));
    }

    fn create_claim(&mut self) {
        let call = self.scene.call(&claim_key());
        assert_eq!(call.why, "CreateClaim", "{call}");
        let Verb::Carry { shape, .. } = &call.verb else { panic!("{call}") };
        let Shape::Claim(marks) = &**shape else { panic!("{call}") };
        let frame = frame(marks, call.target.name.as_str());
        self.pclaim = render_claim_copy(&self.vclaim.to_string(), &frame).unwrap();
        merge(&mut self.pclaim, json!({"metadata": {"uid": "pc"}, "status": {"phase": "Pending"}}));
        let object = self.scene.stamp(self.pclaim.clone());
        self.scene.settle(&claim_key(), &call, Ok(Answer { object }));
    }

    /// What the volume controller of the physical cluster does.
    fn bind(&mut self) {
        merge(&mut self.pvolume, json!({"spec": {"claimRef": {"uid": "pc"}}, "status": {"phase": "Bound"}}));
        merge(&mut self.pclaim, json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}));
        self.see_pvolume();
        self.see_pclaim();
    }

    /// All of it, in order.
    fn carry(&mut self) {
        self.hold();
        self.create_volume();
        self.create_claim();
        assert_eq!(self.scene.plan(&pod_key("web")), Plan::Rest, "the pod waits until they are bound");
        self.bind();
    }

    fn why(&self, key: &Key) -> &'static str {
        match self.scene.plan(key) {
            Plan::Do(call, _) => call.why,
            Plan::Rest => "",
            Plan::Wait(_) => "Wait",
        }
    }

    /// Applies a planned patch to the copy of the volume.
    fn repair(&mut self) -> Value {
        let call = self.scene.call(&volume_key());
        assert_eq!(call.why, "RepairVolume", "{call}");
        assert!(call.target.uid.is_some() && call.target.rv.is_some(), "{call}");
        let body = call.body().unwrap().into_owned();
        patch(&mut self.pvolume, body.clone());
        let object = self.scene.stamp(self.pvolume.clone());
        self.scene.settle(&volume_key(), &call, Ok(Answer { object }));
        body
    }
}

fn frame<'a>(marks: &'a tapestry_cluster::VolumeMarks, name: &'a str) -> VolumeFrame<'a> {
    VolumeFrame {
        name,
        mount: &marks.mount,
        labels: &marks.labels,
        annotations: &marks.annotations,
        origin: &marks.origin,
        storage_class: &marks.storage_class,
        claim: (&marks.claim.0, &marks.claim.1),
        other: marks.other.as_deref(),
    }
}

fn refused(message: &str) -> Refusal {
    Refusal::Denied(Box::new(Status { message: message.to_owned(), ..Default::default() }))
}

#[test]
fn a_pod_starts_when_its_claim_is_bound_in_both_clusters() {
    let mut stage = Stage::new();
    assert_eq!(stage.why(&claim_key()), "", "first the volume");
    stage.hold();
    assert_eq!(stage.vvolume["metadata"]["annotations"][keys::VOLUME_HOLDER], HOLDER);
    stage.create_volume();
    let (volume, claim) = copies();
    assert_eq!(stage.pvolume["metadata"]["name"], volume);
    assert_eq!(stage.pvolume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(stage.pvolume["spec"]["claimRef"]["name"], claim);
    assert_eq!(stage.pvolume["spec"]["storageClassName"], "", "the physical cluster has no class of that name");
    stage.create_claim();
    assert_eq!(stage.pclaim["spec"]["volumeName"], volume);
    assert_eq!(stage.pclaim["metadata"]["namespace"], "mount");
    assert_eq!(stage.why(&pod_key("web")), "");
    stage.bind();
    let copy = created(&stage.scene.call(&pod_key("web")));
    assert_eq!(copy["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], claim);
    for key in [claim_key(), volume_key()] {
        assert_eq!(stage.scene.plan(&key), Plan::Rest);
    }
}

#[test]
fn a_class_of_the_physical_cluster_is_kept() {
    let mut stage = Stage::new();
    stage.see_class("fast", true);
    stage.carry();
    assert_eq!(stage.pvolume["spec"]["storageClassName"], "fast");
    assert_eq!(stage.pclaim["spec"]["storageClassName"], "fast");
}

#[test]
fn law_12_a_pod_says_what_its_claim_lacks() {
    let mut stage = Stage::bare();
    stage.scene.see_vpod(&mounts("web"));
    stage.expect(PendingReason::ClaimMissing, "PersistentVolumeClaim demo/data does not exist");
    stage.vclaim["status"]["phase"] = json!("Pending");
    stage.see_claim();
    stage.expect(PendingReason::ClaimNotBound, "is not bound");
    stage.vclaim["status"]["phase"] = json!("Lost");
    stage.see_claim();
    stage.expect(PendingReason::ClaimLost, "has lost its volume");
    stage.vclaim["status"]["phase"] = json!("Bound");
    stage.see_claim();
    stage.expect(PendingReason::VolumeMissing, "PersistentVolume disk of");
    stage.vvolume["spec"]["claimRef"]["uid"] = json!("another");
    stage.see_volume();
    stage.expect(PendingReason::VolumeBoundElsewhere, "another claim");
    assert_eq!(stage.why(&volume_key()), "", "nothing is held for a claim that it is not bound to");
    stage.vvolume["spec"]["claimRef"]["uid"] = json!("vc");
    stage.see_volume();
    assert_eq!(stage.why(&pod_key("web")), "Map");
}

#[test]
fn law_12_a_volume_that_belongs_to_a_node_is_refused_unless_the_binding_is_privileged() {
    let mut stage = Stage::bare();
    stage.vvolume["spec"]["nfs"].take();
    stage.vvolume["spec"]["hostPath"] = json!({"path": "/data"});
    stage.see_claim();
    stage.see_volume();
    stage.scene.see_vpod(&mounts("web"));
    stage.expect(PendingReason::VolumeUnsupported, "podSecurity: privileged");
    assert_eq!(stage.why(&volume_key()), "");
    stage.scene.see_binding(json!({"podSecurity": "privileged"}));
    assert_eq!(stage.why(&volume_key()), "HoldVolume");
    stage.vvolume["spec"]["hostPath"].take();
    stage.vvolume["spec"]["local"] = json!({"path": "/disk"});
    stage.see_volume();
    stage.expect(PendingReason::VolumeUnsupported, "(local)");
    assert_eq!(stage.why(&volume_key()), "");
}

#[test]
fn the_claim_of_an_ephemeral_volume_must_have_been_made_for_the_pod() {
    let mut stage = Stage::bare();
    let mut pod = vpod("web");
    merge(&mut pod, json!({"spec": {"volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {}}}]}}));
    stage.vclaim["metadata"]["name"] = json!("web-data");
    stage.vvolume["spec"]["claimRef"]["name"] = json!("web-data");
    stage.see_claim();
    stage.see_volume();
    stage.scene.see_vpod(&pod);
    stage.expect(PendingReason::ClaimNotOwned, "demo/web-data was not created for this pod");
    let owner = |uid: &str| json!([{"kind": "Pod", "name": "web", "uid": uid, "controller": true}]);
    stage.vclaim["metadata"]["ownerReferences"] = owner("v-earlier");
    stage.see_claim();
    stage.expect(PendingReason::ClaimNotOwned, "web-data");
    stage.vclaim["metadata"]["ownerReferences"] = owner("v-web");
    stage.see_claim();
    assert_eq!(stage.why(&pod_key("web")), "Map");
}

#[test]
fn a_volume_that_another_binding_holds_is_left_to_it_until_it_lets_go() {
    let mut stage = Stage::bare();
    stage.vvolume["metadata"]["annotations"][keys::VOLUME_HOLDER] = json!("west/b-2");
    stage.see_claim();
    stage.see_volume();
    stage.scene.see_vpod(&mounts("web"));
    stage.expect(PendingReason::VolumeHeld, "binding west");
    assert_eq!(stage.why(&volume_key()), "");
    stage.vvolume["metadata"]["annotations"].take();
    stage.see_volume();
    assert_eq!(stage.why(&volume_key()), "HoldVolume");
}

#[test]
fn a_volume_that_many_may_write_needs_no_holder_and_one_that_is_only_mostly_shared_does() {
    for (modes, holds) in [
        (json!(["ReadWriteMany"]), false),
        (json!(["ReadOnlyMany"]), false),
        (json!(["ReadWriteOnce", "ReadWriteMany"]), false),
        (json!(["ReadWriteOnce", "ReadOnlyMany"]), true),
        (json!(["ReadWriteOncePod"]), true),
        (json!([]), true),
    ] {
        let mut stage = Stage::bare();
        stage.vvolume["spec"]["accessModes"] = modes.clone();
        stage.see_claim();
        stage.see_volume();
        stage.admit("web");
        assert_eq!(stage.why(&volume_key()), if holds { "HoldVolume" } else { "CreateVolume" }, "{modes}");
    }
}

#[test]
fn the_secrets_of_a_volume_come_before_it() {
    let mut stage = Stage::bare();
    stage.vvolume["spec"]["nfs"].take();
    stage.vvolume["spec"]["csi"] = json!({"driver": "d", "nodeStageSecretRef": {"name": "key", "namespace": "infra"}});
    stage.see_claim();
    stage.see_volume();
    stage.scene.see_vpod(&mounts("web"));
    stage.expect(PendingReason::DependentMissing, "Secret infra/key does not exist");
    stage.hold();
    assert_eq!(stage.why(&volume_key()), "");
    let kind = tapestry_domain::dependents::DependentKind::Secret;
    let text = stage.scene.stamp(json!({"metadata": {"name": "key", "namespace": "infra", "uid": "s"}}));
    stage.scene.see(Fact::Source(kind, Change::Put(Source::decode(&text, kind).unwrap().unwrap(), Epoch(1))));
    let id = crate::dependents::Id { kind, namespace: name("infra"), name: name("key") };
    assert_eq!(stage.why(&Key::Dependent(Arc::new(id))), "CreateDependent");
    assert_eq!(stage.why(&volume_key()), "");
}

#[test]
fn law_06_an_object_that_is_not_ours_is_left_alone_and_the_pod_says_so() {
    let mut stage = Stage::new();
    stage.hold();
    stage.scene.refuse(&volume_key(), Refusal::Exists);
    let look = stage.scene.call(&volume_key());
    assert_eq!((look.why, &look.verb), ("LookForVolume", &Verb::Peek));
    let foreign = json!({"metadata": {"name": copies().0, "uid": "x"}, "spec": {"claimRef": {"namespace": "shop", "name": "other"}}});
    let object = stage.scene.stamp(foreign);
    stage.scene.settle(&volume_key(), &look, Ok(Answer { object }));
    stage.expect(PendingReason::VolumeConflict, &copies().0);
    assert_eq!(stage.why(&volume_key()), "Wait");
    stage.scene.pass(Duration::from_mins(5));
    stage.scene.refuse(&volume_key(), Refusal::Gone);
    stage.create_volume();
}

#[test]
fn what_the_physical_cluster_refuses_is_told_in_its_words() {
    let mut stage = Stage::new();
    stage.hold();
    stage.scene.refuse(&volume_key(), refused("exceeded quota: disks"));
    stage.expect(PendingReason::VolumeRefused, "PersistentVolume disk: exceeded quota: disks");
    let mut stage = Stage::new();
    stage.hold();
    stage.create_volume();
    stage.scene.refuse(&claim_key(), refused("exceeded quota: claims"));
    stage.expect(PendingReason::VolumeRefused, "demo/data: exceeded quota: claims");
}

#[test]
fn a_copy_that_lost_its_volume_or_was_taken_is_told() {
    let mut stage = Stage::new();
    stage.carry();
    stage.pclaim["status"]["phase"] = json!("Lost");
    stage.see_pclaim();
    stage.expect(PendingReason::PhysicalClaimLost, &copies().1);
    stage.pclaim["status"]["phase"] = json!("Bound");
    stage.see_pclaim();
    stage.pvolume["spec"]["claimRef"] = json!({"namespace": "shop", "name": "stranger", "uid": "x"});
    stage.see_pvolume();
    stage.expect(PendingReason::PhysicalVolumeTaken, &copies().0);
    assert_eq!(stage.why(&volume_key()), "", "what another claim has is not taken away from it");
}

#[test]
fn law_11_rows_are_small() {
    assert!(size_of::<VClaim>() <= 144, "{}", size_of::<VClaim>());
    assert!(size_of::<VVolume>() <= 144, "{}", size_of::<VVolume>());
    assert!(size_of::<PClaim>() <= 176, "{}", size_of::<PClaim>());
    assert!(size_of::<PVolume>() <= 160, "{}", size_of::<PVolume>());
    assert!(size_of::<PClass>() <= 48, "{}", size_of::<PClass>());
    assert!(size_of::<super::ClaimCase>() <= 224, "{}", size_of::<super::ClaimCase>());
    assert!(size_of::<super::VolumeCase>() <= 128, "{}", size_of::<super::VolumeCase>());
}

#[test]
fn only_the_mount_namespace_and_volumes_are_written_below() {
    let mut stage = Stage::new();
    stage.hold();
    let volume = stage.scene.call(&volume_key()).target;
    assert_eq!((volume.side, volume.kind, volume.namespace), (Side::Physical, &kind::PERSISTENT_VOLUME, None));
    stage.create_volume();
    let claim = stage.scene.call(&claim_key()).target;
    assert_eq!((claim.side, claim.namespace), (Side::Physical, Some(name("mount"))));
}

/// A pod of this stage, as the virtual cluster has it when it is over.
fn finished(pod: &str) -> Value {
    let mut object = mounts(pod);
    object["status"]["phase"] = json!("Succeeded");
    object
}

fn row_of(scene: &mut Scene, object: &Value) -> VPod {
    let text = scene.stamp(object.clone());
    VPod::decode(&text, &scene.pair.home).unwrap().unwrap()
}
