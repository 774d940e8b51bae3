//! `/api/v1/inbox/dead-letter`: what `tailpost inbox dlq` does.
//!
//! Changes need a JSON body, which a page of another origin cannot send without asking first.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use inbox::Connection;
use jiff::Timestamp;
use operate::dead_letters::inbox_letters::{
    DeadLetter, DeadLetterDetail, DeadLetters, LetterPlace, Marked, Overview, Selection,
};
use operate::dead_letters::{Action, Actor, BulkRequest, Reason};
use operate::explain::consumer_story::{self, ConsumerStory};
use outbox::Table;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use servers::PostgresTarget;
use tracing::info;
use uuid::Uuid;

use crate::admin::api::{
    Asked, Body, Change, FinalChange, LIMIT_MAX, ListQuery, Named, OVERVIEW, Seen, ShowQuery,
    changed, json, tagged,
};
use crate::admin::cursor;
use crate::admin::openapi::{Api, Operation};
use crate::admin::operations::{self, Operations};
use crate::admin::problem::ApiError;
use crate::admin::{self, access::Caller};
use crate::letters;
use crate::output::Versioned;

/// What its connections are called.
const API: &str = "tailpost inbox api";

/// Where its operations are.
const OPERATIONS: operations::Paths =
    ["/api/v1/inbox/dead-letter/operations", "/api/v1/inbox/dead-letter/operations/{number}"];

/// Whose dead letters these are.
#[derive(Clone)]
pub(crate) struct AppState {
    /// With a pool for requests.
    pub(super) postgres: PostgresTarget,
    /// With a pool for operations, which go on after their request.
    background: PostgresTarget,
    pub(super) table: Table,
    operations: Operations,
}

impl AppState {
    pub(crate) fn new(postgres: &PostgresTarget, table: Table) -> Self {
        let background = admin::in_background(postgres.clone());
        let postgres = admin::pooled(postgres.clone(), API);
        Self { postgres, background, table, operations: Operations::new() }
    }

    async fn open(&self, consumer: Option<String>) -> anyhow::Result<DeadLetters> {
        self.connect(&self.postgres, consumer).await
    }

    async fn connect(
        &self,
        postgres: &PostgresTarget,
        consumer: Option<String>,
    ) -> anyhow::Result<DeadLetters> {
        let connection = Connection::lent(postgres.session(API).await?);
        Ok(DeadLetters::new(connection, &self.table).of_consumer(consumer))
    }
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(state: AppState) -> Api<S> {
    let list_all = Operation::get("/api/v1/inbox/dead-letter", "Lists what could not be handled")
        .query::<ListQuery>()
        .answers::<Versioned<Overview>>(200, OVERVIEW);
    let show_one = Operation::get("/api/v1/inbox/dead-letter/{id}", "Shows a dead letter")
        .query::<ShowQuery>()
        .answers::<Versioned<DeadLetterDetail>>(200, "What is known about it");
    let discard_one = Operation::delete("/api/v1/inbox/dead-letter/{id}", "Discards a dead letter")
        .if_match()
        .query::<ShowQuery>()
        .without("payload")
        .body::<FinalChange>()
        .answers_nothing(204, "It is never handled");
    let requeue_one =
        Operation::post("/api/v1/inbox/dead-letter/{id}/requeue", "Handles it after all")
            .if_match()
            .query::<ShowQuery>()
            .without("payload")
            .body::<Change>()
            .answers_nothing(204, "A worker handles it");
    let reject_one =
        Operation::post("/api/v1/inbox/dead-letter/{id}/reject", "Rejects it for good")
            .if_match()
            .query::<ShowQuery>()
            .without("payload")
            .body::<FinalChange>()
            .answers_nothing(204, "It is answered, with the reason");
    let path = "/api/v1/consumers/{name}/events/{id}/mark-processed";
    let mark_one = Operation::post(path, "Records that an event has had its effect")
        .body::<MarkRequest>()
        .answers::<Versioned<Marking>>(200, "What came of it, and what was known before");
    let decide = |action: Action| {
        async move |State(state): State<AppState>,
                    caller: Caller,
                    Named(id): Named<Uuid>,
                    Asked(of): Asked<ShowQuery>,
                    seen: Seen,
                    Body(change): Body<Change>| {
            decide((&state, &caller), action, id, (of, seen), change).await
        }
    };
    let operations = operations::routes(OPERATIONS, state.operations.clone());
    Api::new()
        .on(list_all, list)
        .on(show_one, show)
        .on(discard_one, decide(Action::Discard))
        .on(requeue_one, decide(Action::Requeue))
        .on(reject_one, decide(Action::Reject))
        .on(mark_one, mark_processed)
        .on(operations::beginning::<DeadLetter>(OPERATIONS), start)
        .with_state(state)
        .merge(operations)
}

/// An effect that was made by other means. Needs `why`, unless it is only looked at.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MarkRequest {
    by: Option<String>,
    why: Option<Reason>,
    /// When the event happened; only for one that neither inbox nor outbox know
    occurred_at: Option<Timestamp>,
    /// Only says what is known
    #[serde(default)]
    dry_run: bool,
}

#[derive(Serialize, JsonSchema)]
struct Marking {
    consumer: String,
    event_id: Uuid,
    /// None with `dry_run`
    result: Option<Marked>,
    /// What the consumer had done with it before
    before: ConsumerStory,
}

async fn list(
    State(state): State<AppState>,
    Asked(mut query): Asked<ListQuery>,
) -> Result<Response, ApiError> {
    let consumer = query.consumer.take();
    let after: Option<LetterPlace> = cursor::decode(query.cursor.as_deref())?;
    let (filter, limit) = query.read()?;
    let (filter, letters) = (filter.into(), state.open(consumer).await?);
    let mut page = letters.overview(&filter, after.as_ref(), limit + 1).await?;
    page.next = cursor::end_page(&mut page.dead_letters, limit, DeadLetter::place)?;
    json(&page)
}

async fn show(
    State(state): State<AppState>,
    caller: Caller,
    Named(id): Named<Uuid>,
    Asked(query): Asked<ShowQuery>,
) -> Result<Response, ApiError> {
    let reader = query.reader(&caller)?;
    let (letters, of) = (state.open(query.consumer).await?, [id][..].into());
    if let Some(reader) = &reader {
        letters.note_reading(&of, reader).await?;
    }
    let detail = letters::only(id, letters.details(&of, reader.is_some(), LIMIT_MAX).await?)?;
    tagged(&detail, detail.etag.as_deref())
}

async fn start(
    State(state): State<AppState>,
    caller: Caller,
    Body(mut request): Body<BulkRequest>,
) -> Result<Response, ApiError> {
    let actor = operations::check(&mut request, &caller)?;
    // The request fails if the database is unreachable. It does not wait for the rest.
    let letters = state.open(request.consumer.clone()).await?;
    if request.dry_run {
        return json(&letters.overview(&request.filter.into(), None, 0).await?);
    }
    drop(letters);
    let asked = request.clone();
    state.operations.clone().begin(request, move |progress, stop| {
        Box::pin(async move {
            let consumer = asked.consumer.clone();
            let letters = state.connect(&state.background, consumer).await?;
            letters::work_through(&letters, &asked, &actor, &progress, &stop).await
        })
    })
}

/// Of all consumers that have it, or of the one that is named.
async fn decide(
    (state, caller): (&AppState, &Caller),
    action: Action,
    id: Uuid,
    (ShowQuery { consumer, .. }, seen): (ShowQuery, Seen),
    change: Change,
) -> Result<StatusCode, ApiError> {
    let actor = change.actor(action, caller)?;
    let letters = state.open(consumer).await?;
    let of = Selection { dead_at: seen.0, ..[id][..].into() };
    let done = letters.decide(action, &of, &actor).await?;
    if done.is_empty() && seen.0.is_some() {
        let history = letters.decisions(id).await?;
        let now = letters.details(&of, false, 1).await?.pop();
        // Of a letter that nobody knows there is no state either.
        if now.is_some() || !history.is_empty() {
            let state = now.map_or_else(|| "gone".into(), |it| it.state);
            return Err(changed(&history, &state));
        }
    }
    if done.is_empty() {
        return Err(match &letters.list(&of, None, 1).await?[..] {
            [] => letters::no_letter(id).into(),
            _ => letters::not_dead(action.name()).into(),
        });
    }
    for (consumer, event_id) in done {
        info!(consumer, %event_id, decision = action.name(), by = actor.name, "decided over HTTP");
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn mark_processed(
    State(state): State<AppState>,
    caller: Caller,
    Named((consumer, event_id)): Named<(String, Uuid)>,
    Body(request): Body<MarkRequest>,
) -> Result<Response, ApiError> {
    let on = Connection::lent(state.postgres.session(API).await?);
    if !consumer_story::consumers(&on, &state.table).await?.contains(&consumer) {
        return Err(super::consumer_routes::unknown(&consumer));
    }
    let mut known = consumer_story::explain(&on, &state.table, event_id, &mut vec![]).await?;
    let before = known.remove(&consumer).unwrap_or_default();
    if request.dry_run {
        return json(&Marking { consumer, event_id, result: None, before });
    }
    if request.why.is_none() {
        let detail = "an event counts as processed for a reason";
        return Err(ApiError::bad(detail).with_hint("say so in \"why\"; it is kept"));
    }
    let actor = Actor { name: caller.name(request.by), via: "http".into(), why: request.why };
    let letters = DeadLetters::new(on, &state.table);
    let marked = letters.mark_processed(&consumer, event_id, request.occurred_at, &actor).await?;
    if !matches!(marked, Marked::Marked | Marked::AlreadyProcessed) {
        return Err(letters::not_marked(marked, &consumer, event_id).into());
    }
    info!(consumer, %event_id, by = actor.name, "marked as processed over HTTP");
    json(&Marking { consumer, event_id, result: Some(marked), before })
}
