//! Scheduler and kubelets of one side: bind pods, run them, let them end, finish their deletion.
//! Does not know who created a pod; touches spec only to bind.

use std::sync::Arc;

use fastrand::Rng;
use serde_json::{Value, json};
use tapestry_cluster::{Side, kind};

use super::World;
use super::schedule::Actor;
use super::server::{Version, seconds};
use super::strategy::is_terminal;

/// Scheduler and kubelets of one side. Each figure is the chance that a pod takes that step when its turn comes.
#[derive(Debug, Clone)]
pub struct Kubelet {
    /// Their side.
    pub side: Side,
    /// An unbound pod is bound to the node that its `metadata.name` affinity names, or to any.
    pub bind: f64,
    /// A bound pod starts running.
    pub start: f64,
    /// A running pod succeeds or fails.
    pub finish: f64,
    /// A running pod becomes unready or ready again, with a restarted container.
    pub flap: f64,
    /// A pod that is being deleted reports its end, and is then removed.
    pub terminate: f64,
}

impl Kubelet {
    /// A side where pods mostly start, sometimes end, and end when they are deleted.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, bind: 0.8, start: 0.7, finish: 0.05, flap: 0.1, terminate: 0.6 }
    }

    /// A side where nothing ends by itself.
    #[must_use]
    pub fn steady(side: Side) -> Self {
        Self { finish: 0.0, flap: 0.0, ..Self::new(side) }
    }

    /// Takes the pod's next necessary step, if its chance comes up. `None` when it needs none.
    fn turn(&self, pod: &Version, world: &mut World, rng: &mut Rng, calm: bool) -> Option<bool> {
        let (path, value) = (pod.path(), pod.value());
        let chance = |rng: &mut Rng, p: f64| calm || rng.f64() < p;
        let bound = value["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
        if !bound {
            if pod.deleting() || is_terminal(value) {
                return None;
            }
            return Some(chance(rng, self.bind) && self.bind(&path, value, world, rng));
        }
        if pod.deleting() {
            if !chance(rng, self.terminate) {
                return Some(false);
            }
            let grace = value["metadata"]["deletionGracePeriodSeconds"].as_u64();
            // Some kubelets report the end first; after a forced deletion none does.
            if !is_terminal(value) && rng.bool() {
                let failed = rng.bool();
                return Some(self.end(&path, failed, world));
            }
            // Only its finalizers hold it.
            let held = grace == Some(0);
            return if held { None } else { Some(world.delete(self.side, &kind::POD, &path, Some(0))) };
        }
        match value["status"]["phase"].as_str() {
            Some("Pending") => Some(chance(rng, self.start) && self.start(&path, world)),
            _ => None,
        }
    }

    fn bind(&self, path: &str, pod: &Value, world: &mut World, rng: &mut Rng) -> bool {
        let absent = pod["spec"]["schedulerName"] == ABSENT_SCHEDULER;
        let node = match wanted_node(pod) {
            _ if absent => None,
            Some(node) => Some(node.to_owned()).filter(|node| world.get(self.side, &kind::NODE, node).is_some()),
            None => world.pick(self.side, &kind::NODE, rng, |_| true),
        };
        let now = seconds(world.now().wall);
        world.edit(self.side, &kind::POD, path, |pod| match &node {
            Some(node) => {
                pod["spec"]["nodeName"] = json!(node);
                set_condition(pod, "PodScheduled", true, None, &now);
            }
            None => set_condition(pod, "PodScheduled", false, Some("Unschedulable"), &now),
        })
    }

    fn start(&self, path: &str, world: &mut World) -> bool {
        let now = seconds(world.now().wall);
        let ip = address(world.get(self.side, &kind::POD, path));
        world.edit(self.side, &kind::POD, path, |pod| {
            for condition in ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "PodScheduled"] {
                set_condition(pod, condition, true, None, &now);
            }
            let running = json!({"running": {"startedAt": now}});
            let statuses: Vec<Value> = containers(pod).map(|name| container_status(name, true, 0, &running)).collect();
            let status = &mut pod["status"];
            status["phase"] = json!("Running");
            status["startTime"] = json!(now);
            status["hostIP"] = json!("10.0.0.1");
            status["hostIPs"] = json!([{"ip": "10.0.0.1"}]);
            status["podIP"] = json!(ip);
            status["podIPs"] = json!([{"ip": ip}]);
            status["containerStatuses"] = Value::Array(statuses);
        })
    }

    fn flap(&self, path: &str, world: &mut World) -> bool {
        let now = seconds(world.now().wall);
        world.edit(self.side, &kind::POD, path, |pod| {
            let ready = pod["status"]["containerStatuses"][0]["ready"] != json!(true);
            let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
            let reason = (!ready).then_some("ContainersNotReady");
            for condition in ["ContainersReady", "Ready"] {
                set_condition(pod, condition, ready, reason, &now);
            }
            let running = json!({"running": {"startedAt": now}});
            let statuses: Vec<Value> =
                containers(pod).map(|name| container_status(name, ready, restarts + 1, &running)).collect();
            pod["status"]["containerStatuses"] = Value::Array(statuses);
        })
    }

    fn end(&self, path: &str, failed: bool, world: &mut World) -> bool {
        let now = seconds(world.now().wall);
        let (phase, reason, code) = if failed { ("Failed", "PodFailed", 1) } else { ("Succeeded", "PodCompleted", 0) };
        world.edit(self.side, &kind::POD, path, |pod| {
            for condition in ["ContainersReady", "Ready"] {
                set_condition(pod, condition, false, Some(reason), &now);
            }
            let ended = json!({"terminated": {"exitCode": code, "finishedAt": now, "startedAt": now}});
            let statuses: Vec<Value> = containers(pod).map(|name| container_status(name, false, 0, &ended)).collect();
            pod["status"]["phase"] = json!(phase);
            pod["status"]["containerStatuses"] = Value::Array(statuses);
        })
    }
}

impl Actor for Kubelet {
    fn act(&mut self, world: &mut World, rng: &mut Rng) {
        let count = world.server(self.side).count(&kind::POD);
        if count == 0 {
            return;
        }
        let Some(pod) = world.server(self.side).all(&kind::POD).nth(rng.usize(..count)).map(Arc::clone) else { return };
        if self.turn(&pod, world, rng, false).is_some() || pod.deleting() || is_terminal(pod.value()) {
            return;
        }
        if rng.f64() < self.finish {
            let failed = rng.bool();
            self.end(&pod.path(), failed, world);
        } else if rng.f64() < self.flap {
            self.flap(&pod.path(), world);
        }
    }

    /// Binds, starts and finishes deletions; nothing ends by itself any more.
    fn settle(&mut self, world: &mut World, rng: &mut Rng) -> bool {
        let pods: Vec<_> = world.server(self.side).all(&kind::POD).map(Arc::clone).collect();
        // Every pod gets its turn; `any` would stop at the first that changed.
        pods.iter().filter(|pod| self.turn(pod, world, rng, true) == Some(true)).count() > 0
    }
}

/// A pod that names this scheduler is never bound.
pub const ABSENT_SCHEDULER: &str = "absent";

/// The node that a required affinity on `metadata.name` names.
fn wanted_node(pod: &Value) -> Option<&str> {
    let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let term = &terms["nodeSelectorTerms"][0];
    let by_field = term["matchFields"].as_array().into_iter().flatten();
    let field = by_field.into_iter().find(|field| field["key"] == "metadata.name")?;
    field["values"][0].as_str()
}

fn containers(pod: &Value) -> impl Iterator<Item = &str> {
    pod["spec"]["containers"].as_array().into_iter().flatten().filter_map(|container| container["name"].as_str())
}

fn container_status(name: &str, ready: bool, restarts: u64, state: &Value) -> Value {
    json!({
        "name": name,
        "ready": ready,
        "started": ready,
        "restartCount": restarts,
        "state": state,
        "lastState": {},
        "image": "image",
        "imageID": "id",
    })
}

/// Different for each pod, the same in each run.
fn address(pod: Option<&Value>) -> String {
    let uid = pod.and_then(|pod| pod["metadata"]["uid"].as_str()).unwrap_or_default();
    let number = u32::from_str_radix(&uid[uid.len().saturating_sub(4)..], 16).unwrap_or(0);
    format!("10.1.{}.{}", number / 256, number % 256)
}

/// Sets a condition; its time changes only with its status.
pub fn set_condition(object: &mut Value, condition: &str, holds: bool, reason: Option<&str>, now: &str) {
    let status = if holds { "True" } else { "False" };
    if !object["status"]["conditions"].is_array() {
        object["status"]["conditions"] = json!([]);
    }
    let Value::Array(conditions) = &mut object["status"]["conditions"] else { return };
    let place = conditions.iter().position(|known| known["type"] == condition).unwrap_or_else(|| {
        conditions.push(json!({"type": condition}));
        conditions.len() - 1
    });
    let known = &mut conditions[place];
    if known["status"] != status {
        known["lastTransitionTime"] = json!(now);
    }
    known["status"] = json!(status);
    super::strategy::put(known, "reason", reason.map_or(Value::Null, |reason| json!(reason)));
}
