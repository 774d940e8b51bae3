//! The PostgreSQL side: the slot and its log, the outbox's rows, the statements.

pub(crate) mod opening;
pub(crate) mod publication;
mod replication;
pub(crate) mod retire;
pub(crate) mod rows;
pub(crate) mod shape;
pub(crate) mod slot;
pub(crate) mod source;
pub(crate) mod store;

pub(crate) use opening::{Opening, answered};
pub(crate) use rows::Rows;
pub(crate) use slot::Slot;
pub(crate) use source::Source;
pub(crate) use store::{Store, Watermark};
