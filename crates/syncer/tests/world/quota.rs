//! The quota of a binding is never below what its virtual nodes offer: it is raised before them and lowered after.

use super::*;

/// Where nothing else touches the quota, after every call.
fn quota_allows_what_is_offered(world: &World) -> Result<(), String> {
    let mut offered = Resources::new();
    for vnode in world.list(Virtual, &kind::NODE) {
        offered.add(&Resources::deserialize(&vnode["status"]["allocatable"]).map_err(|error| error.to_string())?);
    }
    let quota = world.get(Physical, &kind::RESOURCE_QUOTA, guards()[0].1);
    let hard = quota.map(|quota| &quota["spec"]["hard"]);
    for (name, key) in [(ResourceName::Cpu, "requests.cpu"), (ResourceName::Pods, "pods")] {
        let lets_in = hard.and_then(|hard| Quantity::parse(hard[key].as_str()?).ok()).unwrap_or_default();
        if offered.get(&name) > lets_in {
            return Err(format!("{name}: {} is offered and {lets_in} allowed by {quota:?}", offered.get(&name)));
        }
    }
    Ok(())
}

/// The owner's own pods change what is idle; windows open and close.
fn tides(world: &mut World, rng: &mut Rng) {
    let node = NODES[rng.usize(..2)];
    match rng.u32(..6) {
        0 => {
            let mut own = pod("own", node, ["1", "3"][rng.usize(..2)]);
            own["metadata"]["namespace"] = json!("owner");
            own["spec"]["nodeName"] = json!(node);
            world.make(Physical, &kind::POD, own);
        }
        1 => drop(world.delete(Physical, &kind::POD, "owner/own", Some(0))),
        2 => {
            let windows = [json!([]), json!([{"start": "00:00", "end": "00:01"}, {"start": "00:02", "end": "23:00"}])];
            let windows = windows[rng.usize(..2)].clone();
            world.edit(Virtual, &kind::POLICY, "all", |policy| policy["spec"]["timeWindows"] = windows);
        }
        3 => {
            let limits = [json!([]), json!([{"resource": "cpu", "percent": 50}])][rng.usize(..2)].clone();
            world.edit(Virtual, &kind::POLICY, "all", |policy| policy["spec"]["resourceLimits"] = limits);
        }
        _ => {}
    }
}

#[test]
fn the_quota_is_raised_before_virtual_nodes_offer_more_and_lowered_after_they_offer_less() -> Result<(), Failure> {
    explore(seeds(150), |seed| {
        let mut schedule = stage(config(seed).faults(Faults::NONE))
            .rule(quota_allows_what_is_offered)
            .actor(Kubelet::steady(Physical))
            .actor(tides);
        for n in 0..4 {
            schedule.world.make(Virtual, &kind::POD, pod(&format!("p{n}"), NODES[n % 2], "1"));
        }
        schedule.run(800)?;
        schedule.quiesce()?;
        schedule.check(furnished)
    })
}
