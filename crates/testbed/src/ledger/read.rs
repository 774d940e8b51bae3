//! Reads the table, the dead letters and the stream.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_nats::HeaderMap;
use async_nats::jetstream;
use async_nats::jetstream::consumer::{DeliverPolicy, pull::OrderedConfig};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use futures_util::StreamExt;
use outbox::wire::header;
use tokio_postgres::{Client, Row as Record};
use uuid::Uuid;

use super::{Ledger, Message, Row};

/// How long to wait for a message that the stream says it has.
const MESSAGE_DEADLINE: Duration = Duration::from_secs(30);

impl Ledger {
    /// Reads all there is. `table` is the outbox as in SQL, such as `public.outbox_events`; the dead letters are those of its schema.
    ///
    /// # Errors
    ///
    /// When a server fails, or the table or the stream does not exist.
    pub async fn collect(
        client: &Client,
        table: &str,
        jetstream: &jetstream::Context,
        stream: &str,
    ) -> Result<Self> {
        let mut ledger = Self::default();
        let sql = format!(
            "SELECT id, aggregate_type, aggregate_id, seq, published_at IS NOT NULL, stream_seq
             FROM {table}"
        );
        let rows = client.query(&sql, &[]).await.with_context(|| format!("read {table}"))?;
        ledger.rows = rows.iter().map(row).collect::<Result<_>>()?;
        ledger.dead = dead_letters(client, table).await.context("read the dead letters")?;
        ledger
            .read_stream(jetstream, stream)
            .await
            .with_context(|| format!("read stream {stream}"))?;
        Ok(ledger)
    }

    async fn read_stream(&mut self, jetstream: &jetstream::Context, name: &str) -> Result<()> {
        let stream = jetstream.get_stream(name).await?;
        let state = &stream.cached_info().state;
        if state.messages == 0 {
            return Ok(());
        }
        let last = last_sequence(&stream, state.first_sequence, state.last_sequence).await?;
        let consumer = stream.create_consumer(OrderedConfig {
            deliver_policy: DeliverPolicy::All,
            headers_only: true,
            ..OrderedConfig::default()
        });
        let mut messages = consumer.await?.messages().await?;
        loop {
            let next = tokio::time::timeout(MESSAGE_DEADLINE, messages.next()).await;
            let next = next.with_context(|| format!("no message for {MESSAGE_DEADLINE:?}"))?;
            let Some(next) = next else { bail!("the consumer ended before message {last}") };
            let next = next?;
            let sequence = next.info().map_err(anyhow::Error::from_boxed)?.stream_sequence;
            match message(sequence, next.headers.as_ref())? {
                Some(message) => self.messages.push(message),
                None => self.foreign += 1,
            }
            if sequence >= last {
                return Ok(());
            }
        }
    }
}

/// The last sequence that there is a message for: the end of a stream may have been deleted.
async fn last_sequence(stream: &Stream, first: u64, last: u64) -> Result<u64> {
    for sequence in (first..=last).rev() {
        match stream.get_raw_message(sequence).await {
            Ok(_) => return Ok(sequence),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("the stream is empty")
}

fn row(record: &Record) -> Result<Row> {
    let stream_seq: Option<i64> = record.get(5);
    Ok(Row {
        id: record.get(0),
        aggregate: (record.get(1), record.get(2)),
        seq: record.get(3),
        marked: record.get(4),
        stream_seq: stream_seq.map(u64::try_from).transpose().context("stream_seq is negative")?,
    })
}

async fn dead_letters(client: &Client, table: &str) -> Result<HashSet<Uuid>> {
    let schema = table.rsplit_once('.').map_or("public", |(schema, _)| schema);
    let dead = format!("{schema}.outbox_dead_letter");
    let exists = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&dead]).await?;
    if !exists.get::<_, bool>(0) {
        return Ok(HashSet::new());
    }
    let rows = client.query(&format!("SELECT id FROM {dead}"), &[]).await?;
    Ok(rows.iter().map(|it| it.get(0)).collect())
}

/// `None` if the message carries no event's id.
fn message(sequence: u64, headers: Option<&HeaderMap>) -> Result<Option<Message>> {
    let header = |name: &str| headers.and_then(|it| it.get(name)).map(|it| it.as_str());
    let id = header(header::EVENT_ID).or(header(header::MSG_ID)).and_then(|it| it.parse().ok());
    let Some(id) = id else { return Ok(None) };
    // A message that the log did not bring repeats the position of another event.
    let live = header(header::POSITION_EVENT).is_none();
    let position = header(header::POSITION).filter(|_| live).map(str::parse).transpose();
    let position = position.with_context(|| format!("position of message {sequence}"))?;
    Ok(Some(Message { sequence, id, position }))
}
