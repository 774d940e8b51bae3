//! The slot that trails behind, so that the log can be read again.

use std::time::Duration;

use jiff::Timestamp;
use pgoutput::Lsn;
use tokio_postgres::types::PgLsn;

use super::Store;
use crate::error::Error;

const LOOKING: &str = "look at the rewind slot";

/// How much of the log the slot passes in one statement, at most.
const STEP_BYTES: u64 = 256 << 20;

/// The rewind slot, beside the relay's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RewindSlot {
    /// It brings what committed there or later.
    pub(crate) confirmed: Lsn,
    /// Its log is gone, or about to go.
    pub(crate) is_lost: bool,
    /// When its oldest part was written, as far as it is known.
    pub(crate) from: Option<Timestamp>,
}

impl Store {
    /// The rewind slot `name` of `slot`, if there is one.
    pub(crate) async fn rewind_slot(
        &self,
        slot: &str,
        name: &str,
    ) -> Result<Option<RewindSlot>, Error> {
        let sql = format!(
            "SELECT confirmed_flush_lsn, wal_status IN ('unreserved', 'lost'),
                 (SELECT min(at) FROM {marks} m WHERE m.slot = $1 AND m.lsn >= s.confirmed_flush_lsn)
             FROM pg_replication_slots s
             WHERE slot_name = $2 AND database = current_database()",
            marks = self.table.companion("tailpost_rewind_marks")
        );
        let row = self.client().query_opt(&sql, &[&slot, &name]).await;
        Ok(row.map_err(Error::sql(LOOKING))?.map(|row| RewindSlot {
            confirmed: row.get::<_, Option<PgLsn>>(0).map_or(Lsn::ZERO, |it| Lsn(it.into())),
            is_lost: row.get::<_, Option<bool>>(1).unwrap_or(false),
            from: row.get(2),
        }))
    }

    /// One process at a time looks after a rewind slot: as long as this connection lasts.
    pub(crate) async fn try_lock_rewind(&self, slot: &str) -> Result<bool, Error> {
        let sql = "SELECT pg_try_advisory_lock(hashtextextended('tailpost rewind ' || $1, 0))";
        let row = self.client().query_one(sql, &[&slot]).await;
        row.map(|it| it.get(0)).map_err(Error::sql(LOOKING))
    }

    /// Makes a slot that begins where another one is.
    pub(crate) async fn copy_slot(
        &self,
        from: &str,
        to: &str,
        temporary: bool,
    ) -> Result<(), Error> {
        let sql = "SELECT pg_copy_logical_replication_slot($1, $2, $3)";
        let copied = self.client().execute(sql, &[&from, &to, &temporary]).await;
        copied.map_err(Error::sql("copy the replication slot")).map(|_| ())
    }

    /// Moves the rewind slot on, as far as it keeps too much or what is too old; not while a replay
    /// reads from it, and never beyond the relay's own slot.
    pub(crate) async fn trail(
        &self,
        slot: &str,
        name: &str,
        retain: u64,
        max_age: Duration,
    ) -> Result<(), Error> {
        let marks = self.table.companion("tailpost_rewind_marks");
        let mark = format!(
            "INSERT INTO {marks} (slot, lsn) SELECT $1, pg_current_wal_insert_lsn()
             WHERE NOT EXISTS (SELECT FROM {marks}
                               WHERE slot = $1 AND at > now() - interval '1 minute')"
        );
        self.client().execute(&mark, &[&slot]).await.map_err(Error::sql(LOOKING))?;
        let sql = format!(
            "SELECT pg_current_wal_lsn(), own.confirmed_flush_lsn, rewind.confirmed_flush_lsn,
                 (SELECT max(lsn) FROM {marks} WHERE slot = $1
                      AND at < now() - make_interval(secs => $3)),
                 EXISTS (SELECT FROM {replays} WHERE slot = $1 AND source = 'wal'
                             AND status IN ('asked', 'running', 'paused'))
             FROM pg_replication_slots own, pg_replication_slots rewind
             WHERE own.slot_name = $1 AND rewind.slot_name = $2",
            replays = self.table.companion("tailpost_replays")
        );
        let row = self.client().query_opt(&sql, &[&slot, &name, &max_age.as_secs_f64()]).await;
        let Some(row) = row.map_err(Error::sql(LOOKING))? else { return Ok(()) };
        let lsn = |at| row.get::<_, Option<PgLsn>>(at).map_or(0, u64::from);
        let (end, own, rewind, old) = (lsn(0), lsn(1), lsn(2), lsn(3));
        let target = end.saturating_sub(retain).max(old).min(own).min(rewind + STEP_BYTES);
        if row.get::<_, bool>(4) || target <= rewind {
            return Ok(());
        }
        let advance = "SELECT pg_replication_slot_advance($1, $2)";
        let advanced = self.client().execute(advance, &[&name, &PgLsn::from(target)]).await;
        advanced.map_err(Error::sql("advance the rewind slot"))?;
        let forget = format!(
            "DELETE FROM {marks} WHERE slot = $1 AND lsn < (
                 SELECT max(m.lsn) FROM {marks} m WHERE m.slot = $1 AND m.lsn <= $2)"
        );
        let forgotten = self.client().execute(&forget, &[&slot, &PgLsn::from(target)]).await;
        forgotten.map_err(Error::sql(LOOKING)).map(|_| ())
    }
}
