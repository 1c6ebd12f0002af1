//! Pods of others come, stay until all were noticed, and go: how soon the virtual nodes say so, and at what price.
//! Must change one node at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tapestry_cluster::Call;
use tapestry_cluster::gate::carry_out;
use tapestry_domain::quantity::Quantity;
use tokio::time::{MissedTickBehavior, interval};

use super::crowd::{POD_CPU, create, delete};
use super::lookout::Lookout;
use crate::figures::Spread;
use crate::figures::scale::{Changes, NodeWrites, Rested, at_rest};
use crate::load::CONCURRENCY;
use crate::scene::Phase;
use crate::stage::Stage;
use crate::subject::Subject;

/// How long noticing the last change may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// So many pods, so many per second.
pub(super) struct Visits {
    pub(super) count: u32,
    pub(super) rate: u32,
}

impl Visits {
    /// Lets them come and go. What the syncer took at rest is not the changes' price.
    pub(super) async fn play(&self, stage: &Stage, subject: &Subject<'_>, rest: Option<&Rested>) -> Result<Changes> {
        let lookout = Lookout::open(&stage.clients[0], &stage.vnodes).await?;
        let cpu = Quantity::parse(POD_CPU)?.nano();
        let phase = Phase::begin(stage, subject).await?;
        let come = |index: u32| create(&visitor(index), self.node(stage, index));
        let come = self.carry(stage, &lookout, -cpu, come).await?;
        let gone = self.carry(stage, &lookout, cpu, |index: u32| delete(&visitor(index))).await?;
        let (calls, cost, requests) = phase.tell_all(1).await?;
        let changed: BTreeSet<&str> =
            (0..self.count).map(|index| stage.vnodes[self.node(stage, index)].as_str()).collect();
        let spent = &cost.spent;
        let price = Duration::from_millis(spent.subject_ms).as_secs_f64() * 1000.0 - at_rest(rest, spent.wall);
        Ok(Changes {
            count: 2 * self.count,
            rate: self.rate,
            come: Spread::of(come),
            gone: Spread::of(gone),
            cpu_ms_per_change: price / f64::from(2 * self.count.max(1)),
            memory: cost.memory,
            writes: NodeWrites::of(&requests[0], &changed),
            calls,
            others_percent: spent.others_percent,
        })
    }

    /// Nodes far apart, each as often as the others.
    fn node(&self, stage: &Stage, index: u32) -> usize {
        let stride = (stage.vnodes.len() / self.count.max(1) as usize).max(1);
        index as usize * stride % stage.vnodes.len()
    }

    /// Makes all the changes at the rate, and waits until every node says so.
    async fn carry(
        &self,
        stage: &Stage,
        lookout: &Lookout,
        change: i128,
        call: impl Fn(u32) -> Result<Call>,
    ) -> Result<Vec<Duration>> {
        let client = &stage.clients[1];
        let mut ticks = interval(Duration::from_secs(1) / self.rate.max(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let paced = stream::unfold((ticks, 0..self.count), async |(mut ticks, mut indices)| {
            ticks.tick().await;
            Some((indices.next()?, (ticks, indices)))
        });
        let change = |index: u32| {
            let call = call(index);
            async move {
                let call = call?;
                let expected = lookout.expect(&stage.vnodes[self.node(stage, index)], change);
                carry_out(client, &call).await.map_err(|refusal| anyhow!("{call}: {}", refusal.message()))?;
                lookout.note_answered(expected);
                anyhow::Ok(())
            }
        };
        paced.map(change).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
        lookout.all_seen(PATIENCE).await
    }
}

fn visitor(index: u32) -> String {
    format!("visitor-{index}")
}
