//! Everything at once, at random: a user, an owner, a syncer that is killed, and storms on both proxies; then no faults,
//! and everything converges.
//! One seed decides the actions and the faults; their timing depends on the machine.

use std::collections::{BTreeMap, BTreeSet};
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

use crate::dependents::{copy_name, object, token_volume};
use crate::fixtures::Fixture;
use crate::harness::{Harness, pattern};
use crate::looks::{SOON, annotation, name, phase};
use crate::process::syncer::Process;
use crate::services;

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
        .binding(|binding| binding.with("/spec/serviceNamespaces", json!(["storm"])))
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
    let strangers = create_strangers(harness).await?;
    let until = Instant::now() + lasts;
    let (v, p) = (harness.proxy(Side::Virtual), harness.proxy(Side::Physical));
    let mut people = People {
        harness,
        syncer,
        rng: Rng::with_seed(seed),
        acts: 0,
        taken: BTreeSet::new(),
        disturbed: BTreeMap::new(),
    };
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
    let touched = [foreign.touched(&ppods), strangers.touched(&dependents(harness).await?)].concat();
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

/// ConfigMaps and Secrets that pods may name.
const DEPENDENTS: [(&str, &str); 4] =
    [("ConfigMap", "settings"), ("ConfigMap", "extra"), ("Secret", "login"), ("Secret", "pull")];
/// A ConfigMap whose copy would have the name of a stranger.
const TAKEN: &str = "taken";

/// All ConfigMaps and Secrets of the mount namespace.
async fn dependents(harness: &Harness) -> Result<Vec<Value>> {
    let (side, mount) = (&harness.physical_side, &harness.mount);
    let (maps, secrets) = tokio::try_join!(side.list("v1/ConfigMap", mount), side.list("v1/Secret", mount))?;
    Ok([maps, secrets].concat())
}

/// Objects of others among the copies: one with no marks under a name that the syncer would use, one of another origin.
async fn create_strangers(harness: &Harness) -> Result<ForeignObjects> {
    let (side, mount) = (&harness.physical_side, &harness.mount);
    let name = copy_name(harness, TAKEN).await?;
    for kind in ["ConfigMap", "Secret"] {
        let metadata = json!({"name": name, "namespace": mount});
        side.create(&json!({"apiVersion": "v1", "kind": kind, "metadata": metadata})).await?;
        let metadata = json!({"name": "other", "namespace": mount, "annotations": {keys::ORIGIN: "some/body"}});
        side.create(&json!({"apiVersion": "v1", "kind": kind, "metadata": metadata})).await?;
    }
    harness.virtual_side.create(&object(harness, "ConfigMap", TAKEN, &json!({"a": "1"}))).await?;
    Ok(ForeignObjects::among(&dependents(harness).await?, &harness.origin().await?))
}

/// What a pod names, at random: shared ConfigMaps and Secrets, one of them optional, one that can never be copied, a token.
fn volumes(rng: &mut Rng) -> Value {
    let all = [
        json!({"name": "files", "configMap": {"name": "settings"}}),
        json!({"name": "extra", "configMap": {"name": "extra", "optional": true}}),
        json!({"name": "login", "secret": {"secretName": "login"}}),
        token_volume(),
    ];
    let mut volumes: Vec<Value> = all.into_iter().filter(|_| rng.bool()).collect();
    if rng.u32(..12) == 0 {
        volumes.push(json!({"name": "taken", "configMap": {"name": TAKEN}}));
    }
    volumes.into()
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
    /// How often the owner changed a copy of a ConfigMap or Secret.
    disturbed: BTreeMap<String, u32>,
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
        let acted = match self.rng.u32(..32) {
            20..26 => self.change_dependent().await?,
            26 | 27 => self.disturb_copy().await?,
            28.. => self.change_service().await?,
            0..10 => {
                let (node, cpu) = (NODES[self.rng.usize(..2)], ["100m", "500m", "3"][self.rng.usize(..3)]);
                // The name may be taken.
                let pod = self.harness.bound_to(node, &pod).cpu(cpu).with("/spec/volumes", volumes(&mut self.rng));
                let pull = json!([{"name": "pull"}]);
                let pod = if self.rng.bool() { pod.with("/spec/imagePullSecrets", pull) } else { pod };
                vside.create(&pod.build()).await.is_ok()
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
            18.. => match self.copy().await? {
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

    /// The user creates, changes or deletes what pods name.
    async fn change_dependent(&mut self) -> Result<bool> {
        let (kind, name) = DEPENDENTS[self.rng.usize(..DEPENDENTS.len())];
        let (vside, path) = (&self.harness.virtual_side, format!("v1/{kind}"));
        if self.rng.u32(..5) == 0 {
            vside.delete(&path, &self.harness.at(name)).await?;
            return Ok(true);
        }
        let mut changed = object(self.harness, kind, name, &json!({"a": self.rng.u32(..1000).to_string()}));
        if self.rng.u32(..6) == 0 {
            changed["immutable"] = json!(true);
        }
        if vside.create(&changed).await.is_ok() {
            return Ok(true);
        }
        // It may be immutable, or gone by now.
        Ok(vside.patch(&path, &self.harness.at(name), &changed).await.is_ok())
    }

    /// The user creates, changes or deletes a Service; the owner deletes a copy of one, or its cloud gives it an address.
    async fn change_service(&mut self) -> Result<bool> {
        let name = ["web", "db"][self.rng.usize(..2)];
        let (harness, place) = (self.harness, self.harness.at(name));
        let kind = ["ClusterIP", "LoadBalancer"][self.rng.usize(..2)];
        let spec = json!({"type": kind});
        let ports = json!([{"name": "http", "port": self.rng.u32(80..90)}]);
        Ok(match self.rng.u32(..8) {
            0 => harness.virtual_side.delete("v1/Service", &place).await.is_ok(),
            1 => harness.physical_side.delete("v1/Service", &format!("{}/{name}", harness.mount)).await.is_ok(),
            2 | 3 => services::play_cloud(harness, name, "192.0.2.1").await.is_ok(),
            4 | 5 => harness.virtual_side.patch("v1/Service", &place, &json!({"spec": {"ports": ports}})).await.is_ok(),
            _ => harness.virtual_side.create(&services::service(harness, name, &spec)).await.is_ok(),
        })
    }

    /// The owner deletes, strips or changes a copy.
    async fn disturb_copy(&mut self) -> Result<bool> {
        let origin = self.harness.origin().await?;
        let copies = dependents(self.harness).await?;
        let ours: Vec<&Value> = copies.iter().filter(|copy| annotation(copy, keys::ORIGIN) == origin).collect();
        let Some(copy) = self.rng.choice(ours) else { return Ok(false) };
        let kind = if annotation(copy, keys::VIRTUAL_POD_UID).is_empty() && copy["type"].is_null() {
            "ConfigMap"
        } else {
            "Secret"
        };
        let (pside, kind) = (&self.harness.physical_side, format!("v1/{kind}"));
        let place = format!("{}/{}", self.harness.mount, name(copy));
        // At the third time in ten minutes a copy is left as it is, for longer than we wait.
        let times = self.disturbed.entry(place.clone()).or_default();
        let what = if *times < 2 { self.rng.u32(..3) } else { 0 };
        *times += u32::from(what > 0);
        Ok(match what {
            0 => pside.delete(&kind, &place).await.is_ok(),
            1 => pside.patch(&kind, &place, &json!({"metadata": {"labels": {keys::ORIGIN: null}}})).await.is_ok(),
            _ => pside.patch(&kind, &place, &json!({"data": {"a": "dGhlaXJz"}})).await.is_ok(),
        })
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
