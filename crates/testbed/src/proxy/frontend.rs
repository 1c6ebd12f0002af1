//! The side of the proxy that clients see: listens, shows its own certificate, admits clients that have the token.
//! Must not know what requests say.

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::State;
use super::fault::answer;
use super::forward::{Forwarder, whole};
use super::link::{Freezable, Link};
use super::protocol::{Protocol, acceptor};
use crate::address::{Address, Port};
use crate::certificates::Authority;
use crate::kubeconfig::{Credential, render};

/// The frontend. It keeps its address while the proxy is cut: it refuses connections by not listening.
pub(super) struct Frontend {
    address: Address,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    authority: Authority,
    /// Requests are forwarded with other credentials, and every local process can reach the loopback address.
    token: Arc<str>,
}

impl Frontend {
    /// Listens, and offers this protocol and older ones.
    pub(super) fn open(newest: Protocol) -> Result<Self> {
        let address = Address::reserve()?;
        let listener = listen(at(&address))?;
        let authority = Authority::new("fault-proxy")?;
        let acceptor = acceptor(&authority, address.ip().into(), newest)?;
        // Hashes under a random key of this process.
        let token = [0u8; 2].map(|_| format!("{:016x}", RandomState::new().hash_one(0u8))).concat();
        Ok(Self { address, listener, acceptor, authority, token: token.into() })
    }

    pub(super) fn kubeconfig(&self) -> Result<String> {
        render(
            "fault-proxy",
            &format!("https://{}", at(&self.address)),
            self.authority.pem(),
            Credential::Token(&self.token),
        )
    }

    /// Serves until dropped; while the proxy is cut it does not listen.
    pub(super) async fn serve(self, forwarder: Arc<Forwarder>, mut state_rx: watch::Receiver<State>) {
        let Self { address, listener, acceptor, token, .. } = self;
        let expected: Arc<str> = format!("Bearer {token}").into();
        let mut listening = Some(listener);
        loop {
            let Ok(cuts) = state_rx.wait_for(|state| !state.cut).await.map(|state| state.cuts) else { return };
            let listener = match listening.take().map_or_else(|| listen(at(&address)), Ok) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!(%error, "the fault proxy cannot listen again yet");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            // Dropped at the end of the round, and with it every connection.
            let mut clients = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => if let Ok((client, _)) = accepted {
                        clients.spawn(admit(client, acceptor.clone(), Arc::clone(&expected), Arc::clone(&forwarder)));
                    },
                    Some(_) = clients.join_next() => {}
                    _ = state_rx.wait_for(|state| state.cuts != cuts) => break,
                }
            }
        }
    }
}

fn at(address: &Address) -> SocketAddr {
    address.at(Port::ApiServer).into()
}

fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// One connection, from its first byte to its last.
async fn admit(client: TcpStream, acceptor: TlsAcceptor, expected: Arc<str>, forwarder: Arc<Forwarder>) {
    // When we drop it, the client sees a reset and not an orderly end.
    if client.set_nodelay(true).and_then(|()| client.set_zero_linger()).is_err() {
        return;
    }
    let Ok(io) = acceptor.accept(client).await else { return };
    let protocol = Protocol::of(&io);
    let link = match forwarder.upstream(protocol) {
        Ok(upstream) => Arc::new(Link::new(upstream)),
        Err(error) => return tracing::warn!(%error, "the fault proxy has no client for the API server"),
    };
    let io = Freezable { io, link: Arc::clone(&link) };
    let carrier = Arc::clone(&link);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let known = request.headers_mut().remove(header::AUTHORIZATION).is_some_and(|shown| shown == *expected);
        let (forwarder, link) = (Arc::clone(&forwarder), Arc::clone(&carrier));
        async move {
            if known {
                forwarder.forward(&link, request).await
            } else {
                let refusal = "the fault proxy does not know this token".to_owned();
                Ok(whole(answer(StatusCode::UNAUTHORIZED, "text/plain", refusal)))
            }
        }
    });
    // A client that leaves, or a connection that a fault resets, is not worth a log line.
    tokio::select! {
        _ = protocol.serve(io, service) => {}
        () = link.is_reset() => {}
    }
}
