//! The other actors: the user of the virtual cluster and the owner of the physical one, who know nothing of syncers.

use fastrand::Rng;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::{Kind, kind};
use tapestry_domain::names;
use tapestry_testbed::world::{World, set_condition};

use super::{NODES, PODS, Physical, Virtual};

pub(super) fn pod(name: &str, node: &str, cpu: &str) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}});
    let tolerations = json!([{"key": keys::TAINT_VNODE, "operator": "Exists"}]);
    json!({
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"nodeName": format!("vnode-east-{node}"), "containers": [container], "tolerations": tolerations},
        "status": {"phase": "Pending"},
    })
}

/// What pods may name in the virtual cluster.
const DEPENDENTS: [(&Kind, &str); 3] =
    [(&kind::CONFIG_MAP, "settings"), (&kind::CONFIG_MAP, "extra"), (&kind::SECRET, "settings")];

/// The name that the syncer gives the copy of one of them.
fn copy_name(world: &World, name: &str) -> String {
    names::dependent_name(&origin_label(world), "demo", name)
}

pub(super) fn origin_label(world: &World) -> String {
    let binding = world.get(Virtual, &kind::CLUSTER_BINDING, "east");
    let uid = binding.and_then(|binding| binding["metadata"]["uid"].as_str()).unwrap_or_default();
    names::origin_hash("v-cluster", uid)
}

/// A ConfigMap, a Secret, a token and what the virtual cluster injects, each perhaps; one ConfigMap is optional.
fn volumes(rng: &mut Rng) -> Value {
    let token = json!({"serviceAccountToken": {"audience": "vault", "path": "token"}});
    let injected = json!([
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt"}},
    ]);
    let all = [
        json!({"name": "files", "configMap": {"name": "settings"}}),
        json!({"name": "extra", "configMap": {"name": "extra", "optional": true}}),
        json!({"name": "secret", "secret": {"secretName": "settings"}}),
        json!({"name": "token", "projected": {"sources": [token]}}),
        json!({"name": "kube-api-access-abcde", "projected": {"sources": injected}}),
    ];
    all.into_iter().filter(|_| rng.bool()).collect()
}

/// A ConfigMap and a Secret that pods share, and a token.
pub(super) fn needy_volumes() -> Value {
    let token = json!({"serviceAccountToken": {"audience": "vault", "path": "token"}});
    json!([
        {"name": "files", "configMap": {"name": "settings"}},
        {"name": "secret", "secret": {"secretName": "settings"}},
        {"name": "token", "projected": {"sources": [token]}},
    ])
}

/// The same by environment, as a container names them.
fn environment(rng: &mut Rng) -> Value {
    let all =
        [json!({"configMapRef": {"name": "settings"}}), json!({"secretRef": {"name": "settings", "optional": true}})];
    all.into_iter().filter(|_| rng.bool()).collect()
}

/// The user changes what pods name: values, also of immutable objects by making them again; and how pods reach the API server.
fn change_dependents(world: &mut World, rng: &mut Rng) {
    let (kind, name) = DEPENDENTS[rng.usize(..DEPENDENTS.len())];
    let path = format!("demo/{name}");
    let data = json!({"a": rng.u8(..4).to_string(), ["b", "c"][rng.usize(..2)]: "x"});
    let immutable = rng.u32(..6) == 0;
    // Some ask for changes of their copies; some with a word that means nothing.
    let direction =
        [Value::Null, Value::Null, json!(keys::SYNC_BOTH), json!(keys::SYNC_BOTH), json!("up")][rng.usize(..5)].clone();
    let annotations = if direction.is_null() { json!({}) } else { json!({keys::SYNC_DIRECTION: direction}) };
    let there = world.get(Virtual, kind, &path).map(|object| object["immutable"] == true);
    if there == Some(false) {
        world.edit(Virtual, kind, &path, |object| {
            object["data"] = data;
            object["metadata"]["annotations"] = annotations;
            if immutable {
                object["immutable"] = json!(true);
            }
        });
        return;
    }
    if there == Some(true) {
        world.delete(Virtual, kind, &path, None);
    }
    let metadata = json!({"name": name, "namespace": "demo", "annotations": annotations});
    let mut object = json!({"metadata": metadata, "data": data});
    if immutable {
        object["immutable"] = json!(true);
    }
    world.make(Virtual, kind, object);
}

pub(super) fn csinode(node: &str, topology: &str) -> Value {
    let driver = json!({"name": "d.csi", "nodeID": node, "topologyKeys": [topology], "allocatable": {"count": 8}});
    json!({"metadata": {"name": node}, "spec": {"drivers": [driver]}})
}

/// Creates, deletes, force-deletes, recreates under the same name, resizes, forges mappings, adds finalizers, strips nodes.
pub(super) fn user(world: &mut World, rng: &mut Rng) {
    let name = format!("p{}", rng.usize(..PODS));
    let path = format!("demo/{name}");
    match rng.u32(..36) {
        30.. => change(world, rng, &path),
        // A controller of the tenant opens or closes a readiness gate.
        28 | 29 => {
            let open = rng.bool();
            let now = world.now().wall.to_string();
            world.edit(Virtual, &kind::POD, &path, |pod| {
                if pod["spec"]["readinessGates"].is_array() {
                    set_condition(pod, GATE, open, None, &now);
                }
            });
        }
        // ConfigMaps and Secrets come, change and go.
        23..26 => change_dependents(world, rng),
        27 => {
            let server = [json!({"host": "10.9.8.7", "port": 6443}), Value::Null][rng.usize(..2)].clone();
            world.edit(Virtual, &kind::CLUSTER_BINDING, "east", |binding| binding["spec"]["virtualAPIServer"] = server);
        }
        26 => {
            let (kind, name) = DEPENDENTS[rng.usize(..DEPENDENTS.len())];
            world.delete(Virtual, kind, &format!("demo/{name}"), None);
        }
        // Removes everything from a virtual node that marks it as ours. Before it has a Lease nothing would prove that it
        // is ours.
        22 => {
            let vnode = format!("vnode-east-{}", NODES[rng.usize(..2)]);
            if world.get(Virtual, &kind::LEASE, &format!("kube-node-lease/{vnode}")).is_some() {
                world.edit(Virtual, &kind::NODE, &vnode, |node| {
                    (node["metadata"]["labels"], node["metadata"]["annotations"]) = (json!({}), json!({}));
                });
            }
        }
        20.. => {
            let cpu = ["500m", "1", "2", "5"][rng.usize(..4)];
            let size = |pod: &mut Value| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
            world.edit(Virtual, &kind::POD, &path, size);
        }
        0..10 => {
            let mut object = pod(&name, NODES[rng.usize(..2)], ["500m", "1", "3"][rng.usize(..3)]);
            match rng.u32(..10) {
                0 => object["metadata"]["finalizers"] = json!(["example.com/wait"]),
                1 => forge(&mut object, "owner", "app", None),
                2 => forge(&mut object, "mount", "foreign", Some("made-up")),
                3..7 => object["spec"]["volumes"] = volumes(rng),
                7 => object["spec"]["containers"][0]["envFrom"] = environment(rng),
                8 => object["spec"]["readinessGates"] = json!([{"conditionType": GATE}]),
                _ => {}
            }
            world.make(Virtual, &kind::POD, object);
        }
        10..14 => drop(world.delete(Virtual, &kind::POD, &path, Some(30))),
        14 => drop(world.delete(Virtual, &kind::POD, &path, Some(5))),
        15 => drop(world.delete(Virtual, &kind::POD, &path, Some(0))),
        16 => drop(world.edit(Virtual, &kind::POD, &path, |pod| pod["metadata"]["finalizers"] = json!([]))),
        // The controller-manager does this when it thinks that the node is gone.
        17 => drop(world.edit(Virtual, &kind::POD, &path, |pod| {
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        })),
        18 => drop(world.edit(Virtual, &kind::POD, &path, |pod| forge(pod, "owner", "app", Some("made-up")))),
        _ => {
            let wiped = json!({MANGLED: "yes"});
            world.edit(Virtual, &kind::POD, &path, |pod| pod["metadata"]["annotations"] = wiped);
        }
    }
}

/// Changes what can be changed while a pod runs, by a few values, so that some changes are taken back.
fn change(world: &mut World, rng: &mut Rng, path: &str) {
    let value = rng.u8(..3).to_string();
    let add = |pod: &mut Value, list: &str, entry: Value| {
        let list = &mut pod["spec"][list];
        match list {
            Value::Array(list) if list.contains(&entry) => {}
            Value::Array(list) => list.push(entry),
            none => *none = json!([entry]),
        }
    };
    let what = rng.u32(..7);
    let privileged = rng.u32(..4) == 0;
    world.edit(Virtual, &kind::POD, path, |pod| match what {
        0 => pod["metadata"]["labels"] = json!({"app": value}),
        1 => pod["metadata"]["labels"]["tier"] = json!(value),
        2 => pod["metadata"]["annotations"]["note"] = json!(value),
        3 => pod["spec"]["containers"][0]["image"] = json!(format!("i:{value}")),
        4 => add(pod, "tolerations", json!({"key": format!("extra-{value}"), "operator": "Exists"})),
        5 => {
            let seconds = 10_000 - 1_000 * value.parse::<i64>().unwrap_or_default();
            let shorter = pod["spec"]["activeDeadlineSeconds"].as_i64().is_none_or(|now| seconds < now);
            if shorter {
                pod["spec"]["activeDeadlineSeconds"] = json!(seconds);
            }
        }
        _ => {
            let security = if privileged { json!({"privileged": true}) } else { json!({}) };
            let taken = |debug: &Value| debug["name"] == value;
            if !pod["spec"]["ephemeralContainers"].as_array().into_iter().flatten().any(taken) {
                let debug = json!({"name": value, "image": "debug", "securityContext": security});
                add(pod, "ephemeralContainers", debug);
            }
        }
    });
}

pub(super) fn forge(pod: &mut Value, namespace: &str, name: &str, uid: Option<&str>) {
    let annotations = &mut pod["metadata"]["annotations"];
    annotations[keys::PHYSICAL_POD_NAMESPACE] = json!(namespace);
    annotations[keys::PHYSICAL_POD_NAME] = json!(name);
    annotations[keys::PHYSICAL_POD_UID] = json!(uid);
    annotations[MANGLED] = json!("yes");
}

/// The owner takes the names of copies of ConfigMaps and Secrets, and changes, strips and deletes them.
fn disturb_dependents(world: &mut World, rng: &mut Rng, act: u32) {
    let ours = |copy: &Value| copy["metadata"]["labels"][keys::MANAGED_BY].is_string();
    let (kind, name) = DEPENDENTS[rng.usize(..DEPENDENTS.len())];
    match act {
        // Takes the name of a copy for an object of its own, and frees it again.
        25 => {
            let metadata = json!({"name": copy_name(world, name), "namespace": "mount"});
            world.make(Physical, kind, json!({"metadata": metadata, "data": {"mine": "x"}}));
        }
        26 => {
            if let Some(path) = world.pick(Physical, kind, rng, |object| object["data"]["mine"] == "x") {
                world.delete(Physical, kind, &path, None);
            }
        }
        _ => {
            let Some(path) = world.pick(Physical, kind, rng, ours) else { return };
            match act {
                18 => strip(world, rng, kind, &path),
                19 => drop(world.delete(Physical, kind, &path, None)),
                // No client changes what is immutable.
                _ => {
                    let what = rng.u32(..4);
                    world.edit(Physical, kind, &path, |copy| match what {
                        _ if copy["immutable"] == true => {}
                        0 => drop(copy["data"].as_object_mut().map(|data| data.remove("b"))),
                        1 => copy["data"]["d"] = json!("added"),
                        _ => copy["data"]["a"] = json!("theirs"),
                    });
                }
            }
        }
    }
}

/// Removes or changes marks of a copy: the labels, the annotations, all of them, or what it says of its source.
fn strip(world: &mut World, rng: &mut Rng, kind: &'static Kind, path: &str) {
    let what = rng.u32(..6);
    world.edit(Physical, kind, path, |copy| {
        let metadata = &mut copy["metadata"];
        if matches!(what, 0 | 2) {
            metadata["labels"] = json!({});
        }
        if matches!(what, 1 | 2) {
            metadata["annotations"] = json!({STRIPPED: "yes"});
        }
        let annotations = metadata["annotations"].as_object_mut();
        match (what, annotations) {
            (3, Some(annotations)) => drop(annotations.remove(keys::VIRTUAL_UID)),
            (4, Some(annotations)) => drop(annotations.remove(keys::VIRTUAL_POD_UID)),
            (5, Some(annotations)) if annotations.contains_key(keys::VIRTUAL_NAME) => {
                annotations.insert(keys::VIRTUAL_NAME.to_owned(), json!("other"));
            }
            _ => {}
        }
    });
}

/// The owner of the physical cluster: runs other pods, deletes ours, removes labels.
pub(super) fn owner(world: &mut World, rng: &mut Rng) {
    let ours = |pod: &Value| pod["metadata"]["labels"][keys::MANAGED_BY].is_string();
    // A copy that loses both its labels and its back-pointer is left alone: it could be another user's pod.
    let whole = |pod: &Value| ours(pod) && back(pod).is_some() && pod["metadata"]["annotations"][FORGED].is_null();
    match rng.u32(..27) {
        // Rewrites a copy, and has labels of its own there.
        24 => {
            if let Some(path) = world.pick(Physical, &kind::POD, rng, whole) {
                world.edit(Physical, &kind::POD, &path, |pod| {
                    pod["spec"]["containers"][0]["image"] = json!("mirror/i");
                    pod["metadata"]["labels"][REWRITTEN] = json!("yes");
                    pod["metadata"]["annotations"][REWRITTEN] = json!("yes");
                });
            }
        }
        // A kubelet or scheduler warns of a pod, ours or not.
        20 | 21 => {
            // Whose a copy without its back-pointer is, only the syncer knows.
            let clear = |pod: &Value| pod["metadata"]["namespace"] == "mount" && ours(pod) == back(pod).is_some();
            if let Some(path) = world.pick(Physical, &kind::POD, rng, clear) {
                let reason = ["FailedMount", "BackOff", "Unhealthy"][rng.usize(..3)];
                warn(world, &path, reason);
            }
        }
        // Some copies find no node: admission of the owner gave them a scheduler that does not run.
        22 => {
            let unbound = |pod: &Value| ours(pod) && pod["spec"]["nodeName"].is_null();
            if let Some(path) = world.pick(Physical, &kind::POD, rng, unbound) {
                let absent = json!(tapestry_testbed::world::ABSENT_SCHEDULER);
                world.edit(Physical, &kind::POD, &path, |pod| pod["spec"]["schedulerName"] = absent);
            }
        }
        act @ (16..20 | 25..) => disturb_dependents(world, rng, act),
        12 => drop(world.delete(Physical, &kind::CSI_NODE, NODES[rng.usize(..2)], None)),
        13 => {
            let (node, topology) = (NODES[rng.usize(..2)], ["zone", "rack"][rng.usize(..2)]);
            world.make(Physical, &kind::CSI_NODE, csinode(node, topology));
        }
        14 => {
            let (kind, path) = guards()[rng.usize(..2)];
            world.edit(Physical, kind, path, |guard| {
                guard["spec"] = json!({"hard": {"pods": "999"}, "podSelector": {}});
                guard["metadata"]["labels"] = json!({});
            });
        }
        15 => {
            let (kind, path) = guards()[rng.usize(..2)];
            world.delete(Physical, kind, path, None);
        }
        0..3 => {
            let (namespace, name) = [("mount", "foreign"), ("owner", "app"), ("owner", "other")][rng.usize(..3)];
            let mut object = pod(name, NODES[rng.usize(..2)], "1");
            object["metadata"]["namespace"] = json!(namespace);
            object["spec"]["nodeName"] = json!(NODES[rng.usize(..2)]);
            world.make(Physical, &kind::POD, object);
        }
        3..5 => drop(world.delete(
            Physical,
            &kind::POD,
            ["mount/foreign", "owner/app", "owner/other"][rng.usize(..3)],
            Some(0),
        )),
        5..7 => {
            if let Some(path) = world.pick(Physical, &kind::POD, rng, ours) {
                world.delete(Physical, &kind::POD, &path, [None, Some(0)][rng.usize(..2)]);
            }
        }
        7 => {
            if let Some(path) = world.pick(Physical, &kind::POD, rng, whole) {
                world.edit(Physical, &kind::POD, &path, |pod| pod["metadata"]["labels"] = json!({}));
            }
        }
        // Removes the back-pointer of a copy, or makes it point to no pod, or to another pod.
        forgery @ 9..12 => {
            let victim = world.pick(Virtual, &kind::POD, rng, |_| true);
            let victim = victim.and_then(|path| world.get(Virtual, &kind::POD, &path)).cloned();
            if let Some(path) = world.pick(Physical, &kind::POD, rng, whole) {
                world.edit(Physical, &kind::POD, &path, |pod| {
                    let whose = owner_of(pod).map(ToOwned::to_owned);
                    let annotations = &mut pod["metadata"]["annotations"];
                    if forgery == 9 {
                        for key in [keys::VIRTUAL_POD_NAMESPACE, keys::VIRTUAL_POD_NAME, keys::VIRTUAL_POD_UID] {
                            annotations.as_object_mut().map(|annotations| annotations.remove(key));
                        }
                    } else if let (11, Some(victim)) = (forgery, &victim) {
                        annotations[keys::VIRTUAL_POD_NAMESPACE] = victim["metadata"]["namespace"].clone();
                        annotations[keys::VIRTUAL_POD_NAME] = victim["metadata"]["name"].clone();
                        annotations[keys::VIRTUAL_POD_UID] = victim["metadata"]["uid"].clone();
                        annotations[FORGED] = json!(whose);
                    } else {
                        annotations[keys::VIRTUAL_POD_UID] = json!(format!("no-pod-{path}"));
                        annotations[FORGED] = json!(whose);
                    }
                });
            }
        }
        8 => drop(world.edit(Physical, &kind::NODE, NODES[rng.usize(..2)], |node| {
            node["spec"]["unschedulable"] = json!(node["spec"]["unschedulable"] != json!(true));
        })),
        _ => {}
    }
}

/// The readiness gate of some pods.
pub(super) const GATE: &str = "example.com/gate";

/// How the warning of a copy names the virtual pod to which it belongs.
pub(super) const WARNED: &str = "warned about ";

/// Warns of a physical pod; once more if it has been warned of before.
fn warn(world: &mut World, path: &str, reason: &str) {
    let Some(ppod) = world.get(Physical, &kind::POD, path) else { return };
    let name = format!("{}.{}", ppod["metadata"]["uid"].as_str().unwrap_or_default(), reason.to_lowercase());
    let about = json!({"kind": "Pod", "namespace": "mount", "uid": ppod["metadata"]["uid"]});
    let message = format!("{WARNED}{}", owner_of(ppod).unwrap_or("no pod"));
    let again = |event: &mut Value| event["count"] = json!(event["count"].as_u64().unwrap_or(1) + 1);
    if !world.edit(Physical, &kind::EVENT, &format!("mount/{name}"), again) {
        let metadata = json!({"name": name, "namespace": "mount"});
        let event = json!({"metadata": metadata, "involvedObject": about, "type": "Warning", "reason": reason, "message": message});
        world.make(Physical, &kind::EVENT, event);
    }
}

pub(super) fn back(ppod: &Value) -> Option<&str> {
    ppod["metadata"]["annotations"][keys::VIRTUAL_POD_UID].as_str()
}

/// Marks a copy of a ConfigMap or Secret that lost our annotations.
pub(super) const STRIPPED: &str = "example.com/stripped";

/// Marks a copy whose image the physical cluster chose.
pub(super) const REWRITTEN: &str = "example.com/rewritten";

/// Marks a copy that a user made point to another pod, with its real owner: the other pod then has two copies, but not
/// because of us.
pub(super) const FORGED: &str = "example.com/forged";

/// Marks a virtual pod whose mapping a user changed. Its copy gets it too, as every annotation.
pub(super) const MANGLED: &str = "example.com/mangled";

pub(super) fn owner_of(ppod: &Value) -> Option<&str> {
    ppod["metadata"]["annotations"][FORGED].as_str().or_else(|| back(ppod))
}

pub(super) fn guards() -> [(&'static tapestry_cluster::Kind, &'static str); 2] {
    [(&kind::RESOURCE_QUOTA, "mount/tapestry-leased"), (&kind::NETWORK_POLICY, "mount/tapestry-isolation")]
}
