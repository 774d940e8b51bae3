//! What came of an effect.

use pgoutput::Lsn;
use uuid::Uuid;

use super::effect::{Found, Statement, Watermark};
use super::last_event::LastEvent;
use super::marking::Swept;
use super::messages::{Blocked, Dead, Resolved};
use super::replay_messages::{ReplayPage, ReplayStart, ReplayUnread, ReplayWish};
use super::slot_health::SlotHealth;
use super::tail_messages::{Stored, Tail};
use super::window::Outgoing;

#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Tail(Tail),
    TailFailed(String),
    /// The events are in the dead-letter table, durably.
    Parked(Vec<Parked>),
    /// Somebody has dead letters locked: some are left.
    NotParked {
        parked: Vec<Parked>,
        left: Vec<(u64, Dead)>,
    },
    /// How many rows are owed their marks; `None` if that could not be found out.
    Owed(Option<u64>),
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
    ScanRead(ScanRead),
    /// `None` if nothing could be marked for now.
    ScanMarked {
        batches: usize,
        published: Vec<Resolved>,
        marked: Option<ScanMarks>,
    },
    /// Whether others wait for the scan to let go of the table.
    ScanWatched(bool),
    /// Somebody has what it needs locked: it is to begin again.
    ScanPostponed,
    ScanClosed,
    /// `None` if there is none, or it could not be found out.
    ReplayFound(Option<Uuid>),
    /// `None` if it cannot be begun now.
    ReplayBegun(Option<ReplayStart>),
    /// What is behind a place of a replay.
    ReplayRead {
        of: (Uuid, i64),
        page: Result<ReplayPage, ReplayUnread>,
    },
    /// A note with so many problems is written; `None` if it could not be.
    ReplayNoted {
        problems: usize,
        wish: Option<ReplayWish>,
    },
    /// Whether it is written down that the gap is filled.
    GapNoted(bool),
    /// The slot may be confirmed up to here; `None` if that could not be written down.
    Checkpointed(Option<Lsn>),
    Slot(SlotHealth),
    /// PostgreSQL has made the slot.
    SlotMade,
}

impl Outcome {
    /// The last event of what was read of the stream.
    pub(crate) fn last_event(&self) -> Option<LastEvent> {
        if let Self::Tail(tail) | Self::ScanRead(ScanRead { seen: Some(tail), .. }) = self {
            return tail.last;
        }
        None
    }
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
