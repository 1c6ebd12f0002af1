//! One test in the virtual cluster: its namespace, its pods, and what their containers print. Must look at the physical side
//! only to read logs: what a user of the virtual cluster sees is what is tested.

use std::panic::AssertUnwindSafe;

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::{Pod, namespace, pod};
use tapestry_testbed::node::IMAGE;
use tapestry_testbed::{Objects, eventually};

use crate::ground::{Ground, Lender, MOUNT, SOON, ground};

/// A namespace of the virtual cluster, whose pods run in one of the physical clusters.
pub(crate) struct Tenant {
    pub(crate) ground: &'static Ground,
    pub(crate) name: &'static str,
    pub(crate) lender: &'static Lender,
    pub(crate) objects: Objects,
}

/// Which physical cluster runs the pods of a test.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    East,
    West,
}

/// Runs a test in a namespace of this name, and deletes it afterwards.
pub(crate) async fn tenant(
    name: &'static str,
    direction: Direction,
    test: impl AsyncFnOnce(&Tenant) -> Result<()>,
) -> Result<()> {
    let ground = ground().await?;
    let lender = match direction {
        Direction::East => &ground.east,
        Direction::West => &ground.west,
    };
    let tenant = Tenant { ground, name, lender, objects: ground.virtual_cluster.objects()? };
    tenant.objects.create(&namespace(name)).await?;
    let account = format!("{name}/default");
    eventually("the namespace takes pods", SOON, async || {
        match tenant.objects.get("v1/ServiceAccount", &account).await {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let ended = AssertUnwindSafe(test(&tenant)).catch_unwind().await;
    let swept = tenant.objects.delete("v1/Namespace", name).await;
    match ended {
        Ok(result) => {
            swept?;
            result.with_context(|| lender.syncer_log())
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl Tenant {
    /// A pod whose container `main` carries out these actions of `testbed/node/box`, on this tenant's physical cluster.
    pub(crate) fn pod(&self, name: &str, actions: &[&str]) -> Pod {
        let toleration = json!({ "key": keys::TAINT_VNODE, "operator": "Exists" });
        pod(name)
            .namespace(self.name)
            .tolerate(toleration)
            .node_label(keys::CLUSTER_BINDING, self.lender.cluster.name())
            .image(IMAGE)
            .with("/spec/containers/0/args", actions)
            .with("/spec/terminationGracePeriodSeconds", 2)
    }

    /// `namespace/name`.
    pub(crate) fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    /// An object of this tenant with `data` (or `stringData` for a Secret).
    pub(crate) async fn create_data(&self, kind: &str, name: &str, data: &Value) -> Result<()> {
        let field = if kind == "Secret" { "stringData" } else { "data" };
        let metadata = json!({ "name": name, "namespace": self.name });
        self.objects.create(&json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, field: data })).await?;
        Ok(())
    }

    /// Waits until a virtual pod satisfies a condition.
    pub(crate) async fn pod_when(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually(&format!("{name} {what}"), SOON, async || {
            match self.objects.get("v1/Pod", &self.at(name)).await.map_err(|error| error.to_string())? {
                Some(seen) if holds(&seen) => Ok(seen),
                Some(seen) => Err(seen["status"].to_string()),
                None => Err("no such pod".to_owned()),
            }
        })
        .await
    }

    /// Creates a pod and waits until it is ready.
    pub(crate) async fn run(&self, pod: Pod) -> Result<Value> {
        let pod = self.objects.create(&pod.build()).await?;
        self.pod_when(name(&pod), "is ready", is_ready).await
    }

    /// Waits until a container of a pod has printed a line that contains `wanted`; returns all it has printed.
    pub(crate) async fn prints(&self, pod: &str, container: &str, wanted: &str) -> Result<String> {
        eventually(&format!("{container} of {pod} prints {wanted:?}"), SOON, async || {
            let printed = self.printed(pod, container, false).await.map_err(|error| format!("{error:#}"))?;
            if printed.contains(wanted) { Ok(printed) } else { Err(printed) }
        })
        .await
    }

    /// What a container has printed; with `follow`, all until it ends.
    pub(crate) async fn printed(&self, pod: &str, container: &str, follow: bool) -> Result<String> {
        let vpod = self.objects.get("v1/Pod", &self.at(pod)).await?.context("no such pod")?;
        let copy = text(&vpod["metadata"]["annotations"][keys::PHYSICAL_POD_NAME]);
        let path = format!("/api/v1/namespaces/{MOUNT}/pods/{copy}/log?container={container}&follow={follow}");
        let request = http::Request::get(path).body(Vec::new())?;
        Ok(self.lender.cluster.client()?.request_text(request).await?)
    }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = items(&pod["status"]["conditions"]);
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The status of a container, of any kind; null when there is none.
pub(crate) fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    static NONE: Value = Value::Null;
    let kinds = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let mut all = kinds.iter().flat_map(|kind| items(&pod["status"][kind]));
    all.find(|container| container["name"] == name).unwrap_or(&NONE)
}
