//! What is not as it must be between the two clusters, by the invariant checker and not by what a syncer believes.
//! Only the policies' limits come from the syncer's tables. Reads, and writes nothing.

use serde_json::Value;
use tapestry_api::invariants::{CarriedServices, Snapshot};
use tapestry_api::keys;
use tapestry_cluster::kind;
use tracing::Instrument as _;

use crate::dependents::{KINDS, kind_of};
use crate::start::{LookError, Syncer};

impl Syncer {
    /// Every way in which the two clusters are not as they must be at this moment; some of it may be on its way.
    pub async fn drift(self) -> Result<Vec<String>, LookError> {
        let span = self.span.clone();
        Box::pin(self.find_drift().instrument(span)).await
    }

    async fn find_drift(&self) -> Result<Vec<String>, LookError> {
        let (now, origin, vside) = (self.clock.now().wall, &self.origin, &self.virtual_cluster);
        let physical = self.connect().await?;
        let (home, pside) = (physical.home.clone(), physical.cluster.clone());
        let pair = self.look_at(physical).await?;
        let (vpods, vnodes) = tokio::try_join!(vside.list(&kind::POD), vside.list(&kind::NODE))?;
        let (ppods, pnodes) = tokio::try_join!(pside.list(&kind::POD), pside.list(&kind::NODE))?;
        let (mut sources, mut copies) = (Vec::new(), Vec::new());
        for dependent in KINDS {
            let kind = kind_of(dependent);
            let lists = tokio::try_join!(vside.list_metadata(kind), pside.list_in(kind, &home.mount))?;
            sources.extend(lists.0.into_iter().map(|source| (dependent, source)));
            copies.extend(lists.1.into_iter().map(|copy| (dependent, copy)));
        }
        let services = tokio::try_join!(vside.list(&kind::SERVICE), pside.list_in(&kind::SERVICE, &home.mount))?;
        let listed = pair.bindings.bound().map(|bound| &bound.binding.service_namespaces);
        let claims = pside.list_in(&kind::PERSISTENT_VOLUME_CLAIM, &home.mount).await?;
        let volumes = pside.list(&kind::PERSISTENT_VOLUME).await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let vnodes: Vec<&Value> = vnodes
            .iter()
            .filter(|vnode| text(&vnode["metadata"]["labels"][keys::CLUSTER_BINDING]) == *origin.binding_label)
            .filter(|vnode| text(&vnode["metadata"]["name"]).starts_with(&*home.vnode_prefix))
            .collect();
        let ours = |vpod: &&Value| {
            let node = text(&vpod["spec"]["nodeName"]);
            vnodes.iter().any(|vnode| vnode["metadata"]["name"] == *node)
                && !pair.ignores(&text(&vpod["metadata"]["uid"]))
        };
        let snapshot = Snapshot {
            origin: &origin.full,
            vpods: vpods.iter().filter(ours).collect(),
            ppods: ppods.iter().collect(),
            vnodes: vnodes.clone(),
            pnodes: pnodes.iter().collect(),
            sources: sources.iter().map(|(kind, source)| (*kind, source)).collect(),
            dependents: copies.iter().map(|(kind, copy)| (*kind, copy)).collect(),
            volumes: volumes.iter().collect(),
            claims: claims.iter().collect(),
            api_access: pair.dependents.api_access(),
            limits: &|node| pair.limits_of(node, now),
            services: CarriedServices {
                cluster: home.cluster_id(),
                namespaces: listed.into_iter().flatten().map(|namespace| &**namespace).collect(),
                sources: services.0.iter().collect(),
                copies: services.1.iter().collect(),
            },
        };
        let mut found = snapshot.violations();
        found.extend(snapshot.taken_names());
        Ok(found)
    }
}
