//! The subcommands that the library calls, not users. Must not start a runtime or a second thread.

use std::path::PathBuf;

use tapestry_testbed::supervisor::keeper;

/// Keeps processes until stdin ends, then kills them and removes the folder.
#[derive(clap::Args)]
pub(crate) struct Supervise {
    /// Removed at the end.
    #[arg(long)]
    folder: PathBuf,
}

impl Supervise {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        keeper::supervise(&self.folder)
    }
}

/// Becomes a command that ends with its supervisor.
#[derive(clap::Args)]
pub(crate) struct Leash {
    /// The supervisor's process ID.
    #[arg(long)]
    holder: u32,
    /// A control group to enter first.
    #[arg(long = "group")]
    groups: Vec<PathBuf>,
    /// The command.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl Leash {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        keeper::leash(self.holder, &self.groups, &self.command)
    }
}
