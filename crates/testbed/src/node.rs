//! A real node: kubelet, containerd and runc run real containers, in mount, process, control group, host name and IPC
//! namespaces of their own. Must leave the machine as it was: its network, mounts, kernel settings and control groups.
//!
//! Needs root on Linux, a process that was started by `testbed/in-network`, and the parts that `testbed/build-node` builds.
//! The cluster must listen in [`Network::Nodes`](crate::address::Network), or its pods cannot reach it.

use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

mod files;
mod processes;

use crate::cluster::{Cluster, node_takes_pods};
use crate::supervisor::{Launch, State, Supervisor};
use crate::{binaries, eventually};

/// The image whose only program is `testbed/node/box`; it is on every node.
pub const IMAGE: &str = "localhost/testbed/box:1";
/// The interface that `testbed/in-network` creates; nodes have their addresses on it.
const INTERFACE: &str = "testbed-nodes";
/// The name of the node's process for its supervisor.
const PROCESS: &str = "node";
/// A start takes three seconds on a quiet machine.
const DEADLINE: Duration = Duration::from_mins(2);

/// A running node. Dropping it ends its processes, and removes its files and control groups; the Node object stays.
#[derive(Debug)]
pub struct RealNode {
    name: String,
    supervisor: Supervisor,
}

/// What decides the files of a node.
struct Site<'a> {
    cluster: &'a Cluster,
    name: &'a str,
    /// Unique in this network.
    number: u8,
}

impl Site<'_> {
    fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 66, 0, self.number)
    }
}

impl RealNode {
    /// Whether this process lives in the network that nodes need; without it they would change the machine's own.
    pub fn possible() -> Result<bool> {
        let interfaces = std::fs::read_to_string("/proc/self/net/dev")?;
        Ok(interfaces.lines().any(|line| line.trim_start().starts_with(&format!("{INTERFACE}:"))))
    }

    /// Starts a node of `cluster` and waits until it takes pods. If that fails, the error ends with the kubelet's log.
    pub async fn start(cluster: &Cluster, name: &str) -> Result<Self> {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        ensure!(Self::possible()?, "a real node needs a network of its own: start this through testbed/in-network");
        let parts = binaries::of_a_node()?;
        let site = Site { cluster, name, number: COUNT.fetch_add(1, Ordering::Relaxed) };
        ensure!(site.number < 250, "too many real nodes in one process");
        let folder = make_folder(&site)?;
        let supervisor = Supervisor::start(&folder).inspect_err(|_| drop(std::fs::remove_dir(&folder)))?;
        files::write(&site, &folder)?;
        add_address(site.address())?;
        let node = Self { name: name.to_owned(), supervisor };
        node.supervisor.launch_in_group(PROCESS, launch(&site, &folder, &parts))?;
        node.takes_pods(cluster).await.with_context(|| format!("node {name} did not start; {}", node.log_tails()))?;
        Ok(node)
    }

    /// Its name, in the cluster too.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kills the kubelet, as a crash would; returns when another one has been started. Containers live on.
    pub async fn restart_kubelet(&self) -> Result<()> {
        let namespace = processes::namespace_below(self.process()?)?;
        let killed = processes::find(&namespace, "kubelet")?.context("no kubelet runs")?;
        processes::kill(killed)?;
        eventually(&format!("a new kubelet runs on {}", self.name), DEADLINE, async || {
            match processes::find(&namespace, "kubelet") {
                Ok(Some(new)) if new != killed => Ok(()),
                other => Err(format!("{other:?}; killed: {killed}")),
            }
        })
        .await
    }

    async fn takes_pods(&self, cluster: &Cluster) -> Result<()> {
        let objects = cluster.objects()?;
        let what = format!("{} takes pods", self.name);
        let taken = eventually(&what, DEADLINE, async || {
            // Asked first: nothing else can come once the node is gone.
            if let Err(gone) = self.process() {
                return Ok(Err(gone));
            }
            match objects.get("v1/Node", &self.name).await {
                Ok(Some(node)) if node_takes_pods(&node) => Ok(Ok(())),
                other => Err(format!("{other:?}")),
            }
        });
        taken.await?
    }

    /// Its files; they go with it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.supervisor.folder()
    }

    /// The process that the supervisor started: the parent of the node's first process.
    pub fn process(&self) -> Result<u32> {
        match self.supervisor.state(PROCESS)? {
            State::Running(process) => Ok(process),
            State::Ended(how) => bail!("the node ended: {how}"),
            State::Unknown => bail!("the node was never started"),
        }
    }

    fn log_tails(&self) -> String {
        let tail = |file: &str| {
            let path = self.supervisor.folder().join(file);
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("the end of {file}:\n{}\n", lines[lines.len().saturating_sub(15)..].join("\n"))
        };
        ["node.log", "log/containerd.log", "log/kubelet.log"].map(tail).concat()
    }
}

fn launch(site: &Site<'_>, folder: &Path, parts: &Path) -> Launch {
    let namespaces = ["--mount", "--cgroup", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--"];
    let init = binaries::scripts().join("node/init");
    let paths = [&*init, folder, parts].map(|path| path.to_string_lossy().into_owned());
    let mut args: Vec<String> = namespaces.map(String::from).into();
    args.extend(paths);
    args.push(site.name.to_owned());
    args.extend(files::kubelet_flags(site));
    Launch { program: "unshare".into(), args, log: folder.join("node.log") }
}

/// Only root may read it: it holds the node's keys, and the files of all containers.
fn make_folder(site: &Site<'_>) -> Result<PathBuf> {
    let folder =
        std::env::temp_dir().join(format!("tapestry-node-{}-{}-{}", std::process::id(), site.number, site.name));
    let created = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    created.with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder)
}

/// A kubelet refuses an address that no interface has.
fn add_address(address: Ipv4Addr) -> Result<()> {
    let output = Command::new("ip").args(["addr", "add", &format!("{address}/24"), "dev", INTERFACE]).output()?;
    ensure!(output.status.success(), "adding {address}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
