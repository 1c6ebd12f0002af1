//! ConfigMaps and Secrets that pods name: what a copy in the physical cluster holds, and how it follows its source.
//! It must not let a value reach an error text or a mark that can be read back, and never carries a token of the physical
//! cluster into a copy.

mod both_ways;
mod carried;
pub mod keys;
mod read;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::{Map, Value, json};

use self::both_ways::{Merge, down_annotations, read_changes};
use self::carried::{Carried, marks as marks_of};
use self::read::Object;
use crate::merge::{changed, insert};
use crate::metadata::{carry_annotations, carry_labels};

pub use self::both_ways::{Bar, Changes, Conflicts, Ways, Wish, render_raise};

/// Kinds of objects that a pod names and that are carried with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DependentKind {
    /// `v1` ConfigMap.
    ConfigMap,
    /// `v1` Secret.
    Secret,
}

impl DependentKind {
    /// The kind as Kubernetes spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

impl fmt::Display for DependentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One reference of a pod to an object of its namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// Of what kind.
    pub kind: DependentKind,
    /// The name in the pod's namespace.
    pub name: Box<str>,
    /// Whether the pod starts without it: every place that names it says so.
    pub optional: bool,
}

/// Our marks on a copy; they win over the source's labels and annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks<'a> {
    /// The origin's labels.
    pub labels: Vec<(&'a str, String)>,
    /// The origin's annotations, besides those in [`keys`], which are written from the source itself.
    pub annotations: Vec<(&'a str, String)>,
    /// The origin's full value. It salts the marks of values, and the copy has it as annotation [`keys::ORIGIN`].
    pub salt: &'a str,
}

/// The text is not such an object. Its content is not repeated: it may be secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the {kind} cannot be read (line {line}, column {column})")]
pub struct Malformed {
    /// What it should have been.
    pub kind: DependentKind,
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1.
    pub column: usize,
}

/// What is kept of a copy; its values are not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopyDigest {
    /// Every value that we carried is there as we carried it.
    pub intact: bool,
    /// The API server refuses every change of its values.
    pub immutable: bool,
    /// In which direction changes flow; `None` when its source does not ask for both ways.
    pub ways: Option<Ways>,
    /// What another client changed of it.
    pub changes: Changes,
    /// What has to be reported.
    pub conflicts: Option<Conflicts>,
}

/// The physical controller manager writes a token of a physical account into Secrets of this type, by these annotations.
const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
const TOKEN_ANNOTATIONS: &str = "kubernetes.io/service-account.";

/// The body of a new copy.
pub fn render_copy(
    kind: DependentKind,
    source: &str,
    copy_name: &str,
    namespace: &str,
    marks: &Marks<'_>,
) -> Result<Value, Malformed> {
    let mut source = Object::parse(kind, source)?;
    let carried = Carried::of(&source, marks.salt);
    let ways = Ways::of(&source, &carried);
    let mut annotations = annotations(&mut source, &carried, marks);
    let shared = down_annotations(ways).into_iter();
    annotations.extend(shared.filter_map(|(key, value)| Some((key.to_owned(), value?.into()))));
    let metadata = json!({
        "name": copy_name,
        "namespace": namespace,
        "labels": labels(&mut source, marks),
        "annotations": annotations,
    });
    let mut copy = Map::from_iter([
        ("apiVersion".to_owned(), "v1".into()),
        ("kind".to_owned(), kind.as_str().into()),
        ("metadata".to_owned(), metadata),
    ]);
    copy.extend(fields(&source));
    let values = source.values().into_iter().filter(|(_, values)| !values.is_empty());
    copy.extend(values.map(|(field, values)| (field.to_owned(), values.json())));
    Ok(Value::Object(copy))
}

/// The JSON merge patch that makes a copy carry what its source says; `None` when nothing differs.
///
/// A key that we carried and the source lost goes, a key that others added to the copy stays. Labels and annotations that
/// the source lost stay: the copy does not say whose they are. Of an immutable copy whose source is not, the patch asks for what
/// an API server refuses, so that the caller makes another copy; but not before changes that flow up have. Where changes flow
/// both ways, a key that only the copy changed stays.
pub fn render_patch(
    kind: DependentKind,
    source: &str,
    copy: &str,
    marks: &Marks<'_>,
) -> Result<Option<Value>, Malformed> {
    let mut source = Object::parse(kind, source)?;
    let copy = Object::parse(kind, copy)?;
    let carried = Carried::of(&source, marks.salt);
    let before = copy.annotation(keys::CARRIED).and_then(Carried::parse);
    let ways = Ways::of(&source, &carried);
    let merge = (ways == Some(Ways::Both)).then(|| Merge::new(&source, &copy, marks.salt));
    let stays = |key: &str| merge.as_ref().is_some_and(|merge| merge.leaves(key));

    let mut metadata = Map::new();
    let mut annotations = annotations(&mut source, &carried, marks);
    let shared = merge.as_ref().map_or_else(|| down_annotations(ways), Merge::annotations);
    annotations.extend(shared.into_iter().map(|(key, value)| (key.to_owned(), value.into())));
    let wanted = [
        ("labels", labels(&mut source, marks), &copy.metadata.labels),
        ("annotations", annotations, &copy.metadata.annotations),
    ];
    for (field, wanted, there) in wanted {
        insert(&mut metadata, field, changed(wanted, there));
    }
    let mut patch = Map::new();
    insert(&mut patch, "metadata", metadata);
    patch.extend(changed(fields(&source), &fields(&copy)));
    let changes = || read_changes(&copy, &marks_of(&copy, marks.salt), before.as_ref());
    let owes = || matches!(changes(), Changes::New | Changes::Offered);
    if copy.immutable == Some(true) && source.immutable != Some(true) && !(merge.is_some() && owes()) {
        patch.insert("immutable".to_owned(), Value::Null);
    }
    // Exactly equal where one mark stands for all, before or from now on.
    let whole = [Some(&carried), before.as_ref()].into_iter().flatten().any(|carried| carried.keys().is_none());
    let ours = before.as_ref().and_then(Carried::keys).unwrap_or_default();
    // A key may have moved from one field to the other, and can be in one only.
    let goes = |key: &str| whole || ours.contains(key) || source.values().iter().any(|(_, values)| values.has(key));
    for ((field, values), (_, there)) in source.values().into_iter().zip(copy.values()) {
        insert(&mut patch, field, values.changes(there, goes, stays));
    }
    Ok((!patch.is_empty()).then_some(Value::Object(patch)))
}

/// Reads what a row keeps of a copy.
pub fn read_copy(kind: DependentKind, copy: &str) -> Result<CopyDigest, Malformed> {
    let copy = Object::parse(kind, copy)?;
    let carried = copy.annotation(keys::CARRIED).and_then(Carried::parse);
    let salt = copy.annotation(keys::ORIGIN).unwrap_or_default();
    let there = marks_of(&copy, salt);
    Ok(CopyDigest {
        intact: carried.as_ref().is_some_and(|carried| carried.intact(&there, salt)),
        immutable: copy.immutable.unwrap_or_default(),
        ways: copy.annotation(keys::SYNC_DIRECTION).and_then(Ways::parse),
        changes: read_changes(&copy, &there, carried.as_ref()),
        conflicts: Conflicts::read(&copy),
    })
}

fn labels(source: &mut Object<'_>, marks: &Marks<'_>) -> Map<String, Value> {
    carry_labels(std::mem::take(&mut source.metadata.labels), &marks.labels)
}

fn annotations(source: &mut Object<'_>, carried: &Carried, marks: &Marks<'_>) -> Map<String, Value> {
    let metadata = &mut source.metadata;
    let mut theirs = std::mem::take(&mut metadata.annotations);
    theirs.retain(|key, _| !key.starts_with(TOKEN_ANNOTATIONS));
    // The salt comes last: the marks of values can be checked only with the salt that made them.
    let written = [
        (keys::VIRTUAL_NAMESPACE, (*metadata.namespace).to_owned()),
        (keys::VIRTUAL_NAME, (*metadata.name).to_owned()),
        (keys::VIRTUAL_UID, (*metadata.uid).to_owned()),
        (keys::VIRTUAL_RESOURCE_VERSION, (*metadata.resource_version).to_owned()),
        (keys::CARRIED, carried.render()),
        (keys::ORIGIN, marks.salt.to_owned()),
    ];
    let ours: Vec<_> = marks.annotations.iter().cloned().chain(written).collect();
    carry_annotations(theirs, &ours)
}

/// The fields besides metadata and values, also those that are newer than this code.
fn fields(object: &Object<'_>) -> Map<String, Value> {
    let mut fields = object.rest.clone();
    // The first two never differ; an API server never returns the third.
    for field in ["apiVersion", "kind", "stringData"] {
        fields.remove(field);
    }
    if let Some(kind) = object.kind.as_deref() {
        fields.insert("type".into(), if kind == TOKEN_TYPE { "Opaque" } else { kind }.into());
    }
    if object.immutable == Some(true) {
        fields.insert("immutable".into(), true.into());
    }
    fields
}
