//! Whether a watch is in sync: its last sign of life, and what has been failing since when. Only judges; the watch
//! retries by itself, and models decide what follows.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::SHORT;
use crate::probe::TOLD_WITHIN;

/// A watch that has been refused or failing for this long is out of sync.
pub const FAILING: Duration = Duration::from_secs(40);
/// So is one that has shown neither event nor bookmark for this long: bookmarks come 60 to 120 s apart.
pub const NOTHING_DELIVERED: Duration = Duration::from_secs(150);

/// A list that fails once may succeed with the next try.
const MOMENT: Duration = Duration::from_secs(2);

/// The state of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchState {
    /// The first complete list is still being read.
    Starting,
    /// Events or bookmarks arrive.
    InSync,
    /// Its objects may have changed since without us knowing.
    OutOfSync(Trouble),
}

/// Why a watch is out of sync. The same value for as long as the same is wrong, so that it can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What does not work: `list` or `watch`.
    pub verb: &'static str,
    /// The API server's message, or what is missing.
    pub why: String,
}

/// What a watch asks of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadVerb {
    List,
    Watch,
}

impl ReadVerb {
    /// As RBAC spells it.
    fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
        }
    }
}

/// The signs of life of one watch: written by the watch, judged by its readers.
pub struct Vitals {
    inner: Mutex<Inner>,
}

struct Inner {
    /// The last event, bookmark or part of a list; before the first, the start.
    sign: Instant,
    /// When the watch last showed that nothing is missing: by an event, a bookmark or a complete list. While the first list is
    /// being read its parts count, and when an outage ends it starts again. An open stream shows nothing: a proxy may hold
    /// its body back.
    current: Instant,
    /// Since when the current stream has been open.
    open: Option<Instant>,
    /// Lists fail. Separate from watches, because a list that succeeds says nothing about a watch that is refused.
    list: Option<Failing>,
    /// Watches fail.
    watch: Option<Failing>,
    listed: bool,
    /// Since when the cluster itself does not answer.
    outage: Option<Instant>,
}

/// What has been failing since the last success.
struct Failing {
    since: Instant,
    why: String,
}

impl Default for Vitals {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner::new(Instant::now())) }
    }
}

impl Vitals {
    /// The state of the watch now.
    #[must_use]
    pub fn state(&self) -> WatchState {
        self.lock().judge(Instant::now())
    }

    /// Why its first list fails, if it has been failing for longer than a moment.
    #[must_use]
    pub fn hindered(&self) -> Option<Trouble> {
        let inner = self.lock();
        let mut failing = inner.failing().filter(|(_, failing)| !inner.listed && failing.since.elapsed() >= MOMENT);
        failing.next().map(|(verb, failing)| failing.trouble(verb))
    }

    /// How long ago the last event, bookmark or part of a list came.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.lock().sign.elapsed()
    }

    /// A part of a list has come.
    pub(super) fn read(&self) {
        self.lock().read(Instant::now());
    }

    /// A complete list has come, streamed or in pages.
    pub(super) fn listed(&self) {
        self.lock().listed(Instant::now());
    }

    /// The stream has delivered something, and no list is missing.
    pub(super) fn delivered(&self) {
        self.lock().delivered(Instant::now());
    }

    /// The server has agreed to stream.
    pub(super) fn opened(&self) {
        self.lock().open = Some(Instant::now());
    }

    /// The stream has ended, for whatever reason.
    pub(super) fn closed(&self) {
        self.lock().closed(Instant::now());
    }

    /// A request was refused, or its answer was unusable.
    pub(super) fn failed(&self, verb: ReadVerb, why: &str) {
        self.lock().failed(verb, why, Instant::now());
    }

    /// The cluster itself does not answer.
    pub(crate) fn begin_outage(&self) {
        self.lock().begin_outage(Instant::now());
    }

    /// The cluster answers again.
    pub(crate) fn end_outage(&self) {
        self.lock().end_outage(Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn new(now: Instant) -> Self {
        Self { sign: now, current: now, open: None, list: None, watch: None, listed: false, outage: None }
    }

    fn read(&mut self, now: Instant) {
        self.sign = now;
        if !self.listed {
            self.current = now;
        }
    }

    fn listed(&mut self, now: Instant) {
        (self.sign, self.current, self.listed, self.list) = (now, now, true, None);
    }

    fn delivered(&mut self, now: Instant) {
        (self.sign, self.current, self.list, self.watch) = (now, now, None, None);
    }

    fn closed(&mut self, now: Instant) {
        let mended = |failing: &Failing| self.mended(failing, now);
        let (list, watch) = (self.list.as_ref().is_some_and(mended), self.watch.as_ref().is_some_and(mended));
        self.list.take_if(|_| list);
        self.watch.take_if(|_| watch);
        self.open = None;
    }

    fn failed(&mut self, verb: ReadVerb, why: &str, now: Instant) {
        let failing = match verb {
            ReadVerb::List => &mut self.list,
            ReadVerb::Watch => &mut self.watch,
        };
        let since = failing.as_ref().map_or(now, |failing| failing.since);
        *failing = Some(Failing { since, why: why.to_owned() });
    }

    /// A probe reports an outage when it has lasted a while. Several probes may report one.
    fn begin_outage(&mut self, told: Instant) {
        self.outage.get_or_insert(told.checked_sub(TOLD_WITHIN).unwrap_or(told));
    }

    /// What began with the outage ends with it. What was wrong before is wrong until the watch delivers.
    fn end_outage(&mut self, now: Instant) {
        let Some(began) = self.outage.take() else { return };
        self.list.take_if(|failing| failing.since >= began);
        self.watch.take_if(|failing| failing.since >= began);
        if self.delivers_nothing(began).is_none() {
            self.current = now;
        }
    }

    fn failing(&self) -> impl Iterator<Item = (ReadVerb, &Failing)> {
        let watch = self.watch.iter().map(|failing| (ReadVerb::Watch, failing));
        watch.chain(self.list.iter().map(|failing| (ReadVerb::List, failing)))
    }

    /// Whether a short trouble is over: a stream is open and was not closed at once. After a longer one only what a stream
    /// delivers shows that it works.
    fn mended(&self, failing: &Failing, now: Instant) -> bool {
        let lasts = |open: Instant| now.saturating_duration_since(open) >= SHORT;
        let soon = |open: Instant| open.saturating_duration_since(failing.since) < FAILING;
        self.listed && self.open.is_some_and(|open| lasts(open) && soon(open))
    }

    fn judge(&self, now: Instant) -> WatchState {
        let long = |failing: &Failing| now.saturating_duration_since(failing.since) >= FAILING;
        let failing = self.failing().find(|(_, failing)| long(failing) && !self.mended(failing, now));
        let trouble = failing.map(|(verb, failing)| failing.trouble(verb)).or_else(|| self.delivers_nothing(now));
        match trouble {
            Some(trouble) => WatchState::OutOfSync(trouble),
            None if self.listed => WatchState::InSync,
            None => WatchState::Starting,
        }
    }

    fn delivers_nothing(&self, now: Instant) -> Option<Trouble> {
        let (verb, patience) =
            if self.listed { (ReadVerb::Watch, NOTHING_DELIVERED) } else { (ReadVerb::List, FAILING) };
        let overdue = now.saturating_duration_since(self.current) >= patience;
        let why = || format!("no event or bookmark for {} s", patience.as_secs());
        overdue.then(|| Trouble { verb: verb.as_str(), why: why() })
    }
}

impl Failing {
    fn trouble(&self, verb: ReadVerb) -> Trouble {
        Trouble { verb: verb.as_str(), why: self.why.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch whose list came at the start, and the moments after it.
    fn listed() -> (Inner, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let mut watch = Inner::new(start);
        watch.listed(start);
        (watch, move |seconds| start + Duration::from_secs(seconds))
    }

    fn verb(state: &WatchState) -> Option<&'static str> {
        if let WatchState::OutOfSync(trouble) = state { Some(trouble.verb) } else { None }
    }

    #[test]
    fn a_watch_that_is_refused_for_forty_seconds_is_out_of_sync_until_it_delivers_and_a_shorter_refusal_does_not_count()
    {
        let (mut watch, after) = listed();
        watch.failed(ReadVerb::Watch, "forbidden", after(0));
        assert_eq!(watch.judge(after(39)), WatchState::InSync);
        assert_eq!(verb(&watch.judge(after(40))), Some("watch"));
        // It is served again: an open stream may still deliver nothing.
        watch.open = Some(after(50));
        assert_eq!(verb(&watch.judge(after(55))), Some("watch"));
        watch.delivered(after(56));
        assert_eq!(watch.judge(after(56)), WatchState::InSync);
        // A short trouble is over with a stream that is not closed at once.
        watch.failed(ReadVerb::Watch, "reset", after(60));
        watch.open = Some(after(62));
        assert_eq!(watch.judge(after(110)), WatchState::InSync);
        watch.closed(after(110));
        watch.failed(ReadVerb::Watch, "reset", after(110));
        assert_eq!(watch.judge(after(149)), WatchState::InSync, "another trouble has its own time");
    }

    #[test]
    fn a_list_that_comes_does_not_hide_that_the_watch_is_refused() {
        let (mut watch, after) = listed();
        for seconds in 0..40 {
            watch.failed(ReadVerb::Watch, "forbidden", after(seconds));
            watch.read(after(seconds));
            watch.listed(after(seconds));
        }
        assert_eq!(verb(&watch.judge(after(40))), Some("watch"));
        watch.delivered(after(41));
        assert_eq!(watch.judge(after(41)), WatchState::InSync);
    }

    #[test]
    fn a_server_that_opens_streams_and_closes_them_at_once_does_not_look_healthy() {
        let (mut watch, after) = listed();
        for seconds in 0..40 {
            watch.open = Some(after(seconds));
            watch.closed(after(seconds));
            watch.failed(ReadVerb::Watch, "closed at once", after(seconds));
        }
        assert_eq!(verb(&watch.judge(after(40))), Some("watch"));
    }

    #[test]
    fn a_watch_without_event_or_bookmark_for_a_hundred_and_fifty_seconds_is_out_of_sync_until_one_comes() {
        let (mut watch, after) = listed();
        assert_eq!(watch.judge(after(149)), WatchState::InSync);
        assert_eq!(verb(&watch.judge(after(150))), Some("watch"));
        for seconds in 155..200 {
            watch.failed(ReadVerb::Watch, "no event or bookmark", after(seconds));
            watch.open = Some(after(seconds));
            assert_eq!(verb(&watch.judge(after(seconds + 10))), Some("watch"), "an open stream proves nothing");
            watch.closed(after(seconds + 10));
        }
        watch.read(after(200));
        assert_eq!(verb(&watch.judge(after(200))), Some("watch"), "a part of a list is no list");
        watch.delivered(after(210));
        assert_eq!(watch.judge(after(359)), WatchState::InSync);
        assert_eq!(verb(&watch.judge(after(360))), Some("watch"));
    }

    #[test]
    fn a_list_that_never_comes_is_out_of_sync_after_forty_seconds_and_one_that_takes_long_is_not() {
        let start = Instant::now();
        let (mut watch, after) = (Inner::new(start), |seconds| start + Duration::from_secs(seconds));
        watch.open = Some(after(1));
        assert_eq!(watch.judge(after(39)), WatchState::Starting);
        assert_eq!(verb(&watch.judge(after(40))), Some("list"));
        watch.read(after(39));
        assert_eq!(watch.judge(after(78)), WatchState::Starting, "its pages arrive");
        watch.failed(ReadVerb::List, "forbidden", after(38));
        assert_eq!(verb(&watch.judge(after(78))), Some("list"));
    }

    #[test]
    fn an_outage_excuses_what_began_with_it() {
        let (mut watch, after) = listed();
        watch.delivered(after(90));
        watch.failed(ReadVerb::Watch, "connection refused", after(100));
        watch.begin_outage(after(110));
        watch.failed(ReadVerb::List, "connection refused", after(300));
        watch.end_outage(after(600));
        assert_eq!(watch.judge(after(600)), WatchState::InSync);
        watch.failed(ReadVerb::Watch, "connection refused", after(601));
        assert_eq!(verb(&watch.judge(after(641))), Some("watch"));
    }

    #[test]
    fn law_09_an_outage_does_not_excuse_what_was_wrong_before_it() {
        let (mut refused, after) = listed();
        refused.failed(ReadVerb::Watch, "forbidden", after(10));
        let (mut mute, _) = listed();
        for watch in [&mut refused, &mut mute] {
            watch.begin_outage(after(600));
            watch.end_outage(after(612));
            assert_eq!(verb(&watch.judge(after(612))), Some("watch"));
            watch.open = Some(after(613));
            assert_eq!(verb(&watch.judge(after(620))), Some("watch"), "it has delivered nothing yet");
            watch.delivered(after(621));
            assert_eq!(watch.judge(after(621)), WatchState::InSync);
        }
    }
}
