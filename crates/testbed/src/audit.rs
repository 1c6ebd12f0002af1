//! Which requests a cluster answered: reads the API server's audit log from a mark.
//! Must not count a request twice; the policy below writes exactly one line for each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use crate::cluster::{COMPONENT_USERS, Cluster};
use crate::eventually;

/// A request that only marks a place in the log: everything answered before it is above it.
const TRACER: &str = "testbed-audit-mark";

/// What the API server writes: a line for each answered request, for watches when they begin (they may never end). Of the
/// control plane's own requests only writes, which show who changed an object; its reads and probes are noise.
pub(crate) fn policy() -> Result<String> {
    Ok(serde_saphyr::to_string(&json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitManagedFields": true,
        "rules": [
            { "level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"] },
            { "level": "None", "users": COMPONENT_USERS, "verbs": ["get", "list", "watch"] },
            { "level": "None", "users": COMPONENT_USERS, "resources": [{ "group": "coordination.k8s.io" }] },
            { "level": "Metadata", "verbs": ["watch"], "omitStages": ["RequestReceived", "ResponseComplete"] },
            { "level": "Metadata", "omitStages": ["RequestReceived", "ResponseStarted"] },
        ],
    }))?)
}

/// The audit log of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Audit<'a> {
    cluster: &'a Cluster,
}

/// A place in the log: everything answered before it is excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// One answered request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The user: `system:serviceaccount:x:y`.
    pub user: String,
    /// The user agent.
    pub user_agent: String,
    /// get, list, watch, create, update, patch, delete, deletecollection.
    pub verb: String,
    /// Resource with its group (`pods`, `deployments.apps`); the path where it is no resource (`/version`).
    pub resource: String,
    /// Such as `status`; often empty.
    pub subresource: String,
    /// Empty for cluster-scoped resources and lists over all namespaces.
    pub namespace: String,
    /// Empty for lists and watches. The server's choice for creations with `generateName`: empty too.
    pub name: String,
    /// The HTTP status.
    pub code: u16,
    /// Whether the user lacked the right. (Admission answers 403 too.)
    pub forbidden: bool,
    /// When it came in.
    pub received: Timestamp,
    /// How long the server took; for a watch, until it began.
    pub latency: Duration,
}

/// Requests in the order of their answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requests(pub Vec<Request>);

impl<'a> Audit<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Self {
        Self { cluster }
    }

    /// The log itself, one JSON event per line.
    #[must_use]
    pub fn path(self) -> PathBuf {
        self.cluster.folder().join("audit.log")
    }

    /// Now. Needs a running API server, as [`Self::since`] does.
    pub async fn mark(self) -> Result<Mark> {
        let length = match std::fs::metadata(self.path()) {
            Ok(file) => file.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        let lines = self.read(Mark(length)).await?;
        Ok(Mark(length + lines.len() as u64))
    }

    /// Everything answered since `mark`, without the testbed's own marks.
    pub async fn since(self, mark: &Mark) -> Result<Requests> {
        let lines = self.read(*mark).await?;
        let requests = lines.split_inclusive(|byte| *byte == b'\n').map(parse).collect::<Result<Vec<_>>>()?;
        Ok(Requests(requests).only(|request| !request.name.starts_with(TRACER)))
    }

    /// The log from `from` to a request made just now. The first line is incomplete when `from` is an arbitrary length of
    /// the file.
    async fn read(self, from: Mark) -> Result<Vec<u8>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let tracer = format!("{TRACER}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.cluster.get("v1/ConfigMap", &format!("default/{tracer}")).await.context("marking the audit log")?;
        // The line is written after the answer is sent, so it may be missing at first.
        eventually("the mark is in the audit log", Duration::from_secs(10), async || {
            let mut log = self.bytes(from).map_err(|error| format!("{error:#}"))?;
            let end = end_of_line_with(&format!("/{tracer}\""), &log).ok_or_else(|| format!("{} bytes", log.len()))?;
            log.truncate(end);
            Ok(log)
        })
        .await
    }

    fn bytes(self, from: Mark) -> Result<Vec<u8>> {
        let mut log = File::open(self.path())?;
        log.seek(SeekFrom::Start(from.0))?;
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

fn end_of_line_with(text: &str, log: &[u8]) -> Option<usize> {
    let mut end = 0;
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        end += line.len();
        if line.ends_with(b"\n") && String::from_utf8_lossy(line).contains(text) {
            return Some(end);
        }
    }
    None
}

impl Requests {
    /// Those of programs whose user agent begins like this.
    #[must_use]
    pub fn by_agent(&self, prefix: &str) -> Self {
        self.only(|request| request.user_agent.starts_with(prefix))
    }

    /// Those that satisfy a condition.
    #[must_use]
    pub fn only(&self, condition: impl Fn(&Request) -> bool) -> Self {
        Self(self.0.iter().filter(|request| condition(request)).cloned().collect())
    }

    /// Those that change something.
    #[must_use]
    pub fn writes(&self) -> Self {
        self.only(|request| !matches!(request.verb.as_str(), "get" | "list" | "watch"))
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A table with a line for each kind of request, most frequent first: count, slowest, agent, verb, resource, status.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut kinds: BTreeMap<(&str, &str, String, u16), (usize, Duration)> = BTreeMap::new();
        for request in &self.0 {
            let resource = match request.subresource.as_str() {
                "" => request.resource.clone(),
                subresource => format!("{}/{subresource}", request.resource),
            };
            let (count, slowest) =
                kinds.entry((&request.user_agent, &request.verb, resource, request.code)).or_default();
            *count += 1;
            *slowest = request.latency.max(*slowest);
        }
        let mut rows: Vec<_> = kinds.into_iter().collect();
        rows.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        let mut table =
            format!("{:>7} {:>8}  {:<32} {:<8} {:<40} code\n", "count", "slowest", "agent", "verb", "resource");
        for ((agent, verb, resource, code), (count, slowest)) in rows {
            let agent: String = agent.chars().take(32).collect();
            let slowest = format!("{}ms", slowest.as_millis());
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{count:>7} {slowest:>8}  {agent:<32} {verb:<8} {resource:<40} {code}");
        }
        table
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: Option<ObjectRef>,
    #[serde(default)]
    response_status: Option<ResponseStatus>,
    #[serde(default)]
    annotations: Annotations,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    resource: String,
    api_group: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize, Default)]
struct Annotations {
    #[serde(rename = "authorization.k8s.io/decision", default)]
    decision: String,
}

#[derive(Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

fn parse(line: &[u8]) -> Result<Request> {
    let event: Event = serde_json::from_slice(line)
        .with_context(|| format!("not an audit event: {}", String::from_utf8_lossy(line)))?;
    let object = event.object_ref.unwrap_or_default();
    let resource = match (object.resource.as_str(), object.api_group.as_str()) {
        ("", _) => event.request_uri.split('?').next().unwrap_or_default().to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, group) => format!("{resource}.{group}"),
    };
    let latency = event.stage_timestamp.duration_since(event.request_received_timestamp);
    Ok(Request {
        user: event.user.username,
        user_agent: event.user_agent,
        verb: event.verb,
        resource,
        subresource: object.subresource,
        namespace: object.namespace,
        name: object.name,
        code: event.response_status.map_or(0, |status| status.code),
        forbidden: event.annotations.decision == "forbid",
        received: event.request_received_timestamp,
        latency: Duration::try_from(latency).unwrap_or_default(),
    })
}
