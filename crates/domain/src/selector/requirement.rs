//! One requirement of a node selector, checked once and then cheap to test.
//! It must not accept what Kubernetes refuses: the same selector must mean the same nodes to both.

use serde::Deserialize;

use crate::excerpt::excerpt;
use crate::names::{NameError, check_label_value, check_qualified_name};
use crate::shape::nullable;

/// What is wrong with a requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequirementError {
    /// The key is not a label key.
    #[error("key: {0}")]
    Key(NameError),
    /// A value is not a label value.
    #[error("values: {0}")]
    Value(NameError),
    /// The operator does not exist.
    #[error("operator `{0}` is not one of In, NotIn, Exists, DoesNotExist, Gt, Lt")]
    Operator(Box<str>),
    /// `In` and `NotIn` without values.
    #[error("In and NotIn need at least one value")]
    NoValues,
    /// `Exists` and `DoesNotExist` with values.
    #[error("Exists and DoesNotExist take no values")]
    Values,
    /// `Gt` and `Lt` without exactly one integer.
    #[error("Gt and Lt take exactly one value, an integer")]
    Integer,
    /// Something else than one node name in `matchFields`.
    #[error("only `metadata.name` with In or NotIn and exactly one value can be matched as a field")]
    Field,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawRequirement {
    #[serde(deserialize_with = "nullable")]
    key: String,
    #[serde(deserialize_with = "nullable")]
    operator: String,
    #[serde(deserialize_with = "nullable")]
    values: Vec<String>,
}

/// A test of one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LabelTest {
    key: Box<str>,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Box<[String]>),
    NotIn(Box<[String]>),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
}

impl LabelTest {
    pub(super) fn parse(raw: RawRequirement) -> Result<Self, RequirementError> {
        check_qualified_name(&raw.key).map_err(RequirementError::Key)?;
        for value in &raw.values {
            check_label_value(value).map_err(RequirementError::Value)?;
        }
        let none_given = raw.values.is_empty();
        let test = match raw.operator.as_str() {
            "In" | "NotIn" if none_given => return Err(RequirementError::NoValues),
            "In" => Test::In(raw.values.into()),
            "NotIn" => Test::NotIn(raw.values.into()),
            "Exists" | "DoesNotExist" if !none_given => return Err(RequirementError::Values),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::DoesNotExist,
            "Gt" => Test::Gt(integer(&raw.values)?),
            "Lt" => Test::Lt(integer(&raw.values)?),
            other => return Err(RequirementError::Operator(excerpt(other))),
        };
        Ok(Self { key: raw.key.into(), test })
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Whether it holds for a node whose label has this value; `None` when the node lacks the label.
    pub(super) fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            // A node without the label is not in the set either.
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::Gt(bound) => number().is_some_and(|number| number > *bound),
            Test::Lt(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

fn integer(values: &[String]) -> Result<i64, RequirementError> {
    match values {
        [one] => one.parse().map_err(|_| RequirementError::Integer),
        _ => Err(RequirementError::Integer),
    }
}

/// A test of the node's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldTest {
    name: Box<str>,
    equal: bool,
}

impl FieldTest {
    pub(super) fn parse(raw: RawRequirement) -> Result<Self, RequirementError> {
        let equal = match raw.operator.as_str() {
            "In" => true,
            "NotIn" => false,
            _ => return Err(RequirementError::Field),
        };
        match <[String; 1]>::try_from(raw.values) {
            Ok([name]) if raw.key == "metadata.name" => Ok(Self { name: name.into(), equal }),
            _ => Err(RequirementError::Field),
        }
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        (*self.name == *name) == self.equal
    }
}
