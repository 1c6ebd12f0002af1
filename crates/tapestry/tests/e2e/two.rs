//! One test on two physical clusters: a binding for each, whose virtual nodes the same pods may use.

use anyhow::Result;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::{node, pod};
use tapestry_testbed::{Objects, eventually};

use crate::fixtures::Fixture;
use crate::harness::{Harness, pattern, wind_up};
use crate::looks::{SOON, phase, text};

/// The label of physical nodes that both bindings of a test select.
pub(crate) const BOTH: &str = "example.com/both";

/// Two bindings, one per physical cluster, whose virtual nodes the same pods may use. The pods are in the namespace of the first.
pub(crate) struct Two {
    pub(crate) east: Harness,
    pub(crate) west: Harness,
    label: String,
}

impl Two {
    pub(crate) async fn run<Test: AsyncFnOnce(&Self) -> Result<()>>(name: &str, test: Test) -> Result<()> {
        let (here, there) = (format!("{name}-e"), format!("{name}-w"));
        let lent = |binding: &str| node(&format!("{binding}-0")).cpu("4").label(BOTH, name);
        let (mut east, mut west) = Box::pin(async {
            tokio::try_join!(
                pattern(&here).on(Fixture::East).node(lent(&here)).set_up(),
                pattern(&there).on(Fixture::West).node(lent(&there)).set_up(),
            )
        })
        .await?;
        let started = Box::pin(async { tokio::try_join!(east.start(), west.start()).map(drop) }).await;
        let two = Self { east, west, label: name.to_owned() };
        let ended = match started {
            Ok(()) => Box::pin(two.play(test)).await,
            Err(error) => Err(error),
        };
        wind_up(ended, [two.east, two.west]).await
    }

    async fn play<Test: AsyncFnOnce(&Self) -> Result<()>>(&self, test: Test) -> Result<()> {
        tokio::try_join!(self.east.vnode_ready(self.east.node()), self.west.vnode_ready(self.west.node()))?;
        test(self).await
    }

    /// A pod for either cluster.
    pub(crate) fn pod(&self, name: &str) -> tapestry_testbed::builders::Pod {
        let toleration = json!({ "key": keys::TAINT_VNODE, "operator": "Exists" });
        pod(name).namespace(&self.east.name).tolerate(toleration).node_label(BOTH, &self.label)
    }

    pub(crate) fn virtual_side(&self) -> &Objects {
        &self.east.virtual_side
    }

    /// The binding on whose virtual node a pod is.
    pub(crate) fn of(&self, vpod: &Value) -> &Harness {
        let on = text(&vpod["spec"]["nodeName"]);
        if on == self.west.vnode() { &self.west } else { &self.east }
    }

    pub(crate) async fn vpods(&self) -> Result<Vec<Value>> {
        Ok(self.virtual_side().list("v1/Pod", &self.east.name).await?)
    }

    /// Waits until exactly so many pods run that are not being deleted; returns them.
    pub(crate) async fn running(&self, count: usize) -> Result<Vec<Value>> {
        eventually(&format!("{count} pods run"), SOON, async || {
            let mut pods = self.vpods().await.map_err(|error| error.to_string())?;
            pods.retain(|vpod| phase(vpod) == "Running" && vpod["metadata"]["deletionTimestamp"].is_null());
            if pods.len() == count { Ok(pods) } else { Err(format!("{}: {pods:?}", pods.len())) }
        })
        .await
    }

    /// Waits until the copies of both clusters are those of the pods that live, and nothing else is wrong.
    pub(crate) async fn at_peace(&self) -> Result<()> {
        tokio::try_join!(self.east.at_peace(&[], SOON), self.west.at_peace(&[], SOON)).map(drop)
    }
}
