//! What we keep of a binding: what it says, and what its status says of it.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;
use tapestry_api::binding::{BreakerTrip, ClusterBindingSpec, ClusterBindingStatus, Phase, Pinned, UnaskedEnds};
use tapestry_api::{Binding, BindingCondition, ClusterBinding, Invalid, Status, keys};
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::resources::Resources;

use super::status::{Figures, Report, Said};
use crate::json::Meta;

/// A binding as the watch brings it.
#[derive(Debug, Clone)]
pub struct BindingRow {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    pub(super) deleting: bool,
    pub(super) generation: i64,
    /// What it says; shared with the binding in force.
    pub(super) parsed: Result<Arc<Binding>, Invalid>,
    pub(super) pinned: Pinned,
    pub(super) finalizers: Vec<String>,
    /// What we said of it.
    pub(super) report: Box<Report>,
    pub(super) trip: Option<BreakerTrip>,
    /// How many pods were ended recently that no user asked to end.
    pub(super) unasked: Option<UnaskedEnds>,
    /// The trip that a user has looked at.
    pub(super) resume: Option<String>,
}

impl Row for BindingRow {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.deleting
    }
}

#[derive(Deserialize)]
struct Outline<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(default)]
    status: Option<Value>,
}

#[derive(Deserialize)]
struct Specified {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

impl Specified {
    /// By way of a value: an error then tells no column, which would be another one with every change of the metadata.
    fn decode(json: &Bytes) -> Result<(ObjectMeta, ClusterBindingSpec), serde_json::Error> {
        let Self { metadata, spec } = serde_json::from_slice(json)?;
        Ok((metadata, serde_json::from_value(spec)?))
    }
}

/// What we read of the status. The rest of it may be of a newer version, and is not read.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Told {
    #[serde(rename = "physicalClusterUID")]
    physical_cluster: Option<String>,
    #[serde(rename = "virtualClusterUID")]
    virtual_cluster: Option<String>,
    breaker: Option<BreakerTrip>,
    #[serde(rename = "unaskedEnds")]
    unasked: Option<UnaskedEnds>,
    conditions: Vec<ToldCondition>,
    // What only we write, and write again when it cannot be read.
    phase: Value,
    #[serde(rename = "observedGeneration")]
    observed: Value,
    nodes: Value,
    leased: Value,
    used: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ToldCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
    #[serde(rename = "lastTransitionTime")]
    since: Value,
}

impl Told {
    fn report(&self) -> Report {
        Report {
            connected: self.condition(BindingCondition::Connected),
            ready: self.condition(BindingCondition::Ready),
            policies: self.condition(BindingCondition::PoliciesKnown),
            guarded: self.condition(BindingCondition::GuardsInForce),
            kept: [BindingCondition::LeaderElected, BindingCondition::LeasesRenewed]
                .into_iter()
                .filter_map(|kind| self.condition(kind).map(|said| (kind, said)))
                .find(|(kind, said)| kind.is_trouble(said.status)),
            phase: Phase::deserialize(&self.phase).ok(),
            observed: self.observed.as_i64(),
            figures: self.figures(),
        }
    }

    fn condition(&self, kind: BindingCondition) -> Option<Said> {
        let told = self.conditions.iter().find(|condition| condition.kind == kind.as_str())?;
        let since = told.since.as_str().and_then(|since| since.parse().ok());
        Some(Said { since, ..Said::new(Status::parse(&told.status), &told.reason, told.message.as_str()) })
    }

    fn figures(&self) -> Option<Figures> {
        let amounts = |amounts: &Value| Resources::deserialize(amounts).ok().filter(|_| !amounts.is_null());
        Some(Figures { nodes: self.nodes.as_i64()?, leased: amounts(&self.leased)?, used: amounts(&self.used)? })
    }
}

impl BindingRow {
    /// Decodes a binding. One that cannot be understood, such as one of a newer version, is a row that says so, never an
    /// absent one: absence has consequences.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let Outline { metadata: meta, status } = serde_json::from_slice(json)?;
        let (told, status_error) = match status.map(serde_json::from_value::<Told>).transpose() {
            Ok(told) => (told.unwrap_or_default(), None),
            Err(error) => (Told::default(), Some(error)),
        };
        let report = Box::new(told.report());
        let pinned = Pinned { physical_cluster: told.physical_cluster, virtual_cluster: told.virtual_cluster };
        let parsed = match (status_error, Specified::decode(json)) {
            // Which clusters it was made for, and whether its breaker has tripped, is not to be guessed.
            (Some(error), _) => Err(Invalid::of("status", error.to_string())),
            (None, Err(error)) => Err(Invalid::of("spec", error.to_string())),
            (None, Ok((metadata, spec))) => {
                let status = ClusterBindingStatus {
                    physical_cluster_uid: pinned.physical_cluster.clone(),
                    virtual_cluster_uid: pinned.virtual_cluster.clone(),
                    ..Default::default()
                };
                Binding::parse(&ClusterBinding { metadata, spec, status: Some(status) }).map(Arc::new)
            }
        };
        Ok(Some(Self {
            resume: meta.annotation(keys::RESUME).map(str::to_owned),
            finalizers: meta.finalizers.iter().map(|finalizer| (**finalizer).to_owned()).collect(),
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
            deleting: meta.deletion_timestamp.is_some(),
            generation: meta.generation,
            parsed,
            pinned,
            report,
            trip: told.breaker,
            unasked: told.unasked,
        }))
    }

    /// The generation of what it says.
    pub(crate) fn generation(&self) -> i64 {
        self.generation
    }

    /// The valid binding, or what to change.
    pub fn parsed(&self) -> Result<&Binding, &Invalid> {
        self.parsed.as_deref()
    }
}
