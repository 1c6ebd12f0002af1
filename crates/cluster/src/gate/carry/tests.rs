//! Calls of several requests against a stub that plays both clusters: what is sent, in which order, and when no more is sent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::super::{CallMetrics, Clusters, Deadline, Gate as _, LiveGate, Requests};
use crate::call::carry::tests::carry;
use crate::call::token::tests::token;
use crate::connect::{CALL_DEADLINE, Cluster, Trust};
use crate::lead::Fence;
use crate::{Call, Lead, Refusal, Uid};

const IDENTITY: &str = "the-cluster";

/// Method and path, and the body, of all requests.
type Seen = Arc<Mutex<Vec<(String, Value)>>>;

/// A stub and a connection to it.
struct Stub {
    cluster: Cluster,
    seen: Seen,
    _server: JoinSet<()>,
}

impl Stub {
    /// Answers each request with code and body; the identity is answered by itself.
    async fn start(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + Clone + 'static) -> Self {
        Self::slow(Duration::ZERO, answer).await
    }

    /// Takes this long for each answer.
    async fn slow(time: Duration, answer: impl Fn(&str) -> (u16, Value) + Send + Sync + Clone + 'static) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", server.local_addr().unwrap())}}],
        });
        let cluster = Cluster::connect("test", &kubeconfig.to_string(), Trust::Operator, "test").await.unwrap();
        let seen = Seen::default();
        let noted = Arc::clone(&seen);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = server.accept().await {
                clients.spawn(serve(client, Arc::clone(&noted), time, answer.clone()));
            }
        });
        Self { cluster, seen, _server: tasks }
    }

    fn gate(&self, registry: &mut Registry) -> LiveGate {
        LiveGate::new(self.cluster.clone(), self.cluster.clone(), CallMetrics::register(registry).of(&"east".into()))
    }

    async fn call(&self, call: &Call) -> Result<crate::Answer, Refusal> {
        self.gate(&mut Registry::default()).call(Arc::new(call.clone()), Lead::always()).await
    }

    fn paths(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
    }
}

async fn serve(mut client: TcpStream, seen: Seen, time: Duration, answer: impl Fn(&str) -> (u16, Value)) {
    let mut read = Vec::new();
    while client.read_buf(&mut read).await.is_ok_and(|count| count > 0) {
        while let Some((path, body, used)) = parse(&read) {
            read.drain(..used);
            let (code, reply) = if path == "GET /api/v1/namespaces/kube-system" {
                (200, json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": IDENTITY}}))
            } else {
                seen.lock().unwrap().push((path.clone(), body));
                answer(&path)
            };
            tokio::time::sleep(time).await;
            let reply = reply.to_string();
            let head = format!(
                "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                reply.len()
            );
            // The client may have given up.
            let _ = client.write_all(format!("{head}{reply}").as_bytes()).await;
        }
    }
}

/// The first request: method and path without its query, body, length.
fn parse(read: &[u8]) -> Option<(String, Value, usize)> {
    let text = std::str::from_utf8(read).ok()?;
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let body = rest.get(..length.unwrap_or(0))?;
    let path = head.split(" HTTP").next()?.split('?').next()?.to_owned();
    Some((path, serde_json::from_str(body).unwrap_or_default(), head.len() + 4 + body.len()))
}

fn status(code: u16, reason: &str, kind: &str, name: &str) -> (u16, Value) {
    let details = json!({"kind": kind, "name": name});
    (code, json!({"kind": "Status", "code": code, "reason": reason, "message": "m", "details": details}))
}

fn source() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"password": "aHVzaC1odXNo"},
        "metadata": {"name": "db", "namespace": "shop", "uid": "source", "resourceVersion": "3"},
    })
}

const SOURCE: &str = "GET /api/v1/namespaces/shop/secrets/db";
const CREATE: &str = "POST /api/v1/namespaces/mount/secrets";
const COPY: &str = "GET /api/v1/namespaces/mount/secrets/db-copy";
const PATCH: &str = "PATCH /api/v1/namespaces/mount/secrets/db-copy";
const TOKEN: &str = "POST /api/v1/namespaces/shop/serviceaccounts/robot/token";

#[tokio::test]
async fn a_copy_is_created_from_its_source_and_then_written_only_when_it_differs() {
    let made = Arc::new(Mutex::new(Value::Null));
    let kept = Arc::clone(&made);
    let stub = Stub::start(move |path| match path {
        SOURCE => (200, source()),
        COPY => (200, kept.lock().unwrap().clone()),
        CREATE | PATCH => (201, json!({"metadata": {"name": "db-copy"}})),
        other => panic!("{other}"),
    })
    .await;
    stub.call(&carry(None)).await.unwrap();
    assert_eq!(stub.paths(), [SOURCE, CREATE]);
    let mut copy = stub.seen.lock().unwrap()[1].1.clone();
    assert_eq!((&copy["data"]["password"], &copy["metadata"]["name"]), (&json!("aHVzaC1odXNo"), &json!("db-copy")));
    (copy["metadata"]["uid"], copy["metadata"]["resourceVersion"]) = (json!("copy"), json!("9"));
    *made.lock().unwrap() = copy.clone();
    let answer = stub.call(&carry(Some("copy"))).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&answer.object).unwrap(), copy, "the copy as it is");
    assert_eq!(stub.paths(), [SOURCE, CREATE, COPY, SOURCE]);
    made.lock().unwrap()["data"]["password"] = json!("b3RoZXI=");
    stub.call(&carry(Some("copy"))).await.unwrap();
    assert_eq!(stub.paths()[4..], [COPY, SOURCE, PATCH]);
    let patch = &stub.seen.lock().unwrap()[6].1;
    assert_eq!(patch["data"], json!({"password": "aHVzaC1odXNo"}));
    assert_eq!((&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]), (&json!("copy"), &json!("9")));
}

#[tokio::test]
async fn law_01_a_source_that_is_gone_counts_only_from_the_pinned_cluster_and_nothing_is_written() {
    let stub = Stub::start(|_| status(404, "NotFound", "secrets", "db")).await;
    let refusal = stub.call(&carry(None)).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Unknown(_)), "{refusal:?}");
    assert!(stub.cluster.pin(&Uid::new(IDENTITY)));
    assert_eq!(stub.call(&carry(None)).await, Err(Refusal::Replaced));
    assert_eq!(stub.paths(), [SOURCE, SOURCE]);
}

/// Lasts for some looks.
struct Short(AtomicUsize);

impl Fence for Short {
    fn lasts(&self, _: u64) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

#[tokio::test]
async fn leadership_is_checked_before_every_request() {
    let stub = Stub::start(|path| match path {
        SOURCE => (200, source()),
        COPY => {
            (200, json!({"metadata": {"name": "db-copy", "namespace": "mount", "uid": "copy", "resourceVersion": "9"}}))
        }
        TOKEN => (201, json!({"status": {"token": "t", "expirationTimestamp": "2026-01-05T01:00:00Z"}})),
        other => panic!("{other}"),
    })
    .await;
    let gate = stub.gate(&mut Registry::default());
    for (call, looks, sent) in
        [(carry(Some("copy")), 2, 2), (carry(None), 1, 1), (token(None), 2, 2), (token(None), 1, 1)]
    {
        let lead = Lead::new(Arc::new(Short(AtomicUsize::new(looks))), 1);
        assert_eq!(gate.call(Arc::new(call), lead).await, Err(Refusal::NotLeading));
        assert_eq!(std::mem::take(&mut *stub.seen.lock().unwrap()).len(), sent);
    }
}

#[tokio::test]
async fn law_11_all_requests_of_a_call_share_one_deadline() {
    let stub = Stub::slow(Duration::from_millis(60), |_| (200, source())).await;
    let clusters = Clusters { virtual_cluster: stub.cluster.clone(), physical_cluster: Some(stub.cluster.clone()) };
    let metrics = CallMetrics::register(&mut Registry::default()).of(&"east".into());
    for (left, sent) in [(0, 0), (30, 1), (90, 2)] {
        let deadline = Deadline(Instant::now() + Duration::from_millis(left));
        let requests = Requests { clusters: &clusters, lead: &Lead::always(), deadline, metrics: &metrics };
        let refusal = requests.carry(&carry(None)).await.unwrap_err();
        assert_eq!(refusal, Refusal::Unknown(format!("no answer within {CALL_DEADLINE:?}")));
        assert!(stub.seen.lock().unwrap().drain(..).count() <= sent, "sent after the deadline");
    }
}

#[tokio::test]
async fn each_token_is_asked_for_and_all_are_written_at_once_and_metrics_count_each_request() {
    let stub = Stub::start(|path| match path {
        TOKEN => (201, json!({"status": {"token": "t", "expirationTimestamp": "2026-01-05T01:00:00Z"}})),
        CREATE => (201, json!({"metadata": {"name": "web-token"}})),
        other => panic!("{other}"),
    })
    .await;
    let mut registry = Registry::default();
    stub.gate(&mut registry).call(Arc::new(token(None)), Lead::always()).await.unwrap();
    assert_eq!(stub.paths(), [TOKEN, TOKEN, CREATE]);
    let seen = stub.seen.lock().unwrap().clone();
    assert_eq!(seen[0].1["spec"].get("audiences"), None);
    assert_eq!(seen[1].1["spec"]["audiences"], json!(["vault"]));
    assert_eq!(seen[2].1["stringData"], json!({"api.0": "t", "vault.0": "t"}));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let counted = |side: &str, resource: &str, count: u32| {
        let labels = format!(r#"side="{side}",verb="create",resource="{resource}",why="Test",outcome="Ok"}} {count}"#);
        assert!(text.contains(&labels), "{labels} is not in\n{text}");
    };
    counted("virtual", "serviceaccounts/token", 2);
    counted("physical", "secrets", 1);
}

#[tokio::test]
async fn a_missing_account_is_told_in_our_words_and_nothing_is_written() {
    let stub = Stub::start(|_| status(404, "NotFound", "serviceaccounts", "robot")).await;
    let refusal = stub.call(&token(Some("secret"))).await.unwrap_err();
    assert_eq!(refusal.message(), "ServiceAccount shop/robot does not exist in the virtual cluster: create it");
    assert_eq!(stub.paths(), [TOKEN]);
}
