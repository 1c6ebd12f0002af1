//! How a syncer comes to life: reads its binding, connects the physical cluster; `life` starts watches, probes, loops and the
//! election. The only room here that waits or spawns; decides nothing about objects.

mod errors;
mod life;
mod reload;
mod supervise;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::ByteString;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use tapestry_api::{Binding, Invalid, keys};
use tapestry_cluster::connect::{AccessRefused, ConnectError, Trust};
use tapestry_cluster::feed::Row as _;
use tapestry_cluster::gate::{Metrics, carry_out};
use tapestry_cluster::list::ListError;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::watches::Pulse;
use tapestry_cluster::{Call, Cluster, Kind, Name, Refusal, Side, Target, Uid, Verb, kind};
use tapestry_engine::clock::Clock;
use tapestry_engine::lead::{LeaseTimings, Seat};
use tapestry_engine::run::Inbox as _;
use tapestry_engine::serve::ReadinessGate;
use tapestry_engine::{Desk, Dirty, Model as _};
use tokio::runtime::Handle;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bindings::BindingRow;
use crate::json::fingerprint;
use crate::keeper::{Trouble, Work};
use crate::origin::{Home, Origin};
use crate::pair::Pair;
use crate::watches::{Scope, Watches};

pub use errors::{RunError, StartError};

/// The post of a binding's syncer: all that is known without its physical cluster.
pub struct Post {
    pub(crate) name: Name,
    /// Of the binding.
    pub(crate) uid: Box<str>,
    pub(crate) origin: Origin,
    pub(crate) virtual_cluster: Cluster,
    pub(crate) clock: Arc<dyn Clock>,
    /// What it stands for; without one it leads alone.
    seat: Option<Seat>,
    metrics: SyncerMetrics,
    pub(crate) calls: Metrics,
    pub(crate) pulse: Pulse,
    ready: ReadinessGate,
    pub(crate) cancel: CancellationToken,
    /// work --how it stands--> keeper
    work: channel::Sender<Work>,
    /// reload --why the kubeconfig of the Secret is not in use--> keeper
    kubeconfig: channel::Sender<Option<Trouble>>,
    /// Where the election and the keeper run.
    vital: Handle,
}

/// The physical side of a binding.
pub(crate) struct Physical {
    pub(crate) cluster: Cluster,
    pub(crate) home: Home,
    /// Of the kubeconfig in use.
    digest: u64,
}

/// A syncer that is ready to run.
pub struct Syncer {
    pub(crate) post: Post,
    pub(crate) physical: Physical,
}

/// Makes the syncer of one binding ready to run, or says why it cannot work: for those who wait for the answer.
pub async fn start(
    binding: &str,
    virtual_cluster: Cluster,
    clock: Arc<dyn Clock>,
    registry: &mut Registry,
    ready: ReadinessGate,
    cancel: CancellationToken,
) -> Result<Syncer, StartError> {
    let post = Post::open(binding, virtual_cluster, clock, registry, ready, cancel).await?;
    let physical = post.connect().await?;
    Ok(Syncer { post, physical })
}

/// How often what cannot be reached or used is tried again: first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

impl Post {
    /// Finds the binding, which must be there.
    pub async fn open(
        binding: &str,
        virtual_cluster: Cluster,
        clock: Arc<dyn Clock>,
        registry: &mut Registry,
        ready: ReadinessGate,
        cancel: CancellationToken,
    ) -> Result<Self, StartError> {
        let name = Name::parse(binding)?;
        let identity = virtual_cluster.ask_identity().await.map_err(StartError::ConnectVirtual)?;
        // Before anything is read: what does not exist is believed only of a pinned cluster.
        if !virtual_cluster.pin(&identity) {
            let why = format!("cluster {identity} answers, which is another one than before");
            return Err(StartError::ConnectVirtual(ConnectError::Unreachable(why)));
        }
        let uid: Box<str> = read_binding(&virtual_cluster, &name).await?.uid().as_str().into();
        Ok(Self {
            origin: Origin::new(identity.as_str(), &uid, binding),
            name,
            uid,
            virtual_cluster,
            clock,
            seat: None,
            metrics: SyncerMetrics::register(registry),
            calls: Metrics::register(registry),
            pulse: Pulse::register(registry),
            ready,
            cancel,
            work: channel::Sender::new(Work::default()),
            kubeconfig: channel::Sender::new(None),
            vital: Handle::current(),
        })
    }

    /// As [`Self::open`], but waits for a virtual cluster that cannot be reached; `None` when cancelled meanwhile.
    pub async fn open_in_time(
        binding: &str,
        virtual_cluster: Cluster,
        clock: Arc<dyn Clock>,
        registry: &mut Registry,
        ready: ReadinessGate,
        cancel: CancellationToken,
    ) -> Result<Option<Self>, StartError> {
        let mut wait = AGAIN.0;
        loop {
            let (cluster, clock) = (virtual_cluster.clone(), Arc::clone(&clock));
            let open = Self::open(binding, cluster, clock, registry, ready.clone(), cancel.clone());
            let why = match cancel.run_until_cancelled(open).await {
                None => return Ok(None),
                Some(Err(why @ (StartError::ConnectVirtual(_) | StartError::Unanswered { .. }))) => why,
                Some(done) => return done.map(Some),
            };
            let refused = matches!(why, StartError::ConnectVirtual(ConnectError::Refused(_)));
            let what = if refused { "refuses the kubeconfig" } else { "cannot be reached" };
            tracing::error!(why = why.told(), again_in = ?wait, "the virtual cluster {what}");
            if cancel.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return Ok(None);
            }
            wait = (wait * 2).min(AGAIN.1);
        }
    }

    /// Runs the election and the keeper in this runtime, which nothing else can stall.
    #[must_use]
    pub fn apart(mut self, vital: Handle) -> Self {
        self.vital = vital;
        self
    }

    /// Lets it work only while it leads. Whoever runs this binding's syncer, and wherever, stands for the same Lease.
    pub fn elected(mut self, identity: &str, timings: LeaseTimings) -> Result<Self, StartError> {
        // With a name too long for the prefix, the Lease is called like the binding alone.
        let name = Name::parse(&format!("syncer-{}", self.name)).unwrap_or_else(|_| self.name.clone());
        self.seat = Some(Seat { namespace: Name::parse(keys::NAMESPACE)?, name, identity: identity.into(), timings });
        Ok(self)
    }

    /// Whose objects are watched.
    pub(crate) fn scope<'a>(&'a self, home: &'a Home) -> Scope<'a> {
        Scope { name: &self.name, origin: &self.origin, home }
    }

    pub(crate) fn show(&self, desk: &Desk<Pair>) {
        self.ready.set(desk.model.lacks());
        self.metrics.show(desk);
    }

    /// Connects the physical cluster as the binding says it now. Sends nothing to it yet.
    pub(crate) async fn connect(&self) -> Result<Physical, StartError> {
        let binding = self.read_valid_binding().await?;
        let found = self.find_kubeconfig(&binding).await?;
        let cluster = found.connect(&binding).await?;
        // The pinned identity, if there is one, is what the gate demands; else the first answer pins.
        if let Some(pinned) = &binding.pinned.physical_cluster
            && !cluster.pin(&Uid::new(pinned.as_str()))
        {
            tracing::error!("a fresh connection has a pinned identity already");
        }
        let home = Home::new(&binding.cluster_id, &binding.mount_namespace)?;
        Ok(Physical { cluster, home, digest: found.digest() })
    }

    /// Our binding as it is now, if it is valid.
    async fn read_valid_binding(&self) -> Result<Binding, StartError> {
        let row = read_binding(&self.virtual_cluster, &self.name).await?;
        if row.uid().as_str() != &*self.uid {
            return Err(StartError::Replaced(self.name.clone()));
        }
        let invalid = |why: &Invalid| StartError::InvalidBinding { name: self.name.to_string(), why: why.clone() };
        row.parsed().cloned().map_err(invalid)
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
        let object = read(&self.virtual_cluster, &kind::SECRET, Some(namespace), name).await?;
        let unreadable = |why: &str| StartError::ReadObject { what: what.clone(), why: why.to_owned() };
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
    /// By which it is known again; of no use to anybody else.
    fn digest(&self) -> u64 {
        fingerprint((&self.text, self.allow_insecure))
    }

    async fn connect(&self, binding: &Binding) -> Result<Cluster, StartError> {
        let trust = Trust::Secret { allow_insecure: self.allow_insecure };
        let agent = user_agent(&binding.name);
        Cluster::connect(&binding.cluster_id, &self.text, trust, &agent).await.map_err(StartError::ConnectPhysical)
    }
}

async fn read_binding(virtual_cluster: &Cluster, name: &Name) -> Result<BindingRow, StartError> {
    let unreadable = |why: String| StartError::ReadObject { what: format!("ClusterBinding {name}"), why };
    let object = read(virtual_cluster, &kind::CLUSTER_BINDING, None, name.clone()).await?;
    let row = BindingRow::decode(&object).map_err(|error| unreadable(error.to_string()))?;
    row.ok_or_else(|| unreadable("it is none".to_owned()))
}

impl Syncer {
    /// Runs until cancelled; see [`Post::serve`].
    pub async fn run(self) -> Result<(), RunError> {
        self.post.serve_from(Some(self.physical)).await
    }

    /// Reads everything once, without a word to either cluster: what the syncer would know, for people who ask.
    pub async fn look(self) -> Result<Pair, LookError> {
        let Self { post: Post { name, uid, origin, virtual_cluster, clock, cancel, .. }, physical } = self;
        let Physical { cluster, home, .. } = physical;
        let mut pair = Pair::new(origin.clone(), home.clone(), &uid, Box::new(entropy));
        let mut tasks = JoinSet::new();
        let addresses = [virtual_cluster.address(), cluster.address()];
        let scope = Scope { name: &name, origin: &origin, home: &home };
        let clusters = [virtual_cluster, cluster];
        let mut inbox = Watches::open(scope, &clusters, Pulse::default(), &cancel, &mut tasks);
        let bell = inbox.bell();
        let mut facts = Vec::new();
        let read = async move {
            while !pair.listed() {
                inbox.drain(&mut facts);
                for fact in facts.drain(..) {
                    pair.observe(fact, clock.now(), &mut Dirty::default());
                }
                for side in Side::BOTH {
                    // A list may take long; from a cluster that does not answer, or refuses us, it never comes.
                    let address = || addresses[side as usize].clone();
                    match pair.connection(side) {
                        Connection::Down(why) => {
                            return Err(LookError::Unreachable { side, address: address(), why: why.clone() });
                        }
                        Connection::Refused(why) => {
                            return Err(LookError::Refused { side, address: address(), why: why.clone() });
                        }
                        Connection::Unknown | Connection::Up(_) | Connection::Restored(_) => {}
                    }
                }
                if let Some(why) = inbox.hindered() {
                    return Err(LookError::Hindered(why));
                }
                if !pair.listed() {
                    // Not every failure rings.
                    let _ = tokio::time::timeout(LOOK_AGAIN, bell.notified()).await;
                }
            }
            Ok(pair)
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        tasks.shutdown().await;
        read.unwrap_or(Err(LookError::Slow))
    }
}

/// How long reading everything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is looked whether a list fails.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Why there is nothing to be seen.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The lists of one of the clusters did not come.
    #[error("not all lists could be read within {} s", PATIENCE.as_secs())]
    Slow,
    /// A list is refused or fails.
    #[error("{0}")]
    Hindered(String),
    /// One of the clusters does not answer.
    #[error("the {} cluster at {address} does not answer: {why}", side.as_str())]
    Unreachable {
        /// Which one.
        side: Side,
        /// Where it should be.
        address: String,
        /// What was heard instead.
        why: String,
    },
    /// One of the clusters answers, and refuses the kubeconfig.
    #[error("the {} cluster at {address} refuses the kubeconfig: {why}", side.as_str())]
    Refused {
        /// Which one.
        side: Side,
        /// Where it is.
        address: String,
        /// What it refuses.
        why: AccessRefused,
    },
    /// A list could not be read.
    #[error(transparent)]
    List(#[from] ListError),
}

impl LookError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } | Self::Slow => "check that both API servers answer",
            Self::Refused { why, .. } => why.hint(),
            Self::Hindered(_) | Self::List(_) => "check that both API servers answer, and the rights of the kubeconfigs",
        }
    }
}

/// Ten characters of a physical pod's name come from here: from the operating system, so that nobody can foresee them.
pub(crate) fn entropy() -> Option<[u8; 8]> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).inspect_err(|error| tracing::error!(%error, "no random numbers, so no names")).ok()?;
    Some(bytes)
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
    answer.map(|answer| answer.object).map_err(|refusal| {
        let why = refusal.message().to_owned();
        match refusal {
            Refusal::Gone | Refusal::Denied(_) | Refusal::Invalid(_) => StartError::ReadObject { what, why },
            _ => StartError::Unanswered { what, why },
        }
    })
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
        registry.register(
            "ready",
            "1 when both clusters answer, all lists are in and all watches deliver",
            metrics.ready.clone(),
        );
        registry.register("leader", "1 while this process leads, 0 while it follows", metrics.leader.clone());
        metrics
    }

    fn show(&self, desk: &Desk<Pair>) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.waiting.set(number(desk.waiting()));
        self.flying.set(number(desk.flying()));
        self.ready.set(i64::from(desk.model.lacks().is_none()));
        self.leader.set(i64::from(desk.leads()));
    }
}
