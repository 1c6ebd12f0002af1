//! What a pod needs besides a node: ConfigMaps, Secrets and claims of its namespace and tokens, which are carried, and what is
//! refused.
//! It must not look at less than [`super::references`] rewrites: what is named there must be in the physical cluster first.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::references::token_key;
use crate::dependents::{DependentKind, Reference};
use crate::excerpt::excerpt;
use crate::shape::{Text, nullable};

/// The part of a pod's `spec` that names what it needs, read straight from its JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SpecNeeds<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    volumes: Vec<Volume<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    containers: Vec<Container<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    init_containers: Vec<Container<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    ephemeral_containers: Vec<Container<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    image_pull_secrets: Vec<Named<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    resource_claims: Vec<Named<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    readiness_gates: Vec<Named<'a>>,
}

/// A kind of need that can be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// Carried; refused only by a caller that cannot carry it.
    ConfigMap,
    /// Carried; refused only by a caller that cannot carry it.
    Secret,
    /// The addresses of a GlusterFS volume's servers.
    Endpoints,
    /// A projected token. Carried; refused only by a caller that cannot carry it.
    ServiceAccountToken,
    /// A projected bundle of roots of trust.
    ClusterTrustBundle,
    /// A projected certificate.
    PodCertificate,
    /// A device by dynamic resource allocation.
    ResourceClaim,
    /// An attribute by which a CSI driver finds a Secret or its provider in the copy's namespace, where it may be another user's.
    DriverSecret,
}

/// A need that is not met: the pod is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pod needs {what} `{name}`, which Tapestry does not carry to the physical cluster; remove it from the pod")]
pub struct Unsupported {
    /// What kind of thing.
    pub what: Need,
    /// Its name; of a projection, the name of its volume.
    pub name: Box<str>,
}

impl Unsupported {
    /// The name is cut to what an event can show.
    #[must_use]
    pub fn new(what: Need, name: &str) -> Self {
        Self { what, name: excerpt(name) }
    }
}

/// A token that a pod wants, in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenAsk {
    /// Its key in the Secret with the pod's tokens: `<index of the volume>.<index of the source>`.
    pub key: Box<str>,
    /// For whom it is; `None`: for the API server.
    pub audience: Option<Box<str>>,
    /// How long it should be valid.
    pub expiration_seconds: i64,
}

/// A PersistentVolumeClaim that a pod names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimReference {
    /// The name in the pod's namespace.
    pub name: Box<str>,
    /// Whether it must have been made for this pod: that of an ephemeral volume.
    pub own: bool,
}

/// The claim that Kubernetes makes for an ephemeral volume of a pod.
pub(super) fn ephemeral_claim(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

/// What a token without `expirationSeconds` gets.
const DEFAULT_EXPIRATION: i64 = 3600;

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Endpoints => "Endpoints",
            Self::ServiceAccountToken => "a service account token in volume",
            Self::ClusterTrustBundle => "a cluster trust bundle in volume",
            Self::PodCertificate => "a pod certificate in volume",
            Self::ResourceClaim => "resource claim",
            Self::DriverSecret => "a Secret by an attribute of the CSI driver in volume",
        })
    }
}

/// How Kubernetes begins the name of the volume that every pod is given.
const API_ACCESS: &str = "kube-api-access-";

/// Whether a copy, of which this is the spec, was made with the injected API-access volume. By name alone: in a copy the token
/// comes from a Secret.
#[must_use]
pub fn has_api_access(copy: &str) -> bool {
    // Without an address of the virtual API server no copy has it: look at the text before parsing it.
    copy.contains(API_ACCESS)
        && serde_json::from_str::<SpecNeeds<'_>>(copy)
            .is_ok_and(|spec| spec.volumes.iter().any(|volume| volume.name.starts_with(API_ACCESS)))
}

/// The first thing that a pod needs and that is not carried across.
#[must_use]
pub fn unsupported(spec: &SpecNeeds<'_>) -> Option<Unsupported> {
    let of_volume = spec.volumes.iter().find_map(Volume::unsupported);
    let (what, name) =
        of_volume.or_else(|| spec.resource_claims.first().map(|claim| (Need::ResourceClaim, &*claim.name)))?;
    Some(Unsupported::new(what, name))
}

impl SpecNeeds<'_> {
    /// The ConfigMaps and Secrets it names, sorted, each once; one is optional if every place that names it lets the pod start
    /// without it. With `api_access` also those of the injected API-access volume.
    ///
    /// As with a kubelet, a pull secret and what only an ephemeral container names never keep the pod from starting.
    #[must_use]
    pub fn references(&self, api_access: bool) -> Vec<Reference> {
        let mut found = self.required(api_access);
        let optional = found.len();
        for container in &self.ephemeral_containers {
            container.references(&mut found);
        }
        found.extend(self.image_pull_secrets.iter().map(|secret| (DependentKind::Secret, secret)));
        let mut references: Vec<Reference> = found
            .into_iter()
            .enumerate()
            .filter(|(_, (_, named))| !named.name.is_empty())
            .map(|(position, (kind, named))| Reference {
                kind,
                name: (*named.name).into(),
                optional: position >= optional || named.optional.unwrap_or_default(),
            })
            .collect();
        // Required comes first, and stays.
        references.sort_unstable();
        references.dedup_by(|next, first| (next.kind, &next.name) == (first.kind, &first.name));
        references
    }

    /// What its volumes, containers and init containers name.
    fn required(&self, api_access: bool) -> Vec<(DependentKind, &Named<'_>)> {
        // Stays unallocated for the many pods that name nothing.
        let mut found = Vec::new();
        for volume in self.volumes(api_access) {
            volume.references(&mut found);
        }
        for container in self.containers.iter().chain(&self.init_containers) {
            container.references(&mut found);
        }
        found
    }

    /// Whether the pod names it elsewhere than in its ephemeral containers.
    #[must_use]
    pub fn names_from_the_start(&self, kind: DependentKind, name: &str) -> bool {
        let pulls = kind == DependentKind::Secret && self.image_pull_secrets.iter().any(|secret| &*secret.name == name);
        pulls || self.required(true).iter().any(|(other, named)| (*other, &*named.name) == (kind, name))
    }

    /// What its ephemeral containers name, in no order.
    #[must_use]
    pub fn added_references(&self) -> Vec<(DependentKind, &str)> {
        let mut found = Vec::new();
        for container in &self.ephemeral_containers {
            container.references(&mut found);
        }
        found.into_iter().map(|(kind, named)| (kind, &*named.name)).collect()
    }

    /// The tokens it wants; with `api_access` also that of the injected API-access volume.
    #[must_use]
    pub fn tokens(&self, api_access: bool) -> Vec<TokenAsk> {
        let mut asks = Vec::new();
        let volumes = self.volumes.iter().enumerate();
        for (position, volume) in volumes.filter(|(_, volume)| api_access || !volume.is_api_access()) {
            for (index, source) in volume.sources().enumerate() {
                let Some(token) = &source.service_account_token else { continue };
                asks.push(TokenAsk {
                    key: token_key(position, index).into(),
                    audience: token.audience.as_deref().filter(|audience| !audience.is_empty()).map(Into::into),
                    expiration_seconds: token.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION),
                });
            }
        }
        asks
    }

    /// The claims that a pod of this name needs, sorted, each once; one is the pod's own if any place that names it says so.
    #[must_use]
    pub fn claims(&self, pod: &str) -> Vec<ClaimReference> {
        let mut claims: Vec<ClaimReference> = self.volumes.iter().filter_map(|volume| volume.claim(pod)).collect();
        // Own comes first, and stays.
        claims.sort_unstable_by(|one, other| one.name.cmp(&other.name).then(other.own.cmp(&one.own)));
        claims.dedup_by(|next, first| next.name == first.name);
        claims
    }

    /// Conditions that controllers of the virtual cluster must set before the virtual pod is ready.
    pub fn readiness_gates(&self) -> impl Iterator<Item = &str> {
        self.readiness_gates.iter().map(|gate| &*gate.name)
    }

    /// The volumes through which the virtual cluster's admission gave the pod its API token.
    #[must_use]
    pub fn api_access_volumes(&self) -> Vec<&str> {
        self.volumes.iter().filter(|volume| volume.is_api_access()).map(|volume| &*volume.name).collect()
    }

    fn volumes(&self, api_access: bool) -> impl Iterator<Item = &Volume<'_>> {
        self.volumes.iter().filter(move |volume| api_access || !volume.is_api_access())
    }
}

/// A reference by name, under whichever field its kind spells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named<'a> {
    #[serde(borrow, deserialize_with = "nullable", alias = "secretName", alias = "claimName", alias = "conditionType")]
    name: Text<'a>,
    optional: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    name: Text<'a>,
    #[serde(borrow)]
    config_map: Option<Named<'a>>,
    #[serde(borrow)]
    secret: Option<Named<'a>>,
    #[serde(borrow)]
    persistent_volume_claim: Option<Named<'a>>,
    ephemeral: Option<IgnoredAny>,
    #[serde(borrow)]
    projected: Option<Projected<'a>>,
    #[serde(borrow)]
    glusterfs: Option<Glusterfs<'a>>,
    #[serde(borrow)]
    azure_file: Option<Named<'a>>,
    // Drivers that take a Secret of the pod's namespace as their credential.
    #[serde(borrow)]
    csi: Option<Driver<'a>>,
    #[serde(borrow, rename = "flexVolume")]
    flex: Option<Driver<'a>>,
    #[serde(borrow)]
    cephfs: Option<Driver<'a>>,
    #[serde(borrow)]
    cinder: Option<Driver<'a>>,
    #[serde(borrow)]
    rbd: Option<Driver<'a>>,
    #[serde(borrow)]
    iscsi: Option<Driver<'a>>,
    #[serde(borrow, rename = "scaleIO")]
    scale_io: Option<Driver<'a>>,
    #[serde(borrow)]
    storageos: Option<Driver<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Driver<'a> {
    #[serde(borrow, rename = "secretRef", alias = "nodePublishSecretRef")]
    secret: Option<Named<'a>>,
    #[serde(borrow, rename = "volumeAttributes")]
    attributes: Option<&'a RawValue>,
}

impl Driver<'_> {
    /// What drivers call such attributes: `secretName`, `secretNamespace`, `secretProviderClass`, `csi.storage.k8s.io/…-secret-name`.
    fn names_a_secret(&self) -> bool {
        let attributes = self.attributes.and_then(|text| serde_json::from_str::<Map<String, Value>>(text.get()).ok());
        attributes.is_some_and(|attributes| attributes.keys().any(|name| name.to_ascii_lowercase().contains("secret")))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Glusterfs<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    endpoints: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Projected<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    sources: Vec<Source<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Source<'a> {
    #[serde(borrow)]
    config_map: Option<Named<'a>>,
    #[serde(borrow)]
    secret: Option<Named<'a>>,
    #[serde(borrow)]
    service_account_token: Option<Token<'a>>,
    cluster_trust_bundle: Option<IgnoredAny>,
    pod_certificate: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Token<'a> {
    #[serde(borrow)]
    audience: Option<Text<'a>>,
    expiration_seconds: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    env: Vec<Env<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    env_from: Vec<References<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Env<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    value_from: References<'a>,
}

/// Of one variable (`…KeyRef`) or of a whole object (`…Ref`).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct References<'a> {
    #[serde(borrow, rename = "configMapRef", alias = "configMapKeyRef")]
    config_map: Option<Named<'a>>,
    #[serde(borrow, rename = "secretRef", alias = "secretKeyRef")]
    secret: Option<Named<'a>>,
}

/// References as they are named, in the order in which they are found.
type Found<'s, 'a> = Vec<(DependentKind, &'s Named<'a>)>;

impl<'a> Volume<'a> {
    /// Whether it is the volume that every pod is given: token, the cluster's root certificate and the namespace, nothing else.
    ///
    /// By content as well as by name, so that a volume cannot hide a Secret behind the name.
    fn is_api_access(&self) -> bool {
        let plain = |source: &Source<'a>| {
            let other =
                source.secret.is_some() || source.cluster_trust_bundle.is_some() || source.pod_certificate.is_some();
            !other && source.config_map.as_ref().is_none_or(|map| &*map.name == "kube-root-ca.crt")
        };
        self.name.starts_with(API_ACCESS)
            && self.sources().any(|source| source.service_account_token.is_some())
            && self.sources().all(plain)
    }

    fn sources(&self) -> impl Iterator<Item = &Source<'a>> {
        self.projected.iter().flat_map(|projected| &projected.sources)
    }

    fn references<'s>(&'s self, found: &mut Found<'s, 'a>) {
        let drivers = [
            &self.csi,
            &self.flex,
            &self.cephfs,
            &self.cinder,
            &self.rbd,
            &self.iscsi,
            &self.scale_io,
            &self.storageos,
        ];
        let credentials = drivers.into_iter().flatten().filter_map(|driver| driver.secret.as_ref());
        let projected = self.sources().filter_map(|source| source.secret.as_ref());
        let secrets = self.secret.iter().chain(&self.azure_file).chain(credentials).chain(projected);
        found.extend(secrets.map(|secret| (DependentKind::Secret, secret)));
        let projected = self.sources().filter_map(|source| source.config_map.as_ref());
        found.extend(self.config_map.iter().chain(projected).map(|map| (DependentKind::ConfigMap, map)));
    }

    fn claim(&self, pod: &str) -> Option<ClaimReference> {
        match (&self.persistent_volume_claim, &self.ephemeral) {
            (Some(claim), _) => Some(ClaimReference { name: (*claim.name).into(), own: false }),
            (None, Some(_)) => Some(ClaimReference { name: ephemeral_claim(pod, &self.name).into(), own: true }),
            (None, None) => None,
        }
    }

    fn unsupported(&self) -> Option<(Need, &str)> {
        if let Some(glusterfs) = &self.glusterfs {
            return Some((Need::Endpoints, &glusterfs.endpoints));
        }
        let need = if self.sources().any(|source| source.cluster_trust_bundle.is_some()) {
            Need::ClusterTrustBundle
        } else if self.sources().any(|source| source.pod_certificate.is_some()) {
            Need::PodCertificate
        } else if self.csi.as_ref().is_some_and(Driver::names_a_secret) {
            Need::DriverSecret
        } else {
            return None;
        };
        Some((need, &self.name))
    }
}

impl<'a> Container<'a> {
    fn references<'s>(&'s self, found: &mut Found<'s, 'a>) {
        for references in self.env.iter().map(|env| &env.value_from).chain(&self.env_from) {
            found.extend(references.config_map.iter().map(|map| (DependentKind::ConfigMap, map)));
            found.extend(references.secret.iter().map(|secret| (DependentKind::Secret, secret)));
        }
    }
}
