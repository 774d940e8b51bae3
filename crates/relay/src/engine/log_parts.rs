//! The parts of a session over the slot, and what they have to do with each other.

use std::time::Duration;

use pgoutput::Lsn;

use super::backfill::Backfill;
use super::checkpoint::Checkpoint;
use super::core::Core;
use super::effect::{BooksEffect, BrokerEffect, Effect, End, RowsEffect};
use super::input::{
    BooksInput, BrokerInput, MarkingInput, Parked, RowOfDead, RowsInput, ScanInput,
};
use super::liveness::{Liveness, Silence};
use super::marking::Marking;
use super::messages::Resolved;
use super::notice::Notice;
use super::owed_marks::OwedMarks;
use super::parking_queue::ParkingQueue;
use super::publish::Publishing;
use super::replay::Replaying;
use super::slot_health::SlotHealth;
use super::slot_watch::SlotWatch;
use super::window::Origin;

/// A session whose last turn is longer ago was held up. Another relay may have the slot by now.
const HELD_UP: Duration = Duration::from_secs(1);

/// What a session over the slot starts with.
#[derive(Debug)]
pub(crate) struct LogStart {
    pub(crate) publishing: Publishing,
    pub(crate) marking: Marking,
    pub(crate) backfill: Backfill,
    pub(crate) replaying: Replaying,
    pub(crate) checkpoint: Checkpoint,
    /// PostgreSQL makes the slot: rows come from the table alone, until that is there.
    pub(crate) awaits_slot: bool,
    /// From how much of PostgreSQL's log on the slot keeps too much.
    pub(crate) wal_limit: Option<u64>,
    /// With `--once`: done when everything before this is resolved.
    pub(crate) until: Option<Lsn>,
}

#[derive(Debug, Clone)]
pub(super) struct LogParts {
    pub(super) marking: Marking,
    pub(super) backfill: Backfill,
    pub(super) replaying: Replaying,
    pub(super) parking: ParkingQueue,
    pub(super) owed_marks: OwedMarks,
    pub(super) checkpoint: Checkpoint,
    slot_watch: SlotWatch,
    liveness: Liveness,
    pub(super) awaits_slot: bool,
    /// Ends once everything before this is resolved.
    until: Option<Lsn>,
    /// When the last turn came to send.
    awake_at: Duration,
}

impl LogParts {
    /// Begins the scan that the log waits for, if there is one, and waits for the slot, if there is
    /// none.
    pub(super) fn new(start: LogStart) -> (Self, Core) {
        let mut core = Core::new(start.publishing);
        let mut parts = Self {
            marking: start.marking,
            backfill: start.backfill,
            replaying: start.replaying,
            parking: ParkingQueue::new(),
            owed_marks: OwedMarks::new(),
            checkpoint: start.checkpoint,
            slot_watch: SlotWatch::new(start.wal_limit),
            liveness: Liveness::default(),
            awaits_slot: start.awaits_slot,
            until: start.until,
            awake_at: Duration::ZERO,
        };
        if parts.awaits_slot {
            core.effects.push_back(Effect::Books(BooksEffect::AwaitSlot));
        }
        parts.backfill.begin_first(Duration::ZERO, &mut core.effects);
        (parts, core)
    }

    pub(super) fn turn(&mut self, core: &mut Core, now: Duration) {
        self.replay(core, now);
        if let Some(batch) = self.parking.next(now) {
            core.effects.push_back(Effect::Rows(RowsEffect::Park { claim: None, batch }));
        }
        self.mark(core, now);
        self.confirm(core, now);
    }

    pub(super) fn wants_log(&self, core: &Core) -> bool {
        !self.awaits_slot
            && !core.is_draining()
            && !self.backfill.holds_the_log_back()
            && core.publishing.has_room()
    }

    pub(super) fn before_sending(&mut self, core: &mut Core, now: Duration) {
        if now.saturating_sub(std::mem::replace(&mut self.awake_at, now)) > HELD_UP {
            core.publishing.heard(now, BrokerInput::LinkLost);
        }
    }

    /// Whether a stop has nothing left to do.
    pub(super) fn is_done(&self, core: &Core) -> bool {
        core.publishing.is_idle()
            && self.marking.is_finished()
            && !self.backfill.is_busy()
            && self.replaying.is_noted()
    }

    /// Takes in that time has passed, and for how long PostgreSQL was silent.
    pub(super) fn tick(&mut self, core: &mut Core, now: Duration, silence: Duration) {
        self.watch_servers(core, now, silence);
        if self.owed_marks.begin_if_due(now) {
            core.effects.push_back(Effect::Rows(RowsEffect::MakeUpForMarks));
        }
        self.scan_if_due(core, now);
        self.look_for_replay(core, now);
        let resolved = core.publishing.counts().resolved();
        if !self.awaits_slot {
            self.marking.observe_if_due(now, resolved, &mut core.effects);
        }
        if let Some(until) = self.until
            && !core.is_draining()
            && core.publishing.confirmed() >= until
            && self.backfill.is_resting()
            && !self.marking.owes_marks()
        {
            core.stop(now, "everything there was is published");
        }
    }

    pub(super) fn booked(&mut self, core: &mut Core, now: Duration, input: BooksInput) {
        match input {
            BooksInput::Checkpointed(end) => self.checkpointed(core, end),
            BooksInput::Slot(health) => self.slot_looked_at(core, now, health),
            // What it does not bring and is not published is for the next session's first scan.
            BooksInput::SlotMade if core.is_draining() => {}
            BooksInput::SlotMade => core.stop(now, "the slot is there"),
        }
    }

    pub(super) fn rows(&mut self, core: &mut Core, now: Duration, input: RowsInput) {
        match input {
            RowsInput::Parked(parked) => {
                self.parking.parked();
                self.parked(core, now, parked);
            }
            RowsInput::NotParked { parked, left } => {
                self.parking.not_parked(now, left);
                self.parked(core, now, parked);
            }
            RowsInput::Owed(left) => self.owed_marks.ended(now, left),
        }
    }

    pub(super) fn marked(&mut self, core: &mut Core, now: Duration, input: MarkingInput) {
        let effects = &mut core.effects;
        match input {
            MarkingInput::Marked { statement, marked } => {
                let marked = marked.as_ref().map(|it| (it.rows, &*it.without_row));
                self.marking.marked(now, statement, marked);
            }
            MarkingInput::SecondWriter(is_open) => self.marking.second_opened(now, is_open),
            MarkingInput::SecondWriterBroke => self.marking.second_broke(now),
            MarkingInput::Watermark(watermark) => self.marking.observed(watermark),
            MarkingInput::Unmarked(found) => self.marking.found(now, found, effects),
            MarkingInput::StreamBack { found, stored, is_whole } => {
                self.marking.stream_read(now, found, &stored, is_whole, effects);
            }
            MarkingInput::Swept(swept) => self.marking.swept(now, swept, effects),
        }
    }

    pub(super) fn scan(&mut self, core: &mut Core, now: Duration, input: ScanInput) {
        match input {
            ScanInput::Read(read) => self.scan_read(core, now, read),
            ScanInput::Marked { batches, published, marked: None } => {
                self.backfill.not_marked(now, batches, published);
            }
            ScanInput::Marked { batches, marked: Some(marked), .. } => {
                self.scan_marked(core, now, batches, marked);
            }
            ScanInput::Watched(is_in_the_way) => self.backfill.watched(is_in_the_way),
            ScanInput::Postponed => {
                core.publishing.scan_ended(false);
                self.backfill.postponed(now);
            }
            ScanInput::Closed => {
                core.publishing.scan_ended(true);
                self.backfill.closed(now, &mut core.effects);
            }
            ScanInput::GapNoted(is_noted) => self.backfill.gap_noted(is_noted),
        }
    }

    /// Routes resolved events to the part that marks them, and begins what is due.
    fn mark(&mut self, core: &mut Core, now: Duration) {
        let Core { publishing, effects, .. } = core;
        let resolved = publishing.take_resolved();
        for event in &resolved {
            self.resolved(now, event);
        }
        if !resolved.is_empty() {
            effects.push_back(Effect::Measure(resolved));
        }
        let (confirmed, hurry) = (core.publishing.confirmed(), core.is_draining());
        let Core { publishing, effects, .. } = core;
        if hurry && publishing.is_idle() {
            self.marking.finish(now);
        }
        self.marking.advance(now, confirmed, publishing.last_seq(), hurry, effects);
        let batches = publishing.scans_resolved();
        let has_room = publishing.has_room_to_scan();
        let is_checkpointing = self.checkpoint.is_writing();
        self.backfill.advance(now, batches, has_room, is_checkpointing, effects);
    }

    fn resolved(&mut self, now: Duration, event: &Resolved) {
        match event.origin {
            Origin::Log => self.marking.queue(now, event),
            Origin::Emitted => {} // nothing is left to be done
            Origin::Scan(batch) => self.backfill.published(batch, *event),
            Origin::Replay => self.replaying.stored(event),
        }
    }

    fn watch_servers(&mut self, core: &mut Core, now: Duration, silence: Duration) {
        let Core { publishing, effects, .. } = core;
        match self.liveness.listen(silence) {
            Silence::Bearable => {}
            Silence::AskForSign => effects.push_back(Effect::Books(BooksEffect::Heartbeat)),
            Silence::TooLong => effects.push_back(Effect::End(End::Silence)),
        }
        let (counts, is_idle) = (publishing.counts(), publishing.is_idle());
        let resolved = counts.resolved() + counts.replayed;
        if self.liveness.needs_failover(now, resolved, is_idle) {
            effects.push_back(Effect::Broker(BrokerEffect::LeaveServer));
        }
        if self.slot_watch.look_if_due(now) {
            effects.push_back(Effect::Books(BooksEffect::LookAtSlot));
        }
    }

    fn slot_looked_at(&mut self, core: &mut Core, now: Duration, health: SlotHealth) {
        let (status, notice) = self.slot_watch.looked(now, health);
        core.tell(Notice::Slot { status, notice });
    }

    fn parked(&mut self, core: &mut Core, now: Duration, parked: Vec<Parked>) {
        for Parked { index, row } in parked {
            match row {
                RowOfDead::Removed | RowOfDead::Never => {}
                RowOfDead::Locked => self.owed_marks.some(now),
                RowOfDead::Unseen => self.marking.parked(),
            }
            core.publishing.parked(now, index);
        }
    }
}
