//! What one pod needs besides a node: ConfigMaps, Secrets, claims and tokens, as its spec names them; or one volume: Secrets.
//! Must not say whether they are there.

use std::sync::Arc;

use tapestry_cluster::Name;
use tapestry_domain::dependents::DependentKind;
use tapestry_domain::podspec::{SpecNeeds, TokenAsk};
use tapestry_domain::volumes::SecretName;

use super::Id;
use crate::volumes;

/// What a pod or a volume needs.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Needs {
    /// Sorted, each once, with whether the pod may do without it.
    dependents: Box<[(Arc<Id>, bool)]>,
    /// Those of them that ephemeral containers name, with whether nothing else does.
    added: Box<[(Arc<Id>, bool)]>,
    /// What the injected API-access volume names: the virtual cluster's CA.
    injected: Box<[(Arc<Id>, bool)]>,
    /// A required one whose name no object can have.
    impossible: Option<(DependentKind, Box<str>)>,
    /// Claims, each once, with whether it must have been made for this pod.
    claims: Box<[(Arc<volumes::Id>, bool)]>,
    /// A claim whose name no object can have.
    impossible_claim: Option<Box<str>>,
    /// Tokens that the pod itself asks for.
    tokens: Box<[TokenAsk]>,
    /// All of them, with that of the injected volume, where it has one.
    all_tokens: Box<[TokenAsk]>,
    /// Whose tokens.
    account: Option<Name>,
}

impl Needs {
    /// Reads those of the pod of this name; `None` when it needs nothing.
    pub(crate) fn read(
        spec: &SpecNeeds<'_>,
        (namespace, pod): (&Name, &Name),
        account: Option<&str>,
    ) -> Option<Arc<Self>> {
        let mut impossible = None;
        let mut ids = |api_access: bool| -> Vec<(Arc<Id>, bool)> {
            let mut found = Vec::new();
            for reference in spec.references(api_access) {
                if let Ok(name) = Name::parse(&reference.name) {
                    let id = Id { kind: reference.kind, namespace: namespace.clone(), name };
                    found.push((Arc::new(id), reference.optional));
                } else if !reference.optional {
                    impossible = Some((reference.kind, reference.name));
                }
            }
            found
        };
        let dependents = ids(false);
        let injected = ids(true).into_iter().filter(|entry| !dependents.contains(entry)).collect();
        let named = spec.added_references();
        let is_added = |id: &Id| named.iter().any(|(kind, name)| (*kind, *name) == (id.kind, id.name.as_str()));
        let only = |id: &Id| !spec.names_from_the_start(id.kind, id.name.as_str());
        let added = dependents.iter().map(|(id, _)| id).filter(|id| is_added(id));
        let added = added.map(|id| (Arc::clone(id), only(id))).collect();
        let (mut claims, mut impossible_claim) = (Vec::new(), None);
        for claim in spec.claims(pod.as_str()) {
            match Name::parse(&claim.name) {
                Ok(name) => claims.push((Arc::new(volumes::Id { namespace: namespace.clone(), name }), claim.own)),
                Err(_) => impossible_claim = Some(claim.name),
            }
        }
        let needs = Self {
            claims: claims.into(),
            impossible_claim,
            dependents: dependents.into(),
            added,
            injected,
            impossible,
            tokens: spec.tokens(false).into(),
            all_tokens: spec.tokens(true).into(),
            account: Name::parse(account.unwrap_or("default")).ok(),
        };
        (!needs.is_empty()).then(|| Arc::new(needs))
    }

    /// Those of a volume; `None` when it names no Secret.
    pub(crate) fn of_secrets(secrets: &[SecretName]) -> Option<Arc<Self>> {
        let mut needs = Self::default();
        let mut found = Vec::new();
        for secret in secrets {
            match (Name::parse(&secret.namespace), Name::parse(&secret.name)) {
                (Ok(namespace), Ok(name)) => {
                    found.push((Arc::new(Id { kind: DependentKind::Secret, namespace, name }), false));
                }
                _ => needs.impossible = Some((DependentKind::Secret, secret.name.clone())),
            }
        }
        needs.dependents = found.into();
        (!needs.is_empty()).then(|| Arc::new(needs))
    }

    /// The claims it needs, and whether each must have been made for this pod.
    pub(crate) fn claims(&self) -> impl Iterator<Item = (&Arc<volumes::Id>, bool)> {
        self.claims.iter().map(|(id, own)| (id, *own))
    }

    /// A claim whose name no object can have.
    pub(crate) fn impossible_claim(&self) -> Option<&str> {
        self.impossible_claim.as_deref()
    }

    fn is_empty(&self) -> bool {
        let objects = self.dependents.is_empty() && self.injected.is_empty() && self.impossible.is_none();
        let claims = self.claims.is_empty() && self.impossible_claim.is_none();
        objects && claims && self.all_tokens.is_empty()
    }

    /// The objects it needs, and whether it may do without; with `api_access` also those of the injected volume.
    pub(super) fn dependents(&self, api_access: bool) -> impl Iterator<Item = (&Arc<Id>, bool)> {
        let injected = self.injected.iter().filter(move |_| api_access);
        self.dependents.iter().chain(injected).map(|(id, optional)| (id, *optional))
    }

    /// The objects that ephemeral containers name.
    pub(super) fn added(&self) -> impl Iterator<Item = &Arc<Id>> {
        self.added.iter().map(|(id, _)| id)
    }

    /// Whether only ephemeral containers name one of them.
    pub(super) fn adds_any(&self) -> bool {
        self.added.iter().any(|(_, only)| *only)
    }

    /// Whether only ephemeral containers name it.
    pub(super) fn only_adds(&self, id: &Id) -> bool {
        self.added.iter().any(|(added, only)| *only && **added == *id)
    }

    /// A required one whose name no object can have.
    pub(super) fn impossible(&self) -> Option<(DependentKind, &str)> {
        self.impossible.as_ref().map(|(kind, name)| (*kind, &**name))
    }

    /// The tokens it needs.
    pub(super) fn tokens(&self, api_access: bool) -> &[TokenAsk] {
        if api_access { &self.all_tokens } else { &self.tokens }
    }

    pub(super) fn wants_tokens(&self, api_access: bool) -> bool {
        !self.tokens(api_access).is_empty()
    }

    pub(super) fn account(&self) -> Option<&Name> {
        self.account.as_ref()
    }
}
