//! Which events have had their end: to have many of them out of the way at once.

use std::collections::HashSet;
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

/// Those of these events that have had their end, as far as the database can be asked.
pub(crate) async fn among(pool: &Pool, config: &Config, keys: &[Key]) -> HashSet<Key> {
    let found = async {
        let _turn = pool.turns.looks.acquire().await;
        let store = pool.try_get().await?;
        let found = find(store.client(), config, keys).await?;
        pool.put(store);
        Ok::<_, Error>(found)
    };
    timeout(PATIENCE, found).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// As [`among`], by this connection.
pub(crate) async fn find(
    on: &Client,
    config: &Config,
    keys: &[Key],
) -> Result<HashSet<Key>, Error> {
    let sql = format!(
        "SELECT m.message_id, m.event_time
         FROM unnest($2::uuid[], $3::timestamptz[]) AS i (message_id, event_time)
         JOIN {}.inbox_messages AS m ON m.consumer = $1 AND m.message_id = i.message_id
             AND m.event_time = i.event_time
         WHERE m.status || '' IN ('PROCESSED', 'DEAD', 'REJECTED')",
        config.quoted_schema()
    );
    let (ids, times): (Vec<Uuid>, Vec<Timestamp>) =
        keys.iter().map(|it| (it.id, it.event_time)).unzip();
    let rows = on.query(&sql, &[&config.consumer, &ids, &times]).await;
    let rows = rows.map_err(Error::sql("look for events that have had their end"))?;
    Ok(rows.iter().map(|row| Key { id: row.get(0), event_time: row.get(1) }).collect())
}
