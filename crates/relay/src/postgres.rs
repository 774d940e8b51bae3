//! The PostgreSQL side: the slot and its log, the outbox's rows, the statements.

mod answered;
pub(crate) mod columns;
pub(crate) mod connection;
pub(crate) mod day_partitions;
pub(crate) mod drained;
pub(crate) mod encoding;
pub(crate) mod new_slot;
pub(crate) mod not_logged;
pub(crate) mod opening;
pub(crate) mod publication;
pub(crate) mod retire;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod slot;
pub(crate) mod sql;
pub(crate) mod standby_slots;
mod start_snapshot;
mod tunnel;
mod walsender;

pub(crate) use answered::answered;
pub(crate) use connection::Connection;
pub(crate) use encoding::Encoding;
pub(crate) use new_slot::NewSlot;
pub(crate) use opening::Opening;
pub(crate) use rows::{Messages, Rows};
pub(crate) use slot::{Found, Slot};
pub(crate) use sql::Store;
pub(crate) use walsender::{Replication, Walsender};
