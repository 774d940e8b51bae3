//! Tails the outbox in PostgreSQL's log and publishes it to NATS JetStream: once, in commit order,
//! and it says "forget this" to PostgreSQL only when JetStream has said "kept".
//!
//! ```text
//!                 ┌──────────────────── session ─────────────────────┐
//!  slot ──log──▶  │ source ──▶ ┌──────────┐ ──▶ publisher ──messages──┼──▶ stream
//!       ◀─confirm─┤            │  engine  │ ◀── answers  ◀────────────┼─── acks
//!                 │ scan   ──▶ │ (no I/O) │ ──▶ marking: marks,      │
//!  rows the log   │            └──────────┘     watermark, sweeper    │
//!  cannot bring ──┼──▶             ▲                                  │
//!                 │              tail of the stream, read through its leader
//!                 └───────────────────────────────────────────────────┘
//! ```
//!
//! # Why nothing is lost
//!
//! The slot's confirmed position only ever moves to the end of a transaction all of whose events,
//! and those of every earlier one, are stored by the broker or parked in the dead-letter table. If
//! anything breaks, what was not confirmed comes again.
//!
//! # Why nothing is stored twice
//!
//! A session begins by reading the end of the stream back to what is confirmed. The events that it
//! finds there are already stored. While it runs, each message names the sequence it must follow
//! (`Nats-Expected-Last-Sequence`): the broker refuses it if anything else came in between or got
//! lost, and everything behind it. So what is stored is a prefix of what was sent, and after any
//! doubt the tail says which.
//!
//! # Why no row is forgotten
//!
//! The slot brings exactly the rows whose transaction is not visible in the snapshot at its
//! consistent point; the scanner takes exactly the others. When a slot is lost, the next one's
//! snapshot divides the table anew.

pub mod access;
mod config;
mod engine;
mod error;
mod event_state;
mod mode;
mod nats;
mod postgres;
mod publish_spans;
mod replay_selection;
mod reporter;
mod routing;
mod run;
pub mod sampler;
mod session;
mod shards;
mod source;
mod standby;
mod status;
#[cfg(test)]
mod tests;

/// For `fuzz/`, which is outside of this crate: reads any answer of a broker.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz_answer(subject: &str, status: Option<u16>, payload: &[u8]) {
    nats::read_any_answer(subject, status, payload);
}

pub use config::{
    Config, MarkBy, MarkConfig, Mode, OnPark, PollConfig, RetentionConfig, RewindConfig,
    ScanConfig, StreamConfig, WalConfig, WindowLimits,
};
pub use error::Error;
pub use event_state::EventState;
pub use pgoutput::Lsn;
pub use replay_selection::{ReplaySelection, ReplaySource};
pub use reporter::Reports;
pub use routing::{Destination, Glob, Route};
pub use run::run;
pub use sampler::{Refused, Sample, SlotSample};
pub use shards::{Shard, Shards};
pub use status::{BreakerState, DeadLetterCounts, HistoryStatus, Role, SlotStatus, Status};

/// An error and what caused it, in one line. For logs; a terminal gets the chain.
pub fn describe(error: &Error) -> String {
    match error.refusal() {
        Some(refusal) => format!("{error}: {refusal}"),
        None => servers::describe(error),
    }
}
