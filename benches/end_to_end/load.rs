//! The events of a measurement, and the rows that wait to be drained.

use anyhow::{Context, Result, ensure};
use outbox::Event;
use serde::Serialize;

use crate::bench_env::BenchEnv;

/// What the rows look like.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Shape {
    pub(crate) rows: u32,
    /// As PostgreSQL prints it.
    pub(crate) payload_bytes: usize,
    /// The type of the table's column: `jsonb`, `json` or `text`.
    pub(crate) payload_type: &'static str,
    pub(crate) aggregates: u32,
    pub(crate) rows_per_transaction: u32,
    /// The slot is younger than the rows: the scanner brings them.
    pub(crate) before_the_slot: bool,
}

impl Shape {
    /// The point from which one dimension at a time is varied.
    pub(crate) const DEFAULT: Self = Self {
        rows: 200_000,
        payload_bytes: 300,
        payload_type: "jsonb",
        aggregates: 1_000,
        rows_per_transaction: 100,
        before_the_slot: false,
    };

    /// The `n`-th event of a run.
    pub(crate) fn event(self, n: u32) -> Result<Event, outbox::Error> {
        // PostgreSQL prints a space behind each colon and comma: three more bytes than are written.
        let bare = serde_json::to_string(&Payload { n, note: "" }).map_or(0, |it| it.len());
        let note = noise(n, self.payload_bytes.saturating_sub(bare + 3));
        let aggregate = format!("o-{}", n % self.aggregates);
        Event::new("order", aggregate, "OrderPlaced", &Payload { n, note: &note })
    }
}

#[derive(Serialize)]
struct Payload<'a> {
    n: u32,
    note: &'a str,
}

/// Characters that PostgreSQL cannot compress: what repeats would make large rows small.
fn noise(seed: u32, length: usize) -> String {
    let mut state = u64::from(seed) + 1;
    let mut noise = String::with_capacity(length + 16);
    while noise.len() < length {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        noise.push_str(&format!("{:016x}", mixed ^ (mixed >> 31)));
    }
    noise.truncate(length);
    noise
}

/// Commits the rows that then wait in the log. The only commits that are not waited for.
pub(crate) async fn load(env: &BenchEnv<'_>, shape: Shape) -> Result<()> {
    let Shape { rows, rows_per_transaction, .. } = shape;
    let mut client = env.servers.postgres.client(&env.name).await?;
    client.batch_execute("SET synchronous_commit = off").await?;
    for first in (0..rows).step_by(rows_per_transaction as usize) {
        let last = rows.min(first + rows_per_transaction);
        let events: Result<Vec<Event>, _> = (first..last).map(|n| shape.event(n)).collect();
        let transaction = client.transaction().await?;
        outbox::enqueue_all(&transaction, &events?).await?;
        transaction.commit().await?;
    }
    let sql = "SELECT count(*), count(*) FILTER (WHERE octet_length(payload::text) = $1)
               FROM outbox_events";
    let row = client.query_one(sql, &[&i32::try_from(shape.payload_bytes)?]).await?;
    let loaded: (i64, i64) = (row.get(0), row.get(1));
    ensure!(loaded == (rows.into(), rows.into()), "loaded {loaded:?}, not {rows} rows");
    // What autovacuum and the checkpointer would do while the rows wait.
    client.batch_execute("VACUUM ANALYZE outbox_events").await?;
    client.batch_execute("CHECKPOINT").await.context("checkpoint")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_size_once_printed() {
        for payload_bytes in [100, 300, 8_192] {
            for n in [0, 9, 123_456] {
                let event = Shape { payload_bytes, ..Shape::DEFAULT }.event(n).unwrap();
                assert_eq!(event.payload.len() + 3, payload_bytes, "event {n}");
            }
        }
        assert_ne!(noise(1, 40), noise(2, 40));
    }
}
