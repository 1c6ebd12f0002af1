//! Fault proxies between a syncer and its two clusters. The test itself talks to the clusters directly.

use anyhow::Result;
use tapestry_cluster::Side;
use tapestry_testbed::FaultProxy;

use super::Harness;

/// The two proxies of a syncer.
pub(super) struct Proxies {
    to_virtual: FaultProxy,
    to_physical: FaultProxy,
}

impl Proxies {
    /// With the rights of the syncer's accounts.
    pub(super) async fn with_kubeconfigs(to_virtual: &str, to_physical: &str) -> Result<Self> {
        let (to_virtual, to_physical) =
            tokio::try_join!(FaultProxy::with_kubeconfig(to_virtual), FaultProxy::with_kubeconfig(to_physical))?;
        Ok(Self { to_virtual, to_physical })
    }
}

impl Harness {
    /// The proxy between the syncer and one side.
    ///
    /// # Panics
    /// When the pattern did not ask for proxies: the test itself is wrong.
    pub(crate) fn proxy(&self, side: Side) -> &FaultProxy {
        let Some(proxies) = &self.proxies else { panic!("the pattern {} is not `through_proxies`", self.name) };
        match side {
            Side::Virtual => &proxies.to_virtual,
            Side::Physical => &proxies.to_physical,
        }
    }

    /// The kubeconfig that the syncer uses; that of the physical side is in the binding's Secret.
    pub(crate) fn kubeconfig(&self, side: Side) -> &str {
        match (&self.proxies, side) {
            (Some(_), _) => self.proxy(side).kubeconfig(),
            (None, Side::Virtual) => &self.virtual_kubeconfig,
            (None, Side::Physical) => &self.physical_kubeconfig,
        }
    }
}
