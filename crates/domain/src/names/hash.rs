//! Short, stable marks for names.
//! It must not change: objects in clusters carry these marks and outlive our releases.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Lower-case base32 (RFC 4648): valid in every kind of name.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Ten characters, the first 50 of 64 bits.
pub(super) fn base32(bytes: [u8; 8]) -> String {
    characters(10, u128::from(u64::from_be_bytes(bytes)) << 64)
}

/// Ten characters of the parts' hash.
pub(super) fn base32_of(parts: &[&str]) -> String {
    characters(10, beginning(parts))
}

/// Sixteen characters (80 bits) of the parts' hash: for names that must never meet by chance, however many there are.
pub(super) fn long_base32_of(parts: &[&str]) -> String {
    characters(16, beginning(parts))
}

/// The first characters of 128 bits.
fn characters(count: usize, bits: u128) -> String {
    (1..=count).map(|place| char::from(ALPHABET[(bits >> (128 - 5 * place) & 31) as usize])).collect()
}

/// The first 128 bits of the parts' hash.
fn beginning(parts: &[&str]) -> u128 {
    let digest = digest(parts.iter().copied());
    u128::from_be_bytes(std::array::from_fn(|at| digest[at]))
}

/// The first 64 bits of the parts' hash.
pub(super) fn bits_of<'t>(parts: impl IntoIterator<Item = &'t str>) -> u64 {
    let digest = digest(parts);
    u64::from_be_bytes(std::array::from_fn(|at| digest[at]))
}

/// 32 hexadecimal digits of the parts' hash.
pub(super) fn hex_of(parts: &[&str]) -> String {
    digest(parts.iter().copied())[..16].iter().fold(String::with_capacity(32), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Each part ends with a zero byte, which no name holds, so that `a`, `b-c` and `a-b`, `c` differ.
fn digest<'t>(parts: impl IntoIterator<Item = &'t str>) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    hasher.finalize().into()
}
