//! Makes and deletes virtual pods, in a burst or at a rate. Must not wait for anything but the API server's answers:
//! a load that waits for its pods measures itself.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use serde_json::json;
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::{Call, Cluster, Name, Refusal, Side, Target, Verb, kind};
use tapestry_testbed::builders::pod;
use tokio::time::{MissedTickBehavior, interval};

use crate::observers::{LABEL, Observers};
use crate::sources::Dependents;

/// The virtual namespace of all pods.
pub(crate) const NAMESPACE: &str = "bench";
/// Requests of the load in flight.
pub(crate) const CONCURRENCY: usize = 50;

/// How many pods, how fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Load {
    /// Pods.
    pub(crate) pods: u32,
    /// Per second; 0: as fast as the API server takes them.
    pub(crate) rate: u32,
    /// Counted from 1: the same load again.
    pub(crate) round: u32,
    /// How many percent the rate is of what bare reached in a burst of the same run; `None`: it was given in pods per second.
    pub(crate) share: Option<u32>,
    /// Milliseconds of a round trip between the subject and the physical cluster, besides loopback's own.
    pub(crate) rtt_ms: u64,
    /// What each pod names.
    pub(crate) dependents: Dependents,
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rate {
            0 => write!(f, "burst {}", self.pods)?,
            rate => write!(f, "{rate}/s, {}", self.pods)?,
        }
        if let Some(share) = self.share {
            write!(f, " ({share} %)")?;
        }
        if self.rtt_ms > 0 {
            write!(f, " over {} ms", self.rtt_ms)?;
        }
        f.write_str(self.dependents.name())?;
        if self.round > 1 { write!(f, ", round {}", self.round) } else { Ok(()) }
    }
}

impl Load {
    /// As many pods as the API server takes.
    pub(crate) fn burst(pods: u32) -> Self {
        Self { pods, rate: 0, round: 1, share: None, rtt_ms: 0, dependents: Dependents::None }
    }

    /// The same in every round.
    pub(crate) fn without_round(self) -> Self {
        Self { round: 1, ..self }
    }

    /// How long carrying it may take at most: what the load itself takes, a minute, and a second for each ten pods.
    pub(crate) fn deadline(self) -> Duration {
        let making = self.pods.checked_div(self.rate).unwrap_or(0);
        Duration::from_secs(u64::from(60 + making + self.pods / 10))
    }

    /// Creates the pods of this run, bound to `vnodes` in turn; gives the moment before the first request.
    pub(crate) async fn create(
        self,
        run: u32,
        cluster: &Cluster,
        vnodes: &[String],
        observers: &Observers,
    ) -> Result<Instant> {
        observers.begin(run, self.pods as usize);
        let calls: Vec<Call> = vnodes
            .iter()
            .cycle()
            .zip(0..self.pods)
            .map(|(vnode, index)| create(run, index, vnode, self.dependents))
            .collect::<Result<_>>()?;
        let begin = Instant::now();
        let mut ticks = (self.rate > 0).then(|| interval(Duration::from_secs(1) / self.rate));
        if let Some(ticks) = &mut ticks {
            // A late pod does not delay those after it.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        }
        let paced = stream::unfold((ticks, calls.into_iter().enumerate()), async |(mut ticks, mut calls)| {
            if let Some(ticks) = &mut ticks {
                ticks.tick().await;
            }
            Some((calls.next()?, (ticks, calls)))
        });
        let create = |(index, call): (usize, Call)| async move {
            match carry_out(cluster, &call).await {
                Ok(_) => observers.note_created(index),
                Err(refusal) => bail!("{call}: {}", refusal.message()),
            }
            Ok(())
        };
        paced.map(create).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
        Ok(begin)
    }

    /// Asks for the deletion of all of them, as fast as the API server takes it, with the pods' own grace period.
    pub(crate) async fn delete(self, run: u32, cluster: &Cluster) -> Result<()> {
        let delete = |index: u32| async move {
            let target = Target::namespaced(Side::Virtual, &kind::POD, Name::parse(NAMESPACE)?, name(run, index)?);
            let call = Call { target, verb: Verb::Delete { grace: None }, why: "Load" };
            match carry_out(cluster, &call).await {
                Ok(_) | Err(Refusal::Gone) => Ok(()),
                Err(refusal) => bail!("{call}: {}", refusal.message()),
            }
        };
        stream::iter(0..self.pods).map(delete).buffer_unordered(CONCURRENCY).try_collect::<()>().await
    }
}

fn create(run: u32, index: u32, vnode: &str, dependents: Dependents) -> Result<Call> {
    let name = name(run, index)?;
    let mut pod = pod(name.as_str())
        .namespace(NAMESPACE)
        .on(vnode)
        .cpu("10m")
        .tolerate_all()
        .label(LABEL, &format!("{run}-{index}"))
        .with("/spec/automountServiceAccountToken", false);
    if let Some(named) = dependents.of_pod(run, index) {
        let volumes = json!([
            { "name": "config", "configMap": { "name": named } },
            { "name": "secret", "secret": { "secretName": named } },
        ]);
        let mounts = json!([
            { "name": "config", "mountPath": "/etc/bench" },
            { "name": "secret", "mountPath": "/etc/bench-secret", "readOnly": true },
        ]);
        pod = pod.with("/spec/volumes", volumes).with("/spec/containers/0/volumeMounts", mounts);
    }
    let body = pod.build();
    let target = Target::namespaced(Side::Virtual, &kind::POD, Name::parse(NAMESPACE)?, name);
    Ok(Call { target, verb: Verb::Create(body), why: "Load" })
}

fn name(run: u32, index: u32) -> Result<Name> {
    Ok(Name::parse(&format!("bench-{run}-{index:05}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_load_has_the_time_it_needs() {
        assert_eq!(Load::burst(1000).deadline(), Duration::from_secs(160));
        assert_eq!(Load { rate: 20, ..Load::burst(600) }.deadline(), Duration::from_secs(150));
    }
}
