//! How far a stream was filled, and what becomes of rows whose messages it has lost.

use outbox::{Column, Table};
use pgoutput::Lsn;
use tokio_postgres::Row;
use tokio_postgres::types::{PgLsn, ToSql};
use uuid::Uuid;

use super::sweep::OLDEST_TRANSACTION;
use super::{Books, Marks, Store, mark};
use crate::engine::{Compared, LastEvent, LostEnd, Resolved};
use crate::error::Error;

/// Nobody waits for a synchronous standby: the relay works also while there is none.
const DURABLE: &str = "durable AS (SELECT set_config('synchronous_commit', 'local', true))";

pub(super) fn note_stream_end(table: &Table) -> String {
    format!(
        "WITH {DURABLE} UPDATE {} SET last_seq = greatest(last_seq, $2, $4),
             event_seq = greatest(event_seq, $4::bigint),
             event_id = CASE WHEN coalesce(event_seq, 0) < $4 THEN $5::uuid ELSE event_id END
         FROM durable
         WHERE stream = $1 AND (last_seq < $2 OR coalesce(event_seq, 0) < $4)
             AND created = coalesce($3, created)",
        table.companion("tailpost_streams")
    )
}

const TAKING_BACK: &str = "take back the marks of lost messages";

/// As [`Displaced`], in the statements below.
const DISPLACED: &str = "SELECT * FROM unnest($5::uuid[], $6::bigint[])";

/// Rows that name lost messages where the stream has others: these were stored after it went back.
#[derive(Debug, Default)]
pub(crate) struct Displaced {
    ids: Vec<Uuid>,
    seqs: Vec<i64>,
    /// The last row whose message is where the row says.
    pub(crate) agrees: Option<LastEvent>,
}

impl Displaced {
    pub(crate) fn add(&mut self, id: Uuid, seq: u64) {
        self.ids.push(id);
        self.seqs.push(seq.cast_signed());
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}

/// The loss was written down before, and rows were left that are taken back now.
const ANSWERED: &str = "last_seq = $2 AND event_seq IS NOT DISTINCT FROM $11";

/// What ends that the outbox $1 keeps its marks: the constraint $2 of it, or triggers of its rows.
const KEEPS_MARKS: &str = "
    SELECT CASE WHEN $2::text IS NULL THEN string_agg(
            format('ALTER TABLE %I.%I DISABLE TRIGGER %I', nspname, relname, tgname), '; ')
        ELSE format('ALTER TABLE %s DROP CONSTRAINT %I', $1::text, $2::text) END
    FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid JOIN pg_namespace n ON n.oid = relnamespace
    WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 16 = 16 AND tgparentid = 0
        AND (tgrelid = to_regclass($1) OR tgtype & 1 = 1 AND tgrelid IN (
            SELECT relid FROM pg_partition_tree(to_regclass($1))))";

/// What nobody has answered for of an earlier loss stays among what is lost.
fn lost_now(messages: &str) -> String {
    format!("{messages}::bigint + greatest(lost - lost_rows, 0)")
}

/// The event in two columns, `at` the first of them.
pub(super) fn last_event(row: &Row, at: usize) -> Option<LastEvent> {
    let seq = row.get::<_, Option<i64>>(at)?;
    Some(LastEvent { seq: seq.cast_unsigned(), id: row.get::<_, Option<Uuid>>(at + 1)? })
}

fn columns_of(event: Option<LastEvent>) -> (Option<i64>, Option<Uuid>) {
    (event.map(|it| it.seq.cast_signed()), event.map(|it| it.id))
}

impl Books {
    /// As [`Store::note_stream_end`].
    pub(crate) async fn note_stream_end(
        &self,
        stream: &str,
        end: u64,
        event: Option<LastEvent>,
    ) -> Result<(), Error> {
        self.0.note_stream_end(stream, end, event).await
    }
}

impl Marks {
    /// As [`Store::note_stream_end`].
    pub(crate) async fn note_stream_end(&self, stream: &str, end: u64) -> Result<(), Error> {
        self.0.note_stream_end(stream, end, None).await
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
    /// is written says that they are stored; and the last event that it is known to have.
    pub(crate) async fn note_stream_end(
        &self,
        stream: &str,
        end: u64,
        event: Option<LastEvent>,
    ) -> Result<(), Error> {
        let (doing, sql) = ("write down where the stream ends", &self.sql.note_stream_end);
        let (seq, id) = columns_of(event);
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&stream, &end.cast_signed(), &self.stream_created.get(), &seq, &id];
        self.perform(doing, sql, &parameters).await
    }

    /// The same for what is about to be marked.
    pub(super) async fn note_stored(
        &self,
        stream: &str,
        resolved: &[Resolved],
    ) -> Result<(), Error> {
        match Resolved::last_of(resolved) {
            Some(event) => self.note_stream_end(stream, event.seq, Some(event)).await,
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
                 SELECT created, last_seq, lost_at, event_seq, event_id FROM {streams} WHERE stream = $1
             ), noted AS (
                 INSERT INTO {streams} AS it (stream, created, last_seq) SELECT $1, $2, $3 FROM durable
                 WHERE NOT EXISTS (SELECT FROM known WHERE created = $2 AND last_seq >= $3)
                 ON CONFLICT (stream) DO UPDATE SET created = $2, last_seq = $3,
                     event_seq = CASE it.created WHEN $2 THEN it.event_seq END,
                     event_id = CASE it.created WHEN $2 THEN it.event_id END
             )
             SELECT created = $2, last_seq, coalesce(lost_at > coalesce(
                 (SELECT whole_swept_at FROM {state} WHERE slot = $4), '-infinity'), false),
                 event_seq, event_id
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
        Ok(Compared::of(found, row.get(0), row.get(2), last_event(&row, 3)))
    }

    /// Up to `limit` rows that name messages of the stream before `seq`, the last ones first.
    pub(crate) async fn named_before(
        &self,
        stream: &str,
        lost: LostEnd,
        seq: u64,
        limit: i64,
    ) -> Result<Vec<(Uuid, u64)>, Error> {
        let sql = format!(
            "SELECT id, stream_seq FROM ({}) named WHERE stream_seq < $3
             ORDER BY stream_seq DESC LIMIT $4",
            self.naming("$1", "$2")
        );
        let doing = "look for rows whose messages the stream has others of";
        let (since, seq) = (lost.marked_since(), seq.cast_signed());
        let rows = self.query(doing, &sql, &[&stream, &since, &seq, &limit]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).cast_unsigned())).collect())
    }

    /// Rows that name messages of the stream, and those whose marks are owed.
    fn naming(&self, stream: &str, since: &str) -> String {
        let (outbox, owed) = (self.table.quoted(), self.table.companion("tailpost_owed"));
        format!(
            "SELECT {id} AS id, stream_seq, commit_lsn FROM {outbox}
             WHERE stream = {stream} AND published_at > {since}::timestamptz
             UNION ALL SELECT id, stream_seq, commit_lsn FROM {owed}
             WHERE stream = {stream} AND NOT parked",
            id = self.table.column(Column::Id)
        )
    }

    /// As [`take_back_lost`](Self::take_back_lost).
    fn taking_back(&self) -> String {
        let id = self.table.column(Column::Id);
        format!(
            "WITH {DURABLE}, named AS (
                 SELECT id, commit_lsn FROM ({naming}) it
                 WHERE stream_seq > $2 AND stream_seq <= $3 OR (id, stream_seq) IN ({DISPLACED})
             ), free AS MATERIALIZED (
                 SELECT o.{id} AS id, named.commit_lsn FROM {outbox} o JOIN named ON named.id = o.{id}
                 FOR NO KEY UPDATE OF o SKIP LOCKED
             ), forgotten AS (
                 DELETE FROM {owed} WHERE NOT parked AND (id = ANY (ARRAY(SELECT id FROM free))
                     OR stream = $1 AND stream_seq IS NULL)
             ), doubtful AS (
                 SELECT o.{id} AS id FROM {outbox} o, {state} state
                 WHERE o.stream = $1 AND o.stream_seq IS NULL AND o.published_at > $10::timestamptz
                     AND state.slot = $7 AND {owned}
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
                     txid = CASE WHEN {owned} AND free.commit_lsn >= $8 AND NOT
                             pg_visible_in_snapshot({transaction}, state.start_snapshot)
                         THEN o.txid ELSE '{OLDEST_TRANSACTION}' END
                 FROM free, {state} state WHERE o.{id} = free.id AND state.slot = $7
                 RETURNING o.{id}
             ), counted AS (
                 SELECT (SELECT count(*) FROM taken) AS rows, (SELECT count(*) FROM named)
                     + (SELECT count(*) FROM doubtful) - (SELECT count(*) FROM doubted) AS named
                 FROM durable
             ), told AS (
                 UPDATE {streams} SET last_seq = $2, lost_at = now(),
                     lost = CASE WHEN {ANSWERED} THEN lost ELSE {lost_now} END,
                     lost_rows = rows + CASE WHEN {ANSWERED} THEN lost_rows ELSE 0 END,
                     event_seq = $11, event_id = $12
                 FROM counted WHERE stream = $1
             )
             UPDATE {state} SET gap_filled_at = NULL, resolved_lsn = NULL, resolved_ordinal = NULL,
                 resolved_stream_seq = NULL, updated_at = now(),
                 checkpoint_lsn = CASE WHEN start_snapshot IS NULL THEN checkpoint_lsn
                     ELSE least(checkpoint_lsn, $8) END
             FROM counted WHERE slot = $7
             RETURNING rows, named - rows",
            naming = self.naming("$1", "$4"),
            outbox = self.table.quoted(),
            owed = self.table.companion("tailpost_owed"),
            state = self.table.companion("tailpost_state"),
            streams = self.table.companion("tailpost_streams"),
            lost_now = lost_now("$9"),
            transaction = mark::transaction("o"),
            owned = self.owned_rows("o"),
        )
    }

    /// Takes their marks from the rows whose messages `lost` has, but for those that are locked. What
    /// the log of `slot` does not bring again, as it committed before `resolved_before`, becomes the
    /// scanner's. Says how many rows there were, and how many are left: none where rows have no marks
    /// or were deleted. No more than that is written down as resolved: a slot that somebody advances
    /// beyond it before the log has brought the rest lacks something.
    ///
    /// A row of the log that was marked on trust names no message. If the stream may have lost it, it
    /// loses its mark too: the sweeper looks for it in the whole stream.
    pub(crate) async fn take_back_lost(
        &self,
        stream: &str,
        lost: LostEnd,
        displaced: &Displaced,
        slot: &str,
        resolved_before: Lsn,
    ) -> Result<(u64, u64), Error> {
        let (end, until) = (lost.last_seq.cast_signed(), lost.acknowledged.cast_signed());
        let (Displaced { ids, seqs, agrees }, before) = (displaced, PgLsn::from(resolved_before.0));
        let (agrees_seq, agrees_id) = columns_of(*agrees);
        let messages = lost.messages(displaced.len()).cast_signed();
        let (since, doubted_since) = (lost.marked_since(), lost.doubted_since());
        let parameters: [&(dyn ToSql + Sync); 12] = [
            &stream,
            &end,
            &until,
            &since,
            ids,
            seqs,
            &slot,
            &before,
            &messages,
            &doubted_since,
            &agrees_seq,
            &agrees_id,
        ];
        let taken = self.query_one(TAKING_BACK, &self.taking_back(), &parameters).await;
        let row = self.unless_kept(taken).await?;
        let count = |at| row.get::<_, i64>(at).cast_unsigned();
        Ok((count(0), count(1)))
    }

    /// The same where rows are claimed. `None` if another node has done it: what is marked since may
    /// name these sequences again.
    pub(crate) async fn take_back_claimed(
        &self,
        stream: &str,
        lost: LostEnd,
        displaced: &Displaced,
    ) -> Result<Option<u64>, Error> {
        let sql = format!(
            "WITH {DURABLE}, ours AS (
                 SELECT it.stream FROM {streams} it, durable
                 WHERE it.stream = $1 AND it.last_seq = $3 AND ($2 < $3 OR it.event_seq IS DISTINCT FROM $8)
                 FOR UPDATE OF it
             ), named AS (
                 SELECT id FROM ({naming}) it, ours
                 WHERE stream_seq > $2 AND stream_seq <= $3 OR (id, stream_seq) IN ({DISPLACED})
             ), forgotten AS (
                 DELETE FROM {owed} w USING named WHERE w.id = named.id AND NOT w.parked
             ), taken AS (
                 UPDATE {outbox} o SET published_at = NULL, stream = NULL, stream_seq = NULL,
                     commit_lsn = NULL, publish_error = NULL, next_attempt_at = NULL
                 FROM named WHERE o.{id} = named.id AND o.stream = $1
                 RETURNING o.stream
             )
             UPDATE {streams} it SET last_seq = $2, lost_at = now(), lost = {lost_now},
                 lost_rows = (SELECT count(*) FROM taken), event_seq = $8, event_id = $9
             FROM ours WHERE it.stream = $1
             RETURNING (SELECT count(*) FROM taken)",
            lost_now = lost_now("$7"),
            naming = self.naming("$1", "$4"),
            id = self.table.column(Column::Id),
            outbox = self.table.quoted(),
            owed = self.table.companion("tailpost_owed"),
            streams = self.table.companion("tailpost_streams"),
        );
        let (end, until) = (lost.last_seq.cast_signed(), lost.acknowledged.cast_signed());
        let Displaced { ids, seqs, agrees } = displaced;
        let (agrees_seq, agrees_id) = columns_of(*agrees);
        let messages = lost.messages(displaced.len()).cast_signed();
        let since = lost.marked_since();
        let parameters: [&(dyn ToSql + Sync); 9] =
            [&stream, &end, &until, &since, ids, seqs, &messages, &agrees_seq, &agrees_id];
        let row = self.unless_kept(self.query_opt(TAKING_BACK, &sql, &parameters).await).await?;
        Ok(row.map(|row| row.get::<_, i64>(0).cast_unsigned()))
    }

    /// A row that keeps its mark, by a trigger or a constraint, would be published after newer events of
    /// its aggregate, or never: what comes next in the stream gets the sequence that it names. So nothing
    /// is published until it can be taken back.
    async fn unless_kept<T>(&self, taken: Result<T, Error>) -> Result<T, Error> {
        let error = match taken {
            Err(error) if error.may_be_about_a_row() => error,
            taken => return taken,
        };
        let parameters: [&(dyn ToSql + Sync); 2] = [&self.table.quoted(), &error.constraint()];
        let row = self.query_one(TAKING_BACK, KEEPS_MARKS, &parameters).await?;
        let (Some(refusal), Some(statement)) = (error.refusal(), row.get::<_, Option<String>>(0))
        else {
            return Err(error);
        };
        Err(Error::Unusable {
            problem: format!(
                "rows of messages that the stream has lost cannot be published again: {refusal}"
            ),
            fix: format!(
                "run `{statement}`, start again, and undo it once `tailpost status` says how many are"
            ),
        })
    }
}
