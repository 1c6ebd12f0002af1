//! Two bindings served by one process: what they count and log is told apart.

use std::collections::HashSet;
use std::io;
use std::sync::Mutex;

use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;

const BINDINGS: [&str; 2] = ["east", "west"];

/// An API server that knows who it is and any binding, and refuses everything else.
async fn answer(mut stream: TcpStream) {
    let mut request = vec![0; 64 << 10];
    while let Ok(length @ 1..) = stream.read(&mut request).await {
        let head = String::from_utf8_lossy(&request[..length]).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default();
        let (code, body) = match path.rsplit_once('/') {
            Some(("/api/v1/namespaces", "kube-system")) => {
                (200, json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "v-cluster"}}))
            }
            Some((kind, name)) if kind.ends_with("/clusterbindings") => {
                let metadata = json!({"name": name, "uid": name, "resourceVersion": "1", "generation": 1});
                (200, json!({"kind": "ClusterBinding", "metadata": metadata, "spec": {}}))
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

async fn serve(tasks: &mut JoinSet<()>) -> Cluster {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut streams = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            streams.spawn(answer(stream));
        }
    });
    let kubeconfig = format!(
        "{{kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    );
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
    let cluster = serve(&mut tasks).await;
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
        serve(&mut tasks).await
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
