//! Every field of a pod's spec, and what becomes of it in the copy: one table, from which `docs/reference/podspec.md` is written.
//! It must not be behind Kubernetes: a test compares it with what a real API server knows ([`unclassified`]). A field that is in
//! no table is kept as it is.

mod containers;
mod pod;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// In the copy as it is, with all that is in it.
    Kept,
    /// In the copy with another value, or with a value where the virtual pod has none.
    Rewritten,
    /// Not in the copy.
    LeftOut,
    /// The pod is not run, and says why.
    Refused,
    /// Each of its own fields is in the table of that type.
    Inside(&'static str),
}

/// One field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// As Kubernetes spells it.
    pub name: &'static str,
    /// What becomes of it.
    pub fate: Fate,
    /// Why, in a sentence for users.
    pub why: &'static str,
}

/// One type of the Kubernetes API, with all its fields.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Its name in `io.k8s.api.core.v1`.
    pub name: &'static str,
    /// Where in a spec it is found; of several places the first.
    pub path: &'static str,
    /// A type whose fields it has besides its own.
    pub like: Option<&'static str>,
    /// Its own fields.
    pub fields: &'static [Field],
}

/// All types, the spec first.
pub const SHAPES: [&[Shape]; 3] = [&pod::SHAPES, &containers::SHAPES, &volumes::SHAPES];

const fn field(name: &'static str, fate: Fate, why: &'static str) -> Field {
    Field { name, fate, why }
}

const fn kept(name: &'static str, why: &'static str) -> Field {
    field(name, Fate::Kept, why)
}

fn shapes() -> impl Iterator<Item = &'static Shape> {
    SHAPES.into_iter().flatten()
}

fn shape(name: &str) -> Option<&'static Shape> {
    shapes().find(|shape| shape.name == name)
}

impl Shape {
    /// All its fields.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.like.and_then(shape).map_or(&[][..], |like| like.fields).iter().chain(self.fields)
    }
}

/// The fields that an API server knows and no table has, as `Type.field`; `schemas` are its `components.schemas` of OpenAPI v3
/// for `api/v1`. Also names types that the tables have and the API server does not use where they say, and fields that are
/// kept although something in them names an object of the pod's namespace.
#[must_use]
pub fn unclassified(schemas: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    for shape in shapes() {
        let Some(properties) = schemas[format!("io.k8s.api.core.v1.{}", shape.name)]["properties"].as_object() else {
            missing.push(format!("{}: no such type", shape.name));
            continue;
        };
        for (name, property) in properties {
            let Some(field) = shape.fields().find(|field| field.name == name) else {
                missing.push(format!("{}.{name}", shape.name));
                continue;
            };
            if let Fate::Inside(inner) = field.fate
                && !property.to_string().contains(&format!("/io.k8s.api.core.v1.{inner}\""))
            {
                missing.push(format!("{}.{name}: is no {inner}", shape.name));
            }
            if field.fate == Fate::Kept && names_objects(schemas, property, &mut BTreeSet::new()) {
                missing.push(format!("{}.{name}: names an object, and is kept", shape.name));
            }
        }
    }
    missing
}

/// Types by which a pod names an object of its namespace.
const REFERENCES: [&str; 9] = [
    "ConfigMapEnvSource",
    "ConfigMapKeySelector",
    "LocalObjectReference",
    "ObjectReference",
    "SecretEnvSource",
    "SecretKeySelector",
    "SecretReference",
    "TypedLocalObjectReference",
    "TypedObjectReference",
];

/// Whether a schema, or one that it refers to, has such a type.
fn names_objects(schemas: &Value, schema: &Value, seen: &mut BTreeSet<String>) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(key, value)| match (key.as_str(), value.as_str()) {
            ("$ref", Some(path)) => {
                let name = path.rsplit('/').next().unwrap_or_default();
                let kind = name.rsplit('.').next().unwrap_or_default();
                REFERENCES.contains(&kind)
                    || (seen.insert(name.to_owned()) && names_objects(schemas, &schemas[name], seen))
            }
            _ => names_objects(schemas, value, seen),
        }),
        Value::Array(items) => items.iter().any(|item| names_objects(schemas, item, seen)),
        _ => false,
    }
}

/// The reference for users: file name and text.
#[must_use]
pub fn render() -> Vec<(String, String)> {
    let mut text = String::from(HEAD);
    for shape in shapes() {
        let place = if shape.path.is_empty() { "spec" } else { shape.path };
        let _ = write!(text, "\n## `{place}` ({})\n\n", shape.name);
        if let Some(like) = shape.like {
            let _ = write!(text, "All fields of {like}, with the same outcome, and:\n\n");
        }
        text.push_str("| field | in the copy | why |\n|---|---|---|\n");
        for Field { name, fate, why } in shape.fields {
            let fate = match fate {
                Fate::Kept => "kept".to_owned(),
                Fate::Rewritten => "rewritten".to_owned(),
                Fate::LeftOut => "left out".to_owned(),
                Fate::Refused => "**refused**".to_owned(),
                Fate::Inside(shape) => format!("see {shape}"),
            };
            let _ = writeln!(text, "| `{name}` | {fate} | {why} |");
        }
    }
    vec![("podspec.md".to_owned(), text)]
}

const HEAD: &str = "\
# What becomes of a pod's spec

Written from `domain::podspec::fields` by `make podspec`; do not edit.

A virtual pod runs as a copy in the mount namespace of a physical cluster. Each field of its spec is

- **kept**: in the copy as it is, with all that is in it;
- **rewritten**: in the copy with another value;
- **left out**: not in the copy, because it is a matter of the virtual cluster;
- **refused**: the pod is not run; its condition `tapestry.io/Admitted` and an event say why.

A field that is newer than this table is kept. `spec.podSecurity` of the binding decides besides which security settings a pod
may have at all.
";
