//! What the engine of poll mode starts with, wants done, and is told of it.

use std::time::Duration;

use uuid::Uuid;

use crate::engine::effect::End;
use crate::engine::messages::{Dead, Resolved};
use crate::engine::notice::Notice;
use crate::engine::tail_messages::Tail;
use crate::engine::window::{Limits, Outgoing};

/// What a session of one node starts with.
#[derive(Debug)]
pub(crate) struct ClaimStart {
    /// The stream's newest messages, enough to hold whatever was published and not marked.
    pub(crate) tail: Tail,
    pub(crate) limits: Limits,
    pub(crate) ack_timeout: Duration,
    /// Attempts after which an event that the stream does not take is parked.
    pub(crate) max_attempts: u32,
    /// Claims at a time, 1 at least.
    pub(crate) workers: usize,
    /// Rows of a claim, at most.
    pub(crate) batch: usize,
    /// How long nothing is claimed after a claim that was not full.
    pub(crate) interval: Duration,
    /// So many of the newest messages are remembered, of those that looks bring as well.
    pub(crate) reach: u64,
    /// Ends when there is nothing to claim.
    pub(crate) once: bool,
    pub(crate) seed: u64,
}

/// What is to be done outside. Each is done once; what fails ends the session, unless it is said
/// otherwise.
#[derive(Debug, Clone)]
pub(crate) enum ClaimEffect {
    /// Claims rows, as claim `claim`.
    Claim { claim: u32 },
    /// Says to the server that the claim is still worked on.
    Renew { claim: u32 },
    /// Marks events of a claim that goes on, if nobody has the table locked.
    Mark { claim: u32, published: Vec<Resolved> },
    /// Marks the other events of a claim, and ends it.
    GiveBack { claim: u32, published: Vec<Resolved> },
    /// Puts an event into the dead-letter table, over the claim's connection: nobody else could
    /// touch its row.
    Park { claim: u32, index: u64, dead: Dead },
    /// Writes down that an event is tried again after `pause`. Lost, it costs one attempt more.
    NoteFailure { claim: u32, id: Uuid, reason: String, pause: Duration },
    /// Reads the stream from sequence `from` to its end, after waiting for `delay`.
    ReadTail { from: u64, delay: Duration },
    /// Reads what the stream got from sequence `from` on: others may have published rows that this
    /// node has claimed since, and may have ended before they marked them.
    LookAtTail { from: u64 },
    /// Marks or removes rows that were locked when that was to be done. May fail.
    MakeUpForMarks,
    /// Measures how long acknowledged events took.
    Measure(Vec<Resolved>),
    /// Says something to operators.
    Tell(Notice),
    /// Ends the session.
    End(End),
}

/// What came of an effect.
#[derive(Debug, Clone)]
pub(crate) enum ClaimOutcome {
    /// The rows, in order of insertion. Without any there is no claim.
    Claimed(Vec<Outgoing>),
    /// Somebody has the table locked.
    NotClaimed,
    Renewed {
        claim: u32,
    },
    /// Somebody has the table locked.
    NotMarked {
        claim: u32,
        published: Vec<Resolved>,
    },
    Marked {
        claim: u32,
        marked: u64,
    },
    GaveBack {
        marked: u64,
    },
    Parked {
        index: u64,
    },
    Tail(Tail),
    TailFailed(String),
    Looked(Tail),
    LookFailed(String),
}
