//! The connections to one API server: HTTP/2 where the server offers it, else HTTP/1.1; separate ones for watches and calls.
//! Must not retry: a plan decides that, from fresh facts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt as _};
use rustls::pki_types::ServerName;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, service_fn};

use super::{CALL_DEADLINE, ConnectError};
use crate::kubeconfig::unbuildable;

/// The layers of a request (address, credentials, headers) over [`Pools`]. Not kube's `Client`, which puts a queue and a
/// task before it.
pub(crate) type Client = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

type Http = legacy::Client<HttpsConnector<HttpConnector>, Body>;

/// When nothing has come on a connection for this long, we send a PING…
const PING_AFTER: Duration = Duration::from_secs(5);
/// …and close the connection when the PING stays unanswered for this long: a dead connection is gone after 5 + 10 = 15 s.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Unread bytes of one watch: 10 MiB/s for a list at a round trip of 100 ms.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// Unread bytes of all watches together: the others wait only when sixteen readers are slow.
const WATCHES_WINDOW: u32 = 16 * STREAM_WINDOW;

/// What a connection carries. A call waits for no watch: with HTTP/2 all requests of a pool share one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Requests that end soon.
    Calls,
    /// Watches, and the lists that they begin with.
    Watches,
}

/// A pool for each kind of traffic.
pub(super) struct Pools {
    calls: Pool,
    watches: Pool,
}

struct Pool {
    connector: HttpsConnector<HttpConnector>,
    /// With the time at which it became the current one.
    current: RwLock<(Instant, Http)>,
}

impl Pools {
    /// Two empty pools, and the client that sends requests through them.
    pub(super) fn build(config: &Config) -> Result<(Arc<Self>, Client), ConnectError> {
        let failed = |error: kube::Error| unbuildable(&error);
        // Only this code sees a token that a program prints, and it panics if the token is not a valid header.
        let auth = catch_unwind(AssertUnwindSafe(|| config.auth_layer())).map_err(|_| {
            ConnectError::BuildClient("the exec plugin or auth-provider gave no usable token".to_owned())
        })?;
        let connector = connector(config)?;
        let pools = Arc::new(Self {
            calls: Pool::new(connector.clone(), Traffic::Calls),
            watches: Pool::new(connector, Traffic::Watches),
        });
        let inner = Arc::clone(&pools);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(auth.map_err(failed)?)
            .layer(config.extra_headers_layer().map_err(failed)?)
            .map_err(BoxError::from)
            .service(service_fn(move |mut request: Request<Body>| {
                let traffic = request.extensions_mut().remove().unwrap_or(Traffic::Calls);
                inner.pool(traffic).http().request(request)
            }));
        Ok((pools, Client::new(service)))
    }

    /// Sends new requests on new connections, unless it has done so since `since`. Requests in flight stay where they are.
    pub(super) fn abandon(&self, traffic: Traffic, since: Instant) {
        let pool = self.pool(traffic);
        let mut current = pool.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.0 <= since {
            *current = (Instant::now(), http(&pool.connector, traffic));
        }
    }

    fn pool(&self, traffic: Traffic) -> &Pool {
        match traffic {
            Traffic::Calls => &self.calls,
            Traffic::Watches => &self.watches,
        }
    }
}

impl Pool {
    fn new(connector: HttpsConnector<HttpConnector>, traffic: Traffic) -> Self {
        let current = RwLock::new((Instant::now(), http(&connector, traffic)));
        Self { connector, current }
    }

    fn http(&self) -> Http {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

fn http(connector: &HttpsConnector<HttpConnector>, traffic: Traffic) -> Http {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        // A pooled connection that died while idle must not get the next call.
        .http2_keep_alive_while_idle(true);
    if traffic == Traffic::Watches {
        builder.http2_initial_stream_window_size(STREAM_WINDOW).http2_initial_connection_window_size(WATCHES_WINDOW);
    }
    builder.build(connector.clone())
}

/// As kube builds it, but with HTTP/2.
fn connector(config: &Config) -> Result<HttpsConnector<HttpConnector>, ConnectError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(Duration::from_secs(5)));
    // HTTP/1.1 has no PING; TCP detects a dead peer after 15 s, when idle (9 + 3 + 3 s) and when we write.
    tcp.set_keepalive(Some(Duration::from_secs(9)));
    tcp.set_keepalive_interval(Some(Duration::from_secs(3)));
    tcp.set_keepalive_retries(Some(3));
    tcp.set_tcp_user_timeout(Some(CALL_DEADLINE));
    let tls = config.rustls_client_config().map_err(|error| unbuildable(&error))?;
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        let name = ServerName::try_from(name).map_err(|error| ConnectError::BuildClient(error.to_string()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_all_versions().wrap_connector(tcp))
}
