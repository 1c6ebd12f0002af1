//! How much a pod asks of its node, counted exactly as kube-scheduler counts it (`PodRequests` of component-helpers 1.36).
//! It must not count the pod itself: the caller adds `pods: 1`.

#[cfg(test)]
mod tests;

use serde::Deserialize;

use crate::resources::Resources;
use crate::shape::{Text, nullable};

/// The part of a pod's JSON that decides what it asks for. Everything else is skipped while reading.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodShape<'a> {
    /// What the user wrote.
    #[serde(borrow, deserialize_with = "nullable")]
    pub spec: SpecShape<'a>,
    /// What the kubelet granted, which counts while a resize is under way.
    #[serde(borrow, deserialize_with = "nullable")]
    pub status: StatusShape<'a>,
}

/// The part of `spec` that counts. A row that reads more of the spec may hold these fields itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SpecShape<'a> {
    /// Containers, which run together.
    #[serde(borrow, deserialize_with = "nullable")]
    pub containers: Vec<ContainerShape<'a>>,
    /// Init containers, which run one after the other; sidecars among them keep running.
    #[serde(borrow, deserialize_with = "nullable")]
    pub init_containers: Vec<ContainerShape<'a>>,
    /// What the runtime class adds.
    #[serde(deserialize_with = "nullable")]
    pub overhead: Resources,
    /// Pod-level resources.
    #[serde(deserialize_with = "nullable")]
    pub resources: RequestsShape,
}

/// One container of the spec.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerShape<'a> {
    /// Ties it to its status.
    #[serde(borrow, deserialize_with = "nullable")]
    pub name: Text<'a>,
    /// What it asks for.
    #[serde(deserialize_with = "nullable")]
    pub resources: RequestsShape,
    /// `Always` on an init container makes it a sidecar.
    #[serde(borrow, deserialize_with = "nullable")]
    pub restart_policy: Text<'a>,
}

/// `resources` of a container, a pod or a status; limits do not count.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RequestsShape {
    /// What is asked for.
    #[serde(deserialize_with = "nullable")]
    pub requests: Resources,
}

/// The part of `status` that counts.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusShape<'a> {
    /// Of the containers.
    #[serde(borrow, deserialize_with = "nullable")]
    pub container_statuses: Vec<ContainerStatusShape<'a>>,
    /// Of the init containers.
    #[serde(borrow, deserialize_with = "nullable")]
    pub init_container_statuses: Vec<ContainerStatusShape<'a>>,
    /// Pod-level resources as actuated; `None` when the kubelet does not say.
    pub resources: Option<RequestsShape>,
    /// Pod-level resources as allocated.
    #[serde(deserialize_with = "nullable")]
    pub allocated_resources: Resources,
    /// To know whether a resize was refused.
    #[serde(borrow, deserialize_with = "nullable")]
    pub conditions: Vec<ConditionShape<'a>>,
}

/// One container's status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatusShape<'a> {
    /// Whose status it is.
    #[serde(borrow, deserialize_with = "nullable")]
    pub name: Text<'a>,
    /// As actuated; `None` when the kubelet does not say, and then the spec counts alone.
    pub resources: Option<RequestsShape>,
    /// As allocated.
    #[serde(deserialize_with = "nullable")]
    pub allocated_resources: Resources,
}

/// One condition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ConditionShape<'a> {
    /// Its type.
    #[serde(borrow, rename = "type", deserialize_with = "nullable")]
    pub kind: Text<'a>,
    /// Its reason.
    #[serde(borrow, deserialize_with = "nullable")]
    pub reason: Text<'a>,
}

impl PodShape<'_> {
    /// What the pod asks for, without `pods: 1`.
    #[must_use]
    pub fn request(&self) -> Resources {
        request(&self.spec, &self.status)
    }
}

/// What a pod asks for: containers and sidecars together, or the highest sum during its start, whichever is more;
/// pod-level figures replace the sum; overhead comes on top.
///
/// Resources of claims (`DRANodeAllocatableResources`, alpha in 1.36) do not count: pods with claims are refused.
#[must_use]
pub fn request(spec: &SpecShape<'_>, status: &StatusShape<'_>) -> Resources {
    let mut total = containers(spec, status);
    pod_level(&mut total, spec, status);
    total.add(&spec.overhead);
    // The scheduler adds pods up in thousandths of a core and whole bytes, rounded up pod by pod.
    total.map(crate::resources::ResourceName::ceil);
    total
}

fn containers(spec: &SpecShape<'_>, status: &StatusShape<'_>) -> Resources {
    let infeasible = resize_infeasible(status);
    let mut running = Resources::new();
    for container in &spec.containers {
        running.add(&granted(container, status, infeasible));
    }
    // While the i-th init container runs, all sidecars before it run as well.
    let (mut sidecars, mut peak) = (Resources::new(), Resources::new());
    for container in &spec.init_containers {
        if &*container.restart_policy == "Always" {
            let sidecar = granted(container, status, infeasible);
            running.add(&sidecar);
            sidecars.add(&sidecar);
            peak.max(&sidecars);
        } else {
            // A plain init container cannot be resized: its spec counts.
            let mut starting = container.resources.requests.clone();
            starting.add(&sidecars);
            peak.max(&starting);
        }
    }
    running.max(&peak);
    running
}

/// Pod-level requests replace the sum, for the resources that may be set there.
fn pod_level(total: &mut Resources, spec: &SpecShape<'_>, status: &StatusShape<'_>) {
    let effective = status.resources.as_ref().map(|actuated| {
        let allocated = &status.allocated_resources;
        in_resize(&spec.resources.requests, &actuated.requests, allocated, resize_infeasible(status))
    });
    for (name, quantity) in spec.resources.requests.iter() {
        use crate::resources::ResourceName::{Cpu, Memory};
        if matches!(name, Cpu | Memory) || name.is_hugepages() {
            total.set(name.clone(), effective.as_ref().map_or(quantity, |effective| effective.get(name)));
        }
    }
}

/// What a container or sidecar counts for: its spec, or what it already holds if that is more.
fn granted(container: &ContainerShape<'_>, status: &StatusShape<'_>, infeasible: bool) -> Resources {
    let wanted = &container.resources.requests;
    let named = |status: &&ContainerStatusShape<'_>| status.name == container.name;
    // Init statuses first: of two equal names Kubernetes takes the one it reads last.
    let found = status.init_container_statuses.iter().rev().find(named);
    let found = found.or_else(|| status.container_statuses.iter().rev().find(named));
    match found.and_then(|found| Some((found.resources.as_ref()?, &found.allocated_resources))) {
        Some((actuated, allocated)) => in_resize(wanted, &actuated.requests, allocated, infeasible),
        None => wanted.clone(),
    }
}

/// A resize that the node can never grant changes nothing; any other counts at its highest.
fn in_resize(wanted: &Resources, actuated: &Resources, allocated: &Resources, infeasible: bool) -> Resources {
    let mut highest = actuated.clone();
    highest.max(allocated);
    if !infeasible {
        highest.max(wanted);
    }
    highest
}

fn resize_infeasible(status: &StatusShape<'_>) -> bool {
    // Only the first condition of the type is asked, as in Kubernetes.
    let pending = status.conditions.iter().find(|condition| &*condition.kind == "PodResizePending");
    pending.is_some_and(|condition| &*condition.reason == "Infeasible")
}
