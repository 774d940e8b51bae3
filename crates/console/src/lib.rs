//! The web console: pages over the HTTP API of relays and inboxes.
//!
//! It operates what runs and configures nothing. It holds tokens of the API and no credential of a
//! database or a broker: whatever a page can do, a script can do with the same requests.
//!
//! ```text
//!   relay, inbox ◀──/api/v1── poller ──▶ picture ──▶ pages, stream of changes ──▶ browsers
//!        ▲                                                                          │
//!        └───────────────────── changes, with the visitor's token ◀─────── forms ◀──┘
//! ```
//!
//! `state/` decides what is shown, without I/O and clock. A page is a template, a struct and a
//! function in `pages/`. Pages come whole, and work without JavaScript.

mod app;
mod assets;
mod client;
mod fields;
mod frame;
mod guard;
mod live;
mod pages;
mod poller;
mod problem;
mod sessions;
mod settings;
mod state;
mod visitor;
mod watch;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::uri::PathAndQuery;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, middleware};

pub use live::ClosesAt;
pub use settings::{Credential, Kind, Proxy, Settings, Upstream};
pub use visitor::Peer;

use app::App;
use pages::{
    audit, audit_export, came_of_it, checks, consumer, consumers, dead_letters, event, events,
    letter, letter_changes, log, one_event, overview, replay, rewind, settings_page, sign_in, work,
};
use problem::Problem;

/// A form with a payload that was edited: two MiB, escaped.
const FORM_BYTES_MAX: usize = 8 << 20;

/// A console that is ready to be served.
pub struct Console {
    app: Arc<App>,
}

impl Console {
    /// Asks nobody yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { app: Arc::new(App::new(settings)) }
    }

    /// All pages. Each request should have a [`Peer`] as an extension.
    pub fn router(&self) -> Router {
        let routes = routes(&self.app);
        if self.app.settings.base_path.is_empty() {
            return routes;
        }
        // A proxy may keep the prefix, or take it away.
        let strip = middleware::from_fn_with_state(Arc::clone(&self.app), without_prefix);
        Router::new().fallback_service(routes).layer(strip)
    }

    /// Whether a path is one of its pages, for whoever serves others beside them.
    #[must_use]
    pub fn has(path: &str) -> bool {
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        PAGES.contains(&first)
    }

    /// Asks relays and inboxes, until it is dropped. Pages have no figures without it.
    pub async fn keep_asking(&self) {
        poller::keep_asking(&self.app.clients, &self.app.watch).await;
    }

    /// Ends the streams of changes, which would keep their connections for a minute.
    pub fn close(&self) {
        self.app.watch.close();
    }
}

/// The first part of each path.
const PAGES: [&str; 14] = [
    "log",
    "checks",
    "audit",
    "settings",
    "",
    "live",
    "assets",
    "dead-letters",
    "events",
    "consumers",
    "work",
    "sign-in",
    "sign-out",
    "theme",
];

async fn without_prefix(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let rest = path.strip_prefix(&*app.settings.base_path);
    if let Some(rest) = rest.filter(|it| it.is_empty() || it.starts_with(['/', '?'])) {
        let slash = if rest.starts_with('/') { "" } else { "/" };
        if let Ok(uri) = format!("{slash}{rest}").parse() {
            *request.uri_mut() = uri;
        }
    }
    next.run(request).await
}

fn routes(app: &Arc<App>) -> Router {
    Router::new()
        .route("/", get(overview::overview))
        .route("/live", get(live::live))
        .route("/assets/{name}", get(assets::asset))
        .route("/dead-letters", get(dead_letters::dead_letters))
        .route("/dead-letters/plan", get(dead_letters::plan_letters))
        .route("/dead-letters/work", post(dead_letters::work_on_letters))
        .route("/dead-letters/selected", post(letter_changes::decide_selected))
        .route("/dead-letters/{source}/{id}", get(letter::letter).post(letter::letter_content))
        .route(
            "/dead-letters/{source}/{id}/{action}",
            get(letter::again).post(letter_changes::decide),
        )
        .route("/events", get(events::events))
        .route("/events/{id}", get(event::event))
        .route("/events/{id}/outcome", get(came_of_it::outcome))
        .route("/consumers", get(consumers::consumers))
        .route("/consumers/{source}/{name}", get(consumer::consumer))
        .route(
            "/consumers/{source}/{name}/{action}",
            get(one_event::plan).post(consumer::change_consumer),
        )
        .route(
            "/consumers/{source}/{name}/rewind",
            get(rewind::plan_rewind).post(rewind::begin_rewind),
        )
        .route("/consumers/{source}/{name}/rewind/cancel", post(rewind::cancel_rewind))
        .route("/log", get(log::log))
        .route("/checks", get(checks::checks))
        .route("/audit", get(audit::audit))
        .route("/audit/export", get(audit_export::export))
        .route("/settings", get(settings_page::settings))
        .route("/work", get(work::work))
        .route("/work/operations/{source}/{number}/cancel", post(work::cancel_operation))
        .route("/work/comparisons/{source}", post(work::compare))
        .route("/work/comparisons/{source}/cancel", post(work::cancel_comparison))
        .route("/work/replays/new", get(replay::plan_replay).post(replay::begin_replay))
        .route("/work/replays/{source}/{id}", get(replay::replay))
        .route("/work/replays/{source}/{id}/{action}", post(replay::change_replay))
        .route("/sign-in", get(sign_in::sign_in_page).post(sign_in::sign_in))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/theme", post(sign_in::change_theme))
        .fallback(async || Problem::not_found("there is no such page"))
        .method_not_allowed_fallback(async || {
            Problem::new(axum::http::StatusCode::METHOD_NOT_ALLOWED, "a page is not changed so")
        })
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(app), guard::guard))
        .with_state(Arc::clone(app))
}

#[cfg(test)]
mod tests;
