//! PostgreSQL, and the jobs that reach it: what they do there, and what comes of them.

use std::time::Duration;

use pgoutput::Lsn;
use rand::RngExt;
use uuid::Uuid;

use super::check::is_dropped;
use super::{Faults, Job, MAX_ATTEMPTS, World};
use crate::engine::{
    BooksEffect, BooksInput, BrokerEffect, BrokerInput, ClaimsEffect, Effect, End, Found, Input,
    LastEvent, Marked, MarkingEffect, MarkingInput, Mode, NotedPlace, Notice, Place, Resolved,
    RowOfDead, RowsEffect, RowsInput, ScanEffect, ScanInput, ScanMarks, ScanRead, Seen, Sees,
    SlotHealth, Verdict,
};

/// Rows of a scan at a time.
const SCANNED_AT_ONCE: usize = 2;

/// As the engine promises, and the longest step of the clock.
const IDLE_SCAN_MAX: Duration = Duration::from_millis(2_000 + 3_300);

/// What is written down beside the slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub(super) end: Lsn,
    /// Where the slot began.
    pub(super) start: Lsn,
    pub(super) place: Option<Place>,
    /// The mode of the session that writes, and of the one that wrote the place.
    pub(super) session: Mode,
    pub(super) rules: Option<Mode>,
}

impl Written {
    pub(super) fn new(end: Lsn) -> Self {
        Self { end, start: end, place: None, session: Mode::Fenced, rules: None }
    }

    pub(super) fn note(&mut self, place: NotedPlace) {
        self.place = match place {
            NotedPlace::At(place) => Some(place),
            NotedPlace::Unchanged | NotedPlace::Kept => self.place,
            NotedPlace::Uncounted => self.place.map(|it| Place { seq: None, ..it }),
        };
        self.rules = Some(self.session);
    }

    /// Others' messages come between the log's.
    pub(super) fn uncount(&mut self) {
        self.place = self.place.map(|it| Place { seq: None, ..it });
    }
}

/// Each claim has a connection.
const OF_CLAIMS: usize = 7;

/// A connection executes its statements in order.
pub(super) fn connection(effect: &Effect) -> usize {
    match effect {
        Effect::Broker(_) | Effect::Claims(ClaimsEffect::LookAtTail { .. }) => 0,
        Effect::Claims(
            ClaimsEffect::Claim { claim }
            | ClaimsEffect::Renew { claim }
            | ClaimsEffect::Mark { claim, .. }
            | ClaimsEffect::GiveBack { claim, .. },
        )
        | Effect::Rows(
            RowsEffect::Park { claim: Some(claim), .. }
            | RowsEffect::NoteFailure { claim: Some(claim), .. },
        ) => OF_CLAIMS + *claim as usize,
        Effect::Rows(_) | Effect::Scan(ScanEffect::Mark { .. }) => 1,
        Effect::Marking(MarkingEffect::Mark { statement, .. }) if statement.is_on_second() => 2,
        Effect::Marking(MarkingEffect::OpenSecondWriter) => 4,
        Effect::Marking(_) => 3,
        Effect::Scan(ScanEffect::Open(_) | ScanEffect::Read(_) | ScanEffect::Close) => 5,
        Effect::Scan(
            ScanEffect::Abandon { .. }
            | ScanEffect::Watch { .. }
            | ScanEffect::NoteGapFilled { .. }
            | ScanEffect::Note,
        )
        | Effect::Books(_)
        | Effect::Replay(_)
        | Effect::Confirm(_)
        | Effect::Measure(_)
        | Effect::Tell(_)
        | Effect::End(_) => 6,
    }
}

impl World {
    /// Begins what the engine asks for.
    pub(super) fn effects(&mut self) {
        self.relay.engine.turn(self.time());
        while let Some(effect) = self.relay.engine.next_effect() {
            self.note_asked(&effect);
            match effect {
                Effect::Confirm(lsn) => {
                    assert!(lsn <= self.written.end, "confirmed beyond what is written down");
                    self.check_end_is_noted(|it| it.end_lsn <= lsn);
                    self.relay.confirming = lsn;
                }
                Effect::Measure(resolved) => {
                    let last = Resolved::last_of(&resolved);
                    self.relay.last_event = LastEvent::later(last, self.relay.last_event);
                    self.seen.resolved.extend(resolved.iter().map(|it| it.id.as_u128()));
                    resolved.into_iter().for_each(|it| self.check_resolved(it));
                }
                Effect::Scan(ScanEffect::Abandon { .. }) => self.relay.cursor = None,
                Effect::End(end @ (End::LeaveFence(_) | End::StreamIsShorter | End::ClaimLost)) => {
                    self.ends = Some(end);
                }
                Effect::End(end) => panic!("the session ends: {end:?}"),
                Effect::Tell(Notice::TryingAgain { attempts, .. }) => {
                    assert!(attempts < MAX_ATTEMPTS, "tried too often");
                }
                Effect::Marking(MarkingEffect::NoteSweep) => self.lost_end = false,
                Effect::Tell(Notice::Uncounted) => self.says_uncounted = true,
                Effect::Tell(_)
                | Effect::Marking(MarkingEffect::CloseSecondWriter)
                | Effect::Scan(ScanEffect::Note)
                | Effect::Books(BooksEffect::Heartbeat | BooksEffect::AwaitSlot)
                | Effect::Broker(BrokerEffect::LeaveServer) => {}
                effect @ (Effect::Books(_)
                | Effect::Rows(_)
                | Effect::Marking(_)
                | Effect::Scan(_)
                | Effect::Replay(_)
                | Effect::Claims(_)
                | Effect::Broker(_)) => {
                    self.check_rows_of(&effect);
                    // Only for a row that never passed the log.
                    let seeks = matches!(effect, Effect::Marking(MarkingEffect::Seek { .. }));
                    assert!(
                        !seeks || self.faults.unlogged || self.faults.goes_back,
                        "sought in vain in the whole stream"
                    );
                    if let Effect::Rows(RowsEffect::Park { batch, .. }) = &effect {
                        self.given_up.extend(batch.iter().map(|it| it.1.event.id.as_u128()));
                    }
                    self.relay.jobs.push(Job { effect, since: self.now });
                    self.check_under_way();
                }
            }
        }
        if self.ends.is_some() {
            self.end_session();
        }
    }

    /// A job is executed, or one that was comes back.
    pub(super) fn job(&mut self, honest: bool) {
        let back = self.relay.outcomes.len();
        if back > 0 && (honest || self.rng.random_bool(0.5)) {
            let at = if honest { 0 } else { self.rng.random_range(0..back) };
            let outcome = self.relay.outcomes.remove(at);
            self.relay.last_event = outcome.last_event(self.relay.last_event);
            return self.relay.engine.apply(self.time(), outcome);
        }
        if self.relay.jobs.is_empty() {
            return;
        }
        let any = if honest { 0 } else { self.rng.random_range(0..self.relay.jobs.len()) };
        let wanted = connection(&self.relay.jobs[any].effect);
        let first = self.relay.jobs.iter().position(|it| connection(&it.effect) == wanted);
        let Job { effect, .. } = self.relay.jobs.remove(first.expect("at least that one"));
        if let Effect::Scan(ScanEffect::Open(open)) = &effect
            && open.sees == (Sees::BeforeSlot { awaits_visibility: true })
            && self.table.has_hidden_before_slot()
        {
            self.table.show(None);
        }
        let outcome = match !honest && self.faults.failing && self.rng.random_bool(0.15) {
            true => self.fail(effect),
            false => self.execute(effect),
        };
        self.relay.outcomes.extend(outcome);
        if self.ends.is_some() {
            self.end_session();
        }
    }

    fn end_session(&mut self) {
        match self.faults.claims {
            true => self.end_node(),
            false => self.crash(),
        }
    }

    pub(super) fn execute(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Books(effect) => self.execute_books(effect).map(Input::from),
            Effect::Rows(effect) => self.execute_rows(effect).map(Input::from),
            Effect::Marking(effect) => self.execute_marking(effect).map(Input::from),
            Effect::Scan(effect) => self.execute_scan(effect).map(Input::from),
            Effect::Replay(effect) => self.execute_replay(effect).map(Input::from),
            Effect::Broker(BrokerEffect::ReadTail { from, .. }) => {
                let mut tail = self.tail_read_from(from);
                tail.known_seq = self.relay.last_event.map_or(0, |it| it.seq);
                tail.is_other = self.is_replaced(self.relay.last_event);
                Some(BrokerInput::Tail(tail).into())
            }
            Effect::Broker(BrokerEffect::LookUp { epoch, index, seq, id }) => {
                let is_there = self.has_message(seq, id.as_u128());
                Some(BrokerInput::LookedUp { epoch, index, seq, is_there }.into())
            }
            Effect::Claims(effect) => self.execute_claims(effect).map(Input::from),
            Effect::Broker(BrokerEffect::LeaveServer)
            | Effect::Confirm(_)
            | Effect::Measure(_)
            | Effect::Tell(_)
            | Effect::End(_) => panic!("not a job: {effect:?}"),
        }
    }

    fn execute_books(&mut self, effect: BooksEffect) -> Option<BooksInput> {
        Some(match effect {
            BooksEffect::Checkpoint { at, place, stream_end } => {
                self.stream_end = self.stream_end.max(stream_end);
                self.note_event(self.relay.last_event);
                self.lsn += 3; // the row that it writes
                self.written.end = at;
                self.written.note(match place {
                    NotedPlace::At(it) if self.is_gap_open => {
                        NotedPlace::At(Place { seq: None, ..it })
                    }
                    NotedPlace::At(_)
                    | NotedPlace::Unchanged
                    | NotedPlace::Kept
                    | NotedPlace::Uncounted => place,
                });
                BooksInput::Checkpointed(Some(at))
            }
            BooksEffect::LookAtSlot => BooksInput::Slot(SlotHealth::default()),
            BooksEffect::Heartbeat | BooksEffect::AwaitSlot => panic!("not a job: {effect:?}"),
        })
    }

    fn execute_rows(&mut self, effect: RowsEffect) -> Option<RowsInput> {
        Some(match effect {
            RowsEffect::Park { claim, batch } => {
                self.hear(claim)?;
                RowsInput::Parked(self.park_all(batch))
            }
            RowsEffect::NoteFailure { claim, id, pause, .. } => {
                self.hear(claim)?;
                self.wait_until_due(id.as_u128(), pause);
                let attempts = self.attempts.entry(id.as_u128()).or_default();
                *attempts += 1;
                assert!(*attempts < MAX_ATTEMPTS, "tried too often");
                return None;
            }
            RowsEffect::MakeUpForMarks => {
                let dead = &self.dead;
                RowsInput::Owed(Some(self.table.make_up(|id| dead.contains_key(&id))))
            }
        })
    }

    fn execute_marking(&mut self, effect: MarkingEffect) -> Option<MarkingInput> {
        Some(match effect {
            MarkingEffect::Mark { statement, marks } => {
                self.check_published(&marks);
                self.note_stored(&marks);
                let (rows, _, without_row) = self.table.mark(&marks);
                MarkingInput::Marked { statement, marked: Some(Marked { rows, without_row }) }
            }
            MarkingEffect::OpenSecondWriter => MarkingInput::SecondWriter(true),
            MarkingEffect::TakeWatermark => {
                self.seen.watermarks += 1;
                MarkingInput::Watermark(Some(self.table.take_watermark(self.lsn)))
            }
            MarkingEffect::StoreWatermark(pass) => {
                self.stream_end = self.stream_end.max(pass.stream_end);
                if pass.sweeps_dead {
                    let dead = &self.dead;
                    self.table.rows.retain(|id, it| !(it.is_visible && dead.contains_key(id)));
                }
                self.check_end_is_noted(|it| it.end_lsn <= pass.watermark.lsn);
                MarkingInput::Unmarked(Some(self.table.store(&pass)))
            }
            MarkingEffect::SweepOn { pass, found } => {
                let rows = self.table.unmarked(&pass);
                MarkingInput::Unmarked(Some(Found { rows, ..found }))
            }
            MarkingEffect::ReadStreamBack { found, resolved_before } => {
                let stored = self.stored_since(resolved_before);
                let is_whole = resolved_before.is_some() && self.removed.is_empty();
                MarkingInput::StreamBack { found, stored, is_whole }
            }
            MarkingEffect::Seek { found, verdict, .. } => self.carry_out(found, &verdict, true),
            MarkingEffect::MarkSwept { found, verdict } => self.carry_out(found, &verdict, false),
            MarkingEffect::CloseSecondWriter | MarkingEffect::NoteSweep => {
                panic!("not a job: {effect:?}")
            }
        })
    }

    fn execute_scan(&mut self, effect: ScanEffect) -> Option<ScanInput> {
        Some(match effect {
            ScanEffect::Open(open) => {
                let blocked = self.faults.blocking.then(|| {
                    self.release();
                    self.blocked()
                });
                let rows = match open.sees {
                    Sees::BeforeSlot { .. } => self.table.unpublished(open.range),
                    Sees::BeforeAwaitedSlot if self.awaits_slot => self.table.visible(),
                    Sees::BeforeAwaitedSlot => return Some(ScanInput::Postponed),
                };
                self.relay.cursor = Some(rows.into());
                let mut read = self.read_scan(open.read.with_tail, open.read.opens_gap)?;
                read.blocked = blocked;
                ScanInput::Read(read)
            }
            ScanEffect::Read(read) => {
                ScanInput::Read(self.read_scan(read.with_tail, read.opens_gap)?)
            }
            ScanEffect::Close => {
                self.relay.cursor = None;
                ScanInput::Closed
            }
            ScanEffect::Watch { .. } => {
                ScanInput::Watched(self.faults.failing && self.rng.random_bool(0.1))
            }
            ScanEffect::Mark { batches, published } => {
                self.check_published(&published);
                self.note_stored(&published);
                let (rows, owed, _) = self.table.mark(&published);
                let marked = Some(ScanMarks { rows, owed });
                ScanInput::Marked { batches, published, marked }
            }
            ScanEffect::NoteGapFilled { .. } => {
                self.is_gap_open = false;
                self.written.uncount();
                ScanInput::GapNoted(true)
            }
            ScanEffect::Abandon { .. } | ScanEffect::Note => panic!("not a job: {effect:?}"),
        })
    }

    fn read_scan(&mut self, with_tail: bool, opens_gap: bool) -> Option<ScanRead> {
        let cursor = self.relay.cursor.as_mut()?;
        let rows: Vec<u128> = cursor.drain(..cursor.len().min(SCANNED_AT_ONCE)).collect();
        if opens_gap && !rows.is_empty() {
            self.is_gap_open = true;
            self.written.uncount();
        }
        let seen = (with_tail && !rows.is_empty()).then(|| self.tail_since(1));
        let rows = rows.iter().map(|id| self.scanned(*id)).collect();
        Some(ScanRead { process: 1, rows, blocked: None, seen })
    }

    fn carry_out(&mut self, found: Found, verdict: &Verdict, seeks: bool) -> MarkingInput {
        assert!(seeks || verdict.unlogged.is_empty(), "published without the stream being read");
        self.note_stored(&verdict.resolved);
        let unlogged = || verdict.unlogged.iter().map(Uuid::as_u128);
        let in_stream: Vec<u128> =
            unlogged().filter(|id| self.ids_in_stream().any(|it| it == *id)).collect();
        for id in unlogged().filter(|id| !in_stream.contains(id)) {
            let passed_the_log = !self.unlogged.contains(&id);
            assert!(!passed_the_log || self.faults.goes_back, "{id} passed the log");
            if passed_the_log {
                self.expect_scanned(id);
                // Removed before its row was marked, or lost: that cannot be told.
                if self.stored_ids.contains(&id) {
                    self.may_rescan = true;
                    self.may_repeat.insert(id);
                }
            }
        }
        let (stored, Faults { goes_back, poison, .. }) = (&self.stored_ids, self.faults);
        let is_published = |id| goes_back || stored.contains(&id) || poison && is_dropped(id);
        let is_in_stream = |id| in_stream.contains(&id);
        MarkingInput::Swept(Some(self.table.carry_out(found, verdict, is_published, is_in_stream)))
    }

    /// The event's row leaves the outbox.
    pub(super) fn remove_row(&mut self, id: u128) -> RowOfDead {
        match self.table.rows.get_mut(&id) {
            Some(row) if row.is_visible && row.is_locked => {
                row.is_owed = true;
                RowOfDead::Locked
            }
            Some(row) if row.is_visible => {
                self.table.rows.remove(&id);
                RowOfDead::Removed
            }
            _ => RowOfDead::Unseen,
        }
    }

    /// Rows become visible, are locked or let go of, or come by another way than the log.
    pub(super) fn others(&mut self) {
        match self.rng.random_range(0..3) {
            0 => {
                let hidden = self.table.hidden().next();
                self.table.show(Some(hidden.unwrap_or_default()));
            }
            1 if self.faults.locks => self.lock_some(),
            2 if self.faults.unlogged && self.rng.random_bool(0.3) => self.insert_unlogged(),
            _ => {}
        }
    }

    fn lock_some(&mut self) {
        let locks = self.rng.random_bool(0.5);
        for row in self.table.rows.values_mut() {
            row.is_locked = locks && self.rng.random_bool(0.3);
        }
    }

    pub(super) fn tick(&mut self, most_millis: u64) {
        let passed = self.rng.random_range(0..=most_millis);
        self.now += Duration::from_millis(passed);
        let seen = Seen { silence: Duration::ZERO, has_free: true };
        self.relay.engine.tick(self.time(), seen);
        self.effects();
        self.check_open_scan();
    }

    /// A scan whose transaction is open is read, or ended soon: others may wait for the table.
    fn check_open_scan(&mut self) {
        let reads =
            |it: &Job| matches!(it.effect, Effect::Scan(ScanEffect::Read(_) | ScanEffect::Close));
        let read = |it: &Input| matches!(it, Input::Scan(ScanInput::Read(_)));
        let is_busy = self.relay.jobs.iter().any(reads) || self.relay.outcomes.iter().any(read);
        if self.relay.cursor.is_none() || is_busy {
            self.relay.idle_since = None;
        } else {
            let since = *self.relay.idle_since.get_or_insert(self.now);
            assert!(self.now - since <= IDLE_SCAN_MAX, "a scan is left open");
        }
    }
}
