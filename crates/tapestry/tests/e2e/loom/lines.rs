//! Lines between a syncer and its two clusters, for tests that make trouble. The test itself speaks to the clusters past them.

use anyhow::Result;
use tapestry_cluster::Side;
use tapestry_testbed::Line;

use super::Loom;

/// The two lines of a syncer.
pub(super) struct Lines {
    to_virtual: Line,
    to_physical: Line,
}

impl Lines {
    /// With the rights of the syncer's accounts.
    pub(super) async fn through(virtual_kubeconfig: &str, physical_kubeconfig: &str) -> Result<Self> {
        let lines = tokio::try_join!(Line::through(virtual_kubeconfig), Line::through(physical_kubeconfig));
        let (to_virtual, to_physical) = lines?;
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

    /// The kubeconfig that the syncer uses; that of the physical side stands in the binding's Secret.
    pub(crate) fn kubeconfig(&self, side: Side) -> &str {
        match (&self.lines, side) {
            (Some(_), _) => self.line(side).kubeconfig(),
            (None, Side::Virtual) => &self.virtual_kubeconfig,
            (None, Side::Physical) => &self.physical_kubeconfig,
        }
    }
}
