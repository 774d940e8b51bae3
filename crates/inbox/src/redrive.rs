//! Dead letters that were requeued take the way of every event: through lanes, claim and handler,
//! but from their table instead of from the stream, where the consumer is past them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tracing::{info, warn};

use crate::Error;
use crate::config::Config;
use crate::core::Path;
use crate::dead_letters::Redrive as Texts;
use crate::error::describe;
use crate::message::{Message, Origin};
use crate::pool::Pool;
use crate::source::Delivered;
use crate::store::Store;
use crate::stored;

/// How often to look. What is found and at work already is known by its place in the stream.
const LOOK: Duration = Duration::from_secs(1);

/// How often to look for letters that are too old.
const PURGE: Duration = Duration::from_secs(3600);

/// Letters taken at a time.
const TAKEN_MAX: usize = 64;

/// Looks for requeued letters for as long as somebody takes them.
pub(crate) struct Redrive {
    config: Arc<Config>,
    pool: Arc<Pool>,
    texts: Texts,
}

impl Redrive {
    pub(crate) fn new(config: Arc<Config>, pool: Arc<Pool>) -> Self {
        let texts = Texts::new(&config.schema);
        Self { config, pool, texts }
    }

    /// Feeds what is due, while there is `room` for it, until `room`'s sender is gone.
    pub(crate) async fn run(self, feed: mpsc::Sender<Delivered>, mut room: watch::Receiver<usize>) {
        let mut purged: Option<Instant> = None;
        loop {
            let Ok(most) = room.wait_for(|it| *it > 0).await.map(|it| *it) else { return };
            // A database that is away is reported and waited for by others.
            if let Ok(store) = self.pool.try_get().await {
                let looked = async {
                    if purged.is_none_or(|at| at.elapsed() > PURGE) {
                        self.purge(&store).await?;
                        purged = Some(Instant::now());
                    }
                    self.pass(&store, most.min(TAKEN_MAX), &feed).await
                };
                match looked.await {
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

    async fn pass(
        &self,
        store: &Store,
        most: usize,
        feed: &mpsc::Sender<Delivered>,
    ) -> Result<(), Error> {
        let doing = "look for requeued events";
        let Config { consumer, stream, .. } = &*self.config;
        let client = store.client();
        let settled = client.execute(&self.texts.sweep, &[consumer]).await;
        settled.map_err(Error::sql(doing))?;
        let due = client
            .query(&self.texts.due, &[consumer, stream, &i64::try_from(most).unwrap_or(i64::MAX)])
            .await;
        for row in due.map_err(Error::sql(doing))? {
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
    Message::new(row.get("subject"), headers, payload, &origin, seq, row.get("event_time"))
}
