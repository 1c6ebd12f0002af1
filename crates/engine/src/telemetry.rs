//! Logs: text on a terminal, JSON elsewhere, with a level that can be changed while running.
//! Never formats a request or answer body, which could hold a Secret (law 10).

mod filter;

use std::io::IsTerminal as _;

use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;

pub use self::filter::{BadFilter, Filter, MAX_LENGTH};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// One line of text per event.
    Text,
    /// One JSON object per event.
    Json,
}

impl Format {
    /// Whether lines are JSON objects.
    #[must_use]
    pub fn is_json(self) -> bool {
        match self {
            Self::Auto => !std::io::stderr().is_terminal(),
            Self::Text => false,
            Self::Json => true,
        }
    }
}

/// Changes what is logged while the process runs.
#[derive(Clone)]
pub struct LogLevel(Handle<Targets, Registry>);

impl LogLevel {
    /// Replaces the filter.
    pub fn set(&self, filter: &Filter) {
        if self.0.reload(filter.targets()).is_err() {
            tracing::error!("the log filter cannot be replaced: this process logs otherwise");
        }
    }
}

/// Starts logging to standard error. Call once per process.
#[must_use]
pub fn start(filter: &Filter, format: Format) -> LogLevel {
    let (filter, handle) = reload::Layer::new(filter.targets());
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal);
    let registry = tracing_subscriber::registry().with(filter);
    let started = if format.is_json() {
        registry.with(lines.json().flatten_event(true).with_current_span(false)).try_init()
    } else {
        registry.with(lines).try_init()
    };
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
    LogLevel(handle)
}
