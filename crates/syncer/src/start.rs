//! How a syncer comes to life: reads its binding, connects the physical cluster, starts watches, probes, the loop and the election.
//! The only room here that waits or spawns; decides nothing about objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::ByteString;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use tapestry_api::{Binding, keys};
use tapestry_cluster::connect::{ConnectError, Trust};
use tapestry_cluster::gate::{LiveGate, Metrics, carry_out};
use tapestry_cluster::list::ListError;
use tapestry_cluster::{Call, Cluster, Kind, Name, Refusal, Side, Target, Verb, kind};
use tapestry_engine::clock::Clock;
use tapestry_engine::crew::{Deserted, work_with};
use tapestry_engine::lead::{Leadership, Seat, Terms, stand};
use tapestry_engine::run::{Inbox as _, run};
use tapestry_engine::serve::ReadinessGate;
use tapestry_engine::{Desk, Dirty, Model as _};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bindings::BindingRow;
use crate::letters::Letters;
use crate::origin::{Home, Origin};
use crate::pair::Pair;

/// Why a syncer cannot start. All of it is for people to mend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A name given by the user is none.
    #[error("{0}")]
    BadName(#[from] tapestry_cluster::object::BadName),
    /// The virtual cluster does not answer, or not as an API server.
    #[error("the virtual cluster cannot be used")]
    ConnectVirtual(#[source] ConnectError),
    /// The physical cluster's kubeconfig is missing or refused.
    #[error("the physical cluster cannot be used")]
    ConnectPhysical(#[source] ConnectError),
    /// An object that must be there cannot be read.
    #[error("cannot read {what}: {why}")]
    ReadObject {
        /// Which one.
        what: String,
        /// What the API server said.
        why: String,
    },
    /// The binding says something that cannot be obeyed.
    #[error("ClusterBinding {name} is invalid: {why}")]
    InvalidBinding {
        /// Its name.
        name: String,
        /// What to change.
        why: String,
    },
}

impl StartError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::BadName(_) => "names are lower-case letters, digits, '-' and '.'",
            Self::ConnectVirtual(_) => "check --virtual-kubeconfig, and that its API server answers",
            Self::ConnectPhysical(_) => "check the kubeconfig in the Secret that the binding's secretRef names",
            Self::ReadObject { .. } => "check that it exists and that this identity may read it",
            Self::InvalidBinding { .. } => "edit the binding as the message says, then start again",
        }
    }
}

/// Runs the syncer of one binding until cancelled.
pub async fn start(
    binding: &str,
    virtual_cluster: Cluster,
    clock: Arc<dyn Clock>,
    registry: &mut Registry,
    ready: ReadinessGate,
    cancel: CancellationToken,
) -> Result<Syncer, StartError> {
    let name = Name::parse(binding)?;
    let identity = virtual_cluster.ask_identity().await.map_err(StartError::ConnectVirtual)?;
    // Before anything is read: what does not exist is believed only of a pinned cluster.
    if !virtual_cluster.pin(&identity) {
        tracing::error!("a fresh connection has a pinned identity already");
    }
    let object = read(&virtual_cluster, &kind::CLUSTER_BINDING, None, name.clone()).await?;
    let unreadable = |why: serde_json::Error| StartError::ReadObject {
        what: format!("ClusterBinding {name}"),
        why: why.to_string(),
    };
    let row = BindingRow::decode(&object).map_err(unreadable)?;
    let row = row.ok_or_else(|| StartError::ReadObject {
        what: format!("ClusterBinding {name}"),
        why: "it is none".to_owned(),
    })?;
    let parsed = row
        .parsed()
        .map_err(|invalid| StartError::InvalidBinding { name: binding.to_owned(), why: invalid.to_string() })?;
    let physical_cluster = connect_physical(&virtual_cluster, parsed).await?;
    // The pinned identity, if there is one, is what the gate demands; else the first answer pins.
    if let Some(pinned) = &parsed.pinned.physical_cluster
        && !physical_cluster.pin(&tapestry_cluster::Uid::new(pinned.as_str()))
    {
        tracing::error!("a fresh connection has a pinned identity already");
    }
    let origin = Origin::new(identity.as_str(), &parsed.uid, binding);
    let home = Home::new(&parsed.cluster_id, &parsed.mount_namespace)?;
    let pair = Pair::new(origin.clone(), home.clone(), &parsed.uid, Box::new(entropy));
    let metrics = SyncerMetrics::register(registry);
    let gate = Arc::new(LiveGate::new(virtual_cluster.clone(), physical_cluster.clone(), Metrics::register(registry)));
    tracing::info!(binding, cluster = %parsed.cluster_id, mount = %parsed.mount_namespace, "syncer starts");
    let seat = None;
    Ok(Syncer {
        pair,
        origin,
        home,
        name,
        virtual_cluster,
        physical_cluster,
        gate,
        clock,
        seat,
        metrics,
        ready,
        cancel,
    })
}

/// A syncer that is ready to run.
pub struct Syncer {
    pair: Pair,
    pub(crate) origin: Origin,
    pub(crate) home: Home,
    name: Name,
    pub(crate) virtual_cluster: Cluster,
    pub(crate) physical_cluster: Cluster,
    gate: Arc<LiveGate>,
    pub(crate) clock: Arc<dyn Clock>,
    /// What it stands for; without one it leads alone.
    seat: Option<Seat>,
    metrics: SyncerMetrics,
    ready: ReadinessGate,
    cancel: CancellationToken,
}

impl Syncer {
    /// Lets it work only while it leads. Whoever runs this binding's syncer, and wherever, stands for the same Lease.
    pub fn elected(mut self, identity: &str, terms: Terms) -> Result<Self, StartError> {
        // With a name too long for the prefix, the Lease is called like the binding alone.
        let name = Name::parse(&format!("syncer-{}", self.name)).unwrap_or_else(|_| self.name.clone());
        self.seat = Some(Seat { namespace: Name::parse(keys::NAMESPACE)?, name, identity: identity.into(), terms });
        Ok(self)
    }

    /// Runs until cancelled: no new calls then, those in flight are waited for, and then leadership is given back.
    /// The same when a watch, a probe or the election ends before its time, and then that is the error.
    pub async fn run(self) -> Result<(), Deserted> {
        let Self {
            pair,
            origin,
            home,
            name,
            virtual_cluster,
            physical_cluster,
            gate,
            clock,
            seat,
            metrics,
            ready,
            cancel,
        } = self;
        let (mut tasks, mut office, resign) = (JoinSet::new(), JoinSet::new(), CancellationToken::new());
        let stop = cancel.child_token();
        let leadership = seat.map_or_else(Leadership::always, |seat| {
            // Renewals have connections of their own; a configuration that built a client before builds another one.
            let apart = virtual_cluster.apart().unwrap_or_else(|_| virtual_cluster.clone());
            let gate = Arc::new(gate.by(apart.clone()));
            stand(seat, apart, gate, Arc::clone(&clock), &mut office, &resign)
        });
        let clusters = [virtual_cluster, physical_cluster];
        let inbox = Letters::open(&name, origin, home, clusters, &stop, &mut tasks);
        let desk = Desk::new(pair, fastrand::u64(..));
        let show = |desk: &Desk<Pair>| {
            ready.set(desk.model.ready());
            metrics.show(desk);
        };
        let work = run(desk, gate, inbox, clock, leadership, show, stop.clone());
        let crews = vec![("the watches and probes", &mut tasks), ("the election", &mut office)];
        let worked = work_with(work, crews, &stop).await;
        resign.cancel();
        while office.join_next().await.is_some() {}
        tasks.shutdown().await;
        tracing::info!("syncer stopped");
        worked.map(drop)
    }
}

impl Syncer {
    /// Reads everything once, without a word to either cluster: what the syncer would know, for people who ask.
    pub async fn look(self) -> Result<Pair, LookError> {
        let Self { mut pair, origin, home, name, virtual_cluster, physical_cluster, clock, cancel, .. } = self;
        let mut tasks = JoinSet::new();
        let clusters = [virtual_cluster, physical_cluster];
        let mut inbox = Letters::open(&name, origin, home, clusters, &cancel, &mut tasks);
        let bell = inbox.bell();
        let mut facts = Vec::new();
        let read = async {
            while !pair.listed() {
                inbox.drain(&mut facts);
                for fact in facts.drain(..) {
                    pair.observe(fact, clock.now(), &mut Dirty::default());
                }
                if !pair.listed() {
                    bell.notified().await;
                }
            }
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        tasks.shutdown().await;
        read.map(|()| pair).map_err(|_| LookError::Slow)
    }
}

/// How long reading everything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is nothing to be seen.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The lists of one of the clusters did not come.
    #[error("not all lists could be read within {} s", PATIENCE.as_secs())]
    Slow,
    /// A list could not be read.
    #[error(transparent)]
    List(#[from] ListError),
}

/// Ten characters of a physical pod's name come from here: from the operating system, so that nobody can foresee them.
fn entropy() -> [u8; 8] {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_err() {
        // Without the system's generator names are only unlikely to clash; a clash is noticed and another name taken.
        bytes = fastrand::u64(..).to_le_bytes();
    }
    bytes
}

async fn connect_physical(virtual_cluster: &Cluster, binding: &Binding) -> Result<Cluster, StartError> {
    #[derive(Deserialize)]
    struct Secret {
        #[serde(default)]
        data: BTreeMap<String, ByteString>,
    }
    let reference = &binding.kubeconfig;
    let what = format!("Secret {}/{}", reference.namespace, reference.name);
    let (namespace, name) = (Name::parse(&reference.namespace)?, Name::parse(&reference.name)?);
    let object = read(virtual_cluster, &kind::SECRET, Some(namespace), name).await?;
    let unreadable = |why: &str| StartError::ReadObject { what: what.clone(), why: why.to_owned() };
    // No error text of the parser: it may quote what it could not read.
    let secret: Secret = serde_json::from_slice(&object).map_err(|_| unreadable("it is not a Secret"))?;
    let kubeconfig = secret.data.get(keys::KUBECONFIG).ok_or_else(|| unreadable("it has no key `kubeconfig`"))?;
    let text = std::str::from_utf8(&kubeconfig.0).map_err(|_| unreadable("its key `kubeconfig` is not text"))?;
    let trust = Trust::Secret { allow_insecure: reference.insecure_skip_tls_verify };
    Cluster::connect(&binding.cluster_id, text, trust, &user_agent(&binding.name))
        .await
        .map_err(StartError::ConnectPhysical)
}

/// Who we are in the API servers' logs.
#[must_use]
pub fn user_agent(binding: &str) -> String {
    format!("tapestry-syncer/{} ({binding})", env!("CARGO_PKG_VERSION"))
}

async fn read(
    cluster: &Cluster,
    kind: &'static Kind,
    namespace: Option<Name>,
    name: Name,
) -> Result<Bytes, StartError> {
    let what = format!("{} {name}", kind.kind);
    let target = Target { side: Side::Virtual, kind, namespace, name, uid: None, rv: None };
    let answer = carry_out(cluster, &Call { target, verb: Verb::Get, why: "Start" }).await;
    let told = |refusal: Refusal| StartError::ReadObject { what, why: refusal.message().to_owned() };
    answer.map(|answer| answer.object).map_err(told)
}

struct SyncerMetrics {
    waiting: Gauge,
    flying: Gauge,
    ready: Gauge,
    leader: Gauge,
}

impl SyncerMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            waiting: Gauge::default(),
            flying: Gauge::default(),
            ready: Gauge::default(),
            leader: Gauge::default(),
        };
        registry.register("queue_depth", "Keys that wait to be looked at", metrics.waiting.clone());
        registry.register(
            "calls_in_flight",
            "Calls to API servers that have not been answered yet",
            metrics.flying.clone(),
        );
        registry.register("ready", "1 when both clusters answer and all lists are in", metrics.ready.clone());
        registry.register("leader", "1 while this process leads, 0 while it follows", metrics.leader.clone());
        metrics
    }

    fn show(&self, desk: &Desk<Pair>) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.waiting.set(number(desk.waiting()));
        self.flying.set(number(desk.flying()));
        self.ready.set(i64::from(desk.model.ready()));
        self.leader.set(i64::from(desk.leads()));
    }
}
