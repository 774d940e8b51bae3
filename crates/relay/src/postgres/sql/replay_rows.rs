//! What a session reads and writes of a replay.

use std::collections::HashMap;

use jiff::Timestamp;
use outbox::Column;
use outbox::wire::Position;
use pgoutput::Lsn;
use tokio_postgres::binary_copy::BinaryCopyOutStream;
use tokio_postgres::types::{PgLsn, Type};
use uuid::Uuid;

use super::scan::take_rows;
use super::{Books, ScannedRow, SlotReader, Store};
use crate::engine::{Outgoing, ReplayNote, ReplayWish};
use crate::error::Error;
use crate::nats::History;
use crate::postgres::rows::scanned_columns;
use crate::replay_selection::{ReplaySelection, ReplaySource};

const READING: &str = "read what is to be replayed";

/// Whether a replay's list is complete, if it has one.
const IS_LISTED: &str = "(source <> 'table' OR events IS NOT NULL)";

/// A replay that a session has taken up.
#[derive(Debug, Clone)]
pub(crate) struct TakenReplay {
    pub(crate) id: Uuid,
    pub(crate) source: ReplaySource,
    pub(crate) selection: ReplaySelection,
    pub(crate) subject_prefix: Option<String>,
    pub(crate) per_second: Option<u32>,
    /// Everything up to here is done.
    pub(crate) place: i64,
    pub(crate) last_place: i64,
    pub(crate) published: u64,
    /// The last copy that was noted.
    pub(crate) stream_seq: u64,
    /// Where the rewind slot was when it was asked for.
    pub(crate) log_from: Option<Lsn>,
}

impl TakenReplay {
    /// Whether reading the log from there on brings the same events that were counted from where it
    /// was kept when the replay was asked for.
    pub(crate) fn can_read_from(&self, first: Lsn) -> bool {
        let Some(promised) = self.log_from else { return true };
        let begins_behind = |from: Lsn| promised <= first && first <= from;
        first == promised || self.selection.from_lsn.is_some_and(begins_behind)
    }

    /// The event as this replay publishes it.
    pub(crate) fn readdressed(
        &self,
        mut outgoing: Outgoing,
        position: Option<Position>,
    ) -> Outgoing {
        if let (Some(prefix), Ok(subject)) = (&self.subject_prefix, &mut outgoing.subject) {
            *subject = format!("{prefix}.{subject}");
        }
        outgoing.replayed(self.id, position)
    }
}

/// A row that is to be published again.
pub(crate) struct ReplayedRow {
    row: ScannedRow,
}

impl ReplayedRow {
    /// What [`Rows::scanned`](crate::postgres::Rows::scanned) takes, if there is a row.
    pub(crate) fn scanned(&self) -> Result<Option<&ScannedRow>, Error> {
        let is_gone: bool = self.behind(4)?;
        Ok((!is_gone).then_some(&self.row))
    }

    pub(crate) fn place(&self) -> Result<i64, Error> {
        self.behind(0)
    }

    pub(crate) fn event(&self) -> Result<Uuid, Error> {
        self.behind(1)
    }

    /// Where the event came in the log, if that is known.
    pub(crate) fn position(&self, history: History) -> Result<Option<Position>, Error> {
        let History { system_id, timeline } = history;
        let (lsn, ordinal): (Option<PgLsn>, Option<i32>) = (self.behind(2)?, self.behind(3)?);
        Ok(lsn.map(|lsn| {
            let ordinal = ordinal.and_then(|it| u32::try_from(it).ok()).unwrap_or(0);
            Position { system_id, timeline, lsn: lsn.into(), ordinal }
        }))
    }

    /// One of the values behind those of a scanned row.
    fn behind<T: tokio_postgres::types::FromSqlOwned>(&self, at: usize) -> Result<T, Error> {
        self.row.try_get(Column::ALL.len() + 4 + at).map_err(Error::sql(READING))
    }
}

impl Books {
    /// The replay that is to be taken up next; one that is under way first.
    pub(crate) async fn next_replay(
        &self,
        slot: &str,
        stream: &str,
    ) -> Result<Option<Uuid>, Error> {
        let sql = format!(
            "SELECT id FROM {} WHERE slot = $1 AND stream = $2 AND status IN ('asked', 'running')
                 AND {IS_LISTED}
             ORDER BY status = 'running' DESC, asked_at, id LIMIT 1",
            self.0.table.companion("tailpost_replays")
        );
        let row = self.0.query_opt("look for a replay", &sql, &[&slot, &stream]).await?;
        Ok(row.map(|it| it.get(0)))
    }
}

impl Store {
    /// Takes a replay up. From then on nothing that is written down of the stream's sequence says
    /// how many of the log's events it has. `None` if there is no such replay to take up any more, or
    /// another relay has the slot.
    pub(crate) async fn take_replay(
        &self,
        reader: &SlotReader,
        id: Uuid,
        last_sequence: u64,
    ) -> Result<Option<TakenReplay>, Error> {
        let sql = format!(
            "WITH taken AS (
                 UPDATE {replays} SET status = 'running', started_at = coalesce(started_at, now()),
                     stream_seq = CASE WHEN started_at IS NULL THEN $3 ELSE stream_seq END
                 WHERE id = $1 AND slot = $2 AND status IN ('asked', 'running') AND {IS_LISTED}
                     AND EXISTS (
                     SELECT FROM pg_replication_slots WHERE slot_name = $2 AND active_pid = $4
                 ) RETURNING *
             ), forgotten AS (
                 UPDATE {state} SET resolved_stream_seq = NULL, updated_at = now()
                 WHERE slot = $2 AND EXISTS (SELECT FROM taken)
             )
             SELECT source, from_lsn, to_lsn, since, until, coalesce(event_ids, '{{}}'),
                 aggregate_type, aggregate_id, event_type, subject_prefix, per_second,
                 greatest(place, first_place - 1), last_place, published, stream_seq, log_from
             FROM taken",
            replays = self.table.companion("tailpost_replays"),
            state = self.table.companion("tailpost_state"),
        );
        let SlotReader { slot, pid } = reader;
        let last = last_sequence.cast_signed();
        let row = self.query_opt("take a replay up", &sql, &[&id, slot, &last, pid]).await?;
        let Some(row) = row else { return Ok(None) };
        let lsn = |at| row.get::<_, Option<PgLsn>>(at).map(|it| Lsn(it.into()));
        let time =
            |at| row.try_get::<_, Option<Timestamp>>(at).map_err(Error::sql("take a replay up"));
        let selection = ReplaySelection {
            from_lsn: lsn(1),
            to_lsn: lsn(2),
            since: time(3)?,
            until: time(4)?,
            events: row.get(5),
            aggregate: row.get::<_, Option<String>>(6).zip(row.get(7)),
            event_type: row.get::<_, Option<&str>>(8).and_then(|it| it.parse().ok()),
        };
        let count = |at| row.get::<_, i64>(at).max(0).cast_unsigned();
        Ok(Some(TakenReplay {
            id,
            source: ReplaySource::of_name(row.get(0)),
            selection,
            subject_prefix: row.get(9),
            per_second: row.get::<_, Option<i32>>(10).and_then(|it| u32::try_from(it).ok()),
            place: row.get(11),
            last_place: row.get(12),
            published: count(13),
            stream_seq: count(14),
            log_from: lsn(15),
        }))
    }

    /// For the connection: of a list that was never analysed a bitmap scan visits all that is left,
    /// for each page.
    pub(crate) async fn read_lists_in_order(&self) -> Result<(), Error> {
        self.batch_execute(READING, "SET enable_bitmapscan = off").await
    }

    /// The rows behind `after`, in the order in which they are to be published, until they are
    /// `rows_max` or hold `bytes_max`; and whether there are no more.
    pub(crate) async fn replayed_rows(
        &self,
        id: Uuid,
        after: i64,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<(Vec<ReplayedRow>, bool), Error> {
        let outbox = self.table.quoted();
        let types = self.types(&outbox).await?;
        let (columns, mut column_types) = scanned_columns(&self.table, &types)?;
        column_types.extend([Type::INT8, Type::UUID, Type::PG_LSN, Type::INT4, Type::BOOL]);
        // Names that no column of the outbox has. COPY takes no parameters.
        let sql = format!(
            "COPY (SELECT {columns}, \"tailpost place\", \"tailpost event\", \"tailpost lsn\",
                       \"tailpost ordinal\", o.{row_id} IS NULL
                   FROM (SELECT place AS \"tailpost place\", event AS \"tailpost event\",
                             commit_lsn AS \"tailpost lsn\", ordinal AS \"tailpost ordinal\"
                         FROM {listed} WHERE replay = '{id}' AND place > {after}
                         ORDER BY place LIMIT {rows_max}) AS listed
                   LEFT JOIN {outbox} o ON o.{row_id} = \"tailpost event\"
                   ORDER BY \"tailpost place\") TO STDOUT (FORMAT binary)",
            row_id = self.table.column(Column::Id),
            listed = self.table.companion("tailpost_replay_events"),
        );
        let copied = self.client().copy_out(&sql).await.map_err(Error::sql(READING))?;
        let mut rows = Box::pin(BinaryCopyOutStream::new(copied, &column_types));
        let (rows, is_end) = take_rows(READING, &mut rows, rows_max, bytes_max).await?;
        Ok((rows.into_iter().map(|row| ReplayedRow { row }).collect(), is_end))
    }

    /// Those of the events that were parked at some time, and why the log's copies of them are not to be
    /// published: it has them at the places, and with the payloads, that they had before.
    pub(crate) async fn once_parked(
        &self,
        events: &[Uuid],
    ) -> Result<HashMap<Uuid, &'static str>, Error> {
        let sql = format!(
            "SELECT id, true FROM {dead} WHERE id = ANY ($1)
             UNION ALL
             SELECT DISTINCT event_id, false FROM {audit} a WHERE event_id = ANY ($1)
                 AND NOT EXISTS (SELECT FROM {dead} d WHERE d.id = a.event_id)",
            dead = self.table.companion("outbox_dead_letter"),
            audit = self.table.companion("outbox_dead_letter_audit"),
        );
        let rows = self.query(READING, &sql, &[&events]).await?;
        let why = |is_dead| match is_dead {
            true => "it is a dead letter: it was not published from the log",
            false => "it was a dead letter: it was not published from the log",
        };
        Ok(rows.iter().map(|row| (row.get(0), why(row.get(1)))).collect())
    }

    /// Writes down how far a replay is. Says what operators want of it by now; rest, if it is not
    /// this session's any more.
    pub(crate) async fn note_replay(
        &self,
        reader: &SlotReader,
        note: &ReplayNote,
    ) -> Result<ReplayWish, Error> {
        let sql = format!(
            "WITH noted AS (
                 UPDATE {replays} SET place = greatest(place, $3), published = $4, noted_at = now(),
                     stream_seq = greatest(stream_seq, $5),
                     waits_for = $12,
                     status = CASE WHEN $6 AND status = 'running' THEN 'done'
                                   WHEN $11::text IS NOT NULL AND status = 'running' THEN 'paused'
                                   ELSE status END,
                     decisions = CASE WHEN $11 IS NOT NULL AND status = 'running' THEN decisions ||
                         jsonb_build_array(jsonb_build_object('at', now(), 'decision', 'pause',
                             'by', 'the relay', 'why', $11)) ELSE decisions END,
                     ended_at = CASE WHEN $6 AND status = 'running' THEN now() ELSE ended_at END
                 WHERE id = $1 AND slot = $2 AND status IN ('running', 'paused', 'cancelled')
                     AND EXISTS (SELECT FROM pg_replication_slots
                                 WHERE slot_name = $2 AND active_pid = $7)
                 RETURNING status
             ), problems AS (
                 INSERT INTO {listed} (replay, place, event, problem)
                 SELECT $1, u.place, u.event, u.problem
                 FROM unnest($8::bigint[], $9::uuid[], $10::text[]) AS u (place, event, problem)
                 WHERE EXISTS (SELECT FROM noted)
                 ON CONFLICT (replay, place) DO UPDATE SET problem = excluded.problem
             ), gone AS (
                 DELETE FROM {listed} WHERE replay = $1 AND place <= $3 AND problem IS NULL
                     AND place > (SELECT r.place FROM {replays} r WHERE r.id = $1)
                     AND place <> ALL ($8) AND EXISTS (SELECT FROM noted)
             )
             SELECT status FROM noted",
            replays = self.table.companion("tailpost_replays"),
            listed = self.table.companion("tailpost_replay_events"),
        );
        let SlotReader { slot, pid } = reader;
        let ReplayNote { id, place, published, seq, problems, is_done, waits_for, gives_up } = note;
        let places: Vec<i64> = problems.iter().map(|it| it.place).collect();
        let events: Vec<Uuid> = problems.iter().map(|it| it.event).collect();
        let reasons: Vec<&str> = problems.iter().map(|it| it.reason.as_str()).collect();
        let (published, seq) = (published.cast_signed(), seq.cast_signed());
        let row = self
            .query_opt(
                "write down how far a replay is",
                &sql,
                &[
                    id, slot, place, &published, &seq, is_done, pid, &places, &events, &reasons,
                    gives_up, waits_for,
                ],
            )
            .await?;
        Ok(match row.as_ref().map(|it| it.get(0)) {
            Some("running") => ReplayWish::GoOn,
            _ => ReplayWish::Rest,
        })
    }

    /// Writes down which cluster's positions the table has from now on.
    pub(crate) async fn note_epoch(&self, system_id: u64, timeline: u32) -> Result<(), Error> {
        // A session opens, and goes on, also while a synchronous standby is away.
        let sql = format!(
            "BEGIN; SET LOCAL synchronous_commit = local;
             INSERT INTO {epochs} (system_identifier, timeline)
             SELECT '{system_id}', {timeline} WHERE NOT EXISTS (
                 SELECT FROM {epochs}
                 WHERE system_identifier = '{system_id}' AND timeline = {timeline})
             ON CONFLICT DO NOTHING;
             COMMIT",
            epochs = self.table.companion("tailpost_epochs")
        );
        self.batch_execute("write down the cluster", &sql).await
    }

    /// Which of the clusters and timelines that the table has been in this is, from 1.
    pub(crate) async fn number_epoch(&self, system_id: u64, timeline: u32) -> Result<u32, Error> {
        self.note_epoch(system_id, timeline).await?;
        let sql = format!(
            "SELECT count(*) FROM {epochs} AS it, {epochs} AS own
             WHERE own.system_identifier = '{system_id}' AND own.timeline = {timeline}
                 AND it.began_at <= own.began_at",
            epochs = self.table.companion("tailpost_epochs")
        );
        let number: i64 = self.query_one("number the cluster", &sql, &[]).await?.get(0);
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }
}
