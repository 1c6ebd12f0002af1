//! How a syncer comes to life: reads its binding, connects the physical cluster, starts watches, probes, the loop and the election.
//! The only room here that waits or spawns, with `vigil` for what cannot be connected; decides nothing about objects.

mod errors;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::ByteString;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use tapestry_api::{Binding, Invalid, keys};
use tapestry_cluster::connect::Trust;
use tapestry_cluster::feed::Row as _;
use tapestry_cluster::gate::{LiveGate, Metrics, carry_out};
use tapestry_cluster::list::ListError;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Call, Cluster, Kind, Name, Refusal, Side, Target, Uid, Verb, kind};
use tapestry_engine::clock::Clock;
use tapestry_engine::crew::{Deserted, work_with};
use tapestry_engine::lead::{Leadership, Seat, Terms, stand};
use tapestry_engine::run::{Inbox as _, run};
use tapestry_engine::serve::ReadinessGate;
use tapestry_engine::{Desk, Dirty, Model as _};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bindings::BindingRow;
use crate::letters::{self, Letters};
use crate::origin::{Home, Origin};
use crate::pair::Pair;

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
    ready: ReadinessGate,
    pub(crate) cancel: CancellationToken,
}

/// The physical side of a binding.
pub(crate) struct Physical {
    pub(crate) cluster: Cluster,
    pub(crate) home: Home,
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
            tracing::error!("a fresh connection has a pinned identity already");
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
            ready,
            cancel,
        })
    }

    /// Lets it work only while it leads. Whoever runs this binding's syncer, and wherever, stands for the same Lease.
    pub fn elected(mut self, identity: &str, terms: Terms) -> Result<Self, StartError> {
        // With a name too long for the prefix, the Lease is called like the binding alone.
        let name = Name::parse(&format!("syncer-{}", self.name)).unwrap_or_else(|_| self.name.clone());
        self.seat = Some(Seat { namespace: Name::parse(keys::NAMESPACE)?, name, identity: identity.into(), terms });
        Ok(self)
    }

    /// Serves the binding until cancelled. While its physical cluster cannot be had, keeps its nodes alive and tries again.
    pub async fn serve(self) -> Result<(), RunError> {
        let first = self.connect().await;
        self.serve_from(first).await
    }

    /// No new calls once cancelled, those in flight are waited for, and then leadership is given back. The same when a watch,
    /// a probe or the election ends before its time, and then that is the error.
    async fn serve_from(self, first: Result<Physical, StartError>) -> Result<(), RunError> {
        let (mut office, resign) = (JoinSet::new(), CancellationToken::new());
        let leadership = self.seat.clone().map_or_else(Leadership::always, |seat| {
            // Renewals have connections of their own; a configuration that built a client before builds another one.
            let apart = self.virtual_cluster.apart().unwrap_or_else(|_| self.virtual_cluster.clone());
            let gate = Arc::new(LiveGate::to_virtual(apart.clone(), self.calls.clone()));
            stand(seat, apart, gate, Arc::clone(&self.clock), &mut office, &resign)
        });
        let served = self.serve_while(first, &leadership, &mut office).await;
        resign.cancel();
        while office.join_next().await.is_some() {}
        tracing::info!("syncer stopped");
        served
    }

    async fn serve_while(
        &self,
        mut physical: Result<Physical, StartError>,
        leadership: &Leadership,
        office: &mut JoinSet<()>,
    ) -> Result<(), RunError> {
        loop {
            physical = match physical {
                Ok(physical) => return Ok(self.work(physical, leadership, office).await?),
                Err(replaced @ StartError::Replaced(_)) => return Err(RunError::Start(replaced)),
                Err(why) => match self.keep_vigil(&why, leadership, office).await? {
                    Some(next) => next,
                    None => return Ok(()),
                },
            };
        }
    }

    async fn work(
        &self,
        Physical { cluster, home }: Physical,
        leadership: &Leadership,
        office: &mut JoinSet<()>,
    ) -> Result<(), Deserted> {
        tracing::info!(binding = %self.name, cluster = cluster.name(), mount = %home.mount, "syncer starts");
        let (stop, mut tasks) = (self.cancel.child_token(), JoinSet::new());
        let pair = Pair::new(self.origin.clone(), home.clone(), &self.uid, Box::new(entropy));
        let gate = LiveGate::new(self.virtual_cluster.clone(), cluster.clone(), self.calls.clone());
        let clusters = [self.virtual_cluster.clone(), cluster];
        let inbox = Letters::open(&self.name, self.origin.clone(), home, clusters, &stop, &mut tasks);
        let desk = Desk::new(pair, fastrand::u64(..));
        let show = |desk: &Desk<Pair>| self.show(desk);
        let clock = Arc::clone(&self.clock);
        let work = Box::pin(run(desk, Arc::new(gate), inbox, clock, leadership.clone(), show, stop.clone()));
        let crews = vec![("the watches and probes", &mut tasks), ("the election", office)];
        let worked = work_with(work, crews, &stop).await;
        tasks.shutdown().await;
        worked.map(drop)
    }

    pub(crate) fn show(&self, desk: &Desk<Pair>) {
        self.ready.set(desk.model.ready());
        self.metrics.show(desk);
    }

    /// Connects the physical cluster as the binding says it now. Sends nothing to it yet.
    pub(crate) async fn connect(&self) -> Result<Physical, StartError> {
        let row = read_binding(&self.virtual_cluster, &self.name).await?;
        if row.uid().as_str() != &*self.uid {
            return Err(StartError::Replaced(self.name.clone()));
        }
        let invalid = |why: &Invalid| StartError::InvalidBinding { name: self.name.to_string(), why: why.clone() };
        let parsed = row.parsed().map_err(invalid)?;
        let cluster = connect_physical(&self.virtual_cluster, parsed).await?;
        // The pinned identity, if there is one, is what the gate demands; else the first answer pins.
        if let Some(pinned) = &parsed.pinned.physical_cluster
            && !cluster.pin(&Uid::new(pinned.as_str()))
        {
            tracing::error!("a fresh connection has a pinned identity already");
        }
        Ok(Physical { cluster, home: Home::new(&parsed.cluster_id, &parsed.mount_namespace)? })
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
        self.post.serve_from(Ok(self.physical)).await
    }

    /// Reads everything once, without a word to either cluster: what the syncer would know, for people who ask.
    pub async fn look(self) -> Result<Pair, LookError> {
        let Self { post: Post { name, uid, origin, virtual_cluster, clock, cancel, .. }, physical } = self;
        let Physical { cluster, home } = physical;
        let mut pair = Pair::new(origin.clone(), home.clone(), &uid, Box::new(entropy));
        let mut tasks = JoinSet::new();
        let addresses = [virtual_cluster.address(), cluster.address()];
        let mut inbox = Letters::open(&name, origin, home, [virtual_cluster, cluster], &cancel, &mut tasks);
        let bell = inbox.bell();
        let mut facts = Vec::new();
        let read = async move {
            while !pair.listed() {
                inbox.drain(&mut facts);
                for fact in facts.drain(..) {
                    pair.observe(fact, clock.now(), &mut Dirty::default());
                }
                for side in Side::BOTH {
                    // A list may take long; from a cluster that does not answer it never comes.
                    if let Connection::Down(why) = pair.connection(side) {
                        let address = addresses[side as usize].clone();
                        return Err(LookError::Unreachable { side, address, why: why.clone() });
                    }
                }
                if !pair.listed() {
                    bell.notified().await;
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

/// Why there is nothing to be seen.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The lists of one of the clusters did not come.
    #[error("not all lists could be read within {} s", PATIENCE.as_secs())]
    Slow,
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
    /// A list could not be read.
    #[error(transparent)]
    List(#[from] ListError),
}

/// Ten characters of a physical pod's name come from here: from the operating system, so that nobody can foresee them.
pub(crate) fn entropy() -> [u8; 8] {
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
        registry.register("ready", "1 when both clusters answer and all lists are in", metrics.ready.clone());
        registry.register(
            "unreadable_objects",
            "Objects that cannot be fully read: they are answered, and nothing is done by guessing",
            letters::unreadable_objects(),
        );
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
