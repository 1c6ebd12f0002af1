//! One accessor per cluster: its client stack, its name in logs, its pinned identity.
//! Refuses dangerous kubeconfigs before anything is built from them; retries nothing.

use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::sync::Notify;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

use crate::object::Uid;
use crate::{Name, kind};

/// How long a call may take, from sending to the last byte of the answer.
pub const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// An API server that we talk to. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

/// The stack of layers over a pool of connections. Not kube's `Client`, which puts a queue and a task before it.
type Client = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

struct Inner {
    /// What logs and metrics call it: `virtual`, or the binding's name.
    name: String,
    agent: HeaderValue,
    config: Config,
    client: RwLock<Client>,
    /// Set once, by the first who learns it; see [`Cluster::pin`].
    identity: OnceLock<Uid>,
    /// Set once and for all; see [`Cluster::note_restored`].
    restored: OnceLock<String>,
    /// probe --the cluster answers again--> those who wait before they try
    renewed: Notify,
}

/// Where a kubeconfig comes from decides what it may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// A file that the operator of this process names: anything kubectl takes.
    Operator,
    /// A Secret that somebody with write access to the API filled: nothing that runs programs or reads files here.
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
    /// Readable, and refused by law 10.
    #[error("the kubeconfig is refused: {0}")]
    RefusedKubeconfig(String),
    /// The client could not be built from it.
    #[error("the client cannot be built: {0}")]
    BuildClient(String),
    /// The API server did not answer as one.
    #[error("the cluster cannot be reached: {0}")]
    Unreachable(String),
}

impl ConnectError {
    /// `PascalCase`, for conditions and events.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnreadableKubeconfig(_) => "KubeconfigUnreadable",
            Self::RefusedKubeconfig(_) => "KubeconfigRefused",
            Self::BuildClient(_) => "ClientFailed",
            Self::Unreachable(_) => "Unreachable",
        }
    }
}

impl Cluster {
    /// Builds the client stack; sends nothing yet.
    pub async fn connect(name: &str, kubeconfig: &str, trust: Trust, agent: &str) -> Result<Self, ConnectError> {
        let parsed = Kubeconfig::from_yaml(kubeconfig)
            // The parser's own text may quote the input, and the input holds credentials.
            .map_err(|_| ConnectError::UnreadableKubeconfig("it is not the YAML of a kubeconfig".to_owned()))?;
        if let Trust::Secret { allow_insecure } = trust {
            refuse_dangerous(&parsed, allow_insecure)?;
        }
        // This already runs exec plugins and reads files, which is why the check stands before it.
        let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default())
            .await
            .map_err(|error| ConnectError::UnreadableKubeconfig(error.to_string()))?;
        Self::from_config(name, config, agent)
    }

    /// Builds the client stack from a ready configuration, such as the one inside a cluster.
    pub fn from_config(name: &str, config: Config, agent: &str) -> Result<Self, ConnectError> {
        let client = build_client(&config)?;
        let agent = HeaderValue::from_str(agent).map_err(|error| ConnectError::BuildClient(error.to_string()))?;
        let inner = Inner {
            name: name.to_owned(),
            agent,
            config,
            client: RwLock::new(client),
            identity: OnceLock::new(),
            restored: OnceLock::new(),
            renewed: Notify::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What logs and metrics call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The same cluster through connections of its own, for the probe.
    pub fn apart(&self) -> Result<Self, ConnectError> {
        let Inner { name, agent, config, identity, .. } = &*self.inner;
        let client = RwLock::new(build_client(config)?);
        let inner = Inner {
            name: name.clone(),
            agent: agent.clone(),
            config: config.clone(),
            client,
            identity: identity.clone(),
            restored: OnceLock::new(),
            renewed: Notify::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Throws away pooled connections: after a partition they may all be dead.
    pub fn renew(&self) {
        match build_client(&self.inner.config) {
            Ok(fresh) => {
                *self.inner.client.write().unwrap_or_else(std::sync::PoisonError::into_inner) = fresh;
            }
            // The configuration built a client before; keep the old one, its sockets time out by themselves.
            Err(error) => tracing::warn!(cluster = self.name(), %error, "keeping the old connections"),
        }
        self.inner.renewed.notify_waiters();
    }

    /// Waits until the cluster answers again after an outage, as the probe has it.
    pub(crate) async fn renewed(&self) {
        self.inner.renewed.notified().await;
    }

    /// Pins the identity that this cluster must have from now on. False when another one is pinned already.
    #[must_use]
    pub fn pin(&self, identity: &Uid) -> bool {
        self.inner.identity.get_or_init(|| identity.clone()) == identity
    }

    /// The pinned identity; `None` until somebody pinned it.
    #[must_use]
    pub fn identity(&self) -> Option<&Uid> {
        self.inner.identity.get()
    }

    /// A consistent list was older than what had been read before: the cluster's etcd was restored from a backup. What
    /// is known then is of a future that never was, so nothing of it may be acted upon until somebody starts us anew.
    pub(crate) fn note_restored(&self, what: String) {
        if self.inner.restored.set(what).is_ok() {
            tracing::error!(
                cluster = self.name(),
                what = self.restored(),
                "the cluster was restored from a backup: nothing more is written until we are started anew"
            );
        }
    }

    /// How it came out that the cluster was restored from a backup; `None` as long as it was not.
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
        let (status, _, body) = self.exchange(request, CALL_DEADLINE).await.map_err(unreachable)?;
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

    /// Sends one request and hands out the answer as soon as its head is there.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, String> {
        request.headers_mut().insert(http::header::USER_AGENT, self.inner.agent.clone());
        let client = self.inner.client.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        client.oneshot(request).await.map_err(|error| deepest(&*error))
    }

    /// Sends one request and reads the whole answer: code, `Retry-After` in seconds, body.
    pub async fn exchange(
        &self,
        request: Request<Body>,
        deadline: Duration,
    ) -> Result<(u16, Option<u32>, Bytes), String> {
        let whole = async {
            let response = self.send(request).await?;
            let code = response.status().as_u16();
            let retry_after = response.headers().get(http::header::RETRY_AFTER);
            let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
            let mut body = response.into_body();
            let mut bytes = BytesMut::new();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.map_err(|error| deepest(&error))?.into_data() {
                    bytes.extend_from_slice(&data);
                }
            }
            Ok((code, retry_after, bytes.freeze()))
        };
        tokio::time::timeout(deadline, whole).await.unwrap_or_else(|_| Err(format!("no answer within {deadline:?}")))
    }
}

/// The innermost cause says what happened ("connection refused"); the outer ones only say where.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn build_client(config: &Config) -> Result<Client, ConnectError> {
    let failed = |error: kube::Error| ConnectError::BuildClient(error.to_string());
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(Duration::from_secs(5)));
    // A silently dead peer is noticed after 10 + 3 × 3 s when idle and after 15 s when written to.
    tcp.set_keepalive(Some(Duration::from_secs(10)));
    tcp.set_keepalive_interval(Some(Duration::from_secs(3)));
    tcp.set_keepalive_retries(Some(3));
    tcp.set_tcp_user_timeout(Some(CALL_DEADLINE));
    let tls = config.rustls_https_connector_with_connector(tcp).map_err(failed)?;
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .build::<_, Body>(tls);
    // No retry layer: whether to try again is decided by a plan, with fresh eyes.
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(failed)?)
        .layer(config.extra_headers_layer().map_err(failed)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service))
}

fn refuse_dangerous(kubeconfig: &Kubeconfig, allow_insecure: bool) -> Result<(), ConnectError> {
    let refuse =
        |what: &str, instead: &str| Err(ConnectError::RefusedKubeconfig(format!("{what} is not allowed; {instead}")));
    for user in kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref()) {
        if user.exec.is_some() {
            return refuse("exec", "use a token or an embedded client certificate");
        }
        if user.auth_provider.is_some() {
            return refuse("auth-provider", "use a token or an embedded client certificate");
        }
        for (path, what, instead) in [
            (&user.client_certificate, "client-certificate (a file path)", "embed it as client-certificate-data"),
            (&user.client_key, "client-key (a file path)", "embed it as client-key-data"),
            (&user.token_file, "tokenFile", "embed the token"),
        ] {
            if path.is_some() {
                return refuse(what, instead);
            }
        }
    }
    for cluster in kubeconfig.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref()) {
        if cluster.certificate_authority.is_some() {
            return refuse("certificate-authority (a file path)", "embed it as certificate-authority-data");
        }
        if cluster.insecure_skip_tls_verify == Some(true) && !allow_insecure {
            return refuse("insecure-skip-tls-verify", "embed the CA, or set insecureSkipTLSVerify on the binding");
        }
        if cluster.proxy_url.is_some() {
            return refuse("proxy-url", "name the API server itself");
        }
        if !cluster.server.as_deref().unwrap_or_default().starts_with("https://") && !allow_insecure {
            return refuse("a server without https", "credentials would travel in the clear");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(user: &str, cluster: &str) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}],
            "users":[{{"name":"u","user":{user}}}],"clusters":[{{"name":"c","cluster":{cluster}}}]}}"#
        )
    }

    fn check(user: &str, cluster: &str, allow_insecure: bool) -> Result<(), String> {
        let parsed = Kubeconfig::from_yaml(&kubeconfig(user, cluster)).unwrap();
        refuse_dangerous(&parsed, allow_insecure).map_err(|error| error.to_string())
    }

    #[test]
    fn law_10_a_kubeconfig_from_a_secret_cannot_run_programs_or_read_files() {
        let https = r#"{"server":"https://h"}"#;
        for (user, what) in [
            (r#"{"exec":{"command":"sh","apiVersion":"client.authentication.k8s.io/v1"}}"#, "exec"),
            (r#"{"auth-provider":{"name":"gcp","config":{}}}"#, "auth-provider"),
            (r#"{"client-certificate":"/etc/passwd"}"#, "client-certificate"),
            (r#"{"client-key":"/etc/passwd"}"#, "client-key"),
            (r#"{"tokenFile":"/etc/passwd"}"#, "tokenFile"),
        ] {
            let said = check(user, https, true).unwrap_err();
            assert!(said.contains(what), "{said}");
        }
        assert!(check("{}", r#"{"server":"https://h","certificate-authority":"/x"}"#, true).is_err());
        assert!(check("{}", r#"{"server":"https://h","proxy-url":"http://p"}"#, true).is_err());
        assert_eq!(check(r#"{"token":"t"}"#, https, false), Ok(()));
    }

    #[test]
    fn law_10_an_unverified_peer_needs_the_bindings_consent() {
        for insecure in [r#"{"server":"https://h","insecure-skip-tls-verify":true}"#, r#"{"server":"http://h"}"#] {
            assert!(check("{}", insecure, false).is_err());
            assert_eq!(check("{}", insecure, true), Ok(()));
        }
    }

    #[tokio::test]
    async fn law_10_an_unreadable_kubeconfig_is_not_quoted() {
        let secret = "users: [{user: {token: hunter2}}";
        let error = Cluster::connect("x", secret, Trust::Secret { allow_insecure: false }, "a").await.err().unwrap();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
