//! Distance to an API server: a TCP relay that delivers every byte half a round trip later, in both directions.
//! Must not parse what it carries; [`crate::proxy`] injects faults.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// Bytes that one read takes at most.
const CHUNK: usize = 64 * 1024;
/// Chunks in flight in one direction: 64 MiB, more than a round trip carries here.
const UNDER_WAY: usize = 1024;

/// A relay. Dropping it closes its connections.
pub struct Distance {
    server: SocketAddr,
    rtt_us: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Distance {
    /// A relay to the server at this address, without distance at first.
    pub async fn to(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let server = listener.local_addr()?;
        let rtt_us = Arc::new(AtomicU64::new(0));
        let rtt = Arc::clone(&rtt_us);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => if let Ok((client, _)) = accepted {
                        clients.spawn(relay(client, target, Arc::clone(&rtt)));
                    },
                    Some(_) = clients.join_next() => {}
                }
            }
        });
        Ok(Self { server, rtt_us, _tasks: tasks })
    }

    /// A relay to the API server of this kubeconfig.
    pub async fn to_server_of(kubeconfig: &str) -> Result<Self> {
        let parsed: Value = serde_saphyr::from_str(kubeconfig)?;
        let server = parsed["clusters"][0]["cluster"]["server"].as_str().context("the kubeconfig names no server")?;
        let address = server.trim_start_matches("https://").parse().with_context(|| format!("reading {server}"))?;
        Self::to(address).await
    }

    /// From now on a round trip takes this long, also on connections that are open already.
    pub fn set_round_trip(&self, rtt: Duration) {
        self.rtt_us.store(u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The same kubeconfig through this relay. The server's certificate is not for the relay's address, so the client checks
    /// another of its names.
    pub fn kubeconfig(&self, kubeconfig: &str) -> Result<String> {
        let mut parsed: Value = serde_saphyr::from_str(kubeconfig)?;
        let cluster = parsed.pointer_mut("/clusters/0/cluster").context("the kubeconfig names no cluster")?;
        cluster["server"] = format!("https://{}", self.server).into();
        cluster["tls-server-name"] = "localhost".into();
        Ok(serde_saphyr::to_string(&parsed)?)
    }
}

fn round_trip(rtt_us: &AtomicU64) -> Duration {
    Duration::from_micros(rtt_us.load(Ordering::Relaxed))
}

async fn relay(client: TcpStream, target: SocketAddr, rtt_us: Arc<AtomicU64>) {
    // TCP's own handshake takes a round trip, too.
    sleep(round_trip(&rtt_us)).await;
    let Ok(server) = TcpStream::connect(target).await else { return };
    if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_err() {
        return;
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::join!(carry(from_client, to_server, &rtt_us), carry(from_server, to_client, &rtt_us));
}

/// One direction, until its end has arrived.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, rtt_us: &AtomicU64) {
    // reader --bytes and when they arrive--> writer
    let (bytes_tx, mut bytes_rx) = mpsc::channel::<(Instant, Bytes)>(UNDER_WAY);
    let read = async move {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let arrives = Instant::now() + round_trip(rtt_us) / 2;
                    if bytes_tx.send((arrives, buffer.split().freeze())).await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    let write = async move {
        while let Some((arrives, bytes)) = bytes_rx.recv().await {
            sleep_until(arrives).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(200);

    /// A server that sends back what it receives, and a connection to it through a relay.
    async fn connect(tasks: &mut JoinSet<()>) -> (Distance, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let distance = Distance::to(listener.local_addr().unwrap()).await.unwrap();
        tasks.spawn(async move {
            let (mut server, _) = listener.accept().await.unwrap();
            let (mut from, mut to) = server.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
        });
        let client = TcpStream::connect(distance.server).await.unwrap();
        (distance, client)
    }

    async fn echo(client: &mut TcpStream, bytes: usize) -> Duration {
        let (began, sent) = (Instant::now(), vec![7u8; bytes]);
        let mut received = vec![0u8; bytes];
        let (mut from, mut to) = client.split();
        let (read, written) = tokio::join!(from.read_exact(&mut received), to.write_all(&sent));
        read.and(written.map(|()| 0)).unwrap();
        assert!(received == sent);
        began.elapsed()
    }

    #[tokio::test]
    async fn an_answer_takes_a_round_trip_and_a_large_one_takes_no_longer() {
        let mut tasks = JoinSet::new();
        let (distance, mut client) = connect(&mut tasks).await;
        assert!(echo(&mut client, 1).await < RTT);
        distance.set_round_trip(RTT);
        assert!(echo(&mut client, 1).await >= RTT);
        // 50 chunks: one after the other they would take 50 round trips.
        let took = echo(&mut client, 50 * CHUNK).await;
        assert!(took >= RTT && took < 20 * RTT, "{took:?}");
    }

    #[tokio::test]
    async fn a_kubeconfig_leads_through_the_relay_to_the_same_server() {
        let kubeconfig = r#"{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.9:6443"}}]}"#;
        let distance = Distance::to_server_of(kubeconfig).await.unwrap();
        let through: Value = serde_saphyr::from_str(&distance.kubeconfig(kubeconfig).unwrap()).unwrap();
        let cluster = &through["clusters"][0]["cluster"];
        assert_eq!(cluster["server"], format!("https://{}", distance.server));
        assert_eq!(cluster["tls-server-name"], "localhost");
    }
}
