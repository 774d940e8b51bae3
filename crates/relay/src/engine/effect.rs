//! What the engine wants done outside of it. What comes of it is an
//! [`Input`](super::Input).

use std::collections::VecDeque;
use std::time::Duration;

use pgoutput::Lsn;
use uuid::Uuid;

use super::messages::{Dead, NotedPlace, Resolved};
use super::notice::Notice;
use super::replay_messages::ReplayNote;

/// What is to be done, in the order in which it is to be begun.
pub(crate) type Effects = VecDeque<Effect>;

/// Grouped by the part of the engine that asks for it: see `source/effects.rs`.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    Books(BooksEffect),
    Rows(RowsEffect),
    Marking(MarkingEffect),
    Scan(ScanEffect),
    Replay(ReplayEffect),
    Claims(ClaimsEffect),
    Broker(BrokerEffect),
    /// Lets PostgreSQL forget everything before.
    Confirm(Lsn),
    /// Measures how long acknowledged events took.
    Measure(Vec<Resolved>),
    /// Says something to operators.
    Tell(Notice),
    /// Ends the session.
    End(End),
}

/// Of what is written down, and of the slot. No statement of these waits for a row.
#[derive(Debug, Clone)]
pub(crate) enum BooksEffect {
    /// Writes down how far the slot may be confirmed, and how far the log was worked through.
    Checkpoint {
        at: Lsn,
        place: NotedPlace,
        /// The highest sequence known to be in the stream.
        stream_end: u64,
    },
    /// Puts something into the log, which a server that is there sends.
    Heartbeat,
    LookAtSlot,
    /// Waits until PostgreSQL has made the slot, which it was asked for.
    AwaitSlot,
}

/// Of rows that others may have locked.
#[derive(Debug, Clone)]
pub(crate) enum RowsEffect {
    /// Puts events into the dead-letter table, one after the other. Those of a claim over its
    /// connection: nobody else could touch their rows.
    Park { claim: Option<u32>, batch: Vec<(u64, Dead)> },
    /// Writes down that an event could not be published and is tried again after `pause`. Lost, it
    /// costs one attempt more.
    NoteFailure { claim: Option<u32>, id: Uuid, reason: String, pause: Duration },
    /// Marks or removes rows that were locked when that was to be done.
    MakeUpForMarks,
}

/// Of marks, the watermark and the sweeper.
#[derive(Debug, Clone)]
pub(crate) enum MarkingEffect {
    /// Marks rows. Marks may be late or lost: the sweeper finds them.
    Mark {
        statement: Statement,
        marks: Vec<Resolved>,
    },
    /// Opens the second connection for marks.
    OpenSecondWriter,
    CloseSecondWriter,
    /// Takes a watermark: a snapshot, and where the log ends.
    TakeWatermark,
    /// Stores the watermark, behind the marks that it covers, and looks for rows without a mark.
    StoreWatermark(Pass),
    /// Looks for more of them.
    SweepOn {
        pass: Pass,
        found: Found,
    },
    /// Reads the stream back to what was resolved when the last sweep was complete; to its beginning
    /// if there was none.
    ReadStreamBack {
        found: Found,
        resolved_before: Option<Lsn>,
    },
    /// Searches the whole stream for rows that the log did not bring, before they are published.
    Seek {
        pass: Pass,
        found: Found,
        verdict: Verdict,
    },
    /// Does what the verdict says.
    MarkSwept {
        found: Found,
        verdict: Verdict,
    },
    /// Writes down that the sweeper looked at the whole table. Lost, it costs another look.
    NoteSweep,
}

/// Of rows that the log does not bring.
#[derive(Debug, Clone)]
pub(crate) enum ScanEffect {
    /// Opens a scan of the table, and reads its first batch.
    Open(OpenScan),
    /// Reads the next batch.
    Read(ReadScan),
    Close,
    /// Ends the scan's transaction at once.
    Abandon {
        gives_way: bool,
    },
    /// Looks whether somebody waits for what the scan's process has locked.
    Watch {
        process: i32,
    },
    /// Marks rows of the oldest batches, durably.
    Mark {
        batches: usize,
        published: Vec<Resolved>,
    },
    /// Writes down that every row is published and marked that the log does not bring, and how many
    /// were since that was last written down.
    NoteGapFilled {
        rows: u64,
    },
    /// Writes down that a scan looked at the whole table. Lost, it costs another look.
    Note,
}

/// Of what is published once more.
#[derive(Debug, Clone)]
pub(crate) enum ReplayEffect {
    /// Looks whether there is something to replay.
    LookFor,
    /// Takes a replay up where it was left. What is written down of the stream's sequence counts no
    /// more.
    Begin(Uuid),
    /// Reads the next rows of a replay.
    Read { id: Uuid, after: i64 },
    /// Writes down how far a replay is.
    Note(ReplayNote),
    /// Nothing more is read for the replay: what it holds on either server is let go.
    End,
}

/// Of rows that this node alone may publish.
#[derive(Debug, Clone)]
pub(crate) enum ClaimsEffect {
    /// Claims rows, as claim `claim`.
    Claim { claim: u32 },
    /// Says to the server that the claim is still worked on.
    Renew { claim: u32 },
    /// Marks events of a claim that goes on, if nobody has the table locked.
    Mark { claim: u32, published: Vec<Resolved> },
    /// Marks the other events of a claim, and ends it.
    GiveBack { claim: u32, published: Vec<Resolved> },
    /// Reads what the stream got from sequence `from` on: others may have published rows that this
    /// node has claimed since, and may have ended before they marked them.
    LookAtTail { from: u64 },
}

/// Of the broker, beside what is published.
#[derive(Debug, Clone)]
pub(crate) enum BrokerEffect {
    /// Reads the stream from sequence `from` to its end, after waiting for `delay`.
    ReadTail { from: u64, delay: Duration },
    /// Looks whether the event is at `seq`, as an answer says that called it a duplicate: others may
    /// answer, and a broker remembers the ids of messages that were removed.
    LookUp { epoch: u32, index: u64, seq: u64, id: Uuid },
    /// Goes to another server of the broker's cluster.
    LeaveServer,
}

/// Why a session cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Only an operator can help.
    Refused(String),
    /// PostgreSQL fell silent.
    Silence,
    /// The next session is to work in keyed mode, for this reason.
    LeaveFence(String),
    /// The stream ends before what was acknowledged. The next session mends that.
    StreamIsShorter,
    /// A claim may be somebody else's by now.
    ClaimLost,
    /// The engine is told of what it has no part for.
    Bug(&'static str),
}

/// A row to be judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unmarked {
    pub(crate) id: Uuid,
    /// A route drops it: the stream has nothing of it.
    pub(crate) is_dropped: bool,
    pub(crate) age: Age,
}

/// When a row's transaction ran, measured by the last watermark below which nothing was left
/// unmarked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// It had ended before. Whatever the log brought of it was marked then.
    Swept,
    /// It was under way, or there is no such watermark: its commit may be anywhere in the log, for
    /// it may have waited for a synchronous standby.
    Unknown,
    /// It began later: its message, if there is one, is behind that watermark in the stream.
    Later,
}

/// What becomes of the rows.
#[derive(Debug, Default, Clone)]
pub(crate) struct Verdict {
    /// The stream has them, there; or a route dropped them.
    pub(crate) resolved: Vec<Resolved>,
    /// The watermark says that they are published, and nothing says otherwise.
    pub(crate) trusted: Vec<Uuid>,
    /// The log did not bring them, and the stream does not have them.
    pub(crate) unlogged: Vec<Uuid>,
    /// As it looks, the log did not bring them. They may have been inserted a moment ago, with a
    /// number that looks old: the next watermark will tell.
    pub(crate) suspected: usize,
}

/// Everything that the log owns, and that is visible in `snapshot`, was resolved when everything
/// before `lsn` was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watermark {
    /// As `pg_current_snapshot()` writes it.
    pub snapshot: String,
    pub(crate) lsn: Lsn,
}

/// Where unmarked rows are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SweepRange {
    /// In the whole table.
    Whole,
    /// Only among what was not swept before, which an index leads to if there is one.
    SinceSwept,
}

/// One watermark, from its being stored until every row that it covers is marked.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    pub(crate) watermark: Watermark,
    /// The last one whose sweep was complete.
    pub(crate) swept: Option<Watermark>,
    pub(crate) range: SweepRange,
    /// Parked rows may have been left in the outbox.
    pub(crate) sweeps_dead: bool,
    /// Marks must not wait for the look at the table: it has a connection of its own.
    pub(crate) takes_long: bool,
    /// The highest sequence known to be in the stream.
    pub(crate) stream_end: u64,
}

/// What a sweep has to judge, and which transactions it could see.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) rows: Vec<Unmarked>,
    /// The transaction that stored the watermark: every one numbered before it had begun by then.
    pub(crate) transaction: u64,
    /// Every transaction numbered before this had ended when the watermark was taken.
    pub(crate) oldest_running: u64,
}

/// A connection that marks are written over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    First,
    Second,
}

/// A statement with marks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Statement {
    pub(super) writer: Writer,
    pub(crate) marks: usize,
    pub(super) number: u64,
}

impl Statement {
    #[cfg(test)]
    pub(crate) fn of_first(marks: usize) -> Self {
        Self { writer: Writer::First, marks, number: 0 }
    }

    pub(crate) fn is_on_second(&self) -> bool {
        self.writer == Writer::Second
    }
}

/// What a scan is to do when it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadScan {
    /// With the session's first rows, search the stream's tail for those that an earlier session
    /// published and did not mark.
    pub(crate) with_tail: bool,
    /// Before the first rows are published, write down that there is something to publish.
    pub(crate) opens_gap: bool,
    /// Before the first rows are published, make sure that PostgreSQL has their commits on the disk.
    pub(crate) flushes_log: bool,
}

/// What a new scan is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenScan {
    pub(crate) range: ScanRange,
    /// The log waits for it: it must not wait for others' locks for long.
    pub(crate) log_waits: bool,
    pub(crate) sees: Sees,
    pub(crate) read: ReadScan,
}

/// Which transactions' rows a scan brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sees {
    /// Those that the slot's start snapshot shows. With `awaits_visibility` it waits until all of
    /// them are visible.
    BeforeSlot { awaits_visibility: bool },
    /// Those that are visible now, of which the start snapshot of the slot that PostgreSQL makes
    /// will show each.
    BeforeAwaitedSlot,
}

/// Where rows are looked for that the log does not bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanRange {
    /// In the whole table.
    Whole,
    /// Among what came back to the outbox, which an index leads to if there is one. Once the gap was
    /// filled that is everything but rows that somebody else gave an old transaction's number, or
    /// whose mark somebody took.
    CameBack,
}
