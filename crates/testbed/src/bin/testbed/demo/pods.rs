//! The pods of the demo's namespace and their copies: each must point at the other. Must
//! not trust one side alone.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;
use tapestry_api::keys;

use super::stage::{MOUNT, Stage};
use super::{is_true, text};

/// Both sides at one moment.
pub(super) struct View {
    /// Virtual pods of the demo's namespace.
    vpods: Vec<Value>,
    /// Physical pods that carry our origin, by `namespace/name`.
    ppods: BTreeMap<String, Value>,
    /// Virtual node to physical node.
    nodes: BTreeMap<String, String>,
}

/// How many pods have reached each state.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Virtual pods.
    pub(super) virtual_pods: usize,
    /// Of these, bound to a node.
    pub(super) bound: usize,
    /// Of these, Running in the virtual cluster.
    pub(super) running: usize,
    /// Copies in the physical cluster.
    pub(super) copies: usize,
    /// Of these, Running there.
    pub(super) copies_running: usize,
}

/// Reads both clusters. `origin` marks the copies.
pub(super) async fn look(stage: &Stage, namespace: &str, origin: &str) -> Result<View> {
    let ours = format!("{}={origin}", keys::ORIGIN);
    let (vpods, ppods, vnodes) = tokio::try_join!(
        stage.virtual_side.list("v1/Pod", namespace),
        stage.physical_side.list_where("v1/Pod", "", &ours),
        stage.virtual_side.list("v1/Node", ""),
    )?;
    Ok(View::new(vpods, ppods, &vnodes))
}

impl View {
    fn new(vpods: Vec<Value>, ppods: Vec<Value>, vnodes: &[Value]) -> Self {
        let ppods = ppods.into_iter().map(|ppod| (place(&ppod), ppod)).collect();
        let physical = |vnode: &Value| text(&vnode["metadata"]["annotations"][keys::PHYSICAL_NODE_NAME]).to_owned();
        let nodes = vnodes.iter().map(|vnode| (text(&vnode["metadata"]["name"]).to_owned(), physical(vnode))).collect();
        Self { vpods, ppods, nodes }
    }

    pub(super) fn count(&self) -> Count {
        let running = |pod: &&Value| pod["status"]["phase"] == "Running";
        Count {
            virtual_pods: self.vpods.len(),
            bound: self.vpods.iter().filter(|vpod| vpod["spec"]["nodeName"].is_string()).count(),
            running: self.vpods.iter().filter(running).count(),
            copies: self.ppods.len(),
            copies_running: self.ppods.values().filter(running).count(),
        }
    }

    /// All faults when `expected` pods run, each with what was expected and seen.
    pub(super) fn faults(&self, expected: usize) -> Vec<String> {
        let count = self.count();
        let mut faults = Vec::new();
        for (what, seen) in [("virtual pods", count.virtual_pods), ("physical pods of ours", count.copies)] {
            if seen != expected {
                faults.push(format!("expected {expected} {what}, saw {seen}"));
            }
        }
        faults.extend(self.vpods.iter().filter_map(|vpod| self.fault(vpod)));
        faults
    }

    fn copy(&self, vpod: &Value) -> Option<&Value> {
        let mapping = &vpod["metadata"]["annotations"];
        let (namespace, name) = (text(&mapping[keys::PHYSICAL_POD_NAMESPACE]), text(&mapping[keys::PHYSICAL_POD_NAME]));
        self.ppods.get(&format!("{namespace}/{name}"))
    }

    fn fault(&self, vpod: &Value) -> Option<String> {
        let vplace = place(vpod);
        let Some(ppod) = self.copy(vpod) else {
            let mapping = text(&vpod["metadata"]["annotations"][keys::PHYSICAL_POD_NAME]);
            return Some(format!("{vplace}: expected a physical pod, saw none (its annotation says '{mapping}')"));
        };
        let (mapping, back) = (&vpod["metadata"]["annotations"], &ppod["metadata"]["annotations"]);
        let vnode = text(&vpod["spec"]["nodeName"]);
        let pnode = self.nodes.get(vnode).map_or("", String::as_str);
        let truths = [
            ("namespace of the copy", MOUNT, &ppod["metadata"]["namespace"]),
            ("UID in the virtual pod's annotation", text(&ppod["metadata"]["uid"]), &mapping[keys::PHYSICAL_POD_UID]),
            ("back-pointer to the namespace", text(&vpod["metadata"]["namespace"]), &back[keys::VIRTUAL_POD_NAMESPACE]),
            ("back-pointer to the name", text(&vpod["metadata"]["name"]), &back[keys::VIRTUAL_POD_NAME]),
            ("back-pointer to the UID", text(&vpod["metadata"]["uid"]), &back[keys::VIRTUAL_POD_UID]),
            ("physical node", pnode, &ppod["spec"]["nodeName"]),
            ("phase in the physical cluster", "Running", &ppod["status"]["phase"]),
            ("phase in the virtual cluster", "Running", &vpod["status"]["phase"]),
        ];
        let wrong = truths.into_iter().find(|(_, expected, seen)| expected.is_empty() || text(seen) != *expected);
        if let Some((what, expected, seen)) = wrong {
            return Some(format!("{vplace}: {what}: expected '{expected}', saw {seen}"));
        }
        let ready = (is_true(ppod, "Ready"), is_true(vpod, "Ready"));
        (ready != (true, true)).then(|| format!("{vplace}: expected Ready on both sides, saw {ready:?}"))
    }

    /// The first pods as a table.
    pub(super) fn table(&self, most: usize) -> Vec<Vec<String>> {
        let heading = ["VIRTUAL POD", "VIRTUAL NODE", "PHASE", "PHYSICAL POD", "PHYSICAL NODE", "PHASE"];
        let row = |vpod: &Value| {
            let half =
                |pod: &Value| [&pod["metadata"]["name"], &pod["spec"]["nodeName"], &pod["status"]["phase"]].map(cell);
            let copy = self.copy(vpod).map_or_else(|| ["-"; 3].map(str::to_owned), half);
            half(vpod).into_iter().chain(copy).collect()
        };
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(self.vpods.iter().take(most).map(row));
        if self.vpods.len() > most {
            rows.push(vec![format!("... and {} more", self.vpods.len() - most)]);
        }
        rows
    }
}

fn place(pod: &Value) -> String {
    format!("{}/{}", text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]))
}

fn cell(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

/// What must stay the same in a pod that is not ours. Its kubelet writes the status.
pub(super) fn unchangeable(pod: &Value) -> Value {
    let mut pod = pod.clone();
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        // Both change with every write, also with one of the status.
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    pod
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tapestry_testbed::builders::{node, pod};

    use super::*;

    fn running() -> Value {
        json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] })
    }

    fn vpod() -> Value {
        let vpod = pod("web").namespace("demo").on("vnode-demo-a").with("/metadata/uid", "v");
        vpod.annotation(keys::PHYSICAL_POD_NAMESPACE, MOUNT)
            .annotation(keys::PHYSICAL_POD_NAME, "web-1")
            .annotation(keys::PHYSICAL_POD_UID, "p")
            .with("/status", running())
            .build()
    }

    fn ppod(back: &str) -> Value {
        let ppod = pod("web-1").namespace(MOUNT).on("a").with("/metadata/uid", "p");
        ppod.annotation(keys::VIRTUAL_POD_NAMESPACE, "demo")
            .annotation(keys::VIRTUAL_POD_NAME, "web")
            .annotation(keys::VIRTUAL_POD_UID, back)
            .with("/status", running())
            .build()
    }

    fn faults(ppods: Vec<Value>) -> Vec<String> {
        let vnode = node("vnode-demo-a").annotation(keys::PHYSICAL_NODE_NAME, "a").build();
        View::new(vec![vpod()], ppods, &[vnode]).faults(1)
    }

    #[test]
    fn a_pod_and_its_copy_that_point_at_each_other_have_no_fault() {
        assert_eq!(faults(vec![ppod("v")]), Vec::<String>::new());
    }

    #[test]
    fn a_copy_of_another_pod_is_a_fault() {
        assert_eq!(faults(vec![ppod("other")]), ["demo/web: back-pointer to the UID: expected 'v', saw \"other\""]);
    }

    #[test]
    fn a_missing_copy_is_a_fault() {
        let missing = "demo/web: expected a physical pod, saw none (its annotation says 'web-1')";
        assert_eq!(faults(vec![]), ["expected 1 physical pods of ours, saw 0", missing]);
    }

    #[test]
    fn a_write_to_a_foreign_pod_shows_and_its_status_does_not() {
        let before = ppod("v");
        let mut after = before.clone();
        after["metadata"]["resourceVersion"] = "2".into();
        after["status"]["phase"] = "Succeeded".into();
        assert_eq!(unchangeable(&before), unchangeable(&after));
        after["metadata"]["labels"]["touched"] = "yes".into();
        assert_ne!(unchangeable(&before), unchangeable(&after));
    }
}
