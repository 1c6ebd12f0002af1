//! Exact amounts as Kubernetes writes them: `250m`, `1.5Gi`, `12e6`.
//! It must not use floating point, and must not know which resource an amount is of (see `resources`).

mod format;
mod parse;
mod percent;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use self::format::Format;
pub use self::parse::QuantityError;
pub use self::percent::{Percent, PercentError};

/// Billionths in one unit: the finest step Kubernetes keeps.
pub(crate) const NANO: i128 = 1_000_000_000;
/// Billionths in a thousandth of a unit (`1m`).
pub(crate) const MILLI: i128 = 1_000_000;

/// The largest amount that is read: 2¹⁰³ billionths, some 10²² units. What Kubernetes accepts beyond that (`1e308`) counts as
/// this much. Far from the end of the 128 bits, so that 2²⁴ such amounts can be added and subtracted again without a loss: sums
/// over a node are kept by differences.
pub(crate) const LARGEST: i128 = i128::MAX >> 24;

/// An exact amount in billionths of a unit (one core, one byte, one pod), as far as 127 bits hold it.
///
/// Kubernetes itself counts in 63 bits of units.
/// How it is printed depends on the resource, so the format is not kept here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quantity(i128);

impl Quantity {
    /// None of it.
    pub const ZERO: Self = Self(0);

    /// From billionths of a unit.
    #[must_use]
    pub const fn from_nano(nano: i128) -> Self {
        Self(nano)
    }

    /// From thousandths of a unit: `from_milli(250)` is a quarter of a core.
    #[must_use]
    pub const fn from_milli(milli: i64) -> Self {
        Self(milli as i128 * MILLI)
    }

    /// From whole units: cores, bytes, pods.
    #[must_use]
    pub const fn from_whole(whole: i64) -> Self {
        Self(whole as i128 * NANO)
    }

    /// Parses everything that Kubernetes' `resource.Quantity` accepts; digits finer than a billionth round away from zero,
    /// and what is larger than 10²² units counts as that much.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse::parse(text)
    }

    /// Billionths of a unit.
    #[must_use]
    pub const fn nano(self) -> i128 {
        self.0
    }

    /// Whether it is exactly zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whether it is more than zero.
    #[must_use]
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// `None` when the sum leaves the 128 bits.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// `None` when the difference leaves the 128 bits.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// The sum, or the largest representable amount.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference (it may be negative), or the smallest representable amount.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `floor(self × percent / 100)` in billionths, without a product that could overflow.
    #[must_use]
    pub const fn percent_floor(self, percent: Percent) -> Self {
        let percent = percent.get() as i128;
        // q = 100·h + l, so q·p/100 = h·p + l·p/100 with l·p below 10 000.
        Self(self.0.div_euclid(100) * percent + (self.0.rem_euclid(100) * percent).div_euclid(100))
    }

    /// Rounded down to a whole unit.
    #[must_use]
    pub const fn floor_whole(self) -> Self {
        self.floor_to(NANO)
    }

    /// Rounded down to a thousandth of a unit.
    #[must_use]
    pub const fn floor_milli(self) -> Self {
        self.floor_to(MILLI)
    }

    /// Rounded up to a whole unit.
    #[must_use]
    pub const fn ceil_whole(self) -> Self {
        self.ceil_to(NANO)
    }

    /// Rounded up to a thousandth of a unit.
    #[must_use]
    pub const fn ceil_milli(self) -> Self {
        self.ceil_to(MILLI)
    }

    const fn floor_to(self, step: i128) -> Self {
        Self(self.0.saturating_sub(self.0.rem_euclid(step)))
    }

    const fn ceil_to(self, step: i128) -> Self {
        match self.0.rem_euclid(step) {
            0 => self,
            rest => Self(self.0.saturating_add(step - rest)),
        }
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::parse(text)
    }
}

/// Canonical decimal form (`250m`); bytes read better through [`Quantity::display`].
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display(Format::DecimalSi).fmt(f)
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// From a string or a number; `null` is zero, as in Go.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a Kubernetes quantity")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text.trim()).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, whole: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_whole(whole))
            }
            fn visit_u64<E: de::Error>(self, whole: u64) -> Result<Quantity, E> {
                Ok(Quantity(i128::from(whole) * NANO))
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                // The shortest text that names this float is what its author wrote: 0.1, not 0.1000000000000000055.
                self.visit_str(&number.to_string())
            }
            fn visit_unit<E: de::Error>(self) -> Result<Quantity, E> {
                Ok(Quantity::ZERO)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
