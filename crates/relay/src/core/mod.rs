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

mod breaker;
mod marks;
mod messages;
mod progress;
#[cfg(test)]
mod simulation;
mod state;
mod sweep;
mod tail;
mod wal;
mod window;

pub(crate) use marks::{MARKS_AT_ONCE, Marks};
pub(crate) use messages::{Input, Mode, Part, Refusal, Request, Send, Settled, Start};
pub(crate) use state::{
    Blocked, Dead, Doubted, LOGGED_WHILE_SCAN_UNMARKED_MAX, Place, SCANS_UNMARKED_MAX, State,
};
pub(crate) use sweep::{Age, Judgement, SWEEPER_STORED_MAX, Sweeper, Unmarked, Verdict};
pub(crate) use tail::{Stored, Tail, TailMessage};
pub(crate) use wal::{Outlook, SlotHealth, WalWatch};
pub(crate) use window::{LastPosition, Limits, Origin, Outgoing, PAUSE_MAX, Tried, Unpublished};
