//! The transformation of pods against real API servers: they know no field that is not classified, and they accept the copies.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tapestry_domain::podspec::fields;
use tapestry_testbed::builders::namespace;

use crate::fixtures::Fixture;
use crate::timing::timed;

#[tokio::test]
async fn every_field_of_a_pods_spec_that_the_api_server_knows_is_classified() -> Result<()> {
    timed(async {
        let client = Fixture::East.cluster().await?.client()?;
        let request = http::Request::get("/openapi/v3/api/v1").body(Vec::new())?;
        let document: Value = client.request(request).await?;
        let schemas = &document["components"]["schemas"];
        ensure!(schemas.is_object(), "no schemas in the OpenAPI document");
        let missing = fields::unclassified(schemas);
        ensure!(missing.is_empty(), "add to domain::podspec::fields, and run `make podspec`: {missing:#?}");
        Ok(())
    })
    .await
}

/// Copies that the domain's tests expect of pods as they are found in clusters.
fn copies() -> Result<Vec<(String, Value)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../domain/src/podspec/tests/pods");
    let mut copies = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".copy.json") {
            copies.push((path.display().to_string(), serde_json::from_str(&std::fs::read_to_string(&path)?)?));
        }
    }
    Ok(copies)
}

#[tokio::test]
async fn law_07_an_api_server_takes_the_copies_of_real_pods_whole() -> Result<()> {
    timed(async {
        let cluster = Fixture::Still.cluster().await?;
        let (client, objects) = (cluster.client()?, cluster.objects()?);
        objects.apply(&namespace("mount")).await?;
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "tapestry-pod", "namespace": "mount" } });
        objects.apply(&account).await?;
        let copies = copies()?;
        ensure!(copies.len() >= 15, "{} copies", copies.len());
        for (file, mut copy) in copies {
            let spec = copy["spec"].as_object_mut().context("no spec")?;
            // Classes are the physical cluster's own; this one has none.
            spec.remove("priorityClassName");
            spec.remove("runtimeClassName");
            let request = http::Request::builder()
                .method(Method::POST)
                .uri("/api/v1/namespaces/mount/pods?dryRun=All&fieldValidation=Strict")
                .header(CONTENT_TYPE, "application/json")
                .body(serde_json::to_vec(&copy)?)?;
            let taken: Value = client.request(request).await.with_context(|| file.clone())?;
            for field in ["volumes", "dnsConfig", "imagePullSecrets", "hostname", "tolerations"] {
                assert_eq!(taken["spec"][field], copy["spec"][field], "{file}: {field}");
            }
        }
        Ok(())
    })
    .await
}
