//! Lines between a syncer and its two clusters, for tests that make trouble. The test itself speaks to the clusters past them.

use anyhow::Result;
use tapestry_cluster::Side;
use tapestry_testbed::{Cluster, Line};

use super::Loom;

/// The two lines of a syncer.
pub(super) struct Lines {
    to_virtual: Line,
    to_physical: Line,
}

impl Lines {
    pub(super) async fn to(virtual_cluster: &Cluster, physical_cluster: &Cluster) -> Result<Self> {
        let (to_virtual, to_physical) = tokio::try_join!(Line::to(virtual_cluster), Line::to(physical_cluster))?;
        Ok(Self { to_virtual, to_physical })
    }
}

impl Loom {
    /// The syncer's line to one side.
    ///
    /// # Panics
    /// When the pattern did not ask for lines: the test itself is wrong.
    pub(crate) fn line(&self, side: Side) -> &Line {
        let Some(lines) = &self.lines else { panic!("the pattern {} is not `through_lines`", self.name) };
        match side {
            Side::Virtual => &lines.to_virtual,
            Side::Physical => &lines.to_physical,
        }
    }

    /// The kubeconfig of the virtual cluster that the syncer uses.
    pub(crate) fn kubeconfig(&self) -> Result<String> {
        match &self.lines {
            Some(lines) => Ok(lines.to_virtual.kubeconfig().to_owned()),
            None => self.virtual_cluster.kubeconfig_text(),
        }
    }

    /// The kubeconfig that is put into the binding's Secret.
    pub(super) fn physical_kubeconfig(&self) -> Result<String> {
        match &self.lines {
            Some(lines) => Ok(lines.to_physical.kubeconfig().to_owned()),
            None => self.physical_cluster.kubeconfig_text(),
        }
    }
}
