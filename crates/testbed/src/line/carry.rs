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

use super::asked::Asked;
use super::fault::{Fault, Moment};
use super::flow::flow;
use super::rules::Rules;

/// The connection to the client must be reset: the answer, or the rest of it, does not come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Torn;

impl std::fmt::Display for Torn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the line is torn")
    }
}

impl std::error::Error for Torn {}

pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Torn>>;

/// Hears of writes that the API server has carried out.
pub(super) type AfterWrite = Box<dyn Fn(&Asked) + Send + Sync>;

/// The way from the door to the API server.
pub(super) struct Way {
    client: BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>,
    pub(super) rules: Arc<Rules>,
    pub(super) after_write: OnceLock<AfterWrite>,
}

impl Way {
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

    /// Carries one request. Dropping the future, as when the client leaves, leaves it open whether the server got it.
    pub(super) async fn carry(&self, request: Request<Incoming>) -> Result<Answer, Torn> {
        let (mut head, body) = request.into_parts();
        let asked = Asked::of(&head.method, head.uri.path(), head.uri.query().unwrap_or_default());
        let body = body.collect().await.map_err(|_| Torn)?.to_bytes();
        match self.rules.strike(&asked, Moment::Request) {
            None => {}
            Some(Fault::Silence) => self.wait_for_sound(&asked).await,
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(fault) => return fault.answer().map(whole).ok_or(Torn),
        }
        own_headers(&mut head.headers);
        // The door's address means nothing to the server.
        head.headers.remove(header::HOST);
        let request = Request::from_parts(head, Body::from(body));
        let response = self.client.clone().oneshot(request).await.map_err(|error| {
            tracing::debug!(%asked, %error, "the API server does not answer");
            Torn
        })?;
        if asked.is_write()
            && response.status().is_success()
            && let Some(after_write) = self.after_write.get()
        {
            after_write(&asked);
        }
        if self.rules.strike(&asked, Moment::Answer).is_some() {
            return Err(Torn);
        }
        let (mut head, body) = response.into_parts();
        own_headers(&mut head.headers);
        Ok(Response::from_parts(head, flow(body, asked, Arc::clone(&self.rules))))
    }

    async fn wait_for_sound(&self, asked: &Asked) {
        let mut changes = self.rules.changes();
        while self.rules.silent(asked) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Takes away what is between two neighbours on the way only.
fn own_headers(headers: &mut HeaderMap) {
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE] {
        headers.remove(name);
    }
}

/// An answer that is there already.
pub(super) fn whole(response: Response<String>) -> Answer {
    response.map(|text| Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync())
}
