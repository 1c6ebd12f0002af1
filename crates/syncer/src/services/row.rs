//! What we keep of a Service: of one in the virtual cluster what its copy must say, of a copy whether it says so, of any other in
//! the mount namespace its name. Whole objects are read by the gate when they are carried.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use tapestry_api::keys;
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Name, Rv, Uid};
use tapestry_domain::services::{CopyDigest, Unfit, read_copy, read_service};

use super::Id;
use crate::json::{Meta, Pairs};
use crate::origin::Origin;

/// A Service of the virtual cluster.
#[derive(Debug, Clone)]
pub struct VService {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) id: Arc<Id>,
    /// A mark of all that its copy has to say, or why it has none.
    pub(super) mark: Result<u64, Unfit>,
    pub(super) headless: bool,
    /// It is of type `LoadBalancer`.
    pub(super) balanced: bool,
    /// JSON of `status.loadBalancer.ingress`; `None` when it is empty.
    pub(super) ingress: Option<Box<str>>,
    /// JSON of those that are ours, as its annotation says.
    pub(super) recorded: Option<Box<str>>,
}

/// A Service of the mount namespace.
#[derive(Debug, Clone)]
pub struct PService {
    pub(super) uid: Uid,
    pub(super) rv: Rv,
    pub(super) name: Name,
    /// `None` when it does not carry our origin, or does not say what it is a copy of.
    pub(super) of: Option<Box<Of>>,
}

/// What a copy says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) id: Arc<Id>,
    /// `None` when the annotation is missing.
    pub(super) uid: Option<Uid>,
    /// The mark of what was carried into it.
    pub(super) mark: Option<u64>,
    /// Whether all that was carried is there as it was carried, and so are all our labels and annotations.
    pub(super) intact: bool,
    pub(super) headless: bool,
    pub(super) deleting: bool,
    /// When it was created, in seconds since 1970 by the physical cluster.
    pub(super) born: i64,
    /// JSON of `status.loadBalancer.ingress`; `None` when it is empty.
    pub(super) ingress: Option<Box<str>>,
}

impl Row for VService {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        // Most go without a deletionTimestamp; that one is gone is proven by a read.
        false
    }
}

impl Row for PService {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.of.as_ref().is_some_and(|of| of.deleting)
    }
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
}

/// What is read of ours only: another client's Service may hold anything.
#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    spec: Option<Spec<'a>>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Spec<'a> {
    #[serde(borrow, default)]
    selector: Option<Pairs<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    load_balancer: Option<LoadBalancer>,
}

#[derive(Deserialize)]
struct LoadBalancer {
    #[serde(default)]
    ingress: Option<Vec<Value>>,
}

impl VService {
    /// Decodes a Service; `None` for that of the API server itself. `record` is the annotation that says which addresses are ours.
    pub fn decode(json: &Bytes, origin: &Origin, record: &str) -> Result<Option<Self>, serde_json::Error> {
        let Object { metadata: meta } = serde_json::from_slice(json)?;
        let Some(namespace) = meta.namespace.clone() else { return Ok(None) };
        if (namespace.as_str(), meta.name.as_str()) == ("default", "kubernetes") {
            return Ok(None);
        }
        let text = std::str::from_utf8(json).map_err(serde::de::Error::custom)?;
        let digest = read_service(text, &origin.label).map_err(serde::de::Error::custom)?;
        Ok(Some(Self {
            mark: digest.mark,
            headless: digest.headless,
            balanced: digest.balanced,
            ingress: serde_json::from_slice::<Body<'_>>(json)?.ingress(),
            recorded: meta.annotation(record).map(Into::into),
            uid: meta.uid,
            rv: meta.resource_version,
            id: Arc::new(Id { namespace, name: meta.name }),
        }))
    }
}

impl PService {
    /// Decodes any Service of the mount namespace.
    pub fn decode(json: &Bytes, origin: &Origin) -> Result<Option<Self>, serde_json::Error> {
        let Object { metadata: meta } = serde_json::from_slice(json)?;
        // Either mark is enough to know it again; what lacks one gets it back.
        let labelled = meta.label(keys::ORIGIN) == Some(&*origin.label);
        let annotated = meta.annotation(keys::ORIGIN) == Some(&*origin.full);
        let of = if labelled || annotated { Of::read(&meta, json, origin) } else { None };
        Ok(Some(Self { uid: meta.uid, rv: meta.resource_version, name: meta.name, of: of.map(Box::new) }))
    }

    /// The Service whose copy it is.
    pub(super) fn id(&self) -> Option<&Arc<Id>> {
        self.of.as_ref().map(|of| &of.id)
    }
}

impl Of {
    fn read(meta: &Meta<'_>, json: &Bytes, origin: &Origin) -> Option<Self> {
        let body: Body<'_> = serde_json::from_slice(json).ok()?;
        let name = |key: &str| meta.annotation(key).and_then(|text| Name::parse(text).ok());
        // A copy without annotations selects pods of one virtual namespace all the same, and most have their Service's name.
        let selected = || {
            let selector = body.spec.as_ref()?.selector.as_ref()?;
            let ours = selector.get(keys::ORIGIN) == Some(&*origin.label);
            Name::parse(selector.get(keys::VIRTUAL_NAMESPACE).filter(|_| ours)?).ok()
        };
        let namespace = name(keys::VIRTUAL_NAMESPACE).or_else(selected)?;
        let id = Id { namespace, name: name(keys::VIRTUAL_NAME).unwrap_or_else(|| meta.name.clone()) };
        let labels = origin.labels().iter().all(|(key, value)| meta.label(key) == Some(value));
        let annotations = origin.annotations().iter().all(|(key, value)| meta.annotation(key) == Some(value));
        let back = [(keys::VIRTUAL_NAMESPACE, &id.namespace), (keys::VIRTUAL_NAME, &id.name)];
        let pointing = back.iter().all(|(key, name)| meta.annotation(key) == Some(name.as_str()));
        // What cannot be read is written again.
        let digest = std::str::from_utf8(json).ok().and_then(|text| read_copy(text).ok());
        let digest = digest.unwrap_or(CopyDigest { mark: None, intact: false, headless: false });
        Some(Self {
            uid: meta.annotation(keys::VIRTUAL_UID).map(Uid::new),
            mark: digest.mark,
            intact: digest.intact && labels && annotations && pointing,
            headless: digest.headless,
            deleting: meta.deletion_timestamp.is_some(),
            born: meta.creation_timestamp.as_deref().and_then(|time| time.parse().ok()).map_or(0, Timestamp::as_second),
            ingress: body.ingress(),
            id: Arc::new(id),
        })
    }
}

impl Body<'_> {
    /// As canonical text: the fields of each entry in the same order, whichever cluster wrote them.
    fn ingress(&self) -> Option<Box<str>> {
        let entries = self.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref().filter(|list| !list.is_empty())?;
        serde_json::to_string(entries).ok().map(Into::into)
    }
}
