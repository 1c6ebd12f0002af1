//! `testbed demo`: a physical cluster lends its idle nodes to a virtual one, on this machine.
//! Must show nothing that it has not checked, and must leave nothing behind however it ends.

mod needs;
mod nodes;
mod pods;
mod real;
mod screen;
mod stage;
mod story;
mod syncer;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use screen::Screen;
use story::Story;

/// Replicas per node that fit twice: (32 CPU − 1 of the owner − 1 of the foreign pod) / 2 hold 60 pods of 250m; less, because
/// the owner's pods need not be spread evenly.
const REPLICAS_PER_NODE: usize = 25;

/// Lend a physical cluster to a virtual one on this machine, and watch; Ctrl-C ends it and removes everything.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  testbed demo --tapestry target/debug/tapestry
  testbed demo --tapestry target/debug/tapestry --nodes 50 --replicas 500
  testbed demo --tapestry target/debug/tapestry --check     assert all of it; exit status 0 or 1")]
pub(crate) struct Demo {
    /// The tapestry binary
    #[arg(long, value_name = "PATH")]
    tapestry: PathBuf,
    /// Assert everything that is shown, remove the pods again, assert that too, and end
    #[arg(long)]
    check: bool,
    /// Nodes of the physical cluster, and pods that its owner runs
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    nodes: usize,
    /// Pods to start on borrowed nodes; later twice as many
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    replicas: usize,
}

impl Demo {
    /// Prints its failure itself: a backtrace would hide what was expected and seen.
    pub(crate) fn run(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let shown = self.fits().and_then(|()| runtime.block_on(self.show()));
        if let Err(error) = shown {
            eprintln!("error: {error:#}");
            std::process::exit(1);
        }
        Ok(())
    }

    fn fits(&self) -> Result<()> {
        let tapestry = self.tapestry.display();
        ensure!(self.tapestry.is_file(), "no tapestry binary at {tapestry}: run `cargo build -p tapestry`");
        ensure!(self.nodes > 0 && self.replicas > 0, "--nodes and --replicas start at 1");
        let most = self.nodes.saturating_mul(REPLICAS_PER_NODE);
        ensure!(self.replicas <= most, "--replicas is at most {most} with --nodes {}", self.nodes);
        Ok(())
    }

    /// Runs the story, unless something ends it early. Everything it started ends when it is dropped.
    async fn show(&self) -> Result<()> {
        let screen = Arc::new(Screen::stdout());
        let story = Story {
            screen: screen.clone(),
            tapestry: self.tapestry.canonicalize()?,
            nodes: self.nodes,
            replicas: self.replicas,
            check: self.check,
        };
        let interrupted = async {
            interrupted().await?;
            screen.end();
            screen.text("ending");
            anyhow::Ok(())
        };
        let ended = tokio::select! {
            told = story.tell() => told,
            result = interrupted => match result {
                Ok(()) if self.check => bail!("interrupted before everything was checked"),
                result => result,
            },
            // A check continues without a reader: its result is the exit status.
            error = screen.broken(), if !self.check => match error.kind() {
                std::io::ErrorKind::BrokenPipe => Ok(()),
                _ => Err(error.into()),
            },
            () = screen.spin() => Ok(()),
        };
        screen.end();
        ended
    }
}

async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => Ok(interrupt?),
        _ = terminate.recv() => Ok(()),
    }
}

/// A string, or an empty one.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether a condition of an object is True.
fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == condition && one["status"] == "True"))
}
