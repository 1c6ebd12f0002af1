//! The real binary killed at its first write, at its second one, and so on until it has no more to write.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use serde_json::Value;
use tapestry_cluster::Side;
use tapestry_testbed::builders::node;
use tapestry_testbed::line::Asked;
use tapestry_testbed::supervisor::Signal;
use tokio::sync::Notify;

use crate::looks::{SOON, phase};
use crate::loom::{Loom, TEST, pattern};
use crate::process::syncer::Process;

/// Counts writes of one round, and kills at one of them.
struct Count {
    writes: AtomicU32,
    deadly: AtomicU32,
    killed: Notify,
}

impl Count {
    fn begin(&self, deadly: u32) {
        self.writes.store(0, Ordering::Relaxed);
        self.deadly.store(deadly, Ordering::Relaxed);
    }

    fn reached(&self) -> bool {
        self.writes.load(Ordering::Relaxed) >= self.deadly.load(Ordering::Relaxed)
    }

    /// A write was carried out, and the syncer does not know it yet.
    fn note(&self, asked: &Asked, syncer: &Process) {
        // Leases come when they like; a story that counts them has no n-th write.
        if asked.resource == "leases" {
            return;
        }
        let number = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        if number == self.deadly.load(Ordering::Relaxed) {
            eprintln!("write {number}: {asked}: killed");
            if let Err(error) = syncer.signal(Signal::Kill) {
                eprintln!("it was not killed: {error}");
            }
            self.killed.notify_one();
        }
    }
}

/// A node comes, and two pods onto it; one ends by itself, the other is deleted; in the end nothing is left but peace.
async fn story(loom: &Loom, round: u32) -> Result<()> {
    let (ends, goes) = (format!("ends-{round}"), format!("goes-{round}"));
    let place = extra_node(round);
    loom.physical_side.create(&node(&place).label(TEST, &loom.name).build()).await?;
    for pod in [&ends, &goes] {
        loom.virtual_side.create(&loom.bound_to(&place, pod).build()).await?;
    }
    let (_, copy) = loom.runs(&ends).await?;
    loom.runs(&goes).await?;
    loom.play_ended(&copy, 0).await?;
    loom.virtual_side.delete("v1/Pod", &loom.at(&goes)).await?;
    let ended = |vpod: &Value| phase(vpod) == "Succeeded";
    loom.vpod_when(&ends, "has ended", ended).await?;
    loom.gone(&goes).await?;
    loom.virtual_side.delete("v1/Pod", &loom.at(&ends)).await?;
    loom.gone(&ends).await?;
    loom.vnode_ready(&place).await?;
    loom.at_peace(&[], SOON).await
}

/// One for each round, because a node takes a minute to go.
fn extra_node(round: u32) -> String {
    format!("every-write-{round}")
}

#[tokio::test]
async fn law_08_a_syncer_killed_at_any_write_converges_without_duplicate_or_orphan() -> Result<()> {
    pattern("every-write")
        .through_lines()
        .run_without(async |loom| {
            let syncer = Arc::new(Process::new(loom, "info,tapestry_cluster=debug")?);
            let count = Arc::new(Count {
                writes: AtomicU32::new(0),
                // None, while it makes itself at home.
                deadly: AtomicU32::new(u32::MAX),
                killed: Notify::new(),
            });
            for side in Side::BOTH {
                let (syncer, count) = (Arc::clone(&syncer), Arc::clone(&count));
                loom.line(side).after_each_write(move |asked| count.note(asked, &syncer));
            }
            syncer.start()?;
            syncer.ready().await?;
            loom.vnode_ready(loom.node()).await?;
            for round in 1.. {
                count.begin(round);
                let mut story = pin!(story(loom, round));
                let over = tokio::select! {
                    told = &mut story => told.map(|()| true)?,
                    () = count.killed.notified() => false,
                };
                if !over {
                    let how = syncer.end(Signal::Kill).await?;
                    ensure!(how.contains("signal: 9"), "{how}");
                    syncer.start()?;
                    story.await?;
                } else if count.reached() {
                    // Killed at the very last write, when everything was as it must be.
                    count.killed.notified().await;
                    syncer.end(Signal::Kill).await?;
                    syncer.start()?;
                }
                if !count.reached() {
                    eprintln!("{} writes in all", round - 1);
                    // The node, then map, create and status of two pods, one deletion and one release each.
                    ensure!(round > 11, "the story is too short");
                    break;
                }
                ensure!(round < 60, "the story has no end");
            }
            for round in 1..60 {
                loom.physical_side.delete("v1/Node", &extra_node(round)).await?;
            }
            syncer.end(Signal::Terminate).await.map(drop)
        })
        .await
}
