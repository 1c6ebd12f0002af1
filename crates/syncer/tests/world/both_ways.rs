//! ConfigMaps and Secrets that change in both clusters, under every fault: both sides agree in the end, and no change is lost but by a
//! conflict that the user is told.

use std::cell::Cell;
use std::collections::BTreeSet;

use super::*;

/// Keys of the sources; none is part of another or of a message.
const KEYS: [&str; 3] = ["alpha", "beta", "gamma"];

/// Who wrote a key last, and what; by kind and key.
type Last = Rc<RefCell<BTreeMap<(&'static str, &'static str), (Side, Option<String>)>>>;

/// Writes values that are all different on one side. Each side deletes one key, once: whose a value is stays known.
fn writer(side: Side, last: &Last, count: &Rc<Cell<u32>>) -> impl FnMut(&mut World, &mut Rng) + 'static {
    let (last, count) = (Rc::clone(last), Rc::clone(count));
    let mut deleted = BTreeSet::new();
    move |world, rng| {
        if rng.u32(..8) > 0 {
            return;
        }
        let ((_, kind), at) = (KINDS[rng.usize(..2)], rng.usize(..KEYS.len()));
        let deletes = at == side as usize && rng.u32(..3) == 0 && deleted.insert((kind.kind, at));
        count.set(count.get() + 1);
        let value = (!deletes).then(|| format!("value-{}", count.get()));
        let named = |object: &Value| match side {
            Virtual => object["metadata"]["name"] == "settings",
            Physical => object["metadata"]["annotations"][keys::VIRTUAL_NAME] == "settings",
        };
        let Some(path) = world.pick(side, kind, rng, named) else { return };
        let mut changed = false;
        world.edit(side, kind, &path, |object| {
            changed = object["data"][KEYS[at]].as_str() != value.as_deref();
            match &value {
                Some(value) => object["data"][KEYS[at]] = json!(value),
                None => drop(object["data"].as_object_mut().map(|data| data.remove(KEYS[at]))),
            }
        });
        if changed {
            last.borrow_mut().insert((kind.kind, KEYS[at]), (side, value));
        }
    }
}

fn both_ways(config: Config, last: &Last) -> Schedule<Syncer> {
    let count = Rc::default();
    let mut schedule = stage(config).actor(Kubelet::steady(Physical));
    for n in 0..2 {
        let mut object = pod(&format!("p{n}"), NODES[n % 2], "1");
        object["spec"]["volumes"] = needy_volumes();
        schedule.world.make(Virtual, &kind::POD, object);
    }
    for (_, kind) in KINDS {
        let annotations = json!({keys::SYNC_DIRECTION: keys::SYNC_BOTH});
        let metadata = json!({"name": "settings", "namespace": "demo", "annotations": annotations});
        let data = json!({"alpha": "0", "beta": "0", "gamma": "0"});
        schedule.world.make(Virtual, kind, json!({"metadata": metadata, "data": data}));
    }
    Side::BOTH.into_iter().fold(schedule, |schedule, side| schedule.actor(writer(side, last, &count)))
}

/// What was written last is there, or the user was told of a conflict.
fn nothing_is_lost(world: &World, last: &Last) -> Result<(), String> {
    for ((kind, key), (side, value)) in last.borrow().iter() {
        let (_, of) = KINDS.into_iter().find(|(_, of)| of.kind == *kind).ok_or("no such kind")?;
        let source = world.get(Virtual, of, "demo/settings").ok_or("no source")?;
        let told = world.list(Virtual, &kind::EVENT).any(|event| {
            let about = event["reason"] == "SyncConflict" && event["involvedObject"]["kind"] == *kind;
            about && event["message"].as_str().is_some_and(|message| message.contains(key))
        });
        if source["data"][*key].as_str() != value.as_deref() && (*side == Virtual || !told) {
            return Err(format!("{kind} {key}: {value:?} of the {} side is lost: {source}", side.as_str()));
        }
    }
    Ok(())
}

fn play(config: Config) -> Result<(), Failure> {
    let (leaders, last) = (config.leaders, Last::default());
    let mut schedule = both_ways(config, &last);
    schedule.run(600)?;
    rests_and_converges(&mut schedule, leaders)?;
    schedule.check(|world| nothing_is_lost(world, &last))
}

#[test]
fn changes_flow_both_ways_without_a_fault_and_none_is_lost() -> Result<(), Failure> {
    explore(seeds(100), |seed| play(config(seed).faults(Faults::NONE)))
}

#[test]
fn law_08_changes_flow_both_ways_under_every_fault_and_none_is_lost() -> Result<(), Failure> {
    explore(seeds(300), |seed| play(config(seed)))
}

#[test]
fn law_02_changes_flow_both_ways_with_two_leaders_and_none_is_lost() -> Result<(), Failure> {
    explore(seeds(300), |seed| play(config(seed).leaders(2)))
}

#[test]
fn law_08_a_crash_after_any_call_that_takes_changes_up_loses_none() -> Result<(), Failure> {
    for seed in 0..3 {
        let make = || both_ways(config(seed).faults(Faults::NONE), &Last::default());
        let calls = exhaustive_crash(make, |schedule| {
            schedule.run(200)?;
            rests_and_converges(schedule, 1)
        })?;
        assert!(calls > 20, "the story is too short: {calls} calls");
    }
    Ok(())
}
