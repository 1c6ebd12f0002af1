//! What we keep of a ConfigMap or Secret: of the source its metadata, of the copy also whether its data is what we wrote.
//! Values are hashed while a copy is decoded and are not kept (law 10).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use tapestry_api::keys;
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::dependents::{Changes, Conflicts, CopyDigest, DependentKind, Ways, Wish, read_copy};
use tapestry_domain::names;
use tapestry_domain::shape::Text;
use tapestry_domain::tokens::renew_by;

use super::Id;
use crate::json::{Meta, fingerprint};
use crate::origin::Origin;

/// A ConfigMap or Secret of the virtual cluster.
#[derive(Debug, Clone)]
pub struct Source {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) id: Arc<Id>,
    /// In which direction its user asks for changes to flow.
    pub(super) wish: Wish,
    /// Its deletion was asked for and waits for finalizers: nothing is written to it any more.
    pub(super) deleting: bool,
}

/// A ConfigMap or Secret in the mount namespace. Of those that are not ours nothing but this is kept, and only until it is known
/// that the table has no such UID: a client may have removed all marks of a copy.
#[derive(Debug, Clone)]
pub struct DependentCopy {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    pub(super) deleting: bool,
    /// Whose copy it says it is.
    pub(super) of: Of,
    /// Whether it carries our origin, as label or annotation.
    pub(super) ours: bool,
    /// Whether all our labels and annotations are on it.
    pub(super) marked: bool,
}

/// Whose copy it says it is. Believed only if its name is the one that we would give it (law 5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Of {
    /// Of a ConfigMap or Secret.
    Source {
        id: Arc<Id>,
        uid: Uid,
        /// The version of the source that it holds.
        version: Option<Rv>,
        /// Whether every key that we carried has the value that we wrote.
        intact: bool,
        /// The API server refuses every change of its values, and kubelets do not look at it again.
        immutable: bool,
        shared: Shared,
    },
    /// Tokens of a virtual pod.
    Pod {
        uid: Uid,
        refresh: Option<Timestamp>,
        held: Box<[HeldToken]>,
        /// A fingerprint of all that it holds and of `refresh`; worth nothing in another process.
        print: u64,
    },
    /// It does not say.
    Unknown,
}

/// A token in a Secret. The token itself is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldToken {
    pub(super) key: Box<str>,
    /// When it has to be renewed, by what it says itself.
    pub(super) renew_by: Option<Timestamp>,
}

/// What a copy says of changes that flow up.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Shared {
    /// In which direction changes flow; `None` when its source did not ask for both ways.
    pub(super) ways: Option<Ways>,
    /// What another client changed of it.
    pub(super) changes: Changes,
    /// What has to be reported.
    pub(super) conflicts: Option<Box<Conflicts>>,
}

impl Row for Source {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        // Most go without a deletionTimestamp, and nothing is ended because a source is absent.
        false
    }
}

impl Row for DependentCopy {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.deleting
    }
}

#[derive(Deserialize)]
struct Held<'a> {
    #[serde(borrow, default)]
    data: Option<BTreeMap<Text<'a>, Option<Text<'a>>>>,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
}

impl Source {
    /// Decodes metadata, with or without the rest of the object.
    pub fn decode(json: &Bytes, kind: DependentKind) -> Result<Option<Self>, serde_json::Error> {
        let Object { metadata: meta } = serde_json::from_slice(json)?;
        let wish = Wish::parse(meta.annotation(keys::SYNC_DIRECTION));
        let deleting = meta.deletion_timestamp.is_some();
        let Some(namespace) = meta.namespace else { return Ok(None) };
        let id = Arc::new(Id { kind, namespace, name: meta.name });
        Ok(Some(Self { uid: meta.uid, rv: meta.resource_version, id, wish, deleting }))
    }
}

impl DependentCopy {
    /// Decodes an object of the mount namespace; what does not carry our origin says nothing of whose copy it is.
    pub fn decode(json: &Bytes, kind: DependentKind, origin: &Origin) -> Result<Option<Self>, serde_json::Error> {
        let Object { metadata: meta } = serde_json::from_slice(json)?;
        // Either mark is enough to know it again; what lacks one gets it back.
        let labelled = meta.label(keys::ORIGIN) == Some(&*origin.label);
        let annotated = meta.annotation(keys::ORIGIN) == Some(&*origin.full);
        let ours = labelled || annotated;
        let labels = origin.labels().iter().all(|(key, value)| meta.label(key) == Some(value));
        let annotations = origin.annotations().iter().all(|(key, value)| meta.annotation(key) == Some(value));
        Ok(Some(Self {
            of: if ours { Of::read(&meta, json, kind, origin)? } else { Of::Unknown },
            deleting: meta.deletion_timestamp.is_some(),
            uid: meta.uid,
            rv: meta.resource_version,
            name: meta.name,
            ours,
            marked: labels && annotations,
        }))
    }
}

impl DependentCopy {
    /// Both ways or not at all (law 5): what it says is believed only under the name that we give such a copy. Otherwise it stays
    /// what the table knows it to be, so that it is restored: an object keeps its UID, whatever clients write on it.
    pub(super) fn check_back(&mut self, known: Option<&Self>, origin: &Origin) {
        let believed = match &self.of {
            Of::Source { id, .. } => id.copy_name(origin).as_ref() == Some(&self.name),
            // Compared with its name when it was read.
            Of::Pod { .. } => true,
            Of::Unknown => false,
        };
        if !believed {
            self.of = known.map_or(Of::Unknown, |known| known.of.damaged());
        }
    }

    /// It is the copy of this source: it carries our origin under a name that is a hash of the source's, whatever else it says.
    pub(super) fn adopt_for(&mut self, id: &Arc<Id>) {
        if !matches!(&self.of, Of::Source { id: back, .. } if back == id) {
            self.of = Of::damaged_source(Arc::clone(id), Uid::new(""));
        }
    }

    /// It has the tokens of this pod: it carries our origin under a name that is a hash of the pod's UID.
    pub(super) fn adopt_for_pod(&mut self, vuid: &Uid) {
        if !matches!(&self.of, Of::Pod { uid, .. } if uid == vuid) {
            self.of = Of::Pod { uid: vuid.clone(), refresh: None, held: Box::default(), print: 0 };
        }
    }

    /// Whether it is certain that we made it although it does not say of what: it carries our origin, and has a name as we give them.
    /// What another client made after our example has a name that the client chose.
    pub(super) fn certainly_ours(&self) -> bool {
        self.ours && names::ends_with_hash(self.name.as_str())
    }

    /// Whether nothing but a new object can have other values.
    pub(super) fn immutable(&self) -> bool {
        matches!(self.of, Of::Source { immutable, .. } if immutable)
    }

    /// The fingerprint of the tokens that it holds.
    pub(super) fn print(&self) -> Option<u64> {
        match self.of {
            Of::Pod { print, .. } => Some(print),
            Of::Source { .. } | Of::Unknown => None,
        }
    }
}

impl Of {
    fn damaged_source(id: Arc<Id>, uid: Uid) -> Self {
        Self::Source { id, uid, version: None, intact: false, immutable: false, shared: Shared::default() }
    }

    /// The same without what a client may have changed.
    fn damaged(&self) -> Self {
        match self {
            Self::Source { id, uid, .. } => Self::damaged_source(Arc::clone(id), uid.clone()),
            Self::Pod { uid, .. } => Self::Pod { uid: uid.clone(), refresh: None, held: Box::default(), print: 0 },
            Self::Unknown => Self::Unknown,
        }
    }

    fn read(meta: &Meta<'_>, json: &Bytes, kind: DependentKind, origin: &Origin) -> Result<Self, serde_json::Error> {
        let name = |key: &str| meta.annotation(key).and_then(|text| Name::parse(text).ok());
        let uid = |key: &str| meta.annotation(key).map(Uid::new);
        if let Some(uid) = uid(keys::VIRTUAL_POD_UID) {
            let pod = meta.annotation(keys::VIRTUAL_POD_NAME).unwrap_or_default();
            // Both ways or not at all (law 5): only under the name that we give it.
            if names::token_secret_name(&origin.label, uid.as_str(), pod) != meta.name.as_str() {
                return Ok(Self::Unknown);
            }
            let refresh = meta.annotation(keys::TOKEN_REFRESH);
            let Held { data } = serde_json::from_slice(json)?;
            let data = data.unwrap_or_default();
            let tokens: Vec<(&str, Option<&str>)> =
                data.iter().map(|(key, token)| (&**key, token.as_deref())).collect();
            let print = fingerprint((&tokens, refresh));
            let held =
                tokens.iter().map(|(key, token)| HeldToken { key: (*key).into(), renew_by: token.and_then(renew_by) });
            let refresh = refresh.and_then(|text| text.parse().ok());
            return Ok(Self::Pod { uid, refresh, held: held.collect(), print });
        }
        let back = (name(keys::VIRTUAL_NAMESPACE), name(keys::VIRTUAL_NAME), uid(keys::VIRTUAL_UID));
        let (Some(namespace), Some(name), Some(uid)) = back else { return Ok(Self::Unknown) };
        let version = meta.annotation(keys::VIRTUAL_RESOURCE_VERSION).and_then(|text| text.parse().ok()).map(Rv::new);
        let text = std::str::from_utf8(json).map_err(serde::de::Error::custom)?;
        // What cannot be read is written again.
        let digest = read_copy(kind, text).unwrap_or_default();
        let CopyDigest { intact, ways, changes, conflicts, immutable } = digest;
        let shared = Shared { ways, changes, conflicts: conflicts.map(Box::new) };
        Ok(Self::Source { id: Arc::new(Id { kind, namespace, name }), uid, version, intact, immutable, shared })
    }
}
