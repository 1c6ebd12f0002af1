//! What was carried into a copy, as marks of its fields: drift is seen, and what the Service lost is known.
//! It must not depend on the order in which fields come.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Service, Wanted, without_node_ports};
use crate::names;

/// What the annotation [`super::keys::CARRIED`] holds: a mark by field. `spec.`, `label.` and `annotation.` come before the name of
/// a field; one without is a field of the object itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Carried(BTreeMap<String, String>);

const SPEC: &str = "spec.";
const LABEL: &str = "label.";
const ANNOTATION: &str = "annotation.";

impl Carried {
    /// What the annotation says when this is carried.
    pub(super) fn of(wanted: &Wanted) -> Self {
        let Wanted { labels, annotations, spec, rest } = wanted;
        let parts = [(SPEC, spec), (LABEL, labels), (ANNOTATION, annotations), ("", rest)];
        let fields = parts.into_iter().flat_map(|(part, fields)| fields.iter().map(move |field| (part, field)));
        Self(fields.map(|(part, (field, value))| (format!("{part}{field}"), mark(part, field, value))).collect())
    }

    /// From an annotation; `None` when it is not ours or was damaged.
    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }

    pub(super) fn render(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// A mark of all of it.
    pub(super) fn mark(&self) -> u64 {
        names::mark_bits(self.0.iter().flat_map(|(field, mark)| [field.as_str(), mark.as_str()]))
    }

    /// Whether the copy has what was carried.
    pub(super) fn intact(&self, copy: &Service) -> bool {
        self.0.iter().all(|(path, carried)| {
            let (part, fields, field) = copy.find(path);
            fields.get(field).is_some_and(|value| mark(part, field, value) == *carried)
        })
    }

    pub(super) fn spec(&self) -> BTreeSet<&str> {
        self.fields(SPEC)
    }

    pub(super) fn labels(&self) -> BTreeSet<&str> {
        self.fields(LABEL)
    }

    pub(super) fn annotations(&self) -> BTreeSet<&str> {
        self.fields(ANNOTATION)
    }

    /// Fields of the object itself.
    pub(super) fn rest(&self) -> BTreeSet<&str> {
        let parts = [SPEC, LABEL, ANNOTATION];
        self.0.keys().map(String::as_str).filter(|path| !parts.iter().any(|part| path.starts_with(part))).collect()
    }

    fn fields(&self, part: &str) -> BTreeSet<&str> {
        self.0.keys().filter_map(|path| path.strip_prefix(part)).collect()
    }
}

impl Service {
    /// The part of the copy that a path is in, and the field there.
    fn find<'p>(&self, path: &'p str) -> (&'static str, &Map<String, Value>, &'p str) {
        let parts = [(SPEC, &self.spec), (LABEL, &self.metadata.labels), (ANNOTATION, &self.metadata.annotations)];
        let inside = parts.into_iter().find_map(|(part, fields)| Some((part, fields, path.strip_prefix(part)?)));
        inside.unwrap_or(("", &self.rest, path))
    }
}

fn mark(part: &str, field: &str, value: &Value) -> String {
    let ports = (part == SPEC && field == "ports").then(|| without_node_ports(value));
    names::mark(&["service", part, field, &ports.as_ref().unwrap_or(value).to_string()])
}
