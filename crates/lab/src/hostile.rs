//! Input that nobody writes on purpose: rows that PostgreSQL takes, messages that NATS takes.

mod messages;
mod raw_nats;
mod rows;

pub use messages::{HostileMessage, Messages};
pub use raw_nats::RawNats;
pub use rows::{HostileRow, Rows, Shape};
