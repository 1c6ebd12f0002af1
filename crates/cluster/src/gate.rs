//! The only code that writes to a cluster: leadership, deadline, precondition, error class, metrics, one log line per call.
//! Plans nothing and retries nothing. Where a call needs several requests, they share its deadline, and metrics count each of them.

mod carry;
mod metrics;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::Request;
use kube::client::Body;
use serde_json::Value;

use crate::body::Asked;
use crate::connect::{CALL_DEADLINE, Cluster};
use crate::no_answer::NoAnswer;
use crate::object::uid_of;
use crate::served::discover;
use crate::{Answer, Call, Lead, Refusal, Side, Verb};

pub use metrics::{CallMetrics, Metrics};

/// Who we are in `managedFields`.
pub const FIELD_MANAGER: &str = "tapestry";

/// Carries out calls. A trait, so that a whole syncer runs in memory (see the testbed's World).
pub trait Gate: Send + Sync {
    /// Carries out one call, if the lead still lasts just before it is sent. Dropping the future leaves it unknown whether
    /// the call happened.
    fn call(&self, call: Arc<Call>, lead: Lead) -> BoxFuture<'static, Result<Answer, Refusal>>;
}

/// The gate to two real clusters.
pub struct LiveGate {
    clusters: Clusters,
    metrics: Metrics,
}

/// The clusters behind a gate.
#[derive(Clone)]
struct Clusters {
    virtual_cluster: Cluster,
    /// `None` while it is not connected.
    physical_cluster: Option<Cluster>,
}

/// What the requests of one call share.
struct Requests<'a> {
    clusters: &'a Clusters,
    lead: &'a Lead,
    deadline: Deadline,
    metrics: &'a Metrics,
}

/// When a call has to be over, whatever number of requests it takes.
#[derive(Clone, Copy)]
struct Deadline(Instant);

impl LiveGate {
    /// A gate to this pair.
    #[must_use]
    pub fn new(virtual_cluster: Cluster, physical_cluster: Cluster, metrics: Metrics) -> Self {
        Self { clusters: Clusters { virtual_cluster, physical_cluster: Some(physical_cluster) }, metrics }
    }

    /// A gate to the virtual cluster alone.
    #[must_use]
    pub fn to_virtual(virtual_cluster: Cluster, metrics: Metrics) -> Self {
        Self { clusters: Clusters { virtual_cluster, physical_cluster: None }, metrics }
    }
}

impl Clusters {
    fn of(&self, side: Side) -> Result<&Cluster, Refusal> {
        match side {
            Side::Virtual => Ok(&self.virtual_cluster),
            Side::Physical => self.physical_cluster.as_ref().ok_or_else(not_connected),
        }
    }
}

fn not_connected() -> Refusal {
    Refusal::Unknown("the physical cluster is not connected".to_owned())
}

impl Deadline {
    fn of_a_call() -> Self {
        Self(Instant::now() + CALL_DEADLINE)
    }

    /// The time that is left; none once it has passed.
    fn left(self) -> Result<Duration, Refusal> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(late()) } else { Ok(left) }
    }
}

fn late() -> Refusal {
    Refusal::Unknown(NoAnswer::Late(CALL_DEADLINE).into())
}

impl Gate for LiveGate {
    fn call(&self, call: Arc<Call>, lead: Lead) -> BoxFuture<'static, Result<Answer, Refusal>> {
        let (clusters, metrics) = (self.clusters.clone(), self.metrics.clone());
        async move {
            let start = Instant::now();
            let requests =
                Requests { clusters: &clusters, lead: &lead, deadline: Deadline::of_a_call(), metrics: &metrics };
            let cluster = clusters.of(call.target.side)?.name();
            let done = match call.verb {
                Verb::Carry { .. } => requests.carry(&call).await,
                Verb::Token { .. } => requests.issue_tokens(&call).await,
                _ => requests.send(&call).await,
            };
            let took = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            match &done {
                Ok(_) => tracing::debug!(cluster, %call, took, "done"),
                Err(Refusal::Gone) if call.is_read() => tracing::debug!(cluster, %call, took, "gone"),
                // All calls of a desk may fail this way at once, so do not log each: the election logs that leadership was lost.
                Err(Refusal::NotLeading) => tracing::debug!(cluster, %call, "not leading"),
                Err(refusal) => {
                    tracing::info!(cluster, %call, took, refusal = refusal.reason(), why = refusal.message(), "refused");
                }
            }
            done
        }
        .boxed()
    }
}

impl Requests<'_> {
    /// Sends a call that is one request, and counts it.
    async fn send(&self, call: &Call) -> Result<Answer, Refusal> {
        let cluster = self.clusters.of(call.target.side)?;
        let start = Instant::now();
        let done = send_in(cluster, call, self.lead, self.deadline).await;
        self.metrics.count(call, &done, start.elapsed());
        done
    }
}

/// Sends a call that is one request without looking at leadership, and classifies the answer.
pub async fn carry_out(cluster: &Cluster, call: &Call) -> Result<Answer, Refusal> {
    send_in(cluster, call, &Lead::always(), Deadline::of_a_call()).await
}

async fn send_in(cluster: &Cluster, call: &Call, lead: &Lead, deadline: Deadline) -> Result<Answer, Refusal> {
    if let Verb::Discover { .. } = call.verb {
        return read_discovery(cluster, call, lead, deadline).await;
    }
    let request = render_request(call).ok_or_else(|| Refusal::Unknown(format!("not one request: {call}")))?;
    let (code, retry_after, body) = exchange(cluster, request, lead, deadline).await?;
    if (200..300).contains(&code) {
        if proves_another(call, &body) {
            confirm_identity(cluster, deadline).await?;
        }
        let answer = Answer { object: body };
        if let (Verb::Version, Some(rv)) = (&call.verb, answer.version()) {
            // The reader that asks waits for the watch to reach this version.
            cluster.await_version(call.target.kind, rv);
        }
        return Ok(answer);
    }
    let refusal = Refusal::classify(call, code, &body, retry_after);
    if refusal == Refusal::Gone && call.is_read() {
        confirm_identity(cluster, deadline).await?;
    }
    Err(refusal)
}

/// Sends one request, if it still may be sent, and returns code, `Retry-After` and body.
async fn exchange(
    cluster: &Cluster,
    request: Result<Request<Body>, http::Error>,
    lead: &Lead,
    deadline: Deadline,
) -> Result<(u16, Option<u32>, Bytes), Refusal> {
    let request = request.map_err(|error| Refusal::Unknown(error.to_string()))?;
    let left = deadline.left()?;
    check(cluster, lead)?;
    cluster.exchange(request, left, Asked::Object).await.map_err(|why| match why {
        // What was left of it for this request says nothing.
        NoAnswer::Late(_) => late(),
        why => Refusal::Unknown(why.into()),
    })
}

/// The last step before each request. It stops a process that was frozen since it planned. If it freezes later,
/// preconditions refuse the call.
fn check(cluster: &Cluster, lead: &Lead) -> Result<(), Refusal> {
    if let Some(other) = cluster.elsewhere() {
        return Err(Refusal::Unknown(format!("the kubeconfig leads to cluster {other}, which is not the pinned one")));
    }
    if lead.lasts() { Ok(()) } else { Err(Refusal::NotLeading) }
}

/// The entry of a kind in discovery, from the right cluster only.
async fn read_discovery(cluster: &Cluster, call: &Call, lead: &Lead, deadline: Deadline) -> Result<Answer, Refusal> {
    check(cluster, lead)?;
    let entry = discover(cluster, call.target.kind).await.map_err(Refusal::Unknown)?;
    confirm_identity(cluster, deadline).await?;
    entry.map(|object| Answer { object }).ok_or(Refusal::Gone)
}

/// Whether what a read found is evidence: the call reads for evidence, and found another object under the name than the one it names,
/// which is therefore gone.
fn proves_another(call: &Call, body: &[u8]) -> bool {
    let expected = || call.target.uid.as_ref().zip(uid_of(body));
    call.verb == Verb::Get && expected().is_none_or(|(uid, found)| *uid != found)
}

/// The absence of an object is evidence only from the right cluster (law 1): a kubeconfig or a load balancer may lead to
/// another one by now.
async fn confirm_identity(cluster: &Cluster, deadline: Deadline) -> Result<(), Refusal> {
    let answers = tokio::time::timeout(deadline.left()?, cluster.ask_identity()).await.map_err(|_| late())?;
    let answers = answers.map_err(|error| Refusal::Unknown(error.to_string()))?;
    if cluster.identity() == Some(&answers) {
        return Ok(());
    }
    Err(Refusal::Unknown(format!("the API server says it is cluster {answers}, which is not the pinned one")))
}

/// `None` for a call that is not one request.
fn render_request(call: &Call) -> Option<Result<Request<Body>, http::Error>> {
    let namespace = call.target.namespace.as_ref().map(crate::Name::as_str);
    let name = Some(call.target.name.as_str()).filter(|_| !matches!(call.verb, Verb::Create(_) | Verb::Version));
    let mut path = call.target.kind.path(namespace, name);
    if !call.part().is_empty() {
        path.push('/');
        path.push_str(call.part());
    }
    let managed = format!("?fieldManager={FIELD_MANAGER}");
    let forced = format!("{managed}&force=true");
    let (method, query, content) = match &call.verb {
        Verb::Carry { .. } | Verb::Token { .. } | Verb::Discover { .. } => return None,
        Verb::Get | Verb::Peek => ("GET", "", ""),
        // The version is that of the list; the one object in it is ignored.
        Verb::Version => ("GET", "?limit=1", ""),
        Verb::Create(_) => ("POST", &*managed, "application/json"),
        Verb::Merge(..) => ("PATCH", &*managed, "application/merge-patch+json"),
        Verb::Strategic(..) => ("PATCH", &*managed, "application/strategic-merge-patch+json"),
        Verb::Apply(..) => ("PATCH", &*forced, "application/apply-patch+yaml"),
        Verb::Delete { .. } => ("DELETE", "", "application/json"),
        Verb::Evict { .. } => ("POST", "", "application/json"),
    };
    path.push_str(query);
    Some(build(method, path, call.body().as_deref().map(|body| (content, body))))
}

fn build(method: &str, path: String, body: Option<(&str, &Value)>) -> Result<Request<Body>, http::Error> {
    let request = Request::builder().method(method).uri(path).header(http::header::ACCEPT, "application/json");
    match body {
        None => request.body(Body::empty()),
        Some((content, body)) => {
            request.header(http::header::CONTENT_TYPE, content).body(Body::from(body.to_string().into_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::connect::Trust;
    use crate::lead::Fence;
    use crate::{Kind, Name, Sub, Target, Uid, kind};
    use prometheus_client::registry::Registry;
    use serde_json::json;
    use tokio::io::AsyncReadExt as _;

    #[test]
    fn requests_say_what_the_call_says() {
        let target =
            Target::namespaced(Side::Virtual, &kind::POD, Name::parse("a").unwrap(), Name::parse("b").unwrap());
        let seen = |verb| {
            let request = render_request(&Call { target: target.clone(), verb, why: "Test" }).unwrap().unwrap();
            let content = request.headers().get("content-type").map_or("", |value| value.to_str().unwrap()).to_owned();
            (format!("{} {}", request.method(), request.uri()), content)
        };
        let pod = "/api/v1/namespaces/a/pods/b";
        assert_eq!(seen(Verb::Get).0, format!("GET {pod}"));
        assert_eq!(seen(Verb::Peek).0, format!("GET {pod}"));
        assert_eq!(seen(Verb::Version).0, "GET /api/v1/namespaces/a/pods?limit=1");
        assert_eq!(seen(Verb::Create(json!({}))).0, "POST /api/v1/namespaces/a/pods?fieldManager=tapestry");
        assert_eq!(seen(Verb::Delete { grace: None }).0, format!("DELETE {pod}"));
        let evict = (format!("POST {pod}/eviction"), "application/json".to_owned());
        assert_eq!(seen(Verb::Evict { grace: None }), evict);
        assert_eq!(
            seen(Verb::Strategic(Sub::Status, json!({}))),
            (format!("PATCH {pod}/status?fieldManager=tapestry"), "application/strategic-merge-patch+json".to_owned())
        );
        assert_eq!(
            seen(Verb::Strategic(Sub::Resize, json!({}))).0,
            format!("PATCH {pod}/resize?fieldManager=tapestry")
        );
        assert_eq!(seen(Verb::Apply(Sub::Main, json!({}))).0, format!("PATCH {pod}?fieldManager=tapestry&force=true"));
    }

    #[test]
    fn law_01_what_is_found_under_the_name_is_evidence_if_the_call_says_so_whatever_its_kind() {
        let body = json!({"metadata": {"uid": "found"}}).to_string();
        for kind in [&kind::POD, Kind::intern("example.com", "v1", "gadgets", "Gadget", false).unwrap()] {
            let proves = |verb: Verb, uid: Option<&str>, body: &str| {
                let target = Target {
                    uid: uid.map(Uid::new),
                    ..Target::cluster(Side::Virtual, kind, Name::parse("a").unwrap())
                };
                proves_another(&Call { target, verb, why: "Test" }, body.as_bytes())
            };
            assert!(proves(Verb::Get, Some("another"), &body));
            assert!(proves(Verb::Get, None, &body), "any object, when none is named");
            assert!(proves(Verb::Get, Some("found"), "{}"), "an answer without a UID is not the object");
            assert!(!proves(Verb::Get, Some("found"), &body), "the very object");
            for uid in [Some("another"), None] {
                assert!(!proves(Verb::Peek, uid, &body));
            }
            assert!(!proves(Verb::Merge(Sub::Main, json!({})), Some("another"), &body));
        }
    }

    struct Switch(AtomicBool);

    impl Fence for Switch {
        fn lasts(&self, term: u64) -> bool {
            term == 7 && self.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn a_call_of_a_term_that_has_ended_is_not_sent() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", server.local_addr().unwrap())}}],
        });
        let cluster = Cluster::connect("test", &kubeconfig.to_string(), Trust::Operator, "test").await.unwrap();
        let gate =
            LiveGate::new(cluster.clone(), cluster, CallMetrics::register(&mut Registry::default()).of(&"east".into()));
        let target = Target::cluster(Side::Virtual, &kind::NODE, Name::parse("n").unwrap());
        let call = Arc::new(Call { target, verb: Verb::Get, why: "Test" });
        let fence = Arc::new(Switch(AtomicBool::new(true)));
        let send = |term| gate.call(Arc::clone(&call), Lead::new(Arc::clone(&fence) as Arc<dyn Fence>, term));

        // Given to the gate while the term lasts, and polled after it ended: as if the process was frozen in between.
        let planned = send(7);
        fence.0.store(false, Ordering::Relaxed);
        assert_eq!(planned.await, Err(Refusal::NotLeading));
        fence.0.store(true, Ordering::Relaxed);
        assert_eq!(send(6).await, Err(Refusal::NotLeading), "an earlier term");
        assert!(server.accept().now_or_never().is_none(), "the gate opened a connection");

        let arrives = async {
            let (mut client, _) = server.accept().await.unwrap();
            client.read_u8().await.unwrap()
        };
        tokio::select! {
            first = arrives => assert_eq!(first, b'G'),
            done = send(7) => panic!("{done:?}"),
        }
    }
}
