//! One request to the API server, and its answer back, with whatever the rules do to it.
//! Must not keep anything between requests but connections.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

use super::body::relay;
use super::fault::{Fault, Moment};
use super::request_info::RequestInfo;
use super::rules::Rules;

/// The connection to the client must be reset: the answer, or the rest of it, does not come.
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

/// Sends requests to the API server.
pub(super) struct Forwarder {
    client: BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>,
    pub(super) rules: Arc<Rules>,
    pub(super) after_write: OnceLock<AfterWrite>,
}

impl Forwarder {
    /// Speaks to the server of this kubeconfig as its user.
    pub(super) async fn to(kubeconfig: &str) -> anyhow::Result<Self> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let tls = config.rustls_https_connector_with_connector(tcp)?;
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(tls);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(http);
        Ok(Self {
            client: BoxCloneSyncService::new(service),
            rules: Arc::new(Rules::default()),
            after_write: OnceLock::new(),
        })
    }

    /// Forwards one request. Dropping the future, as when the client leaves, leaves it open whether the server got it.
    pub(super) async fn forward(&self, request: Request<Incoming>) -> Result<Answer, ConnectionReset> {
        let (mut head, body) = request.into_parts();
        let info = RequestInfo::of(&head.method, head.uri.path(), head.uri.query().unwrap_or_default());
        let body = body.collect().await.map_err(|_| ConnectionReset)?.to_bytes();
        match self.rules.hit(&info, Moment::Request) {
            None => {}
            Some(Fault::Freeze) => self.wait_while_frozen(&info).await,
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(fault) => return fault.answer().map(whole).ok_or(ConnectionReset),
        }
        own_headers(&mut head.headers);
        // The frontend's address means nothing to the server.
        head.headers.remove(header::HOST);
        let request = Request::from_parts(head, Body::from(body));
        let response = self.client.clone().oneshot(request).await.map_err(|error| {
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
        Ok(Response::from_parts(head, relay(body, info, Arc::clone(&self.rules))))
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

/// Takes away what is between two neighbours on one connection only.
fn own_headers(headers: &mut HeaderMap) {
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE] {
        headers.remove(name);
    }
}

/// An answer whose body is complete already.
pub(super) fn whole(response: Response<String>) -> Answer {
    response.map(|text| Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync())
}
