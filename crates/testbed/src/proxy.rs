//! A proxy between a client and one API server that injects faults: refused and reset connections, hanging requests,
//! delays, wrong answers, lost answers, broken streams. Must not change what passes unless a test asks for it.
//!
//! ```text
//! client ──TLS──> frontend ──> forward ──the kubeconfig's own credentials──> API server
//!                                          │ <── answer ── body ──┘
//!                                        rules: which fault applies to which requests
//! ```
//!
//! The client uses the proxy's own kubeconfig, [`FaultProxy::kubeconfig`]; the proxy sends its requests with the
//! credentials of the kubeconfig it was made with. It offers HTTP/2 and HTTP/1.1, and uses the client's protocol to the API
//! server. Several identities need several proxies. Upgrades (exec, port-forward) do not pass.
//!
//! | module | what it holds |
//! |---|---|
//! | [`request_info`] | what a request asks for, and which requests a rule selects |
//! | [`fault`] | what can go wrong: with a request or stream, or with the connection that carries it |
//! | [`protocol`] | HTTP/1.1 and HTTP/2 |
//! | [`storm`] | random faults: one seed decides all of them |

use std::sync::Arc;

use anyhow::Result;
use tokio::sync::watch;
use tokio::task::JoinSet;

mod body;
pub mod fault;
mod forward;
mod frontend;
mod link;
pub mod protocol;
pub mod request_info;
mod rules;
pub mod storm;

pub use fault::Fault;
pub use protocol::Protocol;
pub use request_info::{RequestInfo, Requests};
pub use storm::Storm;

use crate::Cluster;
use forward::Forwarder;
use frontend::Frontend;

/// The proxy. It lives on the runtime that made it; dropping it closes all its connections.
pub struct FaultProxy {
    kubeconfig: String,
    forwarder: Arc<Forwarder>,
    /// test --state--> frontend
    state_tx: watch::Sender<State>,
    _tasks: JoinSet<()>,
}

/// Whether the proxy refuses connections, and how often it was cut so far: a cut that is restored at once counts, too.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    cut: bool,
    cuts: u64,
}

impl FaultProxy {
    /// A proxy to this cluster, with its administrator's rights.
    pub async fn to(cluster: &Cluster) -> Result<Self> {
        Self::with_kubeconfig(&cluster.kubeconfig_text()?).await
    }

    /// A proxy to the server of this kubeconfig, with the rights of its user.
    pub async fn with_kubeconfig(kubeconfig: &str) -> Result<Self> {
        Self::offering(Protocol::Http2, kubeconfig).await
    }

    /// Like [`Self::with_kubeconfig`], but offers no newer protocol than this.
    pub async fn offering(newest: Protocol, kubeconfig: &str) -> Result<Self> {
        let forwarder = Arc::new(Forwarder::to(kubeconfig).await?);
        let frontend = Frontend::open(newest)?;
        let kubeconfig = frontend.kubeconfig()?;
        let (state_tx, state_rx) = watch::channel(State::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(frontend.serve(Arc::clone(&forwarder), state_rx));
        Ok(Self { kubeconfig, forwarder, state_tx, _tasks: tasks })
    }

    /// The kubeconfig of a client that uses this proxy. It names no file, so it may be put into a Secret.
    #[must_use]
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Resets all connections and refuses new ones until [`Self::restore`].
    pub fn cut(&self) {
        self.state_tx.send_modify(|state| *state = State { cut: true, cuts: state.cuts + 1 });
    }

    /// Ends [`Self::cut`].
    pub fn restore(&self) {
        self.state_tx.send_modify(|state| state.cut = false);
    }

    /// Resets all connections; new ones are accepted.
    pub fn reset(&self) {
        self.cut();
        self.restore();
    }

    /// Injects this fault into these requests until the value is dropped. Of several rules for one request the oldest applies.
    #[must_use = "the fault ends when this is dropped"]
    pub fn inject(&self, fault: Fault, requests: Requests) -> Injection {
        Injection { id: self.forwarder.rules.add(fault, requests), forwarder: Arc::clone(&self.forwarder) }
    }

    /// Calls `then` after every write that the API server has carried out, before the client gets the answer. Only the
    /// first call counts.
    pub fn after_each_write(&self, then: impl Fn(&RequestInfo) + Send + Sync + 'static) {
        // No test has needed two.
        let _ = self.forwarder.after_write.set(Box::new(then));
    }
}

/// A fault in force. Dropping it ends the fault.
pub struct Injection {
    id: u64,
    forwarder: Arc<Forwarder>,
}

impl Injection {
    /// How many requests it has hit: a test of survival first checks that a fault happened.
    #[must_use]
    pub fn hits(&self) -> u32 {
        self.forwarder.rules.hits(self.id)
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        self.forwarder.rules.remove(self.id);
    }
}

#[cfg(test)]
mod tests;
