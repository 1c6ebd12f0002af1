//! When a cluster may be used: every part answers, pods can be created, nodes are ready.
//! Must not guess by time passed.

use std::net::SocketAddrV4;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use futures::future::try_join_all;
use serde_json::Value;

use super::{Cluster, Part};
use crate::eventually;
use crate::supervisor::State;

/// Far more than a start takes (seconds), for machines that are busy with other tests.
const DEADLINE: Duration = Duration::from_mins(2);
/// The deadline of one check: a component that accepts and does not answer must not use up the whole deadline.
const LOOK: Duration = Duration::from_secs(3);

impl Cluster {
    /// Waits until every part of the cluster answers. Call it after a restart.
    pub async fn ready(&self) -> Result<()> {
        self.apiserver_ready().await?;
        self.others_ready().await
    }

    pub(super) async fn others_ready(&self) -> Result<()> {
        tokio::try_join!(
            self.serves(Part::ControllerManager, "/healthz"),
            self.serves(Part::Scheduler, "/healthz"),
            self.takes_pods(),
            self.nodes_ready(),
        )?;
        Ok(())
    }

    pub(super) async fn apiserver_ready(&self) -> Result<()> {
        self.serves(Part::ApiServer, "/readyz").await
    }

    /// Ends, with the reason, as soon as a part ends. While the cluster starts, no part may.
    pub(super) async fn first_death(&self) -> Error {
        loop {
            for part in Part::ALL {
                match self.supervisor.state(part.name()) {
                    Ok(State::Ended(how)) => return self.blame(part, anyhow!("{} ended ({how})", part.name())),
                    Ok(State::Running(_) | State::Unknown) => {}
                    Err(error) => return error,
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn serves(&self, part: Part, path: &str) -> Result<()> {
        if !self.config.has(part) {
            return Ok(());
        }
        let client = self.client_of(self.site.address.at(part.port()))?;
        let look = async || {
            let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
            match tokio::time::timeout(LOOK, client.request_text(request)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer in {LOOK:?}")),
            }
        };
        let what = format!("{} of {} answers {path}", part.name(), self.name());
        eventually(&what, DEADLINE, look).await.map_err(|error| self.blame(part, error))?;
        self.config.tell(&format!("{} is ready", part.name()));
        Ok(())
    }

    /// A pod is refused until its namespace has a default `ServiceAccount`, which the controller manager creates.
    async fn takes_pods(&self) -> Result<()> {
        if !self.config.has(Part::ControllerManager) {
            return Ok(());
        }
        let objects = self.objects()?;
        let look = async || match objects.get("v1/ServiceAccount", "default/default").await {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        let what = format!("{} has a default ServiceAccount", self.name());
        eventually(&what, DEADLINE, look).await.map_err(|error| self.blame(Part::ControllerManager, error))
    }

    async fn nodes_ready(&self) -> Result<()> {
        if self.config.nodes.is_empty() || !self.config.has(Part::Kwok) {
            return Ok(());
        }
        let objects = self.objects()?;
        let look = async || {
            let nodes = objects.list("v1/Node", "").await.map_err(|error| error.to_string())?;
            let (ready, other): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node_takes_pods(node));
            if ready.len() >= self.config.nodes.len() {
                return Ok(());
            }
            Err(match other.first() {
                Some(node) => format!("{} nodes ready; one is not: {}", ready.len(), node["metadata"]["name"]),
                None => format!("{} nodes", nodes.len()),
            })
        };
        let what = format!("{} nodes of {} are ready", self.config.nodes.len(), self.name());
        eventually(&what, DEADLINE, look).await.map_err(|error| self.blame(Part::Kwok, error))?;
        self.config.tell(&format!("{} nodes are ready", self.config.nodes.len()));
        Ok(())
    }

    /// Creates nodes, sixteen at a time: one by one, a thousand would take as many round trips.
    pub(super) async fn create_nodes(&self, nodes: &[Value]) -> Result<()> {
        let objects = self.objects()?;
        for some in nodes.chunks(16) {
            try_join_all(some.iter().map(|node| objects.create(node))).await.context("creating nodes")?;
        }
        Ok(())
    }

    fn client_of(&self, server: SocketAddrV4) -> Result<kube::Client> {
        let mut config = self.client_config.clone();
        config.cluster_url = format!("https://{server}").parse()?;
        Ok(kube::Client::try_from(config)?)
    }

    /// Adds the end of the part's log to an error.
    fn blame(&self, part: Part, error: Error) -> Error {
        let component = self.component(part);
        let tail = component.log_tail(15);
        error.context(format!("the end of {}:\n{tail}\n", component.log().display()))
    }
}

/// Ready, and the taint that admission puts on every new node is gone.
pub(crate) fn node_takes_pods(node: &Value) -> bool {
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    items(&node["status"]["conditions"]).iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
        && !items(&node["spec"]["taints"]).iter().any(|taint| taint["key"] == "node.kubernetes.io/not-ready")
}
