//! Watches that several readers can share: each starts with its first reader and ends with its last.
//! Knows nothing of what they read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::Cluster;
use crate::feed::{Feed, Mailbox, Row};
use crate::watch::{Query, watch};

/// A watch, for any number of readers. It runs for as long as this is kept, from the first reader on, in the span in which it was
/// made: one that several share must not be made in the span of one of them.
pub struct Source {
    cluster: Cluster,
    query: Arc<Query>,
    feed: Arc<Feed>,
    span: Span,
    /// The watch, once it runs.
    task: Mutex<JoinSet<()>>,
    /// Cancelled when the watch has ended: nothing comes any more.
    ended: CancellationToken,
}

impl Source {
    /// A watch that does not run yet.
    #[must_use]
    pub fn new(cluster: Cluster, query: Query) -> Arc<Self> {
        let (feed, span) = (Arc::default(), Span::current());
        let (task, ended) = (Mutex::default(), CancellationToken::new());
        Arc::new(Self { cluster, query: Arc::new(query), feed, span, task, ended })
    }

    /// What is watched.
    #[must_use]
    pub fn query(&self) -> &Arc<Query> {
        &self.query
    }

    pub(super) fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Whether the watch ended although it has readers: it panicked, or its runtime is gone.
    pub(super) fn ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// One more reader, who is told everything from a complete list on. The first one starts the watch.
    pub(super) fn subscribe<R: Row>(
        &self,
        decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + 'static,
        bell: Arc<Notify>,
    ) -> Mailbox<R> {
        let mailbox = self.feed.subscribe(decode, bell);
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.is_empty() {
            let (query, ended) = (Query::clone(&self.query), self.ended.clone().drop_guard());
            let watch = watch(self.cluster.clone(), query, Arc::clone(&self.feed), CancellationToken::new());
            let watch = async move {
                let _ended = ended;
                watch.await;
            };
            task.spawn(watch.instrument(self.span.clone()));
        }
        mailbox
    }
}

/// The watches of one cluster that the loops of this process share, one for each query. Keeps none of them running by itself.
pub struct Sources {
    cluster: Cluster,
    running: Mutex<BTreeMap<Query, Weak<Source>>>,
}

impl Sources {
    /// None yet.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, running: Mutex::default() }
    }

    /// The watch of this query: the one that others read, or a new one.
    #[must_use]
    pub fn of(&self, query: &Query) -> Arc<Source> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|_, source| source.strong_count() > 0);
        let known = running.get(query).and_then(Weak::upgrade).filter(|source| !source.ended());
        known.unwrap_or_else(|| {
            let source = Source::new(self.cluster.clone(), query.clone());
            running.insert(query.clone(), Arc::downgrade(&source));
            source
        })
    }
}
