//! What the keeper knows of a virtual node and of the binding: enough to renew, to taint and to report.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_engine::Now;

use crate::json::Meta;
use crate::nodes::row::Taint;

/// A virtual node of our origin.
#[derive(Debug, Clone)]
pub struct KeptNode {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    pub(super) deleting: bool,
    pub(super) taints: Vec<Taint>,
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
    /// As they stand, everybody's.
    pub(super) conditions: Vec<Value>,
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
        Ok(Some(Self { uid: meta.uid, rv: meta.resource_version, name: meta.name, deleting, taints: spec.taints }))
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
            conditions: status["conditions"].as_array().cloned().unwrap_or_default(),
        }))
    }

    /// Whether it has a condition of this type.
    pub(super) fn says(&self, kind: &str) -> bool {
        self.conditions.iter().any(|condition| condition["type"] == kind)
    }

    /// Puts a condition into the list, unless the list says the same already.
    pub(super) fn set(
        &self,
        conditions: &mut Vec<Value>,
        kind: &str,
        status: &str,
        reason: &str,
        message: &str,
        now: Now,
    ) {
        let there = conditions.iter().position(|condition| condition["type"] == kind);
        let known = there.map(|place| &conditions[place]);
        let same =
            |known: &&Value| known["status"] == status && known["reason"] == reason && known["message"] == message;
        if known.is_some_and(|known| same(&known)) {
            return;
        }
        let since = known.filter(|known| known["status"] == status).map(|known| known["lastTransitionTime"].clone());
        let condition = json!({
            "type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": self.generation,
            "lastTransitionTime": since.unwrap_or_else(|| json!(format!("{:.0}", now.wall))),
        });
        match there {
            Some(place) => conditions[place] = condition,
            None => conditions.push(condition),
        }
    }
}
