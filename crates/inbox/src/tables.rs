//! The tables of the inbox: made, kept in partitions, and forgotten after a while.
//!
//! The record of an event may only go when the event cannot come any more. Nobody can promise that,
//! so it is written down up to when events are forgotten, and an older one becomes a dead letter
//! instead of running a second time.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde::Serialize;
use tokio_postgres::Client;

use crate::Error;

const SQL: &str = concat!(
    include_str!("../../../migrations/0004_inbox.sql"),
    include_str!("../../../migrations/0006_inbox_decisions.sql")
);

/// Held while the tables are made or partitions are added or dropped.
const ADVISORY_LOCK: i64 = 0x696E_626F_785F_6D67; // "inbox_mg"

/// How long a change of the tables waits for others to let go. Meanwhile their statements queue up.
const LOCK_TIMEOUT: &str = "10s";

/// Rows deleted by one statement, where there are no partitions to drop.
const DELETED_AT_ONCE: i64 = 5_000;

/// How the records are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// A partition for each day: old records go at once, whatever their number.
    #[default]
    Partitioned,
    /// One table, whose old records are deleted in batches: for up to some hundred thousand
    /// events a day.
    Plain,
}

/// What [`maintain`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Maintained {
    /// Partitions made.
    pub created: u64,
    /// Partitions dropped.
    pub dropped: u64,
    /// Records deleted from a table without partitions.
    pub deleted: u64,
}

/// The script that makes the tables, to be read, or run by an administrator. Running it twice does
/// no harm; tables that exist keep their layout.
#[must_use]
pub fn render_tables(schema: &str, layout: Layout) -> String {
    let partitioning = match layout {
        Layout::Partitioned => " PARTITION BY RANGE (event_time)",
        Layout::Plain => "",
    };
    SQL.replace(" {partitioning}", partitioning).replace("{schema}", &quote(schema))
}

/// Makes the tables that are missing, and the partitions for today and the next days. Safe to run
/// again, and while inboxes run.
///
/// # Errors
///
/// If PostgreSQL refuses.
pub async fn create_tables(client: &mut Client, schema: &str, layout: Layout) -> Result<(), Error> {
    let doing = Error::sql("create the tables of the inbox");
    let script = format!(
        "BEGIN; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';
         SELECT pg_advisory_xact_lock({ADVISORY_LOCK});
         {}
         {} COMMIT",
        create_schema(client, schema).await?,
        render_tables(schema, layout)
    );
    if let Err(error) = client.batch_execute(&script).await {
        // The connection is the caller's.
        let _ = client.batch_execute("ROLLBACK").await;
        return Err(doing(error));
    }
    Partitions::load(client, schema).await?.ahead(client).await.map(drop)
}

/// Only if it is missing: `IF NOT EXISTS` would ask for the privilege anyway.
async fn create_schema(client: &Client, schema: &str) -> Result<String, Error> {
    let sql = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
    let row = client.query_one(sql, &[&schema]).await;
    let exists: bool = row.map_err(Error::sql("look for the schema"))?.get(0);
    Ok(if exists { String::new() } else { format!("CREATE SCHEMA {};", quote(schema)) })
}

/// Makes partitions ahead, and forgets what is older than `keep`, if that is given: records of
/// events, and nothing that is unfinished. An active inbox does this every hour.
///
/// # Errors
///
/// If PostgreSQL refuses.
pub async fn maintain(
    client: &Client,
    schema: &str,
    keep: Option<Duration>,
) -> Result<Maintained, Error> {
    let mut partitions = Partitions::load(client, schema).await?;
    let mut done = Maintained { created: partitions.ahead(client).await?, ..Maintained::default() };
    let Some(keep) = keep else { return Ok(done) };
    let Some(horizon) = partitions.horizon(client, keep).await? else { return Ok(done) };
    partitions.forget_before(client, horizon).await?;
    if partitions.days.is_some() {
        done.dropped = partitions.drop_before(client, horizon).await?;
    } else {
        done.deleted = partitions.delete_before(client, horizon).await?;
    }
    Ok(done)
}

/// What there is room for, as of the last look.
#[derive(Debug, Clone)]
pub(crate) struct Partitions {
    schema: String,
    /// The days that have a partition; `None` if there is one table for all.
    days: Option<BTreeSet<Date>>,
    forgotten_before: Option<Timestamp>,
}

/// Whether the record of an event can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    There,
    /// Its day has no partition yet.
    Missing(Date),
    /// Its record may have been there, and be gone.
    Forgotten,
}

impl Partitions {
    pub(crate) async fn load(client: &Client, schema: &str) -> Result<Self, Error> {
        let schema = quote(schema);
        let table = format!("{schema}.inbox_messages");
        let sql = "SELECT relkind = 'p', (SELECT array_agg(child.relname::text) FROM pg_inherits
                       JOIN pg_class AS child ON child.oid = inhrelid WHERE inhparent = parent.oid)
                   FROM pg_class AS parent WHERE oid = to_regclass($1::text)";
        let row = client.query_opt(sql, &[&table]).await.map_err(Error::sql(LOOKING))?;
        let row = row.ok_or_else(|| Error::Tables { reason: format!("{table} does not exist") })?;
        let names: Vec<String> = row.get::<_, Option<_>>(1).unwrap_or_default();
        let days = names.iter().filter_map(|name| day_of(name)).collect();
        let sql = format!(
            "SELECT forgotten_before FROM {schema}.inbox_retention
             WHERE forgotten_before > '-infinity'"
        );
        let forgotten = client.query_opt(&sql, &[]).await.map_err(Error::sql(LOOKING))?;
        Ok(Self {
            schema,
            days: row.get::<_, bool>(0).then_some(days),
            forgotten_before: forgotten.map(|row| row.get(0)),
        })
    }

    pub(crate) fn room(&self, event_time: Timestamp) -> Room {
        if self.forgotten_before.is_some_and(|before| event_time < before) {
            return Room::Forgotten;
        }
        match &self.days {
            Some(days) if !days.contains(&day(event_time)) => Room::Missing(day(event_time)),
            _ => Room::There,
        }
    }

    /// Makes the partitions for yesterday (whose events are on their way) to three days ahead.
    async fn ahead(&mut self, client: &Client) -> Result<u64, Error> {
        let mut created = 0;
        if self.days.is_some() {
            let row = client.query_one("SELECT clock_timestamp()", &[]).await;
            let today = day(row.map_err(Error::sql(LOOKING))?.get(0));
            for offset in -1..=3 {
                created +=
                    u64::from(self.create(client, today.saturating_add(offset.days())).await?);
            }
        }
        Ok(created)
    }

    /// Makes a partition, if it is missing. It is made apart and then attached: that does not wait
    /// for anybody who reads or writes the others.
    pub(crate) async fn create(&mut self, client: &Client, day: Date) -> Result<bool, Error> {
        let Some(days) = &mut self.days else { return Ok(false) };
        if days.contains(&day) {
            return Ok(false);
        }
        let (schema, name) = (&self.schema, partition_name(day));
        let script = format!(
            "BEGIN; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';
             SELECT pg_advisory_xact_lock({ADVISORY_LOCK});
             DO $$ BEGIN
                 IF to_regclass('{quoted}') IS NULL THEN
                     CREATE TABLE {schema}.{name} (LIKE {schema}.inbox_messages INCLUDING ALL);
                     ALTER TABLE {schema}.inbox_messages ATTACH PARTITION {schema}.{name}
                         FOR VALUES FROM ('{day} 00:00:00Z') TO ('{next} 00:00:00Z');
                 END IF;
             END $$;
             COMMIT",
            quoted = format!("{schema}.{name}").replace('\'', "''"),
            next = day.saturating_add(1.day()),
        );
        if let Err(error) = client.batch_execute(&script).await {
            let _ = client.batch_execute("ROLLBACK").await;
            return Err(Error::sql("create a partition of the inbox")(error));
        }
        days.insert(day);
        Ok(true)
    }

    /// The beginning of the first day that is kept. Never so late that something unfinished is
    /// older.
    async fn horizon(&self, client: &Client, keep: Duration) -> Result<Option<Timestamp>, Error> {
        let sql = format!(
            "SELECT least(date_trunc('day', clock_timestamp() - make_interval(secs => $1), 'UTC'),
                 date_trunc('day', (SELECT min(event_time) FROM {}.inbox_messages
                     WHERE status IN ('PROCESSING', 'FAILED')), 'UTC'))",
            self.schema
        );
        let row = client.query_one(&sql, &[&keep.as_secs_f64()]).await;
        let horizon: Timestamp = row.map_err(Error::sql(LOOKING))?.get(0);
        Ok((self.forgotten_before.is_none_or(|before| before < horizon)).then_some(horizon))
    }

    async fn forget_before(&mut self, client: &Client, horizon: Timestamp) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {}.inbox_retention SET forgotten_before = greatest(forgotten_before, $1)",
            self.schema
        );
        let updated = client.execute(&sql, &[&horizon]).await;
        updated.map_err(Error::sql("write down what is forgotten"))?;
        self.forgotten_before = Some(horizon);
        Ok(())
    }

    async fn drop_before(&mut self, client: &Client, horizon: Timestamp) -> Result<u64, Error> {
        let first_kept = day(horizon);
        let days = self.days.as_mut().expect("partitioned");
        let old: Vec<Date> = days.range(..first_kept).copied().collect();
        for day in &old {
            let (schema, name) = (&self.schema, partition_name(*day));
            let script = format!(
                "SET lock_timeout = '{LOCK_TIMEOUT}'; DROP TABLE IF EXISTS {schema}.{name}"
            );
            let dropped = client.batch_execute(&script).await;
            dropped.map_err(Error::sql("drop a partition of the inbox"))?;
            days.remove(day);
        }
        Ok(old.len() as u64)
    }

    async fn delete_before(&self, client: &Client, horizon: Timestamp) -> Result<u64, Error> {
        let sql = format!(
            "DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table}
                 WHERE event_time < $1 AND status NOT IN ('PROCESSING', 'FAILED') LIMIT $2))",
            table = format!("{}.inbox_messages", self.schema)
        );
        let mut deleted = 0;
        loop {
            let result = client.execute(&sql, &[&horizon, &DELETED_AT_ONCE]).await;
            let now = result.map_err(Error::sql("delete old records of the inbox"))?;
            deleted += now;
            if now < DELETED_AT_ONCE.cast_unsigned() {
                return Ok(deleted);
            }
        }
    }
}

const LOOKING: &str = "look at the tables of the inbox";

const PARTITION_PREFIX: &str = "inbox_messages_";

fn partition_name(day: Date) -> String {
    // A year beyond four digits or before zero keeps the name unique, and quoted.
    format!("\"{PARTITION_PREFIX}{}\"", day.to_string().replace('-', ""))
}

fn day_of(partition: &str) -> Option<Date> {
    let digits = partition.strip_prefix(PARTITION_PREFIX)?;
    let (year, rest) = digits.split_at_checked(digits.len().checked_sub(4)?)?;
    let (month, day) = rest.split_at_checked(2)?;
    Date::new(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?).ok()
}

fn day(time: Timestamp) -> Date {
    time.to_zoned(TimeZone::UTC).date()
}

/// A name for use in SQL.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partitions_name_tells_its_day() {
        let day = jiff::civil::date(2026, 7, 9);
        assert_eq!(partition_name(day), "\"inbox_messages_20260709\"");
        assert_eq!(day_of("inbox_messages_20260709"), Some(day));
        assert_eq!(day_of("inbox_messages_pkey"), None);
        assert_eq!(day_of("inbox_messages_x"), None);
    }

    #[test]
    fn what_is_older_than_what_is_remembered_has_no_room() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let partitions = Partitions {
            schema: "public".into(),
            days: Some([jiff::civil::date(2026, 7, 9)].into()),
            forgotten_before: Some(time("2026-07-08T00:00:00Z")),
        };
        for (at, room) in [
            ("2026-07-07T23:59:59Z", Room::Forgotten),
            ("2026-07-08T00:00:00Z", Room::Missing(jiff::civil::date(2026, 7, 8))),
            ("2026-07-09T23:59:59Z", Room::There),
            ("2026-07-10T00:00:00Z", Room::Missing(jiff::civil::date(2026, 7, 10))),
        ] {
            assert_eq!(partitions.room(time(at)), room, "{at}");
        }
    }

    #[test]
    fn the_script_has_no_placeholders_left() {
        for layout in [Layout::Partitioned, Layout::Plain] {
            let script = render_tables("app", layout);
            assert!(!script.contains('{'), "{script}");
            let partitioned = script.contains("PARTITION BY RANGE");
            assert_eq!(partitioned, layout == Layout::Partitioned);
        }
    }
}
