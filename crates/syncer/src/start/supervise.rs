//! Keeps a part of a syncer going: starts it again, with back-off, after a panic or when a task that it relies on is gone.
//! Knows nothing of what the part does.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::RunError;

/// How long until the next start: after the first failure, and at most.
pub(super) const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// The same of the keeper: a Lease is 20 s old at most when it fails, and holds for 40 s.
pub(super) const KEEPER_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// A life this long was a good one: the next failure is a first one again.
const LONG_LIFE: Duration = Duration::from_mins(5);

/// A part, as it is supervised.
pub(super) struct Part<'a> {
    /// For the log.
    pub(super) name: &'static str,
    pub(super) backoff: (Duration, Duration),
    /// Where it runs.
    pub(super) runtime: &'a Handle,
    /// Ends it for good.
    pub(super) stop: &'a CancellationToken,
}

impl Part<'_> {
    /// Restarts the part until it exits cleanly or with a permanent error. Calls `failed` after each other exit, before the wait.
    pub(super) async fn supervise<L>(
        &self,
        mut begin: impl FnMut() -> L,
        mut failed: impl FnMut(),
    ) -> Result<(), RunError>
    where
        L: Future<Output = Result<(), RunError>> + Send + 'static,
    {
        let (first, last) = self.backoff;
        let mut wait = first;
        loop {
            let began = Instant::now();
            // A task of its own: what panics in it ends it, and not us.
            let mut life = JoinSet::new();
            life.spawn_on(begin().in_current_span(), self.runtime);
            let how = match life.join_next().await {
                None | Some(Ok(Ok(()))) => return Ok(()),
                Some(Ok(Err(RunError::TaskEnded(ended)))) => ended.to_string(),
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(panicked)) => panicked.to_string(),
            };
            if began.elapsed() > LONG_LIFE {
                wait = first;
            }
            tracing::error!(part = self.name, how, again_in = ?wait, "a part of the syncer failed; restarting it");
            failed();
            if self.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return Ok(());
            }
            wait = (wait * 2).min(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tapestry_engine::tasks::TaskEnded;

    use super::*;
    use crate::start::StartError;

    const QUICK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(4));

    /// Lives that end one after the other as told; how the last ended, and how many failures were told.
    async fn outcome<const N: usize>(lives: [fn() -> Result<(), RunError>; N]) -> (Result<(), RunError>, u32) {
        let (stop, runtime, told) = (CancellationToken::new(), Handle::current(), Arc::new(AtomicU32::new(0)));
        let part = Part { name: "test", backoff: QUICK, runtime: &runtime, stop: &stop };
        let mut lives = lives.into_iter();
        let begin = move || {
            let life = lives.next();
            async move { life.map_or(Ok(()), |life| life()) }
        };
        let counted = Arc::clone(&told);
        let count = || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let supervised = part.supervise(begin, count);
        let ended = tokio::time::timeout(Duration::from_secs(10), supervised).await.expect("it does not end");
        (ended, told.load(Ordering::Relaxed))
    }

    fn ended() -> Result<(), RunError> {
        Err(RunError::TaskEnded(TaskEnded { group: "the watches", how: "a row that cannot be".to_owned() }))
    }

    #[tokio::test]
    async fn a_panic_or_a_lost_watch_is_reported_and_restarts_the_part() {
        let (ended, told) = outcome([|| panic!("a fact that cannot be"), ended, || Ok(())]).await;
        assert!(ended.is_ok());
        assert_eq!(told, 2);
    }

    #[tokio::test]
    async fn a_permanent_error_ends_it() {
        let replaced = || Err(RunError::Start(StartError::Replaced(tapestry_cluster::Name::parse("east").unwrap())));
        let (ended, told) = outcome([replaced]).await;
        assert!(matches!(ended, Err(RunError::Start(StartError::Replaced(_)))));
        assert_eq!(told, 0);
    }

    #[test]
    fn a_keeper_that_fails_again_and_again_is_tried_again_while_its_leases_hold() {
        use crate::leases::{LEASE_SECONDS, RENEW_EVERY};
        let oldest = RENEW_EVERY * 2;
        // One try may fail, too.
        assert!(oldest + KEEPER_BACKOFF.1 * 2 < Duration::from_secs(u64::from(LEASE_SECONDS)));
    }

    async fn always_panics() -> Result<(), RunError> {
        panic!("always")
    }

    #[tokio::test]
    async fn a_part_that_fails_again_and_again_is_still_stopped() {
        let (stop, runtime) = (CancellationToken::new(), Handle::current());
        let part = Part { name: "test", backoff: BACKOFF, runtime: &runtime, stop: &stop };
        let supervised = part.supervise(always_panics, || stop.cancel());
        let ended = tokio::time::timeout(Duration::from_secs(10), supervised).await.expect("it does not end");
        assert!(ended.is_ok());
    }
}
