//! Watches both sides and notes the moment at which each pod was first seen, seen running, and gone.
//! Must not miss an event silently: the watches resume, and a watch that had to start over is compared with what was there.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use serde::Deserialize;
use tapestry_cluster::feed::{Change, Epoch, Feed, Mailbox, Row};
use tapestry_cluster::watch::{Query, watch};
use tapestry_cluster::{Cluster, Rv, Side, Uid, kind};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Label of every virtual pod of ours, copied to its physical pod by the subject: `<run>-<index>`.
pub(crate) const LABEL: &str = "bench-pod";

/// Watches of pods on both sides and of copies of ConfigMaps and Secrets on the physical one, and what they saw.
pub(crate) struct Observers {
    book: Arc<Mutex<Book>>,
    bell: Arc<Notify>,
    _watches: JoinSet<()>,
}

/// When things happened to one pod.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moments {
    /// The API server answered the load's create.
    pub(crate) created: Option<Instant>,
    /// The physical pod was seen.
    pub(crate) copied: Option<Instant>,
    /// The physical pod was seen running.
    pub(crate) physical_running: Option<Instant>,
    /// The virtual pod was seen running.
    pub(crate) virtual_running: Option<Instant>,
}

#[derive(Default)]
struct Book {
    run: u32,
    pods: Vec<Moments>,
    running: usize,
    /// What exists, by watch: virtual pods, physical pods, and physical ConfigMaps and Secrets.
    present: [HashMap<Uid, Epoch>; 4],
}

/// What the watches hand on: only whether the object is there; the rest is noted on arrival, because mailboxes coalesce.
#[derive(Clone)]
struct Seen {
    uid: Uid,
    rv: Rv,
    deleting: bool,
}

impl Row for Seen {
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

#[derive(Deserialize)]
struct PodJson<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    status: Status<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    uid: Uid,
    resource_version: Rv,
    #[serde(borrow)]
    deletion_timestamp: Option<Cow<'a, str>>,
    #[serde(borrow)]
    labels: Labels<'a>,
}

#[derive(Deserialize)]
struct Labels<'a> {
    #[serde(borrow, rename = "bench-pod")]
    pod: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Status<'a> {
    #[serde(borrow, default)]
    phase: Cow<'a, str>,
}

impl Observers {
    /// Opens them on both sides.
    pub(crate) fn open(virtual_cluster: &Cluster, physical_cluster: &Cluster) -> Self {
        let (book, bell) = (Arc::<Mutex<Book>>::default(), Arc::<Notify>::default());
        let mut watches = JoinSet::new();
        for (side, cluster) in [(Side::Virtual, virtual_cluster), (Side::Physical, physical_cluster)] {
            let feed: Arc<Feed> = Arc::default();
            let changed = Arc::<Notify>::default();
            let labels = LABEL.to_owned();
            let query = Query { labels, ..Query::all(&kind::POD) };
            let (notes, waiters) = (Arc::clone(&book), Arc::clone(&bell));
            let decode = move |json: &Bytes| decode(json, side, &notes, &waiters).map(Some);
            let mailbox = feed.subscribe(decode, Arc::clone(&changed));
            watches.spawn(watch(cluster.clone(), query, feed, CancellationToken::new()));
            watches.spawn(keep_present(side as usize, mailbox, changed, Arc::clone(&book), Arc::clone(&bell)));
        }
        for (place, kind) in [(2, &kind::CONFIG_MAP), (3, &kind::SECRET)] {
            let (feed, changed) = (Arc::<Feed>::default(), Arc::<Notify>::default());
            let query = Query { labels: LABEL.to_owned(), metadata_only: true, ..Query::all(kind) };
            let mailbox = feed.subscribe(|json| decode_copy(json).map(Some), Arc::clone(&changed));
            watches.spawn(watch(physical_cluster.clone(), query, feed, CancellationToken::new()));
            watches.spawn(keep_present(place, mailbox, changed, Arc::clone(&book), Arc::clone(&bell)));
        }
        Self { book, bell, _watches: watches }
    }

    /// A new run of so many pods: what was noted before is forgotten.
    pub(crate) fn begin(&self, run: u32, pods: usize) {
        let mut book = lock(&self.book);
        (book.run, book.pods, book.running) = (run, vec![Moments::default(); pods], 0);
    }

    /// The API server answered the creation of this pod just now.
    pub(crate) fn note_created(&self, index: usize) {
        if let Some(pod) = lock(&self.book).pods.get_mut(index) {
            pod.created = Some(Instant::now());
        }
    }

    /// Waits until every virtual pod of the run was seen running; gives what was noted.
    pub(crate) async fn all_running(&self, deadline: Duration) -> Result<Vec<Moments>> {
        self.wait(deadline, |book| book.running == book.pods.len()).await?;
        Ok(lock(&self.book).pods.clone())
    }

    /// Waits until no pod of ours is left on either side, and no copy of what they named.
    pub(crate) async fn all_gone(&self, deadline: Duration) -> Result<()> {
        self.wait(deadline, |book| book.present.iter().all(HashMap::is_empty)).await
    }

    async fn wait(&self, deadline: Duration, reached: impl Fn(&Book) -> bool) -> Result<()> {
        let waiting = async {
            while !reached(&lock(&self.book)) {
                self.bell.notified().await;
            }
        };
        if tokio::time::timeout(deadline, waiting).await.is_err() {
            let book = lock(&self.book);
            let count = |seen: fn(&Moments) -> Option<Instant>| book.pods.iter().filter_map(seen).count();
            bail!(
                "not within {deadline:?}: of {} pods {} were created, {} copied, {} ran physically, {} virtually; \
                 now there are {} virtual and {} physical ones, {} copies of ConfigMaps and {} of Secrets",
                book.pods.len(),
                count(|pod| pod.created),
                count(|pod| pod.copied),
                count(|pod| pod.physical_running),
                count(|pod| pod.virtual_running),
                book.present[0].len(),
                book.present[1].len(),
                book.present[2].len(),
                book.present[3].len(),
            );
        }
        Ok(())
    }
}

fn decode(json: &Bytes, side: Side, book: &Mutex<Book>, bell: &Notify) -> Result<Seen, serde_json::Error> {
    let now = Instant::now();
    let PodJson { metadata, status } = serde_json::from_slice(json)?;
    if lock(book).note(side, &metadata.labels.pod, &status.phase, now) {
        bell.notify_one();
    }
    Ok(Seen { uid: metadata.uid, rv: metadata.resource_version, deleting: metadata.deletion_timestamp.is_some() })
}

fn decode_copy(json: &Bytes) -> Result<Seen, serde_json::Error> {
    #[derive(Deserialize)]
    struct Copied<'a> {
        #[serde(borrow)]
        metadata: Meta<'a>,
    }
    let Copied { metadata } = serde_json::from_slice(json)?;
    Ok(Seen { uid: metadata.uid, rv: metadata.resource_version, deleting: metadata.deletion_timestamp.is_some() })
}

async fn keep_present(
    place: usize,
    mailbox: Mailbox<Seen>,
    changed: Arc<Notify>,
    book: Arc<Mutex<Book>>,
    bell: Arc<Notify>,
) {
    loop {
        changed.notified().await;
        let changes = mailbox.drain();
        let mut book = lock(&book);
        let present = &mut book.present[place];
        for change in changes {
            match change {
                Change::Put(row, epoch) => drop(present.insert(row.uid, epoch)),
                Change::Gone { row, .. } => drop(present.remove(&row.uid)),
                // The watch started over: whatever it did not bring again ended unseen.
                Change::Listed(epoch) => present.retain(|_, seen| *seen == epoch),
                Change::Unserved | Change::Reached(_) => {}
            }
        }
        drop(book);
        bell.notify_one();
    }
}

impl Book {
    /// Notes the first time of everything; true when the last pod of the run runs.
    fn note(&mut self, side: Side, label: &str, phase: &str, now: Instant) -> bool {
        let Some((run, index)) = label.split_once('-') else { return false };
        let (Ok(run), Ok(index)) = (run.parse::<u32>(), index.parse::<usize>()) else { return false };
        let Some(pod) = self.pods.get_mut(index).filter(|_| run == self.run) else { return false };
        let running = phase == "Running";
        match side {
            Side::Physical => {
                pod.copied.get_or_insert(now);
                if running {
                    pod.physical_running.get_or_insert(now);
                }
                false
            }
            Side::Virtual if running && pod.virtual_running.is_none() => {
                pod.virtual_running = Some(now);
                self.running += 1;
                self.running == self.pods.len()
            }
            Side::Virtual => false,
        }
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_sight_of_a_pod_of_this_run_is_noted() {
        let mut book = Book { run: 2, pods: vec![Moments::default(); 2], ..Book::default() };
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        assert!(!book.note(Side::Physical, "2-0", "Pending", at(1)));
        assert!(!book.note(Side::Physical, "2-0", "Running", at(2)));
        assert!(!book.note(Side::Physical, "2-0", "Running", at(3)));
        assert!(!book.note(Side::Virtual, "2-0", "Running", at(4)));
        assert!(!book.note(Side::Virtual, "1-1", "Running", at(5)), "another run");
        assert!(!book.note(Side::Virtual, "2-0", "Running", at(6)));
        assert!(book.note(Side::Virtual, "2-1", "Running", at(7)));
        let seen = book.pods[0];
        assert_eq!((seen.copied, seen.physical_running, seen.virtual_running), (Some(at(1)), Some(at(2)), Some(at(4))));
    }
}
