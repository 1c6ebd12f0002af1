//! What we keep of a backstop, decoded straight from JSON. There is at most one of each, so it is kept whole.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};
use tapestry_api::keys;
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::quantity::Quantity;

use super::Guard;
use crate::json::Meta;
use crate::origin::Origin;

/// A backstop of ours.
#[derive(Debug, Clone)]
pub struct GuardRow {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) deleting: bool,
    /// Those under our prefix.
    pub(super) labels: BTreeMap<Box<str>, Box<str>>,
    /// Annotation origin.
    pub(super) origin: Option<Box<str>>,
    pub(super) spec: Value,
    /// `status.hard` of a quota: what the API server enforces. Null before Kubernetes has looked at the quota.
    pub(super) enforced: Value,
}

impl Row for GuardRow {
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

impl GuardRow {
    /// Decodes the backstop of this sort; `None` when it is another object, or not of our origin by label or annotation
    /// (one of the two may have been taken away, and is then put back).
    pub fn decode(
        json: &Bytes,
        guard: Guard,
        mount: &Name,
        origin: &Origin,
    ) -> Result<Option<Self>, serde_json::Error> {
        #[derive(Deserialize)]
        struct GuardJson<'a> {
            #[serde(borrow)]
            metadata: Meta<'a>,
            #[serde(default)]
            spec: Value,
            #[serde(default)]
            status: Value,
        }
        let GuardJson { metadata: meta, spec, mut status } = serde_json::from_slice(json)?;
        let place = meta.name.as_str() == guard.name() && meta.namespace.as_ref() == Some(mount);
        let ours =
            meta.label(keys::ORIGIN) == Some(&origin.label) || meta.annotation(keys::ORIGIN) == Some(&origin.full);
        if !place || !ours {
            return Ok(None);
        }
        let labels = meta.labels.iter().flat_map(|labels| &labels.0).filter(|(key, _)| keys::ours(key));
        Ok(Some(Self {
            labels: labels.map(|(key, value)| ((**key).into(), (**value).into())).collect(),
            origin: meta.annotation(keys::ORIGIN).map(Into::into),
            deleting: meta.deletion_timestamp.is_some(),
            uid: meta.uid,
            rv: meta.resource_version,
            spec,
            enforced: status["hard"].take(),
        }))
    }

    /// Whether a quota admits so much, by its spec and by what Kubernetes enforces. What is not enforced yet limits nothing.
    pub(super) fn lets_in(&self, wanted: &Map<String, Value>) -> bool {
        let amount = |value: &Value| Quantity::parse(value.as_str()?).ok();
        wanted.iter().all(|(name, wanted)| {
            let enough = |hard: &Value| amount(hard) >= amount(wanted);
            enough(&self.spec["hard"][name]) && self.enforced.get(name).is_none_or(enough)
        })
    }
}
