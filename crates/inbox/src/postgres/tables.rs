//! The tables of the inbox: made, kept in partitions, and forgotten after a while.
//!
//! The record of an event may only go when the event cannot come any more. Nobody can promise that,
//! so it is written down up to when events are forgotten, and an older one becomes a dead letter
//! instead of running a second time.

mod forgetting;
mod ranges;

use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use outbox::migrations::{create_schema, take_turn};
use outbox::quote;
use servers::partitions::{self, Partition, Partitions as Ranges};
use tokio_postgres::Client;
use tracing::warn;

use self::ranges::{Width, gap, partition_name};
use crate::Error;
use servers::describe;

pub use self::forgetting::{Keep, Maintained, Upkept, look_after, upkept};

const SQL: [&str; 8] = [
    include_str!("../../migrations/0002_inbox.sql"),
    include_str!("../../migrations/0008_inbox_places.sql"),
    include_str!("../../migrations/0009_inbox_selections.sql"),
    include_str!("../../migrations/0010_inbox_partitions.sql"),
    include_str!("../../migrations/0011_inbox_patience.sql"),
    include_str!("../../migrations/0012_inbox_attempts.sql"),
    include_str!("../../migrations/0013_inbox_audit.sql"),
    include_str!("../../migrations/0015_inbox_unread.sql"),
];

/// Claim while the tables are made or partitions are added or dropped.
const ADVISORY_LOCK: i64 = 0x696E_626F_785F_6D67; // "inbox_mg"

/// The script that makes the tables, to be read, or run by an administrator. Running it twice does
/// no harm. Records are in a partition for each day, or for each month if they are kept for longer
/// than 60 days. An `inbox_messages` that exists without partitions is used as it is: its old records
/// are deleted in batches.
#[must_use]
pub fn render_tables(schema: &str) -> String {
    SQL.join("\n").replace("{schema}", &quote(schema))
}

/// Makes the tables that are missing, and the partitions for today and the next days. Safe to run
/// again, and while inboxes run.
///
/// # Errors
///
/// If PostgreSQL refuses.
pub async fn create_tables(client: &mut Client, schema: &str) -> Result<(), Error> {
    let making = async {
        let tx = client.transaction().await?;
        tx.batch_execute(&take_turn(ADVISORY_LOCK)).await?;
        create_schema(&tx, schema).await?;
        let script = render_tables(schema);
        let (tables, columns, kinds) = columns(&script);
        let lacking = tx.query(LACKING, &[&tables, &columns, &kinds]).await?;
        for add in &lacking {
            tx.batch_execute(add.get(0)).await?;
        }
        tx.batch_execute(&script).await?;
        tx.commit().await
    };
    making.await.map_err(Error::sql("create the tables of the inbox"))?;
    Partitions::load(client, schema).await?.ahead(client, Width::Day).await.map(drop)
}

/// The statements that bring back columns $2 of types $3 which tables $1 lack, where a table is there.
const LACKING: &str = "
    SELECT format('ALTER TABLE %s ADD COLUMN %s %s', name, part, type)
    FROM unnest($1::text[], $2::text[], $3::text[]) AS made (name, part, type)
    WHERE to_regclass(name) IS NOT NULL AND NOT EXISTS (SELECT FROM pg_attribute
        WHERE attrelid = to_regclass(name) AND attname = part AND NOT attisdropped)";

/// Tables, columns and types that the script makes with the tables. It adds the others by itself.
fn columns(script: &str) -> (Vec<&str>, Vec<&str>, Vec<&str>) {
    let (mut found, mut table) = ((vec![], vec![], vec![]), None);
    for line in script.lines() {
        if let Some(name) = line.strip_prefix("CREATE TABLE IF NOT EXISTS ") {
            table = name.strip_suffix(" (");
        } else if line.starts_with(')') {
            table = None;
        } else if let (Some(name), Some(line)) = (table, line.strip_prefix("    "))
            && line.starts_with(|it: char| it.is_ascii_lowercase())
            && let Some((column, kind)) = line.split_once(' ')
        {
            found.0.push(name);
            found.1.push(column);
            found.2.push(kind.trim().trim_end_matches(','));
        }
    }
    found
}

/// Makes partitions ahead, and says what there is room for.
pub(crate) async fn prepare(
    client: &Client,
    schema: &str,
    keep: Option<Duration>,
) -> Result<Partitions, Error> {
    let mut partitions = Partitions::load(client, schema).await?;
    if let Err(error) = partitions.ahead(client, Width::of(keep)).await {
        // Others may be there, and are made when they are needed.
        warn!(error = describe(&error), "could not make the inbox's partitions");
    }
    Ok(partitions)
}

/// What there is room for, as of the last look.
#[derive(Debug, Clone)]
pub struct Partitions {
    schema: String,
    /// `None` if somebody made one table for all.
    ranges: Option<Ranges>,
    forgotten_before: Option<Timestamp>,
}

/// Whether the record of an event can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Yes.
    There,
    /// No partition has this time yet.
    Missing(Timestamp),
    /// Its record may have been there, and be gone.
    Forgotten,
}

impl Partitions {
    /// What there is room for now.
    ///
    /// # Errors
    ///
    /// If PostgreSQL refuses; [`Error::Tables`] if there are none.
    pub async fn load(client: &Client, schema: &str) -> Result<Self, Error> {
        let schema = quote(schema);
        let table = format!("{schema}.inbox_messages");
        let sql = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass($1::text)";
        let row = client.query_opt(sql, &[&table]).await.map_err(Error::sql(LOOKING))?;
        let row = row.ok_or_else(|| Error::Tables { reason: format!("{table} does not exist") })?;
        let ranges = if row.get(0) { Some(Self::ranges(client, &table).await?) } else { None };
        let sql = format!(
            "SELECT forgotten_before FROM {schema}.inbox_retention
             WHERE forgotten_before > '-infinity'"
        );
        let forgotten = client.query_opt(&sql, &[]).await.map_err(Error::sql(LOOKING))?;
        Ok(Self { schema, ranges, forgotten_before: forgotten.map(|row| row.get(0)) })
    }

    async fn ranges(client: &Client, table: &str) -> Result<Ranges, Error> {
        let rows = client.query(partitions::LOAD, &[&table]).await.map_err(Error::sql(LOOKING))?;
        Ok(Ranges::new(rows.iter().map(Partition::of)))
    }

    /// Whether there is room for the record of an event of this time.
    #[must_use]
    pub fn room(&self, event_time: Timestamp) -> Room {
        if self.forgotten_before.is_some_and(|before| event_time < before) {
            return Room::Forgotten;
        }
        match &self.ranges {
            Some(ranges) if !ranges.have(event_time) => Room::Missing(event_time),
            _ => Room::There,
        }
    }

    /// Makes room for yesterday (whose events are on their way) to three days ahead.
    async fn ahead(&mut self, client: &Client, width: Width) -> Result<u64, Error> {
        let mut created = 0;
        if self.ranges.is_some() {
            let row = client.query_one("SELECT clock_timestamp()", &[]).await;
            let now: Timestamp = row.map_err(Error::sql(LOOKING))?.get(0);
            for offset in -1..=3 {
                let time = now.checked_add((24 * offset).hours()).unwrap_or(now);
                created += u64::from(self.create_as(client, time, width).await?);
            }
        }
        Ok(created)
    }

    /// Makes a partition for this time, if there is none. It has everything up to its neighbours:
    /// not one for each day that anybody names.
    ///
    /// # Errors
    ///
    /// If PostgreSQL refuses.
    pub async fn create(&mut self, client: &Client, time: Timestamp) -> Result<bool, Error> {
        self.create_as(client, time, Width::Day).await
    }

    /// A partition is made apart and then attached: that does not wait for anybody who reads or
    /// writes the others.
    async fn create_as(
        &mut self,
        client: &Client,
        time: Timestamp,
        width: Width,
    ) -> Result<bool, Error> {
        let Some(ranges) = &self.ranges else { return Ok(false) };
        if ranges.have(time) {
            return Ok(false);
        }
        let (since, until) = gap(ranges, time, width);
        let (schema, name) = (&self.schema, partition_name(since, until));
        let script = format!(
            "BEGIN; {}
             DO $$ BEGIN
                 IF to_regclass('{quoted}') IS NULL THEN
                     CREATE TABLE {schema}.{name} (LIKE {schema}.inbox_messages INCLUDING ALL);
                     ALTER TABLE {schema}.inbox_messages ATTACH PARTITION {schema}.{name}
                         {bounds};
                 END IF;
             END $$;
             COMMIT",
            take_turn(ADVISORY_LOCK),
            quoted = format!("{schema}.{name}").replace('\'', "''"),
            bounds = partitions::bounds(since, until),
        );
        let made = client.batch_execute(&script).await;
        if made.is_err() {
            let _ = client.batch_execute("ROLLBACK").await;
        }
        // Another worker may have been first, with other bounds.
        let ranges = Self::ranges(client, &format!("{schema}.inbox_messages")).await?;
        let there = ranges.have(time);
        self.ranges = Some(ranges);
        match made {
            Err(error) if !there => Err(Error::sql("create a partition of the inbox")(error)),
            made => Ok(made.is_ok()),
        }
    }
}

const LOOKING: &str = "look at the tables of the inbox";

#[cfg(test)]
mod tests {
    use lab::{Postgres, PostgresOptions};

    use super::*;

    #[test]
    fn what_is_older_than_what_is_remembered_has_no_room() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let day = Partition {
            name: "public.inbox_messages_20260709".into(),
            since: Some(time("2026-07-09T00:00:00Z")),
            until: Some(time("2026-07-10T00:00:00Z")),
        };
        let partitions = Partitions {
            schema: "public".into(),
            ranges: Some(Ranges::new([day])),
            forgotten_before: Some(time("2026-07-08T00:00:00Z")),
        };
        for (at, room) in [
            ("2026-07-07T23:59:59Z", Room::Forgotten),
            ("2026-07-08T00:00:00Z", Room::Missing(time("2026-07-08T00:00:00Z"))),
            ("2026-07-09T23:59:59Z", Room::There),
            ("2026-07-10T00:00:00Z", Room::Missing(time("2026-07-10T00:00:00Z"))),
        ] {
            assert_eq!(partitions.room(time(at)), room, "{at}");
        }
    }

    #[test]
    fn the_script_has_no_placeholders_left() {
        let script = render_tables("app");
        assert!(!script.contains('{'), "{script}");
        assert!(script.contains("PARTITION BY RANGE (event_time)"), "{script}");
    }

    /// What cannot be, by the table's own word, whoever writes it.
    #[tokio::test]
    async fn the_tables_refuse_what_contradicts_itself() {
        let postgres = Postgres::start(PostgresOptions::default()).await.expect("start PostgreSQL");
        let mut client = postgres.client("postgres").await.expect("connect");
        create_tables(&mut client, "public").await.expect("make the tables");
        let sound = "INSERT INTO inbox_messages (consumer, message_id, event_time, subject, status,
                         attempts) VALUES ('c', gen_random_uuid(), now(), 's', 'REJECTED', 1);
                     INSERT INTO inbox_rewinds (consumer, stream, from_seq, until_seq, again,
                         requested_by, removed_to) VALUES ('c', 's', 1, 2, false, 'ada', 0);
                     INSERT INTO inbox_controls (consumer) VALUES ('c')";
        client.batch_execute(sound).await.expect("nothing contradicts itself");
        for (constraint, change) in [
            ("inbox_claimed_until", "inbox_messages SET status = 'PROCESSING'"),
            ("inbox_claimed_until", "inbox_messages SET expires_at = now()"),
            ("inbox_claimed_by", "inbox_messages SET lease_token = gen_random_uuid()"),
            ("inbox_processed_when", "inbox_messages SET status = 'PROCESSED'"),
            ("inbox_processed_when", "inbox_messages SET processed_at = now()"),
            ("inbox_tried_again", "inbox_messages SET next_attempt_at = now()"),
            ("inbox_attempts_end", "inbox_messages SET finished_attempts = 2"),
            ("inbox_place", "inbox_messages SET stream_seq = 1"),
            ("inbox_retention_failed", "inbox_retention SET failed_at = now()"),
            ("inbox_rewinds_begun", "inbox_rewinds SET begun_at = now()"),
            ("inbox_rewinds_ended", "inbox_rewinds SET outcome = 'rewound'"),
            ("inbox_controls_paused", "inbox_controls SET paused_by = 'ada'"),
            ("inbox_controls_reason", "inbox_controls SET reason = 'a repair'"),
        ] {
            let refused = client.execute(&format!("UPDATE {change}"), &[]).await;
            let refused = refused.expect_err(change);
            let refused = refused.as_db_error().and_then(|it| it.constraint());
            assert_eq!(refused, Some(constraint), "{change}");
        }
    }
}
