//! What pods of a load name besides a node: ConfigMaps and Secrets of the virtual cluster, made before the pods and deleted after them.
//! Must not be timed: clusters hold them long before the pods that use them.

use anyhow::{Result, bail};
use clap::ValueEnum;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use serde_json::{Value, json};
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::{Call, Cluster, Kind, Name, Refusal, Side, Target, Verb, kind};

use crate::load::{CONCURRENCY, Load, NAMESPACE};
use crate::observers::LABEL;

/// What each pod of a load names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dependents {
    /// Nothing
    None,
    /// One ConfigMap and one Secret for all pods
    Shared,
    /// A ConfigMap and a Secret for each pod
    Own,
}

impl Dependents {
    /// In the name of a load.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Shared => ", shared dependents",
            Self::Own => ", own dependents",
        }
    }

    /// How many ConfigMaps, and as many Secrets, so many pods need.
    pub(crate) fn count(self, pods: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::Shared => 1,
            Self::Own => pods,
        }
    }

    /// What this pod's ConfigMap and its Secret are called; `None` when it names none.
    pub(crate) fn of_pod(self, run: u32, pod: u32) -> Option<String> {
        match self {
            Self::None => None,
            Self::Shared => Some(name(run, 0)),
            Self::Own => Some(name(run, pod)),
        }
    }
}

impl Load {
    /// Makes the ConfigMaps and Secrets that its pods name.
    pub(crate) async fn create_sources(self, run: u32, cluster: &Cluster) -> Result<()> {
        let create = |(kind, body): (&'static Kind, fn(&str, &str) -> Value), index: u32| async move {
            let name = name(run, index);
            let call = Call {
                target: target(kind, &name)?,
                verb: Verb::Create(body(&name, &format!("{run}-{index}"))),
                why: "Load",
            };
            match carry_out(cluster, &call).await {
                Ok(_) => Ok(()),
                Err(refusal) => bail!("{call}: {}", refusal.message()),
            }
        };
        let all = (0..self.dependents.count(self.pods)).flat_map(|index| BOTH.map(|kind| create(kind, index)));
        stream::iter(all).buffer_unordered(CONCURRENCY).try_collect().await
    }

    /// Deletes them.
    pub(crate) async fn delete_sources(self, run: u32, cluster: &Cluster) -> Result<()> {
        let delete = |kind: &'static Kind, index: u32| async move {
            let verb = Verb::Delete { grace: None };
            let call = Call { target: target(kind, &name(run, index))?, verb, why: "Load" };
            match carry_out(cluster, &call).await {
                Ok(_) | Err(Refusal::Gone) => Ok(()),
                Err(refusal) => bail!("{call}: {}", refusal.message()),
            }
        };
        let all = (0..self.dependents.count(self.pods)).flat_map(|index| BOTH.map(|(kind, _)| delete(kind, index)));
        stream::iter(all).buffer_unordered(CONCURRENCY).try_collect().await
    }
}

type Render = fn(&str, &str) -> Value;

const BOTH: [(&Kind, Render); 2] = [(&kind::CONFIG_MAP, config_map), (&kind::SECRET, secret)];

fn target(kind: &'static Kind, name: &str) -> Result<Target> {
    Ok(Target::namespaced(Side::Virtual, kind, Name::parse(NAMESPACE)?, Name::parse(name)?))
}

fn name(run: u32, index: u32) -> String {
    format!("bench-{run}-{index:05}")
}

/// A file of one KiB and two short values.
fn config_map(name: &str, label: &str) -> Value {
    let file = "listen: 0.0.0.0:8080\n".repeat(50);
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { LABEL: label } },
        "data": { "config.yaml": file, "LOG_LEVEL": "info", "NAME": name },
    })
}

/// Two short values, different in each.
fn secret(name: &str, label: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { LABEL: label } },
        "stringData": { "user": "bench", "password": format!("not secret: {name}") },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_name_sources_that_the_load_makes() {
        assert_eq!((Dependents::None.count(7), Dependents::None.of_pod(1, 6)), (0, None));
        assert_eq!((Dependents::Shared.count(7), Dependents::Shared.of_pod(1, 6)), (1, Some(name(1, 0))));
        assert_eq!((Dependents::Own.count(7), Dependents::Own.of_pod(1, 6)), (7, Some(name(1, 6))));
    }
}
