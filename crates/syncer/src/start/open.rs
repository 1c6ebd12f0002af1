//! How a syncer is opened: its configuration, and how it finds its binding. Connects no physical cluster yet.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tapestry_api::keys;
use tapestry_cluster::connect::{AccessRefused, ConnectError};
use tapestry_cluster::feed::Row as _;
use tapestry_cluster::{Cluster, Name, Verb};
use tapestry_engine::clock::{Clock, SystemClock};
use tapestry_engine::lead::{LeaseTimings, Seat};
use tapestry_engine::serve::Readiness;
use tokio::runtime::Handle;
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{AGAIN, Meters, StartError, Syncer, read_binding};
use crate::keeper::Work;
use crate::origin::Origin;

/// What a syncer is opened with.
#[derive(Clone)]
pub struct Config {
    /// Name of the binding.
    pub binding: String,
    /// The virtual cluster.
    pub virtual_cluster: Cluster,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Where it counts; those of one process share it.
    pub meters: Meters,
    /// Where it says what it waits for.
    pub readiness: Readiness,
    /// Ends it.
    pub cancel: CancellationToken,
    /// The identity under which it is a candidate for the Lease of its binding, and for how long it holds it. Without one it always works.
    /// All processes that serve a binding are candidates for the same Lease, wherever they run.
    pub election: Option<(String, LeaseTimings)>,
    /// Where the election and the keeper run: in production a runtime that nothing else can stall.
    pub vital: Handle,
    /// Whether opening waits, until cancelled, for a virtual cluster that cannot be reached.
    pub wait: bool,
}

impl Config {
    /// Without an election, in this runtime, by the clock of the system, and told only what it needs. Must be called in a runtime.
    #[must_use]
    pub fn new(binding: &str, virtual_cluster: Cluster, meters: Meters) -> Self {
        Self {
            binding: binding.to_owned(),
            virtual_cluster,
            clock: Arc::new(SystemClock::start()),
            meters,
            readiness: Readiness::default(),
            cancel: CancellationToken::new(),
            election: None,
            vital: Handle::current(),
            wait: false,
        }
    }
}

impl Syncer {
    /// Finds the binding, which must be there, and makes its syncer ready to [`serve`](Self::serve), [`look`](Self::look) or tell
    /// its [`drift`](Self::drift). All that it logs from here on is in a span with the name of the binding.
    pub async fn open(config: Config) -> Result<Self, StartError> {
        // Of the highest level: no filter that lets a line pass takes its span away.
        let span = tracing::error_span!("syncer", binding = config.binding);
        let (binding, cancel) = (Name::parse(&config.binding)?, config.cancel.clone());
        let open = Self::open_in(config, binding, span.clone()).instrument(span);
        cancel.run_until_cancelled(open).await.unwrap_or(Err(StartError::Cancelled))
    }

    async fn open_in(config: Config, name: Name, span: tracing::Span) -> Result<Self, StartError> {
        let Config { binding, virtual_cluster, clock, meters, readiness, cancel, election, vital, wait } = config;
        // Served while it waits.
        let meters = meters.of(&binding);
        let ready = readiness.gate(&format!("binding {binding}"));
        let mut pause = AGAIN.0;
        let origin = loop {
            let why = match find_origin(&virtual_cluster, &name, wait).await {
                Ok(origin) => break origin,
                Err(why) => why,
            };
            let Some(what) = hindrance(&why).filter(|_| wait) else { return Err(why) };
            tracing::error!(why = why.told(), again_in = ?pause, "the virtual cluster {what}");
            ready.set(Some(why.told()));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN.1);
        };
        let seat = election.map(|(identity, timings)| seat(&name, &identity, timings)).transpose()?;
        let (uid, origin) = origin;
        Ok(Self {
            name,
            uid,
            origin,
            virtual_cluster,
            clock,
            seat,
            meters,
            ready,
            kept: readiness.gate(&format!("the Leases of binding {binding}")),
            cancel,
            work: channel::Sender::new(Work::default()),
            kubeconfig: channel::Sender::new(None),
            replaced: AtomicBool::new(false),
            generation: channel::Sender::new(0),
            vital,
            span,
        })
    }
}

/// What the virtual cluster does that may pass while the process waits: it must not exit for it, because the restarts of its
/// Deployment would only be further apart.
fn hindrance(why: &StartError) -> Option<&'static str> {
    match why {
        StartError::ConnectVirtual(ConnectError::Refused(_)) => Some("refuses the kubeconfig"),
        StartError::ConnectVirtual(_) | StartError::Unanswered { .. } => Some("cannot be reached"),
        StartError::Denied { .. } => Some("does not let us read the binding"),
        StartError::BadName(_)
        | StartError::ConnectPhysical(_)
        | StartError::ReadObject { .. }
        | StartError::ReadSecret { .. }
        | StartError::InvalidBinding { .. }
        | StartError::Replaced(_)
        | StartError::Cancelled => None,
    }
}

/// The UID of the binding, and the origin that all objects made for it carry. `keeps`: it is for a syncer that keeps nodes alive.
async fn find_origin(virtual_cluster: &Cluster, name: &Name, keeps: bool) -> Result<(Box<str>, Origin), StartError> {
    let identity = match virtual_cluster.ask_identity().await {
        Ok(identity) => identity,
        Err(ConnectError::Refused(refused @ AccessRefused::Right(_))) if keeps => {
            let pinned = find_pinned(virtual_cluster, name).await?;
            return pinned.ok_or(StartError::ConnectVirtual(refused.into()));
        }
        Err(error) => return Err(StartError::ConnectVirtual(error)),
    };
    // Before anything is read: what does not exist is believed only of a pinned cluster.
    if !virtual_cluster.pin(&identity) {
        let why = format!("cluster {identity} answers, which is another one than before");
        return Err(StartError::ConnectVirtual(ConnectError::Unreachable(why)));
    }
    let uid: Box<str> = read_binding(virtual_cluster, name, Verb::Get).await?.uid().as_str().into();
    let origin = Origin::new(identity.as_str(), &uid, name.as_str());
    Ok((uid, origin))
}

/// The same by what the binding's status pins, while the cluster answers and forbids to ask which one it is. It is only enough for
/// the keeper; the work waits until the cluster says that it is this one.
async fn find_pinned(virtual_cluster: &Cluster, name: &Name) -> Result<Option<(Box<str>, Origin)>, StartError> {
    let row = read_binding(virtual_cluster, name, Verb::Peek).await?;
    let pinned = row.parsed().ok().and_then(|binding| binding.pinned.virtual_cluster.clone());
    let uid = row.uid().as_str();
    Ok(pinned.map(|cluster| (uid.into(), Origin::new(&cluster, uid, name.as_str()))))
}

/// The election Lease of the syncers of a binding.
fn seat(binding: &Name, identity: &str, timings: LeaseTimings) -> Result<Seat, StartError> {
    // With a name too long for the prefix, the Lease is called like the binding alone.
    let name = Name::parse(&format!("syncer-{binding}")).unwrap_or_else(|_| binding.clone());
    Ok(Seat { namespace: Name::parse(keys::NAMESPACE)?, name, identity: identity.into(), timings })
}
