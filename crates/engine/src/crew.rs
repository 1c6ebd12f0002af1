//! The tasks without which work is worthless: watches, probes, the election. One that ends before its time ends the work.
//! Starts none of them and knows nothing of what they do.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A task that others rely on is not there any more. Whoever goes on without it believes what has long ceased to be true.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{crew} ended before their time: {how}")]
pub struct Deserted {
    /// Whose task it was.
    pub crew: &'static str,
    /// How it ended.
    pub how: String,
}

/// Does the work to its end. When one of these tasks ends although `stop` is not cancelled, cancels it, lets the work end in
/// good order, and tells who is missing.
pub async fn work_with<T>(
    work: impl Future<Output = T>,
    mut crews: Vec<(&'static str, &mut JoinSet<()>)>,
    stop: &CancellationToken,
) -> Result<T, Deserted> {
    let mut work = pin!(work);
    let deserted = tokio::select! {
        done = &mut work => return Ok(done),
        deserted = first_to_go(&mut crews, stop) => deserted,
    };
    tracing::error!(%deserted, "stopping: nobody would notice what happens from now on");
    stop.cancel();
    work.await;
    Err(deserted)
}

async fn first_to_go(crews: &mut [(&'static str, &mut JoinSet<()>)], stop: &CancellationToken) -> Deserted {
    poll_fn(|context| {
        for (crew, tasks) in &mut *crews {
            while let Poll::Ready(Some(ended)) = tasks.poll_join_next(context) {
                // When the work stops, so do they.
                if !stop.is_cancelled() {
                    let how = ended.map_or_else(|error| error.to_string(), |()| "nobody asked for it".to_owned());
                    return Poll::Ready(Deserted { crew, how });
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

    /// What the work and the crew are told to do, and what comes of it.
    async fn outcome(task: impl Future<Output = ()> + Send + 'static) -> Result<&'static str, Deserted> {
        let (stop, mut none, mut some) = (CancellationToken::new(), JoinSet::new(), JoinSet::new());
        some.spawn(pending());
        some.spawn(task);
        let work = async {
            stop.cancelled().await;
            "in good order"
        };
        let crews = vec![("nobody", &mut none), ("the watches", &mut some)];
        let limit = std::time::Duration::from_secs(10);
        tokio::time::timeout(limit, work_with(work, crews, &stop)).await.expect("the work goes on")
    }

    #[tokio::test]
    async fn a_task_that_panics_or_ends_early_ends_the_work() {
        let deserted = outcome(async { panic!("a row that cannot be") }).await.unwrap_err();
        assert_eq!(deserted.crew, "the watches");
        assert!(deserted.how.contains("a row that cannot be"), "{deserted}");
        assert_eq!(outcome(async {}).await.unwrap_err().how, "nobody asked for it");
    }

    #[tokio::test]
    async fn tasks_that_end_because_the_work_stops_are_no_deserters() {
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
            "in good order"
        };
        assert_eq!(work_with(work, vec![("the watches", &mut tasks)], &stop).await, Ok("in good order"));
    }
}
