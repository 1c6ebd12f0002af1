//! The lives of containers, and how they look in the virtual cluster.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_testbed::eventually;
use tapestry_testbed::node::IMAGE;

use crate::ground::SOON;
use crate::tenant::Direction::{East, West};
use crate::tenant::{container, items, name, tenant, text};

/// A volume that the containers of a pod share, at `/shared`.
fn shared() -> (Value, Value) {
    (json!([{ "name": "shared", "emptyDir": {} }]), json!([{ "name": "shared", "mountPath": "/shared" }]))
}

#[tokio::test]
async fn init_containers_end_before_sidecars_start_and_sidecars_before_the_others() -> Result<()> {
    tenant("order", West, async |tenant| {
        let (volumes, mounts) = shared();
        let probe = json!({ "exec": { "command": ["/bin/box", "exists", "/shared/sidecar"] }, "periodSeconds": 1 });
        let before = json!([
            { "name": "first", "image": IMAGE, "volumeMounts": mounts, "args": ["say", "first", "write", "/shared/first", "of the first"] },
            {
                "name": "sidecar", "image": IMAGE, "volumeMounts": mounts, "restartPolicy": "Always", "startupProbe": probe,
                "args": ["show", "/shared/first", "write", "/shared/sidecar", "of the sidecar", "stay"],
            },
        ]);
        let pod = tenant.pod("ordered", &["show", "/shared/first", "show", "/shared/sidecar", "stay"]);
        let pod = pod.with("/spec/volumes", volumes).with("/spec/initContainers", before);
        let vpod = tenant.run(pod.with("/spec/containers/0/volumeMounts", mounts)).await?;
        assert_eq!(tenant.prints("ordered", "main", "sidecar").await?, "of the first\nof the sidecar\n");
        assert_eq!(container(&vpod, "first")["state"]["terminated"]["exitCode"], 0, "{}", vpod["status"]);
        assert_eq!(container(&vpod, "sidecar")["started"], true, "{}", vpod["status"]);
        ensure!(!container(&vpod, "sidecar")["state"]["running"].is_null(), "{}", vpod["status"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_container_that_its_probe_finds_dead_is_restarted_and_the_virtual_pod_counts_it() -> Result<()> {
    tenant("probes", East, async |tenant| {
        let (volumes, mounts) = shared();
        let alive = json!({ "exec": { "command": ["/bin/box", "exists", "/shared/alive"] }, "periodSeconds": 1, "failureThreshold": 1 });
        let ready = json!({ "httpGet": { "path": "/", "port": 8080 }, "periodSeconds": 1 });
        // The first life of `main` ends by its liveness probe; then `doctor` makes it healthy.
        let doctor = json!({ "name": "doctor", "image": IMAGE, "volumeMounts": mounts, "args": ["sleep", "5s", "write", "/shared/alive", "yes", "stay"] });
        let mut pod = tenant.pod("patient", &["serve", "8080", "/shared/alive"]).with("/spec/volumes", volumes).build();
        let main = &mut pod["spec"]["containers"][0];
        main["volumeMounts"] = mounts;
        main["livenessProbe"] = alive;
        main["readinessProbe"] = ready;
        let main = main.take();
        pod["spec"]["containers"] = json!([main, doctor]);
        tenant.objects.create(&pod).await?;
        let vpod = tenant.pod_when("patient", "was restarted and is ready", |vpod| {
            let main = container(vpod, "main");
            main["restartCount"].as_u64() >= Some(1) && main["ready"] == true
        });
        let vpod = vpod.await?;
        ensure!(!container(&vpod, "main")["lastState"]["terminated"].is_null(), "{}", vpod["status"]);
        assert_eq!(container(&vpod, "doctor")["restartCount"], 0);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_container_that_uses_too_much_memory_is_killed_and_the_virtual_pod_says_so() -> Result<()> {
    tenant("hungry", West, async |tenant| {
        let pod = tenant.pod("glutton", &["eat", "512"]).limit("memory", "64Mi").with("/spec/restartPolicy", "Never");
        tenant.objects.create(&pod.build()).await?;
        let vpod = tenant.pod_when("glutton", "failed", |vpod| vpod["status"]["phase"] == "Failed").await?;
        let end = &container(&vpod, "main")["state"]["terminated"];
        assert_eq!((text(&end["reason"]), &end["exitCode"]), ("OOMKilled", &json!(137)));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn exit_code_and_last_words_of_a_container_stand_in_the_virtual_pod() -> Result<()> {
    tenant("words", East, async |tenant| {
        let pod = tenant.pod("brief", &["say", "working", "last-words", "out of paper", "exit", "7"]);
        tenant.objects.create(&pod.with("/spec/restartPolicy", "Never").build()).await?;
        let vpod = tenant.pod_when("brief", "failed", |vpod| vpod["status"]["phase"] == "Failed").await?;
        let end = &container(&vpod, "main")["state"]["terminated"];
        assert_eq!((&end["exitCode"], text(&end["message"])), (&json!(7), "out of paper"));
        assert_eq!(tenant.printed("brief", "main", false).await?, "working\n");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deleted_pod_has_its_prestop_hook_and_its_grace_and_goes_when_the_container_has_ended() -> Result<()> {
    tenant("grace", West, async |tenant| {
        // The hook writes to the container's own stdout.
        let hook = json!({ "preStop": { "exec": { "command": ["/bin/box", "write", "/proc/1/fd/1", "hook\n", "sleep", "1s"] } } });
        let pod = tenant.pod("polite", &["on-term", "1s", "goodbye", "say", "hello", "stay"]);
        let pod = pod.with("/spec/containers/0/lifecycle", hook).with("/spec/terminationGracePeriodSeconds", 20);
        tenant.run(pod).await?;
        tenant.prints("polite", "main", "hello").await?;
        let (printed, deleted) = tokio::join!(tenant.printed("polite", "main", true), async {
            tenant.objects.delete("v1/Pod", &tenant.at("polite")).await?;
            let leaving = |vpod: &Value| vpod["metadata"]["deletionGracePeriodSeconds"] == 20;
            tenant.pod_when("polite", "is leaving, not gone", leaving).await
        });
        deleted?;
        assert_eq!(printed?, "hello\nhook\ngoodbye\n");
        eventually("the virtual pod is gone", SOON, async || {
            match tenant.objects.get("v1/Pod", &tenant.at("polite")).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_job_whose_first_pod_fails_succeeds_with_its_second() -> Result<()> {
    tenant("job", East, async |tenant| {
        let volumes = json!([{ "name": "settings", "configMap": { "name": "settings", "optional": true } }]);
        let mounts = json!([{ "name": "settings", "mountPath": "/settings" }]);
        let pod = tenant.pod("work", &["show", "/settings/answer"]).with("/spec/restartPolicy", "Never");
        let mut pod = pod.with("/spec/volumes", volumes).with("/spec/containers/0/volumeMounts", mounts).build();
        let template = json!({ "spec": pod["spec"].take() });
        let metadata = json!({ "name": "work", "namespace": tenant.name });
        let spec = json!({ "backoffLimit": 2, "template": template });
        tenant
            .objects
            .create(&json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec }))
            .await?;
        let job_when = async |what: &str, holds: fn(&Value) -> bool| {
            eventually(&format!("the Job {what}"), SOON, async || {
                let job = tenant.objects.get("batch/v1/Job", &tenant.at("work")).await;
                let job = job.map_err(|error| error.to_string())?.unwrap_or_default();
                if holds(&job) { Ok(job) } else { Err(job["status"].to_string()) }
            })
            .await
        };
        job_when("has a failed pod", |job| job["status"]["failed"] == 1).await?;
        // The Job waits ten seconds before its second pod: it finds what the first one missed.
        tenant.create_data("ConfigMap", "settings", &json!({ "answer": "42" })).await?;
        job_when("is complete", |job| job["status"]["succeeded"] == 1).await?;
        let pods = tenant.objects.list("v1/Pod", tenant.name).await?;
        let of_phase = |phase: &str| pods.iter().filter(|pod| pod["status"]["phase"] == phase).collect::<Vec<_>>();
        let (failed, succeeded) = (of_phase("Failed"), of_phase("Succeeded"));
        assert_eq!((failed.len(), succeeded.len()), (1, 1));
        assert_eq!(items(&failed[0]["status"]["containerStatuses"])[0]["state"]["terminated"]["exitCode"], 1);
        assert_eq!(tenant.printed(name(succeeded[0]), "main", false).await?, "42\n");
        Ok(())
    })
    .await
}
