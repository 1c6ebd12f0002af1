//! A pod's status as it flows up: what of it we carry, its fingerprint, the patch that makes both sides agree.
//! Carries by an allow-list, because one forbidden field makes the API server refuse the whole patch.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_domain::request::{ConditionShape, ContainerStatusShape, RequestsShape, StatusShape};
use tapestry_domain::resources::Resources;
use tapestry_domain::shape::Text;
use tapestry_engine::{Reason as _, reasons};

use super::gates::Gate;
use super::reason::PodReason;
use crate::json::fingerprint;

/// The condition types that the physical side owns. All others are foreign and survive.
const CONDITIONS: [&str; 6] =
    ["Initialized", READY, "ContainersReady", "PodReadyToStartContainers", RESIZE_PENDING, "PodResizeInProgress"];
const READY: &str = "Ready";
const RESIZE_PENDING: &str = "PodResizePending";
/// Owned by the client that set it first: Kubernetes sets it on virtual pods too.
const DISRUPTION: &str = "DisruptionTarget";

/// How far a pod's lifecycle has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
pub(crate) enum Phase {
    /// Not all containers have started.
    #[default]
    Pending,
    /// At least one container runs.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, at least one badly.
    Failed,
    /// The node's state is unknown.
    #[serde(other)]
    Unknown,
}

/// What is compared of a status: equal digests on both sides mean that nothing needs to be written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct StatusDigest {
    pub(crate) phase: Phase,
    /// A kubelet has taken it on.
    pub(crate) started: bool,
    /// Everything carried except the fields below.
    rest: u64,
    /// The Ready condition.
    ready: u64,
    /// Whether it says True or False; `None` when it says neither.
    pub(super) is_ready: Option<bool>,
    /// What the condition of a resize that does not happen says, without its time.
    pending: u64,
    pub(crate) disruption: bool,
    /// Which of [`CONDITIONS`] are there, one bit each.
    present: u8,
    /// Name and content of each container's status.
    containers: Box<[(u32, u64)]>,
}

/// Which statuses of the physical pod are about containers of the virtual one, by the hash of their names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Containers(Box<[u32]>);

/// `status` as the API server writes it, as far as we carry it.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Carried<'a> {
    phase: Phase,
    #[serde(borrow)]
    reason: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow, rename = "hostIP")]
    host_ip: Option<&'a RawValue>,
    #[serde(borrow, rename = "hostIPs")]
    host_ips: Option<&'a RawValue>,
    #[serde(borrow, rename = "podIP")]
    pod_ip: Option<&'a RawValue>,
    #[serde(borrow, rename = "podIPs")]
    pod_ips: Option<&'a RawValue>,
    #[serde(borrow)]
    start_time: Option<&'a RawValue>,
    observed_generation: Option<i64>,
    #[serde(borrow)]
    container_statuses: Vec<&'a RawValue>,
    #[serde(borrow)]
    init_container_statuses: Vec<&'a RawValue>,
    #[serde(borrow)]
    ephemeral_container_statuses: Vec<&'a RawValue>,
    #[serde(borrow)]
    conditions: Vec<Condition<'a>>,
    /// Not carried; what the pod asks for depends on it.
    resources: Option<RequestsShape>,
    allocated_resources: Option<Resources>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
    #[serde(borrow, default)]
    reason: Option<Text<'a>>,
    #[serde(borrow, default)]
    message: Option<Text<'a>>,
    #[serde(borrow, default)]
    last_transition_time: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: Text<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfContainer<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(default)]
    resources: Option<RequestsShape>,
    #[serde(default)]
    allocated_resources: Option<Resources>,
}

/// What the virtual status must say although the physical one does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Amend {
    /// Another client deletes the physical pod.
    pub(crate) leaving: bool,
    /// A resize does not happen.
    pub(crate) pending: Option<Pending>,
    /// What its readiness gates make of a copy that is ready.
    pub(crate) gate: Gate,
}

/// Why a resize does not happen, as a kubelet would say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) reason: PendingResize,
    pub(crate) message: String,
}

reasons! {
    /// Reason of condition `PodResizePending`.
    pub(crate) enum PendingResize {
        /// Later, perhaps.
        Deferred,
        /// Never.
        Infeasible,
    }
}

impl Phase {
    /// Whether all containers have ended and will not restart.
    #[must_use]
    pub(crate) fn terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}

impl Containers {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self(names.map(short).collect())
    }

    fn hold(&self, name: u32) -> bool {
        self.0.contains(&name)
    }
}

impl StatusDigest {
    /// Of a status of which nothing else can be read.
    pub(crate) fn of_phase(phase: Phase) -> Self {
        Self { phase, ..Self::default() }
    }

    /// Reads a status. `generation` replaces the pod's own figure where the two sides count differently:
    /// on the physical side, the virtual generation that was last pushed.
    pub(crate) fn read(status: &str, generation: Option<i64>) -> Result<Self, serde_json::Error> {
        Self::read_shape(status, generation).map(|(digest, _)| digest)
    }

    /// Reads a status, and what of it decides how much the pod asks for: every event does both, and a text is parsed once.
    pub(crate) fn read_shape(
        status: &str,
        generation: Option<i64>,
    ) -> Result<(Self, StatusShape<'_>), serde_json::Error> {
        let status: Carried<'_> = serde_json::from_str(status)?;
        let mut shape = StatusShape::default();
        let mut digest = Self { phase: status.phase, started: status.start_time.is_some(), ..Self::default() };
        let mut others = Vec::with_capacity(CONDITIONS.len());
        for condition in &status.conditions {
            let Condition { kind, status, reason, message, last_transition_time } = condition;
            let content = || {
                let text = |part: &Option<Text<'_>>| fingerprint(part.as_deref().unwrap_or_default());
                (fingerprint(&**status), text(reason), text(message), text(last_transition_time))
            };
            match CONDITIONS.iter().position(|ours| **ours == **kind) {
                None => digest.disruption |= &**kind == DISRUPTION && &**status == "True",
                Some(bit) if CONDITIONS[bit] == READY => {
                    digest.ready = fingerprint(content());
                    digest.is_ready = match &**status {
                        "True" => Some(true),
                        "False" => Some(false),
                        _ => None,
                    };
                    digest.present |= 1 << bit;
                }
                Some(bit) if CONDITIONS[bit] == RESIZE_PENDING => {
                    let text = |part: &Option<Text<'_>>| part.as_deref().unwrap_or_default().to_owned();
                    digest.pending = Pending::digest(status, &text(reason), &text(message));
                    let reason = reason.clone().unwrap_or_default();
                    shape.conditions.push(ConditionShape { kind: kind.clone(), reason });
                    digest.present |= 1 << bit;
                }
                Some(bit) => {
                    others.push((bit, content()));
                    digest.present |= 1 << bit;
                }
            }
        }
        others.sort_unstable();
        let text = |part: Option<&RawValue>| part.map_or(0, |raw| fingerprint(raw.get()));
        let observed = status.observed_generation.map(|own| generation.unwrap_or(own));
        digest.rest = fingerprint((
            [text(status.reason), text(status.message), text(status.start_time)],
            [text(status.host_ip), text(status.host_ips), text(status.pod_ip), text(status.pod_ips)],
            observed,
            others,
        ));
        let mut containers = Vec::with_capacity(status.container_statuses.len());
        let lists = [
            (&status.container_statuses, Some(&mut shape.container_statuses)),
            (&status.init_container_statuses, Some(&mut shape.init_container_statuses)),
            // They ask for nothing.
            (&status.ephemeral_container_statuses, None),
        ];
        for (statuses, mut shapes) in lists {
            for raw in statuses {
                let OfContainer { name, resources, allocated_resources } = serde_json::from_str(raw.get())?;
                containers.push((short(&name), fingerprint(raw.get())));
                if let Some(shapes) = &mut shapes {
                    let allocated_resources = allocated_resources.unwrap_or_default();
                    shapes.push(ContainerStatusShape { name, resources, allocated_resources });
                }
            }
        }
        digest.containers = containers.into();
        shape.resources = status.resources;
        shape.allocated_resources = status.allocated_resources.unwrap_or_default();
        Ok((digest, shape))
    }

    /// Whether the virtual status (self) says what the physical one does.
    pub(crate) fn agrees_with(&self, physical: &Self, containers: &Containers, amend: &Amend) -> bool {
        let gated = if physical.is_ready == Some(true) { amend.gate.agrees(self.is_ready == Some(true)) } else { None };
        let ready = match gated {
            _ if amend.leaving => self.is_ready == Some(false) && self.disruption,
            Some(agrees) => agrees,
            None => self.ready == physical.ready,
        };
        let pending = amend.pending.as_ref().map_or(physical.pending, Pending::as_digest);
        ready
            && self.pending == pending
            && self.phase == physical.phase
            && self.rest == physical.rest
            && (self.disruption || !physical.disruption)
            && self.containers.iter().eq(physical.containers.iter().filter(|(name, _)| containers.hold(*name)))
    }

    /// Whether it tells this of a resize.
    pub(crate) fn says(&self, pending: &Pending) -> bool {
        self.pending == pending.as_digest()
    }

    pub(crate) fn hash(&self) -> u64 {
        fingerprint(self)
    }
}

impl Pending {
    fn digest(status: &str, reason: &str, message: &str) -> u64 {
        fingerprint((status, reason, message))
    }

    fn as_digest(&self) -> u64 {
        Self::digest("True", self.reason.as_str(), &self.message)
    }

    /// The reason of the event that tells it.
    pub(crate) fn event(&self) -> &'static str {
        match self.reason {
            PendingResize::Deferred => PodReason::ResizeDeferred,
            PendingResize::Infeasible => PodReason::ResizeInfeasible,
        }
        .as_str()
    }

    pub(crate) fn render(&self, generation: i64, now: jiff::Timestamp) -> Value {
        let since = now.to_string();
        let mut condition =
            render_condition(RESIZE_PENDING, "True", Some(self.reason.as_str()), Some(&self.message), Some(&since));
        condition["observedGeneration"] = json!(generation);
        condition
    }
}

/// The strategic merge patch of `status` that makes `virtual_digest` agree with a physical status;
/// `since` is when the copy's deletion was asked for, if it was.
pub(crate) fn render_patch(
    physical: &str,
    generation: i64,
    virtual_digest: &StatusDigest,
    containers: &Containers,
    amend: &Amend,
    since: Option<&str>,
) -> Result<Map<String, Value>, serde_json::Error> {
    let status: Carried<'_> = serde_json::from_str(physical)?;
    let mut patch = Map::new();
    let mut set = |key: &str, value: Value| drop(patch.insert(key.to_owned(), value));
    let text = |raw: Option<&RawValue>| raw.map_or(Ok(Value::Null), |raw| serde_json::from_str(raw.get()));
    set("phase", json!(status.phase.as_str()));
    for (key, raw) in [
        ("reason", status.reason),
        ("message", status.message),
        ("hostIP", status.host_ip),
        ("podIP", status.pod_ip),
        ("startTime", status.start_time),
    ] {
        set(key, text(raw)?);
    }
    for (key, raw) in [("hostIPs", status.host_ips), ("podIPs", status.pod_ips)] {
        // Merged by `ip`, a changed address would be listed beside the old one, which is refused.
        let mut list = vec![json!({"$patch": "replace"})];
        if let Value::Array(addresses) = text(raw)? {
            list.extend(addresses);
        }
        set(key, Value::Array(list));
    }
    if status.observed_generation.is_some() {
        set("observedGeneration", json!(generation));
    }
    for (key, statuses) in [
        ("containerStatuses", &status.container_statuses),
        ("initContainerStatuses", &status.init_container_statuses),
        ("ephemeralContainerStatuses", &status.ephemeral_container_statuses),
    ] {
        let mut ours = Vec::new();
        for raw in statuses {
            if containers.hold(short(&serde_json::from_str::<Named<'_>>(raw.get())?.name)) {
                ours.push(serde_json::from_str(raw.get())?);
            }
        }
        set(key, if ours.is_empty() { Value::Null } else { Value::Array(ours) });
    }
    set("conditions", Value::Array(render_conditions(&status, generation, virtual_digest, amend, since)));
    Ok(patch)
}

fn render_conditions(
    status: &Carried<'_>,
    generation: i64,
    virtual_digest: &StatusDigest,
    amend: &Amend,
    since: Option<&str>,
) -> Vec<Value> {
    let bit = |kind: &str| CONDITIONS.iter().position(|ours| *ours == kind).map_or(0, |bit| 1u8 << bit);
    let Amend { leaving, pending, gate: _ } = amend;
    let leaving = *leaving;
    // An eviction in the physical cluster says itself what it is.
    let mut disrupted = false;
    let mut list = Vec::new();
    let mut present = 0u8;
    for Condition { kind, status: value, reason, message, last_transition_time } in &status.conditions {
        let Some(bit) = CONDITIONS.iter().position(|ours| **ours == **kind) else {
            if &**kind != DISRUPTION || (leaving && &**value != "True") {
                continue;
            }
            disrupted |= &**value == "True";
            list.push(render_condition(
                kind,
                value,
                reason.as_deref(),
                message.as_deref(),
                last_transition_time.as_deref(),
            ));
            continue;
        };
        present |= 1 << bit;
        if (leaving && &**kind == READY) || (pending.is_some() && &**kind == RESIZE_PENDING) {
            continue;
        }
        let mut condition =
            render_condition(kind, value, reason.as_deref(), message.as_deref(), last_transition_time.as_deref());
        if status.observed_generation.is_some() {
            condition["observedGeneration"] = json!(generation);
        }
        list.push(condition);
    }
    if leaving {
        let why = "the physical pod is being deleted";
        let reason = Some(PodReason::PhysicalPodTerminating.as_str());
        list.push(render_condition(READY, "False", reason, Some(why), since));
        if !disrupted {
            list.push(render_condition(DISRUPTION, "True", reason, Some(why), since));
        }
        present |= bit(READY);
    }
    if pending.is_some() {
        present |= bit(RESIZE_PENDING);
    }
    for (bit, kind) in CONDITIONS.iter().enumerate() {
        if virtual_digest.present & !present & (1 << bit) != 0 {
            list.push(json!({"type": kind, "$patch": "delete"}));
        }
    }
    list
}

fn render_condition(
    kind: &str,
    status: &str,
    reason: Option<&str>,
    message: Option<&str>,
    since: Option<&str>,
) -> Value {
    // Nulls on purpose: what the virtual condition still says and the physical one does not must go.
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
}

/// The status of a pod whose physical pod is gone and never reported an end.
pub(crate) fn render_failed(reason: PodReason, message: &str, now: jiff::Timestamp) -> Map<String, Value> {
    let (since, reason) = (now.to_string(), reason.as_str());
    let mut patch = Map::new();
    patch.insert("phase".to_owned(), json!("Failed"));
    patch.insert("reason".to_owned(), json!(reason));
    patch.insert("message".to_owned(), json!(message));
    let conditions = json!([
        render_condition(READY, "False", Some("PodFailed"), None, Some(&since)),
        render_condition("ContainersReady", "False", Some("PodFailed"), None, Some(&since)),
        render_condition(DISRUPTION, "True", Some(reason), Some(message), Some(&since)),
    ]);
    patch.insert("conditions".to_owned(), conditions);
    patch
}

/// Our own condition: whether the pod is admitted.
pub(crate) fn render_admitted(refused: Option<(&str, &str)>, now: jiff::Timestamp) -> Value {
    let since = now.to_string();
    match refused {
        Some((reason, message)) => {
            render_condition(keys::CONDITION_ADMITTED, "False", Some(reason), Some(message), Some(&since))
        }
        None => render_condition(keys::CONDITION_ADMITTED, "True", Some("Admitted"), None, Some(&since)),
    }
}

fn short(name: &str) -> u32 {
    // Truncation is meant: it tells apart the few containers of one pod.
    #[expect(clippy::cast_possible_truncation, reason = "half of the hash is enough here")]
    let short = fingerprint(name) as u32;
    short
}
