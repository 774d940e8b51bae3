//! A small order service: the order and its event are written in one transaction.
//!
//! ```sh
//! DATABASE_URL=postgres://postgres@127.0.0.1/postgres cargo run -p tailpost-outbox --example enqueue
//! ```

use std::error::Error;

use outbox::{Event, Table, enqueue};
use serde::Serialize;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// What consumers of `OrderPlaced` get.
#[derive(Serialize)]
struct OrderPlaced<'a> {
    order_id: Uuid,
    customer: &'a str,
    total_cents: i64,
}

/// Stores an order and announces it: both happen, or neither does.
async fn place_order(
    client: &mut Client,
    customer: &str,
    total_cents: i64,
) -> Result<Uuid, Box<dyn Error>> {
    let order_id = Uuid::now_v7();
    let tx = client.transaction().await?;
    tx.execute(
        "INSERT INTO orders (id, customer, total_cents) VALUES ($1, $2, $3)",
        &[&order_id, &customer, &total_cents],
    )
    .await?;

    let payload = OrderPlaced { order_id, customer, total_cents };
    let event = Event::new("order", order_id.to_string(), "OrderPlaced", &payload)?;
    enqueue(&tx, &event).await?;

    tx.commit().await?;
    Ok(order_id)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    let connection = tokio::spawn(connection);

    let layout = outbox::migrations::Layout::Marked;
    outbox::migrations::migrate(&mut client, &Table::default(), layout).await?;
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS orders (
                id UUID PRIMARY KEY,
                customer TEXT NOT NULL,
                total_cents BIGINT NOT NULL CHECK (total_cents > 0)
            )",
        )
        .await?;

    let order_id = place_order(&mut client, "Ada", 4_200).await?;
    eprintln!("order {order_id} is placed, and its event waits in outbox_events");

    let refused = place_order(&mut client, "Bob", -1).await;
    eprintln!("an order that the database refuses leaves no event: {}", refused.is_err());

    drop(client);
    Ok(connection.await??)
}
