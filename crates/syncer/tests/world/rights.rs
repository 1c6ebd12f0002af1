//! Whole syncers against the table of rights: every call is declared, and every right is needed for some call.
//! Must not check more than that; a run here does everything that ends and stops lending, and never converges.

use std::cell::RefCell;
use std::collections::BTreeSet;

use tapestry_syncer::rights::{Ask, Place, RIGHTS};

use super::*;

/// Place of a right in the table, and one of its verbs.
type Used = BTreeSet<(usize, &'static str)>;

/// What is read before there is a model, or without one: the identities of the clusters, the binding, its Secret.
const BESIDE: [(Side, &str); 4] =
    [(Virtual, "namespaces"), (Physical, "namespaces"), (Virtual, "clusterbindings"), (Virtual, "secrets")];
/// Declared for calls that no plan makes yet.
const AWAITED: [(Place, &str, &str); 1] = [(Place::System, "leases", "")];

/// Everything that lends less, ends a node or switches a guard off.
fn lender(world: &mut World, rng: &mut Rng) {
    // Rarely: between two of them something has to be lent.
    match rng.u32(..56) {
        0..4 => {
            let limit = ["1", "2", "8"][rng.usize(..3)];
            let limits = json!([{"resource": "cpu", "quantity": limit}]);
            let grace = [0, 60][rng.usize(..2)];
            world.edit(Virtual, &kind::POLICY, "all", |policy| {
                policy["spec"]["forceReclaim"] = json!(true);
                policy["spec"]["gracefulReclaimPeriodSeconds"] = json!(grace);
                policy["spec"]["resourceLimits"] = limits;
            });
        }
        4 => drop(world.delete(Virtual, &kind::POLICY, "all", None)),
        5..8 => {
            let spec = json!({"cluster": "east", "forceReclaim": true});
            world.make(Virtual, &kind::POLICY, json!({"metadata": {"name": "all"}, "spec": spec}));
        }
        8 => drop(world.make(
            Physical,
            &kind::POLICY,
            json!({"metadata": {"name": "mine"}, "spec": {"cluster": "east"}}),
        )),
        9 => {
            let (quota, network) = (rng.bool(), rng.bool());
            world.edit(Virtual, &kind::CLUSTER_BINDING, "east", |binding| {
                binding["spec"]["guard"] = json!({"quota": quota, "networkPolicy": network});
            });
        }
        10 => drop(world.delete(Physical, &kind::NODE, "n2", None)),
        11 => lend(world, "n2"),
        12..16 => {
            let count = rng.u32(1..9);
            world.edit(Physical, &kind::CSI_NODE, NODES[rng.usize(..2)], |csinode| {
                csinode["spec"]["drivers"][0]["allocatable"]["count"] = json!(count);
            });
        }
        // Deletes the binding; most runs never reach this.
        16 if rng.u32(..40) == 0 => drop(world.delete(Virtual, &kind::CLUSTER_BINDING, "east", None)),
        _ => {}
    }
}

fn play_with(seed: u64, note: impl Fn(&Call) -> Result<(), String> + 'static) -> Result<(), Failure> {
    let origin = Rc::new(Origin::new("v-cluster", &binding_uid(), "east"));
    // Some calls need a while without faults: those that a freshly started syncer does not make, and those that follow
    // another call.
    let config = if seed.is_multiple_of(2) { config(seed).faults(Faults::NONE) } else { config(seed) };
    let mut schedule = Schedule::new(config, move |birth| life(birth, &origin))
        .on_call(move |_: &World, _: usize, call: &Call| note(call))
        .on_reach(|side, up| Some(reached(side, up)));
    set_the_stage(&mut schedule.world);
    let managers = Side::BOTH.map(ControllerManager::new);
    let schedule = managers.into_iter().fold(schedule, Schedule::actor);
    let controllers = Side::BOTH.map(tapestry_testbed::world::VolumeController::new);
    let schedule = controllers.into_iter().fold(schedule, Schedule::actor);
    let schedule = schedule.actor(volumes::tenant).actor(volumes::disturber);
    let mut schedule = schedule.actor(Kubelet::new(Physical)).actor(user).actor(owner).actor(lender);
    schedule = schedule.actor(services::user).actor(services::owner);
    schedule.run(1500)?;
    // The next syncer looks for what was deleted while none ran.
    schedule.crash(0);
    for n in 0..PODS {
        schedule.world.delete(Virtual, &kind::POD, &format!("demo/p{n}"), Some(0));
    }
    schedule.run(300)
}

#[test]
fn law_10_every_call_is_declared_and_every_declared_right_is_used() -> Result<(), Failure> {
    let used = Rc::new(RefCell::new(Used::new()));
    explore(0..1000, |seed| {
        let noted = Rc::clone(&used);
        play_with(seed, move |call| {
            for ask in Ask::call(call) {
                let right = RIGHTS.iter().position(|right| right.grants(&ask, "mount"));
                let right = right.ok_or_else(|| format!("no right is declared for {ask:?}"))?;
                let verb = RIGHTS[right].verbs.iter().find(|verb| **verb == ask.verb);
                noted.borrow_mut().extend(verb.map(|verb| (right, *verb)));
            }
            Ok(())
        })
    })?;
    let (used, mut wrong) = (used.borrow(), Vec::new());
    for (at, right) in RIGHTS.iter().enumerate() {
        let beside = BESIDE.contains(&(right.side, right.kind.plural));
        let awaited = AWAITED.contains(&(right.place, right.kind.plural, right.part));
        for verb in right.verbs {
            let seen = used.contains(&(at, *verb));
            match *verb {
                // The test of watches is in `watches`.
                "list" | "watch" => {}
                "get" if beside => {}
                _ if awaited && seen => wrong.push(format!("{verb} is not awaited any more: {right:?}")),
                _ if !awaited && !seen => wrong.push(format!("{verb} is declared and never used: {right:?}")),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

#[test]
fn law_01_what_may_end_pods_and_nodes_is_read_as_evidence() -> Result<(), Failure> {
    let seen = Rc::new(RefCell::new(BTreeSet::new()));
    let ends = [&kind::POD, &kind::NODE, &kind::POLICY, &kind::CLUSTER_BINDING];
    explore(0..200, |seed| {
        let seen = Rc::clone(&seen);
        play_with(seed, move |call| match call.verb {
            Verb::Peek if ends.contains(&call.target.kind) => Err(format!("{call} does not read as evidence")),
            Verb::Get => {
                seen.borrow_mut().insert(call.target.kind);
                Ok(())
            }
            _ => Ok(()),
        })
    })?;
    // A binding leaves no watch here without proof; its own test is beside its plan.
    let read = ends.into_iter().filter(|kind| **kind != kind::CLUSTER_BINDING);
    let never: Vec<_> = read.filter(|kind| !seen.borrow().contains(kind)).collect();
    assert!(never.is_empty(), "never read: {never:?}");
    Ok(())
}
