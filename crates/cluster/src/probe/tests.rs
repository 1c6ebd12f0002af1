//! What a probe reports for each answer of a stub API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;
use crate::connect::Trust;

/// Answers with its identity (200), hangs up (0), or refuses with another code.
type Code = Arc<AtomicU16>;

async fn answer(mut stream: TcpStream, code: Code) {
    let mut request = [0; 4096];
    while stream.read(&mut request).await.is_ok_and(|length| length > 0) {
        let body = match code.load(Ordering::Relaxed) {
            0 => return,
            200 => json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "p-cluster"}}),
            other => json!({"kind": "Status", "code": other, "message": format!("no, {other}")}),
        };
        let (code, body) = (code.load(Ordering::Relaxed), body.to_string());
        let answer = format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A probe of such a server, its state, and the code that the server answers with.
async fn probed(tasks: &mut JoinSet<()>) -> (watch::Receiver<Connection>, Code) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let code = Code::new(AtomicU16::new(200));
    let answers = Arc::clone(&code);
    tasks.spawn(async move {
        let mut streams = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            streams.spawn(answer(stream, Arc::clone(&answers)));
        }
    });
    let kubeconfig = format!(
        "{{kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    );
    let cluster = Cluster::connect("east", &kubeconfig, Trust::Operator, "test").await.unwrap();
    let (connection_tx, connection) = watch::channel(Connection::Unknown);
    tasks.spawn(async move { probe(cluster, Duration::from_millis(20), connection_tx).await.unwrap() });
    (connection, code)
}

#[tokio::test]
async fn an_api_server_that_refuses_us_answers_and_is_not_down() {
    let mut tasks = JoinSet::new();
    let (mut connection, code) = probed(&mut tasks).await;
    let right = Connection::Refused(AccessRefused::Right("no, 403".to_owned()));
    let up = Connection::Up(Uid::new("p-cluster"));
    for (said, expected) in
        [(200, up.clone()), (401, Connection::Refused(AccessRefused::Credentials)), (403, right), (200, up)]
    {
        code.store(said, Ordering::Relaxed);
        let seen = tokio::time::timeout(Duration::from_secs(20), connection.wait_for(|seen| *seen == expected)).await;
        seen.unwrap_or_else(|_| panic!("{said} is not {expected:?}")).unwrap();
    }
    for said in [0, 404, 500, 503] {
        code.store(said, Ordering::Relaxed);
        let down = connection.wait_for(|seen| matches!(seen, Connection::Down(_)));
        tokio::time::timeout(Duration::from_secs(20), down).await.unwrap_or_else(|_| panic!("{said}")).unwrap();
        code.store(200, Ordering::Relaxed);
        let up = connection.wait_for(|seen| matches!(seen, Connection::Up(_)));
        tokio::time::timeout(Duration::from_secs(20), up).await.unwrap_or_else(|_| panic!("{said}")).unwrap();
    }
}

#[test]
fn a_refusal_names_its_reason_the_verb_the_resource_and_what_to_do() {
    let refused = AccessRefused::Right("User \"eve\" cannot get".to_owned());
    assert_eq!([AccessRefused::Credentials.reason(), refused.reason()], ["CredentialsRefused", "RightMissing"]);
    let said = refused.to_string();
    assert!(said.contains("get namespaces/kube-system") && said.contains("User \"eve\" cannot get"), "{said}");
    assert!(refused.hint().contains("deploy/rbac"));
    assert!(AccessRefused::Credentials.to_string().contains("401"));
}
