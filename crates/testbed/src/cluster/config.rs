//! The configuration of a cluster. Must not hold anything that is known only once it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::Part;
use crate::address::Network;
use crate::builders::node;

/// Called for each step of a start: (cluster, step). For users who wait; tests omit it.
pub type Progress = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// The parts, nodes and flags of a cluster.
#[derive(Clone)]
pub struct ClusterConfig {
    pub(super) name: String,
    pub(super) parts: BTreeSet<Part>,
    pub(super) nodes: Vec<Value>,
    pub(super) flags: BTreeMap<Part, Vec<String>>,
    pub(super) network: Network,
    pub(super) folder: Option<PathBuf>,
    pub(super) progress: Option<Progress>,
}

impl ClusterConfig {
    /// A cluster whose nodes a syncer or test writes: all parts except kwok, no nodes.
    #[must_use]
    pub fn virtual_cluster(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            parts: Part::ALL.into_iter().filter(|part| *part != Part::Kwok).collect(),
            nodes: Vec::new(),
            flags: BTreeMap::new(),
            network: Network::default(),
            folder: None,
            progress: None,
        }
    }

    /// A cluster with simulated nodes `node-0` to `node-<count - 1>`, of the size that [`node`] gives.
    #[must_use]
    pub fn physical(name: &str, nodes: usize) -> Self {
        let mut config = Self::virtual_cluster(name);
        config.parts.insert(Part::Kwok);
        config.nodes((0..nodes).map(|index| node(&format!("node-{index}")).build()))
    }

    /// Omits a part. etcd and the API server cannot be omitted.
    #[must_use]
    pub fn without(mut self, part: Part) -> Self {
        if !matches!(part, Part::Etcd | Part::ApiServer) {
            self.parts.remove(&part);
        }
        self
    }

    /// Replaces the nodes (objects of the [`node`] builder).
    #[must_use]
    pub fn nodes(mut self, nodes: impl IntoIterator<Item = Value>) -> Self {
        self.nodes = nodes.into_iter().collect();
        self
    }

    /// Adds a flag to a part's command line; of two equal flags the last wins, so this overrides ours.
    #[must_use]
    pub fn flag(mut self, part: Part, flag: &str) -> Self {
        self.flags.entry(part).or_default().push(flag.to_owned());
        self
    }

    /// Where its components listen; certificates and kubeconfigs name the address.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Where the cluster keeps its files (default: a new temporary folder). Must not exist yet; it is removed at the end.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Reports each step of the start.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = Some(progress);
        self
    }

    pub(super) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    pub(super) fn tell(&self, step: &str) {
        if let Some(progress) = &self.progress {
            progress(&self.name, step);
        }
    }
}

impl fmt::Debug for ClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterConfig")
            .field("name", &self.name)
            .field("parts", &self.parts)
            .field("nodes", &self.nodes.len())
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
