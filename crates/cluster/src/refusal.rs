//! Why a call was not carried out, in the few classes that decide what happens next.
//! Never looks at message texts; only at codes, reasons and causes.

use std::time::Duration;

use serde::Deserialize;

use crate::{Call, Need, Sub, Verb};

/// The only outcomes of a call besides an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The API server itself says that this object does not exist. Proof only as the answer to a `Get`.
    Gone,
    /// A precondition failed: it is not the object, or not the version, that the plan looked at.
    Replaced,
    /// Create: the name is taken.
    Exists,
    /// Not carried out; the cluster is busy and asks to retry any call after this time.
    Later(Duration),
    /// Not carried out, because of this one object: a disruption budget (or the deletion of its namespace) holds the pod for now.
    /// Retry after this time; says nothing about the cluster.
    Held(Duration, Box<Status>),
    /// The request itself is wrong: the same request will be refused again.
    Invalid(Box<Status>),
    /// We may not do this.
    Denied(Box<Status>),
    /// Not sent: this process no longer leads, and the new leader has planned by now. Says nothing about the object.
    NotLeading,
    /// No trustworthy answer: it may or may not have happened.
    Unknown(String),
}

/// The part of a `metav1.Status` that we read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Status {
    /// `Status` for a typed answer.
    pub kind: String,
    /// HTTP code.
    pub code: u16,
    /// Machine-readable reason, `NotFound`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Which object, which fields.
    pub details: Details,
}

/// Details of a [`Status`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// Plural (or kind) of the object.
    pub kind: String,
    /// What is wrong, field by field.
    pub causes: Vec<Cause>,
    /// How long to wait.
    #[serde(rename = "retryAfterSeconds")]
    pub retry_after: Option<u32>,
}

/// One cause of a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// Machine-readable.
    pub reason: String,
    /// Path of the field.
    pub field: String,
    /// For people.
    pub message: String,
}

/// How long to wait when the cluster does not say.
const LATER: Duration = Duration::from_secs(1);
/// The same for one pod: budgets change when other pods become ready, which takes seconds.
const HELD: Duration = Duration::from_secs(2);
/// The causes that concern one pod only.
const HOLDS: [&str; 2] = ["DisruptionBudget", NAMESPACE_TERMINATING];
/// Fields that nothing changes once `immutable` is set.
const FIXED_ONCE_IMMUTABLE: [&str; 3] = ["data", "binaryData", "immutable"];
/// Fields of a Service, and the beginnings of their names, that no update changes.
const FIXED_IN_SERVICES: [&str; 3] = ["spec.clusterIP", "spec.ipFamilies", "spec.loadBalancerClass"];
/// The cause that Kubernetes gives when a namespace is being deleted.
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
impl Refusal {
    /// `PascalCase`, for events and metric labels.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Gone => "Gone",
            Self::Replaced => "Replaced",
            Self::Exists => "Exists",
            Self::Later(_) => "Later",
            Self::Held(..) => "Held",
            Self::Invalid(_) => "Invalid",
            Self::Denied(_) => "Denied",
            Self::NotLeading => "NotLeading",
            Self::Unknown(_) => "Unknown",
        }
    }

    /// The message for users; never contains a body.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::Gone => "the object does not exist",
            Self::Replaced => "the object has changed",
            Self::Exists => "the name is taken",
            Self::Later(_) => "the cluster is busy",
            // The cause names the budget and what it requires; the status itself is the same for all.
            Self::Held(_, status) => holds(status).map_or(&status.message, |cause| &cause.message),
            Self::Invalid(status) | Self::Denied(status) => &status.message,
            Self::NotLeading => "another process leads now",
            Self::Unknown(why) => why,
        }
    }

    /// The same refusal in other words.
    pub(crate) fn map_texts(mut self, change: impl Fn(&mut String)) -> Self {
        match &mut self {
            Self::Held(_, status) | Self::Invalid(status) | Self::Denied(status) => {
                change(&mut status.message);
                status.details.causes.iter_mut().for_each(|cause| change(&mut cause.message));
            }
            Self::Unknown(why) => change(why),
            Self::Gone | Self::Replaced | Self::Exists | Self::Later(_) | Self::NotLeading => {}
        }
        self
    }

    /// What we find out ourselves and no server answered: the same call will be refused again.
    pub(crate) fn of_ours(code: u16, message: String) -> Self {
        Self::Invalid(Box::new(Status { kind: "Status".to_owned(), code, message, ..Status::default() }))
    }

    /// Whether the object that was to be changed does not let the change in: Kubernetes fixes the type of a Secret, the values of
    /// an immutable ConfigMap or Secret, and addresses and load balancer class of a Service, at their creation. A policy that refuses the new values says nothing of the kind.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        let Self::Invalid(status) = self else { return false };
        let fixed = |cause: &Cause| match (cause.field.as_str(), cause.reason.as_str()) {
            ("type", "FieldValueInvalid") => true,
            (field, "FieldValueInvalid") => FIXED_IN_SERVICES.iter().any(|fixed| field.starts_with(fixed)),
            (field, "FieldValueForbidden") => FIXED_ONCE_IMMUTABLE.contains(&field),
            _ => false,
        };
        status.details.causes.iter().any(fixed)
    }

    /// The right that we lack for all calls of this sort, as far as the answer shows. A refusal of one object by admission, a
    /// quota or the deletion of its namespace says nothing about others.
    #[must_use]
    pub fn bars<'a>(&self, call: &'a Call) -> Option<Need<'a>> {
        let Self::Denied(status) = self else { return None };
        // A quota refuses a resize in the same form as the authorizer, and the pod reports it.
        if call.sub() == Sub::Resize {
            return None;
        }
        let Details { name, kind, causes, .. } = &status.details;
        if causes.iter().any(|cause| cause.reason == NAMESPACE_TERMINATING) {
            return None;
        }
        // Discovery needs none; the caller judges it.
        let mut needs = call.needs();
        // For a create, the authorizer names only the resource; admission also names the object.
        let by_authorizer = *kind == call.target.kind.plural || status.code == 401;
        let bars = match &call.verb {
            Verb::Create(_) => by_authorizer && name.is_empty(),
            // A webhook that refuses to change one object names nothing.
            Verb::Evict { .. } | Verb::Merge(..) | Verb::Strategic(..) | Verb::Apply(..) => by_authorizer,
            // The answer names the object of the request that was refused.
            Verb::Carry { .. } | Verb::Token { .. } => {
                needs.retain(|need| {
                    let named = need.name.map_or("", crate::Name::as_str);
                    let nameless = status.code == 401 && kind.is_empty();
                    nameless || (*kind == need.kind.plural && *name == named)
                });
                true
            }
            Verb::Get | Verb::Peek | Verb::Version | Verb::Discover { .. } | Verb::Delete { .. } => true,
        };
        needs.pop().filter(|_| bars)
    }

    /// Classifies an answer that is not a success. `retry_after` is the header's value.
    #[must_use]
    pub fn classify(call: &Call, code: u16, body: &[u8], retry_after: Option<u32>) -> Self {
        // A load balancer's HTML 404 is not a Status: it proves nothing.
        let status: Option<Status> =
            serde_json::from_slice(body).ok().filter(|status: &Status| status.kind == "Status");
        let Some(status) = status else {
            return match code {
                429 => Self::Later(wait(retry_after)),
                _ => Self::Unknown(format!("HTTP {code} without a Status")),
            };
        };
        let about_uid = status.details.causes.iter().any(|cause| cause.field == "metadata.uid");
        let evicts = matches!(call.verb, Verb::Evict { .. });
        match code {
            // Admission sees an eviction as a create and answers 403 in a namespace that is being deleted, which deletes
            // the pod anyway.
            403 | 429 if evicts && holds(&status).is_some() => {
                let asked = retry_after.or(status.details.retry_after).filter(|seconds| *seconds > 0);
                Self::Held(asked.map_or(HELD, |seconds| wait(Some(seconds))), Box::new(status))
            }
            // Two budgets select one pod: a user has to fix them. An internal error of the server has a reason.
            500 if evicts && status.reason.is_empty() => Self::Invalid(Box::new(status)),
            404 if names_target(call, &status) => Self::Gone,
            // Another object does not exist (the namespace of a create): our request cannot succeed as it is.
            404 if matches!(call.verb, Verb::Create(_)) => Self::Invalid(Box::new(status)),
            409 if status.reason == "AlreadyExists" => Self::Exists,
            409 => Self::Replaced,
            422 if about_uid => Self::Replaced,
            400 | 405 | 406 | 413 | 415 | 422 => Self::Invalid(Box::new(status)),
            401 | 403 => Self::Denied(Box::new(status)),
            429 | 503 => Self::Later(wait(retry_after.or(status.details.retry_after))),
            _ => Self::Unknown(status.message),
        }
    }
}

/// Why one pod is held.
fn holds(status: &Status) -> Option<&Cause> {
    status.details.causes.iter().find(|cause| HOLDS.contains(&&*cause.reason))
}

/// Whether a 404 is about the object that was asked for.
fn names_target(call: &Call, status: &Status) -> bool {
    let kind = &status.details.kind;
    status.details.name == call.target.name.as_str()
        && (kind == call.target.kind.plural || kind == call.target.kind.kind)
}

fn wait(seconds: Option<u32>) -> Duration {
    // If a cluster asks for hours, retry after a minute.
    seconds.map_or(LATER, |seconds| Duration::from_secs(seconds.clamp(1, 60).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Name, Side, Target, kind};

    fn get() -> Call {
        let name = |text| Name::parse(text).unwrap();
        Call {
            target: Target::namespaced(Side::Virtual, &kind::POD, name("a"), name("web")),
            verb: Verb::Get,
            why: "Test",
        }
    }

    fn evict() -> Call {
        Call { verb: Verb::Evict { grace: None }, ..get() }
    }

    fn status(code: u16, reason: &str, details: &str) -> String {
        format!(r#"{{"kind":"Status","code":{code},"reason":"{reason}","message":"m","details":{details}}}"#)
    }

    #[test]
    fn law_01_only_a_typed_404_for_the_very_object_is_gone() {
        let ours = status(404, "NotFound", r#"{"name":"web","kind":"pods"}"#);
        assert_eq!(Refusal::classify(&get(), 404, ours.as_bytes(), None), Refusal::Gone);
        for other in [
            "<html>404 not found</html>".to_owned(),
            "404 page not found".to_owned(),
            status(404, "NotFound", r#"{"name":"web","kind":"secrets"}"#),
            status(404, "NotFound", r#"{"name":"other","kind":"pods"}"#),
            status(404, "NotFound", "{}"),
        ] {
            assert!(matches!(Refusal::classify(&get(), 404, other.as_bytes(), None), Refusal::Unknown(_)), "{other}");
        }
    }

    #[test]
    fn a_stale_uid_is_a_precondition_and_not_bad_input() {
        let uid = status(422, "Invalid", r#"{"causes":[{"field":"metadata.uid"}]}"#);
        assert_eq!(Refusal::classify(&get(), 422, uid.as_bytes(), None), Refusal::Replaced);
        let field = status(422, "Invalid", r#"{"causes":[{"field":"spec.containers"}]}"#);
        assert!(matches!(Refusal::classify(&get(), 422, field.as_bytes(), None), Refusal::Invalid(_)));
    }

    #[test]
    fn a_busy_cluster_is_left_alone_for_as_long_as_it_asks_but_a_minute_at_most() {
        let busy = status(429, "TooManyRequests", "{}");
        assert_eq!(Refusal::classify(&get(), 429, busy.as_bytes(), Some(3)), Refusal::Later(Duration::from_secs(3)));
        assert_eq!(Refusal::classify(&get(), 429, busy.as_bytes(), Some(9999)), Refusal::Later(Duration::from_mins(1)));
        assert_eq!(Refusal::classify(&get(), 429, b"slow down", None), Refusal::Later(LATER));
    }

    #[test]
    fn a_disruption_budget_holds_one_pod_and_says_nothing_of_the_cluster() {
        let causes =
            r#"{"causes":[{"reason":"DisruptionBudget","message":"web needs 2 healthy pods and has 2 currently"}]}"#;
        let held = |body: &str, retry_after| match Refusal::classify(&evict(), 429, body.as_bytes(), retry_after) {
            Refusal::Held(wait, status) => (wait.as_secs(), Refusal::Held(wait, status).message().to_owned()),
            other => panic!("{other:?}"),
        };
        let budget = status(429, "TooManyRequests", causes);
        let why = "web needs 2 healthy pods and has 2 currently";
        assert_eq!(held(&budget, None), (2, why.to_owned()));
        assert_eq!(held(&budget, Some(0)), (2, why.to_owned()));
        assert_eq!(held(&budget, Some(3)), (3, why.to_owned()));
        // Overload concerns the cluster, also when it refuses an eviction.
        let busy = status(429, "TooManyRequests", "{}");
        assert_eq!(Refusal::classify(&evict(), 429, busy.as_bytes(), Some(3)), Refusal::Later(Duration::from_secs(3)));
        assert_eq!(Refusal::classify(&evict(), 429, b"slow down", Some(3)), Refusal::Later(Duration::from_secs(3)));
    }

    #[test]
    fn an_eviction_from_a_namespace_that_is_deleted_is_held_and_without_the_right_it_is_denied() {
        let going = status(403, "Forbidden", r#"{"causes":[{"reason":"NamespaceTerminating"}]}"#);
        assert!(matches!(Refusal::classify(&evict(), 403, going.as_bytes(), None), Refusal::Held(..)));
        assert!(matches!(Refusal::classify(&get(), 403, going.as_bytes(), None), Refusal::Denied(_)));
        let forbidden = status(403, "Forbidden", r#"{"name":"web","kind":"pods"}"#);
        assert!(matches!(Refusal::classify(&evict(), 403, forbidden.as_bytes(), None), Refusal::Denied(_)));
    }

    #[test]
    fn a_missing_right_concerns_every_call_of_its_sort_and_a_refusal_by_admission_does_not() {
        let with = |verb: Verb| Call { verb, ..get() };
        let bars =
            |call: &Call, code, body: &str| Refusal::classify(call, code, body.as_bytes(), None).bars(call).is_some();
        let forbidden = |details| status(403, "Forbidden", details);
        let create = with(Verb::Create(serde_json::json!({})));
        // The answers of the authorizer, of a quota and of a webhook.
        assert!(bars(&create, 403, &forbidden(r#"{"kind":"pods"}"#)));
        assert!(!bars(&create, 403, &forbidden(r#"{"kind":"pods","name":"web"}"#)));
        assert!(!bars(&create, 403, &forbidden("{}")));
        let named = forbidden(r#"{"kind":"pods","name":"web"}"#);
        for verb in [Verb::Get, Verb::Delete { grace: None }, Verb::Strategic(Sub::Status, serde_json::json!({}))] {
            assert!(bars(&with(verb.clone()), 403, &named), "{verb:?}");
            assert!(bars(&with(verb.clone()), 401, &status(401, "Unauthorized", "{}")), "{verb:?}");
            assert!(!bars(&with(verb.clone()), 500, &status(500, "InternalError", "{}")), "{verb:?}");
        }
        assert!(!bars(&with(Verb::Strategic(Sub::Resize, serde_json::json!({}))), 403, &named));
        assert!(bars(&evict(), 403, &named) && !bars(&evict(), 403, &forbidden("{}")));
        assert!(!bars(&with(Verb::Strategic(Sub::Main, serde_json::json!({}))), 403, &forbidden("{}")));
        let going = forbidden(r#"{"kind":"pods","causes":[{"reason":"NamespaceTerminating"}]}"#);
        assert!(!bars(&create, 403, &going));
    }

    #[test]
    fn an_eviction_that_two_budgets_forbid_is_invalid_and_the_servers_own_trouble_is_not() {
        let two = r#"{"kind":"Status","metadata":{},"status":"Failure","message":"more than one","code":500}"#;
        let refusal = Refusal::classify(&evict(), 500, two.as_bytes(), None);
        assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal:?}");
        assert_eq!(refusal.message(), "more than one");
        let broken = status(500, "InternalError", "{}");
        assert!(matches!(Refusal::classify(&evict(), 500, broken.as_bytes(), None), Refusal::Unknown(_)));
        assert!(matches!(Refusal::classify(&get(), 500, two.as_bytes(), None), Refusal::Unknown(_)));
    }

    #[test]
    fn an_eviction_of_another_pod_or_of_none_is_what_a_deletion_would_be() {
        let conflict = status(409, "Conflict", r#"{"name":"web","kind":"Pod"}"#);
        assert_eq!(Refusal::classify(&evict(), 409, conflict.as_bytes(), None), Refusal::Replaced);
        let missing = status(404, "NotFound", r#"{"name":"web","kind":"pods"}"#);
        assert_eq!(Refusal::classify(&evict(), 404, missing.as_bytes(), None), Refusal::Gone);
    }
}
