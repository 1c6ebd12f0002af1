//! What a request asks for, in Kubernetes' words, and which requests a rule selects.
//! Must not look into bodies.

use std::borrow::Cow;
use std::fmt;

use http::Method;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    /// As RBAC calls it: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'static str,
    /// Plural, such as `pods`; empty for paths that are no resource, such as `/version`.
    pub resource: String,
    /// Such as `status`; empty when it is the object itself.
    pub subresource: String,
    /// Empty for cluster-scoped objects and for lists of all namespaces.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
}

impl RequestInfo {
    /// Reads `/api/v1/namespaces/x/pods/web/status?watch=true`.
    pub(crate) fn of(method: &Method, path: &str, query: &str) -> Self {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let rest: Vec<&str> = match parts.next() {
            Some("api") => parts.skip(1).collect(),
            Some("apis") => parts.skip(2).collect(),
            _ => Vec::new(),
        };
        // A path below a namespace is a resource there, except for the namespace's own subresources.
        let (namespace, rest) = match rest[..] {
            ["namespaces", namespace, resource, ..] if !["status", "finalize"].contains(&resource) => {
                (namespace, &rest[2..])
            }
            _ => ("", &rest[..]),
        };
        let part = |number: usize| rest.get(number).copied().unwrap_or_default().to_owned();
        let (resource, name, subresource) = (part(0), part(1), part(2));
        let watches = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"));
        let verb = match (method, name.is_empty()) {
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, false) => "delete",
            (&Method::DELETE, true) => "deletecollection",
            _ if watches => "watch",
            (_, true) if !resource.is_empty() => "list",
            _ => "get",
        };
        Self { verb, resource, subresource, namespace: namespace.to_owned(), name }
    }

    /// Whether it is a write.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

/// `patch pods/status shop/web`
impl fmt::Display for RequestInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        match (&*self.namespace, &*self.name) {
            ("", "") => Ok(()),
            ("", name) => write!(f, " {name}"),
            (namespace, name) => write!(f, " {namespace}/{name}"),
        }
    }
}

/// Which requests a rule selects, and which of those by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requests {
    /// Empty: all.
    verbs: Cow<'static, [&'static str]>,
    /// `None`: all.
    resource: Option<&'static str>,
    but: Option<&'static str>,
    /// This many pass first.
    pub(crate) skip: u32,
    /// This many are hits then; `None`: all that follow.
    pub(crate) times: Option<u32>,
}

impl Requests {
    const fn with(verbs: &'static [&'static str]) -> Self {
        Self { verbs: Cow::Borrowed(verbs), resource: None, but: None, skip: 0, times: None }
    }

    /// Every request.
    #[must_use]
    pub const fn all() -> Self {
        Self::with(&[])
    }

    /// Writes.
    #[must_use]
    pub const fn writes() -> Self {
        Self::with(&["create", "update", "patch", "delete", "deletecollection"])
    }

    /// Reads of one object.
    #[must_use]
    pub const fn gets() -> Self {
        Self::with(&["get"])
    }

    /// Watches.
    #[must_use]
    pub const fn watches() -> Self {
        Self::with(&["watch"])
    }

    /// Lists and watches.
    #[must_use]
    pub const fn lists() -> Self {
        Self::with(&["list", "watch"])
    }

    /// These verbs, as [`RequestInfo::verb`] has them.
    #[must_use]
    pub const fn verbs(verbs: &'static [&'static str]) -> Self {
        Self::with(verbs)
    }

    /// Only of this resource (plural), subresources included.
    #[must_use]
    pub fn of(mut self, resource: &'static str) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Not of this resource.
    #[must_use]
    pub fn but(mut self, resource: &'static str) -> Self {
        self.but = Some(resource);
        self
    }

    /// Lets the first `count` pass.
    #[must_use]
    pub fn after(mut self, count: u32) -> Self {
        self.skip = count;
        self
    }

    /// Hits `count` of them, then no more.
    #[must_use]
    pub fn times(mut self, count: u32) -> Self {
        self.times = Some(count);
        self
    }

    pub(crate) fn counts_nothing(&self) -> bool {
        (self.skip, self.times) == (0, None)
    }

    /// Whether this request is one of them.
    #[must_use]
    pub fn contain(&self, info: &RequestInfo) -> bool {
        (self.verbs.is_empty() || self.verbs.contains(&info.verb))
            && self.resource.is_none_or(|resource| resource == info.resource)
            && self.but.is_none_or(|resource| resource != info.resource)
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs = if self.verbs.is_empty() { "everything".to_owned() } else { self.verbs.join(", ") };
        write!(f, "{verbs} of {}", self.resource.unwrap_or("all"))?;
        self.but.map_or(Ok(()), |but| write!(f, " but {but}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: &str, path: &str, query: &str) -> String {
        RequestInfo::of(&method.parse().unwrap(), path, query).to_string()
    }

    #[test]
    fn requests_are_distinguished_as_rbac_does() {
        assert_eq!(info("GET", "/api/v1/pods", "watch=true&limit=5"), "watch pods");
        assert_eq!(info("GET", "/api/v1/pods", "limit=5"), "list pods");
        assert_eq!(info("GET", "/api/v1/namespaces/x/pods/web", ""), "get pods x/web");
        assert_eq!(info("POST", "/api/v1/namespaces/x/pods", ""), "create pods x/");
        assert_eq!(info("PATCH", "/api/v1/namespaces/x/pods/web/status", ""), "patch pods/status x/web");
        assert_eq!(info("DELETE", "/api/v1/nodes/n", ""), "delete nodes n");
        assert_eq!(info("DELETE", "/api/v1/namespaces/x/pods", ""), "deletecollection pods x/");
        assert_eq!(info("GET", "/api/v1/namespaces/kube-system", ""), "get namespaces kube-system");
        assert_eq!(info("PUT", "/api/v1/namespaces/x/finalize", ""), "update namespaces/finalize x");
        assert_eq!(
            info("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n", ""),
            "update leases kube-node-lease/n"
        );
        assert_eq!(info("GET", "/version", ""), "get ");
    }

    #[test]
    fn a_rule_selects_by_verbs_and_resources() {
        let create = RequestInfo::of(&Method::POST, "/api/v1/namespaces/x/pods", "");
        assert!(Requests::all().contain(&create) && Requests::writes().of("pods").contain(&create));
        assert!(!Requests::watches().contain(&create) && !Requests::writes().of("nodes").contain(&create));
        assert!(!Requests::writes().but("pods").contain(&create));
    }
}
