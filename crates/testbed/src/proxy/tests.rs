//! Each fault between a client and a small server: the client sees it, the server receives what it should, then everything
//! works again.

mod server;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use kube::client::Body;
use tapestry_cluster::Cluster;
use tapestry_cluster::body::Asked;
use tapestry_cluster::connect::{Traffic, Trust};

use self::server::Server;
use super::*;

const PODS: &str = "/api/v1/namespaces/x/pods";
const WATCH: &str = "/api/v1/pods?watch=true";
/// The deadline of what a working proxy does at once, on a machine that may be busy.
const LONG: Duration = Duration::from_secs(10);
/// How long to wait for what must not happen.
const SHORT: Duration = Duration::from_millis(200);

/// A server, a proxy to it and a client of the proxy.
struct Scene {
    server: Server,
    proxy: FaultProxy,
    client: Cluster,
    /// Between client and proxy.
    protocol: Protocol,
}

impl Scene {
    /// All three use this protocol.
    async fn new(protocol: Protocol) -> Self {
        Self::between(protocol, protocol).await
    }

    async fn between(offered: Protocol, served: Protocol) -> Self {
        let server = Server::start(served).await.unwrap();
        let proxy = FaultProxy::offering(offered, &server.kubeconfig()).await.unwrap();
        let client =
            Cluster::connect("x", proxy.kubeconfig(), Trust::Secret { allow_insecure: false }, "test").await.unwrap();
        Self { server, proxy, client, protocol: offered }
    }

    /// Sends a request and reads the whole answer.
    async fn ask(&self, method: &str, path: &str) -> Result<(u16, Option<u32>, String), String> {
        let (code, retry_after, body) = self.client.exchange(request(method, path), LONG, Asked::Page).await?;
        Ok((code, retry_after, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn code(&self, method: &str, path: &str) -> Result<u16, String> {
        self.ask(method, path).await.map(|(code, ..)| code)
    }

    /// Opens a watch.
    async fn watch(&self) -> hyper::body::Incoming {
        self.client.send(Traffic::Watches, request("GET", WATCH)).await.unwrap().into_body()
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

/// The stream up to its end; returns whether it ended in order.
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

/// Runs each test over HTTP/1.1 and over HTTP/2.
macro_rules! over_http1_and_http2 {
    ($($test:ident)*) => { $(
        mod $test {
            use super::{Protocol, Scene};

            #[tokio::test]
            async fn over_http1() {
                super::$test(Scene::new(Protocol::Http1).await).await;
            }

            #[tokio::test]
            async fn over_http2() {
                super::$test(Scene::new(Protocol::Http2).await).await;
            }
        }
    )* };
}

over_http1_and_http2! {
    a_frozen_connection_sends_nothing_while_others_work
    an_open_watch_freezes_its_connection_and_no_other
    a_reset_connection_takes_its_streams_with_it
    a_proxy_without_faults_passes_requests_answers_and_streams
    a_client_without_the_token_is_refused
    a_cut_proxy_breaks_streams_and_refuses_connections_until_it_is_restored
    a_reset_breaks_streams_and_new_connections_are_accepted
    a_freeze_holds_requests_and_streams_and_they_continue_late
    a_head_without_its_body_passes_at_once_and_the_body_when_the_fault_ends
    a_delayed_request_arrives_later
    a_reset_request_never_arrives
    wrong_answers_are_given_without_asking_the_server
    an_expired_version_ends_open_streams_with_an_event
    a_truncated_stream_ends_in_order_in_the_middle_of_an_object
    a_lost_answer_belongs_to_a_write_that_was_carried_out
    a_slow_answer_comes_in_pieces_and_whole
    a_rule_lets_the_first_pass_and_stops_after_its_count_of_hits
    each_write_that_was_carried_out_is_reported_before_the_client_gets_the_answer
    a_storm_leaves_no_fault_behind
}

async fn a_proxy_without_faults_passes_requests_answers_and_streams(scene: Scene) {
    assert_eq!(scene.ask("POST", PODS).await, Ok((201, None, r#"{"a":1}"#.to_owned())));
    let version = match scene.protocol {
        Protocol::Http1 => "HTTP/1.1",
        Protocol::Http2 => "HTTP/2.0",
    };
    assert_eq!(scene.server.heard(), [format!("POST {PODS} {version} Bearer of-the-original test")]);
    let mut watch = scene.watch().await;
    for number in 1..4 {
        scene.server.say(&format!("{{\"event\":{number}}}\n"));
        assert_eq!(piece(&mut watch).await.unwrap().unwrap(), format!("{{\"event\":{number}}}\n"));
    }
}

#[tokio::test]
async fn a_client_may_speak_another_protocol_than_the_server() {
    for (offered, served) in [(Protocol::Http1, Protocol::Http2), (Protocol::Http2, Protocol::Http1)] {
        let scene = Scene::between(offered, served).await;
        assert_eq!(scene.ask("POST", PODS).await, Ok((201, None, r#"{"a":1}"#.to_owned())));
        assert!(scene.server.heard()[0].contains("HTTP/1.1"), "{:?}", scene.server.heard());
        let mut watch = scene.watch().await;
        scene.server.say("{\"event\":1}\n");
        assert_eq!(piece(&mut watch).await.unwrap().unwrap(), "{\"event\":1}\n");
    }
}

async fn a_client_without_the_token_is_refused(scene: Scene) {
    let kubeconfig = scene.proxy.kubeconfig().replace("token: ", "token: x");
    assert_ne!(kubeconfig, scene.proxy.kubeconfig());
    let stranger = Cluster::connect("x", &kubeconfig, Trust::Operator, "test").await.unwrap();
    assert_eq!(stranger.exchange(request("GET", PODS), LONG, Asked::Page).await.unwrap().0, 401);
    assert!(scene.server.heard().is_empty());
}

async fn a_cut_proxy_breaks_streams_and_refuses_connections_until_it_is_restored(scene: Scene) {
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

async fn a_reset_breaks_streams_and_new_connections_are_accepted(scene: Scene) {
    let watch = scene.watch().await;
    scene.proxy.reset();
    assert!(!rest(watch).await.1, "the stream ended in order");
    scene.is_well().await;
}

async fn a_freeze_holds_requests_and_streams_and_they_continue_late(scene: Scene) {
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

async fn a_head_without_its_body_passes_at_once_and_the_body_when_the_fault_ends(scene: Scene) {
    let mut open = scene.watch().await;
    let mute = scene.proxy.inject(Fault::HeadOnly, Requests::watches());
    let mut new = tokio::time::timeout(LONG, scene.watch()).await.expect("no head");
    scene.server.say("{\"event\":1}\n");
    for watch in [&mut open, &mut new] {
        assert!(tokio::time::timeout(SHORT, watch.frame()).await.is_err(), "something came");
    }
    assert_eq!(scene.code("GET", PODS).await, Ok(200), "other requests pass");
    assert!(mute.hits() >= 2);
    drop(mute);
    for watch in [&mut open, &mut new] {
        assert_eq!(piece(watch).await.unwrap().unwrap(), "{\"event\":1}\n");
    }
}

async fn a_delayed_request_arrives_later(scene: Scene) {
    let _delay = scene.proxy.inject(Fault::Delay(SHORT), Requests::writes());
    let began = Instant::now();
    assert_eq!(scene.code("POST", PODS).await, Ok(201));
    assert!(began.elapsed() >= SHORT);
}

async fn a_reset_request_never_arrives(scene: Scene) {
    let reset = scene.proxy.inject(Fault::Reset, Requests::writes());
    scene.code("POST", PODS).await.unwrap_err();
    assert_eq!((scene.server.writes(), reset.hits()), (0, 1));
    drop(reset);
    scene.is_well().await;
}

async fn wrong_answers_are_given_without_asking_the_server(scene: Scene) {
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

async fn an_expired_version_ends_open_streams_with_an_event(scene: Scene) {
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

async fn a_truncated_stream_ends_in_order_in_the_middle_of_an_object(scene: Scene) {
    let watch = scene.watch().await;
    let _truncated = scene.proxy.inject(Fault::Truncated, Requests::watches());
    scene.server.say("{\"event\":1}\n{\"event\":2}\n");
    let (text, in_order) = rest(watch).await;
    let (first, second) = text.split_once('\n').unwrap();
    assert_eq!(first, "{\"event\":1}");
    assert!(!second.is_empty() && "{\"event\":2}".starts_with(second) && second.len() < 11, "{second}");
    assert!(in_order);
}

async fn a_lost_answer_belongs_to_a_write_that_was_carried_out(scene: Scene) {
    let lost = scene.proxy.inject(Fault::LostAnswer, Requests::writes());
    assert_eq!(scene.code("GET", PODS).await, Ok(200));
    scene.code("POST", PODS).await.unwrap_err();
    assert_eq!((scene.server.writes(), lost.hits()), (1, 1));
    drop(lost);
    scene.is_well().await;
}

async fn a_slow_answer_comes_in_pieces_and_whole(scene: Scene) {
    let _slow = scene.proxy.inject(Fault::Trickle(1, Duration::from_millis(20)), Requests::writes());
    let began = Instant::now();
    assert_eq!(scene.ask("POST", PODS).await.unwrap().2, r#"{"a":1}"#);
    assert!(began.elapsed() >= Duration::from_millis(7 * 20));
}

async fn a_rule_lets_the_first_pass_and_stops_after_its_count_of_hits(scene: Scene) {
    let injection = scene.proxy.inject(Fault::InternalError, Requests::writes().of("pods").after(1).times(2));
    let mut codes = Vec::new();
    for _ in 0..5 {
        codes.push(scene.code("POST", PODS).await.unwrap());
        assert_eq!(scene.code("POST", "/api/v1/nodes").await, Ok(201));
    }
    assert_eq!(codes, [201, 500, 500, 201, 201]);
    assert_eq!(injection.hits(), 2);
}

async fn each_write_that_was_carried_out_is_reported_before_the_client_gets_the_answer(scene: Scene) {
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

async fn a_storm_leaves_no_fault_behind(scene: Scene) {
    let until = tokio::time::Instant::now() + Duration::from_secs(1);
    scene.proxy.run_storm("test", Storm::new(3), until).await;
    scene.is_well().await;
    assert_eq!(scene.code("POST", PODS).await, Ok(201));
}

/// A second client of the proxy.
async fn stranger(scene: &Scene) -> Cluster {
    Cluster::connect("y", scene.proxy.kubeconfig(), Trust::Operator, "other").await.unwrap()
}

async fn a_frozen_connection_sends_nothing_while_others_work(scene: Scene) {
    let mut watch = scene.watch().await;
    let frozen = scene.proxy.inject(Fault::FreezeConnection, Requests::writes().times(1));
    let asking = scene.code("POST", PODS);
    let mut asking = std::pin::pin!(asking);
    assert!(tokio::time::timeout(SHORT, &mut asking).await.is_err(), "it was answered");
    assert_eq!((scene.server.writes(), frozen.hits()), (0, 1));
    // Watches have their own connection, and so has another client.
    scene.server.say("{\"event\":1}\n");
    assert_eq!(piece(&mut watch).await.unwrap().unwrap(), "{\"event\":1}\n");
    assert_eq!(stranger(&scene).await.exchange(request("POST", PODS), LONG, Asked::Object).await.unwrap().0, 201);
    // The end of the fault does not revive a dead connection.
    drop(frozen);
    assert!(tokio::time::timeout(SHORT, &mut asking).await.is_err(), "it was answered");
}

async fn an_open_watch_freezes_its_connection_and_no_other(scene: Scene) {
    let mut watch = scene.watch().await;
    let frozen = scene.proxy.inject(Fault::FreezeConnection, Requests::watches().times(1));
    crate::eventually(
        "the fault hits",
        LONG,
        async || if frozen.hits() == 1 { Ok(()) } else { Err("not yet".to_owned()) },
    )
    .await
    .unwrap();
    scene.server.say("{\"event\":1}\n");
    assert!(tokio::time::timeout(SHORT, watch.frame()).await.is_err(), "something came");
    assert_eq!(scene.code("POST", PODS).await, Ok(201));
}

async fn a_reset_connection_takes_its_streams_with_it(scene: Scene) {
    let watch = scene.watch().await;
    let reset = scene.proxy.inject(Fault::ResetConnection, Requests::watches().times(1));
    assert!(!rest(watch).await.1, "the stream ended in order");
    assert_eq!(reset.hits(), 1);
    let reset = scene.proxy.inject(Fault::ResetConnection, Requests::writes().times(1));
    scene.code("POST", PODS).await.unwrap_err();
    assert_eq!((scene.server.writes(), reset.hits()), (0, 1));
    scene.is_well().await;
}

#[tokio::test]
async fn over_http2_a_reset_request_leaves_the_others_on_its_connection_alone() {
    let scene = Scene::new(Protocol::Http2).await;
    let _slow = scene.proxy.inject(Fault::Delay(SHORT), Requests::writes().of("nodes"));
    let _reset = scene.proxy.inject(Fault::Reset, Requests::writes().of("pods"));
    let (slow, reset) = tokio::join!(scene.code("POST", "/api/v1/nodes"), scene.code("POST", PODS));
    assert_eq!(slow, Ok(201));
    reset.unwrap_err();
}

#[tokio::test]
async fn over_http2_a_frozen_connection_is_closed_when_its_ping_stays_unanswered() {
    let scene = Scene::new(Protocol::Http2).await;
    let mut watch = scene.watch().await;
    let _frozen = scene.proxy.inject(Fault::FreezeConnection, Requests::watches().times(1));
    let began = Instant::now();
    let broken = tokio::time::timeout(Duration::from_secs(20), watch.frame()).await.expect("it was never closed");
    assert!(broken.unwrap().is_err() && began.elapsed() > Duration::from_secs(10), "{:?}", began.elapsed());
    // The next watch has a new connection.
    let mut watch = scene.watch().await;
    scene.server.say("{\"event\":1}\n");
    assert_eq!(piece(&mut watch).await.unwrap().unwrap(), "{\"event\":1}\n");
}
