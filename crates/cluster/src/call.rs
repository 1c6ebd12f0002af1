//! A request as data, for plans, audit and tests. Sends nothing; the gate does that.

pub mod carry;
mod need;
pub mod token;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Kind, Name, Rv, Uid};

pub use carry::{CarryMarks, Shape, VolumeMarks};
pub use need::Need;
pub use tapestry_domain::podspec::TokenAsk;
pub use token::PodRef;

/// Which of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The cluster that users see.
    Virtual,
    /// The cluster that lends.
    Physical,
}

/// Which object a call is for, and which version of it the plan looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// The cluster.
    pub side: Side,
    /// The resource.
    pub kind: &'static Kind,
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<Name>,
    /// The object's name.
    pub name: Name,
    /// Precondition: only the object with this UID (law 2).
    pub uid: Option<Uid>,
    /// Precondition: only this version of it.
    pub rv: Option<Rv>,
}

/// The part of the object that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sub {
    /// The object itself.
    Main,
    /// Its status subresource.
    Status,
    /// What a running pod's containers may use: its resize subresource, which takes nothing else.
    Resize,
    /// A running pod's ephemeral containers, which can only be added: a subresource that takes nothing else.
    EphemeralContainers,
}

/// What to do with the target.
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    /// Read it as evidence (law 1), from etcd and not from a cache. That it is gone is proof, and so is that another object has
    /// its name: before either is told, the gate asks which cluster answered. Another object is one with another UID than the
    /// target's; when the target names none, any object.
    Get,
    /// Read it for what it says, as [`Self::Get`] but for this: an object that is found is told without asking which cluster
    /// answered, so that another one under the name proves nothing. That it is gone is proof here too.
    Peek,
    /// Read from discovery whether and how the kind of the target is served; the target's name is that of the resource. Answers
    /// with its entry; `Gone` is proof that it is not served.
    Discover {
        /// Returned with the call: what the model knew when it asked.
        mark: u64,
    },
    /// Which version all objects of the target's kind have now, in all namespaces: as new as etcd. The target's name is
    /// ignored; only the version of the returned list is used.
    Version,
    /// Create it from this body.
    Create(Value),
    /// JSON merge patch.
    Merge(Sub, Value),
    /// Strategic merge patch.
    Strategic(Sub, Value),
    /// Server-side apply under our field manager, forced.
    Apply(Sub, Value),
    /// Delete it; `None` leaves the grace period to the object.
    Delete {
        /// Seconds.
        grace: Option<u32>,
    },
    /// Delete a pod as far as its disruption budget allows; `None` leaves the grace period to the pod.
    /// The answer is a Status and not the pod. For a pod that does not run, the server retries a stale UID without a
    /// version for ten seconds before it reports it.
    Evict {
        /// Seconds.
        grace: Option<u32>,
    },
    /// Copy an object: the gate reads `from`, shapes it and writes the target, so that no value reaches a plan, a log or an error
    /// text. Without a UID of the target it is created. With one, the copy is read too, before the source,
    /// and patched under its UID and version if it differs. The other way round, [`Shape::Raise`] takes changes of a copy up.
    ///
    /// Answers with the copy as it is now. `Replaced`: `from` provably does not exist, or is another object than the one with its UID, or
    /// another version where it names one; or the copy is another one or was changed meanwhile. `Gone`: the copy does not exist, which
    /// is no proof here.
    Carry {
        /// The object to copy.
        from: Box<Target>,
        /// What is made of it.
        shape: Box<Shape>,
    },
    /// Put tokens of a ServiceAccount, each asked for from its cluster and bound to a pod of its namespace, into the target, a
    /// Secret. Without a UID of the target it is created, otherwise patched. No token reaches a plan, a log or an error text.
    ///
    /// Answers with the Secret. `Replaced`: the pod does not exist, or it is another one; or the Secret is another one. `Invalid` with
    /// a message of ours and code 404: the account does not exist. `Gone` is about the Secret.
    Token {
        /// The account.
        account: Box<Target>,
        /// Tokens are valid for as long as it exists.
        pod: Box<PodRef>,
        /// One token each.
        asks: Vec<TokenAsk>,
        /// What the Secret has besides.
        marks: Box<CarryMarks>,
    },
}

/// One request as data, or a few that belong together ([`Verb::Carry`], [`Verb::Token`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The object.
    pub target: Target,
    /// What to do.
    pub verb: Verb,
    /// Why, in `PascalCase`: audit line, metric label.
    pub why: &'static str,
}

/// What the API server answered: the object as it is after the call (for a delete, as it was or is; for an eviction, a Status).
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// The JSON text of the object.
    pub object: Bytes,
}

impl Side {
    /// Both, for tables indexed by side.
    pub const BOTH: [Self; 2] = [Self::Virtual, Self::Physical];

    /// For logs and metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Virtual => "virtual",
            Self::Physical => "physical",
        }
    }
}

impl Answer {
    /// The version of the answer: of the object, or of the list.
    #[must_use]
    pub fn version(&self) -> Option<Rv> {
        #[derive(Deserialize)]
        struct Versioned {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            #[serde(rename = "resourceVersion")]
            rv: Rv,
        }
        serde_json::from_slice::<Versioned>(&self.object).ok().map(|versioned| versioned.metadata.rv)
    }
}

impl Target {
    /// A cluster-scoped object, without preconditions.
    #[must_use]
    pub fn cluster(side: Side, kind: &'static Kind, name: Name) -> Self {
        Self { side, kind, namespace: None, name, uid: None, rv: None }
    }

    /// A namespaced object, without preconditions.
    #[must_use]
    pub fn namespaced(side: Side, kind: &'static Kind, namespace: Name, name: Name) -> Self {
        Self { side, kind, namespace: Some(namespace), name, uid: None, rv: None }
    }

    /// A kind itself, to ask whether it is served.
    #[must_use]
    pub fn kind(side: Side, kind: &'static Kind) -> Option<Self> {
        Name::parse(kind.plural).ok().map(|name| Self::cluster(side, kind, name))
    }

    /// Only this object, not a later one of the same name.
    #[must_use]
    pub fn uid(mut self, uid: &Uid) -> Self {
        self.uid = Some(uid.clone());
        self
    }

    /// Only this version.
    #[must_use]
    pub fn rv(mut self, rv: Rv) -> Self {
        self.rv = Some(rv);
        self
    }

    fn delete_options(&self, grace: Option<u32>) -> Value {
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(grace) = grace {
            options["gracePeriodSeconds"] = json!(grace);
        }
        if let Some(uid) = &self.uid {
            options["preconditions"]["uid"] = json!(uid.as_str());
        }
        if let Some(rv) = self.rv {
            options["preconditions"]["resourceVersion"] = json!(rv.to_string());
        }
        options
    }
}

impl Verb {
    /// As RBAC and audit logs spell it; a verb of several requests has its own word, and [`Call::needs`] lists theirs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Get | Self::Peek | Self::Discover { .. } => "get",
            Self::Version => "list",
            // An eviction is created under the pod it is for.
            Self::Create(_) | Self::Evict { .. } => "create",
            Self::Merge(..) | Self::Strategic(..) | Self::Apply(..) => "patch",
            Self::Delete { .. } => "delete",
            Self::Carry { .. } => "carry",
            Self::Token { .. } => "token",
        }
    }
}

impl Call {
    /// Whether the call only reads.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self.verb, Verb::Get | Verb::Peek | Verb::Version | Verb::Discover { .. })
    }

    /// Whether the call reads discovery, which every authenticated user may.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        matches!(self.verb, Verb::Discover { .. })
    }

    /// The subresource of the path.
    #[must_use]
    pub fn sub(&self) -> Sub {
        match self.verb {
            Verb::Merge(sub, _) | Verb::Strategic(sub, _) | Verb::Apply(sub, _) => sub,
            Verb::Get
            | Verb::Peek
            | Verb::Version
            | Verb::Discover { .. }
            | Verb::Create(_)
            | Verb::Delete { .. }
            | Verb::Evict { .. }
            | Verb::Carry { .. }
            | Verb::Token { .. } => Sub::Main,
        }
    }

    /// The subresource that a call is about, as paths and RBAC spell it; empty for the object itself.
    #[must_use]
    pub fn part(&self) -> &'static str {
        match (&self.verb, self.sub()) {
            (Verb::Evict { .. }, _) => "eviction",
            (_, Sub::Status) => "status",
            (_, Sub::Resize) => "resize",
            (_, Sub::EphemeralContainers) => "ephemeralcontainers",
            (_, Sub::Main) => "",
        }
    }

    /// The body to send; `None` where there is none, or where only the gate knows it. Preconditions of the target are part of it,
    /// so that no plan can forget them.
    #[must_use]
    pub fn body(&self) -> Option<Cow<'_, Value>> {
        match &self.verb {
            Verb::Get
            | Verb::Peek
            | Verb::Version
            | Verb::Discover { .. }
            | Verb::Carry { .. }
            | Verb::Token { .. } => None,
            Verb::Create(body) => Some(Cow::Borrowed(body)),
            Verb::Merge(_, body) | Verb::Strategic(_, body) | Verb::Apply(_, body) => {
                let mut body = body.clone();
                if let Some(uid) = &self.target.uid {
                    body["metadata"]["uid"] = json!(uid.as_str());
                }
                if let Some(rv) = self.target.rv {
                    body["metadata"]["resourceVersion"] = json!(rv.to_string());
                }
                Some(Cow::Owned(body))
            }
            Verb::Delete { grace } => Some(Cow::Owned(self.target.delete_options(*grace))),
            Verb::Evict { grace } => {
                let mut metadata = json!({"name": self.target.name.as_str()});
                if let Some(namespace) = &self.target.namespace {
                    metadata["namespace"] = json!(namespace.as_str());
                }
                Some(Cow::Owned(json!({
                    "kind": "Eviction",
                    "apiVersion": "policy/v1",
                    "metadata": metadata,
                    "deleteOptions": self.target.delete_options(*grace),
                })))
            }
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, verb, why } = self;
        write!(f, "{} ", verb.as_str())?;
        let part = match (verb, self.sub()) {
            (Verb::Carry { from, .. }, _) => {
                write!(f, "{from} to ")?;
                ""
            }
            (Verb::Token { account, .. }, _) => {
                write!(f, "of {account} to ")?;
                ""
            }
            (Verb::Evict { .. }, _) => "/eviction",
            (Verb::Discover { .. }, _) => "/discovery",
            (_, Sub::Resize) => "/resize",
            (_, Sub::EphemeralContainers) => "/ephemeralcontainers",
            (_, Sub::Main | Sub::Status) => "",
        };
        write!(f, "{target}{part} ({why})")
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, kind, namespace, name, .. } = self;
        write!(f, "{} {}/", side.as_str(), kind.plural)?;
        if let Some(namespace) = namespace {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{name}")
    }
}

/// Without the object: it may be a Secret (law 10).
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer of {} bytes", self.object.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind;

    #[test]
    fn law_02_preconditions_are_part_of_every_patch_and_delete() {
        let target =
            Target::namespaced(Side::Virtual, &kind::POD, Name::parse("a").unwrap(), Name::parse("b").unwrap())
                .uid(&Uid::new("u-1"))
                .rv(Rv::new(7));
        let patch = json!({"metadata": {"annotations": {"k": "v"}}});
        for verb in [
            Verb::Merge(Sub::Main, patch.clone()),
            Verb::Strategic(Sub::Status, patch.clone()),
            Verb::Apply(Sub::Status, patch),
        ] {
            let body = Call { target: target.clone(), verb, why: "Test" }.body().unwrap().into_owned();
            assert_eq!(body["metadata"], json!({"annotations": {"k": "v"}, "uid": "u-1", "resourceVersion": "7"}));
        }
        let body = |verb| Call { target: target.clone(), verb, why: "Test" }.body().unwrap().into_owned();
        let delete = body(Verb::Delete { grace: Some(0) });
        assert_eq!(delete["preconditions"], json!({"uid": "u-1", "resourceVersion": "7"}));
        assert_eq!(delete["gracePeriodSeconds"], json!(0));
        let evict = body(Verb::Evict { grace: Some(0) });
        assert_eq!(evict["deleteOptions"], delete);
        assert_eq!(evict["metadata"], json!({"name": "b", "namespace": "a"}));
    }

    #[test]
    fn an_eviction_differs_from_a_creation_and_leaves_the_grace_to_the_pod_unless_one_is_given() {
        let target =
            Target::namespaced(Side::Physical, &kind::POD, Name::parse("a").unwrap(), Name::parse("b").unwrap());
        let call = Call { target, verb: Verb::Evict { grace: None }, why: "Shrink" };
        assert_eq!(call.to_string(), "create physical pods/a/b/eviction (Shrink)");
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        assert_eq!(call.body().unwrap()["deleteOptions"], options);
        assert!(!call.is_read());
    }
}
