//! A real node in the physical cluster, and a virtual pod in a real container on it: what it prints was given to it by the
//! virtual cluster. Only where nodes can run ([`RealNode::possible`]). Must not print what no container printed.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_domain::names::vnode_name;
use tapestry_testbed::builders::{Pod, namespace, pod};
use tapestry_testbed::node::IMAGE;
use tapestry_testbed::{RealNode, eventually};

use super::stage::{BINDING, DEADLINE, MOUNT, Stage};
use super::{is_true, needs, text};

/// Name of the node.
const NODE: &str = "real-0";
/// Namespace and name of the pod.
pub(super) const WITNESS: (&str, &str) = ("demo-real", "witness");
/// Longer lines of a log are cut.
const WIDTH: usize = 100;

/// A pod whose container prints its greeting whenever it changes. On simulated nodes it does nothing.
pub(super) fn greeter(pod: Pod, first: &[&str]) -> Pod {
    let follow = format!("/etc/greeting/{}", needs::GREETING.1);
    let actions: Vec<&str> = first.iter().copied().chain(["follow", &follow]).collect();
    needs::equip(pod).image(IMAGE).with("/spec/containers/0/args", actions)
}

/// Starts the node and waits until the virtual cluster can use it.
pub(super) async fn join(stage: &Stage) -> Result<RealNode> {
    let node = Box::pin(RealNode::start(&stage.physical_cluster, NODE)).await?;
    let vnode = vnode_name(BINDING, NODE);
    eventually(&format!("{vnode} is Ready"), DEADLINE, async || {
        let seen = stage.virtual_side.get("v1/Node", &vnode).await.map_err(|error| error.to_string())?;
        let seen = seen.unwrap_or_default();
        if is_true(&seen, "Ready") { Ok(()) } else { Err(seen["status"]["conditions"].to_string()) }
    })
    .await?;
    Ok(node)
}

/// Creates the pod and waits for its first greeting; returns its log.
pub(super) async fn witness(stage: &Stage) -> Result<Vec<String>> {
    let side = &stage.virtual_side;
    side.create(&namespace(WITNESS.0)).await?;
    for object in needs::objects(WITNESS.0) {
        side.create(&object).await?;
    }
    let call = "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/version";
    let greeter = greeter(pod(WITNESS.1), &["say", "hello from a real container", "env", "user", "get", call]);
    let toleration = json!({ "key": keys::TAINT_VNODE, "operator": "Exists" });
    let greeter = greeter.namespace(WITNESS.0).tolerate(toleration).on(&vnode_name(BINDING, NODE));
    let greeter = greeter.with("/spec/terminationGracePeriodSeconds", 2).build();
    // Refused until the controller manager has created the namespace's default ServiceAccount.
    eventually("the pod is created", DEADLINE, async || side.create(&greeter).await.map_err(|error| error.to_string()))
        .await?;
    prints(stage, needs::WORDS[0]).await
}

/// Changes the greeting; returns the log with it.
pub(super) async fn change(stage: &Stage) -> Result<Vec<String>> {
    let (name, key) = needs::GREETING;
    let change = json!({ "data": { key: needs::WORDS[1] } });
    stage.virtual_side.patch("v1/ConfigMap", &format!("{}/{name}", WITNESS.0), &change).await?;
    prints(stage, needs::WORDS[1]).await
}

/// Ends the node; its objects go with it.
pub(super) async fn leave(stage: &Stage, node: RealNode) -> Result<()> {
    let place = format!("{}/{}", WITNESS.0, WITNESS.1);
    stage.virtual_side.delete("v1/Pod", &place).await?;
    eventually("the pod is gone", DEADLINE, async || {
        match stage.virtual_side.get("v1/Pod", &place).await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(seen) => Err(seen["status"].to_string()),
        }
    })
    .await?;
    drop(node);
    Ok(stage.physical_cluster.remove_node(NODE).await?)
}

async fn prints(stage: &Stage, wanted: &str) -> Result<Vec<String>> {
    eventually(&format!("the container prints {wanted:?}"), DEADLINE, async || {
        let printed = printed(stage).await.map_err(|error| format!("{error:#}"))?;
        if printed.contains(wanted) { Ok(printed.lines().map(cut).collect()) } else { Err(printed) }
    })
    .await
}

async fn printed(stage: &Stage) -> Result<String> {
    let place = format!("{}/{}", WITNESS.0, WITNESS.1);
    let vpod: Value = stage.virtual_side.get("v1/Pod", &place).await?.context("no such pod")?;
    let copy = text(&vpod["metadata"]["annotations"][keys::PHYSICAL_POD_NAME]);
    let request = http::Request::get(format!("/api/v1/namespaces/{MOUNT}/pods/{copy}/log")).body(Vec::new())?;
    Ok(stage.physical_cluster.client()?.request_text(request).await?)
}

fn cut(line: &str) -> String {
    if line.chars().count() <= WIDTH {
        line.to_owned()
    } else {
        line.chars().take(WIDTH).chain("…".chars()).collect()
    }
}
