//! Which events have had their end: to have many of them out of the way at once.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::Error;
use crate::config::Config;
use crate::postgres::pool::Pool;
use crate::record::Key;

/// How long the database may take. Without an answer each message is asked for when it is claimed.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Resolved {
    pool: Arc<Pool>,
    text: String,
    consumer: String,
}

impl Resolved {
    pub(crate) fn new(pool: Arc<Pool>, config: &Config) -> Self {
        let text = format!(
            "SELECT m.message_id, m.event_time
             FROM unnest($2::uuid[], $3::timestamptz[]) AS i (message_id, event_time)
             JOIN {}.inbox_messages AS m ON m.consumer = $1 AND m.message_id = i.message_id
                 AND m.event_time = i.event_time
             WHERE m.status || '' IN ('PROCESSED', 'DEAD', 'REJECTED')",
            config.quoted_schema()
        );
        Self { pool, text, consumer: config.consumer.clone() }
    }

    /// Those of them that have had their end, as far as the database can be asked.
    pub(crate) async fn among(&self, keys: &[Key]) -> HashSet<Key> {
        timeout(PATIENCE, self.ask(keys)).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    async fn ask(&self, keys: &[Key]) -> Result<HashSet<Key>, Error> {
        let store = self.pool.try_get().await?;
        let found = self.find(store.client(), keys).await?;
        self.pool.put(store);
        Ok(found)
    }

    /// As [`Resolved::among`], by this connection.
    pub(crate) async fn find(&self, on: &Client, keys: &[Key]) -> Result<HashSet<Key>, Error> {
        let ids: Vec<Uuid> = keys.iter().map(|it| it.id).collect();
        let times: Vec<Timestamp> = keys.iter().map(|it| it.event_time).collect();
        let rows = on.query(&self.text, &[&self.consumer, &ids, &times]).await;
        let rows = rows.map_err(Error::sql("look for events that have had their end"))?;
        Ok(rows.iter().map(|row| Key { id: row.get(0), event_time: row.get(1) }).collect())
    }
}
