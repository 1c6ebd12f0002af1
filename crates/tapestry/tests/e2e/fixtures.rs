//! The clusters that tests share: the fleet's, and still ones where nothing happens by itself.
//! A test must not stop or restart them; a test that does starts its own cluster.

use anyhow::Result;
use serde_json::json;
use tapestry_api::keys;
use tapestry_testbed::builders::namespace;
use tapestry_testbed::{Cluster, ClusterConfig, Fleet, Part, eventually, fleet};
use tokio::sync::OnceCell;

use crate::harness::{BINDING, POLICY};
use crate::looks::SOON;

/// Where a test's physical nodes are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fixture {
    /// The fleet's first physical cluster: kwok plays the kubelets.
    East,
    /// The fleet's second one.
    West,
    /// Only an API server: nothing happens there unless the test does it, so the test is the kubelet.
    Still,
    /// The test's own cluster, still as well.
    Own(&'static Cluster),
}

/// In which virtual cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Home {
    /// The fleet's, with scheduler and controller manager.
    Fleet,
    /// A second one: only an API server.
    Other,
    /// One of the test's own, which has no controller manager.
    Own(&'static Cluster),
}

impl Fixture {
    pub(crate) async fn cluster(self) -> Result<&'static Cluster> {
        static STILL: OnceCell<Cluster> = OnceCell::const_new();
        match self {
            Self::East => shared().await?.physical(0),
            Self::West => shared().await?.physical(1),
            Self::Still => STILL.get_or_try_init(|| own(bare("still"))).await,
            Self::Own(cluster) => Ok(cluster),
        }
    }

    /// Whether other tests use it too.
    pub(crate) fn is_shared(self) -> bool {
        !matches!(self, Self::Own(_))
    }

    pub(crate) fn is_still(self) -> bool {
        matches!(self, Self::Still | Self::Own(_))
    }
}

impl Home {
    /// The cluster, and the kubeconfig of the syncers there.
    pub(crate) async fn open(self) -> Result<(&'static Cluster, String)> {
        static ACCOUNTS: [OnceCell<String>; 2] = [OnceCell::const_new(), OnceCell::const_new()];
        static OTHER: OnceCell<Cluster> = OnceCell::const_new();
        let only = OnceCell::const_new();
        let (cluster, account) = match self {
            Self::Fleet => (shared().await?.virtual_cluster()?, &ACCOUNTS[0]),
            Self::Other => (OTHER.get_or_try_init(|| own(bare("other"))).await?, &ACCOUNTS[1]),
            Self::Own(cluster) => (cluster, &only),
        };
        let ready = async || {
            install(cluster).await?;
            cluster.virtual_account().await
        };
        Ok((cluster, account.get_or_try_init(ready).await?.clone()))
    }

    pub(crate) async fn cluster(self) -> Result<&'static Cluster> {
        Ok(self.open().await?.0)
    }

    /// Whether its controller manager creates the `ServiceAccount`s that pods need there.
    pub(crate) fn has_accounts(self) -> bool {
        matches!(self, Self::Fleet)
    }
}

async fn shared() -> Result<&'static Fleet> {
    Box::pin(fleet()).await
}

/// A cluster that does nothing by itself.
pub(crate) fn bare(name: &str) -> ClusterConfig {
    ClusterConfig::virtual_cluster(name).without(Part::ControllerManager).without(Part::Scheduler)
}

/// The test's own cluster. Boxed: its future holds the whole start, and would enlarge every test's future.
pub(crate) async fn own(config: ClusterConfig) -> Result<Cluster> {
    Box::pin(Cluster::start(config)).await
}

/// Our definitions, served; and the namespace for kubeconfigs.
pub(crate) async fn install(cluster: &Cluster) -> Result<()> {
    let objects = cluster.objects()?;
    for definition in tapestry_api::crds::crds() {
        let mut definition = serde_json::to_value(definition)?;
        definition["apiVersion"] = json!("apiextensions.k8s.io/v1");
        definition["kind"] = json!("CustomResourceDefinition");
        objects.apply(&definition).await?;
    }
    for kind in [BINDING, POLICY] {
        let look = async || objects.list(kind, "").await.map(drop).map_err(|error| error.to_string());
        eventually(&format!("{kind} is served"), SOON, look).await?;
    }
    objects.apply(&namespace(keys::NAMESPACE)).await?;
    Ok(())
}
