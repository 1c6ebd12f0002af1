//! Runs one command through a supervisor until killed, for the supervisor's own test.
//! Must not clean up; that is what is tested.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tapestry_testbed::supervisor::{Launch, Supervisor};

/// Holds a supervisor with one child until killed.
#[derive(clap::Args)]
pub(crate) struct Hold {
    /// The supervisor's folder; created here.
    #[arg(long)]
    folder: PathBuf,
    /// The command.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl Hold {
    pub(crate) fn run(self) -> Result<()> {
        std::fs::create_dir(&self.folder)?;
        let supervisor = Supervisor::start(&self.folder)?;
        let (program, args) = self.command.split_first().context("no command given")?;
        let launch = Launch { program: program.into(), args: args.to_vec(), log: self.folder.join("log") };
        supervisor.launch("held", launch)?;
        loop {
            std::thread::park();
        }
    }
}
