//! How a syncer comes to life: `open` finds its binding, this connects the physical cluster, `life` starts watches, probes, loops
//! and the election. The only room here that waits or spawns; decides nothing about objects.

mod errors;
mod life;
mod look;
mod meters;
mod open;
mod reload;
mod supervise;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::ByteString;
use serde::Deserialize;
use tapestry_api::{Binding, Invalid, keys};
use tapestry_cluster::connect::{ConnectError, Trust};
use tapestry_cluster::feed::Row as _;
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::{Cluster, Kind, Name, Refusal, Side, Target, Uid, Verb, kind};
use tapestry_engine::clock::Clock;
use tapestry_engine::lead::Seat;
use tapestry_engine::serve::ReadinessGate;
use tapestry_engine::{Desk, Reason as _, reasons};
use tokio::runtime::Handle;
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;

use crate::bindings::BindingRow;
use crate::json::fingerprint;
use crate::keeper::{Trouble, Work};
use crate::origin::{Home, Origin};
use crate::pair::Pair;
use crate::watches::Scope;

pub use errors::{NAMES, RunError, StartError};
pub use look::LookError;
pub use meters::Meters;
pub use open::Config;

pub(crate) use meters::BindingMeters;

/// The syncer of one binding: all that is known without its physical cluster.
pub struct Syncer {
    pub(crate) name: Name,
    /// Of the binding.
    pub(crate) uid: Box<str>,
    pub(crate) origin: Origin,
    pub(crate) virtual_cluster: Cluster,
    pub(crate) clock: Arc<dyn Clock>,
    /// Its candidacy in the election; without one it leads alone.
    seat: Option<Seat>,
    pub(crate) meters: BindingMeters,
    /// Opened by the work.
    ready: ReadinessGate,
    /// Opened by the keeper.
    kept: ReadinessGate,
    pub(crate) cancel: CancellationToken,
    /// work --state--> keeper
    work: channel::Sender<Work>,
    /// reload --why the kubeconfig of the Secret is not in use--> keeper
    kubeconfig: channel::Sender<Option<Trouble>>,
    /// Whether reload has found that another binding has our name.
    replaced: AtomicBool,
    /// keeper --the generation of the binding--> reload
    generation: channel::Sender<i64>,
    /// Where the election and the keeper run.
    vital: Handle,
    /// Names the binding in every log line.
    pub(crate) span: tracing::Span,
}

/// The physical side of a binding.
pub(crate) struct Physical {
    pub(crate) cluster: Cluster,
    pub(crate) home: Home,
    /// Of the kubeconfig in use.
    digest: u64,
}

/// How often what cannot be reached or used is tried again: first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

impl Syncer {
    /// Whose objects are watched.
    pub(crate) fn scope<'a>(&'a self, home: &'a Home) -> Scope<'a> {
        Scope { name: &self.name, origin: &self.origin, home }
    }

    pub(crate) fn show(&self, desk: &Desk<Pair>) {
        self.ready.set(desk.model.lacks());
        self.meters.show(desk);
    }

    /// Connects the physical cluster as the binding says it now. Sends nothing to it yet.
    pub(crate) async fn connect(&self) -> Result<Physical, StartError> {
        self.connect_as(&self.read_own_binding().await?).await
    }

    /// The same as this binding says it.
    async fn connect_as(&self, row: &BindingRow) -> Result<Physical, StartError> {
        let binding = self.require_valid(row)?;
        let found = self.find_kubeconfig(binding).await?;
        let cluster = found.connect(binding).await?;
        // The pinned identity, if there is one, is what the gate demands; else the first answer pins.
        if let Some(pinned) = &binding.pinned.physical_cluster
            && !cluster.pin(&Uid::new(pinned.as_str()))
        {
            tracing::error!("a fresh connection has a pinned identity already");
        }
        let home = Home::new(&binding.cluster_id, &binding.mount_namespace)?;
        Ok(Physical { cluster, home, digest: found.digest() })
    }

    /// Makes certain that the virtual cluster is the one that our origin names; asks only a cluster that has not said so yet.
    async fn confirm_home(&self) -> Result<(), StartError> {
        if self.virtual_cluster.identity().is_some() {
            return Ok(());
        }
        let identity = self.virtual_cluster.ask_identity().await.map_err(StartError::ConnectVirtual)?;
        if identity.as_str() != self.origin.virtual_cluster() || !self.virtual_cluster.pin(&identity) {
            let why = format!("cluster {identity} answers, and the binding was made in another one");
            return Err(StartError::ConnectVirtual(ConnectError::Unreachable(why)));
        }
        Ok(())
    }

    /// Our binding as it is now.
    async fn read_own_binding(&self) -> Result<BindingRow, StartError> {
        let row = read_binding(&self.virtual_cluster, &self.name, Verb::Get).await?;
        if row.uid().as_str() == &*self.uid { Ok(row) } else { Err(StartError::Replaced(self.name.clone())) }
    }

    /// What it says, if it is valid.
    fn require_valid<'a>(&self, row: &'a BindingRow) -> Result<&'a Binding, StartError> {
        let invalid = |why: &Invalid| StartError::InvalidBinding { name: self.name.to_string(), why: why.clone() };
        row.parsed().map_err(invalid)
    }

    /// The kubeconfig in the Secret that the binding names.
    async fn find_kubeconfig(&self, binding: &Binding) -> Result<Found, StartError> {
        #[derive(Deserialize)]
        struct Secret {
            #[serde(default)]
            data: BTreeMap<String, ByteString>,
        }
        let reference = &binding.kubeconfig;
        let what = format!("Secret {}/{}", reference.namespace, reference.name);
        let (namespace, name) = (Name::parse(&reference.namespace)?, Name::parse(&reference.name)?);
        let object = read(&self.virtual_cluster, Verb::Peek, (&kind::SECRET, Some(namespace), name)).await?;
        let unreadable = |why: &str| StartError::ReadSecret { what: what.clone(), why: why.to_owned() };
        // No error text of the parser: it may quote what it could not read.
        let mut secret: Secret = serde_json::from_slice(&object).map_err(|_| unreadable("it is not a Secret"))?;
        let kubeconfig =
            secret.data.remove(keys::KUBECONFIG).ok_or_else(|| unreadable("it has no key `kubeconfig`"))?;
        let text = String::from_utf8(kubeconfig.0).map_err(|_| unreadable("its key `kubeconfig` is not text"))?;
        Ok(Found { text, allow_insecure: reference.insecure_skip_tls_verify })
    }
}

/// A kubeconfig, for as long as a client is built from it.
struct Found {
    text: String,
    allow_insecure: bool,
}

impl Found {
    /// Tells whether the Secret changed; reveals nothing of it.
    fn digest(&self) -> u64 {
        fingerprint((&self.text, self.allow_insecure))
    }

    async fn connect(&self, binding: &Binding) -> Result<Cluster, StartError> {
        let trust = Trust::Secret { allow_insecure: self.allow_insecure };
        let agent = user_agent(&binding.name);
        Cluster::connect(&binding.cluster_id, &self.text, trust, &agent).await.map_err(StartError::ConnectPhysical)
    }
}

reasons! {
    /// What its calls are for.
    enum Why {
        /// What a process must know before it plans anything.
        Start,
    }
}

/// `verb`: whether what is found has to be evidence, from a cluster that says which one it is.
async fn read_binding(virtual_cluster: &Cluster, name: &Name, verb: Verb) -> Result<BindingRow, StartError> {
    let unreadable = |why: String| StartError::ReadObject { what: format!("ClusterBinding {name}"), why };
    let object = read(virtual_cluster, verb, (&kind::CLUSTER_BINDING, None, name.clone())).await?;
    let row = BindingRow::decode(&object).map_err(|error| unreadable(error.to_string()))?;
    row.ok_or_else(|| unreadable("not a ClusterBinding".to_owned()))
}

/// Ten characters of a physical pod's name come from here: from the operating system, so that no user can foresee them.
pub(crate) fn entropy() -> Option<[u8; 8]> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .inspect_err(|error| tracing::error!(%error, "cannot read OS entropy; not naming pods"))
        .ok()?;
    Some(bytes)
}

/// Who we are in the API servers' logs.
#[must_use]
pub fn user_agent(binding: &str) -> String {
    format!("tapestry-syncer/{} ({binding})", env!("CARGO_PKG_VERSION"))
}

async fn read(
    cluster: &Cluster,
    verb: Verb,
    (kind, namespace, name): (&'static Kind, Option<Name>, Name),
) -> Result<Bytes, StartError> {
    let what = format!("{} {name}", kind.kind);
    let target = Target { side: Side::Virtual, kind, namespace, name, uid: None, rv: None };
    let answer = carry_out(cluster, &Why::Start.call_alone(target, verb)).await;
    answer.map(|answer| answer.object).map_err(|refusal| {
        let why = refusal.message().to_owned();
        match refusal {
            Refusal::Denied(_) => StartError::Denied { what, why },
            Refusal::Gone | Refusal::Invalid(_) if kind == &kind::SECRET => StartError::ReadSecret { what, why },
            Refusal::Gone | Refusal::Invalid(_) => StartError::ReadObject { what, why },
            _ => StartError::Unanswered { what, why },
        }
    })
}

#[cfg(test)]
mod tests;
