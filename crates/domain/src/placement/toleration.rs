//! Tolerations, and which taints they tolerate.
//! It must not know a node: a taint is all it sees of one.

use serde::Deserialize;

use crate::shape::{Text, nullable};

/// A taint of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaintRef<'a> {
    /// Its key.
    pub key: &'a str,
    /// Its value; empty when it has none.
    pub value: &'a str,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: &'a str,
}

impl TaintRef<'_> {
    /// Whether it keeps pods away; `PreferNoSchedule` only discourages them.
    #[must_use]
    pub fn repels(&self) -> bool {
        matches!(self.effect, "NoSchedule" | "NoExecute")
    }
}

/// A toleration of a pod. Placement ignores for how long it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Toleration<'a> {
    /// Empty means every key.
    #[serde(borrow, deserialize_with = "nullable")]
    key: Text<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    value: Text<'a>,
    #[serde(deserialize_with = "nullable")]
    operator: Operator,
    #[serde(deserialize_with = "nullable")]
    effect: Effect,
    /// For how long it tolerates a `NoExecute` taint; `None` is without limit.
    #[serde(rename = "tolerationSeconds")]
    seconds: Option<i64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum Operator {
    #[default]
    #[serde(alias = "")]
    Equal,
    Exists,
    /// The taint's value is a smaller number. Alpha since 1.35: a pod that has it comes from a cluster where it is on.
    Lt,
    /// The taint's value is a greater number.
    Gt,
    /// Newer than this code: tolerates nothing.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum Effect {
    #[default]
    #[serde(rename = "")]
    Every,
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
    #[serde(other)]
    Unknown,
}

impl Effect {
    fn covers(self, effect: &str) -> bool {
        match self {
            Self::Every => true,
            Self::NoSchedule => effect == "NoSchedule",
            Self::PreferNoSchedule => effect == "PreferNoSchedule",
            Self::NoExecute => effect == "NoExecute",
            Self::Unknown => false,
        }
    }
}

impl Toleration<'_> {
    /// Whether it tolerates the taint.
    #[must_use]
    pub fn tolerates(&self, taint: &TaintRef<'_>) -> bool {
        if !self.effect.covers(taint.effect) || !(self.key.is_empty() || &*self.key == taint.key) {
            return false;
        }
        // The API server refuses an empty key with any operator but Exists; it would be compared by value alone.
        match self.operator {
            Operator::Equal => &*self.value == taint.value,
            Operator::Exists => true,
            Operator::Lt => numbers(taint.value, &self.value).is_some_and(|(taint, bound)| taint < bound),
            Operator::Gt => numbers(taint.value, &self.value).is_some_and(|(taint, bound)| taint > bound),
            Operator::Unknown => false,
        }
    }

    /// The same toleration, free of the JSON it was read from.
    #[must_use]
    pub fn into_owned(self) -> Toleration<'static> {
        let Self { key, value, operator, effect, seconds } = self;
        Toleration { key: key.into_owned(), value: value.into_owned(), operator, effect, seconds }
    }
}

fn numbers(one: &str, other: &str) -> Option<(i64, i64)> {
    Some((integer(one)?, integer(other)?))
}

/// A plain number: Kubernetes accepts neither a plus sign nor leading zeros here.
fn integer(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Whether one of the tolerations tolerates the taint.
#[must_use]
pub fn tolerates(tolerations: &[Toleration<'_>], taint: &TaintRef<'_>) -> bool {
    tolerations.iter().any(|toleration| toleration.tolerates(taint))
}

/// Whether the taint never evicts a pod with these tolerations: the first one that tolerates a taint says for how long.
#[must_use]
pub fn tolerates_for_ever(tolerations: &[Toleration<'_>], taint: &TaintRef<'_>) -> bool {
    let first = tolerations.iter().find(|toleration| toleration.tolerates(taint));
    first.is_some_and(|toleration| toleration.seconds.is_none())
}

/// Whether one of the tolerations names exactly this key: the only kind that spares a pod when a window ends.
/// The empty key, which tolerates everything, does not count: such a toleration was not
/// written for windows. Operator, value and effect
/// do not matter, as in the predecessor.
#[must_use]
pub fn tolerates_exactly(tolerations: &[Toleration<'_>], key: &str) -> bool {
    !key.is_empty() && tolerations.iter().any(|toleration| &*toleration.key == key)
}
