//! Whether a pod may be on a node, as kube-scheduler would judge it, for pods that bypass it.
//! It must not check capacity, ports or preferences: only what always forbids the node counts.

#[cfg(test)]
mod tests;
mod toleration;

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

pub use self::toleration::{TaintRef, Toleration, tolerates, tolerates_exactly, tolerates_for_ever};
use crate::selector::Selector;
use crate::shape::{Text, nullable};

/// The part of a pod's `spec` that says where it may be, read straight from its JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PlacementShape<'a> {
    /// Labels that the node must have.
    #[serde(borrow, deserialize_with = "nullable")]
    node_selector: BTreeMap<Text<'a>, Text<'a>>,
    /// Required node affinity; without terms, and so when it cannot be read, it matches no node.
    #[serde(rename = "affinity", deserialize_with = "required_affinity")]
    required: Option<Selector>,
    /// Its tolerations.
    #[serde(borrow, deserialize_with = "nullable")]
    pub tolerations: Vec<Toleration<'a>>,
}

impl PlacementShape<'_> {
    /// Whether it has no requirements: a row may drop it and use the default instead.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.node_selector.is_empty() && self.required.is_none() && self.tolerations.is_empty()
    }

    /// The same shape, free of the JSON it was read from.
    #[must_use]
    pub fn into_owned(self) -> PlacementShape<'static> {
        let pairs = self.node_selector.into_iter();
        PlacementShape {
            node_selector: pairs.map(|(key, value)| (key.into_owned(), value.into_owned())).collect(),
            required: self.required,
            tolerations: self.tolerations.into_iter().map(Toleration::into_owned).collect(),
        }
    }
}

/// Why a pod may not be on its node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    /// The node lacks a label of `nodeSelector`.
    #[error("the node lacks a label of the pod's nodeSelector; leave nodeName to the scheduler, or label the node")]
    Selector,
    /// The node does not match the required node affinity.
    #[error("the node does not match the pod's required node affinity; leave nodeName to the scheduler")]
    Affinity,
    /// The node has a taint that the pod does not tolerate.
    #[error(
        "the pod does not tolerate the node's taint {key}{equals}{value}:{effect}; add a toleration for it",
        equals = if value.is_empty() { "" } else { "=" }
    )]
    Taint {
        /// Key of the taint.
        key: String,
        /// Value of the taint; empty when it has none.
        value: String,
        /// `NoSchedule` or `NoExecute`.
        effect: String,
    },
}

/// Whether a pod may be on the node of this name; `label` looks a label of the node up.
pub fn placed<'l, 't>(
    spec: &PlacementShape<'_>,
    label: impl Fn(&str) -> Option<&'l str>,
    node_name: &str,
    mut taints: impl Iterator<Item = TaintRef<'t>>,
) -> Result<(), Misplaced> {
    if !spec.node_selector.iter().all(|(key, value)| label(key) == Some(&**value)) {
        return Err(Misplaced::Selector);
    }
    // In a pod no terms mean no node, which the API server refuses to store; in a binding they mean every node.
    if spec.required.as_ref().is_some_and(|required| required.is_empty() || !required.matches(&label, node_name)) {
        return Err(Misplaced::Affinity);
    }
    match taints.find(|taint| taint.repels() && !tolerates(&spec.tolerations, taint)) {
        None => Ok(()),
        Some(TaintRef { key, value, effect }) => {
            Err(Misplaced::Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() })
        }
    }
}

/// Parses only the required node affinity of `affinity`. Anything that is not a selector becomes one without terms.
fn required_affinity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Selector>, D::Error> {
    #[derive(Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Affinity {
        #[serde(deserialize_with = "nullable")]
        node_affinity: NodeAffinity,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct NodeAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        required: Option<Required>,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Required {
        Readable(Selector),
        Unreadable(IgnoredAny),
    }

    let affinity: Affinity = nullable(deserializer)?;
    Ok(affinity.node_affinity.required.map(|required| match required {
        Required::Readable(selector) => selector,
        Required::Unreadable(_) => Selector::default(),
    }))
}
