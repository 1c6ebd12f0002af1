//! The only code that writes to a cluster: leadership, deadline, precondition, error class, metrics, one log line per call.
//! Plans nothing and retries nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use http::Request;
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use prometheus_client::registry::Registry;

use crate::body::Asked;
use crate::connect::{CALL_DEADLINE, Cluster};
use crate::kind::Resource;
use crate::served::discover;
use crate::{Answer, Call, Lead, Refusal, Side, Sub, Uid, Verb};

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
    virtual_cluster: Cluster,
    /// `None` while it is not connected.
    physical_cluster: Option<Cluster>,
    metrics: Metrics,
}

/// Counts the calls that pass the gates of all bindings of a process.
#[derive(Clone)]
pub struct CallMetrics {
    calls: Family<Labels, Counter>,
    seconds: Family<SideLabels, Histogram>,
}

/// Counts the calls that pass the gates of one binding.
#[derive(Clone)]
pub struct Metrics {
    families: CallMetrics,
    binding: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    binding: Arc<str>,
    side: &'static str,
    verb: &'static str,
    resource: Resource,
    why: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SideLabels {
    binding: Arc<str>,
    side: &'static str,
}

impl CallMetrics {
    /// Adds the metrics of all gates to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        // 1 ms … 16 s, doubling: a call's deadline is 15 s.
        let buckets = || Histogram::new((0..15).map(|power| 0.001 * f64::from(1 << power)));
        let metrics = Self { calls: Family::default(), seconds: Family::new_with_constructor(buckets) };
        registry.register("calls", "Calls to API servers", metrics.calls.clone());
        registry.register("call_duration_seconds", "How long calls to API servers took", metrics.seconds.clone());
        metrics
    }

    /// Those of one binding.
    #[must_use]
    pub fn of(&self, binding: &Arc<str>) -> Metrics {
        Metrics { families: self.clone(), binding: Arc::clone(binding) }
    }
}

impl Metrics {
    fn count(&self, call: &Call, done: &Result<Answer, Refusal>, took: Duration) {
        let side = call.target.side.as_str();
        let outcome = done.as_ref().map_or_else(Refusal::reason, |_| "Ok");
        let resource = match call.verb {
            Verb::Evict { .. } => Resource::named("pods/eviction"),
            Verb::Discover { .. } => Resource::named("discovery"),
            _ => call.target.kind.into(),
        };
        let binding = || Arc::clone(&self.binding);
        let labels = Labels { binding: binding(), side, verb: call.verb.as_str(), resource, why: call.why, outcome };
        self.families.calls.get_or_create(&labels).inc();
        let labels = SideLabels { binding: binding(), side };
        self.families.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

impl LiveGate {
    /// A gate to this pair.
    #[must_use]
    pub fn new(virtual_cluster: Cluster, physical_cluster: Cluster, metrics: Metrics) -> Self {
        Self { virtual_cluster, physical_cluster: Some(physical_cluster), metrics }
    }

    /// A gate to the virtual cluster alone.
    #[must_use]
    pub fn to_virtual(virtual_cluster: Cluster, metrics: Metrics) -> Self {
        Self { virtual_cluster, physical_cluster: None, metrics }
    }
}

impl Gate for LiveGate {
    fn call(&self, call: Arc<Call>, lead: Lead) -> BoxFuture<'static, Result<Answer, Refusal>> {
        let cluster = match call.target.side {
            Side::Virtual => Some(self.virtual_cluster.clone()),
            Side::Physical => self.physical_cluster.clone(),
        };
        let Some(cluster) = cluster else {
            return ready(Err(Refusal::Unknown("the physical cluster is not connected".to_owned()))).boxed();
        };
        let metrics = self.metrics.clone();
        async move {
            let start = Instant::now();
            let done = carry_out_in(&cluster, &call, &lead).await;
            let took = start.elapsed();
            metrics.count(&call, &done, took);
            let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            match &done {
                Ok(_) => tracing::debug!(cluster = cluster.name(), %call, took, "done"),
                Err(Refusal::Gone) if call.is_read() => tracing::debug!(cluster = cluster.name(), %call, took, "gone"),
                // All calls of a desk may fail this way at once, so do not log each: the election logs that leadership was lost.
                Err(Refusal::NotLeading) => tracing::debug!(cluster = cluster.name(), %call, "not leading"),
                Err(refusal) => {
                    tracing::info!(cluster = cluster.name(), %call, took, refusal = refusal.reason(), why = refusal.message(), "refused");
                }
            }
            done
        }
        .boxed()
    }
}

/// Sends one call without looking at leadership, and classifies the answer.
pub async fn carry_out(cluster: &Cluster, call: &Call) -> Result<Answer, Refusal> {
    carry_out_in(cluster, call, &Lead::always()).await
}

async fn carry_out_in(cluster: &Cluster, call: &Call, lead: &Lead) -> Result<Answer, Refusal> {
    let request = render_request(call).map_err(|error| Refusal::Unknown(error.to_string()))?;
    if let Some(other) = cluster.elsewhere() {
        return Err(Refusal::Unknown(format!("the kubeconfig leads to cluster {other}, which is not the pinned one")));
    }
    // The last step: it stops a process that was frozen since it planned. If it freezes later, preconditions refuse the call.
    if !lead.lasts() {
        return Err(Refusal::NotLeading);
    }
    if let Verb::Discover { .. } = call.verb {
        return read_discovery(cluster, call).await;
    }
    let (code, retry_after, body) =
        cluster.exchange(request, CALL_DEADLINE, Asked::Object).await.map_err(|why| Refusal::Unknown(why.into()))?;
    if (200..300).contains(&code) {
        if proves_another(call, &body) {
            confirm_identity(cluster).await?;
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
        confirm_identity(cluster).await?;
    }
    Err(refusal)
}

/// The entry of a kind in discovery, from the right cluster only.
async fn read_discovery(cluster: &Cluster, call: &Call) -> Result<Answer, Refusal> {
    let entry = discover(cluster, call.target.kind).await.map_err(Refusal::Unknown)?;
    confirm_identity(cluster).await?;
    entry.map(|object| Answer { object }).ok_or(Refusal::Gone)
}

/// Whether what a read found is evidence: the call reads for evidence, and found another object under the name than the one it names,
/// which is therefore gone.
fn proves_another(call: &Call, body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    struct Metadata {
        uid: Uid,
    }
    let expected = || call.target.uid.as_ref().zip(serde_json::from_slice::<Object>(body).ok());
    call.verb == Verb::Get && expected().is_none_or(|(uid, object)| *uid != object.metadata.uid)
}

/// The absence of an object is evidence only from the right cluster (law 1): a kubeconfig or a load balancer may lead to
/// another one by now.
async fn confirm_identity(cluster: &Cluster) -> Result<(), Refusal> {
    let answers = cluster.ask_identity().await.map_err(|error| Refusal::Unknown(error.to_string()))?;
    if cluster.identity() == Some(&answers) {
        return Ok(());
    }
    Err(Refusal::Unknown(format!("the API server says it is cluster {answers}, which is not the pinned one")))
}

fn render_request(call: &Call) -> Result<Request<Body>, http::Error> {
    let namespace = call.target.namespace.as_ref().map(crate::Name::as_str);
    let name = Some(call.target.name.as_str()).filter(|_| !matches!(call.verb, Verb::Create(_) | Verb::Version));
    let mut path = call.target.kind.path(namespace, name);
    path.push_str(match (&call.verb, call.sub()) {
        (Verb::Evict { .. }, _) => "/eviction",
        (_, Sub::Status) => "/status",
        (_, Sub::Resize) => "/resize",
        (_, Sub::Main) => "",
    });
    let managed = format!("?fieldManager={FIELD_MANAGER}");
    let forced = format!("{managed}&force=true");
    let (method, query, content) = match &call.verb {
        Verb::Get | Verb::Peek | Verb::Discover { .. } => ("GET", "", ""),
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
    let request = Request::builder().method(method).uri(path).header(http::header::ACCEPT, "application/json");
    match call.body() {
        None => request.body(Body::empty()),
        Some(body) => {
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
    use crate::{Kind, Name, Target, kind};
    use serde_json::json;
    use tokio::io::AsyncReadExt as _;

    #[test]
    fn requests_say_what_the_call_says() {
        let target =
            Target::namespaced(Side::Virtual, &kind::POD, Name::parse("a").unwrap(), Name::parse("b").unwrap());
        let seen = |verb| {
            let request = render_request(&Call { target: target.clone(), verb, why: "Test" }).unwrap();
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
