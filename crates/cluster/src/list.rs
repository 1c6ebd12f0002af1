//! Whole lists, read once and page by page: for commands that look once. Loops watch instead.

use bytes::Bytes;
use http::Request;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;

use crate::body::Asked;
use crate::connect::CALL_DEADLINE;
use crate::watch::{PAGE, encode};
use crate::{Cluster, Kind, Name};

/// A list that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot list {what} of cluster {cluster}: {why}")]
pub struct ListError {
    what: &'static str,
    cluster: String,
    why: String,
}

#[derive(Deserialize)]
struct Page {
    metadata: Metadata,
    items: Vec<Value>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default, rename = "continue")]
    more: Option<String>,
}

impl Cluster {
    /// All objects of a kind, in all namespaces, as new as etcd.
    pub async fn list(&self, kind: &'static Kind) -> Result<Vec<Value>, ListError> {
        self.list_as(kind, None, "application/json").await
    }

    /// The same of one namespace.
    pub async fn list_in(&self, kind: &'static Kind, namespace: &Name) -> Result<Vec<Value>, ListError> {
        self.list_as(kind, Some(namespace), "application/json").await
    }

    /// The same of all namespaces, without anything but metadata.
    pub async fn list_metadata(&self, kind: &'static Kind) -> Result<Vec<Value>, ListError> {
        self.list_as(kind, None, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").await
    }

    async fn list_as(
        &self,
        kind: &'static Kind,
        namespace: Option<&Name>,
        accept: &'static str,
    ) -> Result<Vec<Value>, ListError> {
        let failed = |why: String| ListError { what: kind.plural, cluster: self.name().to_owned(), why };
        let (mut all, mut more) = (Vec::new(), String::new());
        loop {
            let path =
                format!("{}?limit={PAGE}&continue={}", kind.path(namespace.map(Name::as_str), None), encode(&more));
            let request = Request::get(path).header(http::header::ACCEPT, accept);
            let request = request.body(Body::empty()).map_err(|error| failed(error.to_string()))?;
            let (code, _, body) =
                self.exchange(request, CALL_DEADLINE, Asked::Page).await.map_err(|why| failed(why.into()))?;
            if code != 200 {
                return Err(failed(format!("HTTP {code}: {}", excerpt(&body))));
            }
            let page: Page = serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))?;
            all.extend(page.items);
            match page.metadata.more {
                Some(token) if !token.is_empty() => more = token,
                _ => return Ok(all),
            }
        }
    }
}

/// The message of an API server, if the body has one.
fn excerpt(body: &Bytes) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    serde_json::from_slice::<Status>(body)
        .map_or_else(|_| "not the answer of an API server".to_owned(), |said| said.message)
}
