//! The parts of volumes, claims and classes that are read, borrowed from their JSON text. Keeps nothing.

use serde::Deserialize;
use serde_json::value::RawValue;
use tapestry_domain::shape::Text;

use crate::json::Meta;

#[derive(Deserialize)]
pub(super) struct ClaimObject<'a> {
    #[serde(borrow)]
    pub(super) metadata: Meta<'a>,
    #[serde(borrow, default)]
    pub(super) spec: Option<ClaimSpec<'a>>,
    #[serde(borrow, default)]
    pub(super) status: Option<ClaimStatus<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaimSpec<'a> {
    #[serde(borrow)]
    pub(super) volume_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) storage_class_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) resources: Option<Resources<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Resources<'a> {
    #[serde(borrow)]
    pub(super) requests: Option<Storage<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Storage<'a> {
    #[serde(borrow)]
    pub(super) storage: Option<Text<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimStatus<'a> {
    #[serde(borrow)]
    pub(super) phase: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) capacity: Option<Storage<'a>>,
    #[serde(borrow)]
    pub(super) conditions: Option<Vec<Condition<'a>>>,
}

#[derive(Deserialize)]
pub(super) struct Condition<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(borrow, default)]
    pub(super) status: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) reason: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) message: Option<Text<'a>>,
}

#[derive(Deserialize)]
pub(super) struct VolumeObject<'a> {
    #[serde(borrow)]
    pub(super) metadata: Meta<'a>,
    #[serde(borrow)]
    pub(super) spec: &'a RawValue,
    #[serde(borrow, default)]
    pub(super) status: Option<VolumeStatus<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeSpec<'a> {
    #[serde(borrow)]
    pub(super) capacity: Option<Storage<'a>>,
    #[serde(borrow)]
    pub(super) access_modes: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    pub(super) persistent_volume_reclaim_policy: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) storage_class_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) claim_ref: Option<Reference<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Reference<'a> {
    #[serde(borrow)]
    pub(super) namespace: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) uid: Option<Text<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct VolumeStatus<'a> {
    #[serde(borrow)]
    pub(super) phase: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClassObject<'a> {
    #[serde(borrow)]
    pub(super) metadata: Meta<'a>,
    #[serde(default)]
    pub(super) allow_volume_expansion: Option<bool>,
}
