//! A handle on one process of a cluster: stop, start, freeze it, read its log.
//! Must not decide when a cluster is ready again; [`Cluster::ready`] does.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};

use super::{Cluster, Part};
use crate::eventually;
use crate::supervisor::{Signal, State};

/// How long a component may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// One process of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Component<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) part: Part,
}

impl Component<'_> {
    /// Starts it with its original command line. Returns before it is ready.
    pub fn start(&self) -> Result<()> {
        let launch = self.part.launch(&self.cluster.site, &self.cluster.config);
        self.cluster.supervisor.launch(self.part.name(), launch).map(drop)
    }

    /// SIGTERM, after ten seconds SIGKILL; returns when it has ended.
    pub async fn stop(&self) -> Result<()> {
        self.signal(Signal::Terminate)?;
        if self.ended(GRACE).await.is_err() {
            self.kill().await?;
        }
        Ok(())
    }

    /// SIGKILL; returns when it has ended.
    pub async fn kill(&self) -> Result<()> {
        self.signal(Signal::Kill)?;
        self.ended(GRACE).await
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::Stop)
    }

    /// SIGCONT after [`Self::freeze`].
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::Continue)
    }

    /// Its process ID; `None` when it does not run.
    pub fn pid(&self) -> Result<Option<u32>> {
        Ok(match self.cluster.supervisor.state(self.part.name())? {
            State::Running(pid) => Some(pid),
            State::Ended(_) | State::Unknown => None,
        })
    }

    /// Where its stdout and stderr go, over all restarts.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.part.log(&self.cluster.site)
    }

    /// The last lines of its log, for error messages.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let mut tail = VecDeque::with_capacity(lines + 1);
        if let Ok(log) = File::open(self.log()) {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                tail.push_back(line);
                if tail.len() > lines {
                    tail.pop_front();
                }
            }
        }
        Vec::from(tail).join("\n")
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match self.cluster.supervisor.signal(self.part.name(), signal)? {
            State::Unknown => bail!("{} has no {}", self.cluster.name(), self.part.name()),
            State::Running(_) | State::Ended(_) => Ok(()),
        }
    }

    async fn ended(&self, deadline: Duration) -> Result<()> {
        eventually(&format!("{} ended", self.part.name()), deadline, async || match self.pid() {
            Ok(None) => Ok(()),
            Ok(Some(pid)) => Err(format!("process {pid}")),
            Err(error) => Err(format!("{error:#}")),
        })
        .await
    }
}
