//! Kinds that are known at run time only: checked, and kept for the life of the process, so that they are `&'static` as the others.
//! Must not take a name that could leave its place in a URL path, nor more kinds than any cluster serves.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::Kind;

/// As many kinds as this process ever takes from discovery. They are never forgotten, so this bounds what an API server can make
/// us keep (law 11): large clusters serve some hundreds, and a kind needs about 400 bytes.
const MOST: usize = 10_000;

/// Every kind that was ever interned, by all of its names.
type Interned = BTreeMap<String, &'static Kind>;

static INTERNED: Mutex<Interned> = Mutex::new(Interned::new());

/// Why a kind is not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadKind {
    /// A part of it is not what Kubernetes allows there.
    #[error("invalid {part} {text:?}")]
    Malformed {
        /// `group`, `version`, `plural` or `kind`.
        part: &'static str,
        /// Its first characters.
        text: String,
    },
    /// More kinds than any cluster serves.
    #[error("more than {MOST} kinds")]
    TooMany,
}

impl Kind {
    /// The kind of these names, the same for equal names however often it is asked for. It stays in memory for as long as the
    /// process runs: how much that is depends on the distinct kinds that were ever served, and has a limit.
    pub fn intern(
        group: &str,
        version: &str,
        plural: &str,
        kind: &str,
        namespaced: bool,
    ) -> Result<&'static Self, BadKind> {
        check("group", group, group.is_empty() || is_subdomain(group))?;
        check("version", version, is_label(version))?;
        check("plural", plural, is_label(plural))?;
        check("kind", kind, is_identifier(kind))?;
        let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
        intern_in(&mut interned, MOST, (group, version, plural, kind, namespaced))
    }
}

fn intern_in(
    interned: &mut Interned,
    most: usize,
    (group, version, plural, kind, namespaced): (&str, &str, &str, &str, bool),
) -> Result<&'static Kind, BadKind> {
    // None of the parts has a slash.
    let id = format!("{group}/{version}/{plural}/{kind}/{namespaced}");
    if let Some(known) = interned.get(&id) {
        return Ok(known);
    }
    if interned.len() >= most {
        return Err(BadKind::TooMany);
    }
    let keep = |text: &str| -> &'static str { Box::leak(text.into()) };
    let (group, version, plural, kind) = (keep(group), keep(version), keep(plural), keep(kind));
    let kept = Box::leak(Box::new(Kind { group, version, plural, kind, namespaced }));
    Ok(interned.entry(id).or_insert(kept))
}

fn check(part: &'static str, text: &str, legal: bool) -> Result<(), BadKind> {
    if legal { Ok(()) } else { Err(BadKind::Malformed { part, text: text.chars().take(80).collect() }) }
}

/// RFC 1123 label.
fn is_label(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let inner = !text.starts_with('-') && !text.ends_with('-');
    (1..=63).contains(&text.len()) && text.bytes().all(legal) && inner
}

/// RFC 1123 subdomain.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// As Go names a type.
fn is_identifier(text: &str) -> bool {
    let letter = text.starts_with(|first: char| first.is_ascii_alphabetic());
    letter && text.len() <= 63 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{NETWORK_POLICY, POD};

    #[test]
    fn equal_names_are_one_kind_and_equal_to_the_constant_of_that_name() {
        let widget = || Kind::intern("example.com", "v1alpha1", "widgets", "Widget", true).unwrap();
        assert!(std::ptr::eq(widget(), widget()));
        assert_eq!(widget().path(Some("a"), Some("b")), "/apis/example.com/v1alpha1/namespaces/a/widgets/b");
        assert_ne!(widget(), Kind::intern("example.com", "v1", "widgets", "Widget", true).unwrap());
        assert_eq!(Kind::intern("", "v1", "pods", "Pod", true).unwrap(), &POD);
        let policy = Kind::intern("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", true);
        assert_eq!(policy.unwrap(), &NETWORK_POLICY);
    }

    #[test]
    fn law_10_a_kind_cannot_leave_its_place_in_a_path() {
        let long = "x".repeat(254);
        for wrong in ["", "..", "pods/status", "a b", "a%2fb", "Pods", "a?b", "-a", &long] {
            let refused = Kind::intern("example.com", "v1", wrong, "Widget", true).unwrap_err();
            assert!(matches!(refused, BadKind::Malformed { part: "plural", .. }), "{wrong}");
            assert!(Kind::intern("example.com", wrong, "widgets", "Widget", true).is_err(), "{wrong}");
        }
        for wrong in ["..", "a..b", "a/b", "EXAMPLE.com", &long] {
            assert!(Kind::intern(wrong, "v1", "widgets", "Widget", true).is_err(), "{wrong}");
        }
        for wrong in ["", "Wid get", "Wid/get", "1Widget", &long] {
            assert!(Kind::intern("example.com", "v1", "widgets", wrong, true).is_err(), "{wrong}");
        }
    }

    #[test]
    fn law_11_a_server_that_names_ever_new_kinds_is_not_followed_for_ever() {
        let mut interned = Interned::new();
        let mut intern = |plural| intern_in(&mut interned, 2, ("", "v1", plural, "Thing", false));
        assert!(intern("a").is_ok() && intern("b").is_ok());
        assert_eq!(intern("c"), Err(BadKind::TooMany));
        assert!(intern("a").is_ok(), "what is known stays known");
    }
}
