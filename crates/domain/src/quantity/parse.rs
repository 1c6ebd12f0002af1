//! Reads the text of an amount, digit by digit, as Kubernetes' apimachinery does.
//! It must not accept less than an API server does: only we could not process such an object. Larger amounts than our numbers
//! hold saturate.

use super::{LARGEST, NANO, Quantity};
use crate::excerpt::excerpt;

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text is empty.
    #[error("a quantity must not be empty")]
    Empty,
    /// What follows the number is neither a suffix nor an exponent.
    #[error(
        "`{text}` is not a quantity: after the number only n u m k M G T P E, Ki Mi Gi Ti Pi Ei or an exponent like e3 may follow"
    )]
    Suffix {
        /// The beginning of what was given.
        text: Box<str>,
    },
}

impl QuantityError {
    /// Event reason and metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        "InvalidQuantity"
    }
}

/// What the digits are multiplied by.
enum Scale {
    Ten(i32),
    Two(u32),
}

pub(super) fn parse(text: &str) -> Result<Quantity, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Empty);
    }
    let (negative, unsigned) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    // No digits at all is zero: apimachinery's scanner takes even `.` and `Ki`.
    let (whole, rest) = digits(unsigned);
    let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), digits);
    let nano = match scale(suffix).ok_or_else(|| QuantityError::Suffix { text: excerpt(text) })? {
        Scale::Ten(exponent) => decimal(whole, fraction, exponent),
        Scale::Two(bits) => binary(whole, fraction, bits),
    };
    Ok(Quantity(if negative { -nano } else { nano }))
}

/// Splits the leading digits off.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len()))
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Ten(-9),
        "u" => Scale::Ten(-6),
        "m" => Scale::Ten(-3),
        "" => Scale::Ten(0),
        "k" => Scale::Ten(3),
        "M" => Scale::Ten(6),
        "G" => Scale::Ten(9),
        "T" => Scale::Ten(12),
        "P" => Scale::Ten(15),
        "E" => Scale::Ten(18),
        "Ki" => Scale::Two(10),
        "Mi" => Scale::Two(20),
        "Gi" => Scale::Two(30),
        "Ti" => Scale::Two(40),
        "Pi" => Scale::Two(50),
        "Ei" => Scale::Two(60),
        _ => {
            let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            // apimachinery reads 64 bits and keeps the lower 32: `1e4294967297` is ten.
            #[expect(clippy::cast_possible_truncation, reason = "the same amount as the API server has")]
            Scale::Ten(exponent as i32)
        }
    })
}

/// `whole.fraction × 10^exponent` in billionths, rounded up and at most [`LARGEST`].
fn decimal(whole: &str, fraction: &str, exponent: i32) -> i128 {
    let mut figures = whole.bytes().chain(fraction.bytes()).map(|byte| i128::from(byte - b'0'));
    // Where the decimal point falls among the figures once the amount is counted in billionths.
    let digits = i64::try_from(whole.len()).unwrap_or(i64::MAX);
    let point = digits.saturating_add(i64::from(exponent)).saturating_add(9);
    let mut nano: i128 = 0;
    let mut position = 0;
    while position < point {
        let Some(figure) = figures.next() else { break };
        nano = nano * 10 + figure;
        if nano > LARGEST {
            return LARGEST;
        }
        position += 1;
    }
    // Beyond the figures there are only zeros. Ends early: a number above zero is too large after 31 of them.
    while position < point && nano > 0 {
        nano *= 10;
        if nano > LARGEST {
            return LARGEST;
        }
        position += 1;
    }
    let cut = figures.any(|figure| figure != 0);
    nano + i128::from(cut)
}

/// `whole.fraction × 2^bits` in billionths, rounded up.
///
/// apimachinery caps binary amounts, and only these, at 2⁶³−1 units.
fn binary(whole: &str, fraction: &str, bits: u32) -> i128 {
    const CAP: i128 = i64::MAX as i128 * NANO;
    let unit = (1i128 << bits) * NANO;
    let mut nano: i128 = 0;
    for figure in whole.bytes().map(|byte| i128::from(byte - b'0')) {
        nano = nano * 10 + figure * unit;
        if nano > CAP {
            return CAP;
        }
    }
    // Horner from the last figure; what falls off at any step makes the result inexact.
    let (mut part, mut cut) = (0, false);
    for figure in fraction.bytes().rev().map(|byte| i128::from(byte - b'0')) {
        let tenfold = part + figure * unit;
        part = tenfold / 10;
        cut |= tenfold % 10 != 0;
    }
    (nano + part + i128::from(cut)).min(CAP)
}
