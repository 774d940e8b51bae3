//! Decodes `pgoutput`, the logical replication protocol of PostgreSQL, version 1.
//!
//! Bytes in, messages out: no sockets, no clock, no state. The caller takes the body of each
//! `XLogData` frame from the replication connection and hands it to [`Message::decode`].
//!
//! ```text
//!  Begin ── Relation ── Insert ── Insert ── … ── Commit
//!             │           │
//!             │           └─ relation_oid + Tuple: values in the column order of that relation
//!             └─ sent before the first row of a relation, and again after each change of it
//! ```
//!
//! - **Any bytes are safe.** Malformed input is a [`DecodeError`], never a panic, and never makes
//!   the decoder reserve more memory than a small multiple of the input.
//! - **Nothing is copied.** Row values are slices of the input; a [`Tuple`] allocates nothing.
//! - **Columns are found by name**, through the latest [`Relation`] with the row's oid, because
//!   columns come, go and move while the stream runs.
//!
//! ```
//! use bytes::Bytes;
//! use pgoutput::{Datum, Lsn, Message};
//!
//! // 'I', relation 16384, new tuple, two columns: text "hi" and null.
//! let body = Bytes::from_static(b"I\x00\x00\x40\x00N\x00\x02t\x00\x00\x00\x02hin");
//! let Message::Insert(insert) = Message::decode(body)? else { panic!("an insert") };
//! assert_eq!(insert.relation_oid, 16384);
//!
//! let values: Vec<Datum> = insert.tuple.iter().collect();
//! assert_eq!(values, [Datum::Text(Bytes::from_static(b"hi")), Datum::Null]);
//!
//! let lsn: Lsn = "16/B374D848".parse()?;
//! assert_eq!(lsn.to_string(), "16/B374D848");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The formats are described in [Logical Replication Message Formats].
//!
//! [Logical Replication Message Formats]: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html

mod error;
mod lsn;
mod message;
mod reader;
mod tuple;

pub use error::DecodeError;
pub use lsn::{Lsn, ParseLsnError};
pub use message::{
    Begin, Column, Commit, Delete, Insert, Logical, Message, OldTuple, Origin, Relation,
    ReplicaIdentity, Truncate, Type, Update,
};
pub use tuple::{Datum, Datums, Tuple};
