//! The server's refusals: the `metav1.Status` of each case. Must not decide what a
//! refusal means to us; the gate's own classification does.

use std::fmt;

use serde_json::json;
use tapestry_cluster::{Call, Kind, Refusal};

/// An answer that is not a success.
#[derive(Debug)]
pub(in crate::world) struct Denial {
    code: u16,
    reason: &'static str,
    message: String,
    /// Plural and name of the object it is about.
    about: Option<(&'static str, String)>,
    /// Its reason, and the field that it is about.
    cause: Option<(&'static str, &'static str)>,
}

impl Denial {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), about: None, cause: None }
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        self.about = Some((kind.plural, name.to_owned()));
        self
    }

    pub(in crate::world) fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", kind.plural)).about(kind, name)
    }

    pub(in crate::world) fn exists(kind: &Kind, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", kind.plural)).about(kind, name)
    }

    pub(in crate::world) fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        Self::new(409, "Conflict", why).about(kind, name)
    }

    pub(in crate::world) fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        let cause = Some(("FieldValueInvalid", field));
        Self { cause, ..Self::new(422, "Invalid", format!("{field}: {}", why.into())) }
    }

    /// A field that nothing changes any more.
    pub(in crate::world) fn fixed(field: &'static str, why: &str) -> Self {
        let cause = Some(("FieldValueForbidden", field));
        Self { cause, ..Self::new(422, "Invalid", format!("{field}: Forbidden: {why}")) }
    }

    pub(in crate::world) fn bad_request(why: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", why)
    }

    pub(in crate::world) fn forbidden(why: &str) -> Self {
        Self::new(403, "Forbidden", why)
    }

    pub(in crate::world) fn unsupported_media_type() -> Self {
        Self::new(415, "UnsupportedMediaType", "custom resources do not support strategic merge patch")
    }

    /// A disruption budget that allows none, which says so in its cause and not how long.
    pub(in crate::world) fn disruption_budget() -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Self { cause: Some(("DisruptionBudget", "")), ..Self::new(429, "TooManyRequests", message) }
    }

    /// A namespaced kind without a namespace, or the reverse.
    pub(in crate::world) fn no_such_path() -> Self {
        Self::new(405, "MethodNotAllowed", "the path of the request is not that of an object of this kind")
    }

    pub(in crate::world) fn is_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// How the gate classifies it.
    pub(in crate::world) fn classify(self, call: &Call) -> Refusal {
        let (code, body) = self.answer();
        Refusal::classify(call, code, body.as_bytes(), None)
    }

    /// Code and body of the answer.
    pub(in crate::world) fn answer(self) -> (u16, String) {
        let Self { code, reason, message, about, cause } = self;
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code});
        status["reason"] = json!(reason);
        status["message"] = json!(message);
        if let Some((kind, name)) = about {
            status["details"] = json!({"kind": kind, "name": name});
        }
        if let Some((reason, field)) = cause {
            status["details"]["causes"] = json!([{"reason": reason, "field": field}]);
        }
        (code, status.to_string())
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}
