//! Everything at once, at random: a user, an owner, a syncer that is killed, and storms on both proxies; then no faults,
//! and everything converges.
//! One seed decides the actions and the faults; their timing depends on the machine.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_domain::capacity::Limit;
use tapestry_domain::quantity::Quantity;
use tapestry_domain::resources::ResourceName;
use tapestry_testbed::builders::{node, pod};
use tapestry_testbed::invariants::ForeignObjects;
use tapestry_testbed::supervisor::Signal;
use tapestry_testbed::{Storm, eventually};
use tokio::time::Instant;

use crate::fixtures::Fixture;
use crate::harness::{Harness, pattern};
use crate::looks::{SOON, annotation, name, phase};
use crate::process::syncer::Process;

/// Names of pods; a name that is free again is used again.
const PODS: usize = 16;
/// A key that failed often waits up to five minutes (`engine::desk`), and a watch half a minute.
const CALM: Duration = Duration::from_mins(6);
const NODES: [&str; 2] = ["storm-0", "storm-1"];

#[tokio::test]
async fn law_08_after_a_storm_on_both_connections_everything_converges() -> Result<()> {
    let lasts = Duration::from_secs(number("TAPESTRY_CHAOS_SECONDS").unwrap_or(60));
    let seed = number("TAPESTRY_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    // To replay the same storm.
    eprintln!("TAPESTRY_CHAOS_SEED={seed} TAPESTRY_CHAOS_SECONDS={}", lasts.as_secs());
    pattern("storm")
        .on(Fixture::West)
        .node(node(NODES[0]))
        .node(node(NODES[1]))
        .policy(|policy| policy.limit("cpu", "6"))
        .through_proxies()
        .run_without(async |harness| {
            let syncer = Process::new(harness, "info,tapestry_cluster=debug")?;
            syncer.start()?;
            let told = tokio::select! {
                told = weather(harness, &syncer, seed, lasts) => told,
                ended = syncer.keep() => ended,
            };
            if told.is_err() {
                let log = std::env::temp_dir().join(format!("tapestry-storm-{seed}.log"));
                std::fs::write(&log, syncer.log()?)?;
                eprintln!("the syncer's whole log is {}", log.display());
            }
            told
        })
        .await
}

async fn weather(harness: &Harness, syncer: &Process, seed: u64, lasts: Duration) -> Result<()> {
    for node in NODES {
        harness.vnode_ready(node).await?;
    }
    let foreign = create_foreign_pods(harness).await?;
    let until = Instant::now() + lasts;
    let (v, p) = (harness.proxy(Side::Virtual), harness.proxy(Side::Physical));
    let mut people = People { harness, syncer, rng: Rng::with_seed(seed), acts: 0, taken: BTreeSet::new() };
    let ((), (), acted) = tokio::join!(
        v.run_storm("virtual", Storm::new(seed), until),
        p.run_storm("physical", Storm::new(seed.wrapping_add(1)), until),
        people.live(until),
    );
    acted?;
    let People { acts, taken, .. } = people;
    eprintln!("{acts} actions; no more faults");
    ensure!(acts > 10, "nothing happened");
    let six = Limit { resource: ResourceName::Cpu, quantity: Quantity::parse("6").ok(), percent: None };
    let began = Instant::now();
    harness.at_peace(&[six], CALM).await?;
    let (vpods, ppods) = (harness.virtual_side.list("v1/Pod", &harness.name).await?, harness.ppods().await?);
    let run = vpods.iter().filter(|vpod| phase(vpod) == "Running").count();
    eprintln!("converged after {:?}: {run} of {} virtual pods run", began.elapsed(), vpods.len());
    let touched = foreign.touched(&ppods);
    ensure!(touched.is_empty(), "{}", touched.join("\n"));
    // Only the owner ended pods.
    for vpod in vpods.iter().filter(|vpod| phase(vpod) == "Failed") {
        let copy = annotation(vpod, keys::PHYSICAL_POD_NAME);
        ensure!(taken.contains(copy), "{} failed, and the owner had not deleted {copy:?}: {vpod}", name(vpod));
    }
    // And it works as at the start.
    harness.virtual_side.create(&harness.bound("afterwards").build()).await?;
    harness.runs("afterwards").await.map(drop)
}

/// Foreign pods in the namespace of the copies: on our nodes, and one that looks like a copy of another origin.
async fn create_foreign_pods(harness: &Harness) -> Result<ForeignObjects> {
    for (number, node) in NODES.into_iter().enumerate() {
        let foreign = pod(&format!("foreign-{number}")).namespace(&harness.mount).on(node).cpu("1");
        harness.physical_side.create(&foreign.tolerate_all().build()).await?;
    }
    let other = pod("other").namespace(&harness.mount).on(NODES[0]).tolerate_all();
    let other = other.label(keys::MANAGED_BY, keys::MANAGED_BY_TAPESTRY).annotation(keys::ORIGIN, "some/body");
    harness.physical_side.create(&other.build()).await?;
    eventually("the foreign pods run", SOON, async || {
        let pods = harness.ppods().await.map_err(|error| error.to_string())?;
        let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
        if run == 3 { Ok(()) } else { Err(format!("{run}")) }
    })
    .await?;
    Ok(ForeignObjects::among(&harness.ppods().await?, &harness.origin().await?))
}

/// The users of the virtual cluster and the owner of the physical one.
struct People<'a> {
    harness: &'a Harness,
    syncer: &'a Process,
    rng: Rng,
    /// How much they did.
    acts: usize,
    /// Names of copies that the owner deleted.
    taken: BTreeSet<String>,
}

impl People<'_> {
    async fn live(&mut self, until: Instant) -> Result<()> {
        // A syncer that is killed every eight seconds or so never reaches a long back-off; the other half of the seeds does.
        let mortal = self.rng.bool();
        while Instant::now() < until {
            if mortal && self.rng.u32(..25) == 0 {
                self.syncer.signal(Signal::Kill)?;
            }
            self.act().await?;
            tokio::time::sleep(Duration::from_millis(self.rng.u64(20..600))).await;
        }
        Ok(())
    }

    async fn act(&mut self) -> Result<()> {
        let (vside, pside) = (&self.harness.virtual_side, &self.harness.physical_side);
        let pod = format!("p{}", self.rng.usize(..PODS));
        let grace = [None, Some(0), Some(1)][self.rng.usize(..3)];
        let grace = DeleteParams { grace_period_seconds: grace, ..Default::default() };
        let acted = match self.rng.u32(..20) {
            0..10 => {
                let (node, cpu) = (NODES[self.rng.usize(..2)], ["100m", "500m", "3"][self.rng.usize(..3)]);
                // The name may be taken.
                vside.create(&self.harness.bound_to(node, &pod).cpu(cpu).build()).await.is_ok()
            }
            10..17 => {
                vside.delete_with("v1/Pod", &self.harness.at(&pod), &grace).await?;
                true
            }
            17 => match self.copy().await? {
                Some(copy) => {
                    pside.delete_with("v1/Pod", &format!("{}/{copy}", self.harness.mount), &grace).await?;
                    self.taken.insert(copy);
                    true
                }
                None => false,
            },
            _ => match self.copy().await? {
                Some(copy) => {
                    let none = |key: &str| (key.to_owned(), Value::Null);
                    let labels = [keys::MANAGED_BY, keys::CLUSTER_BINDING, keys::ORIGIN].map(none);
                    let strip = json!({ "metadata": { "labels": Value::Object(labels.into_iter().collect()) } });
                    // It may be gone by now.
                    pside.patch("v1/Pod", &format!("{}/{copy}", self.harness.mount), &strip).await.is_ok()
                }
                None => false,
            },
        };
        self.acts += usize::from(acted);
        Ok(())
    }

    /// The name of a random copy.
    async fn copy(&mut self) -> Result<Option<String>> {
        let origin = self.harness.origin().await?;
        let copies = self.harness.ppods().await?;
        let ours: Vec<&Value> = copies.iter().filter(|ppod| annotation(ppod, keys::ORIGIN) == origin).collect();
        Ok(self.rng.choice(ours).map(|ppod| name(ppod).to_owned()))
    }
}

#[expect(clippy::disallowed_methods, reason = "a test has no command line of its own")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
