//! Which policy holds on a node. Watches policies in the virtual cluster; writes nothing yet.

use bytes::Bytes;
use tapestry_api::{Invalid, Policy, ResourceLeasingPolicy};
use tapestry_cluster::feed::{Change, Row};
use tapestry_cluster::{Rv, Uid};
use tapestry_engine::{Dirty, Table};

use crate::nodes::row::PNode;
use crate::pair::{Key, Pair};

/// A policy as the watch brings it.
#[derive(Debug, Clone)]
pub struct PolicyRow {
    uid: Uid,
    rv: Rv,
    deleting: bool,
    parsed: Result<Policy, Invalid>,
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
    /// Decodes a policy; an invalid one is a row that leases nothing.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let object: ResourceLeasingPolicy = serde_json::from_slice(json)?;
        let missing = |what: &str| <serde_json::Error as serde::de::Error>::custom(format!("a policy without {what}"));
        let meta = &object.metadata;
        Ok(Some(Self {
            uid: Uid::new(meta.uid.clone().ok_or_else(|| missing("uid"))?),
            rv: meta
                .resource_version
                .as_ref()
                .and_then(|rv| rv.parse().ok())
                .map(Rv::new)
                .ok_or_else(|| missing("version"))?,
            deleting: meta.deletion_timestamp.is_some(),
            parsed: Policy::parse(&object),
        }))
    }
}

/// All policies of the virtual cluster.
#[derive(Default)]
pub(crate) struct Policies {
    table: Table<PolicyRow>,
}

impl Policies {
    pub(crate) fn complete(&self) -> bool {
        self.table.complete()
    }
}

impl Pair {
    pub(crate) fn see_policy(&mut self, change: Change<PolicyRow>, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => {
                if let Err(invalid) = &row.parsed {
                    tracing::warn!(%invalid, "a policy is invalid and leases nothing");
                }
                self.policies.table.put(row, Some(epoch));
            }
            // A policy that is not to be seen lends nothing: the safe side, and putting it back undoes it.
            Change::Gone { row, .. } => drop(self.policies.table.bury(&row.uid, row.rv)),
            Change::Listed(epoch) => {
                for uid in self.policies.table.listed(epoch) {
                    self.policies.table.remove(&uid);
                }
            }
        }
        self.open_all_doors(dirty);
    }

    /// The policy that holds on a node: of those that select it the highest in rank.
    pub(crate) fn policy(&self, pnode: &PNode) -> Option<&Policy> {
        let binding = &self.bound.as_ref()?.binding;
        let live = self.policies.table.iter().filter(|row| !row.deleting).filter_map(|row| row.parsed.as_ref().ok());
        // A policy with hours lends nothing until hours can be told: never more than was agreed.
        live.filter(|policy| policy.cluster.matches(&binding.name, &binding.cluster_id) && !policy.has_windows)
            .filter(|policy| policy.nodes.matches(|key| pnode.label(key), pnode.name.as_str()))
            .min_by(|a, b| a.rank().cmp(&b.rank()))
    }
}
