//! A line to an API server that a test can cut and mend. Must not look inside: what goes through is TLS.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use tapestry_testbed::Cluster;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The line. Dropping it cuts it for good.
pub(crate) struct Line {
    kubeconfig: String,
    whole_tx: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Line {
    /// A whole line to this cluster, for its administrator.
    pub(crate) async fn to(cluster: &Cluster) -> Result<Self> {
        Self::with(cluster, &cluster.kubeconfig_text()?).await
    }

    /// A whole line to this cluster, for the user of this kubeconfig.
    pub(crate) async fn with(cluster: &Cluster, kubeconfig: &str) -> Result<Self> {
        let url = cluster.url();
        let server: SocketAddr = url.strip_prefix("https://").context("no https URL")?.parse()?;
        // On the server's own address, which is the one in its certificate.
        let listener = TcpListener::bind((server.ip(), 0)).await?;
        let here = format!("https://{}", listener.local_addr()?);
        let (whole_tx, whole_rx) = watch::channel(true);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                clients.spawn(carry(client, server, whole_rx.clone()));
            }
        });
        Ok(Self { kubeconfig: kubeconfig.replace(&url, &here), whole_tx, _tasks: tasks })
    }

    /// The user's kubeconfig, through this line.
    pub(crate) fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Ends all connections; new ones wait until it is mended.
    pub(crate) fn cut(&self) {
        self.whole_tx.send_replace(false);
    }

    pub(crate) fn mend(&self) {
        self.whole_tx.send_replace(true);
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, mut whole_rx: watch::Receiver<bool>) {
    if whole_rx.wait_for(|whole| *whole).await.is_err() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = whole_rx.wait_for(|whole| !whole) => {}
    }
}
