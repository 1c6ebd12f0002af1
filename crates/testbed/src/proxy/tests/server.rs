//! The API server of these tests: accepts writes, and streams what a test sends. Must not know Kubernetes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream::unfold;
use http::{Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use crate::certificates::Authority;
use crate::kubeconfig::{Credential, render};
use crate::proxy::protocol::{Protocol, acceptor};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The server. Dropping it ends it.
pub(super) struct Server {
    address: SocketAddr,
    authority: Authority,
    heard: Arc<Mutex<Vec<String>>>,
    /// test --lines--> open watches
    lines_tx: broadcast::Sender<String>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Offers this protocol and older ones.
    pub(super) async fn start(newest: Protocol) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let authority = Authority::new("server")?;
        let acceptor = acceptor(&authority, address.ip(), newest)?;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (lines_tx, _) = broadcast::channel(16);
        let (hears, lines) = (Arc::clone(&heard), lines_tx.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (hears, lines, acceptor) = (Arc::clone(&hears), lines.clone(), acceptor.clone());
                clients.spawn(async move {
                    let service = service_fn(move |request| answer(request, Arc::clone(&hears), lines.clone()));
                    if let Ok(client) = acceptor.accept(client).await {
                        let _ = Protocol::of(&client).serve(client, service).await;
                    }
                });
            }
        });
        Ok(Self { address, authority, heard, lines_tx, _tasks: tasks })
    }

    pub(super) fn kubeconfig(&self) -> String {
        let url = format!("https://{}", self.address);
        render("server", &url, self.authority.pem(), Credential::Token("of-the-original")).unwrap()
    }

    /// Requests so far: method, path, protocol, credential and agent.
    pub(super) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    pub(super) fn writes(&self) -> usize {
        self.heard().iter().filter(|request| !request.starts_with("GET")).count()
    }

    /// Sends this on all open watches.
    pub(super) fn say(&self, lines: &str) {
        self.lines_tx.send(lines.to_owned()).unwrap();
    }
}

async fn answer(
    request: Request<Incoming>,
    heard: Arc<Mutex<Vec<String>>>,
    lines: broadcast::Sender<String>,
) -> Result<Response<Body>, hyper::Error> {
    let shown = |name| request.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let who = format!("{:?} {} {}", request.version(), shown(header::AUTHORIZATION), shown(header::USER_AGENT));
    heard.lock().unwrap().push(format!("{} {} {who}", request.method(), request.uri().path()));
    if request.uri().query() == Some("watch=true") {
        let stream = unfold(lines.subscribe(), |mut lines_rx| async move {
            let line = lines_rx.recv().await.ok()?;
            Some((Ok(Frame::data(Bytes::from(line))), lines_rx))
        });
        return Ok(Response::new(StreamBody::new(stream).boxed_unsync()));
    }
    let code = if request.method() == "GET" { 200 } else { 201 };
    let mut response = Response::new(Full::new(request.into_body().collect().await?.to_bytes()).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    Ok(response)
}
