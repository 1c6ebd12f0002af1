//! Both clusters, and everything that must exist in them before the first pod.
//! Must not favour a subject: both get the same nodes, namespaces and rights.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::crds::crds;
use tapestry_api::keys;
use tapestry_cluster::connect::Trust;
use tapestry_cluster::{Cluster as Client, Side};
use tapestry_domain::names::vnode_name;
use tapestry_testbed::audit::{Mark, Requests};
use tapestry_testbed::builders::{binding, kubeconfig_secret, namespace, node, policy};
use tapestry_testbed::supervisor::Supervisor;
use tapestry_testbed::{Cluster, ClusterConfig, Distance, Objects, Part, eventually};

use crate::figures::{Calls, Who};
use crate::load::NAMESPACE;
use crate::machine::{Machine, Processes};
use crate::observers::{LABEL, Observers};
use crate::subject::Subject;
use crate::work::Work;

/// Name of the binding and its clusterID.
pub(crate) const BINDING: &str = "bench";
/// The physical namespace of all copies.
pub(crate) const MOUNT: &str = "tapestry-mount";
const SECRET: &str = "bench-kubeconfig";
/// All rights: shipped RBAC is tested elsewhere, and the bare client has none.
const ADMINISTRATORS: &str = "system:masters";
/// What each physical node has: more than any load asks for.
pub(crate) const CPU: &str = "1000";
pub(crate) const MEMORY: &str = "8Ti";
const SOON: Duration = Duration::from_mins(1);

/// One virtual and one physical cluster, with observers on both.
pub(crate) struct Stage {
    virtual_cluster: Cluster,
    physical_cluster: Cluster,
    /// Between the subjects and the physical cluster; `None`: none is asked for.
    distance: Option<Distance>,
    supervisor: Supervisor,
    /// Speaks for the load, by side.
    pub(crate) clients: [Client; 2],
    /// Sees both sides.
    pub(crate) observers: Observers,
    /// Where virtual pods go.
    pub(crate) vnodes: Vec<String>,
    /// Pods that a physical node takes.
    pub(crate) capacity: u32,
    tapestry: PathBuf,
    bare_in_flight: usize,
    logs: PathBuf,
}

/// What a stage is made of.
pub(crate) struct Plan<'a> {
    /// Physical nodes.
    pub(crate) nodes: usize,
    /// The most pods at a time.
    pub(crate) pods: u32,
    /// The `tapestry` binary.
    pub(crate) tapestry: PathBuf,
    /// Where subjects log; `None`: thrown away at the end.
    pub(crate) logs: Option<&'a Path>,
    /// Calls that bare may have in flight.
    pub(crate) bare_in_flight: usize,
    /// Whether some load is carried over a distance: then all of them pass the relay.
    pub(crate) distant: bool,
}

impl Stage {
    /// Starts both clusters together and furnishes them.
    pub(crate) async fn build(plan: Plan<'_>) -> Result<Self> {
        let Plan { nodes, pods, tapestry, logs, bare_in_flight, distant } = plan;
        ensure!(nodes > 0, "pods need nodes: --nodes must be at least 1");
        // Twice what is needed: no pod shall ever wait for room.
        let capacity = 2000.max(2 * pods / u32::try_from(nodes)?);
        let physical_nodes =
            (0..nodes).map(|index| node(&format!("node-{index}")).pods(capacity).cpu(CPU).memory(MEMORY).build());
        // The vnodes' leases are renewed only while a syncer runs: without this flag the controller manager would call the
        // nodes lost in the middle of a bare run, and work on 1 000 pods.
        let patient = "--node-monitor-grace-period=30m";
        let above = ClusterConfig::virtual_cluster("virtual").flag(Part::ControllerManager, patient);
        let below = ClusterConfig::physical("physical", nodes).nodes(physical_nodes);
        let (virtual_cluster, physical_cluster) = tokio::try_join!(Cluster::start(above), Cluster::start(below))?;
        let distance = match physical_cluster.kubeconfig_text()? {
            kubeconfig if distant => Some(Distance::to_server_of(&kubeconfig).await?),
            _ => None,
        };
        let clients = [client(&virtual_cluster).await?, client(&physical_cluster).await?];
        let folder = std::env::temp_dir().join(format!("tapestry-bench-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let supervisor = Supervisor::start(&folder).inspect_err(|_| drop(std::fs::remove_dir(&folder)))?;
        if let Some(logs) = logs {
            std::fs::create_dir_all(logs).with_context(|| format!("making {}", logs.display()))?;
        }
        let stage = Self {
            observers: Observers::open(&clients[0], &clients[1]),
            virtual_cluster,
            physical_cluster,
            distance,
            supervisor,
            clients,
            vnodes: (0..nodes).map(|index| vnode_name(BINDING, &format!("node-{index}"))).collect(),
            capacity,
            tapestry,
            bare_in_flight,
            logs: logs.map_or(folder, Path::to_owned),
        };
        stage.furnish_virtual().await?;
        stage.furnish_physical().await?;
        Ok(stage)
    }

    async fn furnish_virtual(&self) -> Result<()> {
        let objects = self.virtual_cluster.objects()?;
        for crd in crds() {
            objects.apply(&json_of_crd(&crd)?).await?;
        }
        objects.create(&namespace(keys::NAMESPACE)).await?;
        objects.create(&namespace(NAMESPACE)).await?;
        let kubeconfig = self.kubeconfig(Who::Syncer, Side::Physical)?;
        objects.create(&kubeconfig_secret(keys::NAMESPACE, SECRET, &kubeconfig)).await?;
        let binding =
            binding(BINDING).cluster_id(BINDING).secret(keys::NAMESPACE, SECRET).mount_namespace(MOUNT).build();
        let policy = policy(BINDING).cluster(BINDING).limit_percent("cpu", 100).limit_percent("memory", 100).build();
        for object in [binding, policy] {
            eventually("our custom resources are served", SOON, async || {
                objects.create(&object).await.map(drop).map_err(|error| error.to_string())
            })
            .await?;
        }
        takes_pods(&objects, NAMESPACE).await
    }

    async fn furnish_physical(&self) -> Result<()> {
        self.found(MOUNT).await
    }

    /// Makes a physical namespace that takes pods.
    pub(crate) async fn found(&self, name: &str) -> Result<()> {
        let objects = self.physical_cluster.objects()?;
        objects.create(&namespace(name)).await?;
        takes_pods(&objects, name).await
    }

    /// All physical nodes.
    pub(crate) async fn physical_nodes(&self) -> Result<Vec<Value>> {
        Ok(self.physical_cluster.list("v1/Node", "").await?)
    }

    /// What the syncer makes for itself: virtual nodes, and the account and priority class of the copies.
    async fn furnish_for_bare(&self) -> Result<()> {
        let (above, below) = (self.virtual_cluster.objects()?, self.physical_cluster.objects()?);
        for vnode in &self.vnodes {
            let ready = json!([{ "type": "Ready", "status": "True", "reason": "Bench" }]);
            let vnode = node(vnode).pods(self.capacity).cpu(CPU).memory(MEMORY).with("/status/conditions", ready);
            create_if_missing(&above, "v1/Node", &vnode.build()).await?;
        }
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": keys::POD_SERVICE_ACCOUNT, "namespace": MOUNT },
        });
        create_if_missing(&below, "v1/ServiceAccount", &account).await?;
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": -10000, "preemptionPolicy": "Never",
            "metadata": { "name": keys::PRIORITY_CLASS },
        });
        create_if_missing(&below, "scheduling.k8s.io/v1/PriorityClass", &class).await
    }

    /// How a subject finds one side.
    fn kubeconfig(&self, who: Who, side: Side) -> Result<String> {
        let cluster = match side {
            Side::Virtual => &self.virtual_cluster,
            Side::Physical => &self.physical_cluster,
        };
        let kubeconfig = cluster.kubeconfig_for(who.user(), Some(ADMINISTRATORS))?;
        match &self.distance {
            Some(distance) if side == Side::Physical => distance.kubeconfig(&kubeconfig),
            _ => Ok(kubeconfig),
        }
    }

    /// From now on the physical cluster is this far from the subjects.
    pub(crate) fn set_round_trip(&self, rtt: Duration) {
        if let Some(distance) = &self.distance {
            distance.set_round_trip(rtt);
        }
    }

    /// Starts a subject; it may not be ready yet.
    pub(crate) async fn launch(&self, who: Who) -> Result<Subject<'_>> {
        let file = |side: Side| self.supervisor.folder().join(format!("{}-{}.kubeconfig", who.name(), side.as_str()));
        for side in Side::BOTH {
            if !file(side).exists() {
                std::fs::write(file(side), self.kubeconfig(who, side)?)?;
            }
        }
        let path = |side| file(side).to_string_lossy().into_owned();
        let flag = |name: &str, value: &str| [format!("--{name}"), value.to_owned()];
        let args = |health: SocketAddr| {
            let flags = match who {
                Who::Syncer => vec![
                    flag("cluster-binding", BINDING),
                    flag("virtual-kubeconfig", &path(Side::Virtual)),
                    flag("metrics-address", "127.0.0.1:0"),
                    flag("debug-address", "off"),
                    flag("health-address", &health.to_string()),
                ],
                Who::Bare => vec![
                    flag("cluster-id", BINDING),
                    flag("virtual-kubeconfig", &path(Side::Virtual)),
                    flag("physical-kubeconfig", &path(Side::Physical)),
                    flag("mount-namespace", MOUNT),
                    flag("in-flight", &self.bare_in_flight.to_string()),
                    flag("health-address", &health.to_string()),
                ],
            };
            std::iter::once(who.name().to_owned()).chain(flags.into_iter().flatten()).collect()
        };
        let program = match who {
            Who::Syncer => self.tapestry.clone(),
            Who::Bare => {
                self.furnish_for_bare().await?;
                std::env::current_exe()?
            }
        };
        let log = self.logs.join(format!("{}.log", who.name()));
        Subject::launch(&self.supervisor, who, program, args, log)
    }

    /// Starts a subject and waits until pods can be given to it.
    pub(crate) async fn start(&self, who: Who) -> Result<Subject<'_>> {
        let subject = self.launch(who).await?;
        subject.ready(SOON).await?;
        let objects = self.virtual_cluster.objects()?;
        let nodes = eventually("all virtual nodes are ready", SOON, async || {
            let nodes = objects.list("v1/Node", "").await.map_err(|error| error.to_string())?;
            let ready =
                |vnode: &&String| nodes.iter().any(|node| node["metadata"]["name"] == ***vnode && is_ready(node));
            match self.vnodes.iter().filter(ready).count() {
                count if count == self.vnodes.len() => Ok(()),
                count => Err(format!("{count} of {}; all nodes: {}", self.vnodes.len(), names(&nodes))),
            }
        });
        nodes.await.map_err(|error| subject.blame(error))?;
        Ok(subject)
    }

    /// Fails when a pod is left on either side, or a copy of what one named.
    pub(crate) async fn is_empty(&self) -> Result<()> {
        for kind in ["v1/ConfigMap", "v1/Secret"] {
            let mut left = self.physical_cluster.list(kind, MOUNT).await?;
            left.retain(|object| object["metadata"]["labels"][LABEL].is_string());
            ensure!(left.is_empty(), "{} copies are left: {}", left.len(), names(&left));
        }
        for (cluster, namespace) in [(&self.virtual_cluster, NAMESPACE), (&self.physical_cluster, MOUNT)] {
            let left = cluster.list("v1/Pod", namespace).await?;
            ensure!(left.is_empty(), "{} {} pods are left: {}", left.len(), cluster.name(), names(&left));
        }
        Ok(())
    }

    /// Whose processor time counts as what.
    pub(crate) fn processes(&self, subject: &Subject<'_>) -> Result<Processes> {
        let mut clusters = Vec::new();
        for cluster in [&self.virtual_cluster, &self.physical_cluster] {
            for part in Part::ALL {
                let name = format!("{} {}", cluster.name(), part.name());
                clusters.extend(cluster.component(part).pid()?.map(|pid| (name, pid)));
            }
        }
        Ok(Processes { subject: subject.pid, clusters })
    }

    /// From here on requests are counted.
    pub(crate) async fn mark(&self) -> Result<[Mark; 2]> {
        Ok([self.virtual_cluster.audit().mark().await?, self.physical_cluster.audit().mark().await?])
    }

    /// What `who` asked since then.
    pub(crate) async fn calls(&self, who: Who, marks: &[Mark; 2], pods: u32) -> Result<Calls> {
        let [above, below] = &self.requests(marks).await?;
        Ok(Calls::count(who, [above, below], pods))
    }

    /// All requests to both API servers since then, of every user.
    pub(crate) async fn requests(&self, marks: &[Mark; 2]) -> Result<[Requests; 2]> {
        Ok([
            self.virtual_cluster.audit().since(&marks[0]).await?,
            self.physical_cluster.audit().since(&marks[1]).await?,
        ])
    }

    /// What both API servers have done so far.
    pub(crate) async fn work(&self) -> Result<[Work; 2]> {
        Ok([Work::read(&self.clients[0]).await?, Work::read(&self.clients[1]).await?])
    }

    /// The control planes under all this.
    pub(crate) async fn machine(&self, load_before: f64) -> Result<Machine> {
        let version = self.virtual_cluster.client()?.apiserver_version().await?;
        Machine::look(Some(&version.git_version), load_before)
    }
}

async fn client(cluster: &Cluster) -> Result<Client> {
    Ok(Client::connect(cluster.name(), &cluster.kubeconfig_text()?, Trust::Operator, "tapestry-bench").await?)
}

fn json_of_crd(crd: &impl serde::Serialize) -> Result<Value> {
    let mut json = serde_json::to_value(crd)?;
    json["apiVersion"] = "apiextensions.k8s.io/v1".into();
    json["kind"] = "CustomResourceDefinition".into();
    Ok(json)
}

async fn create_if_missing(objects: &Objects, kind: &str, object: &Value) -> Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&object["metadata"]["name"]);
    let place = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name,
    };
    if objects.get(kind, &place).await?.is_none() {
        objects.create(object).await?;
    }
    Ok(())
}

/// A pod is refused until its namespace has a default `ServiceAccount`.
async fn takes_pods(objects: &Objects, namespace: &str) -> Result<()> {
    let place = format!("{namespace}/default");
    eventually("the namespace has a default ServiceAccount", SOON, async || {
        match objects.get("v1/ServiceAccount", &place).await {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn names(objects: &[Value]) -> String {
    let names: Vec<_> = objects.iter().filter_map(|object| object["metadata"]["name"].as_str()).take(5).collect();
    names.join(", ")
}
