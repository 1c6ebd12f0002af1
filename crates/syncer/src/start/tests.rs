//! How a syncer starts, waits and ends, against an API server that knows little. Two bindings served by one process: what they
//! count and log is told apart.

use std::collections::HashSet;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use tapestry_engine::serve::Readiness;

use super::*;

const BINDINGS: [&str; 2] = ["east", "west"];

/// An API server that knows who it is, any binding and its Secret, and refuses everything else.
#[derive(Clone, Default)]
struct Server {
    /// It does not say who it is.
    identity: Arc<AtomicBool>,
    /// It does not show bindings.
    bindings: Arc<AtomicBool>,
    /// How often a binding was read, and after how many reads another one has its name; 0 for never.
    reads: Arc<AtomicUsize>,
    lasts: usize,
    /// The Secret that bindings name.
    kubeconfig: String,
}

async fn answer(mut stream: TcpStream, server: Server) {
    let mut request = vec![0; 64 << 10];
    while let Ok(length @ 1..) = stream.read(&mut request).await {
        let head = String::from_utf8_lossy(&request[..length]).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default();
        let (code, body) = match path.rsplit_once('/') {
            Some(("/api/v1/namespaces", "kube-system")) if !server.identity.load(Ordering::Relaxed) => {
                (200, json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "v-cluster"}}))
            }
            Some((kind, name)) if kind.ends_with("/clusterbindings") && !server.bindings.load(Ordering::Relaxed) => {
                let reads = server.reads.fetch_add(1, Ordering::Relaxed);
                let uid = if (1..=reads).contains(&server.lasts) { "another" } else { name };
                let metadata = json!({"name": name, "uid": uid, "resourceVersion": "1", "generation": 1});
                let secret = json!({"name": "s", "namespace": "t", "insecureSkipTLSVerify": true});
                let spec = json!({"clusterID": name, "secretRef": secret, "mountNamespace": "mount"});
                let pinned = json!({"virtualClusterUID": if name == "new" { None } else { Some("v-cluster") }});
                (200, json!({"kind": "ClusterBinding", "metadata": metadata, "spec": spec, "status": pinned}))
            }
            Some((_, "s")) if !server.kubeconfig.is_empty() => {
                let kubeconfig = ByteString(server.kubeconfig.clone().into_bytes());
                (200, json!({"kind": "Secret", "metadata": {"uid": "s"}, "data": {keys::KUBECONFIG: kubeconfig}}))
            }
            _ => (403, json!({"kind": "Status", "code": 403, "message": "no"})),
        };
        let body = body.to_string();
        let answer = format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn serve(tasks: &mut JoinSet<()>, mut server: Server) -> Cluster {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let kubeconfig = format!(
        "{{kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    );
    if server.lasts > 0 {
        server.kubeconfig.clone_from(&kubeconfig);
    }
    tasks.spawn(async move {
        let mut streams = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            streams.spawn(answer(stream, server.clone()));
        }
    });
    Cluster::connect("virtual", &kubeconfig, Trust::Operator, "test").await.unwrap()
}

/// The log, as a file would hold it.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Our own lines.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(" tapestry_")).map(ToOwned::to_owned).collect()
    }
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

/// Every metric is described once, and no line says again what another says.
fn assert_valid(metrics: &str) {
    let mut seen = HashSet::new();
    for line in metrics.lines() {
        let said = if line.starts_with('#') { line } else { line.rsplit_once(' ').unwrap().0 };
        assert!(seen.insert(said), "{said} twice in\n{metrics}");
    }
}

#[tokio::test]
async fn two_bindings_in_one_process_share_each_metric_and_are_named_in_every_line() {
    let (log, mut tasks, mut syncers) = (Log::default(), JoinSet::new(), JoinSet::new());
    let written = log.clone();
    // While there is only one subscriber, tests in other threads, which have none, can switch lines off for all.
    let _other = tracing::Dispatch::new(tracing_subscriber::registry());
    let lines = tracing_subscriber::fmt().with_writer(move || written.clone()).with_ansi(false);
    let _logs = tracing::subscriber::set_default(lines.with_max_level(tracing::Level::DEBUG).finish());
    let mut registry = Registry::with_prefix("tapestry_syncer");
    let (meters, cancel) = (Meters::register(&mut registry), CancellationToken::new());
    let cluster = serve(&mut tasks, Server::default()).await;
    for binding in BINDINGS {
        let election = Some(("us".to_owned(), tapestry_engine::lead::LeaseTimings::default()));
        let config = Config::new(binding, cluster.clone(), meters.clone());
        let syncer = Syncer::open(Config { cancel: cancel.clone(), election, ..config }).await.unwrap();
        syncers.spawn(syncer.serve());
    }

    // From all parts: the election asks for its Lease, the keeper watches, the work does not get its kubeconfig.
    let said = |binding: &str, what: &str| {
        let span = format!("syncer{{binding=\"{binding}\"}}");
        log.lines().iter().any(|line| line.contains(&span) && line.contains(what))
    };
    let parts = ["LookForLead", "watch failed", "only Leases are renewed"];
    let counted = ["ready{", "leader{", "watch_in_sync{", "calls_total{"];
    let missing = || {
        let metrics = scrape(&registry);
        let mut missing = Vec::new();
        for binding in BINDINGS {
            missing.extend(parts.iter().filter(|part| !said(binding, part)).map(|part| format!("{binding}: {part}")));
            let label = format!("binding=\"{binding}\"");
            let told = |name: &str| metrics.lines().any(|line| line.contains(name) && line.contains(&label));
            missing.extend(counted.iter().filter(|name| !told(name)).map(|name| format!("{name}{label}}}")));
        }
        missing
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !missing().is_empty() {
        assert!(std::time::Instant::now() < deadline, "{:?}\n{}\n{:#?}", missing(), scrape(&registry), log.lines());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_valid(&scrape(&registry));

    cancel.cancel();
    while let Some(ended) = syncers.join_next().await {
        ended.unwrap().unwrap();
    }
    let unnamed: Vec<String> = log.lines().into_iter().filter(|line| !line.contains("syncer{binding=")).collect();
    assert_eq!(unnamed, [""; 0]);
    let metrics = scrape(&registry);
    assert_valid(&metrics);
    assert!(!metrics.contains("_ready{"), "nothing is said of the present of a syncer that ended: {metrics}");
    assert!(metrics.contains("calls_total{"), "what was counted stays: {metrics}");
}

#[tokio::test]
async fn a_syncer_that_waits_for_its_virtual_cluster_is_counted_and_can_be_stopped() {
    let mut registry = Registry::default();
    let meters = Meters::register(&mut registry);
    let gone = {
        let mut tasks = JoinSet::new();
        serve(&mut tasks, Server::default()).await
    };
    let config = Config { wait: true, ..Config::new("east", gone, meters) };
    let (cancel, open) = (config.cancel.clone(), Syncer::open(config));
    let stop = async {
        while !scrape(&registry).contains("ready{binding=\"east\"} 0") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        cancel.cancel();
    };
    let both = async { tokio::join!(open, stop).0 };
    let opened = tokio::time::timeout(Duration::from_secs(20), both).await.expect("it goes on");
    assert!(matches!(opened, Err(StartError::Cancelled)));
}

/// Opens a syncer that waits, or not, for what it may not read.
async fn open(binding: &str, cluster: &Cluster, readiness: &Readiness, wait: bool) -> Result<Syncer, StartError> {
    let config = Config::new(binding, cluster.clone(), Meters::register(&mut Registry::default()));
    Syncer::open(Config { readiness: readiness.clone(), wait, ..config }).await
}

/// Waits until readiness tells this.
async fn lacks(readiness: &Readiness, words: &str) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !readiness.waiting_for().iter().any(|told| told.contains(words)) {
        assert!(std::time::Instant::now() < deadline, "{:?}", readiness.waiting_for());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_cluster_that_forbids_to_ask_who_it_is_is_served_by_what_the_binding_pins_and_confirmed_before_any_work() {
    let (mut tasks, server, readiness) = (JoinSet::new(), Server::default(), Readiness::default());
    server.identity.store(true, Ordering::Relaxed);
    let cluster = serve(&mut tasks, server.clone()).await;
    let syncer = open("east", &cluster, &readiness, true).await.unwrap();
    assert_eq!(syncer.origin, Origin::new("v-cluster", "east", "east"));
    assert!(cluster.identity().is_none(), "nothing proves that yet");
    assert!(matches!(syncer.confirm_home().await, Err(StartError::ConnectVirtual(_))));
    assert!(open("east", &cluster, &readiness, false).await.is_err(), "a user who asks is told");

    // A binding that pins nothing has no node: its syncer waits, and says for what.
    let waits = async { open("new", &cluster, &readiness, true).await.map(drop) };
    let told = async {
        lacks(&readiness, "namespaces/kube-system").await;
        server.identity.store(false, Ordering::Relaxed);
    };
    let (opened, ()) = tokio::join!(waits, told);
    opened.unwrap();
    syncer.confirm_home().await.unwrap();
}

#[tokio::test]
async fn a_syncer_that_may_not_read_its_binding_stays_up_says_so_and_starts_when_it_may() {
    let (mut tasks, server, readiness) = (JoinSet::new(), Server::default(), Readiness::default());
    server.bindings.store(true, Ordering::Relaxed);
    let cluster = serve(&mut tasks, server.clone()).await;
    assert!(matches!(open("east", &cluster, &readiness, false).await, Err(StartError::Denied { .. })));
    let waits = async { open("east", &cluster, &readiness, true).await.map(drop) };
    let told = async {
        lacks(&readiness, "cannot read ClusterBinding east").await;
        server.bindings.store(false, Ordering::Relaxed);
    };
    let (opened, ()) = tokio::join!(waits, told);
    opened.unwrap();
}

#[tokio::test]
async fn a_syncer_whose_watches_fail_notices_by_reading_its_binding_that_another_one_has_its_name() {
    // It is read by the start, before connecting, and then to follow its kubeconfig.
    let (mut tasks, server) = (JoinSet::new(), Server { lasts: 2, ..Server::default() });
    let cluster = serve(&mut tasks, server).await;
    let syncer = open("east", &cluster, &Readiness::default(), true).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), syncer.serve()).await.expect("it does not end");
    assert!(matches!(ended, Err(RunError::Start(StartError::Replaced(_)))), "{ended:?}");
}
