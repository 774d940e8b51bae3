//! The state row of a slot, and the slot itself.

use std::time::Duration;

use pgoutput::Lsn;
use tokio_postgres::Row;
use tokio_postgres::types::{PgLsn, ToSql};

use super::{Books, SlotReader, Store, mark};
use crate::engine::{NotedPlace, Place, ResolvedPlace, SlotHealth, SlotKnown, Watermark};
use crate::error::Error;

/// The state row: what the slot brings, and how far the log has been worked through.
#[derive(Debug, Clone)]
pub struct StateRow {
    /// The cluster's, in decimals.
    pub system_identifier: String,
    /// `None` while the slot is being created: it says nothing yet.
    pub start_snapshot: Option<String>,
    /// The slot's, counted from 1.
    pub epoch: i64,
    /// The log brings everything that `start_snapshot` says.
    pub is_trusted: bool,
    /// The latest one that was reached.
    pub watermark: Option<Watermark>,
    /// The latest one below which everything is marked.
    pub swept: Option<Watermark>,
    /// The slot is never confirmed beyond it.
    pub checkpoint: Option<Lsn>,
    /// What the slot does not bring is published.
    pub is_gap_filled: bool,
    pub(crate) resolved: Option<ResolvedPlace>,
    /// How long ago a scan looked at the whole table, and how long ago a sweep did; `None` if that is
    /// not recorded.
    pub(crate) scanned_ago: Option<Duration>,
    pub(crate) swept_ago: Option<Duration>,
    /// Events without a row may have been written since.
    pub(crate) takes_messages: bool,
}

impl StateRow {
    /// Beside the slot of the cluster with this identifier.
    pub(crate) fn known(&self, system_id: &str) -> SlotKnown {
        SlotKnown {
            is_of_this_cluster: self.system_identifier == system_id,
            is_trusted: self.is_trusted,
            checkpoint: self.checkpoint,
            start_snapshot: self.start_snapshot.clone(),
        }
    }

    /// Everything that committed before this is resolved. The slot, `confirmed` up to there, may say
    /// less after a crash of the server, which writes slots down only now and then; the watermark is
    /// in the log.
    pub(crate) fn resolved_before(&self, confirmed: Lsn) -> Lsn {
        self.watermark.as_ref().map_or(confirmed, |it| it.lsn.max(confirmed))
    }
}

/// Every transaction numbered before this had ended when the snapshot was taken.
pub(crate) fn oldest_running(watermark: &Watermark) -> Result<u64, Error> {
    let xmin = watermark.snapshot.split(':').next().and_then(|xmin| xmin.parse().ok());
    xmin.ok_or(Error::Stalled("the server's answer is no snapshot"))
}

impl Store {
    /// Writes down which entries of the publication are older than the slot. If that is lost, it is
    /// found out again: no standby is waited for.
    pub(crate) async fn note_publication(
        &self,
        slot: &str,
        entries: Option<String>,
    ) -> Result<(), Error> {
        let sql = format!(
            "WITH lazily AS (SELECT set_config('synchronous_commit', 'off', true))
             UPDATE {} SET publication_seen = $2 FROM lazily
             WHERE slot = $1 AND start_lsn IS NOT NULL",
            self.table.companion("tailpost_state")
        );
        self.perform("note the publication's age", &sql, &[&slot, &entries]).await
    }

    /// Says that the log does not bring every row that it should, or not in a form that can be read:
    /// the next session creates the slot anew and takes those rows from the table.
    pub(crate) async fn distrust_slot(&self, slot: &str) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {} SET start_lsn = NULL, updated_at = now() WHERE slot = $1",
            self.table.companion("tailpost_state")
        );
        self.perform("distrust the slot", &sql, &[&slot]).await
    }

    /// Where the log ends now.
    pub async fn log_end(&self) -> Result<Lsn, Error> {
        let sql = "SELECT pg_current_wal_insert_lsn()";
        let row = self.query_one("ask for the log's end", sql, &[]).await?;
        let end: PgLsn = row.get(0);
        Ok(Lsn(end.into()))
    }

    /// Writes down, in `column`, that the whole table was looked at just now.
    pub(crate) async fn note_look(&self, slot: &str, column: &str) -> Result<(), Error> {
        let state = self.table.companion("tailpost_state");
        let sql = format!("UPDATE {state} SET {column} = now() WHERE slot = $1");
        self.perform("write down that the table was looked at", &sql, &[&slot]).await
    }

    /// What the slot makes the server keep.
    pub(crate) async fn slot_health(&self, slot: &str) -> Result<SlotHealth, Error> {
        let sql = "SELECT wal_status, (pg_current_wal_lsn() - restart_lsn)::bigint,
                          (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint, safe_wal_size
                   FROM pg_replication_slots WHERE slot_name = $1";
        let row = self.query_opt("look at the slot", sql, &[&slot]).await?;
        let Some(row) = row else { return Ok(SlotHealth::default()) };
        let bytes =
            |at| row.get::<_, Option<i64>>(at).map_or(0, |it| u64::try_from(it).unwrap_or(0));
        Ok(SlotHealth {
            wal_status: row.get(0),
            retained_bytes: bytes(1),
            lag_bytes: bytes(2),
            safe_bytes: row.get(3),
        })
    }

    /// Says that the slot's relay takes events without a row: until then `outbox_emit_wal` refuses
    /// them. There must be a slot by now.
    pub async fn accept_wal_messages(&self, slot: &str) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {state} SET wal_prefix = $2, wal_seq = pg_get_serial_sequence($3, 'seq')
             WHERE slot = $1 AND (wal_prefix IS DISTINCT FROM $2
                 OR wal_seq IS DISTINCT FROM pg_get_serial_sequence($3, 'seq'))",
            state = self.table.companion("tailpost_state")
        );
        let (prefix, outbox) = (self.table.wal_prefix(), self.table.quoted());
        self.perform("say that messages are taken", &sql, &[&slot, &prefix, &outbox]).await
    }

    /// Says that it takes none any more. The slot may have some yet to bring, which `wal_seq` tells
    /// until they are forgotten.
    pub async fn refuse_wal_messages(&self, slot: &str) -> Result<(), Error> {
        self.take_no_wal_messages(slot, "wal_seq").await
    }

    /// The same, and that the slot has none to bring, or that they may be lost.
    pub(crate) async fn forget_wal_messages(&self, slot: &str) -> Result<(), Error> {
        self.take_no_wal_messages(slot, "NULL").await
    }

    async fn take_no_wal_messages(&self, slot: &str, wal_seq: &str) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {} SET wal_prefix = NULL, wal_seq = {wal_seq}
             WHERE slot = $1 AND (wal_prefix IS NOT NULL OR wal_seq IS DISTINCT FROM {wal_seq})",
            self.table.companion("tailpost_state")
        );
        self.perform("say that no messages are taken", &sql, &[&slot]).await
    }

    /// Says, before a slot is dropped on purpose, why.
    pub async fn announce_drop(&self, slot: &str, reason: &str) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {} SET epoch_reason = $2, epoch_at = NULL, updated_at = now() WHERE slot = $1",
            self.table.companion("tailpost_state")
        );
        self.perform("write down why the slot is dropped", &sql, &[&slot, &reason]).await
    }

    /// Says so if a slot that was just created brings everything that is to be published.
    pub(crate) async fn note_if_no_gap(&self, slot: &str) -> Result<bool, Error> {
        let sql = format!(
            "UPDATE {state} AS state SET gap_filled_at = now(), scanned_at = now()
             WHERE slot = $1 AND NOT EXISTS (
                 SELECT FROM {outbox} o WHERE published_at IS NULL
                     AND pg_visible_in_snapshot({transaction}, state.start_snapshot)
                     AND {not_published} AND {owned} AND {not_owed}
             )",
            state = self.table.companion("tailpost_state"),
            outbox = self.table.quoted(),
            transaction = mark::transaction("o"),
            not_published = mark::not_published(&self.table, "o"),
            not_owed = mark::not_owed(&self.table),
            owned = self.owned_rows("o")
        );
        self.execute("look for rows older than the slot", &sql, &[&slot]).await.map(|it| it > 0)
    }

    /// Whether everything that committed before `end` is resolved, as the slot says.
    pub async fn is_confirmed(&self, slot: &str, end: Lsn) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT FROM pg_replication_slots
                                  WHERE slot_name = $1 AND confirmed_flush_lsn >= $2)";
        Ok(self.query_one("look at the slot", sql, &[&slot, &PgLsn::from(end.0)]).await?.get(0))
    }

    /// Which process reads the slot.
    pub async fn slot_reader(&self, slot: &str) -> Result<Option<i32>, Error> {
        let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
        let row = self.query_opt("look at the slot", sql, &[&slot]).await?;
        Ok(row.and_then(|row| row.get(0)))
    }

    /// Whether that process is at work: it reads the log from where the slot begins, or what a large
    /// transaction did to other tables, and has nothing to send meanwhile.
    pub(super) async fn is_reader_at_work(&self, slot: &str) -> Result<bool, Error> {
        let sql = "SELECT FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid
             WHERE slot_name = $1 AND coalesce(wait_event_type, 'IO') IN ('IO', 'LWLock')";
        Ok(self.query_opt("look what the slot's reader does", sql, &[&slot]).await?.is_some())
    }

    /// The process that reads the slot, for people.
    pub(crate) async fn slot_reader_named(&self, slot: &str) -> Result<Option<String>, Error> {
        let sql = "SELECT 'process ' || active_pid || coalesce(' (' || application_name || ')', '')
                   FROM pg_replication_slots LEFT JOIN pg_stat_activity ON pid = active_pid
                   WHERE slot_name = $1";
        let row = self.query_opt("look at the slot", sql, &[&slot]).await?;
        Ok(row.and_then(|row| row.get(0)))
    }

    /// Whether there is such a slot of this database.
    pub async fn slot_exists(&self, slot: &str) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT FROM pg_replication_slots
                                  WHERE slot_name = $1 AND database = current_database())";
        Ok(self.query_one("look at the slot", sql, &[&slot]).await?.get(0))
    }

    /// One relay at a time decides what becomes of a slot. Released with the connection at the latest.
    pub async fn lock_slot(&self, slot: &str) -> Result<(), Error> {
        let sql = "SELECT pg_advisory_lock(hashtextextended('tailpost slot ' || $1, 0))";
        self.perform("lock the slot", sql, &[&slot]).await
    }

    /// The end of [`Self::lock_slot`].
    pub async fn unlock_slot(&self, slot: &str) -> Result<(), Error> {
        let sql = "SELECT pg_advisory_unlock(hashtextextended('tailpost slot ' || $1, 0))";
        self.perform("unlock the slot", sql, &[&slot]).await
    }

    /// Makes a slot that begins where another one is. Says where that is.
    pub async fn copy_slot(&self, from: &str, to: &str, temporary: bool) -> Result<Lsn, Error> {
        let sql = "SELECT lsn FROM pg_copy_logical_replication_slot($1, $2, $3)";
        let parameters: [&(dyn ToSql + Sync); 3] = [&from, &to, &temporary];
        let row = self.query_one("copy the replication slot", sql, &parameters).await?;
        Ok(row.get::<_, Option<PgLsn>>(0).map_or(Lsn::ZERO, |it| Lsn(it.into())))
    }

    /// Drops the slot, which no relay may be reading.
    pub async fn drop_slot(&self, slot: &str) -> Result<(), Error> {
        self.perform("drop the replication slot", "SELECT pg_drop_replication_slot($1)", &[&slot])
            .await
    }

    /// What is written down of the slot, if anything.
    pub async fn load_state(&self, slot: &str) -> Result<Option<StateRow>, Error> {
        let sql = format!(
            "SELECT system_identifier::text, start_snapshot::text, epoch,
                    watermark_snapshot::text, watermark_lsn, start_lsn IS NOT NULL,
                    checkpoint_lsn,
                    swept_snapshot::text, swept_lsn, gap_filled_at IS NOT NULL,
                    resolved_lsn, resolved_ordinal, resolved_stream_seq,
                    coalesce((extract(epoch FROM resolved_at - '2000-01-01Z') * 1000000)::bigint, 0),
                    extract(epoch FROM clock_timestamp() - scanned_at)::float8,
                    extract(epoch FROM clock_timestamp() - whole_swept_at)::float8,
                    wal_seq IS NOT NULL, resolved_rules
             FROM {} WHERE slot = $1",
            self.table.companion("tailpost_state")
        );
        let row = self.query_opt("read the relay's state", &sql, &[&slot]).await?;
        Ok(row.map(|row| StateRow {
            system_identifier: row.get(0),
            start_snapshot: row.get(1),
            epoch: row.get(2),
            is_trusted: row.get(5),
            watermark: watermark(&row, 3),
            swept: watermark(&row, 7),
            checkpoint: row.get::<_, Option<PgLsn>>(6).map(|lsn| Lsn(lsn.into())),
            is_gap_filled: row.get(9),
            resolved: resolved(&row),
            scanned_ago: age(&row, 14),
            swept_ago: age(&row, 15),
            takes_messages: row.get(16),
        }))
    }

    /// Says that a slot is about to be created: until [`begin_epoch`](Self::begin_epoch) nobody
    /// may rely on it. The last watermark stays, for the next attempt. `reason` says why, unless
    /// whoever dropped the slot has said so already.
    pub(crate) async fn announce_epoch(
        &self,
        slot: &str,
        system_identifier: &str,
        timeline: i32,
        reason: &str,
    ) -> Result<(), Error> {
        let sql = format!(
            "INSERT INTO {state} AS state
                 (slot, system_identifier, timeline, epoch, epoch_reason, updated_at)
             VALUES ($1, $2, $3, 0, $4, now())
             ON CONFLICT (slot) DO UPDATE SET start_snapshot = NULL, epoch_at = NULL,
                 epoch_reason = CASE WHEN state.epoch_at IS NULL AND state.epoch > 0
                     THEN coalesce(state.epoch_reason, $4) ELSE $4 END,
                 updated_at = now()",
            state = self.table.companion("tailpost_state")
        );
        let doing = "announce a new slot";
        self.perform(doing, &sql, &[&slot, &system_identifier, &timeline, &reason]).await
    }

    /// Stores what a new slot brings: the rows that are not visible in `start_snapshot`.
    pub(crate) async fn begin_epoch(
        &self,
        slot: &str,
        system_identifier: &str,
        timeline: i32,
        start_snapshot: &str,
        start_lsn: Lsn,
    ) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {state} SET system_identifier = $2, timeline = $3, epoch = epoch + 1,
                start_snapshot = $4::text::pg_snapshot, start_lsn = $5,
                checkpoint_lsn = $5,
                watermark_snapshot = NULL, watermark_lsn = NULL,
                swept_snapshot = $4::text::pg_snapshot, swept_lsn = $5,
                resolved_lsn = NULL, resolved_ordinal = NULL, resolved_stream_seq = NULL,
                epoch_at = now(), gap_rows = 0, gap_filled_at = NULL, updated_at = now(),
                scanned_at = NULL, whole_swept_at = now()
             WHERE slot = $1",
            state = self.table.companion("tailpost_state")
        );
        let lsn = PgLsn::from(start_lsn.0);
        let doing = "store the slot's start";
        self.perform(doing, &sql, &[&slot, &system_identifier, &timeline, &start_snapshot, &lsn])
            .await
    }
}

impl Books {
    /// Confirms what the replication connection could not confirm before it closed.
    pub(crate) async fn advance_slot(&self, slot: &str, to: Lsn) -> Result<(), Error> {
        let to = PgLsn::from(to.0);
        let sql = "SELECT pg_replication_slot_advance($1, $2)";
        self.0.perform("advance the slot", sql, &[&slot, &to]).await
    }

    /// Stores, durably, how far the slot may be confirmed: a slot that is created later begins behind it.
    /// `place` says up to where everything is resolved.
    ///
    /// Nothing is counted from a place while a scan works: it may have begun since that was decided.
    /// `rules` stand for what decides which events take a sequence.
    ///
    /// # Errors
    ///
    /// [`Error::SlotBusy`] if `reader` does not read the slot any more: nothing is written then.
    /// [`Error::Stalled`] if it does, and nothing is written all the same.
    pub(crate) async fn checkpoint(
        &self,
        reader: &SlotReader,
        at: Lsn,
        place: NotedPlace,
        rules: i64,
    ) -> Result<(), Error> {
        // Not waiting for synchronous standbys: they have no part in what the slot confirms.
        let sql = format!(
            "WITH durable AS (SELECT set_config('synchronous_commit', 'local', true))
             UPDATE {} SET checkpoint_lsn = $2, updated_at = now(),
                 resolved_lsn = coalesce($4, resolved_lsn),
                 resolved_ordinal = CASE WHEN $4 IS NULL THEN resolved_ordinal ELSE $5 END,
                 resolved_stream_seq = CASE WHEN $7 THEN resolved_stream_seq
                     WHEN gap_filled_at IS NOT NULL THEN $6 END,
                 resolved_rules = $8,
                 resolved_at = CASE WHEN $9 THEN resolved_at ELSE now() END
             FROM durable
             WHERE slot = $1 AND EXISTS (
                 SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active_pid = $3
             )",
            self.0.table.companion("tailpost_state")
        );
        let at = PgLsn::from(at.0);
        let is_kept = place == NotedPlace::Kept;
        let is_unchanged = is_kept || place == NotedPlace::Unchanged;
        let place = match place {
            NotedPlace::At(place) => Some(place),
            NotedPlace::Unchanged | NotedPlace::Kept | NotedPlace::Uncounted => None,
        };
        let lsn = place.map(|it| PgLsn::from(it.commit_lsn.0));
        let ordinal = place.map(|it| i64::from(it.ordinal));
        let seq = place.and_then(|it| it.seq).map(u64::cast_signed);
        let SlotReader { slot, pid } = reader;
        let parameters: [&(dyn ToSql + Sync); 9] =
            [slot, &at, pid, &lsn, &ordinal, &seq, &is_unchanged, &rules, &is_kept];
        match self.0.execute("store the checkpoint", &sql, &parameters).await? {
            0 if self.slot_reader(slot).await? == Some(*pid) => Err(Error::Stalled(
                "tailpost_state keeps no update: a trigger or a rule of it, which `tailpost doctor` \
                 names, or its row is gone",
            )),
            0 => Err(Error::SlotBusy { slot: slot.clone() }),
            _ => Ok(()),
        }
    }

    /// The scanner found something. A crash may leave it published and not marked; the next session
    /// finds it in the stream's tail as long as nothing else is published before it has looked.
    pub(crate) async fn gap_opened(&self, slot: &str) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {} SET gap_filled_at = NULL, resolved_stream_seq = NULL, updated_at = now()
             WHERE slot = $1",
            self.0.table.companion("tailpost_state")
        );
        self.0.perform("write down that there is a gap", &sql, &[&slot]).await
    }

    /// The scanner found nothing more: what the slot could not bring when it was created is
    /// published, and marked. Counts the `rows` that were. Nothing is written if `reader` does not
    /// read the slot any more: who does may have found something since.
    pub(crate) async fn gap_filled(&self, slot: &str, reader: i32, rows: u64) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {} SET gap_rows = coalesce(gap_rows, 0) + $2, gap_filled_at = now(),
                 resolved_stream_seq = NULL, updated_at = now()
             WHERE slot = $1 AND gap_filled_at IS NULL AND EXISTS (
                 SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active_pid = $3
             )",
            self.0.table.companion("tailpost_state")
        );
        let doing = "write down that the gap is filled";
        self.0.perform(doing, &sql, &[&slot, &rows.cast_signed(), &reader]).await
    }
}

fn age(row: &Row, at: usize) -> Option<Duration> {
    // Clocks may be set back.
    row.get::<_, Option<f64>>(at).and_then(|it| Duration::try_from_secs_f64(it.max(0.0)).ok())
}

fn resolved(row: &Row) -> Option<ResolvedPlace> {
    let commit_lsn = Lsn(row.get::<_, Option<PgLsn>>(10)?.into());
    let ordinal = u32::try_from(row.get::<_, Option<i64>>(11)?).ok()?;
    // While the scanner may owe something, its messages may be in between.
    let seq = row.get::<_, Option<i64>>(12).filter(|_| row.get(9)).map(i64::cast_unsigned);
    let place = Place { commit_lsn, ordinal, seq };
    Some(ResolvedPlace { place, at_micros: row.get(13), rules: row.get(17) })
}

fn watermark(row: &Row, at: usize) -> Option<Watermark> {
    let snapshot = row.get::<_, Option<String>>(at)?;
    let lsn = row.get::<_, Option<PgLsn>>(at + 1)?;
    Some(Watermark { snapshot, lsn: Lsn(lsn.into()) })
}
