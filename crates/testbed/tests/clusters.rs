//! Real control planes start, run pods, survive restarts, and log requests.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tapestry_testbed::builders::{deployment, namespace, node, pod};
use tapestry_testbed::{Cluster, ClusterConfig, Objects, Part, eventually, fleet};

const SOON: Duration = Duration::from_mins(1);

#[tokio::test]
async fn pods_of_a_deployment_run_on_simulated_nodes() -> Result<()> {
    let physical = fleet().await?.physical(0)?;
    let objects = physical.objects()?;
    objects.create(&namespace("shop")).await?;
    let web = deployment("web", 3).namespace("shop").pods(pod("web").cpu("250m").memory("64Mi"));
    objects.create(&web.build()).await?;
    running(&objects, "shop", 3).await?;

    let pods = objects.list("v1/Pod", "shop").await?;
    let path = format!("/api/v1/namespaces/shop/pods/{}/log", pods[0]["metadata"]["name"].as_str().context("no name")?);
    let log = physical.client()?.request_text(http::Request::get(path).body(Vec::new())?).await?;
    assert_eq!(log, "hello from a simulated pod\n");
    Ok(())
}

/// A second test with its own runtime, on the same fleet.
#[tokio::test]
async fn clusters_of_a_fleet_are_different_clusters() -> Result<()> {
    let fleet = fleet().await?;
    let mut identities: Vec<&str> = fleet.clusters().map(Cluster::identity).collect();
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len(), 3);
    assert_eq!(fleet.virtual_cluster()?.list("v1/Node", "").await?, Vec::<Value>::new());
    // A credential of one is invalid in the others.
    let (one, other) = (fleet.physical(0)?, fleet.physical(1)?);
    let stranger = one.kubeconfig_text()?.replace(&one.url(), &other.url());
    assert!(Objects::connect(&stranger).await?.list("v1/Node", "").await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_user_without_rights_is_refused_by_rbac() -> Result<()> {
    let cluster = fleet().await?.physical(0)?;
    let alice = Objects::connect(&cluster.kubeconfig_for("alice", None)?).await?;
    match alice.list("v1/Node", "").await {
        Err(kube::Error::Api(refusal)) => assert_eq!(refusal.code, 403),
        other => anyhow::bail!("not refused: {other:?}"),
    }
    Ok(())
}

#[tokio::test]
async fn audit_shows_each_request_of_a_user_agent_once() -> Result<()> {
    let cluster = fleet().await?.physical(1)?;
    let objects = cluster.objects()?;
    let mark = cluster.audit().mark().await?;
    objects.create(&namespace("audited")).await?;
    objects.get("v1/Pod", "audited/none").await?;
    objects.list("apps/v1/Deployment", "audited").await?;
    let ours = cluster
        .audit()
        .since(&mark)
        .await?
        .by_agent("tapestry-testbed")
        .only(|request| request.namespace == "audited" || request.name == "audited");
    let told: Vec<_> = ours.0.iter().map(|r| (r.verb.as_str(), r.resource.as_str(), r.name.as_str(), r.code)).collect();
    let expected =
        [("create", "namespaces", "audited", 201), ("get", "pods", "none", 404), ("list", "deployments.apps", "", 200)];
    assert_eq!(told, expected, "\n{}", ours.summary());
    assert_eq!(ours.writes().count(), 1);
    Ok(())
}

#[tokio::test]
async fn a_cluster_without_controller_manager_keeps_its_objects_over_restarts_and_freezes() -> Result<()> {
    let config = ClusterConfig::physical("alone", 1).without(Part::ControllerManager).without(Part::Scheduler);
    let cluster = Cluster::start(config).await?;
    cluster.add_node(&node("small").cpu("1").memory("1Gi").pods(4).build()).await?;
    cluster.create(&pod("bound").on("node-0").build()).await?;
    running(&cluster.objects()?, "default", 1).await?;

    cluster.apiserver().stop().await?;
    assert!(cluster.list("v1/Pod", "default").await.is_err());
    cluster.etcd().kill().await?;
    cluster.etcd().start()?;
    cluster.apiserver().start()?;
    cluster.ready().await?;
    running(&cluster.objects()?, "default", 1).await?;

    cluster.apiserver().freeze()?;
    let frozen = tokio::time::timeout(Duration::from_millis(500), cluster.list("v1/Pod", "default")).await;
    assert!(frozen.is_err(), "a frozen server answered");
    cluster.apiserver().thaw()?;
    cluster.ready().await?;
    cluster.remove_node("small").await?;
    assert_eq!(cluster.list("v1/Node", "").await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_start_that_fails_shows_the_log_of_the_failed_part() -> Result<()> {
    let config = ClusterConfig::virtual_cluster("broken").flag(Part::ApiServer, "--no-such-flag");
    let failed = Cluster::start(config).await.err().context("it started")?;
    assert!(format!("{failed:#}").contains("unknown flag: --no-such-flag"), "{failed:#}");
    Ok(())
}

async fn running(objects: &Objects, namespace: &str, count: usize) -> Result<()> {
    eventually(&format!("{count} pods of {namespace} run"), SOON, async || {
        let pods = objects.list("v1/Pod", namespace).await.map_err(|error| error.to_string())?;
        let phases: Vec<Value> = pods.iter().map(|pod| pod["status"]["phase"].clone()).collect();
        if phases == vec![json!("Running"); count] { Ok(()) } else { Err(format!("{phases:?}")) }
    })
    .await
}
