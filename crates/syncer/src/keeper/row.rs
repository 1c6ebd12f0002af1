//! What the keeper knows of a virtual node and of the binding: enough to renew, to taint and to report.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tapestry_api::binding::Phase;
use tapestry_api::{BindingCondition, Status};
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_engine::Now;

use crate::json::Meta;
use crate::nodes::row::Taint;
use crate::origin::Marks;

/// A virtual node of our origin.
#[derive(Debug, Clone)]
pub struct KeptNode {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    pub(super) deleting: bool,
    pub(super) taints: Vec<Taint>,
    pub(super) marks: Marks,
}

/// A binding of our name.
#[derive(Debug, Clone)]
pub struct KeptBinding {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    deleting: bool,
    pub(crate) generation: i64,
    /// The virtual cluster that it was made in, once that is pinned.
    pub(super) virtual_cluster: Option<String>,
    /// As the status has it.
    pub(super) phase: Option<Phase>,
    /// The generation that the status speaks of.
    pub(super) observed: Option<i64>,
    /// All conditions that are there, whichever controller wrote them.
    pub(super) conditions: Vec<Value>,
}

/// What a condition is to say.
pub(super) struct Said<'a> {
    pub(super) kind: BindingCondition,
    pub(super) status: Status,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

impl Row for KeptNode {
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

impl Row for KeptBinding {
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

impl KeptNode {
    /// Decodes any node.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        #[derive(Deserialize)]
        struct Node<'a> {
            #[serde(borrow)]
            metadata: Meta<'a>,
            #[serde(default)]
            spec: Spec,
        }
        #[derive(Deserialize, Default)]
        struct Spec {
            #[serde(default)]
            taints: Vec<Taint>,
        }
        let Node { metadata: meta, spec } = serde_json::from_slice(json)?;
        let deleting = meta.deletion_timestamp.is_some();
        let marks = Marks::read(|key| meta.label(key), |key| meta.annotation(key));
        let (uid, rv, name, taints) = (meta.uid, meta.resource_version, meta.name, spec.taints);
        Ok(Some(Self { uid, rv, name, deleting, taints, marks }))
    }
}

impl KeptBinding {
    /// Decodes any binding, also one of a newer version.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        #[derive(Deserialize)]
        struct Outline<'a> {
            #[serde(borrow)]
            metadata: Meta<'a>,
            #[serde(default)]
            status: Option<Value>,
        }
        let Outline { metadata: meta, status } = serde_json::from_slice(json)?;
        let status = status.unwrap_or_default();
        Ok(Some(Self {
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
            deleting: meta.deletion_timestamp.is_some(),
            generation: meta.generation,
            virtual_cluster: status["virtualClusterUID"].as_str().map(str::to_owned),
            phase: Phase::deserialize(&status["phase"]).ok(),
            observed: status["observedGeneration"].as_i64(),
            conditions: status["conditions"].as_array().cloned().unwrap_or_default(),
        }))
    }

    /// Whether it has a condition of this type.
    pub(super) fn says(&self, kind: BindingCondition) -> bool {
        self.conditions.iter().any(|condition| condition["type"] == kind.as_str())
    }

    /// Whether it has a condition of this type with this status.
    pub(super) fn says_as(&self, kind: BindingCondition, status: Status) -> bool {
        let said = |condition: &Value| condition["type"] == kind.as_str() && condition["status"] == status.as_str();
        self.conditions.iter().any(said)
    }

    /// Puts a condition into the list, unless the list says the same already: of this generation, where one is given.
    pub(super) fn set(&self, conditions: &mut Vec<Value>, said: &Said<'_>, generation: Option<i64>, now: Now) {
        let Said { reason, message, .. } = *said;
        let (kind, status) = (said.kind.as_str(), said.status.as_str());
        let there = conditions.iter().position(|condition| condition["type"] == kind);
        let known = there.map(|place| &conditions[place]);
        let same = |known: &&Value| {
            known["status"] == status
                && known["reason"] == reason
                && known["message"] == message
                && generation.is_none_or(|generation| known["observedGeneration"] == generation)
        };
        if known.is_some_and(|known| same(&known)) {
            return;
        }
        let since = known.filter(|known| known["status"] == status).map(|known| known["lastTransitionTime"].clone());
        let condition = json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "observedGeneration": generation.unwrap_or(self.generation),
            "lastTransitionTime": since.unwrap_or_else(|| json!(format!("{:.0}", now.wall))),
        });
        match there {
            Some(place) => conditions[place] = condition,
            None => conditions.push(condition),
        }
    }
}
