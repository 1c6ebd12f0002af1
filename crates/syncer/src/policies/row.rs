//! What we keep of a policy: what it says, its hours, and what its status says of it.

use bytes::Bytes;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use tapestry_api::policy::ResourceLeasingPolicySpec;
use tapestry_api::{Binding, Cluster, Invalid, Policy, ResourceLeasingPolicy, ResourceLeasingPolicyStatus};
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::calendar::Hours;

use crate::json::Meta;

/// A policy as the watch brings it.
#[derive(Debug, Clone)]
pub struct PolicyRow {
    uid: Uid,
    rv: Rv,
    name: Name,
    generation: i64,
    pub(super) deleting: bool,
    /// `spec.cluster`, also of an invalid one.
    cluster: Cluster,
    parsed: Result<Policy, Invalid>,
    /// What an owner's policy said before it became invalid.
    last: Option<Box<Policy>>,
    hours: Option<Hours>,
    pub(super) status: ResourceLeasingPolicyStatus,
}

impl Row for PolicyRow {
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
    status: serde_json::Value,
}

#[derive(Deserialize)]
struct Specified {
    metadata: ObjectMeta,
    spec: ResourceLeasingPolicySpec,
}

impl PolicyRow {
    /// Decodes a policy. One that cannot be understood is a row that lends nothing, never an absent one: absence has
    /// consequences. What its status says is worth nothing where it cannot be read.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let Outline { metadata: meta, status } = serde_json::from_slice(json)?;
        let whole: Result<Specified, _> = serde_json::from_slice(json);
        let (cluster, parsed) = match whole {
            Ok(Specified { metadata, spec }) => {
                let cluster = Cluster::parse(&spec.cluster).unwrap_or(Cluster::Every);
                (cluster, Policy::parse(&ResourceLeasingPolicy { metadata, spec, status: None }))
            }
            Err(error) => (Cluster::Every, Err(Invalid::of("spec", error.to_string()))),
        };
        Ok(Some(Self {
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
            generation: meta.generation,
            deleting: meta.deletion_timestamp.is_some(),
            cluster,
            parsed,
            last: None,
            hours: None,
            status: serde_json::from_value(status).unwrap_or_default(),
        }))
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    pub(super) fn generation(&self) -> i64 {
        self.generation
    }

    pub(super) fn parsed(&self) -> Result<&Policy, &Invalid> {
        self.parsed.as_ref()
    }

    /// What is obeyed.
    pub(super) fn in_force(&self) -> Option<&Policy> {
        self.parsed.as_ref().ok().or(self.last.as_deref())
    }

    /// Whether it is meant for this binding.
    pub(super) fn names(&self, binding: &Binding) -> bool {
        self.cluster.matches(&binding.name, &binding.cluster_id)
    }

    /// Keeps what it said before, should it be invalid now.
    pub(super) fn remember(&mut self, before: Option<&Self>) {
        if self.parsed.is_err() {
            self.last = before.and_then(Self::in_force).cloned().map(Box::new);
        }
    }

    pub(super) fn hours(&self) -> Option<Hours> {
        self.hours
    }

    /// The hours of a moment: those that are kept, or worked out for this once.
    pub(super) fn hours_at(&self, policy: &Policy, at: Timestamp) -> Hours {
        self.hours.filter(|hours| hours.covers(at)).unwrap_or_else(|| policy.calendar.at(at))
    }

    pub(super) fn keep_hours(&mut self, now: Timestamp) {
        if self.hours.is_none_or(|hours| !hours.covers(now)) {
            self.hours = self.in_force().map(|policy| policy.calendar.at(now));
        }
    }

    /// Equal digests mean that nothing changed but the status.
    pub(super) fn terms_digest(&self) -> (i64, bool, bool) {
        (self.generation, self.deleting, self.parsed.is_ok())
    }
}
