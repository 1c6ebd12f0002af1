//! A server that answers what a test wants: for answers that a healthy API server does not give on demand.
//! Must not be used where a real server can give the same answer.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What happens to one request.
pub(crate) enum Reply {
    /// A complete answer: status, extra header lines, body.
    Whole(u16, &'static str, String),
    /// An answer whose body goes on after this, until the client leaves.
    Open(String),
    /// The head promises more than comes.
    Torn(String),
    /// The connection is closed without an answer.
    Close,
    /// The connection stays open without an answer.
    Hang,
}

/// The server. Dropping it ends it.
pub(crate) struct Stub {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Stub {
    /// Serves until dropped. `answer` gets method and path, such as `GET /api/v1/pods?watch=true`.
    pub(crate) async fn serve(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let answer = Arc::new(answer);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let answer = Arc::clone(&answer);
                clients.spawn(async move {
                    // A client may leave early.
                    let _ = one_request(client, &*answer).await;
                });
            }
        });
        Ok(Self { address, _tasks: tasks })
    }

    /// How our client finds it.
    pub(crate) fn kubeconfig(&self) -> String {
        kubeconfig(&format!("http://{}", self.address), "{}")
    }
}

/// A kubeconfig of this server and this user (JSON).
pub(crate) fn kubeconfig(server: &str, user: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}],
        "users":[{{"name":"u","user":{user}}}],"clusters":[{{"name":"c","cluster":{{"server":"{server}"}}}}]}}"#
    )
}

async fn one_request(mut client: TcpStream, answer: &(dyn Fn(&str) -> Reply + Send + Sync)) -> std::io::Result<()> {
    let mut request = Vec::new();
    let head = loop {
        if client.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
        if let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    while request.len() < head + length {
        if client.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let first = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
    let asked = first.rsplit_once(' ').map_or(first.as_str(), |(asked, _)| asked);
    let common = "content-type: application/json\r\nconnection: close\r\n";
    match answer(asked) {
        Reply::Whole(code, headers, body) => {
            let head = format!("HTTP/1.1 {code} x\r\n{common}{headers}content-length: {}\r\n\r\n", body.len());
            client.write_all(format!("{head}{body}").as_bytes()).await?;
            client.shutdown().await
        }
        Reply::Open(body) => {
            client.write_all(format!("HTTP/1.1 200 x\r\n{common}\r\n{body}").as_bytes()).await?;
            client.flush().await?;
            // Until the client leaves.
            client.read_buf(&mut request).await.map(drop)
        }
        Reply::Torn(body) => {
            let head = format!("HTTP/1.1 200 x\r\n{common}content-length: {}\r\n\r\n", body.len() + 100);
            client.write_all(format!("{head}{body}").as_bytes()).await?;
            client.shutdown().await
        }
        Reply::Close => Ok(()),
        Reply::Hang => client.read_buf(&mut request).await.map(drop),
    }
}
