//! What operators are told.

use std::time::Duration;

use outbox::wire::TraceId;
use pgoutput::Lsn;
use uuid::Uuid;

use super::messages::Ignored;
use super::slot_watch::SlotNotice;
use crate::status::SlotStatus;

/// Which event something is told of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct About {
    pub(crate) event_id: Uuid,
    /// Where it committed, if the log brought it.
    pub(crate) lsn: Option<Lsn>,
    pub(crate) trace_id: Option<TraceId>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Notice {
    /// The stream's tail is read, so many events being unresolved.
    ReadingTail { why: String, unresolved: usize },
    /// An event cannot be published.
    Parking { about: About, reason: String },
    /// An event is tried again.
    TryingAgain { about: About, attempts: u32, reason: String, pause: Duration },
    /// A copy could not be published.
    NotReplayed { copy: Uuid },
    /// The stream has lost messages, and of what the log brings again some may be stored twice.
    Uncounted,
    /// The stream has lost messages of events that the log brings again: so many were known to be
    /// published by counting, and so many may be stored twice, as nothing could be counted.
    Counted { counted: u64, uncertain: u64 },
    /// A scan has found its first rows.
    ScanFound,
    /// The session's first scan is over; it had found some.
    FirstScanDone,
    /// Rows were marked whose marks were lost or late.
    Swept { rows: u64 },
    /// Rows came without passing the log, and are published from the table.
    Unlogged { rows: u64 },
    /// What the slot keeps, and whether that is cause for something.
    Slot { status: SlotStatus, notice: Option<SlotNotice> },
    /// Others keep writing to the stream, and messages without ids keep the relay in fenced mode.
    StaysFenced,
    /// Others answer in the stream's place.
    Stranger { why: String },
    /// Messages of the log are passed over.
    IgnoringMessages { why: Ignored },
    /// Nothing new is taken in any more.
    Stopping { why: &'static str, unresolved: usize },
}
