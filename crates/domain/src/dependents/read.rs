//! How a ConfigMap or Secret is read: values borrow from the JSON text and live no longer than one function.
//! It must not implement `Debug` for anything that holds a value.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{DependentKind, Malformed};
use crate::shape::{Text, nullable};

/// An object of either kind.
#[derive(Deserialize)]
pub(super) struct Object<'a> {
    #[serde(borrow)]
    pub(super) metadata: Metadata<'a>,
    #[serde(borrow, default, deserialize_with = "nullable")]
    data: Values<'a>,
    #[serde(borrow, default, deserialize_with = "nullable", rename = "binaryData")]
    binary_data: Values<'a>,
    #[serde(borrow, default, rename = "type")]
    pub(super) kind: Option<Text<'a>>,
    #[serde(default)]
    pub(super) immutable: Option<bool>,
    /// Everything else.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default, deserialize_with = "nullable")]
    pub(super) namespace: Text<'a>,
    #[serde(borrow, default, deserialize_with = "nullable")]
    pub(super) uid: Text<'a>,
    #[serde(borrow, default, deserialize_with = "nullable")]
    pub(super) resource_version: Text<'a>,
    #[serde(borrow, default)]
    pub(super) deletion_timestamp: Option<Text<'a>>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) labels: Map<String, Value>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) annotations: Map<String, Value>,
}

/// `data` or `binaryData`.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Values<'a>(#[serde(borrow)] BTreeMap<Text<'a>, Option<Text<'a>>>);

impl<'a> Object<'a> {
    pub(super) fn parse(kind: DependentKind, text: &'a str) -> Result<Self, Malformed> {
        serde_json::from_str(text).map_err(|error| Malformed { kind, line: error.line(), column: error.column() })
    }

    /// The fields that hold values; a key is in one of them only.
    pub(super) fn values(&self) -> [(&'static str, &Values<'a>); 2] {
        [("data", &self.data), ("binaryData", &self.binary_data)]
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key)?.as_str()
    }
}

impl<'a> Values<'a> {
    /// An empty value of a Secret can be `null`, as Go writes empty bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, value.as_deref().unwrap_or_default()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.iter().any(|(there, _)| there == key)
    }

    pub(super) fn json(&self) -> Value {
        self.iter().map(|(key, value)| (key.to_owned(), Value::from(value))).collect()
    }

    /// What a merge patch must say so that these values are there, but for those that `stays` names; of those that only `there`
    /// has, `goes` says which go.
    pub(super) fn changes(
        &self,
        there: &Values<'a>,
        goes: impl Fn(&str) -> bool,
        stays: impl Fn(&str) -> bool,
    ) -> Map<String, Value> {
        let before: BTreeMap<&str, &str> = there.iter().collect();
        let now: BTreeMap<&str, &str> = self.iter().collect();
        let lost = before.keys().filter(|key| !now.contains_key(*key) && goes(key) && !stays(key));
        let lost = lost.map(|key| ((*key).to_owned(), Value::Null));
        let new = now.iter().filter(|(key, value)| before.get(*key) != Some(value) && !stays(key));
        lost.chain(new.map(|(key, value)| ((*key).to_owned(), Value::from(*value)))).collect()
    }
}
