//! Copies whose back-pointer a user removed while no syncer ran, and what `tapestry drift` reports.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{Harness, event_reasons, pattern};
use crate::looks::{SOON, annotation, name, uid};

/// Removes the back-pointer of a copy; the rest of our marks stays.
async fn strip(harness: &Harness, ppod: &Value) -> Result<String> {
    let place = format!("{}/{}", harness.mount, name(ppod));
    let back = [keys::VIRTUAL_POD_NAMESPACE, keys::VIRTUAL_POD_NAME, keys::VIRTUAL_POD_UID];
    let nothing: Value =
        back.iter().map(|&key| (key.to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into();
    harness.physical_side.patch("v1/Pod", &place, &json!({"metadata": {"annotations": nothing}})).await?;
    Ok(place)
}

/// What drift finds, and with which exit code.
async fn drift(harness: &Harness) -> Result<(Option<i32>, String)> {
    let output = harness.tapestry(&["drift", &harness.name, "--settle", "1s"]).await?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), said))
}

#[tokio::test]
async fn a_copy_that_lost_its_back_pointer_is_drift_until_it_is_marked_again_or_collected() -> Result<()> {
    pattern("strays")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for pod in ["kept", "left"] {
                harness.virtual_side.create(&harness.bound(pod).build()).await?;
                harness.play_running(&harness.copy(pod).await?).await?;
                harness.runs(pod).await?;
            }
            let (kept, left) = (harness.copy("kept").await?, harness.copy("left").await?);
            assert_eq!(drift(harness).await?, (Some(0), "strays: no drift\n".to_owned()));

            harness.stop().await?;
            let (kept_at, left_at) = (strip(harness, &kept).await?, strip(harness, &left).await?);
            let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            harness.virtual_side.delete_with("v1/Pod", &harness.at("left"), &now).await?;
            let (code, said) = drift(harness).await?;
            ensure!(code == Some(1), "{said}");
            for found in
                [format!("orphan: {kept_at} "), format!("orphan: {left_at} "), "kept is Running and has no copy".into()]
            {
                ensure!(said.contains(&found), "{found:?} is not in {said}");
            }

            harness.start().await?;
            eventually("the one that a virtual pod recorded is marked again", SOON, async || {
                let seen = harness.physical_side.get("v1/Pod", &kept_at).await.map_err(|error| error.to_string())?;
                let seen = seen.ok_or("it is gone")?;
                let same = annotation(&seen, keys::VIRTUAL_POD_UID) == annotation(&kept, keys::VIRTUAL_POD_UID);
                if same && uid(&seen) == uid(&kept) { Ok(()) } else { Err(seen["metadata"].to_string()) }
            })
            .await?;
            harness.runs("kept").await?;
            eventually("the other one is reported", SOON, async || {
                let told = event_reasons(&harness.virtual_side, "default", &harness.name).await;
                let told = told.map_err(|error| error.to_string())?;
                if told.iter().any(|reason| reason == "OrphanFound") { Ok(()) } else { Err(format!("{told:?}")) }
            })
            .await?;
            let seen = harness.physical_side.get("v1/Pod", &left_at).await?;
            ensure!(
                seen.is_some_and(|seen| seen["metadata"]["deletionTimestamp"].is_null()),
                "reported, and not yet touched"
            );

            harness.skip(Duration::from_mins(11));
            harness.play_removed(&harness.physical_leaving(&left).await?).await?;
            eventually("nothing drifts", SOON, async || {
                match drift(harness).await.map_err(|error| error.to_string())? {
                    (Some(0), _) => Ok(()),
                    (_, said) => Err(said),
                }
            })
            .await?;

            // If the clusters cannot be read, the exit code is neither 0 nor 1.
            let output = harness.tapestry(&["drift", "missing"]).await?;
            let told = String::from_utf8(output.stderr)?;
            ensure!(output.status.code() == Some(2) && told.contains("hint:"), "{told}");
            Ok(())
        })
        .await
}
