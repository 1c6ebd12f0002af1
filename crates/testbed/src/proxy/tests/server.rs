//! The API server of these tests: takes writes, and streams what a test says. Must not know Kubernetes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream::unfold;
use http::{Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The server. Dropping it ends it.
pub(super) struct Server {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
    /// test --lines--> open watches
    lines_tx: broadcast::Sender<String>,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(super) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (lines_tx, _) = broadcast::channel(16);
        let (hears, lines) = (Arc::clone(&heard), lines_tx.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (hears, lines) = (Arc::clone(&hears), lines.clone());
                clients.spawn(async move {
                    let service = service_fn(move |request| answer(request, Arc::clone(&hears), lines.clone()));
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(client), service).await;
                });
            }
        });
        Ok(Self { address, heard, lines_tx, _tasks: tasks })
    }

    pub(super) fn kubeconfig(&self) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}],
            "users":[{{"name":"u","user":{{"token":"of-the-original"}}}}],"clusters":[{{"name":"c","cluster":{{"server":"http://{}"}}}}]}}"#,
            self.address
        )
    }

    /// Requests so far: method, path, who info with what.
    pub(super) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    pub(super) fn writes(&self) -> usize {
        self.heard().iter().filter(|info| !info.starts_with("GET")).count()
    }

    /// Says this on all open watches.
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
    let who = format!("{} {}", shown(header::AUTHORIZATION), shown(header::USER_AGENT));
    heard.lock().unwrap().push(format!("{} {} {who}", request.method(), request.uri()));
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
