//! Follows the kubeconfig in the Secret that the binding names: a new one is taken over in place, without losing a pod.
//! A broken one is reported and not used; one that leads to another cluster stops everything (law 1). Keeps a fingerprint of
//! the kubeconfig and never its text. Reads the Secret by name: to watch it would take the right to list all kubeconfigs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tapestry_cluster::{Cluster, Uid};
use tokio_util::sync::CancellationToken;

use super::{AGAIN, StartError, Syncer};
use crate::keeper::Trouble;

/// How often the Secret is read.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What became of the kubeconfig in the Secret.
enum Outcome {
    /// It is the one in use.
    Current,
    /// It was taken over, with this fingerprint.
    Taken(u64),
    /// It leads to another cluster.
    Elsewhere(Uid),
    /// It cannot be used.
    Broken(StartError),
    /// The binding or the virtual cluster does not say which one it is.
    Unknown,
    /// Another binding has our name: ours is gone.
    Replaced,
}

impl Syncer {
    /// Follows the Secret until stopped. `digest` is the fingerprint of the kubeconfig in use.
    pub(super) async fn follow_kubeconfig(self: Arc<Self>, cluster: Cluster, mut digest: u64, stop: CancellationToken) {
        // A binding that says something else may name another Secret.
        let mut generation = self.generation.subscribe();
        let mut failures = 0;
        while !stop.is_cancelled() {
            let outcome = self.try_kubeconfig(&cluster, digest).await;
            let trouble = match outcome {
                Outcome::Current => {
                    cluster.set_elsewhere(None);
                    None
                }
                Outcome::Taken(next) => {
                    tracing::info!("the kubeconfig in the Secret has changed: it is in use from now on");
                    digest = next;
                    None
                }
                Outcome::Elsewhere(other) => {
                    let message = format!(
                        "the kubeconfig in the Secret leads to cluster {other}, which is not the one this binding was made for: nothing is written; put the right one back"
                    );
                    cluster.set_elsewhere(Some(other));
                    Some(Trouble { reason: "PhysicalClusterChanged", message, generation: None })
                }
                Outcome::Broken(why) => {
                    let message = tell_broken(cluster.elsewhere().as_ref(), &why);
                    Some(Trouble { reason: why.reason(), message, generation: None })
                }
                Outcome::Unknown => self.kubeconfig.borrow().clone(),
                // The keeper's watch shows it too, but after a long absence of the binding's definition its back-off is long.
                Outcome::Replaced => {
                    self.replaced.store(true, Ordering::Relaxed);
                    return stop.cancel();
                }
            };
            failures = if trouble.is_some() { failures + 1 } else { 0 };
            if self.tell_kubeconfig(trouble) {
                failures = failures.min(1);
            }
            let wait = match failures {
                0 => LOOK_EVERY,
                some => (AGAIN.0 * 2u32.saturating_pow(some - 1)).min(LOOK_EVERY),
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                Ok(()) = generation.changed() => {}
            }
        }
    }

    /// Says whether it is news.
    fn tell_kubeconfig(&self, trouble: Option<Trouble>) -> bool {
        self.kubeconfig.send_if_modified(|known| {
            if *known == trouble {
                return false;
            }
            if let Some(Trouble { reason, message, .. }) = &trouble {
                tracing::warn!(reason, cause = message, "the kubeconfig in the Secret is not in use");
            }
            *known = trouble;
            true
        })
    }

    async fn try_kubeconfig(&self, cluster: &Cluster, digest: u64) -> Outcome {
        // What is wrong with the binding itself is reported elsewhere; what it said before stays in force.
        let row = match self.read_own_binding().await {
            Ok(row) => row,
            Err(StartError::Replaced(_)) => return Outcome::Replaced,
            Err(_) => return Outcome::Unknown,
        };
        let Ok(binding) = self.require_valid(&row) else { return Outcome::Unknown };
        let found = match self.find_kubeconfig(binding).await {
            Ok(found) if found.digest() == digest => return Outcome::Current,
            Ok(found) => found,
            Err(StartError::Unanswered { .. }) => return Outcome::Unknown,
            Err(why) => return Outcome::Broken(why),
        };
        let next = match found.connect(binding).await {
            Ok(next) => next,
            Err(why) => return Outcome::Broken(why),
        };
        match next.ask_identity().await {
            Err(why) => Outcome::Broken(StartError::ConnectPhysical(why)),
            Ok(other) if cluster.identity().is_some_and(|pinned| *pinned != other) => Outcome::Elsewhere(other),
            Ok(_) => {
                cluster.reach_as(&next);
                Outcome::Taken(found.digest())
            }
        }
    }
}

/// What becomes of us while the kubeconfig in the Secret cannot be used. Where the one before it led to another cluster, that
/// stays as it is until a usable one says otherwise: the right one has not been put back.
fn tell_broken(elsewhere: Option<&Uid>, why: &StartError) -> String {
    let why = why.tell_kubeconfig();
    match elsewhere {
        None => format!("the kubeconfig in the Secret is not used and the current connection stays: {why}"),
        Some(other) => format!(
            "nothing is written, because the kubeconfig before this one led to cluster {other}, which is not the one this binding was made for, and this one cannot be used: {why}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_kubeconfig_after_one_of_another_cluster_does_not_claim_that_a_connection_is_in_use() {
        let why = StartError::ReadSecret { what: "Secret t/s".to_owned(), why: "it has no key".to_owned() };
        let kept = tell_broken(None, &why);
        assert!(kept.contains("current connection stays") && kept.contains("it has no key"), "{kept}");
        let stopped = tell_broken(Some(&Uid::new("other")), &why);
        assert!(stopped.contains("nothing is written") && stopped.contains("cluster other"), "{stopped}");
        assert!(!stopped.contains("stays") && stopped.contains("it has no key"), "{stopped}");
    }
}
