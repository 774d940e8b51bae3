//! Publishes rows that the log does not bring.
//!
//! Rows go through the same window as the log's events, in batches: while one is being read others
//! are on their way, and those that the broker has are being marked, durably. Only so many may be
//! unmarked that a bounded read of the stream's tail finds all of them after a crash. As long as there
//! are rows older than the slot, the log waits at the start of a session until a scan has found
//! all of them, so that an aggregate's old rows are published before its new ones.

mod backfill_holds;
mod scan_ranges;

use std::collections::VecDeque;
use std::time::Duration;

pub(crate) use self::scan_ranges::ScanRanges;
use super::effect::{Effect, Effects, OpenScan, ReadScan, ScanEffect, Sees};
use super::messages::Resolved;
use super::notice::Notice;

/// So much longer than usual a scan waits while the session is behind.
const BEHIND_FACTOR: u32 = 10;

/// How long a scan waits for room with its transaction open, which keeps others from changing the
/// table, and vacuum from cleaning up. A broker that is there makes room in less.
const OPEN_WITHOUT_ROOM_MAX: Duration = Duration::from_secs(2);

/// How often the relay checks whether others wait for a scan's end.
const WATCHED_EVERY: Duration = Duration::from_secs(1);

/// The pause after a scan, or its marks, met a lock.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long after a scan the next one begins while nothing else brings events.
const WITHOUT_SLOT_EVERY: Duration = Duration::from_millis(250);

/// A scan, as far as it is decided here; its cursor is outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scan {
    Resting {
        until: Duration,
    },
    /// It is being opened, read or closed.
    Busy,
    /// Until there is room for another batch.
    Paused {
        since: Duration,
    },
}

/// What the log waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogWaits {
    No,
    /// The first scan of the session.
    ForFirst,
    /// A scan that is to release blocked aggregates: see `engine/publish/parking.rs`.
    ForBlocked,
}

/// Whether rows may be published and not marked, or not published, as it is written down. Whatever
/// becomes of this session, the log waits for the first scan of the next one while there is a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    Filled,
    Open,
    /// A scan has found everything, and that is not written down yet.
    Read,
    /// It is being written down.
    Noting,
}

/// The statement that marks what was scanned.
#[derive(Debug, Clone)]
enum Marks {
    Idle,
    Running {
        batches: usize,
    },
    /// The rows were locked: the same statement again.
    Postponed {
        batches: usize,
        published: Vec<Resolved>,
        until: Duration,
    },
}

/// A batch that is not marked.
#[derive(Debug, Clone)]
struct Batch {
    number: u32,
    resolved: Vec<Resolved>,
}

/// How the session is doing, as far as it matters to a scan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene {
    /// Many rows wait for the log, or for their marks.
    pub(crate) is_behind: bool,
    /// Nothing else may be published: the session ends.
    pub(crate) is_draining: bool,
    /// Aggregates wait for parked events.
    pub(crate) is_blocking: bool,
    /// Nothing is on its way to the broker.
    pub(crate) is_idle: bool,
    /// What is on its way leaves room for a scan.
    pub(crate) may_scan: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Backfill {
    interval: Duration,
    /// PostgreSQL makes the slot: every row that is visible belongs to the scanner.
    awaits_slot: bool,
    scan: Scan,
    ranges: ScanRanges,
    log_waits: LogWaits,
    gap: Gap,
    marks: Marks,
    /// When many rows were last seen to wait for the log, or for their marks.
    behind_at: Option<Duration>,
    /// The oldest first.
    batches: VecDeque<Batch>,
    batches_begun: u32,
    /// The server's process that reads for the scan, and when it is to be looked whether it is in
    /// somebody's way.
    reader: Option<i32>,
    watch_due: Duration,
    /// Others wait for the table: the scan is to begin anew, behind them.
    gives_way: bool,
    tail_read: bool,
    scanned: u64,
    /// How many of them are written down.
    noted: u64,
}

impl Backfill {
    /// With `first`, the log waits for the first scan; else that is due after `interval`.
    pub(crate) fn new(
        first: bool,
        ranges: ScanRanges,
        is_gap_open: bool,
        interval: Duration,
    ) -> Self {
        Self {
            interval,
            awaits_slot: false,
            scan: Scan::Resting { until: interval },
            ranges,
            log_waits: if first { LogWaits::ForFirst } else { LogWaits::No },
            gap: if is_gap_open { Gap::Open } else { Gap::Filled },
            marks: Marks::Idle,
            behind_at: None,
            batches: VecDeque::new(),
            batches_begun: 0,
            reader: None,
            watch_due: WATCHED_EVERY,
            gives_way: false,
            tail_read: false,
            scanned: 0,
            noted: 0,
        }
    }

    /// While PostgreSQL makes the slot: what is visible is published, one scan after the other.
    ///
    /// What is left is the next session's, whose slot does not bring it: its gap is open.
    pub(crate) fn without_slot() -> Self {
        let ranges = ScanRanges::new(false, true, None);
        Self { awaits_slot: true, ..Self::new(true, ranges, true, WITHOUT_SLOT_EVERY) }
    }

    pub(crate) fn holds_the_log_back(&self) -> bool {
        self.log_waits != LogWaits::No
    }

    pub(crate) fn is_resting(&self) -> bool {
        let rests = matches!(self.scan, Scan::Resting { .. }) && !self.is_busy();
        rests
            && self.log_waits != LogWaits::ForFirst
            && !matches!(self.gap, Gap::Read | Gap::Noting)
    }

    /// Whether nothing of a scan is in the stream since its last batch was noted as marked.
    pub(crate) fn is_clear(&self) -> bool {
        self.gap == Gap::Filled
    }

    /// Whether rows are published and not marked.
    pub(crate) fn is_busy(&self) -> bool {
        !self.batches.is_empty() || !matches!(self.marks, Marks::Idle)
    }

    /// Rows marked by this session's scans.
    pub(crate) fn scanned(&self) -> u64 {
        self.scanned
    }

    /// An event of a batch is resolved.
    pub(crate) fn published(&mut self, batch: u32, resolved: Resolved) {
        if let Some(batch) = self.batches.iter_mut().find(|it| it.number == batch) {
            batch.resolved.push(resolved);
        }
    }

    /// Begins the first scan, if the log waits for it.
    pub(crate) fn begin_first(&mut self, now: Duration, effects: &mut Effects) {
        if self.log_waits == LogWaits::ForFirst {
            self.begin(now, false, effects);
        }
    }

    /// Looks again from time to time: a row may have been unmarked by hand. Seldom while the session
    /// is or just was behind: a look at the whole table would cost the more, and find the less.
    pub(crate) fn begin_if_due(&mut self, now: Duration, scene: Scene, effects: &mut Effects) {
        if scene.is_behind {
            self.behind_at = Some(now);
        }
        let was_behind = self.behind_at.is_some_and(|at| now.saturating_sub(at) < self.interval);
        let patience = match was_behind && !self.holds_the_log_back() {
            true => self.interval * BEHIND_FACTOR,
            false => Duration::ZERO, // the log waits for this one, and would stay behind
        };
        let is_due = matches!(self.scan, Scan::Resting { until } if until + patience <= now);
        // A scan would open the gap while it is recorded as filled.
        let is_free = !self.is_busy() && self.gap != Gap::Noting;
        if !is_due || !is_free || scene.is_draining || !scene.may_scan {
            return;
        }
        if self.log_waits != LogWaits::ForFirst {
            self.log_waits = if scene.is_blocking { LogWaits::ForBlocked } else { LogWaits::No };
        }
        if !scene.is_blocking || scene.is_idle {
            self.begin(now, scene.is_blocking, effects);
        }
    }

    fn begin(&mut self, now: Duration, for_blocked: bool, effects: &mut Effects) {
        self.scan = Scan::Busy;
        if self.gap == Gap::Read {
            self.gap = Gap::Open;
        }
        effects.push_back(Effect::Scan(ScanEffect::Open(OpenScan {
            range: self.ranges.next(now, for_blocked),
            log_waits: for_blocked,
            sees: match self.awaits_slot {
                true => Sees::BeforeAwaitedSlot,
                false => Sees::BeforeSlot { awaits_visibility: self.gap == Gap::Open },
            },
            // All that is read later is of the same snapshot. What a slot does not bring was in the
            // log's flushed part when the slot began.
            read: ReadScan { flushes_log: self.awaits_slot, ..self.read() },
        })));
    }

    fn read(&self) -> ReadScan {
        let opens_gap = self.gap == Gap::Filled;
        ReadScan { with_tail: !self.tail_read, opens_gap, flushes_log: false }
    }

    /// A batch was read, over the server's process `reader`. Says what is its number.
    pub(crate) fn read_batch(
        &mut self,
        now: Duration,
        reader: i32,
        with_tail: bool,
        effects: &mut Effects,
    ) -> u32 {
        if self.gap == Gap::Filled {
            self.gap = Gap::Open;
        }
        self.tail_read |= with_tail;
        if self.batches_begun == 0 {
            effects.push_back(Effect::Tell(Notice::ScanFound));
        }
        self.batches_begun += 1;
        self.batches.push_back(Batch { number: self.batches_begun, resolved: Vec::new() });
        self.reader = Some(reader);
        self.scan = Scan::Paused { since: now };
        self.batches_begun
    }

    /// There is nothing more to be read, or with `is_cut` there may be and the session ends.
    pub(crate) fn read_to_end(&mut self, is_cut: bool, effects: &mut Effects) {
        if self.gap != Gap::Filled {
            self.gap = if is_cut || self.awaits_slot { Gap::Open } else { Gap::Read };
        }
        effects.push_back(Effect::Scan(ScanEffect::Close));
    }

    /// The scan is over.
    pub(crate) fn closed(&mut self, now: Duration, effects: &mut Effects) {
        let was_first = self.log_waits == LogWaits::ForFirst;
        self.log_waits = LogWaits::No;
        self.rest(now + self.interval);
        if self.ranges.done(now) {
            effects.push_back(Effect::Scan(ScanEffect::Note));
        }
        if was_first && self.batches_begun > 0 && !self.awaits_slot {
            effects.push_back(Effect::Tell(Notice::FirstScanDone));
        }
    }

    /// It begins again later: what it has brought by then is marked.
    pub(crate) fn postponed(&mut self, now: Duration) {
        self.interrupted(now + AGAIN_AFTER);
    }

    /// It begins again at once, and the log waits for it then.
    pub(crate) fn overtaken(&mut self, now: Duration, effects: &mut Effects) {
        effects.push_back(Effect::Scan(ScanEffect::Abandon { gives_way: false }));
        self.interrupted(now);
    }

    fn interrupted(&mut self, until: Duration) {
        if self.log_waits == LogWaits::ForBlocked {
            self.log_waits = LogWaits::No;
        }
        self.rest(until);
    }

    fn rest(&mut self, until: Duration) {
        (self.gives_way, self.reader) = (false, None);
        self.scan = Scan::Resting { until };
    }

    /// Ends a scan's transaction while the broker keeps it waiting, or somebody else waits for it. The
    /// next scan begins when everything that this one brought is marked, so it finds the rest.
    /// Says whether it did.
    pub(crate) fn watch(&mut self, now: Duration, effects: &mut Effects) -> bool {
        let ends = match self.scan {
            Scan::Paused { since } => {
                self.gives_way || now.saturating_sub(since) > OPEN_WITHOUT_ROOM_MAX
            }
            Scan::Resting { .. } | Scan::Busy => false,
        };
        if ends {
            effects.push_back(Effect::Scan(ScanEffect::Abandon { gives_way: self.gives_way }));
            self.interrupted(now);
        }
        if let Some(process) = self.reader
            && self.watch_due <= now
        {
            self.watch_due = now + WATCHED_EVERY;
            effects.push_back(Effect::Scan(ScanEffect::Watch { process }));
        }
        ends
    }

    /// Whether others wait for the scan to let go of the table.
    pub(crate) fn watched(&mut self, is_in_the_way: bool) {
        self.gives_way |= is_in_the_way && !matches!(self.scan, Scan::Resting { .. });
    }

    /// Marks what is resolved, the oldest `batches`; reads on if there is room; notes that the gap is
    /// filled, unless the checkpoint is being written, which says the opposite.
    pub(crate) fn advance(
        &mut self,
        now: Duration,
        batches: usize,
        has_room: bool,
        is_checkpointing: bool,
        effects: &mut Effects,
    ) {
        if self.gap == Gap::Read && !self.is_busy() && !is_checkpointing {
            self.gap = Gap::Noting;
            effects.push_back(Effect::Scan(ScanEffect::NoteGapFilled {
                rows: self.scanned - self.noted,
            }));
        }
        self.mark(now, batches, effects);
        if matches!(self.scan, Scan::Paused { .. }) && !self.gives_way && has_room {
            self.scan = Scan::Busy;
            effects.push_back(Effect::Scan(ScanEffect::Read(self.read())));
        }
    }

    fn mark(&mut self, now: Duration, batches: usize, effects: &mut Effects) {
        self.marks = match std::mem::replace(&mut self.marks, Marks::Idle) {
            Marks::Postponed { batches, published, until } if until <= now => {
                effects.push_back(Effect::Scan(ScanEffect::Mark { batches, published }));
                Marks::Running { batches }
            }
            Marks::Idle if batches > 0 => {
                let resolved = self.batches.drain(..batches).flat_map(|it| it.resolved);
                let published = resolved.collect();
                effects.push_back(Effect::Scan(ScanEffect::Mark { batches, published }));
                Marks::Running { batches }
            }
            other @ (Marks::Idle | Marks::Running { .. } | Marks::Postponed { .. }) => other,
        };
    }

    /// So many rows are marked, durably.
    pub(crate) fn marked(&mut self, rows: u64) {
        self.marks = Marks::Idle;
        self.scanned += rows;
    }

    /// The rows are locked.
    pub(crate) fn not_marked(&mut self, now: Duration, batches: usize, published: Vec<Resolved>) {
        self.marks = Marks::Postponed { batches, published, until: now + AGAIN_AFTER };
    }

    /// Whether it could be written down that the gap is filled.
    pub(crate) fn gap_noted(&mut self, is_noted: bool) {
        self.gap = if is_noted { Gap::Filled } else { Gap::Read };
        if is_noted {
            self.noted = self.scanned;
        }
    }
}

#[cfg(test)]
mod tests;
