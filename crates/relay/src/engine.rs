//! The relay's decisions, without I/O and without a clock.
//!
//! ```text
//!   log, broker ──▶ apply()   ──▶ ┌────────┐ ──▶ next_send()    to the broker
//!   jobs        ──▶ outcome() ──▶ │ Engine │ ──▶ next_effect()  jobs, confirmations, notices
//!   time        ──▶ tick()    ──▶ └────────┘
//! ```
//!
//! An [`Engine`] is one session over the slot. It ends with the replication connection and is built
//! anew from the slot, the stream's tail and what is written down in PostgreSQL: a reconnect, a
//! restart and a crash are one path. Its parts are state machines which do not know each other:
//!
//! - [`publish`]: the window of events between "the log brought it" and "the broker has it".
//! - [`checkpoint`]: how far PostgreSQL may forget.
//! - [`marking`]: marks, the watermark, the sweeper. [`owed_marks`]: rows that somebody has locked.
//! - [`backfill`]: rows that the log does not bring.
//! - [`replay`]: what is published once more.
//! - [`parking`]: dead letters. [`slot_watch`], [`liveness`]: the two servers' health.
//!
//! The invariants (DESIGN 3) and where they are kept:
//!
//! - **A, no loss**: [`progress`] confirms only the contiguous resolved prefix.
//! - **B, order**: [`window`] gives events out in order; after any refusal or silence everything
//!   unresolved goes back (go-back-N), and the tail of the stream, not an assumption, says what is
//!   stored.
//! - **C, no duplicate**: an id found in the stream resolves its event; in fenced mode the broker
//!   refuses whatever was sent on a stale belief about the stream's last sequence.
//! - **D, bounded**: [`Limits`] stop the reading of the log; every other queue here is a function
//!   of the window's length.

// What is added to an enum of ours is to be thought of here.
#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

mod assertions;
mod backfill;
pub mod backoff;
mod breaker;
mod checkpoint;
mod claim_engine;
mod confirming;
mod decides;
mod effect;
mod last_event;
mod liveness;
mod marking;
mod messages;
mod notice;
mod outcome;
mod owed_marks;
mod parking;
mod progress;
mod publish;
mod replay;
mod replay_messages;
mod scanning;
#[cfg(test)]
mod seeds;
#[cfg(test)]
mod simulation;
mod slot_found;
mod slot_health;
mod slot_watch;
mod tail_messages;
mod window;
mod written_down;

use std::time::Duration;

use pgoutput::Lsn;

use self::backfill::ScanNotice;
pub(crate) use self::backfill::{Backfill, ScanRanges};
pub(crate) use self::checkpoint::Checkpoint;
pub(crate) use self::claim_engine::{ClaimEffect, ClaimEngine, ClaimOutcome, ClaimStart, LEASE};
pub(crate) use self::decides::{Decides, Figures};
pub use self::effect::Watermark;
pub(crate) use self::effect::{
    Age, BooksEffect, BrokerEffect, Effect, Effects, End, Found, MarkingEffect, OpenScan, Pass,
    ReadScan, ReplayEffect, RowsEffect, ScanEffect, ScanRange, Sees, Statement, SweepRange,
    Unmarked, Verdict,
};
pub(crate) use self::last_event::LastEvent;
use self::liveness::{Liveness, Silence};
pub(crate) use self::marking::{
    Batching, MARKS_AT_ONCE, MARKS_WAITING_MAX, Marking, MarkingStart, SWEEPER_STORED_MAX,
    SWEPT_AT_ONCE, Sweeper, Swept,
};
pub(crate) use self::messages::{
    Blocked, Dead, Ignored, Input, Mode, NotedPlace, Part, Refusal, Request, Resolved, Send, Start,
};
pub(crate) use self::notice::{About, Notice};
pub(crate) use self::outcome::{Marked, Outcome, Parked, RowOfDead, ScanMarks, ScanRead};
use self::owed_marks::OwedMarks;
use self::parking::Parking;
pub(crate) use self::publish::{LOGGED_WHILE_SCAN_UNMARKED_MAX, Publishing, SCANS_UNMARKED_MAX};
pub(crate) use self::replay::Replaying;
pub(crate) use self::replay_messages::{
    ReplayNote, ReplayPage, ReplayRow, ReplayStart, ReplayUnread, ReplayWish,
};
pub(crate) use self::slot_found::{SlotFound, SlotKnown, SlotSeen};
pub(crate) use self::slot_health::SlotHealth;
pub(crate) use self::slot_watch::SlotNotice;
use self::slot_watch::SlotWatch;
pub use self::tail_messages::Stored;
pub(crate) use self::tail_messages::{Tail, TailMessage};
pub use self::window::Unpublished;
pub(crate) use self::window::{LastPosition, Limits, Origin, Outgoing, Replayed, Tried};
pub(crate) use self::written_down::{
    Compared, LostEnd, Place, ResolvedPlace, WrittenDown, beyond_the_log,
};
use crate::status::SlotStatus;

/// How long a stop may take to bring in the broker's answers and write the marks.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// A session whose last turn is longer ago was held up. Somebody else may have the slot by now.
const HELD_UP: Duration = Duration::from_secs(1);

/// What a session over the slot starts with.
#[derive(Debug)]
pub(crate) struct EngineStart {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    NotYet {
        /// Ends once everything before this is resolved.
        until: Option<Lsn>,
    },
    /// Nothing new is taken in.
    Draining { since: Duration },
}

/// All that is decided in one session over the slot. See the module.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    publishing: Publishing,
    marking: Marking,
    backfill: Backfill,
    replaying: Replaying,
    parking: Parking,
    owed_marks: OwedMarks,
    checkpoint: Checkpoint,
    slot_watch: SlotWatch,
    liveness: Liveness,
    awaits_slot: bool,
    ending: Ending,
    /// When the last turn came to send.
    awake_at: Duration,
    effects: Effects,
}

impl Decides for Engine {
    type Effect = Effect;

    fn apply(&mut self, now: Duration, input: Input) {
        self.publishing.apply(now, input);
    }

    fn turn(&mut self, now: Duration) {
        self.take_requests();
        self.replay(now);
        if let Some(batch) = self.parking.next(now) {
            self.effects.push_back(Effect::Rows(RowsEffect::Park(batch)));
        }
        self.mark(now);
        self.confirm(now);
        self.assert_holds();
    }

    fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn wants_log(&self) -> bool {
        !self.awaits_slot
            && !self.is_draining()
            && !self.backfill.holds_the_log_back()
            && self.publishing.has_room()
    }

    /// The copies of a replay rest until then.
    fn wakes_at(&self, now: Duration) -> Option<Duration> {
        self.publishing.copies_rest_until(now)
    }

    fn before_sending(&mut self, now: Duration) {
        if now.saturating_sub(std::mem::replace(&mut self.awake_at, now)) > HELD_UP {
            self.publishing.apply(now, Input::LinkLost);
        }
    }

    fn has_send(&mut self) -> bool {
        self.publishing.has_send()
    }

    fn next_end(&mut self) -> Option<Part> {
        self.publishing.next_end()
    }

    fn stop(&mut self, now: Duration, why: &'static str) {
        self.ending = Ending::Draining { since: now };
        let unresolved = self.publishing.unresolved();
        self.tell(Notice::Stopping { why, unresolved });
    }

    fn is_draining(&self) -> bool {
        matches!(self.ending, Ending::Draining { .. })
    }

    fn is_drained(&self, now: Duration) -> bool {
        let Ending::Draining { since } = self.ending else { return false };
        let is_done = self.publishing.is_idle()
            && self.marking.is_finished()
            && !self.backfill.is_busy()
            && self.replaying.is_noted();
        is_done || now.saturating_sub(since) > DRAIN_MAX
    }

    fn figures(&self) -> Figures<'_> {
        Figures {
            publishing: &self.publishing,
            marks: self.marking.counts(),
            confirmed: self.checkpoint.confirmed(),
            scanned: self.backfill.scanned(),
            has_gap: !self.backfill.is_clear(),
        }
    }
}

impl Engine {
    /// Begins the scan that the log waits for, if there is one, and waits for the slot, if there is
    /// none.
    pub(crate) fn new(start: EngineStart) -> Self {
        let mut engine = Self {
            publishing: start.publishing,
            marking: start.marking,
            backfill: start.backfill,
            replaying: start.replaying,
            parking: Parking::new(),
            owed_marks: OwedMarks::new(),
            checkpoint: start.checkpoint,
            slot_watch: SlotWatch::new(start.wal_limit),
            liveness: Liveness::default(),
            awaits_slot: start.awaits_slot,
            ending: Ending::NotYet { until: start.until },
            awake_at: Duration::ZERO,
            effects: Effects::new(),
        };
        if engine.awaits_slot {
            engine.effects.push_back(Effect::Books(BooksEffect::AwaitSlot));
        }
        engine.backfill.begin_first(Duration::ZERO, &mut engine.effects);
        engine
    }

    pub(crate) fn next_send(&mut self) -> Option<Send<'_>> {
        self.publishing.next_send()
    }

    pub(crate) fn publishing(&self) -> &Publishing {
        &self.publishing
    }

    /// Marks that wait to be written.
    pub(crate) fn marks_waiting(&self) -> usize {
        self.marking.waiting()
    }

    /// Takes in that time has passed, and for how long PostgreSQL was silent.
    pub(crate) fn tick(&mut self, now: Duration, silence: Duration) {
        self.publishing.apply(now, Input::Tick);
        self.watch_servers(now, silence);
        if self.owed_marks.begin_if_due(now) {
            self.effects.push_back(Effect::Rows(RowsEffect::MakeUpForMarks));
        }
        self.scan_if_due(now);
        self.look_for_replay(now);
        let resolved = self.publishing.counts().resolved();
        if !self.awaits_slot {
            self.marking.observe_if_due(now, resolved, &mut self.effects);
        }
        if let Ending::NotYet { until: Some(until) } = self.ending
            && self.publishing.confirmed() >= until
            && self.backfill.is_resting()
            && !self.marking.owes_marks()
        {
            self.stop(now, "everything there was is published");
        }
    }

    /// Takes in what came of an effect.
    pub(crate) fn outcome(&mut self, now: Duration, outcome: Outcome) {
        let (publishing, effects) = (&mut self.publishing, &mut self.effects);
        match outcome {
            Outcome::Tail(tail) => publishing.apply(now, Input::Tail(tail)),
            Outcome::TailFailed(why) => publishing.apply(now, Input::TailFailed(why)),
            Outcome::Parked(parked) => {
                self.parking.parked();
                self.parked(now, parked);
            }
            Outcome::NotParked { parked, left } => {
                self.parking.not_parked(now, left);
                self.parked(now, parked);
            }
            Outcome::Owed(left) => self.owed_marks.ended(now, left),
            Outcome::Marked { statement, marked } => {
                let marked = marked.as_ref().map(|it| (it.rows, &*it.without_row));
                self.marking.marked(now, statement, marked);
            }
            Outcome::SecondWriter(is_open) => self.marking.second_opened(now, is_open),
            Outcome::SecondWriterBroke => self.marking.second_broke(now),
            Outcome::Watermark(watermark) => self.marking.observed(watermark),
            Outcome::Unmarked(found) => self.marking.found(now, found, effects),
            Outcome::StreamBack { found, stored, is_whole } => {
                self.marking.stream_read(now, found, &stored, is_whole, effects);
            }
            Outcome::Swept(swept) => self.swept(now, swept),
            Outcome::ScanRead(read) => self.scan_read(now, read),
            Outcome::ScanMarked { batches, published, marked: None } => {
                self.backfill.not_marked(now, batches, published);
            }
            Outcome::ScanMarked { batches, marked: Some(marked), .. } => {
                self.scan_marked(now, batches, marked);
            }
            Outcome::ScanWatched(is_in_the_way) => self.backfill.watched(is_in_the_way),
            Outcome::ScanPostponed => {
                publishing.scan_ended(false);
                self.backfill.postponed(now);
            }
            Outcome::ScanClosed => {
                publishing.scan_ended(true);
                let notice = self.backfill.closed(now, effects);
                self.tell_scan(notice);
            }
            Outcome::ReplayFound(replay) => self.replay_found(now, replay),
            Outcome::ReplayBegun(start) => self.replay_begun(now, start),
            Outcome::ReplayRead { of, page } => self.replay_read(now, of, page),
            Outcome::ReplayNoted { problems, wish } => self.replay_noted(now, problems, wish),
            Outcome::GapNoted(is_noted) => self.backfill.gap_noted(is_noted),
            Outcome::Checkpointed(end) => self.checkpointed(end),
            Outcome::Slot(health) => self.slot_looked_at(now, health),
            // What it does not bring and is not published is for the next session's first scan.
            Outcome::SlotMade if self.is_draining() => {}
            Outcome::SlotMade => self.stop(now, "the slot is there"),
        }
    }

    fn tell(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Tell(notice));
    }

    fn tell_scan(&mut self, notice: Option<ScanNotice>) {
        match notice {
            Some(ScanNotice::Found) => self.tell(Notice::ScanFound),
            Some(ScanNotice::Done) => self.tell(Notice::FirstScanDone),
            None => {}
        }
    }

    fn take_requests(&mut self) {
        while let Some(request) = self.publishing.next_request() {
            match request {
                Request::ReadTail { from, delay, why } => {
                    let unresolved = self.publishing.unresolved();
                    self.tell(Notice::ReadingTail { why, unresolved });
                    self.effects.push_back(Effect::Broker(BrokerEffect::ReadTail { from, delay }));
                }
                Request::Park { index, dead } => {
                    if dead.blocked_by.is_none() {
                        let about = self.publishing.about(index, dead.event.id);
                        self.tell(Notice::Parking { about, reason: dead.reason.clone() });
                    }
                    self.parking.ask(index, dead);
                }
                Request::NoteFailure { index, id, has_row, attempts, reason, pause } => {
                    let (about, said) = (self.publishing.about(index, id), reason.clone());
                    self.tell(Notice::TryingAgain { about, attempts, reason: said, pause });
                    if has_row {
                        self.effects.push_back(Effect::Rows(RowsEffect::NoteFailure {
                            id,
                            reason,
                            pause,
                        }));
                    }
                }
                Request::TellIgnored(why) => self.tell(Notice::IgnoringMessages { why }),
                Request::TellStranger(why) => self.tell(Notice::Stranger { why }),
                Request::TellStaysFenced => self.tell(Notice::StaysFenced),
                Request::TellUncounted => self.tell(Notice::Uncounted),
                Request::TellCount { counted, uncertain } => {
                    self.tell(Notice::Counted { counted, uncertain });
                }
                Request::StreamIsShorter => {
                    self.effects.push_back(Effect::End(End::StreamIsShorter));
                }
                Request::LeaveFence(why) => {
                    self.effects.push_back(Effect::End(End::LeaveFence(why)));
                }
                Request::Stop(reason) => self.effects.push_back(Effect::End(End::Refused(reason))),
            }
        }
    }

    /// Routes what became resolved to whoever owes its mark, and begins what is due.
    fn mark(&mut self, now: Duration) {
        let resolved = self.publishing.take_resolved();
        for event in &resolved {
            match event.origin {
                Origin::Log => self.marking.queue(now, event),
                Origin::Emitted => {} // nothing is left to be done
                Origin::Scan(batch) => self.backfill.published(batch, *event),
                Origin::Replay => self.replaying.stored(event),
            }
        }
        if !resolved.is_empty() {
            self.effects.push_back(Effect::Measure(resolved));
        }
        let (confirmed, hurry) = (self.publishing.confirmed(), self.is_draining());
        if hurry && self.publishing.is_idle() {
            self.marking.finish(now);
        }
        let stream_end = self.publishing.last_seq();
        self.marking.advance(now, confirmed, stream_end, hurry, &mut self.effects);
        let batches = self.publishing.scans_resolved();
        let has_room = self.publishing.has_room_to_scan();
        let is_checkpointing = self.checkpoint.is_writing();
        self.backfill.advance(now, batches, has_room, is_checkpointing, &mut self.effects);
    }

    fn watch_servers(&mut self, now: Duration, silence: Duration) {
        match self.liveness.listen(silence) {
            Silence::Bearable => {}
            Silence::AskForSign => self.effects.push_back(Effect::Books(BooksEffect::Heartbeat)),
            Silence::TooLong => self.effects.push_back(Effect::End(End::Silence)),
        }
        let (counts, is_idle) = (self.publishing.counts(), self.publishing.is_idle());
        let resolved = counts.resolved() + counts.replayed;
        if self.liveness.needs_failover(now, resolved, is_idle) {
            self.effects.push_back(Effect::Broker(BrokerEffect::LeaveServer));
        }
        if self.slot_watch.look_if_due(now) {
            self.effects.push_back(Effect::Books(BooksEffect::LookAtSlot));
        }
    }

    fn slot_looked_at(&mut self, now: Duration, health: SlotHealth) {
        let (retained_bytes, wal_status) = (health.retained_bytes, health.wal_status.clone());
        let (outlook, notice) = self.slot_watch.looked(now, health);
        let status = SlotStatus {
            wal_status,
            retained_bytes,
            wal_headroom_bytes: outlook.wal_headroom_bytes,
            wal_headroom_seconds: outlook.left.map(|it| it.as_secs()),
        };
        self.tell(Notice::Slot { status, notice });
    }

    fn parked(&mut self, now: Duration, parked: Vec<Parked>) {
        for Parked { index, row } in parked {
            match row {
                RowOfDead::Removed | RowOfDead::Never => {}
                RowOfDead::Locked => self.owed_marks.some(now),
                RowOfDead::Unseen => self.marking.parked(),
            }
            self.publishing.apply(now, Input::Parked { index });
        }
    }

    fn swept(&mut self, now: Duration, swept: Option<Swept>) {
        let notice = self.marking.swept(now, swept, &mut self.effects);
        if notice.marked > 0 {
            self.tell(Notice::Swept { rows: notice.marked });
        }
        if notice.unlogged > 0 {
            self.tell(Notice::Unlogged { rows: notice.unlogged });
        }
    }
}
