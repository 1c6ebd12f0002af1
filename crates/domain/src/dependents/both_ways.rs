//! ConfigMaps and Secrets that may change in both clusters: per key, which side changed since both were equal, and what is done
//! about it. It must not keep or show a value: keys are compared by their marks, and only a patch has values.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::carried::{Carried, marks};
use super::read::Object;
use super::{DependentKind, Malformed, insert, keys};

/// In which direction the user of a source asks for changes to flow: its annotation [`keys::SYNC_DIRECTION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wish {
    /// From the source to its copy.
    #[default]
    Down,
    /// Both ways.
    Both,
    /// The value means nothing: as [`Self::Down`], and the user is told.
    Unknown,
}

/// In which direction changes flow that were asked to flow both ways: the same annotation on the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ways {
    /// As asked.
    Both,
    /// Only down, because of this.
    Down(Bar),
}

/// Why changes of a copy cannot flow up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bar {
    /// The source is immutable.
    Immutable,
    /// The source holds a token by which its cluster knows a client: another cluster must not choose it.
    Token,
    /// There are too many keys for a mark of each.
    TooManyKeys,
}

/// What another client changed, added or removed of a copy since it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Changes {
    /// The copy does not say of each key what was carried.
    #[default]
    Unknown,
    /// Nothing.
    None,
    /// Something that is not offered to the source yet.
    New,
    /// Something, and all of it is offered.
    Offered,
}

/// Keys that were changed in both clusters; the copy has them until they are reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflicts {
    /// Their names; of very many the first.
    pub keys: BTreeSet<String>,
    /// The version of the source whose values were kept.
    pub at: String,
}

/// Types of Secrets by which a cluster knows its clients.
const TOKEN_TYPES: [&str; 2] = [super::TOKEN_TYPE, "bootstrap.kubernetes.io/token"];
/// So many offers of one key are kept: more only matter to a call that was delayed for as many changes.
const OFFERS: usize = 8;
/// So many keys of a conflict are named.
const NAMED: usize = 100;
/// The mark of a key that is not there.
const ABSENT: &str = "";

impl Wish {
    /// From the value of the annotation.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            None => Self::Down,
            Some(BOTH) => Self::Both,
            Some(_) => Self::Unknown,
        }
    }
}

const BOTH: &str = "both";

impl Ways {
    fn as_str(self) -> &'static str {
        match self {
            Self::Both => BOTH,
            Self::Down(Bar::Immutable) => "down-immutable",
            Self::Down(Bar::Token) => "down-token",
            Self::Down(Bar::TooManyKeys) => "down-too-many-keys",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let all = [Self::Both, Self::Down(Bar::Immutable), Self::Down(Bar::Token), Self::Down(Bar::TooManyKeys)];
        all.into_iter().find(|ways| ways.as_str() == text)
    }

    /// `None` when the source does not ask for both ways.
    pub(super) fn of(source: &Object<'_>, carried: &Carried) -> Option<Self> {
        if Wish::parse(source.annotation(keys::SYNC_DIRECTION)) != Wish::Both {
            return None;
        }
        Some(if source.immutable == Some(true) {
            Self::Down(Bar::Immutable)
        } else if source.kind.as_deref().is_some_and(|kind| TOKEN_TYPES.contains(&kind)) {
            Self::Down(Bar::Token)
        } else if carried.keys().is_none() {
            Self::Down(Bar::TooManyKeys)
        } else {
            Self::Both
        })
    }
}

impl Conflicts {
    pub(super) fn read(copy: &Object<'_>) -> Option<Self> {
        serde_json::from_str(copy.annotation(keys::CONFLICTS)?).ok()
    }
}

/// Marks of values that a copy had and that may have gone up, by key. Valid for one version of the source: a call that takes values
/// up to another version is refused.
#[derive(Default, Clone)]
struct Offers(BTreeMap<String, Vec<String>>);

impl Offers {
    fn read(copy: &Object<'_>) -> Self {
        let read = copy.annotation(keys::OFFERED).and_then(|text| serde_json::from_str(text).ok());
        Self(read.unwrap_or_default())
    }

    fn has(&self, key: &str, mark: Option<&String>) -> bool {
        let mark = mark.map_or(ABSENT, String::as_str);
        self.0.get(key).is_some_and(|offers| offers.iter().any(|offer| offer == mark))
    }

    fn add(&mut self, key: &str, mark: Option<&String>) {
        if !self.has(key, mark) {
            let offers = self.0.entry(key.to_owned()).or_default();
            offers.push(mark.cloned().unwrap_or_default());
            if offers.len() > OFFERS {
                offers.remove(0);
            }
        }
    }
}

/// What was changed of a copy with these marks.
pub(super) fn read_changes(copy: &Object<'_>, there: &BTreeMap<String, String>, carried: Option<&Carried>) -> Changes {
    let Some(Carried::Keys(base)) = carried else { return Changes::Unknown };
    let offers = Offers::read(copy);
    let changed: Vec<&String> =
        base.keys().chain(there.keys()).filter(|key| base.get(*key) != there.get(*key)).collect();
    match &*changed {
        [] => Changes::None,
        changed if changed.iter().all(|key| offers.has(key, there.get(*key))) => Changes::Offered,
        _ => Changes::New,
    }
}

/// A source and its copy, key by key, as marks.
pub(super) struct Merge {
    source: BTreeMap<String, String>,
    copy: BTreeMap<String, String>,
    /// What both had when the copy was last written.
    base: Option<BTreeMap<String, String>>,
    /// Whether the base is of this very source and not of an earlier one of its name.
    same_source: bool,
    /// Whether the base is of the version that the source has now.
    same_version: bool,
    offers: Offers,
    noted: Option<Conflicts>,
    version: String,
}

impl Merge {
    pub(super) fn new(source: &Object<'_>, copy: &Object<'_>, salt: &str) -> Self {
        let base = copy.annotation(keys::CARRIED).and_then(Carried::parse).and_then(|carried| match carried {
            Carried::Keys(marks) => Some(marks),
            Carried::All(_) => None,
        });
        let says = |key: &str, text: &str| copy.annotation(key) == Some(text);
        let same_source = says(keys::VIRTUAL_UID, &source.metadata.uid);
        Self {
            source: marks(source, salt),
            copy: marks(copy, salt),
            base,
            same_source,
            same_version: same_source && says(keys::VIRTUAL_RESOURCE_VERSION, &source.metadata.resource_version),
            offers: Offers::read(copy),
            noted: Conflicts::read(copy),
            version: (*source.metadata.resource_version).to_owned(),
        }
    }

    fn keys(&self) -> BTreeSet<&String> {
        self.source.keys().chain(self.copy.keys()).chain(self.base.iter().flat_map(BTreeMap::keys)).collect()
    }

    /// Whether this key of the copy is not written: the source did not change it since both were equal, or has what the copy had
    /// before it changed once more.
    pub(super) fn leaves(&self, key: &str) -> bool {
        let wanted = self.source.get(key);
        let untouched = |base: &BTreeMap<String, String>| base.get(key) == wanted || self.offers.has(key, wanted);
        self.same_source && self.base.as_ref().is_some_and(untouched)
    }

    /// Whether this key of the copy becomes what the source says, which is something else.
    fn writes(&self, key: &str) -> bool {
        let known = self.source.contains_key(key) || self.base.as_ref().is_some_and(|base| base.contains_key(key));
        self.source.get(key) != self.copy.get(key) && known && !self.leaves(key)
    }

    /// Whether a change of the copy is lost by that.
    fn conflicts(&self, key: &str) -> bool {
        let changed = match &self.base {
            Some(base) => self.copy.get(key) != base.get(key),
            None => self.copy.contains_key(key),
        };
        self.writes(key) && changed
    }

    /// The annotations of the copy that belong to this, as they are after it is written.
    pub(super) fn annotations(&self) -> Vec<(&'static str, Option<String>)> {
        let keys = self.keys();
        let mut offers = if self.same_version { self.offers.clone() } else { Offers::default() };
        let differs = |key: &&&String| self.source.get(**key) != self.copy.get(**key) && !self.writes(key);
        for key in keys.iter().filter(differs) {
            offers.add(key, self.copy.get(*key));
        }
        let offers = (!offers.0.is_empty()).then(|| text(&offers.0));
        let mut written = vec![(keys::SYNC_DIRECTION, Some(Ways::Both.as_str().to_owned())), (keys::OFFERED, offers)];
        let lost: Vec<&String> = keys.into_iter().filter(|key| self.conflicts(key)).collect();
        if !lost.is_empty() {
            let noted = self.noted.iter().flat_map(|noted| &noted.keys);
            let keys = noted.chain(lost).take(NAMED).cloned().collect();
            let conflicts = Conflicts { keys, at: self.version.clone() };
            written.push((keys::CONFLICTS, Some(text(&conflicts))));
        }
        written
    }

    /// The keys that go up: the copy changed them since both were equal, and the source did not. Only what is offered goes: what a
    /// copy had must be known when the source is carried down again.
    fn rises(&self) -> Vec<&String> {
        let Some(base) = self.base.as_ref().filter(|_| self.same_version) else { return Vec::new() };
        let rises = |key: &&String| {
            let (before, now) = (base.get(*key), self.copy.get(*key));
            now != before && self.source.get(*key) == before && self.offers.has(key, now)
        };
        self.keys().into_iter().filter(rises).collect()
    }
}

/// The annotations of a copy whose source is carried only down.
pub(super) fn down_annotations(ways: Option<Ways>) -> Vec<(&'static str, Option<String>)> {
    vec![(keys::SYNC_DIRECTION, ways.map(|ways| ways.as_str().to_owned())), (keys::OFFERED, None)]
}

/// The JSON merge patch of a source that takes up what another client changed of its copy; `None` when nothing goes up.
///
/// Only values go up, and only while the copy says that it holds this version of the source: otherwise the source is carried down
/// first, which finds conflicts.
pub fn render_raise(kind: DependentKind, copy: &str, source: &str, salt: &str) -> Result<Option<Value>, Malformed> {
    let (copy, source) = (Object::parse(kind, copy)?, Object::parse(kind, source)?);
    let both = Ways::of(&source, &Carried::of(&source, salt)) == Some(Ways::Both);
    if !both || source.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let merge = Merge::new(&source, &copy, salt);
    let rises = merge.rises();
    let mut patch = Map::new();
    for ((field, new), (_, old)) in copy.values().into_iter().zip(source.values()) {
        let values: BTreeMap<&str, &str> = new.iter().collect();
        let change = |key: &&String| match values.get(key.as_str()) {
            Some(value) => Some(((*key).clone(), Value::from(*value))),
            // A key is in one field only: it may have moved to the other one.
            None => old.has(key).then(|| ((*key).clone(), Value::Null)),
        };
        insert(&mut patch, field, rises.iter().filter_map(change).collect());
    }
    Ok((!patch.is_empty()).then_some(Value::Object(patch)))
}

fn text(content: &impl Serialize) -> String {
    serde_json::to_string(content).unwrap_or_default()
}
