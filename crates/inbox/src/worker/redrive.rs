//! Dead letters that were requeued take the way of every event: through lanes, claim and handler,
//! but from their table instead of from the stream, where the consumer is past them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tracing::{info, warn};
use uuid::Uuid;

use crate::Error;
use crate::config::Config;
use crate::engine::{Delivered, Due, Path, RedriveSchedule, Task};
use crate::feed::Feed;
use crate::message::{Message, Origin, Whence};
use crate::nats::stored_message;
use crate::postgres::attended::answered;
use crate::postgres::sql::requeued;
use crate::postgres::store::Store;
use crate::record::Key;
use crate::worker::work::Context;

/// Letters taken at a time.
const TAKEN_MAX: usize = 64;

/// Events that nobody has taken at a time.
const ORPHANS_MAX: i64 = 16;

/// How long an event is due before it counts as one of them. What is in memory all the same is known
/// there by its place in the stream.
const ORPHANED_AFTER: Duration = Duration::from_secs(20);

/// Looks for requeued letters for as long as somebody takes them.
pub(crate) struct Redrive {
    context: Arc<Context>,
    /// Quoted.
    schema: String,
    nats: Client,
    origin: Origin,
    schedule: RedriveSchedule,
}

impl Redrive {
    pub(crate) fn new(context: &Arc<Context>, nats: Client, origin: Origin) -> Self {
        let schedule = RedriveSchedule::new(Instant::now());
        let schema = context.config.quoted_schema();
        Self { context: Arc::clone(context), schema, nats, origin, schedule }
    }

    /// Brings what is due, while there is room for it, until the session takes nothing more.
    pub(crate) async fn run(mut self, mut feed: Feed) {
        loop {
            let Ok(most) = feed.room_for(1).await else { return };
            let task = self.schedule.next(Instant::now());
            let done = async {
                if let Task::Wait { until } = task {
                    tokio::time::sleep_until(until.into()).await;
                    return;
                }
                let context = Arc::clone(&self.context);
                let _turn = context.pool.turns.looks.acquire().await;
                if let Ok(store) = self.context.pool.try_get().await {
                    self.perform(task, store, most.min(TAKEN_MAX), &feed).await;
                } else {
                    // A database that is away is reported and waited for by others.
                    self.schedule.not_begun(task, Instant::now());
                }
            };
            tokio::select! {
                () = done => {}
                () = feed.closed() => return,
            }
        }
    }

    async fn perform(&mut self, task: Task, store: Store, most: usize, feed: &Feed) {
        let done = match task {
            Task::Adopt { after } => self.adopt(&store, after, feed).await,
            Task::Requeued { after_seq } => self.pass(&store, after_seq, most, feed).await,
            Task::Wait { .. } => Ok(()),
        };
        match done {
            Ok(()) => self.context.pool.put(store),
            Err(error) => {
                self.schedule.failed(Instant::now());
                let (consumer, error) = (&self.context.config.consumer, error.without_data());
                warn!(consumer, error, "could not look for requeued events");
            }
        }
    }

    /// Brings events that were begun and that nobody has: their retries were in the memory of a
    /// worker that is gone, and the broker does not deliver them any more.
    async fn adopt(&mut self, store: &Store, after: Key, feed: &Feed) -> Result<(), Error> {
        let Config { consumer, stream, subjects, .. } = &*self.context.config;
        let overdue = ORPHANED_AFTER.as_secs_f64();
        let (time, id) = (&after.event_time, &after.id);
        let parameters: [&(dyn ToSql + Sync); 7] =
            [consumer, stream, &overdue, time, id, &ORPHANS_MAX, subjects];
        let sql = requeued::find_orphans(&self.schema);
        let asked = store.client().query(&sql, &parameters);
        let rows = answered("look for events that nobody has", asked).await?;
        for row in &rows {
            let key = Key { id: row.get("message_id"), event_time: row.get("event_time") };
            self.schedule.adopted(key);
            let seq = row.get::<_, i64>("stream_seq").cast_unsigned();
            let stored = stored_message::get(&self.nats, stream, seq).await?;
            let reply =
                stored.as_ref().map(|it| it.ack_subject(stream, &self.context.config.durable()));
            let message = stored.map(|it| it.understood(&self.origin)).filter(|it| it.key == key);
            let message = message
                .unwrap_or_else(|| Message::gone(key, row.get("subject"), &self.origin, seq));
            let reply = reply.filter(|_| message.whence == Whence::Stream);
            let message = Arc::new(message);
            if feed.bring(Delivered { message, reply, path: Path::Careful }).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn pass(
        &mut self,
        store: &Store,
        after_seq: i64,
        most: usize,
        feed: &Feed,
    ) -> Result<(), Error> {
        let doing = "look for requeued events";
        let Config { consumer, stream, subjects, .. } = &*self.context.config;
        let client = store.client();
        answered(doing, client.execute(&requeued::sweep_letters(&self.schema), &[consumer]))
            .await?;
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let due: [&(dyn ToSql + Sync); 5] = [consumer, stream, &limit, &after_seq, subjects];
        let due = answered(doing, client.query(&requeued::find_due(&self.schema), &due)).await?;
        let found: Vec<Due> = due
            .iter()
            .map(|row| Due {
                stream_seq: row.get("stream_seq"),
                is_first: row.get::<_, i64>("turn") == 1,
            })
            .collect();
        self.schedule.found(&found, most);
        let sql = requeued::find_letter(&self.schema);
        for row in due {
            let id: Uuid = row.get("message_id");
            let letter: [&(dyn ToSql + Sync); 2] = [consumer, &id];
            let asked = client.query_opt(&sql, &letter);
            let Some(row) = answered(doing, asked).await? else { continue };
            let message = Arc::new(message(&row, stream));
            info!(
                consumer,
                event_id = %message.key.id,
                lsn = message.lsn(),
                trace_id = message.trace_id().map(display),
                "handling a requeued event"
            );
            let delivered = Delivered { message, reply: None, path: Path::Careful };
            if feed.bring(delivered).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// The message as it travelled.
fn message(row: &Row, stream: &str) -> Message {
    let raw = row.get::<_, Option<Vec<u8>>>("raw_headers");
    let mut headers =
        raw.and_then(|raw| stored_message::parse_headers(&raw).ok()).unwrap_or_default();
    let kept: serde_json::Value = row.get("headers");
    for (name, values) in kept.as_object().into_iter().flatten() {
        for value in values.as_array().into_iter().flatten().filter_map(|it| it.as_str()) {
            // They came in headers, so they fit into headers.
            if let (Ok(name), Ok(value)) = (name.parse::<async_nats::HeaderName>(), value.parse()) {
                let value: async_nats::HeaderValue = value;
                headers.append(name, value);
            }
        }
    }
    let seq = row.get::<_, i64>("stream_seq").cast_unsigned();
    let payload = row.get::<_, Vec<u8>>("payload").into();
    let origin = Origin { stream: stream.to_owned(), created: row.get("stream_created_at") };
    let at = row.get("event_time");
    let message = Message::new(row.get("subject"), headers, payload, &origin, seq, at);
    Message { whence: Whence::Letter, ..message }
}
