//! All rows, as they were in one moment, and some of them as they are now.

use std::collections::HashMap;
use std::pin::Pin;

use futures_util::{Stream, TryStreamExt};
use outbox::{Column, DROPPED};
use pgoutput::Lsn;
use relay::access::rows::scanned_columns;
use relay::access::{claim, mark, sweep};
use relay::{Error, Shard};
use tokio_postgres::Row;
use tokio_postgres::binary_copy::{BinaryCopyOutRow as ScannedRow, BinaryCopyOutStream};
use tokio_postgres::types::{FromSqlOwned, PgLsn, Type};
use uuid::Uuid;

use super::Store;
use crate::verify_rules::second_look::{Now, RowNow};
use crate::verify_rules::spilled::Named;

const READING: &str = "read the outbox";
const LOOKING: &str = "look at rows again";

/// The moment of the table that is compared.
#[derive(Debug, Clone)]
pub(crate) struct TableCut {
    /// What is visible committed before this.
    pub(crate) lsn: Lsn,
    /// How many rows there are, as the planner believes.
    pub(crate) rows_estimated: u64,
    /// A commit may be in the stream before it is visible here.
    pub(crate) waits_for_standbys: bool,
    /// The time on the server's clock, in microseconds from 1970 on.
    pub(crate) at_micros: i64,
}

/// Which rows are read.
#[derive(Debug, Clone)]
pub(crate) struct ReadRange {
    /// These rows are not read.
    pub(crate) left_out: Vec<LeftOut>,
    /// One event of so many is read.
    pub(crate) sample: u32,
}

/// Rows that name a lower sequence of a stream, and were marked before a time.
#[derive(Debug, Clone)]
pub(crate) struct LeftOut {
    pub(crate) stream: String,
    pub(crate) below: u64,
    pub(crate) until_micros: i64,
}

/// A row, and what else is asked of it.
pub(crate) struct ComparedRow {
    row: ScannedRow,
}

impl ComparedRow {
    /// What [`Rows::scanned`](relay::access::Rows::scanned) takes.
    pub(crate) fn scanned(&self) -> &ScannedRow {
        &self.row
    }

    /// One of the values behind the event's columns.
    fn behind<T: FromSqlOwned>(&self, at: usize) -> Result<T, Error> {
        self.row.try_get(Column::ALL.len() + at).map_err(Error::sql(READING))
    }

    pub(crate) fn insertion(&self) -> Result<i64, Error> {
        self.behind::<Option<i64>>(0).map(Option::unwrap_or_default)
    }

    pub(crate) fn attempts(&self) -> Result<i32, Error> {
        self.behind::<Option<i32>>(2).map(Option::unwrap_or_default)
    }

    pub(crate) fn shard(&self) -> Result<u16, Error> {
        self.behind::<i64>(4).map(|it| u16::try_from(it).unwrap_or_default())
    }

    pub(crate) fn is_marked(&self) -> Result<bool, Error> {
        self.behind(5)
    }

    /// The stream and the sequence that the mark names.
    pub(crate) fn named(&self) -> Result<(Option<String>, Option<i64>), Error> {
        Ok((self.behind(6)?, self.behind(7)?))
    }

    pub(crate) fn is_dropped(&self) -> Result<bool, Error> {
        self.behind(8)
    }

    pub(crate) fn transaction(&self) -> Result<u64, Error> {
        self.behind::<i64>(9).map(i64::cast_unsigned)
    }

    pub(crate) fn is_timeless(&self) -> Result<bool, Error> {
        self.behind(10)
    }

    /// When it was marked; 0 if it is not.
    pub(crate) fn published_micros(&self) -> Result<i64, Error> {
        self.behind(11)
    }
}

/// All rows of the moment, one after the other.
pub(crate) struct RowReader<'a> {
    _store: &'a Store,
    rows: Pin<Box<BinaryCopyOutStream>>,
}

impl RowReader<'_> {
    pub(crate) async fn next(&mut self) -> Result<Option<ComparedRow>, Error> {
        let row = self.rows.try_next().await.map_err(Error::sql(READING))?;
        Ok(row.map(|row| ComparedRow { row }))
    }
}

/// A dead letter, or a row that is owed its mark or its removal.
#[derive(Debug, Clone)]
pub(crate) struct Beside {
    pub(crate) id: Uuid,
    pub(crate) is_dead: bool,
    pub(crate) is_discarded: bool,
    pub(crate) named: (Option<String>, Option<i64>),
}

/// How far a slot has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotProgress {
    pub(crate) confirmed: Lsn,
    pub(crate) is_read: bool,
}

impl Store {
    /// Begins the transaction whose snapshot is compared.
    pub(crate) async fn open_comparison(&self) -> Result<TableCut, Error> {
        let outbox = self.table.quoted();
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0;
             LOCK TABLE {outbox} IN ACCESS SHARE MODE"
        );
        self.batch_execute(READING, &begin).await?;
        // The snapshot comes first, then the log's end.
        let sql = "SELECT pg_current_wal_insert_lsn(),
                (SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint FROM pg_class c
                 WHERE c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass($1))
                                 UNION SELECT to_regclass($1))),
                current_setting('synchronous_standby_names') <> '',
                (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let row = self.query_one(READING, sql, &[&outbox]).await?;
        Ok(TableCut {
            lsn: Lsn(row.get::<_, PgLsn>(0).into()),
            rows_estimated: row.get::<_, i64>(1).max(0).cast_unsigned(),
            waits_for_standbys: row.get(2),
            at_micros: row.get(3),
        })
    }

    /// Ends the transaction that [`open_comparison`](Self::open_comparison) began.
    pub(crate) async fn close_comparison(&self) -> Result<(), Error> {
        self.batch_execute(READING, "ROLLBACK").await
    }

    /// The snapshots between which rows are published without a mark of their own.
    pub(crate) async fn published_ranges(&self) -> Result<Vec<(String, String)>, Error> {
        let published = self.table.companion("tailpost_published");
        let sql = format!("SELECT start_snapshot::text, end_snapshot::text FROM {published}");
        let rows = self.query(READING, &sql, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Begins to read the rows, of all shards.
    pub(crate) async fn compared_rows(&self, range: &ReadRange) -> Result<RowReader<'_>, Error> {
        let outbox = self.table.quoted();
        let types = self.types(&outbox).await?;
        let (columns, mut column_types) = scanned_columns(&self.table, &types)?;
        column_types.extend([
            Type::INT8,
            Type::BOOL,
            Type::TEXT,
            Type::INT8,
            Type::BOOL,
            Type::INT8,
            Type::BOOL,
            Type::INT8,
        ]);
        let name = |column| self.table.column(column);
        let shard = match self.shards.count() {
            1 => "0::bigint".to_owned(),
            of => Shard::of_row(of, &name(Column::AggregateType), &name(Column::AggregateId)),
        };
        let is_timeless = match types.get(self.table.columns().name(Column::OccurredAt)) {
            Some(_) => format!("{} IS NULL", name(Column::OccurredAt)),
            None => "true".to_owned(),
        };
        let sql = format!(
            "COPY (SELECT {columns}, {shard}, published_at IS NOT NULL, stream, stream_seq,
                       {is_dropped}, {transaction}::text::bigint, {is_timeless},
                       CASE WHEN isfinite(published_at)
                           THEN (extract(epoch FROM published_at) * 1000000)::bigint ELSE 0 END
                   FROM {outbox} o WHERE {id} IS NOT NULL AND {in_range} AND {in_sample}
                  ) TO STDOUT (FORMAT binary)",
            is_dropped = is_dropped(),
            transaction = mark::transaction("o"),
            id = name(Column::Id),
            in_range = in_range(range),
            in_sample = in_sample(&name(Column::Id), range.sample),
        );
        let copied = self.client().copy_out(&sql).await.map_err(Error::sql(READING))?;
        let rows = Box::pin(BinaryCopyOutStream::new(copied, &column_types));
        Ok(RowReader { _store: self, rows })
    }

    /// How many rows are not read, because they name a place before what is read of the streams.
    pub(crate) async fn rows_left_out(&self, range: &ReadRange) -> Result<u64, Error> {
        if range.left_out.iter().all(|it| it.below <= 1) {
            return Ok(0);
        }
        let id = self.table.column(Column::Id);
        let sql = format!(
            "SELECT count(*) FROM {outbox} WHERE {id} IS NOT NULL AND NOT ({in_range})
                 AND {in_sample}",
            outbox = self.table.quoted(),
            in_range = in_range(range),
            in_sample = in_sample(&id, range.sample),
        );
        let row = self.query_one(READING, &sql, &[]).await?;
        Ok(row.get::<_, i64>(0).max(0).cast_unsigned())
    }

    /// Dead letters, and rows that are owed something.
    pub(crate) async fn beside(
        &self,
    ) -> Result<impl Stream<Item = Result<Beside, Error>> + use<>, Error> {
        let sql = format!(
            "SELECT id, true, discarded_at IS NOT NULL, NULL::text, NULL::bigint FROM {dead}
             UNION ALL
             SELECT id, parked, false, stream, stream_seq FROM {owed}",
            dead = self.table.companion("outbox_dead_letter"),
            owed = self.table.companion("tailpost_owed"),
        );
        let none: [&str; 0] = [];
        let rows = self.query_raw(READING, &sql, none).await?;
        let beside = |row: Row| Beside {
            id: row.get(0),
            is_dead: row.get(1),
            is_discarded: row.get(2),
            named: (row.get(3), row.get(4)),
        };
        Ok(rows.map_ok(beside).map_err(|error| Error::sql(READING)(error)))
    }

    /// How far the slot is confirmed; `None` if there is none.
    pub(crate) async fn slot_progress(&self, slot: &str) -> Result<Option<SlotProgress>, Error> {
        let sql = "SELECT confirmed_flush_lsn, active FROM pg_replication_slots
                   WHERE slot_name = $1 AND database = current_database()";
        let row = self.query_opt(LOOKING, sql, &[&slot]).await?;
        let progress = |row: Row| {
            let confirmed = Lsn(row.get::<_, Option<PgLsn>>(0)?.into());
            Some(SlotProgress { confirmed, is_read: row.get(1) })
        };
        Ok(row.and_then(progress))
    }

    /// What there is of these events now. `here` says which stream a mark names.
    pub(crate) async fn events_now(
        &self,
        ids: &[Uuid],
        polls: bool,
        here: impl Fn(Option<String>, Option<i64>) -> Named,
    ) -> Result<HashMap<Uuid, Now>, Error> {
        let key = claim::aggregate_key(&self.table);
        let is_claimed = format!(
            "EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                     WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted
                         AND l.objsubid = 1
                         AND (l.classid::bigint << 32 | l.objid::bigint) = {key})"
        );
        let sql = format!(
            "SELECT {id}, 'row', published_at IS NOT NULL, {is_dropped}, stream, stream_seq,
                 coalesce({came_back}, false), {is_claimed}
             FROM {outbox} WHERE {id} = ANY($1)
             UNION ALL
             SELECT id, CASE WHEN parked THEN 'dead' ELSE 'owed' END, false, false, NULL, NULL, false,
                 false FROM {owed} WHERE id = ANY($1)
             UNION ALL
             SELECT id, 'dead', false, false, NULL, NULL, false, false FROM {dead}
             WHERE id = ANY($1)",
            id = self.table.column(Column::Id),
            is_dropped = is_dropped(),
            came_back = sweep::CAME_BACK,
            is_claimed = if polls { &is_claimed } else { "false" },
            outbox = self.table.quoted(),
            owed = self.table.companion("tailpost_owed"),
            dead = self.table.companion("outbox_dead_letter"),
        );
        let rows = self.query(LOOKING, &sql, &[&ids]).await?;
        let mut events: HashMap<Uuid, Now> = HashMap::new();
        for row in rows {
            let now = events.entry(row.get(0)).or_default();
            match row.get::<_, &str>(1) {
                "dead" => now.is_dead = true,
                "owed" => now.is_owed = true,
                _ => {
                    now.is_claimed = row.get(7);
                    now.row = Some(match (row.get(2), row.get(3)) {
                        (false, _) => RowNow::Unmarked { came_back: row.get(6) },
                        (true, true) => RowNow::Dropped,
                        (true, false) => RowNow::Marked(here(row.get(4), row.get(5))),
                    });
                }
            }
        }
        Ok(events)
    }
}

/// Whether a mark says that a route dropped the event.
fn is_dropped() -> String {
    format!("coalesce(publish_error = '{DROPPED}' AND stream IS NULL, false)")
}

fn in_range(range: &ReadRange) -> String {
    let below = |LeftOut { stream, below, until_micros }: &LeftOut| {
        let stream = stream.replace('\'', "''");
        let is_old = match *until_micros {
            i64::MAX => "true".to_owned(),
            until => format!("published_at <= to_timestamp({until}::float8 / 1000000)"),
        };
        format!("NOT coalesce(stream = '{stream}' AND stream_seq < {below} AND {is_old}, false)")
    };
    let can_be_old = |it: &&LeftOut| it.below > 1 && it.until_micros > i64::MIN;
    let all: Vec<String> = range.left_out.iter().filter(can_be_old).map(below).collect();
    if all.is_empty() { "true".to_owned() } else { all.join(" AND ") }
}

/// The reader of the streams computes the same of the messages' ids.
fn in_sample(id: &str, sample: u32) -> String {
    if sample <= 1 {
        return "true".to_owned();
    }
    format!(
        "('x' || encode(substr(sha256(uuid_send({id})), 1, 4), 'hex'))::bit(32)::bigint
             % {sample} = 0"
    )
}
