//! A syncer that only looks: reads everything once, for people who ask. Writes nothing to either cluster.

use std::sync::Arc;
use std::time::Duration;

use tapestry_cluster::Side;
use tapestry_cluster::connect::AccessRefused;
use tapestry_cluster::list::ListError;
use tapestry_cluster::probe::Connection;
use tapestry_cluster::watches::Pulse;
use tapestry_engine::run::Inbox as _;
use tapestry_engine::{Dirty, Model as _};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::{Physical, StartError, Syncer, entropy};
use crate::pair::Pair;
use crate::watches::Watches;

/// How long reading everything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is looked whether a list fails.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Syncer {
    /// Reads everything once and writes to neither cluster: what the syncer would know, for people who ask.
    pub async fn look(self) -> Result<Pair, LookError> {
        let span = self.span.clone();
        async { self.look_at(self.connect().await?).await }.instrument(span).await
    }

    /// The same, of this physical cluster.
    pub(crate) async fn look_at(&self, Physical { cluster, home, .. }: Physical) -> Result<Pair, LookError> {
        let clock = Arc::clone(&self.clock);
        let mut pair = Pair::new(self.origin.clone(), home.clone(), &self.uid, Box::new(entropy));
        let mut tasks = JoinSet::new();
        let addresses = [self.virtual_cluster.address(), cluster.address()];
        let clusters = [self.virtual_cluster.clone(), cluster];
        let mut inbox = Watches::open(self.scope(&home), &clusters, Pulse::default(), &self.cancel, &mut tasks);
        let bell = inbox.bell();
        let mut facts = Vec::new();
        let read = async move {
            while !pair.everything_listed() {
                inbox.drain(&mut facts);
                for fact in facts.drain(..) {
                    pair.observe(fact, clock.now(), &mut Dirty::default());
                }
                for side in Side::BOTH {
                    // A list may take long; from a cluster that does not answer, or refuses us, it never comes.
                    let address = || addresses[side as usize].clone();
                    match pair.connections.get(side) {
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
                if !pair.everything_listed() {
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
    /// The physical cluster could not be connected.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl LookError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } | Self::Slow => "check that both API servers answer",
            Self::Refused { why, .. } => why.hint(),
            Self::Start(error) => error.hint(),
            Self::Hindered(_) | Self::List(_) => {
                "check that both API servers answer, and the rights of the kubeconfigs"
            }
        }
    }
}
