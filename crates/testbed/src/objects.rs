//! Objects as plain JSON: create, get, list, patch, delete.
//! Must not know kinds: the caller names them as `v1/Pod` or `apps/v1/Deployment`, and objects as `namespace/name` or `name`.

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind, Request};
use kube::{Error, Result};
use serde_json::Value;

use crate::Cluster;

const MANAGER: &str = "tapestry-testbed";

/// A client for plain JSON, with the rights and the runtime of the client inside.
#[derive(Clone)]
pub struct Objects {
    client: kube::Client,
}

impl Objects {
    /// Uses `client`, so that a test can also act as a user with few rights.
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// Uses the rights of a kubeconfig, such as one of [`Cluster::kubeconfig_for`].
    pub async fn connect(kubeconfig: &str) -> anyhow::Result<Self> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self::new(config.try_into()?))
    }

    /// Creates an object and returns what the server stored.
    pub async fn create(&self, object: &Value) -> Result<Value> {
        let (request, _) = of(object);
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        self.send(request.create(&PostParams::default(), body)).await
    }

    /// Server-side apply, by force, as field manager `tapestry-testbed`.
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        let (request, name) = of(object);
        let params = PatchParams::apply(MANAGER).force();
        self.send(request.patch(name, &params, &Patch::Apply(object))).await
    }

    /// An object; `None` when there is none.
    pub async fn get(&self, kind: &str, place: &str) -> Result<Option<Value>> {
        let (request, name) = at(kind, place);
        absent_is_none(self.send(request.get(name, &kube::api::GetParams::default())).await)
    }

    /// All objects of a kind in a namespace; in all of them, or cluster-scoped ones, for `""`.
    pub async fn list(&self, kind: &str, namespace: &str) -> Result<Vec<Value>> {
        self.list_where(kind, namespace, "").await
    }

    /// Like [`Self::list`], only those with matching labels (`app=web,tier!=db`).
    pub async fn list_where(&self, kind: &str, namespace: &str, labels: &str) -> Result<Vec<Value>> {
        let request = Request::new(collection(kind, namespace));
        let mut list: Value = self.send(request.list(&ListParams::default().labels(labels))).await?;
        Ok(match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        })
    }

    /// A merge patch.
    pub async fn patch(&self, kind: &str, place: &str, patch: &Value) -> Result<Value> {
        let (request, name) = at(kind, place);
        self.send(request.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await
    }

    /// A merge patch of a subresource such as `status` or `scale`.
    pub async fn patch_subresource(&self, subresource: &str, kind: &str, place: &str, patch: &Value) -> Result<Value> {
        let (request, name) = at(kind, place);
        self.send(request.patch_subresource(subresource, name, &PatchParams::default(), &Patch::Merge(patch))).await
    }

    /// Creates a subresource such as `eviction`, `binding` or `token`.
    pub async fn create_subresource(&self, subresource: &str, kind: &str, place: &str, body: &Value) -> Result<Value> {
        let (request, name) = at(kind, place);
        let body = serde_json::to_vec(body).map_err(Error::SerdeError)?;
        self.send(request.create_subresource(subresource, name, &PostParams::default(), body)).await
    }

    /// Deletes an object; a missing one is no error. Finalizers and grace may keep the object for a while.
    pub async fn delete(&self, kind: &str, place: &str) -> Result<()> {
        self.delete_with(kind, place, &DeleteParams::default()).await
    }

    /// Like [`Self::delete`], with grace period, propagation or preconditions.
    pub async fn delete_with(&self, kind: &str, place: &str, params: &DeleteParams) -> Result<()> {
        let (request, name) = at(kind, place);
        absent_is_none(self.send(request.delete(name, params)).await).map(drop)
    }

    async fn send(&self, request: Result<http::Request<Vec<u8>>, kube::core::request::Error>) -> Result<Value> {
        self.client.request(request.map_err(Error::BuildRequest)?).await
    }
}

/// One-off calls with all rights. Each opens its own connection; for many calls use [`Cluster::objects`].
impl Cluster {
    /// See [`Objects::create`].
    pub async fn create(&self, object: &Value) -> Result<Value> {
        self.once()?.create(object).await
    }

    /// See [`Objects::apply`].
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        self.once()?.apply(object).await
    }

    /// See [`Objects::get`].
    pub async fn get(&self, kind: &str, place: &str) -> Result<Option<Value>> {
        self.once()?.get(kind, place).await
    }

    /// See [`Objects::list`].
    pub async fn list(&self, kind: &str, namespace: &str) -> Result<Vec<Value>> {
        self.once()?.list(kind, namespace).await
    }

    /// See [`Objects::patch`].
    pub async fn patch(&self, kind: &str, place: &str, patch: &Value) -> Result<Value> {
        self.once()?.patch(kind, place, patch).await
    }

    /// See [`Objects::delete`].
    pub async fn delete(&self, kind: &str, place: &str) -> Result<()> {
        self.once()?.delete(kind, place).await
    }

    fn once(&self) -> Result<Objects> {
        self.objects().map_err(|error| Error::Service(error.into()))
    }
}

/// The namespace and name in the object itself.
fn of(object: &Value) -> (Request, &str) {
    let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
    let kind = format!("{}/{}", text(&object["apiVersion"]), text(&object["kind"]));
    let namespace = text(&object["metadata"]["namespace"]);
    (Request::new(collection(&kind, &namespace)), object["metadata"]["name"].as_str().unwrap_or_default())
}

fn at<'a>(kind: &str, place: &'a str) -> (Request, &'a str) {
    let (namespace, name) = place.split_once('/').unwrap_or(("", place));
    (Request::new(collection(kind, namespace)), name)
}

/// `/apis/apps/v1/namespaces/x/deployments`
fn collection(kind: &str, namespace: &str) -> String {
    let (api_version, kind) = kind.rsplit_once('/').unwrap_or(("v1", kind));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let plural = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)).plural;
    let root = if group.is_empty() { "/api" } else { "/apis" };
    match namespace {
        "" => format!("{root}/{api_version}/{plural}"),
        namespace => format!("{root}/{api_version}/namespaces/{namespace}/{plural}"),
    }
}

fn absent_is_none(answer: Result<Value>) -> Result<Option<Value>> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::collection;

    #[test]
    fn collections_are_found_by_kind_and_namespace() {
        assert_eq!(collection("v1/Pod", "x"), "/api/v1/namespaces/x/pods");
        assert_eq!(collection("v1/Node", ""), "/api/v1/nodes");
        assert_eq!(collection("apps/v1/Deployment", "x"), "/apis/apps/v1/namespaces/x/deployments");
        let policies = "/apis/cloud.tencent.com/v1beta1/resourceleasingpolicies";
        assert_eq!(collection("cloud.tencent.com/v1beta1/ResourceLeasingPolicy", ""), policies);
    }
}
