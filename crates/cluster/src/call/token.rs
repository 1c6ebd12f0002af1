//! The requests that a [`Verb::Token`] consists of, and what their answers mean. Sends nothing: the gate and World's servers do.
//! Never repeats a token in an error.

use serde_json::Value;
use tapestry_domain::tokens::{Bearer, Grant, read_grant, render_refresh, render_request, render_secret};

use super::carry::CarryMarks;
use super::{Target, TokenAsk};
use crate::{Call, Name, Refusal, Sub, Uid, Verb, kind};

/// A pod by name and UID; its namespace is known from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    /// Its name.
    pub name: Name,
    /// Its UID.
    pub uid: Uid,
}

/// A [`Verb::Token`], request by request: one for each token, then the write.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    call: &'a Call,
    /// The account.
    pub account: &'a Target,
    /// The pod, in the namespace of the account.
    pub pod: &'a PodRef,
    /// One token each.
    pub asks: &'a [TokenAsk],
    marks: &'a CarryMarks,
}

impl<'a> Tokens<'a> {
    /// `None` for other verbs.
    #[must_use]
    pub fn of(call: &'a Call) -> Option<Self> {
        match &call.verb {
            Verb::Token { account, pod, asks, marks } => Some(Self { call, account, pod, asks, marks }),
            _ => None,
        }
    }

    /// The path that every token is asked for at.
    #[must_use]
    pub fn path(&self) -> String {
        let Target { kind, namespace, name, .. } = self.account;
        format!("{}/token", kind.path(namespace.as_ref().map(Name::as_str), Some(name.as_str())))
    }

    /// The body of the request for one token.
    #[must_use]
    pub fn request(&self, ask: &TokenAsk) -> Value {
        render_request(ask, &self.bearer())
    }

    /// The token that the cluster of the account issued.
    pub fn read(&self, ask: &TokenAsk, body: &[u8]) -> Result<Grant, Refusal> {
        read_grant(ask, body).map_err(|error| Refusal::Unknown(error.to_string()))
    }

    /// Classifies an answer to the request for a token that is not a success. The classes that tell about the target when it is
    /// written must not come from here: the answer is about the account or the pod.
    #[must_use]
    pub fn classify(&self, code: u16, body: &[u8], retry_after: Option<u32>) -> Refusal {
        let asked = Call { target: self.account.clone(), verb: Verb::Create(Value::Null), why: self.call.why };
        match Refusal::classify(&asked, code, body, retry_after) {
            Refusal::Gone => {
                let Target { side, namespace, name, .. } = self.account;
                let namespace = namespace.as_ref().map_or("", Name::as_str);
                let side = side.as_str();
                Refusal::of_ours(
                    404,
                    format!("ServiceAccount {namespace}/{name} does not exist in the {side} cluster: create it"),
                )
            }
            Refusal::Invalid(status)
                if status.code == 404
                    && status.details.kind == kind::POD.plural
                    && status.details.name == self.pod.name.as_str() =>
            {
                Refusal::Replaced
            }
            Refusal::Exists => Refusal::Replaced,
            other => other,
        }
    }

    /// The last request.
    #[must_use]
    pub fn write(&self, grants: &[Grant]) -> Call {
        let (target, marks) = (self.call.target.clone(), self.marks.borrow());
        let verb = if target.uid.is_some() {
            Verb::Merge(Sub::Main, render_refresh(grants, &self.bearer(), &marks))
        } else {
            let namespace = target.namespace.as_ref().map_or("", Name::as_str);
            Verb::Create(render_secret(grants, &self.bearer(), target.name.as_str(), namespace, &marks))
        };
        Call { target, verb, why: self.call.why }
    }

    fn bearer(&self) -> Bearer<'_> {
        let namespace = self.account.namespace.as_ref().map_or("", Name::as_str);
        Bearer { namespace, name: self.pod.name.as_str(), uid: self.pod.uid.as_str() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Side;
    use crate::call::carry::tests::{marks, object};
    use serde_json::json;

    /// Asks for two tokens of `shop/robot` for the pod `web`, and writes them to `mount/web-token`.
    pub(crate) fn token(uid: Option<&str>) -> Call {
        let mut target = object(Side::Physical, &kind::SECRET, "mount", "web-token");
        target.uid = uid.map(Uid::new);
        let ask = |key: &str, audience: Option<&str>| TokenAsk {
            key: key.into(),
            audience: audience.map(Into::into),
            expiration_seconds: 3600,
        };
        let verb = Verb::Token {
            account: Box::new(object(Side::Virtual, &kind::SERVICE_ACCOUNT, "shop", "robot")),
            pod: Box::new(PodRef { name: Name::parse("web").unwrap(), uid: Uid::new("pod") }),
            asks: vec![ask("api.0", None), ask("vault.0", Some("vault"))],
            marks: Box::new(marks()),
        };
        Call { target, verb, why: "Test" }
    }

    fn status(code: u16, reason: &str, details: &Value) -> String {
        json!({"kind": "Status", "code": code, "reason": reason, "message": "m", "details": details}).to_string()
    }

    #[test]
    fn a_missing_account_and_a_pod_that_is_gone_are_told_apart_from_a_missing_secret() {
        let call = token(Some("secret"));
        let tokens = Tokens::of(&call).unwrap();
        let class =
            |code, reason: &str, details: Value| tokens.classify(code, status(code, reason, &details).as_bytes(), None);
        let missing = class(404, "NotFound", json!({"kind": "serviceaccounts", "name": "robot"}));
        assert!(matches!(&missing, Refusal::Invalid(status) if status.code == 404), "{missing:?}");
        assert_eq!(missing.message(), "ServiceAccount shop/robot does not exist in the virtual cluster: create it");
        assert_eq!(class(404, "NotFound", json!({"kind": "pods", "name": "web"})), Refusal::Replaced);
        assert_eq!(class(409, "Conflict", json!({"kind": "Pod", "name": "web"})), Refusal::Replaced);
        for code in [400, 422] {
            assert!(matches!(class(code, "Invalid", json!({})), Refusal::Invalid(_)));
        }
        assert!(matches!(class(404, "NotFound", json!({"kind": "namespaces", "name": "shop"})), Refusal::Invalid(_)));
        assert!(matches!(tokens.classify(404, b"404 page not found", None), Refusal::Unknown(_)));
    }

    #[test]
    fn law_10_no_error_and_no_printed_call_holds_a_token() {
        let call = token(None);
        let tokens = Tokens::of(&call).unwrap();
        let broken = tokens.read(&tokens.asks[0], br#"{"status":{"token":"hush-hush","expirationTimestamp":"x"}}"#);
        assert!(matches!(&broken, Err(Refusal::Unknown(why)) if !why.contains("hush")), "{broken:?}");
        assert_eq!(
            call.to_string(),
            "token of virtual serviceaccounts/shop/robot to physical secrets/mount/web-token (Test)"
        );
        assert_eq!(tokens.path(), "/api/v1/namespaces/shop/serviceaccounts/robot/token");
        assert!(!call.is_read() && call.body().is_none());
    }

    #[test]
    fn law_02_new_tokens_are_written_under_the_uid_of_the_secret() {
        let answer = br#"{"status":{"token":"t","expirationTimestamp":"2026-01-05T01:00:00Z"}}"#;
        for (uid, creates) in [(None, true), (Some("secret"), false)] {
            let call = token(uid);
            let tokens = Tokens::of(&call).unwrap();
            let grants: Vec<Grant> = tokens.asks.iter().map(|ask| tokens.read(ask, answer).unwrap()).collect();
            let write = tokens.write(&grants);
            assert_eq!(matches!(write.verb, Verb::Create(_)), creates);
            let body = write.body().unwrap().into_owned();
            assert_eq!(body["metadata"]["uid"].as_str(), uid);
            assert_eq!(body["stringData"], json!({"api.0": "t", "vault.0": "t"}));
            assert_eq!(body["metadata"]["annotations"]["tapestry.io/virtual-pod-namespace"], "shop");
        }
    }
}
