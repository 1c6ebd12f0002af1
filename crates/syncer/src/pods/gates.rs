//! Readiness gates: conditions that controllers of the virtual cluster set on the virtual pod. The copy has none, so its `Ready`
//! knows nothing of them: the virtual pod is ready when its copy is and all gates are `True`, worked out again when either
//! changes. Pure, and in the words of a kubelet; carries nothing else of the status.

use serde::Deserialize;
use serde_json::{Value, json};
use tapestry_domain::podspec::SpecNeeds;
use tapestry_domain::shape::Text;
use tapestry_engine::{Now, Reason as _};

use super::digest::StatusDigest;
use super::reason::PodReason;
use crate::json::fingerprint;

/// As much of a list of gates as a condition can show.
const LONGEST_TEXT: usize = 1024;

/// What a row keeps of the gates of a virtual pod that has any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gates {
    /// Which gates are not `True`, as a kubelet says it; `None` when all are.
    unmet: Option<Box<str>>,
    /// Fingerprint of what the pod's `Ready` says, without its time.
    said: u64,
}

/// What the gates of a pod make of a copy that is ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Gate {
    /// The pod has none: what the copy says holds.
    #[default]
    Absent,
    /// All are `True`. The pod became ready when the last of them did, which the copy does not know.
    Met,
    /// Not all are.
    Unmet {
        /// Which.
        message: Box<str>,
        /// The virtual pod says so already.
        said: bool,
    },
}

#[derive(Deserialize, Default)]
struct StatusJson<'a> {
    #[serde(borrow, default)]
    conditions: Vec<ConditionJson<'a>>,
}

#[derive(Deserialize)]
struct ConditionJson<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
    #[serde(borrow, default)]
    reason: Option<Text<'a>>,
    #[serde(borrow, default)]
    message: Option<Text<'a>>,
}

impl Gates {
    /// Of a virtual pod with this status; `None` when it has no gate.
    pub(super) fn read(spec: &SpecNeeds<'_>, status: &str) -> Result<Option<Box<Self>>, serde_json::Error> {
        if spec.readiness_gates().next().is_none() {
            return Ok(None);
        }
        let status: StatusJson<'_> = serde_json::from_str(status)?;
        let find = |kind: &str| status.conditions.iter().find(|condition| &*condition.kind == kind);
        let unmet = |gate: &str| match find(gate) {
            None => Some(format!("corresponding condition of pod readiness gate {gate:?} does not exist.")),
            Some(condition) if &*condition.status == "True" => None,
            Some(condition) => {
                Some(format!("the status of pod readiness gate {gate:?} is not \"True\", but {}", &*condition.status))
            }
        };
        let unmet: Vec<String> = spec.readiness_gates().filter_map(unmet).collect();
        let text = |part: &Option<Text<'_>>| part.as_deref().unwrap_or_default().to_owned();
        let said = find(READY).map_or(0, |ready| {
            fingerprint((&*ready.status, text(&ready.reason).as_str(), text(&ready.message).as_str()))
        });
        let told = || unmet.join(", ").chars().take(LONGEST_TEXT).collect::<String>().into();
        Ok(Some(Box::new(Self { unmet: (!unmet.is_empty()).then(told), said })))
    }

    /// What they make of a copy that is ready.
    pub(super) fn gate(&self) -> Gate {
        let Some(message) = &self.unmet else { return Gate::Met };
        let wanted = fingerprint(("False", PodReason::ReadinessGatesNotReady.as_str(), &**message));
        Gate::Unmet { message: message.clone(), said: self.said == wanted }
    }
}

const READY: &str = "Ready";

impl Gate {
    /// Whether the `Ready` of the virtual pod says what that of a copy which is ready means for it; `None` where only the two
    /// conditions themselves can be compared.
    pub(super) fn agrees(&self, virtual_ready: bool) -> Option<bool> {
        match self {
            Self::Absent => None,
            Self::Met => Some(virtual_ready),
            Self::Unmet { said, .. } => Some(*said),
        }
    }

    /// Makes the `Ready` of a copy that is ready say what it means for the virtual pod, whose status has this digest.
    pub(super) fn amend(&self, conditions: &mut [Value], before: &StatusDigest, now: Now) {
        let ready = conditions.iter_mut().find(|one| one["type"] == READY && one["status"] == "True");
        let Some(Value::Object(ready)) = ready else { return };
        let same = match self {
            Self::Absent => return,
            Self::Met => before.is_ready == Some(true),
            Self::Unmet { message, .. } => {
                ready.insert("status".to_owned(), json!("False"));
                ready.insert("reason".to_owned(), json!(PodReason::ReadinessGatesNotReady.as_str()));
                ready.insert("message".to_owned(), json!(message));
                before.is_ready == Some(false)
            }
        };
        if same {
            // What is there keeps its time.
            ready.remove("lastTransitionTime");
        } else {
            ready.insert("lastTransitionTime".to_owned(), json!(format!("{:.0}", now.wall)));
        }
    }
}

#[cfg(test)]
mod tests;
