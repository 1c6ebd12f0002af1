//! What a real node leaves on the machine: nothing.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use tapestry_testbed::address::Network;
use tapestry_testbed::{Cluster, ClusterConfig, Part, RealNode};

/// Kernel settings that a kubelet would change for the whole machine.
const SETTINGS: [&str; 4] = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"];

/// What the machine shows of its mounts and settings.
fn machine() -> Result<Vec<String>> {
    let mut seen = vec![std::fs::read_to_string("/proc/self/mountinfo")?];
    for setting in SETTINGS {
        seen.push(std::fs::read_to_string(format!("/proc/sys/{setting}"))?);
    }
    Ok(seen)
}

/// The control groups of a process that were created for it, in every hierarchy.
fn control_groups(process: u32) -> Result<Vec<PathBuf>> {
    let groups = std::fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    let own = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let hierarchy = controllers.strip_prefix("name=").unwrap_or(controllers);
        let group = Path::new("/sys/fs/cgroup").join(hierarchy).join(path.trim_start_matches('/'));
        path.contains("tapestry-testbed").then_some(group)
    };
    Ok(groups.lines().filter_map(own).collect())
}

#[tokio::test]
async fn a_node_leaves_no_process_no_file_no_mount_and_no_control_group() -> Result<()> {
    let config = ClusterConfig::physical("alone", 0).network(Network::Nodes);
    let config =
        [Part::Kwok, Part::ControllerManager, Part::Scheduler].into_iter().fold(config, ClusterConfig::without);
    let cluster = Box::pin(Cluster::start(config)).await?;
    let before = machine()?;
    let node = Box::pin(RealNode::start(&cluster, "alone-node")).await?;
    assert_eq!(machine()?, before, "while it runs");
    let (process, folder) = (node.process()?, node.folder().to_owned());
    let groups = control_groups(process)?;
    ensure!(!groups.is_empty() && groups.iter().all(|group| group.is_dir()), "{groups:?}");
    ensure!(folder.is_dir(), "{}", folder.display());

    drop(node);
    assert_eq!(machine()?, before, "after its end");
    ensure!(!folder.exists(), "{} is left", folder.display());
    let left: Vec<&PathBuf> = groups.iter().filter(|group| group.exists()).collect();
    ensure!(left.is_empty(), "control groups are left: {left:?}");
    ensure!(!Path::new(&format!("/proc/{process}")).exists(), "process {process} lives");
    Ok(())
}
