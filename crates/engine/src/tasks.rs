//! The tasks that work depends on: watches, probes, the election. If one ends early, the work ends.
//! Starts none of them and knows nothing of what they do.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A task that others rely on has ended. Work that continues without it would use stale tables.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{group} ended early: {how}")]
pub struct TaskEnded {
    /// Whose task it was.
    pub group: &'static str,
    /// How it ended.
    pub how: String,
}

/// Runs the work to its end. When one of these tasks ends although `stop` is not cancelled, cancels `stop`, lets the work
/// exit cleanly, and returns which task ended.
pub async fn work_with<T>(
    work: impl Future<Output = T>,
    mut groups: Vec<(&'static str, &mut JoinSet<()>)>,
    stop: &CancellationToken,
) -> Result<T, TaskEnded> {
    let mut work = pin!(work);
    let ended = tokio::select! {
        done = &mut work => return Ok(done),
        ended = first_to_go(&mut groups, stop) => ended,
    };
    tracing::error!(%ended, "stopping: without this task the tables would be stale");
    stop.cancel();
    work.await;
    Err(ended)
}

async fn first_to_go(groups: &mut [(&'static str, &mut JoinSet<()>)], stop: &CancellationToken) -> TaskEnded {
    poll_fn(|context| {
        for (group, tasks) in &mut *groups {
            while let Poll::Ready(Some(ended)) = tasks.poll_join_next(context) {
                // When the work stops, so do they.
                if !stop.is_cancelled() {
                    let how = ended.map_or_else(|error| error.to_string(), |()| "the task returned".to_owned());
                    return Poll::Ready(TaskEnded { group, how });
                }
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// The result of work that depends on this task.
    async fn outcome(task: impl Future<Output = ()> + Send + 'static) -> Result<&'static str, TaskEnded> {
        let (stop, mut none, mut some) = (CancellationToken::new(), JoinSet::new(), JoinSet::new());
        some.spawn(pending());
        some.spawn(task);
        let work = async {
            stop.cancelled().await;
            "clean exit"
        };
        let groups = vec![("no tasks", &mut none), ("the watches", &mut some)];
        let limit = std::time::Duration::from_secs(10);
        tokio::time::timeout(limit, work_with(work, groups, &stop)).await.expect("the work goes on")
    }

    #[tokio::test]
    async fn a_task_that_panics_or_ends_early_ends_the_work() {
        let ended = outcome(async { panic!("a row that cannot be") }).await.unwrap_err();
        assert_eq!(ended.group, "the watches");
        assert!(ended.how.contains("a row that cannot be"), "{ended}");
        assert_eq!(outcome(async {}).await.unwrap_err().how, "the task returned");
    }

    #[tokio::test]
    async fn tasks_that_end_because_the_work_stops_are_no_failure() {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            tasks.spawn(stop.clone().cancelled_owned());
        }
        stop.cancel();
        let work = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            "clean exit"
        };
        assert_eq!(work_with(work, vec![("the watches", &mut tasks)], &stop).await, Ok("clean exit"));
    }
}
