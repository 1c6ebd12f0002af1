//! The endpoints of a daemon: metrics, health and the log level, each on its own address.
//! Serves only what it is given.

mod server;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, put};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::server::serve;
use crate::telemetry::{BadFilter, Filter, LogLevel, MAX_LENGTH};

/// What readiness waits for, condition by condition.
#[derive(Clone, Default)]
pub struct Readiness {
    gates: Arc<Mutex<Vec<ReadinessGate>>>,
}

/// One thing that readiness waits for.
#[derive(Clone)]
pub struct ReadinessGate {
    name: Arc<str>,
    /// What is missing; `None` when it is open.
    lacks: Arc<Mutex<Option<String>>>,
}

impl Readiness {
    /// Adds a gate for this part of the process, closed.
    #[must_use]
    pub fn gate(&self, name: &str) -> ReadinessGate {
        let gate = ReadinessGate { name: name.into(), lacks: Arc::new(Mutex::new(Some("starting".to_owned()))) };
        self.gates.lock().unwrap_or_else(PoisonError::into_inner).push(gate.clone());
        gate
    }

    /// The gates that are closed, each with what is missing.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<String> {
        let gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        let lacks = |gate: &ReadinessGate| gate.lacks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        gates.iter().filter_map(|gate| Some(format!("{}: {}", gate.name, lacks(gate)?))).collect()
    }
}

impl ReadinessGate {
    /// Closes it because of what is missing, or opens it.
    pub fn set(&self, lacks: Option<String>) {
        *self.lacks.lock().unwrap_or_else(PoisonError::into_inner) = lacks;
    }
}

/// Serves `/metrics` until cancelled. The caller opens the listener, so that a taken port fails at start.
pub async fn serve_metrics(listener: TcpListener, registry: Arc<Registry>, cancel: CancellationToken) {
    let router = Router::new().route("/metrics", get(metrics)).with_state(registry);
    serve(listener, router, cancel).await;
}

/// Serves `/healthz`, `/livez` and `/readyz` until cancelled.
pub async fn serve_health(listener: TcpListener, readiness: Readiness, cancel: CancellationToken) {
    let router = Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(readyz).with_state(readiness));
    serve(listener, router, cancel).await;
}

/// Serves `PUT /debug/log-level` until cancelled. Any client that reaches it can flood the log: use a loopback address.
pub async fn serve_debug(listener: TcpListener, level: LogLevel, cancel: CancellationToken) {
    let router = Router::new()
        .route("/debug/log-level", put(log_level).with_state(level))
        .layer(DefaultBodyLimit::max(MAX_LENGTH));
    serve(listener, router, cancel).await;
}

/// Opens an address, or says which one is taken.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))
}

async fn metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => {
            let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, [(header::CONTENT_TYPE, format)], text)
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}

async fn readyz(State(readiness): State<Readiness>) -> (StatusCode, String) {
    let waiting = readiness.waiting_for();
    if waiting.is_empty() {
        return (StatusCode::OK, "ok".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}", waiting.join(", ")))
}

async fn log_level(State(level): State<LogLevel>, filter: String) -> (StatusCode, String) {
    match filter.parse::<Filter>() {
        Ok(filter) => {
            level.set(&filter);
            tracing::info!(%filter, "the log filter was changed");
            (StatusCode::OK, format!("logging {filter}\n"))
        }
        Err(bad) => (StatusCode::BAD_REQUEST, format!("{bad}: {}\n", BadFilter::HINT)),
    }
}

#[cfg(test)]
mod tests;
