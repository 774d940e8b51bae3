//! How far a stream was filled, and what becomes of rows whose messages it has lost.

use jiff::Timestamp;
use outbox::Column;
use pgoutput::Lsn;
use tokio_postgres::types::{PgLsn, ToSql};

use super::sweep::OLDEST_TRANSACTION;
use super::{Books, Marks, Store, mark};
use crate::engine::Resolved;
use crate::error::Error;

/// Sequences that were acknowledged, and that the stream has not given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostEnd {
    /// When the stream was created. What was marked before is another one's.
    pub(crate) created: Timestamp,
    /// The highest one that was acknowledged.
    pub(crate) acknowledged: u64,
    /// Where the stream ends.
    pub(crate) last_seq: u64,
}

impl LostEnd {
    pub(crate) fn messages(self) -> u64 {
        self.acknowledged - self.last_seq
    }
}

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
    /// Writes down that the stream has given out its sequences up to `end`, before anything else that
    /// is written says that they are stored.
    pub(crate) async fn note_stream_end(&self, stream: &str, end: u64) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {} SET last_seq = $2 WHERE stream = $1 AND last_seq < $2",
            self.table.companion("tailpost_streams")
        );
        let doing = "write down where the stream ends";
        self.execute(doing, &sql, &[&stream, &end.cast_signed()]).await.map(drop)
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

    /// Whether the stream that was created then ends before what was written down of it. Another
    /// stream of that name has to have nothing of what the former one had. Also says whether it did
    /// so since the whole table was last swept for `slot`.
    pub(crate) async fn lost_end(
        &self,
        slot: &str,
        stream: &str,
        created: Timestamp,
        last_seq: u64,
    ) -> Result<(Option<LostEnd>, bool), Error> {
        let sql = format!(
            "INSERT INTO {streams} AS known (stream, created, last_seq) VALUES ($1, $2, $3)
             ON CONFLICT (stream) DO UPDATE SET created = $2, last_seq = CASE known.created
                 WHEN $2 THEN greatest(known.last_seq, $3) ELSE $3 END
             RETURNING last_seq, coalesce(lost_at > coalesce(
                 (SELECT whole_swept_at FROM {state} WHERE slot = $4), '-infinity'), false)",
            streams = self.table.companion("tailpost_streams"),
            state = self.table.companion("tailpost_state"),
        );
        let doing = "compare the stream's end with what is written down";
        let (end, text) = (last_seq.cast_signed(), created.to_string());
        let row = self.query_one(doing, &sql, &[&stream, &text, &end, &slot]).await?;
        let acknowledged = row.get::<_, i64>(0).cast_unsigned();
        let is_shorter = acknowledged > last_seq;
        let lost = LostEnd { created, acknowledged, last_seq };
        Ok((is_shorter.then_some(lost), row.get(1)))
    }

    /// Takes their marks from the rows whose messages `lost` has, in one statement. What the log of
    /// `slot` does not bring again, as it committed before `resolved_before`, becomes the scanner's.
    /// Says how many rows there were: none where rows have no marks or were deleted.
    pub(crate) async fn take_back_lost(
        &self,
        stream: &str,
        lost: LostEnd,
        slot: &str,
        resolved_before: Lsn,
    ) -> Result<u64, Error> {
        let id = self.table.column(Column::Id);
        let sql = format!(
            "WITH owed AS (
                 DELETE FROM {owed} WHERE stream = $1 AND stream_seq > $2 AND NOT parked
                 RETURNING id, commit_lsn
             ), lost AS (
                 SELECT o.{id} AS id, o.commit_lsn FROM {outbox} o
                 WHERE stream = $1 AND stream_seq > $2 AND {owned}
                     -- By another clock.
                     AND published_at > $6::timestamptz - interval '1 minute'
                 UNION ALL SELECT id, commit_lsn FROM owed
             ), taken AS (
                 UPDATE {outbox} o SET published_at = NULL, stream = NULL, stream_seq = NULL,
                     commit_lsn = NULL, publish_error = NULL, next_attempt_at = NULL,
                     txid = CASE WHEN lost.commit_lsn >= $4 AND NOT
                             pg_visible_in_snapshot({transaction}, state.start_snapshot)
                         THEN o.txid ELSE '{OLDEST_TRANSACTION}' END
                 FROM lost, {state} state WHERE o.{id} = lost.id AND state.slot = $3
                 RETURNING o.{id}
             ), told AS (
                 UPDATE {streams} SET last_seq = $2, lost_at = now(), lost = $5,
                     lost_rows = (SELECT count(*) FROM taken)
                 WHERE stream = $1
                 RETURNING lost_rows
             )
             UPDATE {state} SET gap_filled_at = NULL, resolved_stream_seq = NULL, updated_at = now()
             FROM told WHERE slot = $3
             RETURNING lost_rows",
            outbox = self.table.quoted(),
            owed = self.table.companion("tailpost_owed"),
            state = self.table.companion("tailpost_state"),
            streams = self.table.companion("tailpost_streams"),
            transaction = mark::transaction("o"),
            owned = self.owned_rows("o"),
        );
        let (end, messages) = (lost.last_seq.cast_signed(), lost.messages().cast_signed());
        let before = PgLsn::from(resolved_before.0);
        let doing = "take back the marks of lost messages";
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&stream, &end, &slot, &before, &messages, &lost.created];
        let row = self.query_one(doing, &sql, &parameters).await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }
}
