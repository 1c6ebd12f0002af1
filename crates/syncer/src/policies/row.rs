//! What we keep of a policy: what it says, its hours, and what its status says of it.

use bytes::Bytes;
use jiff::Timestamp;
use tapestry_api::{Binding, Cluster, Invalid, Policy, ResourceLeasingPolicy, ResourceLeasingPolicyStatus};
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::calendar::Hours;

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

impl PolicyRow {
    /// Decodes a policy; an invalid one is a row that lends nothing.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let object: ResourceLeasingPolicy = serde_json::from_slice(json)?;
        let missing = |what: &str| <serde_json::Error as serde::de::Error>::custom(format!("a policy without {what}"));
        let meta = &object.metadata;
        let rv = meta.resource_version.as_ref().and_then(|rv| rv.parse().ok()).map(Rv::new);
        Ok(Some(Self {
            uid: Uid::new(meta.uid.clone().ok_or_else(|| missing("uid"))?),
            rv: rv.ok_or_else(|| missing("version"))?,
            name: Name::parse(meta.name.as_deref().unwrap_or_default()).map_err(|_| missing("name"))?,
            generation: meta.generation.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            cluster: Cluster::parse(&object.spec.cluster).unwrap_or(Cluster::Every),
            parsed: Policy::parse(&object),
            last: None,
            hours: None,
            status: object.status.unwrap_or_default(),
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

    /// Equal prints mean that nothing changed but the status.
    pub(super) fn terms_print(&self) -> (i64, bool, bool) {
        (self.generation, self.deleting, self.parsed.is_ok())
    }
}
