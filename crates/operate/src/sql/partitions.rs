//! Partitions of an outbox by day: made ahead, and removed when no row of them is needed.
//!
//! No reader or writer of the outbox waits for either. A partition is made apart and attached,
//! which conflicts with no statement on rows. One is removed by `DETACH … CONCURRENTLY`: new
//! statements do not see it, and those that may see it are waited for; no statement waits behind.
//! Then it is looked at once more, alone, and dropped, or attached again if a row came to be needed.
//! `tailpost_detached` tells who is killed in between what was going on.

use std::time::Duration;

use jiff::Timestamp;
use outbox::Column;
use relay::Error;
use servers::partitions::{LOAD, Partition, Partitions, bounds};
use tokio_postgres::Row;

use super::Store;
use super::retain::{Leaf, Removable, pages};
use crate::day_partitions::{day_name, missing};

const LOOKING: &str = "look at the partitions";
const MAKING: &str = "make a partition ahead";
const REMOVING: &str = "remove an old partition";

/// How far the removal of a partition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detached {
    /// It is a partition as before.
    NotBegun,
    /// Only statements that began before see it.
    Pending,
    /// A table of its own.
    Alone,
    Gone,
}

/// It is partitioned itself, or a foreign table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotPlain;

impl Store {
    /// Runs a script; where it fails nothing of it is done.
    pub(super) async fn run(&self, doing: &'static str, script: &str) -> Result<(), Error> {
        let ran = self.batch_execute(doing, script).await;
        if ran.is_err() {
            // The error says more.
            let _ = self.batch_execute(doing, "ROLLBACK").await;
        }
        ran
    }

    /// The partitions of the outbox, if it is partitioned as `tailpost setup --partitioned` does
    /// it: by when rows were inserted.
    pub(crate) async fn day_partitions(&self) -> Result<Option<Partitions>, Error> {
        if !self.is_partitioned_by_day().await? {
            return Ok(None);
        }
        let table = self.table.quoted();
        let rows = self.query(LOOKING, LOAD, &[&table]).await?;
        Ok(Some(Partitions::new(rows.iter().map(Partition::of))))
    }

    /// The server's time.
    pub(crate) async fn clock(&self) -> Result<Timestamp, Error> {
        Ok(self.query_one("read the clock", "SELECT clock_timestamp()", &[]).await?.get(0))
    }

    /// Makes partitions for what has none from today on and for `ahead`, without any wait of those
    /// who read and write. They have the owner of the table, and the storage parameters of its newest
    /// partition. Says how many were made, and what there is.
    pub(crate) async fn make_partitions(
        &self,
        partitions: Partitions,
        ahead: Duration,
    ) -> Result<(u64, Partitions), Error> {
        let now = self.clock().await?;
        let missing = missing(&partitions, now, ahead);
        let mut made = 0;
        for (since, until) in &missing {
            let script = self.make_partition(*since, *until).await?;
            match self.run(MAKING, &script).await {
                Ok(()) => made += 1,
                // Another process may have made it, which is seen below.
                Err(error) => {
                    let there = self.day_partitions().await?.unwrap_or_default();
                    if there.covered_from(*since) < *until {
                        return Err(error);
                    }
                }
            }
        }
        if missing.is_empty() {
            return Ok((0, partitions));
        }
        Ok((made, self.day_partitions().await?.unwrap_or_default()))
    }

    /// What makes a partition.
    pub(crate) async fn make_partition(
        &self,
        since: Timestamp,
        until: Timestamp,
    ) -> Result<String, Error> {
        let (table, name) = (self.table.quoted(), day_name(self.table.name(), since, until));
        let partition = self.table.companion(&name);
        let sql = "SELECT
                (SELECT format('ALTER TABLE %s OWNER TO %I;', $2::text, rolname)
                 FROM pg_class JOIN pg_roles ON pg_roles.oid = relowner
                 WHERE pg_class.oid = to_regclass($1::text) AND rolname <> current_user),
                (SELECT string_agg(format('%I = %L', split_part(option, '=', 1),
                     substr(option, strpos(option, '=') + 1)), ', ')
                 FROM unnest((SELECT reloptions FROM pg_inherits
                     JOIN pg_class AS child ON child.oid = inhrelid
                     WHERE inhparent = to_regclass($1::text) AND relkind = 'r'
                     ORDER BY child.oid DESC LIMIT 1)) AS option),
                to_regclass($3::text) IS NOT NULL";
        let unmarked = self.table.companion("idx_outbox_unpublished");
        let rows = self.query(LOOKING, sql, &[&table, &partition, &unmarked]).await?;
        let (owner, options): (Option<String>, Option<String>) = (rows[0].get(0), rows[0].get(1));
        // As the first migration does it for a table.
        let fillfactor = if rows[0].get(2) { 50 } else { 100 };
        Ok(format!(
            "BEGIN; SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '8s';
             CREATE TABLE {partition} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS
                 INCLUDING GENERATED INCLUDING STORAGE INCLUDING COMPRESSION) WITH ({options});
             {owner}
             ALTER TABLE {table} ATTACH PARTITION {partition}
                 FOR VALUES FROM ('{since}') TO ('{until}');
             COMMIT",
            owner = owner.unwrap_or_default(),
            options = options.unwrap_or_else(|| format!("fillfactor = {fillfactor}")),
        ))
    }

    /// Why a partition has to stay: the first of its rows that may not go, in some pages from `page`
    /// on.
    pub(crate) async fn needed_row(
        &self,
        leaf: &Leaf,
        page: i64,
        removable: &Removable,
    ) -> Result<Option<String>, Error> {
        let (id, table) = (self.table.column(Column::Id), &self.table);
        let sql = format!(
            "SELECT coalesce(o.{id}::text, 'without an id'), CASE
                 WHEN EXISTS (SELECT FROM {dead} d WHERE d.id = o.{id}) THEN 'is a dead letter'
                 WHEN EXISTS (SELECT FROM {owed} w WHERE w.id = o.{id}) THEN 'is owed a mark'
                 WHEN o.published_at IS NULL THEN 'is not published, as far as is known'
                 WHEN o.stream IS NOT NULL AND o.stream_seq IS NULL
                     THEN 'was taken for published: see `tailpost verify`'
                 WHEN o.published_at >= $1
                     THEN 'was published less than retention.published ago'
                 ELSE 'may be asked for by a slot or a replay' END
             FROM ONLY {leaf} o WHERE {range} AND ({condition}) IS NOT TRUE LIMIT 1",
            dead = table.companion("outbox_dead_letter"),
            owed = table.companion("tailpost_owed"),
            leaf = leaf.name,
            range = pages(page),
            condition = removable.condition,
        );
        let rows = self.query(LOOKING, &sql, &[&removable.before]).await?;
        let why = |row: &Row| format!("row {} {}", row.get::<_, &str>(0), row.get::<_, &str>(1));
        Ok(rows.first().map(why))
    }

    /// A table and how many pages it has; `None` if it is gone, an error if it has no pages of its
    /// own.
    pub(crate) async fn leaf(&self, name: &str) -> Result<Option<Result<Leaf, NotPlain>>, Error> {
        let sql = "SELECT relkind = 'r', pg_relation_size(oid)
                       / current_setting('block_size')::bigint
                   FROM pg_class WHERE oid = to_regclass($1)";
        let rows = self.query(LOOKING, sql, &[&name]).await?;
        Ok(rows.first().map(|row| match (row.get(0), row.get(1)) {
            (true, Some(pages)) => Ok(Leaf { name: name.to_owned(), pages }),
            _ => Err(NotPlain),
        }))
    }

    /// Writes down that a partition is about to be removed.
    pub(crate) async fn note_detached(&self, partition: &Partition) -> Result<(), Error> {
        let sql = format!(
            "INSERT INTO {} (partition, since, until) VALUES ($1, $2, $3)
             ON CONFLICT (partition) DO UPDATE
             SET since = excluded.since, until = excluded.until, noted_at = clock_timestamp()",
            self.table.companion("tailpost_detached")
        );
        let Partition { name, since, until } = partition;
        self.perform(REMOVING, &sql, &[name, since, until]).await
    }

    /// The partitions whose removal has begun, and how far that is.
    pub(crate) async fn detached(&self) -> Result<Vec<(Partition, Detached)>, Error> {
        let sql = format!(
            "SELECT partition, since, until, to_regclass(partition) IS NULL,
                 (SELECT inhdetachpending FROM pg_inherits
                  WHERE inhrelid = to_regclass(partition) AND inhparent = to_regclass($1))
             FROM {} ORDER BY until",
            self.table.companion("tailpost_detached")
        );
        let rows = self.query(LOOKING, &sql, &[&self.table.quoted()]).await?;
        let state = |row: &Row| match (row.get(3), row.get(4)) {
            (true, _) => Detached::Gone,
            (false, Some(true)) => Detached::Pending,
            (false, Some(false)) => Detached::NotBegun,
            (false, None) => Detached::Alone,
        };
        Ok(rows.iter().map(|row| (Partition::of(row), state(row))).collect())
    }

    /// Takes a partition out of the table. Readers and writers wait for nothing; this waits for
    /// the transactions that have used the table before, for a second at most: then it stays between
    /// the two, [pending](Detached::Pending).
    pub(crate) async fn detach(&self, name: &str, finish: bool) -> Result<(), Error> {
        let how = if finish { "FINALIZE" } else { "CONCURRENTLY" };
        let sql = format!("ALTER TABLE {} DETACH PARTITION {name} {how}", self.table.quoted());
        // By itself: it takes no part in a transaction.
        self.batch_execute(REMOVING, &sql).await
    }

    /// Drops what was a partition.
    pub(crate) async fn drop_detached(&self, name: &str) -> Result<(), Error> {
        let script = format!(
            "BEGIN;
             DROP TABLE {name};
             {forget};
             INSERT INTO {retention} AS r (partitions_dropped) VALUES (1)
                 ON CONFLICT (only_row) DO UPDATE SET partitions_dropped = r.partitions_dropped + 1;
             COMMIT",
            forget = self.forget_detached(name),
            retention = self.table.companion("tailpost_retention"),
        );
        self.run(REMOVING, &script).await
    }

    /// Makes what was a partition one again. Others wait for nothing: a constraint that detaching
    /// left says that its rows fit.
    pub(crate) async fn attach_again(&self, partition: &Partition) -> Result<(), Error> {
        let Partition { name, since, until } = partition;
        let script = format!(
            "BEGIN;
             ALTER TABLE {table} ATTACH PARTITION {name} {bounds};
             {forget};
             COMMIT",
            table = self.table.quoted(),
            bounds = bounds(*since, *until),
            forget = self.forget_detached(name),
        );
        self.run("attach a partition again", &script).await
    }

    fn forget_detached(&self, name: &str) -> String {
        format!(
            "DELETE FROM {} WHERE partition = '{}'",
            self.table.companion("tailpost_detached"),
            name.replace('\'', "''")
        )
    }

    /// What was written down about a partition that is one as before, or gone, is done with.
    pub(crate) async fn forget_note(&self, name: &str) -> Result<(), Error> {
        let sql = format!("BEGIN; {}; COMMIT", self.forget_detached(name));
        self.run(REMOVING, &sql).await
    }
}
