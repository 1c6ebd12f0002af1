//! One real control plane: etcd, kube-apiserver, and, if asked for, controller manager, scheduler and kwok with nodes.
//! Must not depend on the runtime that started it: the cluster lives as long as this value, its clients as long as their test.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use tapestry_testbed::{Cluster, ClusterConfig, builders::pod};
//!
//! let cluster = Cluster::start(ClusterConfig::physical("east", 3)).await?;
//! cluster.create(&pod("web").cpu("250m").build()).await?;
//! cluster.apiserver().kill().await?;
//! cluster.apiserver().start()?;
//! cluster.ready().await?;
//! # Ok(()) }
//! ```

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

mod component;
mod config;
mod part;
mod readiness;
mod site;

pub use component::Component;
pub use config::{ClusterConfig, Progress};
pub use part::Part;
pub(crate) use readiness::node_takes_pods;
pub(crate) use site::COMPONENT_USERS;
use site::Site;

use crate::audit::Audit;
use crate::certificates::Signed;
use crate::objects::Objects;
use crate::supervisor::Supervisor;

/// A running cluster. Dropping it ends its processes and removes its folder.
#[derive(Debug)]
pub struct Cluster {
    config: ClusterConfig,
    site: Site,
    supervisor: Supervisor,
    client_config: kube::Config,
    identity: String,
}

impl Cluster {
    /// Starts a cluster and waits until it accepts pods. If that fails, the error ends with the log of the failed part.
    pub async fn start(config: ClusterConfig) -> Result<Self> {
        let name = config.name.clone();
        Self::start_parts(config).await.with_context(|| format!("cluster {name} did not start"))
    }

    async fn start_parts(config: ClusterConfig) -> Result<Self> {
        let folder = site::make_folder(&config)?;
        // Before the first file is written: from here on the folder is removed with us.
        let supervisor = Supervisor::start(&folder).inspect_err(|_| drop(std::fs::remove_dir(&folder)))?;
        let site = Site::prepare(&config, &folder)?;
        let kubeconfig = Kubeconfig::read_from(folder.join("kubeconfig"))?;
        let mut client_config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        client_config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static("tapestry-testbed")));
        let mut cluster = Self { config, site, supervisor, client_config, identity: String::new() };
        let come_up = async {
            cluster.come_up().await?;
            let system = cluster.get("v1/Namespace", "kube-system").await?.context("no namespace kube-system")?;
            anyhow::Ok(system["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
        };
        cluster.identity = tokio::select! {
            identity = come_up => identity?,
            death = cluster.first_death() => return Err(death),
        };
        Ok(cluster)
    }

    async fn come_up(&self) -> Result<()> {
        // The API server waits for etcd by itself; the others give up when they find no API server.
        self.component(Part::Etcd).start()?;
        self.component(Part::ApiServer).start()?;
        self.config.tell("etcd and kube-apiserver start");
        self.apiserver_ready().await?;
        for part in [Part::ControllerManager, Part::Scheduler, Part::Kwok] {
            if self.config.has(part) {
                self.component(part).start()?;
            }
        }
        self.create_nodes(&self.config.nodes).await?;
        self.others_ready().await
    }

    /// The name given in its [`ClusterConfig`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The identity of this cluster: the UID of its namespace `kube-system`.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The URL of its API server.
    #[must_use]
    pub fn url(&self) -> String {
        self.site.url()
    }

    /// Its administrator's kubeconfig, a file.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.site.folder.join("kubeconfig")
    }

    /// Its administrator's kubeconfig, as put into a Secret.
    pub fn kubeconfig_text(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.kubeconfig())?)
    }

    /// A kubeconfig of any user, in one group at most. RBAC decides what the user may do.
    pub fn kubeconfig_for(&self, user: &str, group: Option<&str>) -> Result<String> {
        self.site.kubeconfig_for(user, group)
    }

    /// A kubeconfig with a token, such as a `ServiceAccount`'s.
    pub fn kubeconfig_with_token(&self, token: &str) -> Result<String> {
        self.site.kubeconfig_with_token(token)
    }

    /// What clients of this cluster trust (PEM).
    #[must_use]
    pub fn authority(&self) -> &str {
        self.site.authority.pem()
    }

    /// A certificate of a server on `ip` that this cluster trusts, such as a kubelet's.
    pub fn server_certificate(&self, ip: IpAddr) -> Result<Signed> {
        self.site.authority.server(ip)
    }

    /// Files of the cluster: logs, keys, `etcd` with its data.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.site.folder
    }

    /// A new client with all rights. It belongs to the runtime that calls this, so take one per test and do not keep it.
    pub fn client(&self) -> Result<kube::Client> {
        Ok(kube::Client::try_from(self.client_config.clone())?)
    }

    /// Create, get, list, patch, delete of plain JSON. As with [`Self::client`], take one per test.
    pub fn objects(&self) -> Result<Objects> {
        Ok(Objects::new(self.client()?))
    }

    /// The requests this cluster answers.
    #[must_use]
    pub fn audit(&self) -> Audit<'_> {
        Audit::new(self)
    }

    /// Any part.
    #[must_use]
    pub fn component(&self, part: Part) -> Component<'_> {
        Component { cluster: self, part }
    }

    /// The API server.
    #[must_use]
    pub fn apiserver(&self) -> Component<'_> {
        self.component(Part::ApiServer)
    }

    /// The store. Its data is in `folder()/etcd`.
    #[must_use]
    pub fn etcd(&self) -> Component<'_> {
        self.component(Part::Etcd)
    }

    /// Adds a node (an object of the [`node`](crate::builders::node) builder); kwok makes it Ready.
    pub async fn add_node(&self, node: &Value) -> Result<()> {
        self.create_nodes(std::slice::from_ref(node)).await
    }

    /// Removes a node. Its pods stay until the pod garbage collector takes them (40 s or more).
    pub async fn remove_node(&self, name: &str) -> Result<()> {
        Ok(self.delete("v1/Node", name).await?)
    }
}
