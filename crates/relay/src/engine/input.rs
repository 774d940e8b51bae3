//! What goes into the engine: what the log brings, what the broker answers, and what came of an
//! [`Effect`](super::Effect).

use pgoutput::Lsn;
use uuid::Uuid;

use super::effect::{Found, Statement, Watermark};
use super::last_event::LastEvent;
use super::marking::Swept;
use super::messages::{Blocked, Dead, Ignored, Resolved};
use super::replay_messages::{ReplayPage, ReplayStart, ReplayUnread, ReplayWish};
use super::slot_health::SlotHealth;
use super::tail_messages::{Stored, Tail};
use super::window::Outgoing;

/// Everything that can happen to a session, besides that time passes. Grouped as effects are.
#[derive(Debug, Clone)]
#[allow(
    clippy::large_enum_variant,
    reason = "the large variant is the frequent one; boxing it would cost an allocation per event"
)]
pub(crate) enum Input {
    Log(LogInput),
    Broker(BrokerInput),
    Books(BooksInput),
    Rows(RowsInput),
    Marking(MarkingInput),
    Scan(ScanInput),
    Replay(ReplayInput),
    Claims(ClaimsInput),
}

/// What the log brings.
#[derive(Debug, Clone)]
#[allow(
    clippy::large_enum_variant,
    reason = "the large variant is the frequent one; boxing it would cost an allocation per event"
)]
pub(crate) enum LogInput {
    /// A transaction begins that committed at `commit_lsn`.
    Begin { commit_lsn: Lsn, commit_time_micros: i64 },
    /// The next event of the open transaction.
    Logged(Outgoing),
    /// The same, without a row.
    Emitted(Outgoing),
    /// A message of the log that might have been an event.
    Ignored(Ignored),
    /// The open transaction is complete.
    Commit { end_lsn: Lsn },
    /// The walsender has sent everything before `wal_end`.
    Keepalive { wal_end: Lsn },
}

/// What the broker answers, and what becomes of the connection to it.
#[derive(Debug, Clone)]
pub(crate) enum BrokerInput {
    /// The broker stored an event.
    /// It is at `seq`; as a duplicate, it was there before.
    Acked { epoch: u32, index: u64, seq: u64, is_duplicate: bool },
    /// Whether the message that an answer called a duplicate is at `seq`.
    LookedUp { epoch: u32, index: u64, seq: u64, is_there: bool },
    /// The broker refused an event.
    Refused { epoch: u32, index: u64, refusal: Refusal },
    /// The broker is at work on the batch. What it has taken of it is stored, or a duplicate.
    Taking { batch: u32 },
    /// The batch is over: the stream has its first `count` messages, the last of them at `seq`.
    Ended { batch: u32, count: u64, seq: u64 },
    /// The broker refused a message of the batch, and with it everything behind.
    Broken { batch: u32, number: u64, refusal: Refusal },
    /// An answer came that is not the stream's.
    Stranger(String),
    /// The client refused to send an event, before anything left.
    Unsendable { index: u64, refusal: Refusal },
    /// The broker's user may not publish on a subject. Such a message is never answered.
    Denied { subject: String, reason: String },
    /// The connection to the broker broke or was replaced: what was unanswered is unknown.
    LinkLost,
    /// The stream's end was read.
    Tail(Tail),
    /// It could not be read.
    TailFailed(String),
}

/// What came of what is written down, and of the slot.
#[derive(Debug, Clone)]
pub(crate) enum BooksInput {
    /// The slot may be confirmed up to here; `None` if that could not be written down.
    Checkpointed(Option<Lsn>),
    Slot(SlotHealth),
    /// PostgreSQL has made the slot.
    SlotMade,
}

/// What came of rows that others may have locked.
#[derive(Debug, Clone)]
pub(crate) enum RowsInput {
    /// The events are in the dead-letter table, durably.
    Parked(Vec<Parked>),
    /// Somebody has dead letters locked: some are left.
    NotParked { parked: Vec<Parked>, left: Vec<(u64, Dead)> },
    /// How many rows are owed their marks; `None` if that could not be found out.
    Owed(Option<u64>),
}

/// What came of marks, the watermark and the sweeper.
#[derive(Debug, Clone)]
pub(crate) enum MarkingInput {
    /// `None` if the statement failed, or may have failed.
    Marked {
        statement: Statement,
        marked: Option<Marked>,
    },
    /// Whether there is another connection for marks now.
    SecondWriter(bool),
    SecondWriterBroke,
    /// `None` if it could not be taken now.
    Watermark(Option<Watermark>),
    /// Rows without marks; `None` if the statement failed.
    Unmarked(Option<Found>),
    /// The stream's messages since the last complete sweep, and whether none is missing.
    StreamBack {
        found: Found,
        stored: Vec<Stored>,
        is_whole: bool,
    },
    /// `None` if the statement failed.
    Swept(Option<Swept>),
}

/// What came of a scan.
#[derive(Debug, Clone)]
pub(crate) enum ScanInput {
    Read(ScanRead),
    /// `None` if nothing could be marked for now.
    Marked {
        batches: usize,
        published: Vec<Resolved>,
        marked: Option<ScanMarks>,
    },
    /// Whether others wait for the scan to let go of the table.
    Watched(bool),
    /// Somebody has what it needs locked: it is to begin again.
    Postponed,
    Closed,
    /// Whether it is written down that the gap is filled.
    GapNoted(bool),
}

/// What came of what is published once more.
#[derive(Debug, Clone)]
pub(crate) enum ReplayInput {
    /// `None` if there is none, or it could not be found out.
    Found(Option<Uuid>),
    /// `None` if it cannot be begun now.
    Begun(Option<ReplayStart>),
    /// What is behind a place of a replay.
    Read { of: (Uuid, i64), page: Result<ReplayPage, ReplayUnread> },
    /// A note with so many problems is written; `None` if it could not be.
    Noted { problems: usize, wish: Option<ReplayWish> },
}

/// What came of claims.
#[derive(Debug, Clone)]
pub(crate) enum ClaimsInput {
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
    /// What the stream got since it was last read.
    Looked(Tail),
    LookFailed(String),
}

impl Input {
    /// The last event that is known to be stored, which was `former` before.
    pub(crate) fn last_event(&self, former: Option<LastEvent>) -> Option<LastEvent> {
        if let Self::Broker(BrokerInput::Tail(tail))
        | Self::Scan(ScanInput::Read(ScanRead { seen: Some(tail), .. }))
        | Self::Claims(ClaimsInput::Looked(tail)) = self
        {
            return LastEvent::later(tail.last, former);
        }
        former
    }
}

/// Each group is an input.
macro_rules! is_input {
    ($($group:ident($input:ty)),*) => {
        $(impl From<$input> for Input {
            fn from(input: $input) -> Self {
                Self::$group(input)
            }
        })*
    };
}

is_input!(
    Log(LogInput),
    Broker(BrokerInput),
    Books(BooksInput),
    Rows(RowsInput),
    Marking(MarkingInput),
    Scan(ScanInput),
    Replay(ReplayInput),
    Claims(ClaimsInput)
);

/// Why the broker refused a message, by what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The stream's last sequence is another: read the tail and go back.
    ExpectedLastSequence,
    /// Nothing is wrong with the message: try again later.
    Outage(String),
    /// This message can never be stored.
    Message(String),
    /// This message is too large for the stream as it was when its limits were last read.
    OverLimit(String),
    /// This message cannot be stored as long as the stream, or what the relay may do, stays as it is.
    Unwelcome(String),
    /// No message can be stored until an operator changes something.
    Configuration(String),
    /// The broker takes no batches, or none now: fenced mode needs them.
    NoBatches(String),
}

/// What a scan read.
#[derive(Debug, Clone)]
pub(crate) struct ScanRead {
    /// The server's process that reads.
    pub(crate) process: i32,
    /// In the order in which they are to be published; none at the scan's end.
    pub(crate) rows: Vec<Outgoing>,
    /// With the first batch of a scan: the aggregates that are blocked.
    pub(crate) blocked: Option<Vec<Blocked>>,
    /// With the first batch of a session: the stream's end.
    pub(crate) seen: Option<Tail>,
}

/// What marking the rows of a scan did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScanMarks {
    pub(crate) rows: u64,
    /// Rows that were locked, whose marks are owed.
    pub(crate) owed: u64,
}

/// What became of a batch of marks.
#[derive(Debug, Clone)]
pub(crate) struct Marked {
    pub(crate) rows: u64,
    /// Events of which no row is to be seen: it is gone, or not visible yet.
    pub(crate) without_row: Vec<Resolved>,
}

/// An event that is in the dead-letter table, durably.
#[derive(Debug, Clone)]
pub(crate) struct Parked {
    pub(crate) index: u64,
    pub(crate) row: RowOfDead,
}

/// What became of the row of an event that was parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOfDead {
    Removed,
    /// Somebody has it locked.
    Locked,
    /// It is gone, or not visible yet.
    Unseen,
    /// The event never had one.
    Never,
}
