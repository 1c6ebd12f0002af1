//! Objects that the syncer must not touch: forged mappings, foreign pods in the mount namespace, other bindings on the same
//! clusters.

use anyhow::{Context as _, Result, ensure};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::{node, pod};
use tapestry_testbed::eventually;

use crate::fixtures::{Fixture, Home};
use crate::harness::{Harness, pattern};
use crate::looks::{SOON, annotation, condition, label, name, phase, text, uid};
use crate::timing::timed;

/// UID and version of a physical object: any write changes the second, a recreation both.
async fn version(harness: &Harness, place: &str) -> Result<(String, String)> {
    let object = harness.physical_side.get("v1/Pod", place).await?.with_context(|| format!("{place} is gone"))?;
    Ok((uid(&object).to_owned(), text(&object["metadata"]["resourceVersion"]).to_owned()))
}

/// Annotations with which a tenant claims a physical pod.
fn claim(pod: tapestry_testbed::builders::Pod, namespace: &str, name: &str, uid: &str) -> Value {
    pod.annotation(keys::PHYSICAL_POD_NAMESPACE, namespace)
        .annotation(keys::PHYSICAL_POD_NAME, name)
        .annotation(keys::PHYSICAL_POD_UID, uid)
        .build()
}

#[tokio::test]
async fn law_05_forged_mappings_never_touch_what_they_name() -> Result<()> {
    pattern("forged")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            // A foreign pod in the mount namespace, one in another namespace, and another tenant's copy.
            let stranger = pod("stranger").namespace(&harness.mount).on(harness.node()).build();
            let stranger = harness.physical_side.create(&stranger).await?;
            let elsewhere = pod("forged-victim").namespace("kube-system").on(harness.node()).build();
            let elsewhere = harness.physical_side.create(&elsewhere).await?;
            harness.virtual_side.create(&harness.bound("tenant").build()).await?;
            let tenant = harness.copy("tenant").await?;
            harness.play_running(&tenant).await?;
            let (tenant_vpod, _) = harness.runs("tenant").await?;
            let victims = [
                format!("{}/stranger", harness.mount),
                "kube-system/forged-victim".to_owned(),
                format!("{}/{}", harness.mount, name(&tenant)),
            ];
            let mut before = Vec::new();
            for victim in &victims {
                before.push(version(harness, victim).await?);
            }

            let mount = harness.mount.as_str();
            let forgeries = [
                claim(harness.bound("at-stranger"), mount, "stranger", uid(&stranger)),
                claim(harness.bound("at-stranger-new"), mount, "stranger", ""),
                claim(harness.bound("at-elsewhere"), "kube-system", "forged-victim", uid(&elsewhere)),
                claim(harness.bound("at-elsewhere-new"), "kube-system", "forged-victim", ""),
                claim(harness.bound("at-tenant"), mount, name(&tenant), uid(&tenant)),
                claim(harness.bound("at-tenant-new"), mount, name(&tenant), ""),
                claim(
                    harness.bound("climbing"),
                    "..",
                    "../../../api/v1/namespaces/kube-system/pods/forged-victim",
                    uid(&elsewhere),
                ),
                claim(harness.bound("climbing-new"), mount, "../../kube-system/pods/forged-victim", ""),
                claim(harness.bound("empty"), "", "", ""),
                // A key of ours that the copy must not inherit.
                harness
                    .bound("labelled")
                    .label(keys::ORIGIN, "forged")
                    .annotation(keys::VIRTUAL_POD_UID, uid(&tenant_vpod))
                    .build(),
            ];
            for forgery in &forgeries {
                harness.virtual_side.create(forgery).await?;
            }
            // Pods with a mapping that cannot be ours, or cannot be parsed, are copied normally.
            for carried in ["at-stranger-new", "at-tenant-new", "at-elsewhere-new", "climbing-new", "empty", "labelled"]
            {
                let copy = harness.copy(carried).await?;
                let vpod = harness.vpod(carried).await?;
                assert_eq!(annotation(&copy, keys::VIRTUAL_POD_UID), uid(&vpod), "{carried}");
                assert_eq!(label(&copy, keys::ORIGIN), label(&tenant, keys::ORIGIN), "{carried}");
            }
            // If the syncer trusted the forgeries, deleting them would delete what they claim.
            for forgery in &forgeries {
                harness.virtual_side.delete("v1/Pod", &harness.at(name(forgery))).await?;
            }
            for forgery in &forgeries {
                let pod = name(forgery);
                eventually(&format!("{pod} is gone"), SOON, async || {
                    let failed = |error: anyhow::Error| error.to_string();
                    for copy in harness.copies(pod).await.map_err(failed)? {
                        harness.play_removed(&copy).await.map_err(failed)?;
                    }
                    match harness.virtual_side.get("v1/Pod", &harness.at(pod)).await {
                        Ok(None) => Ok(()),
                        other => Err(format!("{other:?}")),
                    }
                })
                .await?;
            }
            for (victim, before) in victims.iter().zip(before) {
                assert_eq!(version(harness, victim).await?, before, "{victim} was touched");
            }
            let (tenant_after, _) = harness.runs("tenant").await?;
            assert_eq!(uid(&tenant_after), uid(&tenant_vpod));
            let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            Ok(harness.physical_side.delete_with("v1/Pod", "kube-system/forged-victim", &now).await?)
        })
        .await
}

#[tokio::test]
async fn law_05_a_physical_pod_that_claims_to_be_a_copy_is_not_believed() -> Result<()> {
    pattern("impostor")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let copy = harness.copy("web").await?;
            harness.play_running(&copy).await?;
            let (vpod, _) = harness.runs("web").await?;
            // In another namespace than the copies', with all the right labels and annotations.
            let mut impostor = pod("impostor").namespace("default").on(harness.node()).build();
            impostor["metadata"]["labels"] = copy["metadata"]["labels"].clone();
            impostor["metadata"]["annotations"] = copy["metadata"]["annotations"].clone();
            let impostor = harness.physical_side.create(&impostor).await?;
            let failed = json!({ "status": { "phase": "Failed", "reason": "Impostor" } });
            harness.physical_side.patch_subresource("status", "v1/Pod", "default/impostor", &failed).await?;
            // A second pod shows that the impostor has been seen by now.
            harness.virtual_side.create(&harness.bound("later").build()).await?;
            harness.play_running(&harness.copy("later").await?).await?;
            harness.runs("later").await?;
            let (after, _) = harness.runs("web").await?;
            assert_eq!(annotation(&after, keys::PHYSICAL_POD_UID), uid(&copy));
            assert_eq!(uid(&after), uid(&vpod));
            // Deleting the virtual pod deletes its copy, not the impostor.
            harness.virtual_side.delete("v1/Pod", &harness.at("web")).await?;
            harness.play_removed(&harness.physical_leaving(&copy).await?).await?;
            harness.gone("web").await?;
            let still =
                harness.physical_side.get("v1/Pod", "default/impostor").await?.context("the impostor is gone")?;
            assert_eq!((uid(&still), &still["metadata"]["deletionTimestamp"]), (uid(&impostor), &Value::Null));
            let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            Ok(harness.physical_side.delete_with("v1/Pod", "default/impostor", &now).await?)
        })
        .await
}

#[tokio::test]
async fn law_06_bindings_whose_ids_begin_alike_leave_each_others_pods_alone() -> Result<()> {
    timed(async {
        // `vnode-alike-2-…` also begins with `vnode-alike-`; and both use the same namespace, each in its own cluster.
        let mut short = pattern("alike").on(Fixture::Still).mount("alike-mount").set_up().await?;
        let mut long = pattern("alike-2").on(Fixture::West).mount("alike-mount").set_up().await?;
        let test = async {
            short.start().await?;
            long.start().await?;
            long.vnode_ready(long.node()).await?;
            long.virtual_side.create(&long.bound("web").build()).await?;
            let (vpod, ppod) = long.runs("web").await?;
            // A restart checks everything again.
            short.stop().await?;
            short.start().await?;
            short.vnode_ready(short.node()).await?;
            short.virtual_side.create(&short.bound("own").build()).await?;
            short.play_running(&short.copy("own").await?).await?;
            short.runs("own").await?;
            let (after, copy) = long.runs("web").await?;
            assert_eq!((uid(&after), uid(&copy)), (uid(&vpod), uid(&ppod)));
            assert_eq!(short.ppods().await?.len(), 1);

            // While its own syncer is stopped, no other syncer finishes a deletion.
            long.stop().await?;
            long.virtual_side.delete("v1/Pod", &long.at("web")).await?;
            short.virtual_side.delete("v1/Pod", &short.at("own")).await?;
            short.play_removed(&short.copy("own").await?).await?;
            short.gone("own").await?;
            let waiting = long.vpod("web").await?;
            assert_eq!((phase(&waiting), uid(&waiting)), ("Running", uid(&vpod)));
            long.start().await?;
            long.gone("web").await
        }
        .await;
        let stopped = (short.stop().await, long.stop().await);
        short.sweep().await;
        long.sweep().await;
        test.and(stopped.0).and(stopped.1)
    })
    .await
}

#[tokio::test]
async fn law_06_two_virtual_clusters_on_one_physical_cluster_never_touch_each_others_objects() -> Result<()> {
    timed(async {
        // The same physical node, the same namespace, the same pod names, two origins.
        let lent = node("tenants-0").cpu("8").memory("16Gi").pods(20);
        let mut one = pattern("tenants").on(Fixture::East).mount("tenants-mount").node(lent).set_up().await?;
        let mut two = pattern("others").home(Home::Other).mount("tenants-mount").nodes_of("tenants").set_up().await?;
        let test = async {
            one.start().await?;
            two.start().await?;
            one.vnode_ready("tenants-0").await?;
            two.vnode_when("tenants-0", "is there", |vnode| vnode["status"]["allocatable"]["cpu"] == "8").await?;
            one.virtual_side.create(&one.bound("web").cpu("1").build()).await?;
            two.virtual_side.create(&two.bound_to("tenants-0", "web").cpu("2").build()).await?;
            let mine = |harness: &Harness| {
                let vpod = harness.virtual_side.clone();
                let place = harness.at("web");
                async move {
                    eventually(&format!("{place} runs"), SOON, async || match vpod.get("v1/Pod", &place).await {
                        Ok(Some(vpod)) if phase(&vpod) == "Running" => {
                            Ok(annotation(&vpod, keys::PHYSICAL_POD_NAME).to_owned())
                        }
                        other => Err(format!("{other:?}")),
                    })
                    .await
                }
            };
            let (first, second) = (mine(&one).await?, mine(&two).await?);
            ensure!(first != second, "one copy for two pods");
            // Each counts the other's pods as foreign use.
            one.vnode_when("tenants-0", "lends what is left", |vnode| vnode["status"]["allocatable"]["cpu"] == "6")
                .await?;
            two.vnode_when("tenants-0", "lends what is left", |vnode| vnode["status"]["allocatable"]["cpu"] == "7")
                .await?;

            let place = format!("tenants-mount/{first}");
            let before = version(&one, &place).await?;
            one.stop().await?;
            // While its own syncer is stopped, the other binding's life must not touch it.
            two.virtual_side.delete("v1/Pod", &two.at("web")).await?;
            eventually("the second pod's copy is gone", SOON, async || {
                let copies = two.ppods().await.map_err(|error| error.to_string())?;
                if copies.iter().all(|copy| name(copy) != second) { Ok(()) } else { Err("it is there".to_owned()) }
            })
            .await?;
            two.stop().await?;
            two.start().await?;
            two.vnode_when("tenants-0", "lends what is left", |vnode| vnode["status"]["allocatable"]["cpu"] == "7")
                .await?;
            assert_eq!(version(&one, &place).await?, before, "a neighbour's pod was touched");
            one.start().await?;
            let (vpod, _) = one.runs("web").await?;
            assert_eq!(annotation(&vpod, keys::PHYSICAL_POD_NAME), first);
            Ok(())
        }
        .await;
        let stopped = (one.stop().await, two.stop().await);
        one.sweep().await;
        two.sweep().await;
        test.and(stopped.0).and(stopped.1)
    })
    .await
}

#[tokio::test]
async fn law_09_an_absurd_quantity_is_refused_counted_and_deleted() -> Result<()> {
    pattern("absurd")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for (pod, cpu) in [("huge", "1e308"), ("long", "999999999999999999999999999999999999")] {
                harness.virtual_side.create(&harness.bound(pod).cpu(cpu).build()).await?;
                let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["reason"] == "OutOfLease";
                harness.vpod_when(pod, "is refused", refused).await?;
                harness.virtual_side.delete("v1/Pod", &harness.at(pod)).await?;
                harness.gone(pod).await?;
            }
            harness.virtual_side.create(&harness.bound("tiny").cpu("1e-300").build()).await?;
            harness.copy("tiny").await?;

            let lends = async |cpu: &str| {
                let offers = |vnode: &Value| vnode["status"]["allocatable"]["cpu"] == cpu;
                harness.vnode_when(harness.node(), &format!("lends {cpu} CPU"), offers).await
            };
            lends("32").await?;
            let stranger = pod("absurd-stranger").namespace(&harness.mount).on(harness.node()).cpu("1e308").build();
            harness.physical_side.create(&stranger).await?;
            lends("0").await?;
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            harness.physical_side.delete_with("v1/Pod", &format!("{}/absurd-stranger", harness.mount), &now).await?;
            lends("32").await.map(drop)
        })
        .await
}
