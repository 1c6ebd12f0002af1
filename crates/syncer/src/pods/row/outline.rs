//! A pod that cannot be fully read: enough is read of it to answer it, to let it go, and to keep others off its node.
//! Must not guess what it does not say; what it said before holds on.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tapestry_cluster::Name;
use tapestry_domain::podspec::{SpecNeeds, mend_tolerations};
use tapestry_domain::quantity::Quantity;
use tapestry_domain::resources::{ResourceName, Resources};

use super::{PodJson, SpecJson, read_ports};
use crate::json::Meta;
use crate::pods::digest::{Phase, StatusDigest};

/// The part of an object that has a form this version does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Spec,
    Status,
}

impl Part {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Status => "status",
        }
    }
}

/// What can be read of any pod.
pub(super) struct Outline<'a> {
    pub(super) meta: Meta<'a>,
    pub(super) node: Option<Name>,
    pub(super) phase: Phase,
    /// `status` as JSON.
    pub(super) status: &'a str,
    pub(super) unreadable: Part,
}

impl<'a> Outline<'a> {
    /// Fails where not even this can be read: then the pod is only counted.
    pub(super) fn read(json: &'a Bytes) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Placed {
            #[serde(default)]
            node_name: Option<Name>,
        }
        #[derive(Deserialize)]
        struct Lived {
            #[serde(default)]
            phase: Phase,
        }
        let PodJson { metadata: meta, spec, status } = serde_json::from_slice(json)?;
        let status = status.map_or("{}", RawValue::get);
        let Placed { node_name: node } = serde_json::from_str(spec.get())?;
        let Lived { phase } = serde_json::from_str(status)?;
        let tolerates = |spec: SpecJson<'_>| mend_tolerations(spec.tolerations.map_or("null", RawValue::get)).is_ok();
        let whole = serde_json::from_str(spec.get()).is_ok_and(tolerates);
        let whole = whole && read_ports(spec).is_ok() && serde_json::from_str::<SpecNeeds<'_>>(spec.get()).is_ok();
        Ok(Self { meta, node, phase, status, unreadable: if whole { Part::Status } else { Part::Spec } })
    }

    /// Its status as far as it can be read.
    pub(super) fn digest(&self, generation: Option<i64>) -> StatusDigest {
        StatusDigest::read(self.status, generation).unwrap_or_else(|_| StatusDigest::of_phase(self.phase))
    }
}

/// What a pod of unknown size asks for at least.
pub(super) fn at_least() -> Resources {
    [(ResourceName::Pods, Quantity::from_whole(1))].into_iter().collect()
}
