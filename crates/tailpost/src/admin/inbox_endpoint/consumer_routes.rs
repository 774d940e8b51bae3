//! `/api/v1/consumers`: what consumers do, and what they are to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use inbox::{Connection, OperatorPause, Status};
use operate::consumers::{self, Backlog, ControlAction, FailedAnswers, Failing, Holder};
use operate::dead_letters::{Actor, AuditEntry};
use outbox::Table;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use servers::PostgresTarget;
use tracing::info;
use uuid::Uuid;

use crate::admin::access::Caller;
use crate::admin::api::{Body, Change, Named, json};
use crate::admin::metrics::inbox_collector::Watched;
use crate::admin::openapi::{Api, Operation};
use crate::admin::problem::ApiError;
use crate::output::Versioned;

/// Changes that a consumer's page shows.
const HISTORY: u32 = 20;

/// Whose consumers these are.
#[derive(Clone)]
pub(super) struct ConsumerState {
    /// With a pool.
    pub(super) postgres: PostgresTarget,
    pub(super) table: Table,
    /// Those that run here.
    pub(super) watched: Arc<Watched>,
}

#[derive(Default, Serialize, JsonSchema)]
struct Consumer {
    name: String,
    /// Whether this process runs a worker of it.
    here: bool,
    /// How that one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Map<String, Value>>")]
    status: Option<Status>,
    /// Who paused it, if somebody did.
    #[schemars(with = "Option<Map<String, Value>>")]
    pause: Option<OperatorPause>,
    /// The worker that had it last, and what it said of itself then.
    worker: Option<Holder>,
    #[serde(flatten)]
    backlog: Backlog,
    /// What fails and is tried again; of many, what happened first.
    failing: Vec<Failing>,
}

#[derive(Serialize, JsonSchema)]
struct Consumers {
    /// Names the database and the schema that they are in, until the server is started again.
    database: String,
    consumers: Vec<Consumer>,
}

#[derive(Serialize, JsonSchema)]
struct Shown {
    #[serde(flatten)]
    consumer: Consumer,
    /// Who wanted what of it, the newest first.
    history: Vec<AuditEntry>,
    /// How attempts failed in the last 15 minutes.
    failed_answers: Vec<FailedAnswers>,
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(state: ConsumerState) -> Api<S> {
    let list = Operation::get("/api/v1/consumers", "Lists the consumers")
        .answers::<Versioned<Consumers>>(200, "All of them, by name");
    let show_one = Operation::get("/api/v1/consumers/{name}", "Shows a consumer")
        .answers::<Versioned<Shown>>(200, "The consumer");
    let want = |action: ControlAction| {
        async move |State(state): State<ConsumerState>,
                    caller: Caller,
                    Named(name): Named<String>,
                    Body(change): Body<Change>| {
            state.want(action, &name, &caller, change).await
        }
    };
    let close = "/api/v1/consumers/{name}/breaker/close";
    let actions = [
        ("/api/v1/consumers/{name}/pause", "Begins no more events", ControlAction::Pause),
        ("/api/v1/consumers/{name}/resume", "Goes on", ControlAction::Resume),
        (close, "Takes the handler for mended", ControlAction::CloseBreaker),
    ];
    let api = Api::new().on(list, list_all).on(show_one, show);
    let api = actions.into_iter().fold(api, |api, (path, summary, action)| {
        let operation = Operation::post(path, summary).body::<Change>();
        let operation = operation.answers::<Versioned<Shown>>(200, "The consumer as it is now");
        api.on(operation, want(action))
    });
    let trial =
        Operation::post("/api/v1/consumers/{name}/events/{id}/try-now", "Tries an event now")
            .body::<Change>()
            .answers_nothing(204, "It is due, and one of its attempts is made at once");
    api.on(trial, try_now).with_state(state)
}

async fn try_now(
    State(state): State<ConsumerState>,
    caller: Caller,
    Named((name, event)): Named<(String, Uuid)>,
    Body(change): Body<Change>,
) -> Result<StatusCode, ApiError> {
    let actor = Actor { name: caller.name(change.by), via: "http".into(), why: change.why };
    if !state.open().await?.try_now(&name, event, &actor).await? {
        let detail = format!("event {event} does not wait for another attempt of {name}");
        let hint = "GET /api/v1/consumers/{name} lists under `failing` what does";
        return Err(ApiError::new(StatusCode::CONFLICT, detail).with_hint(hint));
    }
    info!(consumer = name, %event, by = actor.name, "tried at once over HTTP");
    Ok(StatusCode::NO_CONTENT)
}

impl ConsumerState {
    pub(super) async fn lent(&self) -> Result<Connection, ApiError> {
        Ok(Connection::lent(self.postgres.session("tailpost inbox api").await?))
    }

    pub(super) async fn open(&self) -> Result<consumers::Consumers, ApiError> {
        Ok(consumers::Consumers::new(self.lent().await?, &self.table))
    }

    async fn consumers(
        &self,
        tables: &consumers::Consumers,
    ) -> Result<BTreeMap<String, Consumer>, ApiError> {
        let (backlogs, holders) = (tables.backlogs().await?, tables.holders().await?);
        let wanted = tables.controls().await?;
        let mut all: BTreeMap<String, Consumer> = BTreeMap::new();
        let mut of = |name: &str, set: &dyn Fn(&mut Consumer)| {
            let consumer = all.entry(name.to_owned()).or_default();
            name.clone_into(&mut consumer.name);
            set(consumer);
        };
        for (name, status) in self.watched.iter() {
            let status = status.borrow().clone();
            of(name, &|it| (it.here, it.status) = (true, Some(status.clone())));
        }
        for backlog in &backlogs {
            of(&backlog.consumer, &|it| it.backlog = backlog.clone());
        }
        for failing in &tables.failing().await? {
            of(&failing.consumer, &|it| it.failing.push(failing.clone()));
        }
        for holder in &holders {
            of(&holder.consumer, &|it| it.worker = Some(holder.clone()));
        }
        for (name, control) in &wanted {
            of(name, &|it| it.pause.clone_from(&control.pause));
        }
        Ok(all)
    }

    async fn shown(&self, name: &str) -> Result<Response, ApiError> {
        let tables = self.open().await?;
        let consumer = self.consumers(&tables).await?.remove(name);
        let consumer = consumer.ok_or_else(|| unknown(name))?;
        let history = tables.history(name, HISTORY).await?;
        let failed_answers = tables.failed_answers(name).await?;
        json(&Shown { consumer, history, failed_answers })
    }

    async fn want(
        &self,
        action: ControlAction,
        name: &str,
        caller: &Caller,
        change: Change,
    ) -> Result<Response, ApiError> {
        let actor = Actor { name: caller.name(change.by), via: "http".into(), why: change.why };
        let tables = self.open().await?;
        if !self.consumers(&tables).await?.contains_key(name) {
            return Err(unknown(name));
        }
        if tables.want(action, name, &actor).await? {
            info!(consumer = name, ?action, by = actor.name, "controlled over HTTP");
        }
        self.shown(name).await
    }
}

pub(super) fn unknown(name: &str) -> ApiError {
    let hint = "GET /api/v1/consumers lists those that ran, or have something before them";
    let detail = format!("no consumer {name} is known");
    ApiError::new(StatusCode::NOT_FOUND, detail).with_hint(hint)
}

async fn list_all(State(state): State<ConsumerState>) -> Result<Response, ApiError> {
    let tables = state.open().await?;
    let consumers = state.consumers(&tables).await?.into_values().collect();
    json(&Consumers { database: tables.database().await?, consumers })
}

async fn show(
    State(state): State<ConsumerState>,
    Named(name): Named<String>,
) -> Result<Response, ApiError> {
    state.shown(&name).await
}
