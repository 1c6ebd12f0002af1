//! What can change in a pod that runs: labels, annotations, images, tolerations, its deadline and ephemeral containers. The copy
//! says what of it was pushed last, item by item, so that a change of the virtual pod is told from one that the physical cluster
//! made.
//! It must not touch an item that the virtual pod did not change: the physical cluster may have rewritten it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::metadata::SAFE_TO_EVICT;
use super::patience;
use super::{Frame, Refused, VirtualMetadata, VirtualPod, keys, render_ephemeral_containers};
use crate::metadata::{carries_annotation, carries_label};
use crate::names;
use crate::shape::{Text, nullable};

/// Keys of annotations are recorded up to this many bytes; an object's annotations have 256 KiB in all.
const MOST_KEYS: usize = 8 * 1024;

/// Marks of what can change in a running pod: equal on both sides, nothing is to be pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Of labels and annotations.
    pub metadata: u64,
    /// Of the rest, when all of it was last pushed; 0 when it never was.
    pub spec: u64,
}

impl Marks {
    /// No spec has this mark, but by a chance of one in 2⁶⁴.
    const INCOMPLETE: u64 = 0;

    /// Reads them as they are written; `None` when the text is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (metadata, spec) = text.split_once('.')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        Some(Self { metadata: number(metadata)?, spec: number(spec)? })
    }
}

impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{:016x}", self.metadata, self.spec)
    }
}

/// The mark of a virtual pod's labels and annotations, as far as they are carried, in whichever order they come.
pub fn mark_metadata<'t>(
    labels: impl IntoIterator<Item = (&'t str, &'t str)>,
    annotations: impl IntoIterator<Item = (&'t str, &'t str)>,
) -> u64 {
    let labels = labels.into_iter().filter(|(key, _)| carries_label(key));
    let annotations = annotations.into_iter().filter(|(key, _)| pushes_annotation(key));
    let mut pairs: Vec<_> = labels.map(|(key, value)| ("label", key, value)).collect();
    pairs.extend(annotations.map(|(key, value)| ("annotation", key, value)));
    pairs.sort_unstable();
    names::mark_bits(pairs.into_iter().flat_map(|(what, key, value)| [what, key, value]))
}

/// The mark of what can change in a virtual pod's spec, given as JSON.
pub fn mark_spec(spec: &str) -> Result<u64, serde_json::Error> {
    let spec: Spec<'_> = serde_json::from_str(spec)?;
    Ok(Carried::default().with_spec(&spec).marks().spec)
}

/// Ours wins over the tenant's on every copy.
fn pushes_annotation(key: &str) -> bool {
    carries_annotation(key) && key != SAFE_TO_EVICT
}

/// The part of a pod's spec that can change while it runs.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    containers: Vec<Container<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    init_containers: Vec<Container<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    ephemeral_containers: Vec<Container<'a>>,
    #[serde(deserialize_with = "nullable")]
    tolerations: Vec<Value>,
    active_deadline_seconds: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    name: Text<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    image: Text<'a>,
}

/// What was pushed, item by item, with a mark of each value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Carried {
    /// The mark of labels and annotations; written beside this.
    #[serde(skip)]
    metadata: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    /// `None` when there are too many.
    annotations: Option<BTreeMap<String, String>>,
    /// By container.
    images: BTreeMap<String, String>,
    tolerations: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<i64>,
    /// Names of ephemeral containers, which never change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ephemeral: Vec<String>,
}

impl Carried {
    /// What a copy is created with. Ephemeral containers come later.
    pub(super) fn at_creation<'s>(metadata: &VirtualMetadata, spec: &'s Map<String, Value>) -> Self {
        let text = |of: &'s Value, field: &str| Text::from(of.get(field).and_then(Value::as_str).unwrap_or_default());
        let list = |field: &str| spec.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let containers = |field: &str| {
            list(field).iter().map(|of| Container { name: text(of, "name"), image: text(of, "image") }).collect()
        };
        let spec = Spec {
            containers: containers("containers"),
            init_containers: containers("initContainers"),
            ephemeral_containers: Vec::new(),
            tolerations: list("tolerations").to_vec(),
            active_deadline_seconds: spec.get("activeDeadlineSeconds").and_then(Value::as_i64),
        };
        Self::default().with_metadata(metadata).with_spec(&spec)
    }

    fn with_metadata(mut self, metadata: &VirtualMetadata) -> Self {
        let mark = |what: &'static str| move |(key, value): (&str, &str)| (key.to_owned(), names::mark(&[what, value]));
        self.metadata = mark_metadata(texts(&metadata.labels), texts(&metadata.annotations));
        self.labels = texts(&metadata.labels).filter(|(key, _)| carries_label(key)).map(mark("label")).collect();
        let annotations = || texts(&metadata.annotations).filter(|(key, _)| pushes_annotation(key));
        let few = annotations().map(|(key, _)| key.len()).sum::<usize>() <= MOST_KEYS;
        self.annotations = few.then(|| annotations().map(mark("annotation")).collect());
        self
    }

    fn with_spec(mut self, spec: &Spec<'_>) -> Self {
        let all = spec.containers.iter().chain(&spec.init_containers);
        let image = |of: &Container<'_>| ((*of.name).to_owned(), names::mark(&["image", &of.image]));
        self.images = all.map(image).collect();
        self.tolerations =
            patience::tolerations(spec.tolerations.clone()).map(|toleration| mark_toleration(&toleration)).collect();
        self.deadline = spec.active_deadline_seconds;
        self.ephemeral = spec.ephemeral_containers.iter().map(|debug| (*debug.name).to_owned()).collect();
        self
    }

    pub(super) fn marks(&self) -> Marks {
        let seconds = self.deadline.map(|seconds| seconds.to_string());
        let images = self.images.iter().flat_map(|(name, mark)| ["image", name, mark]);
        let tolerations = self.tolerations.iter().flat_map(|mark| ["toleration", mark]);
        let deadline = seconds.iter().flat_map(|seconds| ["deadline", seconds]);
        let ephemeral = self.ephemeral.iter().flat_map(|name| ["ephemeral", name]);
        let spec = names::mark_bits(images.chain(tolerations).chain(deadline).chain(ephemeral));
        Marks { metadata: self.metadata, spec }
    }

    pub(super) fn render(&self) -> String {
        json!(self).to_string()
    }

    /// What a copy says; `None` when it says nothing that can be understood.
    fn parse(copy: &Copy) -> Option<(Self, Marks)> {
        let said = |key: &str| copy.metadata.annotations.get(key).and_then(Value::as_str);
        let marks = Marks::parse(said(keys::VIRTUAL_POD_MARKS)?)?;
        let carried: Self = serde_json::from_str(said(keys::CARRIED)?).ok()?;
        Some((Self { metadata: marks.metadata, ..carried }, marks))
    }

    /// With the labels and annotations of another.
    fn take_metadata(&self, other: &Self) -> Self {
        let Self { metadata, labels, annotations, .. } = other.clone();
        Self { metadata, labels, annotations, ..self.clone() }
    }

    /// With the images, tolerations and deadline of another.
    fn take_spec(&self, other: &Self) -> Self {
        let Self { images, tolerations, deadline, .. } = other.clone();
        Self { images, tolerations, deadline, ..self.clone() }
    }

    /// With the ephemeral containers of another.
    fn take_ephemeral(&self, other: &Self) -> Self {
        Self { ephemeral: other.ephemeral.clone(), ..self.clone() }
    }

    /// What a copy is marked with that was given this, while its virtual pod wants that. Until all of the spec was pushed, its
    /// mark stays as it was `before`: no virtual pod can have that one again, because ephemeral containers never go.
    fn annotations(&self, wanted: &Self, before: u64, generation: Option<i64>) -> Map<String, Value> {
        let complete = *self == self.take_spec(wanted).take_ephemeral(wanted);
        let Marks { metadata, spec } = self.marks();
        let marks = Marks { metadata, spec: if complete { spec } else { before } };
        let mut annotations = Map::from_iter([
            (keys::VIRTUAL_POD_MARKS.to_owned(), marks.to_string().into()),
            (keys::CARRIED.to_owned(), self.render().into()),
        ]);
        if let Some(generation) = generation.filter(|_| complete) {
            annotations.insert(keys::VIRTUAL_POD_GENERATION.to_owned(), generation.to_string().into());
        }
        annotations
    }
}

/// A copy, as far as it can change.
#[derive(Deserialize)]
struct Copy {
    metadata: CopyMetadata,
    spec: Map<String, Value>,
}

#[derive(Deserialize)]
struct CopyMetadata {
    #[serde(default, deserialize_with = "nullable")]
    annotations: Map<String, Value>,
}

impl Copy {
    fn list(&self, field: &str) -> impl Iterator<Item = &Value> {
        self.spec.get(field).and_then(Value::as_array).into_iter().flatten()
    }
}

/// The strategic merge patches that push the changes of a virtual pod to its copy. Each can be refused without the others, and
/// each also says in the copy what was pushed with it. After one of them, they are rendered again.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// Labels and annotations.
    pub metadata: Option<Value>,
    /// Images, tolerations and deadline.
    pub spec: Option<Value>,
    /// Ephemeral containers, for their own subresource, which takes nothing else.
    pub ephemeral: Option<Value>,
    /// Nothing is left to push by one of these, but the copy does not say so yet.
    pub marks: Option<Value>,
}

/// What a virtual pod changed since it was last pushed, both given as JSON. `generation` is written with the last change of the
/// spec; `None` while another part of that generation is still to be pushed.
///
/// A copy that does not say what was pushed is taken as it is: what differs may be the physical cluster's.
pub fn render_changes(vpod: &str, copy: &str, generation: Option<i64>, frame: &Frame<'_>) -> Result<Changes, Refused> {
    let added = render_ephemeral_containers(vpod, frame)?;
    let vpod: VirtualPod<'_> = serde_json::from_str(vpod)?;
    let copy: Copy = serde_json::from_str(copy)?;
    let spec: Spec<'_> = serde_json::from_str(vpod.spec.get())?;
    let wanted = Carried::default().with_metadata(&vpod.metadata).with_spec(&spec);
    let there: Vec<&Value> = copy.list("ephemeralContainers").map(|debug| &debug["name"]).collect();
    let missing: Vec<&Value> =
        added.as_array().into_iter().flatten().filter(|debug| !there.contains(&&debug["name"])).collect();

    let (pushed, before) = Carried::parse(&copy).map_or_else(
        || {
            let ephemeral = wanted.ephemeral.iter().filter(|name| there.contains(&&json!(name))).cloned().collect();
            (Carried { ephemeral, ..wanted.clone() }, Marks::INCOMPLETE)
        },
        |(pushed, marks)| (pushed, marks.spec),
    );
    let marked = |carried: &Carried| carried.annotations(&wanted, before, generation);
    let mut changes = Changes::default();
    if pushed.metadata != wanted.metadata {
        let mut metadata = change_metadata(&vpod.metadata, &pushed, &wanted, &copy);
        metadata.1.extend(marked(&pushed.take_metadata(&wanted)));
        changes.metadata = Some(json!({ "metadata": { "labels": metadata.0, "annotations": metadata.1 } }));
    }
    let after = pushed.take_spec(&wanted);
    if after != pushed {
        let fields = change_spec(&spec, &pushed, &wanted, &copy);
        changes.spec = Some(json!({ "metadata": { "annotations": marked(&after) }, "spec": fields }));
    }
    let mut after = pushed;
    if missing.is_empty() {
        after = after.take_ephemeral(&wanted);
    } else {
        changes.ephemeral = Some(json!({ "spec": { "ephemeralContainers": missing } }));
    }
    let mut marks = marked(&after);
    marks.retain(|key, value| copy.metadata.annotations.get(key) != Some(value));
    changes.marks = (!marks.is_empty()).then(|| json!({ "metadata": { "annotations": marks } }));
    Ok(changes)
}

/// Labels and annotations that the virtual pod changed; null for those that it lost.
fn change_metadata(
    vpod: &VirtualMetadata,
    pushed: &Carried,
    wanted: &Carried,
    copy: &Copy,
) -> (Map<String, Value>, Map<String, Value>) {
    let changed = |all: &Map<String, Value>, before: &BTreeMap<String, String>, now: &BTreeMap<String, String>| {
        let new = now.iter().filter(|(key, mark)| before.get(*key) != Some(mark));
        let new = new.filter_map(|(key, _)| Some((key.clone(), all.get(key)?.clone())));
        let lost = before.keys().filter(|key| !now.contains_key(*key)).map(|key| (key.clone(), Value::Null));
        new.chain(lost).collect::<Map<String, Value>>()
    };
    let labels = changed(&vpod.labels, &pushed.labels, &wanted.labels);
    let annotations = if let (Some(before), Some(now)) = (&pushed.annotations, &wanted.annotations) {
        changed(&vpod.annotations, before, now)
    } else {
        // Too many to remember: what differs from the copy is taken as changed, and what is gone stays.
        let carried = vpod.annotations.iter().filter(|(key, _)| pushes_annotation(key));
        let new = carried.filter(|(key, value)| copy.metadata.annotations.get(*key) != Some(value));
        new.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    (labels, annotations)
}

/// Images, tolerations and deadline that the virtual pod changed.
fn change_spec(vpod: &Spec<'_>, pushed: &Carried, wanted: &Carried, copy: &Copy) -> Map<String, Value> {
    let mut fields = Map::new();
    for (list, containers) in [("containers", &vpod.containers), ("initContainers", &vpod.init_containers)] {
        let changed = containers.iter().filter(|of| pushed.images.get(&*of.name) != wanted.images.get(&*of.name));
        // A container that the copy does not have would be added, which is refused.
        let other =
            |of: &&Container<'_>| copy.list(list).any(|there| there["name"] == *of.name && there["image"] != *of.image);
        let images: Vec<Value> =
            changed.filter(other).map(|of| json!({ "name": &*of.name, "image": &*of.image })).collect();
        if !images.is_empty() {
            fields.insert(list.to_owned(), images.into());
        }
    }
    let there: Vec<Value> = copy.list("tolerations").cloned().collect();
    let mut tolerations = there.clone();
    for toleration in patience::tolerations(vpod.tolerations.clone()) {
        if pushed.tolerations.contains(&mark_toleration(&toleration)) {
            continue;
        }
        // An API server lets tolerations be added, and the seconds of one be changed.
        match tolerations.iter_mut().find(|there| identity(there) == identity(&toleration)) {
            Some(there) => *there = toleration,
            None => tolerations.push(toleration),
        }
    }
    if tolerations != there {
        fields.insert("tolerations".to_owned(), tolerations.into());
    }
    // It can only become shorter.
    let shorter = |seconds: &i64| {
        copy.spec.get("activeDeadlineSeconds").and_then(Value::as_i64).is_none_or(|there| *seconds < there)
    };
    if pushed.deadline != wanted.deadline
        && let Some(seconds) = wanted.deadline.filter(shorter)
    {
        fields.insert("activeDeadlineSeconds".to_owned(), seconds.into());
    }
    fields
}

/// What makes a toleration this one and no other: all but its seconds. An absent field means the same as its default.
fn identity(toleration: &Value) -> [&str; 4] {
    let text = |field: &str| toleration[field].as_str().unwrap_or_default();
    let operator = match text("operator") {
        "" => "Equal",
        operator => operator,
    };
    [text("key"), operator, text("value"), text("effect")]
}

fn mark_toleration(toleration: &Value) -> String {
    let [key, operator, value, effect] = identity(toleration);
    let seconds = toleration["tolerationSeconds"].as_i64().map(|seconds| seconds.to_string());
    names::mark(&["toleration", key, operator, value, effect, seconds.as_deref().unwrap_or_default()])
}

/// Labels or annotations as text; other values no API server returns.
fn texts(map: &Map<String, Value>) -> impl Iterator<Item = (&str, &str)> {
    map.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}
