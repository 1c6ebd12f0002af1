//! Asks one cluster every few seconds who it is, on connections of its own: the connection's state as a value.
//! Changes nothing by itself; models decide what an outage means.

use std::time::Duration;

use tokio::sync::watch;

use crate::connect::{Cluster, ConnectError};
use crate::object::Uid;

/// How often we ask.
pub const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How long an answer may take.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(3);
/// A single silence may be a busy moment: it is asked about once more, this much later.
/// An outage is known after 5 + 3 + 0.5 + 3 = 11.5 s at most.
const AGAIN: Duration = Duration::from_millis(500);

/// What is known of the way to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// Nobody has asked yet.
    Unknown,
    /// It answers, and this is who it is.
    Up(Uid),
    /// It does not answer as an API server.
    Down(String),
    /// It answers, but with an older state than before: its etcd was restored from a backup. For as long as we live.
    Restored(String),
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
    let mut silences = 0u32;
    loop {
        let pause = async {
            if silences == 1 {
                tokio::time::sleep(AGAIN).await;
            } else {
                ticks.tick().await;
            }
        };
        tokio::select! {
            () = pause => {}
            // It is reached in another way from now on: ask at once.
            () = cluster.renewed() => {}
            () = connection_tx.closed() => return Ok(()),
        }
        let seen = ask(&apart, &cluster).await;
        if let Connection::Down(_) = seen {
            apart.renew();
            silences = silences.saturating_add(1);
            if silences == 1 {
                continue;
            }
        } else {
            silences = 0;
            if let Connection::Down(_) = *connection_tx.borrow() {
                cluster.renew();
            }
        }
        connection_tx.send_if_modified(|state| {
            // Two wordings of the same outage are one state.
            let changed = match (&*state, &seen) {
                (Connection::Down(_), Connection::Down(_)) => false,
                (before, now) => before != now,
            };
            if changed {
                tracing::info!(cluster = cluster.name(), ?seen, "connection");
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
                // Its versions are its own: that they are lower than those of the right one says nothing.
                return Connection::Up(identity);
            }
            match cluster.restored() {
                Some(what) => Connection::Restored(what.to_owned()),
                None => Connection::Up(identity),
            }
        }
        Ok(Err(error)) => Connection::Down(error.to_string()),
        Err(_) => Connection::Down(format!("no answer within {PROBE_DEADLINE:?}")),
    }
}
