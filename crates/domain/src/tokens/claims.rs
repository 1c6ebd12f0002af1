//! What a token says of its own life. Only times are read: a token is neither verified nor kept.

use jiff::Timestamp;
use serde::Deserialize;

use super::renewal;

/// The claims of a service account token.
#[derive(Deserialize)]
struct Claims {
    iat: i64,
    exp: i64,
    #[serde(default, rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

#[derive(Default, Deserialize)]
struct Kubernetes {
    /// API servers let injected tokens live for a year and say here when their user should have another one.
    warnafter: Option<i64>,
}

/// When a token has to be renewed, by what it says itself; `None` when it does not say. As the `data` of a Secret holds it.
#[must_use]
pub fn renew_by(held: &str) -> Option<Timestamp> {
    let token = decode(held)?;
    let mut parts = token.split(|byte| *byte == b'.');
    let payload = std::str::from_utf8(parts.nth(1)?).ok()?;
    let Claims { iat, exp, kubernetes } = serde_json::from_slice(&decode(payload)?).ok()?;
    let until = kubernetes.warnafter.map_or(exp, |warn| warn.min(exp));
    Some(renewal(Timestamp::from_second(iat).ok()?, Timestamp::from_second(until).ok()?))
}

/// Base64 in either alphabet, with or without padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        // A lone character stands for six bits, which is no byte.
        if group.len() < 2 {
            return None;
        }
        let bits = group.iter().try_fold(0u32, |bits, character| Some(bits << 6 | sextet(*character)?))?;
        let [_, all @ ..] = (bits << (6 * (4 - group.len()))).to_be_bytes();
        bytes.extend_from_slice(&all[..group.len() - 1]);
    }
    Some(bytes)
}

fn sextet(character: u8) -> Option<u32> {
    let value = match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    };
    Some(value.into())
}
