//! Pods of others, spread over all physical nodes: none of ours, so they only use what could be lent.
//! Knows what is left of each node; must not ask the syncer about it.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::client::Body;
use serde::Deserialize;
use tapestry_cluster::body::Asked;
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::{Call, Cluster as Client, Kind, Name, Side, Target, Verb, kind};
use tapestry_domain::quantity::Quantity;
use tapestry_domain::resources::{ResourceName, Resources};
use tapestry_testbed::builders::pod;
use tapestry_testbed::eventually;

use crate::load::CONCURRENCY;
use crate::stage::{CPU, MEMORY, Stage};

/// Where others' pods are.
const NAMESPACE: &str = "owner";
/// Where Leases of nodes are.
pub(super) const LEASES: &str = "kube-node-lease";
/// What each asks for.
pub(super) const POD_CPU: &str = "100m";
const POD_MEMORY: &str = "64Mi";
const PAGE: u32 = 500;
const ANSWER: Duration = Duration::from_mins(1);

/// How many pods on how many nodes.
pub(super) struct Crowd {
    pub(super) nodes: usize,
    pub(super) pods: u32,
}

impl Crowd {
    /// Creates all pods, bound to their nodes in turn, and waits until kwok runs them.
    pub(super) async fn settle_in(&self, stage: &Stage) -> Result<()> {
        stage.found(NAMESPACE).await?;
        let client = &stage.clients[1];
        let create = |index: u32| async move {
            let call = create(&format!("crowd-{index}"), index as usize % self.nodes)?;
            carry_out(client, &call).await.map(drop).map_err(|refusal| anyhow::anyhow!("{call}: {}", refusal.message()))
        };
        stream::iter(0..self.pods).map(create).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
        let patience = Duration::from_secs(60 + u64::from(self.pods) / 20);
        eventually("kwok runs all pods", patience, async || {
            let waiting =
                list(client, &kind::POD, Some(NAMESPACE), "limit=1&fieldSelector=status.phase!%3DRunning").await;
            let waiting: List = parse(&waiting.map_err(|error| format!("{error:#}"))?)?;
            if waiting.items.is_empty() { Ok(()) } else { Err("some do not run".to_owned()) }
        })
        .await
    }

    /// Whether every virtual node is there with exactly what its pods leave, and has a Lease; if not, what is missing.
    pub(super) async fn is_lent(&self, stage: &Stage) -> Result<(), String> {
        let client = &stage.clients[0];
        // Counting costs the API server next to nothing; only when all are there they are read.
        let (nodes, leases) =
            tokio::try_join!(count(client, &kind::NODE, None), count(client, &kind::LEASE, Some(LEASES)))
                .map_err(|error| format!("{error:#}"))?;
        if nodes < self.nodes || leases < self.nodes {
            return Err(format!("{nodes} nodes and {leases} leases of {}", self.nodes));
        }
        let mut seen: HashMap<String, Resources> = HashMap::new();
        let take = |page: &List| {
            let known = page.items.iter().map(|item| (item.metadata.name.clone(), item.status.allocatable.clone()));
            seen.extend(known);
        };
        read(client, &kind::NODE, take).await.map_err(|error| format!("{error:#}"))?;
        for (index, vnode) in stage.vnodes.iter().enumerate() {
            let left = self.left(stage.capacity, index).map_err(|error| format!("{error:#}"))?;
            match seen.get(vnode) {
                Some(offered) if *offered == left => {}
                other => return Err(format!("{vnode} should offer {left}, but {other:?}")),
            }
        }
        Ok(())
    }

    /// What its pods leave of a node.
    fn left(&self, capacity: u32, index: usize) -> Result<Resources> {
        let pods = self.pods as usize / self.nodes + usize::from(index < self.pods as usize % self.nodes);
        let pods = i128::try_from(pods)?;
        let less = |all: &str, each: &str| {
            let left = Quantity::parse(all)?.nano() - pods * Quantity::parse(each)?.nano();
            anyhow::Ok(Quantity::from_nano(left.max(0)))
        };
        let amounts = [
            (ResourceName::Cpu, less(CPU, POD_CPU)?),
            (ResourceName::Memory, less(MEMORY, POD_MEMORY)?),
            (ResourceName::Pods, less(&capacity.to_string(), "1")?),
        ];
        Ok(amounts.into_iter().collect())
    }

    /// Reads all nodes of both sides and all physical pods, and throws them away.
    pub(super) async fn read_lists(&self, stage: &Stage) -> Result<()> {
        let [above, below] = &stage.clients;
        let ignore = |_: &Names| ();
        tokio::try_join!(
            read(above, &kind::NODE, ignore),
            read(below, &kind::NODE, ignore),
            read(below, &kind::POD, ignore)
        )?;
        Ok(())
    }
}

/// Another user's pod on a physical node, past any scheduler.
pub(super) fn create(name: &str, node: usize) -> Result<Call> {
    let pod = pod(name).namespace(NAMESPACE).on(&format!("node-{node}")).cpu(POD_CPU).memory(POD_MEMORY);
    let body =
        pod.label("app", "owner").with("/spec/containers/0/env", serde_json::json!([{ "name": "A", "value": "b" }]));
    Ok(Call { target: target(name)?, verb: Verb::Create(body.build()), why: "Crowd" })
}

/// Removes such a pod at once: how long a kubelet takes to stop one is not what is measured.
pub(super) fn delete(name: &str) -> Result<Call> {
    Ok(Call { target: target(name)?, verb: Verb::Delete { grace: Some(0) }, why: "Crowd" })
}

fn target(name: &str) -> Result<Target> {
    Ok(Target::namespaced(Side::Physical, &kind::POD, Name::parse(NAMESPACE)?, Name::parse(name)?))
}

/// How many there are, without reading them.
pub(super) async fn count(client: &Client, kind: &Kind, namespace: Option<&str>) -> Result<usize> {
    let names: Names = parse(&list(client, kind, namespace, "limit=1").await?).map_err(anyhow::Error::msg)?;
    Ok(names.items.len() + names.metadata.remaining_item_count)
}

/// Reads all of a kind, page by page.
async fn read<L: Paged>(client: &Client, kind: &Kind, mut take: impl FnMut(&L)) -> Result<()> {
    let mut more = String::new();
    loop {
        let page: L =
            parse(&list(client, kind, None, &format!("limit={PAGE}{more}")).await?).map_err(anyhow::Error::msg)?;
        take(&page);
        match page.more() {
            "" => return Ok(()),
            token => more = format!("&continue={token}"),
        }
    }
}

async fn list(client: &Client, kind: &Kind, namespace: Option<&str>, query: &str) -> Result<Bytes> {
    let path = kind.path(namespace, None);
    let request = Request::get(format!("{path}?{query}")).body(Body::empty())?;
    let (code, _, body) = client.exchange(request, ANSWER, Asked::Page).await.map_err(anyhow::Error::msg)?;
    ensure!(code == 200, "listing {}: HTTP {code}", kind.plural);
    Ok(body)
}

fn parse<'a, L: Deserialize<'a>>(body: &'a Bytes) -> Result<L, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

trait Paged: for<'a> Deserialize<'a> {
    fn more(&self) -> &str;
}

#[derive(Deserialize)]
struct List {
    metadata: Metadata,
    items: Vec<Item>,
}

/// A list of which only the length counts.
#[derive(Deserialize)]
struct Names {
    metadata: Metadata,
    items: Vec<serde::de::IgnoredAny>,
}

impl Paged for List {
    fn more(&self) -> &str {
        &self.metadata.more
    }
}

impl Paged for Names {
    fn more(&self) -> &str {
        &self.metadata.more
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(rename = "continue", default)]
    more: String,
    #[serde(default)]
    remaining_item_count: usize,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMetadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct ItemMetadata {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    allocatable: Resources,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pods_leave_of_a_node_is_counted_without_the_syncer() {
        let crowd = Crowd { nodes: 3, pods: 10 };
        let (fuller, emptier) = (crowd.left(110, 0).unwrap(), crowd.left(110, 1).unwrap());
        assert_eq!(
            fuller.to_string(),
            Resources::parse([("cpu", "999600m"), ("memory", "8388352Mi"), ("pods", "106")]).unwrap().to_string()
        );
        assert_eq!(emptier.get(&ResourceName::Pods), Quantity::from_whole(107));
    }
}
