//! Renders self-contained kubeconfigs, as they are put into Secrets.
//! Must not refer to files: the reader may be another process, or a pod.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::certificates::Signed;

/// How the client authenticates.
#[derive(Debug, Clone, Copy)]
pub enum Credential<'a> {
    /// A client certificate.
    Certificate(&'a Signed),
    /// A bearer token, such as a `ServiceAccount`'s.
    Token(&'a str),
}

/// A kubeconfig with one cluster, one user and one context, all named `cluster`. `authority` is PEM.
pub fn render(cluster: &str, server: &str, authority: &str, credential: Credential<'_>) -> anyhow::Result<String> {
    let user = match credential {
        Credential::Certificate(signed) => json!({
            "client-certificate-data": base64(&signed.certificate),
            "client-key-data": base64(&signed.key),
        }),
        Credential::Token(token) => json!({ "token": token }),
    };
    Ok(serde_saphyr::to_string(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [{ "name": cluster, "cluster": { "server": server, "certificate-authority-data": base64(authority) } }],
        "users": [{ "name": cluster, "user": user }],
        "contexts": [{ "name": cluster, "context": { "cluster": cluster, "user": cluster } }],
    }))?)
}

/// Base64, as Kubernetes writes bytes into JSON.
#[must_use]
pub(crate) fn base64(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}
