//! Asks one cluster for its identity every few seconds, on separate connections: the connection's state as a value.
//! Changes nothing by itself; models decide what an outage means.

use std::time::Duration;

use tokio::sync::watch;

use crate::connect::{AccessRefused, Cluster, ConnectError};
use crate::object::Uid;

/// How often we ask.
pub const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How long an answer may take.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(3);
/// A single timeout may be a busy moment, and a single 401 that of a webhook: the probe asks again after this time.
const AGAIN: Duration = Duration::from_millis(500);
/// An outage is known at most this long after it began: 5 + 3 + 0.5 + 3 = 11.5 s, and half a second to deliver the fact.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(12);

/// The state of the connection to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// Not asked yet.
    Unknown,
    /// It answers, with this identity.
    Up(Uid),
    /// It does not answer like an API server.
    Down(String),
    /// It answers and refuses us: no outage, so pods may run there as before.
    Refused(AccessRefused),
    /// It answers, but with an older state than before: its etcd was restored from a backup. Stays until this process ends.
    Restored(String),
}

impl Connection {
    /// Whether it is in the same state. Two wordings of the same outage are one state.
    fn is_as(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Down(_), Self::Down(_))) || self == other
    }

    /// Whether the cluster cannot be used for a reason that may pass by itself.
    fn is_trouble(&self) -> bool {
        matches!(self, Self::Down(_) | Self::Refused(_))
    }

    /// One log line for a change of state.
    fn log(&self, cluster: &str) {
        match self {
            Self::Unknown => {}
            Self::Up(uid) => tracing::info!(cluster, %uid, "the cluster answers"),
            Self::Down(why) => tracing::warn!(cluster, why, "the cluster does not answer"),
            Self::Refused(why) => tracing::warn!(cluster, %why, "the cluster refuses the syncer's account"),
            Self::Restored(what) => tracing::warn!(cluster, what, "the cluster was restored from a backup"),
        }
    }
}

/// Probes until the receiver is dropped. The value changes only when the state does.
pub async fn probe(
    cluster: Cluster,
    every: Duration,
    connection_tx: watch::Sender<Connection>,
) -> Result<(), ConnectError> {
    let apart = cluster.apart()?;
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut doubted = false;
    loop {
        let pause = async {
            if doubted {
                tokio::time::sleep(AGAIN).await;
            } else {
                ticks.tick().await;
            }
        };
        tokio::select! {
            () = pause => {}
            // A new kubeconfig was taken over: ask at once.
            () = cluster.renewed() => {}
            () = connection_tx.closed() => return Ok(()),
        }
        let seen = ask(&apart, &cluster).await;
        let news = !connection_tx.borrow().is_as(&seen);
        let down = matches!(seen, Connection::Down(_));
        if down {
            apart.renew();
        }
        doubted = news && seen.is_trouble() && !doubted;
        if doubted {
            continue;
        }
        if news && !down && connection_tx.borrow().is_trouble() {
            cluster.renew();
        }
        connection_tx.send_if_modified(|state| {
            let changed = !state.is_as(&seen);
            if changed {
                seen.log(cluster.name());
                *state = seen;
            }
            changed
        });
    }
}

async fn ask(apart: &Cluster, cluster: &Cluster) -> Connection {
    if let Some(other) = cluster.elsewhere() {
        return Connection::Up(other);
    }
    match tokio::time::timeout(PROBE_DEADLINE, apart.ask_identity()).await {
        Ok(Ok(identity)) => {
            if !cluster.pin(&identity) {
                tracing::error!(cluster = cluster.name(), %identity, "this is another cluster than before");
                // Versions of two clusters do not compare: lower ones do not mean a restore.
                return Connection::Up(identity);
            }
            match cluster.restored() {
                Some(what) => Connection::Restored(what.to_owned()),
                None => Connection::Up(identity),
            }
        }
        Ok(Err(ConnectError::Refused(refused))) => Connection::Refused(refused),
        Ok(Err(error)) => Connection::Down(error.to_string()),
        Err(_) => Connection::Down(format!("no answer within {PROBE_DEADLINE:?}")),
    }
}

#[cfg(test)]
mod tests;
