//! How a relay reaches its table, its slot and its stream, for what operators do beside it.
//!
//! Only the crate `operate` uses this.

pub use crate::engine::{Stored, Unpublished, Watermark, backoff};
pub use crate::nats::{TailReader, direct_get, stream_check, unless_denied, unless_unheard};
pub use crate::postgres::sql::{
    Backlog, COUNT_MAX, INSERTED_AT, OutboxIndex, SequenceBehind, StateRow, claim, mark, sweep,
};
pub use crate::postgres::{
    Connection, Replication, Rows, Slot, Store, answered, columns, connection, drained, encoding,
    harm, not_logged, opening, publication, rows, schema, slot, standby_slots,
};
pub use crate::replay_selection::lsn_text;
