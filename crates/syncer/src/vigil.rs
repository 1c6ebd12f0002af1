//! What is kept up while the physical cluster cannot be had, because the binding or its kubeconfig is unusable: the Leases of
//! our virtual nodes, so that running pods are not taken for dead, and one condition that says what to change.
//! Writes nothing else. A process that ended instead would be started again and again, and every node would die with it.

use std::sync::Arc;
use std::time::Duration;

use tapestry_api::keys;
use tapestry_cluster::gate::LiveGate;
use tapestry_engine::Desk;
use tapestry_engine::crew::{Deserted, work_with};
use tapestry_engine::lead::Leadership;
use tapestry_engine::run::run;
use tokio::task::JoinSet;

use crate::letters::HomeLetters;
use crate::origin::Home;
use crate::pair::Pair;
use crate::start::{Physical, Post, StartError, entropy};

/// How often it is tried again: first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

impl Post {
    /// Keeps vigil until trying again ends in another way than this; `None` when cancelled.
    pub(crate) async fn keep_vigil(
        &self,
        why: &StartError,
        leadership: &Leadership,
        office: &mut JoinSet<()>,
    ) -> Result<Option<Result<Physical, StartError>>, Deserted> {
        let message = why.told();
        tracing::error!(binding = %self.name, reason = why.reason(), message, "the physical cluster cannot be had: only Leases are kept");
        let stop = self.cancel.child_token();
        let mut tasks = JoinSet::new();
        // Where our objects are may be just what the binding does not say; nothing here looks for them.
        let Ok(nowhere) = Home::new("", keys::NAMESPACE) else { return Ok(None) };
        let inbox = HomeLetters::open(&self.name, &self.origin, &nowhere, &self.virtual_cluster, &stop, &mut tasks);
        let pair = Pair::new(self.origin.clone(), nowhere, &self.uid, Box::new(entropy)).lacking(why.reason(), message);
        let gate = Arc::new(LiveGate::to_virtual(self.virtual_cluster.clone(), self.calls.clone()));
        let desk = Desk::new(pair, fastrand::u64(..));
        let show = |desk: &Desk<Pair>| self.show(desk);
        let work = Box::pin(run(desk, gate, inbox, Arc::clone(&self.clock), leadership.clone(), show, stop.clone()));
        let crews = vec![("the watches and probes", &mut tasks), ("the election", office)];
        let try_again = async {
            let next = stop.run_until_cancelled(self.try_again(why)).await;
            stop.cancel();
            next
        };
        let (worked, next) = tokio::join!(work_with(work, crews, &stop), try_again);
        tasks.shutdown().await;
        worked.map(|_| next)
    }

    async fn try_again(&self, why: &StartError) -> Result<Physical, StartError> {
        let mut wait = AGAIN.0;
        loop {
            tokio::time::sleep(wait).await;
            match self.connect().await {
                Err(again) if again.told() == why.told() => wait = (wait * 2).min(AGAIN.1),
                // Says nothing of what was wrong before.
                Err(StartError::Unanswered { .. }) => {}
                other => return other,
            }
        }
    }
}
