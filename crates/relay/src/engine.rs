//! The relay's decisions, without I/O and without a clock.
//!
//! ```text
//!   log, broker, jobs ──▶ apply() ──▶ ┌────────┐ ──▶ next_send()    to the broker
//!   time              ──▶ tick()  ──▶ │ Engine │ ──▶ next_effect()  jobs, confirmations, notices
//!                                     └────────┘
//! ```
//!
//! An [`Engine`] is one session. It ends with what it reads from and is built anew from the slot, the
//! stream's tail and what is written down in PostgreSQL: a reconnect, a restart and a crash are one
//! path. It is made with the parts that its mode needs. These are state machines which do not know
//! each other:
//!
//! - [`publish`]: the window of events between "the log brought it" and "the broker has it". Every
//!   mode has it ([`core`]).
//! - Over the slot ([`log_parts`]):
//!   - [`checkpoint`]: how far PostgreSQL may forget.
//!   - [`marking`]: marks, the watermark, the sweeper. [`owed_marks`]: rows that others have locked.
//!   - [`backfill`]: rows that the log does not bring.
//!   - [`replay`]: what is published once more.
//!   - [`parking`]: dead letters. [`slot_watch`], [`liveness`]: the two servers' health.
//! - Without a slot: [`claims`], rows that one node alone may publish.
//!
//! The invariants (DESIGN 3) and where they are kept:
//!
//! - **A, no loss**: [`progress`] confirms only the contiguous resolved prefix.
//! - **B, order**: [`window`] gives events out in order; after any refusal or silence everything
//!   unresolved goes back (go-back-N), and the tail of the stream, not an assumption, says what is
//!   stored.
//! - **C, no duplicate**: an id found in the stream resolves its event; in fenced mode the broker
//!   refuses whatever was sent on a stale belief about the stream's last sequence.
//! - **D, bounded**: [`WindowLimits`] stop the reading of the log; every other queue here is a function
//!   of the window's length.

// What is added to an enum of ours is to be thought of here.
#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

mod assertions;
mod backfill;
pub mod backoff;
mod breaker;
mod checkpoint;
mod claims;
mod confirming;
mod core;
mod effect;
mod input;
mod last_event;
mod liveness;
mod log_parts;
mod marking;
mod messages;
mod notice;
mod owed_marks;
mod parking_queue;
mod progress;
mod publish;
mod replay;
mod replay_messages;
mod replay_turns;
mod request;
mod scanning;
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

pub(crate) use self::backfill::{Backfill, ScanRanges};
pub(crate) use self::checkpoint::Checkpoint;
use self::claims::Claims;
pub(crate) use self::claims::{ClaimsSettings, LEASE};
use self::core::Core;
pub use self::effect::Watermark;
pub(crate) use self::effect::{
    Age, BooksEffect, BrokerEffect, ClaimsEffect, Effect, End, Found, MarkingEffect, OpenScan,
    Pass, ReadScan, ReplayEffect, RowsEffect, ScanEffect, ScanRange, Sees, Statement, SweepRange,
    Unmarked, Verdict,
};
pub(crate) use self::input::{
    BooksInput, BrokerInput, ClaimsInput, Input, LogInput, Marked, MarkingInput, Parked, Refusal,
    ReplayInput, RowOfDead, RowsInput, ScanInput, ScanMarks, ScanRead,
};
pub(crate) use self::last_event::LastEvent;
use self::log_parts::LogParts;
pub(crate) use self::log_parts::LogStart;
use self::marking::MarkCounts;
pub(crate) use self::marking::{
    Batching, MARKS_AT_ONCE, MARKS_WAITING_MAX, Marking, MarkingStart, SWEEPER_STORED_MAX,
    SWEPT_AT_ONCE, Sweeper, Swept,
};
pub(crate) use self::messages::{
    Blocked, Dead, Ignored, Mode, NotedPlace, Part, Resolved, Send, Settings, Start,
};
pub(crate) use self::notice::{About, Notice};
pub(crate) use self::publish::{LOGGED_WHILE_SCAN_UNMARKED_MAX, Publishing, SCANS_UNMARKED_MAX};
pub(crate) use self::replay::Replaying;
pub(crate) use self::replay_messages::{
    ReplayNote, ReplayPage, ReplayRow, ReplayStart, ReplayUnread, ReplayWish,
};
pub(crate) use self::request::Request;
pub(crate) use self::slot_found::{SlotFound, SlotKnown, SlotSeen};
pub(crate) use self::slot_health::SlotHealth;
pub(crate) use self::slot_watch::SlotNotice;
pub use self::tail_messages::Stored;
pub(crate) use self::tail_messages::{Tail, TailMessage};
pub use self::window::Unpublished;
pub use self::window::WindowLimits;
pub(crate) use self::window::{LastPosition, Origin, Outgoing, Replayed, Tried};
pub(crate) use self::written_down::{
    Compared, LostEnd, Place, ResolvedPlace, WrittenDown, beyond_the_log,
};

/// What operators see of an engine.
pub(crate) struct Figures<'a> {
    pub(crate) publishing: &'a Publishing,
    pub(crate) marks: MarkCounts,
    /// What PostgreSQL was told to forget.
    pub(crate) confirmed: Lsn,
    /// Rows marked by this session's scans.
    pub(crate) scanned: u64,
    /// The first scan has not found everything that the log does not bring.
    pub(crate) has_gap: bool,
}

/// What is seen of PostgreSQL when time has passed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// For how long the log was silent.
    pub(crate) silence: Duration,
    /// A connection has no claim.
    pub(crate) has_free: bool,
}

/// The parts that an engine is made with, besides its window.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one in a session")]
enum Parts {
    Log(LogParts),
    Claims(Claims),
}

/// All that is decided in one session. It is told what happened and what time it is, measured from
/// the session's start, and says what is to be done. See the module.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    core: Core,
    parts: Parts,
}

impl Engine {
    pub(crate) fn of_log(start: LogStart) -> Self {
        let (parts, core) = LogParts::new(start);
        Self { core, parts: Parts::Log(parts) }
    }

    pub(crate) fn of_claims(publishing: Publishing, settings: ClaimsSettings) -> Self {
        let parts = Parts::Claims(Claims::new(settings, publishing.last_seq()));
        Self { core: Core::new(publishing), parts }
    }

    /// Takes in what happened.
    pub(crate) fn apply(&mut self, now: Duration, input: impl Into<Input>) {
        let core = &mut self.core;
        match &mut self.parts {
            Parts::Log(log) => match input.into() {
                Input::Log(input) => core.publishing.read(now, input),
                Input::Broker(input) => core.publishing.heard(now, input),
                Input::Books(input) => log.booked(core, now, input),
                Input::Rows(input) => log.rows(core, now, input),
                Input::Marking(input) => log.marked(core, now, input),
                Input::Scan(input) => log.scan(core, now, input),
                Input::Replay(input) => log.replayed(core, now, input),
                Input::Claims(_) => core.end(End::Bug("a session over the log has no claims")),
            },
            Parts::Claims(claims) => match input.into() {
                Input::Broker(input) => claims.heard(core, now, input),
                Input::Rows(input) => Claims::rows(core, now, input),
                Input::Claims(input) => claims.take_in(core, now, input),
                Input::Log(_)
                | Input::Books(_)
                | Input::Marking(_)
                | Input::Scan(_)
                | Input::Replay(_) => core.end(End::Bug("a session over the table has no log")),
            },
        }
    }

    /// Decides what follows from everything that was taken in.
    pub(crate) fn turn(&mut self, now: Duration) {
        if let Parts::Claims(claims) = &mut self.parts {
            claims.was_held_up(&mut self.core, now);
        }
        while let Some(request) = self.core.publishing.next_request() {
            self.take_request(now, request);
        }
        match &mut self.parts {
            Parts::Log(log) => log.turn(&mut self.core, now),
            Parts::Claims(claims) => claims.turn(&mut self.core, now),
        }
        self.assert_holds();
    }

    /// What is to be done, besides sending.
    pub(crate) fn next_effect(&mut self) -> Option<Effect> {
        self.core.effects.pop_front()
    }

    /// Whether the log may bring more. While it is false its connection is not read.
    pub(crate) fn wants_log(&self) -> bool {
        match &self.parts {
            Parts::Log(log) => log.wants_log(&self.core),
            Parts::Claims(_) => false,
        }
    }

    /// When [`turn`](Self::turn) is due although nothing has happened, if that is known: the copies
    /// of a replay rest until then, or rows are claimed.
    pub(crate) fn wakes_at(&self, now: Duration) -> Option<Duration> {
        match &self.parts {
            Parts::Log(_) => self.core.publishing.copies_rest_until(now),
            Parts::Claims(claims) => claims.claims_at(&self.core),
        }
    }

    /// Called in each turn, right before the first message is sent. If the process was held up, by
    /// the machine or by a signal, others may publish in its stead by now: nothing is sent before
    /// the stream was read.
    pub(crate) fn before_sending(&mut self, now: Duration) {
        match &mut self.parts {
            Parts::Log(log) => log.before_sending(&mut self.core, now),
            Parts::Claims(claims) => _ = claims.was_held_up(&mut self.core, now),
        }
    }

    /// Whether a message, or a batch's end, may be sent.
    pub(crate) fn has_send(&mut self) -> bool {
        match &self.parts {
            Parts::Log(_) => self.core.publishing.has_send(),
            Parts::Claims(claims) => claims.has_send(&mut self.core),
        }
    }

    /// The next message. Where it is to be known of each of them what time it is, `clock` tells.
    pub(crate) fn next_send(&mut self, clock: impl FnOnce() -> Duration) -> Option<Send<'_>> {
        if let Parts::Claims(claims) = &mut self.parts
            && !claims.may_send(&mut self.core, clock())
        {
            return None;
        }
        self.core.publishing.next_send()
    }

    /// The end of a batch, if that is what is sent next.
    pub(crate) fn next_end(&mut self) -> Option<Part> {
        self.core.publishing.next_end()
    }

    /// Takes in that time has passed.
    pub(crate) fn tick(&mut self, now: Duration, seen: Seen) {
        let core = &mut self.core;
        core.publishing.tick(now);
        match &mut self.parts {
            Parts::Log(log) => log.tick(core, now, seen.silence),
            Parts::Claims(claims) => claims.tick(core, now, seen.has_free),
        }
    }

    /// Takes nothing new in any more.
    pub(crate) fn stop(&mut self, now: Duration, why: &'static str) {
        self.core.stop(now, why);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.core.is_draining()
    }

    /// Whether a session that is to end may.
    pub(crate) fn is_drained(&self, now: Duration) -> bool {
        self.core.is_draining() && {
            let is_done = match &self.parts {
                Parts::Log(log) => log.is_done(&self.core),
                Parts::Claims(claims) => claims.is_done(),
            };
            self.core.is_drained(now, is_done)
        }
    }

    pub(crate) fn figures(&self) -> Figures<'_> {
        let publishing = &self.core.publishing;
        match &self.parts {
            Parts::Log(log) => Figures {
                publishing,
                marks: log.marking.counts(),
                confirmed: log.checkpoint.confirmed(),
                scanned: log.backfill.scanned(),
                has_gap: !log.backfill.is_clear(),
            },
            Parts::Claims(claims) => Figures {
                publishing,
                marks: claims.marks(),
                confirmed: Lsn::ZERO,
                scanned: 0,
                has_gap: false,
            },
        }
    }

    pub(crate) fn publishing(&self) -> &Publishing {
        &self.core.publishing
    }

    /// Marks that wait to be written behind the log.
    pub(crate) fn marks_waiting(&self) -> usize {
        match &self.parts {
            Parts::Log(log) => log.marking.waiting(),
            Parts::Claims(_) => 0,
        }
    }

    /// Where the slot is to be left at the end of a session that was asked to stop, and what is
    /// written down of that. `confirmed_before` is what it had confirmed when the session began.
    /// `None` without a slot.
    pub(crate) fn last_position(&self, confirmed_before: Lsn) -> Option<(Lsn, NotedPlace)> {
        match &self.parts {
            Parts::Log(log) => Some(log.last_position(&self.core, confirmed_before)),
            Parts::Claims(_) => None,
        }
    }

    fn take_request(&mut self, now: Duration, request: Request) {
        let core = &mut self.core;
        match request {
            Request::ReadTail { from, delay, why } => {
                let unresolved = core.publishing.unresolved();
                core.tell(Notice::ReadingTail { why, unresolved });
                if let Parts::Claims(claims) = &mut self.parts {
                    claims.reads_tail(now);
                }
                core.effects.push_back(Effect::Broker(BrokerEffect::ReadTail { from, delay }));
            }
            Request::LookUp { epoch, index, seq, id } => {
                let look = BrokerEffect::LookUp { epoch, index, seq, id };
                core.effects.push_back(Effect::Broker(look));
            }
            Request::Park { index, dead } => {
                if dead.blocked_by.is_none() {
                    let about = core.publishing.about(index, dead.event.id);
                    core.tell(Notice::Parking { about, reason: dead.reason.clone() });
                }
                match &mut self.parts {
                    Parts::Log(log) => log.parking.ask(index, dead),
                    Parts::Claims(claims) => claims.park(core, index, dead),
                }
            }
            Request::NoteFailure { index, id, has_row, attempts, reason, pause } => {
                let (about, said) = (core.publishing.about(index, id), reason.clone());
                core.tell(Notice::TryingAgain { about, attempts, reason: said, pause });
                let claim = match &self.parts {
                    Parts::Log(_) => None,
                    Parts::Claims(claims) => match claims.holder(id) {
                        None => return core.end(End::ClaimLost),
                        claim => claim,
                    },
                };
                if has_row {
                    let note = RowsEffect::NoteFailure { claim, id, reason, pause };
                    core.effects.push_back(Effect::Rows(note));
                }
            }
            Request::Tell(notice) => core.tell(notice),
            Request::End(end) => core.end(end),
        }
    }
}
