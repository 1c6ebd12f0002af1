//! `tapestry status`: how every binding stands, at a glance. Reads the virtual cluster only.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde::Serialize;
use tapestry_api::binding::BreakerTrip;
use tapestry_api::{ClusterBinding, keys};

use crate::access::Access;
use crate::failure::Failure;
use crate::output::{Output, print, table};

/// Show how bindings stand.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tapestry status
  tapestry status east -o json")]
pub(crate) struct Args {
    /// Only this binding [default: all]
    binding: Option<String>,
    #[command(flatten)]
    access: Access,
    /// How it is printed
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

/// How one binding stands.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Standing {
    binding: String,
    cluster: String,
    /// Reason of condition `Connected`; `Unknown` before anybody said.
    connected: String,
    nodes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    breaker: Option<BreakerTrip>,
    /// What is wrong, in the words of the conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    troubles: Vec<String>,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let failed = |error: kube::Error| {
                Failure::new("cannot read the virtual cluster", error, "check the rights of the kubeconfig")
            };
            let client = self.access.client().await?;
            let mut standings = Vec::new();
            for name in self.access.bindings(self.binding.as_deref()).await? {
                let binding = Api::<ClusterBinding>::all(client.clone()).get(&name).await.map_err(failed)?;
                let label = tapestry_syncer::origin::binding_label(&name);
                let ours = ListParams::default().labels(&format!("{}={label}", keys::CLUSTER_BINDING));
                let nodes = Api::<Node>::all(client.clone()).list_metadata(&ours).await.map_err(failed)?;
                standings.push(Standing::of(&name, &binding, nodes.items.len()));
            }
            print(self.output, &standings, |standings| render(standings))
        })
    }
}

impl Standing {
    fn of(name: &str, binding: &ClusterBinding, nodes: usize) -> Self {
        let status = binding.status.clone().unwrap_or_default();
        let connected = status.conditions.iter().find(|condition| condition.type_ == "Connected");
        let bad = |condition: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| match &*condition.type_ {
            "BreakerTripped" | "Paused" => condition.status == "True",
            _ => condition.status != "True",
        };
        let troubles = status.conditions.iter().filter(bad);
        Self {
            binding: name.to_owned(),
            cluster: binding.spec.cluster_id.clone(),
            connected: connected.map_or_else(|| "Unknown".to_owned(), |condition| condition.reason.clone()),
            nodes,
            troubles: troubles.map(|condition| format!("{}: {}", condition.reason, condition.message)).collect(),
            breaker: status.breaker,
        }
    }
}

fn render(standings: &[Standing]) -> String {
    if standings.is_empty() {
        return "There is no ClusterBinding.\n".to_owned();
    }
    let rows: Vec<_> = standings
        .iter()
        .map(|standing| {
            let trip = standing.breaker.as_ref().map(|trip| format!("tripped: {} of {} pods", trip.ends, trip.pods));
            let Standing { binding, cluster, connected, nodes, .. } = standing;
            let breaker = trip.unwrap_or_else(|| "closed".to_owned());
            [binding.clone(), cluster.clone(), connected.clone(), nodes.to_string(), breaker]
        })
        .collect();
    let troubles = standings
        .iter()
        .flat_map(|standing| standing.troubles.iter().map(|trouble| format!("\n{}: {trouble}\n", standing.binding)));
    std::iter::once(table(["BINDING", "CLUSTER", "CONNECTED", "NODES", "BREAKER"], &rows)).chain(troubles).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_in_trouble_says_what_to_do_below_the_table() {
        let trip = BreakerTrip { id: "trip-1".into(), since: "2026-01-01T00:00:00Z".into(), ends: 21, pods: 30 };
        let standing = |binding: &str, breaker: Option<BreakerTrip>, troubles: Vec<String>| Standing {
            binding: binding.to_owned(),
            cluster: binding.to_owned(),
            connected: "Connected".to_owned(),
            nodes: 3,
            breaker,
            troubles,
        };
        let text = render(&[
            standing("east", None, vec![]),
            standing("west", Some(trip), vec!["MassDeletion: look, then run `tapestry resume west`".to_owned()]),
        ]);
        let expected = "\
BINDING  CLUSTER  CONNECTED  NODES  BREAKER
east     east     Connected  3      closed
west     west     Connected  3      tripped: 21 of 30 pods

west: MassDeletion: look, then run `tapestry resume west`
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_restored_virtual_cluster_shows_in_the_table_and_below_it() {
        let mut binding = ClusterBinding::default();
        let condition = serde_json::json!({
            "type": "Connected", "status": "False", "reason": "VirtualClusterRestored", "message": "restart the syncer",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = serde_json::json!({ "conditions": [condition] });
        binding.status = serde_json::from_value(status).unwrap();
        let text = render(&[Standing::of("east", &binding, 3)]);
        assert!(
            text.contains("VirtualClusterRestored  3")
                && text.contains("east: VirtualClusterRestored: restart the syncer"),
            "{text}"
        );
    }
}
