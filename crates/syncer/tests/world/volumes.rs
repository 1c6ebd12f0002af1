//! Pods with claims among all faults: no data is ever destroyed, copies exist exactly as long as pods need them, and so do holds.

use super::*;
use tapestry_domain::names;
use tapestry_testbed::world::{Destroyed, VolumeController};

/// Claims that the tenant creates and deletes, each with a volume of its own.
const CLAIMS: usize = 3;

pub(super) fn observers(origin: &Rc<Origin>) -> Vec<Observer<Fact>> {
    let (of_claims, of_volumes) = (Rc::clone(origin), Rc::clone(origin));
    vec![
        Observer::rows(Virtual, &kind::PERSISTENT_VOLUME_CLAIM, VClaim::decode, Fact::VClaim),
        Observer::rows(Virtual, &kind::PERSISTENT_VOLUME, VVolume::decode, Fact::VVolume),
        Observer::rows(
            Physical,
            &kind::PERSISTENT_VOLUME_CLAIM,
            move |json| PClaim::decode(json, &of_claims),
            Fact::PClaim,
        )
        .only(|claim| claim["metadata"]["namespace"] == "mount"),
        Observer::rows(
            Physical,
            &kind::PERSISTENT_VOLUME,
            move |json| PVolume::decode(json, &of_volumes),
            Fact::PVolume,
        ),
        Observer::rows(Physical, &kind::STORAGE_CLASS, PClass::decode, Fact::Class),
    ]
}

/// Creates, grows and deletes claims, creates their volumes, and pods that use them.
pub(super) fn tenant(world: &mut World, rng: &mut Rng) {
    let n = rng.usize(..CLAIMS);
    let (claim, volume) = (format!("data-{n}"), format!("disk-{n}"));
    let name = format!("d{}", rng.usize(..4));
    match rng.u32(..13) {
        0..3 => {
            let modes = [json!(["ReadWriteOnce"]), json!(["ReadWriteMany"])][n % 2].clone();
            let reference = json!({"namespace": "demo", "name": claim});
            let spec = json!({
                "capacity": {"storage": "1Gi"}, "accessModes": modes, "nfs": {"server": "s", "path": format!("/{volume}")},
                "persistentVolumeReclaimPolicy": "Retain", "claimRef": reference, "storageClassName": "fast",
            });
            world.make(Virtual, &kind::PERSISTENT_VOLUME, json!({"metadata": {"name": volume}, "spec": spec}));
            let spec = json!({"accessModes": modes, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume, "storageClassName": "fast"});
            let metadata = json!({"name": claim, "namespace": "demo"});
            world.make(Virtual, &kind::PERSISTENT_VOLUME_CLAIM, json!({"metadata": metadata, "spec": spec}));
        }
        3 => {
            // As a tenant who wants to have the name and the data for a new claim.
            world.delete(Virtual, &kind::PERSISTENT_VOLUME_CLAIM, &format!("demo/{claim}"), None);
        }
        4 => drop(world.edit(Virtual, &kind::PERSISTENT_VOLUME, &volume, |volume| {
            if volume["status"]["phase"] == "Released" {
                volume["spec"]["claimRef"] = json!({"namespace": "demo", "name": claim});
            }
        })),
        12 => {
            let path = format!("demo/{claim}");
            world.edit(Virtual, &kind::PERSISTENT_VOLUME_CLAIM, &path, |claim| {
                claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
            });
        }
        5..9 => {
            let mut object = pod(&name, NODES[rng.usize(..2)], "500m");
            object["spec"]["volumes"] = json!([{"name": "d", "persistentVolumeClaim": {"claimName": claim}}]);
            world.make(Virtual, &kind::POD, object);
        }
        _ => drop(world.delete(Virtual, &kind::POD, &format!("demo/{name}"), Some([0, 5][rng.usize(..2)]))),
    }
}

/// Removes labels from copies, deletes them, and takes the name of a claim's copy for a claim of its own.
pub(super) fn disturber(world: &mut World, rng: &mut Rng) {
    if rng.u32(..8) == 0 {
        let origin = Origin::new("v-cluster", &binding_uid(), "east");
        let name = names::claim_name(&origin.label, "demo", &format!("data-{}", rng.usize(..CLAIMS)));
        let path = format!("mount/{name}");
        let theirs = |claim: &Value| claim["metadata"]["labels"]["theirs"] == "yes";
        if world.get(Physical, &kind::PERSISTENT_VOLUME_CLAIM, &path).is_some_and(theirs) {
            world.delete(Physical, &kind::PERSISTENT_VOLUME_CLAIM, &path, None);
        } else {
            let metadata = json!({"name": name, "namespace": "mount", "labels": {"theirs": "yes"}});
            world.make(Physical, &kind::PERSISTENT_VOLUME_CLAIM, json!({"metadata": metadata, "spec": {}}));
        }
        return;
    }
    let ours = |copy: &Value| copy["metadata"]["labels"][keys::MANAGED_BY].is_string();
    let kind = [&kind::PERSISTENT_VOLUME, &kind::PERSISTENT_VOLUME_CLAIM][rng.usize(..2)];
    let Some(path) = world.pick(Physical, kind, rng, ours) else { return };
    match rng.u32(..8) {
        0 => drop(world.edit(Physical, kind, &path, |copy| copy["metadata"]["labels"] = json!({}))),
        1 => drop(world.delete(Physical, kind, &path, None)),
        _ => {}
    }
}

/// The claims that a pod names.
fn claims(pod: &Value) -> impl Iterator<Item = &str> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}

/// After the faults: every pod that runs has its claim bound below, and there is no copy and no hold that no pod needs.
fn carried(world: &World) -> Result<(), String> {
    let origin = Origin::new("v-cluster", &binding_uid(), "east");
    for ppod in world.list(Physical, &kind::POD).filter(|ppod| alive(ppod) && back(ppod).is_some()) {
        for claim in claims(ppod) {
            let copy = world.get(Physical, &kind::PERSISTENT_VOLUME_CLAIM, &format!("mount/{claim}"));
            if copy.is_none_or(|copy| copy["status"]["phase"] != "Bound") {
                return Err(format!("{} runs without its claim {claim}: {copy:?}", ppod["metadata"]["name"]));
            }
        }
    }
    let used = |claim: &str| {
        let mut users = world.list(Virtual, &kind::POD).filter(|vpod| !super::finished(vpod));
        users.any(|vpod| claims(vpod).any(|named| named == claim))
    };
    let ours = |copy: &&Value| copy["metadata"]["annotations"][keys::ORIGIN] == *origin.full;
    for copy in world.list(Physical, &kind::PERSISTENT_VOLUME_CLAIM).filter(ours) {
        let claim = copy["metadata"]["annotations"][keys::VIRTUAL_NAME].as_str().unwrap_or_default();
        if !used(claim) {
            return Err(format!("no pod needs {}", copy["metadata"]["name"]));
        }
    }
    let theirs = |copy: &&Value| {
        let mut claims = world.list(Physical, &kind::PERSISTENT_VOLUME_CLAIM);
        claims.any(|claim| !ours(&claim) && claim["metadata"]["uid"] == copy["spec"]["claimRef"]["uid"])
    };
    for copy in world.list(Physical, &kind::PERSISTENT_VOLUME).filter(ours).filter(|copy| !theirs(copy)) {
        let claim = copy["metadata"]["annotations"][keys::VIRTUAL_CLAIM].as_str().unwrap_or_default();
        if !used(claim.trim_start_matches("demo/")) {
            return Err(format!("no pod needs {}", copy["metadata"]["name"]));
        }
        if copy["spec"]["persistentVolumeReclaimPolicy"] != "Retain" {
            return Err(format!("{} does not retain its data", copy["metadata"]["name"]));
        }
    }
    for volume in world.list(Virtual, &kind::PERSISTENT_VOLUME) {
        let held = volume["metadata"]["annotations"][keys::VOLUME_HOLDER].is_string();
        let claim = volume["spec"]["claimRef"]["name"].as_str().unwrap_or_default();
        let name = volume["metadata"]["name"].as_str().unwrap_or_default();
        let copied = world.get(Physical, &kind::PERSISTENT_VOLUME, &names::volume_name(&origin.label, name)).is_some();
        if held && !used(claim) && !copied {
            return Err(format!("no pod needs the hold of {}", volume["metadata"]["name"]));
        }
    }
    Ok(())
}

/// A copy of a volume that one cluster at a time may attach is made only while the volume is held.
fn only_what_is_held(world: &World, call: &Call) -> Result<(), String> {
    let Verb::Carry { from, .. } = &call.verb else { return Ok(()) };
    let volume = world.get(Virtual, &kind::PERSISTENT_VOLUME, from.name.as_str());
    let Some(volume) = volume.filter(|_| from.kind == &kind::PERSISTENT_VOLUME) else { return Ok(()) };
    // A call that a precondition refuses does no harm.
    let version = from.rv.is_some_and(|rv| volume["metadata"]["resourceVersion"] == rv.to_string());
    let same = volume["metadata"]["uid"].as_str() == from.uid.as_ref().map(Uid::as_str) && version;
    let shared = volume["spec"]["accessModes"][0] == "ReadWriteMany";
    let held = volume["metadata"]["annotations"][keys::VOLUME_HOLDER].is_string();
    if same && !shared && !held { Err(format!("{call} although it is not held")) } else { Ok(()) }
}

fn play_with_volumes(config: Config) -> Result<(), Failure> {
    let leaders = config.leaders;
    let below = VolumeController::new(Physical);
    let destroyed: Destroyed = Rc::clone(&below.destroyed);
    let mut schedule = full_stage(config)
        .actor(VolumeController::new(Virtual))
        .actor(below)
        .actor(tenant)
        .actor(disturber)
        .on_call(|world, _, call| only_what_is_held(world, call))
        .rule(move |_| match destroyed.borrow().first() {
            Some(volume) => Err(format!("the data of {volume} was destroyed")),
            None => Ok(()),
        });
    schedule.run(1000)?;
    rests_and_converges(&mut schedule, leaders)?;
    schedule.check(carried)
}

#[test]
fn volumes_are_there_as_long_as_pods_need_them_and_no_data_is_lost() -> Result<(), Failure> {
    explore(seeds(200), |seed| play_with_volumes(config(seed).faults(Faults::NONE)))
}

#[test]
fn law_08_volumes_survive_every_fault_at_once() -> Result<(), Failure> {
    explore(seeds(300), |seed| play_with_volumes(config(seed)))
}

#[test]
fn law_02_two_leaders_at_once_lose_no_volume() -> Result<(), Failure> {
    explore(seeds(200), |seed| play_with_volumes(config(seed).leaders(2)))
}
