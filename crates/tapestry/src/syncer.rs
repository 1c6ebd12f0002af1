//! `tapestry syncer`: one binding's syncer as a process, with its endpoints, until a signal ends it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use prometheus_client::registry::Registry;
use tapestry_cluster::Cluster;
use tapestry_engine::serve::{Readiness, listen, serve_debug, serve_health, serve_metrics};
use tapestry_engine::telemetry::{self, BadFilter, Filter, Format, LogLevel};
use tapestry_syncer::start::{Config, Meters, StartError, Syncer, user_agent};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::access;
use crate::election::Election;
use crate::failure::Failure;

/// Run the syncer of one binding: nodes and status up, pods down.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tapestry syncer --cluster-binding east
  tapestry syncer --cluster-binding east --virtual-kubeconfig ~/.kube/virtual --log debug
  curl -X PUT -d 'info,tapestry_cluster=debug' 127.0.0.1:8082/debug/log-level")]
pub(crate) struct Args {
    /// Name of the ClusterBinding in the virtual cluster
    #[arg(long, value_name = "NAME")]
    cluster_binding: String,
    /// Kubeconfig of the virtual cluster [default: $KUBECONFIG, ~/.kube/config, or the cluster this runs in]
    #[arg(long, value_name = "FILE")]
    virtual_kubeconfig: Option<PathBuf>,
    /// Address of /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    metrics_address: SocketAddr,
    /// Address of /healthz, /livez and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8081")]
    health_address: SocketAddr,
    /// Address of PUT /debug/log-level, or `off`. Use a loopback address: any client that reaches it can change the log level
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8082")]
    debug_address: DebugAddress,
    /// Log filter: a level (error, warn, info, debug, trace), target=level pairs, or both
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    /// Log format
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    log_format: LogFormat,
    #[command(flatten)]
    election: Election,
}

/// The address where the log level can be changed; `None` for no such endpoint.
#[derive(Clone, Copy)]
struct DebugAddress(Option<SocketAddr>);

impl FromStr for DebugAddress {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" { Ok(Self(None)) } else { text.parse().map(|address| Self(Some(address))) }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    /// Text on a terminal, JSON otherwise
    Auto,
    Text,
    Json,
}

impl Args {
    pub(crate) fn run(self) -> ExitCode {
        let format = match self.log_format {
            LogFormat::Auto => Format::Auto,
            LogFormat::Text => Format::Text,
            LogFormat::Json => Format::Json,
        };
        let level = match self.log.parse::<Filter>() {
            Ok(filter) => telemetry::start(&filter, format),
            Err(bad) => {
                let what = "cannot start logging with this --log";
                return Failure::new(what, bad, BadFilter::HINT).wrong_usage().report();
            }
        };
        // Lines of this process that no syncer writes name the binding too.
        let span = tracing::error_span!("syncer", binding = self.cluster_binding);
        match self.run_in(level, &span) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) if format.is_json() => span.in_scope(|| failure.log()),
            Err(failure) => failure.report(),
        }
    }

    fn run_in(self, level: LogLevel, span: &Span) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        // Leases and leadership have their own thread: they are renewed whatever keeps the others busy.
        let vital = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let served = runtime.block_on(self.serve(vital.handle().clone(), level, span));
        vital.shutdown_background();
        served
    }

    async fn serve(self, vital: Handle, level: LogLevel, span: &Span) -> Result<(), Failure> {
        let Self { cluster_binding, virtual_kubeconfig, metrics_address, health_address, debug_address, .. } = self;
        let election = self.election.parse()?;
        let (metrics, health) = (open(metrics_address).await?, open(health_address).await?);
        let cancel = CancellationToken::new();
        let readiness = Readiness::default();
        let reached = readiness.gate("the virtual cluster");
        let mut endpoints = tokio::task::JoinSet::new();
        endpoints.spawn(serve_health(health, readiness.clone(), cancel.clone()).instrument(span.clone()));
        let mut registry = Registry::with_prefix("tapestry_syncer");
        let meters = Meters::register(&mut registry);
        // From the beginning: scrapes must not wait for a cluster that does not answer.
        endpoints.spawn(serve_metrics(metrics, Arc::new(registry), cancel.clone()).instrument(span.clone()));
        if let DebugAddress(Some(address)) = debug_address {
            endpoints.spawn(serve_debug(open(address).await?, level, cancel.clone()).instrument(span.clone()));
        }

        let virtual_cluster = connect(virtual_kubeconfig, &cluster_binding).await?;
        endpoints.spawn(cancel_on_signal(cancel.clone()).instrument(span.clone()));
        let config = Config {
            readiness,
            cancel,
            election,
            vital,
            wait: true,
            ..Config::new(&cluster_binding, virtual_cluster, meters)
        };
        let syncer = match Syncer::open(config).await {
            Err(StartError::Cancelled) => return Ok(()),
            opened => opened.map_err(|error| Failure::from_error(&error, error.hint()))?,
        };
        reached.set(None);
        let served = syncer.serve().await;
        endpoints.shutdown().await;
        served.map_err(|error| Failure::from_error(&error, error.hint()))
    }
}

/// A taken port fails here, at the start.
async fn open(address: SocketAddr) -> Result<TcpListener, Failure> {
    let hint = "choose other addresses with --metrics-address, --health-address and --debug-address";
    listen(address).await.map_err(|why| Failure::new("cannot serve metrics, health or the log level", why, hint))
}

async fn connect(path: Option<PathBuf>, binding: &str) -> Result<Cluster, Failure> {
    let config = access::load(path.as_deref(), None, "--virtual-kubeconfig").await?;
    Cluster::from_config("virtual", config, &user_agent(binding)).map_err(|error| {
        Failure::new("the kubeconfig of the virtual cluster cannot be used", error, "check --virtual-kubeconfig")
    })
}

/// The first signal stops gracefully, the second one at once.
async fn cancel_on_signal(cancel: CancellationToken) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return tracing::error!("cannot listen to signals: stop this process with SIGKILL");
    };
    let mut next = async || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    next().await;
    tracing::info!("stopping: waiting for calls in flight");
    cancel.cancel();
    next().await;
    std::process::exit(130);
}
