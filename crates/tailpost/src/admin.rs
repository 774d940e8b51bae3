//! The HTTP server for operators: health, metrics, status.
//!
//! It only reads what the engines publish through their `watch` channels, so a slow scrape holds
//! nothing up, and it answers whatever the dependencies do. What is about dead letters asks the
//! database, on connections of its own; all who wait for events share one.

pub(crate) mod api;
mod connections;
pub(crate) mod dead_letters;
mod events;
mod guard;
mod inbox_endpoint;
mod listen;
mod metrics;
mod relay_endpoint;

use std::sync::Arc;
use std::time::Duration;

use crate::errors::ListenError;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower_http::timeout::TimeoutLayer;
use tracing::{info, warn};

pub(crate) use self::listen::Address;
pub(crate) use events::{Told, WAIT_MAX, Waited, WaitingOf};
pub(crate) use inbox_endpoint::{AppState, Inbox};
pub(crate) use metrics::inbox_metrics::{Sample, Samples};
pub(crate) use metrics::relay_metrics::Watched;
pub(crate) use relay_endpoint::Relay;

const JSON: &str = "application/json";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests that ask the database at a time, each on a connection of its own: the pipeline needs
/// connections too. Further ones wait, for [`REQUEST_TIMEOUT`] at most.
const QUERIES_MAX: usize = 4;
/// A request's body: a payload that replaces another may be large.
const BODY_BYTES_MAX: usize = 2 << 20;
/// For those who look around.
const PATHS: &str = "there are /livez, /readyz, /metrics, /api/v1/status";
/// How long requests under way may take once the engine has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What can be seen of a running engine.
pub(crate) trait Engine: Send + Sync + 'static {
    /// Whether it does its job, and that as JSON with the reason if it does not. Anybody may ask:
    /// what servers said, with names of hosts and users, is left out unless `details` are due.
    fn readiness(&self, details: bool) -> (bool, String);
    /// In the form of [`metrics::CONTENT_TYPE`].
    fn metrics(&self) -> Result<String, std::fmt::Error>;
    /// Asks for what the metrics need beyond what the engine reports.
    fn look(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
    /// All that it knows about itself, as JSON.
    fn status(&self) -> anyhow::Result<String>;
    /// What can be asked of it beyond that, below `/api/v1`.
    fn api(&self) -> Router<Admin> {
        Router::new()
    }
    /// What waits, and asks the database nothing itself.
    fn waits(&self) -> Router<Admin> {
        Router::new()
    }
    /// Where that is, to go on with a list of paths.
    fn api_paths(&self) -> &'static str {
        ""
    }
}

/// What the server shows, and to whom.
#[derive(Clone)]
pub(crate) struct Admin {
    engine: Arc<dyn Engine>,
    token: Option<Arc<str>>,
    /// What asks the database takes turns.
    queries: Arc<Semaphore>,
}

impl Admin {
    /// With a token, only `/livez` and `/readyz` answer without it.
    pub(crate) fn new(engine: impl Engine, token: Option<String>) -> Self {
        let queries = Arc::new(Semaphore::new(QUERIES_MAX));
        Self { engine: Arc::new(engine), token: token.map(Into::into), queries }
    }
}

/// A running server.
pub(crate) struct Server {
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    /// Stops listening and waits a moment for requests under way.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        match tokio::time::timeout(STOP_TIMEOUT, self.task).await {
            Ok(Ok(Err(error))) => warn!(%error, "the admin server failed"),
            Ok(_) => (),
            Err(_) => warn!("a request to the admin server did not end in time"),
        }
    }
}

/// Starts serving; later, if another process has the address now.
///
/// # Errors
///
/// Fails if the address is not ours.
pub(crate) async fn serve(address: Address, admin: Admin) -> Result<Server, ListenError> {
    let bound = address.bind().await?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move {
        let listener = match bound {
            Some(listener) => Some(listener),
            None => address.wait(&stopped).await,
        };
        let Some(listener) = listener else { return Ok(()) };
        info!(address = %address.socket, "serving health, metrics and status");
        connections::serve(listener, router(admin), stopped).await
    });
    Ok(Server { stop, task })
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/api/v1/status", get(status))
        .merge(admin.engine.waits())
        .merge(
            admin
                .engine
                .api()
                .layer(middleware::from_fn_with_state(admin.clone(), guard::wait_for_turn)),
        )
        .route_layer(middleware::from_fn_with_state(admin.clone(), guard::check_change))
        .route_layer(middleware::from_fn_with_state(admin.clone(), guard::authorize))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .fallback(paths)
        .layer(middleware::from_fn_with_state(admin.clone(), guard::check_host))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT))
        .with_state(admin)
}

async fn paths(State(admin): State<Admin>) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, format!("{PATHS}{}\n", admin.engine.api_paths()))
}

/// That this is answered at all is the answer. A restart mends no outage of a dependency.
async fn livez() -> &'static str {
    "ok\n"
}

async fn readyz(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let (ready, json) = admin.engine.readiness(admin.is_authorized(&headers));
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, [(header::CONTENT_TYPE, JSON)], json).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    admin.engine.look().await;
    match admin.engine.metrics() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            warn!(%error, "could not encode the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn status(State(admin): State<Admin>) -> Response {
    match admin.engine.status() {
        Ok(json) => ([(header::CONTENT_TYPE, JSON)], json).into_response(),
        Err(error) => {
            warn!(%error, "could not encode the status");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests;
