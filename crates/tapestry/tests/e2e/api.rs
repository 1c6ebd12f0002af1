//! Our definitions on a real API server: what must be refused is, and says why; what must be accepted is.

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use serde_json::Value;

use crate::fixtures::{bare, install, own};
use crate::looks::{name, text};
use crate::timing::timed;

const BAD: &str = include_str!("../../../api/testdata/bad-objects.yaml");
const GOOD: &str = include_str!("../../../api/testdata/good-objects.yaml");

/// Sends an object as kubectl does: unknown fields are errors.
async fn send(client: &kube::Client, method: Method, object: &Value, dry: bool) -> Result<Result<Value, String>> {
    let plural = match text(&object["kind"]) {
        "ClusterBinding" => "clusterbindings",
        "ResourceLeasingPolicy" => "resourceleasingpolicies",
        other => bail!("no kind of ours: {other}"),
    };
    let mut path = format!("/apis/{}/{plural}", text(&object["apiVersion"]));
    if method != Method::POST {
        path = format!("{path}/{}", name(object));
    }
    let deletes = method == Method::DELETE;
    let dry = if dry { "&dryRun=All" } else { "" };
    let request = http::Request::builder()
        .method(method)
        .uri(format!("{path}?fieldValidation=Strict{dry}"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(if deletes { Vec::new() } else { serde_json::to_vec(object)? })?;
    match client.request::<Value>(request).await {
        Ok(object) => Ok(Ok(object)),
        Err(kube::Error::Api(status)) => Ok(Err(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// An update of `before` to what `then` says.
fn update(before: &Value, then: &Value) -> Value {
    let mut after = then.clone();
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    after
}

#[tokio::test]
async fn law_12_bad_objects_are_refused_with_a_message_and_good_ones_accepted() -> Result<()> {
    timed(async {
        let cluster = own(bare("api")).await?;
        install(&cluster).await?;
        let client = cluster.client()?;
        let bad: Vec<Value> = serde_saphyr::from_str(BAD)?;
        let good: Vec<Value> = serde_saphyr::from_str(GOOD)?;
        ensure!(bad.len() > 50 && good.len() > 5, "{} bad and {} good objects", bad.len(), good.len());
        let mut wrong = Vec::new();
        for case in &bad {
            let (why, says) = (text(&case["why"]), text(&case["says"]));
            ensure!(!says.is_empty(), "{why}: no expected message");
            let answer = if case["object"].is_object() {
                send(&client, Method::POST, &case["object"], true).await?
            } else {
                let first = send(&client, Method::POST, &case["first"], false).await?;
                let first = first.map_err(anyhow::Error::msg).with_context(|| format!("{why}: the first object"))?;
                let answer = send(&client, Method::PUT, &update(&first, &case["then"]), false).await?;
                send(&client, Method::DELETE, &case["first"], false).await?.map_err(anyhow::Error::msg)?;
                answer
            };
            match answer {
                Ok(_) => wrong.push(format!("{why}: accepted")),
                Err(message) if !message.contains(says) => wrong.push(format!("{why}: {message}, not {says}")),
                Err(_) => {}
            }
        }
        for case in &good {
            let why = text(&case["why"]);
            match send(&client, Method::POST, &case["object"], false).await? {
                Err(message) => wrong.push(format!("{why}: {message}")),
                Ok(before) if case["then"].is_object() => {
                    if let Err(message) = send(&client, Method::PUT, &update(&before, &case["then"]), false).await? {
                        wrong.push(format!("{why}, then: {message}"));
                    }
                }
                Ok(_) => {}
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
    .await
}
