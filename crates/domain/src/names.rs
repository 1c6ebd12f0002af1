//! The names we give and the names we accept: checks by Kubernetes' rules, and how a name on one side follows from the other.
//! It must not invent randomness; where a name needs some, it is passed in.

mod check;
mod hash;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

pub use self::check::{NameError, check_dns_label, check_dns_subdomain, check_label_value, check_qualified_name};
use self::hash::{base32, base32_of, bits_of, hex_of, long_base32_of};

/// The longest DNS label, label value and host name.
const LABEL: usize = 63;
/// How much of a virtual object's name its copy shows.
const SHOWN: usize = 40;
/// Begins the name of the copy of a Service whose own name starts with a digit.
const SERVICE: &str = "service";

macro_rules! checked_name {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// Checks a name from outside; only then may it reach a URL.
            pub fn parse(name: &str) -> Result<Self, NameError> {
                $check(name)?;
                Ok(Self(name.into()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(name: String) -> Result<Self, NameError> {
                $check(&name)?;
                Ok(Self(name.into()))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.into()
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::parse(name)
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

checked_name!(
    /// A name of at most 63 of `a-z 0-9 -`: namespaces, cluster IDs.
    DnsLabel,
    check_dns_label
);
checked_name!(
    /// A name of at most 253 of `a-z 0-9 - .`: pods, nodes, most objects.
    DnsSubdomain,
    check_dns_subdomain
);

/// The virtual node of a physical node: `vnode-<clusterID>-<node>`, in its hashed form when longer than 63.
#[must_use]
pub fn vnode_name(cluster_id: &str, node: &str) -> String {
    let plain = format!("vnode-{cluster_id}-{node}");
    if plain.len() <= LABEL { plain } else { vnode_name_hashed(cluster_id, node) }
}

/// `vnode-<clusterID>-<beginning of node>-<10 of base32>`: for long names, and for the loser when two plain names clash
/// (`a`, `b-c` and `a-b`, `c`).
///
/// At most 63 long for every valid cluster ID (24 characters); it always starts with `vnode-<clusterID>-`.
#[must_use]
pub fn vnode_name_hashed(cluster_id: &str, node: &str) -> String {
    let prefix = format!("vnode-{cluster_id}-");
    let hash = base32_of(&["vnode", cluster_id, node]);
    let room = LABEL.saturating_sub(prefix.len() + 1 + hash.len());
    match cut(node, room) {
        "" => format!("{prefix}{hash}"),
        beginning => format!("{prefix}{beginning}-{hash}"),
    }
}

/// A text as the value of a label: unchanged when it is one, else shortened and cleaned, with a hash of the whole.
#[must_use]
pub fn label_value(text: &str) -> Cow<'_, str> {
    if check_label_value(text).is_ok() {
        return Cow::Borrowed(text);
    }
    let hash = base32_of(&["label", text]);
    let clean: String = text
        .chars()
        .take(LABEL - 1 - hash.len())
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .collect();
    Cow::Owned(match clean.trim_matches(['-', '_', '.']) {
        "" => hash,
        beginning => format!("{beginning}-{hash}"),
    })
}

/// A name for the physical pod of a virtual one: `<at most 40 of its name>-<10 of base32>`.
///
/// `entropy` comes from the operating system's generator: names recur (`StatefulSet`s), physical pods never may.
#[must_use]
pub fn physical_pod_name(vpod_name: &str, entropy: [u8; 8]) -> String {
    format!("{}-{}", beginning(vpod_name), base32(entropy))
}

/// Whether [`physical_pod_name`] can have made this name for that virtual pod.
#[must_use]
pub fn is_physical_pod_name(name: &str, vpod_name: &str) -> bool {
    let rest = name.strip_prefix(beginning(vpod_name)).and_then(|rest| rest.strip_prefix('-'));
    rest.is_some_and(|random| {
        random.len() == 10 && random.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
    })
}

/// The name that the copy of a ConfigMap or Secret has in the mount namespace: `<at most 40 of its name>-<16 of base32>`.
///
/// It follows from where the source is, so that every pod that names the source finds the same copy. `origin` tells virtual
/// clusters and bindings apart that share a mount namespace.
#[must_use]
pub fn dependent_name(origin: &str, namespace: &str, name: &str) -> String {
    shown(name, &long_base32_of(&["dependent", origin, namespace, name]))
}

/// The name that the copy of a PersistentVolumeClaim has in the mount namespace: `<at most 40 of its name>-<16 of base32>`.
#[must_use]
pub fn claim_name(origin: &str, namespace: &str, name: &str) -> String {
    shown(name, &long_base32_of(&["claim", origin, namespace, name]))
}

/// The name that the copy of a PersistentVolume has, cluster-wide: `<at most 40 of its name>-<16 of base32>`.
#[must_use]
pub fn volume_name(origin: &str, name: &str) -> String {
    shown(name, &long_base32_of(&["volume", origin, name]))
}

/// The name that the copy of a Service has where its own name is taken, or is none that every API server accepts:
/// `<at most 46 of its name>-<16 of base32>`, a DNS label that starts with a letter.
#[must_use]
pub fn service_name(origin: &str, namespace: &str, name: &str) -> String {
    let hash = long_base32_of(&["service", origin, namespace, name]);
    // One more for the dash between them.
    let room = LABEL - hash.len() - 1;
    if is_service_name(name) { format!("{}-{hash}", cut(name, room)) } else { format!("{SERVICE}-{hash}") }
}

/// Whether every API server accepts this as the name of a Service: a DNS label that starts with a letter.
#[must_use]
pub fn is_service_name(name: &str) -> bool {
    check_dns_label(name).is_ok() && name.starts_with(|first: char| first.is_ascii_lowercase())
}

/// The Secret with the tokens of one virtual pod: `<at most 40 of the pod's name>-token-<16 of base32>`.
#[must_use]
pub fn token_secret_name(origin: &str, vpod_uid: &str, vpod_name: &str) -> String {
    let hash = long_base32_of(&["token", origin, vpod_uid]);
    format!("{}-token-{hash}", beginning(vpod_name))
}

/// Whether a name ends as [`dependent_name`] and [`token_secret_name`] make it end: in sixteen characters of base32.
#[must_use]
pub fn ends_with_hash(name: &str) -> bool {
    let (_, last) = name.rsplit_once('-').unwrap_or(("", name));
    last.len() == 16 && last.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
}

fn shown(name: &str, hash: &str) -> String {
    match cut(name, SHOWN) {
        "" => hash.to_owned(),
        beginning => format!("{beginning}-{hash}"),
    }
}

fn beginning(vpod_name: &str) -> &str {
    match cut(vpod_name, SHOWN) {
        "" => "pod",
        beginning => beginning,
    }
}

/// The identity of a virtual cluster and one of its bindings, short enough for a label.
///
/// 32 hexadecimal digits: 128 bits, so that two origins never meet by chance.
#[must_use]
pub fn origin_hash(virtual_cluster_uid: &str, binding_uid: &str) -> String {
    hex_of(&["origin", virtual_cluster_uid, binding_uid])
}

/// Ten characters that identify a content; the first part says what kind it is.
#[must_use]
pub fn mark(parts: &[&str]) -> String {
    base32_of(parts)
}

/// The same as a number, of parts that need not be gathered first: for rows, and for contents that are compared often.
pub fn mark_bits<'t>(parts: impl IntoIterator<Item = &'t str>) -> u64 {
    bits_of(parts)
}

/// The host name a virtual pod's physical pod gets when the pod names none: the virtual name, cut to 63.
///
/// `None` when nothing usable is left. Dots become dashes: a pod's name may hold them, `spec.hostname` may not.
#[must_use]
pub fn hostname(vpod_name: &str) -> Option<String> {
    let name = cut(vpod_name, LABEL).replace('.', "-");
    check_dns_label(&name).is_ok().then_some(name)
}

/// The first `limit` bytes (fewer rather than half a character), without the `-` and `.` a cut may leave at the end.
fn cut(name: &str, limit: usize) -> &str {
    let mut end = limit.min(name.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].trim_end_matches(['-', '.'])
}
