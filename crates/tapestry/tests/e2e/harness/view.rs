//! Both clusters as the invariant checker sees them. Must not ask the syncer.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tapestry_api::keys;
use tapestry_domain::capacity::Limit;
use tapestry_domain::dependents::DependentKind;
use tapestry_testbed::eventually;
use tapestry_testbed::invariants::{CarriedServices, Snapshot};

use super::Harness;
use crate::looks::{items, label, text, uid};

impl Harness {
    /// The origin of everything that the syncer creates.
    pub(crate) async fn origin(&self) -> Result<String> {
        Ok(format!("{}/{}", self.virtual_cluster.identity(), uid(&self.binding().await?)))
    }

    /// All violations at this moment.
    pub(crate) async fn violations(&self, limits: &[Limit]) -> Result<Vec<String>> {
        let (vside, pside) = (&self.virtual_side, &self.physical_side);
        let (vpods, vnodes) = tokio::try_join!(vside.list("v1/Pod", ""), vside.list("v1/Node", ""))?;
        let (ppods, pnodes) = tokio::try_join!(pside.list("v1/Pod", ""), pside.list("v1/Node", ""))?;
        let (configs, secrets) = tokio::try_join!(vside.list("v1/ConfigMap", ""), vside.list("v1/Secret", ""))?;
        let mount = &*self.mount;
        let copies = tokio::try_join!(pside.list("v1/ConfigMap", mount), pside.list("v1/Secret", mount))?;
        let services = tokio::try_join!(vside.list("v1/Service", ""), pside.list("v1/Service", mount))?;
        let of = |kind: DependentKind| move |object| (kind, object);
        let sources =
            configs.iter().map(of(DependentKind::ConfigMap)).chain(secrets.iter().map(of(DependentKind::Secret)));
        let copies =
            copies.0.iter().map(of(DependentKind::ConfigMap)).chain(copies.1.iter().map(of(DependentKind::Secret)));
        let volumes =
            tokio::try_join!(pside.list("v1/PersistentVolume", ""), pside.list("v1/PersistentVolumeClaim", mount))?;
        let binding = self.binding().await?;
        let origin = self.origin().await?;
        let vnodes: Vec<&Value> =
            vnodes.iter().filter(|vnode| label(vnode, keys::CLUSTER_BINDING) == self.name).collect();
        let prefix = format!("vnode-{}-", self.name);
        let ours = |vpod: &&Value| text(&vpod["spec"]["nodeName"]).starts_with(&prefix);
        let snapshot = Snapshot {
            origin: &origin,
            vpods: vpods.iter().filter(ours).collect(),
            ppods: ppods.iter().collect(),
            vnodes,
            pnodes: pnodes.iter().collect(),
            sources: sources.collect(),
            dependents: copies.collect(),
            volumes: volumes.0.iter().collect(),
            claims: volumes.1.iter().collect(),
            api_access: !binding["spec"]["virtualAPIServer"].is_null(),
            limits: &|_| Some(limits.to_vec()),
            services: CarriedServices {
                cluster: &self.name,
                namespaces: items(&binding["spec"]["serviceNamespaces"]).iter().map(text).collect(),
                sources: services.0.iter().collect(),
                copies: services.1.iter().collect(),
            },
        };
        Ok(snapshot.violations())
    }

    /// Waits until there is no violation.
    pub(crate) async fn at_peace(&self, limits: &[Limit], deadline: Duration) -> Result<()> {
        eventually("both clusters have converged", deadline, async || {
            let violations = self.violations(limits).await.map_err(|error| error.to_string())?;
            if violations.is_empty() { Ok(()) } else { Err(violations.join("\n")) }
        })
        .await
    }
}
