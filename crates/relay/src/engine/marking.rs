//! Behind publishing: marks, the watermark, the sweeper.
//!
//! Nothing here is on the way of an event. A mark may be late or lost; the watermark says which
//! rows are published whether or not they are marked, and the sweeper marks what it covers.

mod marking_holds;
mod queue;
mod sweeper;
mod watermark;
mod writers;

use std::time::Duration;

use pgoutput::Lsn;

pub(crate) use self::queue::{MARKS_AT_ONCE, MARKS_WAITING_MAX};
use self::sweeper::Judgement;
pub(crate) use self::sweeper::{SWEEPER_STORED_MAX, Sweeper};
pub(crate) use self::watermark::SWEPT_AT_ONCE;
use self::watermark::{LostMarks, Missed, Step, Unseen};
pub(crate) use self::writers::Batching;
use self::writers::Writers;
use super::effect::{
    Effect, Effects, Found, MarkingEffect, Pass, Statement, SweepRange, Watermark,
};
use super::messages::Resolved;
use super::notice::Notice;
use super::tail_messages::Stored;

/// How often the watermark moves while events are published.
const WATERMARK_EVERY: Duration = Duration::from_secs(1);

/// How often it moves while nothing is published: rows may have come by another way.
const WATERMARK_IDLE_EVERY: Duration = Duration::from_secs(60);

/// The pause is at least so many times as long as a look for unmarked rows takes: while somebody keeps
/// vacuum from removing what marks left, each look reads all rows that were marked since.
const PAUSE_FACTOR: u32 = 20;

/// How often the sweeper looks at the whole table, where an index leads to what is expected.
const WHOLE_EVERY: Duration = Duration::from_hours(1);

/// So many bytes of PostgreSQL's log may wait before the session is called behind.
const LOG_BEHIND: u64 = 16 << 20;

/// When a watermark was taken, and what was resolved by then.
#[derive(Debug, Clone, Copy)]
struct Taken {
    at: Duration,
    resolved: u64,
    /// Since the one before.
    news: bool,
}

/// Rows marked since the session began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MarkCounts {
    pub(crate) marked: u64,
    pub(crate) swept: u64,
    /// Of rows that the log should have brought, and did not.
    pub(crate) unlogged: u64,
}

/// What is known when the session begins.
#[derive(Debug, Clone)]
pub(crate) struct MarkingStart {
    pub(crate) batching: Batching,
    /// The watermark is the only mark: rows stay as they are.
    pub(crate) by_watermark: bool,
    /// The latest watermark below which every row is marked.
    pub(crate) swept: Option<Watermark>,
    /// How long ago a session last looked at the whole table.
    pub(crate) whole_swept: Option<Duration>,
    /// Rows can be found by their transactions: nobody needs to read the whole table for the few
    /// that are not marked.
    pub(crate) is_indexed: bool,
    /// The stream has lost its end since the whole table was swept.
    pub(crate) lost_end: bool,
}

/// What a sweep did.
#[derive(Debug, Clone)]
pub(crate) struct Swept {
    pub(crate) found: Found,
    /// Rows marked.
    pub(crate) marked: u64,
    /// Rows that the log did not bring: left to the scanner.
    pub(crate) unlogged: u64,
    /// Rows that it may not have brought.
    pub(crate) suspected: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Marking {
    by_watermark: bool,
    is_indexed: bool,
    writers: Writers,
    sweeper: Sweeper,
    step: Step,
    swept: Option<Watermark>,
    /// When the whole table is to be looked at.
    whole_due: Duration,
    /// The last watermark that was taken.
    taken: Option<Taken>,
    /// When the present look for unmarked rows began, and how long the last one took.
    looking_since: Option<Duration>,
    look_took: Duration,
    /// What was queued when the last watermark was begun, and when the last one that is stored was.
    observing: u64,
    covered: Option<u64>,
    /// Where the watermark is the only mark: what is to be covered before `--once` ends.
    awaited: Option<u64>,
    missed: Missed,
    /// The same for events that were parked before their rows were visible.
    parked_unseen: Missed,
    /// The same for rows whose messages may be among those that the stream has lost.
    lost_unseen: Missed,
    lost: LostMarks,
    unseen: Unseen,
    counts: MarkCounts,
}

impl Marking {
    pub(crate) fn new(start: MarkingStart) -> Self {
        let whole_swept = start.whole_swept.filter(|_| !start.lost_end);
        let whole_due = whole_swept.map(|ago| WHOLE_EVERY.saturating_sub(ago));
        let mut sweeper = Sweeper::new();
        sweeper.distrust(start.lost_end);
        Self {
            by_watermark: start.by_watermark,
            is_indexed: start.is_indexed,
            writers: Writers::new(start.batching),
            sweeper,
            step: Step::Resting,
            swept: start.swept,
            whole_due: whole_due.unwrap_or_default(),
            taken: None,
            looking_since: None,
            look_took: Duration::ZERO,
            observing: 0,
            covered: None,
            awaited: None,
            // By an earlier session.
            missed: Missed::Something,
            parked_unseen: Missed::Something,
            lost_unseen: if start.lost_end { Missed::Something } else { Missed::Nothing },
            lost: LostMarks::default(),
            unseen: Unseen::default(),
            counts: MarkCounts::default(),
        }
    }

    pub(crate) fn counts(&self) -> MarkCounts {
        self.counts
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.writers.is_idle()
    }

    /// Whether a session that ends has nothing more to mark.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_idle() && !self.unseen.is_awaited()
    }

    /// Whether there are rows to mark, also for the sweeper because their marks failed or were too
    /// many to wait.
    ///
    /// Where the watermark is the only mark: whether this session's watermark does not cover all
    /// that was published when this was asked for the first time, by this session or an earlier one.
    pub(crate) fn owes_marks(&mut self) -> bool {
        if self.by_watermark {
            self.awaited.get_or_insert(self.writers.marks.queued());
            return self.is_awaited();
        }
        !self.is_idle() || self.lost.any()
    }

    fn is_awaited(&self) -> bool {
        self.awaited.is_some_and(|awaited| self.covered.is_none_or(|covered| covered < awaited))
    }

    /// Whether there are many rows that the log is known to have yet to bring, or that are published
    /// and not marked.
    pub(crate) fn is_behind(&self, confirmed: Lsn) -> bool {
        self.log_waits(confirmed) || self.writers.are_late()
    }

    fn log_waits(&self, confirmed: Lsn) -> bool {
        if let Step::Waiting(watermark) = &self.step
            && confirmed > Lsn::ZERO
        {
            let bytes = watermark.lsn.checked_bytes_since(confirmed);
            return bytes.is_some_and(|it| it > LOG_BEHIND);
        }
        false
    }

    /// An event of the log is published: its row is to be marked.
    pub(crate) fn queue(&mut self, now: Duration, resolved: &Resolved) {
        self.writers.note_first(now);
        if self.by_watermark {
            self.writers.marks.skip();
            // Its row may not be visible yet, and no mark tells: so until it must be.
            self.missed = Missed::Something;
        } else if !self.writers.marks.push(resolved) {
            self.lose();
        }
    }

    /// Nothing more is published: when all marks are written, those that hit no row are tried again.
    pub(crate) fn finish(&mut self, now: Duration) {
        if self.is_idle() {
            for resolved in self.unseen.take(now) {
                self.queue(now, &resolved);
            }
        }
    }

    /// Begins what is due. `confirmed` is how far everything is resolved, `stream_end` the highest
    /// sequence known to be in the stream; with `hurry` the marks are waited for.
    pub(crate) fn advance(
        &mut self,
        now: Duration,
        confirmed: Lsn,
        stream_end: u64,
        hurry: bool,
        effects: &mut Effects,
    ) {
        let log_waits = self.log_waits(confirmed);
        self.writers.flush(now, log_waits, hurry, effects);
        self.step = match std::mem::replace(&mut self.step, Step::Resting) {
            Step::Waiting(watermark) if confirmed >= watermark.lsn => {
                Step::Flushing { watermark, marks: self.writers.marks.queued() }
            }
            Step::Flushing { watermark, marks } if self.writers.marks.has_ended(marks) => {
                let pass = self.pass(now, watermark, stream_end);
                self.looking_since = (!pass.takes_long).then_some(now);
                effects.push_back(Effect::Marking(MarkingEffect::StoreWatermark(pass.clone())));
                Step::Sweeping(pass)
            }
            other @ (Step::Resting
            | Step::Taking
            | Step::Waiting(_)
            | Step::Flushing { .. }
            | Step::Sweeping(_)) => other,
        };
    }

    /// Takes a watermark when something was resolved since the last one, or when marks missed rows
    /// that may have become visible; so also at the start, for what an earlier session left
    /// unmarked. Then one more: a transaction is in the log a moment before snapshots see it, so
    /// the first may not cover what was resolved last.
    pub(crate) fn observe_if_due(&mut self, now: Duration, resolved: u64, effects: &mut Effects) {
        let before = self.taken;
        let misses = self.missed != Missed::Nothing || self.lost_unseen != Missed::Nothing;
        let news = misses || before.is_none_or(|it| it.resolved != resolved);
        let is_due = before.is_none_or(|it| {
            let dear = (self.look_took * PAUSE_FACTOR).clamp(WATERMARK_EVERY, WATERMARK_IDLE_EVERY);
            let pause = if news || it.news { dear } else { WATERMARK_IDLE_EVERY };
            now.saturating_sub(it.at) >= pause
        });
        if matches!(self.step, Step::Resting) && (self.is_awaited() || is_due) {
            self.missed = self.missed.observed();
            self.parked_unseen = self.parked_unseen.observed();
            self.lost_unseen = self.lost_unseen.observed();
            // What is dropped from now on may be covered by this watermark or by the next one.
            self.lost.taken();
            self.taken = Some(Taken { at: now, resolved, news });
            self.observing = self.writers.marks.queued();
            self.step = Step::Taking;
            effects.push_back(Effect::Marking(MarkingEffect::TakeWatermark));
        }
    }

    fn pass(&self, now: Duration, watermark: Watermark, stream_end: u64) -> Pass {
        let is_whole = !self.is_indexed || self.whole_due <= now;
        let range = if is_whole { SweepRange::Whole } else { SweepRange::SinceSwept };
        Pass {
            watermark,
            swept: self.swept.clone(),
            range,
            // A row can only be left there by who parked it while it was not visible.
            sweeps_dead: self.parked_unseen != Missed::Nothing,
            takes_long: self.is_indexed && (self.covered.is_none() || is_whole),
            stream_end,
        }
    }

    /// The watermark is taken; `None` if it could not be.
    pub(crate) fn observed(&mut self, watermark: Option<Watermark>) {
        match watermark {
            Some(watermark) => self.step = Step::Waiting(watermark),
            None => self.give_up(),
        }
    }

    /// A statement ended; if it failed, the rows are left to the sweeper. `marked` is how many rows
    /// it marked, and the events of which there is no row to be seen: it is gone, or not visible yet.
    pub(crate) fn marked(
        &mut self,
        now: Duration,
        statement: Statement,
        marked: Option<(u64, &[Resolved])>,
    ) {
        self.writers.ended(now, statement);
        let Some((rows, without_row)) = marked else { return self.lose() };
        self.counts.marked += rows;
        if rows < statement.marks as u64 {
            self.missed = Missed::Something;
        }
        for resolved in without_row {
            if !self.sweeper.remember(resolved) {
                self.lost.lose();
            }
        }
        self.unseen.note(without_row);
    }

    fn lose(&mut self) {
        self.missed = Missed::Something;
        self.lost.lose();
    }

    /// The second connection for marks is there, or could not be had.
    pub(crate) fn second_opened(&mut self, now: Duration, is_open: bool) {
        self.writers.second_opened(now, is_open);
    }

    pub(crate) fn second_broke(&mut self, now: Duration) {
        self.writers.second_broke(now);
    }

    /// Marks that wait to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.writers.marks.waiting()
    }

    /// A parked event's row was not there, perhaps because it is not visible yet.
    pub(crate) fn parked(&mut self) {
        (self.missed, self.parked_unseen) = (Missed::Something, Missed::Something);
    }

    /// Judges what was found. `None` if it could not be found out.
    pub(crate) fn found(&mut self, now: Duration, found: Option<Found>, effects: &mut Effects) {
        if let Some(since) = self.looking_since.take() {
            self.look_took = now.saturating_sub(since);
        }
        let (Some(found), Step::Sweeping(pass)) = (found, &self.step) else {
            return self.give_up();
        };
        match self.sweeper.judge(&found.rows, self.lost.any()) {
            Judgement::AskTheStream => {
                // Without a complete sweep nothing is told from the stream's silence.
                let resolved_before = self.swept.as_ref().map(|it| it.lsn);
                effects.push_back(Effect::Marking(MarkingEffect::ReadStreamBack {
                    found,
                    resolved_before,
                }));
            }
            // Before anything is published that the log did not bring, the whole stream is read for
            // it: its mark may have been taken away, by hand or with a table that was restored.
            Judgement::Done(verdict) if !verdict.unlogged.is_empty() => {
                effects.push_back(Effect::Marking(MarkingEffect::Seek {
                    pass: pass.clone(),
                    found,
                    verdict,
                }));
            }
            Judgement::Done(verdict) if found.rows.is_empty() => {
                let suspected = verdict.suspected;
                let swept = Swept { found, marked: 0, unlogged: 0, suspected };
                self.swept(now, Some(swept), effects);
            }
            Judgement::Done(verdict) => {
                effects.push_back(Effect::Marking(MarkingEffect::MarkSwept { found, verdict }))
            }
        }
    }

    /// What the stream has since the last complete sweep.
    pub(crate) fn stream_read(
        &mut self,
        now: Duration,
        found: Found,
        stored: &[Stored],
        is_whole: bool,
        effects: &mut Effects,
    ) {
        self.sweeper.read(stored, is_whole);
        self.found(now, Some(found), effects);
    }

    /// A sweep ended, or failed: the next one follows at once while it finds as much as it may take.
    pub(crate) fn swept(&mut self, now: Duration, swept: Option<Swept>, effects: &mut Effects) {
        let step = std::mem::replace(&mut self.step, Step::Resting);
        let (Some(swept), Step::Sweeping(pass)) = (swept, step) else {
            return self.give_up();
        };
        self.sweeper.carried_out();
        let Swept { found, marked, unlogged, suspected } = swept;
        self.counts.swept += marked;
        self.counts.unlogged += unlogged;
        if suspected > 0 {
            self.missed = Missed::Something; // the next watermark tells
        } else if found.rows.len() == SWEPT_AT_ONCE {
            let on = MarkingEffect::SweepOn { pass: pass.clone(), found };
            effects.push_back(Effect::Marking(on));
            self.step = Step::Sweeping(pass);
        } else {
            self.complete(now, pass, &found, effects);
        }
        for (rows, notice) in [
            (marked, Notice::Swept { rows: marked }),
            (unlogged, Notice::Unlogged { rows: unlogged }),
        ] {
            if rows > 0 {
                effects.push_back(Effect::Tell(notice));
            }
        }
    }

    /// Every row that the watermark covers is marked.
    fn complete(&mut self, now: Duration, pass: Pass, found: &Found, effects: &mut Effects) {
        let is_whole = pass.range == SweepRange::Whole;
        self.whole_due = if is_whole { now + WHOLE_EVERY } else { self.whole_due };
        let (transaction, oldest_running) = (found.transaction, found.oldest_running);
        // What committed before the loss may become visible after the whole table was swept.
        if is_whole || matches!(self.lost_unseen, Missed::Before(_)) {
            self.lost_unseen = self.lost_unseen.swept(transaction, oldest_running);
        }
        let had_lost = self.sweeper.distrusts();
        if self.lost_unseen == Missed::Nothing && (had_lost || is_whole && self.is_indexed) {
            self.sweeper.distrust(false);
            effects.push_back(Effect::Marking(MarkingEffect::NoteSweep));
        }
        if self.by_watermark {
            self.counts.marked += self.observing - self.covered.unwrap_or(0);
        }
        self.covered = Some(self.observing);
        self.swept = Some(pass.watermark);
        self.sweeper.completed();
        let had_missed = self.missed != Missed::Nothing;
        self.missed = self.missed.swept(transaction, oldest_running);
        self.parked_unseen = self.parked_unseen.swept(transaction, oldest_running);
        if had_missed && self.missed == Missed::Nothing {
            self.sweeper.forget();
            self.unseen.forget();
        }
    }

    /// The next watermark covers the same rows.
    fn give_up(&mut self) {
        self.step = Step::Resting;
        self.missed = Missed::Something;
        self.parked_unseen = self.parked_unseen.unswept();
        self.lost_unseen = self.lost_unseen.unswept();
        self.lost.not_covered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_taken(marking: &mut Marking, second: u64, resolved: u64) -> bool {
        let mut effects = Effects::new();
        (marking.step, marking.missed) = (Step::Resting, Missed::Nothing);
        marking.observe_if_due(Duration::from_secs(second), resolved, &mut effects);
        !effects.is_empty()
    }

    #[test]
    fn after_what_was_resolved_last_one_more_watermark_is_taken_within_a_second() {
        let interval = Duration::from_millis(50);
        let mut marking = Marking::new(MarkingStart {
            batching: Batching { marks: 5, interval, waiting_max: 10 },
            by_watermark: true,
            swept: None,
            whole_swept: None,
            is_indexed: true,
            lost_end: false,
        });
        let mut takes = |second, resolved| is_taken(&mut marking, second, resolved);
        assert_eq!(
            [takes(0, 7), takes(1, 7), takes(2, 7), takes(60, 7)],
            [true, true, false, false]
        );
        assert_eq!([takes(61, 7), takes(62, 7)], [true, false], "nothing came: once a minute");
        assert_eq!([takes(63, 8), takes(64, 8), takes(65, 8)], [true, true, false]);
        marking.look_took = Duration::from_millis(150);
        let mut takes = |second, resolved| is_taken(&mut marking, second, resolved);
        assert_eq!([takes(65, 9), takes(66, 10), takes(67, 11)], [false, false, true], "it costs");
    }
}
