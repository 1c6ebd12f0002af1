//! The setup: two clusters, the owner's own pods in one, binding and policy in the other. Must
//! not start the syncer, nor print anything.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_domain::names;
use tapestry_testbed::address::Network;
use tapestry_testbed::builders::{binding, deployment, kubeconfig_secret, namespace, pod, policy};
use tapestry_testbed::cluster::Progress;
use tapestry_testbed::supervisor::Supervisor;
use tapestry_testbed::{Cluster, ClusterConfig, Objects, Part, RealNode, eventually};

use super::{is_true, text};

/// Name of the binding, and its clusterID.
pub(super) const BINDING: &str = "demo";
/// Where the copies live in the physical cluster.
pub(super) const MOUNT: &str = "tapestry-demo";
/// Name of the policy.
pub(super) const POLICY: &str = "half";
/// How much of idle CPU and memory the policy lends.
pub(super) const LENT_PERCENT: u32 = 50;
/// Namespace and name of the Deployment that the owner of the physical cluster runs.
pub(super) const OWNER: (&str, &str) = ("owner", "shop");
/// A pod of another user in the namespace of the copies.
const STRANGER: &str = "stranger";
/// Name of the Secret with the physical kubeconfig.
const SECRET: &str = "kubeconfig-demo";
/// Seconds on an idle machine; minutes where others compile.
pub(super) const DEADLINE: Duration = Duration::from_mins(2);

/// Both clusters. Dropping it ends them.
pub(super) struct Stage {
    /// The cluster that borrows.
    pub(super) virtual_cluster: Cluster,
    /// The cluster that lends.
    pub(super) physical_cluster: Cluster,
    /// Objects of the virtual cluster.
    pub(super) virtual_side: Objects,
    /// Objects of the physical cluster.
    pub(super) physical_side: Objects,
}

/// Files of the demo for its users: removed with the supervisor.
pub(super) struct Files {
    /// Owns the folder.
    pub(super) supervisor: Supervisor,
    /// Kubeconfig of the virtual cluster's administrator.
    pub(super) virtual_kubeconfig: PathBuf,
    /// Kubeconfig of the physical cluster's administrator.
    pub(super) physical_kubeconfig: PathBuf,
    /// Kubeconfig of the syncer's account in the virtual cluster.
    pub(super) syncer_kubeconfig: PathBuf,
}

impl Stage {
    /// Starts both clusters at once.
    pub(super) async fn raise(nodes: usize, progress: &Progress) -> Result<Self> {
        // Where real nodes can run, their pods must reach both.
        let network = if RealNode::possible()? { Network::Nodes } else { Network::Loopback };
        let virtual_cluster = ClusterConfig::virtual_cluster("virtual").network(network).progress(progress.clone());
        let physical_cluster = ClusterConfig::physical("physical", nodes).network(network).progress(progress.clone());
        // A real node has a kubelet already.
        let physical_cluster = physical_cluster
            .flag(Part::Kwok, "--manage-all-nodes=false")
            .flag(Part::Kwok, "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake");
        let (virtual_cluster, physical_cluster) =
            tokio::try_join!(Cluster::start(virtual_cluster), Cluster::start(physical_cluster))?;
        let (virtual_side, physical_side) = (virtual_cluster.objects()?, physical_cluster.objects()?);
        Ok(Self { virtual_cluster, physical_cluster, virtual_side, physical_side })
    }

    /// Puts the kubeconfigs where they are easy to type, readable by us alone.
    pub(super) async fn files(&self) -> Result<Files> {
        let folder = std::env::temp_dir().join(format!("tapestry-demo-{}", std::process::id()));
        let mut new = std::fs::DirBuilder::new();
        new.mode(0o700).create(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let supervisor = Supervisor::start(&folder).inspect_err(|_| drop(std::fs::remove_dir(&folder)))?;
        let copy = |cluster: &Cluster| {
            let file = folder.join(format!("{}.kubeconfig", cluster.name()));
            std::fs::copy(cluster.kubeconfig(), &file).with_context(|| format!("writing {}", file.display()))?;
            anyhow::Ok(file)
        };
        let (virtual_kubeconfig, physical_kubeconfig) = (copy(&self.virtual_cluster)?, copy(&self.physical_cluster)?);
        let syncer_kubeconfig = folder.join("syncer.kubeconfig");
        std::fs::write(&syncer_kubeconfig, self.virtual_cluster.virtual_account().await?)?;
        Ok(Files { supervisor, virtual_kubeconfig, physical_kubeconfig, syncer_kubeconfig })
    }

    /// In the physical cluster: the owner's own workload, the mount namespace, and a pod in it that is not ours.
    pub(super) async fn furnish_physical(&self, owners: usize) -> Result<()> {
        let side = &self.physical_side;
        for name in [OWNER.0, MOUNT] {
            side.create(&namespace(name)).await?;
        }
        let replicas = u32::try_from(owners)?;
        let shop = deployment(OWNER.1, replicas).namespace(OWNER.0).pods(pod("shop").cpu("1").memory("4Gi"));
        side.create(&shop.build()).await?;
        let stranger = pod(STRANGER).namespace(MOUNT).on("node-0").cpu("1").memory("2Gi").build();
        // Refused until the controller manager has created the namespace's default ServiceAccount.
        created(side, &stranger).await?;
        eventually("the owner's pods run", DEADLINE, async || {
            let pods = self.foreign_pods().await.map_err(|error| format!("{error:#}"))?;
            let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
            if running == owners + 1 { Ok(()) } else { Err(format!("{running} of {} Running", owners + 1)) }
        })
        .await
    }

    /// The pods of the physical cluster that are not ours: the owner's, then the foreign one.
    pub(super) async fn foreign_pods(&self) -> Result<Vec<Value>> {
        let mut pods = self.physical_side.list("v1/Pod", OWNER.0).await?;
        pods.sort_by(|a, b| text(&a["metadata"]["name"]).cmp(text(&b["metadata"]["name"])));
        pods.extend(self.physical_side.get("v1/Pod", &format!("{MOUNT}/{STRANGER}")).await?);
        Ok(pods)
    }

    /// In the virtual cluster: our definitions, the kubeconfig, the binding and the policy. Returns the label on
    /// everything that this binding creates in the physical cluster.
    pub(super) async fn furnish_virtual(&self) -> Result<String> {
        let side = &self.virtual_side;
        let crds: Vec<Value> = tapestry_api::crds::crds().iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        for crd in &crds {
            side.create(crd).await.context("creating our custom resource definitions")?;
        }
        for crd in &crds {
            established(side, text(&crd["metadata"]["name"])).await?;
        }
        side.create(&namespace(keys::NAMESPACE)).await?;
        // As its users would: an account with the rights of deploy/rbac.
        let kubeconfig = self.physical_cluster.physical_account(MOUNT).await?;
        side.create(&kubeconfig_secret(keys::NAMESPACE, SECRET, &kubeconfig)).await?;
        let bound = binding(BINDING).cluster_id(BINDING).secret(keys::NAMESPACE, SECRET).mount_namespace(MOUNT);
        // With it, pods get the token that the virtual cluster injects.
        let bound = bound.with("/spec/virtualAPIServer", api_server(&self.virtual_cluster.url())?);
        let bound = created(side, &bound.build()).await?;
        let half = policy(POLICY).cluster(BINDING);
        let half = half.limit_percent("cpu", LENT_PERCENT).limit_percent("memory", LENT_PERCENT);
        created(side, &half.build()).await?;
        let uid = text(&bound["metadata"]["uid"]);
        ensure!(!uid.is_empty(), "expected the binding to have a UID, saw {bound}");
        Ok(names::origin_hash(self.virtual_cluster.identity(), uid))
    }

    /// Sets the number of replicas of a Deployment in the virtual cluster.
    pub(super) async fn scale(&self, (namespace, name): (&str, &str), replicas: usize) -> Result<()> {
        let scale = json!({ "spec": { "replicas": replicas } });
        let place = format!("{namespace}/{name}");
        self.virtual_side.patch_subresource("scale", "apps/v1/Deployment", &place, &scale).await?;
        Ok(())
    }
}

/// Host and port of an API server.
fn api_server(url: &str) -> Result<Value> {
    let url: http::Uri = url.parse().with_context(|| format!("reading the address {url}"))?;
    let (host, port) = url.host().zip(url.port_u16()).with_context(|| format!("no host or port in {url}"))?;
    Ok(json!({ "host": host, "port": port }))
}

/// Creates an object whose kind or namespace may not be ready yet.
async fn created(side: &Objects, object: &Value) -> Result<Value> {
    let what = format!("{} {} is created", text(&object["kind"]), text(&object["metadata"]["name"]));
    eventually(&what, DEADLINE, async || side.create(object).await.map_err(|error| error.to_string())).await
}

async fn established(side: &Objects, crd: &str) -> Result<()> {
    eventually(&format!("{crd} is Established"), DEADLINE, async || {
        let seen = side.get("apiextensions.k8s.io/v1/CustomResourceDefinition", crd).await;
        let seen = seen.map_err(|error| error.to_string())?.unwrap_or_default();
        if is_true(&seen, "Established") { Ok(()) } else { Err(seen["status"]["conditions"].to_string()) }
    })
    .await
}
