//! Requests of commands to the virtual API server: one request, a few seconds, and a clear failure.
//! Retries nothing, and prints nothing of an answer that it cannot parse.

use std::time::Duration;

use http::Request;
use k8s_openapi::api::core::v1::Node;
use kube::Config;
use kube::client::Body;
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tapestry_api::{ClusterBinding, keys};
use tapestry_cluster::body::Asked;
use tapestry_cluster::refusal::Status;
use tapestry_cluster::{Cluster, Name, kind};
use tapestry_syncer::start::NAMES;

use crate::failure::Failure;

/// The deadline of a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// The virtual API server.
pub(crate) struct Server {
    cluster: Cluster,
}

/// The part of a list that we read.
#[derive(serde::Deserialize)]
pub(crate) struct List<T> {
    pub(crate) items: Vec<T>,
}

impl Server {
    pub(crate) fn new(config: Config) -> Result<Self, Failure> {
        let agent = concat!("tapestry/", env!("CARGO_PKG_VERSION"));
        let cluster = Cluster::from_config("virtual", config, agent);
        let cluster = cluster.map_err(|error| {
            Failure::new("the kubeconfig of the virtual cluster cannot be used", error, "check --kubeconfig")
        })?;
        Ok(Self { cluster })
    }

    pub(crate) fn cluster(&self) -> Cluster {
        self.cluster.clone()
    }

    pub(crate) async fn bindings(&self) -> Result<Vec<ClusterBinding>, Failure> {
        let path = kind::CLUSTER_BINDING.path(None, None);
        Ok(self.get::<List<ClusterBinding>>("list ClusterBindings", &path, Asked::Page).await?.items)
    }

    pub(crate) async fn binding(&self, name: &str) -> Result<ClusterBinding, Failure> {
        self.get(&format!("read ClusterBinding {name}"), &binding_path(name)?, Asked::Object).await
    }

    /// The names of all bindings, or the one that was asked for if it exists.
    pub(crate) async fn names(&self, only: Option<&str>) -> Result<Vec<String>, Failure> {
        let bindings = match only {
            Some(name) => vec![self.binding(name).await?],
            None => self.bindings().await?,
        };
        Ok(bindings.into_iter().filter_map(|binding| binding.metadata.name).collect())
    }

    /// Name and labels of every virtual node that Tapestry created.
    pub(crate) async fn our_nodes(&self) -> Result<Vec<PartialObjectMeta<Node>>, Failure> {
        let ours = format!("{}%3D{}", keys::MANAGED_BY.replace('/', "%2F"), keys::MANAGED_BY_TAPESTRY);
        let path = format!("{}?labelSelector={ours}", kind::NODE.path(None, None));
        let request = Request::get(path)
            .header(http::header::ACCEPT, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
            .body(Body::empty());
        Ok(self.send::<List<PartialObjectMeta<Node>>>("list Nodes", request, Asked::Page).await?.items)
    }

    /// A merge patch of a binding.
    pub(crate) async fn patch_binding(&self, name: &str, patch: &Value) -> Result<ClusterBinding, Failure> {
        let what = format!("change ClusterBinding {name}");
        let request = Request::patch(binding_path(name)?)
            .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
            .body(Body::from(patch.to_string().into_bytes()));
        self.send(&what, request, Asked::Object).await
    }

    async fn get<T: DeserializeOwned>(&self, what: &str, path: &str, asked: Asked) -> Result<T, Failure> {
        self.send(what, Request::get(path).body(Body::empty()), asked).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        what: &str,
        request: Result<Request<Body>, http::Error>,
        asked: Asked,
    ) -> Result<T, Failure> {
        let failed = format!("cannot {what}");
        let request = request.map_err(|error| Failure::new(&failed, error, ""))?;
        let address = self.cluster.address();
        let (code, _, body) = self
            .cluster
            .exchange(request, PATIENCE, asked)
            .await
            .map_err(|why| Failure::new(&failed, format!("{why}: {address}"), why.hint()))?;
        if (200..300).contains(&code) {
            // Not the parser's text: the answer may hold anything.
            return serde_json::from_slice(&body).map_err(|_| not_an_api_server(&failed, &address));
        }
        let status = serde_json::from_slice::<Status>(&body).ok().filter(|status| status.kind == "Status");
        Err(explain(&failed, code, status.as_ref(), &address))
    }
}

fn binding_path(name: &str) -> Result<String, Failure> {
    let hint = || format!("{NAMES}; list bindings with `kubectl get clusterbindings`");
    let name = Name::parse(name).map_err(|bad| Failure::new("no such ClusterBinding", bad, hint()))?;
    Ok(kind::CLUSTER_BINDING.path(None, Some(name.as_str())))
}

fn not_an_api_server(failed: &str, address: &str) -> Failure {
    let cause = format!("the server at {address} is not a Kubernetes API server, or has a newer version");
    Failure::new(failed, cause, "check the server's address in the kubeconfig")
}

/// The failure for an answer that is no success.
fn explain(failed: &str, code: u16, status: Option<&Status>, address: &str) -> Failure {
    let said = status.map_or("", |status| status.message.as_str());
    match (code, status) {
        (401, _) => Failure::new(
            failed,
            format!("{address} does not accept the credentials of the kubeconfig (401 Unauthorized)"),
            "its token or certificate may have expired or belong to another cluster: get a new kubeconfig",
        ),
        (403, _) => {
            let cause = if said.is_empty() { "403 Forbidden" } else { said };
            Failure::new(failed, cause, "use a kubeconfig whose user has this right, or ask for it")
        }
        (404, Some(status)) if !status.details.name.is_empty() => {
            Failure::new(failed, said, "list bindings with `kubectl get clusterbindings`")
        }
        (404, _) => Failure::new(
            failed,
            format!("the virtual cluster at {address} does not serve ClusterBindings"),
            "install them (tapestry crds | kubectl apply --server-side -f -), or check --kubeconfig and --context",
        ),
        (429 | 503, _) => Failure::new(failed, format!("{address} is busy (HTTP {code})"), "try again later"),
        (_, Some(_)) => Failure::new(failed, format!("HTTP {code}: {said}"), ""),
        (_, None) => not_an_api_server(failed, address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: u16, body: &str) -> String {
        let status = serde_json::from_str::<Status>(body).ok();
        explain("cannot read ClusterBinding east", code, status.as_ref(), "https://h:6443").to_string()
    }

    #[test]
    fn every_refusal_says_what_it_means_and_what_to_do() {
        let named = r#"{"kind":"Status","reason":"NotFound","message":"clusterbindings \"east\" not found","details":{"name":"east"}}"#;
        let forbidden = r#"{"kind":"Status","message":"clusterbindings is forbidden: User \"eve\" cannot list"}"#;
        for (code, body, cause, hint) in [
            (401, "", "does not accept the credentials", "get a new kubeconfig"),
            (403, forbidden, "User \"eve\" cannot list", "whose user has this right"),
            (404, named, "\"east\" not found", "kubectl get clusterbindings"),
            (404, "404 page not found", "does not serve ClusterBindings", "tapestry crds"),
            (503, "", "is busy", "try again"),
            (502, "<html>", "not a Kubernetes API server", "address"),
        ] {
            let said = said(code, body);
            assert!(said.contains(cause) && said.contains(hint), "{code}: {said}");
            assert!(!said.contains("Status {") && !said.contains("Some("), "{said}");
        }
    }
}
