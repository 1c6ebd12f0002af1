//! One API server in memory, as far as our calls go: objects, versions, preconditions, graceful deletion, a log to watch.
//! Uses no randomness and reads no clock: the same calls at the same times give the same objects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};
use tapestry_cluster::{Answer, Call, Kind, Name, Refusal, Rv, Side, Sub, Uid, Verb, kind};

use super::kubelet::set_condition;
use super::{patch, strategy};

mod denial;

pub(super) use denial::Denial;

/// An API server.
pub struct Server {
    side: Side,
    shelves: Vec<Shelf>,
    /// Kinds that are not served as usual.
    serving: Vec<(&'static Kind, Serving)>,
    /// One counter for all kinds, as etcd has.
    rv: u64,
    made: u64,
}

/// How a server serves a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// As usual.
    Fully,
    /// Its definition is being deleted: no new objects.
    Ending,
    /// The kind is not known.
    Not,
}

/// All objects of one kind.
struct Shelf {
    kind: &'static Kind,
    /// By [`path`].
    objects: BTreeMap<String, Arc<Version>>,
    log: Vec<Event>,
}

/// One version of one object; its text is rendered on the first read.
pub struct Version {
    value: Value,
    uid: Uid,
    rv: Rv,
    text: OnceLock<Bytes>,
}

/// One entry of the log that watches read.
#[derive(Debug, Clone)]
pub struct Event {
    /// What happened.
    pub what: What,
    /// The object after it; for a deletion its last state, at the version of the deletion.
    pub object: Arc<Version>,
    /// The object before it; `None` for a new one.
    pub before: Option<Arc<Version>>,
}

/// What a watch shows of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// It is new.
    Added,
    /// It has changed.
    Modified,
    /// It is gone.
    Deleted,
}

/// The path of an object within its kind: `namespace/name`, or `name` for a cluster-scoped one.
#[must_use]
pub fn path(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

impl Version {
    /// Takes an object at this version.
    fn new(mut value: Value, rv: Rv) -> Arc<Self> {
        value["metadata"]["resourceVersion"] = json!(rv.to_string());
        let uid = Uid::new(value["metadata"]["uid"].as_str().unwrap_or_default());
        Arc::new(Self { value, uid, rv, text: OnceLock::new() })
    }

    /// The same object at another version, as a DELETED event shows it.
    pub(super) fn at(&self, rv: Rv) -> Arc<Self> {
        Self::new(self.value.clone(), rv)
    }

    /// The object.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Its identity.
    #[must_use]
    pub fn uid(&self) -> &Uid {
        &self.uid
    }

    /// Its version.
    #[must_use]
    pub fn rv(&self) -> Rv {
        self.rv
    }

    /// The object as JSON text.
    #[must_use]
    pub fn text(&self) -> &Bytes {
        self.text.get_or_init(|| Bytes::from(self.value.to_string()))
    }

    /// See [`path`].
    #[must_use]
    pub fn path(&self) -> String {
        let metadata = &self.value["metadata"];
        path(metadata["namespace"].as_str(), metadata["name"].as_str().unwrap_or_default())
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn deleting(&self) -> bool {
        self.value["metadata"].get("deletionTimestamp").is_some()
    }

    fn grace(&self) -> u64 {
        self.value["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0)
    }

    fn held(&self) -> bool {
        self.value["metadata"]["finalizers"].as_array().is_some_and(|held| !held.is_empty())
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl Server {
    /// An empty one, with the namespace `default`, `kube-system` and `kube-node-lease`.
    #[must_use]
    pub fn new(side: Side, now: Timestamp) -> Self {
        let mut server = Self { side, shelves: Vec::new(), serving: Vec::new(), rv: 0, made: 0 };
        for name in ["default", "kube-system", "kube-node-lease"] {
            let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let made = server.create(&kind::NAMESPACE, None, &body, now);
            debug_assert!(made.is_ok(), "a namespace is always valid");
        }
        server
    }

    /// How a kind is served.
    #[must_use]
    pub fn serving(&self, kind: &Kind) -> Serving {
        self.serving.iter().find(|(known, _)| *known == kind).map_or(Serving::Fully, |(_, serving)| *serving)
    }

    /// Serves a kind in another way from now on.
    pub(super) fn serve(&mut self, kind: &'static Kind, serving: Serving) {
        self.serving.retain(|(known, _)| *known != kind);
        self.serving.push((kind, serving));
    }

    /// The newest version.
    #[must_use]
    pub fn rv(&self) -> Rv {
        Rv::new(self.rv)
    }

    /// The object at this [`path`].
    #[must_use]
    pub fn find(&self, kind: &Kind, path: &str) -> Option<&Arc<Version>> {
        self.shelf(kind)?.objects.get(path)
    }

    /// All objects of a kind, in order of their paths.
    pub fn all(&self, kind: &Kind) -> impl Iterator<Item = &Arc<Version>> {
        self.shelf(kind).into_iter().flat_map(|shelf| shelf.objects.values())
    }

    /// How many objects of a kind there are.
    #[must_use]
    pub fn count(&self, kind: &Kind) -> usize {
        self.shelf(kind).map_or(0, |shelf| shelf.objects.len())
    }

    /// Everything that ever happened to objects of a kind.
    #[must_use]
    pub fn log(&self, kind: &Kind) -> &[Event] {
        self.shelf(kind).map_or(&[], |shelf| &shelf.log)
    }

    /// Events of all kinds after a version, in order.
    pub(super) fn since(&self, rv: Rv) -> Vec<(&'static Kind, &Event)> {
        let newer = |shelf: &Shelf| shelf.log.partition_point(|event| event.object.rv <= rv);
        let mut events: Vec<_> = self
            .shelves
            .iter()
            .flat_map(|shelf| shelf.log[newer(shelf)..].iter().map(|event| (shelf.kind, event)))
            .collect();
        events.sort_by_key(|(_, event)| event.object.rv);
        events
    }

    /// Carries out a call.
    pub fn call(&mut self, call: &Call, now: Timestamp) -> Result<Answer, Refusal> {
        let (kind, namespace) = (call.target.kind, call.target.namespace.as_ref().map(Name::as_str));
        let path = path(namespace, call.target.name.as_str());
        match (self.serving(kind), &call.verb) {
            (Serving::Not, Verb::Discover { .. }) => return Err(Refusal::Gone),
            // A server's answer to an unknown path is no Status.
            (Serving::Not, _) => return Err(Refusal::classify(call, 404, b"404 page not found", None)),
            (Serving::Ending, Verb::Create(_)) => return Err(Denial::no_such_path().classify(call)),
            (serving, Verb::Discover { .. }) => return Ok(Answer { object: discovery(kind, serving) }),
            (_, Verb::Version) => {
                let list = json!({"kind": "List", "metadata": {"resourceVersion": self.rv().to_string()}, "items": []});
                return Ok(Answer { object: Bytes::from(list.to_string()) });
            }
            (Serving::Fully | Serving::Ending, _) => {}
        }
        let done = if kind.namespaced == namespace.is_some() {
            match &call.verb {
                Verb::Get | Verb::Peek | Verb::Version | Verb::Discover { .. } => {
                    self.existing(kind, &path).map(|object| object.text().clone())
                }
                Verb::Create(body) => self.create(kind, namespace, body, now).map(|object| object.text().clone()),
                Verb::Merge(..) | Verb::Strategic(..) | Verb::Apply(..) => {
                    self.patch(call, namespace, &path, now).map(|object| object.text().clone())
                }
                Verb::Delete { grace } => self.delete(call, &path, *grace, now),
                Verb::Evict { grace } => self.evict(call, &path, *grace, now),
                // Requests to two servers: World itself carries them out.
                Verb::Carry { .. } | Verb::Token { .. } => Err(Denial::no_such_path()),
            }
        } else {
            Err(Denial::no_such_path())
        };
        done.map(|object| Answer { object }).map_err(|denial| denial.classify(call))
    }

    /// Changes an object without the rules of patches, as kubelets, schedulers and users do through other paths.
    /// Returns whether anything changed.
    pub fn edit(&mut self, kind: &'static Kind, path: &str, change: impl FnOnce(&mut Value)) -> bool {
        let Some(old) = self.find(kind, path).cloned() else { return false };
        let mut new = old.value.clone();
        change(&mut new);
        strategy::keep_system(&old.value, &mut new);
        strategy::count_generation(kind, &old.value, &mut new);
        let stored = self.store(kind, path, &old, new);
        !Arc::ptr_eq(&old, &stored)
    }

    /// Creates an object. The name is that of the body.
    pub(super) fn create(
        &mut self,
        kind: &'static Kind,
        namespace: Option<&str>,
        body: &Value,
        now: Timestamp,
    ) -> Result<Arc<Version>, Denial> {
        check_type(kind, body)?;
        let mut object = patch::clean(body);
        if !object["metadata"].is_object() || object.get("spec").is_some_and(|spec| !spec.is_object()) {
            return Err(Denial::bad_request("metadata and spec must be maps"));
        }
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        if !is_name(&name) {
            return Err(Denial::invalid("metadata.name", format!("not a DNS-1123 subdomain: {name:?}")));
        }
        if metadata.get("resourceVersion").is_some() {
            return Err(Denial::bad_request("resourceVersion should not be set on objects to be created"));
        }
        if metadata.get("namespace").is_some_and(|given| given.as_str() != namespace) {
            return Err(Denial::bad_request("the namespace of the object does not match that of the request"));
        }
        if let Some(namespace) = namespace {
            match self.find(&kind::NAMESPACE, namespace) {
                None => return Err(Denial::not_found(&kind::NAMESPACE, namespace)),
                Some(namespace) if namespace.deleting() => {
                    return Err(Denial::forbidden("the namespace is being terminated"));
                }
                Some(_) => object["metadata"]["namespace"] = json!(namespace),
            }
        }
        let path = path(namespace, &name);
        if self.find(kind, &path).is_some() {
            return Err(Denial::exists(kind, &name));
        }
        self.made += 1;
        object["metadata"]["uid"] = json!(self.uid());
        object["metadata"]["creationTimestamp"] = json!(seconds(now));
        strategy::prepare(kind, &mut object);
        strategy::validate(kind, Sub::Main, None, &object)?;
        strategy::normalise(kind, &mut object);
        let made = Version::new(object, self.next_rv());
        let shelf = self.shelf_mut(kind);
        shelf.objects.insert(path, Arc::clone(&made));
        shelf.log.push(Event { what: What::Added, object: Arc::clone(&made), before: None });
        Ok(made)
    }

    fn patch(
        &mut self,
        call: &Call,
        namespace: Option<&str>,
        path: &str,
        now: Timestamp,
    ) -> Result<Arc<Version>, Denial> {
        let (kind, sub) = (call.target.kind, call.sub());
        let body = call.body().unwrap_or_default();
        let applies = matches!(call.verb, Verb::Apply(..));
        if applies {
            check_type(kind, &body)?;
        }
        let Some(old) = self.find(kind, path).cloned() else {
            return match (applies && sub == Sub::Main, body["metadata"].get("uid")) {
                (true, None) => {
                    let mut body = body.into_owned();
                    body["metadata"]["name"] = json!(call.target.name.as_str());
                    self.create(kind, namespace, &body, now)
                }
                (true, Some(_)) => Err(Denial::conflict(kind, call.target.name.as_str(), "uid mismatch")),
                (false, _) => Err(Denial::not_found(kind, call.target.name.as_str())),
            };
        };
        check_preconditions(kind, &old, &body)?;
        let mut new = old.value.clone();
        match &call.verb {
            Verb::Merge(..) => patch::merge(&mut new, &body),
            Verb::Strategic(..) if strategy::is_custom(kind) => return Err(Denial::unsupported_media_type()),
            _ => patch::strategic(&mut new, &body).map_err(Denial::bad_request)?,
        }
        if !new["metadata"].is_object() {
            return Err(Denial::bad_request("metadata must be a map"));
        }
        strategy::confine(kind, sub, &old.value, &mut new);
        strategy::validate(kind, sub, Some(&old.value), &new)?;
        strategy::count_generation(kind, &old.value, &mut new);
        Ok(self.store(kind, path, &old, new))
    }

    /// Deletes as `rest.BeforeDelete` and the pod strategy of Kubernetes do. Answers with the object where the server does.
    fn delete(&mut self, call: &Call, path: &str, grace: Option<u32>, now: Timestamp) -> Result<Bytes, Denial> {
        let kind = call.target.kind;
        let old = self.expected(call, path)?;
        let after = self.end(kind, path, &old, grace.map(u64::from), now);
        let returned = *kind == kind::POD || *kind == kind::SERVICE_ACCOUNT || self.find(kind, path).is_some();
        if returned {
            return Ok(after.text().clone());
        }
        let name = call.target.name.as_str();
        let details = json!({"name": name, "kind": kind.plural, "group": kind.group, "uid": old.uid.as_str()});
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
        Ok(Bytes::from(status.to_string()))
    }

    /// Evicts as a real server does when no budget forbids it: a condition says why, then the pod is deleted.
    fn evict(&mut self, call: &Call, path: &str, grace: Option<u32>, now: Timestamp) -> Result<Bytes, Denial> {
        let kind = call.target.kind;
        if *kind != kind::POD {
            return Err(Denial::no_such_path());
        }
        self.expected(call, path)?;
        let reason = Some("EvictionByEvictionAPI");
        self.edit(kind, path, |pod| set_condition(pod, "DisruptionTarget", true, reason, &seconds(now)));
        let marked = Arc::clone(self.existing(kind, path)?);
        self.end(kind, path, &marked, grace.map(u64::from), now);
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(Bytes::from(status.to_string()))
    }

    /// Whether a disruption budget applies: only when a pod is evicted that runs and is not being deleted.
    pub(super) fn asks_budget(&self, call: &Call) -> bool {
        let pod = || {
            let namespace = call.target.namespace.as_ref().map(Name::as_str);
            self.find(call.target.kind, &path(namespace, call.target.name.as_str()))
        };
        matches!(call.verb, Verb::Evict { .. })
            && pod().is_some_and(|pod| !pod.deleting() && pod.value["status"]["phase"] == "Running")
    }

    /// The object, if it is the one that the target means.
    fn expected(&self, call: &Call, path: &str) -> Result<Arc<Version>, Denial> {
        let kind = call.target.kind;
        let object = self.existing(kind, path)?;
        let name = call.target.name.as_str();
        if call.target.uid.as_ref().is_some_and(|uid| *uid != object.uid) {
            return Err(Denial::conflict(kind, name, "the UID in the precondition does not match"));
        }
        if call.target.rv.is_some_and(|rv| rv != object.rv) {
            return Err(Denial::conflict(kind, name, "the resourceVersion in the precondition does not match"));
        }
        Ok(Arc::clone(object))
    }

    /// Begins or finishes an object's deletion and returns its last state.
    pub(super) fn end(
        &mut self,
        kind: &'static Kind,
        path: &str,
        old: &Arc<Version>,
        grace: Option<u64>,
        now: Timestamp,
    ) -> Arc<Version> {
        let graceful = *kind == kind::POD;
        let marked = match (old.deleting(), graceful) {
            (true, true) => match grace {
                // Only ever shorter; and once it is zero there is nothing left to shorten.
                Some(grace) if grace < old.grace() => {
                    let asked = old.value["metadata"]["deletionTimestamp"].as_str().and_then(|at| at.parse().ok());
                    let asked: Timestamp = asked.unwrap_or(now);
                    self.mark(kind, path, old, asked - span(old.grace()) + span(grace), grace, false)
                }
                _ => Arc::clone(old),
            },
            (false, true) => {
                let own = old.value["spec"]["terminationGracePeriodSeconds"].as_u64();
                let unbound = old.value["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
                let at_once = unbound || strategy::is_terminal(&old.value);
                let grace = if at_once { 0 } else { grace.or(own).unwrap_or(0) };
                self.mark(kind, path, old, now + span(grace), grace, true)
            }
            (false, false) if old.held() => self.mark(kind, path, old, now, 0, true),
            (_, false) => Arc::clone(old),
        };
        let waits = graceful && marked.grace() > 0;
        if waits || marked.held() { marked } else { self.remove(kind, path, &marked) }
    }

    fn mark(
        &mut self,
        kind: &'static Kind,
        path: &str,
        old: &Arc<Version>,
        at: Timestamp,
        grace: u64,
        first: bool,
    ) -> Arc<Version> {
        let mut new = old.value.clone();
        let metadata = &mut new["metadata"];
        metadata["deletionTimestamp"] = json!(seconds(at));
        metadata["deletionGracePeriodSeconds"] = json!(grace);
        if first && let Some(generation) = metadata["generation"].as_i64() {
            metadata["generation"] = json!(generation + 1);
        }
        self.store(kind, path, old, new)
    }

    /// Stores a changed object; an unchanged one keeps its version and gives no event.
    fn store(&mut self, kind: &'static Kind, path: &str, old: &Arc<Version>, mut new: Value) -> Arc<Version> {
        strategy::normalise(kind, &mut new);
        if new == old.value {
            return Arc::clone(old);
        }
        // Removing the last finalizer of an object whose grace is over removes the object.
        let over = old.deleting() && old.grace() == 0 && new["metadata"].get("finalizers").is_none();
        if over {
            return self.remove(kind, path, old);
        }
        let object = Version::new(new, self.next_rv());
        let shelf = self.shelf_mut(kind);
        shelf.objects.insert(path.to_owned(), Arc::clone(&object));
        shelf.log.push(Event { what: What::Modified, object: Arc::clone(&object), before: Some(Arc::clone(old)) });
        object
    }

    fn remove(&mut self, kind: &'static Kind, path: &str, last: &Arc<Version>) -> Arc<Version> {
        let object = last.at(self.next_rv());
        let shelf = self.shelf_mut(kind);
        let before = shelf.objects.remove(path);
        shelf.log.push(Event { what: What::Deleted, object: Arc::clone(&object), before });
        object
    }

    fn existing(&self, kind: &Kind, path: &str) -> Result<&Arc<Version>, Denial> {
        let name = path.rsplit('/').next().unwrap_or_default();
        self.find(kind, path).ok_or_else(|| Denial::not_found(kind, name))
    }

    fn next_rv(&mut self) -> Rv {
        self.rv += 1;
        self.rv()
    }

    /// Shaped like a UUID, telling the sides apart.
    fn uid(&self) -> String {
        let side = match self.side {
            Side::Virtual => "aaaaaaaa",
            Side::Physical => "bbbbbbbb",
        };
        format!("{side}-0000-4000-8000-{:012x}", self.made)
    }

    fn shelf(&self, kind: &Kind) -> Option<&Shelf> {
        self.shelves.iter().find(|shelf| std::ptr::eq(shelf.kind, kind) || shelf.kind == kind)
    }

    fn shelf_mut(&mut self, kind: &'static Kind) -> &mut Shelf {
        let place = self.shelves.iter().position(|shelf| shelf.kind == kind).unwrap_or_else(|| {
            self.shelves.push(Shelf { kind, objects: BTreeMap::new(), log: Vec::new() });
            self.shelves.len() - 1
        });
        &mut self.shelves[place]
    }
}

/// A kind's entry in discovery.
fn discovery(kind: &Kind, serving: Serving) -> Bytes {
    let create = ["create"].into_iter().filter(|_| serving == Serving::Fully);
    let verbs: Vec<&str> = create.chain(["delete", "deletecollection", "get", "list", "watch"]).collect();
    Bytes::from(json!({"name": kind.plural, "verbs": verbs}).to_string())
}

fn check_type(kind: &Kind, body: &Value) -> Result<(), Denial> {
    let typed = body["kind"] == kind.kind && body["apiVersion"].as_str() == Some(&*kind.api_version());
    if typed {
        return Ok(());
    }
    Err(Denial::bad_request(format!("apiVersion and kind of the body are not those of {}", kind.plural)))
}

fn check_preconditions(kind: &Kind, old: &Version, body: &Value) -> Result<(), Denial> {
    let metadata = &body["metadata"];
    let name = old.value["metadata"]["name"].as_str().unwrap_or_default();
    if metadata.get("resourceVersion").is_some_and(|rv| rv.as_str() != Some(&*old.rv.to_string())) {
        return Err(Denial::conflict(kind, name, "the object has been modified"));
    }
    if metadata.get("uid").is_some_and(|uid| uid.as_str() != Some(old.uid.as_str())) {
        return Err(Denial::invalid("metadata.uid", "field is immutable"));
    }
    for field in ["name", "namespace"] {
        if metadata.get(field).is_some_and(|given| *given != old.value["metadata"][field]) {
            return Err(Denial::bad_request(format!("the {field} of the object does not match that of the request")));
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= 253 && name.chars().all(legal) && edge(name.chars().next()) && edge(name.chars().last())
}

/// As `metav1.Time` is written.
pub(super) fn seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

fn span(seconds: u64) -> std::time::Duration {
    std::time::Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests;
