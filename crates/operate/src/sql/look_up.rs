//! What has become of events, by id, and of all that are committed.

use std::collections::HashMap;

use outbox::Column;
use outbox::waiting::Seen;
use relay::access::mark;
use relay::{Error, EventState};
use tokio_postgres::Row;
use uuid::Uuid;

use super::Store;
use crate::explain::RowStory;

/// Rows beyond this are not counted.
const COUNT_MAX: i64 = 10_000;

impl Store {
    /// What the tables say of the events, in one statement; of those that they do not have too.
    pub(crate) async fn look_up(
        &self,
        ids: Vec<Uuid>,
    ) -> Result<HashMap<Uuid, Seen<EventState>>, Error> {
        let sql = format!(
            "SELECT id, status, publish_attempts, publish_error, stream, stream_seq, reason
             FROM {} WHERE id = ANY($1)",
            self.table.companion("outbox_status")
        );
        let rows = self.query("look for events", &sql, &[&ids]).await?;
        let mut states: HashMap<_, _> =
            ids.into_iter().map(|id| (id, Seen::Open(EventState::Unknown))).collect();
        states.extend(rows.iter().map(|row| (row.get(0), state(row))));
        Ok(states)
    }

    /// Of the outbox's row, what says what became of it.
    pub(crate) async fn explain_row(&self, id: Uuid) -> Result<Option<RowStory>, Error> {
        let sql = format!(
            "SELECT s.status, s.aggregate_type, s.aggregate_id, s.event_type, s.occurred_at::text,
                 o.txid::text AS transaction, o.seq,
                 coalesce(s.publish_attempts, 0)::int AS attempts, s.publish_error AS error,
                 s.next_attempt_at::text, s.published_at::text, s.commit_lsn, s.stream,
                 s.stream_seq
             FROM {} s JOIN {} o ON o.{} = s.id
             WHERE s.id = $1 AND s.dead_at IS NULL",
            self.table.companion("outbox_status"),
            self.table.quoted(),
            self.table.column(Column::Id),
        );
        Ok(self.read("look for the event in the outbox", &sql, &[&id]).await?.pop())
    }

    /// How many of the rows that are visible in the snapshot are neither published nor parked;
    /// counted up to 10,000.
    pub(crate) async fn count_unpublished(&self, snapshot: &str) -> Result<u64, Error> {
        let sql = format!(
            "SELECT count(*) FROM (
                 SELECT FROM {} o
                 WHERE published_at IS NULL AND {} AND {} AND {}
                     AND pg_visible_in_snapshot({}, $1::text::pg_snapshot)
                 LIMIT {COUNT_MAX}) unpublished",
            self.table.quoted(),
            mark::not_published(&self.table, "o"),
            self.owned_rows("o"),
            mark::not_owed(&self.table),
            mark::transaction("o"),
        );
        let row = self.query_one("count what is not published", &sql, &[&snapshot]).await?;
        let count: i64 = row.get(0);
        Ok(count.unsigned_abs())
    }
}

fn state(row: &Row) -> Seen<EventState> {
    let (status, attempts): (&str, Option<i32>) = (row.get(1), row.get(2));
    let (stream, seq): (Option<String>, Option<i64>) = (row.get(4), row.get(5));
    let reason = || row.get::<_, Option<String>>(6).unwrap_or_default();
    match status {
        "PUBLISHED" if row.get::<_, Option<&str>>(3) == Some(outbox::DROPPED) => {
            Seen::Final(EventState::Dropped)
        }
        "PUBLISHED" => {
            let seq = seq.and_then(|it| u64::try_from(it).ok());
            Seen::Final(EventState::Published { stream, seq })
        }
        "DEAD" => Seen::Final(EventState::Dead { reason: reason() }),
        "DISCARDED" => Seen::Final(EventState::Discarded { reason: reason() }),
        _ => Seen::Open(EventState::Pending {
            attempts: attempts.and_then(|it| u32::try_from(it).ok()).unwrap_or(0),
            error: row.get(3),
        }),
    }
}
