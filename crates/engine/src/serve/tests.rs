//! Servers under hostile clients, over real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::server::CONNECTIONS;
use super::*;
use crate::telemetry::{self, Format};

/// All three servers of a daemon, as long as it lives.
struct Daemon {
    health: SocketAddr,
    metrics: SocketAddr,
    debug: SocketAddr,
    _servers: JoinSet<()>,
}

impl Daemon {
    async fn start() -> Self {
        let (cancel, mut servers) = (CancellationToken::new(), JoinSet::new());
        let open = async || listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let (health, metrics, debug) = (open().await, open().await, open().await);
        let addresses = [&health, &metrics, &debug].map(|listener| listener.local_addr().unwrap());
        let level = telemetry::start(&"error".parse().unwrap(), Format::Text);
        servers.spawn(serve_health(health, Readiness::default(), cancel.clone()));
        servers.spawn(serve_metrics(metrics, Arc::new(Registry::default()), cancel.clone()));
        servers.spawn(serve_debug(debug, level, cancel));
        Self { health: addresses[0], metrics: addresses[1], debug: addresses[2], _servers: servers }
    }
}

async fn request(server: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    // A server that refuses a large body answers before it has read all of it.
    let _ = stream.write_all(text.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn get(server: SocketAddr, path: &str) -> String {
    let text = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    timeout(Duration::from_secs(2), request(server, &text)).await.expect("no answer within 2 s")
}

async fn put(server: SocketAddr, filter: &str) -> String {
    let length = filter.len();
    request(server, &format!("PUT /debug/log-level HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{filter}"))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_11_health_and_metrics_answer_while_1240_slow_connections_are_held_open() {
    let daemon = Daemon::start().await;
    let mut held = Vec::new();
    for number in 0..1240 {
        let server = [daemon.health, daemon.metrics, daemon.debug][number % 3];
        let mut stream = TcpStream::connect(server).await.unwrap();
        // Some have sent nothing, some half a head, some a head without its body.
        let begun = [
            "",
            "GET /healthz HTTP/1.1\r\nhost:",
            "PUT /debug/log-level HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n",
        ];
        let _ = stream.write_all(begun[number / 3 % 3].as_bytes()).await;
        held.push(stream);
        if number % 100 == 0 {
            assert!(get(daemon.health, "/healthz").await.ends_with("\r\n\r\nok"));
        }
    }
    assert!(get(daemon.health, "/healthz").await.ends_with("\r\n\r\nok"));
    assert!(get(daemon.health, "/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(get(daemon.metrics, "/metrics").await.contains("# EOF"));
    assert!(put(daemon.debug, "error").await.starts_with("HTTP/1.1 200"));
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_11_the_oldest_connection_makes_room_and_a_young_one_stays() {
    let daemon = Daemon::start().await;
    let mut streams = Vec::new();
    for _ in 0..=CONNECTIONS {
        streams.push(TcpStream::connect(daemon.health).await.unwrap());
    }
    let mut oldest = streams.remove(0);
    let closed = timeout(Duration::from_secs(2), oldest.read(&mut [0; 1])).await.expect("it was closed");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    let mut youngest = streams.pop().unwrap();
    youngest.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    youngest.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("ok"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_11_a_client_that_sends_no_head_or_no_body_is_hung_up_on() {
    let daemon = Daemon::start().await;
    let hung_up = async |begun: &str, at_most: u64| {
        let answer = timeout(Duration::from_secs(at_most), request(daemon.debug, begun)).await;
        let answer = answer.unwrap_or_else(|_| panic!("still open after {at_most} s: {begun:?}"));
        assert!(!answer.contains("200 OK"), "{answer}");
    };
    tokio::join!(
        hung_up("", 5),
        hung_up("GET /healthz HTTP/1.1\r\nho", 5),
        hung_up("PUT /debug/log-level HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nin", 12),
    );
}

#[tokio::test]
async fn the_log_level_takes_levels_and_targets_and_nothing_that_costs() {
    let daemon = Daemon::start().await;
    let said = put(daemon.debug, "Error,tapestry_cluster=warn,kube_client=trace").await;
    assert!(said.ends_with("logging error,kube_client=error,tapestry_cluster=warn\n"), "{said}");
    for bad in ["loud", "off", "", "info,[{a=(.{1,64}){1,64}}]=trace"] {
        let said = put(daemon.debug, bad).await;
        assert!(said.starts_with("HTTP/1.1 400") && said.contains("target=level"), "{bad}: {said}");
    }
    let since = Instant::now();
    let said = put(daemon.debug, &"a=info,".repeat(270_000)).await;
    assert!(said.starts_with("HTTP/1.1 413") || said.is_empty(), "{said}");
    assert!(since.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn health_and_metrics_do_not_change_the_log_level() {
    let daemon = Daemon::start().await;
    for server in [daemon.health, daemon.metrics] {
        assert!(put(server, "error").await.starts_with("HTTP/1.1 404"));
    }
}
