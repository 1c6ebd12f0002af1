//! Several clusters at once, and the fleet that all tests of a process share.
//! Must not be used for outages or restarts: those tests start their own clusters.

use std::path::Path;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use tokio::sync::OnceCell;

use crate::cluster::{Cluster, ClusterConfig, Progress};

/// Virtual and physical clusters. Dropping it ends them.
#[derive(Debug)]
pub struct Fleet {
    virtual_clusters: Vec<Cluster>,
    physical_clusters: Vec<Cluster>,
}

/// How many clusters of which size.
#[derive(Clone, Copy)]
pub struct FleetConfig<'a> {
    /// Clusters with scheduler and controller manager, without nodes.
    pub virtual_clusters: usize,
    /// Clusters with simulated nodes.
    pub physical_clusters: usize,
    /// Nodes of each physical cluster.
    pub nodes: usize,
    /// Where the clusters' folders are created; `None`: temporary ones.
    pub folder: Option<&'a Path>,
    /// Called for each step.
    pub progress: Option<&'a Progress>,
}

impl Default for FleetConfig<'_> {
    fn default() -> Self {
        Self { virtual_clusters: 1, physical_clusters: 2, nodes: 10, folder: None, progress: None }
    }
}

impl Fleet {
    /// Starts all clusters together. If one fails, those already running end.
    pub async fn start(config: FleetConfig<'_>) -> Result<Self> {
        let start = |kind: &'static str, count: usize| {
            let starts = (1..=count).map(move |number| {
                let name = if kind == "virtual" && count == 1 { kind.to_owned() } else { format!("{kind}-{number}") };
                let mut cluster = match kind {
                    "virtual" => ClusterConfig::virtual_cluster(&name),
                    _ => ClusterConfig::physical(&name, config.nodes),
                };
                if let Some(folder) = config.folder {
                    cluster = cluster.folder(folder.join(&name));
                }
                if let Some(progress) = config.progress {
                    cluster = cluster.progress(progress.clone());
                }
                Cluster::start(cluster)
            });
            try_join_all(starts)
        };
        let (virtual_clusters, physical_clusters) =
            tokio::try_join!(start("virtual", config.virtual_clusters), start("physical", config.physical_clusters))?;
        Ok(Self { virtual_clusters, physical_clusters })
    }

    /// All clusters, virtual ones first.
    pub fn clusters(&self) -> impl Iterator<Item = &Cluster> {
        self.virtual_clusters.iter().chain(&self.physical_clusters)
    }

    /// The first virtual cluster.
    pub fn virtual_cluster(&self) -> Result<&Cluster> {
        self.virtual_clusters.first().context("the fleet has no virtual cluster")
    }

    /// A physical cluster, from 0.
    pub fn physical(&self, index: usize) -> Result<&Cluster> {
        self.physical_clusters.get(index).with_context(|| format!("the fleet has no physical cluster {index}"))
    }
}

/// The fleet of this process: one virtual cluster, two physical ones with ten nodes each, started by the first test that asks.
/// It ends with the process. Tests share it, so each uses its own clusterID, nodes, labels and namespaces.
pub async fn fleet() -> Result<&'static Fleet> {
    static FLEET: OnceCell<Fleet> = OnceCell::const_new();
    FLEET.get_or_try_init(|| Fleet::start(FleetConfig::default())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests start their own clusters in a `JoinSet`, which accepts only `Send` futures.
    #[test]
    fn clusters_can_be_started_in_tasks() {
        fn can_move_between_threads(_: impl Send) {}
        can_move_between_threads(Cluster::start(ClusterConfig::virtual_cluster("unused")));
        can_move_between_threads(fleet());
    }
}
