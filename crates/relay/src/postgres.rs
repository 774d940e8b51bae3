//! The PostgreSQL side: the slot and its log, the outbox's rows, the statements.

pub(crate) mod columns;
mod connect;
pub(crate) mod day_partitions;
pub(crate) mod drained;
mod dsn;
pub(crate) mod opening;
pub(crate) mod publication;
pub(crate) mod retire;
pub(crate) mod rows;
pub(crate) mod slot;
pub(crate) mod sql;
mod walsender;

pub(crate) use connect::check_name;
pub use connect::{ConnectionTask, PostgresTarget, PostgresTls, SslMode};
pub(crate) use opening::{Opening, answered};
pub(crate) use rows::{Messages, Rows};
pub(crate) use slot::Slot;
pub(crate) use sql::Store;
pub(crate) use walsender::Walsender;
