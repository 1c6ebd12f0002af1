//! The definition of policies is deleted, with all policies, while many pods run under them: no pod has to go.

use tapestry_testbed::world::Serving;

use super::*;

/// How many pods run when the definition is deleted.
const MANY: usize = 60;

/// The nodes are large enough for all of them, and a policy forces at once.
fn crowd(config: Config) -> Schedule<Syncer> {
    let mut schedule = stage(config).actor(Kubelet::steady(Physical));
    for node in NODES {
        schedule.world.edit(Physical, &kind::NODE, node, |node| node["status"]["allocatable"]["pods"] = json!("100"));
    }
    schedule.world.edit(Virtual, &kind::POLICY, "all", |policy| {
        policy["spec"] = json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 0});
    });
    for n in 0..MANY {
        schedule.world.make(Virtual, &kind::POD, pod(&format!("p{n}"), NODES[n % 2], "10m"));
    }
    schedule
}

/// As many pods run as before, on both sides; the rule on calls checks that none was deleted.
fn all_run(world: &World) -> Result<(), String> {
    for side in Side::BOTH {
        let running = world.list(side, &kind::POD).filter(|pod| alive(pod) && pod["status"]["phase"] == "Running");
        let count = running.count();
        if count != MANY {
            return Err(format!("{count} pods run in the {} cluster", side.as_str()));
        }
    }
    Ok(())
}

fn lending(world: &World, wanted: &str) -> Result<(), String> {
    for vnode in world.list(Virtual, &kind::NODE) {
        let conditions = vnode["status"]["conditions"].as_array().into_iter().flatten();
        let said: Vec<&Value> = conditions.filter(|known| known["type"] == keys::CONDITION_LENDING).collect();
        if said.len() != 1 || said[0]["reason"] != wanted {
            return Err(format!("{} says {said:?} instead of {wanted}", vnode["metadata"]["name"]));
        }
    }
    Ok(())
}

/// As the API server deletes a definition: no new policies, then none, then no such kind.
fn delete_definition(schedule: &mut Schedule<Syncer>, side: Side) -> Result<(), Failure> {
    schedule.world.serve(side, &kind::POLICY, Serving::Ending);
    let policies: Vec<String> = schedule.world.server(side).all(&kind::POLICY).map(|policy| policy.path()).collect();
    for path in policies {
        schedule.world.delete(side, &kind::POLICY, &path, None);
        schedule.run(30)?;
    }
    schedule.world.serve(side, &kind::POLICY, Serving::Not);
    schedule.run(300)
}

fn goes_and_comes_back(config: Config) -> Result<(), Failure> {
    let mut schedule = crowd(config);
    schedule.quiesce()?;
    schedule.check(all_run)?;
    delete_definition(&mut schedule, Virtual)?;
    schedule.quiesce()?;
    schedule.check(all_run)?;
    schedule.check(|world| lending(world, "PoliciesNotServed"))?;
    schedule.world.serve(Virtual, &kind::POLICY, Serving::Fully);
    let spec = json!({"cluster": "east", "forceReclaim": true, "gracefulReclaimPeriodSeconds": 0});
    schedule.world.make(Virtual, &kind::POLICY, json!({"metadata": {"name": "all"}, "spec": spec}));
    schedule.run(300)?;
    schedule.quiesce()?;
    schedule.check(all_run)?;
    schedule.check(|world| lending(world, "Lending"))
}

#[test]
fn law_01_when_the_definition_of_policies_is_deleted_no_pod_goes_and_lending_heals_with_it() -> Result<(), Failure> {
    explore(seeds(30), |seed| goes_and_comes_back(config(seed).faults(Faults::NONE)))
}

#[test]
fn law_01_nor_when_everything_else_goes_wrong_at_the_same_time() -> Result<(), Failure> {
    explore(seeds(60), |seed| goes_and_comes_back(config(seed).leaders(2)))
}

#[test]
fn law_09_when_the_owners_definition_is_deleted_what_the_owner_restricted_holds() -> Result<(), Failure> {
    explore(seeds(60), |seed| {
        let mut schedule = crowd(config(seed));
        let limits = json!([{"resource": "cpu", "quantity": "2"}]);
        let spec = json!({"cluster": "east", "resourceLimits": limits});
        schedule.world.make(Physical, &kind::POLICY, json!({"metadata": {"name": "mine"}, "spec": spec}));
        schedule.quiesce()?;
        delete_definition(&mut schedule, Physical)?;
        schedule.quiesce()?;
        schedule.check(all_run)?;
        schedule.check(|world| {
            let more =
                |vnode: &&Value| !["2", "0"].contains(&vnode["status"]["allocatable"]["cpu"].as_str().unwrap_or(""));
            match world.list(Virtual, &kind::NODE).find(more) {
                Some(vnode) => Err(format!("more is lent than the owner allowed: {}", vnode["status"]["allocatable"])),
                None => Ok(()),
            }
        })
    })
}
