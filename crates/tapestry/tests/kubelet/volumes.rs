//! PersistentVolumes, as a container sees them.

use anyhow::Result;
use serde_json::{Value, json};
use tapestry_testbed::builders::Pod;
use tapestry_testbed::eventually;

use crate::ground::SOON;
use crate::tenant::Direction::West;
use crate::tenant::{Tenant, tenant};

const BINDING: &str = "cloud.tencent.com/v1beta1/ClusterBinding";

/// A directory of the physical node as a volume, and the claim that it is for.
fn disk(tenant: &Tenant) -> [Value; 2] {
    let size = json!({ "storage": "1Mi" });
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "disk-data" },
        "spec": {
            "capacity": size, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
            "hostPath": { "path": "/var/lib/disk-data", "type": "DirectoryOrCreate" },
            "claimRef": { "namespace": tenant.name, "name": "data" },
        },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data", "namespace": tenant.name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": size }, "storageClassName": "", "volumeName": "disk-data",
        },
    });
    [volume, claim]
}

fn with_disk(pod: Pod) -> Pod {
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    let mounts = json!([{ "name": "data", "mountPath": "/data" }]);
    pod.with("/spec/volumes", volumes).with("/spec/containers/0/volumeMounts", mounts)
}

#[tokio::test]
async fn data_on_a_volume_survives_the_pod_that_wrote_it() -> Result<()> {
    tenant("disk", West, async |tenant| {
        // A directory of a node is refused otherwise.
        let privileged = json!({ "spec": { "podSecurity": "privileged" } });
        tenant.objects.patch(BINDING, tenant.lender.cluster.name(), &privileged).await?;
        for object in disk(tenant) {
            tenant.objects.create(&object).await?;
        }
        tenant
            .run(with_disk(tenant.pod("writer", &["write", "/data/letter", "still here", "say", "written", "stay"])))
            .await?;
        tenant.prints("writer", "main", "written").await?;
        tenant.objects.delete("v1/Pod", &tenant.at("writer")).await?;
        eventually("the first pod is gone", SOON, async || {
            match tenant.objects.get("v1/Pod", &tenant.at("writer")).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        tenant.run(with_disk(tenant.pod("reader", &["show", "/data/letter", "stay"]))).await?;
        tenant.prints("reader", "main", "still here").await?;
        tenant.objects.delete("v1/PersistentVolume", "disk-data").await?;
        Ok(())
    })
    .await
}
