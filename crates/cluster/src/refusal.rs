//! Why a call was not carried out, in the few classes that decide what happens next.
//! Never looks at message texts; only at codes, reasons and causes.

use std::time::Duration;

use serde::Deserialize;

use crate::{Call, Verb};

/// The only outcomes of a call besides an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The API server itself says that this very object does not exist. Proof only as the answer to a `Get`.
    Gone,
    /// A precondition failed: it is not the object, or not the version, that the plan looked at.
    Replaced,
    /// Create: the name is taken.
    Exists,
    /// Not carried out; the cluster asks to come back after this time.
    Later(Duration),
    /// The request itself is wrong: the same again will be refused again.
    Invalid(Box<Status>),
    /// We may not do this.
    Denied(Box<Status>),
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
}

/// How long to stay away when the cluster does not say.
const LATER: Duration = Duration::from_secs(1);

impl Refusal {
    /// `PascalCase`, for events and metric labels.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Gone => "Gone",
            Self::Replaced => "Replaced",
            Self::Exists => "Exists",
            Self::Later(_) => "Later",
            Self::Invalid(_) => "Invalid",
            Self::Denied(_) => "Denied",
            Self::Unknown(_) => "Unknown",
        }
    }

    /// What a person should read; never carries a body.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::Gone => "the object does not exist",
            Self::Replaced => "the object has changed",
            Self::Exists => "the name is taken",
            Self::Later(_) => "the cluster is busy",
            Self::Invalid(status) | Self::Denied(status) => &status.message,
            Self::Unknown(why) => why,
        }
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
        match code {
            404 if names_target(call, &status) => Self::Gone,
            // Something else does not exist (the namespace of a create): our request cannot work as it is.
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

/// Whether a 404 speaks of the object that was asked for.
fn names_target(call: &Call, status: &Status) -> bool {
    let kind = &status.details.kind;
    status.details.name == call.target.name.as_str()
        && (kind == call.target.kind.plural || kind == call.target.kind.kind)
}

fn wait(seconds: Option<u32>) -> Duration {
    // A cluster that asks for hours is asked again after a minute.
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
}
