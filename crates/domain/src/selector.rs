//! A core/v1 `NodeSelector`: which nodes it means, and what is wrong with it.
//! It must not guess: a term with a malformed requirement matches no node.

mod requirement;
#[cfg(test)]
mod tests;

use serde::Deserialize;

use self::requirement::{FieldTest, LabelTest, RawRequirement};
use crate::shape::nullable;

pub use self::requirement::RequirementError;

/// Which nodes: the terms are alternatives. No term at all means every node, as in a binding without `nodeSelector`.
///
/// (In a pod's node affinity Kubernetes refuses a selector without terms, so that case does not arise there.)
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "RawSelector")]
pub struct Selector {
    terms: Box<[Result<Term, SelectorError>]>,
}

/// What is wrong with a selector, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nodeSelectorTerms[{term}].{list}[{position}]: {source}")]
pub struct SelectorError {
    term: usize,
    list: &'static str,
    position: usize,
    source: RequirementError,
}

impl SelectorError {
    /// Event reason and metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        "InvalidNodeSelector"
    }
}

/// Requirements that must all hold. Without any, it matches nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    labels: Box<[LabelTest]>,
    fields: Box<[FieldTest]>,
}

impl Selector {
    /// Reads the JSON of a `NodeSelector`; a selector with a malformed requirement is read, see [`Selector::validate`].
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// The first problem, for the condition that tells the user what to change.
    pub fn validate(&self) -> Result<(), &SelectorError> {
        self.terms.iter().try_for_each(|term| term.as_ref().map(|_| ()))
    }

    /// Whether it means every node because it has no terms.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether it means the node of this name; `label` looks a label of the node up.
    #[must_use]
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>, name: &str) -> bool {
        self.is_empty() || self.terms.iter().flatten().any(|term| term.matches(&label, name))
    }
}

impl Term {
    fn matches<'l>(&self, label: &impl Fn(&str) -> Option<&'l str>, name: &str) -> bool {
        !(self.labels.is_empty() && self.fields.is_empty())
            && self.labels.iter().all(|test| test.holds(label(test.key())))
            && self.fields.iter().all(|test| test.holds(name))
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawSelector {
    #[serde(deserialize_with = "nullable")]
    node_selector_terms: Vec<RawTerm>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawTerm {
    #[serde(deserialize_with = "nullable")]
    match_expressions: Vec<RawRequirement>,
    #[serde(deserialize_with = "nullable")]
    match_fields: Vec<RawRequirement>,
}

impl From<RawSelector> for Selector {
    fn from(raw: RawSelector) -> Self {
        let terms = raw.node_selector_terms.into_iter().enumerate();
        Self { terms: terms.map(|(position, term)| parse_term(position, term)).collect() }
    }
}

fn parse_term(term: usize, raw: RawTerm) -> Result<Term, SelectorError> {
    let at = |list, position| move |source| SelectorError { term, list, position, source };
    let labels = raw.match_expressions.into_iter().enumerate();
    let fields = raw.match_fields.into_iter().enumerate();
    Ok(Term {
        labels: labels
            .map(|(position, raw)| LabelTest::parse(raw).map_err(at("matchExpressions", position)))
            .collect::<Result<_, _>>()?,
        fields: fields
            .map(|(position, raw)| FieldTest::parse(raw).map_err(at("matchFields", position)))
            .collect::<Result<_, _>>()?,
    })
}
