//! What we read of lists and events apart from the objects themselves: versions, the end of a list, the token of its next
//! page. Must not parse more of an object.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Rv;

/// An object's or a bookmark's version.
#[derive(Deserialize)]
pub(super) struct Version {
    #[serde(rename = "resourceVersion")]
    pub(super) rv: Rv,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "k8s.io/initial-events-end", default)]
    initial_end: Option<String>,
}

/// One page of a list.
#[derive(Deserialize)]
pub(super) struct Page<'a> {
    #[serde(borrow)]
    pub(super) metadata: PageMeta<'a>,
    #[serde(borrow)]
    pub(super) items: Vec<&'a RawValue>,
}

/// Its version, and the token of the next page.
#[derive(Deserialize)]
pub(super) struct PageMeta<'a> {
    #[serde(rename = "resourceVersion")]
    pub(super) rv: Rv,
    #[serde(rename = "continue", default, borrow)]
    pub(super) more: Option<Cow<'a, str>>,
}

impl Version {
    /// `None` when it cannot be read.
    pub(super) fn of(object: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            metadata: Version,
        }
        serde_json::from_slice::<Versioned>(object).ok().map(|versioned| versioned.metadata)
    }

    /// Whether this is the bookmark after the last object of a streamed list.
    pub(super) fn ends_list(&self) -> bool {
        self.annotations.as_ref().is_some_and(|annotations| annotations.initial_end.as_deref() == Some("true"))
    }
}
