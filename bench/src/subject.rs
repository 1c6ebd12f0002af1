//! The process under test: started, asked whether it is ready, measured and stopped from outside.
//! Must not share anything with us: its processor time and memory are its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use tapestry_testbed::supervisor::{Launch, Signal, State, Supervisor};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::figures::Who;
use crate::machine::Memory;

/// A running process. It ends with its supervisor at the latest.
pub(crate) struct Subject<'a> {
    supervisor: &'a Supervisor,
    /// Its name for the supervisor.
    name: String,
    health: SocketAddr,
    log: PathBuf,
    /// Its process.
    pub(crate) pid: u32,
    /// Who it is.
    pub(crate) who: Who,
    launched: Instant,
}

impl<'a> Subject<'a> {
    /// Starts it; `args` gets the address at which it shall say that it is ready.
    pub(crate) fn launch(
        supervisor: &'a Supervisor,
        who: Who,
        program: PathBuf,
        args: impl FnOnce(SocketAddr) -> Vec<String>,
        log: PathBuf,
    ) -> Result<Self> {
        let health = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        // A name for each: the supervisor remembers the ended ones.
        let name = format!("{}-{}", who.name(), health.port());
        let launch = Launch { program, args: args(health), log: log.clone() };
        let launched = Instant::now();
        match supervisor.launch(&name, launch)? {
            State::Running(pid) => Ok(Self { supervisor, name, health, log, pid, who, launched }),
            other => bail!("{name} did not start: {other:?}"),
        }
    }

    /// Waits until it says that it is ready; gives how long that took since the launch.
    pub(crate) async fn ready(&self, deadline: Duration) -> Result<Duration> {
        loop {
            if self.says_ready().await {
                return Ok(self.launched.elapsed());
            }
            if let State::Ended(how) = self.supervisor.state(&self.name)? {
                return Err(self.blame(anyhow!("it ended before it was ready ({how})")));
            }
            if self.launched.elapsed() > deadline {
                return Err(self.blame(anyhow!("it was not ready within {deadline:?}")));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn says_ready(&self) -> bool {
        let ask = async {
            let mut stream = TcpStream::connect(self.health).await?;
            stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: subject\r\nConnection: close\r\n\r\n").await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer.starts_with("HTTP/1.1 200"))
        };
        matches!(timeout(Duration::from_secs(1), ask).await, Ok(Ok(true)))
    }

    /// Its memory.
    pub(crate) fn memory(&self) -> Result<Memory> {
        Memory::of(self.pid)
    }

    /// SIGTERM; after ten seconds SIGKILL, which is a failure of its own.
    pub(crate) async fn stop(self) -> Result<()> {
        self.supervisor.signal(&self.name, Signal::Terminate)?;
        let asked = Instant::now();
        while !matches!(self.supervisor.state(&self.name)?, State::Ended(_)) {
            if asked.elapsed() > Duration::from_secs(10) {
                self.supervisor.signal(&self.name, Signal::Kill)?;
                return Err(self.blame(anyhow!("it did not end within 10s of SIGTERM")));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Adds who it was and the end of its log to an error.
    pub(crate) fn blame(&self, error: anyhow::Error) -> anyhow::Error {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n");
        error.context(format!("{} failed; the end of its log:\n{tail}\n", self.who.name()))
    }
}
