//! The ceiling: a client that does nothing but create the syncer's nodes and a Lease for each, as many at a time as the syncer.
//! Must leave the virtual cluster as empty as it found it.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::{Answer, Call, Cluster as Client, Name, Refusal, Side, Target, Uid, Verb, kind};
use tapestry_testbed::eventually;

use super::crowd::{LEASES, count};
use crate::figures::scale::BareNodes;
use crate::known::render_vnodes;
use crate::load::CONCURRENCY;
use crate::stage::Stage;

/// Nodes of a first run that is not counted: API servers are slower while their caches and heaps grow.
const WARM_UP: usize = 200;

/// Creates them all, once to warm up and once to measure; removes them.
pub(super) async fn create(stage: &Stage) -> Result<BareNodes> {
    let client = &stage.clients[0];
    let mut nodes = render_vnodes(stage.physical_nodes().await?)?;
    for node in &mut nodes {
        // With a finalizer they could not be removed: no syncer runs.
        node["metadata"]["finalizers"] = Value::Null;
    }
    let warm_up = nodes.len().min(WARM_UP);
    create_all(client, &nodes[..warm_up]).await?;
    remove_all(client, &nodes[..warm_up]).await?;
    let begin = Instant::now();
    create_all(client, &nodes).await?;
    let seconds = begin.elapsed().as_secs_f64();
    remove_all(client, &nodes).await?;
    Ok(BareNodes { seconds })
}

async fn create_all(client: &Client, nodes: &[Value]) -> Result<()> {
    let create = |node: &Value| {
        let node = node.clone();
        async move {
            let name = name(&node)?;
            let answer =
                call(client, Target::cluster(Side::Virtual, &kind::NODE, name.clone()), Verb::Create(node)).await?;
            let lease = lease(&name, &uid(&answer)?);
            call(client, lease_target(&name)?, Verb::Create(lease)).await.map(drop)
        }
    };
    stream::iter(nodes).map(create).buffer_unordered(CONCURRENCY).try_collect::<()>().await
}

async fn remove_all(client: &Client, nodes: &[Value]) -> Result<()> {
    let remove = |node: &Value| {
        let name = name(node);
        async move {
            let name = name?;
            for target in [lease_target(&name)?, Target::cluster(Side::Virtual, &kind::NODE, name)] {
                match carry_out(client, &Call { target, verb: Verb::Delete { grace: None }, why: "Bare" }).await {
                    // The garbage collector may have been quicker.
                    Ok(_) | Err(Refusal::Gone) => {}
                    Err(refusal) => return Err(anyhow!("removing: {}", refusal.message())),
                }
            }
            Ok(())
        }
    };
    stream::iter(nodes).map(remove).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
    eventually("the bare client's nodes are gone", Duration::from_mins(2), async || {
        let left = tokio::try_join!(count(client, &kind::NODE, None), count(client, &kind::LEASE, Some(LEASES)));
        match left.map_err(|error| format!("{error:#}"))? {
            (0, 0) => Ok(()),
            (nodes, leases) => Err(format!("{nodes} nodes, {leases} leases")),
        }
    })
    .await
}

async fn call(client: &Client, target: Target, verb: Verb) -> Result<Answer> {
    let call = Call { target, verb, why: "Bare" };
    carry_out(client, &call).await.map_err(|refusal| anyhow!("{call}: {}", refusal.message()))
}

fn name(node: &Value) -> Result<Name> {
    Ok(Name::parse(node["metadata"]["name"].as_str().unwrap_or_default())?)
}

fn lease_target(node: &Name) -> Result<Target> {
    Ok(Target::namespaced(Side::Virtual, &kind::LEASE, Name::parse(LEASES)?, node.clone()))
}

/// As large as the syncer's.
fn lease(node: &Name, uid: &Uid) -> Value {
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": node.as_str(), "uid": uid.as_str() });
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": node.as_str(), "namespace": LEASES, "ownerReferences": [owner] },
        "spec": {
            "holderIdentity": node.as_str(), "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    })
}

fn uid(answer: &Answer) -> Result<Uid> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: Uid,
    }
    let Object { metadata: Metadata { uid } } = serde_json::from_slice(&answer.object)?;
    Ok(uid)
}
