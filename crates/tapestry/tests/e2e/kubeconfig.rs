//! The kubeconfig in a binding's Secret while a syncer runs: with an extra line break, broken, rotated, of another cluster.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tapestry_api::keys;
use tapestry_testbed::builders::{kubeconfig_secret, namespace};
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{Harness, pattern};
use crate::looks::{SOON, condition, text, uid};
use crate::process::syncer::Process;

const LEASE: &str = "coordination.k8s.io/v1/Lease";

impl Harness {
    /// Puts this kubeconfig into the binding's Secret.
    async fn give(&self, kubeconfig: &str) -> Result<()> {
        self.virtual_side.apply(&kubeconfig_secret(keys::NAMESPACE, &self.name, kubeconfig)).await?;
        Ok(())
    }

    /// Waits until a condition of the binding has this status and reason; returns its message.
    pub(crate) async fn says(&self, kind: &str, status: &str, reason: &str) -> Result<String> {
        eventually(&format!("the binding says {kind}={status}, {reason}"), SOON, async || {
            let binding = self.binding().await.map_err(|error| error.to_string())?;
            let told = condition(&binding, kind);
            if told["status"] == status && told["reason"] == reason {
                Ok(text(&told["message"]).to_owned())
            } else {
                Err(told.to_string())
            }
        })
        .await
    }

    /// Waits until the Lease of the node has been renewed this often.
    pub(crate) async fn renews(&self, times: u32) -> Result<()> {
        let place = format!("kube-node-lease/{}", self.vnode());
        let renewed = async || -> Result<String> {
            let lease = self.virtual_side.get(LEASE, &place).await?.context("no Lease")?;
            Ok(text(&lease["spec"]["renewTime"]).to_owned())
        };
        for _ in 0..times {
            let since = renewed().await?;
            eventually("the Lease of the node is renewed", SOON, async || match renewed().await {
                // Timestamps of one format compare as text.
                Ok(now) if now > since => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await?;
        }
        Ok(())
    }

    /// Starts a pod; returns the UIDs of it and its copy.
    async fn starts(&self, pod: &str) -> Result<[String; 2]> {
        self.virtual_side.create(&self.bound(pod).build()).await?;
        self.lasts(pod).await
    }

    /// The UIDs of a running pod and its copy.
    async fn lasts(&self, pod: &str) -> Result<[String; 2]> {
        let (vpod, ppod) = self.runs(pod).await?;
        Ok([uid(&vpod), uid(&ppod)].map(str::to_owned))
    }
}

/// With a line break after the token, as `echo` writes it.
fn with_line_break(kubeconfig: &str) -> Result<String> {
    let mut config: Value = serde_saphyr::from_str(kubeconfig)?;
    let token = &mut config["users"][0]["user"]["token"];
    *token = format!("{}\n", text(token)).into();
    Ok(config.to_string())
}

#[tokio::test]
async fn a_line_break_after_the_token_is_harmless() -> Result<()> {
    pattern("line-break")
        .on(Fixture::East)
        .run_without(async |harness| {
            harness.give(&with_line_break(&harness.physical_kubeconfig)?).await?;
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            harness.starts("web").await?;
            for command in ["drift", "explain"] {
                let args: &[&str] =
                    if command == "drift" { &[command, &harness.name] } else { &[command, "node", &harness.vnode()] };
                let output = harness.tapestry(args).await?;
                let said = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success() && !said.contains("panicked"), "{command}: {said}");
            }
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_12_a_kubeconfig_that_breaks_while_it_is_in_use_is_reported_and_the_connection_is_kept() -> Result<()> {
    pattern("garbage")
        .on(Fixture::East)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let web = harness.starts("web").await?;
            for (kubeconfig, reason, words) in [
                ("users: [{user: {token: hunter2}}".to_owned(), "KubeconfigUnreadable", "not the YAML"),
                (
                    harness.physical_cluster.kubeconfig_with_token("hunter2 \n hunter2")?,
                    "KubeconfigInvalid",
                    "its token",
                ),
                (harness.physical_cluster.kubeconfig_with_token("hunter2")?, "CredentialsRefused", "401"),
            ] {
                harness.give(&kubeconfig).await?;
                let told = harness.says("KubeconfigCurrent", "False", reason).await?;
                ensure!(told.contains(words) && told.contains("the current connection stays"), "{told}");
                ensure!(!told.contains("hunter2"), "a credential is in the message: {told}");
            }
            harness.starts("next").await?;
            harness.says("Connected", "True", "Connected").await?;
            let physical_kubeconfig = harness.physical_kubeconfig.clone();
            harness.give(&physical_kubeconfig).await?;
            harness.says("KubeconfigCurrent", "True", "Current").await?;
            assert_eq!(harness.lasts("web").await?, web);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn an_expired_token_evicts_no_pod_and_a_new_one_is_taken_over_without_a_restart() -> Result<()> {
    pattern("rotated")
        .on(Fixture::West)
        .binding(|binding| binding.with("/spec/partition", "Evict").with("/spec/evictAfterSeconds", 3))
        .run_without(async |harness| {
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            let web = harness.starts("web").await?;
            let pid = syncer.pid()?;
            // Tokens end with their ServiceAccount, also when another one has its name.
            harness
                .physical_side
                .delete("v1/ServiceAccount", &format!("{}/{}", keys::NAMESPACE, harness.mount))
                .await?;
            let fresh = harness.physical_cluster.physical_account(&harness.mount).await?;
            let told = harness.says("Connected", "False", "CredentialsRefused").await?;
            ensure!(told.contains("401") && told.contains("nothing new is admitted"), "{told}");
            let refused = |vnode: &Value| {
                condition(vnode, keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE)["reason"] == "CredentialsRefused"
            };
            harness.vnode_when(harness.node(), "says so", refused).await?;
            let drift = harness.tapestry(&["drift", &harness.name]).await?;
            let said = String::from_utf8_lossy(&drift.stderr);
            ensure!(said.contains("refuses the kubeconfig") && said.contains("hint: put a kubeconfig"), "{said}");
            ensure!(!said.contains("does not answer"), "{said}");
            // Two renewals take longer than the three seconds after which an unreachable cluster's nodes would be unknown.
            harness.renews(2).await?;
            let vnode = harness.vnode_when(harness.node(), "says so", refused).await?;
            assert_eq!(condition(&vnode, "Ready")["status"], "True", "its cluster answers");
            harness.give(&fresh).await?;
            harness.says("Connected", "True", "Connected").await?;
            syncer.ready().await?;
            harness.starts("next").await?;
            assert_eq!(harness.lasts("web").await?, web);
            assert_eq!(syncer.pid()?, pid, "it was started again");
            ensure!(syncer.log()?.contains("it is in use from now on"), "{}", syncer.log()?);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_01_a_kubeconfig_that_leads_to_another_cluster_stops_everything_until_it_is_back() -> Result<()> {
    pattern("astray")
        .on(Fixture::East)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let web = harness.starts("web").await?;
            let other = Fixture::Still.cluster().await?;
            let there = other.objects()?;
            there.apply(&namespace(&harness.mount)).await?;
            harness.give(&other.physical_account(&harness.mount).await?).await?;
            let told = harness.says("Connected", "False", "PhysicalClusterChanged").await?;
            ensure!(told.contains("not the one this binding was made for"), "{told}");
            harness.says("KubeconfigCurrent", "False", "PhysicalClusterChanged").await?;
            // The next value is no kubeconfig at all, which repairs nothing.
            harness.give("users: [").await?;
            let told = harness.says("KubeconfigCurrent", "False", "KubeconfigUnreadable").await?;
            ensure!(told.contains("nothing is written") && !told.contains("is kept"), "{told}");
            harness.virtual_side.create(&harness.bound("late").build()).await?;
            harness.renews(2).await?;
            ensure!(harness.copies("late").await?.is_empty(), "a copy was made");
            ensure!(there.list("v1/Pod", &harness.mount).await?.is_empty(), "a copy was made in the other cluster");
            let physical_kubeconfig = harness.physical_kubeconfig.clone();
            harness.give(&physical_kubeconfig).await?;
            harness.says("Connected", "True", "Connected").await?;
            harness.runs("late").await?;
            assert_eq!(harness.lasts("web").await?, web);
            there.delete("v1/Namespace", &harness.mount).await?;
            other.remove_physical_account(&harness.mount).await
        })
        .await
}
