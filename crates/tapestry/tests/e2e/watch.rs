//! Our list and watch on real API servers: nothing is missed, nothing is invented, whatever happens to the connection.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tapestry_cluster::connect::Trust;
use tapestry_cluster::feed::{Change, Epoch, Feed, Mailbox, Row};
use tapestry_cluster::kind::{self, CONFIG_MAP, SECRET};
use tapestry_cluster::watch::{Query, watch};
use tapestry_cluster::{Cluster as Connection, Kind, Rv, Uid};
use tapestry_syncer::origin::Origin;
use tapestry_syncer::pods::row::PPod;
use tapestry_testbed::builders::pod;
use tapestry_testbed::proxy::{Fault, Requests};
use tapestry_testbed::{Cluster, FaultProxy, Objects, Part, eventually};
use tokio::sync::{Notify, OnceCell};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{bare, own};
use crate::harness::show_logs;
use crate::looks::SOON;
use crate::stub::{Reply, Stub};
use crate::timing::timed;

/// What these tests keep of any object.
#[derive(Debug, Clone, PartialEq)]
struct Thing {
    name: String,
    uid: Uid,
    rv: Rv,
    deleting: bool,
}

impl Row for Thing {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.deleting
    }
}

/// Reads an object of the namespace `default`; one named `bad` cannot be read.
fn decode(json: &Bytes) -> Result<Option<Thing>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        name: String,
        #[serde(default)]
        namespace: String,
        uid: Uid,
        resource_version: Rv,
        #[serde(default)]
        deletion_timestamp: Option<String>,
    }
    let Object { metadata: Metadata { name, namespace, uid, resource_version, deletion_timestamp } } =
        serde_json::from_slice(json)?;
    if name == "bad" {
        return Err(serde::de::Error::custom("a bad one"));
    }
    let thing = Thing { name, uid, rv: resource_version, deleting: deletion_timestamp.is_some() };
    Ok(Some(thing).filter(|thing| namespace == "default" && thing.name != "kube-root-ca.crt"))
}

/// A watch and all changes it delivered.
struct Observer<R> {
    mailbox: Mailbox<R>,
    seen: Mutex<Vec<Change<R>>>,
    cancel: CancellationToken,
    _tasks: JoinSet<()>,
}

impl<R> Drop for Observer<R> {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl<R: Row + Clone + std::fmt::Debug> Observer<R> {
    async fn open(
        kubeconfig: &str,
        query: Query,
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + 'static,
    ) -> Result<Self> {
        show_logs();
        let cluster = Connection::connect("test", kubeconfig, Trust::Operator, "tapestry-e2e-watch").await?;
        let feed: Arc<Feed> = Arc::default();
        let mailbox = feed.subscribe(decode, Arc::new(Notify::new()));
        let (mut tasks, cancel) = (JoinSet::new(), CancellationToken::new());
        tasks.spawn(watch(cluster, query, feed, cancel.clone()));
        Ok(Self { mailbox, seen: Mutex::default(), cancel, _tasks: tasks })
    }

    /// Waits until all changes satisfy a condition; returns them.
    async fn until(&self, what: &str, holds: impl Fn(&[Change<R>]) -> bool) -> Result<Vec<Change<R>>> {
        eventually(what, SOON, async || {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.extend(self.mailbox.drain().into_iter().filter(|change| !matches!(change, Change::Reached(_))));
            let last = seen.iter().rev().take(5);
            if holds(&seen) { Ok(seen.clone()) } else { Err(format!("{} changes, the last: {last:?}", seen.len())) }
        })
        .await
    }
}

fn query(kind: &'static Kind) -> Query {
    Query::all(kind)
}

async fn things(kubeconfig: &str, query: Query) -> Result<Observer<Thing>> {
    Observer::open(kubeconfig, query, decode).await
}

/// A watch of metadata, and how many objects came with more than that.
async fn metadata(kubeconfig: &str, query: Query) -> Result<(Observer<Thing>, Arc<AtomicU32>)> {
    let whole = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&whole);
    let decode = move |json: &Bytes| {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json)?;
        let more = object.keys().any(|field| !["apiVersion", "kind", "metadata"].contains(&field.as_str()));
        count.fetch_add(u32::from(more), Ordering::Relaxed);
        decode(json)
    };
    Ok((Observer::open(kubeconfig, Query { metadata_only: true, ..query }, decode).await?, whole))
}

fn listed(seen: &[Change<Thing>], epoch: u32) -> bool {
    seen.contains(&Change::Listed(Epoch(epoch)))
}

fn was_put(seen: &[Change<Thing>], name: &str) -> bool {
    seen.iter().any(|change| matches!(change, Change::Put(thing, _) if thing.name == name))
}

/// How a thing left the watch: `Some(proven)`.
fn went(seen: &[Change<Thing>], name: &str) -> Option<bool> {
    seen.iter().find_map(|change| match change {
        Change::Gone { row, proven } if row.name == name => Some(*proven),
        _ => None,
    })
}

/// The names put by this complete start.
fn names(seen: &[Change<Thing>], epoch: u32) -> BTreeSet<&str> {
    let put = seen.iter().filter_map(|change| match change {
        Change::Put(thing, of) if *of == Epoch(epoch) => Some(thing.name.as_str()),
        _ => None,
    });
    put.collect()
}

fn map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default" } })
}

/// One API server for the tests that write only objects with their own names.
async fn fixture() -> Result<&'static Cluster> {
    static FIXTURE: OnceCell<Cluster> = OnceCell::const_new();
    FIXTURE.get_or_try_init(|| own(bare("watched"))).await
}

fn labelled(mut object: Value, test: &str) -> Value {
    object["metadata"]["labels"]["test"] = json!(test);
    object
}

fn of_test(kind: &'static Kind, test: &str) -> Query {
    Query { labels: format!("test={test}"), ..query(kind) }
}

async fn create(objects: &Objects, test: &str, names: &[&str]) -> Result<()> {
    for name in names {
        objects.create(&labelled(map(name), test)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn law_01_rows_arrive_and_only_a_deletion_timestamp_proves_a_deletion() -> Result<()> {
    timed(async {
        let cluster = fixture().await?;
        let objects = cluster.objects()?;
        for name in ["rows-deleted", "rows-unlabelled"] {
            objects.create(&labelled(pod(name).on("nowhere").build(), "rows")).await?;
        }
        let observer = things(&cluster.kubeconfig_text()?, of_test(&kind::POD, "rows")).await?;
        let seen = observer.until("the list is complete", |seen| listed(seen, 1)).await?;
        assert_eq!(names(&seen, 1), ["rows-deleted", "rows-unlabelled"].into());
        objects.create(&labelled(pod("rows-new").on("nowhere").build(), "rows")).await?;
        observer.until("a new one arrives", |seen| was_put(seen, "rows-new")).await?;
        objects.patch("v1/Pod", "default/rows-unlabelled", &json!({ "metadata": { "labels": null } })).await?;
        let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        objects.delete_with("v1/Pod", "default/rows-deleted", &now).await?;
        let seen = observer
            .until("both have left", |seen| went(seen, "rows-unlabelled").and(went(seen, "rows-deleted")).is_some())
            .await?;
        assert_eq!(went(&seen, "rows-deleted"), Some(true));
        assert_eq!(went(&seen, "rows-unlabelled"), Some(false), "losing a label is no deletion");
        ensure!(!listed(&seen, 2), "it started over");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_10_a_watch_of_metadata_gets_every_change_and_no_value() -> Result<()> {
    timed(async {
        let cluster = fixture().await?;
        let objects = cluster.objects()?;
        for kind in [&CONFIG_MAP, &SECRET] {
            let (named, path) = (format!("v1/{}", kind.kind), |name: &str| format!("default/{name}"));
            let create = async |name: &str, test: &str| {
                let mut object = labelled(map(name), test);
                (object["kind"], object["data"]) = (json!(kind.kind), json!({ "a": "aHVzaA==" }));
                objects.create(&object).await
            };
            create("meta-1", "meta").await?;
            create("meta-held", "meta").await?;
            let proxy = FaultProxy::to(cluster).await?;
            let (observer, whole) = metadata(proxy.kubeconfig(), of_test(kind, "meta")).await?;
            let seen = observer.until("the list is complete", |seen| listed(seen, 1)).await?;
            assert_eq!(names(&seen, 1), ["meta-1", "meta-held"].into());
            // A value changes, and nothing else: its version tells.
            objects.patch(&named, &path("meta-1"), &json!({ "data": { "a": "bmV3cw==" } })).await?;
            let puts = |seen: &[Change<Thing>], name: &str| {
                seen.iter().filter(|change| matches!(change, Change::Put(thing, _) if thing.name == name)).count()
            };
            observer.until("the change arrives", |seen| puts(seen, "meta-1") == 2).await?;
            objects
                .patch(&named, &path("meta-held"), &json!({ "metadata": { "finalizers": ["example.com/held"] } }))
                .await?;
            objects.delete(&named, &path("meta-held")).await?;
            objects.delete(&named, &path("meta-1")).await?;
            objects.patch(&named, &path("meta-held"), &json!({ "metadata": { "finalizers": null } })).await?;
            let gone = |seen: &[Change<Thing>]| went(seen, "meta-1").and(went(seen, "meta-held")).is_some();
            let seen = observer.until("both are gone", gone).await?;
            assert_eq!(went(&seen, "meta-held"), Some(true));
            assert_eq!(went(&seen, "meta-1"), Some(false), "an object without a finalizer gets no deletionTimestamp");
            // It resumes where it was.
            proxy.cut();
            create("meta-2", "meta").await?;
            proxy.restore();
            let seen = observer.until("it resumes", |seen| was_put(seen, "meta-2")).await?;
            ensure!(!listed(&seen, 2), "it started over");
            assert_eq!(whole.load(Ordering::Relaxed), 0, "objects came with more than metadata");
            objects.delete(&named, &path("meta-2")).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_server_that_cannot_send_metadata_alone_is_a_failure_and_is_not_asked_for_whole_objects() -> Result<()> {
    timed(async {
        let tries = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&tries);
        let stub = Stub::serve(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Reply::Whole(406, "", json!({ "kind": "Status", "code": 406, "reason": "NotAcceptable" }).to_string())
        })
        .await?;
        let (observer, _) = metadata(&stub.kubeconfig(), query(&SECRET)).await?;
        let tried = async || Some(()).filter(|()| tries.load(Ordering::Relaxed) >= 3).ok_or("not yet".to_owned());
        eventually("it is tried again", SOON, tried).await?;
        assert_eq!(observer.mailbox.drain(), []);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_12_an_object_that_cannot_be_decoded_is_skipped_and_does_not_affect_the_rest() -> Result<()> {
    timed(async {
        let cluster = fixture().await?;
        let objects = cluster.objects()?;
        create(&objects, "skip", &["good-1", "bad", "good-2"]).await?;
        let observer = things(&cluster.kubeconfig_text()?, of_test(&CONFIG_MAP, "skip")).await?;
        let seen = observer.until("the list is complete", |seen| listed(seen, 1)).await?;
        assert_eq!(names(&seen, 1), ["good-1", "good-2"].into());
        objects.patch("v1/ConfigMap", "default/bad", &json!({ "data": { "a": "b" } })).await?;
        create(&objects, "skip", &["good-3"]).await?;
        observer.until("the next one arrives", |seen| was_put(seen, "good-3")).await?;
        objects.delete("v1/ConfigMap", "default/good-3").await?;
        let seen = observer.until("it is deleted", |seen| went(seen, "good-3").is_some()).await?;
        ensure!(!listed(&seen, 2), "it started over");
        // The deleted object cannot be decoded either: only a list shows which objects are left.
        objects.delete("v1/ConfigMap", "default/bad").await?;
        let seen = observer.until("it starts over", |seen| listed(seen, 2)).await?;
        assert_eq!(names(&seen, 2), ["good-1", "good-2"].into());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_with_odd_but_legal_fields_are_rows_too() -> Result<()> {
    timed(async {
        let cluster = fixture().await?;
        let objects = cluster.objects()?;
        let odd = [
            pod("odd-exponent").cpu("1e3").memory("1E"),
            pod("odd-decimal").cpu("0.1").memory("1.5Gi"),
            pod("odd-milli").cpu("+1").memory("128974848000m"),
            pod("odd-extended").limit("example.com/gpu", "3").request("example.com/gpu", "3"),
            pod("odd.dotted.name").with("/spec/initContainers", json!([{ "name": "i", "image": "x" }])),
            pod("odd-unicode").annotation("note", "ä\u{2028}\"\\ \u{1F9F5}").label("empty", ""),
            pod("odd-level").with("/spec/resources", json!({ "requests": { "cpu": "1" } })),
        ];
        for pod in &odd {
            objects.create(&labelled(pod.clone().on("nowhere").build(), "odd")).await?;
        }
        let origin = Origin::new("other", "origin", "x");
        let decode = move |json: &Bytes| PPod::decode(json, &origin);
        let observer = Observer::open(&cluster.kubeconfig_text()?, of_test(&kind::POD, "odd"), decode).await?;
        let complete = |seen: &[Change<PPod>]| matches!(seen.last(), Some(Change::Listed(_)));
        let seen = observer.until("the list is complete", complete).await?;
        assert_eq!(seen.len(), odd.len() + 1, "one of them cannot be read: {seen:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_watch_whose_connection_was_cut_resumes_where_it_was() -> Result<()> {
    timed(async {
        let cluster = fixture().await?;
        let objects = cluster.objects()?;
        create(&objects, "cut", &["cut-stays", "cut-goes"]).await?;
        let proxy = FaultProxy::to(cluster).await?;
        let observer = things(proxy.kubeconfig(), of_test(&CONFIG_MAP, "cut")).await?;
        observer.until("the list is complete", |seen| listed(seen, 1)).await?;
        proxy.cut();
        create(&objects, "cut", &["cut-new", "cut-brief"]).await?;
        objects.delete("v1/ConfigMap", "default/cut-goes").await?;
        objects.delete("v1/ConfigMap", "default/cut-brief").await?;
        create(&objects, "cut", &["cut-last"]).await?;
        proxy.restore();
        let seen = observer.until("the last one arrives", |seen| was_put(seen, "cut-last")).await?;
        ensure!(was_put(&seen, "cut-new"), "a creation was missed");
        ensure!(went(&seen, "cut-goes").is_some() && went(&seen, "cut-brief").is_some(), "a deletion was missed");
        ensure!(!listed(&seen, 2), "it started over although it could resume");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_01_after_a_restart_of_the_server_what_is_gone_is_only_absent_from_a_complete_list() -> Result<()> {
    timed(async {
        let cluster = own(bare("restarted")).await?;
        let objects = cluster.objects()?;
        create(&objects, "restart", &["restart-stays", "restart-goes"]).await?;
        let proxy = FaultProxy::to(&cluster).await?;
        let observer = things(proxy.kubeconfig(), of_test(&CONFIG_MAP, "restart")).await?;
        observer.until("the list is complete", |seen| listed(seen, 1)).await?;
        // The watch ends, and its one attempt to resume waits.
        let freeze = proxy.inject(Fault::Freeze, Requests::all());
        proxy.reset();
        objects.delete("v1/ConfigMap", "default/restart-goes").await?;
        create(&objects, "restart", &["restart-new"]).await?;
        // A new server does not remember the versions of the old one: it answers 410 as an ERROR event. Nothing else makes a
        // watch start over here.
        cluster.apiserver().stop().await?;
        cluster.etcd().kill().await?;
        cluster.etcd().start()?;
        cluster.apiserver().start()?;
        Box::pin(cluster.ready()).await?;
        ensure!(freeze.hits() > 0, "it has not tried to resume");
        drop(freeze);
        let seen = observer.until("a second list is complete", |seen| listed(seen, 2)).await?;
        assert_eq!(names(&seen, 2), ["restart-new", "restart-stays"].into());
        assert_eq!(went(&seen, "restart-goes"), None, "a deletion was invented");
        create(&cluster.objects()?, "restart", &["restart-later"]).await?;
        observer.until("it continues", |seen| was_put(seen, "restart-later")).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_server_that_does_not_stream_lists_is_read_in_pages() -> Result<()> {
    timed(async {
        let config = bare("paged").flag(Part::ApiServer, "--feature-gates=WatchList=false");
        let cluster = own(config).await?;
        let objects = cluster.objects()?;
        let numbers: Vec<u32> = (0..1_100).collect();
        for some in numbers.chunks(50) {
            let create = async |number: &u32| objects.create(&map(&format!("page-{number}"))).await;
            futures::future::try_join_all(some.iter().map(create)).await?;
        }
        objects.patch("v1/ConfigMap", "default/page-7", &json!({ "data": { "a": "b" } })).await?;
        let (brief, whole) = metadata(&cluster.kubeconfig_text()?, query(&CONFIG_MAP)).await?;
        let observer = things(&cluster.kubeconfig_text()?, query(&CONFIG_MAP)).await?;
        let complete = |seen: &[Change<Thing>]| matches!(seen.last(), Some(Change::Listed(_)));
        let seen = brief.until("the list of metadata is complete", complete).await?;
        let puts = seen.iter().filter(|change| matches!(change, Change::Put(..))).count();
        assert_eq!(
            (puts, whole.load(Ordering::Relaxed)),
            (numbers.len(), 0),
            "rows, and objects with more than metadata"
        );
        let seen = observer.until("the list is complete", complete).await?;
        // The start that the server refused counts as one.
        let puts = seen.iter().filter(|change| matches!(change, Change::Put(..))).count();
        assert_eq!(puts, 1_100);
        objects.create(&map("page-later")).await?;
        observer.until("the watch follows", |seen| was_put(seen, "page-later")).await?;
        Ok(())
    })
    .await
}

/// An object of the stub.
fn thing(name: &str, version: u32) -> Value {
    json!({ "metadata": { "name": name, "namespace": "default", "uid": name, "resourceVersion": version.to_string() } })
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

/// The end of a streamed list.
fn end_of_list(version: u32) -> String {
    let annotations = json!({ "k8s.io/initial-events-end": "true" });
    event("BOOKMARK", &json!({ "metadata": { "resourceVersion": version.to_string(), "annotations": annotations } }))
}

fn expired() -> Value {
    json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version" })
}

#[tokio::test]
async fn an_expired_version_starts_over_whether_it_comes_as_an_event_or_as_an_answer() -> Result<()> {
    timed(async {
        let lists = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&lists);
        let stub = Stub::serve(move |asked| {
            if asked.contains("sendInitialEvents") {
                let list = count.fetch_add(1, Ordering::Relaxed) + 1;
                let first = event("ADDED", &thing(&format!("list-{list}"), list * 10));
                let body = first + &end_of_list(list * 10);
                return if list == 3 { Reply::Open(body) } else { Reply::Whole(200, "", body) };
            }
            match asked.split("resourceVersion=").nth(1).and_then(|rest| rest.split('&').next()) {
                Some("10") => Reply::Whole(200, "", event("ERROR", &expired())),
                Some("20") => Reply::Whole(410, "", expired().to_string()),
                _ => Reply::Close,
            }
        })
        .await?;
        let observer = things(&stub.kubeconfig(), query(&CONFIG_MAP)).await?;
        let seen = observer.until("it has started over twice", |seen| listed(seen, 3)).await?;
        for list in 1..=3 {
            ensure!(names(&seen, list) == [format!("list-{list}").as_str()].into(), "{seen:?}");
        }
        assert_eq!(lists.load(Ordering::Relaxed), 3, "it started over more often than it had to");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_page_that_expired_starts_the_list_over_and_half_a_list_completes_nothing() -> Result<()> {
    timed(async {
        let lists = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&lists);
        let page = |items: Value, more: &str| json!({ "metadata": { "resourceVersion": "7", "continue": more }, "items": items });
        let stub = Stub::serve(move |asked| {
            if asked.contains("sendInitialEvents") {
                let refused = json!({ "kind": "Status", "code": 422, "reason": "Invalid", "message": "forbidden" });
                return Reply::Whole(422, "", refused.to_string());
            }
            if asked.contains("watch=true") {
                return Reply::Open(String::new());
            }
            let second = asked.contains("continue=half");
            match (second, count.fetch_add(u32::from(!second), Ordering::Relaxed)) {
                (false, _) => Reply::Whole(200, "", page(json!([thing("first", 1)]), "half").to_string()),
                (true, 1) => Reply::Whole(410, "", expired().to_string()),
                (true, 2) => Reply::Torn("{".to_owned()),
                (true, _) => Reply::Whole(200, "", page(json!([thing("second", 2)]), "").to_string()),
            }
        })
        .await?;
        let observer = things(&stub.kubeconfig(), query(&CONFIG_MAP)).await?;
        let complete = |seen: &[Change<Thing>]| seen.iter().any(|change| matches!(change, Change::Listed(_)));
        let seen = observer.until("a list is complete", complete).await?;
        let last = seen.iter().position(|change| matches!(change, Change::Listed(_))).context("no list")?;
        ensure!(was_put(&seen[..last], "second"), "complete without its second page: {seen:?}");
        assert_eq!(lists.load(Ordering::Relaxed), 3);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_01_another_cluster_at_the_same_address_is_a_broken_connection_and_no_restore() -> Result<()> {
    timed(async {
        // The identity and version of the server; and how often it was asked for the version.
        let now = Arc::new(Mutex::new(("ours", 10)));
        let asks = Arc::new(AtomicU32::new(0));
        let (answers, count) = (Arc::clone(&now), Arc::clone(&asks));
        let stub = Stub::serve(move |asked| {
            let (who, version) = *answers.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.contains("kube-system") {
                let namespace = json!({ "kind": "Namespace", "metadata": { "name": "kube-system", "uid": who } });
                return Reply::Whole(200, "", namespace.to_string());
            }
            if asked.contains("sendInitialEvents") {
                return Reply::Torn(end_of_list(version));
            }
            if asked.contains("limit=1") {
                count.fetch_add(1, Ordering::Relaxed);
                let page = json!({ "metadata": { "resourceVersion": version.to_string() }, "items": [] });
                return Reply::Whole(200, "", page.to_string());
            }
            if who != "ours" {
                return Reply::Close;
            }
            // Torn as well, so that after every watch the client asks for the version.
            let bookmark = event("BOOKMARK", &json!({ "metadata": { "resourceVersion": version.to_string() } }));
            Reply::Torn(event("ADDED", &thing(&format!("ours-{version}"), version)) + &bookmark)
        })
        .await?;
        let cluster = Connection::connect("test", &stub.kubeconfig(), Trust::Operator, "tapestry-e2e-watch").await?;
        ensure!(cluster.pin(&Uid::new("ours")), "pinned already");
        let feed: Arc<Feed> = Arc::default();
        let mailbox = feed.subscribe(decode, Arc::default());
        let (mut tasks, cancel) = (JoinSet::new(), CancellationToken::new());
        tasks.spawn(watch(cluster.clone(), query(&CONFIG_MAP), feed, cancel.clone()));
        let observer = Observer { mailbox, seen: Mutex::default(), cancel, _tasks: tasks };
        let turn = async |who: &'static str, version: u32| {
            *now.lock().unwrap_or_else(PoisonError::into_inner) = (who, version);
            let before = asks.load(Ordering::Relaxed);
            eventually("it has asked twice", SOON, async || {
                let asked = asks.load(Ordering::Relaxed) - before;
                if asked >= 2 { Ok(()) } else { Err(format!("{asked} times")) }
            })
            .await
        };
        observer.until("the list is complete", |seen| listed(seen, 1)).await?;
        // Older and newer than ours: neither counts.
        for version in [5, 500] {
            turn("other", version).await?;
            assert_eq!(cluster.restored(), None, "at {version}");
        }
        turn("ours", 20).await?;
        observer.until("it continues", |seen| was_put(seen, "ours-20")).await?;
        assert_eq!(cluster.restored(), None, "back again");
        // The same from the right cluster is a restore.
        turn("ours", 15).await?;
        let restored = || cluster.restored().filter(|what| what.contains("from 20 to 15")).map(drop);
        eventually("it is reported", SOON, async || restored().ok_or_else(|| format!("{:?}", cluster.restored()))).await
    })
    .await
}

#[tokio::test]
async fn ten_thousand_pods_arrive_once_each() -> Result<()> {
    timed(async {
        // The events of a stub: how fast a real server creates pods is not what this is about.
        let stub = Stub::serve(|_| {
            let mut body = String::new();
            for number in 0..10_000 {
                body.push_str(&event("ADDED", &thing(&format!("pod-{number}"), number)));
            }
            Reply::Open(body + &end_of_list(10_000))
        })
        .await?;
        let observer = things(&stub.kubeconfig(), query(&CONFIG_MAP)).await?;
        let seen = observer.until("the list is complete", |seen| listed(seen, 1)).await?;
        assert_eq!((names(&seen, 1).len(), seen.len()), (10_000, 10_001));
        Ok(())
    })
    .await
}

static GADGET: Kind =
    Kind { group: "optional.example.com", version: "v1", plural: "gadgets", kind: "Gadget", namespaced: true };
const DEFINITION: &str = "apiextensions.k8s.io/v1/CustomResourceDefinition";

fn optional(kind: &'static Kind) -> Query {
    Query { optional: true, ..query(kind) }
}

/// The definition of a kind of that group.
fn definition(plural: &str, kind: &str) -> Value {
    let schema = json!({ "openAPIV3Schema": { "type": "object" } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{}", GADGET.group) },
        "spec": {
            "group": GADGET.group,
            "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind },
            "scope": "Namespaced",
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": schema }],
        },
    })
}

/// The complete lists, oldest first.
fn lists(seen: &[Change<Thing>]) -> Vec<Epoch> {
    let epochs = seen.iter().filter_map(|change| match change {
        Change::Listed(epoch) => Some(*epoch),
        _ => None,
    });
    epochs.collect()
}

#[tokio::test]
async fn an_optional_kind_is_reported_as_not_served_until_it_is_and_again_when_it_is_not() -> Result<()> {
    timed(async {
        let cluster = fixture().await?;
        let objects = cluster.objects()?;
        let observer = things(&cluster.kubeconfig_text()?, optional(&GADGET)).await?;
        let seen = observer.until("it is not served", |seen| !seen.is_empty()).await?;
        assert_eq!(seen, [Change::Unserved], "the group is not known");

        let gadgets = format!("{}/{}", GADGET.api_version(), GADGET.kind);
        // The other one keeps group and version in discovery when the first one is deleted.
        for (plural, kind) in [("gizmos", "Gizmo"), (GADGET.plural, GADGET.kind)] {
            objects.create(&definition(plural, kind)).await?;
        }
        let served = async || objects.list(&gadgets, "").await.map(drop).map_err(|error| error.to_string());
        eventually("gadgets are served", SOON, served).await?;
        let metadata = json!({ "name": "gadget", "namespace": "default" });
        objects
            .create(&json!({ "apiVersion": GADGET.api_version(), "kind": GADGET.kind, "metadata": metadata }))
            .await?;
        let arrived = |seen: &[Change<Thing>]| was_put(seen, "gadget") && !lists(seen).is_empty();
        observer.until("the object arrives", arrived).await?;

        objects.delete(DEFINITION, &format!("{}.{}", GADGET.plural, GADGET.group)).await?;
        let again = |seen: &[Change<Thing>]| seen[1..].contains(&Change::Unserved);
        let seen = observer.until("it is not served again", again).await?;
        ensure!(lists(&seen).is_sorted_by(|older, newer| older < newer), "{seen:?}");
        Ok(())
    })
    .await
}

fn gadgets_are_absent(asked: &str) -> Reply {
    let groups = json!([{ "name": "apps", "versions": [{ "version": "v1" }] }]);
    match asked {
        "GET /apis" => Reply::Whole(200, "", json!({ "kind": "APIGroupList", "groups": groups }).to_string()),
        _ => Reply::Whole(404, "", "404 page not found".to_owned()),
    }
}

#[tokio::test]
async fn a_kind_that_is_not_served_is_reported_once_and_to_late_readers_too() -> Result<()> {
    timed(async {
        let looks = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&looks);
        let stub = Stub::serve(move |asked| {
            count.fetch_add(u32::from(asked.contains("watch=true")), Ordering::Relaxed);
            gadgets_are_absent(asked)
        })
        .await?;
        let cluster = Connection::connect("test", &stub.kubeconfig(), Trust::Operator, "tapestry-e2e-watch").await?;
        let feed: Arc<Feed> = Arc::default();
        let early = feed.subscribe(decode, Arc::default());
        let (mut tasks, cancel) = (JoinSet::new(), CancellationToken::new());
        tasks.spawn(watch(cluster, optional(&GADGET), Arc::clone(&feed), cancel.clone()));
        let told = async |mailbox: &Mailbox<Thing>| {
            let look =
                async || Some(mailbox.drain()).filter(|seen| !seen.is_empty()).ok_or_else(|| "nothing".to_owned());
            eventually("the kind is reported as not served", SOON, look).await
        };
        let first = told(&early).await?;
        assert_eq!(first, [Change::Unserved]);
        let look = async || {
            let looks = looks.load(Ordering::Relaxed);
            if looks >= 2 { Ok(()) } else { Err(format!("{looks} looks")) }
        };
        eventually("it has checked again", SOON, look).await?;
        let again = early.drain();
        ensure!(again.is_empty(), "reported twice: {again:?}");
        let began = std::time::Instant::now();
        let late = feed.subscribe(decode, Arc::default());
        told(&late).await?;
        ensure!(began.elapsed() < std::time::Duration::from_secs(5), "a late reader waits for the next check");
        cancel.cancel();
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_01_a_404_that_discovery_does_not_confirm_and_a_403_are_failures_and_no_empty_list() -> Result<()> {
    timed(async {
        let nothing = |_: &str| Reply::Whole(404, "", "not found".to_owned());
        let named = |_: &str| {
            let resources = json!([{ "name": GADGET.plural }]);
            let version = GADGET.api_version();
            let list = json!({ "kind": "APIResourceList", "groupVersion": version, "resources": resources });
            Reply::Whole(200, "", list.to_string())
        };
        let doubtful = [
            ("a proxy answers with 404", 404, optional(&GADGET), nothing as fn(&str) -> Reply),
            ("discovery names it", 404, optional(&GADGET), named),
            ("we may not look", 403, optional(&GADGET), gadgets_are_absent),
            ("it must be served", 404, query(&GADGET), gadgets_are_absent),
        ];
        for (what, code, query, discovery) in doubtful {
            let tries = Arc::new(AtomicU32::new(0));
            let count = Arc::clone(&tries);
            let stub = Stub::serve(move |asked| {
                if asked.contains("watch=true") {
                    count.fetch_add(1, Ordering::Relaxed);
                    return Reply::Whole(code, "", String::new());
                }
                discovery(asked)
            })
            .await?;
            let observer = things(&stub.kubeconfig(), query).await?;
            // Back-off, not the ten seconds of a proven absence.
            let tried = async || {
                let tries = tries.load(Ordering::Relaxed);
                if tries >= 4 { Ok(()) } else { Err(format!("{tries} tries")) }
            };
            eventually(what, std::time::Duration::from_secs(8), tried).await?;
            let seen = observer.mailbox.drain();
            ensure!(seen.is_empty(), "{what}: {seen:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_watch_that_is_refused_is_retried_ever_less_often_although_lists_are_allowed() -> Result<()> {
    timed(async {
        let tries = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&tries);
        let stub = Stub::serve(move |asked| {
            if asked.contains("sendInitialEvents") {
                return Reply::Whole(422, "", String::new());
            }
            if asked.contains("watch=true") {
                note.lock().unwrap_or_else(PoisonError::into_inner).push(std::time::Instant::now());
                return Reply::Whole(403, "", json!({ "kind": "Status", "code": 403 }).to_string());
            }
            Reply::Whole(200, "", json!({ "metadata": { "resourceVersion": "5" }, "items": [] }).to_string())
        })
        .await?;
        let _observer = things(&stub.kubeconfig(), query(&CONFIG_MAP)).await?;
        let tried = async || {
            let tries = tries.lock().unwrap_or_else(PoisonError::into_inner);
            if tries.len() >= 8 { Ok(tries.clone()) } else { Err(format!("{} tries", tries.len())) }
        };
        let tries = eventually("it is tried again", SOON, tried).await?;
        // After four refusals it starts over with a list. 1.6 + 3.2 + 6.4 s, each halved at most.
        let took = tries[7].duration_since(tries[4]);
        ensure!(took >= std::time::Duration::from_millis(5_600), "three more within {took:?}");
        Ok(())
    })
    .await
}
