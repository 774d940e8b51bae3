//! Rows whose messages are missing become the scanner's, which publishes them.

use outbox::Column;
use relay::Error;
use relay::access::mark;
use relay::access::sweep::{CAME_BACK, OLDEST_TRANSACTION};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::Store;
use crate::repair::{Gap, GapCounts, Remembering};

/// How long ago the message of a row was stored, in seconds, at least: its mark came later. Of a row
/// without a mark it is unknown, and was before the comparison, $5 seconds ago.
const AGE: &str = "CASE WHEN o.published_at IS NULL THEN $5::float8 ELSE
    extract(epoch FROM clock_timestamp() - o.published_at)::float8 END";

/// Gaps as the parameters of [`Store::still_gaps`].
struct Gaps<'a> {
    ids: Vec<Uuid>,
    streams: Vec<Option<&'a str>>,
    sequences: Vec<Option<i64>>,
    window: f64,
    elapsed: f64,
}

impl<'a> Gaps<'a> {
    fn of(gaps: &'a [Gap], Remembering { window, elapsed }: Remembering) -> Self {
        Self {
            ids: gaps.iter().map(|it| it.id).collect(),
            streams: gaps.iter().map(|it| it.stream.as_deref()).collect(),
            sequences: gaps.iter().map(|it| it.sequence.map(u64::cast_signed)).collect(),
            window: window.as_secs_f64(),
            elapsed: elapsed.as_secs_f64(),
        }
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 5] {
        [&self.ids, &self.streams, &self.sequences, &self.window, &self.elapsed]
    }
}

impl Store {
    /// Rows `o` that are as the comparison found them: with the same mark, or without one and not the
    /// scanner's; neither parked nor owed anything.
    fn still_gaps(&self) -> String {
        format!(
            "FROM {outbox} o
             JOIN unnest($1::uuid[], $2::text[], $3::bigint[]) AS f (id, stream, seq)
                 ON f.id = o.{id}
             WHERE o.{id} = ANY($1)
                 AND CASE WHEN o.published_at IS NULL
                     THEN f.seq IS NULL AND NOT coalesce(o.{CAME_BACK}, false)
                     ELSE o.stream IS NOT DISTINCT FROM f.stream
                         AND o.stream_seq IS NOT DISTINCT FROM f.seq END
                 AND NOT EXISTS (SELECT FROM {dead} d WHERE d.id = f.id OFFSET 0)
                 AND {not_owed}",
            outbox = self.table.quoted(),
            id = self.table.column(Column::Id),
            dead = self.table.companion("outbox_dead_letter"),
            not_owed = mark::not_owed(&self.table),
        )
    }

    /// How many of these are gaps still, and how many of them the broker may take for stored.
    pub(crate) async fn count_gaps(
        &self,
        gaps: &[Gap],
        remembering: Remembering,
    ) -> Result<GapCounts, Error> {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE age >= $4), count(*) FILTER (WHERE age < $4),
                 coalesce(max($4::float8 - age) FILTER (WHERE age < $4), 0)
             FROM (SELECT {AGE} AS age {gaps}) AS found",
            gaps = self.still_gaps()
        );
        let gaps = Gaps::of(gaps, remembering);
        let row = self.query_one("look at rows", &sql, &gaps.parameters()).await?;
        Ok(GapCounts {
            ready: row.get::<_, i64>(0).cast_unsigned(),
            young: row.get::<_, i64>(1).cast_unsigned(),
            ready_in_seconds: row.get(2),
        })
    }

    /// Makes those the scanner's that are gaps still, and of which the broker knows no id any more.
    /// Locked ones stay as they are. Returns how many were made so.
    pub(crate) async fn give_to_the_scanner(
        &self,
        gaps: &[Gap],
        remembering: Remembering,
    ) -> Result<u64, Error> {
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let sql = format!(
            "WITH found AS (
                 SELECT o.{id} AS id {gaps} AND {AGE} >= $4::float8
                 FOR NO KEY UPDATE OF o SKIP LOCKED
             )
             UPDATE {outbox} o SET txid = '{OLDEST_TRANSACTION}', published_at = NULL,
                 stream = NULL, stream_seq = NULL, commit_lsn = NULL, publish_error = NULL,
                 next_attempt_at = NULL
             FROM found WHERE o.{id} = found.id",
            gaps = self.still_gaps()
        );
        let gaps = Gaps::of(gaps, remembering);
        self.execute("give rows to the scanner", &sql, &gaps.parameters()).await
    }
}
