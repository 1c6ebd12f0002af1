//! Two syncers of one binding: one is frozen while the other works and a Deployment is rescaled again and again. The breaker
//! must not trip, in whatever order the frozen one then reads the events, and must still see a real loss afterwards.

use super::*;

/// How many pods the Deployment has at least and at most: enough for the breaker to trip if a part of them were lost.
const REPLICAS: (usize, usize) = (8, 60);
/// A phase of a story.
const STEPS: usize = 2500;

/// Scales up and down by a handful of pods at a time, under new names as a ReplicaSet does.
#[derive(Default)]
struct Rescaler {
    made: usize,
    shrinks: bool,
}

impl Rescaler {
    fn living(world: &World) -> Vec<String> {
        let pods = world.list(Virtual, &kind::POD).filter(|pod| alive(pod));
        pods.filter_map(|pod| pod["metadata"]["name"].as_str().map(|name| format!("demo/{name}"))).collect()
    }
}

impl tapestry_testbed::world::Actor for Rescaler {
    fn act(&mut self, world: &mut World, rng: &mut Rng) {
        let living = Self::living(world);
        let (least, most) = REPLICAS;
        self.shrinks = if self.shrinks { living.len() > least } else { living.len() >= most };
        for _ in 0..rng.usize(1..8) {
            if self.shrinks {
                let place = rng.usize(..living.len().max(1));
                if let Some(path) = living.get(place) {
                    world.delete(Virtual, &kind::POD, path, Some(30));
                }
            } else {
                self.made += 1;
                world.make(Virtual, &kind::POD, pod(&format!("web-{}", self.made), NODES[rng.usize(..2)], "1m"));
            }
        }
    }
}

/// The breaker has never tripped.
fn calm(world: &World) -> Result<(), String> {
    let binding = world.get(Virtual, &kind::CLUSTER_BINDING, "east");
    match binding.map(|binding| &binding["status"]["breaker"]).filter(|trip| !trip.is_null()) {
        Some(trip) => Err(format!("the breaker tripped: {trip}")),
        None => Ok(()),
    }
}

/// Nodes with room for all, a Deployment that is rescaled, working kubelets; the second syncer follows.
fn rescaled(seed: u64) -> Schedule<Syncer> {
    let config = Config { patience: 20_000, ..config(seed) }.leaders(2).faults(Faults::NONE);
    let mut schedule = stage(config).rule(calm).actor(Kubelet::steady(Physical)).actor(Rescaler::default());
    for node in NODES {
        schedule.world.edit(Physical, &kind::NODE, node, |node| {
            node["status"]["allocatable"] = json!({"cpu": "100", "memory": "100Gi", "pods": "500"});
        });
    }
    schedule.depose(1, u32::MAX);
    schedule
}

/// No pod says that it was lost.
fn nothing_lost(world: &World) -> Result<(), String> {
    match world.list(Virtual, &kind::POD).find(|pod| pod["status"]["reason"] == "PhysicalPodLost") {
        Some(pod) => Err(format!("{} was lost", pod["metadata"]["name"])),
        None => Ok(()),
    }
}

#[test]
fn law_01_a_leader_that_was_frozen_while_another_one_worked_does_not_trip_the_breaker() -> Result<(), Failure> {
    explore(seeds(8), |seed| {
        let mut schedule = rescaled(seed);
        schedule.run(STEPS)?;
        for round in 0..2 {
            let (frozen, other) = (round % 2, (round + 1) % 2);
            schedule.freeze(frozen);
            schedule.depose(frozen, u32::MAX);
            schedule.depose(other, 0);
            schedule.run(STEPS)?;
            // It continues, follows for a moment and leads again.
            schedule.thaw(frozen);
            schedule.run(Rng::with_seed(seed).usize(0..300))?;
            schedule.depose(other, u32::MAX);
            schedule.depose(frozen, 0);
            schedule.run(STEPS)?;
            schedule.depose(frozen, u32::MAX);
            schedule.depose(other, 0);
        }
        schedule.check(nothing_lost)?;
        rests_and_converges(&mut schedule, 2)
    })
}

#[test]
fn law_01_a_leader_that_was_frozen_for_less_than_its_lease_does_not_trip_the_breaker() -> Result<(), Failure> {
    explore(seeds(8), |seed| {
        let mut schedule = rescaled(seed);
        for _ in 0..3 {
            schedule.run(STEPS)?;
            schedule.freeze(0);
            schedule.run(200)?;
            schedule.thaw(0);
        }
        schedule.run(STEPS)?;
        schedule.check(nothing_lost)?;
        rests_and_converges(&mut schedule, 2)
    })
}

#[test]
fn law_01_pods_that_were_really_lost_while_it_was_frozen_trip_the_breaker_once_it_has_caught_up() -> Result<(), Failure>
{
    explore(seeds(10), |seed| {
        let config = Config { patience: 20_000, ..config(seed) }.leaders(1).faults(Faults::NONE);
        let mut schedule = stage(config).actor(Kubelet::steady(Physical));
        for node in NODES {
            schedule.world.edit(Physical, &kind::NODE, node, |node| {
                node["status"]["allocatable"] = json!({"cpu": "100", "memory": "100Gi", "pods": "500"});
            });
        }
        for n in 0..40 {
            schedule.world.make(Virtual, &kind::POD, pod(&format!("p{n}"), NODES[n % 2], "1m"));
        }
        schedule.quiesce()?;
        schedule.freeze(0);
        // A watch that starts over never shows how they ended.
        let copies: Vec<String> = schedule
            .world
            .list(Physical, &kind::POD)
            .filter_map(|pod| pod["metadata"]["name"].as_str().map(|name| format!("mount/{name}")))
            .collect();
        for copy in &copies {
            schedule.world.delete(Physical, &kind::POD, copy, Some(0));
        }
        schedule.relist_all(0);
        schedule.thaw(0);
        schedule.run(3000)?;
        schedule.check(|world| match calm(world) {
            Ok(()) => Err("forty pods were lost and the breaker did not trip".to_owned()),
            Err(_) => Ok(()),
        })?;
        schedule.check(|world| {
            let lost = world.list(Virtual, &kind::POD).filter(|pod| pod["status"]["phase"] == "Failed").count();
            if lost <= 20 { Ok(()) } else { Err(format!("{lost} pods ended")) }
        })
    })
}
