//! The PostgreSQL side: the slot and its log, the outbox's rows, the statements.

mod answered;
pub(crate) mod columns;
mod connect;
pub(crate) mod connection;
mod connection_task;
pub(crate) mod day_partitions;
pub(crate) mod drained;
mod dsn;
pub(crate) mod encoding;
pub(crate) mod not_logged;
pub(crate) mod opening;
mod pool;
pub(crate) mod publication;
pub(crate) mod retire;
pub(crate) mod rows;
pub(crate) mod schema;
mod session_settings;
pub(crate) mod slot;
pub(crate) mod sql;
pub(crate) mod standby_slots;
mod start_snapshot;
mod tunnel;
mod walsender;

pub(crate) use answered::answered;
pub(crate) use connect::check_name;
pub use connect::{PostgresTarget, PostgresTls, SslMode};
pub(crate) use connection::Connection;
pub use connection_task::ConnectionTask;
pub(crate) use encoding::Encoding;
pub(crate) use opening::Opening;
pub use pool::{PoolLimits, Session};
pub(crate) use rows::{Messages, Rows};
pub(crate) use slot::Slot;
pub(crate) use sql::Store;
pub(crate) use walsender::{Replication, Walsender};
