//! The relay's decisions, without I/O and without a clock.
//!
//! ```text
//!   log, scanner ──▶ Input ──▶ ┌─────────┐ ──▶ next_send()     to the broker
//!   acks, refusals ─▶ Input ──▶ │  State  │ ──▶ next_request()  read the tail, park
//!   time ───────────▶ Input ──▶ └─────────┘ ──▶ take_settled()  to be marked
//!                                           └──▶ confirmed()     to PostgreSQL
//! ```
//!
//! [`State`] owns one publishing session: the window of events between "the log brought it" and
//! "the broker has it", what each of them waits for, and how far PostgreSQL may forget. A session
//! ends with the replication connection and is rebuilt from the slot and the stream's tail, so a
//! reconnect, a restart and a crash are one path.
//!
//! The invariants (DESIGN 3) and where they are kept:
//!
//! - **A, no loss**: [`progress`] confirms only the contiguous resolved prefix.
//! - **B, order**: [`window`] gives events out in order; after any refusal or silence everything
//!   unresolved goes back (go-back-N), and the tail of the stream, not an assumption, says what is
//!   stored.
//! - **C, no duplicate**: an id found in the stream settles its event; in fenced mode the broker
//!   refuses whatever was sent on a stale belief about the stream's last sequence.
//! - **D, bounded**: [`Limits`] stop the reading of the log; every other queue here is a function
//!   of the window's length.

mod backfill;
mod breaker;
mod checkpoint;
mod effect;
mod liveness;
mod marking;
mod messages;
mod owed_marks;
mod parking;
mod progress;
mod publish;
#[cfg(test)]
mod simulation;
mod slot_health;
mod slot_watch;
mod tail_messages;
mod window;

pub(crate) use backfill::{Backfill, ScanNotice, ScanRanges, Scene};
pub(crate) use checkpoint::Checkpoint;
pub(crate) use effect::{
    Age, Effect, Effects, Found, OpenScan, Pass, ReadScan, ScanRange, Statement, SweepRange,
    Unmarked, Verdict, Watermark,
};
pub(crate) use liveness::{Liveness, Silence};
pub(crate) use marking::{
    Batching, MARKS_AT_ONCE, MARKS_WAITING_MAX, MarkCounts, Marking, MarkingStart,
    SWEEPER_STORED_MAX, SWEPT_AT_ONCE, SweepNotice, Sweeper, Swept,
};
pub(crate) use messages::{
    Blocked, Dead, Doubted, Input, Mode, Part, Place, Refusal, Request, Send, Settled, Start,
};
pub(crate) use owed_marks::OwedMarks;
pub(crate) use parking::Parking;
pub(crate) use publish::{LOGGED_WHILE_SCAN_UNMARKED_MAX, SCANS_UNMARKED_MAX, State};
pub(crate) use slot_health::SlotHealth;
pub(crate) use slot_watch::{SlotNotice, SlotWatch};
pub(crate) use tail_messages::{Stored, Tail, TailMessage};
pub(crate) use window::{LastPosition, Limits, Origin, Outgoing, PAUSE_MAX, Tried, Unpublished};
