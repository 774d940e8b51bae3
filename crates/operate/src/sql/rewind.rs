//! The slot that trails behind, so that the log can be read again.

use std::time::Duration;

use jiff::Timestamp;
use pgoutput::Lsn;
use relay::Error;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tokio_postgres::types::PgLsn;
use uuid::Uuid;

use super::Store;

const LOOKING: &str = "look at the rewind slot";
/// What is done while the slot moves.
pub(crate) const ADVANCING: &str = "advance the rewind slot";
const NOTING: &str = "note what became of the rewind slot";

/// How much of the log the slot passes in one statement, at most.
const STEP_BYTES: u64 = 256 << 20;

/// How long such a statement may take. It reads the log from where the oldest transaction began that
/// was open then.
const STEP_TIMEOUT: &str = "5min";

/// The rewind slot, beside the relay's own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct RewindSlot {
    /// It brings what committed there or later.
    #[serde(deserialize_with = "lsn")]
    pub(crate) confirmed: Lsn,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub(crate) wal_status: Option<String>,
    /// What committed then or later is in it, as far as a time is known.
    pub(crate) from: Option<Timestamp>,
    /// Bytes of log that it keeps,
    pub(crate) retained_bytes: u64,
    /// and how many of them the relay's own slot does not keep.
    pub(crate) extra_bytes: u64,
}

impl RewindSlot {
    /// Whether its log is gone, or goes with the next checkpoint.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.wal_status.as_deref(), Some("unreserved" | "lost"))
    }
}

/// What is known of a rewind slot whether it is there or not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RewindNotes {
    /// The replay that reads it. Until that ends it does not move.
    pub held_by: Option<Uuid>,
    /// How much of the log PostgreSQL keeps for a slot (`max_slot_wal_keep_size`); `None` if it has no
    /// limit.
    pub keep_max_bytes: Option<u64>,
    /// How often it was made.
    pub made: u64,
    /// When it was made, the last time.
    pub made_at: Option<Timestamp>,
    /// Why.
    pub made_because: Option<String>,
    /// Why it cannot be kept, if so.
    pub failure: Option<String>,
    /// Since when.
    pub failed_at: Option<Timestamp>,
}

/// What there is of a rewind slot.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(crate) struct RewindReading {
    /// It is there, and the relay's.
    pub(crate) slot: Option<RewindSlot>,
    /// There is a slot of that name which no relay made.
    pub(crate) is_others: bool,
    /// The relay's own slot is there, and keeps what it has to.
    pub(crate) has_source: bool,
    /// What else is known of it.
    #[serde(flatten)]
    pub(crate) notes: RewindNotes,
    /// How often in a row PostgreSQL gave it up soon after it was made,
    pub(crate) losses: u32,
    /// and how many seconds ago, if it was not made since.
    pub(crate) lost_for: Option<f64>,
}

impl Store {
    /// What there is of the rewind slot `name` of `slot`.
    pub(crate) async fn rewind_slot(&self, slot: &str, name: &str) -> Result<RewindReading, Error> {
        let sql = format!(
            "SELECT CASE WHEN judged.is_ours THEN jsonb_build_object(
                     'confirmed', coalesce(s.confirmed_flush_lsn, '0/0'),
                     'wal_status', s.wal_status,
                     'from', (SELECT min(at) FROM {marks} m
                              WHERE m.slot = $1 AND m.lsn >= s.confirmed_flush_lsn),
                     'retained_bytes', greatest(pg_current_wal_lsn() - s.restart_lsn, 0)::bigint,
                     'extra_bytes', greatest(own.restart_lsn - s.restart_lsn, 0)::bigint) END AS slot,
                 s.slot_name IS NOT NULL AND NOT judged.is_ours AS is_others,
                 coalesce(own.wal_status IN ('reserved', 'extended'), false) AS has_source,
                 (SELECT id FROM {replays} WHERE slot = $1 AND source = 'wal'
                      AND status IN ('asked', 'running', 'paused') LIMIT 1) AS held_by,
                 coalesce(r.made, 0) AS made, r.made_at, r.made_because,
                 coalesce(r.losses, 0) AS losses,
                 CASE WHEN r.lost_at >= coalesce(r.made_at, r.lost_at) THEN
                     greatest(extract(epoch FROM clock_timestamp() - r.lost_at), 0)::float8
                 END AS lost_for,
                 r.failure, r.failed_at,
                 (SELECT nullif(setting::bigint, -1) << 20 FROM pg_settings
                  WHERE name = 'max_slot_wal_keep_size') AS keep_max_bytes
             FROM (SELECT) AS one
             LEFT JOIN pg_replication_slots s ON s.slot_name = $2
             LEFT JOIN pg_replication_slots own
                 ON own.slot_name = $1 AND own.database = current_database()
             LEFT JOIN {rewind} r ON r.slot = $1
             CROSS JOIN LATERAL (SELECT coalesce(r.is_ours AND s.plugin = 'pgoutput'
                 AND s.database = current_database(), false) AS is_ours) AS judged",
            marks = self.table.companion("tailpost_rewind_marks"),
            replays = self.table.companion("tailpost_replays"),
            rewind = self.table.companion("tailpost_rewind"),
        );
        let reading = self.read(LOOKING, &sql, &[&slot, &name]).await?.pop();
        reading.ok_or(Error::Stalled("the server gave no answer"))
    }

    /// One process at a time looks after a rewind slot.
    pub(crate) async fn try_lock_rewind(&self, slot: &str) -> Result<bool, Error> {
        let sql = "SELECT pg_try_advisory_lock(hashtextextended('tailpost rewind ' || $1, 0))";
        Ok(self.query_one(LOOKING, sql, &[&slot]).await?.get(0))
    }

    /// A process that is stopped for long blocks no other.
    pub(crate) async fn unlock_rewind(&self, slot: &str) -> Result<(), Error> {
        let sql = "SELECT pg_advisory_unlock(hashtextextended('tailpost rewind ' || $1, 0))";
        self.perform(LOOKING, sql, &[&slot]).await
    }

    /// Makes the rewind slot where the relay's own is, and writes down why. First that it is ours:
    /// a process that is killed between the two leaves no slot without an owner.
    pub(crate) async fn make_rewind(
        &self,
        slot: &str,
        name: &str,
        because: &str,
    ) -> Result<(), Error> {
        // What is known of times is another slot's, or another cluster's.
        let sql = format!(
            "WITH forgotten AS (DELETE FROM {marks} WHERE slot = $1)
             INSERT INTO {rewind} (slot, is_ours) VALUES ($1, true)
             ON CONFLICT (slot) DO UPDATE SET is_ours = true",
            marks = self.table.companion("tailpost_rewind_marks"),
            rewind = self.table.companion("tailpost_rewind"),
        );
        self.execute(NOTING, &sql, &[&slot]).await?;
        self.copy_slot(slot, name, false).await?;
        let sql = format!(
            "UPDATE {} SET made = made + 1, made_at = clock_timestamp(), made_because = $2
             WHERE slot = $1",
            self.table.companion("tailpost_rewind")
        );
        self.perform(NOTING, &sql, &[&slot, &because]).await
    }

    /// Drops a rewind slot whose log is gone, and writes down when that was.
    pub(crate) async fn drop_lost_rewind(&self, slot: &str, name: &str) -> Result<(), Error> {
        self.drop_slot(name).await?;
        let sql = format!(
            "UPDATE {} SET lost_at = clock_timestamp(),
                 losses = CASE WHEN made_at > clock_timestamp() - interval '1 hour'
                               THEN losses + 1 ELSE 1 END
             WHERE slot = $1",
            self.table.companion("tailpost_rewind")
        );
        self.perform(NOTING, &sql, &[&slot]).await
    }

    /// There is to be no rewind slot any more.
    pub(crate) async fn forget_rewind(&self, slot: &str) -> Result<(), Error> {
        let sql = format!(
            "WITH forgotten AS (DELETE FROM {marks} WHERE slot = $1)
             DELETE FROM {rewind} WHERE slot = $1",
            marks = self.table.companion("tailpost_rewind_marks"),
            rewind = self.table.companion("tailpost_rewind"),
        );
        self.perform(NOTING, &sql, &[&slot]).await
    }

    /// Writes down why the rewind slot cannot be kept; `None` if it can.
    pub(crate) async fn note_rewind_failure(
        &self,
        slot: &str,
        why: Option<&str>,
    ) -> Result<(), Error> {
        let sql = format!(
            "INSERT INTO {rewind} AS r (slot, failure, failed_at)
             SELECT $1, $2, CASE WHEN $2::text IS NOT NULL THEN now() END
             WHERE $2::text IS NOT NULL OR EXISTS (
                 SELECT FROM {rewind} WHERE slot = $1 AND failure IS NOT NULL)
             ON CONFLICT (slot) DO UPDATE
             SET failure = excluded.failure, failed_at = excluded.failed_at
             WHERE r.failure IS DISTINCT FROM excluded.failure",
            rewind = self.table.companion("tailpost_rewind"),
        );
        self.perform(NOTING, &sql, &[&slot, &why]).await
    }

    /// Moves the rewind slot on, as far as it keeps too much or what is too old; not while a replay
    /// reads from it, and never beyond the relay's own slot. Says whether it still keeps too much.
    pub(crate) async fn trail(
        &self,
        slot: &str,
        name: &str,
        retain: u64,
        max_age: Duration,
    ) -> Result<bool, Error> {
        let marks = self.table.companion("tailpost_rewind_marks");
        // The time is read behind the position: whatever commits later is behind the position. A mark
        // from before the clock was put back prevents no other one.
        let mark = format!(
            "INSERT INTO {marks} (slot, lsn, at)
             SELECT $1, end_of_log.lsn, clock_timestamp()
             FROM (SELECT pg_current_wal_insert_lsn() AS lsn OFFSET 0) AS end_of_log
             WHERE NOT EXISTS (SELECT FROM {marks} WHERE slot = $1
                                   AND at BETWEEN now() - interval '1 minute' AND now())
             ON CONFLICT DO NOTHING"
        );
        self.execute(LOOKING, &mark, &[&slot]).await?;
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
        let max_age = max_age.as_secs_f64();
        let row = self.query_opt(LOOKING, &sql, &[&slot, &name, &max_age]).await?;
        let Some(row) = row else { return Ok(false) };
        let lsn = |at| row.get::<_, Option<PgLsn>>(at).map_or(0, u64::from);
        let (end, own, rewind, old) = (lsn(0), lsn(1), lsn(2), lsn(3));
        let wanted = end.saturating_sub(retain).max(old).min(own);
        let target = wanted.min(rewind + STEP_BYTES);
        if row.get::<_, bool>(4) || target <= rewind {
            return Ok(false);
        }
        self.advance_rewind(name, target).await?;
        let forget = format!(
            "DELETE FROM {marks} WHERE slot = $1 AND lsn < (
                 SELECT max(m.lsn) FROM {marks} m WHERE m.slot = $1 AND m.lsn <= $2)"
        );
        self.execute(LOOKING, &forget, &[&slot, &PgLsn::from(target)]).await?;
        Ok(target < wanted)
    }

    async fn advance_rewind(&self, name: &str, target: u64) -> Result<(), Error> {
        let doing = ADVANCING;
        // On an error the connection is given up, and the transaction with it.
        let begin = format!("BEGIN; SET LOCAL statement_timeout = '{STEP_TIMEOUT}'");
        self.batch_execute(doing, &begin).await?;
        let advance = "SELECT pg_replication_slot_advance($1, $2)";
        self.execute(doing, advance, &[&name, &PgLsn::from(target)]).await?;
        self.batch_execute(doing, "COMMIT").await
    }
}

fn lsn<'de, D: Deserializer<'de>>(text: D) -> Result<Lsn, D::Error> {
    String::deserialize(text)?.parse().map_err(D::Error::custom)
}
