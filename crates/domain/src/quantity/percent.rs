//! A percentage between 0 and 100, checked where it enters.
//! It must not be built unchecked: more than 100 % would lend what no node has.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A whole percentage, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Percent(u8);

/// A percentage outside 0..=100.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("percent must be between 0 and 100, not {given}")]
pub struct PercentError {
    given: i64,
}

impl PercentError {
    /// Event reason and metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        "InvalidPercent"
    }
}

impl Percent {
    /// All of it.
    pub const ALL: Self = Self(100);

    /// Accepts 0 to 100.
    pub fn parse(given: i64) -> Result<Self, PercentError> {
        match u8::try_from(given) {
            Ok(percent) if percent <= 100 => Ok(Self(percent)),
            _ => Err(PercentError { given }),
        }
    }

    /// The number, 0 to 100.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<i64> for Percent {
    type Error = PercentError;
    fn try_from(given: i64) -> Result<Self, PercentError> {
        Self::parse(given)
    }
}

impl From<Percent> for i64 {
    fn from(percent: Percent) -> Self {
        percent.0.into()
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}
