//! The HTTP server for operators: health, metrics, status.
//!
//! Health and status only read what the engines publish through their `watch` channels, so a slow
//! scrape holds nothing up, and they answer whatever the dependencies do. Everything else asks the
//! database, a few requests at a time, on a few connections that they share; all who wait for
//! events share one more.

mod access;
pub(crate) mod api;
mod audit_routes;
mod configuration;
mod connections;
mod cursor;
pub(crate) mod dead_letters;
mod doctor_routes;
mod event_routes;
mod events;
mod guard;
mod inbox_endpoint;
mod listen;
mod metrics;
mod openapi;
pub(crate) mod operations;
mod problem;
mod relay_endpoint;
mod replay_routes;
mod retention_routes;
mod slot_routes;
mod verify_routes;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use servers::{PoolLimits, PostgresTarget};

use crate::errors::Refusal;
use crate::output::Versioned;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use console::Console;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{info, warn};

pub(crate) use self::access::Access;
use self::access::Caller;
pub(crate) use self::configuration::{Shown, shown};
pub(crate) use self::connections::{Peer, serve as serve_connections};
pub(crate) use self::doctor_routes::Look;
pub(crate) use self::listen::Address;
use self::openapi::{Api, Operation};
pub(crate) use self::problem::ApiError;
pub(crate) use events::{Told, WAIT_MAX, Waited, WaitingOf};
pub(crate) use inbox_endpoint::{AppState, Inbox, Rewinders};
pub(crate) use metrics::inbox_sample::{Durable, Part, Sample, Samples};
pub(crate) use metrics::relay_collector::Watched;
use metrics::{Format, Metrics};
pub(crate) use relay_endpoint::Relay;
pub(crate) use replay_routes::ShownReplay;

const JSON: &str = "application/json";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests that ask the servers at a time: the pipeline needs the servers too. Further ones wait.
const TURNS: usize = 4;
/// How long a request waits for its turn.
const TURN_MAX: Duration = problem::WAIT_MAX;
/// Connections to the database for work that goes on after its request: one for each operation on
/// many dead letters, and two to request a replay.
const BACKGROUND_CONNECTIONS: usize = operations::OPERATIONS_AT_ONCE + 2;
/// How long the database may work on a statement of theirs.
const BACKGROUND_STATEMENT_MAX: Duration = Duration::from_secs(50);
/// A request's body: a payload that replaces another may be large.
const BODY_BYTES_MAX: usize = 2 << 20;
/// How long requests under way may take once the engine has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// A relay or a consumer that has work and does not get on for this long is not ready.
///
/// Longer than a broker or a database takes to restart: a restart should not raise an alarm.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether old rows are deleted.
#[derive(Serialize)]
struct Retention {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_success_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// What can be seen of a running engine.
pub(crate) trait Engine: Send + Sync + 'static {
    /// Whether it does its job, and that as JSON with the reason if it does not. This needs no
    /// token, so the JSON has no text of servers, which names hosts and users, unless `details` are
    /// due.
    fn readiness(&self, details: bool) -> (bool, String);
    /// What a scraper is told.
    fn metrics(&self) -> &Metrics;
    /// Asks for what the metrics need beyond what the engine reports.
    fn look(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
    /// All that it knows about itself, as JSON.
    fn status(&self) -> anyhow::Result<String>;
    /// What can be asked of it beyond that, below `/api/v1`.
    fn api(&self) -> Api<Admin>;
    /// What waits, and asks the database nothing itself.
    fn waits(&self) -> Api<Admin>;
    /// What it is called.
    fn name(&self) -> &'static str;
}

/// What the server shows, and to whom.
#[derive(Clone)]
pub(crate) struct Admin {
    engine: Arc<dyn Engine>,
    shown: Shown,
    access: Arc<Access>,
    /// What asks the servers takes turns.
    turns: Arc<Semaphore>,
    console: Option<Arc<Console>>,
}

impl Admin {
    /// Where a token is needed, a request without one gets only `/livez` and `/readyz`.
    pub(crate) fn new(engine: impl Engine, access: Access, shown: Shown) -> Self {
        let turns = Arc::new(Semaphore::new(TURNS));
        Self { engine: Arc::new(engine), shown, access: Arc::new(access), turns, console: None }
    }

    /// Serves its pages beside the API.
    pub(crate) fn with_console(self, console: Console) -> Self {
        Self { console: Some(Arc::new(console)), ..self }
    }
}

/// The database of a relay or an inbox, as requests use it.
pub(crate) fn pooled(postgres: PostgresTarget, application_name: &'static str) -> PostgresTarget {
    let statement = problem::STATEMENT_MAX;
    postgres.pooled(PoolLimits { application_name, connections: TURNS, wait: TURN_MAX, statement })
}

/// The same, for work that goes on after its request.
fn in_background(postgres: PostgresTarget) -> PostgresTarget {
    postgres.pooled(PoolLimits {
        application_name: "tailpost admin",
        connections: BACKGROUND_CONNECTIONS,
        wait: BACKGROUND_STATEMENT_MAX,
        statement: BACKGROUND_STATEMENT_MAX,
    })
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
pub(crate) async fn serve(address: Address, admin: Admin) -> Result<Server, Refusal> {
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
        let (access, console) = (Arc::clone(&admin.access), admin.console.clone());
        let shown = async {
            match &console {
                Some(console) => keep_pages(console, &stopped).await,
                None => std::future::pending().await,
            }
        };
        let all = with_pages(router(admin), console.as_deref());
        tokio::select! {
            served = connections::serve(listener, all, stopped.clone()) => served,
            () = access.keep_reading() => Ok(()),
            () = shown => Ok(()),
        }
    });
    Ok(Server { stop, task })
}

/// The pages of a console, as requests from connections ask for them.
pub(crate) fn pages(console: &Console) -> Router {
    let name_peer = async |mut request: Request, next: Next| {
        if let Some(peer) = request.extensions().get::<Peer>().copied() {
            request.extensions_mut().insert(console::Peer(peer.0));
        }
        next.run(request).await
    };
    console.router().layer(middleware::from_fn(name_peer))
}

/// Keeps the pages' figures new. From `stop` on there are no streams, and no connection waits for one.
pub(crate) async fn keep_pages(console: &Console, stop: &CancellationToken) {
    tokio::select! {
        () = console.keep_asking() => {}
        () = stop.cancelled() => {}
    }
    console.close();
    std::future::pending().await
}

/// The API, and pages at all other paths that the console has.
fn with_pages(api: Router, console: Option<&Console>) -> Router {
    let Some(pages) = console.map(pages) else { return api };
    Router::new().fallback(async move |request: Request| {
        let router = if Console::has(request.uri().path()) { pages } else { api };
        router.oneshot(request).await
    })
}

/// What every answer to `/readyz` has.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "each engine says more, in a type of its own")]
struct Readiness {
    ready: bool,
}

/// Routes that need no token; routes that ask no server; and routes that take turns to ask one.
fn apis(admin: &Admin) -> [Api<Admin>; 3] {
    let live = Operation::get("/livez", "Says that the process answers")
        .open()
        .answers_text("It does", "text/plain");
    let ready = Operation::get("/readyz", "Says whether it does its job")
        .open()
        .answers::<Readiness>(200, "It does")
        .answers::<Readiness>(503, "It does not, and why");
    let measured = Operation::get("/metrics", "For Prometheus")
        .answers_text("All metrics", "application/openmetrics-text");
    let known = Operation::get("/api/v1/status", "Says all that the process knows about itself")
        .answers::<Versioned<Map<String, Value>>>(200, "The status");
    let oneself = Operation::get("/api/v1/me", "Says who asks, and what they may do")
        .answers::<Versioned<Oneself>>(200, "The role, and the name in the audit");
    let open = Api::new().on(live, livez).on(ready, readyz);
    let plain = Api::new()
        .on(measured, metrics)
        .on(known, status)
        .on(oneself, me)
        .merge(configuration::routes(Arc::clone(&admin.shown)))
        .merge(admin.engine.waits());
    [open, plain, admin.engine.api()]
}

fn router(admin: Admin) -> Router {
    let [open, plain, asking] = apis(&admin);
    let document: Arc<OnceLock<Value>> = Arc::default();
    let told = Arc::clone(&document);
    let this = Operation::get(openapi::PATH, "This document")
        .answers::<Map<String, Value>>(200, "OpenAPI 3.1");
    let plain = plain.on(this, async move || Json(told.get().cloned().unwrap_or_default()));
    let ((open, mut all), (plain, of_plain), (asking, of_asking)) =
        (open.into_parts(), plain.into_parts(), asking.into_parts());
    all.extend(of_plain);
    all.extend(of_asking);
    document.get_or_init(|| openapi::document(admin.engine.name(), &all));
    let mut paths: Vec<_> = all.iter().map(Operation::path).collect();
    paths.dedup();
    let paths = format!("there are {}", paths.join(", "));
    Router::new()
        .merge(plain)
        .merge(asking.layer(middleware::from_fn_with_state(admin.clone(), guard::wait_for_turn)))
        .route_layer(middleware::from_fn_with_state(admin.clone(), guard::check_change))
        .route_layer(middleware::from_fn_with_state(admin.clone(), guard::authorize))
        .merge(open)
        .fallback(async move || ApiError::new(StatusCode::NOT_FOUND, paths))
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(admin.clone(), guard::check_host))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn(guard::be_in_time))
        .with_state(admin)
}

async fn wrong_method(method: Method) -> ApiError {
    let detail = format!("{method} is not what is done with this path");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

/// That this is answered at all is the answer. A restart mends no outage of a dependency.
async fn livez() -> &'static str {
    "ok\n"
}

async fn readyz(
    State(admin): State<Admin>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
) -> Response {
    let peer = peer.map(|Extension(peer)| peer);
    let (ready, json) = admin.engine.readiness(admin.is_authorized(&headers, peer));
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, [(header::CONTENT_TYPE, JSON)], json).into_response()
}

async fn metrics(State(admin): State<Admin>, headers: HeaderMap) -> Result<Response, ApiError> {
    admin.engine.look().await;
    let format = Format::accepted(&headers);
    let body = admin.engine.metrics().encode(format)?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], body).into_response())
}

/// Who asks.
#[derive(Serialize, JsonSchema)]
struct Oneself {
    /// `viewer`, `operator` or `admin`
    role: &'static str,
    /// As the audit has it, if it is proven
    name: Option<String>,
}

async fn me(caller: Caller) -> Result<Response, ApiError> {
    let name = caller.user.clone().or_else(|| caller.token.clone());
    api::json(&Oneself { role: caller.role.name(), name })
}

async fn status(State(admin): State<Admin>) -> Result<Response, ApiError> {
    Ok(([(header::CONTENT_TYPE, JSON)], admin.engine.status()?).into_response())
}

#[cfg(test)]
mod tests;
