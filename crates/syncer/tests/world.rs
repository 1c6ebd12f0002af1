//! The whole syncer in World: crash after every call, late and lost answers, watches that lag, two leaders, foreign objects.
//! After each call the laws hold; after the faults everything converges. One seed decides a run.

#[path = "world/absence.rs"]
mod absence;
#[path = "world/beside.rs"]
mod beside;
#[path = "world/both_ways.rs"]
mod both_ways;
#[path = "world/frozen.rs"]
mod frozen;
#[path = "world/people.rs"]
mod people;
#[path = "world/quota.rs"]
mod quota;
#[path = "world/rights.rs"]
mod rights;
#[path = "world/services.rs"]
mod services;
#[path = "world/volumes.rs"]
mod volumes;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Call, Kind, Name, Side, Uid, Verb, kind};
use tapestry_domain::dependents::{DependentKind, Reference};
use tapestry_domain::podspec::SpecNeeds;
use tapestry_domain::quantity::Quantity;
use tapestry_domain::resources::{ResourceName, Resources};
use tapestry_syncer::bindings::BindingRow;
use tapestry_syncer::csinodes::row::{PCsiNode, VCsiNode};
use tapestry_syncer::dependents::row::{DependentCopy, Source};
use tapestry_syncer::guards::Guard;
use tapestry_syncer::guards::row::GuardRow;
use tapestry_syncer::keeper::row::{KeptBinding, KeptNode};
use tapestry_syncer::keeper::{self, Keeper, Work};
use tapestry_syncer::nodes::row::{PNode, VNode};
use tapestry_syncer::origin::{Home, Origin};
use tapestry_syncer::pair::{Fact, Pair};
use tapestry_syncer::pods::row::{PPod, VPod};
use tapestry_syncer::policies::PolicyRow;
use tapestry_syncer::services::row::{PService, VService};
use tapestry_syncer::volumes::row::{PClaim, PClass, PVolume, VClaim, VVolume};
use tapestry_syncer::warnings::Warning;
use tapestry_testbed::invariants::{CarriedServices, Snapshot};
use tapestry_testbed::world::{
    Birth, Config, ControllerManager, Failure, Faults, Kubelet, Life, Observer, Schedule, World, exhaustive_crash,
    explore,
};

use self::beside::{Beside, Either};
use self::people::{
    FORGED, GATE, MANGLED, REWRITTEN, STRIPPED, WARNED, back, csinode, guards, needy_volumes, owner, owner_of, pod,
    user,
};
use Side::{Physical, Virtual};

/// What one process runs.
type Syncer = Beside<Pair, Keeper>;

const KINDS: [(DependentKind, &Kind); 2] =
    [(DependentKind::ConfigMap, &kind::CONFIG_MAP), (DependentKind::Secret, &kind::SECRET)];
const NODES: [&str; 2] = ["n1", "n2"];
/// Pods that the user creates and deletes.
const PODS: usize = 12;

/// What waits reads these now and then.
const WAITING: [&str; 6] =
    ["LookForDependent", "LookForToken", "LookForCopy", "LookForVolume", "LookForClaim", "LookForVolumeOfClaim"];

// ---- setup ----

/// A run with binding, policy and nodes, and the rules that always hold.
fn stage(config: Config) -> Schedule<Syncer> {
    let origin = Rc::new(Origin::new("v-cluster", &binding_uid(), "east"));
    let for_life = Rc::clone(&origin);
    let mut schedule = Schedule::new(config, move |birth| life(birth, &for_life))
        .rule(one_copy_per_pod)
        .on_call(only_with_reason)
        .on_call(no_copy_in_use_is_removed)
        .on_call(a_warning_is_told_on_its_own_pod)
        .on_call({
            let origin = Rc::clone(&origin);
            move |world, _, call| no_foreign_object_is_changed(world, call, &origin)
        })
        // What waits reads now and then: whether a stranger still has a name, and whether a pod whose ConfigMap is missing has no
        // copy after all.
        .quiet(|call| call.target.kind == &kind::LEASE || WAITING.contains(&call.why))
        .on_reach(|side, up| Some(reached(side, up)));
    set_the_stage(&mut schedule.world);
    schedule
}

/// The keeper has its own probe, of the virtual cluster only; its identity does not change.
fn reached(side: Side, up: bool) -> Either<Fact, keeper::Fact> {
    Either::Left(Fact::Connection(side, connection(side, up)))
}

fn connection(side: Side, up: bool) -> Connection {
    if up { Connection::Up(Uid::new(identity(side))) } else { Connection::Down("no way".to_owned()) }
}

fn identity(side: Side) -> &'static str {
    match side {
        Virtual => "v-cluster",
        Physical => "p-cluster",
    }
}

fn set_the_stage(world: &mut World) {
    let guard = json!({"quota": true, "networkPolicy": true});
    let secret = json!({"name": "s", "namespace": "t"});
    let spec = json!({"clusterID": "east", "secretRef": secret, "mountNamespace": "mount", "guard": guard, "serviceNamespaces": ["demo", "team"]});
    world.make(Virtual, &kind::CLUSTER_BINDING, json!({"metadata": {"name": "east"}, "spec": spec}));
    world.make(Virtual, &kind::POLICY, json!({"metadata": {"name": "all"}, "spec": {"cluster": "east"}}));
    for (side, namespace) in
        [(Virtual, "demo"), (Virtual, "team"), (Virtual, "kube-node-lease"), (Physical, "mount"), (Physical, "owner")]
    {
        world.make(side, &kind::NAMESPACE, json!({"metadata": {"name": namespace}}));
    }
    world.make(Virtual, &kind::SERVICE_ACCOUNT, json!({"metadata": {"name": "default", "namespace": "demo"}}));
    let ca = json!({"metadata": {"name": "kube-root-ca.crt", "namespace": "demo"}, "data": {"ca.crt": "pem"}});
    world.make(Virtual, &kind::CONFIG_MAP, ca);
    let class = json!({"metadata": {"name": "fast"}, "provisioner": "p", "allowVolumeExpansion": true});
    world.make(Physical, &kind::STORAGE_CLASS, class);
    for node in NODES {
        lend(world, node);
        world.make(Physical, &kind::CSI_NODE, csinode(node, "zone"));
    }
}

fn lend(world: &mut World, node: &str) {
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let status = json!({"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "20"}, "conditions": ready});
    world.make(Physical, &kind::NODE, json!({"metadata": {"name": node}, "status": status}));
}

/// The first object of a fresh world always gets the same UID.
fn binding_uid() -> String {
    let mut world = World::default();
    set_the_stage(&mut world);
    let binding = world.get(Virtual, &kind::CLUSTER_BINDING, "east");
    binding.and_then(|binding| binding["metadata"]["uid"].as_str()).unwrap_or_default().to_owned()
}

fn life(birth: Birth, origin: &Rc<Origin>) -> Life<Syncer> {
    let Life { model: pair, observers, facts } = pair_life(birth, origin);
    let label = origin.label.to_string();
    let ours = move |object: &Value| object["metadata"]["labels"][keys::ORIGIN] == *label;
    let kept = |change| Either::Right(keeper::Fact::Node(change));
    let keepers = [
        Observer::rows(Virtual, &kind::NODE, KeptNode::decode, kept).only(ours),
        Observer::rows(Virtual, &kind::CLUSTER_BINDING, KeptBinding::decode, |change| {
            Either::Right(keeper::Fact::Binding(change))
        }),
    ];
    let told = [keeper::Fact::Connection(connection(Virtual, true)), keeper::Fact::Work(Work::Goes)].map(Either::Right);
    Life {
        model: Beside { left: pair, right: Keeper::new((**origin).clone(), &binding_uid()) },
        observers: observers.into_iter().map(|observer| observer.wrap(Either::Left)).chain(keepers).collect(),
        facts: facts.into_iter().map(Either::Left).chain(told).collect(),
    }
}

fn pair_life(birth: Birth, origin: &Rc<Origin>) -> Life<Pair> {
    let mut names = Rng::with_seed(birth.seed);
    let entropy = Box::new(move || Some(names.u64(..).to_be_bytes()));
    let own = Rc::clone(origin);
    let label = origin.label.to_string();
    let home =
        Home { vnode_prefix: "vnode-east-".into(), mount: Name::parse("mount").unwrap_or_else(|bad| panic!("{bad}")) };
    let (here, mount, record) = (home.clone(), home.mount.clone(), home.load_balancer_key());
    let (whose, whose_copy) = (Rc::clone(origin), Rc::clone(origin));
    let labelled = |label: &str| {
        let label = label.to_owned();
        move |object: &Value| object["metadata"]["labels"][keys::ORIGIN] == *label
    };
    let guard = |guard: Guard| {
        let (mount, origin) = (mount.clone(), Rc::clone(origin));
        let decode = move |json: &_| GuardRow::decode(json, guard, &mount, &origin);
        Observer::rows(Physical, guard.kind(), decode, move |change| Fact::Guard(guard, change)).only(labelled(&label))
    };
    let sources = KINDS.map(|(dependent, kind)| {
        Observer::rows(
            Virtual,
            kind,
            move |json| Source::decode(json, dependent),
            move |change| Fact::Source(dependent, change),
        )
    });
    let copies = KINDS.map(|(dependent, kind)| {
        let origin = Rc::clone(origin);
        let decode = move |json: &_| DependentCopy::decode(json, dependent, &origin);
        let fact = move |change| Fact::DependentCopy(dependent, change);
        Observer::rows(Physical, kind, decode, fact).only(|copy| copy["metadata"]["namespace"] == "mount")
    });
    let observers = vec![
        Observer::rows(Virtual, &kind::CLUSTER_BINDING, BindingRow::decode, Fact::Binding),
        Observer::rows(Virtual, &kind::POLICY, PolicyRow::decode, |change| Fact::Policy(Virtual, change)),
        Observer::rows(Physical, &kind::POLICY, PolicyRow::decode, |change| Fact::Policy(Physical, change)),
        Observer::rows(Virtual, &kind::NODE, VNode::decode, Fact::VNode).only(labelled(&label)),
        Observer::rows(Virtual, &kind::CSI_NODE, VCsiNode::decode, Fact::VCsiNode).only(labelled(&label)),
        Observer::rows(Physical, &kind::CSI_NODE, PCsiNode::decode, Fact::PCsiNode),
        guard(Guard::Quota),
        guard(Guard::NetworkPolicy),
        Observer::rows(Virtual, &kind::POD, move |json| VPod::decode(json, &here), Fact::VPod)
            .only(|pod| pod["spec"]["nodeName"].is_string()),
        Observer::rows(Physical, &kind::NODE, PNode::decode, Fact::PNode),
        Observer::rows(Physical, &kind::POD, move |json| PPod::decode(json, &own), Fact::PPod),
        Observer::rows(Physical, &kind::EVENT, Warning::decode, Fact::Warning)
            .only(|event| event["metadata"]["namespace"] == "mount"),
        Observer::rows(Virtual, &kind::SERVICE, move |json| VService::decode(json, &whose, &record), Fact::VService),
        Observer::rows(Physical, &kind::SERVICE, move |json| PService::decode(json, &whose_copy), Fact::PService)
            .only(|copy| copy["metadata"]["namespace"] == "mount"),
    ];
    Life {
        model: Pair::new((**origin).clone(), home, &binding_uid(), entropy),
        observers: observers.into_iter().chain(sources).chain(copies).chain(volumes::observers(origin)).collect(),
        facts: Side::BOTH.map(|side| Fact::Connection(side, connection(side, true))).into(),
    }
}

// ---- invariants ----

fn finished(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn alive(pod: &Value) -> bool {
    !finished(pod) && pod["metadata"]["deletionTimestamp"].is_null()
}

/// Never two live copies of one virtual pod.
fn one_copy_per_pod(world: &World) -> Result<(), String> {
    let mut copies: BTreeMap<&str, u32> = BTreeMap::new();
    let honest = |ppod: &&Value| ppod["metadata"]["annotations"][FORGED].is_null();
    for ppod in world.list(Physical, &kind::POD).filter(|ppod| alive(ppod)).filter(honest) {
        if let Some(uid) = back(ppod) {
            *copies.entry(uid).or_default() += 1;
        }
    }
    // If a user removes the name while the create is in flight, the pod gets another copy; the syncer finds and removes the
    // first.
    let forged = |uid: &str| {
        let mut forged =
            world.list(Virtual, &kind::POD).filter(|vpod| !vpod["metadata"]["annotations"][MANGLED].is_null());
        forged.any(|vpod| vpod["metadata"]["uid"] == uid)
    };
    match copies.iter().find(|(uid, count)| **count > 1 && !forged(uid)) {
        Some((uid, count)) => Err(format!("{count} live copies of virtual pod {uid}")),
        None => Ok(()),
    }
}

/// A running copy is deleted only when its virtual pod is being deleted, gone or finished; a pod is reported lost only
/// without a copy.
fn only_with_reason(world: &World, _leader: usize, call: &Call) -> Result<(), String> {
    let path = match &call.target.namespace {
        Some(namespace) => format!("{namespace}/{}", call.target.name),
        None => call.target.name.to_string(),
    };
    let there = world.get(call.target.side, call.target.kind, &path);
    // A call that a precondition refuses does no harm.
    let meets = |object: &&Value| {
        let same =
            |field: &str, wanted: Option<String>| wanted.is_none_or(|wanted| object["metadata"][field] == wanted);
        let uid = call.target.uid.as_ref().map(ToString::to_string);
        same("uid", uid) && same("resourceVersion", call.target.rv.map(|rv| rv.to_string()))
    };
    let hits = there.filter(meets);
    match (&call.verb, call.target.side, hits) {
        (Verb::Delete { .. }, Physical, Some(ppod)) if call.target.kind == &kind::POD => {
            // It belongs to the pod that recorded it, if no other pod names it; otherwise to the pod it points to.
            let said = |vpod: &Value, key: &str| vpod["metadata"]["annotations"][key].clone();
            let names = |vpod: &&Value| said(vpod, keys::PHYSICAL_POD_NAME) == ppod["metadata"]["name"];
            let naming: Vec<&Value> = world.list(Virtual, &kind::POD).filter(names).collect();
            let recorder = match naming[..] {
                [vpod] if said(vpod, keys::PHYSICAL_POD_UID) == ppod["metadata"]["uid"] => Some(vpod),
                _ => None,
            };
            if ppod["metadata"]["annotations"][keys::ORIGIN].is_null()
                && ppod["metadata"]["labels"][keys::ORIGIN].is_null()
            {
                return Err(format!("{call} changes a pod that is not ours"));
            }
            let pointed =
                || world.list(Virtual, &kind::POD).find(|vpod| vpod["metadata"]["uid"].as_str() == owner_of(ppod));
            let vpod = recorder.or_else(pointed);
            let finished = |vpod: &Value| {
                matches!(vpod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
                    && vpod["metadata"]["annotations"][keys::PHYSICAL_POD_UID] != ppod["metadata"]["uid"]
            };
            if call.why == "NotScheduled" {
                // Under its version, so nothing ran when it arrived.
                let placed = ppod["spec"]["nodeName"].is_string() || call.target.rv.is_none();
                return if placed { Err(format!("{call} although the copy has a node")) } else { Ok(()) };
            }
            match vpod {
                // It has another copy, because its first one could not be recognised any more, on either side.
                Some(vpod) if said(vpod, MANGLED) == "yes" && !names(&vpod) => Ok(()),
                Some(vpod) if vpod["metadata"]["deletionTimestamp"].is_null() && !finished(vpod) => {
                    Err(format!("{call} although the virtual pod lives"))
                }
                _ => Ok(()),
            }
        }
        (Verb::Strategic(..), Virtual, Some(vpod))
            if ["PhysicalPodLost", "PhysicalUnschedulable"].contains(&call.why) =>
        {
            let uid = vpod["metadata"]["uid"].as_str().unwrap_or_default();
            let recorded = &vpod["metadata"]["annotations"][keys::PHYSICAL_POD_UID];
            let copy = world
                .list(Physical, &kind::POD)
                .find(|ppod| back(ppod) == Some(uid) && ppod["metadata"]["uid"] == *recorded);
            match copy {
                Some(_) => Err(format!("{call} although the copy exists")),
                None => Ok(()),
            }
        }
        (Verb::Delete { .. }, Virtual, Some(vpod)) if call.target.kind == &kind::POD => {
            let asked = !vpod["metadata"]["deletionTimestamp"].is_null();
            if asked { Ok(()) } else { Err(format!("{call} although no user asked for its deletion")) }
        }
        _ => Ok(()),
    }
}

/// No object on the physical side without our origin is written to; a stripped copy of ours may get its labels back.
fn no_foreign_object_is_changed(world: &World, call: &Call, origin: &Origin) -> Result<(), String> {
    if call.target.side != Physical || call.is_read() || matches!(call.verb, Verb::Create(_)) {
        return Ok(());
    }
    // Without a UID these create.
    if call.target.uid.is_none() && matches!(call.verb, Verb::Carry { .. } | Verb::Token { .. }) {
        return Ok(());
    }
    let Some(uid) = &call.target.uid else { return Err(format!("{call} names no UID")) };
    let path = match &call.target.namespace {
        Some(namespace) => format!("{namespace}/{}", call.target.name),
        None if call.target.kind == &kind::PERSISTENT_VOLUME => call.target.name.to_string(),
        // Policies of the owner get a status.
        None => return Ok(()),
    };
    let Some(object) = world.get(Physical, call.target.kind, &path) else { return Ok(()) };
    let hits = object["metadata"]["uid"] == uid.as_str();
    // One of ours that another client stripped stays ours for a process that knows its UID.
    let ours = object["metadata"]["annotations"][keys::ORIGIN] == *origin.full
        || object["metadata"]["labels"][keys::ORIGIN] == *origin.label
        || !object["metadata"]["annotations"][STRIPPED].is_null();
    if hits && !ours { Err(format!("{call} changes a foreign object")) } else { Ok(()) }
}

/// What the physical cluster says of a copy is said on its own virtual pod. Other events are our own.
fn a_warning_is_told_on_its_own_pod(_world: &World, _leader: usize, call: &Call) -> Result<(), String> {
    let Verb::Create(event) = &call.verb else { return Ok(()) };
    let message = event["message"].as_str().filter(|_| call.target.kind == &kind::EVENT).unwrap_or_default();
    match message.split_once(WARNED) {
        Some((_, vpod)) if event["involvedObject"]["uid"] != vpod => Err(format!("{call} tells another pod: {event}")),
        _ => Ok(()),
    }
}

/// After the faults: a pod with a readiness gate is ready when its copy and the gate are.
fn gated(world: &World) -> Result<(), String> {
    let says = |pod: &Value, kind: &str| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
    };
    let gates = |vpod: &&Value| vpod["spec"]["readinessGates"].is_array() && alive(vpod);
    for vpod in world.list(Virtual, &kind::POD).filter(gates) {
        let uid = vpod["metadata"]["uid"].as_str();
        let copy = world.list(Physical, &kind::POD).filter(|ppod| alive(ppod)).find(|ppod| owner_of(ppod) == uid);
        let Some(copy) = copy else { continue };
        if says(vpod, "Ready") != (says(copy, "Ready") && says(vpod, GATE)) {
            return Err(format!(
                "{} is not as ready as its copy and its gate:\n{vpod}\n{copy}",
                vpod["metadata"]["name"]
            ));
        }
    }
    Ok(())
}

/// All ConfigMaps and Secrets of a side.
fn dependents(world: &World, side: Side) -> impl Iterator<Item = (DependentKind, &Value)> {
    let of = |kind: DependentKind| move |object| (kind, object);
    let maps = world.list(side, &kind::CONFIG_MAP).map(of(DependentKind::ConfigMap));
    maps.chain(world.list(side, &kind::SECRET).map(of(DependentKind::Secret)))
}

/// A copy of a ConfigMap or Secret is not removed while a copied pod uses it, but to be created again.
fn no_copy_in_use_is_removed(world: &World, _leader: usize, call: &Call) -> Result<(), String> {
    let Verb::Delete { .. } = &call.verb else { return Ok(()) };
    let dependent = [&kind::CONFIG_MAP, &kind::SECRET].contains(&call.target.kind);
    if !dependent || call.target.side != Physical || ["ReplaceDependent", "ReplaceToken"].contains(&call.why) {
        return Ok(());
    }
    let path = format!("mount/{}", call.target.name);
    let there = world.get(Physical, call.target.kind, &path);
    // A call that a precondition refuses does no harm.
    let meets = |object: &&Value| {
        let rv = call.target.rv.map(|rv| rv.to_string());
        object["metadata"]["uid"].as_str() == call.target.uid.as_ref().map(Uid::as_str)
            && rv.is_none_or(|rv| object["metadata"]["resourceVersion"] == rv)
    };
    let uses = |ppod: &&Value| {
        let spec = ppod["spec"].to_string();
        let references = serde_json::from_str::<SpecNeeds<'_>>(&spec).map(|needs| needs.references(true));
        let named = |reference: &Reference| {
            reference.kind.as_str() == call.target.kind.kind && *reference.name == *call.target.name.as_str()
        };
        alive(ppod) && references.is_ok_and(|references| references.iter().any(named))
    };
    let living = |ppod: &&Value| {
        let vpod = world.list(Virtual, &kind::POD).find(|vpod| vpod["metadata"]["uid"].as_str() == owner_of(ppod));
        vpod.is_some_and(alive)
    };
    match there.filter(meets).and_then(|_| world.list(Physical, &kind::POD).filter(uses).find(living)) {
        Some(ppod) => Err(format!("{call} although {} uses it", ppod["metadata"]["name"])),
        None => Ok(()),
    }
}

/// After the faults: every pod that should run has one copy with the same status; nothing else of ours is left.
fn converged(world: &World) -> Result<(), String> {
    let origin = Origin::new("v-cluster", &binding_uid(), "east");
    let snapshot = Snapshot {
        origin: &origin.full,
        vpods: world.list(Virtual, &kind::POD).collect(),
        ppods: world.list(Physical, &kind::POD).collect(),
        vnodes: world.list(Virtual, &kind::NODE).collect(),
        pnodes: world.list(Physical, &kind::NODE).collect(),
        sources: dependents(world, Virtual).collect(),
        dependents: dependents(world, Physical).collect(),
        volumes: world.list(Physical, &kind::PERSISTENT_VOLUME).collect(),
        claims: world.list(Physical, &kind::PERSISTENT_VOLUME_CLAIM).collect(),
        api_access: world
            .get(Virtual, &kind::CLUSTER_BINDING, "east")
            .is_some_and(|binding| binding["spec"]["virtualAPIServer"].is_object()),
        limits: &|_| Some(Vec::new()),
        services: CarriedServices {
            cluster: "east",
            namespaces: world
                .get(Virtual, &kind::CLUSTER_BINDING, "east")
                .and_then(|binding| binding["spec"]["serviceNamespaces"].as_array())
                .map(|listed| listed.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default(),
            sources: world.list(Virtual, &kind::SERVICE).collect(),
            copies: world.list(Physical, &kind::SERVICE).collect(),
        },
    };
    let violations = snapshot.violations();
    if !violations.is_empty() {
        return Err(violations.join("\n"));
    }
    resized(world)?;
    pushed(world)
}

/// After the faults: every copy has what its pod says, unless the pod says why not or the physical cluster has its own.
fn pushed(world: &World) -> Result<(), String> {
    let living = |pod: &&Value| alive(pod);
    for ppod in world.list(Physical, &kind::POD).filter(living) {
        let uid = back(ppod);
        let vpod = world.list(Virtual, &kind::POD).filter(living).find(|vpod| vpod["metadata"]["uid"].as_str() == uid);
        let Some(vpod) = vpod else { continue };
        let conditions = vpod["status"]["conditions"].as_array();
        if conditions.into_iter().flatten().any(|condition| condition["type"] == keys::CONDITION_CHANGES_PUSHED) {
            continue;
        }
        let rewritten = !ppod["metadata"]["annotations"][REWRITTEN].is_null();
        let names = |pod: &Value, list: &str, name: &str| -> Vec<Value> {
            pod["spec"][list].as_array().into_iter().flatten().map(|entry| entry[name].clone()).collect()
        };
        let lost = |list: &str, name: &str| {
            let there = names(ppod, list, name);
            names(vpod, list, name).into_iter().any(|wanted| !there.contains(&wanted))
        };
        let image = |pod: &Value| pod["spec"]["containers"][0]["image"].clone();
        let note = |pod: &Value| pod["metadata"]["annotations"]["note"].clone();
        let same = note(vpod) == note(ppod)
            && vpod["spec"]["activeDeadlineSeconds"] == ppod["spec"]["activeDeadlineSeconds"]
            && (rewritten || image(vpod) == image(ppod))
            && !lost("tolerations", "key")
            && !lost("ephemeralContainers", "name");
        if !same {
            return Err(format!("{} was changed and its copy was not:\n{vpod}\n{ppod}", vpod["metadata"]["name"]));
        }
    }
    Ok(())
}

/// After the faults: every token of a pod that runs is valid for a while.
fn fresh(world: &World) -> Result<(), String> {
    for secret in world.list(Physical, &kind::SECRET) {
        let Some(expires) = secret["metadata"]["annotations"][keys::TOKEN_EXPIRES].as_str() else { continue };
        let expires: jiff::Timestamp = expires.parse().map_err(|error| format!("{expires}: {error}"))?;
        if expires <= world.now().wall {
            return Err(format!("the tokens of {} expired at {expires}", secret["metadata"]["name"]));
        }
    }
    Ok(())
}

/// After the faults: every virtual node has a recently renewed Lease, and there is no other Lease.
fn kept(world: &World) -> Result<(), String> {
    for vnode in world.list(Virtual, &kind::NODE) {
        let name = vnode["metadata"]["name"].as_str().unwrap_or_default();
        let lease = world.get(Virtual, &kind::LEASE, &format!("kube-node-lease/{name}"));
        let renewed = lease.and_then(|lease| lease["spec"]["renewTime"].as_str()?.parse::<jiff::Timestamp>().ok());
        let age = renewed.map(|renewed| world.now().wall.duration_since(renewed));
        if age.is_none_or(|age| age > jiff::SignedDuration::from_secs(40)) {
            return Err(format!("the Lease of {name} was renewed {age:?} ago: {lease:?}"));
        }
    }
    Ok(())
}

/// After the faults: every copy has the size that its pod asks for, or the pod says why not.
fn resized(world: &World) -> Result<(), String> {
    let size = |pod: &Value| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"].clone();
    let living = |pod: &&Value| alive(pod);
    for ppod in world.list(Physical, &kind::POD).filter(living) {
        let uid = back(ppod);
        let vpod = world.list(Virtual, &kind::POD).filter(living).find(|vpod| vpod["metadata"]["uid"].as_str() == uid);
        let Some(vpod) = vpod.filter(|vpod| size(vpod) != size(ppod)) else { continue };
        let conditions = vpod["status"]["conditions"].as_array();
        if !conditions.into_iter().flatten().any(|condition| condition["type"] == "PodResizePending") {
            return Err(format!("{} was not resized and does not say so:\n{vpod}\n{ppod}", vpod["metadata"]["name"]));
        }
    }
    Ok(())
}

/// After the faults: virtual nodes have the drivers of their physical nodes, and the guards exist.
fn furnished(world: &World) -> Result<(), String> {
    for node in NODES {
        let drivers = |side, name: &str| world.get(side, &kind::CSI_NODE, name).map(|csinode| &csinode["spec"]);
        let vnode = format!("vnode-east-{node}");
        let wanted = world.get(Virtual, &kind::NODE, &vnode).and(drivers(Physical, node));
        if drivers(Virtual, &vnode) != wanted {
            return Err(format!("CSINode of {vnode}: {:?} instead of {wanted:?}", drivers(Virtual, &vnode)));
        }
    }
    let mut leased = Resources::new();
    for vnode in world.list(Virtual, &kind::NODE) {
        leased.add(&Resources::deserialize(&vnode["status"]["allocatable"]).map_err(|error| error.to_string())?);
    }
    for (kind, path) in guards() {
        let Some(guard) = world.get(Physical, kind, path) else { return Err(format!("there is no {path}")) };
        let whole = match kind.kind {
            "ResourceQuota" => guard["spec"]["hard"]["pods"] == leased.get(&ResourceName::Pods).to_string(),
            _ => guard["spec"]["egress"].is_array(),
        };
        if !whole || guard["metadata"]["labels"][keys::ORIGIN].is_null() {
            return Err(format!("{path} is not as wanted with {leased}: {guard}"));
        }
    }
    Ok(())
}

fn rests_and_converges(schedule: &mut Schedule<Syncer>, leaders: usize) -> Result<(), Failure> {
    schedule.quiesce()?;
    schedule.check(converged)?;
    schedule.check(furnished)?;
    schedule.check(gated)?;
    schedule.check(kept)?;
    schedule.check(fresh)?;
    for leader in 0..leaders {
        if let Some(Err(why)) = schedule.model(leader).map(|syncer| syncer.left.check_sums()) {
            return Err(schedule.fail(why));
        }
    }
    Ok(())
}

/// A run with all actors.
fn full_stage(config: Config) -> Schedule<Syncer> {
    let managers = Side::BOTH.map(ControllerManager::new);
    managers
        .into_iter()
        .fold(stage(config), Schedule::actor)
        .actor(Kubelet::new(Physical))
        .actor(user)
        .actor(owner)
        .actor(services::user)
        .actor(services::owner)
}

fn play(config: Config, steps: usize) -> Result<(), Failure> {
    let leaders = config.leaders;
    let mut schedule = full_stage(config);
    schedule.run(steps)?;
    rests_and_converges(&mut schedule, leaders)
}

/// How many schedules: a few thousand by default, more with `TAPESTRY_WORLD_SCHEDULES`, or the one of `TAPESTRY_WORLD_SEED`.
fn seeds(default: u64) -> Range<u64> {
    match replayed() {
        Some(seed) => seed..seed + 1,
        None => 0..number("TAPESTRY_WORLD_SCHEDULES").unwrap_or(default),
    }
}

fn replayed() -> Option<u64> {
    number("TAPESTRY_WORLD_SEED")
}

#[expect(clippy::disallowed_methods, reason = "a test has no command line of its own")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A replayed run prints all its steps.
fn config(seed: u64) -> Config {
    // Longer than any wait: a stray is collected after ten minutes.
    let config = Config { calm: Duration::from_mins(11), ..Config::new(seed) };
    if replayed().is_some() { Config { journal: 100_000, ..config } } else { config }
}

// ---- the tests ----

#[test]
fn a_seed_gives_the_same_run_each_time() -> Result<(), Failure> {
    let digest = || -> Result<u64, Failure> {
        let mut schedule = full_stage(config(7).leaders(2));
        schedule.run(600)?;
        schedule.quiesce()?;
        Ok(schedule.digest())
    };
    assert_eq!(digest()?, digest()?);
    Ok(())
}

#[test]
fn pods_come_and_go_without_a_fault_and_everything_converges() -> Result<(), Failure> {
    explore(seeds(300), |seed| play(config(seed).faults(Faults::NONE), 600))
}

#[test]
fn law_08_every_fault_at_once_loses_nothing_and_everything_converges() -> Result<(), Failure> {
    explore(seeds(700), |seed| play(config(seed), 600))
}

#[test]
fn law_02_two_leaders_at_once_never_make_two_copies_and_change_no_foreign_object() -> Result<(), Failure> {
    explore(seeds(500), |seed| play(config(seed).leaders(2), 600))
}

#[test]
fn leadership_that_changes_hands_again_and_again_loses_nothing() -> Result<(), Failure> {
    let faults = Faults { depose: 0.03, ..Faults::ALL };
    explore(seeds(300), |seed| play(config(seed).leaders(2).faults(faults), 600))
}

#[test]
fn tokens_are_renewed_again_and_again_while_their_pod_runs() -> Result<(), Failure> {
    explore(seeds(20), |seed| {
        let mut schedule = stage(config(seed).faults(Faults::NONE)).actor(Kubelet::steady(Physical));
        let renewed: Rc<RefCell<BTreeMap<String, u32>>> = Rc::default();
        let counted = Rc::clone(&renewed);
        schedule = schedule.on_call(move |_, _, call| {
            if call.why == "RefreshToken" {
                *counted.borrow_mut().entry(call.target.name.to_string()).or_default() += 1;
            }
            Ok(())
        });
        for n in 0..4 {
            let mut object = pod(&format!("p{n}"), NODES[n % 2], "1");
            object["spec"]["volumes"] = needy_volumes();
            // The shortest that Kubernetes grants.
            object["spec"]["volumes"][2]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] =
                json!(600);
            schedule.world.make(Virtual, &kind::POD, object);
        }
        for kind in [&kind::CONFIG_MAP, &kind::SECRET] {
            let settings = json!({"metadata": {"name": "settings", "namespace": "demo"}, "data": {"a": "1"}});
            schedule.world.make(Virtual, kind, settings);
        }
        // Enough to run all four: a copy that waits five minutes for its node would end its pod.
        schedule.run(1500)?;
        for _ in 0..40 {
            schedule.run(30)?;
            schedule.world.advance(Duration::from_mins(1));
        }
        // 40 minutes at least, and a token of ten minutes is renewed after eight.
        let renewed = renewed.borrow();
        let often = renewed.len() == 4 && renewed.values().all(|times| (4..40).contains(times));
        schedule.check(|_| if often { Ok(()) } else { Err(format!("{renewed:?}")) })
    })
}

#[test]
fn law_08_a_crash_after_any_single_call_leaves_a_state_that_converges() -> Result<(), Failure> {
    for seed in 0..3 {
        let make = || {
            let mut schedule = stage(config(seed).faults(Faults::NONE)).actor(Kubelet::steady(Physical));
            for n in 0..4 {
                let mut object = pod(&format!("p{n}"), NODES[n % 2], "1");
                object["spec"]["volumes"] = needy_volumes();
                schedule.world.make(Virtual, &kind::POD, object);
            }
            for kind in [&kind::CONFIG_MAP, &kind::SECRET] {
                let settings = json!({"metadata": {"name": "settings", "namespace": "demo"}, "data": {"a": "1"}});
                schedule.world.make(Virtual, kind, settings);
            }
            let spec = json!({"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]});
            let web = json!({"metadata": {"name": "web", "namespace": "demo"}, "spec": spec});
            schedule.world.make(Virtual, &kind::SERVICE, web);
            schedule
        };
        let calls = exhaustive_crash(make, |schedule| {
            schedule.run(300)?;
            schedule.world.edit(Virtual, &kind::POD, "demo/p2", |pod| {
                pod["metadata"]["annotations"]["note"] = json!("changed");
                pod["spec"]["containers"][0]["image"] = json!("changed");
                pod["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "debug"}]);
            });
            schedule.world.delete(Virtual, &kind::POD, "demo/p0", Some(30));
            schedule.world.delete(Virtual, &kind::POD, "demo/p1", Some(0));
            schedule.world.delete(Physical, &kind::POD, "mount/missing", Some(0));
            schedule.world.edit(Virtual, &kind::CONFIG_MAP, "demo/settings", |map| map["data"]["a"] = json!("2"));
            schedule.world.edit(Virtual, &kind::SERVICE, "demo/web", |web| web["spec"]["ports"][0]["port"] = json!(81));
            schedule.world.edit(Physical, &kind::SERVICE, "mount/web", |copy| {
                copy["status"]["loadBalancer"]["ingress"] = json!([{"ip": "5.5.5.5"}]);
            });
            if let Some(path) = schedule.world.pick(Physical, &kind::SECRET, &mut Rng::with_seed(seed), |_| true) {
                schedule.world.edit(Physical, &kind::SECRET, &path, |copy| copy["data"]["a"] = json!("theirs"));
            }
            schedule.run(200)?;
            schedule.world.delete(Virtual, &kind::SERVICE, "demo/web", None);
            schedule.run(100)?;
            rests_and_converges(schedule, 1)
        })?;
        assert!(calls > 20, "the story is too short: {calls} calls");
    }
    Ok(())
}
