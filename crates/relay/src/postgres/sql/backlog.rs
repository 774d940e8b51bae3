//! How much is not published, as far as the table says.

use std::collections::BTreeMap;

use jiff::Timestamp;
use outbox::{COMPANIONS, Column};

use super::{Store, mark, sweep};
use crate::error::Error;

/// Counting more rows than this tells nobody anything.
pub const COUNT_MAX: i64 = 100_000;

/// Rows that are not published.
#[derive(Debug, Clone, Copy, Default)]
pub struct Backlog {
    /// At most [`COUNT_MAX`].
    pub rows: i64,
    /// The age of the oldest of them, in seconds.
    pub oldest_seconds: Option<f64>,
    /// When that one occurred, in seconds since 1970.
    pub(crate) oldest_at: Option<f64>,
}

const COUNTING: &str = "count what is not published";

impl Store {
    /// What is asked for metrics is not worth waiting for.
    pub(crate) async fn be_brief(&self) -> Result<(), Error> {
        let sql = "SET lock_timeout = '1s'; SET statement_timeout = '5s'; SET jit = off";
        self.batch_execute(COUNTING, sql).await
    }

    /// For an operator who waits for the answer: a lock is named.
    pub async fn be_asked(&self) -> Result<(), Error> {
        self.batch_execute(COUNTING, "SET lock_timeout = '5s'").await
    }

    /// Who has locked the outbox against reading, if anybody has.
    pub async fn exclusive_holder(&self) -> Result<Option<(String, String)>, Error> {
        let sql = "SELECT concat('process ', pid, ' (' || nullif(application_name, '') || ')'), of
            FROM pg_locks JOIN pg_stat_activity USING (pid)
                JOIN unnest($1::text[]) WITH ORDINALITY AS ours (of, place)
                    ON relation = to_regclass(of)
            WHERE granted AND mode = 'AccessExclusiveLock' ORDER BY place LIMIT 1";
        let companions = COMPANIONS.iter().map(|it| self.table.companion(it));
        let tables: Vec<String> = [self.table.quoted()].into_iter().chain(companions).collect();
        let row = self.query_opt("look who has locked a table", sql, &[&tables]).await?;
        Ok(row.map(|row| (row.get(0), row.get(1))))
    }

    /// When the slot was created, when the stream had lost messages, as far as it is known, and how
    /// many of these nobody has answered for.
    pub(crate) async fn slot_times(
        &self,
        slot: &str,
        stream: &str,
    ) -> Result<(Option<Timestamp>, Option<Timestamp>, u64), Error> {
        let sql = format!(
            "SELECT (SELECT epoch_at FROM {} WHERE slot = $1), lost_at,
                 coalesce(greatest(lost - lost_rows, 0), 0)
             FROM (SELECT) one LEFT JOIN {} ON stream = $2",
            self.table.companion("tailpost_state"),
            self.table.companion("tailpost_streams")
        );
        let doing = "look when the slot was created";
        let row = self.query_one(doing, &sql, &[&slot, &stream]).await?;
        Ok((row.get(0), row.get(1), row.get::<_, i64>(2).unsigned_abs()))
    }

    /// How many replays are in which state.
    pub(crate) async fn count_replays_by_status(&self) -> Result<BTreeMap<String, u64>, Error> {
        let replays = self.table.companion("tailpost_replays");
        let sql = format!("SELECT status, count(*) FROM {replays} GROUP BY status");
        let rows = self.query("count the replays", &sql, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).unsigned_abs())).collect())
    }

    /// Counts what is not marked, and what no watermark says is published. With the index of
    /// transactions only where there can be such rows: behind what was swept, and among those that
    /// came back. But while a gap is being filled it may be any row.
    pub async fn backlog(&self, slot: &str) -> Result<Backlog, Error> {
        let swept = if self.has_index_of_transactions().await? {
            self.load_state(slot).await?.filter(|it| it.is_gap_filled).and_then(|it| it.swept)
        } else {
            None
        };
        let (outbox, at) = (self.table.quoted(), self.table.column(Column::OccurredAt));
        let unpublished = format!(
            "published_at IS NULL AND {} AND {} AND {}",
            mark::not_published(&self.table, "o"),
            self.owned_rows("o"),
            mark::not_owed(&self.table)
        );
        let age =
            "CASE WHEN isfinite(at) THEN extract(epoch FROM clock_timestamp() - at)::float8 END";
        let since = "CASE WHEN isfinite(at) THEN extract(epoch FROM at)::float8 END";
        let row = match swept {
            Some(swept) => {
                let sql = format!(
                    "SELECT count(*), max({age}), min({since}) FROM (
                         (SELECT {at} AS at FROM {outbox} o WHERE {unpublished} AND {came_back}
                          LIMIT {COUNT_MAX})
                         UNION ALL
                         (SELECT {at} FROM {outbox} o WHERE {unpublished}
                              AND txid >= pg_snapshot_xmin($1::text::pg_snapshot)
                          ORDER BY txid LIMIT {COUNT_MAX})) unpublished",
                    came_back = sweep::CAME_BACK,
                );
                self.query_one(COUNTING, &sql, &[&swept.snapshot]).await?
            }
            None => {
                let sql = format!(
                    "SELECT (SELECT count(*) FROM (SELECT FROM {outbox} o WHERE {unpublished}
                                                   LIMIT {COUNT_MAX}) unpublished), {age}, {since}
                     FROM (SELECT) one LEFT JOIN LATERAL (SELECT {at} AS at FROM {outbox} o
                         WHERE {unpublished} ORDER BY {at} LIMIT 1) oldest ON true"
                );
                self.query_one(COUNTING, &sql, &[]).await?
            }
        };
        let rows = row.get::<_, i64>(0).min(COUNT_MAX);
        Ok(Backlog { rows, oldest_seconds: row.get(1), oldest_at: row.get(2) })
    }
}
