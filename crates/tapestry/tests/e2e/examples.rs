//! The manifests in `examples/`, as a user applies them: every pod runs with all it needs, and everything goes with it.

use anyhow::{Context as _, Result, ensure};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::eventually;

use crate::harness::{Harness, TEST, pattern};
use crate::looks::{LATE, SOON, annotation, items, name, phase, text};

/// Creates the objects of a manifest in the test's namespace; pods go to the test's node. Classes of claims get the test's name:
/// tests share the virtual cluster, and any claim may take a volume of its class.
async fn apply(harness: &Harness, manifest: &str) -> Result<()> {
    for document in manifest.split("---\n") {
        let mut object: Value = serde_saphyr::from_str(document)?;
        object["metadata"]["namespace"] = json!(harness.name);
        if let Some(template) = object.pointer_mut("/spec/template/spec") {
            template["nodeSelector"] = json!({TEST: harness.name});
        }
        for path in ["/spec/storageClassName", "/spec/volumeClaimTemplates/0/spec/storageClassName"] {
            if let Some(class) = object.pointer_mut(path) {
                *class = json!(harness.name);
            }
        }
        if let Some(subject) = object.pointer_mut("/subjects/0") {
            subject["namespace"] = json!(harness.name);
        }
        harness.virtual_side.create(&object).await.with_context(|| format!("{} {}", object["kind"], name(&object)))?;
    }
    Ok(())
}

/// A volume of the test's class that the claims of a manifest bind to.
async fn offer_volume(harness: &Harness, mode: &str) -> Result<()> {
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("example-{}", harness.name)},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": [mode], "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": harness.name, "nfs": {"server": "files.example.com", "path": "/data"},
        },
    });
    harness.virtual_side.create(&volume).await?;
    Ok(())
}

/// Cluster-wide, so no namespace takes it along.
async fn take_back_volume(harness: &Harness) -> Result<()> {
    harness.virtual_side.delete("v1/PersistentVolume", &format!("example-{}", harness.name)).await?;
    Ok(())
}

/// Waits until so many pods of the example run; returns their copies.
async fn run(harness: &Harness, count: usize) -> Result<Vec<Value>> {
    eventually(&format!("{count} pods run"), LATE, async || {
        let pods = harness.virtual_side.list("v1/Pod", &harness.name).await.map_err(|error| error.to_string())?;
        let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
        if run == count { Ok(()) } else { Err(format!("{run} of {pods:?}")) }
    })
    .await?;
    harness.ppods().await
}

/// Deletes what made the pods, and waits until nothing of ours is left in the mount namespace.
async fn leave(harness: &Harness, kind: &str, object: &str) -> Result<()> {
    // Without this a Job would leave its pods behind.
    harness.virtual_side.delete_with(kind, &harness.at(object), &DeleteParams::background()).await?;
    for kind in ["v1/Pod", "v1/ConfigMap", "v1/Secret", "v1/PersistentVolumeClaim"] {
        eventually(&format!("no {kind} of ours is left"), LATE, async || {
            let mut all = harness.physical_side.list(kind, &harness.mount).await.map_err(|error| error.to_string())?;
            all.retain(|object| !annotation(object, keys::ORIGIN).is_empty());
            let left: Vec<_> = all.iter().map(name).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await?;
    }
    harness.at_peace(&[], SOON).await
}

fn carries_services(
    binding: tapestry_testbed::builders::Binding,
    namespace: &str,
) -> tapestry_testbed::builders::Binding {
    binding.with("/spec/serviceNamespaces", json!([namespace]))
}

#[tokio::test]
async fn the_database_runs_with_its_secret_service_and_volume() -> Result<()> {
    pattern("ex-database")
        .binding(|binding| carries_services(binding, "ex-database"))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            offer_volume(harness, "ReadWriteOnce").await?;
            apply(harness, include_str!("../../../../examples/database.yaml")).await?;
            let copies = run(harness, 1).await?;
            let volumes = items(&copies[0]["spec"]["volumes"]);
            let claim = volumes.iter().find_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
            let place = format!("{}/{}", harness.mount, claim.context("the copy has no claim")?);
            let claim = harness.physical_side.get("v1/PersistentVolumeClaim", &place).await?.context("no claim")?;
            assert_eq!(claim["status"]["phase"], "Bound");
            let service = harness.physical_side.get("v1/Service", &format!("{}/database", harness.mount)).await?;
            assert_eq!(service.context("no Service")?["spec"]["clusterIP"], "None");
            leave(harness, "apps/v1/StatefulSet", "database").await?;
            take_back_volume(harness).await
        })
        .await
}

#[tokio::test]
async fn the_web_application_runs_with_its_settings_files_and_service() -> Result<()> {
    pattern("ex-web")
        .binding(|binding| carries_services(binding, "ex-web"))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            offer_volume(harness, "ReadWriteMany").await?;
            apply(harness, include_str!("../../../../examples/web.yaml")).await?;
            let copies = run(harness, 2).await?;
            let claims: Vec<_> =
                copies.iter().map(|copy| &copy["spec"]["volumes"][1]["persistentVolumeClaim"]).collect();
            ensure!(claims[0] == claims[1] && !claims[0].is_null(), "they do not share a volume: {claims:?}");
            eventually("the Service leads to both pods", SOON, async || {
                let slices = harness.physical_side.list("discovery.k8s.io/v1/EndpointSlice", &harness.mount).await;
                let slices = slices.map_err(|error| error.to_string())?;
                let found: usize = slices.iter().map(|slice| items(&slice["endpoints"]).len()).sum();
                if found == 2 { Ok(()) } else { Err(format!("{slices:?}")) }
            })
            .await?;
            leave(harness, "apps/v1/Deployment", "web").await?;
            take_back_volume(harness).await
        })
        .await
}

#[tokio::test]
async fn the_ci_runner_has_the_address_of_the_virtual_api_server_and_two_tokens() -> Result<()> {
    pattern("ex-runner")
        .binding(|binding| binding.with("/spec/virtualAPIServer", json!({"host": "10.9.8.7", "port": 6443})))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            apply(harness, include_str!("../../../../examples/ci-runner.yaml")).await?;
            let copies = run(harness, 1).await?;
            let sources =
                items(&copies[0]["spec"]["volumes"]).iter().flat_map(|volume| items(&volume["projected"]["sources"]));
            let secrets: Vec<_> = sources.filter_map(|source| source["secret"]["name"].as_str()).collect();
            ensure!(secrets.len() == 2 && secrets[0] == secrets[1], "{secrets:?}");
            let place = format!("{}/{}", harness.mount, secrets[0]);
            let secret = harness.physical_side.get("v1/Secret", &place).await?.context("no Secret with tokens")?;
            assert_eq!(secret["data"].as_object().map(serde_json::Map::len), Some(2));
            let env = items(&copies[0]["spec"]["containers"][0]["env"]);
            ensure!(env.iter().any(|env| text(&env["value"]) == "10.9.8.7"), "{env:?}");
            leave(harness, "apps/v1/Deployment", "runner").await
        })
        .await
}

#[tokio::test]
async fn the_batch_job_completes_with_a_shared_volume() -> Result<()> {
    pattern("ex-batch")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            offer_volume(harness, "ReadWriteMany").await?;
            apply(harness, include_str!("../../../../examples/batch.yaml")).await?;
            for copy in run(harness, 3).await? {
                harness.play_ended(&copy, 0).await?;
            }
            eventually("the Job is complete", LATE, async || {
                let job = harness.virtual_side.get("batch/v1/Job", &harness.at("batch")).await;
                let job = job.map_err(|error| error.to_string())?.unwrap_or_default();
                if job["status"]["succeeded"] == 3 { Ok(()) } else { Err(job["status"].to_string()) }
            })
            .await?;
            leave(harness, "batch/v1/Job", "batch").await?;
            take_back_volume(harness).await
        })
        .await
}
