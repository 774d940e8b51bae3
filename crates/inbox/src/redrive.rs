//! Dead letters that were requeued take the way of every event: through lanes, claim and handler,
//! but from their table instead of from the stream, where the consumer is past them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tracing::{info, warn};
use uuid::Uuid;

use crate::Error;
use crate::config::Config;
use crate::core::Path;
use crate::dead_letters::Redrive as Texts;
use crate::error::describe;
use crate::message::{Message, Origin, Whence};
use crate::pool::Pool;
use crate::source::Delivered;
use crate::store::{Key, Store};
use crate::stored;
use crate::tables;

/// How often to look. What is found and at work already is known by its place in the stream.
const LOOK: Duration = Duration::from_secs(1);

/// How long a look may take. A server that fell silent would hold it for ever.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// How long looking after the tables may take.
const HOUSE_MAX: Duration = Duration::from_secs(1800);

/// How often to look for letters and records that are too old.
const PURGE: Duration = Duration::from_secs(3600);

/// Letters taken at a time.
const TAKEN_MAX: usize = 64;

/// How often to look for events that nobody has, and how many to take at a time.
const ORPHANS: Duration = Duration::from_secs(10);
const ORPHANS_MAX: i64 = 16;

/// How long an event is due before it counts as one of them. What is in memory all the same is known
/// there by its place in the stream.
const ORPHANED_AFTER: Duration = Duration::from_secs(20);

/// Looks for requeued letters for as long as somebody takes them.
pub(crate) struct Redrive {
    config: Arc<Config>,
    pool: Arc<Pool>,
    texts: Texts,
    nats: Client,
    origin: Origin,
    /// Where the last look ended, of the letters that are first of their aggregate.
    after_seq: i64,
    /// Where the last look ended, of events that nobody has.
    after: Key,
}

/// Before all others: some thousand years ago.
const FIRST: Key = Key { id: Uuid::nil(), event_time: Timestamp::constant(-200_000_000_000, 0) };

impl Redrive {
    pub(crate) fn new(config: Arc<Config>, pool: Arc<Pool>, nats: Client, origin: Origin) -> Self {
        let texts = Texts::new(&config.schema);
        Self { config, pool, texts, nats, origin, after_seq: 0, after: FIRST }
    }

    /// Feeds what is due, while there is `room` for it, until `room`'s sender is gone.
    pub(crate) async fn run(
        mut self,
        feed: mpsc::Sender<Delivered>,
        mut room: watch::Receiver<usize>,
    ) {
        let mut purged: Option<Instant> = None;
        let mut looked_at = Instant::now();
        loop {
            let Ok(most) = room.wait_for(|it| *it > 0).await.map(|it| *it) else { return };
            let stopped = room.clone();
            // A database that is away is reported and waited for by others.
            if let Ok(store) = self.pool.try_get().await {
                let looked = async {
                    if purged.is_none_or(|at| at.elapsed() > PURGE) {
                        purged = Some(Instant::now());
                        let kept = timeout(HOUSE_MAX, self.keep_house(&store)).await;
                        kept.map_err(|_| silent("look after the inbox's tables", HOUSE_MAX))?;
                    }
                    let passed = async {
                        if looked_at.elapsed() > ORPHANS {
                            looked_at = Instant::now();
                            self.adopt(&store, &feed).await?;
                        }
                        self.pass(&store, most.min(TAKEN_MAX), &feed).await
                    };
                    let late = Err(silent("look for requeued events", LOOK_MAX));
                    timeout(LOOK_MAX, passed).await.unwrap_or(late)
                };
                let looked = tokio::select! {
                    looked = looked => looked,
                    () = closed(stopped) => return,
                };
                match looked {
                    Ok(()) => self.pool.put(store),
                    Err(error) => {
                        let (consumer, error) = (&self.config.consumer, describe(&error));
                        warn!(consumer, error, "could not look for requeued events");
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = closed(room.clone()) => return,
            }
        }
    }

    /// That something old cannot be dropped is no reason to leave anything else.
    async fn keep_house(&self, store: &Store) {
        let kept = async {
            self.purge(store).await?;
            self.forget(store).await
        };
        if let Err(error) = kept.await {
            let (consumer, error) = (&self.config.consumer, describe(&error));
            warn!(consumer, error, "could not look after the inbox's tables");
        }
    }

    /// Forgets old records. Not before the consumer is at work: it may take a while.
    async fn forget(&self, store: &Store) -> Result<(), Error> {
        let Config { consumer, schema, retention, .. } = &*self.config;
        let done = tables::maintain(store.client(), schema, *retention).await?;
        info!(consumer, ?done, "looked after the inbox's tables");
        Ok(())
    }

    async fn purge(&self, store: &Store) -> Result<(), Error> {
        let Config { consumer, dead_letter_retention, .. } = &*self.config;
        let Some(keep) = *dead_letter_retention else { return Ok(()) };
        let parameters: [&(dyn ToSql + Sync); 4] =
            [consumer, &keep.as_secs_f64(), &"retention", &None::<String>];
        let purged = store.client().query(&self.texts.purge, &parameters).await;
        let count = purged.map_err(Error::sql("drop old dead letters"))?.len();
        if count > 0 {
            warn!(consumer, count, ?keep, "dropped dead letters that nobody decided about");
        }
        Ok(())
    }

    /// Brings events that were begun and that nobody has: their retries were in the memory of a
    /// worker that is gone, and the broker does not deliver them any more.
    async fn adopt(&mut self, store: &Store, feed: &mpsc::Sender<Delivered>) -> Result<(), Error> {
        let Config { consumer, stream, .. } = &*self.config;
        let (overdue, after) = (ORPHANED_AFTER.as_secs_f64(), self.after);
        let parameters: [&(dyn ToSql + Sync); 6] =
            [consumer, stream, &overdue, &after.event_time, &after.id, &ORPHANS_MAX];
        let rows = store.client().query(&self.texts.orphans, &parameters).await;
        let rows = rows.map_err(Error::sql("look for events that nobody has"))?;
        self.after = FIRST;
        for row in &rows {
            let key = Key { id: row.get("message_id"), event_time: row.get("event_time") };
            self.after = key;
            let seq = row.get::<_, i64>("stream_seq").cast_unsigned();
            let stored = stored::get(&self.nats, stream, seq).await?;
            let reply = stored.as_ref().map(|it| it.ack_subject(stream, consumer));
            let message = stored.map(|it| it.understood(&self.origin)).filter(|it| it.key == key);
            let message = message
                .unwrap_or_else(|| Message::gone(key, row.get("subject"), &self.origin, seq));
            let reply = reply.filter(|_| message.whence == Whence::Stream);
            let message = Arc::new(message);
            if feed.send(Delivered { message, reply, path: Path::Careful }).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn pass(
        &mut self,
        store: &Store,
        most: usize,
        feed: &mpsc::Sender<Delivered>,
    ) -> Result<(), Error> {
        let doing = "look for requeued events";
        let Config { consumer, stream, .. } = &*self.config;
        let client = store.client();
        let settled = client.execute(&self.texts.sweep, &[consumer]).await;
        settled.map_err(Error::sql(doing))?;
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let due = client
            .query(&self.texts.due, &[consumer, stream, &limit, &self.after_seq])
            .await
            .map_err(Error::sql(doing))?;
        let first = |row: &&Row| row.get::<_, i64>("turn") == 1;
        let all_fit = due.len() < most || !due.iter().all(|row| first(&row));
        let last = due.last().map_or(0, |row| row.get("stream_seq"));
        self.after_seq = if all_fit { 0 } else { last };
        for row in due {
            let id: Uuid = row.get("message_id");
            let row = client.query_opt(&self.texts.letter, &[consumer, &id]).await;
            let Some(row) = row.map_err(Error::sql(doing))? else { continue };
            let message = Arc::new(message(&row, stream));
            info!(consumer, event = %message.key.id, "handling a requeued event");
            let delivered = Delivered { message, reply: None, path: Path::Careful };
            if feed.send(delivered).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

fn silent(doing: &'static str, within: Duration) -> Error {
    Error::Silent { doing, within }
}

/// Returns when the session stops taking.
pub(crate) async fn closed(mut room: watch::Receiver<usize>) {
    while room.changed().await.is_ok() {}
}

/// The message as it travelled.
fn message(row: &Row, stream: &str) -> Message {
    let raw = row.get::<_, Option<Vec<u8>>>("raw_headers");
    let mut headers = raw.and_then(|raw| stored::parse_headers(&raw).ok()).unwrap_or_default();
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
