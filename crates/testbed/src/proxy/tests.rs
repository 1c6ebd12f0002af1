//! Each fault between a client and a small server: the client sees it, the server receives what it should, then everything works again.

mod server;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use kube::client::Body;
use tapestry_cluster::Cluster;
use tapestry_cluster::connect::Trust;

use self::server::Server;
use super::*;

const PODS: &str = "/api/v1/namespaces/x/pods";
const WATCH: &str = "/api/v1/pods?watch=true";
/// For what a working proxy does at once, on a machine that may be busy.
const LONG: Duration = Duration::from_secs(10);
/// For what must not happen.
const SHORT: Duration = Duration::from_millis(200);

/// A server, a proxy to it and a client of the proxy.
struct Scene {
    server: Server,
    proxy: FaultProxy,
    client: Cluster,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start().await.unwrap();
        let proxy = FaultProxy::with_kubeconfig(&server.kubeconfig()).await.unwrap();
        let client =
            Cluster::connect("x", proxy.kubeconfig(), Trust::Secret { allow_insecure: false }, "test").await.unwrap();
        Self { server, proxy, client }
    }

    /// Sends a request and reads the whole answer.
    async fn ask(&self, method: &str, path: &str) -> Result<(u16, Option<u32>, String), String> {
        let (code, retry_after, body) = self.client.exchange(request(method, path), LONG).await?;
        Ok((code, retry_after, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn code(&self, method: &str, path: &str) -> Result<u16, String> {
        self.ask(method, path).await.map(|(code, ..)| code)
    }

    /// Opens a watch.
    async fn watch(&self) -> hyper::body::Incoming {
        self.client.send(request("GET", WATCH)).await.unwrap().into_body()
    }

    /// The proxy works, also for a client that has seen it broken.
    async fn is_well(&self) {
        let before = self.server.heard().len();
        crate::eventually("the proxy works", LONG, || self.code("GET", PODS)).await.unwrap();
        assert!(self.server.heard().len() > before);
    }
}

fn request(method: &str, path: &str) -> Request<Body> {
    let body = if method == "GET" { Body::empty() } else { Body::from(b"{\"a\":1}".to_vec()) };
    Request::builder().method(method).uri(path).body(body).unwrap()
}

/// The next piece of a stream; `None` at its end.
async fn piece(body: &mut hyper::body::Incoming) -> Option<Result<Bytes, String>> {
    let frame = tokio::time::timeout(LONG, body.frame()).await.expect("nothing comes")?;
    Some(frame.map(|frame| frame.into_data().unwrap_or_default()).map_err(|error| error.to_string()))
}

/// The stream up to its end or its break; says whether it ended in order.
async fn rest(mut body: hyper::body::Incoming) -> (String, bool) {
    let mut text = String::new();
    while let Some(piece) = piece(&mut body).await {
        match piece {
            Ok(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Err(_) => return (text, false),
        }
    }
    (text, true)
}

#[tokio::test]
async fn a_proxy_without_faults_passes_requests_answers_and_streams() {
    let scene = Scene::new().await;
    assert_eq!(scene.ask("POST", PODS).await, Ok((201, None, r#"{"a":1}"#.to_owned())));
    assert_eq!(scene.server.heard(), [format!("POST {PODS} Bearer of-the-original test")]);
    let mut watch = scene.watch().await;
    for number in 1..4 {
        scene.server.say(&format!("{{\"event\":{number}}}\n"));
        assert_eq!(piece(&mut watch).await.unwrap().unwrap(), format!("{{\"event\":{number}}}\n"));
    }
}

#[tokio::test]
async fn a_client_without_the_token_is_refused() {
    let scene = Scene::new().await;
    let kubeconfig = scene.proxy.kubeconfig().replace("token: ", "token: x");
    assert_ne!(kubeconfig, scene.proxy.kubeconfig());
    let stranger = Cluster::connect("x", &kubeconfig, Trust::Operator, "test").await.unwrap();
    assert_eq!(stranger.exchange(request("GET", PODS), LONG).await.unwrap().0, 401);
    assert!(scene.server.heard().is_empty());
}

#[tokio::test]
async fn a_cut_proxy_breaks_streams_and_refuses_connections_until_it_is_restored() {
    let scene = Scene::new().await;
    let watch = scene.watch().await;
    scene.server.say("{\"event\":1}\n");
    scene.proxy.cut();
    assert!(!rest(watch).await.1, "the stream ended in order");
    let heard = scene.server.heard().len();
    let refused = scene.code("GET", PODS).await.unwrap_err();
    assert!(refused.contains("refused") || refused.contains("reset"), "{refused}");
    let refused = scene.code("GET", PODS).await.unwrap_err();
    assert!(refused.contains("refused"), "{refused}");
    assert_eq!(scene.server.heard().len(), heard);
    scene.proxy.restore();
    scene.is_well().await;
}

#[tokio::test]
async fn a_reset_breaks_streams_and_new_connections_are_accepted() {
    let scene = Scene::new().await;
    let watch = scene.watch().await;
    scene.proxy.reset();
    assert!(!rest(watch).await.1, "the stream ended in order");
    scene.is_well().await;
}

#[tokio::test]
async fn a_freeze_holds_requests_and_streams_and_lets_them_go_on_late() {
    let scene = Scene::new().await;
    let mut watch = scene.watch().await;
    let freeze = scene.proxy.inject(Fault::Freeze, Requests::all());
    scene.server.say("{\"event\":1}\n");
    assert!(tokio::time::timeout(SHORT, watch.frame()).await.is_err(), "something came");
    let asking = scene.code("POST", PODS);
    let mut asking = std::pin::pin!(asking);
    assert!(tokio::time::timeout(SHORT, &mut asking).await.is_err(), "it was answered");
    assert_eq!(scene.server.writes(), 0);
    assert!(freeze.hits() >= 2);
    drop(freeze);
    assert_eq!(asking.await, Ok(201));
    assert_eq!(piece(&mut watch).await.unwrap().unwrap(), "{\"event\":1}\n");
}

#[tokio::test]
async fn a_delayed_request_arrives_later() {
    let scene = Scene::new().await;
    let _delay = scene.proxy.inject(Fault::Delay(SHORT), Requests::writes());
    let began = Instant::now();
    assert_eq!(scene.code("POST", PODS).await, Ok(201));
    assert!(began.elapsed() >= SHORT);
}

#[tokio::test]
async fn a_reset_request_never_arrives() {
    let scene = Scene::new().await;
    let reset = scene.proxy.inject(Fault::Reset, Requests::writes());
    scene.code("POST", PODS).await.unwrap_err();
    assert_eq!((scene.server.writes(), reset.hits()), (0, 1));
    drop(reset);
    scene.is_well().await;
}

#[tokio::test]
async fn wrong_answers_are_given_without_asking_the_server() {
    let scene = Scene::new().await;
    for (fault, code, words) in [
        (Fault::TooManyRequests(3), 429, r#""reason":"TooManyRequests""#),
        (Fault::InternalError, 500, r#""kind":"Status""#),
        (Fault::Expired, 410, r#""reason":"Expired""#),
        (Fault::HtmlNotFound, 404, "<html>"),
        (Fault::EmptyNotFound, 404, "{}"),
    ] {
        let heard = scene.server.heard().len();
        let wait = (fault == Fault::TooManyRequests(3)).then_some(3);
        let injection = scene.proxy.inject(fault, Requests::all());
        let (seen, retry_after, body) = scene.ask("GET", PODS).await.unwrap();
        assert_eq!((seen, retry_after), (code, wait));
        assert!(body.contains(words), "{body}");
        assert_eq!(scene.server.heard().len(), heard);
        drop(injection);
        scene.is_well().await;
    }
}

#[tokio::test]
async fn an_expired_version_ends_open_streams_with_an_event() {
    let scene = Scene::new().await;
    let mut watch = scene.watch().await;
    scene.server.say("{\"event\":1}\n");
    piece(&mut watch).await.unwrap().unwrap();
    let expired = scene.proxy.inject(Fault::ExpiredEvent, Requests::watches().times(1));
    let (text, in_order) = rest(watch).await;
    let event: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert!(in_order);
    assert_eq!(expired.hits(), 1);
    // Once: the next watch is a good one.
    let mut watch = scene.watch().await;
    scene.server.say("{\"event\":2}\n");
    assert_eq!(piece(&mut watch).await.unwrap().unwrap(), "{\"event\":2}\n");
}

#[tokio::test]
async fn a_truncated_stream_ends_in_order_in_the_middle_of_an_object() {
    let scene = Scene::new().await;
    let watch = scene.watch().await;
    let _truncated = scene.proxy.inject(Fault::Truncated, Requests::watches());
    scene.server.say("{\"event\":1}\n{\"event\":2}\n");
    let (text, in_order) = rest(watch).await;
    let (first, second) = text.split_once('\n').unwrap();
    assert_eq!(first, "{\"event\":1}");
    assert!(!second.is_empty() && "{\"event\":2}".starts_with(second) && second.len() < 11, "{second}");
    assert!(in_order);
}

#[tokio::test]
async fn a_lost_answer_belongs_to_a_write_that_was_carried_out() {
    let scene = Scene::new().await;
    let lost = scene.proxy.inject(Fault::LostAnswer, Requests::writes());
    assert_eq!(scene.code("GET", PODS).await, Ok(200));
    scene.code("POST", PODS).await.unwrap_err();
    assert_eq!((scene.server.writes(), lost.hits()), (1, 1));
    drop(lost);
    scene.is_well().await;
}

#[tokio::test]
async fn a_slow_answer_comes_in_pieces_and_whole() {
    let scene = Scene::new().await;
    let _slow = scene.proxy.inject(Fault::Trickle(1, Duration::from_millis(20)), Requests::writes());
    let began = Instant::now();
    assert_eq!(scene.ask("POST", PODS).await.unwrap().2, r#"{"a":1}"#);
    assert!(began.elapsed() >= Duration::from_millis(7 * 20));
}

#[tokio::test]
async fn a_rule_lets_the_first_pass_and_stops_when_it_has_struck_often_enough() {
    let scene = Scene::new().await;
    let injection = scene.proxy.inject(Fault::InternalError, Requests::writes().of("pods").after(1).times(2));
    let mut codes = Vec::new();
    for _ in 0..5 {
        codes.push(scene.code("POST", PODS).await.unwrap());
        assert_eq!(scene.code("POST", "/api/v1/nodes").await, Ok(201));
    }
    assert_eq!(codes, [201, 500, 500, 201, 201]);
    assert_eq!(injection.hits(), 2);
}

#[tokio::test]
async fn each_write_that_was_carried_out_is_told_before_the_client_hears_of_it() {
    let scene = Scene::new().await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    scene.proxy.after_each_write(move |info| tell.lock().unwrap().push(info.to_string()));
    scene.code("GET", PODS).await.unwrap();
    scene.code("POST", PODS).await.unwrap();
    let lost = scene.proxy.inject(Fault::LostAnswer, Requests::writes());
    scene.code("DELETE", &format!("{PODS}/web")).await.unwrap_err();
    drop(lost);
    let _broken = scene.proxy.inject(Fault::InternalError, Requests::writes());
    scene.code("POST", PODS).await.unwrap();
    assert_eq!(*told.lock().unwrap(), ["create pods x/", "delete pods x/web"]);
}

#[tokio::test]
async fn a_storm_leaves_no_fault_behind() {
    let scene = Scene::new().await;
    let until = tokio::time::Instant::now() + Duration::from_secs(1);
    scene.proxy.run_storm("test", Storm::new(3), until).await;
    scene.is_well().await;
    assert_eq!(scene.code("POST", PODS).await, Ok(201));
}
