//! The PostgreSQL side: the slot and its log, the outbox's rows, the statements.

mod answered;
pub mod columns;
pub mod connection;
pub mod drained;
pub mod encoding;
pub mod harm;
pub(crate) mod new_slot;
pub mod not_logged;
mod open_slot;
pub mod opening;
pub mod publication;
pub mod rows;
pub mod schema;
pub mod slot;
pub(crate) mod sql;
pub mod standby_slots;
mod start_snapshot;
mod tunnel;
mod walsender;

pub use answered::answered;
pub use connection::Connection;
pub(crate) use encoding::Encoding;
pub(crate) use new_slot::NewSlot;
pub(crate) use open_slot::OpenSlot;
pub(crate) use opening::Opening;
pub(crate) use rows::Messages;
pub use rows::Rows;
pub(crate) use slot::Found;
pub use slot::Slot;
pub use sql::Store;
pub use walsender::Replication;
pub(crate) use walsender::Walsender;
