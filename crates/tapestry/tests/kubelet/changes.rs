//! What changes while a container runs, or before it can: resources, images, the kubelet itself.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::tenant::Direction::{East, West};
use crate::tenant::{container, tenant, text};

/// The CPU limit of a container as it sees it: in control groups of version 1 or 2.
const CPU_LIMIT: &str = "/sys/fs/cgroup/cpu.max,/sys/fs/cgroup/cpu/cpu.cfs_quota_us";

#[tokio::test]
async fn a_running_container_is_resized_in_place_and_sees_its_new_limit() -> Result<()> {
    tenant("resize", East, async |tenant| {
        let pod = tenant.pod("elastic", &["follow", CPU_LIMIT]).limit("cpu", "200m").limit("memory", "64Mi");
        let before = tenant.run(pod).await?;
        // Microseconds in 100 000.
        tenant.prints("elastic", "main", ": 20000").await?;

        // A merge patch replaces lists: all of the container is sent.
        let mut containers = before["spec"]["containers"].clone();
        for which in ["limits", "requests"] {
            containers[0]["resources"][which]["cpu"] = json!("400m");
        }
        let patch = json!({ "spec": { "containers": containers } });
        tenant.objects.patch_subresource("resize", "v1/Pod", &tenant.at("elastic"), &patch).await?;
        tenant.prints("elastic", "main", ": 40000").await?;
        let resized = |vpod: &Value| container(vpod, "main")["resources"]["limits"]["cpu"] == "400m";
        let after = tenant.pod_when("elastic", "has its new limit", resized).await?;
        assert_eq!(container(&after, "main")["containerID"], container(&before, "main")["containerID"]);
        assert_eq!(container(&after, "main")["restartCount"], 0);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_virtual_pod_says_why_its_image_cannot_be_pulled() -> Result<()> {
    tenant("images", West, async |tenant| {
        let waiting = |vpod: &Value| text(&container(vpod, "main")["state"]["waiting"]["reason"]).to_owned();
        // Nothing listens there.
        let unreachable = tenant.pod("unreachable", &["stay"]).image("127.0.0.1:1/absent:1");
        let absent = tenant.pod("absent", &["stay"]).image("localhost/testbed/absent:1");
        let absent = absent.with("/spec/containers/0/imagePullPolicy", "Never");
        for pod in [unreachable, absent] {
            tenant.objects.create(&pod.build()).await?;
        }
        tenant.pod_when("absent", "has no image", |vpod| waiting(vpod) == "ErrImageNeverPull").await?;
        let failed = |vpod: &Value| ["ErrImagePull", "ImagePullBackOff"].contains(&&*waiting(vpod));
        let vpod = tenant.pod_when("unreachable", "cannot pull", failed).await?;
        assert_eq!(vpod["status"]["phase"], "Pending");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn containers_live_on_while_the_kubelet_is_killed_and_the_next_one_takes_care_of_them() -> Result<()> {
    tenant("crash", West, async |tenant| {
        tenant.create_data("ConfigMap", "settings", &json!({ "word": "before" })).await?;
        let volumes = json!([{ "name": "settings", "configMap": { "name": "settings" } }]);
        let mounts = json!([{ "name": "settings", "mountPath": "/settings" }]);
        let pod = tenant.pod("survivor", &["follow", "/settings/word"]).with("/spec/volumes", volumes);
        let before = tenant.run(pod.with("/spec/containers/0/volumeMounts", mounts)).await?;
        tenant.prints("survivor", "main", "word: before").await?;

        tenant.lender.node.restart_kubelet().await?;
        // Only a kubelet that knows both pods carries this out.
        tenant.objects.patch("v1/ConfigMap", &tenant.at("settings"), &json!({ "data": { "word": "after" } })).await?;
        tenant.run(tenant.pod("newcomer", &["stay"])).await?;
        let printed = tenant.prints("survivor", "main", "word: after").await?;
        assert_eq!(printed, "word: before\nword: after\n", "one container printed both");

        let after = tenant.objects.get("v1/Pod", &tenant.at("survivor")).await?.context("it is gone")?;
        ensure!(after["metadata"]["deletionTimestamp"].is_null(), "it is being deleted");
        let main = |vpod: &Value| {
            let main = container(vpod, "main");
            (main["containerID"].clone(), main["restartCount"].clone(), main["state"]["running"].clone())
        };
        assert_eq!(main(&after), main(&before));
        Ok(())
    })
    .await
}
