//! The canonical text of an amount, as Kubernetes prints it.
//! It must not lose a digit: what is printed parses back to the same amount.

use std::fmt;

use super::{NANO, Quantity};

/// The two families of suffixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `n u m k M G T P E`: cores, pods, devices.
    DecimalSi,
    /// `Ki Mi Gi Ti Pi Ei`: bytes. Amounts below 1024 and broken bytes fall back to decimal, as in Kubernetes.
    BinarySi,
}

const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Quantity {
    /// The canonical text in a family: the largest suffix that leaves a whole number.
    ///
    /// Above `E` and `Ei` the number grows instead (`1000E`), where Kubernetes would drop the suffix and print `1`.
    #[must_use]
    pub fn display(self, format: Format) -> impl fmt::Display {
        let (magnitude, suffix) = match format {
            Format::BinarySi if self.0.unsigned_abs() >= 1024 * UNIT && self.0.unsigned_abs().is_multiple_of(UNIT) => {
                shorten(self.0.unsigned_abs() / UNIT, 1024, &BINARY)
            }
            _ => shorten(self.0.unsigned_abs(), 1000, &DECIMAL),
        };
        Canonical { negative: self.0 < 0, magnitude, suffix }
    }
}

const UNIT: u128 = NANO.unsigned_abs();

struct Canonical {
    negative: bool,
    magnitude: u128,
    suffix: &'static str,
}

impl fmt::Display for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        write!(f, "{sign}{}{}", self.magnitude, self.suffix)
    }
}

fn shorten(mut magnitude: u128, step: u128, suffixes: &[&'static str]) -> (u128, &'static str) {
    if magnitude == 0 {
        return (0, "");
    }
    let mut suffixes = suffixes.iter().copied();
    let mut suffix = suffixes.next().unwrap_or_default();
    while magnitude.is_multiple_of(step) {
        let Some(larger) = suffixes.next() else { break };
        magnitude /= step;
        suffix = larger;
    }
    (magnitude, suffix)
}
