//! Kubernetes' rules for names, keys and label values.
//! It must not repair anything: a name is right or refused with the rule it breaks.

use crate::excerpt::excerpt;

/// Why a name is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is nothing.
    #[error("a name must not be empty")]
    Empty,
    /// It has too many characters.
    #[error("`{name}` is {length} characters long, at most {limit} are allowed")]
    TooLong {
        /// The beginning of what was given.
        name: Box<str>,
        /// How long it is.
        length: usize,
        /// How long it may be.
        limit: usize,
    },
    /// It has characters, or an order of characters, that its kind of name does not allow.
    #[error("`{name}` is not valid: {rule}")]
    Characters {
        /// The beginning of what was given.
        name: Box<str>,
        /// What is allowed.
        rule: &'static str,
    },
}

impl NameError {
    /// Event reason and metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        "InvalidName"
    }
}

const DNS_LABEL: &str = "only a-z, 0-9 and '-', beginning and ending with a letter or digit";
const DNS_SUBDOMAIN: &str = "only a-z, 0-9, '-' and '.', each part beginning and ending with a letter or digit";
const LABEL_VALUE: &str = "only letters, digits, '-', '_' and '.', beginning and ending with a letter or digit";
const QUALIFIED: &str = "a key is `name` or `domain/name`; the name may hold letters, digits, '-', '_' and '.'";

/// RFC 1123 label: a namespace, a cluster ID.
pub fn check_dns_label(name: &str) -> Result<(), NameError> {
    check_length(name, 63)?;
    check_characters(name, is_dns_label(name), DNS_LABEL)
}

/// RFC 1123 subdomain: the name of a pod, a node and most objects.
pub fn check_dns_subdomain(name: &str) -> Result<(), NameError> {
    check_length(name, 253)?;
    check_characters(name, name.split('.').all(is_dns_label), DNS_SUBDOMAIN)
}

/// The value of a label: may be empty.
pub fn check_label_value(value: &str) -> Result<(), NameError> {
    if value.is_empty() {
        return Ok(());
    }
    check_length(value, 63)?;
    check_characters(value, is_label_name(value), LABEL_VALUE)
}

/// The key of a label or annotation and the name of a resource: `name` or `domain/name`.
pub fn check_qualified_name(key: &str) -> Result<(), NameError> {
    let name = match key.split_once('/') {
        Some((domain, name)) => {
            check_dns_subdomain(domain)?;
            name
        }
        None => key,
    };
    check_length(name, 63)?;
    check_characters(key, is_label_name(name), QUALIFIED)
}

fn check_length(name: &str, limit: usize) -> Result<(), NameError> {
    match name.len() {
        0 => Err(NameError::Empty),
        length if length > limit => Err(NameError::TooLong { name: excerpt(name), length, limit }),
        _ => Ok(()),
    }
}

fn check_characters(name: &str, fine: bool, rule: &'static str) -> Result<(), NameError> {
    if fine { Ok(()) } else { Err(NameError::Characters { name: excerpt(name), rule }) }
}

fn is_dns_label(name: &str) -> bool {
    let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    framed(name, lower) && name.bytes().all(|byte| lower(byte) || byte == b'-')
}

fn is_label_name(name: &str) -> bool {
    framed(name, |byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Whether the first and the last character are of a kind.
fn framed(name: &str, kind: impl Fn(u8) -> bool) -> bool {
    matches!((name.bytes().next(), name.bytes().last()), (Some(first), Some(last)) if kind(first) && kind(last))
}
