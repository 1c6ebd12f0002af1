//! List and watch of one resource until cancelled: starts consistent, resumes where it was, starts over when it
//! must. Decodes each object by itself, so that a bad one is reported and does not affect the others; infers no deletion,
//! not even when the kind is no longer served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kube::client::Body;
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;

use crate::body::{Asked, read_whole};
use crate::connect::{Awaited, Cluster, Traffic};
use crate::feed::{Epoch, Feed, Offered, Outline, Word};
use crate::frames::{Event, Lines, split};
use crate::refusal::Status;
use crate::served::prove_unserved;
use crate::{Kind, Name, Rv};

mod answer;
mod unreadable;
mod vitals;

use answer::{Page, Version};
use unreadable::{Named, Unreadable};
use vitals::ReadVerb;
pub use vitals::{FAILING, NOTHING_DELIVERED, Trouble, Vitals, WatchState};

/// What to watch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Query {
    /// The resource.
    pub kind: &'static Kind,
    /// Only of this namespace; `None` for all of them, and for cluster-scoped kinds.
    pub namespace: Option<Name>,
    /// Label selector, or empty.
    pub labels: String,
    /// Field selector, or empty.
    pub fields: String,
    /// Report to readers when the server provably does not serve the kind. Otherwise that is a
    /// failure like any other.
    pub optional: bool,
    /// Ask for nothing but the metadata of each object (`PartialObjectMetadata`): values of Secrets do not even reach this
    /// process. Rows must be decodable without the rest. Every server since 1.16 does it; one that does not refuses the watch
    /// with 406, and is not asked for whole objects instead.
    pub metadata_only: bool,
}

impl Query {
    /// All objects of a kind, which must be served.
    #[must_use]
    pub fn all(kind: &'static Kind) -> Self {
        Self {
            kind,
            namespace: None,
            labels: String::new(),
            fields: String::new(),
            optional: false,
            metadata_only: false,
        }
    }
}

/// What lists and watches are asked for as, when only metadata is wanted.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// Objects per page where the server does not stream lists.
pub(crate) const PAGE: u32 = 500;
/// The server ends a watch after this; resuming costs one request.
const WATCH_SECONDS: u64 = 290;
/// The same when a reader waits for a version, or for a sign that the watch works: the server sends a bookmark two seconds
/// before the end, and looks once a second.
const BRIEF_SECONDS: u64 = 4;
/// How much later such a watch may end.
const LATE: Duration = Duration::from_secs(6);
/// A stream that delivers nothing for this long is closed. Brief watches then find out whether there was nothing to deliver,
/// before the watch counts as out of sync.
const QUIET: Duration = Duration::from_secs(NOTHING_DELIVERED.as_secs() - 20);
/// At most this many such watches in a row: a server that has not sent a newer version by then is waited for normally.
const BRIEFS: u32 = 3;
/// How much of a refusal we read.
const REFUSAL: usize = 64 << 10;
/// How long the head of an answer, or a whole refusal, may take.
const HEAD: Duration = Duration::from_mins(1);
/// Shorter watches count as failures, so that we do not flood a server that closes at once.
const SHORT: Duration = Duration::from_secs(1);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// How often we check whether a kind is served by now.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// After so many failures in a row to resume, the version itself is suspect (a restored etcd refuses versions of its future).
const RESUMES: u32 = 4;
/// When a reader comes, one list serves all that come so soon after it.
const GATHER: Duration = Duration::from_millis(50);

/// Watches for the readers of `feed` until cancelled.
pub async fn watch(cluster: Cluster, query: Query, feed: Arc<Feed>, cancel: CancellationToken) {
    let unreadable = Unreadable::new(feed.unreadable.clone());
    let awaited = cluster.awaited();
    let mut watch = Watch {
        cluster,
        query,
        feed,
        epoch: Epoch(0),
        at: None,
        reached: None,
        streams: true,
        failures: 0,
        doubtful: false,
        refused: 0,
        unserved: false,
        unreadable,
        verb: ReadVerb::Watch,
        awaited,
        briefs: 0,
        wary: false,
        came: None,
    };
    cancel.run_until_cancelled(watch.run()).await;
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent facts about one server, not the states of a machine"
)]
struct Watch {
    cluster: Cluster,
    query: Query,
    feed: Arc<Feed>,
    epoch: Epoch,
    /// Resume after this version; `None` means start over.
    at: Option<Rv>,
    /// The latest version that was ever read.
    reached: Option<Rv>,
    /// Whether the server streams lists (1.34 and later by default).
    streams: bool,
    failures: u32,
    /// The connection broke since the last answer: the same address may have another state now.
    doubtful: bool,
    /// How often in a row the server itself refused to resume.
    refused: u32,
    /// All readers know that the kind is not served.
    unserved: bool,
    unreadable: Unreadable,
    /// What the last request asked for.
    verb: ReadVerb,
    /// A version that a reader waits for.
    awaited: channel::Receiver<Option<Awaited>>,
    /// How many watches in a row have been brief because of it.
    briefs: u32,
    /// A stream delivered nothing for too long. Watches are brief until one delivers something well before its end: a proxy
    /// may buffer everything until then.
    wary: bool,
    /// When the current stream delivered something for the first time.
    came: Option<Instant>,
}

/// What a request asks for.
enum Ask {
    /// All objects, then what changes.
    Stream { seconds: u64 },
    /// What has changed since this version.
    Watch { seconds: u64, rv: Rv },
    /// A page of a list, after the one that gave this token.
    Page { after: Option<String> },
    /// Which version the server has.
    Version,
}

impl Ask {
    /// Which right it needs.
    fn verb(&self) -> ReadVerb {
        match self {
            Self::Stream { .. } | Self::Watch { .. } => ReadVerb::Watch,
            Self::Page { .. } | Self::Version => ReadVerb::List,
        }
    }

    /// As a part of the URL.
    fn render(&self) -> String {
        let watch = |seconds: &u64| format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}");
        match self {
            // No resourceVersion: the list is as new as etcd. kube's own watcher asks for 0, which may be stale.
            Self::Stream { seconds } => {
                format!("{}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", watch(seconds))
            }
            Self::Watch { seconds, rv } => format!("{}&resourceVersion={rv}", watch(seconds)),
            Self::Page { after: None } => format!("limit={PAGE}"),
            Self::Page { after: Some(token) } => format!("limit={PAGE}&continue={}", encode(token)),
            Self::Version => "limit=1".to_owned(),
        }
    }
}

/// Why a request ended before its time.
enum End {
    /// The server closed a healthy stream, or only a list can say what happened.
    Closed,
    /// A reader has subscribed that has seen no list yet.
    NewReader,
    /// A reader waits for a version: a brief watch reports it sooner.
    Awaited,
    /// 410: our version is too old to resume from.
    Expired,
    /// The server does not know streaming lists.
    NoStreaming,
    /// The server does not serve the kind, and the watch is optional.
    Unserved,
    /// The connection to the server broke.
    Broken(String),
    /// The server sent nothing for too long; its connection may be dead.
    Unanswered(String),
    /// The server answered with something else.
    Failed(String),
}

impl Watch {
    async fn run(&mut self) {
        loop {
            let began = Instant::now();
            let end = match self.at {
                None if self.streams => self.stream(None).await,
                None => match self.list().await {
                    Ok(rv) => {
                        self.at = Some(rv);
                        continue;
                    }
                    Err(end) => end,
                },
                Some(rv) => match self.reassure().await {
                    Ok(()) => self.stream(Some(rv)).await,
                    Err(end) => end,
                },
            };
            let kind = self.query.kind.plural;
            let verb = self.verb;
            self.feed.vitals.closed();
            if let End::Unanswered(_) = end {
                self.cluster.abandon(Traffic::Watches, began);
            }
            if self.came.take().is_some_and(|came| came.elapsed() >= SHORT) {
                self.wary = false;
            }
            match end {
                // A list that never completes is a failure, however long it took.
                End::Closed if began.elapsed() >= SHORT && self.at.is_some() => self.failures = 0,
                End::Closed => {
                    self.feed.vitals.failed(verb, "the server closes the stream at once");
                    self.failures += 1;
                }
                End::Awaited => {}
                End::NewReader => tokio::time::sleep(GATHER).await,
                End::Broken(error) | End::Unanswered(error) => {
                    self.feed.vitals.failed(verb, &error);
                    tracing::info!(cluster = self.cluster.name(), kind, error, "watch broken");
                    self.failures += 1;
                    self.doubtful = true;
                }
                End::Expired => {
                    tracing::debug!(cluster = self.cluster.name(), kind, "version expired: starting over");
                    self.at = None;
                    self.failures += 1;
                }
                End::NoStreaming => {
                    tracing::info!(
                        cluster = self.cluster.name(),
                        kind,
                        "the server does not stream lists: reading pages"
                    );
                    self.streams = false;
                }
                End::Unserved => self.rest_unserved().await,
                End::Failed(error) => {
                    self.feed.vitals.failed(verb, &error);
                    tracing::info!(cluster = self.cluster.name(), kind, error, "watch failed");
                    self.failures += 1;
                    self.refused += 1;
                    if self.refused >= RESUMES {
                        (self.at, self.refused) = (None, 0);
                    }
                }
            }
            if self.failures > 0 {
                tokio::select! {
                    () = tokio::time::sleep(backoff(self.failures)) => {}
                    // The cluster answers again: read at once, because until then plans use the old state.
                    () = self.cluster.renewed() => self.failures = 1,
                }
            }
        }
    }

    /// One watch request: a streaming list that continues as a watch, or a watch resumed after `at`.
    async fn stream(&mut self, at: Option<Rv>) -> End {
        if at.is_none() {
            self.begin();
        }
        let (seconds, asked) = (self.seconds(), Instant::now());
        let timeout = Duration::from_secs(seconds);
        let patience = QUIET.min(timeout + LATE);
        let ask = at.map_or(Ask::Stream { seconds }, |rv| Ask::Watch { seconds, rv });
        let mut body = match self.open(&ask).await {
            Ok(body) => body,
            Err(end) => return end,
        };
        self.feed.vitals.opened();
        let mut lines = Lines::default();
        let feed = Arc::clone(&self.feed);
        let mut told = at;
        loop {
            let chunk = tokio::select! {
                frame = tokio::time::timeout(patience, body.frame()) => match frame {
                    Err(_) => {
                        // Watches stay brief, whatever the stream delivered before it stalled.
                        (self.wary, self.came) = (true, None);
                        return End::Unanswered(format!("no event or bookmark for {} s", patience.as_secs()));
                    }
                    Ok(None) => {
                        if self.at.is_some() && asked.elapsed() >= timeout {
                            // The end that we asked for has arrived, so everything before it has too.
                            feed.vitals.delivered();
                        }
                        return End::Closed;
                    }
                    Ok(Some(Err(error))) => return End::Broken(error.to_string()),
                    Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                },
                () = feed.new_reader(), if self.at.is_some() => {
                    self.at = None;
                    return End::NewReader;
                }
                Ok(()) = self.awaited.changed(), if self.at.is_some() => {
                    self.briefs = 0;
                    if self.lags() {
                        return End::Awaited;
                    }
                    continue;
                }
            };
            if !lines.push(&chunk) {
                return End::Failed("a line longer than any object".to_owned());
            }
            while let Some(line) = lines.next() {
                let Some((event, object)) = split(&line) else {
                    return End::Failed("a line that is not a watch event".to_owned());
                };
                self.reached = self.reached.max(self.at);
                if let Err(end) = self.receive(event, &object).await {
                    return end;
                }
            }
            if let Some(rv) = self.at.filter(|rv| told != Some(*rv)) {
                told = Some(rv);
                feed.tell(Word::Reached(rv));
            }
        }
    }

    /// Applies one line of a stream.
    async fn receive(&mut self, event: Event, object: &Bytes) -> Result<(), End> {
        if let Some(rv) = self.take(event, object)? {
            self.complete(rv).await?;
            self.go_on_from(rv);
        }
        self.came.get_or_insert_with(Instant::now);
        match self.at {
            Some(_) => self.feed.vitals.delivered(),
            None => self.feed.vitals.read(),
        }
        Ok(())
    }

    /// Whether a reader waits for a version that has not come yet.
    fn lags(&self) -> bool {
        let awaited = *self.awaited.borrow();
        awaited.is_some_and(|awaited| awaited.kind == self.query.kind && self.at.is_some_and(|at| at < awaited.rv))
    }

    /// How long the next watch lasts.
    fn seconds(&mut self) -> u64 {
        if self.awaited.has_changed().unwrap_or(false) {
            self.awaited.mark_unchanged();
            self.briefs = 0;
        }
        let doubted = self.wary || matches!(self.feed.vitals.state(), WatchState::OutOfSync(_));
        if doubted && self.at.is_some() {
            return BRIEF_SECONDS;
        }
        if self.briefs < BRIEFS && self.lags() {
            self.briefs += 1;
            return BRIEF_SECONDS;
        }
        WATCH_SECONDS
    }

    /// Delivers an event; returns the version of the list when this event completes it.
    fn take(&mut self, event: Event, object: &Bytes) -> Result<Option<Rv>, End> {
        match event {
            Event::Put | Event::Deleted => {
                let left = event == Event::Deleted;
                let (outline, bad) = self.hand_on(object, left);
                if bad && left {
                    // An object is gone, and only a list shows which.
                    self.at = None;
                    return Err(End::Closed);
                }
                // While the initial list streams in there is no version to resume from.
                if self.at.is_some() {
                    let told = || Version::of(object).map(|version| version.rv);
                    self.at = outline.map(|outline| outline.rv).or_else(told).or(self.at);
                }
            }
            Event::Bookmark => {
                let Some(version) = Version::of(object) else {
                    return Err(End::Failed("a bookmark without a version".to_owned()));
                };
                if self.at.is_some() {
                    self.go_on_from(version.rv);
                } else if version.ends_list() {
                    return Ok(Some(version.rv));
                }
            }
            Event::Error => return Err(refused(object, None)),
        }
        Ok(None)
    }

    /// Hands an object to the readers, and counts it if one of them cannot read it; says whether one cannot read it at all.
    fn hand_on(&mut self, object: &Bytes, left: bool) -> (Option<Outline>, bool) {
        let Offered { outline, bad } = self.feed.offer(object, left, self.epoch);
        match (&bad, &outline) {
            (Some(error), _) => self.report_bad(object, error),
            (None, Some(outline)) if left => self.unreadable.lose(outline.uid.as_str()),
            (None, Some(outline)) => self.unreadable.put(outline.uid.as_str(), outline.unreadable, self.epoch),
            (None, None) => {}
        }
        (outline, bad.is_some())
    }

    fn go_on_from(&mut self, rv: Rv) {
        self.at = Some(rv);
        (self.failures, self.refused) = (0, 0);
    }

    /// A watch that resumes after a version that the server has not reached delivers nothing until it does (seen on 1.36),
    /// so after every break we ask for the server's version.
    async fn reassure(&mut self) -> Result<(), End> {
        if self.doubtful {
            let body = self.open(&Ask::Version).await?;
            let bytes = read(body).await?;
            let page: Page<'_> = serde_json::from_slice(&bytes).map_err(|error| End::Failed(error.to_string()))?;
            self.compare(page.metadata.rv).await?;
            self.doubtful = false;
        }
        Ok(())
    }

    /// The list is complete. Every list is as new as etcd, so none can be older than what was read before.
    async fn complete(&mut self, rv: Rv) -> Result<(), End> {
        self.compare(rv).await?;
        self.doubtful = false;
        self.reached = Some(rv);
        self.unreadable.listed(self.epoch);
        self.feed.vitals.listed();
        self.feed.tell(Word::Listed(self.epoch));
        self.feed.tell(Word::Reached(rv));
        Ok(())
    }

    /// Compares a version with what was read before. Versions of two clusters do not compare, so first we ask for the
    /// identity: a connection that leads to another cluster is broken, and neither a restore nor an answer of our cluster.
    async fn compare(&self, rv: Rv) -> Result<(), End> {
        let Some(reached) = self.reached else { return Ok(()) };
        if let Some(pinned) = self.cluster.identity() {
            let answers = self.cluster.ask_identity().await.map_err(|error| End::Broken(error.to_string()))?;
            if answers != *pinned {
                return Err(End::Broken(format!("cluster {answers} answers, which is not the pinned one")));
            }
        }
        if rv >= reached {
            return Ok(());
        }
        let kind = self.query.kind.plural;
        self.cluster.note_restored(format!("the versions of {kind} went back from {reached} to {rv}"));
        Err(End::Failed("older than what was read before".to_owned()))
    }

    /// A complete start begins; it serves all readers that subscribed before it.
    fn begin(&mut self) {
        self.epoch.0 += 1;
        if self.feed.begin() {
            self.unserved = false;
        }
    }

    /// Tells the readers that do not know yet, and waits until the next check.
    async fn rest_unserved(&mut self) {
        (self.at, self.failures, self.refused) = (None, 0, 0);
        self.feed.vitals.listed();
        self.feed.vitals.delivered();
        if !self.unserved {
            self.begin();
            tracing::info!(
                cluster = self.cluster.name(),
                kind = self.query.kind.plural,
                "not served: nothing to watch"
            );
            self.unreadable.listed(self.epoch);
            self.feed.tell(Word::Unserved);
            self.unserved = true;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            // A new reader needs its own check before it is told.
            () = self.feed.new_reader() => self.unserved = false,
        }
    }

    /// A consistent list in pages.
    async fn list(&mut self) -> Result<Rv, End> {
        self.begin();
        let mut ask = Ask::Page { after: None };
        loop {
            let bytes = read(self.open(&ask).await?).await?;
            let page: Page<'_> = serde_json::from_slice(&bytes).map_err(|error| End::Failed(error.to_string()))?;
            self.feed.vitals.read();
            for item in page.items {
                self.hand_on(&bytes.slice_ref(item.get().as_bytes()), false);
            }
            match page.metadata.more {
                Some(token) if !token.is_empty() => ask = Ask::Page { after: Some(token.into_owned()) },
                _ => {
                    self.complete(page.metadata.rv).await?;
                    return Ok(page.metadata.rv);
                }
            }
        }
    }

    async fn open(&mut self, ask: &Ask) -> Result<Incoming, End> {
        self.verb = ask.verb();
        let Query { kind, namespace, labels, fields, optional, metadata_only } = &self.query;
        let (labels, fields) = (encode(labels), encode(fields));
        let path = kind.path(namespace.as_ref().map(Name::as_str), None);
        let path = format!("{path}?{}&labelSelector={labels}&fieldSelector={fields}", ask.render());
        let accept = match (self.verb, metadata_only) {
            (_, false) => "application/json",
            (ReadVerb::List, true) => METADATA_LIST,
            (ReadVerb::Watch, true) => METADATA,
        };
        let request = Request::get(path).header(http::header::ACCEPT, accept).body(Body::empty());
        let request = request.map_err(|error| End::Failed(error.to_string()))?;
        let answer = async {
            let response = self.cluster.send(Traffic::Watches, request).await.map_err(End::Broken)?;
            let code = response.status().as_u16();
            let mut body = response.into_body();
            let mut text = Vec::new();
            while code != 200 && text.len() < REFUSAL {
                let Some(Ok(frame)) = body.frame().await else { break };
                text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            }
            Ok((code, body, text))
        };
        let answer = tokio::time::timeout(HEAD, answer).await;
        let (code, body, text) = answer.map_err(|_| End::Unanswered("no answer".to_owned()))??;
        if code == 200 {
            self.unserved = false;
            return Ok(body);
        }
        Err(match refused(&text, Some(code)) {
            End::Failed(_) if matches!((ask, code), (Ask::Stream { .. }, 400 | 422)) => End::NoStreaming,
            End::Failed(error) if *optional && code == 404 => match prove_unserved(&self.cluster, kind).await {
                Ok(()) => End::Unserved,
                Err(why) => End::Failed(format!("{error}: {why}")),
            },
            end => end,
        })
    }

    /// Without the parser's message: it may quote what must not reach a log.
    fn report_bad(&mut self, object: &Bytes, error: &serde_json::Error) {
        let named: Named = serde_json::from_slice(object).unwrap_or_default();
        self.unreadable.put_bad(&named, self.epoch);
        let (cluster, kind, column) = (self.cluster.name(), self.query.kind.plural, error.column());
        let (namespace, name) = (&named.metadata.namespace, &named.metadata.name);
        tracing::warn!(cluster, kind, namespace, name, column, "unreadable object skipped");
    }
}

async fn read(body: Incoming) -> Result<Bytes, End> {
    let whole = tokio::time::timeout(NOTHING_DELIVERED, read_whole(body, Asked::Page)).await;
    let whole = whole.map_err(|_| End::Unanswered("the list does not end".to_owned()))?;
    whole.map_err(|error| End::Broken(error.to_string()))
}

/// 410 comes both as the answer's code and as an ERROR event's Status.
fn refused(text: &[u8], code: Option<u16>) -> End {
    let status: Status = serde_json::from_slice(text).unwrap_or_default();
    let code = code.unwrap_or(status.code);
    if code == 410 {
        return End::Expired;
    }
    End::Failed(if status.message.is_empty() {
        format!("HTTP {code}")
    } else {
        format!("HTTP {code} {}", status.message)
    })
}

fn backoff(failures: u32) -> Duration {
    let full = (BACKOFF.0 * 2u32.saturating_pow(failures.saturating_sub(1).min(16))).min(BACKOFF.1);
    full.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Percent-encodes what selectors contain besides letters and digits.
pub(crate) fn encode(selector: &str) -> String {
    use std::fmt::Write as _;
    selector.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            // Writing to a String cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_encoded() {
        assert_eq!(encode("spec.nodeName!="), "spec.nodeName%21%3D");
        assert_eq!(encode("tapestry.io/x=a-b"), "tapestry.io%2Fx%3Da-b");
    }

    #[test]
    fn back_off_doubles_from_a_tenth_of_a_second_to_half_a_minute_with_jitter() {
        for failures in 1..40 {
            let full = (BACKOFF.0 * 2u32.saturating_pow((failures - 1).min(16))).min(BACKOFF.1);
            let wait = backoff(failures);
            assert!(wait >= full / 2 && wait <= full, "{failures}: {wait:?}");
        }
    }

    #[test]
    fn an_expired_version_is_recognised_as_event_and_as_answer() {
        let status = br#"{"kind":"Status","code":410,"reason":"Expired"}"#;
        assert!(matches!(refused(status, None), End::Expired));
        assert!(matches!(refused(b"gone", Some(410)), End::Expired));
        assert!(matches!(refused(status, Some(500)), End::Failed(_)));
    }
}
