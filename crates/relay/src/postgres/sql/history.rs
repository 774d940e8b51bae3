//! What is written down of a stream, to be compared with it.

use std::time::Duration;

use outbox::Column;
use uuid::Uuid;

use super::Rows;
use super::stream_lost::last_event;
use crate::engine::LastEvent;
use crate::error::Error;

/// Blocks of the table that a sample is drawn from, and rows in it.
const BLOCKS: f32 = 32.0;
const SAMPLED_MAX: i64 = 8;

/// A row that names a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MarkedRow {
    pub(crate) id: Uuid,
    pub(crate) seq: u64,
    /// Since it was marked.
    pub(crate) age: Duration,
}

/// How far a stream was filled.
pub(crate) struct NotedEnd {
    /// When it was created.
    pub(crate) created: String,
    pub(crate) last_seq: u64,
    pub(crate) event: Option<LastEvent>,
}

const COMPARING: &str = "compare rows with the stream";

impl Rows {
    /// What is written down of the stream.
    pub(crate) async fn noted_end(&self, stream: &str) -> Result<Option<NotedEnd>, Error> {
        let streams = self.0.table.companion("tailpost_streams");
        let sql = format!(
            "SELECT created, last_seq, event_seq, event_id FROM {streams} WHERE stream = $1"
        );
        let row = self.0.query_opt(COMPARING, &sql, &[&stream]).await?;
        Ok(row.map(|row| NotedEnd {
            created: row.get(0),
            last_seq: row.get::<_, i64>(1).cast_unsigned(),
            event: last_event(&row, 2),
        }))
    }

    /// Some rows of the last day, at random, that name messages of the stream. Those of a former stream
    /// of that name are left out; its clock may be another one.
    pub(crate) async fn sample_marked(&self, stream: &str) -> Result<Vec<MarkedRow>, Error> {
        let (outbox, id) = (self.0.table.quoted(), self.0.table.column(Column::Id));
        let size = "SELECT coalesce(sum(pg_relation_size(relid)), 0)::float4
                        / current_setting('block_size')::float4
                    FROM pg_partition_tree($1::text::regclass)";
        let blocks: f32 = self.0.query_one(COMPARING, size, &[&outbox]).await?.get(0);
        let percent = (100.0 * BLOCKS / blocks.max(1.0)).min(100.0);
        let sql = format!(
            "SELECT {id}, stream_seq, extract(epoch FROM now() - published_at)::float8
             FROM {outbox} o TABLESAMPLE SYSTEM ($2)
             WHERE stream = $1 AND stream_seq > 0 AND published_at > now() - interval '1 day'
               AND published_at > (SELECT created::timestamptz + interval '5 s' FROM {streams}
                                   WHERE stream = $1)
             ORDER BY random() LIMIT {SAMPLED_MAX}",
            streams = self.0.table.companion("tailpost_streams"),
        );
        let rows = self.0.query(COMPARING, &sql, &[&stream, &percent]).await?;
        let marked = |row: &tokio_postgres::Row| MarkedRow {
            id: row.get(0),
            seq: row.get::<_, i64>(1).cast_unsigned(),
            age: Duration::try_from_secs_f64(row.get(2)).unwrap_or_default(),
        };
        Ok(rows.iter().map(marked).collect())
    }

    /// Whether the row still says so.
    pub(crate) async fn is_marked_so(&self, stream: &str, row: &MarkedRow) -> Result<bool, Error> {
        let sql = format!(
            "SELECT EXISTS (SELECT FROM {} WHERE {} = $1 AND stream = $2 AND stream_seq = $3)",
            self.0.table.quoted(),
            self.0.table.column(Column::Id)
        );
        let MarkedRow { id, seq, .. } = row;
        Ok(self.0.query_one(COMPARING, &sql, &[id, &stream, &seq.cast_signed()]).await?.get(0))
    }
}
