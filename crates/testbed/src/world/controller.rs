//! The part of a controller-manager that affects our objects: new nodes lose their taint, pods of deleted nodes are
//! deleted, and so are objects whose owner is gone. Never touches objects without an owner.

use std::collections::BTreeSet;

use fastrand::Rng;
use serde_json::{Value, json};
use tapestry_cluster::{Kind, Side, kind};

use super::World;
use super::kubelet::set_condition;
use super::schedule::Actor;
use super::server::seconds;

/// The controller-manager of one side.
#[derive(Debug, Clone)]
pub struct ControllerManager {
    /// Its side.
    pub side: Side,
    /// The chance that it does one of its tasks when its turn comes.
    pub diligence: f64,
}

/// Kinds that a node can own.
const OWNED: [&Kind; 2] = [&kind::LEASE, &kind::POD];
const NOT_READY: &str = "node.kubernetes.io/not-ready";

impl ControllerManager {
    /// One that does its tasks half of the time.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, diligence: 0.5 }
    }

    /// A node that is ready loses the taint it was created with.
    fn clear_taints(&self, world: &mut World) -> bool {
        let ready = |node: &&Value| {
            let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let tainted = |node: &&Value| taints(node).any(|taint| taint["key"] == NOT_READY);
        let names: Vec<String> = world.list(self.side, &kind::NODE).filter(ready).filter(tainted).map(name).collect();
        for name in &names {
            world.edit(self.side, &kind::NODE, name, |node| {
                if let Some(taints) = node["spec"]["taints"].as_array_mut() {
                    taints.retain(|taint| taint["key"] != NOT_READY);
                }
                if taints(node).next().is_none() {
                    super::strategy::put(&mut node["spec"], "taints", Value::Null);
                }
            });
        }
        !names.is_empty()
    }

    /// Pods of a node that is gone fail, and are then removed by force.
    fn collect_pods(&self, world: &mut World) -> bool {
        let homeless = |pod: &&Value| {
            let node = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty());
            let held = pod["metadata"]["deletionGracePeriodSeconds"] == 0;
            !held && node.is_some_and(|node| world.get(self.side, &kind::NODE, node).is_none())
        };
        let paths: Vec<String> = world.list(self.side, &kind::POD).filter(homeless).map(path).collect();
        let now = seconds(world.now().wall);
        for path in &paths {
            world.edit(self.side, &kind::POD, path, |pod| {
                if !super::strategy::is_terminal(pod) {
                    pod["status"]["phase"] = json!("Failed");
                    set_condition(pod, "DisruptionTarget", true, Some("DeletionByPodGC"), &now);
                }
            });
            world.delete(self.side, &kind::POD, path, Some(0));
        }
        !paths.is_empty()
    }

    /// Deletes objects whose owners are all gone.
    fn collect_garbage(&self, world: &mut World) -> bool {
        let mut moved = false;
        for kind in OWNED {
            let owned = |object: &&Value| object["metadata"]["ownerReferences"].is_array();
            if !world.list(self.side, kind).any(|object| owned(&object)) {
                continue;
            }
            let living: BTreeSet<String> = world.list(self.side, &kind::NODE).map(uid).collect();
            let dangling = |object: &&Value| {
                let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
                // Owners of other kinds are not checked: such objects stay.
                owned(object)
                    && owners.all(|owner| {
                        owner["kind"] == "Node" && !living.contains(owner["uid"].as_str().unwrap_or_default())
                    })
            };
            let paths: Vec<String> = world.list(self.side, kind).filter(dangling).map(path).collect();
            for path in paths {
                moved |= world.delete(self.side, kind, &path, None);
            }
        }
        moved
    }
}

impl Actor for ControllerManager {
    fn act(&mut self, world: &mut World, rng: &mut Rng) {
        for duty in [Self::clear_taints, Self::collect_pods, Self::collect_garbage] {
            if rng.f64() < self.diligence {
                duty(self, world);
            }
        }
    }

    fn settle(&mut self, world: &mut World, _: &mut Rng) -> bool {
        let duties = [Self::clear_taints, Self::collect_pods, Self::collect_garbage];
        duties.iter().filter(|duty| duty(self, world)).count() > 0
    }
}

fn taints(node: &Value) -> impl Iterator<Item = &Value> {
    node["spec"]["taints"].as_array().into_iter().flatten()
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn path(object: &Value) -> String {
    super::server::path(object["metadata"]["namespace"].as_str(), &name(object))
}
