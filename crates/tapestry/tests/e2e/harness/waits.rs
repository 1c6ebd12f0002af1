//! Waiting for what a syncer does, and looking at it. Must not change anything.

use anyhow::{Context as _, Result};
use serde_json::Value;
use tapestry_api::keys;
use tapestry_testbed::{Objects, eventually};

use super::{BINDING, Harness};
use crate::looks::{LATE, SOON, annotation, phase, takes_pods};

impl Harness {
    /// A virtual pod, which must exist.
    pub(crate) async fn vpod(&self, name: &str) -> Result<Value> {
        self.virtual_side.get("v1/Pod", &self.at(name)).await?.with_context(|| format!("no virtual pod {name}"))
    }

    /// All physical pods in the mount namespace.
    pub(crate) async fn ppods(&self) -> Result<Vec<Value>> {
        Ok(self.physical_side.list("v1/Pod", &self.mount).await?)
    }

    /// The physical pods that say they are copies of the virtual pod of this name.
    pub(crate) async fn copies(&self, vpod: &str) -> Result<Vec<Value>> {
        let mut all = self.ppods().await?;
        all.retain(|ppod| annotation(ppod, keys::VIRTUAL_POD_NAME) == vpod);
        Ok(all)
    }

    /// Waits for the one copy of a virtual pod.
    pub(crate) async fn copy(&self, vpod: &str) -> Result<Value> {
        eventually(&format!("{vpod} has a copy"), SOON, async || {
            let mut copies = self.copies(vpod).await.map_err(|error| error.to_string())?;
            match copies.len() {
                1 => Ok(copies.swap_remove(0)),
                count => Err(format!("{count} copies; {}", self.told(vpod).await)),
            }
        })
        .await
    }

    /// Waits until this many physical pods are in the mount namespace.
    pub(crate) async fn copies_at_least(&self, count: usize) -> Result<()> {
        eventually(&format!("{count} pods are copied"), LATE, async || {
            let copies = self.ppods().await.map_err(|error| error.to_string())?.len();
            if copies >= count { Ok(()) } else { Err(format!("{copies}")) }
        })
        .await
    }

    /// Waits until a virtual pod satisfies a condition.
    pub(crate) async fn vpod_when(&self, pod: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually(&format!("{pod} {what}"), SOON, async || {
            let seen = self.vpod(pod).await.map_err(|error| error.to_string())?;
            if condition(&seen) { Ok(seen) } else { Err(seen.to_string()) }
        })
        .await
    }

    /// Waits until a virtual pod runs; returns it and its copy.
    pub(crate) async fn runs(&self, pod: &str) -> Result<(Value, Value)> {
        let vpod = self.vpod_when(pod, "runs", |vpod| phase(vpod) == "Running").await?;
        Ok((vpod, self.copy(pod).await?))
    }

    /// Waits until neither the virtual pod nor a copy of it is left.
    pub(crate) async fn gone(&self, pod: &str) -> Result<()> {
        eventually(&format!("nothing is left of {pod}"), SOON, async || {
            let failed = |error: anyhow::Error| error.to_string();
            let vpod = self.virtual_side.get("v1/Pod", &self.at(pod)).await.map_err(|error| error.to_string())?;
            let copies = self.copies(pod).await.map_err(failed)?;
            match (vpod, copies.len()) {
                (None, 0) => Ok(()),
                (vpod, copies) => Err(format!("virtual: {vpod:?}; {copies} copies")),
            }
        })
        .await
    }

    /// Waits until a virtual node satisfies a condition.
    pub(crate) async fn vnode_when(&self, node: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let vnode = self.vnode_of(node);
        eventually(&format!("{vnode} {what}"), SOON, async || {
            match self.virtual_side.get("v1/Node", &vnode).await.map_err(|error| error.to_string())? {
                Some(seen) if holds(&seen) => Ok(seen),
                Some(seen) => Err(format!("{} {}", seen["spec"], seen["status"])),
                None => Err("no such node".to_owned()),
            }
        })
        .await
    }

    /// Waits until the virtual node of a physical one takes pods.
    pub(crate) async fn vnode_ready(&self, node: &str) -> Result<Value> {
        self.vnode_when(node, "is ready", takes_pods).await
    }

    /// Waits until a virtual node is gone.
    pub(crate) async fn vnode_gone(&self, node: &str) -> Result<()> {
        let vnode = self.vnode_of(node);
        eventually(&format!("{vnode} is gone"), SOON, async || {
            match self.virtual_side.get("v1/Node", &vnode).await.map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(seen) => Err(seen["spec"].to_string()),
            }
        })
        .await
    }

    /// The binding as it is now.
    pub(crate) async fn binding(&self) -> Result<Value> {
        self.virtual_side.get(BINDING, &self.name).await?.context("no binding")
    }

    /// What the virtual pod and the events say, for failures.
    async fn told(&self, pod: &str) -> String {
        let events = self.virtual_side.list("v1/Event", &self.name).await.unwrap_or_default();
        let about = events.iter().filter(|event| event["involvedObject"]["name"] == pod);
        let messages: Vec<_> = about.map(|event| event["message"].to_string()).collect();
        let vpod = self.vpod(pod).await.unwrap_or_default();
        format!("virtual: {} {}; events: {messages:?}", vpod["metadata"]["annotations"], vpod["status"])
    }
}

/// The events about an object, by reason.
pub(crate) async fn event_reasons(objects: &Objects, namespace: &str, about: &str) -> Result<Vec<String>> {
    let events = objects.list("v1/Event", namespace).await?;
    let about = events.iter().filter(|event| event["involvedObject"]["name"] == about);
    Ok(about.map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect())
}
