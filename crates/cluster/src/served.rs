//! Which kinds an API server serves, whether it serves one at all, and whether new objects of it can be created, read from its
//! discovery documents.
//! Must not trust a 404 alone: a proxy or a broken server sends the same.

use bytes::Bytes;
use http::Request;
use kube::client::Body;
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::body::Asked;
use crate::connect::{CALL_DEADLINE, Cluster};

/// The answer of `/apis/<group>/<version>`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceList {
    kind: String,
    group_version: String,
    resources: Vec<Resource>,
}

/// A resource as discovery names it.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Resource {
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

/// A kind that a server serves, as its discovery names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// The kind.
    pub kind: &'static Kind,
    verbs: Vec<String>,
}

impl Served {
    /// Whether the server supports this verb for it, `watch`.
    #[must_use]
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }
}

/// The answer of `/apis`.
#[derive(Deserialize)]
struct GroupList {
    kind: String,
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

/// Whether new objects can be created of the resource of this discovery entry; `None` when this is no such entry.
/// While a `CustomResourceDefinition` is being deleted, and its objects with it, its resource is served without `create`.
#[must_use]
pub fn accepts_new(entry: &[u8]) -> Option<bool> {
    let resource: Resource = serde_json::from_slice(entry).ok()?;
    Some(resource.verbs.iter().any(|verb| verb == "create"))
}

/// More resources in one group and version than any server serves: the largest have some dozens.
const MOST_RESOURCES: usize = 1_000;

/// The kinds in a discovery document of `/api/<version>` or `/apis/<group>/<version>`. Subresources are left out, and so is what
/// cannot be a kind; `Err` says why it is no such document.
pub fn read_kinds(document: &[u8]) -> Result<Vec<Served>, String> {
    let list = serde_json::from_slice::<ResourceList>(document).ok().filter(|list| list.kind == "APIResourceList");
    let Some(list) = list else { return Err("not a list of resources".to_owned()) };
    if list.resources.len() > MOST_RESOURCES {
        return Err(format!("more than {MOST_RESOURCES} resources in {:.80}", list.group_version));
    }
    let (group, version) = list.group_version.split_once('/').unwrap_or(("", &list.group_version));
    let mut kinds = Vec::new();
    for Resource { name, kind, namespaced, verbs } in
        list.resources.into_iter().filter(|found| !found.name.contains('/'))
    {
        match Kind::intern(group, version, &name, &kind, namespaced) {
            Ok(kind) => kinds.push(Served { kind, verbs }),
            Err(error) => tracing::warn!(%error, "skipping an invalid kind from discovery"),
        }
    }
    Ok(kinds)
}

/// Proves that the kind is not served; `Err` says why this is not proven.
pub(crate) async fn prove_unserved(cluster: &Cluster, kind: &Kind) -> Result<(), String> {
    match discover(cluster, kind).await? {
        None => Ok(()),
        Some(_) => Err(format!("discovery names {} in {}", kind.plural, kind.api_version())),
    }
}

/// The entry of the kind in discovery; `None` is proof that there is none, and `Err` says why neither is known.
pub(crate) async fn discover(cluster: &Cluster, kind: &Kind) -> Result<Option<Bytes>, String> {
    let root = if kind.group.is_empty() { "/api" } else { "/apis" };
    let path = format!("{root}/{}", kind.api_version());
    match ask(cluster, &path).await? {
        (200, body) => find_resource(kind, &body),
        (404, _) if !kind.group.is_empty() => match ask(cluster, root).await? {
            (200, body) => lacks_version(kind, &body).map(|()| None),
            (code, _) => Err(format!("HTTP {code} from {root}")),
        },
        (code, _) => Err(format!("HTTP {code} from {path}")),
    }
}

async fn ask(cluster: &Cluster, path: &str) -> Result<(u16, Bytes), String> {
    // Asked for plain JSON, servers answer with these documents and not with the aggregated one.
    let request = Request::get(path).header(http::header::ACCEPT, "application/json").body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let (code, _, body) = cluster.exchange(request, CALL_DEADLINE, Asked::Discovery).await?;
    Ok((code, body))
}

/// The server has the group and version: looks for the resource in it.
fn find_resource(kind: &Kind, body: &[u8]) -> Result<Option<Bytes>, String> {
    let version = kind.api_version();
    let list = serde_json::from_slice::<ResourceList>(body).ok();
    let list = list.filter(|list| list.kind == "APIResourceList" && list.group_version == version);
    let Some(list) = list else { return Err(format!("not a list of the resources of {version}")) };
    let entry = list.resources.iter().find(|resource| resource.name == kind.plural);
    let text = entry.map(serde_json::to_vec).transpose().map_err(|error| error.to_string())?;
    Ok(text.map(Bytes::from))
}

/// The server does not have the group, or this version of it.
fn lacks_version(kind: &Kind, body: &[u8]) -> Result<(), String> {
    let list = serde_json::from_slice::<GroupList>(body).ok();
    // Every API server has groups: an empty list does not come from one.
    let list = list.filter(|list| list.kind == "APIGroupList" && !list.groups.is_empty());
    let Some(list) = list else { return Err("not a list of API groups".to_owned()) };
    let mut versions = list.groups.iter().filter(|group| group.name == kind.group).flat_map(|group| &group.versions);
    if versions.any(|version| version.version == kind.version) {
        return Err(format!("discovery names {}", kind.api_version()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::POLICY;
    use serde_json::{Value, json};

    fn resources(version: &str, names: &[&str]) -> Value {
        let resources: Vec<Value> = names.iter().map(|name| json!({"name": name, "namespaced": false})).collect();
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
    }

    fn groups(groups: &[(&str, &[&str])]) -> Value {
        let group = |(name, versions): &(&str, &[&str])| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
                .collect();
            json!({"name": name, "versions": versions, "preferredVersion": versions[0]})
        };
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.iter().map(group).collect::<Vec<_>>()})
    }

    #[test]
    fn kinds_come_from_discovery_with_their_verbs_and_without_subresources() {
        let document = json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": [
            {"name": "widgets", "kind": "Widget", "namespaced": true, "verbs": ["get", "list", "watch"]},
            {"name": "widgets/status", "kind": "Widget", "namespaced": true, "verbs": ["get"]},
            {"name": "../secrets", "kind": "Secret", "namespaced": true, "verbs": ["list"]},
            {"name": "racks", "kind": "Rack", "namespaced": false, "verbs": ["get"]},
            {"name": "unnamed"},
        ]});
        let kinds = read_kinds(document.to_string().as_bytes()).unwrap();
        let names: Vec<_> = kinds.iter().map(|served| (served.kind.kind, served.kind.api_version())).collect();
        let version = || "example.com/v1".to_owned();
        assert_eq!(names, [("Widget", version()), ("Rack", version())]);
        assert!(kinds[0].supports("watch") && !kinds[1].supports("watch"));
        assert!(kinds[0].kind.namespaced && !kinds[1].kind.namespaced);
    }

    #[test]
    fn a_document_that_is_no_list_of_resources_names_no_kind() {
        assert!(read_kinds(b"<html>welcome</html>").is_err());
        assert!(read_kinds(groups(&[("apps", &["v1"])]).to_string().as_bytes()).is_err());
        let many = vec![json!({"name": "widgets"}); MOST_RESOURCES + 1];
        let many = json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": many});
        assert!(read_kinds(many.to_string().as_bytes()).is_err());
    }

    #[test]
    fn a_resource_that_its_own_version_does_not_name_is_not_served() {
        let ours = "cloud.tencent.com/v1beta1";
        let proven = |list: &Value| find_resource(&POLICY, list.to_string().as_bytes()) == Ok(None);
        assert!(proven(&resources(ours, &["clusterbindings", "clusterbindings/status"])));
        assert!(!proven(&resources(ours, &["clusterbindings", "resourceleasingpolicies"])));
        // The list of another group, or no list at all, proves nothing about ours.
        assert!(!proven(&resources("cloud.tencent.com/v1", &["clusterbindings"])));
        assert!(!proven(&json!({"kind": "Status", "code": 200})));
        assert!(!proven(&groups(&[("apps", &["v1"])])));
        assert!(find_resource(&POLICY, b"<html>welcome</html>").is_err());
    }

    #[test]
    fn a_resource_that_has_lost_create_belongs_to_a_definition_that_is_being_deleted() {
        let entry = |verbs: Value| {
            let resource = json!({"name": "resourceleasingpolicies", "namespaced": false, "verbs": verbs});
            let list =
                json!({"kind": "APIResourceList", "groupVersion": POLICY.api_version(), "resources": [resource]});
            find_resource(&POLICY, list.to_string().as_bytes()).unwrap().unwrap()
        };
        assert_eq!(accepts_new(&entry(json!(["create", "delete", "get", "list", "watch"]))), Some(true));
        assert_eq!(accepts_new(&entry(json!(["delete", "deletecollection", "get", "list", "watch"]))), Some(false));
        assert_eq!(accepts_new(b"{}"), None);
    }

    #[test]
    fn a_group_or_version_that_the_server_does_not_name_is_not_served() {
        let proven = |list: &Value| lacks_version(&POLICY, list.to_string().as_bytes()).is_ok();
        assert!(proven(&groups(&[("apps", &["v1"])])));
        assert!(proven(&groups(&[("apps", &["v1"]), ("cloud.tencent.com", &["v1"])])));
        assert!(!proven(&groups(&[("apps", &["v1"]), ("cloud.tencent.com", &["v1", "v1beta1"])])));
        assert!(!proven(&groups(&[])));
        assert!(!proven(&resources("cloud.tencent.com/v1beta1", &[])));
        assert!(lacks_version(&POLICY, b"ok").is_err());
    }
}
