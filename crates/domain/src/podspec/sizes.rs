//! What an in-place resize may change: the resources of a pod's containers and of the pod itself.
//! It must not decide whether there is room; it only reads what was requested, and marks it so that two requests can be
//! distinguished.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::names;
use crate::shape::{Text, nullable};

/// The sizes that a virtual pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// The mark on the copy once they were carried over.
    pub mark: Box<str>,
    /// The strategic merge patch that carries them over, for the `resize` subresource. What the physical cluster added stays.
    pub patch: Box<str>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow, default, deserialize_with = "nullable")]
    containers: Vec<Container<'a>>,
    #[serde(borrow, default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Container<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    resources: Option<Amounts<'a>>,
}

#[derive(Deserialize, Serialize)]
struct Container<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow, default)]
    resources: Option<Amounts<'a>>,
}

/// As text: unknown fields are carried over too. Claims are not: admission refuses them.
#[derive(Deserialize, Serialize)]
struct Amounts<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    limits: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    requests: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow)]
    spec: &'a RawValue,
}

impl Sizes {
    /// Reads them from the JSON of a pod.
    pub fn of_pod(pod: &str) -> Result<Self, serde_json::Error> {
        let pod: Pod<'_> = serde_json::from_str(pod)?;
        Self::read(pod.spec.get())
    }

    /// Reads them from the JSON of a pod's spec.
    pub fn read(spec: &str) -> Result<Self, serde_json::Error> {
        let mut spec: Spec<'_> = serde_json::from_str(spec)?;
        for list in [&mut spec.containers, &mut spec.init_containers] {
            list.retain(|container| container.resources.is_some());
        }
        let spec = serde_json::to_string(&spec)?;
        let mark = names::mark(&["sizes", &spec]).into();
        Ok(Self { mark, patch: format!(r#"{{"spec":{spec}}}"#).into() })
    }
}
