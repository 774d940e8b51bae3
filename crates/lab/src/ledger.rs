//! Compares what was committed with what the stream holds.

mod raw;
mod stream;
mod tally;

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result};
use async_nats::jetstream::Context;
use futures_util::TryStreamExt;
use outbox::wire::Position;
use outbox::{DROPPED, Table};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::workload::Written;

pub use stream::Stored;
pub use tally::Tally;
use tally::{Duplicate, Findings};

/// The rows of an outbox and the messages of a stream, as they were when they were collected.
pub struct Ledger {
    rows: HashMap<Uuid, Row>,
    dead: HashSet<Uuid>,
    messages: Vec<Stored>,
    allowed: HashSet<Uuid>,
}

struct Row {
    aggregate: (String, String),
    seq: i64,
    published: bool,
    /// Not meant for the stream.
    dropped: bool,
    stream_seq: Option<i64>,
}

impl Ledger {
    /// Reads everything: rows, dead letters if that table exists, and all messages in their order.
    ///
    /// Nothing should be written meanwhile, or what is written will look lost or invented.
    ///
    /// # Errors
    ///
    /// When a server does not answer, or table or stream do not exist.
    pub async fn collect(
        client: &Client,
        table: &Table,
        jetstream: &Context,
        stream: &str,
    ) -> Result<Self> {
        let messages = stream::read(jetstream, stream).await?;
        Self::of(client, table, messages).await
    }

    /// As [`Ledger::collect`], from the server at `url`, whatever bytes other clients have stored in
    /// the stream.
    ///
    /// # Errors
    ///
    /// As [`Ledger::collect`].
    pub async fn collect_any(
        client: &Client,
        table: &Table,
        url: &str,
        stream: &str,
    ) -> Result<Self> {
        Self::of(client, table, raw::read(url, stream).await?).await
    }

    async fn of(client: &Client, table: &Table, messages: Vec<Stored>) -> Result<Self> {
        let rows = read_rows(client, &table.quoted()).await?;
        let dead_letter = table.companion("outbox_dead_letter");
        let find = "SELECT to_regclass($1) IS NOT NULL";
        let dead = if client.query_one(find, &[&dead_letter]).await?.get(0) {
            read_rows(client, &dead_letter).await?
        } else {
            HashMap::new()
        };
        let dead_ids = dead.keys().copied().collect();
        let mut all = dead;
        all.extend(rows);
        Ok(Self { rows: all, dead: dead_ids, messages, allowed: HashSet::new() })
    }

    /// Adds the messages of a further stream: each shard of a relay has its own.
    ///
    /// # Errors
    ///
    /// When the broker does not answer, or the stream does not exist.
    pub async fn and_stream(mut self, jetstream: &Context, stream: &str) -> Result<Self> {
        let number = self.messages.last().map_or(0, |it| it.stream) + 1;
        let messages = stream::read(jetstream, stream).await?;
        self.messages.extend(messages.into_iter().map(|it| Stored { stream: number, ..it }));
        Ok(self)
    }

    /// Says which events may be in the stream without a row: those deleted on purpose.
    pub fn allowing(mut self, deleted: impl IntoIterator<Item = Uuid>) -> Self {
        self.allowed.extend(deleted);
        self
    }

    /// Says which rows came with `published_at`: nobody is to publish them again.
    pub fn without(mut self, published: impl IntoIterator<Item = Uuid>) -> Self {
        for id in published {
            self.rows.remove(&id);
        }
        self
    }

    /// All messages, in the stream's order.
    pub fn messages(&self) -> &[Stored] {
        &self.messages
    }

    /// Compares. Rows that `written` does not know of count as committed too.
    pub fn report(&self, written: &Written) -> Tally {
        let mut committed: HashSet<Uuid> = self.rows.keys().copied().collect();
        committed.extend(written.committed.iter().map(|it| it.id));
        let rolled_back: HashSet<Uuid> = written.rolled_back.iter().copied().collect();

        let mut findings = Findings::default();
        let mut stored: HashMap<Uuid, u64> = HashMap::new();
        let mut order = Order::default();
        for message in &self.messages {
            let Some(id) = message.id else { continue };
            if let Some(first) = stored.get(&id) {
                findings.duplicates.push(Duplicate { id, first: *first, again: message.sequence });
                continue;
            }
            stored.insert(id, message.sequence);
            let known = committed.contains(&id) || self.allowed.contains(&id);
            if rolled_back.contains(&id) || !known {
                findings.phantoms.push(id);
            }
            if order.breaks(message, self.rows.get(&id)) {
                findings.out_of_order.push(id);
            }
        }
        let dropped = |id: &Uuid| self.rows.get(id).is_some_and(|row| row.dropped);
        let arrived =
            |id: &&Uuid| stored.contains_key(*id) || self.dead.contains(*id) || dropped(id);
        findings.lost = committed.iter().filter(|id| !arrived(id)).copied().collect();
        findings.lost.sort_unstable();
        Tally::new(
            [
                committed.len(),
                rolled_back.len(),
                stored.len(),
                self.marked(&stored),
                self.dead.len(),
            ],
            findings,
        )
    }

    /// Counts rows with `published_at`, but for those whose `stream_seq` is another message's.
    fn marked(&self, stored: &HashMap<Uuid, u64>) -> usize {
        let places: HashSet<(Uuid, i64)> = self
            .messages
            .iter()
            .filter_map(|it| Some((it.id?, i64::try_from(it.sequence).ok()?)))
            .collect();
        let is_right = |id: Uuid, row: &Row| {
            let seq = row.stream_seq.filter(|_| stored.contains_key(&id));
            row.published && seq.is_none_or(|seq| places.contains(&(id, seq)))
        };
        self.rows.iter().filter(|(id, row)| is_right(**id, row)).count()
    }
}

/// How far each aggregate and each log have come.
#[derive(Default)]
struct Order<'a> {
    by_aggregate: HashMap<&'a (String, String), (usize, i64)>,
    by_history: HashMap<(usize, u64, u32), (u64, u32)>,
}

impl<'a> Order<'a> {
    /// Whether the stream holds something before this message that belongs behind it, or another
    /// stream holds something of its aggregate, so that they have no order.
    fn breaks(&mut self, message: &Stored, row: Option<&'a Row>) -> bool {
        let by_aggregate = row.is_some_and(|row| {
            let last = self.by_aggregate.entry(&row.aggregate).or_insert((message.stream, row.seq));
            let (stream, seq) = *last;
            last.1 = seq.max(row.seq);
            row.seq < seq || message.stream != stream
        });
        let by_log =
            message.position.filter(|_| message.has_expected_last_sequence).is_some_and(|it| {
                let Position { system_id, timeline, lsn, ordinal } = it;
                let last =
                    self.by_history.entry((message.stream, system_id, timeline)).or_default();
                (lsn, ordinal) < std::mem::replace(last, (*last).max((lsn, ordinal)))
            });
        by_aggregate || by_log
    }
}

async fn read_rows(client: &Client, table: &str) -> Result<HashMap<Uuid, Row>> {
    let sql = format!(
        "SELECT id, aggregate_type, aggregate_id, seq, published_at IS NOT NULL, stream_seq, \
         published_at IS NOT NULL AND coalesce(publish_error = '{DROPPED}', false) FROM {table}"
    );
    let none: [&(dyn ToSql + Sync); 0] = [];
    let rows = client.query_raw(&sql, none).await.with_context(|| format!("read {table}"))?;
    let rows = rows.map_ok(|row| {
        let aggregate = (row.get(1), row.get(2));
        let seq = row.get::<_, Option<i64>>(3).unwrap_or_default();
        let (published, stream_seq, dropped) = (row.get(4), row.get(5), row.get(6));
        (row.get(0), Row { aggregate, seq, published, dropped, stream_seq })
    });
    rows.try_collect().await.with_context(|| format!("read {table}"))
}
