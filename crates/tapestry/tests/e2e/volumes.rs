//! PersistentVolumeClaims on real clusters: bound in both before the pod, held by one binding at a time, and no data goes with them.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_domain::names;
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{BINDING, Harness, event_reasons, pattern, wind_up};
use crate::looks::{SOON, annotation, condition};

const VOLUME: &str = "v1/PersistentVolume";
const CLAIM: &str = "v1/PersistentVolumeClaim";

/// A volume of the virtual cluster for a claim of the test's namespace, on this backend.
fn volume(harness: &Harness, claim: &str, backend: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("{}-{claim}", harness.name)},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "", "claimRef": {"namespace": harness.name, "name": claim},
        },
    });
    for (field, value) in backend.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    object
}

fn nfs() -> Value {
    json!({"nfs": {"server": "files.example.com", "path": "/data"}})
}

fn claim(harness: &Harness, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": harness.name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "",
            "volumeName": format!("{}-{name}", harness.name),
        },
    })
}

fn mounts(harness: &Harness, pod: &str, claim: &str) -> Value {
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": claim}}]);
    harness.bound(pod).with("/spec/volumes", volumes).build()
}

async fn origin_hash(harness: &Harness) -> Result<String> {
    let origin = harness.origin().await?;
    let (cluster, binding) = origin.split_once('/').context("an origin has two parts")?;
    Ok(names::origin_hash(cluster, binding))
}

/// The copies of a claim of the test's namespace and of its volume: `(volume, claim)`.
async fn copies(harness: &Harness, claim: &str) -> Result<(Option<Value>, Option<Value>)> {
    let origin = origin_hash(harness).await?;
    let volume = names::volume_name(&origin, &format!("{}-{claim}", harness.name));
    let copy = format!("{}/{}", harness.mount, names::claim_name(&origin, &harness.name, claim));
    Ok((harness.physical_side.get(VOLUME, &volume).await?, harness.physical_side.get(CLAIM, &copy).await?))
}

async fn until(
    harness: &Harness,
    claim: &str,
    what: &str,
    holds: impl Fn(Option<&Value>, Option<&Value>) -> bool,
) -> Result<()> {
    eventually(&format!("the copies of {claim} {what}"), SOON, async || {
        let (volume, copy) = copies(harness, claim).await.map_err(|error| error.to_string())?;
        if holds(volume.as_ref(), copy.as_ref()) { Ok(()) } else { Err(format!("{volume:?}\n{copy:?}")) }
    })
    .await
}

/// Who holds the volume of a claim.
async fn holder(harness: &Harness, claim: &str) -> Result<String> {
    let volume = harness.virtual_side.get(VOLUME, &format!("{}-{claim}", harness.name)).await?;
    Ok(annotation(&volume.context("no volume")?, keys::VOLUME_HOLDER).to_owned())
}

async fn released(harness: &Harness, claim: &str) -> Result<()> {
    eventually(&format!("the volume of {claim} is released"), SOON, async || {
        let holder = holder(harness, claim).await.map_err(|error| error.to_string())?;
        if holder.is_empty() { Ok(()) } else { Err(holder) }
    })
    .await
}

async fn told(harness: &Harness, pod: &str, reason: &str) -> Result<()> {
    let says = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["reason"] == reason;
    harness.vpod_when(pod, &format!("says {reason}"), says).await.map(drop)
}

/// Tests that fail must not leave cluster-wide objects to the next run.
async fn discard(harness: &Harness, claims: &[&str]) {
    let free = json!({"metadata": {"finalizers": null}});
    for claim in claims {
        let name = format!("{}-{claim}", harness.name);
        let _ = harness.virtual_side.delete(VOLUME, &name).await;
        let _ = harness.virtual_side.patch(VOLUME, &name, &free).await;
    }
}

#[tokio::test]
async fn a_pod_gets_its_claim_and_the_copies_go_with_the_last_pod_but_not_the_data() -> Result<()> {
    pattern("disks")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&volume(harness, "data", &nfs())).await?;
            harness.virtual_side.create(&claim(harness, "data")).await?;
            harness.virtual_side.create(&mounts(harness, "web", "data")).await?;
            let (_, ppod) = harness.runs("web").await?;
            let (pvolume, pclaim) = copies(harness, "data").await?;
            let (pvolume, pclaim) = (pvolume.context("no volume")?, pclaim.context("no claim")?);
            assert_eq!(ppod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], pclaim["metadata"]["name"]);
            assert_eq!(pvolume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
            assert_eq!(pvolume["spec"]["claimRef"]["uid"], pclaim["metadata"]["uid"]);
            assert_eq!((&pvolume["status"]["phase"], &pclaim["status"]["phase"]), (&json!("Bound"), &json!("Bound")));
            ensure!(holder(harness, "data").await?.starts_with("disks/"), "not held");
            harness.at_peace(&[], SOON).await?;

            // An owner who wants the data to go with the claim.
            let delete = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
            let name = pvolume["metadata"]["name"].as_str().unwrap_or_default();
            harness.physical_side.patch(VOLUME, name, &delete).await?;
            let retains = |volume: Option<&Value>, _: Option<&Value>| {
                volume.is_some_and(|volume| volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain")
            };
            until(harness, "data", "retain the data again", retains).await?;

            harness.virtual_side.delete("v1/Pod", &harness.at("web")).await?;
            harness.gone("web").await?;
            until(harness, "data", "are gone", |volume, claim| volume.is_none() && claim.is_none()).await?;
            released(harness, "data").await?;
            let vclaim = harness.virtual_side.get(CLAIM, &harness.at("data")).await?.context("the claim is gone")?;
            assert_eq!(vclaim["status"]["phase"], "Bound");
            harness.at_peace(&[], SOON).await?;
            discard(harness, &["data"]).await;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_12_a_pod_says_what_its_claim_lacks_and_starts_when_it_is_there() -> Result<()> {
    pattern("lacking")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for name in ["data", "dir", "local"] {
                harness.virtual_side.create(&mounts(harness, name, name)).await?;
                told(harness, name, "ClaimMissing").await?;
                harness.virtual_side.create(&claim(harness, name)).await?;
                told(harness, name, "ClaimNotBound").await?;
            }
            let dir = json!({"hostPath": {"path": "/data"}});
            harness.virtual_side.create(&volume(harness, "dir", &dir)).await?;
            told(harness, "dir", "VolumeUnsupported").await?;
            let term =
                json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n"]}]});
            let affinity = json!({"required": {"nodeSelectorTerms": [term]}});
            let local = json!({"local": {"path": "/disk"}, "nodeAffinity": affinity});
            harness.virtual_side.create(&volume(harness, "local", &local)).await?;
            told(harness, "local", "VolumeUnsupported").await?;
            harness.virtual_side.create(&volume(harness, "data", &nfs())).await?;
            harness.runs("data").await?;
            let reasons = event_reasons(&harness.virtual_side, &harness.name, "dir").await?;
            ensure!(reasons.contains(&"VolumeUnsupported".to_owned()), "{reasons:?}");
            discard(harness, &["data", "dir", "local"]).await;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn the_claim_of_a_generic_ephemeral_volume_is_carried() -> Result<()> {
    pattern("ephemerals")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&volume(harness, "web-scratch", &nfs())).await?;
            let spec = claim(harness, "web-scratch")["spec"].take();
            let volumes = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]);
            harness.virtual_side.create(&harness.bound("web").with("/spec/volumes", volumes).build()).await?;
            harness.runs("web").await?;
            harness.virtual_side.delete("v1/Pod", &harness.at("web")).await?;
            harness.gone("web").await?;
            until(harness, "web-scratch", "are gone", |volume, claim| volume.is_none() && claim.is_none()).await?;
            discard(harness, &["web-scratch"]).await;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_06_a_stranger_with_the_name_of_a_copy_is_not_touched() -> Result<()> {
    pattern("squatters")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let name = names::volume_name(&origin_hash(harness).await?, "squatters-data");
            let mut stranger = volume(harness, "data", &nfs());
            stranger["metadata"]["name"] = json!(name);
            stranger["spec"]["claimRef"] = json!({"namespace": "default", "name": "theirs"});
            harness.physical_side.create(&stranger).await?;
            harness.virtual_side.create(&volume(harness, "data", &nfs())).await?;
            harness.virtual_side.create(&claim(harness, "data")).await?;
            harness.virtual_side.create(&mounts(harness, "web", "data")).await?;
            told(harness, "web", "VolumeConflict").await?;
            let there = harness.physical_side.get(VOLUME, &name).await?.context("the stranger is gone")?;
            assert_eq!(there["spec"]["claimRef"]["name"], "theirs");
            harness.physical_side.delete(VOLUME, &name).await?;
            discard(harness, &["data"]).await;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_volume_is_handed_over_from_one_physical_cluster_to_the_other_with_one_holder_at_a_time() -> Result<()> {
    let mut east = pattern("handing").set_up().await?;
    let mut west = pattern("taking").on(Fixture::West).set_up().await?;
    let test = async {
        east.start().await?;
        west.start().await?;
        east.vnode_ready(east.node()).await?;
        west.vnode_ready(west.node()).await?;
        east.virtual_side.create(&volume(&east, "data", &nfs())).await?;
        east.virtual_side.create(&claim(&east, "data")).await?;
        east.virtual_side.create(&mounts(&east, "first", "data")).await?;
        east.runs("first").await?;
        let mut second = mounts(&west, "second", "data");
        second["metadata"]["namespace"] = json!(east.name);
        west.virtual_side.create(&second).await?;
        told(&east, "second", "VolumeHeld").await?;
        ensure!(holder(&east, "data").await?.starts_with("handing/"), "held by another");
        east.virtual_side.delete("v1/Pod", &east.at("first")).await?;
        let runs = |vpod: &Value| vpod["status"]["phase"] == "Running";
        east.vpod_when("second", "runs", runs).await?;
        ensure!(holder(&east, "data").await?.starts_with("taking/"), "held by another");
        until(&east, "data", "are gone", |volume, claim| volume.is_none() && claim.is_none()).await?;
        discard(&east, &["data"]).await;
        Ok(())
    }
    .await;
    wind_up(test, [east, west]).await
}

#[tokio::test]
async fn a_binding_goes_after_its_volumes_and_leaves_the_virtual_ones() -> Result<()> {
    pattern("parting")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&volume(harness, "data", &nfs())).await?;
            harness.virtual_side.create(&claim(harness, "data")).await?;
            harness.virtual_side.create(&mounts(harness, "web", "data")).await?;
            harness.runs("web").await?;
            let origin = origin_hash(harness).await?;
            harness.virtual_side.delete(BINDING, &harness.name).await?;
            eventually("the binding is gone", SOON, async || {
                match harness.virtual_side.get(BINDING, &harness.name).await {
                    Ok(None) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await?;
            let copy = harness.physical_side.get(VOLUME, &names::volume_name(&origin, "parting-data")).await?;
            ensure!(copy.is_none(), "{copy:?}");
            ensure!(holder(harness, "data").await?.is_empty(), "still held");
            let vclaim = harness.virtual_side.get(CLAIM, &harness.at("data")).await?.context("the claim is gone")?;
            assert_eq!(vclaim["status"]["phase"], "Bound");
            discard(harness, &["data"]).await;
            Ok(())
        })
        .await
}
