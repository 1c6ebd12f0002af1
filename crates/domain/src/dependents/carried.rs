//! What we carried into a copy, as marks of its values: drift is seen and lost keys are known without keeping a value.
//! It must not keep or show a value. The marks are salted, so that copies of two origins cannot be compared.

use std::collections::{BTreeMap, BTreeSet};

use super::read::Object;
use crate::names;

/// The longest list of marks. Above it one mark stands for all: annotations together may hold 256 KiB.
const LIMIT: usize = 64 * 1024;

/// Stands for all keys; no key of a ConfigMap or Secret can be called so.
const ALL: &str = "*";

/// What the annotation [`super::keys::CARRIED`] holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// A mark by key. Others may add keys of their own.
    Keys(BTreeMap<String, String>),
    /// One mark of everything, because there are too many keys: the copy is kept exactly equal to its source.
    All(String),
}

impl Carried {
    /// What the annotation says when this object is carried.
    pub(super) fn of(object: &Object<'_>, salt: &str) -> Self {
        let marks = marks(object, salt);
        let text = render(&marks);
        if text.len() > LIMIT { Self::All(mark_all(&text, salt)) } else { Self::Keys(marks) }
    }

    /// From an annotation; `None` when it is not ours or was damaged.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut marks: BTreeMap<String, String> = serde_json::from_str(text).ok()?;
        Some(match marks.remove(ALL) {
            Some(all) => Self::All(all),
            None => Self::Keys(marks),
        })
    }

    pub(super) fn render(&self) -> String {
        match self {
            Self::Keys(marks) => render(marks),
            Self::All(mark) => render(&BTreeMap::from([(ALL.to_owned(), mark.clone())])),
        }
    }

    /// Whether an object with these marks has what was carried.
    pub(super) fn intact(&self, there: &BTreeMap<String, String>, salt: &str) -> bool {
        match self {
            Self::Keys(carried) => carried.iter().all(|(key, mark)| there.get(key) == Some(mark)),
            Self::All(mark) => *mark == mark_all(&render(there), salt),
        }
    }

    /// The keys that were carried; `None` for all.
    pub(super) fn keys(&self) -> Option<BTreeSet<&str>> {
        match self {
            Self::Keys(marks) => Some(marks.keys().map(String::as_str).collect()),
            Self::All(_) => None,
        }
    }
}

/// A mark of each value.
pub(super) fn marks(object: &Object<'_>, salt: &str) -> BTreeMap<String, String> {
    let mut marks = BTreeMap::new();
    for (field, values) in object.values() {
        marks.extend(values.iter().map(|(key, value)| (key.to_owned(), names::mark(&[field, salt, key, value]))));
    }
    marks
}

fn mark_all(text: &str, salt: &str) -> String {
    names::mark(&["all", salt, text])
}

fn render(marks: &BTreeMap<String, String>) -> String {
    serde_json::to_string(marks).unwrap_or_default()
}
