//! The real binary killed at its first write, at its second one, and so on until it has no more to write.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_cluster::Side;
use tapestry_testbed::builders::node;
use tapestry_testbed::eventually;
use tapestry_testbed::proxy::RequestInfo;
use tapestry_testbed::supervisor::Signal;
use tokio::sync::Notify;

use crate::dependents::{copy_when, object, token_volume};
use crate::harness::{Harness, TEST, pattern};
use crate::looks::{SOON, label, phase};
use crate::process::syncer::Process;
use crate::services::{self, service};

/// Kills a syncer at one of its writes, after the server carried it out and before the syncer gets the answer.
struct Reaper {
    syncer: Process,
    round: Mutex<Round>,
    killed: Notify,
}

/// At which write to kill.
#[derive(Clone, PartialEq)]
enum Deadly {
    Never,
    Number(u32),
    /// The first of a sort, such as `create physical pods`.
    Sort(String),
}

/// What has been written in one round, and in all.
struct Round {
    deadly: Deadly,
    writes: u32,
    died: bool,
    /// Sorts of writes seen in any round, and those at which it was killed.
    sorts: BTreeSet<String>,
    deaths: BTreeSet<String>,
}

impl Reaper {
    fn new(syncer: Process) -> Self {
        let (sorts, deaths) = (BTreeSet::new(), BTreeSet::new());
        let round = Round { deadly: Deadly::Never, writes: 0, died: false, sorts, deaths };
        Self { syncer, round: Mutex::new(round), killed: Notify::new() }
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, side: Side, request: &RequestInfo) {
        // Renewals come at any time; if they counted, the n-th write would differ each time.
        if request.resource == "leases" {
            return;
        }
        let mut round = self.round();
        round.writes += 1;
        let sort = format!("{} {} {}", request.verb, side.as_str(), request.resource);
        let deadly = !round.died
            && match &round.deadly {
                Deadly::Never => false,
                Deadly::Number(number) => round.writes == *number,
                Deadly::Sort(deadly) => sort == *deadly,
            };
        eprintln!("write {}: {} {request}{}", round.writes, side.as_str(), if deadly { ": killed" } else { "" });
        round.sorts.insert(sort.clone());
        if deadly {
            round.died = true;
            round.deaths.insert(sort);
            if let Err(error) = self.syncer.signal(Signal::Kill) {
                eprintln!("it was not killed: {error}");
            }
            self.killed.notify_one();
        }
    }

    /// Runs the story to its end, whenever the syncer dies and comes back. Returns whether it died.
    async fn tell(&self, harness: &Harness, number: u32, deadly: Deadly) -> Result<bool> {
        {
            let mut round = self.round();
            (round.deadly, round.writes, round.died) = (deadly, 0, false);
        }
        let mut story = pin!(story(harness, number));
        let over = tokio::select! {
            told = &mut story => told.map(|()| true)?,
            () = self.killed.notified() => false,
        };
        if over {
            let mut round = self.round();
            round.deadly = Deadly::Never;
            if !round.died {
                return Ok(false);
            }
        }
        if over {
            // Killed at the last write, when everything had converged.
            self.killed.notified().await;
        }
        let how = self.syncer.end(Signal::Kill).await?;
        ensure!(how.contains("signal: 9"), "{how}");
        self.syncer.start()?;
        if !over {
            story.await?;
        }
        Ok(true)
    }
}

/// A node is added, and two pods run on it, which share a ConfigMap and a Secret; one has a token as well. ConfigMap, Secret and a
/// label of a pod change; one pod ends by itself, a user deletes the other; the node gets another label; in the end everything has converged.
async fn story(harness: &Harness, number: u32) -> Result<()> {
    let (ends, goes) = (format!("ends-{number}"), format!("goes-{number}"));
    let (place, shared) = (extra_node(number), format!("shared-{number}"));
    for kind in ["ConfigMap", "Secret"] {
        harness.virtual_side.create(&object(harness, kind, &shared, &json!({"a": "1"}))).await?;
    }
    harness.virtual_side.create(&service(harness, &shared, &json!({"type": "LoadBalancer"}))).await?;
    harness.physical_side.create(&node(&place).label(TEST, &harness.name).build()).await?;
    let volumes = [
        json!({"name": "files", "configMap": {"name": shared}}),
        json!({"name": "secret", "secret": {"secretName": shared}}),
        token_volume(),
    ];
    for (pod, volumes) in [(&ends, &volumes[..2]), (&goes, &volumes[..])] {
        harness.virtual_side.create(&harness.bound_to(&place, pod).with("/spec/volumes", volumes).build()).await?;
    }
    let (_, copy) = harness.runs(&ends).await?;
    harness.runs(&goes).await?;
    harness.virtual_side.patch("v1/ConfigMap", &harness.at(&shared), &json!({"data": {"a": "2"}})).await?;
    let follows = |copy: Option<&Value>| copy.is_some_and(|copy| copy["data"]["a"] == "2");
    copy_when(harness, "ConfigMap", &shared, "follows", follows).await?;
    harness.virtual_side.patch("v1/Secret", &harness.at(&shared), &json!({"stringData": {"a": "2"}})).await?;
    let follows = |copy: Option<&Value>| copy.is_some_and(|copy| copy["data"]["a"] == "Mg==");
    copy_when(harness, "Secret", &shared, "follows", follows).await?;
    let blue = json!({"metadata": {"labels": {"colour": "blue"}}});
    harness.virtual_side.patch("v1/Pod", &harness.at(&goes), &blue).await?;
    eventually("the copy has the label", SOON, async || {
        let copies = harness.copies(&goes).await.map_err(|error| error.to_string())?;
        if copies.iter().any(|copy| label(copy, "colour") == "blue") { Ok(()) } else { Err(format!("{copies:?}")) }
    })
    .await?;
    harness
        .virtual_side
        .patch("v1/Service", &harness.at(&shared), &json!({"spec": {"sessionAffinity": "ClientIP"}}))
        .await?;
    let followed = |copy: Option<&Value>| copy.is_some_and(|copy| copy["spec"]["sessionAffinity"] == "ClientIP");
    services::copy_when(harness, &shared, "follows", followed).await?;
    services::play_cloud(harness, &shared, "192.0.2.1").await?;
    harness.play_ended(&copy, 0).await?;
    harness.virtual_side.delete("v1/Pod", &harness.at(&goes)).await?;
    let ended = |vpod: &Value| phase(vpod) == "Succeeded";
    harness.vpod_when(&ends, "has ended", ended).await?;
    harness.gone(&goes).await?;
    harness.virtual_side.delete("v1/Pod", &harness.at(&ends)).await?;
    harness.gone(&ends).await?;
    for kind in ["ConfigMap", "Secret"] {
        copy_when(harness, kind, &shared, "is gone with its last pod", |copy| copy.is_none()).await?;
    }
    services::addresses_are(harness, &harness.at(&shared), &["192.0.2.1"]).await?;
    harness.virtual_side.delete("v1/Service", &harness.at(&shared)).await?;
    services::copy_when(harness, &shared, "goes with its Service", |copy| copy.is_none()).await?;
    harness.vnode_ready(&place).await?;
    // Whether a virtual node is patched in other rounds depends on which of its conditions come first.
    harness.physical_side.patch("v1/Node", &place, &json!({"metadata": {"labels": {"zone": "other"}}})).await?;
    harness.vnode_when(&place, "has the label", |vnode| label(vnode, "zone") == "other").await?;
    harness.at_peace(&[], SOON).await
}

/// One for each round, because removing a node takes a minute.
fn extra_node(number: u32) -> String {
    format!("every-write-{number}")
}

#[tokio::test]
async fn law_08_a_syncer_killed_at_any_write_converges_without_duplicate_or_orphan() -> Result<()> {
    pattern("every-write")
        .binding(|binding| binding.with("/spec/serviceNamespaces", json!(["every-write"])))
        .through_proxies()
        .run_without(async |harness| {
            let reaper = Arc::new(Reaper::new(Process::new(harness, "info,tapestry_cluster=debug")?));
            for side in Side::BOTH {
                let reaper = Arc::clone(&reaper);
                harness.proxy(side).after_each_write(move |request| reaper.note(side, request));
            }
            reaper.syncer.start()?;
            reaper.syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            let mut number = 1;
            while reaper.tell(harness, number, Deadly::Number(number)).await? {
                number += 1;
                ensure!(number < 80, "the story has no end");
            }
            // The order of writes varies: kill it at the sorts of writes that were not yet hit.
            let missed: Vec<String> = {
                let round = reaper.round();
                round.sorts.difference(&round.deaths).cloned().collect()
            };
            for sort in missed {
                number += 1;
                reaper.tell(harness, number, Deadly::Sort(sort)).await?;
            }
            for number in 1..=number {
                harness.physical_side.delete("v1/Node", &extra_node(number)).await?;
            }
            reaper.syncer.end(Signal::Terminate).await?;
            let deaths = &reaper.round().deaths;
            for sort in [
                "create virtual nodes",
                "patch virtual nodes",
                "patch virtual pods",
                "create physical pods",
                "patch physical pods",
                "delete physical pods",
                "delete virtual pods",
                "create physical configmaps",
                "patch physical configmaps",
                "delete physical configmaps",
                "create physical secrets",
                "patch physical secrets",
                "delete physical secrets",
                "create physical services",
                "patch physical services",
                "delete physical services",
                "patch virtual services",
            ] {
                ensure!(deaths.contains(sort), "never killed at {sort:?}: {deaths:?}");
            }
            Ok(())
        })
        .await
}
