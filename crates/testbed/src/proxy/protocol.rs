//! HTTP/1.1 and HTTP/2 over TLS, for the servers of these tests. Must not know what requests say.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Result;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::BoxError;

use crate::certificates::Authority;

const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One request at a time on a connection.
    Http1,
    /// Many requests at once on a connection, each on its own stream.
    Http2,
}

impl Protocol {
    /// What a server with this protocol and older ones offers (ALPN), its preferred one first.
    fn offers(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http1 => vec![HTTP_1_1.to_vec()],
            Self::Http2 => vec![H2.to_vec(), HTTP_1_1.to_vec()],
        }
    }

    /// What client and server have agreed on.
    pub(super) fn of(stream: &TlsStream<TcpStream>) -> Self {
        if stream.get_ref().1.alpn_protocol() == Some(H2) { Self::Http2 } else { Self::Http1 }
    }

    /// Serves one connection to its end.
    pub(super) async fn serve<Io, S, B>(self, io: Io, service: S) -> hyper::Result<()>
    where
        Io: AsyncRead + AsyncWrite + Unpin + 'static,
        S: Service<Request<Incoming>, Response = Response<B>>,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let io = TokioIo::new(io);
        match self {
            Self::Http1 => http1::Builder::new().serve_connection(io, service).await,
            Self::Http2 => {
                // As many streams as kube-apiserver allows.
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.max_concurrent_streams(100).serve_connection(io, service).await
            }
        }
    }
}

/// Accepts connections to `ip` with a certificate of this authority.
pub(super) fn acceptor(authority: &Authority, ip: IpAddr, newest: Protocol) -> Result<TlsAcceptor> {
    let signed = authority.server(ip)?;
    let certificate = CertificateDer::from_pem_slice(signed.certificate.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = newest.offers();
    Ok(TlsAcceptor::from(Arc::new(config)))
}
