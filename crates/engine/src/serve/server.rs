//! A small HTTP server that slow clients cannot block: few connections, each with one request and a deadline.
//! Knows no route.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// Connections at a time. The oldest is closed for the next one: refusing the next one would let slow clients keep a
/// probe out.
pub(super) const CONNECTIONS: usize = 64;
/// From the first byte that could come to the end of the request's head.
const HEAD: Duration = Duration::from_secs(3);
/// From accepting a connection to the last byte of the answer. A connection carries one request, so that none is ever idle.
const WHOLE: Duration = Duration::from_secs(10);
/// A request's head, and a piece of its body.
const BUFFER: usize = 16 * 1024;
/// How long to wait when the system has no file descriptor for the next connection.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Answers requests until cancelled.
pub(super) async fn serve(listener: TcpListener, router: Router, cancel: CancellationToken) {
    let mut open = Open::default();
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => open.add(answer(stream, router.clone())),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(EXHAUSTED).await;
            }
        }
    }
}

/// One request and its answer.
async fn answer(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(WHOLE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
        Err(_) => tracing::debug!("a connection was closed: it took longer than {WHOLE:?}"),
    }
}

/// The connections that are open, oldest first.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    order: VecDeque<AbortHandle>,
}

impl Open {
    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        if self.order.len() >= CONNECTIONS {
            self.order.retain(|task| !task.is_finished());
        }
        while self.order.len() >= CONNECTIONS {
            self.order.pop_front().inspect(AbortHandle::abort);
        }
        self.order.push_back(self.tasks.spawn(connection.in_current_span()));
    }
}
