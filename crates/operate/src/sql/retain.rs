//! What is deleted because it is not needed any more, and the record of that.
//!
//! A row may go when its event is resolved for long enough and nothing can bring it again. A slot
//! brings again what is behind its last watermark at most ([`Gate`]). What it would bring, the
//! relay judges by marks where the stream does not tell: so a row stays while its mark is younger
//! than a watermark.

use std::time::Duration;

use jiff::Timestamp;
use outbox::Column;
use relay::Error;
use relay::access::mark;
use relay::access::mark::NOT_MARKED;
use uuid::Uuid;

use super::Store;
use crate::RetentionReport;

/// Rows that one statement deletes at most.
pub(crate) const AT_ONCE: u64 = 1_000;

/// Pages that one statement reads at most.
pub(crate) const PAGES_AT_ONCE: i64 = 512;

pub(super) const DOING: &str = "delete what is kept for long enough";
pub(super) const LOOKING: &str = "look at what is kept";

/// A slot that may bring rows again, and the watermark up to where it cannot. `None` before there
/// is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(crate) slot: String,
    pub(crate) is_read: bool,
    pub(crate) watermark: Option<String>,
}

/// Which rows may go, all of one moment.
#[derive(Debug, Clone)]
pub(crate) struct Removable {
    /// Published before this.
    pub(crate) before: Timestamp,
    /// The condition on a row `o` of the outbox, with `before` as $1.
    pub(super) condition: String,
}

/// What holds rows of a table: the table itself, or one of its partitions.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    /// Quoted.
    pub(super) name: String,
    pub(crate) pages: i64,
}

/// What is kept beside the outbox and not needed for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Beside {
    /// Discarded dead letters: their rows are gone, and no slot brings them again.
    Letters,
    /// Entries of the audit: the event is no dead letter, and its row does not wait.
    Audit,
}

impl Store {
    /// Configures the session: short waits for locks, and commits that do not wait for the disk.
    pub(crate) async fn be_modest(&self) -> Result<(), Error> {
        let sql = "SET synchronous_commit = off; SET lock_timeout = '1s';
                   SET statement_timeout = '8s'; SET jit = off;
                   SET application_name = 'tailpost maintain'";
        self.batch_execute(DOING, sql).await
    }

    /// Whether no other process is at it, for this table. Held until the connection ends.
    pub(crate) async fn try_lock_maintenance(&self) -> Result<bool, Error> {
        let sql = "SELECT pg_try_advisory_lock(hashtextextended('tailpost maintain ' || $1, 0))";
        Ok(self.query_one(LOOKING, sql, &[&self.table.quoted()]).await?.get(0))
    }

    /// # Errors
    ///
    /// [`Error::NotSetUp`] if `tailpost setup` of this version was not run.
    pub(crate) async fn check_retention(&self) -> Result<(), Error> {
        self.check_table("tailpost_retention").await
    }

    /// The slots that are there and that a relay of this table has ever read.
    pub(crate) async fn gates(&self) -> Result<Vec<Gate>, Error> {
        let sql = format!(
            "SELECT slot, active, watermark_snapshot::text
             FROM {} JOIN pg_replication_slots ON slot_name = slot
             WHERE database = current_database() ORDER BY slot",
            self.table.companion("tailpost_state")
        );
        let rows = self.query(LOOKING, &sql, &[]).await?;
        let gate = |row: &tokio_postgres::Row| Gate {
            slot: row.get(0),
            is_read: row.get(1),
            watermark: row.get(2),
        };
        Ok(rows.iter().map(gate).collect())
    }

    /// Notes how far rows without marks of their own are published, so that it can be told later
    /// since when; and forgets what is too old to be asked for.
    pub(crate) async fn note_published(&self, keep: Duration) -> Result<(), Error> {
        let history = self.table.companion("tailpost_published_history");
        let note = format!(
            "INSERT INTO {history} (seen_at, begun_at, start_snapshot, end_snapshot)
             SELECT now(), begun_at, start_snapshot, end_snapshot FROM {published}
             WHERE NOT EXISTS (SELECT FROM {history}
                 WHERE seen_at > now() - make_interval(secs => $1) / 100)",
            published = self.table.companion("tailpost_published")
        );
        self.execute(DOING, &note, &[&keep.as_secs_f64()]).await?;
        let forget = format!(
            "DELETE FROM {history} WHERE seen_at < (SELECT max(seen_at) FROM {history}
                 WHERE seen_at < now() - make_interval(secs => $1))"
        );
        self.perform(DOING, &forget, &[&keep.as_secs_f64()]).await
    }

    /// Which rows may go that were published `keep` ago.
    ///
    /// `slots` are those of the configuration.
    pub(crate) async fn removable(
        &self,
        keep: Duration,
        gates: &[Gate],
        slots: &[String],
    ) -> Result<Removable, Error> {
        let sql = "SELECT clock_timestamp() - make_interval(secs => $1)";
        let before = self.query_one(LOOKING, sql, &[&keep.as_secs_f64()]).await?.get(0);
        let covered = self.covered_before(before, slots).await?;
        let (outbox_id, dead) =
            (self.table.column(Column::Id), self.table.companion("outbox_dead_letter"));
        let condition = format!(
            "(o.published_at < $1::timestamptz AND {passed}
                 AND NOT (o.stream IS NOT NULL AND o.stream_seq IS NULL) OR o.published_at IS NULL AND ({covered}))
             AND {not_owed}
             AND NOT EXISTS (SELECT FROM {dead} d WHERE d.id = o.{outbox_id} OFFSET 0)
             AND NOT EXISTS (SELECT FROM {replays})",
            passed = passed(gates, "o"),
            replays = self.unfinished_replays(),
            not_owed = mark::not_owed(&self.table),
        );
        Ok(Removable { before, condition })
    }

    /// Replays that read rows of the table, which therefore stay.
    fn unfinished_replays(&self) -> String {
        format!(
            "{} WHERE source = 'table' AND status IN ('asked', 'running', 'paused')",
            self.table.companion("tailpost_replays")
        )
    }

    /// One of the replays that keep rows, if there is one.
    pub(crate) async fn replay_that_holds(&self) -> Result<Option<Uuid>, Error> {
        let sql = format!("SELECT min(id::text)::uuid FROM {}", self.unfinished_replays());
        Ok(self.query_one(LOOKING, &sql, &[]).await?.get(0))
    }

    /// Which rows `o` a watermark covered already at that time. In a copy of the database in
    /// another cluster nothing, until a relay has taken it over: transactions have other numbers.
    async fn covered_before(&self, before: Timestamp, slots: &[String]) -> Result<String, Error> {
        let (history, published, state) = (
            self.table.companion("tailpost_published_history"),
            self.table.companion("tailpost_published"),
            self.table.companion("tailpost_state"),
        );
        let sql = format!(
            "SELECT h.start_snapshot::text, h.end_snapshot::text
             FROM {history} h JOIN {published} p ON p.begun_at = h.begun_at
                 AND p.start_snapshot::text = h.start_snapshot::text
             WHERE h.seen_at = (SELECT max(seen_at) FROM {history} WHERE seen_at <= $1)
                 AND NOT EXISTS (
                     SELECT FROM unnest($2::text[]) AS ours (slot) LEFT JOIN {state} s USING (slot)
                     WHERE s.system_identifier IS DISTINCT FROM
                         (SELECT system_identifier::text FROM pg_control_system()))"
        );
        let rows = self.query(LOOKING, &sql, &[&before, &slots]).await?;
        let transaction = mark::transaction("o");
        let covered = rows.iter().map(|row| {
            let snapshot = |at| literal(row.get(at));
            format!(
                "NOT pg_visible_in_snapshot({transaction}, {}::pg_snapshot)
                 AND pg_visible_in_snapshot({transaction}, {}::pg_snapshot)",
                snapshot(0),
                snapshot(1)
            )
        });
        let covered: Vec<String> = covered.collect();
        Ok(if covered.is_empty() { "false".to_owned() } else { covered.join(" OR ") })
    }

    /// What holds the rows of the outbox.
    pub(crate) async fn leaves(&self) -> Result<Vec<Leaf>, Error> {
        let sql = "SELECT relid::regclass::text,
                pg_relation_size(relid) / current_setting('block_size')::bigint
            FROM (SELECT relid::oid FROM pg_partition_tree(to_regclass($1)) WHERE isleaf
                  UNION SELECT to_regclass($1)::oid) AS leaf (relid)
            JOIN pg_class c ON c.oid = relid AND relkind = 'r' ORDER BY 1";
        let table = self.table.quoted();
        let rows = self.query(LOOKING, sql, &[&table]).await?;
        Ok(rows.iter().map(|row| Leaf { name: row.get(0), pages: row.get(1) }).collect())
    }

    /// Deletes rows that may go, of [`PAGES_AT_ONCE`] pages from `page` on, at most `at_once`. A
    /// locked row stays. Says how many.
    pub(crate) async fn delete_rows(
        &self,
        leaf: &Leaf,
        page: i64,
        removable: &Removable,
        at_once: u64,
    ) -> Result<u64, Error> {
        let Leaf { name, .. } = leaf;
        let sql = format!(
            "DELETE FROM ONLY {name} o WHERE o.ctid = ANY (ARRAY(
                 SELECT o.ctid FROM ONLY {name} o WHERE {range} AND {condition}
                 LIMIT {at_once} FOR UPDATE SKIP LOCKED)) AND {condition}",
            range = pages(page),
            condition = removable.condition
        );
        self.execute(DOING, &sql, &[&removable.before]).await
    }

    /// How many rows [`delete_rows`](Self::delete_rows) would delete, locked ones too.
    pub(crate) async fn count_rows(
        &self,
        leaf: &Leaf,
        page: i64,
        removable: &Removable,
    ) -> Result<u64, Error> {
        let sql = format!(
            "SELECT count(*) FROM ONLY {} o WHERE {} AND {}",
            leaf.name,
            pages(page),
            removable.condition
        );
        let row = self.query_one(LOOKING, &sql, &[&removable.before]).await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }

    /// Which rows `r` may go that are `$1` seconds old.
    fn old(&self, what: Beside, gates: &[Gate]) -> String {
        let table = &self.table;
        let (at, event, is_dead) = match what {
            Beside::Letters => ("discarded_at", "id", String::new()),
            Beside::Audit => {
                let dead = table.companion("outbox_dead_letter");
                let is_dead =
                    format!("AND NOT EXISTS (SELECT FROM {dead} d WHERE d.id = r.event_id)");
                ("at", "event_id", is_dead)
            }
        };
        format!(
            "r.{at} < clock_timestamp() - make_interval(secs => $1) AND {passed} {is_dead}
             AND NOT EXISTS (SELECT FROM {owed} w WHERE w.id = r.{event})
             AND NOT EXISTS (SELECT FROM {outbox} o WHERE o.{id} = r.{event} AND {NOT_MARKED})",
            passed = passed(gates, "r"),
            owed = table.companion("tailpost_owed"),
            outbox = table.quoted(),
            id = table.column(Column::Id),
        )
    }

    pub(crate) async fn count_old(
        &self,
        what: Beside,
        keep: Duration,
        gates: &[Gate],
    ) -> Result<u64, Error> {
        let table = self.table.companion(match what {
            Beside::Letters => "outbox_dead_letter",
            Beside::Audit => "outbox_dead_letter_audit",
        });
        let sql = format!("SELECT count(*) FROM {table} r WHERE {}", self.old(what, gates));
        let row = self.query_one(LOOKING, &sql, &[&keep.as_secs_f64()]).await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }

    /// Deletes at most [`AT_ONCE`] dead letters that were discarded `keep` ago. Says how many.
    pub(crate) async fn delete_letters(
        &self,
        keep: Duration,
        gates: &[Gate],
    ) -> Result<u64, Error> {
        let (dead, audit) = (
            self.table.companion("outbox_dead_letter"),
            self.table.companion("outbox_dead_letter_audit"),
        );
        let sql = format!(
            "WITH old AS (
                 DELETE FROM {dead} WHERE id = ANY (ARRAY(
                     SELECT r.id FROM {dead} r WHERE {old} LIMIT {AT_ONCE}
                     FOR UPDATE SKIP LOCKED))
                 RETURNING *
             ), noted AS (
                 INSERT INTO {audit} (action, event_id, aggregate_type, aggregate_id, event_type,
                     actor, via, reason)
                 SELECT 'purge', id, aggregate_type, aggregate_id, event_type, 'tailpost',
                     'maintain', reason FROM old
             )
             SELECT count(*) FROM old",
            old = self.old(Beside::Letters, gates)
        );
        let row = self.query_one(LOOKING, &sql, &[&keep.as_secs_f64()]).await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }

    /// Deletes at most [`AT_ONCE`] entries of the audit that are `keep` old. Says how many.
    pub(crate) async fn delete_audit(&self, keep: Duration, gates: &[Gate]) -> Result<u64, Error> {
        let audit = self.table.companion("outbox_dead_letter_audit");
        let sql = format!(
            "DELETE FROM {audit} WHERE id = ANY (ARRAY(
                 SELECT r.id FROM {audit} r WHERE {} ORDER BY r.id LIMIT {AT_ONCE}
                 FOR UPDATE SKIP LOCKED))",
            self.old(Beside::Audit, gates)
        );
        self.execute(DOING, &sql, &[&keep.as_secs_f64()]).await
    }

    /// Writes down that rows published before this may be gone. Before the first of them goes.
    pub(crate) async fn announce_deletion(&self, before: Timestamp) -> Result<(), Error> {
        let sql = format!(
            "INSERT INTO {} AS r (deleted_before) VALUES ($1) ON CONFLICT (only_row) DO UPDATE
             SET deleted_before = greatest(r.deleted_before, excluded.deleted_before)",
            self.table.companion("tailpost_retention")
        );
        self.perform(DOING, &sql, &[&before]).await
    }

    /// Writes down that a pass came to its end. It deleted so many rows, dead letters and entries of the
    /// audit.
    pub(crate) async fn note_success(
        &self,
        deleted: [Option<u64>; 3],
        held_by: Option<&str>,
    ) -> Result<(), Error> {
        let sql = format!(
            "INSERT INTO {} AS r (succeeded_at, rows_deleted, dead_letters_deleted, audit_deleted,
                 held_by)
             VALUES (clock_timestamp(), $1, $2, $3, $4)
             ON CONFLICT (only_row) DO UPDATE SET succeeded_at = excluded.succeeded_at,
                 rows_deleted = r.rows_deleted + excluded.rows_deleted,
                 dead_letters_deleted = r.dead_letters_deleted + excluded.dead_letters_deleted,
                 audit_deleted = r.audit_deleted + excluded.audit_deleted,
                 held_by = excluded.held_by, failed_at = NULL, failure = NULL",
            self.table.companion("tailpost_retention")
        );
        let [rows, letters, audit] = deleted.map(|it| it.unwrap_or(0).cast_signed());
        self.perform(DOING, &sql, &[&rows, &letters, &audit, &held_by]).await
    }

    /// Writes down that a pass failed.
    pub(crate) async fn note_maintenance_failure(&self, failure: &str) -> Result<(), Error> {
        let sql = format!(
            "INSERT INTO {} (failed_at, failure) VALUES (clock_timestamp(), $1)
             ON CONFLICT (only_row) DO UPDATE
             SET failed_at = excluded.failed_at, failure = excluded.failure",
            self.table.companion("tailpost_retention")
        );
        self.perform(DOING, &sql, &[&failure]).await
    }

    /// What is written down; `None` if there was no pass yet, or `tailpost setup` of this version
    /// was not run.
    pub(crate) async fn retention_row(&self) -> Result<Option<RetentionReport>, Error> {
        if let Err(Error::NotSetUp { .. }) = self.check_retention().await {
            return Ok(None);
        }
        let sql = format!(
            "SELECT deleted_before, succeeded_at AS last_success_at,
                 extract(epoch FROM clock_timestamp() - succeeded_at)::float8
                     AS last_success_seconds,
                 rows_deleted, dead_letters_deleted, audit_deleted, partitions_dropped, held_by,
                 failed_at, failure FROM {}",
            self.table.companion("tailpost_retention")
        );
        Ok(self.read(LOOKING, &sql, &[]).await?.pop())
    }
}

/// That a row's present version was there when the watermark of each slot was taken. What was done
/// to the event before, up to its mark, was committed before that.
fn passed(gates: &[Gate], row: &str) -> String {
    let version = mark::version(row);
    let passed = |gate: &Gate| match &gate.watermark {
        Some(watermark) => {
            format!("pg_visible_in_snapshot({version}, {}::pg_snapshot)", literal(watermark))
        }
        None => "false".to_owned(),
    };
    let all: Vec<String> = gates.iter().map(passed).collect();
    if all.is_empty() { "true".to_owned() } else { format!("({})", all.join(" AND ")) }
}

/// That a row `o` is in one of some pages from `first` on.
pub(super) fn pages(first: i64) -> String {
    let end = first + PAGES_AT_ONCE;
    format!("o.ctid >= '({first},0)'::tid AND o.ctid < '({end},0)'::tid")
}

/// A snapshot as the server printed it.
fn literal(snapshot: &str) -> String {
    format!("'{}'", snapshot.replace('\'', "''"))
}
