//! The nodes of both clusters side by side: what a physical node has, what others use of it, what its virtual node offers.
//! Must not use the syncer's own code to compute what should be leased: it checks that code independently.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Deserialize as _;
use serde_json::Value;
use tapestry_api::keys;
use tapestry_domain::quantity::{Percent, Quantity};
use tapestry_domain::request::PodShape;
use tapestry_domain::resources::{ResourceName, Resources};

use super::stage::{LENT_PERCENT, Stage};
use super::{is_true, text};

/// Both sides at one moment.
pub(super) struct View {
    lenders: Vec<Lender>,
    /// All nodes of the virtual cluster.
    vnodes: usize,
}

/// One physical node.
struct Lender {
    name: String,
    /// What it can allocate.
    has: Resources,
    /// What pods use that are not ours.
    used: Resources,
    /// Its virtual node.
    vnode: Option<Offer>,
}

/// One virtual node.
struct Offer {
    name: String,
    ready: bool,
    leased: Resources,
}

const COUNTED: [ResourceName; 3] = [ResourceName::Cpu, ResourceName::Memory, ResourceName::Pods];

/// Reads both clusters. `origin` marks the pods that are ours.
pub(super) async fn look(stage: &Stage, origin: &str) -> Result<View> {
    let (pnodes, ppods, vnodes) = tokio::try_join!(
        stage.physical_side.list("v1/Node", ""),
        stage.physical_side.list("v1/Pod", ""),
        stage.virtual_side.list("v1/Node", ""),
    )?;
    Ok(View { lenders: pair(&pnodes, &ppods, &vnodes, origin)?, vnodes: vnodes.len() })
}

impl View {
    /// How many virtual nodes are Ready.
    pub(super) fn ready(&self) -> usize {
        self.lenders.iter().filter(|lender| lender.is_ready()).count()
    }

    /// CPU that all virtual nodes offer together.
    pub(super) fn leased_cpu(&self) -> Quantity {
        self.offers().map(|vnode| vnode.leased.get(&ResourceName::Cpu)).fold(Quantity::ZERO, Quantity::saturating_add)
    }

    /// All faults when `expected` nodes are lent, each with what was expected and seen.
    pub(super) fn faults(&self, expected: usize) -> Vec<String> {
        let mut faults = Vec::new();
        for (what, seen) in [("physical nodes", self.lenders.len()), ("virtual nodes", self.vnodes)] {
            if seen != expected {
                faults.push(format!("expected {expected} {what}, saw {seen}"));
            }
        }
        faults.extend(self.lenders.iter().filter_map(Lender::fault));
        faults
    }

    /// The first nodes as a table.
    pub(super) fn table(&self, most: usize) -> Vec<Vec<String>> {
        let heading = [
            "VIRTUAL NODE",
            "READY",
            "PHYSICAL NODE",
            "CPU",
            "USED",
            "LEASED",
            "MEMORY",
            "USED",
            "LEASED",
            "PODS LEASED",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(self.lenders.iter().take(most).map(Lender::row));
        if self.lenders.len() > most {
            rows.push(vec![format!("... and {} more", self.lenders.len() - most)]);
        }
        rows
    }

    fn offers(&self) -> impl Iterator<Item = &Offer> {
        self.lenders.iter().filter_map(|lender| lender.vnode.as_ref())
    }
}

fn pair(pnodes: &[Value], ppods: &[Value], vnodes: &[Value], origin: &str) -> Result<Vec<Lender>> {
    let mut used: BTreeMap<&str, Resources> = BTreeMap::new();
    let others = |pod: &&Value| text(&pod["metadata"]["labels"][keys::ORIGIN]) != origin;
    let alive = |pod: &&Value| !matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed");
    for pod in ppods.iter().filter(others).filter(alive) {
        let mut request = PodShape::deserialize(pod).context("reading a physical pod")?.request();
        request.set(ResourceName::Pods, Quantity::from_whole(1));
        used.entry(text(&pod["spec"]["nodeName"])).or_default().add(&request);
    }
    let mut lenders = Vec::new();
    for pnode in pnodes {
        let name = text(&pnode["metadata"]["name"]);
        let vnode =
            vnodes.iter().find(|vnode| text(&vnode["metadata"]["annotations"][keys::PHYSICAL_NODE_NAME]) == name);
        lenders.push(Lender {
            name: name.to_owned(),
            has: allocatable(pnode)?,
            used: used.get(name).cloned().unwrap_or_default(),
            vnode: vnode.map(Offer::read).transpose()?,
        });
    }
    Ok(lenders)
}

fn allocatable(node: &Value) -> Result<Resources> {
    Resources::deserialize(&node["status"]["allocatable"])
        .with_context(|| format!("reading what node {} can allocate", node["metadata"]["name"]))
}

impl Offer {
    fn read(vnode: &Value) -> Result<Self> {
        let name = text(&vnode["metadata"]["name"]).to_owned();
        Ok(Self { name, ready: is_true(vnode, "Ready"), leased: allocatable(vnode)? })
    }
}

impl Lender {
    fn is_ready(&self) -> bool {
        self.vnode.as_ref().is_some_and(|vnode| vnode.ready)
    }

    /// What the policy promises: half of idle CPU and memory, and every idle place for a pod.
    fn promised(&self, resource: &ResourceName) -> Quantity {
        let idle = self.has.get(resource).saturating_sub(self.used.get(resource)).max(Quantity::ZERO);
        match resource {
            ResourceName::Cpu | ResourceName::Memory => {
                let percent = Percent::parse(LENT_PERCENT.into()).unwrap_or(Percent::ALL);
                resource.floor(idle.percent_floor(percent))
            }
            _ => idle,
        }
    }

    /// The fault of this node, with what was expected and seen.
    fn fault(&self) -> Option<String> {
        let Some(vnode) = &self.vnode else { return Some(format!("{}: expected a virtual node, saw none", self.name)) };
        if !vnode.ready {
            return Some(format!("{}: expected Ready, saw that it is not", vnode.name));
        }
        COUNTED.iter().find_map(|resource| {
            let (promised, leased) = (self.promised(resource), vnode.leased.get(resource));
            let show = |quantity: Quantity| quantity.display(resource.format()).to_string();
            (promised != leased)
                .then(|| format!("{}: expected {} {resource}, saw {}", vnode.name, show(promised), show(leased)))
        })
    }

    fn row(&self) -> Vec<String> {
        let show = |resources: &Resources, resource: &ResourceName| {
            resources.get(resource).display(resource.format()).to_string()
        };
        let nothing = Resources::new();
        let leased = self.vnode.as_ref().map_or(&nothing, |vnode| &vnode.leased);
        let name = self.vnode.as_ref().map_or("-", |vnode| vnode.name.as_str());
        let ready = if self.is_ready() { "yes" } else { "no" };
        let mut row = vec![name.to_owned(), ready.to_owned(), self.name.clone()];
        for resource in [ResourceName::Cpu, ResourceName::Memory] {
            row.extend([&self.has, &self.used, leased].map(|resources| show(resources, &resource)));
        }
        row.push(show(leased, &ResourceName::Pods));
        row
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tapestry_testbed::builders::{node, pod};

    use super::*;

    fn vnode(cpu: &str) -> Value {
        let vnode = node("vnode-demo-a").annotation(keys::PHYSICAL_NODE_NAME, "a").cpu(cpu).memory("128Gi").pods(109);
        vnode.with("/status/conditions", json!([{ "type": "Ready", "status": "True" }])).build()
    }

    fn lender(vnodes: &[Value]) -> Lender {
        let owners = pod("shop").on("a").cpu("1").build();
        let finished = pod("job").on("a").cpu("8").with("/status/phase", "Succeeded").build();
        let ours = pod("hello").on("a").cpu("4").label(keys::ORIGIN, "us").build();
        let pnode = node("a").build();
        pair(&[pnode], &[owners, finished, ours], vnodes, "us").unwrap().remove(0)
    }

    #[test]
    fn half_of_what_others_leave_is_promised() {
        assert_eq!(lender(&[vnode("15500m")]).fault(), None);
    }

    #[test]
    fn a_wrong_figure_is_a_fault_that_says_expected_and_seen() {
        let fault = lender(&[vnode("16")]).fault();
        assert_eq!(fault.as_deref(), Some("vnode-demo-a: expected 15500m cpu, saw 16"));
    }

    #[test]
    fn a_node_without_a_virtual_node_is_a_fault() {
        assert_eq!(lender(&[]).fault().as_deref(), Some("a: expected a virtual node, saw none"));
    }
}
