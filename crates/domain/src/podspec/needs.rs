//! What a pod needs besides a node: objects of its namespace, tokens, claims, gates.
//! It must not decide what to do about a need; for now admission refuses every one, later each gets its own handling.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;

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
    image_pull_secrets: Vec<Named<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    resource_claims: Vec<Named<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    readiness_gates: Vec<Named<'a>>,
}

/// A kind of need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// In a volume, a projection, `env` or `envFrom`.
    ConfigMap,
    /// In the same places, as a pull secret, or as the credential of a volume driver.
    Secret,
    /// A volume's claim.
    PersistentVolumeClaim,
    /// A volume whose claim is made with the pod.
    EphemeralVolume,
    /// A projected token other than the one every pod gets.
    ServiceAccountToken,
    /// A projected bundle of roots of trust.
    ClusterTrustBundle,
    /// A projected certificate.
    PodCertificate,
    /// A device by dynamic resource allocation.
    ResourceClaim,
    /// A condition that another controller must set.
    ReadinessGate,
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

/// A token that a pod wants, in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenAsk {
    /// Its key in the Secret with the pod's tokens: `<volume>.<index of the source>`.
    pub key: Box<str>,
    /// For whom it is; `None`: for the API server.
    pub audience: Option<Box<str>>,
    /// How long it should be valid.
    pub expiration_seconds: i64,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::EphemeralVolume => "ephemeral volume",
            Self::ServiceAccountToken => "a service account token in volume",
            Self::ClusterTrustBundle => "a cluster trust bundle in volume",
            Self::PodCertificate => "a pod certificate in volume",
            Self::ResourceClaim => "resource claim",
            Self::ReadinessGate => "readiness gate",
        })
    }
}

/// The first need of a pod that is not met yet. Optional references count: they would read another user's object.
#[must_use]
pub fn unsupported(spec: &SpecNeeds<'_>) -> Option<Unsupported> {
    let (what, name) = spec.needs().into_iter().next()?;
    Some(Unsupported { what, name: excerpt(name) })
}

impl SpecNeeds<'_> {
    /// Everything the pod names, volumes first, each as often as it is named; the injected API token is not a need.
    #[must_use]
    pub fn needs(&self) -> Vec<(Need, &str)> {
        // Stays unallocated for the many pods that need nothing.
        let mut needs = Vec::new();
        for volume in self.volumes.iter().filter(|volume| !volume.is_api_access()) {
            volume.needs(&mut needs);
        }
        for container in self.containers.iter().chain(&self.init_containers) {
            container.needs(&mut needs);
        }
        needs.extend(self.image_pull_secrets.iter().map(|secret| (Need::Secret, &*secret.name)));
        needs.extend(self.resource_claims.iter().map(|claim| (Need::ResourceClaim, &*claim.name)));
        needs.extend(self.readiness_gates.iter().map(|gate| (Need::ReadinessGate, &*gate.name)));
        needs
    }

    /// The volumes through which the virtual cluster's admission gave the pod its API token.
    #[must_use]
    pub fn api_access_volumes(&self) -> Vec<&str> {
        self.volumes.iter().filter(|volume| volume.is_api_access()).map(|volume| &*volume.name).collect()
    }
}

/// A reference by name, under whichever field its kind spells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named<'a> {
    #[serde(borrow, deserialize_with = "nullable", alias = "secretName", alias = "claimName", alias = "conditionType")]
    name: Text<'a>,
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
    azure_file: Option<Named<'a>>,
    // Drivers that take a Secret of the pod's namespace as their credential.
    #[serde(borrow)]
    csi: Option<Driver<'a>>,
    #[serde(borrow, rename = "flexVolume")]
    flex: Option<Driver<'a>>,
    #[serde(borrow)]
    cephfs: Option<Driver<'a>>,
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
    service_account_token: Option<IgnoredAny>,
    cluster_trust_bundle: Option<IgnoredAny>,
    pod_certificate: Option<IgnoredAny>,
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

impl Volume<'_> {
    /// Whether it is the volume that every pod is given: token, the cluster's root certificate and the namespace, nothing else.
    ///
    /// By content as well as by name, so that a volume cannot hide a Secret behind the name.
    fn is_api_access(&self) -> bool {
        let Some(projected) = &self.projected else { return false };
        let plain = |source: &Source<'_>| {
            let other =
                source.secret.is_some() || source.cluster_trust_bundle.is_some() || source.pod_certificate.is_some();
            !other && source.config_map.as_ref().is_none_or(|map| &*map.name == "kube-root-ca.crt")
        };
        self.name.starts_with("kube-api-access-")
            && projected.sources.iter().any(|source| source.service_account_token.is_some())
            && projected.sources.iter().all(plain)
    }

    fn needs<'s>(&'s self, needs: &mut Vec<(Need, &'s str)>) {
        needs.extend(self.config_map.iter().map(|map| (Need::ConfigMap, &*map.name)));
        needs.extend(self.secret.iter().chain(&self.azure_file).map(|secret| (Need::Secret, &*secret.name)));
        needs.extend(self.persistent_volume_claim.iter().map(|claim| (Need::PersistentVolumeClaim, &*claim.name)));
        needs.extend(self.ephemeral.iter().map(|_| (Need::EphemeralVolume, &*self.name)));
        let drivers = [&self.csi, &self.flex, &self.cephfs, &self.rbd, &self.iscsi, &self.scale_io, &self.storageos];
        let credentials = drivers.into_iter().flatten().filter_map(|driver| driver.secret.as_ref());
        needs.extend(credentials.map(|secret| (Need::Secret, &*secret.name)));
        for source in self.projected.iter().flat_map(|projected| &projected.sources) {
            needs.extend(source.config_map.iter().map(|map| (Need::ConfigMap, &*map.name)));
            needs.extend(source.secret.iter().map(|secret| (Need::Secret, &*secret.name)));
            needs.extend(source.service_account_token.iter().map(|_| (Need::ServiceAccountToken, &*self.name)));
            needs.extend(source.cluster_trust_bundle.iter().map(|_| (Need::ClusterTrustBundle, &*self.name)));
            needs.extend(source.pod_certificate.iter().map(|_| (Need::PodCertificate, &*self.name)));
        }
    }
}

impl Container<'_> {
    fn needs<'s>(&'s self, needs: &mut Vec<(Need, &'s str)>) {
        for references in self.env.iter().map(|env| &env.value_from).chain(&self.env_from) {
            needs.extend(references.config_map.iter().map(|map| (Need::ConfigMap, &*map.name)));
            needs.extend(references.secret.iter().map(|secret| (Need::Secret, &*secret.name)));
        }
    }
}
