//! The test acts as the kubelet of a still cluster: it reports the state of containers, and confirms their end.
//! Must not be used where kwok plays the kubelets.

use anyhow::Result;
use serde_json::{Value, json};
use tapestry_testbed::eventually;

use super::Harness;
use crate::looks::{SOON, items, name};

/// What a kubelet reports for a healthy node.
pub(super) fn make_ready(node: &mut Value) {
    let since = "2026-01-01T00:00:00Z";
    node["status"]["conditions"] = json!([{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "played by a test",
        "lastHeartbeatTime": since, "lastTransitionTime": since,
    }]);
}

/// Acts as the kubelet of [`Fixture::Still`].
impl Harness {
    /// The copy's container runs.
    pub(crate) async fn play_running(&self, ppod: &Value) -> Result<()> {
        let state = json!({ "running": { "startedAt": "2026-01-01T00:00:01Z" } });
        self.play(ppod, "Running", "True", state).await
    }

    /// The copy's container has ended with this code.
    pub(crate) async fn play_ended(&self, ppod: &Value, code: u8) -> Result<()> {
        let times = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z");
        let state = json!({ "terminated": { "exitCode": code, "startedAt": times.0, "finishedAt": times.1 } });
        self.play(ppod, if code == 0 { "Succeeded" } else { "Failed" }, "False", state).await
    }

    async fn play(&self, ppod: &Value, phase: &str, ready: &str, state: Value) -> Result<()> {
        let running = phase == "Running";
        let containers: Vec<Value> = items(&ppod["spec"]["containers"])
            .iter()
            .map(|container| {
                json!({
                    "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                    "ready": running, "started": running, "state": state,
                    // Without this the API server thinks that the node cannot resize pods.
                    "resources": container["resources"], "allocatedResources": container["resources"]["requests"],
                })
            })
            .collect();
        let condition =
            |kind: &str| json!({ "type": kind, "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let status = json!({
            "phase": phase, "startTime": "2026-01-01T00:00:00Z", "containerStatuses": containers,
            "podIP": "10.9.8.7", "podIPs": [{ "ip": "10.9.8.7" }], "hostIP": "10.9.8.1", "hostIPs": [{ "ip": "10.9.8.1" }],
            "conditions": [condition("Ready"), condition("ContainersReady")],
        });
        let place = format!("{}/{}", self.mount, name(ppod));
        self.physical_side.patch_subresource("status", "v1/Pod", &place, &json!({ "status": status })).await?;
        Ok(())
    }

    /// The kubelet has confirmed the end: removes the object.
    pub(crate) async fn play_removed(&self, ppod: &Value) -> Result<()> {
        let place = format!("{}/{}", self.mount, name(ppod));
        let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        Ok(self.physical_side.delete_with("v1/Pod", &place, &now).await?)
    }

    /// Waits until a physical pod is being deleted; returns it.
    pub(crate) async fn physical_leaving(&self, ppod: &Value) -> Result<Value> {
        let place = format!("{}/{}", self.mount, name(ppod));
        eventually(&format!("{place} is being deleted"), SOON, async || {
            match self.physical_side.get("v1/Pod", &place).await {
                Ok(Some(seen)) if !seen["metadata"]["deletionTimestamp"].is_null() => Ok(seen),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }
}
