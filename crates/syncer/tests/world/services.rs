//! What people do with Services: the user of the virtual cluster, and the owner of the physical one with a cloud that gives addresses.

use fastrand::Rng;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::kind;
use tapestry_domain::names;
use tapestry_testbed::world::World;

use super::people::origin_label;
use super::{Physical, Virtual};

/// Two of one name in two namespaces, and one of another.
const PLACES: [(&str, &str); 3] = [("demo", "web"), ("team", "web"), ("demo", "db")];

pub(super) fn spec(rng: &mut Rng) -> Value {
    let (kind, name) = (["ClusterIP", "NodePort", "LoadBalancer"][rng.usize(..3)], ["a", "b"][rng.usize(..2)]);
    let mut spec = json!({"type": kind, "ports": [{"name": name, "port": rng.u32(80..83)}]});
    spec["selector"] = json!({"app": rng.u8(..3).to_string()});
    match rng.u32(..12) {
        0 => spec["externalIPs"] = json!(["1.2.3.4"]),
        1 => spec["selector"] = json!({}),
        2 => spec = json!({"type": "ExternalName", "externalName": "db.example.com"}),
        3..5 => spec["clusterIP"] = json!("None"),
        5 => spec["sessionAffinity"] = json!("ClientIP"),
        _ => {}
    }
    if spec["clusterIP"] == "None" {
        spec["type"] = json!("ClusterIP");
    }
    spec
}

/// Creates, changes, deletes and recreates Services, changes which namespaces are carried, and removes addresses.
pub(super) fn user(world: &mut World, rng: &mut Rng) {
    let (namespace, name) = PLACES[rng.usize(..PLACES.len())];
    let path = format!("{namespace}/{name}");
    match rng.u32(..24) {
        0..5 => {
            let spec = spec(rng);
            let note = rng.bool().then(|| rng.u8(..3).to_string());
            let there = world.get(Virtual, &kind::SERVICE, &path);
            // No client gives an address to a Service that has none, or takes one away.
            let headless = |spec: &Value| spec["clusterIP"] == "None";
            let same = there.map(|there| headless(&there["spec"]) == headless(&spec));
            if same == Some(false) {
                world.delete(Virtual, &kind::SERVICE, &path, None);
            }
            if same == Some(true) {
                world.edit(Virtual, &kind::SERVICE, &path, |service| {
                    service["spec"] = spec;
                    service["metadata"]["annotations"]["note"] = json!(note);
                    if note.is_none() {
                        service["metadata"]["annotations"].as_object_mut().map(|notes| notes.remove("note"));
                    }
                });
            } else {
                let metadata = json!({"name": name, "namespace": namespace, "labels": {"app": "web"}});
                world.make(Virtual, &kind::SERVICE, json!({"metadata": metadata, "spec": spec}));
            }
        }
        5 => drop(world.delete(Virtual, &kind::SERVICE, &path, None)),
        6 => {
            let listed = [json!(["demo", "team"]), json!(["team"]), json!([])][rng.usize(..3)].clone();
            world
                .edit(Virtual, &kind::CLUSTER_BINDING, "east", |binding| binding["spec"]["serviceNamespaces"] = listed);
        }
        // Another controller of load balancers, or a user who removes what we record.
        7 => drop(world.edit(Virtual, &kind::SERVICE, &path, |service| {
            service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}});
        })),
        8 => drop(world.edit(Virtual, &kind::SERVICE, &path, |service| service["metadata"]["annotations"] = json!({}))),
        _ => {}
    }
}

/// Changes, unmarks and deletes copies, has Services of its own in the mount namespace, and gives load balancers addresses.
pub(super) fn owner(world: &mut World, rng: &mut Rng) {
    let ours = |service: &Value| service["metadata"]["labels"][keys::MANAGED_BY].is_string();
    // A copy that has neither label nor annotation could be another user's.
    let whole = |service: &Value| ours(service) && service["metadata"]["annotations"][keys::ORIGIN].is_string();
    let act = rng.u32(..24);
    if act < 2 {
        let (namespace, name) = PLACES[rng.usize(..PLACES.len())];
        let other = names::service_name(&origin_label(world), namespace, name);
        let name = if rng.u32(..4) == 0 { other } else { name.to_owned() };
        let metadata = json!({"name": name, "namespace": "mount"});
        world.make(Physical, &kind::SERVICE, json!({"metadata": metadata, "spec": {"mine": "x"}}));
        return;
    }
    if act == 2 {
        if let Some(path) = world.pick(Physical, &kind::SERVICE, rng, |service| service["spec"]["mine"] == "x") {
            world.delete(Physical, &kind::SERVICE, &path, None);
        }
        return;
    }
    let Some(path) = world.pick(Physical, &kind::SERVICE, rng, whole) else { return };
    let ip = format!("5.5.5.{}", rng.u8(..3));
    match act {
        3 => drop(world.delete(Physical, &kind::SERVICE, &path, None)),
        4 => drop(world.edit(Physical, &kind::SERVICE, &path, |copy| copy["metadata"]["labels"] = json!({}))),
        // Where nothing is selected, nothing says any more what it is a copy of.
        5 => drop(world.edit(Physical, &kind::SERVICE, &path, |copy| {
            if copy["spec"]["selector"].is_object() {
                copy["metadata"]["annotations"] = json!({});
            }
        })),
        6 => drop(
            world.edit(Physical, &kind::SERVICE, &path, |copy| copy["spec"]["selector"] = json!({"app": "theirs"})),
        ),
        7 => drop(world.edit(Physical, &kind::SERVICE, &path, |copy| {
            copy["metadata"]["labels"]["example.com/theirs"] = json!("kept");
        })),
        8..12 => drop(world.edit(Physical, &kind::SERVICE, &path, |copy| {
            if copy["spec"]["type"] == "LoadBalancer" {
                copy["status"]["loadBalancer"]["ingress"] = json!([{"ip": ip}]);
            }
        })),
        _ => {}
    }
}
