//! Tokens of virtual pods: the request for one, and the Secret in the mount namespace that holds those of one pod.
//! It must not show a token: what is printed here never holds one.

mod claims;
pub mod keys;
#[cfg(test)]
mod tests;

use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use self::claims::renew_by;
use crate::dependents::Marks;
use crate::podspec::{TokenAsk, keys as pod_keys};

/// The virtual pod that tokens are bound to: they are worth nothing once it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bearer<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// A token as the virtual API server issued it.
#[derive(Clone, PartialEq, Eq)]
pub struct Grant {
    key: Box<str>,
    token: String,
    from: Timestamp,
    until: Timestamp,
}

/// An answer to a request for a token that has none, or says no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer to a token request has no token or no expirationTimestamp")]
pub struct NoToken;

/// The body of the request for one token.
#[must_use]
pub fn render_request(ask: &TokenAsk, bearer: &Bearer<'_>) -> Value {
    let mut spec = json!({
        "expirationSeconds": ask.expiration_seconds,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": bearer.name, "uid": bearer.uid},
    });
    if let Some(audience) = &ask.audience {
        spec["audiences"] = json!([audience]);
    }
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
}

/// The token in the answer to such a request.
pub fn read_grant(ask: &TokenAsk, answer: &[u8]) -> Result<Grant, NoToken> {
    let Answer { metadata, status } = serde_json::from_slice(answer).map_err(|_| NoToken)?;
    if status.token.is_empty() {
        return Err(NoToken);
    }
    let until = status.expiration_timestamp;
    // A server may shorten what was asked for, so its own times count where it gives them.
    let asked = jiff::SignedDuration::from_secs(ask.expiration_seconds.max(0));
    let from = metadata.creation_timestamp.or_else(|| until.checked_sub(asked).ok());
    Ok(Grant { key: ask.key.clone(), token: status.token, from: from.unwrap_or(until), until })
}

/// The Secret with all tokens of a pod, ready to be created. It has no owner: its pod lives in another cluster, and Kubernetes
/// collects objects whose owner it does not find.
#[must_use]
pub fn render_secret(grants: &[Grant], bearer: &Bearer<'_>, name: &str, namespace: &str, marks: &Marks<'_>) -> Value {
    let mut secret = render_refresh(grants, bearer, marks);
    secret["apiVersion"] = json!("v1");
    secret["kind"] = json!("Secret");
    secret["type"] = json!("Opaque");
    secret["metadata"]["name"] = json!(name);
    secret["metadata"]["namespace"] = json!(namespace);
    secret
}

/// The merge patch that puts new tokens into such a Secret.
#[must_use]
pub fn render_refresh(grants: &[Grant], bearer: &Bearer<'_>, marks: &Marks<'_>) -> Value {
    let own = [
        (pod_keys::VIRTUAL_POD_NAMESPACE, bearer.namespace.to_owned()),
        (pod_keys::VIRTUAL_POD_NAME, bearer.name.to_owned()),
        (pod_keys::VIRTUAL_POD_UID, bearer.uid.to_owned()),
    ];
    let expires = grants.iter().map(|grant| grant.until).min().map(|at| (keys::TOKEN_EXPIRES, seconds(at)));
    let refresh = grants.iter().map(Grant::refresh_at).min().map(|at| (keys::TOKEN_REFRESH, seconds(at)));
    let annotations = marks.annotations.iter().cloned().chain(own).chain(expires).chain(refresh);
    let tokens: Map<String, Value> = grants.iter().map(|grant| (grant.key.to_string(), json!(grant.token))).collect();
    json!({
        "metadata": {"labels": map(marks.labels.iter().cloned()), "annotations": map(annotations)},
        // The API server encodes it into `data`.
        "stringData": tokens,
    })
}

impl Grant {
    fn refresh_at(&self) -> Timestamp {
        renewal(self.from, self.until)
    }
}

/// After 80 % of a token's life, as kubelets do.
fn renewal(from: Timestamp, until: Timestamp) -> Timestamp {
    let life = until.duration_since(from);
    from.checked_add(life / 5 * 4).unwrap_or(until)
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, token: _, from, until } = self;
        write!(f, "token {key} from {from} until {until}")
    }
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    metadata: Metadata,
    status: Issued,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    creation_timestamp: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Issued {
    token: String,
    expiration_timestamp: Timestamp,
}

fn map<'a>(pairs: impl Iterator<Item = (&'a str, String)>) -> Map<String, Value> {
    pairs.map(|(key, value)| (key.to_owned(), Value::String(value))).collect()
}

/// RFC 3339 without a fraction.
fn seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}
