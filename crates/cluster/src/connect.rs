//! One accessor per cluster: its client stack, its name in logs, its pinned identity.
//! Builds nothing from a kubeconfig that was not checked (see `kubeconfig`); retries nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use kube::Config;
use kube::client::Body;
use tokio::sync::{Notify, watch};
use tower::ServiceExt as _;

mod pools;

pub use pools::Traffic;
use pools::{Client, Pools};

use crate::body::{Asked, read_whole};
use crate::kubeconfig::{self, BadValue};
use crate::no_answer::NoAnswer;
use crate::object::Uid;
use crate::plugin::Plugins;
use crate::refusal::Status;
use crate::{Kind, Name, Rv, kind};

/// How long a call may take, from sending to the last byte of the answer.
pub const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// An API server that we talk to. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    /// What logs and metrics call it: `virtual`, or the binding's name.
    name: String,
    agent: HeaderValue,
    way: Arc<Way>,
    built: RwLock<Built>,
    /// Set once, by the first task that learns it; see [`Cluster::pin`].
    identity: OnceLock<Uid>,
    /// See [`Cluster::set_elsewhere`].
    elsewhere: RwLock<Option<Uid>>,
    /// Set once; see [`Cluster::note_restored`].
    restored: OnceLock<String>,
    /// probe --the cluster answers again--> tasks in back-off
    renewed: Notify,
    /// Versions that readers wait for, by kind.
    awaited: watch::Sender<Option<Awaited>>,
}

/// A version of a kind that a reader waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Awaited {
    pub(crate) kind: &'static Kind,
    pub(crate) rv: Rv,
}

/// The client and its connections.
#[derive(Clone)]
struct Built {
    /// The number of the configuration it was built from.
    turn: u64,
    client: Client,
    pools: Arc<Pools>,
}

/// How to reach the cluster: shared by all its accessors, so that a new kubeconfig reaches all of them.
struct Way {
    config: RwLock<Config>,
    /// How often it was replaced.
    turn: AtomicU64,
    plugins: Plugins,
}

impl Way {
    fn new(config: Config) -> Self {
        Self { config: RwLock::new(config), turn: AtomicU64::new(0), plugins: Plugins::default() }
    }

    fn build(&self) -> Result<Built, ConnectError> {
        // Before the configuration: a client may be newer than its number says, and is then built once more.
        let turn = self.turn.load(Ordering::Acquire);
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (pools, client) = self.plugins.build_in_time(config, CALL_DEADLINE, Pools::build)?;
        Ok(Built { turn, client, pools })
    }
}

/// Where a kubeconfig comes from decides what it may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// A file that the operator of this process names: anything that kubectl accepts.
    Operator,
    /// A Secret that any user with write access to it filled: nothing that runs programs or reads files here.
    Secret {
        /// The binding opts in to connections whose peer is not verified.
        allow_insecure: bool,
    },
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not a kubeconfig.
    #[error("the kubeconfig cannot be read: {0}")]
    UnreadableKubeconfig(String),
    /// Readable, but forbidden by law 10.
    #[error("the kubeconfig is refused: {0}")]
    RefusedKubeconfig(String),
    /// Readable, but one of its values is unusable.
    #[error("the kubeconfig cannot be used: {0}")]
    InvalidKubeconfig(#[from] BadValue),
    /// The client could not be built from it.
    #[error("the client cannot be built: {0}")]
    BuildClient(String),
    /// The server did not answer like an API server.
    #[error("the cluster cannot be reached: {0}")]
    Unreachable(String),
    /// The API server answers, and refuses us.
    #[error(transparent)]
    Refused(#[from] AccessRefused),
}

/// Why an API server answers and refuses us. This is no outage: pods in the cluster keep running.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessRefused {
    /// It does not know who we are.
    #[error(
        "the API server answers and does not accept the credentials of the kubeconfig (HTTP 401): its token or certificate may have expired"
    )]
    Credentials,
    /// It knows who we are, but forbids to read the namespace that identifies the cluster. With its message.
    #[error("the API server answers and the user of the kubeconfig may not get namespaces/kube-system (HTTP 403): {0}")]
    Right(String),
}

impl AccessRefused {
    /// The refusal that an HTTP code means, if it means one. A gateway before the API server may send it too, without a Status.
    fn of(code: u16, body: &[u8]) -> Option<Self> {
        match code {
            401 => Some(Self::Credentials),
            403 => {
                let status = serde_json::from_slice::<Status>(body).ok().filter(|status| status.kind == "Status");
                Some(Self::Right(status.map_or_else(|| "Forbidden".to_owned(), |status| status.message)))
            }
            _ => None,
        }
    }

    /// `PascalCase`, for conditions and events.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Credentials => "CredentialsRefused",
            Self::Right(_) => "RightMissing",
        }
    }

    /// What the owner of the kubeconfig can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Credentials => "put a kubeconfig with a valid token or certificate in its place",
            Self::Right(_) => "grant its user this right (deploy/rbac)",
        }
    }
}

impl ConnectError {
    /// `PascalCase`, for conditions and events.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnreadableKubeconfig(_) => "KubeconfigUnreadable",
            Self::RefusedKubeconfig(_) => "KubeconfigRefused",
            Self::InvalidKubeconfig(_) => "KubeconfigInvalid",
            Self::BuildClient(_) => "ClientFailed",
            Self::Unreachable(_) => "Unreachable",
            Self::Refused(refused) => refused.reason(),
        }
    }
}

impl Cluster {
    /// Builds the client stack; sends nothing yet.
    pub async fn connect(name: &str, kubeconfig: &str, trust: Trust, agent: &str) -> Result<Self, ConnectError> {
        Self::build(name, kubeconfig::load(kubeconfig, trust).await?, agent)
    }

    /// Builds the client stack from a ready configuration, such as the one inside a cluster.
    pub fn from_config(name: &str, mut config: Config, agent: &str) -> Result<Self, ConnectError> {
        kubeconfig::check(&mut config)?;
        Self::build(name, config, agent)
    }

    fn build(name: &str, config: Config, agent: &str) -> Result<Self, ConnectError> {
        let agent = HeaderValue::from_str(agent).map_err(|error| ConnectError::BuildClient(error.to_string()))?;
        Self::over(name, agent, Arc::new(Way::new(config)), OnceLock::new())
    }

    fn over(name: &str, agent: HeaderValue, way: Arc<Way>, identity: OnceLock<Uid>) -> Result<Self, ConnectError> {
        let built = RwLock::new(way.build()?);
        let (elsewhere, restored, renewed) = (RwLock::default(), OnceLock::new(), Notify::new());
        let awaited = watch::Sender::new(None);
        let inner = Inner { name: name.to_owned(), agent, way, built, identity, elsewhere, restored, renewed, awaited };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes the watches of this kind report soon that they have reached this version: bookmarks take a minute or two.
    pub(crate) fn await_version(&self, kind: &'static Kind, rv: Rv) {
        self.inner.awaited.send_replace(Some(Awaited { kind, rv }));
    }

    /// The version that a reader waits for.
    pub(crate) fn awaited(&self) -> watch::Receiver<Option<Awaited>> {
        self.inner.awaited.subscribe()
    }

    /// What logs and metrics call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The address of its API server, for messages: without the path, and without credentials in the URL.
    #[must_use]
    pub fn address(&self) -> String {
        let config = self.inner.way.config.read().unwrap_or_else(PoisonError::into_inner);
        let url = &config.cluster_url;
        let port = url.port().map_or(String::new(), |port| format!(":{port}"));
        format!("{}://{}{port}", url.scheme_str().unwrap_or("https"), url.host().unwrap_or_default())
    }

    /// The same cluster through separate connections, for the probe.
    pub fn apart(&self) -> Result<Self, ConnectError> {
        let Inner { name, agent, way, identity, .. } = &*self.inner;
        Self::over(name, agent.clone(), Arc::clone(way), identity.clone())
    }

    /// Drops pooled connections: after a partition they may all be dead.
    pub fn renew(&self) {
        self.rebuild();
        self.inner.renewed.notify_waiters();
    }

    /// Reaches this cluster with the configuration of `next` from now on: another address, another credential. Tasks in
    /// back-off retry at once. The caller must know that `next` is the same cluster (law 1).
    pub fn reach_as(&self, next: &Self) {
        let config = next.inner.way.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        let way = &self.inner.way;
        *way.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        way.turn.fetch_add(1, Ordering::Release);
        self.set_elsewhere(None);
        self.renew();
    }

    /// The kubeconfig for this cluster leads to another one: the gate refuses all calls (law 1), and the probe reports it.
    /// `None` ends it.
    pub fn set_elsewhere(&self, other: Option<Uid>) {
        let known =
            std::mem::replace(&mut *self.inner.elsewhere.write().unwrap_or_else(PoisonError::into_inner), other);
        if known != self.elsewhere() {
            self.inner.renewed.notify_waiters();
        }
    }

    /// The other cluster that the kubeconfig leads to.
    #[must_use]
    pub fn elsewhere(&self) -> Option<Uid> {
        self.inner.elsewhere.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn rebuild(&self) {
        match self.inner.way.build() {
            Ok(fresh) => *self.inner.built.write().unwrap_or_else(PoisonError::into_inner) = fresh,
            // The configuration built a client before; keep the old one, its sockets time out by themselves.
            Err(error) => tracing::warn!(cluster = self.name(), %error, "keeping the old connections"),
        }
    }

    fn built(&self) -> Built {
        let current = |cluster: &Self| cluster.inner.built.read().unwrap_or_else(PoisonError::into_inner).clone();
        let built = current(self);
        if built.turn == self.inner.way.turn.load(Ordering::Acquire) {
            return built;
        }
        self.rebuild();
        current(self)
    }

    #[cfg(test)]
    pub(crate) fn client(&self) -> Client {
        self.built().client
    }

    /// A request sent at `sent` was never answered: sends the next requests on another connection. With HTTP/2 they would
    /// share one that may be dead although it answers PINGs.
    pub(crate) fn abandon(&self, traffic: Traffic, sent: Instant) {
        self.built().pools.abandon(traffic, sent);
    }

    /// Waits until the probe reports that the cluster answers again after an outage.
    pub(crate) async fn renewed(&self) {
        self.inner.renewed.notified().await;
    }

    /// Pins the identity that this cluster must have from now on. False when another one is pinned already.
    #[must_use]
    pub fn pin(&self, identity: &Uid) -> bool {
        self.inner.identity.get_or_init(|| identity.clone()) == identity
    }

    /// The pinned identity; `None` until it is pinned.
    #[must_use]
    pub fn identity(&self) -> Option<&Uid> {
        self.inner.identity.get()
    }

    /// A consistent list was older than what had been read before: the cluster's etcd was restored from a backup. Our
    /// tables then hold a state that the cluster has lost, so nothing is written until the process is restarted.
    pub(crate) fn note_restored(&self, what: String) {
        if self.inner.restored.set(what).is_ok() {
            tracing::error!(
                cluster = self.name(),
                what = self.restored(),
                "the cluster was restored from a backup: this process writes nothing more; restart it to continue"
            );
        }
    }

    /// What showed that the cluster was restored from a backup; `None` if it was not.
    #[must_use]
    pub fn restored(&self) -> Option<&str> {
        self.inner.restored.get().map(String::as_str)
    }

    /// Asks the API server who it is: the UID of its `kube-system` namespace.
    pub async fn ask_identity(&self) -> Result<Uid, ConnectError> {
        #[derive(serde::Deserialize)]
        struct Namespace {
            kind: String,
            metadata: Metadata,
        }
        #[derive(serde::Deserialize)]
        struct Metadata {
            name: Name,
            uid: Uid,
        }
        let path = kind::NAMESPACE.path(None, Some("kube-system"));
        let unreachable = |why: String| ConnectError::Unreachable(why);
        let request = Request::get(path).body(Body::empty()).map_err(|error| unreachable(error.to_string()))?;
        let (status, _, body) =
            self.exchange(request, CALL_DEADLINE, Asked::Object).await.map_err(|why| unreachable(why.into()))?;
        if let Some(refused) = AccessRefused::of(status, &body) {
            return Err(refused.into());
        }
        if status != 200 {
            return Err(unreachable(format!("HTTP {status} when asking for namespace kube-system")));
        }
        match serde_json::from_slice::<Namespace>(&body) {
            Ok(found) if found.kind == "Namespace" && found.metadata.name.as_str() == "kube-system" => {
                Ok(found.metadata.uid)
            }
            _ => Err(unreachable("the answer is not namespace kube-system".to_owned())),
        }
    }

    /// Sends one request and returns the answer as soon as its head has arrived.
    pub async fn send(&self, traffic: Traffic, request: Request<Body>) -> Result<Response<Incoming>, String> {
        Ok(self.try_send(traffic, request).await?)
    }

    async fn try_send(&self, traffic: Traffic, mut request: Request<Body>) -> Result<Response<Incoming>, NoAnswer> {
        request.headers_mut().insert(http::header::USER_AGENT, self.inner.agent.clone());
        request.extensions_mut().insert(traffic);
        self.built().client.oneshot(request).await.map_err(|error| NoAnswer::of(&*error))
    }

    /// Sends one request and reads the whole answer, up to the limit for what was asked for: code, `Retry-After` in
    /// seconds, body.
    pub async fn exchange(
        &self,
        request: Request<Body>,
        deadline: Duration,
        asked: Asked,
    ) -> Result<(u16, Option<u32>, Bytes), NoAnswer> {
        let whole = async {
            let response = self.try_send(Traffic::Calls, request).await?;
            let code = response.status().as_u16();
            let retry_after = response.headers().get(http::header::RETRY_AFTER);
            let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
            Ok((code, retry_after, read_whole(response.into_body(), asked).await?))
        };
        let sent = Instant::now();
        tokio::time::timeout(deadline, whole).await.unwrap_or_else(|_| {
            self.abandon(Traffic::Calls, sent);
            Err(NoAnswer::Late(deadline))
        })
    }
}
