//! The syncer as users run it: the real binary as a process, with a log.
//! Must end with us however we end, so it is started through a supervisor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow};
use tapestry_testbed::address::{Address, Port};
use tapestry_testbed::supervisor::{Launch, State, Supervisor};

const NAME: &str = "syncer";
/// Enough to see what it last did; more hides the error above it.
const TAIL: usize = 30;

/// A running syncer. Dropping it kills it and removes the demo's folder.
pub(super) struct Syncer {
    supervisor: Supervisor,
    address: Address,
    log: PathBuf,
}

impl Syncer {
    /// Starts `tapestry syncer`; returns before it has connected. Its log is in the supervisor's folder.
    pub(super) fn start(
        supervisor: Supervisor,
        tapestry: &Path,
        binding: &str,
        virtual_kubeconfig: &Path,
    ) -> Result<Self> {
        // Reserved as for a cluster: no race with others for port numbers. Of its ports the syncer takes two.
        let syncer = Self { address: Address::reserve()?, log: supervisor.folder().join("syncer.log"), supervisor };
        let args = vec![
            "syncer".to_owned(),
            format!("--cluster-binding={binding}"),
            format!("--virtual-kubeconfig={}", virtual_kubeconfig.display()),
            format!("--metrics-address={}", syncer.address.at(Port::ControllerManager)),
            format!("--health-address={}", syncer.address.at(Port::Scheduler)),
            "--debug-address=off".to_owned(),
        ];
        let launch = Launch { program: tapestry.to_owned(), args, log: syncer.log.clone() };
        syncer.supervisor.launch(NAME, launch).with_context(|| format!("starting {}", tapestry.display()))?;
        Ok(syncer)
    }

    /// Where its stdout and stderr go.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// The URL of its metrics.
    pub(super) fn metrics(&self) -> String {
        format!("http://{}/metrics", self.address.at(Port::ControllerManager))
    }

    /// Returns, with how, when the syncer has ended, which it never should.
    pub(super) async fn ended(&self) -> Error {
        loop {
            match self.supervisor.state(NAME) {
                Ok(State::Running(_)) => tokio::time::sleep(Duration::from_millis(200)).await,
                Ok(State::Ended(how)) => return anyhow!("expected the syncer to run, but it ended ({how})"),
                Ok(State::Unknown) => return anyhow!("the syncer was never started"),
                Err(error) => return error,
            }
        }
    }

    /// Adds the end of the log to an error.
    pub(super) fn blame(&self, error: &Error) -> Error {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
        let tail = if tail.is_empty() { "(nothing)" } else { &tail };
        anyhow!("{error:#}\n\nthe end of the syncer's log:\n{tail}")
    }
}
