//! How far a stream was filled, and what becomes of rows whose messages it has lost.

use outbox::{Column, Table};
use pgoutput::Lsn;
use tokio_postgres::types::{PgLsn, ToSql};

use super::sweep::OLDEST_TRANSACTION;
use super::{Books, Marks, Store, mark};
use crate::engine::{Compared, LostEnd, Resolved};
use crate::error::Error;

/// Nobody waits for a synchronous standby: the relay works also while there is none.
const DURABLE: &str = "durable AS (SELECT set_config('synchronous_commit', 'local', true))";

pub(super) fn note_stream_end(table: &Table) -> String {
    format!(
        "WITH {DURABLE} UPDATE {} SET last_seq = $2 FROM durable
         WHERE stream = $1 AND last_seq < $2 AND created = coalesce($3, created)",
        table.companion("tailpost_streams")
    )
}

/// What nobody has answered for of an earlier loss stays among what is lost.
const UNANSWERED: &str =
    "lost = CASE last_seq WHEN $2 THEN lost ELSE $5::bigint + greatest(lost - lost_rows, 0) END";

impl Books {
    /// As [`Store::note_stream_end`].
    pub(crate) async fn note_stream_end(&self, stream: &str, end: u64) -> Result<(), Error> {
        self.0.note_stream_end(stream, end).await
    }
}

impl Marks {
    /// As [`Store::note_stream_end`].
    pub(crate) async fn note_stream_end(&self, stream: &str, end: u64) -> Result<(), Error> {
        self.0.note_stream_end(stream, end).await
    }
}

impl Store {
    /// From now on this writes of the stream that was `created` then, and of no other one of its name.
    pub(crate) fn of_stream(&self, created: &str) {
        let _ = self.stream_created.set(created.to_owned());
    }

    /// When the stream was created whose end this writes down.
    pub(crate) fn stream_created(&self) -> &str {
        self.stream_created.get().map_or("", String::as_str)
    }

    /// Writes down that the stream has given out its sequences up to `end`, before anything else that
    /// is written says that they are stored.
    pub(crate) async fn note_stream_end(&self, stream: &str, end: u64) -> Result<(), Error> {
        let (doing, sql) = ("write down where the stream ends", &self.sql.note_stream_end);
        self.perform(doing, sql, &[&stream, &end.cast_signed(), &self.stream_created.get()]).await
    }

    /// The same for what is about to be marked.
    pub(super) async fn note_stored(
        &self,
        stream: &str,
        resolved: &[Resolved],
    ) -> Result<(), Error> {
        match resolved.iter().filter_map(|it| it.seq).max() {
            Some(end) => self.note_stream_end(stream, end).await,
            None => Ok(()),
        }
    }

    /// Compares the stream that is `found` with what was written down of it. Another stream of that
    /// name has to have nothing of what the former one had.
    pub(crate) async fn compare_stream(
        &self,
        slot: &str,
        stream: &str,
        found: LostEnd,
    ) -> Result<Compared, Error> {
        let LostEnd { created, last_seq, .. } = found;
        let sql = format!(
            "WITH {DURABLE}, known AS (
                 SELECT created, last_seq, lost_at FROM {streams} WHERE stream = $1
             ), noted AS (
                 INSERT INTO {streams} AS it (stream, created, last_seq) SELECT $1, $2, $3 FROM durable
                 WHERE NOT EXISTS (SELECT FROM known WHERE created = $2 AND last_seq >= $3)
                 ON CONFLICT (stream) DO UPDATE SET created = $2, last_seq = $3
             )
             SELECT created = $2, last_seq, coalesce(lost_at > coalesce(
                 (SELECT whole_swept_at FROM {state} WHERE slot = $4), '-infinity'), false)
             FROM known",
            streams = self.table.companion("tailpost_streams"),
            state = self.table.companion("tailpost_state"),
        );
        let doing = "compare the stream's end with what is written down";
        let (end, text) = (last_seq.cast_signed(), created.to_string());
        self.of_stream(&text);
        let row = self.query_opt(doing, &sql, &[&stream, &text, &end, &slot]).await?;
        let Some(row) = row else { return Ok(Compared::default()) };
        let acknowledged = row.get::<_, i64>(1).cast_unsigned();
        let found = LostEnd { acknowledged, ..found };
        Ok(Compared::of(found, row.get(0), row.get(2)))
    }

    /// Takes their marks from the rows whose messages `lost` has, but for those that are locked. What
    /// the log of `slot` does not bring again, as it committed before `resolved_before`, becomes the
    /// scanner's. Says how many rows there were, and how many are left: none where rows have no marks
    /// or were deleted.
    ///
    /// A row of the log that was marked on trust names no message. If the stream may have lost it, it
    /// loses its mark too: the sweeper looks for it in the whole stream.
    pub(crate) async fn take_back_lost(
        &self,
        stream: &str,
        lost: LostEnd,
        slot: &str,
        resolved_before: Lsn,
    ) -> Result<(u64, u64), Error> {
        let id = self.table.column(Column::Id);
        let sql = format!(
            "WITH {DURABLE}, named AS (
                 SELECT {id} AS id, commit_lsn FROM {outbox}
                 WHERE stream = $1 AND stream_seq > $2 AND stream_seq <= $6
                     AND published_at > $7::timestamptz
                 UNION ALL SELECT id, commit_lsn FROM {owed}
                 WHERE stream = $1 AND stream_seq > $2 AND stream_seq <= $6 AND NOT parked
             ), free AS MATERIALIZED (
                 SELECT o.{id} AS id, named.commit_lsn FROM {outbox} o JOIN named ON named.id = o.{id}
                 FOR NO KEY UPDATE OF o SKIP LOCKED
             ), forgotten AS (
                 DELETE FROM {owed} WHERE NOT parked AND (id = ANY (ARRAY(SELECT id FROM free))
                     OR stream = $1 AND stream_seq IS NULL)
             ), doubtful AS (
                 SELECT o.{id} AS id FROM {outbox} o, {state} state
                 WHERE o.stream = $1 AND o.stream_seq IS NULL AND o.published_at > $8::timestamptz
                     AND state.slot = $3 AND {owned}
                     AND NOT pg_visible_in_snapshot({transaction}, state.start_snapshot)
             ), free_doubtful AS MATERIALIZED (
                 SELECT o.{id} AS id FROM {outbox} o JOIN doubtful ON doubtful.id = o.{id}
                 FOR NO KEY UPDATE OF o SKIP LOCKED
             ), doubted AS (
                 UPDATE {outbox} o SET published_at = NULL, stream = NULL, publish_error = NULL
                 FROM free_doubtful WHERE o.{id} = free_doubtful.id RETURNING o.{id}
             ), taken AS (
                 UPDATE {outbox} o SET published_at = NULL, stream = NULL, stream_seq = NULL,
                     commit_lsn = NULL, publish_error = NULL, next_attempt_at = NULL,
                     txid = CASE WHEN {owned} AND free.commit_lsn >= $4 AND NOT
                             pg_visible_in_snapshot({transaction}, state.start_snapshot)
                         THEN o.txid ELSE '{OLDEST_TRANSACTION}' END
                 FROM free, {state} state WHERE o.{id} = free.id AND state.slot = $3
                 RETURNING o.{id}
             ), counted AS (
                 SELECT (SELECT count(*) FROM taken) AS rows, (SELECT count(*) FROM named)
                     + (SELECT count(*) FROM doubtful) - (SELECT count(*) FROM doubted) AS named
                 FROM durable
             ), told AS (
                 UPDATE {streams} SET last_seq = $2, lost_at = now(), {sum},
                     lost_rows = rows + CASE last_seq WHEN $2 THEN lost_rows ELSE 0 END
                 FROM counted WHERE stream = $1
             )
             UPDATE {state} SET gap_filled_at = NULL, resolved_lsn = NULL, resolved_ordinal = NULL,
                 resolved_stream_seq = NULL, updated_at = now()
             FROM counted WHERE slot = $3
             RETURNING rows, named - rows",
            outbox = self.table.quoted(),
            owed = self.table.companion("tailpost_owed"),
            state = self.table.companion("tailpost_state"),
            streams = self.table.companion("tailpost_streams"),
            sum = UNANSWERED,
            transaction = mark::transaction("o"),
            owned = self.owned_rows("o"),
        );
        let (end, until) = (lost.last_seq.cast_signed(), lost.acknowledged.cast_signed());
        let (before, messages) = (PgLsn::from(resolved_before.0), until - end);
        let (since, doubted_since) = (lost.marked_since(), lost.doubted_since());
        let parameters: [&(dyn ToSql + Sync); 8] =
            [&stream, &end, &slot, &before, &messages, &until, &since, &doubted_since];
        let doing = "take back the marks of lost messages";
        let row = self.query_one(doing, &sql, &parameters).await?;
        let count = |at| row.get::<_, i64>(at).cast_unsigned();
        Ok((count(0), count(1)))
    }

    /// The same where rows are claimed. `None` if another node has done it: what is marked since may
    /// name these sequences again.
    pub(crate) async fn take_back_claimed(
        &self,
        stream: &str,
        lost: LostEnd,
    ) -> Result<Option<u64>, Error> {
        let sql = format!(
            "WITH {DURABLE}, ours AS (
                 SELECT it.stream FROM {streams} it, durable
                 WHERE it.stream = $1 AND it.last_seq = $3 FOR UPDATE OF it
             ), forgotten AS (
                 DELETE FROM {owed} w USING ours WHERE w.stream = $1 AND w.stream_seq > $2
                     AND w.stream_seq <= $3 AND NOT w.parked
             ), taken AS (
                 UPDATE {outbox} o SET published_at = NULL, stream = NULL, stream_seq = NULL,
                     commit_lsn = NULL, publish_error = NULL, next_attempt_at = NULL
                 FROM ours WHERE o.stream = $1 AND o.stream_seq > $2 AND o.stream_seq <= $3
                     AND o.published_at > $4::timestamptz
                 RETURNING o.stream
             )
             UPDATE {streams} it SET last_seq = $2, lost_at = now(), {UNANSWERED},
                 lost_rows = (SELECT count(*) FROM taken)
             FROM ours WHERE it.stream = $1
             RETURNING (SELECT count(*) FROM taken)",
            outbox = self.table.quoted(),
            owed = self.table.companion("tailpost_owed"),
            streams = self.table.companion("tailpost_streams"),
        );
        let (end, until) = (lost.last_seq.cast_signed(), lost.acknowledged.cast_signed());
        let messages = until - end;
        let doing = "take back the marks of lost messages";
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&stream, &end, &until, &lost.marked_since(), &messages];
        let row = self.query_opt(doing, &sql, &parameters).await?;
        Ok(row.map(|row| row.get::<_, i64>(0).cast_unsigned()))
    }
}
