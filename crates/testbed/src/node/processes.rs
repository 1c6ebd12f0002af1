//! The processes of a node, as they are seen from outside. Must not look for one by name alone: only within the node's own
//! process namespace.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};

/// The namespace of the children of `process`.
pub(super) fn namespace_below(process: u32) -> Result<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/pid_for_children")).context("reading the node's process namespace")
}

/// The process of this name within a namespace.
pub(super) fn find(namespace: &Path, name: &str) -> Result<Option<Pid>> {
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let process = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        // A process may end while we look.
        let is_called = |wanted: &str| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == wanted);
        if let Some(process) = process.and_then(Pid::from_raw)
            && fs::read_link(path.join("ns/pid")).is_ok_and(|its| its == *namespace)
            && is_called(name)
        {
            return Ok(Some(process));
        }
    }
    Ok(None)
}

/// Ends a process at once.
pub(super) fn kill(process: Pid) -> Result<()> {
    rustix::process::kill_process(process, Signal::KILL).context("killing a process of the node")
}
