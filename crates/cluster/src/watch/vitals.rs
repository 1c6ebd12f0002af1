//! Whether what a watch has brought can be relied on: its last sign of life, and what has been failing since when.
//! Only judges; the watch tries again by itself, and models decide what follows.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::SHORT;

/// A watch that has been refused or failing for this long is out of sync.
pub const FAILING: Duration = Duration::from_secs(40);
/// So is one that has shown neither event nor bookmark for this long: bookmarks come 60 to 120 s apart.
pub const SILENT: Duration = Duration::from_secs(150);

/// A list that fails once may be there with the next try.
const MOMENT: Duration = Duration::from_secs(2);

/// How a watch stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchState {
    /// The first complete list is still being read.
    Starting,
    /// Events or bookmarks arrive.
    InSync,
    /// What it brought may have changed since without us knowing.
    OutOfSync(Trouble),
}

/// Why a watch is out of sync. Says the same for as long as the same is wrong, so that it can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What does not work: `list` or `watch`.
    pub verb: &'static str,
    /// In the words of the API server, or what is missing.
    pub why: String,
}

/// The signs of life of one watch: written by the watch, judged by those who rely on it.
pub struct Vitals {
    inner: Mutex<Inner>,
}

struct Inner {
    /// The last event, bookmark or page of a list; before the first, the start.
    sign: Instant,
    /// Since when the current stream has been open.
    open: Option<Instant>,
    /// What has been failing since the last success, and since when.
    failing: Option<(Instant, Trouble)>,
    listed: bool,
}

impl Default for Vitals {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner { sign: Instant::now(), open: None, failing: None, listed: false }) }
    }
}

impl Vitals {
    /// How the watch stands now.
    #[must_use]
    pub fn state(&self) -> WatchState {
        self.lock().judge(Instant::now())
    }

    /// What keeps its first list away, if that has been failing for longer than a moment.
    #[must_use]
    pub fn hindered(&self) -> Option<Trouble> {
        let inner = self.lock();
        let failing = inner.failing.as_ref().filter(|(since, _)| !inner.listed && since.elapsed() >= MOMENT);
        failing.map(|(_, trouble)| trouble.clone())
    }

    /// How long ago the last event, bookmark or page of a list came.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.lock().sign.elapsed()
    }

    /// An event, a bookmark or a part of a list has come.
    pub(super) fn sign(&self) {
        let mut inner = self.lock();
        inner.sign = Instant::now();
        if inner.listed {
            inner.failing = None;
        }
    }

    /// A complete list has come.
    pub(super) fn listed(&self) {
        let mut inner = self.lock();
        (inner.sign, inner.listed, inner.failing) = (Instant::now(), true, None);
    }

    /// The server has agreed to stream.
    pub(super) fn opened(&self) {
        self.lock().open = Some(Instant::now());
    }

    /// The stream has ended, for whatever reason.
    pub(super) fn closed(&self) {
        let mut inner = self.lock();
        if inner.streams(Instant::now()) {
            inner.failing = None;
        }
        inner.open = None;
    }

    /// A request was refused, or what came was no answer.
    pub(super) fn failed(&self, verb: &'static str, why: &str) {
        let mut inner = self.lock();
        let since = inner.failing.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        inner.failing = Some((since, Trouble { verb, why: why.to_owned() }));
    }

    /// The cluster itself did not answer until now: what failed, failed because of that.
    pub(crate) fn forgive(&self) {
        let mut inner = self.lock();
        (inner.sign, inner.failing) = (Instant::now(), None);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether a stream is open and was not closed at once. The list before it has its own rules.
    fn streams(&self, now: Instant) -> bool {
        self.listed && self.open.is_some_and(|open| now.duration_since(open) >= SHORT)
    }

    fn judge(&self, now: Instant) -> WatchState {
        let age = |at: Instant| now.saturating_duration_since(at);
        if let Some((since, trouble)) = &self.failing
            && age(*since) >= FAILING
            && !self.streams(now)
        {
            return WatchState::OutOfSync(trouble.clone());
        }
        let heard = self.open.map_or(self.sign, |open| open.max(self.sign));
        let (verb, patience) = if self.listed { ("watch", SILENT) } else { ("list", FAILING) };
        if age(heard) >= patience {
            let why = format!("nothing has come for {} s", patience.as_secs());
            return WatchState::OutOfSync(Trouble { verb, why });
        }
        if self.listed { WatchState::InSync } else { WatchState::Starting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inner(listed: bool) -> (Inner, Instant) {
        let start = Instant::now();
        (Inner { sign: start, open: None, failing: None, listed }, start)
    }

    fn forbidden(verb: &'static str) -> Trouble {
        Trouble { verb, why: "forbidden".to_owned() }
    }

    fn verb(state: &WatchState) -> Option<&'static str> {
        if let WatchState::OutOfSync(trouble) = state { Some(trouble.verb) } else { None }
    }

    #[test]
    fn a_watch_that_is_refused_for_forty_seconds_is_out_of_sync_and_a_shorter_trouble_is_none() {
        let (mut watch, start) = inner(true);
        watch.failing = Some((start, forbidden("watch")));
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watch.judge(after(39)), WatchState::InSync);
        assert_eq!(verb(&watch.judge(after(40))), Some("watch"));
        // It is served again: believed when the stream is not closed at once.
        watch.open = Some(after(50));
        assert_eq!(verb(&watch.judge(after(50))), Some("watch"));
        assert_eq!(watch.judge(after(51)), WatchState::InSync);
    }

    #[test]
    fn a_server_that_opens_streams_and_closes_them_at_once_does_not_look_healthy() {
        let vitals = Vitals::default();
        vitals.listed();
        vitals.failed("watch", "closed at once");
        for _ in 0..3 {
            vitals.opened();
            vitals.closed();
            vitals.failed("watch", "closed at once");
        }
        let inner = vitals.lock();
        let (since, _) = inner.failing.clone().unwrap();
        assert_eq!(verb(&inner.judge(since + FAILING)), Some("watch"));
    }

    #[test]
    fn a_watch_without_event_or_bookmark_for_a_hundred_and_fifty_seconds_is_out_of_sync() {
        let (mut watch, start) = inner(true);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watch.judge(after(149)), WatchState::InSync);
        assert_eq!(verb(&watch.judge(after(150))), Some("watch"));
        watch.open = Some(after(155));
        assert_eq!(watch.judge(after(156)), WatchState::InSync, "a new stream has its own time");
        watch.sign = after(160);
        assert_eq!(watch.judge(after(309)), WatchState::InSync);
        assert_eq!(verb(&watch.judge(after(310))), Some("watch"));
    }

    #[test]
    fn a_list_that_never_comes_is_out_of_sync_after_forty_seconds_and_one_that_takes_long_is_not() {
        let (mut watch, start) = inner(false);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watch.judge(after(39)), WatchState::Starting);
        assert_eq!(verb(&watch.judge(after(40))), Some("list"));
        watch.sign = after(39);
        assert_eq!(watch.judge(after(78)), WatchState::Starting, "its pages arrive");
        watch.failing = Some((start, forbidden("list")));
        assert_eq!(verb(&watch.judge(after(78))), Some("list"));
    }
}
