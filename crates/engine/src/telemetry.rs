//! Logs: for people on a terminal, JSON elsewhere, the level changeable while running.
//! Never formats a request or answer body, which could hold a Secret (law 10).

use std::io::IsTerminal as _;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

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

/// Changes what is logged while the process runs.
#[derive(Clone)]
pub struct LogLevel(Handle<EnvFilter, Registry>);

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not a log filter: use error, warn, info, debug, trace, or target=level pairs such as info,tapestry_cluster=debug"
)]
pub struct BadFilter(String);

impl LogLevel {
    /// Replaces the filter.
    pub fn set(&self, filter: &str) -> Result<(), BadFilter> {
        let parsed = parse(filter)?;
        // Only fails when the subscriber is gone, and it lives as long as the process.
        self.0.reload(parsed).map_err(|_| BadFilter(filter.to_owned()))
    }
}

/// Starts logging to standard error. Call once per process.
pub fn start(filter: &str, format: Format) -> Result<LogLevel, BadFilter> {
    let (filter, handle) = reload::Layer::new(parse(filter)?);
    let terminal = std::io::stderr().is_terminal();
    let json = match format {
        Format::Auto => !terminal,
        Format::Text => false,
        Format::Json => true,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal);
    let registry = tracing_subscriber::registry().with(filter);
    let started =
        if json { registry.with(lines.json().flatten_event(true)).try_init() } else { registry.with(lines).try_init() };
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
    Ok(LogLevel(handle))
}

fn parse(filter: &str) -> Result<EnvFilter, BadFilter> {
    let filter = filter.trim();
    if filter.is_empty() {
        return Err(BadFilter(filter.to_owned()));
    }
    // kube logs whole bodies it cannot read at WARN: whatever the user asks for, that stays off.
    EnvFilter::try_new(format!("{filter},kube_client=error,hyper=warn,hyper_util=warn,rustls=warn,tower=warn"))
        .map_err(|_| BadFilter(filter.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_says_what_can() {
        assert!(parse("info,tapestry_cluster=debug").is_ok());
        for bad in ["", "  ", "tapestry=loud"] {
            assert!(parse(bad).unwrap_err().to_string().contains("debug"), "{bad}");
        }
    }
}
