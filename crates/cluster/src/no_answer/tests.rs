//! Peers that do not answer like API servers.

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::Cluster;
use crate::connect::Trust;

const LONG: Duration = Duration::from_secs(30);

/// The result of one request for an object to a server that sends these bytes to every client.
async fn ask(scheme: &str, ca: Option<&str>, sends: impl Fn() -> Vec<Vec<u8>>, endless: bool) -> NoAnswer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let sends = sends();
    let mut server = JoinSet::new();
    server.spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let _ = client.read(&mut [0; 4096]).await;
            for part in &sends {
                let _ = client.write_all(part).await;
            }
            while endless && client.write_all(sends.last().unwrap()).await.is_ok() {}
        }
    });
    let mut target = json!({"server": format!("{scheme}://{address}")});
    if let Some(ca) = ca {
        target["certificate-authority-data"] = json!(ByteString(ca.as_bytes().to_vec()));
    }
    client(&target).await
}

async fn client(target: &Value) -> NoAnswer {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "clusters": [{"name": "c", "cluster": target}],
    });
    let cluster = Cluster::connect("x", &kubeconfig.to_string(), Trust::Operator, "test").await.unwrap();
    let request = http::Request::get("/api/v1/nodes/n").body(kube::client::Body::empty()).unwrap();
    cluster.exchange(request, LONG, Asked::Object).await.unwrap_err()
}

#[tokio::test]
async fn law_11_an_answer_without_end_is_read_no_further_than_an_object_can_be_long() {
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let chunk = [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat();
    let why = ask("http", None, || vec![head.clone(), chunk.clone()], true).await;
    assert_eq!(why, NoAnswer::TooLong(Asked::Object));
    assert!(why.to_string().contains("more than 8 MiB") && why.hint().contains("address"), "{why}");
}

#[tokio::test]
async fn law_11_an_answer_that_announces_too_much_is_not_read_at_all() {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", u64::MAX / 2).into_bytes();
    let why = ask("http", None, || vec![head.clone()], false).await;
    assert_eq!(why, NoAnswer::TooLong(Asked::Object));
}

#[tokio::test]
async fn the_error_of_a_connection_that_is_closed_early_does_not_quote_a_librarys_manual() {
    let ca = rcgen::generate_simple_self_signed(["host".to_owned()]).unwrap().cert.pem();
    let eof = ask("https", Some(&ca), Vec::new, false).await;
    let manual = io::Error::new(io::ErrorKind::UnexpectedEof, "peer closed: https://docs.rs/rustls");
    for why in [eof, NoAnswer::of(&io::Error::other(manual))] {
        assert!(matches!(why, NoAnswer::Broken(_)) && !why.to_string().contains("docs.rs"), "{why}");
    }
}

#[test]
fn a_certificate_of_another_ca_names_the_field_of_the_kubeconfig() {
    let told = |error: CertificateError| {
        let tls = rustls::Error::InvalidCertificate(error);
        // As the connector wraps it.
        NoAnswer::of(&io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls)))
    };
    let other = told(CertificateError::UnknownIssuer);
    assert!(matches!(other, NoAnswer::UnknownCa(_)), "{other:?}");
    assert!(
        other.hint().contains("certificate-authority-data") && other.to_string().contains("UnknownIssuer"),
        "{other}"
    );
    let expired = told(CertificateError::Expired);
    assert!(matches!(expired, NoAnswer::BadCertificate(_)) && expired.hint().contains("valid today"), "{expired}");
    assert!(matches!(NoAnswer::of(&io::Error::other("refused")), NoAnswer::Broken(why) if why == "refused"));
}
