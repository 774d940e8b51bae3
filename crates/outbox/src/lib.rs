//! The outbox contract: what a producer writes, and what a consumer gets.
//!
//! A service that changes its database *and* tells others about it cannot do both atomically: one
//! of the two may fail. With an outbox it writes the event as a row, in the transaction that
//! changes the domain, and the relay publishes committed rows afterwards.
//!
//! ```text
//!   BEGIN                                          relay                NATS JetStream
//!     INSERT INTO orders …        ┌─────────────┐          ┌──────────────────────────────┐
//!     enqueue(&tx, &event) ─────▶ │outbox_events│ ───────▶ │ outbox.order.OrderPlaced     │
//!   COMMIT                        └─────────────┘          │ Nats-Msg-Id: <event id>      │
//!                                                          └──────────────────────────────┘
//! ```
//!
//! - [`Event`] is one row; [`enqueue`] writes it with the caller's transaction. A producer needs
//!   nothing else, and a plain `INSERT` or the SQL function `outbox_emit` does the same.
//! - [`wire`] maps an event to subject and headers and back.
//! - [`migrations`] creates the table and its companions.
//!
//! ```no_run
//! # async fn place_order(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let tx = client.transaction().await?;
//! tx.execute("INSERT INTO orders (id, total_cents) VALUES ($1, $2)", &[&"o-17", &4200_i64]).await?;
//!
//! let payload = serde_json::json!({ "order_id": "o-17", "total_cents": 4200 });
//! let event = outbox::Event::new("order", "o-17", "OrderPlaced", &payload)?;
//! outbox::enqueue(&tx, &event).await?;
//!
//! tx.commit().await?; // The order and its event exist from here on, or neither does.
//! # Ok(())
//! # }
//! ```

mod columns;
mod enqueue;
mod error;
mod event;
mod fnv;
mod identifier;
pub mod jetstream_api;
mod malformed;
pub mod migrations;
pub mod spans;
mod table;
pub mod waiting;
pub mod wire;

pub use columns::{Column, Columns};
pub use enqueue::{enqueue, enqueue_all};
pub use error::Error;
pub use event::Event;
pub use fnv::fnv;
pub use identifier::quote;
pub use malformed::Malformed;
pub use table::{COMPANIONS, DROPPED, Table};
