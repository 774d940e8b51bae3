//! Events without a row that a slot has yet to bring: nothing else has them.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_postgres::types::ToSql;

use super::Store;
use crate::error::Error;

/// Changes that are looked at. A slot with more is read by a relay first.
const CHANGES_MAX: i64 = 10_000;

/// How long transactions are waited for that may have emitted something.
const RUNNING_MAX: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Of a slot, whether it has such events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    Nothing,
    Something,
    /// It has so much that nobody looked at all of it.
    Unknown,
}

impl Store {
    /// What the slot, which nobody reads, has of messages with the outbox's prefix. Changes nothing.
    pub(crate) async fn unread_messages(
        &self,
        slot: &str,
        publication: &str,
    ) -> Result<Unread, Error> {
        // 'M', a flag, the position, the prefix with a zero behind it.
        let sql = "SELECT count(*), coalesce(bool_or(
                 CASE WHEN get_byte(data, 0) = ascii('M') AND get_byte(data, 1) = 1
                     THEN substring(data FROM 11 FOR octet_length(prefix)) = prefix END), false)
             FROM pg_logical_slot_peek_binary_changes($1, NULL, $3::bigint::int,
                 VARIADIC ARRAY['proto_version', '1', 'messages', 'true',
                     'publication_names', $2]),
                 (SELECT convert_to($4, 'UTF8') || '\\000'::bytea) AS ours (prefix)";
        // As the plugin parses a list of identifiers.
        let publication = format!("\"{}\"", publication.replace('"', "\"\""));
        let prefix = self.table.wal_prefix();
        let parameters: [&(dyn ToSql + Sync); 4] = [&slot, &publication, &CHANGES_MAX, &prefix];
        let row = self.query_one("look at what the slot has not brought", sql, &parameters).await?;
        Ok(match (row.get::<_, i64>(0), row.get(1)) {
            (_, true) => Unread::Something,
            (CHANGES_MAX.., false) => Unread::Unknown,
            (_, false) => Unread::Nothing,
        })
    }

    /// Waits until every transaction is over that runs now, for a bounded time. Says whether they
    /// are.
    pub(crate) async fn outwait_transactions(&self) -> Result<bool, Error> {
        let doing = "wait for transactions";
        let number = async |sql: &str| -> Result<i64, Error> {
            let row = self.query_one(doing, sql, &[]).await?;
            Ok(row.get(0))
        };
        let next = number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").await?;
        let until = Instant::now() + RUNNING_MAX;
        loop {
            let oldest = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
            // Others see the tables as they were before, and have written nothing yet.
            let snapshots = format!(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()
                     AND coalesce(backend_type, 'client backend') = 'client backend'
                     AND age(backend_xmin) > age('{}'::xid)",
                next % (1 << 32)
            );
            if number(oldest).await? >= next && number(&snapshots).await? == 0 {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            sleep(LOOK_EVERY).await;
        }
    }
}
