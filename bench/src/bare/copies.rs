//! ConfigMaps and Secrets of the bare client: each is read once from the virtual cluster and created once, and deleted when the last pod
//! that names it is gone. Must not follow a source: what changes later is not carried.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::try_join_all;
use tapestry_cluster::call::carry::Carry;
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::{Call, CarryMarks, Kind, Name, Refusal, Shape, Side, Target, Uid, Verb, kind};
use tapestry_domain::dependents::DependentKind;
use tapestry_domain::names::dependent_name;
use tokio::sync::OnceCell;

use super::Hands;
use super::row::{LABEL, VPod};

/// A ConfigMap or Secret of the virtual cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Dependent {
    kind: DependentKind,
    namespace: Name,
    name: Box<str>,
}

/// Which pods name what.
#[derive(Default)]
pub(super) struct Users {
    pods: HashMap<Uid, Vec<Dependent>>,
    of: HashMap<Dependent, HashSet<Uid>>,
}

/// What was created; several pods wait for one creation.
#[derive(Default)]
pub(super) struct Copies(Mutex<HashMap<Dependent, Arc<OnceCell<()>>>>);

impl Users {
    /// What a pod names is read of it once.
    pub(super) fn add(&mut self, vpod: &VPod) {
        if vpod.needs.is_empty() || self.pods.contains_key(&vpod.uid) {
            return;
        }
        for dependent in needs(vpod) {
            self.of.entry(dependent).or_default().insert(vpod.uid.clone());
        }
        self.pods.insert(vpod.uid.clone(), needs(vpod).collect());
    }

    /// The pod is gone; gives what no other pod names.
    pub(super) fn remove(&mut self, vpod: &Uid) -> Vec<Dependent> {
        let mut unused = self.pods.remove(vpod).unwrap_or_default();
        unused.retain(|dependent| {
            let left = self.of.get_mut(dependent).is_some_and(|users| {
                users.remove(vpod);
                !users.is_empty()
            });
            if !left {
                self.of.remove(dependent);
            }
            !left
        });
        unused
    }
}

impl Copies {
    fn cell(&self, dependent: Dependent) -> Arc<OnceCell<()>> {
        Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(dependent).or_default())
    }

    /// It is deleted: the next pod that names it needs a new one.
    pub(super) fn forget(&self, dependent: &Dependent) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(dependent);
    }
}

impl Hands {
    /// Makes copies of all that a pod names, at the same time, unless they are there.
    pub(super) async fn carry_all(&self, vpod: &VPod) -> Result<(), Refusal> {
        let carry = |dependent: Dependent| async move {
            let cell = self.copies.cell(dependent.clone());
            cell.get_or_try_init(|| self.carry_one(&dependent)).await.map(drop)
        };
        try_join_all(needs(vpod).map(carry)).await.map(drop)
    }

    async fn carry_one(&self, dependent: &Dependent) -> Result<(), Refusal> {
        let unknown = |error: anyhow::Error| Refusal::Unknown(error.to_string());
        let name = Name::parse(&dependent.name).map_err(|error| unknown(error.into()))?;
        let from = Target::namespaced(Side::Virtual, kind_of(dependent.kind), dependent.namespace.clone(), name);
        let marks = CarryMarks {
            labels: vec![(LABEL, "true".to_owned())],
            annotations: Vec::new(),
            salt: format!("{LABEL}/{}", self.cluster_id),
        };
        let shape = Shape::Dependent(dependent.kind, marks);
        let verb = Verb::Carry { from: Box::new(from), shape: Box::new(shape) };
        let call = Call { target: self.copy_of(dependent).map_err(unknown)?, verb, why: "Bare" };
        let carry = Carry::of(&call).ok_or_else(|| Refusal::Unknown(call.to_string()))?;
        // Not as evidence, as the syncer reads it: that would ask for the cluster's identity too.
        let read = Call { verb: Verb::Peek, ..carry.read_source() };
        let source = carry_out(&self.virtual_cluster, &read).await?;
        let Some(write) = carry.write(&source, None)? else { return Ok(()) };
        match carry_out(&self.physical_cluster, &write).await {
            Ok(_) | Err(Refusal::Exists) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Where its copy is.
    pub(super) fn copy_of(&self, dependent: &Dependent) -> anyhow::Result<Target> {
        let name = dependent_name(LABEL, dependent.namespace.as_str(), &dependent.name);
        Ok(Target::namespaced(Side::Physical, kind_of(dependent.kind), self.mount.clone(), Name::parse(&name)?))
    }
}

fn needs(vpod: &VPod) -> impl Iterator<Item = Dependent> {
    let needs = vpod.needs.iter().map(|need| (need.kind, need.name.clone()));
    needs.map(|(kind, name)| Dependent { kind, namespace: vpod.namespace.clone(), name })
}

fn kind_of(kind: DependentKind) -> &'static Kind {
    match kind {
        DependentKind::ConfigMap => &kind::CONFIG_MAP,
        DependentKind::Secret => &kind::SECRET,
    }
}
