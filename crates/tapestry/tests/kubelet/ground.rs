//! The clusters that all tests share: a virtual one and two physical ones, each of these with a real node, its binding and
//! its syncer. Must not depend on the runtime of a test: clusters, nodes and syncers are processes.

use std::os::unix::fs::DirBuilderExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::address::{Address, Network, Port};
use tapestry_testbed::builders::{binding, kubeconfig_secret, namespace, policy};
use tapestry_testbed::supervisor::{Launch, Supervisor};
use tapestry_testbed::{Cluster, ClusterConfig, Objects, Part, RealNode, eventually};
use tokio::sync::OnceCell;

/// The deadline of what takes seconds, on a machine that may be busy.
pub(crate) const SOON: Duration = Duration::from_mins(2);
/// The namespace of the copies in both physical clusters.
pub(crate) const MOUNT: &str = "copies";

/// All that tests share.
pub(crate) struct Ground {
    pub(crate) virtual_cluster: Cluster,
    pub(crate) east: Lender,
    pub(crate) west: Lender,
}

/// A physical cluster with a real node, whose binding has the name of the cluster.
pub(crate) struct Lender {
    pub(crate) cluster: Cluster,
    pub(crate) node: RealNode,
    syncer: Supervisor,
    _address: Address,
}

/// The clusters of this process, started by the first test that asks.
pub(crate) async fn ground() -> Result<&'static Ground> {
    static GROUND: OnceCell<Ground> = OnceCell::const_new();
    GROUND.get_or_try_init(|| Box::pin(Ground::start())).await
}

impl Ground {
    async fn start() -> Result<Self> {
        let virtual_cluster = ClusterConfig::virtual_cluster("virtual").network(Network::Nodes);
        // No kwok: it would play kubelets beside the real ones.
        let physical = |name: &str| ClusterConfig::physical(name, 0).without(Part::Kwok).network(Network::Nodes);
        let (virtual_cluster, east, west) = tokio::try_join!(
            Cluster::start(virtual_cluster),
            Cluster::start(physical("east")),
            Cluster::start(physical("west")),
        )?;
        install(&virtual_cluster).await?;
        let kubeconfig = virtual_cluster.virtual_account().await?;
        let (east, west) = tokio::try_join!(
            Lender::start(&virtual_cluster, &kubeconfig, east),
            Lender::start(&virtual_cluster, &kubeconfig, west),
        )?;
        Ok(Self { virtual_cluster, east, west })
    }
}

impl Lender {
    async fn start(virtual_cluster: &Cluster, kubeconfig: &str, cluster: Cluster) -> Result<Self> {
        let name = cluster.name().to_owned();
        let node = RealNode::start(&cluster, &format!("{name}-node")).await?;
        cluster.create(&namespace(MOUNT)).await?;
        let account = cluster.physical_account(MOUNT).await?;
        let virtual_side = virtual_cluster.objects()?;
        virtual_side.create(&kubeconfig_secret(keys::NAMESPACE, &name, &account)).await?;
        virtual_side.create(&bound(virtual_cluster, &name)?).await?;
        virtual_side.create(&policy(&name).cluster(&name).build()).await?;
        let (syncer, address) = start_syncer(&name, kubeconfig)?;
        let lender = Self { cluster, node, syncer, _address: address };
        lender.lends(&virtual_side).await?;
        Ok(lender)
    }

    /// Waits until the virtual node takes pods.
    async fn lends(&self, virtual_side: &Objects) -> Result<()> {
        let ours = format!("{}={}", keys::CLUSTER_BINDING, self.cluster.name());
        eventually(&format!("{} is lent", self.node.name()), SOON, async || {
            let nodes = virtual_side.list_where("v1/Node", "", &ours).await.map_err(|error| error.to_string())?;
            let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            match nodes.first().and_then(|node| node["status"]["conditions"].as_array()) {
                Some(conditions) if conditions.iter().any(ready) => Ok(()),
                other => Err(format!("{other:?}; {}", self.syncer_log())),
            }
        })
        .await
    }

    /// The end of the syncer's log, for failures.
    pub(crate) fn syncer_log(&self) -> String {
        let log = std::fs::read_to_string(self.syncer.folder().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("the syncer's log ends:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"))
    }
}

/// Pods of both bindings can call the virtual API server.
fn bound(virtual_cluster: &Cluster, name: &str) -> Result<Value> {
    let url: http::Uri = virtual_cluster.url().parse()?;
    let (host, port) = (url.host().context("no host")?, url.port_u16().context("no port")?);
    let server = json!({ "host": host, "port": port });
    let binding = binding(name).cluster_id(name).secret(keys::NAMESPACE, name).mount_namespace(MOUNT);
    Ok(binding.with("/spec/virtualAPIServer", server).build())
}

/// The real binary, under a supervisor that outlives even a killed test.
fn start_syncer(binding: &str, kubeconfig: &str) -> Result<(Supervisor, Address)> {
    let folder = std::env::temp_dir().join(format!("tapestry-kubelet-{}-{binding}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let supervisor = Supervisor::start(&folder)?;
    let file = folder.join("kubeconfig");
    std::fs::write(&file, kubeconfig)?;
    let address = Address::reserve()?;
    let args = vec![
        "syncer".to_owned(),
        format!("--cluster-binding={binding}"),
        format!("--virtual-kubeconfig={}", file.display()),
        format!("--metrics-address={}", address.at(Port::ApiServer)),
        format!("--health-address={}", address.at(Port::Kubelet)),
        "--debug-address=off".to_owned(),
    ];
    let launch = Launch { program: env!("CARGO_BIN_EXE_tapestry").into(), args, log: folder.join("log") };
    supervisor.launch("syncer", launch)?;
    Ok((supervisor, address))
}

/// Our definitions, served; and the namespace for kubeconfigs.
async fn install(cluster: &Cluster) -> Result<()> {
    let objects = cluster.objects()?;
    for definition in tapestry_api::crds::crds() {
        objects.create(&serde_json::to_value(definition)?).await?;
    }
    for kind in ["ClusterBinding", "ResourceLeasingPolicy"] {
        let kind = format!("cloud.tencent.com/v1beta1/{kind}");
        let look = async || objects.list(&kind, "").await.map(drop).map_err(|error| error.to_string());
        eventually(&format!("{kind} is served"), SOON, look).await?;
    }
    objects.apply(&namespace(keys::NAMESPACE)).await?;
    Ok(())
}
