//! Copies that somebody took the back-pointer from while no syncer ran, and what `tapestry drift` says of them.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::eventually;

use crate::grounds::Ground;
use crate::looks::{SOON, annotation, name, uid};
use crate::loom::{Loom, event_reasons, pattern};

/// Takes from a copy what says whose it is; the rest of our marks stays.
async fn strip(loom: &Loom, ppod: &Value) -> Result<String> {
    let place = format!("{}/{}", loom.mount, name(ppod));
    let back = [keys::VIRTUAL_POD_NAMESPACE, keys::VIRTUAL_POD_NAME, keys::VIRTUAL_POD_UID];
    let nothing: Value =
        back.iter().map(|&key| (key.to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into();
    loom.physical_side.patch("v1/Pod", &place, &json!({"metadata": {"annotations": nothing}})).await?;
    Ok(place)
}

/// What drift finds, and with which exit code.
async fn drift(loom: &Loom) -> Result<(Option<i32>, String)> {
    let output = loom.tapestry(&["drift", &loom.name, "--settle", "1s"]).await?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), said))
}

#[tokio::test]
async fn a_copy_that_lost_its_back_pointer_is_drift_until_it_is_marked_again_or_collected() -> Result<()> {
    pattern("strays")
        .on(Ground::Still)
        .run(async |loom| {
            loom.vnode_ready(loom.node()).await?;
            for pod in ["kept", "left"] {
                loom.virtual_side.create(&loom.bound(pod).build()).await?;
                loom.play_running(&loom.copy(pod).await?).await?;
                loom.runs(pod).await?;
            }
            let (kept, left) = (loom.copy("kept").await?, loom.copy("left").await?);
            assert_eq!(drift(loom).await?, (Some(0), "strays: everything is as it must be\n".to_owned()));

            loom.stop().await?;
            let (kept_at, left_at) = (strip(loom, &kept).await?, strip(loom, &left).await?);
            let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            loom.virtual_side.delete_with("v1/Pod", &loom.at("left"), &now).await?;
            let (code, said) = drift(loom).await?;
            ensure!(code == Some(1), "{said}");
            for found in
                [format!("orphan: {kept_at} "), format!("orphan: {left_at} "), "kept is Running and has no copy".into()]
            {
                ensure!(said.contains(&found), "{found:?} is not in {said}");
            }

            loom.start().await?;
            eventually("the one that a virtual pod recorded is marked again", SOON, async || {
                let seen = loom.physical_side.get("v1/Pod", &kept_at).await.map_err(|error| error.to_string())?;
                let seen = seen.ok_or("it is gone")?;
                let same = annotation(&seen, keys::VIRTUAL_POD_UID) == annotation(&kept, keys::VIRTUAL_POD_UID);
                if same && uid(&seen) == uid(&kept) { Ok(()) } else { Err(seen["metadata"].to_string()) }
            })
            .await?;
            loom.runs("kept").await?;
            eventually("the other one is told", SOON, async || {
                let told = event_reasons(&loom.virtual_side, "default", &loom.name).await;
                let told = told.map_err(|error| error.to_string())?;
                if told.iter().any(|reason| reason == "OrphanFound") { Ok(()) } else { Err(format!("{told:?}")) }
            })
            .await?;
            let seen = loom.physical_side.get("v1/Pod", &left_at).await?;
            ensure!(
                seen.is_some_and(|seen| seen["metadata"]["deletionTimestamp"].is_null()),
                "told, and not yet touched"
            );

            loom.skip(Duration::from_mins(11));
            loom.play_removed(&loom.physical_leaving(&left).await?).await?;
            eventually("nothing drifts", SOON, async || {
                match drift(loom).await.map_err(|error| error.to_string())? {
                    (Some(0), _) => Ok(()),
                    (_, said) => Err(said),
                }
            })
            .await?;

            // Where nothing can be looked at, that is neither yes nor no.
            let output = loom.tapestry(&["drift", "nobody"]).await?;
            let told = String::from_utf8(output.stderr)?;
            ensure!(output.status.code() == Some(2) && told.contains("hint:"), "{told}");
            Ok(())
        })
        .await
}
