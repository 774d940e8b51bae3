//! Which replays meant an event.

use jiff::Timestamp;
use relay::{Error, Glob, ReplaySource};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::types::PgLsn;
use uuid::Uuid;

use super::Store;

const LISTING: &str = "look for the event's replays";

/// The newest replays that are looked at.
const REPLAYS_MAX: i64 = 1_000;

/// What a selection is compared with. What is not known is not meant by who asks for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownEvent {
    pub(crate) id: Uuid,
    pub(crate) has_row: bool,
    /// Type and id.
    pub(crate) aggregate: Option<(String, String)>,
    pub(crate) event_type: Option<String>,
    pub(crate) published_at: Option<Timestamp>,
    pub(crate) commit_lsn: Option<PgLsn>,
}

/// A replay that meant the event. Times are as PostgreSQL prints them.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ReplayStory {
    /// The replay.
    pub id: Uuid,
    /// `asked`, `running`, `paused`, `cancelled` or `done`.
    pub status: String,
    /// `table`, `stream` or `wal`.
    pub source: String,
    /// When it was asked for.
    pub asked_at: String,
    /// By whom.
    pub asked_by: String,
    /// Why.
    pub reason: String,
    /// When a relay began it.
    pub started_at: Option<String>,
    /// When it was done or cancelled.
    pub ended_at: Option<String>,
    /// What it did with this event.
    pub outcome: ReplayOutcome,
    /// Why it could not publish this event.
    pub problem: Option<String>,
}

/// What a replay did with one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayOutcome {
    /// A copy was stored.
    Published,
    /// It could not be published again.
    Failed,
    /// Its turn is still to come.
    Waiting,
    /// The replay was cancelled before its turn.
    NotPublished,
    /// It was meant. Replays from the stream and the log have no list that would tell more.
    Unknown,
}

impl Store {
    /// Of the newest replays, those that have the event in their lists, or whose selection takes it;
    /// the newest first.
    pub(crate) async fn replays_of(&self, event: &KnownEvent) -> Result<Vec<ReplayStory>, Error> {
        let sql = format!(
            "SELECT r.id, r.status, r.source, r.asked_at::text, r.asked_by, r.reason,
                 r.started_at::text, r.ended_at::text, r.event_type, l.replay IS NOT NULL, l.problem
             FROM (SELECT * FROM {replays} ORDER BY asked_at DESC, id LIMIT {REPLAYS_MAX}) r
             LEFT JOIN {listed} l ON l.replay = r.id AND l.event = $1
             WHERE l.replay IS NOT NULL
                 OR (r.event_ids IS NULL OR $1 = ANY (r.event_ids))
                     AND (r.aggregate_type IS NULL
                          OR r.aggregate_type || ':' || r.aggregate_id = $2 || ':' || $3)
                     AND (r.from_lsn IS NULL OR $4::pg_lsn >= r.from_lsn)
                     AND (r.to_lsn IS NULL OR $4::pg_lsn <= r.to_lsn)
                     AND $5::timestamptz <= r.asked_at
                     AND (r.since IS NULL OR $5 >= r.since) AND (r.until IS NULL OR $5 < r.until)
             ORDER BY r.asked_at DESC, r.id",
            replays = self.table.companion("tailpost_replays"),
            listed = self.table.companion("tailpost_replay_events"),
        );
        let (of_type, of) = event.aggregate.clone().unzip();
        let KnownEvent { id, commit_lsn, published_at, event_type, .. } = event;
        let rows =
            self.query(LISTING, &sql, &[id, &of_type, &of, commit_lsn, published_at]).await?;
        let mut stories = Vec::new();
        for row in rows {
            let (pattern, is_listed): (Option<String>, bool) = (row.get(8), row.get(9));
            let pattern = pattern.and_then(|it| it.parse::<Glob>().ok());
            let takes = |it: &Glob| event_type.as_deref().is_some_and(|of| it.matches(of));
            if !is_listed && !pattern.is_none_or(|it| takes(&it)) {
                continue;
            }
            let (status, source): (String, String) = (row.get(1), row.get(2));
            let problem: Option<String> = row.get(10);
            let is_table = source == ReplaySource::Table.name();
            let outcome = match (is_listed, &*status) {
                (true, _) if problem.is_some() => ReplayOutcome::Failed,
                (true, "cancelled") => ReplayOutcome::NotPublished,
                (true, _) => ReplayOutcome::Waiting,
                // What is published is taken off the list.
                (false, "done") if is_table && event.has_row => ReplayOutcome::Published,
                (false, _) => ReplayOutcome::Unknown,
            };
            stories.push(ReplayStory {
                id: row.get(0),
                status,
                source,
                asked_at: row.get(3),
                asked_by: row.get(4),
                reason: row.get(5),
                started_at: row.get(6),
                ended_at: row.get(7),
                outcome,
                problem,
            });
        }
        Ok(stories)
    }
}
