//! Identifies one version of one object: UID, name, resourceVersion, as small cheap values.
//! Holds nothing else of an object; rows do that.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

/// Identity of one object for its whole life. A new object of the same name has another one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub struct Uid(Arc<str>);

/// A name or namespace as a cluster or a parsed annotation gave it.
/// INVARIANT: it is safe in a URL path; see [`Name::parse`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

/// A resourceVersion. Kubernetes promises that the versions of one resource compare as numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Rv(u64);

/// A name that could escape its segment of a URL path.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a name of an object")]
pub struct BadName(String);

/// The UID of an object; `None` when the text is not an object that has one.
pub(crate) fn uid_of(object: &[u8]) -> Option<Uid> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: Uid,
    }
    serde_json::from_slice::<Object>(object).ok().map(|object| object.metadata.uid)
}

impl Uid {
    /// Takes a UID as it is: to us it is opaque.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text of the UID.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Name {
    /// Accepts one segment of a URL path: kube does not encode names,
    /// so `../` in an annotation would otherwise reach another resource (law 10).
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
        // "." and ".." have only legal characters, but change the path.
        if text.is_empty() || text.len() > 253 || text == "." || text == ".." || !text.chars().all(legal) {
            return Err(BadName(text.chars().take(80).collect()));
        }
        Ok(Self(text.into()))
    }

    /// The text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Rv {
    /// A version by its number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The version before this one.
    #[must_use]
    pub fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Rv {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map(Self).map_err(|_| serde::de::Error::custom("resourceVersion is not a number"))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Display for Rv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for Rv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn law_10_a_name_cannot_leave_its_place_in_a_path() {
        for walks in ["", ".", "..", "../x", "a/b", "a%2fb", "a?b", "a#b", "a b", "ä", &"x".repeat(254)] {
            assert!(Name::parse(walks).is_err(), "{walks}");
        }
        for stays in ["web-1", "kube-root-ca.crt", "system:node", "a_b"] {
            assert_eq!(Name::parse(stays).unwrap().as_str(), stays);
        }
    }
}
