//! A line from a client to one API server, on which a test makes trouble: cut, silence, delay, wrong answers, lost answers,
//! streams that break. Must not change what passes unless a test asked for it.
//!
//! ```text
//! client ──TLS, HTTP/1.1──> door ──> carry ──the kubeconfig's own credentials──> API server
//!                                      │ <── answer ── flow ──┘
//!                                    rules: which requests meet which fault
//! ```
//!
//! The client gets a kubeconfig of its own, [`Line::kubeconfig`]; who it is for the API server is decided by the kubeconfig that
//! the line was made from. Several identities take several lines. Upgrades (exec, port-forward) do not pass.
//!
//! | room | what stands there |
//! |---|---|
//! | [`asked`] | what a request asks for, and which requests a rule is about |
//! | [`fault`] | what can go wrong |
//! | [`storm`] | trouble by chance: one seed decides all of it |

use std::sync::Arc;

use anyhow::Result;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub mod asked;
mod carry;
mod door;
pub mod fault;
mod flow;
mod rules;
pub mod storm;

pub use asked::{Asked, Requests};
pub use fault::Fault;
pub use storm::Storm;

use crate::Cluster;
use carry::Way;
use door::Door;

/// The line. It lives on the runtime that made it; dropping it cuts it for good.
pub struct Line {
    kubeconfig: String,
    way: Arc<Way>,
    /// test --state--> door
    state_tx: watch::Sender<State>,
    _tasks: JoinSet<()>,
}

/// Whether the line is whole, and how often it has been cut so far: a cut that is mended at once is one, too.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    cut: bool,
    cuts: u64,
}

impl Line {
    /// A whole line to this cluster, with its administrator's rights.
    pub async fn to(cluster: &Cluster) -> Result<Self> {
        Self::through(&cluster.kubeconfig_text()?).await
    }

    /// A whole line to the server of this kubeconfig, with the rights of its user.
    pub async fn through(kubeconfig: &str) -> Result<Self> {
        let way = Arc::new(Way::to(kubeconfig).await?);
        let door = Door::open()?;
        let kubeconfig = door.kubeconfig()?;
        let (state_tx, state_rx) = watch::channel(State::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(door.serve(Arc::clone(&way), state_rx));
        Ok(Self { kubeconfig, way, state_tx, _tasks: tasks })
    }

    /// How a client finds the API server through this line. It names no file, so it may be put into a Secret.
    #[must_use]
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Resets all connections and refuses new ones until [`Self::mend`].
    pub fn cut(&self) {
        self.state_tx.send_modify(|state| *state = State { cut: true, cuts: state.cuts + 1 });
    }

    /// Ends [`Self::cut`].
    pub fn mend(&self) {
        self.state_tx.send_modify(|state| state.cut = false);
    }

    /// Resets all connections; new ones are welcome.
    pub fn reset(&self) {
        self.cut();
        self.mend();
    }

    /// Makes trouble for these requests until the value is dropped. Of several rules for one request the oldest counts.
    #[must_use = "the trouble ends when this is dropped"]
    pub fn trouble(&self, fault: Fault, requests: Requests) -> Trouble {
        Trouble { id: self.way.rules.add(fault, requests), way: Arc::clone(&self.way) }
    }

    /// Calls `then` after every write that the API server has carried out, before the client hears of it. The first who asks stays.
    pub fn after_each_write(&self, then: impl Fn(&Asked) + Send + Sync + 'static) {
        // A second one would have to be told apart from the first; no test has needed it.
        let _ = self.way.after_write.set(Box::new(then));
    }
}

/// Trouble that a test made. Dropping it ends the trouble.
pub struct Trouble {
    id: u64,
    way: Arc<Way>,
}

impl Trouble {
    /// How often it has struck: a test that shows that something survives shows first that something happened.
    #[must_use]
    pub fn struck(&self) -> u32 {
        self.way.rules.struck(self.id)
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.way.rules.remove(self.id);
    }
}

#[cfg(test)]
mod tests;
