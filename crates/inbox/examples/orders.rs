//! A warehouse: every `OrderPlaced` reserves stock, exactly once, whatever crashes.
//!
//! ```sh
//! DATABASE_URL=postgres://postgres@127.0.0.1/postgres NATS_URL=nats://127.0.0.1 \
//!     cargo run -p tailpost-inbox --example orders
//! ```

use std::error::Error;

use inbox::{Connection, Delivery, Inbox, TransactionalHandler, Verdict};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::{Client, NoTls, Transaction};
use tokio_util::sync::CancellationToken;

/// What is needed of an `OrderPlaced`.
#[derive(Deserialize)]
struct OrderPlaced {
    article: String,
    quantity: i32,
}

struct Warehouse;

impl TransactionalHandler for Warehouse {
    async fn handle(&self, delivery: Delivery<'_>, transaction: &Transaction<'_>) -> Verdict {
        if &*delivery.event.event_type != "OrderPlaced" {
            return Verdict::Processed { outcome: Some("ignored".to_owned()) };
        }
        // A payload that makes no sense now never will: into the dead letters with it.
        let Ok(order) = serde_json::from_slice::<OrderPlaced>(&delivery.event.payload) else {
            return Verdict::dead("the payload is not an order");
        };
        match reserve(&order, transaction).await {
            Ok(0) => Verdict::retry("not enough in stock"),
            Ok(_) => Verdict::processed(),
            // What the server said: the error itself is no more than "db error".
            Err(error) => match error.as_db_error() {
                Some(said) => Verdict::retry(said),
                None => Verdict::retry(error),
            },
        }
    }
}

/// Commits together with the record that the event has been handled, or not at all.
async fn reserve(order: &OrderPlaced, tx: &Transaction<'_>) -> Result<u64, tokio_postgres::Error> {
    let sql = "UPDATE stock SET reserved = reserved + $2
               WHERE article = $1 AND reserved + $2 <= total";
    tx.execute(sql, &[&order.article, &order.quantity]).await
}

async fn connect() -> Result<Client, inbox::BoxError> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL")?;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut client = connect().await?;
    inbox::create_tables(&mut client, "public").await?;
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS stock (
                article  TEXT PRIMARY KEY,
                total    INT NOT NULL,
                reserved INT NOT NULL DEFAULT 0
            );
            INSERT INTO stock (article, total) VALUES ('book', 1000) ON CONFLICT DO NOTHING",
        )
        .await?;

    let nats_url = std::env::var("NATS_URL").map_err(|_| "set NATS_URL")?;
    let inbox = Inbox::builder("warehouse")
        .postgres(|| async { Ok(Connection::new(connect().await?)) })
        .nats(async_nats::connect(nats_url).await?)
        .stream("OUTBOX")
        .filter_subjects(["outbox.order.*"])
        .transactional(Warehouse);

    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        stop.cancel();
    });
    let summary = inbox.run(shutdown).await?;
    eprintln!("{summary:?}");
    Ok(())
}
