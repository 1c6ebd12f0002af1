//! One request to the API server, and its answer back, with the faults of the rules. Must
//! keep nothing between requests except connections.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

use super::body::relay;
use super::fault::{Fault, Moment};
use super::link::{Link, Upstream};
use super::protocol::Protocol;
use super::request_info::RequestInfo;
use super::rules::Rules;

/// The answer, or the rest of it, does not come. HTTP/1.1 resets the connection, HTTP/2 the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionReset;

impl std::fmt::Display for ConnectionReset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the fault proxy resets the connection")
    }
}

impl std::error::Error for ConnectionReset {}

pub(super) type Answer = Response<UnsyncBoxBody<Bytes, ConnectionReset>>;

/// Called for writes that the API server has carried out.
pub(super) type AfterWrite = Box<dyn Fn(&RequestInfo) + Send + Sync>;

/// Forwards requests to the API server.
pub(super) struct Forwarder {
    config: Config,
    http1: HttpsConnector<HttpConnector>,
    http2: HttpsConnector<HttpConnector>,
    pub(super) rules: Arc<Rules>,
    pub(super) after_write: OnceLock<AfterWrite>,
}

impl Forwarder {
    /// Connects to the server of this kubeconfig as its user.
    pub(super) async fn to(kubeconfig: &str) -> anyhow::Result<Self> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let tls = config.rustls_client_config()?;
        let builder = || HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        Ok(Self {
            http1: builder().enable_http1().wrap_connector(tcp.clone()),
            http2: builder().enable_all_versions().wrap_connector(tcp),
            config,
            rules: Arc::new(Rules::default()),
            after_write: OnceLock::new(),
        })
    }

    /// Connections for one client that speaks this protocol. They speak the same if the API server does.
    pub(super) fn upstream(&self, protocol: Protocol) -> anyhow::Result<Upstream> {
        let connector = match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        };
        let http =
            hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector.clone());
        let service = ServiceBuilder::new()
            .layer(self.config.base_uri_layer())
            .option_layer(self.config.auth_layer()?)
            .layer(self.config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(http);
        Ok(Upstream::new(service))
    }

    /// Forwards one request. If the future is dropped, as when the client leaves, it is unknown whether the server got it.
    pub(super) async fn forward(
        &self,
        link: &Arc<Link>,
        request: Request<Incoming>,
    ) -> Result<Answer, ConnectionReset> {
        let (mut head, body) = request.into_parts();
        let info = RequestInfo::of(&head.method, head.uri.path(), head.uri.query().unwrap_or_default());
        let body = body.collect().await.map_err(|_| ConnectionReset)?.to_bytes();
        match self.rules.hit(&info, Moment::Request) {
            None => {}
            Some(Fault::Freeze) => self.wait_while_frozen(&info).await,
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::FreezeConnection) => {
                link.freeze();
                return std::future::pending().await;
            }
            Some(Fault::ResetConnection) => {
                link.reset();
                return Err(ConnectionReset);
            }
            Some(fault) => return fault.answer().map(whole).ok_or(ConnectionReset),
        }
        own_headers(&mut head.headers);
        // The server does not know the frontend's address.
        head.headers.remove(header::HOST);
        // The connection to the API server decides the version.
        head.version = Version::HTTP_11;
        let request = Request::from_parts(head, Body::from(body));
        let response = link.upstream.clone().oneshot(request).await.map_err(|error| {
            tracing::debug!(%info, %error, "the API server does not answer");
            ConnectionReset
        })?;
        if info.is_write()
            && response.status().is_success()
            && let Some(after_write) = self.after_write.get()
        {
            after_write(&info);
        }
        if self.rules.hit(&info, Moment::Answer).is_some() {
            return Err(ConnectionReset);
        }
        let (mut head, body) = response.into_parts();
        own_headers(&mut head.headers);
        head.version = Version::HTTP_11;
        Ok(Response::from_parts(head, relay(body, info, Arc::clone(link), Arc::clone(&self.rules))))
    }

    async fn wait_while_frozen(&self, info: &RequestInfo) {
        let mut changes = self.rules.changes();
        while self.rules.freezes_request(info) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Removes hop-by-hop headers.
fn own_headers(headers: &mut HeaderMap) {
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE] {
        headers.remove(name);
    }
}

/// An answer whose body is complete already.
pub(super) fn whole(response: Response<String>) -> Answer {
    response.map(|text| Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync())
}
