//! `tapestry syncer` as a child process. Must not outlive the test, however that ends.

use std::net::SocketAddrV4;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tapestry_cluster::Side;
use tapestry_testbed::address::{Address, Port};
use tapestry_testbed::eventually;
use tapestry_testbed::supervisor::{Launch, Signal, State, Supervisor};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::TAPESTRY;
use crate::harness::Harness;
use crate::looks::SOON;

/// `tapestry syncer` of a harness, under a supervisor that outlives even a killed test.
pub(crate) struct Process {
    supervisor: Supervisor,
    pub(crate) args: Vec<String>,
    pub(crate) metrics: SocketAddrV4,
    pub(crate) health: SocketAddrV4,
    pub(crate) debug: SocketAddrV4,
    _address: Address,
}

impl Process {
    /// Not started yet. After a crash it restarts under the same name, so that it need not wait for its own Lease.
    pub(crate) fn new(harness: &Harness, log: &str) -> Result<Self> {
        Self::named(harness, "alone", log, &[])
    }

    /// Like [`Self::new`], for several of one binding: each with its own name and flags.
    pub(crate) fn named(harness: &Harness, identity: &str, log: &str, flags: &[&str]) -> Result<Self> {
        let folder = format!("tapestry-e2e-{}-{}-{identity}", std::process::id(), harness.name);
        let folder = std::env::temp_dir().join(folder);
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let supervisor = Supervisor::start(&folder)?;
        let kubeconfig = supervisor.folder().join("kubeconfig");
        std::fs::write(&kubeconfig, harness.kubeconfig(Side::Virtual))?;
        // Its own address, so that processes do not collide.
        let address = Address::reserve()?;
        let (metrics, health) = (address.at(Port::ApiServer), address.at(Port::Kubelet));
        let debug = address.at(Port::Scheduler);
        let args = [
            ("--cluster-binding", harness.name.clone()),
            ("--virtual-kubeconfig", kubeconfig.display().to_string()),
            ("--metrics-address", metrics.to_string()),
            ("--health-address", health.to_string()),
            ("--debug-address", debug.to_string()),
            ("--log", log.to_owned()),
            ("--leader-elect-identity", identity.to_owned()),
        ];
        let args = ["syncer".to_owned()]
            .into_iter()
            .chain(args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]))
            .chain(flags.iter().map(|flag| (*flag).to_owned()));
        Ok(Self { supervisor, args: args.collect(), metrics, health, debug, _address: address })
    }

    fn log_file(&self) -> PathBuf {
        self.supervisor.folder().join("log")
    }

    pub(crate) fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.log_file())?)
    }

    /// Starts it; returns before it is ready.
    pub(crate) fn start(&self) -> Result<()> {
        let launch = Launch { program: TAPESTRY.into(), args: self.args.clone(), log: self.log_file() };
        self.supervisor.launch("syncer", launch).map(drop)
    }

    pub(crate) async fn ready(&self) -> Result<()> {
        eventually("the syncer is ready", SOON, async || match http(self.health, "GET", "/readyz", "").await {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}; log: {}", self.log().unwrap_or_default())),
        })
        .await
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        match self.supervisor.state("syncer")? {
            State::Running(pid) => Ok(pid),
            other => bail!("it does not run: {other:?}; log: {}", self.log()?),
        }
    }

    /// Whether its metrics say that it leads.
    pub(crate) async fn leads(&self) -> Result<bool> {
        let (_, metrics) = http(self.metrics, "GET", "/metrics", "").await?;
        let line = metrics.lines().find_map(|line| line.strip_prefix("tapestry_syncer_leader{")?.split_once("} "));
        Ok(line.with_context(|| format!("no leader in {metrics}"))?.1 == "1")
    }

    /// Restarts it whenever it ends, as a Deployment would. Returns only errors.
    pub(crate) async fn keep(&self) -> Result<()> {
        loop {
            if let State::Ended(how) = self.supervisor.state("syncer")? {
                eprintln!("the syncer ended: {how}");
                self.start()?;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Sends a signal; returns before it has had an effect.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.supervisor.signal("syncer", signal).map(drop)
    }

    /// Sends a signal and waits for the end; returns how it ended.
    pub(crate) async fn end(&self, signal: Signal) -> Result<String> {
        self.supervisor.signal("syncer", signal)?;
        self.ended().await
    }

    /// Waits for its end; returns how it ended.
    pub(crate) async fn ended(&self) -> Result<String> {
        eventually("the syncer has ended", SOON, async || match self.supervisor.state("syncer") {
            Ok(State::Ended(how)) => Ok(how),
            other => Err(format!("{other:?}")),
        })
        .await
    }
}

/// The end of its log is part of a failed test's output.
impl Drop for Process {
    fn drop(&mut self) {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!("{}", lines[lines.len().saturating_sub(200)..].join("\n"));
    }
}

/// One HTTP request: code and body.
pub(crate) async fn http(server: SocketAddrV4, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(server).await?;
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let code = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((code, body.to_owned()))
}
