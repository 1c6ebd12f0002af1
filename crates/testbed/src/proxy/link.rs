//! One connection of a client, and its own connections to the API server: a fault on one of them does not affect
//! other client connections. Must not know what requests say.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::Incoming;
use kube::client::Body;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;
use tower::BoxError;
use tower::util::BoxCloneSyncService;

/// Sends requests to the API server.
pub(super) type Upstream = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// The state of a client's connection.
pub(super) struct Link {
    pub(super) upstream: Upstream,
    frozen: AtomicBool,
    reset: CancellationToken,
}

impl Link {
    pub(super) fn new(upstream: Upstream) -> Self {
        Self { upstream, frozen: AtomicBool::new(false), reset: CancellationToken::new() }
    }

    /// Nothing is read or sent on it any more. It stays open.
    pub(super) fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Ends it.
    pub(super) fn reset(&self) {
        self.reset.cancel();
    }

    /// Waits until a fault resets it.
    pub(super) async fn is_reset(&self) {
        self.reset.cancelled().await;
    }
}

/// The bytes of a connection, until it freezes.
pub(super) struct Freezable<Io> {
    pub(super) io: Io,
    pub(super) link: std::sync::Arc<Link>,
}

impl<Io: Unpin> Freezable<Io> {
    /// No waker is kept: a frozen connection never thaws, its task is dropped with the connection.
    fn flowing(self: Pin<&mut Self>) -> Option<Pin<&mut Io>> {
        let this = self.get_mut();
        (!this.link.frozen.load(Ordering::Acquire)).then(|| Pin::new(&mut this.io))
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Freezable<Io> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.flowing().map_or(Poll::Pending, |io| io.poll_read(cx, buf))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Freezable<Io> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.flowing().map_or(Poll::Pending, |io| io.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flowing().map_or(Poll::Pending, |io| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flowing().map_or(Poll::Pending, |io| io.poll_shutdown(cx))
    }
}
