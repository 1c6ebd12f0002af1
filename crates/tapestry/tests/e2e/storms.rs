//! Everything at once, by chance: a user, an owner, a syncer that is killed, and storms on both lines; then peace, and
//! everything is as it must be.
//! One seed decides what is done and what goes wrong; how the two meet is up to the machine.

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
use tapestry_testbed::invariants::Strangers;
use tapestry_testbed::supervisor::Signal;
use tapestry_testbed::{Storm, eventually};
use tokio::time::Instant;

use crate::grounds::Ground;
use crate::looks::{SOON, annotation, name, phase};
use crate::loom::{Loom, pattern};
use crate::process::syncer::Process;

/// Names of pods; a name that is free again is used again.
const PODS: usize = 16;
/// Who failed again and again waits up to five minutes (`engine::desk`), and a watch half a minute.
const CALM: Duration = Duration::from_mins(6);
const NODES: [&str; 2] = ["storm-0", "storm-1"];

#[tokio::test]
async fn law_08_after_a_storm_on_both_lines_everything_is_as_it_must_be() -> Result<()> {
    let lasts = Duration::from_secs(number("TAPESTRY_CHAOS_SECONDS").unwrap_or(60));
    let seed = number("TAPESTRY_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    // For whoever wants to see the same storm again.
    eprintln!("TAPESTRY_CHAOS_SEED={seed} TAPESTRY_CHAOS_SECONDS={}", lasts.as_secs());
    pattern("storm")
        .on(Ground::West)
        .node(node(NODES[0]))
        .node(node(NODES[1]))
        .policy(|policy| policy.limit("cpu", "6"))
        .through_lines()
        .run_without(async |loom| {
            let syncer = Process::new(loom, "info,tapestry_cluster=debug")?;
            syncer.start()?;
            let told = tokio::select! {
                told = weather(loom, &syncer, seed, lasts) => told,
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

async fn weather(loom: &Loom, syncer: &Process, seed: u64, lasts: Duration) -> Result<()> {
    for node in NODES {
        loom.vnode_ready(node).await?;
    }
    let lodgers = lodge(loom).await?;
    let until = Instant::now() + lasts;
    let (v, p) = (loom.line(Side::Virtual), loom.line(Side::Physical));
    let ((), (), acts) = tokio::join!(
        v.rage("virtual", Storm::new(seed), until),
        p.rage("physical", Storm::new(seed.wrapping_add(1)), until),
        people(loom, syncer, Rng::with_seed(seed), until),
    );
    let acts = acts?;
    eprintln!("{acts} acts; peace");
    ensure!(acts > 10, "nothing happened");
    let six = Limit { resource: ResourceName::Cpu, quantity: Quantity::parse("6").ok(), percent: None };
    let began = Instant::now();
    loom.at_peace(&[six], CALM).await?;
    let (vpods, ppods) = (loom.virtual_side.list("v1/Pod", &loom.name).await?, loom.ppods().await?);
    let run = vpods.iter().filter(|vpod| phase(vpod) == "Running").count();
    eprintln!("at peace after {:?}: {run} of {} virtual pods run", began.elapsed(), vpods.len());
    let touched = lodgers.touched(&ppods);
    ensure!(touched.is_empty(), "{}", touched.join("\n"));
    // And it works as on the first day.
    loom.virtual_side.create(&loom.bound("afterwards").build()).await?;
    loom.runs("afterwards").await.map(drop)
}

/// Pods of somebody else, in the very namespace of the copies: on our nodes, and one that looks like a copy of another origin.
async fn lodge(loom: &Loom) -> Result<Strangers> {
    for (number, node) in NODES.into_iter().enumerate() {
        let lodger = pod(&format!("lodger-{number}")).namespace(&loom.mount).on(node).cpu("1");
        loom.physical_side.create(&lodger.tolerate_all().build()).await?;
    }
    let other = pod("other").namespace(&loom.mount).on(NODES[0]).tolerate_all();
    let other = other.label(keys::MANAGED_BY, keys::MANAGED_BY_TAPESTRY).annotation(keys::ORIGIN, "some/body");
    loom.physical_side.create(&other.build()).await?;
    eventually("the lodgers run", SOON, async || {
        let pods = loom.ppods().await.map_err(|error| error.to_string())?;
        let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
        if run == 3 { Ok(()) } else { Err(format!("{run}")) }
    })
    .await?;
    Ok(Strangers::among(&loom.ppods().await?, &loom.origin().await?))
}

/// Users of the virtual cluster and owners of the physical one, who know nothing of storms. Says how much they did.
async fn people(loom: &Loom, syncer: &Process, mut rng: Rng, until: Instant) -> Result<usize> {
    let mut acts = 0;
    // Who is killed every eight seconds or so never waits long after failures; the other half of the seeds shows that.
    let mortal = rng.bool();
    while Instant::now() < until {
        if mortal && rng.u32(..25) == 0 {
            syncer.signal(Signal::Kill)?;
        }
        acts += usize::from(act(loom, &mut rng).await?);
        tokio::time::sleep(Duration::from_millis(rng.u64(20..600))).await;
    }
    Ok(acts)
}

/// One act. Says whether there was anything to act upon.
async fn act(loom: &Loom, rng: &mut Rng) -> Result<bool> {
    let pod = format!("p{}", rng.usize(..PODS));
    let place = loom.at(&pod);
    let grace = DeleteParams { grace_period_seconds: [None, Some(0), Some(1)][rng.usize(..3)], ..Default::default() };
    Ok(match rng.u32(..10) {
        0..5 => {
            let node = NODES[rng.usize(..2)];
            let cpu = ["100m", "500m", "3"][rng.usize(..3)];
            // The name may be taken.
            loom.virtual_side.create(&loom.bound_to(node, &pod).cpu(cpu).build()).await.is_ok()
        }
        5..8 => {
            loom.virtual_side.delete_with("v1/Pod", &place, &grace).await?;
            true
        }
        8 => match copy(loom, rng).await? {
            Some(copy) => {
                loom.physical_side.delete_with("v1/Pod", &copy, &grace).await?;
                true
            }
            None => false,
        },
        _ => match copy(loom, rng).await? {
            Some(copy) => {
                let labels =
                    [keys::MANAGED_BY, keys::CLUSTER_BINDING, keys::ORIGIN].map(|key| (key.to_owned(), Value::Null));
                let strip = json!({ "metadata": { "labels": Value::Object(labels.into_iter().collect()) } });
                // It may be gone by now.
                loom.physical_side.patch("v1/Pod", &copy, &strip).await.is_ok()
            }
            None => false,
        },
    })
}

/// `namespace/name` of one of our copies, by chance.
async fn copy(loom: &Loom, rng: &mut Rng) -> Result<Option<String>> {
    let origin = loom.origin().await?;
    let copies = loom.ppods().await?;
    let ours: Vec<&Value> = copies.iter().filter(|ppod| annotation(ppod, keys::ORIGIN) == origin).collect();
    Ok(rng.choice(ours).map(|ppod| format!("{}/{}", loom.mount, name(ppod))))
}

#[expect(clippy::disallowed_methods, reason = "a test has no command line of its own")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
