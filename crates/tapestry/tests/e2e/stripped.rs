//! Virtual nodes that a user strips of our labels and annotations, or gives to another binding: they get them back, are never
//! created twice or taken over, and their pods keep running.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_domain::names::origin_hash;
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{BINDING, Harness, pattern, wind_up};
use crate::looks::{SOON, condition, label, phase, text, uid};
use crate::timing::timed;

/// `kubectl label node NAME key- …` and `kubectl annotate node NAME key- …` for every key there is, in one request.
pub(crate) async fn strip(harness: &Harness) -> Result<()> {
    let vnode = harness.virtual_side.get("v1/Node", &harness.vnode()).await?.context("no virtual node")?;
    let none = |field: &str| -> Map<String, Value> {
        let keys = vnode["metadata"][field].as_object().into_iter().flatten();
        keys.map(|(key, _)| (key.clone(), Value::Null)).collect()
    };
    let bare = json!({ "metadata": { "labels": none("labels"), "annotations": none("annotations") } });
    harness.virtual_side.patch("v1/Node", &harness.vnode(), &bare).await?;
    Ok(())
}

/// Waits until the virtual node has our marks again; it must be the same one, and the only one for its physical node.
pub(crate) async fn mended(harness: &Harness, before: &Value) -> Result<()> {
    let says = |vnode: &Value| {
        label(vnode, keys::ORIGIN) == label(before, keys::ORIGIN)
            && vnode["metadata"]["annotations"][keys::PHYSICAL_NODE_UID].is_string()
            && vnode["metadata"]["annotations"][keys::EXPECTED_METADATA].is_string()
    };
    let vnode = harness.vnode_when(harness.node(), "is mended", says).await?;
    ensure!(uid(&vnode) == uid(before), "another node: {}", vnode["metadata"]);
    let all = harness.virtual_side.list("v1/Node", "").await?;
    let same = all.iter().filter(|node| node["spec"]["providerID"] == before["spec"]["providerID"]);
    ensure!(same.count() == 1, "lent twice");
    Ok(())
}

/// Runs a pod; returns its virtual node, the pod, and its copy.
async fn web_runs(harness: &Harness) -> Result<[Value; 3]> {
    let vnode = harness.vnode_ready(harness.node()).await?;
    harness.virtual_side.create(&harness.bound("web").build()).await?;
    harness.play_running(&harness.copy("web").await?).await?;
    let (vpod, copy) = harness.runs("web").await?;
    Ok([vnode, vpod, copy])
}

/// The pod and its copy are the same as before and not being deleted.
async fn runs_on(harness: &Harness, vpod: &Value, copy: &Value) -> Result<()> {
    for (now, before) in [(harness.vpod("web").await?, vpod), (harness.copy("web").await?, copy)] {
        ensure!(uid(&now) == uid(before) && phase(&now) == "Running", "{now}");
        ensure!(now["metadata"]["deletionTimestamp"].is_null(), "{now}");
    }
    Ok(())
}

#[tokio::test]
async fn law_09_a_virtual_node_stripped_of_all_our_marks_gets_them_back_is_never_doubled_and_its_pods_keep_running()
-> Result<()> {
    pattern("bare-vnode")
        .on(Fixture::Still)
        .run(async |harness| {
            let [vnode, vpod, copy] = web_runs(harness).await?;

            strip(harness).await?;
            mended(harness, &vnode).await?;
            for _ in 0..10 {
                strip(harness).await?;
            }
            mended(harness, &vnode).await?;
            runs_on(harness, &vpod, &copy).await?;
            // Pods that are bound to it are admitted as before.
            harness.virtual_side.create(&harness.bound("next").build()).await?;
            harness.copy("next").await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_a_virtual_node_stripped_while_no_syncer_ran_is_found_by_its_lease() -> Result<()> {
    pattern("stripped-away")
        .on(Fixture::Still)
        .run(async |harness| {
            let [vnode, vpod, copy] = web_runs(harness).await?;
            let lease = format!("kube-node-lease/{}", harness.vnode());
            eventually("the node has its Lease", SOON, async || {
                let seen = harness.virtual_side.get("coordination.k8s.io/v1/Lease", &lease).await;
                seen.map_err(|error| error.to_string())?.map(drop).ok_or_else(|| "none".to_owned())
            })
            .await?;

            harness.stop().await?;
            strip(harness).await?;
            harness.start().await?;
            mended(harness, &vnode).await?;
            runs_on(harness, &vpod, &copy).await
        })
        .await
}

/// Gives the virtual node the label by which the syncer of another binding finds its nodes, as `kubectl label` would.
async fn label_for(harness: &Harness, other: &Value) -> Result<()> {
    let origin = origin_hash(text(&other["status"]["virtualClusterUID"]), uid(other));
    let labels = json!({ "metadata": { "labels": { keys::ORIGIN: origin } } });
    harness.virtual_side.patch("v1/Node", &harness.vnode(), &labels).await?;
    Ok(())
}

#[tokio::test]
async fn law_06_a_binding_with_the_cluster_id_of_another_takes_no_node_of_it_even_when_a_user_labels_it() -> Result<()>
{
    // Boxed: it holds two harnesses.
    Box::pin(timed(async {
        let twin = pattern("twin-b").binding(|binding| binding.cluster_id("twin-a")).nodes_of("twin-a");
        let (mut owner, mut twin) = tokio::try_join!(pattern("twin-a").set_up(), twin.set_up())?;
        let test = async {
            owner.start().await?;
            let vnode = owner.vnode_ready(owner.node()).await?;
            owner.virtual_side.create(&owner.bound("web").build()).await?;
            let (vpod, copy) = owner.runs("web").await?;

            twin.start().await?;
            let binding = eventually("the other binding says why it lends nothing", SOON, async || {
                let binding = twin.binding().await.map_err(|error| error.to_string())?;
                let ready = condition(&binding, "Ready");
                let says =
                    ready["reason"] == "ClusterIdInUse" && text(&ready["message"]).contains("ClusterBinding twin-a");
                if says { Ok(binding.clone()) } else { Err(ready.to_string()) }
            })
            .await?;

            // A user labels it all the same, while both syncers work, and while only that of the other binding does.
            for _ in 0..5 {
                label_for(&owner, &binding).await?;
                mended(&owner, &vnode).await?;
            }
            owner.stop().await?;
            label_for(&owner, &binding).await?;
            twin.stop().await?;
            twin.start().await?;
            let seen = owner.virtual_side.get("v1/Node", &owner.vnode()).await?.context("no virtual node")?;
            ensure!(label(&seen, keys::CLUSTER_BINDING) == "twin-a", "taken over: {}", seen["metadata"]);
            owner.start().await?;
            mended(&owner, &vnode).await?;

            twin.virtual_side.delete(BINDING, &twin.name).await?;
            eventually("the other binding is gone", SOON, async || {
                match twin.virtual_side.get(BINDING, &twin.name).await {
                    Ok(None) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await?;
            mended(&owner, &vnode).await?;
            runs_on(&owner, &vpod, &copy).await
        };
        let ended = test.await;
        wind_up(ended, [owner, twin]).await
    }))
    .await
}
