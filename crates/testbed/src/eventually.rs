//! Waits for a condition with a deadline; tests use it instead of sleeping.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout_at};

/// Calls `look` until it returns Ok, and returns its value. `look` returns Err with what it saw instead, which ends the
/// error message: "not within 20s: the pod runs; last seen: phase Pending".
///
/// Takes `async || …` and `|| async { … }`. Not `AsyncFnMut`, because a future that calls one cannot be shown to be `Send`.
pub async fn eventually<T, Look>(what: &str, deadline: Duration, mut look: impl FnMut() -> Look) -> Result<T>
where
    Look: Future<Output = Result<T, String>>,
{
    let end = Instant::now() + deadline;
    // Short at first, because most things happen at once; then slow enough to leave the cores to others.
    let mut pause = Duration::from_millis(20);
    let mut seen = String::from("nothing, the first check has not returned");
    loop {
        match timeout_at(end, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(other)) => seen = other,
            Err(_) => bail!("not within {deadline:?}: {what}; last seen: {seen}"),
        }
        if Instant::now() + pause >= end {
            bail!("not within {deadline:?}: {what}; last seen: {seen}");
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn returns_what_was_found() {
        let looks = AtomicU32::new(1);
        let found = eventually("third look", Duration::from_secs(5), async || {
            let look = looks.fetch_add(1, Ordering::Relaxed);
            if look == 3 { Ok(look) } else { Err(format!("look {look}")) }
        })
        .await
        .unwrap();
        assert_eq!(found, 3);
    }

    #[tokio::test]
    async fn fails_with_what_was_last_seen() {
        let failed =
            eventually("a miracle", Duration::from_millis(50), async || Err::<(), _>("water".to_owned())).await;
        assert_eq!(failed.unwrap_err().to_string(), "not within 50ms: a miracle; last seen: water");
    }

    #[tokio::test]
    async fn fails_when_a_look_hangs() {
        let failed = eventually("an answer", Duration::from_millis(50), async || {
            std::future::pending::<Result<(), String>>().await
        })
        .await;
        assert!(failed.is_err());
    }
}
