//! The HTTP server for operators: health, metrics, status.
//!
//! It only reads what the relay publishes through its `watch` channel, so a slow scrape holds
//! nothing up, and it answers whatever the dependencies do. Only what is about dead letters asks the
//! database, on connections of its own.

pub(crate) mod dead_letters;
mod health;
mod metrics;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use relay::{Config, Status};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower_http::timeout::TimeoutLayer;
use tracing::{info, warn};

use self::dead_letters::Desk;
use self::health::Readiness;
use self::metrics::Metrics;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// For those who look around.
const PATHS: &str = "there are /livez, /readyz, /metrics, /api/v1/status, and \
                     /api/v1/outbox/dead-letter\n";
/// How long requests under way may take once the relay has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What the server shows, and to whom.
#[derive(Clone)]
pub(crate) struct Admin {
    status: watch::Receiver<Status>,
    metrics: Arc<Metrics>,
    token: Option<Arc<str>>,
    desk: Desk,
}

impl Admin {
    /// With a token, only `/livez` and `/readyz` answer without it.
    pub(crate) fn new(
        status: watch::Receiver<Status>,
        config: &Config,
        token: Option<String>,
    ) -> Self {
        let pipeline = format!("{}/{}", config.slot, config.publication);
        let metrics = Metrics::new(status.clone(), pipeline, config);
        let desk = Desk::new(config.clone());
        Self { status, metrics: Arc::new(metrics), token: token.map(Into::into), desk }
    }
}

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("could not listen on {address} for health and metrics")]
pub(crate) struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

impl ListenError {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> String {
        "set admin.listen to a free address, or to \"off\"".into()
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

/// Starts serving.
///
/// # Errors
///
/// Fails if the address is not free or not ours.
pub(crate) async fn serve(address: SocketAddr, admin: Admin) -> Result<Server, ListenError> {
    let listener =
        TcpListener::bind(address).await.map_err(|source| ListenError { address, source })?;
    info!(%address, "serving health, metrics and status");
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let task = tokio::spawn(async move {
        axum::serve(listener, router(admin)).with_graceful_shutdown(stopped).await
    });
    Ok(Server { stop, task })
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/api/v1/status", get(status))
        .nest("/api/v1/outbox", dead_letters::routes().with_state(admin.desk.clone()))
        .route_layer(middleware::from_fn_with_state(admin.clone(), authorize))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .fallback(async || (StatusCode::NOT_FOUND, PATHS))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT))
        .with_state(admin)
}

/// That this is answered at all is the answer. A restart mends no outage of a dependency.
async fn livez() -> &'static str {
    "ok\n"
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let readiness = Readiness::of(&admin.status.borrow());
    let code = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(readiness)).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    admin.metrics.count(admin.desk.count().await);
    match admin.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            warn!(%error, "could not encode the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn status(State(admin): State<Admin>) -> Response {
    let status = admin.status.borrow().clone();
    match crate::output::to_json(&status) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => {
            warn!(%error, "could not encode the status");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn authorize(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    match admin.token.as_deref() {
        Some(token) if !carries(request.headers(), token) => {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, challenge, "a bearer token is needed\n").into_response()
        }
        _ => next.run(request).await,
    }
}

fn carries(headers: &HeaderMap, token: &str) -> bool {
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|it| it.to_str().ok())
        .and_then(|it| it.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map_or("", |(_, given)| given.trim());
    // Looks at every byte, so that the time taken does not tell how many were right.
    given.len() == token.len()
        && given.bytes().zip(token.bytes()).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
}

#[cfg(test)]
mod tests;
