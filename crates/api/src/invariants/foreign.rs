//! Objects that are not ours must stay as they were (law 6). Must not compare versions and statuses: others write those.

use std::collections::BTreeMap;

use super::{annotation, place, uid};
use crate::keys;
use serde_json::{Value, json};

/// Objects that do not carry our origin, as they were at one moment.
#[derive(Debug, Clone, Default)]
pub struct ForeignObjects(BTreeMap<String, (String, Value)>);

impl ForeignObjects {
    /// Those among `objects` that are not of this origin.
    pub fn among<'a>(objects: impl IntoIterator<Item = &'a Value>, origin: &str) -> Self {
        let others = objects.into_iter().filter(|object| annotation(object, keys::ORIGIN) != origin);
        Self(others.map(|object| (uid(object).to_owned(), (place(object), digest(object)))).collect())
    }

    /// Which of them are gone or changed. The caller knows that no one else touched them.
    pub fn touched<'a>(&self, objects: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
        let now: BTreeMap<&str, &Value> = objects.into_iter().map(|object| (uid(object), object)).collect();
        let look = |(uid, (place, before)): (&String, &(String, Value))| match now.get(uid.as_str()) {
            None => Some(format!("foreign object {place} is gone")),
            Some(object) if digest(object) != *before => {
                Some(format!("foreign object {place} was {before}, is {}", digest(object)))
            }
            Some(_) => None,
        };
        self.0.iter().filter_map(look).collect()
    }
}

fn digest(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "labels": metadata["labels"], "annotations": metadata["annotations"], "finalizers": metadata["finalizers"],
        "deletionTimestamp": metadata["deletionTimestamp"], "spec": object["spec"], "data": object["data"],
        "binaryData": object["binaryData"], "type": object["type"], "immutable": object["immutable"],
    })
}
