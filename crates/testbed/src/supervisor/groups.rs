//! Control groups for a child that manages control groups itself, as a node does. Must not change a group of others: new
//! ones are created below the one we run in, and only those are removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Where every distribution mounts the hierarchies.
const MOUNT: &str = "/sys/fs/cgroup";

/// One new group for each hierarchy.
#[derive(Debug)]
pub(super) struct Groups(Vec<PathBuf>);

impl Groups {
    /// Creates them. Version 1 has a hierarchy for each set of controllers, version 2 has one for all.
    pub(super) fn create(name: &str) -> Result<Self> {
        let name = format!("tapestry-testbed-{}-{name}", std::process::id());
        let ours = fs::read_to_string("/proc/self/cgroup")?;
        let parents = parents(&ours, Path::is_dir);
        let parents = if parents.is_empty() { vec![unified(&ours)?] } else { parents };
        let mut groups = Self(Vec::new());
        for parent in parents {
            let group = parent.join(&name);
            fs::create_dir(&group)
                .or_else(|error| if group.is_dir() { Ok(()) } else { Err(error) })
                .with_context(|| format!("creating {}", group.display()))?;
            groups.0.push(group.clone());
            // A new group of this controller may use no core, and takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"].map(Path::new) {
                if parent.join("cgroup.clone_children").exists() && group.join(file).exists() {
                    fs::write(group.join(file), fs::read(parent.join(file))?)?;
                }
            }
        }
        Ok(groups)
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    /// Removes them with all groups below. The kernel refuses while a process lives in one, and processes that were killed
    /// take a moment to end.
    pub(super) fn remove(&self) {
        for _ in 0..200 {
            for group in &self.0 {
                remove_tree(group);
            }
            if !self.0.iter().any(|group| group.exists()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Moves this process into a group.
pub(super) fn enter(group: &Path) -> Result<()> {
    fs::write(group.join("cgroup.procs"), "0").with_context(|| format!("entering {}", group.display()))
}

/// Our group in each hierarchy of version 1 that is mounted, from lines such as `4:memory:/path`.
fn parents(ours: &str, is_mounted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let hierarchy = controllers.strip_prefix("name=").unwrap_or(controllers);
        let group = Path::new(MOUNT).join(hierarchy).join(path.trim_start_matches('/'));
        (!hierarchy.is_empty() && is_mounted(&group)).then_some(group)
    };
    ours.lines().filter_map(of_line).collect()
}

/// The nearest group of version 2 around us that hands its controllers down: one with processes, such as ours, may not.
fn unified(ours: &str) -> Result<PathBuf> {
    let path = ours.lines().find_map(|line| line.strip_prefix("0::/")).context("no control groups")?;
    let ours = Path::new(MOUNT).join(path);
    let hands_down = |group: &&Path| {
        let controllers = fs::read_to_string(group.join("cgroup.subtree_control")).unwrap_or_default();
        ["cpu", "memory", "pids"].iter().all(|wanted| controllers.split_whitespace().any(|has| has == *wanted))
    };
    let around = ours.ancestors().take_while(|group| group.starts_with(MOUNT)).find(hands_down);
    ensure!(around.is_some(), "no control group around {} hands down cpu, memory and pids", ours.display());
    Ok(around.map(Path::to_owned).unwrap_or_default())
}

/// Removes what can be removed. Only folders: the files of a group go with it.
fn remove_tree(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // Refused while a process is in it: the caller looks again.
    let _ = fs::remove_dir(group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mounted_hierarchy_of_version_1_has_our_group() {
        let ours = "9:name=systemd:/\n4:cpu,cpuacct:/user/a\n3:memory:/user/a\n0::/\n";
        let mounted = |group: &Path| !group.starts_with("/sys/fs/cgroup/memory");
        let wanted = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/cpu,cpuacct/user/a"].map(PathBuf::from);
        assert_eq!(parents(ours, mounted), wanted);
    }
}
