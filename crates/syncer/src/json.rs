//! Pieces shared by the row decoders: metadata as the API server writes it, labels and annotations without a map,
//! fingerprints. Borrows from the JSON text; keeps nothing.

use std::hash::{BuildHasher as _, Hash};
use std::sync::LazyLock;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::shape::Text;

/// `metadata` of any object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Meta<'a> {
    pub(crate) name: Name,
    #[serde(default)]
    pub(crate) namespace: Option<Name>,
    pub(crate) uid: Uid,
    pub(crate) resource_version: Rv,
    #[serde(default)]
    pub(crate) generation: i64,
    #[serde(default, borrow)]
    pub(crate) creation_timestamp: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(crate) deletion_timestamp: Option<Text<'a>>,
    #[serde(default)]
    pub(crate) deletion_grace_period_seconds: Option<i64>,
    #[serde(default, borrow)]
    pub(crate) labels: Option<Pairs<'a>>,
    #[serde(default, borrow)]
    pub(crate) annotations: Option<Pairs<'a>>,
    #[serde(default, borrow)]
    pub(crate) owner_references: Vec<Owner<'a>>,
    #[serde(default, borrow)]
    pub(crate) finalizers: Vec<Text<'a>>,
}

/// One owner reference.
#[derive(Deserialize)]
pub(crate) struct Owner<'a> {
    #[serde(borrow)]
    pub(crate) kind: Text<'a>,
    #[serde(default)]
    pub(crate) controller: bool,
    #[serde(borrow, default)]
    pub(crate) uid: Text<'a>,
}

/// A map of strings, in the order of the text.
#[derive(Default)]
pub(crate) struct Pairs<'a>(pub(crate) Vec<(Text<'a>, Text<'a>)>);

impl Pairs<'_> {
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| &**k == key).map(|(_, value)| &**value)
    }
}

impl Meta<'_> {
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key)
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        from.deserialize_map(Reader)
    }
}

/// A hash that is the same in every process: to spread or to name things, never to compare contents.
pub(crate) fn stable_hash(content: impl Hash) -> u64 {
    foldhash::quality::FixedState::default().hash_one(content)
}

/// A keyed 64-bit hash: the key is drawn once per process, so that no user can make two contents look equal.
pub(crate) fn fingerprint(content: impl Hash) -> u64 {
    static KEY: LazyLock<foldhash::quality::RandomState> = LazyLock::new(Default::default);
    KEY.hash_one(content)
}
