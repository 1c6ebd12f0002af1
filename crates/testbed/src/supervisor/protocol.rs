//! The protocol between us and the supervisor: one JSON value per line, one answer per order.
//! Must not have orders that wait; a supervisor that waits does not see the end of file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Raised with every change of this file, so that a stale `testbed` binary is refused with a clear message.
pub(super) const PROTOCOL: u32 = 2;

/// us --orders--> supervisor
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Launch {
        name: String,
        launch: Launch,
        /// The name of a control group to run in.
        group: Option<String>,
    },
    Signal {
        name: String,
        signal: Signal,
    },
    State {
        name: String,
    },
}

/// supervisor --answers--> us
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Sent once, before any order.
    Hello(u32),
    State(State),
    Failed(String),
}

/// What to start. The child inherits our environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The program, by path.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where stdout and stderr go; a restart appends.
    pub log: PathBuf,
}

/// Signals are sent to the whole process group of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// SIGTERM: end gracefully.
    Terminate,
    /// SIGKILL: end now.
    Kill,
    /// SIGSTOP: freeze, with all connections open.
    Stop,
    /// SIGCONT: continue.
    Continue,
}

/// The state of a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It runs (or is stopped) under this process ID.
    Running(u32),
    /// It ended: "exit status: 1", "signal: 9 (SIGKILL)".
    Ended(String),
    /// No child of this name was ever started.
    Unknown,
}
