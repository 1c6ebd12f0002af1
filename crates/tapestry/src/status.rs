//! `tapestry status`: the state of every binding in one table. Reads the virtual cluster only.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;
use tapestry_api::binding::{BreakerTrip, Phase};
use tapestry_api::{BindingCondition, ClusterBinding, Status, keys};

use crate::access::{Access, block_on};
use crate::failure::Failure;
use crate::output::{Output, plain, print, table};

/// Show the state of bindings.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tapestry status
  tapestry status east -o json

CPU and MEMORY show what pods request, of what is lent. A binding without a PHASE has no syncer yet.")]
pub(crate) struct Args {
    /// Only this binding [default: all]
    binding: Option<String>,
    #[command(flatten)]
    access: Access,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

/// The state of one binding.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Overview {
    binding: String,
    cluster: String,
    /// `None` before a syncer has processed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<Phase>,
    /// Reason of condition `Connected`; `Unknown` before a syncer has processed it.
    connected: String,
    nodes: usize,
    leased: BTreeMap<String, Quantity>,
    used: BTreeMap<String, Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    breaker: Option<BreakerTrip>,
    /// What is wrong, from the messages of the conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    troubles: Vec<String>,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Failure> {
        block_on(async {
            let server = self.access.server().await?;
            let bindings = match &self.binding {
                Some(name) => vec![server.binding(name).await?],
                None => server.bindings().await?,
            };
            let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
            for node in server.our_nodes().await? {
                let binding = node.metadata.labels.unwrap_or_default().remove(keys::CLUSTER_BINDING);
                *nodes.entry(binding.unwrap_or_default()).or_default() += 1;
            }
            let overview = |binding: ClusterBinding| {
                let label =
                    tapestry_syncer::origin::binding_label(binding.metadata.name.as_deref().unwrap_or_default());
                Overview::of(binding, nodes.get(&label).copied().unwrap_or_default())
            };
            let overviews: Vec<Overview> = bindings.into_iter().map(overview).collect();
            print(self.output, &overviews, |overviews| render(overviews))
        })
    }
}

impl Overview {
    fn of(binding: ClusterBinding, nodes: usize) -> Self {
        let status = binding.status.unwrap_or_default();
        let of = |kind: BindingCondition| move |condition: &&Condition| condition.type_ == kind.as_str();
        let connected = status.conditions.iter().find(of(BindingCondition::Connected));
        let connected = connected.map_or_else(|| "Unknown".to_owned(), |condition| condition.reason.clone());
        // Of a condition that is not ours we only know what most mean.
        let bad = |condition: &Condition| {
            let kind = BindingCondition::parse(&condition.type_).unwrap_or(BindingCondition::Ready);
            kind.is_trouble(Status::parse(&condition.status))
        };
        let troubles: Vec<&Condition> = status.conditions.iter().filter(|condition| bad(condition)).collect();
        // Ready may only repeat the reason or the message of another condition.
        let repeats = |ready: &Condition| {
            let is_ready = of(BindingCondition::Ready);
            let others = troubles.iter().filter(|other| !is_ready(other));
            is_ready(&ready)
                && others.into_iter().any(|other| other.reason == ready.reason || other.message == ready.message)
        };
        Self {
            binding: binding.metadata.name.unwrap_or_default(),
            cluster: binding.spec.cluster_id,
            phase: status.phase,
            connected,
            nodes,
            troubles: troubles
                .iter()
                .filter(|condition| !repeats(condition))
                .map(|condition| format!("{}: {}", condition.reason, condition.message))
                .collect(),
            leased: status.leased,
            used: status.used,
            breaker: status.breaker,
        }
    }

    /// How much of a resource pods request, of how much is lent.
    fn share(&self, resource: &str) -> String {
        let amount = |of: &BTreeMap<String, Quantity>| of.get(resource).map_or("-", |amount| &amount.0).to_owned();
        format!("{}/{}", amount(&self.used), amount(&self.leased))
    }
}

fn render(overviews: &[Overview]) -> String {
    if overviews.is_empty() {
        return "No ClusterBinding found.\n".to_owned();
    }
    let rows: Vec<_> = overviews
        .iter()
        .map(|overview| {
            let trip = overview.breaker.as_ref().map(|trip| format!("tripped: {} of {} pods", trip.ends, trip.pods));
            let Overview { binding, cluster, connected, nodes, .. } = overview;
            let phase = overview.phase.map_or_else(|| "-".to_owned(), |phase| format!("{phase:?}"));
            let [cpu, memory] = ["cpu", "memory"].map(|resource| overview.share(resource));
            let breaker = trip.unwrap_or_else(|| "closed".to_owned());
            [binding.clone(), cluster.clone(), phase, connected.clone(), nodes.to_string(), cpu, memory, breaker]
        })
        .collect();
    let troubles = overviews.iter().flat_map(|overview| {
        overview.troubles.iter().map(|trouble| format!("\n{}\n", plain(&format!("{}: {trouble}", overview.binding))))
    });
    let header = ["BINDING", "CLUSTER", "PHASE", "CONNECTED", "NODES", "CPU", "MEMORY", "BREAKER"];
    std::iter::once(table(header, &rows)).chain(troubles).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_in_trouble_says_what_to_do_below_the_table() {
        let trip = BreakerTrip { id: "trip-1".into(), since: "2026-01-01T00:00:00Z".into(), ends: 21, pods: 30 };
        let overview = |binding: &str, breaker: Option<BreakerTrip>, troubles: Vec<String>| Overview {
            binding: binding.to_owned(),
            cluster: binding.to_owned(),
            phase: Some(Phase::Ready),
            connected: "Connected".to_owned(),
            nodes: 3,
            leased: [("cpu", "96"), ("memory", "384Gi")]
                .map(|(name, of)| (name.to_owned(), Quantity(of.into())))
                .into(),
            used: [("cpu", "3500m"), ("memory", "12Gi")]
                .map(|(name, of)| (name.to_owned(), Quantity(of.into())))
                .into(),
            breaker,
            troubles,
        };
        let text = render(&[
            overview("east", None, vec![]),
            overview("west", Some(trip), vec!["MassDeletion: look, then run `tapestry resume west`".to_owned()]),
        ]);
        let expected = "\
BINDING  CLUSTER  PHASE  CONNECTED  NODES  CPU       MEMORY      BREAKER
east     east     Ready  Connected  3      3500m/96  12Gi/384Gi  closed
west     west     Ready  Connected  3      3500m/96  12Gi/384Gi  tripped: 21 of 30 pods

west: MassDeletion: look, then run `tapestry resume west`
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_restored_virtual_cluster_shows_in_the_table_and_below_it() {
        let mut binding = ClusterBinding::default();
        binding.metadata.name = Some("east".to_owned());
        let condition = serde_json::json!({
            "type": "Connected", "status": "False", "reason": "VirtualClusterRestored", "message": "restart the syncer",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = serde_json::json!({ "conditions": [condition] });
        binding.status = serde_json::from_value(status).unwrap();
        let text = render(&[Overview::of(binding, 3)]);
        assert!(
            text.contains("VirtualClusterRestored  3")
                && text.contains("east: VirtualClusterRestored: restart the syncer"),
            "{text}"
        );
    }
    #[test]
    fn a_missing_mount_namespace_shows_below_the_table_and_only_once() {
        let trouble = |kind: &str, status: &str, reason: &str| {
            serde_json::json!({
                "type": kind, "status": status, "reason": reason, "message": "namespace m does not exist: create it",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let text = |conditions: serde_json::Value| {
            let status = serde_json::from_value(serde_json::json!({ "conditions": conditions })).unwrap();
            render(&[Overview::of(ClusterBinding { status, ..Default::default() }, 3)])
        };
        let ready = trouble("Ready", "False", "PhysicalClusterNotReady");
        let told = text(serde_json::json!([trouble("Connected", "True", "Connected"), ready]));
        assert_eq!(told.matches("create it").count(), 1, "{told}");
        let out_of_sync = trouble("Connected", "False", "WatchOutOfSync");
        let told = text(serde_json::json!([out_of_sync, trouble("Ready", "False", "WatchOutOfSync")]));
        assert_eq!(told.matches("create it").count(), 1, "Ready only repeats it: {told}");
        let mut ready = ready;
        ready["message"] = "another message".into();
        let told = text(serde_json::json!([out_of_sync, ready]));
        assert!(told.contains("WatchOutOfSync: ") && told.contains("PhysicalClusterNotReady: "), "{told}");
    }
}
