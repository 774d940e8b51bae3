//! What the window asks of the rest of the engine.

use std::time::Duration;

use uuid::Uuid;

use super::effect::End;
use super::messages::Dead;
use super::notice::Notice;

/// What is to be done, besides sending.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    /// Read the stream from sequence `from` to its end, after waiting for `delay`.
    ReadTail { from: u64, delay: Duration, why: String },
    /// Look whether the event is at `seq`.
    LookUp { epoch: u32, index: u64, seq: u64, id: Uuid },
    /// Put an event into the dead-letter table, not before the one that was asked for before it.
    Park { index: u64, dead: Dead },
    /// Write down that an event could not be published and is tried again after `pause`. Without a
    /// row it is only said.
    NoteFailure {
        index: u64,
        id: Uuid,
        has_row: bool,
        attempts: u32,
        reason: String,
        pause: Duration,
    },
    /// Say something to operators; once.
    Tell(Notice),
    /// End the session.
    End(End),
}
