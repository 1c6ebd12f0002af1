//! A watch on the virtual nodes that notes when each offers what it was expected to offer.
//! Must be open before the first expectation, so that no sight is missed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use serde::Deserialize;
use tapestry_cluster::feed::{Feed, Row};
use tapestry_cluster::watch::{Query, watch};
use tapestry_cluster::{Cluster as Client, Rv, Uid, kind};
use tapestry_domain::resources::{ResourceName, Resources};
use tapestry_testbed::eventually;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The watch and what it saw.
pub(super) struct Lookout {
    book: Arc<Mutex<Book>>,
    _watch: JoinSet<()>,
}

#[derive(Default)]
struct Book {
    /// CPU that each node offers, in billionths.
    offers: HashMap<String, i128>,
    expected: Vec<Expected>,
    /// Those not seen yet, by node.
    open: HashMap<String, Vec<usize>>,
}

struct Expected {
    /// At most this (a pod came), or at least this (a pod went).
    cpu: i128,
    less: bool,
    answered: Option<Instant>,
    seen: Option<Instant>,
}

impl Lookout {
    /// Opens the watch and waits until all these nodes are seen.
    pub(super) async fn open(client: &Client, nodes: &[String]) -> Result<Self> {
        let book = Arc::<Mutex<Book>>::default();
        let query = Query::all(&kind::NODE);
        let notes = Arc::clone(&book);
        let decode = move |json: &Bytes| decode(json, &notes).map(Some);
        let mut tasks = JoinSet::new();
        let feed: Arc<Feed> = Arc::default();
        let mailbox = feed.subscribe(decode, Arc::default());
        let watch = watch(client.clone(), query, feed, CancellationToken::new());
        tasks.spawn(async move {
            // What it reads is in the book; a watch without a reader decodes nothing.
            let _reader = mailbox;
            watch.await;
        });
        let lookout = Self { book, _watch: tasks };
        eventually("all virtual nodes are seen", Duration::from_mins(1), async || {
            let book = lock(&lookout.book);
            match nodes.iter().filter(|node| !book.offers.contains_key(*node)).count() {
                0 => Ok(()),
                missing => Err(format!("{missing} are not")),
            }
        })
        .await?;
        Ok(lookout)
    }

    /// From now on the node should come to offer `change` billionths of a core more, or less, than it is expected to.
    pub(super) fn expect(&self, node: &str, change: i128) -> usize {
        let mut book = lock(&self.book);
        let offered = book.offers.get_mut(node).map_or(0, |offered| {
            *offered += change;
            *offered
        });
        book.expected.push(Expected { cpu: offered, less: change < 0, answered: None, seen: None });
        let index = book.expected.len() - 1;
        book.open.entry(node.to_owned()).or_default().push(index);
        index
    }

    /// The API server answered the request that made the change, just now.
    pub(super) fn note_answered(&self, index: usize) {
        if let Some(expected) = lock(&self.book).expected.get_mut(index) {
            expected.answered = Some(Instant::now());
        }
    }

    /// Waits until everything expected was seen; gives how long each took, and forgets them.
    pub(super) async fn all_seen(&self, deadline: Duration) -> Result<Vec<Duration>> {
        let end = Instant::now() + deadline;
        loop {
            {
                let mut book = lock(&self.book);
                let open = book.expected.iter().filter(|expected| expected.seen.is_none()).count();
                if open == 0 {
                    book.open.clear();
                    let took = |expected: Expected| Some(expected.seen?.saturating_duration_since(expected.answered?));
                    return Ok(std::mem::take(&mut book.expected).into_iter().filter_map(took).collect());
                }
                if Instant::now() > end {
                    bail!("not within {deadline:?}: {open} of {} changes were seen nowhere", book.expected.len());
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Book {
    /// The first sight of a node only says where it starts; later, what it offers is what is expected of it.
    fn note(&mut self, node: &str, cpu: i128, now: Instant) {
        if !self.offers.contains_key(node) {
            self.offers.insert(node.to_owned(), cpu);
        }
        let Some(open) = self.open.get_mut(node) else { return };
        open.retain(|index| {
            let expected = &mut self.expected[*index];
            let reached = if expected.less { cpu <= expected.cpu } else { cpu >= expected.cpu };
            if reached {
                expected.seen = Some(now);
            }
            !reached
        });
    }
}

#[derive(Clone)]
struct View {
    uid: Uid,
    rv: Rv,
}

impl Row for View {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        false
    }
}

#[derive(Deserialize)]
struct NodeJson {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: Uid,
    resource_version: Rv,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    allocatable: Resources,
}

fn decode(json: &Bytes, book: &Mutex<Book>) -> Result<View, serde_json::Error> {
    let now = Instant::now();
    let NodeJson { metadata, status } = serde_json::from_slice(json)?;
    lock(book).note(&metadata.name, status.allocatable.get(&ResourceName::Cpu).nano(), now);
    Ok(View { uid: metadata.uid, rv: metadata.resource_version })
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_is_seen_when_the_node_offers_what_it_should() {
        let lookout = Lookout { book: Arc::default(), _watch: JoinSet::new() };
        let note = |cpu| lock(&lookout.book).note("a", cpu, Instant::now());
        note(100);
        let (come, again) = (lookout.expect("a", -10), lookout.expect("a", -10));
        for index in [come, again] {
            lookout.note_answered(index);
        }
        note(95);
        note(90);
        assert!(lookout.all_seen(Duration::ZERO).await.is_err(), "the second is not there yet");
        note(80);
        assert_eq!(lookout.all_seen(Duration::ZERO).await.unwrap().len(), 2);
        lookout.note_answered(lookout.expect("a", 20));
        note(100);
        assert_eq!(lookout.all_seen(Duration::ZERO).await.unwrap().len(), 1);
    }
}
