//! ConfigMaps, Secrets and tokens, as a container sees them.

use anyhow::{Result, ensure};
use serde_json::json;
use tapestry_testbed::eventually;

use crate::ground::SOON;
use crate::tenant::Direction::{East, West};
use crate::tenant::tenant;

#[tokio::test]
async fn a_container_reads_its_configmap_and_secret_and_sees_both_change() -> Result<()> {
    tenant("files", East, async |tenant| {
        tenant.create_data("ConfigMap", "settings", &json!({ "greeting": "good morning", "colour": "blue" })).await?;
        tenant.create_data("Secret", "login", &json!({ "password": "hunter2" })).await?;
        let actions = ["env", "COLOUR", "env", "PASSWORD", "show", "/login/password", "follow", "/settings/greeting"];
        let env = json!([
            { "name": "COLOUR", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "colour" } } },
            { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "login", "key": "password" } } },
        ]);
        let volumes = json!([
            { "name": "settings", "configMap": { "name": "settings" } },
            { "name": "login", "secret": { "secretName": "login", "defaultMode": 0o400 } },
        ]);
        let mounts = json!([
            { "name": "settings", "mountPath": "/settings" },
            { "name": "login", "mountPath": "/login", "readOnly": true },
        ]);
        let pod = tenant.pod("reader", &actions).with("/spec/volumes", volumes);
        let pod = pod.with("/spec/containers/0/env", env).with("/spec/containers/0/volumeMounts", mounts);
        tenant.run(pod).await?;
        let printed = tenant.prints("reader", "main", "greeting: good morning").await?;
        assert_eq!(printed, "COLOUR=blue\nPASSWORD=hunter2\nhunter2\ngreeting: good morning\n");

        let change = json!({ "data": { "greeting": "good night" } });
        tenant.objects.patch("v1/ConfigMap", &tenant.at("settings"), &change).await?;
        tenant.prints("reader", "main", "greeting: good night").await?;

        let volumes = json!([{ "name": "login", "secret": { "secretName": "login" } }]);
        let mounts = json!([{ "name": "login", "mountPath": "/login" }]);
        let pod = tenant.pod("follower", &["follow", "/login/password"]).with("/spec/volumes", volumes);
        tenant.run(pod.with("/spec/containers/0/volumeMounts", mounts)).await?;
        tenant.prints("follower", "main", "password: hunter2").await?;
        let change = json!({ "stringData": { "password": "hunter3" } });
        tenant.objects.patch("v1/Secret", &tenant.at("login"), &change).await?;
        tenant.prints("follower", "main", "password: hunter3").await.map(drop)
    })
    .await
}

#[tokio::test]
async fn law_10_a_container_calls_the_virtual_api_server_with_the_rights_of_its_virtual_account() -> Result<()> {
    tenant("caller", West, async |tenant| {
        tenant.create_data("ConfigMap", "open", &json!({ "content": "of the virtual cluster" })).await?;
        let metadata = json!({ "name": "reader", "namespace": tenant.name });
        let group = "rbac.authorization.k8s.io";
        let role = json!({
            "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata,
            "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] }],
        });
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": group, "kind": "Role", "name": "reader" },
            "subjects": [{ "kind": "ServiceAccount", "name": "default", "namespace": tenant.name }],
        });
        tenant.objects.create(&role).await?;
        tenant.objects.create(&binding).await?;

        let server = "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1/namespaces/caller";
        let (open, closed) = (format!("{server}/configmaps/open"), format!("{server}/secrets/any"));
        let account = "/var/run/secrets/kubernetes.io/serviceaccount";
        let namespace = format!("{account}/namespace");
        let pod = tenant.pod("client", &["show", &namespace, "get", &open, "get", &closed, "stay"]);
        tenant.run(pod).await?;
        let printed = tenant.prints("client", "main", "403").await?;
        let lines: Vec<&str> = printed.lines().collect();
        ensure!(lines.first() == Some(&"caller"), "the namespace is the virtual one: {printed}");
        ensure!(printed.contains("200 ") && printed.contains("of the virtual cluster"), "{printed}");
        ensure!(printed.contains("system:serviceaccount:caller:default"), "{printed}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_of_one_deployment_run_in_both_physical_clusters() -> Result<()> {
    tenant("spread", East, async |tenant| {
        let spread = json!([{
            "topologyKey": tapestry_api::keys::CLUSTER_BINDING, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "web" } },
        }]);
        let pod = tenant.pod("web", &["say", "hello", "stay"]).with("/spec/nodeSelector", json!(null));
        let pod = pod.with("/spec/topologySpreadConstraints", spread);
        let web = tapestry_testbed::builders::deployment("web", 2).namespace(tenant.name).pods(pod);
        tenant.objects.create(&web.build()).await?;
        eventually("both pods are available", SOON, async || {
            let seen = tenant.objects.get("apps/v1/Deployment", &tenant.at("web")).await;
            let status = seen.map_err(|error| error.to_string())?.unwrap_or_default()["status"].clone();
            if status["availableReplicas"] == 2 { Ok(()) } else { Err(status.to_string()) }
        })
        .await?;
        for lender in [&tenant.ground.east, &tenant.ground.west] {
            let ours = lender.cluster.list("v1/Pod", crate::ground::MOUNT).await?;
            let of_this_test = |pod: &&serde_json::Value| {
                pod["metadata"]["annotations"][tapestry_api::keys::VIRTUAL_POD_NAMESPACE] == tenant.name
            };
            assert_eq!(ours.iter().filter(of_this_test).count(), 1, "in {}", lender.cluster.name());
        }
        Ok(())
    })
    .await
}
