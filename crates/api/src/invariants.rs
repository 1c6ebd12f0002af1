//! What must hold between a virtual and a physical cluster once both have converged; returns violations as text. Works on
//! plain JSON, so that lists of real API servers and of World are checked alike. Must not trust the syncer's tables: it
//! looks at objects only.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::Value;
use tapestry_domain::capacity::{self, Limit};
use tapestry_domain::dependents::DependentKind;
use tapestry_domain::podspec::{Marks, mark_metadata, mark_spec};
use tapestry_domain::quantity::Quantity;
use tapestry_domain::request::PodShape;
use tapestry_domain::resources::{ResourceName, Resources};

use crate::keys;

mod dependents;
mod foreign;
mod services;
mod volumes;

pub use foreign::ForeignObjects;
pub use services::CarriedServices;

/// Both clusters, as far as one binding is concerned.
pub struct Snapshot<'a> {
    /// The binding's origin, as in the annotation on every object it creates.
    pub origin: &'a str,
    /// Virtual pods on the binding's virtual nodes.
    pub vpods: Vec<&'a Value>,
    /// All physical pods.
    pub ppods: Vec<&'a Value>,
    /// The binding's virtual nodes.
    pub vnodes: Vec<&'a Value>,
    /// All physical nodes.
    pub pnodes: Vec<&'a Value>,
    /// ConfigMaps and Secrets of the virtual cluster.
    pub sources: Vec<(DependentKind, &'a Value)>,
    /// ConfigMaps and Secrets of the mount namespace.
    pub dependents: Vec<(DependentKind, &'a Value)>,
    /// All PersistentVolumes of the physical cluster.
    pub volumes: Vec<&'a Value>,
    /// PersistentVolumeClaims of the mount namespace.
    pub claims: Vec<&'a Value>,
    /// Whether pods that have no copy yet get what they need to reach the virtual API server.
    pub api_access: bool,
    /// What policies allow on a physical node; `None`: nothing.
    pub limits: &'a dyn Fn(&str) -> Option<Vec<Limit>>,
    /// Services of both sides.
    pub services: CarriedServices<'a>,
}

impl Snapshot<'_> {
    /// Every violation.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut copies: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for ppod in self.ppods.iter().filter(|ppod| self.ours(ppod)) {
            copies.entry(annotation(ppod, keys::VIRTUAL_POD_UID)).or_default().push(ppod);
        }
        for vpod in &self.vpods {
            let copies = copies.remove(uid(vpod)).unwrap_or_default();
            one_live_copy(vpod, &copies, &mut found);
            at_rest(vpod, &copies, &mut found);
            for copy in copies {
                both_ways(vpod, copy, &mut found);
                marked(copy, &mut found);
                pushed(vpod, copy, &mut found);
            }
        }
        for orphan in copies.into_values().flatten() {
            found.push(format!("orphan: {} belongs to no virtual pod", place(orphan)));
        }
        for vnode in &self.vnodes {
            self.leased_within(vnode, &mut found);
        }
        self.dependents_follow(&mut found);
        self.services_follow(&mut found);
        self.volumes_follow(&mut found);
        found
    }

    fn ours(&self, ppod: &Value) -> bool {
        annotation(ppod, keys::ORIGIN) == self.origin
    }

    /// A node never offers more than others leave free and policies allow (law 9).
    fn leased_within(&self, vnode: &Value, found: &mut Vec<String>) {
        let pnode = annotation(vnode, keys::PHYSICAL_NODE_NAME);
        // A virtual node whose physical node is gone is being removed, and offers nothing that could be used.
        let Some(pnode) = self.pnodes.iter().find(|node| name(node) == pnode) else { return };
        let allocatable = |node: &Value| Resources::deserialize(&node["status"]["allocatable"]).unwrap_or_default();
        let mut used = Resources::new();
        for ppod in &self.ppods {
            if !self.ours(ppod) && text(&ppod["spec"]["nodeName"]) == name(pnode) && !finished(ppod) {
                used.add(&request(ppod));
            }
        }
        let limits = (self.limits)(name(pnode));
        let most = limits.map(|limits| capacity::leased(&allocatable(pnode), &used, &limits)).unwrap_or_default();
        for (resource, offered) in allocatable(vnode).iter() {
            if offered > most.get(resource) {
                let (offered, most) = (offered.to_string(), most.get(resource).to_string());
                found.push(format!("{} offers {offered} {resource}, at most {most} may be lent", name(vnode)));
            }
        }
    }
}

/// What a pod requests of its node, with its own place in `pods`.
fn request(pod: &Value) -> Resources {
    // Read from text, because the shape borrows from it.
    let text = pod.to_string();
    let mut request = serde_json::from_str::<PodShape<'_>>(&text).map(|shape| shape.request()).unwrap_or_default();
    request.set(ResourceName::Pods, Quantity::from_whole(1));
    request
}

fn one_live_copy(vpod: &Value, copies: &[&Value], found: &mut Vec<String>) {
    let live: Vec<String> =
        copies.iter().filter(|copy| !finished(copy) && !leaving(copy)).map(|copy| place(copy)).collect();
    if live.len() > 1 {
        found.push(format!("{} has {} live copies: {}", place(vpod), live.len(), live.join(", ")));
    }
}

/// A deleted pod is gone, a running pod has a copy with the same status, a refused pod has the condition.
fn at_rest(vpod: &Value, copies: &[&Value], found: &mut Vec<String>) {
    let mut not = |what: String| found.push(format!("{} {what}", place(vpod)));
    if leaving(vpod) {
        let held = !items(&vpod["metadata"]["finalizers"]).is_empty();
        if !held || !copies.is_empty() {
            not(format!("is still being deleted, with {} copies", copies.len()));
        }
        return;
    }
    if finished(vpod) {
        let recorded = annotation(vpod, keys::PHYSICAL_POD_UID);
        let restless = copies.iter().find(|copy| !finished(copy) && uid(copy) != recorded);
        if let Some(copy) = restless {
            not(format!("has finished, but its copy {} still runs", place(copy)));
        }
        return;
    }
    match copies {
        [] if refused(vpod) => {}
        [] => not(format!("is {} and has no copy", text(&vpod["status"]["phase"]))),
        [copy] if leaving(copy) => not(format!("has a copy that is still being deleted: {}", place(copy))),
        [copy] => same_status(vpod, copy, &mut not),
        _ => not(format!("has {} copies", copies.len())),
    }
}

fn same_status(vpod: &Value, copy: &Value, not: &mut impl FnMut(String)) {
    for field in ["phase", "podIP", "hostIP"] {
        let (here, there) = (&vpod["status"][field], &copy["status"][field]);
        if here != there {
            not(format!("says {field} {here}, its copy {there}"));
        }
    }
    for (list, statuses) in [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")] {
        for container in items(&vpod["spec"][list]) {
            let find = |pod: &Value| {
                let all = items(&pod["status"][statuses]);
                let status = all.iter().find(|status| status["name"] == container["name"])?;
                Some(["ready", "restartCount", "state"].map(|field| status[field].clone()))
            };
            let (here, there) = (find(vpod), find(copy));
            if here != there {
                not(format!("says of container {} {here:?}, its copy {there:?}", container["name"]));
            }
        }
    }
}

/// A mapping counts only if both ends name each other (law 5).
fn both_ways(vpod: &Value, copy: &Value, found: &mut Vec<String>) {
    let mut compare = |whose: &Value, key: &str, expected: &str| {
        let said = annotation(whose, key);
        if said != expected {
            found.push(format!("{} says {key} {said:?} instead of {expected:?}", place(whose)));
        }
    };
    compare(copy, keys::VIRTUAL_POD_NAMESPACE, namespace(vpod));
    compare(copy, keys::VIRTUAL_POD_NAME, name(vpod));
    if leaving(vpod) || finished(vpod) {
        // Its last mapping may be to another copy; it has no effect any more.
        return;
    }
    compare(vpod, keys::PHYSICAL_POD_NAMESPACE, namespace(copy));
    compare(vpod, keys::PHYSICAL_POD_NAME, name(copy));
    // The first status patch records the UID; until then there is none.
    if !annotation(vpod, keys::PHYSICAL_POD_UID).is_empty() {
        compare(vpod, keys::PHYSICAL_POD_UID, uid(copy));
    }
}

/// Everything of ours carries our labels (law 6).
fn marked(copy: &Value, found: &mut Vec<String>) {
    for key in [keys::MANAGED_BY, keys::CLUSTER_BINDING, keys::ORIGIN] {
        if copy["metadata"]["labels"][key].is_null() {
            found.push(format!("{} lacks label {key}", place(copy)));
        }
    }
}

/// What can change while a pod runs was pushed to its copy as it is, or the pod says why not. What the physical cluster made of it
/// there is its own. A copy that does not say what was pushed is not judged.
fn pushed(vpod: &Value, copy: &Value, found: &mut Vec<String>) {
    let ends = [vpod, copy].iter().any(|pod| leaving(pod) || finished(pod));
    if ends || held_back(vpod) {
        return;
    }
    let pairs = |field: &str| {
        let map = vpod["metadata"][field].as_object().into_iter().flatten();
        map.map(|(key, value)| (key.as_str(), text(value))).collect::<Vec<_>>()
    };
    let (Some(said), Ok(spec)) =
        (Marks::parse(annotation(copy, keys::VIRTUAL_POD_MARKS)), mark_spec(&vpod["spec"].to_string()))
    else {
        return;
    };
    if said.metadata != mark_metadata(pairs("labels"), pairs("annotations")) {
        found.push(format!("labels or annotations of {} were not pushed to {}", place(vpod), place(copy)));
    }
    if said.spec != spec {
        found.push(format!("a change of the spec of {} was not pushed to {}", place(vpod), place(copy)));
    }
}

/// Whether a change of a pod is not pushed, and it says so.
fn held_back(vpod: &Value) -> bool {
    items(&vpod["status"]["conditions"]).iter().any(|condition| condition["type"] == keys::CONDITION_CHANGES_PUSHED)
}

fn refused(vpod: &Value) -> bool {
    let conditions = items(&vpod["status"]["conditions"]);
    conditions.iter().any(|condition| condition["type"] == keys::CONDITION_ADMITTED && condition["status"] == "False")
}

fn finished(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed")
}

fn leaving(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

fn namespace(object: &Value) -> &str {
    text(&object["metadata"]["namespace"])
}

fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    text(&object["metadata"]["annotations"][key])
}

fn place(object: &Value) -> String {
    format!("{}/{}", namespace(object), name(object))
}

#[cfg(test)]
mod tests;
